"""Request bodies: selection of a media type, and encoding of arguments."""

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
from portico.server.providers.openapi.document import OpenApiDocument
from portico.server.providers.openapi.parameter_styles import format_value, percent_encode, serialize_query

BodyEncoding = Literal["json", "form", "multipart", "text", "bytes"]

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_FILE_SCHEMA = {"type": "string", "contentEncoding": "base64"}


class RequestBody(Struct, frozen=True):
    """The request body variant of an operation that is sent."""

    body_encoding: BodyEncoding
    media_type: str
    schema: Any
    required: bool
    description: str = ""
    part_encodings: dict[str, Any] = field(default_factory=dict)
    # Properties that are files; their values are base64.
    file_fields: frozenset[str] = frozenset()


def select_request_body(document: OpenApiDocument, request_body: Any) -> RequestBody | None:
    """Return the body of an operation in the encoding that suits models best, or None if it has no body."""
    request_body = document.resolve(request_body)
    content = request_body.get("content") if isinstance(request_body, dict) else None
    if not isinstance(content, dict) or not content:
        return None
    media = min(content, key=lambda name: _preference(name))
    about = content[media] if isinstance(content[media], dict) else {}
    form, schema = _form(media), about.get("schema", {})
    encoding = about.get("encoding")
    return RequestBody(
        form,
        _JSON if media == "*/*" else media,
        schema,
        request_body.get("required") is True,
        _encode_text(request_body.get("description")),
        encoding if isinstance(encoding, dict) else {},
        _file_fields(document, schema) if form == "multipart" else frozenset(),
    )


def _encode_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _form(media: str) -> BodyEncoding:
    kind = media.partition(";")[0].strip().lower()
    if kind in (_JSON, "*/*") or kind.endswith("+json"):
        return "json"
    if kind == _FORM:
        return "form"
    if kind == _MULTIPART:
        return "multipart"
    return "text" if kind.startswith("text/") or kind.endswith("xml") else "bytes"


def _preference(media: str) -> int:
    return {"json": 0, "multipart": 1, "form": 2, "text": 3, "bytes": 4}[_form(media)]


def _is_file(document: OpenApiDocument, schema: Any, level: int = 0) -> bool:
    """Return whether a schema describes a file. Raises UsageError if its references form too long a chain."""
    if level > MAX_JSON_DEPTH:
        raise UsageError(f"a schema must not refer to others through more than {MAX_JSON_DEPTH} levels")
    if not isinstance(schema, dict):
        return False
    ref = schema.get("$ref")
    if isinstance(ref, str):
        if ("file", ref) not in document.ref_cache:
            # Assume False while it is evaluated: the schema may refer to itself.
            document.ref_cache["file", ref] = False
            document.ref_cache["file", ref] = _is_file(document, document.resolve_ref(ref), level + 1)
        return document.ref_cache["file", ref]
    if schema.get("type") == "array":
        return _is_file(document, schema.get("items"), level + 1)
    if schema.get("type") not in ("string", None):
        return False
    # FastAPI describes an optional file as anyOf a file and null.
    several = [item for word in ("anyOf", "oneOf") for item in schema.get(word, ()) if item != {"type": "null"}]
    if several:
        return all(_is_file(document, item, level + 1) for item in several)
    return schema.get("format") == "binary" or bool({"contentMediaType", "contentEncoding"} & schema.keys())


def _file_fields(document: OpenApiDocument, schema: Any) -> frozenset[str]:
    schema = document.resolve(schema)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return frozenset()
    return frozenset(name for name, property_schema in properties.items() if _is_file(document, property_schema))


def file_schema(document: OpenApiDocument, schema: Any) -> dict[str, Any]:
    """Return the schema that describes a file to a model: base64, or an array of it."""
    result = document.resolve(schema)
    description = {"description": f"{_encode_text(result.get('description')).strip()} (base64)".strip()}
    if result.get("type") == "array":
        return {**description, "type": "array", "items": _FILE_SCHEMA}
    return {**_FILE_SCHEMA, **description}


def encode_body(body: RequestBody, value: Any) -> tuple[str, bytes]:
    """Return the media type and the bytes of a body. Raises ToolError for a value that cannot be encoded."""
    if body.body_encoding == "json":
        return body.media_type, msgspec.json.encode(value)
    if body.body_encoding == "text":
        return body.media_type, format_value(value).encode()
    if body.body_encoding == "bytes":
        media = "application/octet-stream" if "*" in body.media_type else body.media_type
        return media, decode_base64("body", value)
    if not isinstance(value, Mapping):
        raise ToolError("The body must be an object.", error_type="ValidationError")
    if body.body_encoding == "form":
        return body.media_type, _encode_form(body, value)
    return _encode_multipart(body, value)


def _encode_form(body: RequestBody, value: Mapping[str, Any]) -> bytes:
    pairs: list[tuple[str, str]] = []
    for name, field_value in value.items():
        # OpenAPI 3.1, Encoding Object: "style", "explode" and "allowReserved" apply to form bodies;
        # their presence selects RFC 6570 serialization.
        how = body.part_encodings.get(name)
        how = how if isinstance(how, dict) else {}
        if not {"style", "explode", "allowReserved"} & how.keys():
            # Without a style, objects are written as JSON, and each array item as a separate pair.
            items = field_value if isinstance(field_value, list) else [field_value]
            pairs += [(percent_encode(name), percent_encode(format_value(item))) for item in items]
            continue
        style = how.get("style", "form")
        explode = how.get("explode", style == "form")
        pairs += serialize_query(name, field_value, style, explode is True, how.get("allowReserved") is True)
    return "&".join(f"{name}={field_value}" for name, field_value in pairs).encode()


def decode_base64(name: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ToolError(f"{name} must be base64, because it is a file.", error_type="ValidationError") from None


def _encode_multipart(body: RequestBody, value: Mapping[str, Any]) -> tuple[str, bytes]:
    # Random: a value that contains the boundary could otherwise add parts to the body.
    boundary = secrets.token_hex(16)
    parts: list[bytes] = []
    for name, field_value in value.items():
        many = (
            field_value
            if isinstance(field_value, list) and (name in body.file_fields or not _is_json(body, name))
            else [field_value]
        )
        parts += [_encode_part(body, name, item, boundary) for item in many]
    return f"{_MULTIPART}; boundary={boundary}", b"".join((*parts, f"--{boundary}--\r\n".encode()))


def _is_json(body: RequestBody, name: str) -> bool:
    how = body.part_encodings.get(name)
    return isinstance(how, dict) and "json" in _encode_text(how.get("contentType"))


def _encode_part(body: RequestBody, name: str, value: Any, boundary: str) -> bytes:
    how = body.part_encodings.get(name)
    media = _encode_text(how.get("contentType")).partition(",")[0].strip() if isinstance(how, dict) else ""
    # The document may come from the API's vendor. A media type with line breaks would inject
    # headers.
    media = "" if "*" in media or not media.isascii() or not media.isprintable() else media
    # Escape line breaks and quotes: a name must not add headers to the part.
    escaped_name = "".join({"\r": "%0D", "\n": "%0A", '"': "%22"}.get(char, char) for char in name)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{escaped_name}"'
    if name in body.file_fields:
        data = decode_base64(name, value)
        head += f'; filename="{escaped_name}"\r\nContent-Type: {media or "application/octet-stream"}'
    else:
        data = format_value(value).encode()
        kind = media or (_JSON if isinstance(value, dict | list) else "")
        head += f"\r\nContent-Type: {kind}" if kind else ""
    return b"%b\r\n\r\n%b\r\n" % (head.encode(), data)
