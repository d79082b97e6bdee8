"""The operations of a document: which there are, which are wanted, and what their tools are called."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypedDict
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct, field

from portico._options import check_options
from portico.protocol.errors import UsageError
from portico.server.providers.openapi.document import ApiDocument, ApiServer

log = logging.getLogger("portico.openapi")

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 2000
MOST_OPERATIONS = 20_000


class OperationFilter(TypedDict, total=False):
    """Which operations become tools. Paths and tags may have `*` in them."""

    tags: Sequence[str]
    paths: Sequence[str]
    methods: Sequence[str]
    exclude_tags: Sequence[str]
    exclude_paths: Sequence[str]
    exclude_methods: Sequence[str]


class OperationObject(Struct, rename="camel"):
    """What the document says of an operation. Its parts are read when its tool is first looked at."""

    operation_id: str = ""
    summary: str = ""
    description: str = ""
    tags: list[str] = field(default_factory=list)
    deprecated: bool = False
    parameters: list[dict[str, Any]] = field(default_factory=list)
    request_body: Raw = Raw(b"null")
    responses: dict[str, Raw] = field(default_factory=dict)
    servers: list[ApiServer] = field(default_factory=list)
    security: list[dict[str, list[str]]] | None = None


class Operation(Struct, frozen=True):
    """A method at a path."""

    method: str
    path: str
    said: Raw
    shared: tuple[Raw, Raw]
    key: str
    tags: tuple[str, ...]

    @property
    def what(self) -> OperationObject:
        """All of it; nothing is kept, so that what is not looked at costs nothing."""
        found: OperationObject = _read(self.said, OperationObject, f"{self.method.upper()} {self.path}")
        return found

    def parameters(self, document: ApiDocument) -> list[dict[str, Any]]:
        """Its parameters, and those of its path that it does not have itself."""
        of_path = _read(self.shared[0], list[dict[str, Any]] | None, self.path) or []
        found: dict[tuple[Any, Any], dict[str, Any]] = {}
        for one in (*of_path, *self.what.parameters):
            parameter = document.resolved(one)
            if isinstance(parameter, dict):
                found[parameter.get("in"), parameter.get("name")] = parameter
        return list(found.values())

    def servers(self, document: ApiDocument) -> list[ApiServer]:
        of_path = _read(self.shared[1], list[ApiServer] | None, self.path)
        return self.what.servers or of_path or document.servers


class _Name(Struct, rename="camel"):
    operation_id: str = ""
    tags: list[str] = field(default_factory=list)


_NOTHING = Raw(b"null")


def operations(document: ApiDocument, wanted: OperationFilter) -> Iterator[Operation]:
    """The operations that are wanted, in the order of the document."""
    check_options("the operations", wanted, OperationFilter)
    _check_methods(wanted)
    count = 0
    for path, item in document.paths.items():
        if not _stays_below(path):
            log.warning("%r is left out: no request below the place of the API can have this path", path[:200])
            continue
        for method, raw in _methods(document, item).items():
            count += 1
            if count > MOST_OPERATIONS:
                raise UsageError(f"the document has more than {MOST_OPERATIONS} operations")
            about = _read(raw, _Name, f"{method.upper()} {path}")
            if _is_wanted(method, path, about.tags, wanted):
                shared = item.get("parameters", _NOTHING), item.get("servers", _NOTHING)
                yield Operation(method, path, raw, shared, about.operation_id, tuple(about.tags))


def _stays_below(path: str) -> bool:
    """Whether a path, put behind the URL of an API, leads to something below it: a document may be a stranger's."""
    steps = unquote(path).replace("\\", "/").split("/")
    seen = path.isprintable() and " " not in path
    return seen and path.startswith("/") and not path.startswith("//") and not {".", ".."} & set(steps)


