"""What a body needs besides its arguments: `db: Database = Depends(connect)`, or `Annotated[Database, Depends(…)]`.

A client never sees such a parameter. Its value is made for each call, once however often it is asked for, by a function
that may have dependencies of its own, the Context, and the arguments of the body by their names. What the function
yields is taken, and the rest of it runs when the call is over.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from contextlib import contextmanager as synccontextmanager
from contextvars import copy_context
from functools import partial, wraps
from inspect import Parameter
from threading import Lock
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Struct

from portico.jsonschema import SchemaError
from portico.jsonschema.type_hints import resolve
from portico.protocol.errors import ToolError, UsageError
from portico.server.context.context import MAX_TOKENS, AcceptedElicitation, Context, Elicitation

T = TypeVar("T")
Function = Callable[..., Any]

_CONTEXT = "portico_context"
_DEEPEST = 50
# How long the rest of the functions may take when a call is over.
LEAVE_SECONDS = 30.0
# Parameters that take whatever is left, for which there is nothing.
_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class _Dependency(Struct, frozen=True):
    """The function that makes a value."""

    fn: Function


def Depends(fn: Callable[..., Any], **given: Any) -> Any:
    """A parameter that the server fills in: `def tool(name: str, db: Database = Depends(connect))`.

    * **fn** – makes the value: a function, `async` or not, a generator that yields it once, or one that gives a context
      manager.
    * **given** – values for parameters of that function; `CallArgument("name")` is an argument of the tool.
    """
    if not callable(fn):
        raise UsageError(f"Depends takes a function, not {fn!r}")
    return _Dependency(_bound(fn, given) if given else fn)


def CallArgument(name: str | None = None) -> Any:
    """A parameter of a dependency that is an argument of the tool, of the same name unless one is said."""
    return _ToolArgument(name)


class _ToolArgument(Struct, frozen=True):
    name: str | None


def _bound(fn: Callable[..., Any], given: dict[str, Any]) -> Callable[..., Any]:
    """The function with some of its parameters given. Those that are arguments go by the tool's names for them."""
    arguments = {name: one.name for name, one in given.items() if isinstance(one, _ToolArgument) and one.name}
    fixed = {name: one for name, one in given.items() if not isinstance(one, _ToolArgument)}

    @wraps(fn)
    def called(**values: Any) -> Any:
        return fn(**fixed, **{inner: values.pop(outer) for inner, outer in arguments.items()}, **values)

    signature = inspect.signature(fn)
    unknown = set(given) - set(signature.parameters)
    if unknown and not any(one.kind is Parameter.VAR_KEYWORD for one in signature.parameters.values()):
        raise UsageError(f"Depends: {_name(fn)} has no parameter {min(unknown)!r}")
    renamed = [
        one.replace(name=arguments.get(one.name, one.name), kind=Parameter.KEYWORD_ONLY)
        for one in signature.parameters.values()
        if one.name not in fixed
    ]
    called.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    return called


Resolve = Depends
"""The official SDK's word for the same: `Annotated[Stock, Resolve(check_stock)]`."""


class Elicit(Struct, Generic[T]):
    """Returned by the function of a dependency: its value is what the user answers."""

    message: str
    response_type: Any = None


class Sampling(Struct):
    """Returned by the function of a dependency: its value is what the client's model says. The official SDK has it as
    `Sample`."""

    messages: Any
    max_tokens: int = MAX_TOKENS
    system_prompt: str | None = None
    temperature: float | None = None


class ListRoots(Struct):
    """Returned by the function of a dependency: its value is the list of the client's roots."""


def with_dependencies(fn: Function) -> Function:
    """The function as a body: without its dependencies, which are made before it is called. Itself if it has none."""
    plan = _plan(fn)
    if not plan.made:
        return fn
    plans = _plans_below(plan)

    @wraps(fn)
    async def body(*args: Any, **kwargs: Any) -> Any:
        given = plan.outward.bind(*args, **kwargs)
        given.apply_defaults()
        values = dict(given.arguments)
        context: Context = values[plan.context] if plan.context else values.pop(_CONTEXT)
        async with _TimelyStack() as stack:
            making = _Making(plans, context, values, stack)
            for name, one in plan.made.items():
                values[name] = await making.value(one, plan.hints.get(name))
            return await _called(fn, values, context)

    body.__signature__ = plan.outward  # type: ignore[attr-defined]
    return body


