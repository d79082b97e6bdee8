"""Dependency injection: `db: Database = Depends(connect)`, or `Annotated[Database, Depends(…)]`.

Clients never see such a parameter. Its value is created once per call by a function that may have dependencies itself,
take the Context, and take arguments of the tool by name. If the function is a generator, its yielded value is used, and
the rest of it runs after the call.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager as synccontextmanager,
)
from contextvars import copy_context
from functools import partial, wraps
from inspect import Parameter
from threading import Lock
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Struct

from portico.jsonschema import SchemaError
from portico.jsonschema.type_hints import resolve_annotations
from portico.protocol.errors import ToolError, UsageError
from portico.server.context.context import DEFAULT_SAMPLING_MAX_TOKENS, AcceptedElicitation, Context, Elicitation

T = TypeVar("T")
Function = Callable[..., Any]

# Name of the parameter that is added when the tool itself takes no Context but its dependencies
# need one.
_CONTEXT = "portico_context"
# Dependencies of dependencies are resolved recursively, so a cycle would otherwise end in a
# RecursionError that names no function.
_MAX_DEPTH = 50
# Limit for the cleanup of all dependencies after a call.
CLEANUP_TIMEOUT_SECONDS = 30.0
# Variadic parameters, which receive nothing.
_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class _Dependency(Struct, frozen=True):
    """The function that creates a value."""

    fn: Function


def Depends(fn: Callable[..., Any], **arguments: Any) -> Any:
    """Declare a parameter that the server injects: `def tool(name: str, db: Database = Depends(connect))`.

    * **fn** – creates the value: a function, `async` or not, a generator that yields it once, or a function that
      returns a context manager.
    * **arguments** – values for parameters of that function; `CallArgument("name")` refers to an argument of the tool.
    """
    if not callable(fn):
        raise UsageError(f"Depends requires a function, got {fn!r}")
    return _Dependency(_bind_parameters(fn, arguments) if arguments else fn)


def CallArgument(name: str | None = None) -> Any:
    """Declare a parameter of a dependency that receives an argument of the tool, by default of the same name."""
    return _ToolArgument(name)


class _ToolArgument(Struct, frozen=True):
    name: str | None


def _bind_parameters(fn: Callable[..., Any], bindings: dict[str, Any]) -> Callable[..., Any]:
    """Return the function with some parameters bound. Parameters bound to tool arguments are renamed to the tool's
    names.
    """
    arguments = {
        name: parameter.name
        for name, parameter in bindings.items()
        if isinstance(parameter, _ToolArgument) and parameter.name
    }
    fixed = {name: parameter for name, parameter in bindings.items() if not isinstance(parameter, _ToolArgument)}

    @wraps(fn)
    def call_bound(**values: Any) -> Any:
        return fn(**fixed, **{inner: values.pop(outer) for inner, outer in arguments.items()}, **values)

    signature = inspect.signature(fn)
    unknown = set(bindings) - set(signature.parameters)
    if unknown and not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        raise UsageError(f"Depends: {_name(fn)} has no parameter {min(unknown)!r}")
    renamed = [
        parameter.replace(name=arguments.get(parameter.name, parameter.name), kind=Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name not in fixed
    ]
    # Dependencies are read by signature: without this, `wraps` would expose the parameters that are
    # bound already.
    call_bound.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    return call_bound


Resolve = Depends
"The official SDK's name for it: `Annotated[Stock, Resolve(check_stock)]`."


class Elicit(Struct, Generic[T]):
    """Elicitation request returned by the function of a dependency; its value becomes the user's response."""

    message: str
    response_type: Any = None


class SamplingRequest(Struct):
    """Sampling request returned by the function of a dependency; its value becomes the response of the client's model.

    Called `Sample` in the official SDK.
    """

    messages: Any
    max_tokens: int = DEFAULT_SAMPLING_MAX_TOKENS
    system_prompt: str | None = None
    temperature: float | None = None


class ListRoots(Struct):
    """Roots request returned by the function of a dependency; its value becomes the list of the client's roots."""


def inject_dependencies(fn: Function) -> Function:
    """Return the function without its dependencies, which are created before each call. Returns `fn` itself if it has
    none.
    """
    plan = _plan(fn)
    if not plan.made:
        return fn
    # Read all signatures at registration, so that a mistake raises before the server runs.
    plans = _plans_below(plan)

    @wraps(fn)
    async def body(*args: Any, **kwargs: Any) -> Any:
        bound = plan.outward.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        context: Context = values[plan.context] if plan.context else values.pop(_CONTEXT)
        async with _TimelyStack() as stack:
            making = _DependencyResolver(plans, context, values, stack)
            for name, dependency in plan.made.items():
                values[name] = await making.value(dependency, plan.hints.get(name))
            return await _call_anywhere(fn, values, context)

    body.__signature__ = plan.outward  # type: ignore[attr-defined]
    return body


