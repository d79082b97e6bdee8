"""Comparison of two definitions of a tool: the changes, their severity and what callers must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from portico.definitions.tools import DEFAULT_HINTS, HINTS, ListedTool
from portico.jsonschema import Schema
from portico.jsonschema.comparison import ChangeEffect, SchemaChange, compare_schemas

Level = Literal["none", "patch", "minor", "breaking"]
LEVELS: tuple[Level, ...] = ("none", "patch", "minor", "breaking")
Place = Literal["tool", "input", "output"]

# Contravariance: an input that accepts more breaks no caller, one that accepts less may.
_INPUT: dict[ChangeEffect, Level] = {
    "wider": "minor",
    "narrower": "breaking",
    "changed": "breaking",
    "added": "minor",
    "added required": "breaking",
    "removed": "breaking",
    "open": "minor",
    "closed": "breaking",
    "default": "minor",
    "words": "patch",
    "form": "patch",
}
# Output may become more specific, not less; additional members do not affect callers that read by name.
_OUTPUT: dict[ChangeEffect, Level] = {
    "wider": "breaking",
    "narrower": "minor",
    "changed": "breaking",
    "added": "minor",
    "added required": "minor",
    "removed": "breaking",
    "open": "minor",
    "closed": "minor",
    "default": "patch",
    "words": "patch",
    "form": "patch",
}
# Effects that specification files do not track.
_PATCH_KINDS = ("words", "form", "default")
# Each hint, its value that requires more care, and the meaning of both directions.
_RISKY_HINT_CHANGES = {
    "readOnlyHint": (False, "may change something now", "only reads now"),
    "destructiveHint": (True, "may delete something now", "deletes nothing now"),
    "idempotentHint": (False, "may no longer be repeated safely", "may be repeated safely now"),
    "openWorldHint": (True, "reaches outside the server now", "stays inside the server now"),
}


class DefinitionChange(Struct, frozen=True):
    """One change. `is_words`: only text has changed, which models still follow."""

    level: Level
    place: Place
    path: str
    reason: str
    # What callers must do; empty if nothing.
    migration: str = ""
    is_words: bool = False


def highest_level(levels: list[Level]) -> Level:
    """Return the most severe level."""
    return max(levels, key=LEVELS.index, default="none")


def compare_tools(
    before: ListedTool,
    after: ListedTool,
    *,
    in_full: bool = True,
    data_schema: Callable[[Schema], Schema] = lambda schema: schema,
) -> Iterator[DefinitionChange]:
    """Yield the changes from one definition of a tool to another.

    `in_full`: also compare texts, hints and task support, which specification files do not contain. `data_schema`
    returns the part of an output schema to compare, by default all of it.
    """
    if in_full:
        yield from _texts(before, after)
        yield from _hints(before, after)
        yield from _tasks(before, after)
    yield from _inputs(before, after, words=in_full)
    old, now = (None if item is None else data_schema(item) for item in (before.output_schema, after.output_schema))
    yield from _outputs(old, now, words=in_full)


def _texts(before: ListedTool, after: ListedTool) -> Iterator[DefinitionChange]:
    for word in ("title", "description"):
        if getattr(before, word) != getattr(after, word):
            yield DefinitionChange("patch", "tool", word, f"the {word} has changed", "", is_words=True)
    for member in sorted({*before.others, *after.others}):
        if before.others.get(member) != after.others.get(member):
            message = f"the member {member} has changed"
            yield DefinitionChange("patch", "tool", member, message, "", is_words=True)


def _hints(before: ListedTool, after: ListedTool) -> Iterator[DefinitionChange]:
    for hint in HINTS:
        old, now = before.hint(hint), after.hint(hint)
        careful, worse, better = _RISKY_HINT_CHANGES[hint]
        if old == now:
            if before.annotations.get(hint) != after.annotations.get(hint):
                declared = "declared" if hint in after.annotations else "no longer declared"
                message = f"{hint} is {declared}, with the same meaning"
                yield DefinitionChange("patch", "tool", hint, message, "")
        # A client may have decided from the hint to call the tool without asking the user. Attack:
        # a server that changes after its approval (rug pull).
        elif now is careful:
            todo = f"Decide again whether it may be called without confirmation: {hint} is {str(now).lower()}."
            yield DefinitionChange("breaking", "tool", hint, f"it {worse}", todo)
        else:
            yield DefinitionChange("minor", "tool", hint, f"it {better}", "")
    others = {**before.annotations, **after.annotations}.keys() - DEFAULT_HINTS.keys()
    for name in sorted(others):
        if before.annotations.get(name) != after.annotations.get(name):
            message = f"the annotation {name} has changed"
            yield DefinitionChange("patch", "tool", name, message, "", is_words=True)


def _tasks(before: ListedTool, after: ListedTool) -> Iterator[DefinitionChange]:
    old, now = (item.task or "forbidden" for item in (before, after))
    if old == now:
        return
    # `optional` accepts callers of both kinds.
    level: Level = "minor" if now == "optional" else "breaking"
    todo = {"required": "Call it as a task.", "forbidden": "Call it as an ordinary call."}.get(now, "")
    yield DefinitionChange(level, "tool", "taskSupport", f"running as a task is {now} now, and was {old}", todo)


def _inputs(before: ListedTool, after: ListedTool, *, words: bool) -> Iterator[DefinitionChange]:
    for shift in compare_schemas(before.input_schema, after.input_schema):
        if words or shift.effect not in _PATCH_KINDS:
            subject = f"the parameter `{shift.path}`" if shift.path else "the arguments object"
            level = _INPUT[shift.effect]
            todo = _input_advice(shift) if level == "breaking" else ""
            is_words = shift.effect == "words"
            yield DefinitionChange(level, "input", shift.path, f"{subject} {shift.description}", todo, is_words)


def _input_advice(shift: SchemaChange) -> str:
    if shift.effect == "removed":
        return f"Leave out `{shift.path}`."
    if shift.effect == "added required" or shift.description == "is required now":
        return f"Pass `{shift.path}` with every call."
    if shift.effect == "closed":
        return "Leave out members that the schema does not declare."
    return (
        f"Check the values you pass as `{shift.path}`: it {shift.description}."
        if shift.path
        else "Check your arguments."
    )


def _outputs(before: Schema | None, now: Schema | None, *, words: bool) -> Iterator[DefinitionChange]:
    if before is None and now is None:
        return
    if now is None:
        yield DefinitionChange("breaking", "output", "", "the output schema was removed", _CHECK_OUTPUT_ADVICE)
    elif before is None:
        yield DefinitionChange("minor", "output", "", "it has an output schema now", "")
    else:
        for shift in compare_schemas(before, now):
            if words or shift.effect not in _PATCH_KINDS:
                subject = f"the field `{shift.path}`" if shift.path else "the result"
                level = _OUTPUT[shift.effect]
                todo = _output_advice(shift) if level == "breaking" else ""
                is_words = shift.effect == "words"
                yield DefinitionChange(level, "output", shift.path, f"{subject} {shift.description}", todo, is_words)


_CHECK_OUTPUT_ADVICE = "Check the output before you use it."


def _output_advice(shift: SchemaChange) -> str:
    if shift.effect == "removed":
        return f"Do without `{shift.path}` in results."
    if shift.description == "is optional now":
        return f"Be prepared for results without `{shift.path}`."
    return f"Be prepared in results: `{shift.path}` {shift.description}." if shift.path else _CHECK_OUTPUT_ADVICE
