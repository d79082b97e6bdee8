"""A registered function, and how it is run: the part that tools, resources and prompts have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Raw

from portico._lazy import LazyModule, loaded_module
from portico.protocol.errors import InsufficientScope, ProtocolError, ToolError, UsageError
from portico.protocol.jsonrpc import NOTHING
from portico.rpc.call import Call
from portico.rpc.fair_queue import caller_of
from portico.server.components.interop import ours
from portico.server.components.runtime import Runtime
from portico.server.components.signature import Signature, signature_of
from portico.server.components.validation import checked_timeout
from portico.server.context.current import ContextType, CurrentCall

if TYPE_CHECKING:
    from portico.server.components import schema_signature
    from portico.server.components.schema_signature import SchemaSignature
    from portico.server.context import context as context_module
    from portico.server.context.context import Context
else:
    context_module = LazyModule("portico.server.context.context")
    schema_signature = LazyModule("portico.server.components.schema_signature")

Running = Literal["async", "thread", "inline"]
Args = Sequence[Any]
Kwargs = Mapping[str, Any]


class Body:
    """`async def` runs on the loop, `def` in a thread, and a `def` that its author calls quick right where we are."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        *,
        inline: bool = False,
        timeout: float | None = None,
        without_output: tuple[type, ...] = (),
        input_schema: dict[str, Any] | None = None,
    ) -> None:
        if inline and timeout is not None:
            raise UsageError(f"{name!r}: what runs inline cannot be stopped, so it has no timeout")
        self.name = name
        dependencies = loaded_module("portico.server.components.dependencies")
        if dependencies is not None:
            fn = dependencies.with_dependencies(fn)
        self.timeout = checked_timeout(timeout, repr(name))
        self.signature: Signature | SchemaSignature = (
            signature_of(fn, context_type=ContextType, without_output=without_output)
            if input_schema is None
            else _schema_signature(fn, input_schema, without_output)
        )
        self.running: Running = _running(fn, inline, name)
        self._fn = fn
        wants_context = self.signature.context is not None or CurrentCall.is_used_by(fn)
        self._context_of = _context_of() if wants_context else None
        # Calling the function is all that there is to do.
        self._at_once = self.running == "inline" or (self.running == "async" and timeout is None and not wants_context)
        # What a principal must be allowed that has scopes at all: see `Service.scoped`.
        self.service_scopes: frozenset[str] = frozenset()

    def authorize(self, call: Call) -> None:
        """Raise InsufficientScope for a principal that lacks a scope of the service."""
        # A middleware may have put another kind of principal there, which has no scopes.
        lacks = getattr(call.principal, "lacks", None)
        missing = lacks(self.service_scopes) if lacks is not None else ()
        if missing:
            raise InsufficientScope(repr(self.name), self.service_scopes, missing)

    def start(
        self, call: Call, runtime: Runtime, params: Any, target: str, arguments: bytes | Raw, *, strict: bool = False
    ) -> Any:
        """Return the value of the function, or a coroutine for it or for the result that asks for more.

        Wrong arguments raise ArgumentError; with `strict`, arguments that would have to be repaired are wrong.
        """
        if self.service_scopes:
            self.authorize(call)
        context = None
        retried = params.request_state is not UNSET or params.input_responses is not NOTHING
        if retried or self._context_of is not None:
            context = (self._context_of or _context_of())(call, runtime, params, target, arguments)
            if retried:
                # What claims to be our state is verified, also when the body would not have looked at it.
                return self._resume(context, call, runtime, arguments, strict)
        CurrentCall.enter(context or (call, runtime))
        args, kwargs = self.signature.bind(arguments, context, strict=strict)
        if self._at_once:
            return self._fn(*args, **kwargs) if kwargs else self._fn(*args)
        return self._run(call, context, runtime, args, kwargs)

    async def run(self, call: Call, runtime: Runtime, params: Any, target: str, arguments: bytes | Raw) -> Any:
        """The same for a caller that can wait."""
        value = self.start(call, runtime, params, target, arguments)
        if type(value) is not CoroutineType:
            return value
        try:
            return await value
        except BaseExceptionGroup as group:
            raise unwrap_group(group) or group from None

    async def _resume(
        self, context: Context, call: Call, runtime: Runtime, arguments: bytes | Raw, strict: bool
    ) -> Any:
        CurrentCall.enter(context)
        context.enter()
        state = context.begin().state
        args, kwargs = self.signature.bind(arguments, context, strict=strict)
        if state is not None:
            await runtime.server.spent.spend(state)
        if self.running == "inline":
            return self._fn(*args, **kwargs)
        return await self._run(call, context, runtime, args, kwargs)

    async def _run(self, call: Call, context: Context | None, runtime: Runtime, args: Args, kwargs: Kwargs) -> Any:
        if context is not None:
            context.enter()
        try:
            if self.timeout is None:
                value = await self._call(call, context, runtime, args, kwargs)
            else:
                value = await self._in_time(call, context, runtime, args, kwargs, self.timeout)
            # By its name: it may be one of the official SDK.
            if context is not None and type(value).__name__ == "InputRequiredResult":
                return context.begin().carry(ours(value))
            return value
        except asyncio.CancelledError:
            required = context.required() if context is not None else None
            if required is None:
                raise
            return required

    async def _in_time(
        self, call: Call, context: Context | None, runtime: Runtime, args: Args, kwargs: Kwargs, seconds: float
    ) -> Any:
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                return await self._call(call, context, runtime, args, kwargs)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise ToolError(f"{self.name!r} did not finish within {seconds:g} s.", kind="TimeoutError") from None

    async def _call(self, call: Call, context: Context | None, runtime: Runtime, args: Args, kwargs: Kwargs) -> Any:
        if self.running == "async":
            return await self._fn(*args, **kwargs)
        if context is not None:
            context.leave_loop()
        fn = partial(self._fn, **kwargs) if kwargs else self._fn
        value = await runtime.threads.run(fn, args, caller_of(call))
        # A `def` that returns what an `async def` gave it, without waiting for it.
        return await value if type(value) is CoroutineType else value


def _context_of() -> Callable[..., Context]:
    """Makes the Context of a call: see `asking/context.py`, which a server without such bodies does not load."""
    return context_module.context_of


def _schema_signature(fn: Callable[..., Any], schema: dict[str, Any], without: tuple[type, ...]) -> SchemaSignature:
    tools = schema_signature
    found: SchemaSignature = tools.schema_signature(fn, schema, context_type=ContextType, without_output=without)
    return found


def unwrap_group(group: BaseExceptionGroup[Any]) -> BaseException | None:
    """What a body with a TaskGroup meant to say, out of the group that Python puts around it."""
    said: BaseException | None = group.subgroup((ToolError, ProtocolError))
    while isinstance(said, BaseExceptionGroup):
        said = said.exceptions[0]
    return said


def _running(fn: Callable[..., Any], inline: bool, name: str) -> Running:
    while isinstance(fn, partial):
        fn = fn.func
    if iscoroutinefunction(fn) or iscoroutinefunction(type(fn).__call__):
        if inline:
            raise UsageError(f"{name!r} is async: inline=True is for plain functions")
        return "async"
    return "inline" if inline else "thread"
