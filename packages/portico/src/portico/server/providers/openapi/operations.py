"""The operations of a document: listing, filtering, and the names of their tools."""

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

from portico._options import validate_options
from portico.protocol.errors import UsageError
from portico.server.providers.openapi.document import OpenApiDocument, OpenApiServer
from portico.text import truncate

log = logging.getLogger("portico.openapi")

HTTP_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_TOOL_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 2000
MAX_OPERATIONS = 20_000


class OperationFilter(TypedDict, total=False):
    """Filter for the operations that become tools. Paths and tags may contain `*`."""

    # Operations to include, by tag; `*` matches any characters.
    tags: Sequence[str]
    # Operations to include, by path; `*` matches any characters.
    paths: Sequence[str]
    # Operations to include, by HTTP method.
    methods: Sequence[str]
    # Operations to exclude, by tag.
    exclude_tags: Sequence[str]
    # Operations to exclude, by path.
    exclude_paths: Sequence[str]
    # Operations to exclude, by HTTP method.
    exclude_methods: Sequence[str]


class OperationObject(Struct, rename="camel"):
    """An operation as described by the document. Parts are decoded when its tool is first used."""

    operation_id: str = ""
    summary: str = ""
    description: str = ""
    tags: list[str] = field(default_factory=list)
    deprecated: bool = False
    parameters: list[dict[str, Any]] = field(default_factory=list)
    request_body: Raw = Raw(b"null")
    responses: dict[str, Raw] = field(default_factory=dict)
    servers: list[OpenApiServer] = field(default_factory=list)
    security: list[dict[str, list[str]]] | None = None


class Operation(Struct, frozen=True):
    """A method at a path."""

    method: str
    path: str
    raw: Raw
    path_defaults: tuple[Raw, Raw]
    operation_id: str
    tags: tuple[str, ...]

    @property
    def decode(self) -> OperationObject:
        """Decode the operation. Nothing is cached, so that unused operations cost no memory."""
        result: OperationObject = _decode(self.raw, OperationObject, f"{self.method.upper()} {self.path}")
        return result

    def parameters(self, document: OpenApiDocument) -> list[dict[str, Any]]:
        """Return its parameters, including those of its path that it does not override."""
        of_path = _decode(self.path_defaults[0], list[dict[str, Any]] | None, self.path) or []
        result: dict[tuple[Any, Any], dict[str, Any]] = {}
        for item in (*of_path, *self.decode.parameters):
            parameter = document.resolve(item)
            if isinstance(parameter, dict):
                result[parameter.get("in"), parameter.get("name")] = parameter
        return list(result.values())

    def servers(self, document: OpenApiDocument) -> list[OpenApiServer]:
        of_path = _decode(self.path_defaults[1], list[OpenApiServer] | None, self.path)
        return self.decode.servers or of_path or document.servers


class _OperationSummary(Struct, rename="camel"):
    operation_id: str = ""
    tags: list[str] = field(default_factory=list)


_NULL = Raw(b"null")


def list_operations(document: OpenApiDocument, filter: OperationFilter) -> Iterator[Operation]:
    """Yield the operations that pass the filter, in the order of the document."""
    validate_options("the operations", filter, OperationFilter)
    _validate_methods(filter)
    count = 0
    for path, item in document.paths.items():
        if not _is_safe_path(path):
            log.warning("skipping %r: the path does not stay below the API's base URL", path[:200])
            continue
        for method, raw in _methods(document, item).items():
            count += 1
            if count > MAX_OPERATIONS:
                raise UsageError(f"the document must have at most {MAX_OPERATIONS} operations")
            about = _decode(raw, _OperationSummary, f"{method.upper()} {path}")
            if _matches(method, path, about.tags, filter):
                shared = item.get("parameters", _NULL), item.get("servers", _NULL)
                yield Operation(method, path, raw, shared, about.operation_id, tuple(about.tags))


def _is_safe_path(path: str) -> bool:
    """Return whether a path stays below the base URL of the API: the document may be untrusted."""
    steps = unquote(path).replace("\\", "/").split("/")
    seen = path.isprintable() and " " not in path
    return seen and path.startswith("/") and not path.startswith("//") and not {".", ".."} & set(steps)


