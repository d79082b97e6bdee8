"""Two versions of a tool, or of all tools of a server: what has changed, how bad that is, and what callers must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from portico.definitions import Level, OfferChange, compare_tools, offer_changes, worst
from portico_services.contracts import definitions
from portico_services.contracts.definitions import Contract, Definition
from portico_services.contracts.outcomes import data_schema

Place = Literal["tool", "input", "output", "server", "prompt", "resource", "template"]

MOST_CHANGES = 1000


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
            verdicts.append(_verdict(before, after, old, new, worst([one.level for one in found])))
    if definitions.went_back(old.version, new.version):
        said = f"the version went back from {old.version} to {new.version}"
        changes.append(ContractChange("", "patch", "server", "version", said, ""))
    if None not in (old.instructions, new.instructions) and old.instructions != new.instructions:
        said = "the instructions, which models read before they use any tool, are others"
        changes.append(ContractChange("", "patch", "server", "instructions", said, "", is_words=True))
    if old.offers is not None and new.offers is not None:
        changes += islice(map(_offered, offer_changes(old.offers, new.offers)), max(MOST_CHANGES - len(changes), 0))
    return Difference(worst([one.level for one in changes]), changes, verdicts)


def _offered(change: OfferChange) -> ContractChange:
    todo = f"Look at it before you use it: {change.said}." if change.is_breaking else ""
    offer = change.offer
    return ContractChange(offer.key, change.level, offer.kind, change.path, change.said, todo, change.is_words)


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
        in_full = old.in_full and new.in_full
        if in_full:
            if old.server and new.server and before.invocation != after.invocation:
                said = f"it is called by `{after.invocation}` now, and was by `{before.invocation}`"
                todo = f"Call it by `{after.invocation}` in contracts."
                yield ContractChange(after.name, "breaking", "tool", "invocation", said, todo)
            yield from _older(before, after)
        for one in compare_tools(before, after, in_full=in_full, data_schema=data_schema):
            yield ContractChange(after.name, one.level, one.place, one.path, one.reason, one.migration, one.is_words)


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
