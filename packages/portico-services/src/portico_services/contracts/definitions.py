"""What a server promises, as plain data: its tools' definitions, with names and notes for contracts."""

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

from portico.definitions import Level, ListedTool, Offer, read_tool
from portico.extend import NearNames
from portico_services.contracts.invocation_names import (
    INVOCATION,
    NOTES,
    VERSION,
    invocation,
    is_invocation,
    numbered,
)

T = TypeVar("T")

# Of the messages, the error format and the rules for specifications. No revision of the protocol: those are dates.
CONTRACT_VERSION = "1.0.0"

_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LOOSE = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


class Version(Struct, frozen=True, order=True):
    """Only the three numbers: what stands behind `-` or `+` does not change what is promised."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse(text: str) -> Version | None:
    """None: this is no semantic version."""
    found = _VERSION.fullmatch(text)
    return None if found is None else Version(int(found[1]), int(found[2]), int(found[3]))


def guess(text: str) -> Version:
    """A version from what servers write in its place: `v1.2`, `2024.1`, or nothing of the kind."""
    found = _LOOSE.match(text)
    return Version(0, 0, 0) if found is None else Version(*(int(part or 0) for part in found.groups()))


def went_back(old: str, new: str) -> bool:
    """Whether a version is older than the one before, as semantic versions are sorted: `1.0.0-rc.1` before `1.0.0`."""
    was, now = _VERSION.fullmatch(old), _VERSION.fullmatch(new)
    return was is not None and now is not None and _order(now) < _order(was)


def _order(found: re.Match[str]) -> tuple[Any, ...]:
    """What versions are sorted by. Of what stands behind `-`, numbers are numbers and come before words."""
    parts = found[4][1:].split(".") if found[4] else []
    ranks = [(0, int(part), "") if part.isdecimal() and len(part) < 10 else (1, 0, part) for part in parts]
    return int(found[1]), int(found[2]), int(found[3]), not parts, ranks


def demanded(old: Version, level: Level) -> Version:
    """The least version that may carry a change of this level."""
    if level == "breaking":
        return Version(old.major + 1, 0, 0)
    if level == "minor":
        return Version(old.major, old.minor + 1, 0)
    return Version(old.major, old.minor, old.patch + 1) if level == "patch" else old


def keeps(wanted: str, offered: str) -> bool:
    """Whether what was written for one version works with another: the same major, and not older."""
    ours, theirs = parse(wanted), parse(offered)
    return ours is not None and theirs is not None and ours.major == theirs.major and theirs >= ours


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way in which a tool fails: the error's type, its condition, its message, and what its details hold."""

    type: str
    when: str
    details: str = ""
    message: str = ""


