"""Per-component authorization as in FastMCP: `@server.tool(auth=require_scopes("admin"))`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.auth.access_token import AccessToken, to_access_token
from portico.auth.principal import Principal
from portico.protocol import jsonrpc
from portico.protocol.completion import PromptReference
from portico.protocol.errors import (
    ComponentNotFound,
    InsufficientScope,
    InvalidParams,
    ProtocolError,
    ResourceNotFound,
    ToolError,
)
from portico.protocol.jsonrpc import array_decoder, object_decoder
from portico.protocol.methods import LIST_MEMBERS
from portico.rpc.call import Call
from portico.server.components.validation import META_TAGS
from portico.server.middleware import CallNext, Middleware, MiddlewareContext, iter_listed
from portico.server.policy.interfaces import PolicyContext, observed_requests
from portico.server.registry.service import MethodHandler, Service

log = logging.getLogger("portico.server")

# The list method for each method that addresses a component by name.
_LIST_OF = {
    "tools/call": "tools/list",
    "prompts/get": "prompts/list",
    "resources/read": "resources/list",
    "completion/complete": "prompts/list",
}
_keys = msgspec.json.Decoder(dict[str, Any])


class AuthContext:
    """Argument of a check: the caller's token, the requested component, and all attributes of the Call."""

    def __init__(self, call: Call, component: Any) -> None:
        self.call, self.component = call, component

    # A check may also be written for the Call itself: its attributes are available here too.
    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)

    @property
    def token(self) -> AccessToken | None:
        """Return the caller's access token, or None without one."""
        principal = self.call.principal
        return to_access_token(principal) if isinstance(principal, Principal) else None

    @property
    def tool(self) -> Any:
        return self.component


AuthCheck = Callable[[AuthContext], bool | Awaitable[bool]]


def require_scopes(*scopes: str) -> AuthCheck:
    """Return a check that requires all of these scopes.

    A client on stdio is the local user and passes every check.
    """

    def check(context: AuthContext) -> bool:
        call = context.call
        if call.principal is None:
            # `principal` is None both on stdio, where the client is the local user, and for an HTTP
            # request without a token. Only the latter is anonymous.
            missing = frozenset(scopes) if call.is_anonymous else frozenset()
        else:
            missing = call.principal.missing_scopes(frozenset(scopes))
        if missing:
            raise InsufficientScope(repr(getattr(context.component, "name", call.method)), scopes, missing)
        return True

    return check


def restrict_tag(tag: str, *, scopes: Sequence[str]) -> AuthCheck:
    """Return a check that requires the scopes for components with this tag, and passes all others."""
    restricted = require_scopes(*scopes)

    def check(context: AuthContext) -> bool | Awaitable[bool]:
        if context.component is None:
            return restricted(context)  # the component of a mounted server may have the tag, so require the scopes
        definition = getattr(context.component, "definition", context.component)
        tags = (getattr(definition, "meta", None) or {}).get(META_TAGS, ())
        return restricted(context) if tag in tags else True

    return check


async def authorize(auth: Any, call: Call, component: Any) -> None:
    """Run one or several checks. Raises the exception of a check, or a not-found error if a check fails."""
    if (noted := observed_requests.get()) is not None:
        # Mark the call as subject to policy, so that caching middleware does not store its result.
        noted.append(PolicyContext(call))
    for check in auth if isinstance(auth, list | tuple) else (auth,):
        verdict = check(AuthContext(call, component))
        if isawaitable(verdict):
            verdict = await verdict
        # Accept only True: a check that forgets to return must not let everyone in.
        if verdict is not True:
            raise _missing_component_error(call)


def _missing_component_error(call: Call) -> InvalidParams:
    """Return the error for a missing component. Denied components are indistinguishable from missing ones."""
    # The same texts as for names that never existed: a different message would let a client
    # enumerate the components that it may not use.
    params = call.decode_params()
    if call.method == "resources/read":
        return ResourceNotFound(params.uri)
    if call.method == "completion/complete":
        return InvalidParams("Nothing to complete")
    return ComponentNotFound("prompt" if call.method == "prompts/get" else "tool", getattr(params, "name", ""), [])