class _DependencyPlan(Struct, frozen=True):
    """The parameters of a function: those that a dependency makes, the Context, and the rest."""

    made: dict[str, _Dependency]
    hints: dict[str, Any]
    context: str | None
    outward: inspect.Signature


def _plan(fn: Function) -> _DependencyPlan:
    """How a function is called."""
    source = inspect.unwrap(fn)
    try:
        signature = inspect.signature(fn)
        hints = resolve(source if inspect.isroutine(source) else type(source).__call__)
    except (TypeError, ValueError, SchemaError):
        # What is wrong is said where the function is read.
        return _DependencyPlan({}, {}, None, inspect.Signature())
    made = {one.name: found for one in signature.parameters.values() if (found := _dependency(one, hints))}
    context = next((name for name in signature.parameters if name not in made and _is_context(hints.get(name))), None)
    rest = [one for one in signature.parameters.values() if one.name not in made]
    if made and context is None:
        rest.append(Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=Context))
        rest.sort(key=lambda one: one.kind)
    return _DependencyPlan(made, hints, context, signature.replace(parameters=rest))


def _plans_below(plan: _DependencyPlan) -> dict[Function, _DependencyPlan]:
    """Those of all dependencies of a plan, and of theirs: functions are read while the server is built."""
    found: dict[Function, _DependencyPlan] = {}
    wanted = [one.fn for one in plan.made.values()]
    while wanted:
        fn = wanted.pop()
        if fn not in found:
            found[fn] = _plan(fn)
            wanted += [one.fn for one in found[fn].made.values()]
    return found


def _dependency(parameter: Parameter, hints: dict[str, Any]) -> _Dependency | None:
    if isinstance(parameter.default, _Dependency):
        return parameter.default
    hint = hints.get(parameter.name)
    said = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return next((one for one in said if isinstance(one, _Dependency)), None)


def _is_context(hint: Any) -> bool:
    bare = typing.get_origin(hint) or hint
    return isinstance(bare, type) and issubclass(bare, Context)


class _TimelyStack(AsyncExitStack):
    """What is left within some time, also where the call was cancelled already and will not be again."""

    async def __aexit__(self, *failure: Any) -> bool | None:
        async with asyncio.timeout(LEAVE_SECONDS):
            return await super().__aexit__(*failure)


class _InThread:
    """A context manager that may block: it is entered and left in threads. What it sets in the context of the call, the
    body sees."""

    def __init__(self, manager: AbstractContextManager[Any], context: Context) -> None:
        self._manager = manager
        self._context = context
        # One for both, so that what was set can be taken back.
        self._variables = copy_context()
        self._lock = Lock()
        self._entered = self._abandoned = False

    async def __aenter__(self) -> Any:
        try:
            value = await self._context.in_thread(self._enter)
        except asyncio.CancelledError:
            with self._lock:
                self._abandoned = True
            if self._entered:
                await self.__aexit__(None, None, None)
            raise
        for variable, said in self._variables.items():
            if variable.get(None) is not said:
                variable.set(said)
        return value

    def _enter(self) -> Any:
        # Another thread may leave it as soon as it is entered, and no two can be in the same variables.
        value = self._variables.run(self._manager.__enter__)
        with self._lock:
            self._entered = not self._abandoned
        if not self._entered:
            # The call is over: there is nothing that would leave it.
            self._variables.run(self._manager.__exit__, None, None, None)
        return value

    async def __aexit__(self, *failure: Any) -> Any:
        try:
            return await self._context.in_thread(self._variables.run, self._leave, *failure)
        except ToolError:
            if not self._entered:
                raise
            # There are too many calls for another thread, and it has to be left all the same.
            return self._variables.run(self._leave, *failure)

    def _leave(self, *failure: Any) -> Any:
        self._entered = False
        return self._manager.__exit__(*failure)


