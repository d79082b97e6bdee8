"""`Context` of the official SDK."""

from __future__ import annotations

from typing import Any

from portico.compat.mcp_sdk.session import RequestContext, ServerSession
from portico.server.context import context as native


class Context(native.Context):
    """A Context with the additional members of the official SDK."""

    __slots__ = ()

    @property
    def request_context(self) -> RequestContext:
        return RequestContext(self)

    @property
    def session(self) -> ServerSession:
        return ServerSession(self)

    @property
    def mcp_server(self) -> Any:
        return self.server

    async def elicit(
        self, message: str, response_type: Any = None, *, schema: Any = None, key: str | None = None
    ) -> Any:
        """Elicit input from the user. `schema` is the SDK's name for `response_type`."""
        return await super().elicit(message, response_type if schema is None else schema, key=key)

    async def close_sse_stream(self) -> None:
        self.close_stream()
