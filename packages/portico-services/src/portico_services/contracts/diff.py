"""Two versions of a tool, or of all tools of a server: what has changed, how bad that is, and what callers must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from portico.jsonschema import Effect, Shift, shifts
from portico_services.contracts import definitions
from portico_services.contracts.components import OfferChange, offer_changes
from portico_services.contracts.definitions import ASSUMED, HINTS, Contract, Definition, Level
from portico_services.contracts.outcomes import data_schema

Place = Literal["tool", "input", "output", "server", "prompt", "resource", "template"]

MOST_CHANGES = 1000

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


class ContractChange(Struct, frozen=True):
    """One change."""

    tool: Annotated[str, "The name that the server lists it by; of a resource its URI"]
    level: Annotated[Level, "How bad it is for callers"]
    place: Annotated[Place, "What has changed"]
    path: Annotated[str, "Where in it"]
    reason: Annotated[str, "What has changed, in words"]
    migration: Annotated[str, "What callers have to do; nothing if it is empty"]
    is_words: Annotated[bool, "Whether only words have changed, which models obey"] = False


class VersionVerdict(Struct, frozen=True):
    """What the changes of one tool demand of its version."""

    tool: Annotated[str, "The name that the server lists it by"]
    level: Annotated[Level, "The worst of its changes"]
    old: Annotated[str, "The version before"]
    new: Annotated[str, "The version now; empty if the tool is gone"]
    demanded: Annotated[str, "The least version that may carry these changes"]
    is_declared: Annotated[bool, "Whether the version says it"]


class Difference(Struct, frozen=True):
    level: Level
    changes: list[ContractChange]
    verdicts: list[VersionVerdict]

    @property
    def undeclared(self) -> list[VersionVerdict]:
        return [one for one in self.verdicts if not one.is_declared]


class Stopped(Exception):
    """The comparison was not wanted any more, or took too long."""


def diff(old: Contract, new: Contract, is_over: Callable[[], bool] = lambda: False) -> Difference:
    """From what was promised to what is. Raises Stopped once `is_over`, which is looked at before each tool."""
    changes: list[ContractChange] = []
    verdicts: list[VersionVerdict] = []
    pairs = _pairs(old, new)
    heirs = _heirs(pairs)
    for before, after in pairs:
        if is_over():
            raise Stopped
        found = list(_changes(before, after, old, new, heirs))
        changes += found[: MOST_CHANGES - len(changes)]
        if found:
            verdicts.append(_verdict(before, after, old, new, definitions.worst([one.level for one in found])))
    if definitions.went_back(old.version, new.version):
        said = f"the version went back from {old.version} to {new.version}"
        changes.append(ContractChange("", "patch", "server", "version", said, ""))
    if None not in (old.instructions, new.instructions) and old.instructions != new.instructions:
        said = "the instructions, which models read before they use any tool, are others"
        changes.append(ContractChange("", "patch", "server", "instructions", said, "", is_words=True))
    if old.offers is not None and new.offers is not None:
        changes += islice(map(_offered, offer_changes(old.offers, new.offers)), max(MOST_CHANGES - len(changes), 0))
    return Difference(definitions.worst([one.level for one in changes]), changes, verdicts)


def _offered(change: OfferChange) -> ContractChange:
    level: Level = "breaking" if change.is_breaking else "patch" if change.is_words else "minor"
    todo = f"Look at it before you use it: {change.said}." if change.is_breaking else ""
    offer = change.offer
    return ContractChange(offer.key, level, offer.kind, change.path, change.said, todo, is_words=change.is_words)


Pair = tuple[Definition | None, Definition | None]
Heirs = dict[bytes, str]
"""The names of new tools by what they promise."""


def _pairs(old: Contract, new: Contract) -> list[Pair]:
    """Each tool of before with what it is now, then those that are new."""
    pairs: list[Pair] = []
    met: set[str] = set()
    for tool in old.tools:
        now = new.find(tool.name) or new.find(tool.invocation)
        now = None if now is not None and now.name in met else now
        pairs.append((tool, now))
        if now is not None:
            met.add(now.name)
    return pairs + [(None, tool) for tool in new.tools if tool.name not in met]


def _verdict(
    before: Definition | None, after: Definition | None, old: Contract, new: Contract, level: Level
) -> VersionVerdict:
    name = _name(after or before)
    if before is None:
        version = str(new.version_of(after)) if after is not None else ""
        return VersionVerdict(name, level, "", version, "", True)
    was = old.version_of(before)
    if after is None:
        # A tool that is gone has no version: then the server's counts.
        was = definitions.guess(old.version)
        now = definitions.guess(new.version)
    else:
        now = new.version_of(after)
    least = definitions.demanded(was, level)
    return VersionVerdict(name, level, str(was), "" if after is None else str(now), str(least), now >= least)


def _name(tool: Definition | None) -> str:
    return tool.name if tool is not None else ""


# One tool


def _changes(
    before: Definition | None, after: Definition | None, old: Contract, new: Contract, heirs: Heirs
) -> Iterator[ContractChange]:
    if before is None:
        assert after is not None
        yield ContractChange(after.name, "minor", "tool", "", "the tool is new", "")
    elif after is None:
        yield _removed(before, heirs)
    else:
        if old.in_full and new.in_full:
            if old.server and new.server and before.invocation != after.invocation:
                said = f"it is called by `{after.invocation}` now, and was by `{before.invocation}`"
                todo = f"Call it by `{after.invocation}` in contracts."
                yield ContractChange(after.name, "breaking", "tool", "invocation", said, todo)
            yield from _older(before, after)
            yield from _texts(before, after)
            yield from _hints(before, after)
            yield from _tasks(before, after)
        yield from _inputs(before, after, words=old.in_full and new.in_full)
        yield from _outputs(before, after, words=old.in_full and new.in_full)


def _removed(tool: Definition, heirs: Heirs) -> ContractChange:
    heir = heirs.get(_promises(tool))
    todo = f"Call `{heir}`, which takes and gives the same." if heir is not None else "Do without it."
    return ContractChange(tool.name, "breaking", "tool", "", "the tool was removed", todo)


def _heirs(pairs: list[Pair]) -> Heirs:
    heirs: Heirs = {}
    for was, one in pairs:
        if was is None and one is not None:
            heirs.setdefault(_promises(one), one.name)
    return heirs


def _promises(tool: Definition) -> bytes:
    return msgspec.json.encode((tool.input_schema, tool.output_schema), order="sorted")


def _older(before: Definition, after: Definition) -> Iterator[ContractChange]:
    if definitions.went_back(before.version, after.version):
        said = f"the version went back from {before.version} to {after.version}"
        yield ContractChange(after.name, "patch", "tool", "version", said, "")


def _texts(before: Definition, after: Definition) -> Iterator[ContractChange]:
    for word in ("title", "description"):
        if getattr(before, word) != getattr(after, word):
            yield ContractChange(after.name, "patch", "tool", word, f"the {word} is another", "", is_words=True)
    for member in sorted({*before.others, *after.others}):
        if before.others.get(member) != after.others.get(member):
            said = f"the member {member} is another"
            yield ContractChange(after.name, "patch", "tool", member, said, "", is_words=True)


def _hints(before: Definition, after: Definition) -> Iterator[ContractChange]:
    for hint in HINTS:
        was, now = before.hint(hint), after.hint(hint)
        careful, worse, better = _CARE[hint]
        if was == now:
            if before.annotations.get(hint) != after.annotations.get(hint):
                said = f"{hint} is {'said' if hint in after.annotations else 'left unsaid'}, and means the same"
                yield ContractChange(after.name, "patch", "tool", hint, said, "")
        elif now is careful:
            todo = f"Decide anew whether it may be called without asking: {hint} is {_json(now)}."
            yield ContractChange(after.name, "breaking", "tool", hint, f"it {worse}", todo)
        else:
            yield ContractChange(after.name, "minor", "tool", hint, f"it {better}", "")
    others = {**before.annotations, **after.annotations}.keys() - ASSUMED.keys()
    for name in sorted(others):
        if before.annotations.get(name) != after.annotations.get(name):
            said = f"the annotation {name} is another"
            yield ContractChange(after.name, "patch", "tool", name, said, "", is_words=True)


def _json(value: bool) -> str:
    return "true" if value else "false"


def _tasks(before: Definition, after: Definition) -> Iterator[ContractChange]:
    was, now = (one.task or "forbidden" for one in (before, after))
    if was == now:
        return
    level: Level = "minor" if now == "optional" else "breaking"
    todo = {"required": "Call it as a task.", "forbidden": "Call it as an ordinary call."}.get(now, "")
    yield ContractChange(
        after.name, level, "tool", "taskSupport", f"running as a task is {now} now, and was {was}", todo
    )


def _inputs(before: Definition, after: Definition, *, words: bool) -> Iterator[ContractChange]:
    for shift in shifts(before.input_schema, after.input_schema):
        if words or shift.effect not in _SMALL:
            what = f"the parameter `{shift.path}`" if shift.path else "the object of arguments"
            level = _INPUT[shift.effect]
            todo = _input_todo(shift) if level == "breaking" else ""
            is_words = shift.effect == "words"
            yield ContractChange(after.name, level, "input", shift.path, f"{what} {shift.said}", todo, is_words)


def _input_todo(shift: Shift) -> str:
    if shift.effect == "removed":
        return f"Leave out `{shift.path}`."
    if shift.effect == "added required" or shift.said == "is required now":
        return f"Give `{shift.path}` with every call."
    if shift.effect == "closed":
        return "Leave out members that the schema does not name."
    return f"Look at what you give as `{shift.path}`: it {shift.said}." if shift.path else "Look at what you give."


def _outputs(before: Definition, after: Definition, *, words: bool) -> Iterator[ContractChange]:
    was, now = before.output_schema, after.output_schema
    if was is None and now is None:
        return
    if now is None:
        yield ContractChange(
            after.name, "breaking", "output", "", "nothing is promised about what it gives any more", _LOOK
        )
    elif was is None:
        yield ContractChange(after.name, "minor", "output", "", "what it gives has a schema now", "")
    else:
        for shift in shifts(data_schema(was), data_schema(now)):
            if words or shift.effect not in _SMALL:
                what = f"the field `{shift.path}`" if shift.path else "what it gives"
                level = _OUTPUT[shift.effect]
                todo = _output_todo(shift) if level == "breaking" else ""
                is_words = shift.effect == "words"
                yield ContractChange(after.name, level, "output", shift.path, f"{what} {shift.said}", todo, is_words)


_LOOK = "Look at what it gives before you use it."


def _output_todo(shift: Shift) -> str:
    if shift.effect == "removed":
        return f"Do without `{shift.path}` in results."
    if shift.said == "is optional now":
        return f"Be prepared for results without `{shift.path}`."
    return f"Be prepared in results: `{shift.path}` {shift.said}." if shift.path else _LOOK


# For people


def migration(difference: Difference) -> str:
    """A guide for those who call these tools, in Markdown: what they have to do, tool by tool."""
    tools: dict[str, list[ContractChange]] = {}
    for change in difference.changes:
        if change.migration:
            tools.setdefault(change.tool, []).append(change)
    verdicts = {one.tool: one for one in reversed(difference.verdicts)}
    if not tools:
        return "# Migration\n\nNothing has to be done: every call that was right still is.\n"
    said = ["# Migration"]
    for name in tools:
        said.append(f"## `{name}`{_steps(verdicts.get(name))}")
        lines = [f"- {one.reason[:1].upper()}{one.reason[1:]}. {one.migration}" for one in tools[name]]
        # What takes the place of something that is gone is often new.
        new = [one.reason for one in difference.changes if one.tool == name and one.level == "minor" and one.path]
        lines += [f"- Also: {reason}." for reason in new if " is new" in reason]
        said.append("\n".join(lines))
    return "\n\n".join(said) + "\n"


def _steps(verdict: VersionVerdict | None) -> str:
    if verdict is None or not verdict.old:
        return ""
    return f" ({verdict.old} to {verdict.new})" if verdict.new else f" (last in {verdict.old})"
