"""The words that FastMCP and the official SDK have for what a Server does, for servers that were written for them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from inspect import iscoroutinefunction, isfunction, ismethod
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from portico._lazy import LazyModule, loaded_module
from portico.protocol.errors import InsufficientScope, ResourceNotFound, ToolError, UsageError
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import ListToolsResult
from portico.protocol.versions import LATEST
from portico.rpc.call import Call
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.components.validation import TAGS
from portico.server.context.current import CurrentCall

if TYPE_CHECKING:
    from portico.compat.fastmcp import context
    from portico.compat.mcp_sdk import extension as extension_module
    from portico.server.server import Server
    from portico.server.transforms import builtin
    from portico.transports.http_server import custom_routes, messages
    from portico.transports.http_server.asgi import Application
    from portico.transports.http_server.messages import Answer, Request
else:
    context = LazyModule("portico.compat.fastmcp.context")
    extension_module = LazyModule("portico.compat.mcp_sdk.extension")
    builtin = LazyModule("portico.server.transforms.builtin")
    custom_routes = LazyModule("portico.transports.http_server.custom_routes")
    messages = LazyModule("portico.transports.http_server.messages")

F = TypeVar("F", bound=Callable[..., Any])

ResourceNotFoundError = ResourceNotFound
# FastMCP has a class of its own for each kind of component that refuses.
ResourceError = PromptError = ToolError
InsufficientScopeError = InsufficientScope

# What theirs have to be told, and ours finds out by itself.
_NEEDLESS = frozenset(
    {"json_response", "middleware", "transport", "event_store", "retry_interval", "show_banner", "log_level",
     "uvicorn_config", "path_prefix", "mount_path", "message_path", "sse_path", "host_origin_protection"}
)  # fmt: skip
# Options of their HTTP, and what ours calls them.
_HTTP_NAMES = {
    "streamable_http_path": "path",
    "stateless_http": "stateless",
    "allowed_hosts": "allow_hosts",
    "allowed_origins": "allow_origins",
    "session_idle_timeout": "idle_session",
    "max_request_body_size": "longest_body",
    "max_sessions": "most_sessions",
}


# What a server answers whatever it is for; its endpoint and its logins are known when it is opened.
_OWN_PATHS = frozenset({"/readyz", "/metrics", "/console"})


class NotRegistered(UsageError, ValueError):
    """What is to be removed is not there. Theirs raise a ValueError."""


class TransportSecuritySettings(Struct):
    """Which hosts and origins are let in, as the official SDK has it."""

    enable_dns_rebinding_protection: bool = True
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()

    def options(self) -> dict[str, Any]:
        if not self.enable_dns_rebinding_protection:
            return {"allow_hosts": ["*"]}
        hosts = [host.removesuffix(":*") for host in self.allowed_hosts]
        return {"allow_hosts": hosts, "allow_origins": list(self.allowed_origins)}


def http_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of `run` and `asgi` by their names here."""
    said = {name: value for name, value in options.items() if name not in _NEEDLESS}
    security = said.pop("transport_security", None)
    if security is not None:
        said |= TransportSecuritySettings(
            bool(getattr(security, "enable_dns_rebinding_protection", True)),
            list(getattr(security, "allowed_hosts", ())),
            list(getattr(security, "allowed_origins", ())),
        ).options()
    for theirs, ours in _HTTP_NAMES.items():
        if theirs in said:
            said[ours] = said.pop(theirs)
    return {
        name: value for name, value in said.items() if value is not None and (name, value) != ("idle_session", "auto")
    }


