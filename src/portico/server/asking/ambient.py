"""What FastMCP and the official SDK let a function ask for without a parameter: who calls, with which headers."""

from __future__ import annotations

from typing import Any

from portico.auth.familiar import AccessToken, access_token_of
from portico.auth.principal import Principal
from portico.server.asking.context import Context
from portico.server.asking.current import CurrentCall
from portico.server.calling.dependencies import Depends

# From here on bodies have it.
CurrentCall.wanted = True


def _current() -> Context | None:
    found: Any = CurrentCall.answering.get(None)
    if isinstance(found, tuple):
        call, runtime = found
        return Context(call, runtime, _cannot_ask)
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
    return access_token_of(principal) if isinstance(principal, Principal) else None


def get_http_headers(include_all: bool = False, **_: Any) -> dict[str, str]:
    """The headers of the request that the server was told to show: `Server(headers=[…])`."""
    context = _current()
    return {} if context is None else dict(context.headers)


CurrentCall.gives_context = (get_context,)


def _given(ctx: Context) -> Context:
    return ctx


def CurrentContext() -> Any:
    """A parameter that is the Context: `ctx: Context = CurrentContext()`."""
    return Depends(_given)


def CurrentAccessToken() -> Any:
    """A parameter that is what is known of the token of the caller."""
    return Depends(get_access_token)
