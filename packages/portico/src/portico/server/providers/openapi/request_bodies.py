"""The bodies of requests: what of the arguments goes into one, and how it is written."""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from portico.protocol.errors import ToolError, UsageError
from portico.protocol.json_depth import MAX_JSON_DEPTH
from portico.server.providers.openapi.document import ApiDocument
from portico.server.providers.openapi.parameter_styles import escaped, in_query, written

BodyForm = Literal["json", "form", "multipart", "text", "bytes"]

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_FILE = {"type": "string", "contentEncoding": "base64"}


class RequestBody(Struct, frozen=True):
    """The one of the bodies that an operation takes which we send."""

    form: BodyForm
    media: str
    schema: Any
    required: bool
    description: str = ""
    encoding: dict[str, Any] = field(default_factory=dict)
    # The properties that are files: their values are base64.
    files: frozenset[str] = frozenset()


def body_of(document: ApiDocument, said: Any) -> RequestBody | None:
    """The body that an operation takes, in the form that suits a model best; None: it takes none."""
    said = document.resolved(said)
    content = said.get("content") if isinstance(said, dict) else None
    if not isinstance(content, dict) or not content:
        return None
    media = min(content, key=lambda name: _rank(name))
    about = content[media] if isinstance(content[media], dict) else {}
    form, schema = _form(media), about.get("schema", {})
    encoding = about.get("encoding")
    return RequestBody(
        form,
        _JSON if media == "*/*" else media,
        schema,
        said.get("required") is True,
        _text(said.get("description")),
        encoding if isinstance(encoding, dict) else {},
        _files(document, schema) if form == "multipart" else frozenset(),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _form(media: str) -> BodyForm:
    kind = media.partition(";")[0].strip().lower()
    if kind in (_JSON, "*/*") or kind.endswith("+json"):
        return "json"
    if kind == _FORM:
        return "form"
    if kind == _MULTIPART:
        return "multipart"
    return "text" if kind.startswith("text/") or kind.endswith("xml") else "bytes"


def _rank(media: str) -> int:
    return {"json": 0, "multipart": 1, "form": 2, "text": 3, "bytes": 4}[_form(media)]


def _is_file(document: ApiDocument, schema: Any, level: int = 0) -> bool:
    """Return whether a schema describes a file. Raises UsageError if its references form too long a chain."""
    if level > MAX_JSON_DEPTH:
        raise UsageError(f"a schema refers to others through more than {MAX_JSON_DEPTH} levels")
    if not isinstance(schema, dict):
        return False
    ref = schema.get("$ref")
    if isinstance(ref, str):
        if ("file", ref) not in document.known:
            # While it is looked at, it is none: it may be part of itself.
            document.known["file", ref] = False
            document.known["file", ref] = _is_file(document, document.find(ref), level + 1)
        return document.known["file", ref]
    if schema.get("type") == "array":
        return _is_file(document, schema.get("items"), level + 1)
    if schema.get("type") not in ("string", None):
        # A file that may be left out, as FastAPI has it.
        return False
    several = [one for word in ("anyOf", "oneOf") for one in schema.get(word, ()) if one != {"type": "null"}]
    if several:
        return all(_is_file(document, one, level + 1) for one in several)
    return schema.get("format") == "binary" or bool({"contentMediaType", "contentEncoding"} & schema.keys())


def _files(document: ApiDocument, schema: Any) -> frozenset[str]:
    schema = document.resolved(schema)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return frozenset()
    return frozenset(name for name, one in properties.items() if _is_file(document, one))


def file_schema(document: ApiDocument, schema: Any) -> dict[str, Any]:
    """How a file is described to a model: as base64, or as several of it."""
    found = document.resolved(schema)
    told = {"description": f"{_text(found.get('description')).strip()} (base64)".strip()}
    if found.get("type") == "array":
        return {**told, "type": "array", "items": _FILE}
    return {**_FILE, **told}


def encoded(body: RequestBody, value: Any) -> tuple[str, bytes]:
    """The media type of a body, and its bytes. Raises ToolError for what cannot be one."""
    if body.form == "json":
        return body.media, msgspec.json.encode(value)
    if body.form == "text":
        return body.media, written(value).encode()
    if body.form == "bytes":
        media = "application/octet-stream" if "*" in body.media else body.media
        return media, from_base64("body", value)
    if not isinstance(value, Mapping):
        raise ToolError("The body is an object.", kind="ValidationError")
    if body.form == "form":
        return body.media, _form_encoded(body, value)
    return _multipart(body, value)


def _form_encoded(body: RequestBody, value: Mapping[str, Any]) -> bytes:
    pairs: list[tuple[str, str]] = []
    for name, one in value.items():
        how = body.encoding.get(name)
        how = how if isinstance(how, dict) else {}
        if not {"style", "explode", "allowReserved"} & how.keys():
            # Without a style, what has members is JSON, and each item of an array is a pair of its own.
            items = one if isinstance(one, list) else [one]
            pairs += [(escaped(name), escaped(written(item))) for item in items]
            continue
        style = how.get("style", "form")
        explode = how.get("explode", style == "form")
        pairs += in_query(name, one, style, explode is True, how.get("allowReserved") is True)
    return "&".join(f"{name}={one}" for name, one in pairs).encode()


def from_base64(name: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ToolError(f"{name} is not base64, in which files are given.", kind="ValidationError") from None


def _multipart(body: RequestBody, value: Mapping[str, Any]) -> tuple[str, bytes]:
    boundary = secrets.token_hex(16)
    parts: list[bytes] = []
    for name, one in value.items():
        many = one if isinstance(one, list) and (name in body.files or not _is_json(body, name)) else [one]
        parts += [_part(body, name, item, boundary) for item in many]
    return f"{_MULTIPART}; boundary={boundary}", b"".join((*parts, f"--{boundary}--\r\n".encode()))


def _is_json(body: RequestBody, name: str) -> bool:
    how = body.encoding.get(name)
    return isinstance(how, dict) and "json" in _text(how.get("contentType"))


def _part(body: RequestBody, name: str, value: Any, boundary: str) -> bytes:
    how = body.encoding.get(name)
    media = _text(how.get("contentType")).partition(",")[0].strip() if isinstance(how, dict) else ""
    media = "" if "*" in media or not media.isascii() or not media.isprintable() else media
    shown = "".join({"\r": "%0D", "\n": "%0A", '"': "%22"}.get(char, char) for char in name)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{shown}"'
    if name in body.files:
        data = from_base64(name, value)
        head += f'; filename="{shown}"\r\nContent-Type: {media or "application/octet-stream"}'
    else:
        data = written(value).encode()
        kind = media or (_JSON if isinstance(value, dict | list) else "")
        head += f"\r\nContent-Type: {kind}" if kind else ""
    return b"%b\r\n\r\n%b\r\n" % (head.encode(), data)
