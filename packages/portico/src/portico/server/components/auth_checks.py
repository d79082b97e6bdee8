"""FastMCP's checks of who may have a component: `@server.tool(auth=require_scopes("admin"))`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.auth.access_token import AccessToken, to_access_token
from portico.auth.principal import Principal
from portico.protocol import jsonrpc
from portico.protocol.completion import PromptReference
from portico.protocol.errors import (
    InsufficientScope,
    InvalidParams,
    ProtocolError,
    ResourceNotFound,
    ToolError,
    Unknown,
)
from portico.rpc.call import Call, Handler
from portico.server.components.validation import TAGS
from portico.server.middleware import CallNext, Middleware, MiddlewareContext, each_listed
from portico.server.policy.interfaces import Passage, passed

log = logging.getLogger("portico.server")

# The member of each list, and what its entries are called by.
_LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
# Where what is asked for by its name is listed.
_LIST_OF = {
    "tools/call": "tools/list",
    "prompts/get": "prompts/list",
    "resources/read": "resources/list",
    "completion/complete": "prompts/list",
}
_members = msgspec.json.Decoder(dict[str, Raw])
_entries = msgspec.json.Decoder(list[Raw])
_keys = msgspec.json.Decoder(dict[str, Any])


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
        return to_access_token(principal) if isinstance(principal, Principal) else None

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
        definition = getattr(context.component, "definition", context.component)
        tags = (getattr(definition, "meta", None) or {}).get(TAGS, ())
        return restricted(context) if tag in tags else True

    return check


async def allow(auth: Any, call: Call, component: Any) -> None:
    """Ask a check, or each of several. Raises what a check raises, and otherwise that there is no such thing."""
    if (noted := passed.get()) is not None:
        # It is about every call, as rules are, so that what comes of one is not kept for the next.
        noted.append(Passage(call))
    for check in auth if isinstance(auth, list | tuple) else (auth,):
        said = check(AuthContext(call, component))
        if isawaitable(said):
            said = await said
        # Nothing but a yes is one: a function that forgets to return must not let all in.
        if said is not True:
            raise _missing(call)


def _missing(call: Call) -> InvalidParams:
    """What is refused looks as what is not there."""
    params = call.typed()
    if call.method == "resources/read":
        return ResourceNotFound(params.uri)
    if call.method == "completion/complete":
        return InvalidParams("Nothing to complete")
    return Unknown("prompt" if call.method == "prompts/get" else "tool", getattr(params, "name", ""), [])


async def allows(auth: Any, call: Call, component: Any) -> bool:
    """Whether a component is shown to the sender of a call: not if a call of it would be refused."""
    try:
        await allow(auth, call, component)
    except (ProtocolError, ToolError):
        return False
    except Exception as failure:
        # It would fail when it is called, too.
        log.warning("%s is not listed: its check failed with %s", component.name, type(failure).__name__)
        return False
    return True


class CheckedLists:
    """Lists and completions without what the checks of components refuse: a middleware, put on with the first of them,
    so that other servers pay nothing for it."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __call__(self, handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            if call.method == "completion/complete":
                await self._check_completion(call)
            result = await handler(call)
            listed = _LISTS.get(call.method)
            return result if listed is None or type(result) is not Raw else await self._shown(call, result, *listed)

        return handle

    async def _shown(self, call: Call, result: Raw, member: str, key: str) -> Raw:
        page = _members.decode(result)
        if member not in page:
            return result
        catalog, shown = self._server.catalogs[call.method], []
        for entry in _entries.decode(page[member]):
            component = catalog.get(_keys.decode(entry)[key])
            auth = getattr(component, "auth", None)
            if auth is None or await allows(auth, call, component):
                shown.append(entry)
        if "cacheScope" in page:
            page["cacheScope"] = Raw(b'"private"')
        return Raw(jsonrpc.encode({**page, member: shown}))

    async def _check_completion(self, call: Call) -> None:
        ref, server = call.typed().ref, self._server
        if isinstance(ref, PromptReference):
            component, name = server.prompts.get(ref.name), ref.name
        else:
            component, name = server.templates.get(ref.uri) or server.resources.get(ref.uri), ref.uri
        auth = getattr(component, "auth", None)
        if auth is not None and not await allows(auth, call, component):
            raise server.others.nothing_to_complete(name)


class AuthMiddleware(Middleware):
    """A check, or several, for every component of a server."""

    def __init__(self, auth: Any) -> None:
        self._auth = auth

    async def _check(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        component = context.component or await self._listed(context, call_next)
        await allow(self._auth, context.call, component)
        return await call_next(context)

    async def _listed(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        """What is mounted, which is known by its entry alone; None if it is not listed."""
        method = _LIST_OF[context.method]
        if not context.server.others:
            return None
        name_of = context.server.catalogs[method].name_of
        async for entry in each_listed(method, _LISTS[method][0], context, call_next):
            if name_of(entry) == context.name:
                return entry
        return None

    on_call_tool = on_read_resource = on_get_prompt = on_complete = _check

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        member, catalog = _LISTS[context.method][0], context.server.catalogs[context.method]
        member = "resource_templates" if member == "resourceTemplates" else member
        shown = []
        for entry in getattr(result, member):
            # What is mounted is known by its entry alone.
            component = catalog.get(catalog.name_of(entry)) or entry
            if await allows(self._auth, context.call, component):
                shown.append(entry)
        return replace(result, **{member: shown, "cache_scope": "private"})

    on_list_tools = on_list_prompts = on_list_resources = on_list_resource_templates = _list
