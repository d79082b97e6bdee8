"""What an image answers, as the server reads it: whatever does not fit was not said by us."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from portico_services.livepython.sandbox.limits import LONGEST_REPLY, MIB, Limits

# Of an answer that is not an evaluation's: those have pictures.
LONGEST_RESULT = 2 * MIB
MOST_PICTURES = 16
# With the remark that something was left out.
LONGEST_TEXT = Limits.text + 100

JsonValue = Annotated[Any, Meta(extra_json_schema={"type": ["string", "number", "boolean", "object", "array", "null"]})]

T = TypeVar("T")

# The classes of a session that are others than before, and their members that are.
_Told = Annotated[str, Meta(max_length=200)]
ChangedClasses = Annotated[dict[_Told, Annotated[list[_Told], Meta(max_length=20)]], Meta(max_length=20)]


class InvalidReply(ValueError):
    """An answer that no image of ours gives."""


def read(result: Raw, kind: type[T], longest: int = LONGEST_RESULT) -> T:
    """The result as this kind. Raises InvalidReply."""
    if len(bytes(result)) > longest:
        raise InvalidReply
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply from None


class Picture(Struct, rename="camel"):
    mime_type: str
    data: str


class Evaluated(Struct, rename="camel"):
    """The value of the last expression. Statements alone have neither text nor type."""

    text: str | None = None
    type: str | None = None
    # JSON as a text: it is not decoded before its length is known.
    value: str | None = None
    pictures: Raw = Raw(b"[]")
    changed_classes: ChangedClasses = {}

    def __post_init__(self) -> None:
        if len(self.text or "") > LONGEST_TEXT or len(self.type or "") > LONGEST_TEXT:
            raise ValueError("longer than ours are")

    def drawn(self) -> list[Picture]:
        """The pictures. There is no brace in the data of one, so many braces are something else."""
        if bytes(self.pictures).count(b"{") > MOST_PICTURES:
            raise InvalidReply
        return read(self.pictures, list[Picture], LONGEST_REPLY)

    def decoded(self) -> Any:
        """The value. None also if it is not JSON after all, or longer than ours are."""
        if self.value is None or len(self.value) > Limits.value:
            return None
        try:
            return msgspec.json.decode(self.value)
        except (msgspec.DecodeError, RecursionError):
            return None


class Evaluation(Struct):
    """What an expression came to."""

    session: Annotated[str, "Where it was evaluated"]
    type: Annotated[str | None, "The type of the value; none where there is no value"] = None
    output: Annotated[str | None, "What was printed"] = None
    value: Annotated[JsonValue, "The value, where JSON can say it"] = None


class SessionReset(Struct):
    """What became of a session."""

    session: Annotated[str, "Its name"]
    reset: Annotated[bool, "Whether there was one"]


class Package(Struct, rename="camel", omit_defaults=True):
    """A package that can be imported."""

    name: Annotated[str, "What it is imported by"]
    kind: Annotated[str, "installed, project, or standard: it comes with Python"]
    version: Annotated[str | None, "Its version, where it is known"] = None
    summary: Annotated[str | None, "What it says of itself, in a line"] = None


class Packages(Struct, rename="camel"):
    packages: Annotated[list[Package], "One page of them"]
    total: Annotated[int, "How many there are in all"]


class Brief(Struct, rename="camel"):
    """A class in a list."""

    name: Annotated[str, "Its name"]
    qualified_name: Annotated[str, "Its name with that of its module"]
    summary: Annotated[str, "The first line of its docstring"]


class Classes(Struct, rename="camel"):
    package: Annotated[str, "Where was looked"]
    classes: Annotated[list[Brief], "One page of them"]
    total: Annotated[int, "How many there are in all"]


class ClassField(Struct, rename="camel", omit_defaults=True):
    """A member of a class that is no method."""

    name: Annotated[str, "Its name"]
    type: Annotated[str, "Its type, as far as it is known"]
    value: Annotated[str | None, "Its value, in a line"] = None


class SystemInfo(TypedDict):
    """The Python that runs code, and its limits."""

    mode: Annotated[str, "How code is separated from the server"]
    timeout: Annotated[float, "Seconds that a call may take unless it asks for another time"]
    longestTimeout: Annotated[float, "The most seconds that a call may ask for"]
    python: Annotated[str, "The version of Python"]
    mostSessions: Annotated[int, "How many sessions there may be"]
    sessions: Annotated[int, "How many sessions there are"]
    memory: NotRequired[Annotated[int, "Bytes of memory of one session"]]
    cpuSeconds: NotRequired[Annotated[int, "Seconds of processor time of one session"]]
    threads: NotRequired[Annotated[int, "How many threads code may start"]]
    scratch: NotRequired[Annotated[int, "Bytes that code may write into its folder"]]
    output: NotRequired[Annotated[int, "Bytes of printed text that are retained of one call"]]
    projectPackages: NotRequired[Annotated[list[str], "The packages of the project"]]


class MethodInfo(Struct, rename="camel"):
    name: Annotated[str, "Its name"]
    kind: Annotated[str, "method, async, class, static or property"]
    signature: Annotated[str, "What it takes and gives"]
    summary: Annotated[str, "The first line of its docstring"]


class ClassDetails(Struct, rename="camel"):
    name: Annotated[str, "Its name"]
    qualified_name: Annotated[str, "Its name with that of its module"]
    module: Annotated[str, "Where it is defined"]
    superclass: Annotated[str | None, "The first of its bases"]
    bases: Annotated[list[str], "The classes it is made from"]
    mro: Annotated[list[str], "Where attributes are looked for, in this order"]
    doc: Annotated[str, "Its docstring"]
    fields: Annotated[list[ClassField], "Its attributes that are no methods"]
    instance_variables: Annotated[list[str], "What its instances have, as far as it can be seen"]
    methods: Annotated[list[MethodInfo], "Its methods"]
    method_count: Annotated[int, "How many methods it has in all"]
    subclasses: Annotated[list[str], "The classes that are made from it"]


class MethodSource(Struct, rename="camel"):
    """The source of a method."""

    class_name: Annotated[str, "The class it was looked for in"]
    selector: Annotated[str, "Its name"]
    defined_in: Annotated[str, "The class that defines it"]
    kind: Annotated[str, "method, async, class, static or property"]
    line: Annotated[int, "Where it begins in its file"]
    source: Annotated[str, "Its text"]


class FoundMethod(Struct, rename="camel"):
    class_name: Annotated[str, "Whose method it is"]
    selector: Annotated[str, "Its name"]
    kind: Annotated[str, "method, async, class, static or property"]
    signature: Annotated[str, "What it takes and gives"]
    summary: Annotated[str, "The first line of its docstring"]


class FoundMethods(Struct, rename="camel"):
    pattern: Annotated[str, "What was looked for"]
    methods: Annotated[list[FoundMethod], "One page of them"]
    total: Annotated[int, "How many there are in all"]


class Part(Struct, rename="camel"):
    """An attribute, or an item."""

    name: Annotated[str, "Its name, key or place"]
    type: Annotated[str, "Its type"]
    repr: Annotated[str, "How Python shows it, cut if it is long"]


class Inspected(Struct, rename="camel", omit_defaults=True):
    """What an object is made of."""

    expression: Annotated[str, "What was looked at"]
    type: Annotated[str, "Its type"]
    module: Annotated[str, "Where its type is defined"]
    repr: Annotated[str, "How Python shows it, cut if it is long"]
    doc: Annotated[str, "Its docstring"]
    attributes: Annotated[list[Part], "Its attributes"]
    methods: Annotated[list[str], "The names of its methods"]
    items: Annotated[list[Part], "What it holds, where it is a collection"]
    properties: Annotated[list[str], "The names of what is computed when it is asked for"] = []
    class_attributes: Annotated[list[Part], "What its class holds"] = []
    length: Annotated[int | None, "How many it holds, where it is a collection"] = None
    signature: Annotated[str | None, "What it takes and gives, where it can be called"] = None


class NameReference(Struct, rename="camel"):
    """A place where a name is used."""

    module: Annotated[str, "Where it stands"]
    owner: Annotated[str, "In which function or class"]
    line: Annotated[int, "In which line of the module"]
    text: Annotated[str, "That line"]


class References(Struct, rename="camel"):
    name: Annotated[str, "What was looked for"]
    references: Annotated[list[NameReference], "One page of them"]
    total: Annotated[int, "How many there are in all"]


class Completions(Struct):
    values: Annotated[list[str], Meta(max_length=100)]
    total: int


class ChangedMethod(Struct, rename="camel"):
    """A method that was changed in place."""

    class_name: Annotated[str, "The class or module that has it"]
    selector: Annotated[str, "Its name"]
    kind: Annotated[str, "changed or added; of an undone change, restored or removed"]
    module: Annotated[str, "Where its class is defined"]


class DefinedMethod(ChangedMethod, rename="camel"):
    """What a worker says of it."""

    changed_classes: ChangedClasses = {}


class ChangedMethods(Struct, rename="camel"):
    """What was changed in a session."""

    changes: Annotated[list[ChangedMethod], "The newest of them, oldest first"]
    total: Annotated[int, "How many there are in all"]
    patch: Annotated[str, "All of them as a unified diff, for git apply or patch -p1"]


class LeftOut(Struct, rename="camel"):
    """A name that was not saved or restored."""

    name: Annotated[str, "The name"]
    reason: Annotated[str, "Why not"]


class NamesTold(Struct, rename="camel"):
    """What became of names, as a worker says it."""

    names: list[str]
    total: int
    failed: list[LeftOut]
    changed_classes: ChangedClasses = {}


class NamesSaved(NamesTold, rename="camel", kw_only=True):
    """Which bytes they are."""

    size: int
    digest: str


class SavedPart(Struct):
    """Some of those bytes, in base64."""

    data: str


class DeletedSession(Struct, rename="camel"):
    """What is not saved any more."""

    name: Annotated[str, "What it was saved under"]
    deleted: Annotated[bool, "That it is gone"]


class RestoredSession(Struct, rename="camel"):
    """The names that are back."""

    name: Annotated[str, "What it was saved under"]
    session: Annotated[str, "Where the names are now"]
    names: Annotated[list[str], "The first of them"]
    total: Annotated[int, "How many there are in all"]
    left_out: Annotated[list[LeftOut], "What could not be restored"]
