"""Tool contracts as plain data: definitions of a server's tools with invocation names and specification notes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from portico.definitions import Level, ListedTool, PinnedComponent, read_tool
from portico.search import FuzzyNames
from portico_services.contracts.invocation_names import (
    INVOCATION_META_KEY,
    SPEC_META_KEY,
    VERSION_META_KEY,
    deduplicate,
    is_invocation_name,
    make_invocation_name,
)

T = TypeVar("T")

# Version of the messages, the error format and the specification rules. Unrelated to the protocol version, which is a
# date.
CONTRACT_VERSION = "1.0.0"

# Semantic Versioning 2.0.0, section 2: no leading zeros. Nine digits bound the cost of int() for hostile versions.
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LOOSE_VERSION = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


class SemanticVersion(Struct, frozen=True, order=True):
    """Semantic version without pre-release and build metadata, which do not affect compatibility."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse_version(text: str) -> SemanticVersion | None:
    """Parse a semantic version; return None if the text is not one."""
    match = _VERSION.fullmatch(text)
    return None if match is None else SemanticVersion(int(match[1]), int(match[2]), int(match[3]))


def coerce_version(text: str) -> SemanticVersion:
    """Return a version for common non-semantic spellings such as `v1.2` or `2024.1`, and 0.0.0 for anything else."""
    match = _LOOSE_VERSION.match(text)
    return SemanticVersion(0, 0, 0) if match is None else SemanticVersion(*(int(part or 0) for part in match.groups()))


def is_downgrade(old: str, new: str) -> bool:
    """Return whether a version is older by semantic version precedence: `1.0.0-rc.1` comes before `1.0.0`."""
    before, now = _VERSION.fullmatch(old), _VERSION.fullmatch(new)
    return before is not None and now is not None and _sort_key(now) < _sort_key(before)


def _sort_key(match: re.Match[str]) -> tuple[Any, ...]:
    """Return the sort key of a version. Numeric pre-release identifiers sort as numbers, before words."""
    parts = match[4][1:].split(".") if match[4] else []
    # Semantic Versioning 2.0.0, section 11.4: numeric identifiers have lower precedence than alphanumeric ones.
    ranks = [(0, int(part), "") if part.isdecimal() and len(part) < 10 else (1, 0, part) for part in parts]
    return int(match[1]), int(match[2]), int(match[3]), not parts, ranks


def required_version(old: SemanticVersion, level: Level) -> SemanticVersion:
    """Return the lowest version that may introduce a change of this level."""
    if level == "breaking":
        return SemanticVersion(old.major + 1, 0, 0)
    if level == "minor":
        return SemanticVersion(old.major, old.minor + 1, 0)
    return SemanticVersion(old.major, old.minor, old.patch + 1) if level == "patch" else old


def is_compatible(required: str, available: str) -> bool:
    """Return whether code written for version `required` works with version `available`: same major version,
    and not older.
    """
    ours, theirs = parse_version(required), parse_version(available)
    return ours is not None and theirs is not None and ours.major == theirs.major and theirs >= ours


class DeclaredError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declared failure of a tool: error type, condition, message and contents of the details."""

    type: str
    when: str
    details: str = ""
    message: str = ""


class ToolExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    arguments: dict[str, Any]
    data: dict[str, Any] | None = None
    explanation: str | None = None


class SpecNotes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Notes that a tool's author adds to its specification, in `_meta` under `portico/spec`."""

    use_cases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[DeclaredError] = field(default_factory=list)
    idempotency: str = ""
    examples: list[ToolExample] = field(default_factory=list)
    security: list[str] = field(default_factory=list)


class ToolDefinitionSnapshot(ListedTool, frozen=True, kw_only=True):
    """Definition of one tool in a contract."""

    invocation: str
    # As declared by the tool; empty if it declares none.
    version: str = ""
    notes: SpecNotes = SpecNotes()


class ServerContract(Struct, frozen=True, kw_only=True, dict=True):
    """Contract of a server: its tools and its other components."""

    server: str = ""
    version: str = ""
    # Protocol version: listings differ slightly between versions.
    revision: str = ""
    # None if they were not requested: a tool list does not contain them.
    instructions: str | None = None
    tools: tuple[ToolDefinitionSnapshot, ...] = ()
    # Prompts, resources and templates; None if they were not requested.
    offers: tuple[PinnedComponent, ...] | None = None
    # False for a specification file, which has no titles, annotations and task support, and its own descriptions.
    in_full: bool = True

    def find(self, name: str) -> ToolDefinitionSnapshot | None:
        """Return a tool by its listed name, its invocation name, or the last segment of that if it is unique.

        A tool that is listed by a dotted name can thus be called without the prefix.
        """
        return next((names[name] for names in self._names if name in names), None)

    @cached_property
    def _names(self) -> tuple[dict[str, ToolDefinitionSnapshot], ...]:
        # If two tools share a name, the first one wins.
        # Reversed, because later entries of a dict display replace earlier ones.
        tools = self.tools[::-1]
        last = Counter(tool.invocation.rpartition(".")[2] for tool in tools)
        alone = {name: tool for tool in tools if last[name := tool.invocation.rpartition(".")[2]] == 1}
        return {tool.name: tool for tool in tools}, {tool.invocation: tool for tool in tools}, alone

    def memoize(self, make: Callable[[ServerContract], T]) -> T:
        """Return `make(self)`, computed on the first call and cached with the contract."""
        if make not in self._memoized:
            self._memoized[make] = make(self)
        result: T = self._memoized[make]
        return result

    @cached_property
    def _memoized(self) -> dict[Any, Any]:
        return {}

    def suggest(self, name: str) -> list[ToolDefinitionSnapshot]:
        """Return the tools with a similar listed name or invocation name."""
        result = map(self.find, self.memoize(_fuzzy_names).nearest(name))
        return list({tool.invocation: tool for tool in result if tool is not None}.values())

    def version_of(self, tool: ToolDefinitionSnapshot) -> SemanticVersion:
        """Return the tool's own version, or the server's version if it has none."""
        return parse_version(tool.version) or coerce_version(self.version)


