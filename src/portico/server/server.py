"""The Server: a Handler made of what has been registered with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, reduce
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico._lazy import load_module
from portico._options import check_options, explained
from portico.rpc.call import Call, Handler, Middleware, members
from portico.rpc.rounds import Seal
from portico.schema.problems import nearest
from portico.server.calling import completion
from portico.server.calling.prompts import Prompt
from portico.server.calling.resources import Resource
from portico.server.calling.threads import MOST_THREADS, Threads
from portico.server.calling.tools import ArgumentErrors, Tool
from portico.server.registry import mounts
from portico.server.registry.catalog import PAGE_SIZE, Catalog, position
from portico.server.registry.lifespans import Lives
from portico.server.registry.mounts import Mount
from portico.server.registry.registry import Offers
from portico.server.registry.service import Offered, Registrar, Service, marked
from portico.server.registry.subscriptions import MOST_URIS, Subscriptions
from portico.transport import stdio
from portico.wire import jsonrpc, notices, tasks
from portico.wire.completion import CompleteParams, PromptReference
from portico.wire.discover import DiscoverResult
from portico.wire.errors import (
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    ResourceNotFound,
    Unknown,
    UsageError,
)
from portico.wire.jsonrpc import NOTHING
from portico.wire.meta import SERVER_INFO, Icon, Implementation, ServerCapabilities
from portico.wire.mirrors import Mirror
from portico.wire.prompts import GetPromptParams
from portico.wire.resources import (
    ReadResourceParams,
    ReadResourceResult,
)
from portico.wire.revisions import LATEST, MODERN_REVISIONS, V2025_11_25
from portico.wire.subscriptions import Filter, ListenParams
from portico.wire.tools import CallToolParams

if TYPE_CHECKING:
    from portico.server.endpoint import AsgiOptions, HttpOptions
    from portico.server.tasks.tasks import Tasks
    from portico.transport.http.asgi import Application
    from portico.transport.stdio import StdioOptions

Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]

CAPABILITIES: dict[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}


class Server(Registrar):
    """A server that people write: register with the decorators, then `run()`.

    It is a Handler. It speaks 2026-07-28; the handshake revisions reach it through a session that the transport
    puts in front of it.

    * **name**, **version** – what clients are told about this server.
    * **title**, **description**, **website_url**, **icons** – what people are shown of it.
    * **instructions** – how a model should use this server as a whole.
    * **capabilities** – what to advertise in place of everything: a feature that is left out is not answered either.
    * **middleware** – put around everything that this server answers; the last one is the outermost.
    * **lifespan** – `lifespan(server)` is an async context manager, entered at the start and left at the end.
    * **argument_errors** – how wrong arguments are answered: as a "result" that the model reads, as a "protocol" error,
      or "auto": whichever the client's revision wants.
    * **page_size** – how many entries a page of a list has.
    * **most_threads** – how many `def` bodies may run at once.
    * **ttl_ms**, **cache_scope** – how long clients may keep lists and resources, and whether several users may share
      them.
    * **state_key** – seals what clients carry from one round to the next. Processes that serve the same clients need
      the same key; otherwise each makes its own.
    * **store** – where tasks are kept: a URL of the store. None: PORTICO_STORE, or memory.
    """

    @explained
    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon] | None = None,
        instructions: str | None = None,
        capabilities: dict[str, Any] | None = None,
        middleware: Iterable[Middleware] = (),
        lifespan: Lifespan | None = None,
        argument_errors: ArgumentErrors = "auto",
        page_size: int = PAGE_SIZE,
        most_threads: int = MOST_THREADS,
        ttl_ms: int = 0,
        cache_scope: Literal["public", "private"] = "private",
        state_key: bytes | None = None,
        store: str | None = None,
    ) -> None:
        self.info = Implementation(name, version, title, description, website_url, list(icons) if icons else None)
        self.instructions = instructions
        self.argument_errors: ArgumentErrors = argument_errors
        self.threads = Threads(most_threads)
        self.seal = Seal(state_key)
        self.capabilities = ServerCapabilities(**(CAPABILITIES if capabilities is None else capabilities))
        self._extensions: dict[str, Any] = self.capabilities.extensions or {}
        self.subscriptions = Subscriptions(self._honoured)
        self._hints: dict[str, Any] = {"ttl_ms": ttl_ms, "cache_scope": cache_scope}
        self._lives = Lives()
        # Where tasks are kept: a URL of the store. None: PORTICO_STORE, or memory.
        self.store = store
        self._tasks: Tasks | None = None
        if lifespan is not None:
            self._lives.add(self, partial(lifespan, self))
        self._middleware = list(middleware)
        self._chain: Handler | None = None
        self._services: dict[str, list[Offered]] = {}
        self._running: list[Service] = []
        self._mounts: list[Mount] = []
        # For each listener what it wants, and who listens for it at the mounted handlers.
        self._relays: list[tuple[Filter, dict[Mount, asyncio.Task[None]]]] = []
        self.offers = Offers(
            page_size=page_size,
            stamp=Raw(jsonrpc.encode({SERVER_INFO: self.info})),
            hints=self._hints,
            publish=self.subscriptions.publish,
        )
        self.tools, self.prompts = self.offers.tools, self.offers.prompts
        self.resources, self.templates = self.offers.resources, self.offers.templates
        self._answers = self._answerers()
        self._link()

    def _extend(self) -> None:
        """Advertise and answer the extensions of the services there are now."""
        answers = self._answerers()
        extensions = dict(self._extensions)
        for service in self._running:
            extensions |= {name: dict(settings) for name, settings in service.extensions().items()}
            answers |= service.methods()
        if self._tasks is not None:
            extensions[tasks.EXTENSION] = {}
            answers |= self._tasks.methods()
        self.capabilities = replace(self.capabilities, extensions=extensions or None)
        self._answers = answers

    def _answerers(self) -> dict[str, Callable[[Call], Any]]:
        """Who answers what. A capability that is not advertised is a method that is not there."""
        features: dict[str, dict[str, Callable[[Call], Any]]] = {
            "tools": {"tools/list": partial(self._list, self.tools), "tools/call": self._call_tool},
            "prompts": {"prompts/list": partial(self._list, self.prompts), "prompts/get": self._get_prompt},
            "resources": {
                "resources/list": partial(self._list, self.resources),
                "resources/templates/list": partial(self._list, self.templates),
                "resources/read": self._read_resource,
            },
            "completions": {"completion/complete": self._complete},
        }
        answers: dict[str, Callable[[Call], Any]] = {
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
        }
        for feature, methods in features.items():
            if getattr(self.capabilities, feature) is not None:
                answers |= methods
        return answers

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> str:
        return self.info.version

    # Answering

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        """The result of a Call, or a coroutine that comes to it."""
        if self._chain is not None:
            return self._chain(call)
        answer = self._answers.get(call.method)
        return answer(call) if answer is not None else self._unknown(call)

    def _unknown(self, call: Call) -> None:
        if call.id is not None:
            raise MethodNotFound(f"Method not found: {call.method}")

    async def _answer(self, call: Call) -> Any:
        """What the middleware is put around."""
        answer = self._answers.get(call.method, self._unknown)
        result = answer(call)
        return await result if type(result) is CoroutineType else result

    def _discover(self, call: Call) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(MODERN_REVISIONS),
            capabilities=self.capabilities,
            instructions=self.instructions,
            **self._hints,
        )

    def _list(self, catalog: Catalog[Any], call: Call) -> Any:
        cursor = call.typed().cursor
        return self._list_all(catalog, call, cursor) if self._mounts else catalog.page(call.revision or LATEST, cursor)

    async def _list_all(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        """The list with what is mounted."""
        definitions = [offer.definition for offer in catalog]
        for mount in self._mounts:
            # What has the same name as something before it could not be reached, so it is not shown.
            taken = {catalog.name_of(one) for one in definitions}
            found = await mounts.entries(mount, call.method, call)
            definitions += [one for one in found if catalog.name_of(one) not in taken]
        return catalog.encode(definitions, call.revision or LATEST, position(cursor, catalog.page_size))

    def _call_tool(self, call: Call) -> Any:
        params: CallToolParams = call.typed()
        tool = self.offers.by_name.get(params.name)
        if tool is None:
            return self._delegate(call, "tool", params.name, self.tools)
        if self._tasks is not None:
            if tool.task is not None:
                return self._tasks.call(call, params, tool)
            if params.task is not NOTHING and call.revision == V2025_11_25:
                raise MethodNotFound(f"Method not found: {params.name!r} cannot be called as a task")
        return tool.start(call, params, self)

    async def _get_prompt(self, call: Call) -> Any:
        params: GetPromptParams = call.typed()
        prompt = self.prompts.get(params.name)
        if prompt is not None:
            return await prompt.get(call, params, self)
        return await self._delegate(call, "prompt", params.name, self.prompts)

    async def _delegate(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """Whoever is mounted and knows the name; the longest prefix is asked first."""
        for mount in sorted(self._mounts, key=lambda mount: -len(mount.prefix or "")):
            inward = mount.inward(name)
            if inward is not None:
                try:
                    return await mounts.delegate(mount, call, "name", inward)
                except Unknown:
                    continue
        names = [offer.definition.name for offer in catalog]
        for mount in self._mounts:
            names += [one.name for one in await mounts.entries(mount, f"{kind}s/list", call)]
        raise Unknown(kind, name, nearest(name, names, most=3))

    async def _read_resource(self, call: Call) -> Any:
        params: ReadResourceParams = call.typed()
        resource, values = self.offers.resource(params.uri)
        if resource is not None:
            result = await resource.read(call, params, self, values)
        else:
            result = await self._read_mounted(call, params.uri)
        if isinstance(result, ReadResourceResult) and result.ttl_ms is UNSET:
            result.ttl_ms, result.cache_scope = self._hints["ttl_ms"], self._hints["cache_scope"]
        return result

    async def _read_mounted(self, call: Call, uri: str) -> Any:
        for mount in self._mounts:
            inward = mount.inward_uri(uri)
            if inward is not None:
                try:
                    return await mounts.delegate(mount, call, "uri", inward)
                except ResourceNotFound:
                    continue
        raise ResourceNotFound(uri)

    async def _complete(self, call: Call) -> Any:
        params: CompleteParams = call.typed()
        argument = params.argument.name
        offer: Prompt | Resource | None
        if isinstance(params.ref, PromptReference):
            offer = self.prompts.get(params.ref.name)
        else:
            offer = self.templates.get(params.ref.uri) or self.resources.get(params.ref.uri)
        if offer is None:
            return await self._complete_mounted(call, params)
        completer = self.offers.completer(offer, argument)
        if completer is not None:
            return await completer.complete(call, params, self)
        return completion.from_schema(offer.body.signature.input_schema, argument, params.argument.value)

    async def _complete_mounted(self, call: Call, params: CompleteParams) -> Any:
        for mount in self._mounts:
            if isinstance(params.ref, PromptReference):
                inward, ref = mount.inward(params.ref.name), "ref/prompt"
                inner: dict[str, Any] = {"type": ref, "name": inward}
            else:
                inward = mount.inward_uri(params.ref.uri)
                inner = {"type": "ref/resource", "uri": inward}
            if inward is not None:
                return await mounts.delegate(mount, call, "ref", inner)
        name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        raise InvalidParams(f"Nothing to complete: {name}")

    @property
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        """The arguments that stand in HTTP headers too, of each tool that has some."""
        return self.offers.mirrored

    # Telling of changes

    async def _listen(self, call: Call) -> Any:
        params: ListenParams = call.typed()
        first = await self._told_of_tasks(call, params)
        relays = {mount: self._relay(mount, params.notifications) for mount in self._mounts}
        self._relays.append((params.notifications, relays))
        try:
            return await self.subscriptions.listen(call, params, first)
        finally:
            self._relays.remove((params.notifications, relays))
            for task in relays.values():
                task.cancel()

    async def _told_of_tasks(self, call: Call, params: ListenParams) -> list[Any]:
        """How the tasks stand that are listened to. Of others' tasks, and of none that exist, nothing will be heard."""
        wanted, params.notifications.task_ids = params.notifications.task_ids, None
        if not wanted or self._tasks is None:
            return []
        if tasks.EXTENSION not in (call.capabilities.extensions or {}):
            raise MissingCapability({"extensions": {tasks.EXTENSION: {}}})
        if len(wanted) > MOST_URIS:
            raise InternalError("Refused: too many subscriptions")
        found = await self._tasks.visible(call, wanted)
        params.notifications.task_ids = [job.id for job in found]
        return [self._tasks.told(job) for job in found]

    def _relay(self, mount: Mount, wanted: Filter) -> asyncio.Task[None]:
        return mounts.relay(mount, wanted, self.subscriptions.publish)

    def _honoured(self, wanted: Filter) -> Filter:
        """The part of what is wanted that this server tells of."""

        def tells(feature: str, flag: str = "listChanged") -> bool:
            return bool((getattr(self.capabilities, feature) or {}).get(flag))

        uris = wanted.resource_subscriptions if tells("resources", "subscribe") else None
        return Filter(
            tools_list_changed=wanted.tools_list_changed and tells("tools"),
            prompts_list_changed=wanted.prompts_list_changed and tells("prompts"),
            resources_list_changed=wanted.resources_list_changed and tells("resources"),
            resource_subscriptions=uris,
            task_ids=wanted.task_ids,
        )

    def resource_updated(self, uri: str) -> None:
        """Tell those who subscribed to it that a resource has changed."""
        self.subscriptions.publish(notices.RESOURCE_UPDATED, uri)

    # Registering

    def _register(self, offered: Offered) -> None:
        self.offers.add_all([offered])
        self._have_tasks([offered])

    def _have_tasks(self, offers: Sequence[Offered]) -> None:
        """With the first tool that may become a task there are tasks; what they need is not loaded before."""
        if self._tasks is None and any(isinstance(one, Tool) and one.task is not None for one in offers):
            self._tasks = load_module("portico.server.tasks.tasks").Tasks(self)
            self._lives.add(self._tasks, self._tasks.lifespan)
            self._extend()

    @property
    def services(self) -> tuple[Service, ...]:
        """The services that were added, in their order."""
        return tuple(self._running)

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of this server, if it has a tool that may become one."""
        return self._tasks

    def add(self, offered: Any) -> None:
        """Add a service, a single tool, resource or prompt, or a function as a tool. At any time."""
        if isinstance(offered, Tool | Resource | Prompt):
            self._register(offered)
        elif isinstance(offered, Service):
            self._add_service(offered.name, list(offered.offers()))
            self._running.append(offered)
            self.offers.schemes |= offered.schemes
            offered.added(self)
            self._lives.add(offered, offered.lifespan)
            self._extend()
        elif marks := list(marked(offered)):
            self._add_service(type(offered).__name__.lower(), marks)
        elif callable(offered):
            self._register(Tool(offered))
        else:
            raise UsageError(f"cannot add {offered!r}: not a service, a tool, a resource, a prompt or a function")

    def _add_service(self, name: str, offers: list[Offered]) -> None:
        if name in self._services:
            raise UsageError(f"there is already a service {name!r}; remove it first")
        self.offers.add_all(offers)
        self._services[name] = offers
        self._have_tasks(offers)

    def remove(self, name: str) -> None:
        """Remove a service, a tool, a prompt or a resource by its name or URI. At any time."""
        if name in self._services:
            for offer in self._services.pop(name):
                self.offers.remove(offer)
            for service in self._running:
                if service.name == name:
                    self._lives.remove(service)
                    self.offers.schemes = {k: v for k, v in self.offers.schemes.items() if k not in service.schemes}
            self._running = [service for service in self._running if service.name != name]
            self._extend()
            return
        found = self.offers.named(name)
        if found is None:
            raise UsageError(f"there is nothing called {name!r} to remove")
        self.offers.remove(found)

    def mount(self, target: Any, prefix: str | None = None) -> None:
        """Make another server part of this one: its `add` becomes `prefix_add`.

        The target is a Server, a Client or any Handler; or what a Client takes: a URL, a command, a `module:object`. A
        connection is opened and closed with this server.
        """
        if target is self:
            raise UsageError("a server cannot be mounted in itself")
        mount = Mount(target, mounts.handler_of(target), prefix)
        self._mounts.append(mount)
        self._lives.add(mount, members(mount.handler).lifespan)
        for wanted, relays in self._relays:
            relays[mount] = self._relay(mount, wanted)
        for catalog in (self.tools, self.prompts, self.resources):
            catalog.changed()

    def unmount(self, target: Any) -> None:
        """Undo `mount` of the same target."""
        gone = [mount for mount in self._mounts if mount.target is target or mount.target == target]
        self._mounts = [mount for mount in self._mounts if mount not in gone]
        for mount in gone:
            self._lives.remove(mount)
            for _, relays in self._relays:
                relays.pop(mount).cancel()
        for catalog in (self.tools, self.prompts, self.resources):
            catalog.changed()

    def use(self, middleware: Middleware) -> None:
        """Put a middleware around everything this server answers; the last one is the outermost."""
        self._middleware.append(middleware)
        self._link()

    def _link(self) -> None:
        inner: Handler = self._answer
        self._chain = reduce(lambda handler, wrap: wrap(handler), self._middleware, inner) if self._middleware else None

    # Running

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[Server]:
        """The time in which this server answers: its own lifespan and those of its services."""
        await self._lives.enter()
        try:
            yield self
        finally:
            await self._lives.leave()

    @overload
    def run(self, transport: Literal["stdio"] = "stdio", **options: Unpack[StdioOptions]) -> None: ...
    @overload
    def run(self, transport: Literal["http"], **options: Unpack[HttpOptions]) -> None: ...
    def run(self, transport: str = "stdio", **options: Any) -> None:
        """Serve one client on stdio until it goes away, or everybody over HTTP: `server.run("http", port=8080)`.

        On stdio:

        * **longest** – how many bytes a message may have.
        * **most_in_flight** – how many requests may be worked on at once.
        * **lifecycle** – how much a session insists on the order of the handshake: "strict", "lenient" or "auto".
        * **grace** – how many seconds requests may still take when the client has gone.

        Over HTTP:

        * **host**, **port** – where to listen: 127.0.0.1 and 8080 unless said otherwise.
        * **insecure** – whether other machines may come in without a token.
        * **certificate**, **key** – the files for `https`.
        * **reuse_port** – whether several processes listen on the port.
        * **grace** – how many seconds requests may still take when the process is told to stop.
        * **quiet** – whether the URL is left unsaid on stderr.
        * and those of `asgi()`, except `loopback`.
        """
        if transport == "stdio":
            check_options('run("stdio")', options, stdio.StdioOptions.__annotations__)
            stdio.run(self, self.lifespan, **options)
        elif transport == "http":
            _endpoint().run(self, **options)
        else:
            raise UsageError(f"unknown transport {transport!r}; there are 'stdio' and 'http'")

    def asgi(self, **options: Unpack[AsgiOptions]) -> Application:
        """This server as an ASGI application, to mount in another one or to run on an ASGI server.

        * **path** – of the endpoint: "/mcp" unless said otherwise. "/" is the same endpoint.
        * **token** – the bearer token that every request must have.
        * **allow_hosts**, **allow_origins** – what may stand in the Host and Origin headers.
        * **loopback** – whether the names of this machine are among them, which is the default.
        * **sse** – whether the two endpoints of 2024-11-05 are there too.
        * **assume** – the revision to speak with clients that belong to no session and name no newer one.
        * **longest_body** – how many bytes a request may have.
        * **most_in_flight**, **most_in_flight_per_client** – how many requests may be worked on at once.
        * **most_sessions** – how many sessions there may be.
        * **idle_session** – after how many seconds an unused session ends.
        """
        return cast("Application", _endpoint().asgi(self, **options))


def _endpoint() -> Any:
    """HTTP is loaded by those who use it: a server on stdio starts without it."""
    return load_module("portico.server.endpoint")
