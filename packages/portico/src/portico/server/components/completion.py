"""Completion of argument values while a user types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from portico._lazy import LazyModule
from portico.jsonschema.type_hints import resolve_annotations
from portico.protocol.completion import MAX_COMPLETION_VALUES, CompleteParams, CompleteResult, Completion
from portico.rpc.call import Call
from portico.rpc.fair_queue import get_caller_key
from portico.server.components.runtime import Runtime

if TYPE_CHECKING:
    from portico.jsonschema import reader as reading
else:
    reading = LazyModule("portico.jsonschema.reader")

CompletionFunction = Callable[..., Any]
"Receives the typed text and, if it has a second parameter, the arguments entered so far."


class Completer:
    """Completes one argument with a function, `async` or not."""

    def __init__(self, fn: CompletionFunction) -> None:
        self.fn = fn
        self._wants_context = len(signature(fn).parameters) > 1

    async def complete(self, call: Call, params: CompleteParams, runtime: Runtime) -> CompleteResult:
        args: list[Any] = [params.argument.value]
        if self._wants_context:
            args.append((params.context.arguments if params.context is not None else None) or {})
        if iscoroutinefunction(self.fn):
            result = await self.fn(*args)
        else:
            result = await runtime.thread_pool.run(self.fn, args, get_caller_key(call))
            # A `def` may return the coroutine of an `async def`, as functions of tools may.
            if isawaitable(result):
                result = await result
        return to_complete_result(result)


class CallerCompleter(Completer):
    """Completes with `fn(typed, call)`, for completions that depend on the caller."""

    def __init__(self, fn: Callable[[str, Call], Awaitable[Any]]) -> None:
        self._complete = fn

    async def complete(self, call: Call, params: CompleteParams, runtime: Runtime) -> CompleteResult:
        return to_complete_result(await self._complete(params.argument.value, call))


class CatchAllCompleter(Completer):
    """Completes every argument of every prompt and template with one function: `complete(ref, argument, context)`.

    Values are converted to the function's annotated classes if they belong to the official SDK.
    """

    def __init__(self, fn: CompletionFunction) -> None:
        super().__init__(fn)
        hints = list(resolve_annotations(fn).values())
        # Collect the SDK's classes from the annotations instead of importing the SDK, which may not
        # be installed.
        self._kinds = {
            kind.__name__: kind for hint in hints for kind in (hint, *get_args(hint)) if is_pydantic_model(kind)
        }
        # A function without annotations may still test for the SDK's classes by isinstance.
        namespace = getattr(fn, "__globals__", {})
        self._kinds |= {
            name: namespace[name] for name in _THEIR_NAMES.values() if is_pydantic_model(namespace.get(name))
        }

    async def complete(self, call: Call, params: CompleteParams, runtime: Runtime) -> CompleteResult:
        args = [self._to_foreign_reference(item) for item in (params.ref, params.argument, params.context)]
        result = self.fn(*args[: len(signature(self.fn).parameters)])
        return to_complete_result(await result if isawaitable(result) else result)

    def _to_foreign_reference(self, value: Any) -> Any:
        name = _THEIR_NAMES.get(type(value).__name__, "")
        if name not in self._kinds:
            return value
        return self._kinds[name].model_validate(msgspec.to_builtins(value))


# Our class names, and the names in the official SDK.
_THEIR_NAMES = {
    "PromptReference": "PromptReference",
    "ResourceReference": "ResourceTemplateReference",
    "CompletionArgument": "CompletionArgument",
    "CompletionContext": "CompletionContext",
}


def is_pydantic_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def to_complete_result(completion: Any) -> CompleteResult:
    """Return the result for a completion, or for an iterable of values.

    Values beyond the protocol's limit are dropped.
    """
    if is_pydantic_model(type(completion)) and hasattr(completion, "values"):
        completion = Completion(list(completion.values), completion.total, completion.has_more)
    if isinstance(completion, Completion):
        # 2026-07-28, Completion: "Maximum 100 items per response". The surplus is reported with
        # `hasMore`.
        page = completion.values[:MAX_COMPLETION_VALUES]
        more = completion.has_more or len(page) < len(completion.values) or None
        return CompleteResult(completion=Completion(page, completion.total, more))
    values = [str(value) for value in completion or ()]
    page = values[:MAX_COMPLETION_VALUES]
    return CompleteResult(completion=Completion(page, len(values), len(values) > len(page)))


def complete_from_schema(schema: Mapping[str, Any], argument: str, prefix: str) -> CompleteResult:
    """Complete an argument from the schema: the values of a Literal or an Enum, or booleans."""
    # Imported on demand: few arguments are completed this way, and none at startup.
    reader = reading.SchemaReader(schema)
    options = reader.alternatives(reader.member_schema(reader.root, argument))
    values = [
        value
        for option in options
        for value in reading.get_enum_values(option)
        or (["true", "false"] if reading.get_types(option) == ["boolean"] else [])
    ]
    # Compare without case: users type `re` for `Red`, and enum values are rarely distinguished by
    # case alone.
    prefix_text = prefix.casefold()
    matching = [value for value in map(str, values) if value.casefold().startswith(prefix_text)]
    return to_complete_result(matching)