def _methods(document: ApiDocument, item: dict[str, Raw]) -> dict[str, Raw]:
    if "$ref" in item:
        found = document.resolved({"$ref": _read(item["$ref"], str, "a path")})
        item = {name: Raw(msgspec.json.encode(one)) for name, one in found.items()} if isinstance(found, dict) else {}
    return {method: item[method] for method in METHODS if method in item}


def _check_methods(wanted: OperationFilter) -> None:
    for method in (*wanted.get("methods", ()), *wanted.get("exclude_methods", ())):
        if method.lower() not in METHODS:
            raise UsageError(f"{method!r} is no method; there are {', '.join(METHODS).upper()}")


def _is_wanted(method: str, path: str, tags: Sequence[str], wanted: OperationFilter) -> bool:
    def among(values: Sequence[str], patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(value, pattern) for value in values for pattern in patterns)

    for name, values in (("tags", tags), ("paths", (path,)), ("methods", (method,))):
        include: Sequence[str] = wanted.get(name, ())  # type: ignore[assignment]
        exclude: Sequence[str] = wanted.get(f"exclude_{name}", ())  # type: ignore[assignment]
        if name == "methods":
            include, exclude = [one.lower() for one in include], [one.lower() for one in exclude]
        if (include and not among(values, include)) or among(values, exclude):
            return False
    return True


def named(found: Sequence[Operation], rename: Mapping[str, str]) -> dict[str, Operation]:
    """The operations by the names of their tools: what `rename` says, or else their ids, each made distinct."""
    known = {one.key for one in found}
    for key in rename:
        if key not in known:
            raise UsageError(f"rename has {key!r}, and there is no operation of this id")
    short = [rename.get(one.key) or _short(one) for one in found]
    counts = Counter(short)
    names: dict[str, Operation] = {}
    # Those that are alone with their names have them, wherever they stand.
    free = FreeNames(name for name, count in counts.items() if count == 1)
    for one, name in zip(found, short, strict=True):
        if counts[name] > 1:
            name = free.take(folded(one.key) if one.key else name)
        names[name] = one
    return names


class FreeNames:
    """Gives each a name that no other has. How many there are of a name is remembered, so that many cost no more."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def take(self, name: str) -> str:
        free, number = name, self._numbers.get(name, 1)
        while free in self._taken:
            number += 1
            free = f"{name[: LONGEST_NAME - 1 - len(str(number))]}_{number}"
        self._numbers[name] = number
        self._taken.add(free)
        return free


def _short(operation: Operation) -> str:
    """The operation's id as a name. FastAPI puts the path and the method behind the name of the function."""
    if not operation.key:
        return folded(f"{operation.method}_{operation.path}")
    behind = re.sub(r"\W", "_", operation.path) + f"_{operation.method}"
    name = operation.key.removesuffix(behind) if operation.key != behind else operation.key
    return folded(name)


def folded(text: str) -> str:
    """A text as a name that every model takes."""
    name = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_-]", "_", text)).strip("_")
    return name[:LONGEST_NAME].rstrip("_") or "operation"


def described(what: OperationObject) -> str:
    parts = [part.strip() for part in (what.summary, what.description) if part.strip()]
    if len(parts) == 2 and parts[1].startswith(parts[0].rstrip(".")):
        parts = parts[1:]
    text = "\n\n".join((*(["Deprecated."] if what.deprecated else []), *parts))
    return text if len(text) <= LONGEST_DESCRIPTION else f"{text[: LONGEST_DESCRIPTION - 1]}…"


def hints(method: str) -> dict[str, bool]:
    """What the method of HTTP promises (RFC 9110, section 9.2)."""
    if method in ("get", "head", "options", "trace"):
        return {"readOnlyHint": True, "openWorldHint": True}
    found = {"readOnlyHint": False, "openWorldHint": True}
    if method in ("put", "delete"):
        return {**found, "destructiveHint": True, "idempotentHint": True}
    return {**found, "destructiveHint": True} if method == "patch" else found


def _read(raw: Raw, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise UsageError(f"{where[:200]} of the document cannot be read: {failure}") from None
