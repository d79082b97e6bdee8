"""Class-based middleware with a hook per method, and ready-made middleware for common needs.

    class Greeting(Middleware):
        async def on_call_tool(self, context, call_next):
            return await call_next(context)

A function from Handler to Handler is a middleware too, and has less overhead.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from types import CoroutineType
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.caching import LruCache
from portico.protocol.content import TextContent
from portico.protocol.errors import ProtocolError, ToolError, TooManyRequests, UsageError
from portico.protocol.methods import METHODS
from portico.protocol.pagination import Paginator
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import CallToolResult, ListToolsResult
from portico.rpc.call import Call, Handler
from portico.rpc.identity import client_network, principal_id
from portico.rpc.rate_limit import RateLimit, RateLimiter
from portico.server.context.current import CurrentCall
from portico.server.policy.interfaces import PolicyContext, observed_requests

log = logging.getLogger("portico.requests")


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
    """A request as middleware hooks see it; `message` holds its decoded params."""

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
        """Return the name or URI of the tool, prompt or resource that the request is about, or an empty string."""
        about = getattr(self.message, "ref", self.message)
        return str(getattr(about, "name", None) or getattr(about, "uri", ""))

    @property
    def context(self) -> Any:
        """Return the Context of the request, for its state and its log."""
        return self.server.runtime.contexts.create_request_context(self.call, self.server.runtime)

    @property
    def component(self) -> Any:
        """Return the tool, prompt or resource of this server that the request is about, or None if another server owns
        it.
        """
        registry = self.server.registry
        if self.method == "tools/call":
            return registry.by_name.get(self.name)
        return registry.prompts.get(self.name) or registry.templates.get(self.name) or registry.resource(self.name)[0]

    def copy(self, **changes: Any) -> MiddlewareContext:
        return msgspec.structs.replace(self, **changes)


CallNext = Callable[[MiddlewareContext], Awaitable[Any]]


class Middleware:
    """Base class of middleware with a hook per method. Methods without a hook pass through.

    Each hook takes the context and `call_next`, and returns the result. `on_message` sees everything, `on_request`
    every request; `on_call_tool`, `on_list_tools`, `on_read_resource`, `on_list_resources`,
    `on_list_resource_templates`, `on_get_prompt`, `on_list_prompts`, `on_complete` and `on_initialize` see one method
    each. A list hook returns a list result with one page.
    """

    # Tells Server.add_middleware to pass the server to `__call__`.
    needs_server = True
    # Class of the contexts that hooks receive.
    context_class: type[MiddlewareContext] = MiddlewareContext

    def __call__(self, handler: Handler, server: Any = None) -> Handler:
        async def handle(call: Call) -> Any:
            if server is not None:
                CurrentCall.enter((call, server.runtime))

            async def innermost(context: MiddlewareContext) -> Any:
                result = await handler(_apply_message(call, context))
                kind = _LISTS.get(context.method)
                return (
                    msgspec.json.decode(result, type=kind) if kind is not None and isinstance(result, Raw) else result
                )

            result = await self._chain(call.method, innermost)(
                create_middleware_context(call, server, self.context_class)
            )
            if result is None and call.id is not None:
                raise TypeError(
                    f"{type(self).__name__} returned no result for {call.method}: a hook must return a result, "
                    "such as that of call_next"
                )
            return result

        return handle

    def _chain(self, method: str, innermost: CallNext) -> CallNext:
        chain = innermost
        # The method's hook is the innermost, so that on_message and on_request see its result.
        for name in (_HOOKS.get(method), "on_request", "on_message"):
            hook = None if name is None else getattr(self, name, None)
            if hook is not None:
                chain = _wrap_hook(hook, chain)
        return chain


def _wrap_hook(hook: Any, inner: CallNext) -> CallNext:
    async def call(context: MiddlewareContext) -> Any:
        return await hook(context, inner)

    return call


def create_middleware_context(
    call: Call, server: Any = None, kind: type[MiddlewareContext] = MiddlewareContext
) -> MiddlewareContext:
    message = None
    if call.method in METHODS and call.id is not None:
        message = call.decode_params()
    return kind(call, call.method, message, time.time(), server=server)


async def iter_listed(method: str, member: str, context: MiddlewareContext, call_next: CallNext) -> AsyncIterator[Any]:
    """Yield the entries of a list, as they are visible to the sender of another request."""
    paging, params = Paginator(), b"{}"
    while True:
        call = msgspec.structs.replace(context.call, method=method, params=Raw(params), read=None)
        page = await call_next(context.copy(call=call, method=method, message=None))
        entries = getattr(page, member)
        for entry in entries:
            yield entry
        cursor = paging.next_cursor(page.next_cursor, len(entries))
        if cursor is None:
            return
        params = msgspec.json.encode({"cursor": cursor})


def _apply_message(call: Call, context: MiddlewareContext) -> Call:
    """Return the Call after the hooks: params are encoded again only if a hook changed the message."""
    if context.message is None or (context.call is call and context.message is _read(call)):
        return context.call
    return msgspec.structs.replace(context.call, params=Raw(msgspec.json.encode(context.message)), read=None)


def _read(call: Call) -> Any:
    return None if call.read is None else call.read[1]


# Ready-made middleware


class LoggingMiddleware(Middleware):
    """Logs a line for each request: method, name, outcome and duration."""

    def __init__(self, logger: logging.Logger | None = None, log_level: int = logging.INFO) -> None:
        self._log = logger or log
        self._level = log_level

    async def on_request(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        started_at = time.perf_counter()
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
            took = 1000 * (time.perf_counter() - started_at)
            self._log.log(self._level, "%s %s: %s in %.1f ms", context.method, context.name or "-", outcome, took)


class RateLimitingMiddleware(Middleware):
    """Limits the requests per second of each principal or address, with bursts of up to `burst_capacity`."""

    def __init__(
        self,
        max_requests_per_second: float = 10.0,
        burst_capacity: int | None = None,
        get_client_id: Callable[[MiddlewareContext], str] | None = None,
        global_limit: bool = False,
    ) -> None:
        if not max_requests_per_second > 0:
            raise UsageError(f"max_requests_per_second must be more than 0, got {max_requests_per_second}")
        burst = float(burst_capacity or 2 * max_requests_per_second)
        self._limiter = RateLimiter(RateLimit(1 / max_requests_per_second, burst))
        self._client, self._global = get_client_id, global_limit

    async def on_request(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        caller = None if self._global else self._client(context) if self._client else _sender_of(context.call)
        wait = self._limiter.take(caller, time.monotonic())
        if wait:
            raise _refusal(context.method, math.ceil(wait))
        return await call_next(context)


def _refusal(method: str, seconds: int) -> ToolError | TooManyRequests:
    """Return a ToolError that the model reads if a tool was called, otherwise a protocol error."""
    if method != "tools/call":
        return TooManyRequests(seconds)
    message = f"Too many requests. Wait {seconds} s before the next one."
    return ToolError(message, error_type="ApiLimitExceeded", details={"retry_after": seconds}, retryable=True)


def _sender_of(call: Call) -> Any:
    return principal_id(call.principal) or client_network(call.address or "")


class RetryMiddleware(Middleware):
    """Retries tool calls that fail with a connection error or a timeout. Use it only for idempotent tools."""

    def __init__(
        self,
        max_retries: int = 2,
        base_delay: float = 0.1,
        retry_exceptions: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
    ) -> None:
        self._retries, self._delay, self._errors = max_retries, base_delay, retry_exceptions

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        for attempt in range(self._retries):
            try:
                return await call_next(context)
            except self._errors:
                await asyncio.sleep(self._delay * 2**attempt)
        return await call_next(context)


class ResponseCachingMiddleware(Middleware):
    """Caches the results of the read-only tools named in `tools`, separately for each principal.

    Results of calls subject to access rules, rate limits or audit are not cached, because those apply to every call.
    """

    def __init__(self, tools: Collection[str] = (), ttl: float = 60.0, max_entries: int = 1_000) -> None:
        self._tools, self._seconds = frozenset(tools), ttl
        self._result_cache: LruCache[Any, tuple[float, Any]] = LruCache(max_entries)

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        params = context.message
        if params.name not in self._tools or params.request_state is not UNSET:
            return await call_next(context)
        arguments = msgspec.json.decode(params.arguments or b"{}")
        cache_key = msgspec.json.encode([params.name, arguments], order="deterministic")
        key = (*_sender(context), context.call.protocol_version, cache_key)
        cached = self._result_cache.get(key)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        # The policy layer appends to this list when it handles the call; see `observed_requests`.
        noted: list[PolicyContext] = []
        token = observed_requests.set(noted)
        try:
            result = await call_next(context)
        finally:
            observed_requests.reset(token)
        if isinstance(result, CallToolResult) and not result.is_error and not noted:
            self._result_cache[key] = (time.monotonic() + self._seconds, result)
        return result


def _sender(context: MiddlewareContext) -> tuple[Any, ...]:
    """Return a cache key for callers that would receive the same result.

    A principal may have fewer rights with another token or through a view, and functions see its claims and the headers
    that the server requests.
    """
    call = context.call
    principal = call.principal
    may = tuple(getattr(principal, name, None) for name in ("scopes", "groups", "client_id"))
    claims = msgspec.json.encode(getattr(principal, "claims", None), enc_hook=repr, order="deterministic")
    header_names = () if context.server is None else context.server.runtime.headers
    headers = tuple((call.headers or {}).get(name.encode()) for name in header_names)
    return (principal_id(principal), may, claims, headers, call.address is None, call.facet)


class ResponseLimitingMiddleware(Middleware):
    """Truncates results that would fill a model's context window: texts are cut after `max_size` characters."""

    def __init__(self, max_size: int = 100_000) -> None:
        self._max_size = max_size

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        if not isinstance(result, CallToolResult):
            return result
        length = sum(len(item.text) for item in result.content if isinstance(item, TextContent))
        if length <= self._max_size:
            return result
        left, shortened = self._max_size, []
        for item in result.content:
            if isinstance(item, TextContent):
                shortened.append(msgspec.structs.replace(item, text=item.text[:left]))
                left -= min(left, len(item.text))
            else:
                shortened.append(item)
        shortened.append(
            TextContent(text=f"(truncated: the result has {length:,} characters, {self._max_size:,} are shown)")
        )
        return CallToolResult(content=shortened, is_error=result.is_error, meta=result.meta)


class ErrorHandlingMiddleware(Middleware):
    """Reports every unexpected error to `error_callback(error, context)`, then raises it again."""

    def __init__(self, error_callback: Callable[[Exception, MiddlewareContext], Any] | None = None) -> None:
        self._on_error = error_callback

    async def on_message(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        try:
            return await call_next(context)
        except (ProtocolError, ToolError):
            raise
        except Exception as failure:
            if self._on_error is not None:
                callback_result = self._on_error(failure, context)
                if isinstance(callback_result, CoroutineType):
                    await cast("Awaitable[Any]", callback_result)
            raise
