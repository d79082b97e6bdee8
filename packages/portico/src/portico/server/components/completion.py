"""Completion: the values that an argument could have, while a user types it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from portico._lazy import LazyModule
from portico.jsonschema.type_hints import resolve
from portico.protocol.completion import MOST_COMPLETIONS, CompleteParams, CompleteResult, Completion
from portico.rpc.call import Call
from portico.rpc.fair_queue import caller_of
from portico.server.components.runtime import Runtime

if TYPE_CHECKING:
    from portico.jsonschema import reader as reading
else:
    reading = LazyModule("portico.jsonschema.reader")

Complete = Callable[..., Any]
"""Takes what has been typed and, if it wants a second parameter, the other arguments given so far."""


class Completer:
    def __init__(self, fn: Complete) -> None:
        self.fn = fn
        self._wants_context = len(signature(fn).parameters) > 1

    async def complete(self, call: Call, params: CompleteParams, runtime: Runtime) -> CompleteResult:
        args: list[Any] = [params.argument.value]
        if self._wants_context:
            args.append((params.context.arguments if params.context is not None else None) or {})
        if iscoroutinefunction(self.fn):
            found = await self.fn(*args)
        else:
            found = await runtime.threads.run(self.fn, args, caller_of(call))
            if isawaitable(found):
                found = await found
        return result(found)


class CallerCompleter(Completer):
    """Completes with `fn(typed, call)`: for completions that depend on who asks."""

    def __init__(self, fn: Callable[[str, Call], Awaitable[Any]]) -> None:
        self._complete = fn

    async def complete(self, call: Call, params: CompleteParams, runtime: Runtime) -> CompleteResult:
        return result(await self._complete(params.argument.value, call))


class CompleterOfAll(Completer):
    """One function for every argument of every prompt and template: `complete(ref, argument, context)`.

    What it is given is of the classes that it names, where they are those of another library.
    """

    def __init__(self, fn: Complete) -> None:
        super().__init__(fn)
        hints = list(resolve(fn).values())
        self._kinds = {kind.__name__: kind for hint in hints for kind in (hint, *get_args(hint)) if is_model(kind)}
        # A function without annotations may still ask whether it got one of theirs.
        known = getattr(fn, "__globals__", {})
        self._kinds |= {name: known[name] for name in _THEIR_NAMES.values() if is_model(known.get(name))}

    async def complete(self, call: Call, params: CompleteParams, runtime: Runtime) -> CompleteResult:
        args = [self._theirs(one) for one in (params.ref, params.argument, params.context)]
        found = self.fn(*args[: len(signature(self.fn).parameters)])
        return result(await found if isawaitable(found) else found)

    def _theirs(self, value: Any) -> Any:
        name = _THEIR_NAMES.get(type(value).__name__, "")
        if name not in self._kinds:
            return value
        return self._kinds[name].model_validate(msgspec.to_builtins(value))


# Ours, and what the official SDK calls them.
_THEIR_NAMES = {
    "PromptReference": "PromptReference",
    "ResourceReference": "ResourceTemplateReference",
    "CompletionArgument": "CompletionArgument",
    "CompletionContext": "CompletionContext",
}


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def result(found: Any) -> CompleteResult:
    if is_model(type(found)) and hasattr(found, "values"):
        found = Completion(list(found.values), found.total, found.has_more)
    if isinstance(found, Completion):
        shown = found.values[:MOST_COMPLETIONS]
        more = found.has_more or len(shown) < len(found.values) or None
        return CompleteResult(completion=Completion(shown, found.total, more))
    values = [str(value) for value in found or ()]
    shown = values[:MOST_COMPLETIONS]
    return CompleteResult(completion=Completion(shown, len(values), len(values) > len(shown)))


def from_schema(schema: Mapping[str, Any], argument: str, typed: str) -> CompleteResult:
    """A Literal or an Enum completes itself; booleans too."""
    # Few arguments are completed so, and none at the start.
    reader = reading.Reader(schema)
    options = reader.options(reader.member(reader.root, argument))
    values = [
        value
        for option in options
        for value in reading.values_of(option) or (["true", "false"] if reading.types_of(option) == ["boolean"] else [])
    ]
    begun = typed.casefold()
    matching = [value for value in map(str, values) if value.casefold().startswith(begun)]
    return result(matching)
