"""Execution of registered functions: the part that tools, resources and prompts share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Raw

from portico._lazy import LazyModule, get_loaded_module
from portico.protocol.errors import InsufficientScope, ProtocolError, ToolError, UsageError
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.rpc.call import Call
from portico.rpc.fair_queue import get_caller_key
from portico.server.components.interop import to_native
from portico.server.components.runtime import Runtime
from portico.server.components.signature import FunctionSignature, inspect_signature
from portico.server.components.validation import validate_timeout
from portico.server.context.current import ContextMarker, CurrentCall

if TYPE_CHECKING:
    from portico.server.components import schema_signature
    from portico.server.components.schema_signature import SchemaSignature
else:
    schema_signature = LazyModule("portico.server.components.schema_signature")

ExecutionMode = Literal["async", "thread", "inline"]
Args = Sequence[Any]
Kwargs = Mapping[str, Any]


class FunctionRunner:
    """Runs a function: `async def` on the event loop, `def` in a thread, and an inline `def` directly on the loop."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        *,
        run_in_thread: bool = True,
        timeout: float | None = None,
        types_without_schema: tuple[type, ...] = (),
        input_schema: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        # Only if the module is imported can the function have dependencies: servers without them do not load it.
        dependencies = get_loaded_module("portico.server.components.dependencies")
        if dependencies is not None:
            fn = dependencies.inject_dependencies(fn)
        self.timeout = validate_timeout(timeout, repr(name))
        self.signature: FunctionSignature | SchemaSignature = (
            inspect_signature(fn, context_type=ContextMarker, types_without_schema=types_without_schema)
            if input_schema is None
            else _schema_signature(fn, input_schema, types_without_schema)
        )
        self.mode = _execution_mode(fn, run_in_thread)
        if self.mode == "inline" and timeout is not None:
            raise UsageError(
                f"{name!r}: a function with run_in_thread=False cannot have a timeout, because it cannot be interrupted"
            )
        self._fn = fn
        self._wants_context = self.signature.context is not None or CurrentCall.is_context_factory(fn)
        # Whether the function can be called directly, without a coroutine around it.
        self._at_once = self.mode == "inline" or (self.mode == "async" and timeout is None and not self._wants_context)
        # Scopes that a principal with scopes must have: see `Service.scoped`.
        self.service_scopes: frozenset[str] = frozenset()

    def authorize(self, call: Call) -> None:
        """Raise InsufficientScope for a principal that lacks a scope of the service."""
        # Middleware may have set another kind of principal, which has no scopes.
        lacks = getattr(call.principal, "missing_scopes", None)
        missing = lacks(self.service_scopes) if lacks is not None else ()
        if missing:
            raise InsufficientScope(repr(self.name), self.service_scopes, missing)

    def start(
        self, call: Call, runtime: Runtime, params: Any, target: str, arguments: bytes | Raw, strict: bool = False
    ) -> Any:
        """Return the function's value, or a coroutine that returns it or an InputRequiredResult.

        Invalid arguments raise ArgumentError; with `strict`, arguments that would have to be repaired are invalid.
        """
        if self.service_scopes:
            self.authorize(call)
        context: ContextMarker | None = None
        # 2026-07-28, Input Required Results: the client retries the request with `requestState` and
        # `inputResponses`, and the function runs again with the responses.
        retried = params.request_state is not UNSET or params.input_responses is not EMPTY_RAW
        if retried or self._wants_context:
            context = runtime.context_of(call, runtime, params, target, arguments)
            if retried:
                # Verify the client's request state even if the function would not read it.
                return self._resume(context, call, runtime, arguments, strict)
        CurrentCall.enter(context or (call, runtime))
        args, kwargs = self.signature.bind(arguments, context, strict)
        if self._at_once:
            return self._fn(*args, **kwargs) if kwargs else self._fn(*args)
        return self._run(call, context, runtime, args, kwargs)

    async def run(self, call: Call, runtime: Runtime, params: Any, target: str, arguments: bytes | Raw) -> Any:
        """Run the function and return its value."""
        value = self.start(call, runtime, params, target, arguments)
        if type(value) is not CoroutineType:
            return value
        try:
            return await value
        except BaseExceptionGroup as group:
            raise unwrap_exception_group(group) or group from None

    async def _resume(
        self, context: ContextMarker, call: Call, runtime: Runtime, arguments: bytes | Raw, strict: bool
    ) -> Any:
        CurrentCall.enter(context)
        context.bind_task()
        state = context.get_rounds().state
        # Bind before the state is marked as used: a client may retry after an argument error.
        args, kwargs = self.signature.bind(arguments, context, strict)
        if state is not None:
            await runtime.server.used_states.mark_used(state)
        # An inline function is never suspended, so it needs neither a task nor a timeout.
        if self.mode == "inline":
            return self._fn(*args, **kwargs)
        return await self._run(call, context, runtime, args, kwargs)

    async def _run(
        self, call: Call, context: ContextMarker | None, runtime: Runtime, args: Args, kwargs: Kwargs
    ) -> Any:
        if context is not None:
            context.bind_task()
        try:
            if self.timeout is None:
                value = await self._call(call, context, runtime, args, kwargs)
            else:
                value = await self._in_time(call, context, runtime, args, kwargs, self.timeout)
            # By name: it may be the official SDK's class.
            if context is not None and type(value).__name__ == "InputRequiredResult":
                return context.get_rounds().seal_result(to_native(value))
            return value
        except asyncio.CancelledError:
            # A function that waits for client input is cancelled by its context; the result then carries the input
            # requests.
            required = context.input_required_result() if context is not None else None
            if required is None:
                raise
            return required

    async def _in_time(
        self, call: Call, context: ContextMarker | None, runtime: Runtime, args: Args, kwargs: Kwargs, seconds: float
    ) -> Any:
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                return await self._call(call, context, runtime, args, kwargs)
        except TimeoutError:
            # The function's own TimeoutError, such as that of a socket, is an ordinary failure.
            if not deadline.expired():
                raise
            raise ToolError(f"{self.name!r} did not finish within {seconds:g} s.", error_type="TimeoutError") from None

    async def _call(
        self, call: Call, context: ContextMarker | None, runtime: Runtime, args: Args, kwargs: Kwargs
    ) -> Any:
        if self.mode == "async":
            return await self._fn(*args, **kwargs)
        if context is not None:
            context.enter_thread()
        fn = partial(self._fn, **kwargs) if kwargs else self._fn
        value = await runtime.thread_pool.run(fn, args, get_caller_key(call))
        # A `def` may return the coroutine of an `async def` without awaiting it.
        return await value if type(value) is CoroutineType else value


def _schema_signature(fn: Callable[..., Any], schema: dict[str, Any], without: tuple[type, ...]) -> SchemaSignature:
    tools = schema_signature
    result: SchemaSignature = tools.read_schema_signature(
        fn, schema, context_type=ContextMarker, types_without_schema=without
    )
    return result


def unwrap_exception_group(group: BaseExceptionGroup[Any]) -> BaseException | None:
    """Return the error that a function with a TaskGroup raised, unwrapped from its exception group, or None."""
    # Of several concurrent failures, report the first one that is addressed to the client. A group
    # without one is an unexpected failure.
    error: BaseException | None = group.subgroup((ToolError, ProtocolError))
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _execution_mode(fn: Callable[..., Any], run_in_thread: bool) -> ExecutionMode:
    while isinstance(fn, partial):
        fn = fn.func
    if iscoroutinefunction(fn) or iscoroutinefunction(type(fn).__call__):
        return "async"
    return "thread" if run_in_thread else "inline"