class _DependencyPlan(Struct, frozen=True):
    """Parameters of a function: injected ones, the Context, and the rest."""

    made: dict[str, _Dependency]
    hints: dict[str, Any]
    context: str | None
    outward: inspect.Signature


def _plan(fn: Function) -> _DependencyPlan:
    """Return how a function has to be called."""
    source = inspect.unwrap(fn)
    try:
        signature = inspect.signature(fn)
        hints = resolve_annotations(source if inspect.isroutine(source) else type(source).__call__)
    except (TypeError, ValueError, SchemaError):
        # The error is reported when the function's signature is inspected.
        return _DependencyPlan({}, {}, None, inspect.Signature())
    providers = {
        parameter.name: result
        for parameter in signature.parameters.values()
        if (result := _dependency(parameter, hints))
    }
    context = next(
        (name for name in signature.parameters if name not in providers and _is_context(hints.get(name))), None
    )
    rest = [parameter for parameter in signature.parameters.values() if parameter.name not in providers]
    if providers and context is None:
        rest.append(Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=Context))
        # Python requires keyword-only parameters after the positional ones and before `**kwargs`;
        # the kinds are ordered that way.
        rest.sort(key=lambda parameter: parameter.kind)
    return _DependencyPlan(providers, hints, context, signature.replace(parameters=rest))


def _plans_below(plan: _DependencyPlan) -> dict[Function, _DependencyPlan]:
    """Return the plans of all direct and indirect dependencies, created while the server is built."""
    result: dict[Function, _DependencyPlan] = {}
    factories = [value.fn for value in plan.made.values()]
    while factories:
        fn = factories.pop()
        if fn not in result:
            result[fn] = _plan(fn)
            factories += [value.fn for value in result[fn].made.values()]
    return result


def _dependency(parameter: Parameter, hints: dict[str, Any]) -> _Dependency | None:
    if isinstance(parameter.default, _Dependency):
        return parameter.default
    hint = hints.get(parameter.name)
    metadata = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return next((item for item in metadata if isinstance(item, _Dependency)), None)


def _is_context(hint: Any) -> bool:
    bare = typing.get_origin(hint) or hint
    return isinstance(bare, type) and issubclass(bare, Context)


class _TimelyStack(AsyncExitStack):
    """Exit stack with a cleanup timeout, effective even if the call was already cancelled."""

    async def __aexit__(self, *failure: Any) -> bool | None:
        # A generator that hangs after its `yield` would otherwise hold the request, and at shutdown
        # the process, forever.
        async with asyncio.timeout(CLEANUP_TIMEOUT_SECONDS):
            return await super().__aexit__(*failure)


class _InThread:
    """Context manager that may block: entered and left in threads.

    Context variables that it sets are visible to the function.
    """

    def __init__(self, manager: AbstractContextManager[Any], context: Context) -> None:
        self._manager = manager
        self._context = context
        # Enter and exit share one context, so that ContextVar tokens can be reset.
        self._variables = copy_context()
        self._lock = Lock()
        self._entered = self._abandoned = False

    async def __aenter__(self) -> Any:
        try:
            value = await self._context.run_in_thread(self._enter)
        except asyncio.CancelledError:
            # The thread cannot be cancelled. Either it entered already, and is left here, or `_enter` leaves by itself.
            with self._lock:
                self._abandoned = True
            if self._entered:
                await self.__aexit__(None, None, None)
            raise
        # `__enter__` ran in a copy of the context. Copy its changes back, so that the function
        # sees, for example, the transaction that a dependency opened.
        for variable, context_value in self._variables.items():
            if variable.get(None) is not context_value:
                variable.set(context_value)
        return value

    def _enter(self) -> Any:
        # Another thread may leave it as soon as it is entered, and a context cannot be entered by two threads.
        value = self._variables.run(self._manager.__enter__)
        with self._lock:
            self._entered = not self._abandoned
        if not self._entered:
            # The call was cancelled, so nothing else would leave it.
            self._variables.run(self._manager.__exit__, None, None, None)
        return value

    async def __aexit__(self, *failure: Any) -> Any:
        try:
            return await self._context.run_in_thread(self._variables.run, self._exit, *failure)
        except ToolError:
            if not self._entered:
                raise
            # The thread pool is full, but the context manager has to be left: block the event loop instead.
            return self._variables.run(self._exit, *failure)

    def _exit(self, *failure: Any) -> Any:
        self._entered = False
        return self._manager.__exit__(*failure)


