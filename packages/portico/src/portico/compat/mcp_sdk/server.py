"""`MCPServer`, the server of the official SDK, and `FastMCP`, its name in the first major version."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from portico.compat.base import CompatServer, MiddlewareList
from portico.compat.mcp_sdk.context import Context
from portico.compat.unsupported import UnsupportedFeature

if TYPE_CHECKING:
    from portico.transports.http_server.asgi import AsgiApplication

_BOTH = (None, True, False)


class _SessionManager:
    """The SDK's session manager, which here is the lifespan of the server."""

    def __init__(self, server: MCPServer) -> None:
        self._server = server

    def run(self) -> AbstractAsyncContextManager[Any]:
        return self._server.lifespan()


class MCPServer(CompatServer):
    """A Server with the options, methods and defaults of the official SDK. Options of `portico.Server` work as well."""

    context_class = Context
    default_name = "mcp-server"
    unsupported = {
        "auth_server_provider": UnsupportedFeature(
            "use [auth.proxy] of portico-gateway, docs/how-to/control-access.md"
        ),
        "debug": UnsupportedFeature("use log_level='debug'", accepted=(None, False)),
        "dependencies": UnsupportedFeature(
            "declare them in pyproject.toml or in the script (PEP 723)", accepted=(None, [])
        ),
        "subscriptions": UnsupportedFeature("use store=URL, so that workers share notifications"),
        # A second component with the same name is dropped with a log message, whatever these are set to.
        "warn_on_duplicate_tools": UnsupportedFeature("use on_duplicate=", accepted=_BOTH),
        "warn_on_duplicate_resources": UnsupportedFeature("use on_duplicate=", accepted=_BOTH),
        "warn_on_duplicate_prompts": UnsupportedFeature("use on_duplicate=", accepted=_BOTH),
    }

    def __init__(
        self,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        website_url: str | None = None,
        icons: Any = None,
        version: Any = None,
        auth_server_provider: Any = None,
        token_verifier: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name,
            instructions,
            title=title,
            description=description,
            website_url=website_url,
            icons=icons,
            version=version,
            auth_server_provider=auth_server_provider,
            token_verifier=token_verifier,
            **{"on_duplicate": "ignore", **options},
        )

    def add_tool(self, fn: Any, name: str | None = None, title: str | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Add a function or a Tool."""
        named = {key: value for key, value in {"name": name, "title": title, **options}.items() if value is not None}
        return super().add_tool(fn, **named)

    @property
    def middleware(self) -> MiddlewareList:
        return MiddlewareList(self)

    @property
    def session_manager(self) -> _SessionManager:
        return _SessionManager(self)

    def streamable_http_app(self, **options: Any) -> AsgiApplication:
        """Return the server as an ASGI application."""
        return self._create_app("streamable_http_app", "http", options)

    def sse_app(self, mount_path: str | None = None, **options: Any) -> AsgiApplication:
        """Return the server as an ASGI application that also serves the two endpoints of 2024-11-05."""
        return self._create_app("sse_app", "sse", {"mount_path": mount_path, **options})

    async def run_streamable_http_async(self, **options: Any) -> None:
        await self.run_async("http", **options)

    async def run_sse_async(self, **options: Any) -> None:
        await self.run_async("sse", **options)


class FastMCP(MCPServer):
    """`mcp.server.fastmcp.FastMCP`, with its parameter order."""

    def __init__(self, name: str | None = None, instructions: str | None = None, **options: Any) -> None:
        super().__init__(name, instructions=instructions, **options)
