"""OpenAPI documents, decoded lazily: parts that no operation uses stay undecoded bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct, field

from portico._lazy import load_module
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
# YAML aliases can expand few bytes to many nodes.
MAX_NODES = 5_000_000
MAX_DEPTH = 300
# Maximum length of a chain of references.
MAX_REF_HOPS = 20


class OpenApiInfo(Struct):
    title: str = ""
    version: str = "0.0.0"
    description: str | None = None


class OpenApiServer(Struct):
    url: str = "/"
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)


class OpenApiDocument(Struct):
    """The parts of a document that operations are built from."""

    openapi: str = ""
    swagger: str = ""
    info: OpenApiInfo = field(default_factory=OpenApiInfo)
    servers: list[OpenApiServer] = field(default_factory=list)
    paths: dict[str, dict[str, Raw]] = field(default_factory=dict)
    components: dict[str, Raw] = field(default_factory=dict)
    security: list[dict[str, list[str]]] = field(default_factory=list)
    # Component sections read so far, by kind; entries are undecoded, by name.
    sections: dict[str, dict[str, Raw]] = field(default_factory=dict)
    # Cached properties of references, by property and reference.
    ref_cache: dict[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def is_3_0(self) -> bool:
        return self.openapi.startswith("3.0")

    def component(self, kind: str, name: str) -> Any:
        """Return a component as plain values, or None if it does not exist."""
        section = self.sections.get(kind)
        if section is None:
            raw = self.components.get(kind)
            section = self.sections[kind] = {} if raw is None else _decode(raw, dict[str, Raw])
        raw = section.get(name)
        return None if raw is None else _decode(raw)

    def resolve_ref(self, ref: str) -> Any:
        """Return the target of a reference within the document. Raises UsageError for missing and external targets."""
        if not ref.startswith("#/"):
            raise UsageError(
                f"the reference {ref[:200]!r} points outside the document: put everything into one document"
            )
        steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in ref[2:].split("/")]
        result: Any = None
        if steps[0] == "components" and len(steps) > 2:
            result, steps = self.component(steps[1], steps[2]), steps[3:]
        elif steps[0] == "paths" and len(steps) > 2:
            raw = self.paths.get(steps[1], {}).get(steps[2])
            result, steps = None if raw is None else _decode(raw), steps[3:]
        for step in steps:
            if isinstance(result, list) and step.isdecimal() and len(step) < 10 and int(step) < len(result):
                result = result[int(step)]
            else:
                result = result.get(step) if isinstance(result, dict) else None
        if result is None:
            raise UsageError(f"cannot resolve the reference {ref[:200]!r}: the document has no such element")
        return result

    def resolve(self, value: Any) -> Any:
        """Return a value, or the target if it is a reference. Raises UsageError for circular references."""
        for _ in range(MAX_REF_HOPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = self.resolve_ref(value["$ref"])
        raise UsageError("circular reference")


def _decode(raw: Raw, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise UsageError(f"cannot decode the document: {failure}") from None


def read_document(spec: Any) -> OpenApiDocument:
    """Read a document from a table, a string, or the path of a JSON or YAML file. Nothing is fetched. Raises
    UsageError.
    """
    data = _read_source(spec)
    try:
        bounded = decode_bounded(data, type=OpenApiDocument)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"invalid OpenAPI document: {mistake}") from None
    except (msgspec.DecodeError, RecursionError) as failure:
        raise UsageError(f"cannot decode the OpenAPI document: {failure}") from None
    if bounded.swagger:
        raise UsageError(f"Swagger {bounded.swagger[:10]} documents are not supported: convert it to OpenAPI 3 first")
    if not bounded.openapi.startswith("3."):
        raise UsageError("invalid OpenAPI document: expected an 'openapi' member with a version 3.x")
    return bounded


def _read_source(spec: Any) -> bytes:
    if isinstance(spec, Mapping):
        return _encode(dict(spec))
    if isinstance(spec, bytes):
        return _parse_text(spec)
    if isinstance(spec, str) and spec.lstrip()[:1] in ("{", "o") and "\n" in spec.strip():
        return _parse_text(spec.encode())
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        return spec.encode()
    if isinstance(spec, str) and spec.lower().startswith(("http://", "https://")):
        raise UsageError("documents are not fetched: save it and pass its path; `url` is the base URL of the API")
    if not isinstance(spec, str | os.PathLike):
        raise UsageError("an OpenAPI document must be a dict, the path of a file, or its text")
    try:
        with Path(spec).open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as failure:
        raise UsageError(f"cannot read {spec}: {getattr(failure, 'strerror', None) or failure}") from None
    return _parse_text(data)


def _parse_text(data: bytes) -> bytes:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UsageError(f"the OpenAPI document must have at most {MAX_DOCUMENT_BYTES} bytes")
    return data if data.lstrip()[:1] == b"{" else _encode(_parse_yaml(data))


def _parse_yaml(data: bytes) -> Any:
    try:
        yaml = load_module("yaml")
    except ImportError:
        raise UsageError("YAML documents require the package pyyaml: install portico[openapi]") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Check the depth first: the loader recurses in C and would overflow the stack.
        if _check_depth(yaml.parse(data, Loader=loader)) > MAX_DEPTH:
            raise UsageError("the OpenAPI document is nested too deeply")
        result = yaml.load(data, Loader=loader)
        nodes = _count_nodes(result, {})
    except (yaml.YAMLError, ValueError, RecursionError) as failure:
        raise UsageError(f"cannot decode the OpenAPI document: {' '.join(str(failure).split())[:300]}") from None
    if nodes > MAX_NODES:
        raise UsageError("the OpenAPI document expands to too many values through its aliases")
    return result


def _check_depth(events: Iterable[Any]) -> int:
    """Return the nesting depth of YAML events, counted until it exceeds the limit."""
    level = deepest = 0
    for event in events:
        kind = type(event).__name__
        level += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        deepest = max(deepest, level)
        if deepest > MAX_DEPTH:
            break
    return deepest


def _count_nodes(value: Any, counts: dict[int, int]) -> int:
    """Return the number of values with aliases expanded; more than the limit for recursive aliases."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counts:
        # While its members are counted, it counts as too large: it may contain itself.
        counts[id(value)] = MAX_NODES + 1
        inner = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_count_nodes(item, counts) for item in inner)
    return counts[id(value)]


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as failure:
        raise UsageError(f"the OpenAPI document must be JSON-serializable: {failure}") from None
