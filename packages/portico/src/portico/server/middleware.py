"""Middleware as classes: a method for each thing that can be asked, and some that most servers want sooner or later.

    class Greeting(Middleware):
        async def on_call_tool(self, context, call_next):
            return await call_next(context)

A function from Handler to Handler is a middleware too, and costs less.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from portico._lazy import LazyModule
from portico.protocol.content import TextContent
from portico.protocol.errors import ProtocolError, ToolError, TooManyRequests, UsageError
from portico.protocol.methods import METHODS
from portico.protocol.pagination import Paging
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import CallToolResult, ListToolsResult
from portico.rpc.call import Call, Handler
from portico.rpc.identity import identity_of
from portico.rpc.networks import network_of
from portico.server.context.current import CurrentCall
from portico.server.policy.interfaces import Passage, passed

if TYPE_CHECKING:
    from portico.server.context import request_context
else:
    request_context = LazyModule("portico.server.context.request_context")

log = logging.getLogger("portico.requests")

MOST_CLIENTS = 10_000

_HOOKS = {
    "tools/call": "on_call_tool",
    "tools/list": "on_list_tools",
    "resources/read": "on_read_resource",
    "resources/list": "on_list_resources",
    "resources/templates/list": "on_list_resource_templates",
    "prompts/get": "on_get_prompt",
    "prompts/list": "on_list_prompts",
    "completion/complete": "on_complete",
    "server/discover": "on_initialize",
}
_LISTS: dict[str, Any] = {
    "tools/list": ListToolsResult,
    "resources/list": ListResourcesResult,
    "resources/templates/list": ListResourceTemplatesResult,
    "prompts/list": ListPromptsResult,
}


class MiddlewareContext(Struct, frozen=True):
    """One request on its way: `message` is its params, read."""

    call: Call
    method: str
    message: Any = None
    timestamp: float = 0.0
    source: str = "client"
    server: Any = None

    @property
    def type(self) -> str:
        return "notification" if self.call.id is None else "request"

    @property
    def name(self) -> str:
        """Of the tool, prompt or resource that it is about; otherwise nothing."""
        about = getattr(self.message, "ref", self.message)
        return str(getattr(about, "name", None) or getattr(about, "uri", ""))

    @property
    def context(self) -> Any:
        """The Context of the request, for its state and its log."""
        return request_context.create_request_context(self.call, self.server)

    @property
    def component(self) -> Any:
        """The tool, prompt or resource of this server that it is about; None for one of another server."""
        registry = self.server.registry
        if self.method == "tools/call":
            return registry.by_name.get(self.name)
        return registry.prompts.get(self.name) or registry.templates.get(self.name) or registry.resource(self.name)[0]

    def copy(self, **changes: Any) -> MiddlewareContext:
        return msgspec.structs.replace(self, **changes)


CallNext = Callable[[MiddlewareContext], Awaitable[Any]]


class Middleware:
    """A middleware with a method for each thing that can be asked; what a subclass has not, is passed on.

    Each takes the context and `call_next`, and returns the result: `on_message` sees everything, `on_request` what is
    answered, `on_call_tool`, `on_list_tools`, `on_read_resource`, `on_list_resources`, `on_list_resource_templates`,
    `on_get_prompt`, `on_list_prompts`, `on_complete` and `on_initialize` one method each. A list is its result with
    one page in it.
    """

    # So that a server says which it is when it is put on.
    takes_server = True
    # The class of the contexts that its methods receive.
    context_class: type[MiddlewareContext] = MiddlewareContext

    def __call__(self, handler: Handler, server: Any = None) -> Handler:
        async def handle(call: Call) -> Any:
            if server is not None:
                CurrentCall.enter((call, server.runtime))

            async def innermost(context: MiddlewareContext) -> Any:
                result = await handler(_called(call, context))
                kind = _LISTS.get(context.method)
                return (
                    msgspec.json.decode(result, type=kind) if kind is not None and isinstance(result, Raw) else result
                )

            result = await self._chain(call.method, innermost)(middleware_context(call, server, self.context_class))
            if result is None and call.id is not None:
                raise TypeError(
                    f"{type(self).__name__} gave no result for {call.method}: it returns what call_next gave"
                )
            return result

        return handle

    def _chain(self, method: str, innermost: CallNext) -> CallNext:
        chain = innermost
        for name in (_HOOKS.get(method), "on_request", "on_message"):
            hook = None if name is None else getattr(self, name, None)
            if hook is not None:
                chain = _around(hook, chain)
        return chain


def _around(hook: Any, inner: CallNext) -> CallNext:
    async def call(context: MiddlewareContext) -> Any:
        return await hook(context, inner)

    return call


def middleware_context(
    call: Call, server: Any = None, kind: type[MiddlewareContext] = MiddlewareContext
) -> MiddlewareContext:
    message = None
    if call.method in METHODS and call.id is not None:
        message = call.typed()
    return kind(call, call.method, message, time.time(), server=server)


async def each_listed(method: str, member: str, context: MiddlewareContext, call_next: CallNext) -> AsyncIterator[Any]:
    """The entries of a list, as they are shown to the sender of another request."""
    paging, params = Paging(), b"{}"
    while True:
        call = msgspec.structs.replace(context.call, method=method, params=Raw(params), read=None)
        page = await call_next(context.copy(call=call, method=method, message=None))
        entries = getattr(page, member)
        for one in entries:
            yield one
        cursor = paging.after(page.next_cursor, len(entries))
        if cursor is None:
            return
        params = msgspec.json.encode({"cursor": cursor})


def _called(call: Call, context: MiddlewareContext) -> Call:
    """The Call as the hooks have left it: another message is other params."""
    if context.message is None or (context.call is call and context.message is _read(call)):
        return context.call
    return msgspec.structs.replace(context.call, params=Raw(msgspec.json.encode(context.message)), read=None)


def _read(call: Call) -> Any:
    return None if call.read is None else call.read[1]


# Ready made


class LoggingMiddleware(Middleware):
    """A line for each request: what it was, about what, what came of it, and how long it took."""

    def __init__(self, logger: logging.Logger | None = None, log_level: int = logging.INFO) -> None:
        self._log = logger or log
        self._level = log_level

    async def on_request(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        began = time.perf_counter()
        outcome = "ok"
        try:
            result = await call_next(context)
            if getattr(result, "is_error", False):
                outcome = "refused"
            return result
        except BaseException as failure:
            outcome = type(failure).__name__
            raise
        finally:
            took = 1000 * (time.perf_counter() - began)
            self._log.log(self._level, "%s %s: %s in %.1f ms", context.method, context.name or "-", outcome, took)


class RateLimitingMiddleware(Middleware):
    """So many requests a second from each principal or address, and no more than `burst_capacity` at once."""

    def __init__(
        self,
        max_requests_per_second: float = 10.0,
        burst_capacity: int | None = None,
        get_client_id: Callable[[MiddlewareContext], str] | None = None,
        global_limit: bool = False,
    ) -> None:
        if not max_requests_per_second > 0:
            raise UsageError(f"max_requests_per_second is {max_requests_per_second}, and has to be more than 0")
        self._rate = max_requests_per_second
        self._most = float(burst_capacity or 2 * max_requests_per_second)
        self._client, self._global = get_client_id, global_limit
        # By client: how many requests are left to it, and as of when. A client that is forgotten has all of them.
        self._left: OrderedDict[Any, tuple[float, float]] = OrderedDict()

    async def on_request(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        who = None if self._global else self._client(context) if self._client else _sender_of(context.call)
        now = time.monotonic()
        left, then = self._left.get(who, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        if left < 1:
            raise _refusal(context.method, math.ceil((1 - left) / self._rate))
        self._left[who] = left - 1, now
        self._left.move_to_end(who)
        while len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return await call_next(context)


def _refusal(method: str, seconds: int) -> ToolError | TooManyRequests:
    """What a model reads where it is a tool that was called; else an error of the protocol."""
    if method != "tools/call":
        return TooManyRequests(seconds)
    what = f"Too many requests. Wait {seconds} s before the next one."
    return ToolError(what, kind="ApiLimitExceeded", details={"retry_after": seconds}, retryable=True)


def _sender_of(call: Call) -> Any:
    return identity_of(call.principal) or network_of(call.address or "")


class RetryMiddleware(Middleware):
    """Calls a tool again that failed for want of a connection or of time. Only for tools that may run twice."""

    def __init__(
        self,
        retries: int = 2,
        delay: float = 0.1,
        errors: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
    ) -> None:
        self._retries, self._delay, self._errors = retries, delay, errors

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        for attempt in range(self._retries):
            try:
                return await call_next(context)
            except self._errors:
                await asyncio.sleep(self._delay * 2**attempt)
        return await call_next(context)


class ResponseCachingMiddleware(Middleware):
    """Keeps the results of tools that only read, for a while, for each principal. `tools` are the names of those.

    What came by rules, limits or an audit is not kept: they are about every call.
    """

    def __init__(self, tools: Collection[str] = (), seconds: float = 60.0, most: int = 1_000) -> None:
        self._tools, self._seconds, self._most = frozenset(tools), seconds, most
        self._kept: OrderedDict[Any, tuple[float, Any]] = OrderedDict()

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        params = context.message
        if params.name not in self._tools or params.request_state is not UNSET:
            return await call_next(context)
        arguments = msgspec.json.decode(params.arguments or b"{}")
        said = msgspec.json.encode([params.name, arguments], order="deterministic")
        key = (*_sender(context), context.call.revision, said)
        kept = self._kept.get(key)
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        noted: list[Passage] = []
        token = passed.set(noted)
        try:
            result = await call_next(context)
        finally:
            passed.reset(token)
        if isinstance(result, CallToolResult) and not result.is_error and not noted:
            self._kept[key] = (time.monotonic() + self._seconds, result)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return result


def _sender(context: MiddlewareContext) -> tuple[Any, ...]:
    """The same for those who would get the same: a principal may do less by another token, or through a view; and
    bodies see its claims, and headers that the server asks for."""
    call = context.call
    principal = call.principal
    may = tuple(getattr(principal, name, None) for name in ("scopes", "groups", "client_id"))
    claims = msgspec.json.encode(getattr(principal, "claims", None), enc_hook=repr, order="deterministic")
    wanted = () if context.server is None else context.server.runtime.headers
    headers = tuple((call.headers or {}).get(name.encode()) for name in wanted)
    return (identity_of(principal), may, claims, headers, call.address is None, call.facet)


class ResponseLimitingMiddleware(Middleware):
    """Cuts off results that would fill a model's window: beyond `longest` characters a text ends with a remark."""

    def __init__(self, longest: int = 100_000) -> None:
        self._longest = longest

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        if not isinstance(result, CallToolResult):
            return result
        length = sum(len(one.text) for one in result.content if isinstance(one, TextContent))
        if length <= self._longest:
            return result
        left, kept = self._longest, []
        for one in result.content:
            if isinstance(one, TextContent):
                kept.append(msgspec.structs.replace(one, text=one.text[:left]))
                left -= min(left, len(one.text))
            else:
                kept.append(one)
        kept.append(
            TextContent(text=f"(cut off: the result has {length:,} characters, and {self._longest:,} are shown)")
        )
        return CallToolResult(content=kept, is_error=result.is_error, meta=result.meta)


class ErrorHandlingMiddleware(Middleware):
    """Tells a function of every unexpected error, and passes it on. `on_error` gets the error and the context."""

    def __init__(self, on_error: Callable[[Exception, MiddlewareContext], Any] | None = None) -> None:
        self._on_error = on_error

    async def on_message(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        try:
            return await call_next(context)
        except (ProtocolError, ToolError):
            raise
        except Exception as failure:
            if self._on_error is not None:
                told = self._on_error(failure, context)
                if isinstance(told, CoroutineType):
                    await cast("Awaitable[Any]", told)
            raise
