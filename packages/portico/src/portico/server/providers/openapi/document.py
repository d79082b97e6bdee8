"""An OpenAPI document: read without being unfolded. What no operation is asked about stays the bytes that it was."""

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

LONGEST_DOCUMENT = 64 * 1024 * 1024
# Aliases in YAML can say much with few bytes.
MOST_NODES = 5_000_000
MOST_LEVELS = 300
# References to references.
MOST_HOPS = 20


class ApiInfo(Struct):
    title: str = ""
    version: str = "0.0.0"
    description: str | None = None


class ApiServer(Struct):
    url: str = "/"
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)


class ApiDocument(Struct):
    """The parts of a document that operations are made of."""

    openapi: str = ""
    swagger: str = ""
    info: ApiInfo = field(default_factory=ApiInfo)
    servers: list[ApiServer] = field(default_factory=list)
    paths: dict[str, dict[str, Raw]] = field(default_factory=dict)
    components: dict[str, Raw] = field(default_factory=dict)
    security: list[dict[str, list[str]]] = field(default_factory=list)
    # The components that were looked at, by kind: still undecoded, by name.
    sections: dict[str, dict[str, Raw]] = field(default_factory=dict)
    # What was found out about a reference that many may have, by the question and the reference.
    known: dict[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def is_3_0(self) -> bool:
        return self.openapi.startswith("3.0")

    def component(self, kind: str, name: str) -> Any:
        """A component as plain values; None if there is none of this name."""
        section = self.sections.get(kind)
        if section is None:
            raw = self.components.get(kind)
            section = self.sections[kind] = {} if raw is None else _decoded(raw, dict[str, Raw])
        raw = section.get(name)
        return None if raw is None else _decoded(raw)

    def find(self, ref: str) -> Any:
        """What a reference within the document leads to. Raises UsageError: it leads nowhere, or outside."""
        if not ref.startswith("#/"):
            raise UsageError(f"the reference {ref[:200]!r} leads out of the document: put everything into one document")
        steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in ref[2:].split("/")]
        found: Any = None
        if steps[0] == "components" and len(steps) > 2:
            found, steps = self.component(steps[1], steps[2]), steps[3:]
        elif steps[0] == "paths" and len(steps) > 2:
            raw = self.paths.get(steps[1], {}).get(steps[2])
            found, steps = None if raw is None else _decoded(raw), steps[3:]
        for step in steps:
            if isinstance(found, list) and step.isdecimal() and len(step) < 10 and int(step) < len(found):
                found = found[int(step)]
            else:
                found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            raise UsageError(f"the reference {ref[:200]!r} leads nowhere")
        return found

    def resolved(self, value: Any) -> Any:
        """A value, or what it refers to."""
        for _ in range(MOST_HOPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = self.find(value["$ref"])
        raise UsageError("a reference leads in circles")


def _decoded(raw: Raw, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise UsageError(f"the document cannot be read: {failure}") from None


def read_document(spec: Any) -> ApiDocument:
    """A document that is given as a table, as its text, or as the path of a JSON or YAML file. Nothing is fetched."""
    data = _bytes_of(spec)
    try:
        found = decode_bounded(data, type=ApiDocument)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"this is no OpenAPI document: {mistake}") from None
    except (msgspec.DecodeError, RecursionError) as failure:
        raise UsageError(f"the OpenAPI document cannot be read: {failure}") from None
    if found.swagger:
        raise UsageError(f"this is a Swagger {found.swagger[:10]} document: convert it to OpenAPI 3 first")
    if not found.openapi.startswith("3."):
        raise UsageError("this is no OpenAPI 3 document: it does not say which version it is of")
    return found


def _bytes_of(spec: Any) -> bytes:
    if isinstance(spec, Mapping):
        return _encoded(dict(spec))
    if isinstance(spec, bytes):
        return _from_text(spec)
    if isinstance(spec, str) and spec.lstrip()[:1] in ("{", "o") and "\n" in spec.strip():
        return _from_text(spec.encode())
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        return spec.encode()
    if isinstance(spec, str) and spec.lower().startswith(("http://", "https://")):
        raise UsageError("a document is not fetched: save it, and give its path; `url` says where the API is")
    if not isinstance(spec, str | os.PathLike):
        raise UsageError("an OpenAPI document is a dict, the path of a file, or its text")
    try:
        with Path(spec).open("rb") as file:
            data = file.read(LONGEST_DOCUMENT + 1)
    except (OSError, ValueError) as failure:
        raise UsageError(f"{spec} cannot be read: {getattr(failure, 'strerror', None) or failure}") from None
    return _from_text(data)


def _from_text(data: bytes) -> bytes:
    if len(data) > LONGEST_DOCUMENT:
        raise UsageError(f"the OpenAPI document is longer than {LONGEST_DOCUMENT} bytes")
    return data if data.lstrip()[:1] == b"{" else _encoded(_from_yaml(data))


def _from_yaml(data: bytes) -> Any:
    try:
        yaml = load_module("yaml")
    except ImportError:
        raise UsageError("a document in YAML needs the package pyyaml: install portico[openapi]") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # The loader calls itself for each level, in C, until there is no stack left.
        if _levels(yaml.parse(data, Loader=loader)) > MOST_LEVELS:
            raise UsageError("the OpenAPI document has too many levels")
        found = yaml.load(data, Loader=loader)
        nodes = _nodes(found, {})
    except (yaml.YAMLError, ValueError, RecursionError) as failure:
        raise UsageError(f"the OpenAPI document cannot be read: {' '.join(str(failure).split())[:300]}") from None
    if nodes > MOST_NODES:
        raise UsageError("the OpenAPI document says too much with its aliases")
    return found


def _levels(events: Iterable[Any]) -> int:
    """How deep a text in YAML goes, as far as that is allowed."""
    level = deepest = 0
    for event in events:
        kind = type(event).__name__
        level += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        deepest = max(deepest, level)
        if deepest > MOST_LEVELS:
            break
    return deepest


def _nodes(value: Any, known: dict[int, int]) -> int:
    """How many values there are, one that is named several times as often as that; without end: more than allowed."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        # While it is counted, it counts as too much: it would be part of itself.
        known[id(value)] = MOST_NODES + 1
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_nodes(one, known) for one in inner)
    return known[id(value)]


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as failure:
        raise UsageError(f"the OpenAPI document has something that JSON has not: {failure}") from None
