"""FastMCP's checks of who may have a component: `@server.tool(auth=require_scopes("admin"))`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from portico.auth.familiar import AccessToken, access_token_of
from portico.auth.principal import Principal
from portico.rpc.call import Call
from portico.server.calling.checks import TAGS
from portico.server.guard import Passage, passed
from portico.server.middleware import CallNext, Hooks, MiddlewareContext
from portico.wire.errors import InsufficientScope, ToolError


class AuthContext:
    """What a check is given: the token of the caller, what is asked for, and everything that the Call has."""

    def __init__(self, call: Call, component: Any) -> None:
        self.call, self.component = call, component

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)

    @property
    def token(self) -> AccessToken | None:
        """None for who has shown none."""
        principal = self.call.principal
        return access_token_of(principal) if isinstance(principal, Principal) else None

    @property
    def tool(self) -> Any:
        return self.component


AuthCheck = Callable[[AuthContext], bool | Awaitable[bool]]


def require_scopes(*scopes: str) -> AuthCheck:
    """Only with all of these scopes. A client on standard input is the user of this machine, and may do all."""

    def check(context: AuthContext) -> bool:
        call = context.call
        if call.principal is None:
            missing = frozenset(scopes) if call.anonymous else frozenset()
        else:
            missing = call.principal.lacks(frozenset(scopes))
        if missing:
            raise InsufficientScope(repr(getattr(context.component, "name", call.method)), scopes, missing)
        return True

    return check


def restrict_tag(tag: str, *, scopes: Sequence[str]) -> AuthCheck:
    """The same for components that have this tag, and none for others."""
    restricted = require_scopes(*scopes)

    def check(context: AuthContext) -> bool | Awaitable[bool]:
        if context.component is None:
            return restricted(context)  # it is another server's, and may have the tag
        definition = context.component.definition
        tags = (getattr(definition, "meta", None) or {}).get(TAGS, ())
        return restricted(context) if tag in tags else True

    return check


async def allow(auth: Any, call: Call, component: Any) -> None:
    """Ask a check, or each of several. Raises ToolError, or what a check raises."""
    if (noted := passed.get()) is not None:
        # It is about every call, as rules are, so that what comes of one is not kept for the next.
        noted.append(Passage(call))
    for check in auth if isinstance(auth, list | tuple) else (auth,):
        said = check(AuthContext(call, component))
        if isawaitable(said):
            said = await said
        # Nothing but a yes is one: a function that forgets to return must not let all in.
        if said is not True:
            raise ToolError(f"{getattr(component, 'name', call.method)!r} is not for you.", kind="PermissionError")


class AuthMiddleware(Hooks):
    """A check, or several, for every component of a server."""

    def __init__(self, auth: Any) -> None:
        self._auth = auth

    async def _check(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        await allow(self._auth, context.call, context.component)
        return await call_next(context)

    on_call_tool = on_read_resource = on_get_prompt = on_complete = _check
