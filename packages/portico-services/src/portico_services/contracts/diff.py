"""Comparison of two versions of a tool or server: changes, their severity and the migration for callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from portico.definitions import ComponentChange, Level, compare_tools, diff_components, highest_level
from portico_services.contracts import definitions
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot
from portico_services.contracts.outcomes import data_schema

ChangeLocation = Literal["tool", "input", "output", "server", "prompt", "resource", "template"]

MAX_CHANGES = 1000


class ContractChange(Struct, frozen=True):
    """One change between two contracts."""

    tool: Annotated[str, "Listed name of the tool; for a resource its URI"]
    level: Annotated[Level, "Severity for callers"]
    place: Annotated[ChangeLocation, "Part of the contract that changed"]
    path: Annotated[str, "Location within that part"]
    reason: Annotated[str, "Description of the change"]
    migration: Annotated[str, "What callers must do; empty if nothing"]
    is_words: Annotated[bool, "Whether only text that models read has changed"] = False


class VersionCheck(Struct, frozen=True):
    """Version that the changes of one tool require."""

    tool: Annotated[str, "Listed name of the tool"]
    level: Annotated[Level, "Most severe of its changes"]
    old: Annotated[str, "Previous version"]
    new: Annotated[str, "Current version; empty if the tool was removed"]
    demanded: Annotated[str, "Lowest version that may introduce these changes"]
    is_declared: Annotated[bool, "Whether the current version is at least the required one"]


class ContractDiff(Struct, frozen=True):
    level: Level
    changes: list[ContractChange]
    verdicts: list[VersionCheck]

    @property
    def missing_version_bumps(self) -> list[VersionCheck]:
        return [verdict for verdict in self.verdicts if not verdict.is_declared]


def diff_contracts(
    old: ServerContract, new: ServerContract, is_over: Callable[[], bool] = lambda: False
) -> ContractDiff:
    """Return the changes from contract `old` to `new`. `is_over` is polled before each tool; raises TimeoutError once
    it returns True.
    """
    changes: list[ContractChange] = []
    verdicts: list[VersionCheck] = []
    pairs = _pairs(old, new)
    # A removed tool with the schemas of a new one was probably renamed; the migration guide then names its successor.
    heirs = _find_renames(pairs)
    for before, after in pairs:
        if is_over():
            raise TimeoutError
        result = list(_changes(before, after, old, new, heirs))
        # The verdict below uses all changes of the tool, including those beyond the limit.
        changes += result[: MAX_CHANGES - len(changes)]
        if result:
            verdicts.append(_check_version(before, after, old, new, highest_level([change.level for change in result])))
    if definitions.is_downgrade(old.version, new.version):
        message = f"the version was downgraded from {old.version} to {new.version}"
        changes.append(ContractChange("", "patch", "server", "version", message, ""))
    # None means that a side was not asked for its instructions, which is no change.
    if None not in (old.instructions, new.instructions) and old.instructions != new.instructions:
        message = "the server instructions, which models read before using any tool, changed"
        changes.append(ContractChange("", "patch", "server", "instructions", message, "", is_words=True))
    if old.offers is not None and new.offers is not None:
        changes += islice(
            map(_component_change, diff_components(old.offers, new.offers)), max(MAX_CHANGES - len(changes), 0)
        )
    return ContractDiff(highest_level([change.level for change in changes]), changes, verdicts)


def _component_change(change: ComponentChange) -> ContractChange:
    todo = f"Review it before use: {change.message}." if change.is_breaking else ""
    offer = change.offer
    return ContractChange(offer.key, change.level, offer.kind, change.path, change.message, todo, change.is_words)


Pair = tuple[ToolDefinitionSnapshot | None, ToolDefinitionSnapshot | None]
RenameCandidates = dict[bytes, str]
"""Names of new tools by their input and output schemas."""


def _pairs(old: ServerContract, new: ServerContract) -> list[Pair]:
    """Return each old tool with its current definition, followed by the new tools."""
    pairs: list[Pair] = []
    met: set[str] = set()
    for tool in old.tools:
        # By invocation name as well: a mounted server may list its tools under another prefix.
        now = new.find(tool.name) or new.find(tool.invocation)
        now = None if now is not None and now.name in met else now
        pairs.append((tool, now))
        if now is not None:
            met.add(now.name)
    return pairs + [(None, tool) for tool in new.tools if tool.name not in met]


def _check_version(
    before: ToolDefinitionSnapshot | None,
    after: ToolDefinitionSnapshot | None,
    old: ServerContract,
    new: ServerContract,
    level: Level,
) -> VersionCheck:
    name = _name(after or before)
    if before is None:
        version = str(new.version_of(after)) if after is not None else ""
        return VersionCheck(name, level, "", version, "", True)
    old_version = old.version_of(before)
    if after is None:
        # A removed tool has no version, so the server's version applies.
        old_version = definitions.coerce_version(old.version)
        now = definitions.coerce_version(new.version)
    else:
        now = new.version_of(after)
    minimum = definitions.required_version(old_version, level)
    return VersionCheck(name, level, str(old_version), "" if after is None else str(now), str(minimum), now >= minimum)


def _name(tool: ToolDefinitionSnapshot | None) -> str:
    return tool.name if tool is not None else ""


# One tool


def _changes(
    before: ToolDefinitionSnapshot | None,
    after: ToolDefinitionSnapshot | None,
    old: ServerContract,
    new: ServerContract,
    heirs: RenameCandidates,
) -> Iterator[ContractChange]:
    if before is None:
        assert after is not None
        yield ContractChange(after.name, "minor", "tool", "", "the tool is new", "")
    elif after is None:
        yield _removal_change(before, heirs)
    else:
        in_full = old.in_full and new.in_full
        if in_full:
            if old.server and new.server and before.invocation != after.invocation:
                message = f"the invocation name changed from `{before.invocation}` to `{after.invocation}`"
                todo = f"Call it as `{after.invocation}` in contracts."
                yield ContractChange(after.name, "breaking", "tool", "invocation", message, todo)
            yield from _find_downgrade(before, after)
        for compare_tool in compare_tools(before, after, in_full=in_full, data_schema=data_schema):
            yield ContractChange(
                after.name,
                compare_tool.level,
                compare_tool.place,
                compare_tool.path,
                compare_tool.reason,
                compare_tool.migration,
                compare_tool.is_words,
            )


def _removal_change(tool: ToolDefinitionSnapshot, heirs: RenameCandidates) -> ContractChange:
    heir = heirs.get(_encode_schemas(tool))
    todo = (
        f"Call `{heir}` instead; its parameters and result are identical."
        if heir is not None
        else "Stop calling it: it has no replacement."
    )
    return ContractChange(tool.name, "breaking", "tool", "", "the tool was removed", todo)


def _find_renames(pairs: list[Pair]) -> RenameCandidates:
    heirs: RenameCandidates = {}
    for before, candidate in pairs:
        if before is None and candidate is not None:
            heirs.setdefault(_encode_schemas(candidate), candidate.name)
    return heirs


def _encode_schemas(tool: ToolDefinitionSnapshot) -> bytes:
    return msgspec.json.encode((tool.input_schema, tool.output_schema), order="sorted")


def _find_downgrade(before: ToolDefinitionSnapshot, after: ToolDefinitionSnapshot) -> Iterator[ContractChange]:
    if definitions.is_downgrade(before.version, after.version):
        message = f"the version was downgraded from {before.version} to {after.version}"
        yield ContractChange(after.name, "patch", "tool", "version", message, "")


# Output


def migration_guide(difference: ContractDiff) -> str:
    """Return a migration guide for callers as Markdown, grouped by tool."""
    tools: dict[str, list[ContractChange]] = {}
    for change in difference.changes:
        if change.migration:
            tools.setdefault(change.tool, []).append(change)
    verdicts = {item.tool: item for item in reversed(difference.verdicts)}
    if not tools:
        return "# Migration\n\nNo action is required: all existing calls remain valid.\n"
    sections = ["# Migration"]
    for name in tools:
        sections.append(f"## `{name}`{_steps(verdicts.get(name))}")
        lines = [f"- {item.reason[:1].upper()}{item.reason[1:]}. {item.migration}" for item in tools[name]]
        # Replacements of removed members are often new members of the same tool.
        new = [item.reason for item in difference.changes if item.tool == name and item.level == "minor" and item.path]
        lines += [f"- Also: {reason}." for reason in new if " is new" in reason]
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def _steps(verdict: VersionCheck | None) -> str:
    if verdict is None or not verdict.old:
        return ""
    return f" ({verdict.old} to {verdict.new})" if verdict.new else f" (last in {verdict.old})"