def familiar_transport(transport: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A transport and its options by their names here."""
    if transport in ("streamable-http", "streamable_http", "http"):
        return "http", http_options(options)
    if transport == "sse":
        return "http", {"sse": True, **http_options(options)}
    said = {name: value for name, value in options.items() if name not in _NEEDLESS}
    # Theirs take the address with every transport; standard input has none.
    http = {"host", "port", "path", "transport_security", *_HTTP_NAMES}
    return transport or "stdio", {name: said[name] for name in said if name not in http}


class MiddlewareList:
    """The SDK's `server.middleware`, which is appended to."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def append(self, middleware: Any) -> None:
        self._server.use(middleware)

    def extend(self, more: Iterable[Any]) -> None:
        for one in more:
            self.append(one)


def middleware_of(middleware: Any, server: Any) -> Any:
    """A middleware as it is; one of the SDK, `async def middleware(ctx, call_next)`, as one of ours."""
    if getattr(type(middleware), "takes_server", False) and not iscoroutinefunction(type(middleware).__call__):
        return partial(middleware, server=server)
    called = middleware if isfunction(middleware) or ismethod(middleware) else type(middleware).__call__
    wanted = 2 if called is middleware else 3
    if not iscoroutinefunction(called) or called.__code__.co_argcount != wanted + ismethod(called):
        return middleware
    return extension_module.FunctionMiddleware(middleware, server)


class _RunnableSessions:
    """The official SDK's has to be run while its application is served; ours is a lifespan."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def run(self) -> AbstractAsyncContextManager[Any]:
        return self._server.lifespan()


class PageRequest:
    """What a function of `@server.custom_route` is given: the part of Starlette's Request that such functions use."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.method = request.method
        self.path = request.path
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        self.query_params = _form(request.query)
        self.path_params: dict[str, str] = {}
        self.user = request.principal

    async def body(self) -> bytes:
        return self._request.body

    async def json(self) -> Any:
        return msgspec.json.decode(self._request.body)

    async def form(self) -> dict[str, str]:
        return _form(self._request.body.decode())


def _form(text: str) -> dict[str, str]:
    from urllib.parse import parse_qsl  # most servers have no such pages

    return dict(parse_qsl(text, keep_blank_values=True))


def _answer(made: Any) -> Answer:
    """What such a function returns: a response of Starlette's, by its shape; a text; or anything that is JSON."""
    if isinstance(made, messages.Answer):
        return made
    if hasattr(made, "status_code") and hasattr(made, "body"):
        headers = tuple((bytes(name).lower(), bytes(value)) for name, value in made.raw_headers)
        kept = tuple(pair for pair in headers if pair[0] != b"content-length")
        return messages.Answer(made.status_code, kept, bytes(made.body))
    if isinstance(made, str):
        return messages.Answer(200, messages.TEXT, made.encode())
    return messages.Answer(200, messages.JSON, msgspec.json.encode(made))


class FamiliarServer:
    """Mixed into Server."""

    # Where it is served unless `run` says otherwise, in their words.
    http_defaults: Mapping[str, Any] = {}

    def http_app(self: Any, path: str | None = None, **options: Any) -> Application:
        """FastMCP's word for `asgi()`."""
        said = {**self.http_defaults, **options, **({} if path is None else {"path": path})}
        sse = {"sse": True} if said.get("transport") == "sse" else {}
        # Where the application listens is for the server that runs it to say.
        where = {name: value for name, value in said.items() if name not in ("host", "port")}
        return self.asgi(**sse, **http_options(where))  # type: ignore[no-any-return]

    def streamable_http_app(self: Any, **options: Any) -> Application:
        """The official SDK's word for `asgi()`."""
        return self.http_app(**options)  # type: ignore[no-any-return]

    def sse_app(self: Any, mount_path: str | None = None, **options: Any) -> Application:
        """`asgi()` with the endpoints of 2024-11-05."""
        return self.http_app(**{**options, "transport": "sse"})  # type: ignore[no-any-return]

    async def run_stdio_async(self: Any, **options: Any) -> None:
        await self.run_async("stdio", **options)

    async def run_http_async(self: Any, transport: str = "http", **options: Any) -> None:
        await self.run_async(transport, **options)

    async def run_streamable_http_async(self: Any, **options: Any) -> None:
        await self.run_async("http", **options)

    async def run_sse_async(self: Any, **options: Any) -> None:
        await self.run_async("sse", **options)

    @property
    def title(self: Any) -> str | None:
        return self.info.title  # type: ignore[no-any-return]

    @property
    def description(self: Any) -> str | None:
        return self.info.description  # type: ignore[no-any-return]

    @property
    def website_url(self: Any) -> str | None:
        return self.info.website_url  # type: ignore[no-any-return]

    @property
    def icons(self: Any) -> Any:
        return self.info.icons

    @property
    def middleware(self: Any) -> MiddlewareList:
        return MiddlewareList(self)

    @property
    def session_manager(self: Any) -> _RunnableSessions:
        return _RunnableSessions(self)

    def custom_route(
        self: Any, path: str, methods: Iterable[str] = ("GET",), name: str | None = None, **_: Any
    ) -> Callable[[F], F]:
        """Answer another path over HTTP: `@server.custom_route("/health", methods=["GET"])`.

        The function takes a request and returns a text, something that is JSON, or a response of Starlette's.
        """
        if "{" in path:
            raise UsageError(
                f"{path!r} has a variable: a page is at one path; take what varies from request.query_params"
            )
        routes = [(method.upper(), path) for method in methods]
        taken = {(one.method, one.path) for one in self.pages}
        if path in _OWN_PATHS or path.startswith("/console/") or ("POST", "/") in routes:
            raise UsageError(f"a page cannot be at {path}: the server itself answers there")
        if taken.intersection(routes):
            raise UsageError(f"there is already a page at {path}")

        def register(fn: F) -> F:
            async def page(request: Request) -> Answer:
                made = fn(PageRequest(request))
                return _answer(await made if isinstance(made, Awaitable) else made)

            self.pages.extend(custom_routes.PageRoute(*route, page) for route in routes)
            return fn

        return register

    # Registering

    def add_tool(self: Any, tool: Any, **options: Any) -> Any:
        """A function or a Tool, with the options of `@server.tool`."""
        known = self._of_function(tool, self.tools)
        if known is not None and not options:
            return known
        made = tool if isinstance(tool, Tool) else Tool(tool, **options)
        self.add(made)
        return made

    def _of_function(self: Any, fn: Any, catalog: Iterable[Any]) -> Any:
        """What is there of a function that a decorator has registered already, and left as it is."""
        return next((one for one in catalog if getattr(one, "fn", None) is fn), None)

    def add_prompt(self: Any, prompt: Any, **options: Any) -> Any:
        made = prompt if isinstance(prompt, Prompt) else Prompt(prompt, **options)
        self.add(made)
        return made

    def add_resource(self: Any, resource: Any) -> Any:
        known = self._of_function(resource, [*self.resources, *self.templates])
        if known is not None:
            return known
        if not isinstance(resource, Resource):
            raise UsageError("a resource is added as a Resource: Resource(fn, uri), or with @server.resource(uri)")
        self.add(resource)
        return resource

    def add_template(self: Any, template: Any) -> Any:
        return self.add_resource(template)

    def add_completion_handler(self: Any, handler: Any) -> None:
        self.completion(handler)

    @property
    def local_provider(self: Any) -> Any:
        """FastMCP's word for what was registered with the server itself."""
        return self

    def remove_tool(self: Any, name: str) -> None:
        self._remove(name)

    def remove_prompt(self: Any, name: str) -> None:
        self._remove(name)

    def remove_resource(self: Any, uri: str) -> None:
        self._remove(uri)

    def _remove(self: Any, name: str) -> None:
        if self.registry.named(name) is None:
            raise NotRegistered(f"there is nothing called {name!r} to remove")
        self.remove(name)

    def add_middleware(self: Any, middleware: Any) -> None:
        self.use(middleware)

    def add_provider(self: Any, provider: Any, namespace: str | None = None) -> None:
        """A LocalProvider or another Service, a FileSystemProvider, or a server; with a prefix before its names."""
        if namespace is not None:
            inner = type(self)(namespace)
            inner.add_provider(provider)
            self.mount(inner, namespace)
        elif hasattr(provider, "put_on"):
            provider.put_on(self)
        elif hasattr(provider, "registry"):
            self.mount(provider)
        else:
            self.add(provider)

    def add_transform(self: Any, transform: Any) -> None:
        """What this server offers in another shape: ToolTransform, Namespace, VersionFilter,
        ResourcesAsTools, PromptsAsTools. At any time."""
        if not hasattr(transform, "put_on") or not hasattr(transform, "keeps"):
            raise UsageError(f"{transform!r} is no Transform of portico; a middleware can do the same: server.use(…)")
        transform.put_on(self)
        if type(transform).keeps is not builtin.Transform.keeps:
            self.intake.filters.append(transform.keeps)
            self._take_away(lambda one: not transform.keeps(one))

    def add_extension(self: Any, extension: Any) -> None:
        """An extension as the official SDK has them: an object with an `identifier`."""
        self.add(extension_module.ExtensionService(extension))

    def _take_away(self: Any, meant: Callable[[Any], bool]) -> None:
        registry = self.registry
        listed = (one for catalog in self.catalogs.values() for one in list(catalog))
        for gone in [version for one in listed for version in registry.versions(one) if meant(version)]:
            registry.remove(gone)

    # Showing and hiding

    def disable(
        self: Any,
        *,
        names: Collection[str] = (),
        tags: Collection[str] = (),
        keys: Collection[str] = (),
        components: Collection[str] | None = None,
        **_: Any,
    ) -> None:
        """Take away what has one of these names or tags, until `enable` brings it back. Listeners are told.

        * **keys** – names with their kind: `tool:add`, `resource:data://x`.
        * **components** – of these kinds alone: "tool", "resource", "template", "prompt".
        """
        self._hide(lambda one: _is_meant(one, names, tags, keys, components))

    def _hide(self: Any, meant: Callable[[Any], bool]) -> None:
        registry = self.registry
        listed = (one for catalog in self.catalogs.values() for one in list(catalog))
        everything = (version for one in listed for version in registry.versions(one))
        for one in [one for one in everything if meant(one)]:
            registry.remove(one)
            self.disabled.append(one)

    def enable(
        self: Any,
        *,
        names: Collection[str] = (),
        tags: Collection[str] = (),
        keys: Collection[str] = (),
        components: Collection[str] | None = None,
        only: bool = False,
        **_: Any,
    ) -> None:
        """Bring back what `disable` has taken away; `only`: and take away everything else."""

        def meant(one: Any) -> bool:
            return _is_meant(one, names, tags, keys, components)

        back = [one for one in self.disabled if meant(one)]
        self.disabled = [one for one in self.disabled if one not in back]
        self.registry.add_all(back)
        if only:
            self._hide(lambda one: not meant(one))

    # Looking at what there is

    async def list_tools(self: Any) -> list[Any]:
        """Everything that a client would be shown."""
        return await self._all("tools/list", ListToolsResult, "tools")  # type: ignore[no-any-return]

    async def list_prompts(self: Any) -> list[Any]:
        return await self._all("prompts/list", ListPromptsResult, "prompts")  # type: ignore[no-any-return]

    async def list_resources(self: Any) -> list[Any]:
        return await self._all("resources/list", ListResourcesResult, "resources")  # type: ignore[no-any-return]

    async def list_resource_templates(self: Any) -> list[Any]:
        listed = await self._all("resources/templates/list", ListResourceTemplatesResult, "resource_templates")
        return listed  # type: ignore[no-any-return]

    async def _all(self: Any, method: str, kind: Any, member: str) -> list[Any]:
        listed = context
        return await listed.all_pages(lambda params: self(_from_within(method, params)), kind, member)

    async def get_tool(self: Any, name: str) -> Any:
        """One of the tools that a client would be shown; None if there is none of this name."""
        return next((one for one in await self.list_tools() if one.name == name), None)

    async def read_resource(self: Any, uri: Any) -> Any:
        """The contents of a resource, read from the inside."""
        return await self(_from_within("resources/read", {"uri": str(uri)}))

    async def get_prompt(self: Any, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """The messages of a prompt, filled in from the inside."""
        return await self(_from_within("prompts/get", {"name": name, "arguments": arguments or {}}))

    async def render_prompt(self: Any, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return await self.get_prompt(name, arguments)

    async def call_tool(self: Any, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """The result of a tool, called from the inside; within a call that rules are about, for the one who made it."""
        return await self(_from_within("tools/call", {"name": name, "arguments": arguments or {}}))


def _from_within(method: str, params: dict[str, Any]) -> Call:
    call = Call(method=method, params=Raw(msgspec.json.encode(params)), id=0, revision=LATEST)
    guard = loaded_module("portico.server.policy.interfaces")
    passage = None if guard is None else guard.current.get()
    # A body that passes on the name of a tool must not lend its client more than that may do itself.
    by = CurrentCall.call() if passage is None else passage.call
    if by is None:
        return call
    who = {"principal": by.principal, "client": by.client, "address": by.address, "headers": by.headers}
    return msgspec.structs.replace(call, **who, facet=by.facet)


def _is_meant(
    component: Any,
    names: Collection[str],
    tags: Collection[str],
    keys: Collection[str] = (),
    components: Collection[str] | None = None,
) -> bool:
    kind = _kind(component)
    if components is not None and kind not in components:
        return False
    uri = getattr(component, "uri", "")
    own = (component.definition.meta or {}).get(TAGS, ())
    named = component.name in names or uri in names or f"{kind}:{uri or component.name}" in keys
    everything = components is not None and not (names or tags or keys)
    return everything or named or not set(tags).isdisjoint(own)


def _kind(component: Any) -> str:
    if isinstance(component, Resource):
        return "resource" if component.template is None else "template"
    return "prompt" if isinstance(component, Prompt) else "tool"


def set_log_level(level: str) -> None:
    """FastMCP and the SDK take it with the server."""
    named = logging.getLevelNamesMapping().get(level.upper())
    if named is None:
        raise UsageError(f"{level!r} is no log level; there are debug, info, warning, error and critical")
    logging.getLogger("portico").setLevel(named)
