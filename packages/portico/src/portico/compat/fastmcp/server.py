"""`FastMCP`: a Server with the options, methods and defaults of FastMCP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from portico.compat.base import CompatServer, MiddlewareList
from portico.compat.fastmcp.context import Context
from portico.compat.unsupported import UnsupportedFeature, pop_unsupported, reject_options
from portico.protocol.errors import UsageError

if TYPE_CHECKING:
    from portico.transports.http_server.asgi import AsgiApplication

F = TypeVar("F", bound=Callable[..., Any])
AsgiApp = Callable[[MutableMapping[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]]

_VERSION = {"version": UnsupportedFeature("use names= with NAME@VERSION")}
_ROUTE_UNSUPPORTED = {
    # Portico has no OpenAPI schema that could include a route.
    "include_in_schema": UnsupportedFeature("use True or False", accepted=(None, True, False))
}
_TOOL_UNSUPPORTED = {
    "exclude_args": UnsupportedFeature("use Depends() for parameters that clients must not see"),
    "serializer": UnsupportedFeature("return a ToolResult"),
    "enabled": UnsupportedFeature("use server.disable(names={…})", accepted=(None, True)),
    "app": UnsupportedFeature("use ui= with an AppPage or the path of an HTML file", accepted=(None, False)),
}
_RESOURCE_UNSUPPORTED = {name: _TOOL_UNSUPPORTED[name] for name in ("enabled", "app")}
_PROMPT_UNSUPPORTED = {"enabled": _TOOL_UNSUPPORTED["enabled"]}
_MOUNT_UNSUPPORTED = {
    "tool_names": UnsupportedFeature(
        "use add_transform(ToolTransform({…})) on the mounted server", accepted=(None, {})
    ),
    "as_proxy": UnsupportedFeature("mount create_proxy(server)", accepted=(None, False)),
}
_OPENAPI_UNSUPPORTED = {
    "route_map_fn": UnsupportedFeature("use route_maps="),
    "mcp_component_fn": UnsupportedFeature("use server.add_transform(ToolTransform({…}))"),
    "httpx_client_kwargs": UnsupportedFeature("use headers=, timeout= and auth=", accepted=(None, {})),
}
_OPENAPI_NAMES = {"mcp_names": "rename"}


class FastMCP(CompatServer):
    """A Server with the options, methods and defaults of FastMCP. Options of `portico.Server` work as well."""

    context_class = Context
    default_name = "FastMCP"
    unsupported = {
        "mask_error_details": UnsupportedFeature(
            "unexpected exceptions are never sent to clients; raise ToolError with the text that they may read",
            accepted=(None, True),
        ),
        "dereference_schemas": UnsupportedFeature("schemas have $defs, which clients resolve", accepted=(None, False)),
        "include_fastmcp_meta": UnsupportedFeature("tags and versions are always in _meta", accepted=(None, True)),
        "dependencies": UnsupportedFeature(
            "declare them in pyproject.toml or in the script (PEP 723)", accepted=(None, [])
        ),
        "session_state_store": UnsupportedFeature(
            "state belongs to the session; store more with store=URL or in a database"
        ),
        "client_log_level": UnsupportedFeature("the client chooses the level; use log_level= for the server's own log"),
        "tasks": UnsupportedFeature("use @server.tool(task=True)", accepted=(None, False)),
        "sampling_handler": UnsupportedFeature("sample with ctx.sample(), which the client answers"),
        "sampling_handler_behavior": UnsupportedFeature("sample with ctx.sample(), which the client answers"),
        "debug": UnsupportedFeature("use log_level='debug'", accepted=(None, False)),
    }

    def __init__(self, name: str | None = None, instructions: str | None = None, **options: Any) -> None:
        # FastMCP 2 has one option per kind, Portico one for all.
        kinds = [options.pop(key) for key in tuple(options) if key.startswith("on_duplicate_")]
        if len(set(kinds)) > 1:
            raise UsageError("FastMCP: on_duplicate_tools, _resources and _prompts must be the same; use on_duplicate=")
        # FastMCP's default: the second component replaces the first, with a warning.
        duplicates = {"on_duplicate": kinds[0] if kinds else "warn"}
        server_options = {key: value for key, value in options.items() if key != "on_duplicate" or value is not None}
        super().__init__(name, instructions, **{**duplicates, **server_options})

    # Registration

    def tool(self, name_or_fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool."""
        pop_unsupported("tool", options, _TOOL_UNSUPPORTED)
        return super().tool(name_or_fn, **options)

    def resource(self, uri: str, **options: Any) -> Callable[[F], F]:
        """Register a function as a resource."""
        pop_unsupported("resource", options, _RESOURCE_UNSUPPORTED)
        return super().resource(uri, **options)

    def prompt(self, name_or_fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt."""
        pop_unsupported("prompt", options, _PROMPT_UNSUPPORTED)
        return super().prompt(name_or_fn, **options)

    def add_template(self, template: Any) -> Any:
        return self.add_resource(template)

    def add_completion_handler(self, handler: Any) -> None:
        self.completion(handler)

    @property
    def local_provider(self) -> Self:
        """Return the server itself, whose components are those registered with it."""
        return self

    @property
    def middleware(self) -> MiddlewareList:
        return MiddlewareList(self)

    def mount(
        self, server: Any, namespace: str | None = None, *, prefix: str | None = None, **unsupported: Any
    ) -> None:
        """Mount another server, with a prefix for its names."""
        reject_options("mount", unsupported, _MOUNT_UNSUPPORTED)
        super().mount(server, namespace if prefix is None else prefix)

    def custom_route(
        self, path: str, methods: Iterable[str] = ("GET",), name: str | None = None, **unsupported: Any
    ) -> Callable[[F], F]:
        """Handle another HTTP path."""
        reject_options("custom_route", unsupported, _ROUTE_UNSUPPORTED)
        return super().custom_route(path, methods, name)

    def enable(  # type: ignore[override]
        self,
        *,
        names: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        components: Collection[str] | None = None,
        only: bool = False,
        **unsupported: Any,
    ) -> Self:
        reject_options("enable", unsupported, _VERSION)
        super().enable(names=names or (), tags=tags or (), keys=keys or (), components=components, only=only)
        return self

    def disable(  # type: ignore[override]
        self,
        *,
        names: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        components: Collection[str] | None = None,
        **unsupported: Any,
    ) -> Self:
        reject_options("disable", unsupported, _VERSION)
        super().disable(names=names or (), tags=tags or (), keys=keys or (), components=components)
        return self

    async def render_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return await self.get_prompt(name, arguments)

    @classmethod
    def from_openapi(  # type: ignore[override]
        cls, openapi_spec: Any, client: Any = None, name: str | None = None, **options: Any
    ) -> Self:
        """Return a server with a tool for each operation of an OpenAPI document."""
        translated = _translate_openapi("from_openapi", name, options)
        return super().from_openapi(openapi_spec, **({} if client is None else {"client": client}), **translated)

    @classmethod
    def from_fastapi(cls, app: Any, name: str | None = None, **options: Any) -> Self:
        """Return a server with a tool for each operation of a FastAPI application."""
        return super().from_fastapi(app, **_translate_openapi("from_fastapi", name, options))

    # Running

    def http_app(
        self, path: str | None = None, middleware: Sequence[Any] | None = None, transport: str = "http", **options: Any
    ) -> Any:
        """Return the server as an ASGI application, wrapped in Starlette middleware."""
        app = self._create_app("http_app", transport, {"path": path, **options})
        return _WrappedApp(app, middleware) if middleware else app

    async def run_http_async(self, show_banner: bool | None = None, transport: str = "http", **options: Any) -> None:
        await self.run_async(transport, show_banner, **options)


def _translate_openapi(of: str, name: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    translated = dict(options)
    pop_unsupported(of, translated, _OPENAPI_UNSUPPORTED)
    translated = {_OPENAPI_NAMES.get(key, key): value for key, value in translated.items()}
    return translated if name is None else {"name": name, **translated}


class _WrappedApp:
    """An application wrapped in Starlette middleware. Attributes are forwarded to the application."""

    def __init__(self, app: AsgiApplication, middleware: Sequence[Any]) -> None:
        self._app = app
        handler: Any = app
        for layer in reversed(middleware):
            # Starlette's `Middleware(cls, *args, **kwargs)`.
            handler = layer.cls(handler, *layer.args, **layer.kwargs)
        self._handler: AsgiApp = handler

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # The lifespan bypasses the middleware: not every middleware forwards it.
        await (self._app if scope["type"] == "lifespan" else self._handler)(scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)