def _methods(document: OpenApiDocument, item: dict[str, Raw]) -> dict[str, Raw]:
    if "$ref" in item:
        result = document.resolve({"$ref": _decode(item["$ref"], str, "a path")})
        item = (
            {name: Raw(msgspec.json.encode(member)) for name, member in result.items()}
            if isinstance(result, dict)
            else {}
        )
    return {method: item[method] for method in HTTP_METHODS if method in item}


def _validate_methods(filters: OperationFilter) -> None:
    for method in (*filters.get("methods", ()), *filters.get("exclude_methods", ())):
        if method.lower() not in HTTP_METHODS:
            raise UsageError(f"unknown method {method!r} (expected one of {', '.join(HTTP_METHODS).upper()})")


def _matches(method: str, path: str, tags: Sequence[str], filters: OperationFilter) -> bool:
    def among(values: Sequence[str], patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(value, pattern) for value in values for pattern in patterns)

    for name, values in (("tags", tags), ("paths", (path,)), ("methods", (method,))):
        include: Sequence[str] = filters.get(name, ())  # type: ignore[assignment]
        exclude: Sequence[str] = filters.get(f"exclude_{name}", ())  # type: ignore[assignment]
        if name == "methods":
            include, exclude = [item.lower() for item in include], [item.lower() for item in exclude]
        if (include and not among(values, include)) or among(values, exclude):
            return False
    return True


def assign_names(operations: Sequence[Operation], rename: Mapping[str, str]) -> dict[str, Operation]:
    """Return the operations by tool name: from `rename`, or else from their ids, made unique."""
    keys = {operation.operation_id for operation in operations}
    for key in rename:
        if key not in keys:
            raise UsageError(f"rename contains {key!r}, but no operation has this id")
    short = [rename.get(operation.operation_id) or _short_operation_id(operation) for operation in operations]
    counts = Counter(short)
    names: dict[str, Operation] = {}
    # Names that occur once are reserved first, so that later duplicates cannot take them.
    free = UniqueNames(name for name, count in counts.items() if count == 1)
    for operation, name in zip(operations, short, strict=True):
        if counts[name] > 1:
            name = free.allocate(to_tool_name(operation.operation_id) if operation.operation_id else name)
        names[name] = operation
    return names


class UniqueNames:
    """Allocates unique names. Counters per name avoid quadratic search for many duplicates."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._used_names = set(reserved)
        self._numbers: dict[str, int] = {}

    def allocate(self, name: str) -> str:
        free, number = name, self._numbers.get(name, 1)
        while free in self._used_names:
            number += 1
            free = f"{name[: MAX_TOOL_NAME_CHARS - 1 - len(str(number))]}_{number}"
        self._numbers[name] = number
        self._used_names.add(free)
        return free


def _short_operation_id(operation: Operation) -> str:
    """Return the operation id as a tool name, without the path and method that FastAPI appends to the function name."""
    if not operation.operation_id:
        return to_tool_name(f"{operation.method}_{operation.path}")
    behind = re.sub(r"\W", "_", operation.path) + f"_{operation.method}"
    name = operation.operation_id.removesuffix(behind) if operation.operation_id != behind else operation.operation_id
    return to_tool_name(name)


def to_tool_name(text: str) -> str:
    """Return a text as a name that every model API accepts."""
    name = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_-]", "_", text)).strip("_")
    return name[:MAX_TOOL_NAME_CHARS].rstrip("_") or "operation"


def build_description(operation: OperationObject) -> str:
    parts = [part.strip() for part in (operation.summary, operation.description) if part.strip()]
    if len(parts) == 2 and parts[1].startswith(parts[0].rstrip(".")):
        parts = parts[1:]
    text = "\n\n".join((*(["Deprecated."] if operation.deprecated else []), *parts))
    return truncate(text, MAX_DESCRIPTION_CHARS)


def method_annotations(method: str) -> dict[str, bool]:
    """Return the tool annotations that an HTTP method implies (RFC 9110, section 9.2)."""
    if method in ("get", "head", "options", "trace"):
        return {"readOnlyHint": True, "openWorldHint": True}
    result = {"readOnlyHint": False, "openWorldHint": True}
    if method in ("put", "delete"):
        return {**result, "destructiveHint": True, "idempotentHint": True}
    return {**result, "destructiveHint": True} if method == "patch" else result


def _decode(raw: Raw, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise UsageError(f"cannot decode {where[:200]} of the document: {failure}") from None
