"""Compare two definitions of a tool: the changes, how bad each is for callers, and what callers must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from portico.definitions.tools import ASSUMED, HINTS, ListedTool
from portico.jsonschema import Schema
from portico.jsonschema.comparison import Effect, Shift, shifts

Level = Literal["none", "patch", "minor", "breaking"]
LEVELS: tuple[Level, ...] = ("none", "patch", "minor", "breaking")
Place = Literal["tool", "input", "output"]

_INPUT: dict[Effect, Level] = {
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
# What a tool gives may become more certain, not less; more members do no harm to callers that read by name.
_OUTPUT: dict[Effect, Level] = {
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
# What a file of specifications says in its own way.
_SMALL = ("words", "form", "default")
# Each hint, the value that asks for more care, and what that means.
_CARE = {
    "readOnlyHint": (False, "may change something now", "only reads now"),
    "destructiveHint": (True, "may delete something now", "deletes nothing now"),
    "idempotentHint": (False, "must not be repeated without harm any more", "may be repeated without harm now"),
    "openWorldHint": (True, "reaches outside the server now", "stays inside the server now"),
}


class DefinitionChange(Struct, frozen=True):
    """One change. `is_words`: only words have changed, which models obey."""

    level: Level
    place: Place
    path: str
    reason: str
    # What callers have to do; empty if nothing.
    migration: str = ""
    is_words: bool = False


def worst(levels: list[Level]) -> Level:
    return max(levels, key=LEVELS.index, default="none")


def compare_tools(
    before: ListedTool,
    after: ListedTool,
    *,
    in_full: bool = True,
    data_schema: Callable[[Schema], Schema] = lambda schema: schema,
) -> Iterator[DefinitionChange]:
    """Yield the changes from one definition of a tool to another.

    `in_full`: compare texts, hints and task support too, which a file of specifications does not have. `data_schema`
    returns the part of an output schema to compare, by default all of it.
    """
    if in_full:
        yield from _texts(before, after)
        yield from _hints(before, after)
        yield from _tasks(before, after)
    yield from _inputs(before, after, words=in_full)
    was, now = (None if one is None else data_schema(one) for one in (before.output_schema, after.output_schema))
    yield from _outputs(was, now, words=in_full)


def _texts(before: ListedTool, after: ListedTool) -> Iterator[DefinitionChange]:
    for word in ("title", "description"):
        if getattr(before, word) != getattr(after, word):
            yield DefinitionChange("patch", "tool", word, f"the {word} is another", "", is_words=True)
    for member in sorted({*before.others, *after.others}):
        if before.others.get(member) != after.others.get(member):
            said = f"the member {member} is another"
            yield DefinitionChange("patch", "tool", member, said, "", is_words=True)


def _hints(before: ListedTool, after: ListedTool) -> Iterator[DefinitionChange]:
    for hint in HINTS:
        was, now = before.hint(hint), after.hint(hint)
        careful, worse, better = _CARE[hint]
        if was == now:
            if before.annotations.get(hint) != after.annotations.get(hint):
                said = f"{hint} is {'said' if hint in after.annotations else 'left unsaid'}, and means the same"
                yield DefinitionChange("patch", "tool", hint, said, "")
        elif now is careful:
            todo = f"Decide anew whether it may be called without asking: {hint} is {_json(now)}."
            yield DefinitionChange("breaking", "tool", hint, f"it {worse}", todo)
        else:
            yield DefinitionChange("minor", "tool", hint, f"it {better}", "")
    others = {**before.annotations, **after.annotations}.keys() - ASSUMED.keys()
    for name in sorted(others):
        if before.annotations.get(name) != after.annotations.get(name):
            said = f"the annotation {name} is another"
            yield DefinitionChange("patch", "tool", name, said, "", is_words=True)


def _json(value: bool) -> str:
    return "true" if value else "false"


def _tasks(before: ListedTool, after: ListedTool) -> Iterator[DefinitionChange]:
    was, now = (one.task or "forbidden" for one in (before, after))
    if was == now:
        return
    level: Level = "minor" if now == "optional" else "breaking"
    todo = {"required": "Call it as a task.", "forbidden": "Call it as an ordinary call."}.get(now, "")
    yield DefinitionChange(level, "tool", "taskSupport", f"running as a task is {now} now, and was {was}", todo)


def _inputs(before: ListedTool, after: ListedTool, *, words: bool) -> Iterator[DefinitionChange]:
    for shift in shifts(before.input_schema, after.input_schema):
        if words or shift.effect not in _SMALL:
            what = f"the parameter `{shift.path}`" if shift.path else "the object of arguments"
            level = _INPUT[shift.effect]
            todo = _input_todo(shift) if level == "breaking" else ""
            is_words = shift.effect == "words"
            yield DefinitionChange(level, "input", shift.path, f"{what} {shift.said}", todo, is_words)


def _input_todo(shift: Shift) -> str:
    if shift.effect == "removed":
        return f"Leave out `{shift.path}`."
    if shift.effect == "added required" or shift.said == "is required now":
        return f"Give `{shift.path}` with every call."
    if shift.effect == "closed":
        return "Leave out members that the schema does not name."
    return f"Look at what you give as `{shift.path}`: it {shift.said}." if shift.path else "Look at what you give."


def _outputs(was: Schema | None, now: Schema | None, *, words: bool) -> Iterator[DefinitionChange]:
    if was is None and now is None:
        return
    if now is None:
        yield DefinitionChange("breaking", "output", "", "nothing is promised about what it gives any more", _LOOK)
    elif was is None:
        yield DefinitionChange("minor", "output", "", "what it gives has a schema now", "")
    else:
        for shift in shifts(was, now):
            if words or shift.effect not in _SMALL:
                what = f"the field `{shift.path}`" if shift.path else "what it gives"
                level = _OUTPUT[shift.effect]
                todo = _output_todo(shift) if level == "breaking" else ""
                is_words = shift.effect == "words"
                yield DefinitionChange(level, "output", shift.path, f"{what} {shift.said}", todo, is_words)


_LOOK = "Look at what it gives before you use it."


def _output_todo(shift: Shift) -> str:
    if shift.effect == "removed":
        return f"Do without `{shift.path}` in results."
    if shift.said == "is optional now":
        return f"Be prepared for results without `{shift.path}`."
    return f"Be prepared in results: `{shift.path}` {shift.said}." if shift.path else _LOOK
