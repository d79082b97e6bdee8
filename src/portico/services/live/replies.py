"""What an image answers, as the server reads it: whatever does not fit was not said by us."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from portico.services.live.limits import LONGEST_REPLY, MIB, Limits

# Of an answer that is not an evaluation's: those have pictures.
LONGEST_RESULT = 2 * MIB
MOST_PICTURES = 16
# With the remark that something was left out.
LONGEST_TEXT = Limits.text + 100

T = TypeVar("T")


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


class Package(Struct, rename="camel", omit_defaults=True):
    """A package that can be imported."""

    name: str
    kind: str
    version: str | None = None
    summary: str | None = None


class Packages(Struct, rename="camel"):
    packages: list[Package]
    total: int


class Brief(Struct, rename="camel"):
    """A class in a list."""

    name: str
    qualified_name: str
    summary: str


class Classes(Struct, rename="camel"):
    package: str
    classes: list[Brief]
    total: int


class ClassField(Struct, rename="camel", omit_defaults=True):
    """A member of a class that is no method."""

    name: str
    type: str
    value: str | None = None


class MethodInfo(Struct, rename="camel"):
    name: str
    kind: str
    signature: str
    summary: str


class ClassDetails(Struct, rename="camel"):
    name: str
    qualified_name: str
    module: str
    superclass: str | None
    bases: list[str]
    mro: list[str]
    doc: str
    fields: list[ClassField]
    instance_variables: list[str]
    methods: list[MethodInfo]
    method_count: int
    subclasses: list[str]


class MethodSource(Struct, rename="camel"):
    class_name: str
    selector: str
    defined_in: str
    kind: str
    line: int
    source: str


class FoundMethod(Struct, rename="camel"):
    class_name: str
    selector: str
    kind: str
    signature: str
    summary: str


class FoundMethods(Struct, rename="camel"):
    pattern: str
    methods: list[FoundMethod]
    total: int


class Part(Struct, rename="camel"):
    """An attribute, or an item."""

    name: str
    type: str
    repr: str


class Inspected(Struct, rename="camel", omit_defaults=True):
    """What an object is made of."""

    expression: str
    type: str
    module: str
    repr: str
    doc: str
    attributes: list[Part]
    methods: list[str]
    items: list[Part]
    # What is computed when it is asked for, and data that the class has.
    properties: list[str] = []
    class_attributes: list[Part] = []
    length: int | None = None
    signature: str | None = None


class NameReference(Struct, rename="camel"):
    """A place where a name is used."""

    module: str
    owner: str
    line: int
    text: str


class References(Struct, rename="camel"):
    name: str
    references: list[NameReference]
    total: int


class Completions(Struct):
    values: Annotated[list[str], Meta(max_length=100)]
    total: int


class ChangedMethod(Struct, rename="camel"):
    """A method that was changed in place."""

    class_name: str
    selector: str
    kind: str
    module: str


class ChangedMethods(Struct, rename="camel"):
    changes: list[ChangedMethod]
    total: int
    # Unified, for `git apply` or `patch -p1`.
    patch: str


class Failed(Struct, rename="camel"):
    """A name that was not saved or restored, and why."""

    name: str
    reason: str


class Told(Struct, rename="camel"):
    names: list[str]
    total: int
    failed: list[Failed]


class Kept(Told, rename="camel"):
    """What was saved, and which bytes those are."""

    size: int
    digest: str


class Part64(Struct):
    data: str


class Restored(Struct, rename="camel"):
    """The names that are back."""

    name: str
    session: str
    names: list[str]
    total: int
    left_out: list[Failed]
