"""What a server promises, as plain data: its tools' definitions, from a list that may be hostile."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from portico.extend import NearNames
from portico.jsonschema import LONGEST_SCHEMA, UNREADABLE
from portico_services.contracts.components import Offer
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

Level = Literal["none", "patch", "minor", "breaking"]
LEVELS: tuple[Level, ...] = ("none", "patch", "minor", "breaking")

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


def worst(levels: list[Level]) -> Level:
    return max(levels, key=LEVELS.index, default="none")


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


Schema = dict[str, Any]

# Honest schemas have a few kilobytes, and a dozen levels.
DEEPEST_SCHEMA = 128

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
# What a hint means where none is given (server/tools, ToolAnnotations).
ASSUMED = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


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


class Definition(Struct, frozen=True, kw_only=True):
    """One tool as it is promised."""

    name: str
    invocation: str
    title: str = ""
    description: str = ""
    # As declared by the tool; empty if it declares none.
    version: str = ""
    input_schema: Schema = field(default_factory=dict)
    output_schema: Schema | None = None
    annotations: dict[str, Any] = field(default_factory=dict)
    # Whether it may be called as a task: "forbidden" or nothing, "optional", "required".
    task: str = ""
    # The members that the others do not cover, such as icons, `_meta` and those that are not in the schema: a host may
    # show them, and a model may read them.
    others: dict[str, Any] = field(default_factory=dict)
    notes: SpecNotes = SpecNotes()
    # Why the author's notes could not be read.
    trouble: str = ""

    def hint(self, name: str) -> bool:
        said = self.annotations.get(name)
        return said if isinstance(said, bool) else ASSUMED[name]


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
    meta = _mapping(entry.get("_meta"))
    name = str(entry["name"])
    said = meta.get(INVOCATION)
    wanted = said if isinstance(said, str) and is_invocation(said) else invocation(module, name)
    notes, trouble = _notes(meta.get(NOTES))
    takes, troubled = _schema(entry.get("inputSchema"))
    gives, also = _schema(entry.get("outputSchema"))
    return Definition(
        name=name,
        invocation=numbered(wanted, taken),
        title=_text(entry.get("title")),
        description=_text(entry.get("description")),
        version=_text(meta.get(VERSION)),
        input_schema=takes or {},
        output_schema=gives,
        annotations=dict(_mapping(entry.get("annotations"))),
        task=_text(_mapping(entry.get("execution")).get("taskSupport")),
        others=_others(entry, meta),
        notes=notes,
        trouble=trouble or troubled or also,
    )


_COVERED = {"name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution", "_meta"}


def _others(entry: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: said for name, said in entry.items() if name not in _COVERED and said is not None}
    own = {name: said for name, said in meta.items() if name not in (NOTES, VERSION, INVOCATION)}
    found |= {"_meta": own} if own else {}
    if not found or _is_shallow(found):
        return found
    return {UNREADABLE: hashlib.sha256(repr(found).encode(errors="backslashreplace")).hexdigest()}


def _schema(said: Any) -> tuple[Schema | None, str]:
    """A schema that can be gone through. Of one that cannot only its fingerprint is kept, so that changes are seen."""
    if not isinstance(said, Mapping):
        return None, ""
    if _is_shallow(said):
        encoded = msgspec.json.encode(said)
        if len(encoded) <= LONGEST_SCHEMA:
            return dict(said), ""
    else:
        encoded = repr(said).encode(errors="backslashreplace")
    fingerprint = hashlib.sha256(encoded).hexdigest()
    why = f"a schema of it is longer than {LONGEST_SCHEMA} bytes, or deeper than {DEEPEST_SCHEMA} levels"
    return {"type": "object", UNREADABLE: fingerprint}, why


def _is_shallow(schema: Any) -> bool:
    level = [schema]
    for _ in range(DEEPEST_SCHEMA):
        inside = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in inside for part in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return True
    return False


def _notes(said: Any) -> tuple[SpecNotes, str]:
    if said is None:
        return SpecNotes(), ""
    try:
        return msgspec.convert(said, SpecNotes), ""
    except msgspec.ValidationError as failure:
        return SpecNotes(), f"its notes (_meta, {NOTES}) cannot be read: {str(failure).replace('`', chr(39))}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


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
