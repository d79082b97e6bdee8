"""FastMCP's dependencies, and functions that return the current request without a parameter for it."""

from __future__ import annotations

from typing import Any

from portico.auth.access_token import AccessToken, to_access_token
from portico.auth.principal import Principal
from portico.compat.mcp_sdk.session import RequestContext
from portico.protocol.errors import ToolError
from portico.server.components.dependencies import Depends
from portico.server.context.context import Context, create_context
from portico.server.context.current import CurrentCall


def _current_context() -> Context | None:
    result: Any = CurrentCall.get()
    if isinstance(result, tuple):
        call, runtime = result
        return create_context(call, runtime, _cannot_ask)
    if isinstance(result, RequestContext):
        return result.context
    return result if isinstance(result, Context) else None


def _cannot_ask(task: Any) -> Any:
    raise RuntimeError("to send a request to the client, take the Context as a parameter of the tool: ctx: Context")


def get_context() -> Context:
    """Return the Context of the current call. Raises RuntimeError outside of a call."""
    result = _current_context()
    if result is None:
        raise RuntimeError("no call is being handled")
    return result


def get_access_token() -> AccessToken | None:
    """Return the caller's access token, or None without one."""
    context = _current_context()
    principal = None if context is None else context.principal
    return to_access_token(principal) if isinstance(principal, Principal) else None


def get_http_headers(include_all: bool = False, include: Any = None) -> dict[str, str]:
    """Return the request headers listed in `FastMCP(headers=[…])`, whatever `include` requests."""
    context = _current_context()
    return {} if context is None else dict(context.headers)


CurrentCall.context_factories = (get_context,)


def _return_context(ctx: Context) -> Context:
    return ctx


def CurrentContext() -> Any:
    """Inject the Context: `ctx: Context = CurrentContext()`."""
    return Depends(_return_context)


def get_server() -> Any:
    """Return the server of the current call."""
    return get_context().server


def CurrentFastMCP() -> Any:
    """Inject the server."""
    return Depends(_server)


def _server(ctx: Context) -> Any:
    return ctx.server


def CurrentHeaders() -> Any:
    """Inject the request headers that the server exposes."""
    return Depends(get_http_headers)


def TokenClaim(name: str) -> Any:
    """Inject a claim of the caller's token. Raises ToolError if it is missing."""

    def claim() -> Any:
        token = get_access_token()
        result = None if token is None else (token.claims or {}).get(name)
        if result is None:
            raise ToolError(f"This requires a token with the claim {name!r}.", error_type="PermissionError")
        return result

    return Depends(claim)


class Progress:
    """Progress of a call, reported to its client: `progress: Progress = Progress()`."""

    def __new__(cls, ctx: Context | None = None) -> Any:
        return Depends(_progress) if ctx is None else super().__new__(cls)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.current, self.total, self.message = 0, 1, ""

    async def set_total(self, total: int) -> None:
        self.total = total

    async def increment(self, amount: int = 1) -> None:
        self.current += amount
        await self._ctx.report_progress(self.current, self.total, self.message or None)

    async def set_message(self, message: str | None) -> None:
        self.message = message or ""
        await self._ctx.report_progress(self.current, self.total, self.message or None)


def _progress(ctx: Context) -> Progress:
    return Progress(ctx)


def CurrentAccessToken() -> Any:
    """Inject the caller's access token."""
    return Depends(get_access_token)