def _fuzzy_names(contract: ServerContract) -> FuzzyNames:
    return FuzzyNames(name for tool in contract.tools for name in (tool.name, tool.invocation))


def contract_from_tools(
    listed: Iterable[Any], *, server: str = "", version: str = "", revision: str = "", instructions: str | None = None
) -> ServerContract:
    """Return a contract for the entries of `tools/list`, given as JSON. Invalid entries are skipped."""
    tools: dict[str, ToolDefinitionSnapshot] = {}
    used_names: set[str] = set()
    for entry in listed:
        if is_result_reader(entry):
            continue
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"] not in tools:
            # Names are assigned in listing order, so the same list always gives the same invocation names.
            tool = definition_from_tool(entry, server, used_names)
            tools[tool.name] = tool
            used_names.add(tool.invocation)
    return ServerContract(
        server=server, version=version, revision=revision, instructions=instructions, tools=tuple(tools.values())
    )


def is_result_reader(entry: Any) -> bool:
    """Return whether a listed component only reads shortened results, which is not part of a contract."""
    if not isinstance(entry, Mapping) or not isinstance(meta := entry.get("_meta"), Mapping):
        return False
    # The marker alone would let a server hide any tool from its lock file.
    is_own = entry.get("name") == "read_result" or entry.get("uriTemplate") == "result://{+id}"
    return is_own and meta.get("portico/results") is True


def definition_from_tool(
    entry: Mapping[str, Any], module: str = "", used_names: Iterable[str] = ()
) -> ToolDefinitionSnapshot:
    """Return the definition for an entry of `tools/list`. `used_names` are the invocation names in use."""
    meta = entry.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    invocation_meta, version = meta.get(INVOCATION_META_KEY), meta.get(VERSION_META_KEY)
    preferred_name = (
        invocation_meta
        if isinstance(invocation_meta, str) and is_invocation_name(invocation_meta)
        else make_invocation_name(module, str(entry["name"]))
    )
    notes, trouble = _notes(meta.get(SPEC_META_KEY))
    # These three are fields of the definition.
    meta = {
        name: value
        for name, value in meta.items()
        if name not in (SPEC_META_KEY, VERSION_META_KEY, INVOCATION_META_KEY)
    }
    members = asdict(read_tool({**entry, "_meta": meta}))
    members["trouble"] = trouble or members["trouble"]
    return ToolDefinitionSnapshot(
        **members,
        invocation=deduplicate(preferred_name, used_names),
        version=version if isinstance(version, str) else "",
        notes=notes,
    )


def _notes(meta: Any) -> tuple[SpecNotes, str]:
    if meta is None:
        return SpecNotes(), ""
    try:
        return msgspec.convert(meta, SpecNotes), ""
    except msgspec.ValidationError as failure:
        # Invalid notes do not make the tool unusable; the linter reports `trouble` to its author.
        return SpecNotes(), f"notes in _meta ({SPEC_META_KEY}) are invalid: {str(failure).replace('`', chr(39))}"


# Conversion to JSON


def to_tool_json(tool: ToolDefinitionSnapshot) -> dict[str, Any]:
    """Return the definition as an entry of `tools/list`, without the specification notes, which are not part of the
    contract.
    """
    entry: dict[str, Any] = {"name": tool.name}
    if tool.title:
        entry["title"] = tool.title
    if tool.description:
        entry["description"] = tool.description
    entry["inputSchema"] = tool.input_schema
    if tool.output_schema is not None:
        entry["outputSchema"] = tool.output_schema
    if tool.annotations:
        entry["annotations"] = tool.annotations
    if tool.task:
        entry["execution"] = {"taskSupport": tool.task}
    meta = {**tool.others.get("_meta", {}), **({VERSION_META_KEY: tool.version} if tool.version else {})}
    return {**tool.others, **entry, "_meta": {**meta, INVOCATION_META_KEY: tool.invocation}}


def definition_digest(tool: ToolDefinitionSnapshot) -> str:
    """Return a hash of the definition that does not depend on the order of object members."""
    # Sorted members: a server that serializes its schemas in another order has not changed its contract.
    return hashlib.sha256(msgspec.json.encode(to_tool_json(tool), order="sorted")).hexdigest()