async def is_authorized(auth: Any, call: Call, component: Any) -> bool:
    """Return whether a component is listed for a caller: not if a call of it would be rejected."""
    try:
        await authorize(auth, call, component)
    except (ProtocolError, ToolError):
        return False
    except Exception as failure:
        # A call would fail too, so do not list it.
        log.warning("%s is not listed: its auth check failed with %s", component.name, type(failure).__name__)
        return False
    return True


class AuthFilteredLists(Service):
    """Service that removes components from lists and completions if their checks reject the caller.

    Added with the first component that has a check, so that other servers have no overhead.
    """

    name = "portico/checked-lists"
    internal = True

    def on_added(self, server: Any) -> None:
        self._server = server

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        # Lists and completions are the two ways to learn of a component without calling it.
        if method in LIST_MEMBERS:
            return partial(self._list, handler)
        return partial(self._complete, handler) if method == "completion/complete" else handler

    async def _list(self, answer: MethodHandler, call: Call) -> Any:
        result = answer(call)
        result = await result if type(result) is CoroutineType else result
        return await self._filter_page(call, result, *LIST_MEMBERS[call.method]) if type(result) is Raw else result

    async def _complete(self, answer: MethodHandler, call: Call) -> Any:
        await self._check_completion(call)
        result = answer(call)
        return await result if type(result) is CoroutineType else result

    async def _filter_page(self, call: Call, result: Raw, member: str, key: str) -> Raw:
        page = object_decoder.decode(result)
        if member not in page:
            return result
        # Entries of mounted servers are not in the catalog and are passed on: their own server has
        # checked them already.
        catalog, visible = self._server.catalogs[call.method], []
        for entry in array_decoder.decode(page[member]):
            component = catalog.get(_keys.decode(entry)[key])
            auth = getattr(component, "auth", None)
            if auth is None or await is_authorized(auth, call, component):
                visible.append(entry)
        # The list now depends on the caller: shared caches must not store it.
        if "cacheScope" in page:
            page["cacheScope"] = Raw(b'"private"')
        return Raw(jsonrpc.encode({**page, member: visible}))

    async def _check_completion(self, call: Call) -> None:
        ref, server = call.decode_params().ref, self._server
        if isinstance(ref, PromptReference):
            component, name = server.prompts.get(ref.name), ref.name
        else:
            component, name = server.templates.get(ref.uri) or server.resources.get(ref.uri), ref.uri
        auth = getattr(component, "auth", None)
        if auth is not None and not await is_authorized(auth, call, component):
            # The error for an unknown reference, so that completion does not reveal a denied
            # component.
            raise server.provider.nothing_to_complete(name)


class AuthMiddleware(Middleware):
    """Middleware that applies one or several checks to every component of a server."""

    def __init__(self, auth: Any) -> None:
        self._auth = auth

    async def _check(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        # For a mounted component only the list entry is known. Without it, `restrict_tag` could not
        # read the tags and would require the scopes for every mounted component.
        component = context.component or await self._find_mounted(context, call_next)
        await authorize(self._auth, context.call, component)
        return await call_next(context)

    async def _find_mounted(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        """Return the list entry of a mounted component, or None if it is not listed."""
        method = _LIST_OF[context.method]
        if not context.server.provider:
            return None
        name_of = context.server.catalogs[method].name_of
        async for entry in iter_listed(method, LIST_MEMBERS[method][0], context, call_next):
            if name_of(entry) == context.name:
                return entry
        return None

    on_call_tool = on_read_resource = on_get_prompt = on_complete = _check

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        member, catalog = LIST_MEMBERS[context.method][0], context.server.catalogs[context.method]
        member = "resource_templates" if member == "resourceTemplates" else member
        visible = []
        for entry in getattr(result, member):
            # Of mounted components only the list entry is available.
            component = catalog.get(catalog.name_of(entry)) or entry
            if await is_authorized(self._auth, context.call, component):
                visible.append(entry)
        return replace(result, **{member: visible, "cache_scope": "private"})

    on_list_tools = on_list_prompts = on_list_resources = on_list_resource_templates = _list