class _DependencyResolver:
    """Creates the dependency values of one call."""

    def __init__(
        self,
        plans: dict[Function, _DependencyPlan],
        context: Context,
        arguments: dict[str, Any],
        stack: AsyncExitStack,
    ) -> None:
        self._plans = plans
        self._context = context
        self._arguments = arguments
        self._stack = stack
        # By function: two parameters with the same dependency share one value within a call, as in
        # FastAPI.
        self._values: dict[Function, Any] = {}
        self._depth = 0

    async def value(self, dependency: _Dependency, hint: Any) -> Any:
        """Return the value of a dependency, creating it on first use. Raises UsageError for circular dependencies."""
        if dependency.fn not in self._values:
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise UsageError(f"circular dependencies: {_name(dependency.fn)}")
            self._values[dependency.fn] = await self._resolve(dependency.fn)
            self._depth -= 1
        return await self._get_value(self._values[dependency.fn], hint, dependency.fn)

    async def _resolve(self, fn: Function) -> Any:
        plan = self._plans[fn]
        values: dict[str, Any] = {}
        for parameter in plan.outward.parameters.values():
            if parameter.name in (plan.context, _CONTEXT) or parameter.kind in _OPEN:
                continue
            if parameter.name in self._arguments:
                values[parameter.name] = self._arguments[parameter.name]
            elif parameter.default is Parameter.empty or isinstance(parameter.default, _ToolArgument):
                raise UsageError(f"{_name(fn)} requires {parameter.name!r}, which is not an argument of the tool")
        for name, dependency in plan.made.items():
            values[name] = await self.value(dependency, plan.hints.get(name))
        if plan.context is not None:
            values[plan.context] = self._context
        # Test the function itself: a decorator's wrapper of a generator function is not a generator
        # function.
        written = inspect.unwrap(fn)
        if inspect.isasyncgenfunction(written):
            return await self._stack.enter_async_context(asynccontextmanager(fn)(**values))
        if inspect.isgeneratorfunction(written):
            return await self._stack.enter_async_context(_InThread(synccontextmanager(fn)(**values), self._context))
        result = await _call_anywhere(fn, values, self._context)
        if isinstance(result, AbstractAsyncContextManager):
            return await self._stack.enter_async_context(result)
        if isinstance(result, AbstractContextManager):
            return await self._stack.enter_async_context(_InThread(result, self._context))
        return result

    async def _get_value(self, outcome: Any, hint: Any, fn: Function) -> Any:
        """Return the client's response if the function requested one, otherwise its value."""
        if isinstance(outcome, ListRoots):
            # Replace the request by its response, so that a second parameter with this dependency
            # does not ask the client again.
            self._values[fn] = await self._context.list_roots()
            return self._values[fn]
        if isinstance(outcome, SamplingRequest):
            self._values[fn] = await self._context.sample(
                outcome.messages,
                max_tokens=outcome.max_tokens,
                system_prompt=outcome.system_prompt,
                temperature=outcome.temperature,
            )
            return self._values[fn]
        if isinstance(outcome, Elicit):
            self._values[fn] = outcome = await self._context.elicit(outcome.message, outcome.response_type)
        if not isinstance(outcome, Elicitation):
            # A value that needed no request counts as accepted where an elicitation result is expected.
            return AcceptedElicitation("accept", outcome) if _wants_elicitation(hint) else outcome
        if _wants_elicitation(hint):
            return outcome
        if outcome.action != "accept":
            # The parameter is annotated with the plain type, so the function cannot handle a
            # declined request itself.
            raise ToolError("The user declined.", error_type="PermissionError")
        return outcome.data


def _wants_elicitation(hint: Any) -> bool:
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    options = (bare, *typing.get_args(bare))
    return any(
        isinstance(cls, type) and issubclass(cls, Elicitation)
        for cls in (typing.get_origin(option) or option for option in options)
    )


async def _call_anywhere(fn: Function, values: dict[str, Any], context: Context) -> Any:
    """Call a function and return its result: on the event loop if it is async, otherwise in a thread."""
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        return await fn(**values)
    context.enter_thread()
    result = await context.run_in_thread(partial(_call, fn, values))
    return await result if inspect.isawaitable(result) else result


def _call(fn: Function, values: dict[str, Any]) -> Any:
    # Positional-only parameters cannot be passed by name, but values are collected by name.
    positional = [
        values.pop(parameter.name)
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.kind is Parameter.POSITIONAL_ONLY and parameter.name in values
    ]
    return fn(*positional, **values)


def _name(fn: Function) -> str:
    return getattr(fn, "__qualname__", repr(fn))