class _Making:
    """The values of one call."""

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
        self._made: dict[Function, Any] = {}
        self._depth = 0

    async def value(self, wanted: _Dependency, hint: Any) -> Any:
        if wanted.fn not in self._made:
            self._depth += 1
            if self._depth > _DEEPEST:
                raise UsageError(f"the dependencies of {_name(wanted.fn)} go round in a circle")
            self._made[wanted.fn] = await self._make(wanted.fn)
            self._depth -= 1
        return await self._answer(self._made[wanted.fn], hint, wanted.fn)

    async def _make(self, fn: Function) -> Any:
        plan = self._plans[fn]
        values: dict[str, Any] = {}
        for parameter in plan.outward.parameters.values():
            if parameter.name in (plan.context, _CONTEXT) or parameter.kind in _OPEN:
                continue
            if parameter.name in self._arguments:
                values[parameter.name] = self._arguments[parameter.name]
            elif parameter.default is Parameter.empty or isinstance(parameter.default, _ToolArgument):
                raise UsageError(f"{_name(fn)} wants {parameter.name!r}, which is no argument of the tool")
        for name, one in plan.made.items():
            values[name] = await self.value(one, plan.hints.get(name))
        if plan.context is not None:
            values[plan.context] = self._context
        written = inspect.unwrap(fn)
        if inspect.isasyncgenfunction(written):
            return await self._stack.enter_async_context(asynccontextmanager(fn)(**values))
        if inspect.isgeneratorfunction(written):
            return await self._stack.enter_async_context(_InThread(synccontextmanager(fn)(**values), self._context))
        found = await _called(fn, values, self._context)
        if isinstance(found, AbstractAsyncContextManager):
            return await self._stack.enter_async_context(found)
        if isinstance(found, AbstractContextManager):
            return await self._stack.enter_async_context(_InThread(found, self._context))
        return found

    async def _answer(self, found: Any, hint: Any, fn: Function) -> Any:
        """What a question came to, where the function asked one."""
        if isinstance(found, ListRoots):
            self._made[fn] = await self._context.roots()
            return self._made[fn]
        if isinstance(found, Sampling):
            self._made[fn] = await self._context.sample(
                found.messages,
                max_tokens=found.max_tokens,
                system_prompt=found.system_prompt,
                temperature=found.temperature,
            )
            return self._made[fn]
        if isinstance(found, Elicit):
            self._made[fn] = found = await self._context.elicit(found.message, found.response_type)
        if not isinstance(found, Elicitation):
            # What needed no question is an answer too, where one is expected.
            return AcceptedElicitation("accept", found) if _wants_elicitation(hint) else found
        if _wants_elicitation(hint):
            return found
        if found.action != "accept":
            raise ToolError("The user did not agree.", kind="PermissionError")
        return found.data


def _wants_elicitation(hint: Any) -> bool:
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    options = (bare, *typing.get_args(bare))
    return any(
        isinstance(cls, type) and issubclass(cls, Elicitation)
        for cls in (typing.get_origin(one) or one for one in options)
    )


async def _called(fn: Function, values: dict[str, Any], context: Context) -> Any:
    """What a function returns: on the loop if it is async, otherwise in a thread."""
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        return await fn(**values)
    context.leave_loop()
    found = await context.in_thread(partial(_call, fn, values))
    return await found if inspect.isawaitable(found) else found


def _call(fn: Function, values: dict[str, Any]) -> Any:
    positional = [
        values.pop(one.name)
        for one in inspect.signature(fn).parameters.values()
        if one.kind is Parameter.POSITIONAL_ONLY and one.name in values
    ]
    return fn(*positional, **values)


def _name(fn: Function) -> str:
    return getattr(fn, "__qualname__", repr(fn))
