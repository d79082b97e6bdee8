"""FastMCP's dependencies, and functions that find the current request without a parameter for it."""

from __future__ import annotations

from typing import Any

from portico.auth.access_token import AccessToken, to_access_token
from portico.auth.principal import Principal
from portico.compat.mcp_sdk.session import RequestContext
from portico.protocol.errors import ToolError
from portico.server.components.dependencies import Depends
from portico.server.context.context import Context, create_context
from portico.server.context.current import CurrentCall


def _current() -> Context | None:
    found: Any = CurrentCall.found()
    if isinstance(found, tuple):
        call, runtime = found
        return create_context(call, runtime, _cannot_ask)
    if isinstance(found, RequestContext):
        return found.context
    return found if isinstance(found, Context) else None


def _cannot_ask(task: Any) -> Any:
    raise RuntimeError("to ask the client something, take the Context as a parameter of the tool: ctx: Context")


def get_context() -> Context:
    """The Context of the call that is being answered. Raises RuntimeError outside of one."""
    found = _current()
    if found is None:
        raise RuntimeError("there is no call that is being answered")
    return found


def get_access_token() -> AccessToken | None:
    """What is known of the token of the caller; None for who has shown none."""
    context = _current()
    principal = None if context is None else context.principal
    return to_access_token(principal) if isinstance(principal, Principal) else None


def get_http_headers(include_all: bool = False, include: Any = None) -> dict[str, str]:
    """Return the headers of the request that the server shows: `FastMCP(headers=[…])`, whatever `include` asks for."""
    context = _current()
    return {} if context is None else dict(context.headers)


CurrentCall.gives_context = (get_context,)


def _given(ctx: Context) -> Context:
    return ctx


def CurrentContext() -> Any:
    """A parameter that is the Context: `ctx: Context = CurrentContext()`."""
    return Depends(_given)


def get_server() -> Any:
    """The server of the call that is being answered."""
    return get_context().server


def CurrentFastMCP() -> Any:
    """A parameter that is the server."""
    return Depends(_server)


def _server(ctx: Context) -> Any:
    return ctx.server


def CurrentHeaders() -> Any:
    """A parameter that is the headers of the request that the server was told to show."""
    return Depends(get_http_headers)


def TokenClaim(name: str) -> Any:
    """A parameter that is a claim of the token of the caller."""

    def claim() -> Any:
        token = get_access_token()
        found = None if token is None else (token.claims or {}).get(name)
        if found is None:
            raise ToolError(f"This needs a token with the claim {name!r}.", kind="PermissionError")
        return found

    return Depends(claim)


class Progress:
    """How far a call is, for its client: `progress: Progress = Progress()`."""

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
    """A parameter that is what is known of the token of the caller."""
    return Depends(get_access_token)
