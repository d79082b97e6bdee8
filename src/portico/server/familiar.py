"""The words that FastMCP and the official SDK have for what a Server does, for servers that were written for them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from portico._lazy import load_module
from portico.rpc.call import Call
from portico.server.asking.familiar_context import all_pages
from portico.server.calling.checks import TAGS
from portico.server.calling.prompts import Prompt
from portico.server.calling.resources import Resource
from portico.server.calling.tools import Tool
from portico.server.guard import current
from portico.wire.errors import ResourceNotFound, UsageError
from portico.wire.prompts import ListPromptsResult
from portico.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.wire.revisions import LATEST
from portico.wire.tools import ListToolsResult

if TYPE_CHECKING:
    from portico.server.server import Server
    from portico.transport.http.asgi import Application
    from portico.transport.http.response import Answer, Request

F = TypeVar("F", bound=Callable[..., Any])

ResourceNotFoundError = ResourceNotFound

# What theirs have to be told, and ours finds out by itself.
_NEEDLESS = frozenset(
    {"json_response", "middleware", "transport", "event_store", "retry_interval", "show_banner", "log_level",
     "uvicorn_config", "mount_path", "message_path", "sse_path"}
)  # fmt: skip


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
    for theirs, ours in (("streamable_http_path", "path"), ("stateless_http", "stateless")):
        if theirs in said:
            said[ours] = said.pop(theirs)
    return {name: value for name, value in said.items() if value is not None}


def familiar_transport(transport: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A transport and its options by their names here."""
    if transport in ("streamable-http", "streamable_http"):
        return "http", http_options(options)
    return ("http", {"sse": True, **http_options(options)}) if transport == "sse" else (transport, options)


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
    response = load_module("portico.transport.http.response")
    if isinstance(made, response.Answer):
        return made  # type: ignore[no-any-return]
    if hasattr(made, "status_code") and hasattr(made, "body"):
        headers = tuple((bytes(name).lower(), bytes(value)) for name, value in made.raw_headers)
        kept = tuple(pair for pair in headers if pair[0] != b"content-length")
        return response.Answer(made.status_code, kept, bytes(made.body))  # type: ignore[no-any-return]
    if isinstance(made, str):
        return response.Answer(200, response.TEXT, made.encode())  # type: ignore[no-any-return]
    return response.Answer(200, response.JSON, msgspec.json.encode(made))  # type: ignore[no-any-return]


class FamiliarServer:
    """Mixed into Server."""

    def http_app(self: Any, path: str | None = None, **options: Any) -> Application:
        """FastMCP's word for `asgi()`."""
        return self.asgi(**http_options({"path": path, **options}))  # type: ignore[no-any-return]

    def streamable_http_app(self: Any, **options: Any) -> Application:
        """The official SDK's word for `asgi()`."""
        return self.http_app(**options)  # type: ignore[no-any-return]

    def sse_app(self: Any, mount_path: str | None = None, **options: Any) -> Application:
        """`asgi()` with the endpoints of 2024-11-05."""
        return self.asgi(sse=True, **http_options(options))  # type: ignore[no-any-return]

    @property
    def session_manager(self: Any) -> _RunnableSessions:
        return _RunnableSessions(self)

    def custom_route(
        self: Any, path: str, methods: Iterable[str] = ("GET",), name: str | None = None, **_: Any
    ) -> Callable[[F], F]:
        """Answer another path over HTTP: `@server.custom_route("/health", methods=["GET"])`.

        The function takes a request and returns a text, something that is JSON, or a response of Starlette's.
        """
        pages = load_module("portico.transport.http.pages")

        def register(fn: F) -> F:
            async def page(request: Request) -> Answer:
                made = fn(PageRequest(request))
                return _answer(await made if isinstance(made, Awaitable) else made)

            self.pages.extend(pages.PageRoute(method.upper(), path, page) for method in methods)
            return fn

        return register

    # Registering

    def add_tool(self: Any, tool: Any, **options: Any) -> Any:
        """A function or a Tool, with the options of `@server.tool`."""
        made = tool if isinstance(tool, Tool) else Tool(tool, **options)
        self.add(made)
        return made

    def add_prompt(self: Any, prompt: Any, **options: Any) -> Any:
        made = prompt if isinstance(prompt, Prompt) else Prompt(prompt, **options)
        self.add(made)
        return made

    def add_resource(self: Any, resource: Any) -> Any:
        if not isinstance(resource, Resource):
            raise UsageError("a resource is added as a Resource: Resource(fn, uri), or with @server.resource(uri)")
        self.add(resource)
        return resource

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
        if type(transform).keeps is not load_module("portico.server.shaping.transforms").Transform.keeps:
            self._filters.append(transform.keeps)
            self._take_away(lambda one: not transform.keeps(one))

    def add_extension(self: Any, extension: Any) -> None:
        """An extension as the official SDK has them: an object with an `identifier`."""
        self.add(load_module("portico.server.familiar_extension").ExtensionService(extension))

    def _take_away(self: Any, meant: Callable[[Any], bool]) -> None:
        registry = self.registry
        listed = (one for catalog in self.catalogs.values() for one in list(catalog))
        for gone in [version for one in listed for version in registry.versions(one) if meant(version)]:
            registry.remove(gone)

    # Showing and hiding

    def disable(self: Any, *, names: Collection[str] = (), tags: Collection[str] = ()) -> None:
        """Take away what has one of these names or tags, until `enable` brings it back. Listeners are told."""
        registry = self.registry
        listed = (one for catalog in self.catalogs.values() for one in list(catalog))
        everything = (version for one in listed for version in registry.versions(one))
        for one in [one for one in everything if _is_meant(one, names, tags)]:
            registry.remove(one)
            self.disabled.append(one)

    def enable(self: Any, *, names: Collection[str] = (), tags: Collection[str] = ()) -> None:
        """Bring back what `disable` has taken away."""
        back = [one for one in self.disabled if _is_meant(one, names, tags)]
        self.disabled = [one for one in self.disabled if one not in back]
        self.registry.add_all(back)

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
        return await all_pages(lambda params: self(_from_within(method, params)), kind, member)

    async def call_tool(self: Any, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """The result of a tool, called from the inside; within a call that rules are about, for the one who made it."""
        return await self(_from_within("tools/call", {"name": name, "arguments": arguments or {}}))


def _from_within(method: str, params: dict[str, Any]) -> Call:
    call = Call(method=method, params=Raw(msgspec.json.encode(params)), id=0, revision=LATEST)
    passage = current.get()
    if passage is None:
        return call
    # A body that passes on the name of a tool must not lend its client more than that may do itself.
    by = passage.call
    who = {"principal": by.principal, "client": by.client, "address": by.address, "headers": by.headers}
    return msgspec.structs.replace(call, **who, facet=by.facet)


def _is_meant(component: Any, names: Collection[str], tags: Collection[str]) -> bool:
    own = (component.definition.meta or {}).get(TAGS, ())
    return component.name in names or getattr(component, "uri", "") in names or not set(tags).isdisjoint(own)


def set_log_level(level: str) -> None:
    """FastMCP and the SDK take it with the server."""
    named = logging.getLevelNamesMapping().get(level.upper())
    if named is None:
        raise UsageError(f"{level!r} is no log level; there are debug, info, warning, error and critical")
    logging.getLogger("portico").setLevel(named)
