"""Typed replies of a worker. Code in the sandbox can forge replies, so every one is validated."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from portico_services.livepython.sandbox.limits import MAX_REPLY_BYTES, MIB, SandboxLimits

# Evaluations may be larger, since they can contain images.
# Decoding cost is bounded by size: nothing in a reply is trusted before it is decoded.
MAX_RESULT_BYTES = 2 * MIB
MAX_IMAGES = 16
# Includes the note that text was truncated.
MAX_TEXT_CHARS = SandboxLimits.max_text_chars + 100

JsonValue = Annotated[Any, Meta(extra_json_schema={"type": ["string", "number", "boolean", "object", "array", "null"]})]

T = TypeVar("T")

# The classes of a session that changed, each with its changed members.
_ShortName = Annotated[str, Meta(max_length=200)]
ChangedClasses = Annotated[dict[_ShortName, Annotated[list[_ShortName], Meta(max_length=20)]], Meta(max_length=20)]


class InvalidReply(ValueError):
    """A reply that a genuine worker does not send."""


def decode_reply(result: Raw, kind: type[T], max_bytes: int = MAX_RESULT_BYTES) -> T:
    """Decode a result as `kind`. Raises InvalidReply if it is too long or does not match."""
    # Checked before decoding, because a forged reply may expand to far more memory than its text.
    if len(bytes(result)) > max_bytes:
        raise InvalidReply
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply from None


class RenderedImage(Struct, rename="camel"):
    mime_type: str
    data: str


class WorkerEvaluation(Struct, rename="camel"):
    """The value of the last expression. `text` and `type` are None if the code has only statements."""

    text: str | None = None
    type: str | None = None
    # JSON as text, so that its length can be checked before it is decoded.
    value: str | None = None
    pictures: Raw = Raw(b"[]")
    changed_classes: ChangedClasses = {}

    def __post_init__(self) -> None:
        # The worker truncates both, so longer ones were forged.
        if len(self.text or "") > MAX_TEXT_CHARS or len(self.type or "") > MAX_TEXT_CHARS:
            raise ValueError(f"text and type must be at most {MAX_TEXT_CHARS} characters")

    def images(self) -> list[RenderedImage]:
        """Decode the images. Raises InvalidReply if there are too many.

        Base64 data contains no braces, so counting braces bounds the number of images before decoding.
        """
        if bytes(self.pictures).count(b"{") > MAX_IMAGES:
            raise InvalidReply
        return decode_reply(self.pictures, list[RenderedImage], MAX_REPLY_BYTES)

    def decode_value(self) -> Any:
        """Decode the value. Return None if it is missing, too long or not valid JSON."""
        if self.value is None or len(self.value) > SandboxLimits.max_value_bytes:
            return None
        try:
            return msgspec.json.decode(self.value)
        except (msgspec.DecodeError, RecursionError):
            return None


class EvaluationResult(Struct):
    """Result of an evaluation."""

    session: Annotated[str, "Session name"]
    type: Annotated[str | None, "Type of the value; null without a value"] = None
    output: Annotated[str | None, "Printed output"] = None
    value: Annotated[JsonValue, "Value, if it can be represented in JSON"] = None


class ResetSessionResult(Struct):
    """Result of resetting a session."""

    session: Annotated[str, "Session name"]
    reset: Annotated[bool, "Whether the session existed"]


class PackageInfo(Struct, rename="camel", omit_defaults=True):
    """A package that can be imported."""

    name: Annotated[str, "Import name"]
    kind: Annotated[str, "installed, project or standard (part of Python)"]
    version: Annotated[str | None, "Version, if known"] = None
    summary: Annotated[str | None, "One-line summary from its metadata"] = None


class PackageList(Struct, rename="camel"):
    packages: Annotated[list[PackageInfo], "First page of the results"]
    total: Annotated[int, "Total number"]


class ClassSummary(Struct, rename="camel"):
    """A class in a list."""

    name: Annotated[str, "Name"]
    qualified_name: Annotated[str, "Module and class name"]
    summary: Annotated[str, "First line of the docstring"]


class ClassList(Struct, rename="camel"):
    package: Annotated[str, "Listed package or module"]
    classes: Annotated[list[ClassSummary], "First page of the results"]
    total: Annotated[int, "Total number"]


class ClassField(Struct, rename="camel", omit_defaults=True):
    """A class member that is not a method."""

    name: Annotated[str, "Name"]
    type: Annotated[str, "Type, if known"]
    value: Annotated[str | None, "Value on one line"] = None


class SystemInfo(TypedDict):
    """The Python version that runs code, and its limits."""

    mode: Annotated[str, "How code is isolated from the server"]
    timeout: Annotated[float, "Default time limit of a call in seconds"]
    longestTimeout: Annotated[float, "Maximum time limit of a call in seconds"]
    python: Annotated[str, "Python version"]
    mostSessions: Annotated[int, "Maximum number of sessions"]
    sessions: Annotated[int, "Number of sessions"]
    memory: NotRequired[Annotated[int, "Memory limit of one session in bytes"]]
    cpuSeconds: NotRequired[Annotated[int, "CPU time limit of one session in seconds"]]
    threads: NotRequired[Annotated[int, "Maximum number of threads"]]
    scratch: NotRequired[Annotated[int, "Disk limit of one session in bytes"]]
    output: NotRequired[Annotated[int, "Printed bytes retained per call"]]
    projectPackages: NotRequired[Annotated[list[str], "Packages of the projects"]]


class MethodInfo(Struct, rename="camel"):
    name: Annotated[str, "Name"]
    kind: Annotated[str, "method, async, class, static or property"]
    signature: Annotated[str, "Parameters and return type"]
    summary: Annotated[str, "First line of the docstring"]


class ClassDetails(Struct, rename="camel"):
    name: Annotated[str, "Name"]
    qualified_name: Annotated[str, "Module and class name"]
    module: Annotated[str, "Module that defines it"]
    superclass: Annotated[str | None, "First base class"]
    bases: Annotated[list[str], "Base classes"]
    mro: Annotated[list[str], "Method resolution order"]
    doc: Annotated[str, "Docstring"]
    fields: Annotated[list[ClassField], "Attributes that are not methods"]
    instance_variables: Annotated[list[str], "Attributes of its instances, as far as known"]
    methods: Annotated[list[MethodInfo], "Methods"]
    method_count: Annotated[int, "Total number of methods"]
    subclasses: Annotated[list[str], "Subclasses"]


class MethodSource(Struct, rename="camel"):
    """The source of a method."""

    class_name: Annotated[str, "Searched class"]
    selector: Annotated[str, "Name"]
    defined_in: Annotated[str, "Class that defines the method"]
    kind: Annotated[str, "method, async, class, static or property"]
    line: Annotated[int, "First line in its file"]
    source: Annotated[str, "Source code"]


class MethodMatch(Struct, rename="camel"):
    class_name: Annotated[str, "Class of the method"]
    selector: Annotated[str, "Name"]
    kind: Annotated[str, "method, async, class, static or property"]
    signature: Annotated[str, "Parameters and return type"]
    summary: Annotated[str, "First line of the docstring"]


class MethodSearchResult(Struct, rename="camel"):
    pattern: Annotated[str, "Search pattern"]
    methods: Annotated[list[MethodMatch], "First page of the results"]
    total: Annotated[int, "Total number"]


class MemberInfo(Struct, rename="camel"):
    """An attribute or an item."""

    name: Annotated[str, "Name, key or index"]
    type: Annotated[str, "Type"]
    repr: Annotated[str, "repr(), truncated if long"]


class ObjectInspection(Struct, rename="camel", omit_defaults=True):
    """Structure of an object."""

    expression: Annotated[str, "Inspected expression"]
    type: Annotated[str, "Type"]
    module: Annotated[str, "Module that defines the type"]
    repr: Annotated[str, "repr(), truncated if long"]
    doc: Annotated[str, "Docstring"]
    attributes: Annotated[list[MemberInfo], "Attributes"]
    methods: Annotated[list[str], "Method names"]
    items: Annotated[list[MemberInfo], "Items, if the object is a collection"]
    properties: Annotated[list[str], "Property names"] = []
    class_attributes: Annotated[list[MemberInfo], "Class attributes"] = []
    length: Annotated[int | None, "Number of items, if the object is a collection"] = None
    signature: Annotated[str | None, "Signature, if the object is callable"] = None


class NameReference(Struct, rename="camel"):
    """A place where a name is used."""

    module: Annotated[str, "Module"]
    owner: Annotated[str, "Enclosing function or class"]
    line: Annotated[int, "Line number in the module"]
    text: Annotated[str, "Text of the line"]


class ReferenceList(Struct, rename="camel"):
    name: Annotated[str, "Searched name"]
    references: Annotated[list[NameReference], "First page of the results"]
    total: Annotated[int, "Total number"]


class CompletionList(Struct):
    values: Annotated[list[str], Meta(max_length=100)]
    total: int


class PatchedMethod(Struct, rename="camel"):
    """A method that was patched at run time."""

    class_name: Annotated[str, "Patched class or module"]
    selector: Annotated[str, "Name"]
    kind: Annotated[str, "changed or added; restored or removed for an undone change"]
    module: Annotated[str, "Module that defines the class"]


class DefineMethodReply(PatchedMethod, rename="camel"):
    """Worker reply to a patch or its undo."""

    changed_classes: ChangedClasses = {}


class PatchReport(Struct, rename="camel"):
    """The patches applied in a session."""

    changes: Annotated[list[PatchedMethod], "Latest patches, oldest first"]
    total: Annotated[int, "Total number"]
    patch: Annotated[str, "All patches as a unified diff, for git apply or patch -p1"]


class SkippedName(Struct, rename="camel"):
    """A name that was not saved or restored."""

    name: Annotated[str, "Name"]
    reason: Annotated[str, "Why it was skipped"]


class NamesReport(Struct, rename="camel"):
    """Worker reply for saved or restored names."""

    names: list[str]
    total: int
    failed: list[SkippedName]
    changed_classes: ChangedClasses = {}


class SavedNamesReport(NamesReport, rename="camel", kw_only=True):
    """Worker reply for saved names, with size and digest of the data."""

    size: int
    digest: str


class SessionChunk(Struct):
    """A chunk of the saved data, in base64."""

    data: str


class DeleteSessionResult(Struct, rename="camel"):
    """Result of deleting a saved session."""

    name: Annotated[str, "Name of the saved session"]
    deleted: Annotated[bool, "Always true"]


class RestoreSessionResult(Struct, rename="camel"):
    """Names restored from a saved session."""

    name: Annotated[str, "Name of the saved session"]
    session: Annotated[str, "Session that received the names"]
    names: Annotated[list[str], "First names"]
    total: Annotated[int, "Total number"]
    left_out: Annotated[list[SkippedName], "Names that were not restored, with reasons"]