class Example(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    arguments: dict[str, Any]
    data: dict[str, Any] | None = None
    explanation: str | None = None


class SpecNotes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the author of a tool adds to its specification, in `_meta` under `portico/spec`."""

    use_cases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    idempotency: str = ""
    examples: list[Example] = field(default_factory=list)
    security: list[str] = field(default_factory=list)


class Definition(ListedTool, frozen=True, kw_only=True):
    """One tool as it is promised."""

    invocation: str
    # As declared by the tool; empty if it declares none.
    version: str = ""
    notes: SpecNotes = SpecNotes()


class Contract(Struct, frozen=True, kw_only=True, dict=True):
    """Everything a server promises: about its tools, and what it offers besides."""

    server: str = ""
    version: str = ""
    # Of the protocol: what is listed differs a little from one to the next.
    revision: str = ""
    # None where they were not asked for: a list of tools says nothing of them.
    instructions: str | None = None
    tools: tuple[Definition, ...] = ()
    # Prompts, resources and templates; None where they were not asked for.
    offers: tuple[Offer, ...] | None = None
    # A file of specifications says nothing of titles, hints and tasks, and describes in words of its own.
    in_full: bool = True

    def find(self, name: str) -> Definition | None:
        """By the name that is listed, by the invocation name, or by the last part of that if no other tool has it: what
        is listed by a dotted name may be called without the dots, too."""
        return next((names[name] for names in self._names if name in names), None)

    @cached_property
    def _names(self) -> tuple[dict[str, Definition], ...]:
        # Of two with one name, the first.
        tools = self.tools[::-1]
        last = Counter(tool.invocation.rpartition(".")[2] for tool in tools)
        alone = {name: tool for tool in tools if last[name := tool.invocation.rpartition(".")[2]] == 1}
        return {tool.name: tool for tool in tools}, {tool.invocation: tool for tool in tools}, alone

    def once(self, make: Callable[[Contract], T]) -> T:
        """What `make` gives for this contract: made when it is first asked for, and kept with it."""
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}

    def nearest(self, name: str) -> list[Definition]:
        """The tools that may have been meant, by either of their names."""
        found = map(self.find, self.once(_near_names).nearest(name))
        return list({tool.invocation: tool for tool in found if tool is not None}.values())

    def version_of(self, tool: Definition) -> Version:
        """The tool's own version, or the server's where it has none."""
        return parse(tool.version) or guess(self.version)


def _near_names(contract: Contract) -> NearNames:
    return NearNames(name for tool in contract.tools for name in (tool.name, tool.invocation))


def contract_of(
    listed: Iterable[Any], *, server: str = "", version: str = "", revision: str = "", instructions: str | None = None
) -> Contract:
    """A contract from the entries of `tools/list`, as JSON. What makes no sense in them is left out."""
    tools: dict[str, Definition] = {}
    taken: set[str] = set()
    for entry in listed:
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"] not in tools:
            tool = definition_of(entry, server, taken)
            tools[tool.name] = tool
            taken.add(tool.invocation)
    return Contract(
        server=server, version=version, revision=revision, instructions=instructions, tools=tuple(tools.values())
    )


def definition_of(entry: Mapping[str, Any], module: str = "", taken: Iterable[str] = ()) -> Definition:
    """One entry of `tools/list`. `taken`: invocation names that others have."""
    meta = entry.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    said, version = meta.get(INVOCATION), meta.get(VERSION)
    wanted = said if isinstance(said, str) and is_invocation(said) else invocation(module, str(entry["name"]))
    notes, trouble = _notes(meta.get(NOTES))
    # These three have fields of their own.
    meta = {name: value for name, value in meta.items() if name not in (NOTES, VERSION, INVOCATION)}
    members = asdict(read_tool({**entry, "_meta": meta}))
    members["trouble"] = trouble or members["trouble"]
    return Definition(
        **members,
        invocation=numbered(wanted, taken),
        version=version if isinstance(version, str) else "",
        notes=notes,
    )


def _notes(said: Any) -> tuple[SpecNotes, str]:
    if said is None:
        return SpecNotes(), ""
    try:
        return msgspec.convert(said, SpecNotes), ""
    except msgspec.ValidationError as failure:
        return SpecNotes(), f"its notes (_meta, {NOTES}) cannot be read: {str(failure).replace('`', chr(39))}"


# As JSON again


def plain(tool: Definition) -> dict[str, Any]:
    """All that is promised, as an entry of `tools/list` has it. Notes are no promise."""
    said: dict[str, Any] = {"name": tool.name}
    if tool.title:
        said["title"] = tool.title
    if tool.description:
        said["description"] = tool.description
    said["inputSchema"] = tool.input_schema
    if tool.output_schema is not None:
        said["outputSchema"] = tool.output_schema
    if tool.annotations:
        said["annotations"] = tool.annotations
    if tool.task:
        said["execution"] = {"taskSupport": tool.task}
    meta = {**tool.others.get("_meta", {}), **({VERSION: tool.version} if tool.version else {})}
    return {**tool.others, **said, "_meta": {**meta, INVOCATION: tool.invocation}}


def digest(tool: Definition) -> str:
    """A fingerprint of the promise: the same wherever the members of its objects happen to stand."""
    return hashlib.sha256(msgspec.json.encode(plain(tool), order="sorted")).hexdigest()
