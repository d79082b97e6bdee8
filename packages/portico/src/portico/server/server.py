"""The Server: a Handler made of what has been registered with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial, reduce
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico._options import explained
from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import MethodNotFound, UsageError
from portico.protocol.header_params import Mirror
from portico.protocol.meta import SERVER_INFO, Implementation, ServerCapabilities
from portico.protocol.tools import CallToolParams, ToolAnnotations
from portico.rpc.call import Call, Handler, HandlerMiddleware, members
from portico.server import in_process
from portico.server import run as running
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource, ResourceSecurity
from portico.server.components.runtime import MOST_THREADS, ArgumentErrors, Runtime, Threads
from portico.server.components.tools import Tool
from portico.server.components.validation import (
    checked_capabilities,
    checked_extensions,
    checked_headers,
    checked_hints,
    checked_icons,
    checked_page_size,
)
from portico.server.context.current import CurrentCall
from portico.server.methods import ServerMethods
from portico.server.options import OnDuplicate, cache_hints_by_method
from portico.server.providers.base import TASK_METHODS, Mounts, Others
from portico.server.registry.catalog import PAGE_SIZE, Catalog, ListCursors
from portico.server.registry.lifespans import Lifespans
from portico.server.registry.registration import Intake, create_matcher
from portico.server.registry.registry import Registry
from portico.server.registry.service import Answer, Bundles, Component, Registrar, Service
from portico.server.registry.subscriptions import Subscriptions

ComponentT = TypeVar("ComponentT")
RouteFunction = TypeVar("RouteFunction", bound=Callable[..., Any])

if TYPE_CHECKING:
    from portico.auth import resource_server as resource_module
    from portico.auth.resource_server import ResourceServer
    from portico.server import custom_routes
    from portico.server.context import replay_guard as spent_module
    from portico.server.context import request_state
    from portico.server.context.replay_guard import SpentStates
    from portico.server.context.request_state import Seal
    from portico.server.policy import enforcement
    from portico.server.policy import ownership as ownership_module
    from portico.server.policy.enforcement import Protection
    from portico.server.policy.interfaces import AccessGuard, Kind, Meter, Owned, Witness
    from portico.server.policy.ownership import Ownership
    from portico.server.providers.openapi import document as document_module
    from portico.server.providers.openapi import tools
    from portico.server.registry import replication
    from portico.server.tasks.service import TaskService
    from portico.server.transforms import builtin
    from portico.transports.http_server.custom_routes import PageRoute

    class FaceHandler(Handler, Protocol):
        """A part of a server under a name of its own; `desk` is what it adds to it."""

        @property
        def name(self) -> str: ...
        @property
        def desk(self) -> Server: ...
else:
    custom_routes = LazyModule("portico.server.custom_routes")
    resource_module = LazyModule("portico.auth.resource_server")
    document_module = LazyModule("portico.server.providers.openapi.document")
    tools = LazyModule("portico.server.providers.openapi.tools")
    builtin = LazyModule("portico.server.transforms.builtin")
    request_state = LazyModule("portico.server.context.request_state")
    spent_module = LazyModule("portico.server.context.replay_guard")
    ownership_module = LazyModule("portico.server.policy.ownership")
    enforcement = LazyModule("portico.server.policy.enforcement")
    replication = LazyModule("portico.server.registry.replication")


class FaceChoice(Struct, frozen=True):
    """Which face is shown where a server is served, and which tools it always lists."""

    name: str | None = None
    always: Sequence[str] = ()
    # Without their output schemas.
    brief: bool = False
    # What scripts may do in the face that runs them.
    code: Mapping[str, Any] = {}


# Unless something else is said: values that would lead out of a folder are refused.
_INSIDE = ResourceSecurity()

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
    * **strict_arguments** – refuse texts that stand for a number, a boolean, a list or an object, such as `"5"` for 5,
      instead of repairing them.
    * **page_size** – how many entries a page of a list has.
    * **most_threads** – how many `def` bodies may run at once.
    * **ttl_ms**, **cache_scope** – how long clients may keep lists and resources, and whether several users may share
      them.
    * **cache_hints** – the same for single methods: `{"tools/list": CacheHint(ttl_ms=60_000)}`.
    * **state_key** – seals what clients carry from one round to the next. Processes that serve the same clients need
      the same key; otherwise each makes its own. A list of keys: the first seals, and each of them opens.
    * **resource_security** – which values of a URI's variables never reach a function of this server; None: all do. A
      `ResourceSecurity`, by default one that refuses absolute paths and those that lead out of where they begin.
    * **on_duplicate** – what becomes of a second tool, resource or prompt of one name: an "error", or the second one
      takes the place of the first ("replace", and with a warning "warn"), or it is left out ("ignore").
    * **store** – where tasks are kept, and which answers of clients were used: a URL of the store. None:
      PORTICO_STORE, or memory.
    * **log_level** – of what Portico itself logs: "debug", "info", "warning", "error" or "critical".
    * **auth** – over HTTP, whose tokens are good: a `portico.auth.ResourceServer`, the URL of an issuer, an async
      function from the credentials of a request to a Principal, or an object with `create_resource_server(server)`,
      which is called when the server is opened over HTTP.
    * **headers** – the names of those headers of a request that bodies see, in `ctx.headers`.
    * **structured_output** – whether a text that a tool returns is structured content too. It is, unless this or the
      tool says otherwise; tools of a service only where this is True.
    * **providers**, **transforms** – added with `add_provider` and `add_transform`.
    """

    # The class of the Contexts that bodies receive; None: `portico.Context`, which is loaded with the first of them.
    context_class: ClassVar[Any] = None

    @explained
    def __init__(
        self,
        name: str = "server",
        instructions: str | None = None,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Any] | None = None,
        capabilities: dict[str, Any] | None = None,
        middleware: Iterable[HandlerMiddleware] = (),
        lifespan: Lifespan | None = None,
        argument_errors: ArgumentErrors = "auto",
        strict_arguments: bool = False,
        page_size: int = PAGE_SIZE,
        most_threads: int = MOST_THREADS,
        ttl_ms: int = 0,
        cache_scope: Literal["public", "private"] = "private",
        cache_hints: Mapping[str, Any] | None = None,
        state_key: bytes | Sequence[bytes] | None = None,
        resource_security: ResourceSecurity | None = _INSIDE,
        on_duplicate: OnDuplicate = "error",
        store: str | None = None,
        log_level: str | None = None,
        auth: Any = None,
        headers: Iterable[str] = (),
        structured_output: bool | None = None,
        providers: Sequence[Any] = (),
        transforms: Sequence[Any] = (),
    ) -> None:
        if log_level is not None:
            configure_log_level(log_level)
        self.info = Implementation(name, version, title, description, website_url, checked_icons(icons))
        self.instructions = instructions
        self.threads = Threads(most_threads)
        self._state_keys = [state_key] if isinstance(state_key, bytes) else list(state_key or ())
        self.argument_errors = argument_errors
        seen = checked_headers(headers)
        self.runtime = Runtime(
            name, self, self.threads, argument_errors, seen, strict_arguments, type(self).context_class
        )
        self.capabilities = (
            ServerCapabilities(**CAPABILITIES) if capabilities is None else checked_capabilities(capabilities)
        )
        self._extensions: dict[str, Any] = self.capabilities.extensions or {}
        checked_extensions(self._extensions)
        self.subscriptions = Subscriptions()
        self.lifespans = Lifespans()
        # Where tasks are stored: a URL of the store. None: PORTICO_STORE, or memory. And where it is noted which
        # answers were used: what a command line says of the store is about the tasks.
        self.store = self._spent_in = store
        # Where it keeps files of its own. None: PORTICO_DATA, or the place that the system has for it.
        self.data: str | None = None
        # Its tasks, from the first tool on that may become one.
        self.tasks: TaskService | None = None
        if lifespan is not None:
            self.lifespans.add(_OWN, partial(lifespan, self))
        # Over HTTP: who is let in; and pages beside the endpoint. Both are read when that is opened.
        self._auth: ResourceServer | None = None
        # Makes it at that time: what a login needs to know is not there before.
        self._auth_provider: Any = None
        if auth is not None:
            self._configure_auth(auth)
        self.pages: list[PageRoute] = []
        # Told of the exchange when there is one: for pages that show what passes through it.
        self.on_http: list[Callable[[Any], None]] = []
        # Where people connect their accounts at other servers, if they can.
        self.connector: Any = None
        # Which those are, by alias.
        self.accounts: dict[str, Any] = {}
        self._middleware = [self._to_handler_middleware(one) for one in middleware]
        self._chain: Handler | None = None
        self.bundles = Bundles()
        self.intake = Intake(self, structured_output, on_duplicate, resource_security)
        # What other processes may name: see `declare`.
        self.declared: dict[str, Any] = {}
        # What was taken away for a while.
        self.disabled: list[Component] = []
        # What single conversations are shown besides or not shown, as soon as one is.
        self.visibility: Any = None
        self._endpoints: dict[str, Handler] = {}
        # What clients meet in place of this server, if it has a face.
        self.front: Handler = self
        self.faces = FaceChoice()
        self.mounts = Mounts(self.subscriptions.publish_everywhere)
        # Who is asked for what is not our own.
        self.others: Others = self.mounts
        # What is put around the answers, as soon as something is to be protected.
        self.protection: Protection | None = None
        hints = checked_hints(ttl_ms, cache_scope)
        self.registry = Registry(
            page_size=checked_page_size(page_size),
            stamp=Raw(jsonrpc.encode({SERVER_INFO: self.info})),
            hints=hints,
            # Without a key of its own it is a guard against mistakes, not against intent; then a cursor is worth
            # something in every process of this name, and does no more than to lead on in a list.
            cursors=ListCursors(self._state_keys[0] if self._state_keys else name.encode()),
            publish=self.subscriptions.publish_everywhere,
        )
        self.tools, self.prompts = self.registry.tools, self.registry.prompts
        self.resources, self.templates = self.registry.resources, self.registry.templates
        self.methods = ServerMethods(self, hints, cache_hints_by_method(cache_hints or {}))
        self._answers = self._unprotected = self._own_answers()
        self._link()
        for provider in providers:
            self.add_provider(provider)
        for transform in transforms:
            self.add_transform(transform)

    def _extend(self) -> None:
        """Advertise the extensions of the services there are now, answer their methods, and let them wrap ours."""
        answers = {**self._own_answers(), **self.bundles.answers()}
        if self.mounts:
            answers |= {
                method: partial(self.mounts.around_task, answers.get(method, self._unknown)) for method in TASK_METHODS
            }
        self._unprotected = self._answers = self.bundles.around(answers)
        if self.protection is not None:
            self._answers = self.protection.around_all(answers, self.bundles)
        extensions = {**self._extensions, **self.bundles.extensions()}
        self.capabilities = replace(self.capabilities, extensions=extensions or None)

    def _own_answers(self) -> dict[str, Answer]:
        return self.methods.table(self._call_tool)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> str:
        return self.info.version

    @property
    def title(self) -> str | None:
        return self.info.title

    @property
    def description(self) -> str | None:
        return self.info.description

    @property
    def website_url(self) -> str | None:
        return self.info.website_url

    @property
    def icons(self) -> Any:
        return self.info.icons

    # Most servers never ask their clients anything, and start without what that needs.

    @cached_property
    def seal(self) -> Seal:
        """Closes the state of a call that asks the client something."""
        keys = self._state_keys
        return request_state.Seal(keys[0] if keys else None, name=self.name, others=keys[1:])

    @cached_property
    def spent(self) -> SpentStates:
        """Which of those states were used."""
        return spent_module.SpentStates(self._spent_in)

    @property
    def yielded(self) -> Any:
        """What the lifespan of this server has yielded; None before, and without one."""
        return self.lifespans.value(_OWN)

    def _configure_auth(self, auth: Any) -> None:
        if isinstance(auth, str | resource_module.ResourceServer) or callable(auth):
            self._auth = resource_module.resource_server(auth)
        elif hasattr(auth, "create_resource_server"):
            self._auth_provider = auth
        else:
            raise UsageError(
                "auth must be a ResourceServer, the URL of an issuer, an async function or an object with "
                f"create_resource_server(server), got {type(auth).__name__}"
            )

    @property
    def auth(self) -> ResourceServer | None:
        """Over HTTP: whose tokens are good."""
        if self._auth_provider is not None:
            provider, self._auth_provider = self._auth_provider, None
            self._auth = provider.create_resource_server(self)
        return self._auth

    @auth.setter
    def auth(self, resource: ResourceServer | None) -> None:
        self._auth, self._auth_provider = resource, None

    # Answering

    async def __call__(self, call: Call) -> Any:
        # A body may ask another server: afterwards it is its own call again that is being answered.
        held = CurrentCall.hold()
        try:
            result = self.start(call)
            return await result if type(result) is CoroutineType else result
        finally:
            CurrentCall.release(held)

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
        if call.answer is None:
            result = self._answers.get(call.method, self._unknown)(call)
        else:
            # What is asked in the course of it is not answered so.
            result = call.answer(replace(call, answer=None))
        return await result if type(result) is CoroutineType else result

    def answer_with(self, answer: Answer, call: Call) -> Any:
        """The answer of another function, with this server's middleware around it as around its own."""
        return answer(call) if self._chain is None else self._chain(replace(call, answer=answer))

    def listed(self, method: str) -> Sequence[Any] | None:
        """The entries of a list, the same object until something changes; None where it depends on who asks."""
        if self.is_guarded:
            return None
        answer = self._unprotected.get(method)
        lists = self.methods.lists
        if self._chain is not None or method not in lists or answer not in (None, lists[method]):
            return None
        if answer is None:
            return ()
        catalog: Catalog[Any] = cast("partial[Any]", answer).args[0]
        return self.others.listed(catalog) if self.others else catalog.definitions

    async def answer_unprotected(self, call: Call) -> Any:
        """The answer as if everybody might have everything: for what is decided for all callers alike."""
        result = self._unprotected.get(call.method, self._unknown)(call)
        return await result if type(result) is CoroutineType else result

    def needs(self, method: str, name: str, call: Call | None = None) -> frozenset[str]:
        """The scopes that a principal has to have for a request about this name; none for what is not ours, or not
        shown to the sender of a call: without one, to strangers."""
        tool = self.registry.by_name.get(name) if method == "tools/call" else None
        if tool is None or self.hides(call or _STRANGER, "tool", name):
            return frozenset()
        return tool.needs

    def _call_tool(self, call: Call) -> Any:
        params: CallToolParams = call.typed()
        tool = self.registry.by_name.get(params.name)
        if tool is None:
            return self.others.call(call, "tool", params.name, self.tools)
        return tool.start(call, params, self.runtime)

    @property
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        """The arguments that stand in HTTP headers too, of each tool that has some."""
        return self.registry.mirrored

    # Telling of changes

    @property
    def reads_by_itself(self) -> bool:
        """Whether nothing is put around the resources of this server."""
        return self._chain is None and self._unprotected.get("resources/read") == self.methods.read_resource

    def resource_updated(
        self, uri: str, *, everywhere: bool = True, admits: Callable[[Call], bool] | None = None
    ) -> None:
        """Tell those who subscribed to it that a resource has changed.

        * **everywhere** – also those whom other processes serve, where there are several; False: each of them learns of
          the change by itself.
        * **admits** – only the subscribers of this process whose `subscriptions/listen` call it returns True for, such
          as those of one principal. Hashable.
        """
        if everywhere and admits is None:
            self.subscriptions.publish_everywhere(notifications.RESOURCE_UPDATED, uri)
        else:
            self.subscriptions.publish(notifications.RESOURCE_UPDATED, uri, admits=admits)

    # Whose something is, and who may have it

    @cached_property
    def ownership(self) -> Ownership:
        return ownership_module.Ownership(self)

    def owner_of(self, kind: Kind, name: str) -> Owned:
        """Whose a tool, prompt, resource or template is, and what its owner calls it: (owner, inward name).

        The owner is the alias of an upstream, the prefix or the name of a mount, the name of a service, or else this
        server's name; it is empty for what is not there. Rules and records go by these two, never by the name that a
        client was shown: an alias, another prefix or a rename lead to the same.
        """
        return self.ownership.owner_of(kind, name)

    def own(self, kind: Kind, name: str) -> Owned | None:
        """The same for what this server has itself, and None for everything else."""
        return self.ownership.own(kind, name)

    def owned(self, component: Component) -> Owned:
        """The same for a component of this server."""
        return self.ownership.owned(component)

    def needs_task(self, tool: str) -> bool:
        """Whether a tool is known to run only as a task."""
        found = self.registry.by_name.get(tool)
        if found is None:
            return self.others.needs_task(tool)
        return found.task is not None and found.task.mode == "required"

    def hints(self, call: Call, tool: str) -> ToolAnnotations | None:
        """What a tool says of itself now; None where only a list can tell."""
        found = self.registry.by_name.get(tool)
        if found is None:
            return self.others.hints(call, tool)
        return found.hints or ToolAnnotations()

    def canonical(self, kind: Kind, name: str) -> str | None:
        """The one name of something of this server, whatever it was called by; None if there is no such thing."""
        return self.ownership.canonical(kind, name)

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        """Whether something is here that the sender of a call is not to learn of."""
        return self.ownership.hides(call, kind, name)

    @property
    def is_guarded(self) -> bool:
        """Whether it depends on the caller what is shown."""
        return self.protection is not None and self.protection.guard is not None

    def refused(self, status: int, reason: str, address: str | None) -> None:
        """A transport did not let a request in."""
        if self.protection is not None and self.protection.witness is not None:
            self.protection.witness.refused(status, reason, address)

    @property
    def catalogs(self) -> dict[str, Catalog[Any]]:
        """Everything this server has itself, by the method that lists it."""
        return {one.method: one for one in (self.tools, self.prompts, self.resources, self.templates)}

    def protect(
        self, *, guard: AccessGuard | None = None, meter: Meter | None = None, witness: Witness | None = None
    ) -> None:
        """Put a guard, a meter or a witness around everything that this server answers; each takes the place of the
        one before it. At any time.

        * **guard** – decides what a caller sees and may do.
        * **meter** – counts what is asked, and refuses what is too much.
        * **witness** – takes note of what was asked, and of what came of it.
        """
        if self.protection is None:
            self.protection = enforcement.Protection(self)
            self.others.protection = self.mounts.protection = self.protection
        self.protection.use(guard, meter, witness, self.lifespans)
        if guard is not None:
            # What a caller is shown depends on who it is, so it is not for everybody's cache.
            self.methods.hints["cache_scope"] = "private"
            self._lists_changed()
        self._extend()

    @classmethod
    def from_openapi(cls, spec: Any, **options: Any) -> Self:
        """A server with a tool for each operation of an OpenAPI document: a dict, or the path of a JSON or YAML file.

        * **url** – where the API is; otherwise the document says so, and it has to be on the open internet.
        * **app**, **client** – an ASGI application of this process, or an `httpx.AsyncClient`, in place of it.
        * **auth** – a key or token, a `(name, password)`, a table with `client_id` and `client_secret`; or several of
          them, by the names of the document's security schemes. For others than the API's own, see `headers`.
        * **headers** – sent with every request.
        * **variables** – of the URL of the document's server.
        * **tags**, **paths**, **methods** – only these become tools; **exclude_tags** and so on: not these.
        * **route_maps** – FastMCP's way to say the same: the first `RouteMap` that fits an operation decides.
        * **rename** – the names of tools, by the ids of their operations.
        * **private** – whether the document may name an address of a private network.
        * **outputs** – whether tools have output schemas; then an answer that does not fit is an error.
        * **timeout**, **longest** – how many seconds a request may take, and how many bytes an answer may have.
        * and those of a Server, but for `auth` and `headers`.
        """
        document = document_module.read_document(spec)
        about, wanted = tools.split_options(document, options)
        server = cls(**about)
        tools.add_operations(server, document, wanted)
        return server

    @classmethod
    def from_fastapi(cls, app: Any, **options: Any) -> Self:
        """A server with a tool for each operation of a FastAPI application, which is called in this process.

        The options are those of `from_openapi`. The application is started and stopped with this server.
        """
        if not callable(getattr(app, "openapi", None)):
            raise UsageError(f"{type(app).__name__} is no FastAPI application: it has no openapi()")
        return cls.from_openapi(app.openapi(), app=app, **options)

    # Registering

    def _register(self, component: Component) -> None:
        self.add_components([component])
        if self.subscriptions.spread is not None:
            replication.note_alone(self.subscriptions.spread, component)

    def add_components(self, components: list[Component]) -> None:
        """Add tools, resources and prompts, all of them or none, with what this server says of all of its own."""
        self.intake.add_components(components)

    def add_to_bundle(self, name: str, components: list[Component]) -> None:
        """Add what a service has, at once or later: rules know it by the name of the service, and it goes with it."""
        self.intake.add_to_bundle(name, components)

    def _add_service(self, service: Service) -> None:
        self.bundles.services.append(service)
        self.registry.schemes |= service.schemes
        service.added(self)
        self.lifespans.add(service, service.lifespan)
        self._extend()

    @property
    def services(self) -> tuple[Service, ...]:
        """The services that were added, in their order."""
        return tuple(one for one in self.bundles.services if one is not self.tasks and one is not self.intake.app_pages)

    def add(self, component: Any, *, everywhere: bool = False) -> None:
        """Add a service, a single tool, resource or prompt, or a function as a tool. At any time.

        * **everywhere** – also in the other processes that serve the same clients, where there are several, and in
          those that are started later. Each has to know it: see `declare`.
        """
        if everywhere:
            name = replication.name_of(self.declared, component)
            with replication.told_as(self.subscriptions.spread, replication.ADDED, name):
                self.intake.add(component)
        else:
            self.intake.add(component)

    def declare(self, component: ComponentT) -> ComponentT:
        """Declare a component that may be added later in all processes: `add(component, everywhere=True)`.

        Call it before the server runs, where every process does, such as at the end of a module. Other processes name
        what they have added, and only a declared name has a meaning here. Returns the component, so that it can be
        used as a decorator. Raises UsageError for a second component of the same name, or once several processes
        serve.
        """
        if self.subscriptions.spread is not None:
            raise UsageError("declare() must be called before the server runs, so that every process does")
        name = replication.declared_name(component)
        if self.declared.setdefault(name, component) is not component:
            raise UsageError(f"another component is declared as {name!r}")
        return component

    def remove(self, name: str, *, everywhere: bool = False) -> None:
        """Remove a service, a tool, a prompt or a resource by its name or URI. At any time.

        * **everywhere** – also in the other processes that serve the same clients: for what was declared (`declare`).
        """
        if everywhere:
            if name not in self.declared:
                raise UsageError(f"{name!r} cannot be removed everywhere: declare it first, with server.declare(…)")
            with replication.told_as(self.subscriptions.spread, replication.REMOVED, name):
                self.intake.remove(name)
        else:
            self.intake.remove(name)

    def add_tool(self, tool: Any, **options: Any) -> Tool:
        """Add a function, with the options of `@server.tool`, or a Tool, and return the Tool."""
        known = _find_by_function(tool, self.tools)
        if known is not None and not options:
            return cast("Tool", known)
        added = tool if isinstance(tool, Tool) else Tool(tool, **options)
        self.add(added)
        return added

    def add_prompt(self, prompt: Any, **options: Any) -> Prompt:
        """Add a function, with the options of `@server.prompt`, or a Prompt, and return the Prompt."""
        added = prompt if isinstance(prompt, Prompt) else Prompt(prompt, **options)
        self.add(added)
        return added

    def add_resource(self, resource: Any) -> Resource:
        """Add a Resource, and return it."""
        known = _find_by_function(resource, [*self.resources, *self.templates])
        if known is not None:
            return cast("Resource", known)
        if not isinstance(resource, Resource):
            raise UsageError("a resource is added as a Resource: Resource(fn, uri), or with @server.resource(uri)")
        self.add(resource)
        return resource

    def remove_tool(self, name: str) -> None:
        """Remove every version of a tool. Raises NotRegistered, a ValueError, if there is none."""
        self.intake.remove_component(name)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt. Raises NotRegistered, a ValueError, if there is none."""
        self.intake.remove_component(name)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template. Raises NotRegistered, a ValueError, if there is none."""
        self.intake.remove_component(uri)

    def add_provider(self, provider: Any, namespace: str | None = None) -> None:
        """Add a source of components: a Service, a FileSystemProvider or a server; with a prefix before its names."""
        if namespace:
            inner = Server(namespace)
            inner.add_provider(provider)
            self.mount(inner, namespace)
        elif hasattr(provider, "put_on"):
            provider.put_on(self)
        elif hasattr(provider, "registry"):
            self.mount(provider)
        else:
            self.add(provider)

    def add_transform(self, transform: Any) -> None:
        """Change what this server offers: ToolTransform, Namespace, VersionFilter, ResourcesAsTools, PromptsAsTools.
        At any time."""
        if not hasattr(transform, "put_on") or not hasattr(transform, "keeps"):
            raise UsageError(
                f"{transform!r} is no Transform of portico; a middleware can do the same: server.add_middleware(…)"
            )
        transform.put_on(self)
        if type(transform).keeps is not builtin.Transform.keeps:
            self.intake.add_filter(transform.keeps)

    def disable(
        self,
        *,
        names: Collection[str] = (),
        tags: Collection[str] = (),
        keys: Collection[str] = (),
        components: Collection[str] | None = None,
    ) -> None:
        """Hide components with one of these names or tags, until `enable` shows them again. Listeners are notified.

        * **keys** – names with their kind: `tool:add`, `resource:data://x`.
        * **components** – only of these kinds: "tool", "resource", "template", "prompt".
        """
        self.intake.disable(create_matcher(names or (), tags or (), keys or (), components))

    def enable(
        self,
        *,
        names: Collection[str] = (),
        tags: Collection[str] = (),
        keys: Collection[str] = (),
        components: Collection[str] | None = None,
        only: bool = False,
    ) -> None:
        """Show components again that `disable` has hidden.

        * **only** – hide all others.
        """
        matches = create_matcher(names or (), tags or (), keys or (), components)
        self.intake.enable(matches)
        if only:
            self.intake.disable(lambda component: not matches(component))

    def mount(self, server: Any, namespace: str | None = None) -> None:
        """Make another server part of this one: its `add` becomes `namespace_add`.

        It is a Server, a Client or any Handler; or what a Client takes: a URL, a command, a `module:object`. A
        connection is opened and closed with this server.
        """
        if server is self:
            raise UsageError("a server cannot be mounted in itself")
        mount = self.mounts.add(server, namespace)
        self.lifespans.add(mount, members(mount.handler).lifespan)
        self._extend()
        self._lists_changed()

    def unmount(self, target: Any) -> None:
        """Undo `mount` of the same target."""
        for mount in self.mounts.remove(target):
            self.lifespans.remove(mount)
        self._lists_changed()

    def _lists_changed(self) -> None:
        for catalog in (self.tools, self.prompts, self.resources):
            catalog.changed()

    def endpoints(self) -> Mapping[str, Handler]:
        """The handlers of other paths than that of the server itself."""
        return self._endpoints

    def add_endpoint(self, path: str, handler: Handler) -> None:
        """Answer at another path of the same port with another Handler, such as a part of this server. At any time.

        It has sessions of its own, and the same tokens, hosts and limits.
        """
        if not path.startswith("/") or path == "/" or not path.isprintable() or set(path) & set("?#% "):
            raise UsageError(f"{path!r} is no path for an endpoint: it is such as /mcp/other")
        if path in self._endpoints:
            raise UsageError(f"there is already an endpoint at {path}; remove it first")
        # Another object, so that it can be seen that something has changed.
        self._endpoints = {**self._endpoints, path: handler}

    def remove_endpoint(self, path: str) -> None:
        """Undo `add_endpoint`."""
        if path not in self._endpoints:
            raise UsageError(f"there is no endpoint at {path} to remove")
        self._endpoints = {known: handler for known, handler in self._endpoints.items() if known != path}

    def add_face(self, face: FaceHandler, path: str | None = None) -> None:
        """Offer a face of this server at a path of its own, `/mcp/NAME` unless said otherwise. At any time."""
        self.add_endpoint(path or f"/mcp/{face.name}", face)
        self.hold(face.desk.lifespan)

    def add_middleware(self, middleware: Any) -> None:
        """Put a middleware around everything this server answers; the last one is the outermost."""
        self._middleware.append(self._to_handler_middleware(middleware))
        self._link()

    def _to_handler_middleware(self, middleware: Any) -> HandlerMiddleware:
        """Return a function from Handler to Handler. One of class `Middleware` is given this server."""
        if getattr(type(middleware), "takes_server", False):
            return partial(middleware, server=self)
        return cast("HandlerMiddleware", middleware)

    def use_innermost(self, middleware: HandlerMiddleware) -> None:
        """Put a middleware around the answers, and within all others."""
        self._middleware.insert(0, middleware)
        self._link()

    def _link(self) -> None:
        inner: Handler = self._answer
        self._chain = reduce(lambda handler, wrap: wrap(handler), self._middleware, inner) if self._middleware else None

    # Running

    def hold(self, lifespan: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """Enter this when the server begins to answer, and leave it when it ends."""
        self.lifespans.add(lifespan, lifespan)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[Server]:
        """The time in which this server answers: its own lifespan and those of its services."""
        await self.lifespans.enter()
        try:
            yield self
        finally:
            if await self.lifespans.leave() and "spent" in vars(self):
                await self.spent.close()

    run = running.run
    run_async = running.run_async
    asgi = running.asgi

    def custom_route(
        self, path: str, methods: Iterable[str] = ("GET",), name: str | None = None
    ) -> Callable[[RouteFunction], RouteFunction]:
        """Answer another path over HTTP: `@server.custom_route("/health", methods=["GET"])`.

        The function receives a request. It returns a text, a value that is encoded as JSON, or a Starlette response.
        """
        return custom_routes.custom_route(self, path, methods)

    # Requests from this process

    list_tools = in_process.list_tools
    list_prompts = in_process.list_prompts
    list_resources = in_process.list_resources
    list_resource_templates = in_process.list_resource_templates
    get_tool = in_process.get_tool
    call_tool = in_process.call_tool
    read_resource = in_process.read_resource
    get_prompt = in_process.get_prompt


def configure_log_level(level: str) -> None:
    """Set the level of Portico's own loggers."""
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise UsageError(f"log_level must be debug, info, warning, error or critical, got {level!r}")
    logging.getLogger("portico").setLevel(levels[level.upper()])


def _find_by_function(fn: Any, components: Iterable[Any]) -> Any:
    """Return the component of a function that a decorator has registered already, or None."""
    return next((one for one in components if getattr(one, "fn", None) is fn), None)


# The lifespan that a server was given, among those of its services.
_OWN = "the server's own"
_STRANGER = Call(method="tools/call", address="")
