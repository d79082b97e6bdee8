"""Binding of an operation to a tool: the schemas of its arguments and results, and the request for a call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct, field

from portico.protocol.errors import ToolError, UsageError
from portico.protocol.header_params import TOKEN_PATTERN
from portico.server.providers.openapi.document import OpenApiDocument
from portico.server.providers.openapi.operations import Operation
from portico.server.providers.openapi.parameter_styles import (
    format_value,
    percent_encode,
    percent_encode_name,
    serialize_header,
    serialize_path,
    serialize_query,
)
from portico.server.providers.openapi.request_bodies import RequestBody, encode_body, file_schema, select_request_body
from portico.server.providers.openapi.schemas import SchemaConverter

# Maximum size of `$defs` in input and output schemas; definitions beyond it accept any value of their type.
MAX_INPUT_DEFS_BYTES, MAX_OUTPUT_DEFS_BYTES = 32 * 1024, 8 * 1024
MAX_PARAMETERS = 1000
# Raised where a document has, for example, a list instead of an object: any member may have any type.
_MALFORMED_ERRORS = (TypeError, AttributeError, LookupError, ValueError, RecursionError)

_STYLES_BY_LOCATION = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
# Parameters of these names are ignored, because they are described elsewhere (OpenAPI, Parameter Object).
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
# Headers that a call must not set: they describe the connection, not the request.
CONNECTION_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "trailer"}
)
HEADER_NAME = re.compile(TOKEN_PATTERN)
_VARIABLE = re.compile(r"\{([^{}]+)\}")


class ArgumentBinding(Struct, frozen=True):
    """An argument of the tool, and its location in the request."""

    name: str
    location: str
    parameter_name: str
    style: str = ""
    explode: bool = False
    allow_reserved: bool = False
    # Whether the value is always written as JSON.
    is_json: bool = False


class ApiRequest(Struct):
    """A request to the API. The path and the query are already percent-encoded."""

    method: str
    path: str
    query: list[tuple[str, str]] = field(default_factory=list)
    headers: list[tuple[str, str]] = field(default_factory=list)
    cookies: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    @property
    def path_and_query(self) -> str:
        """Return the path with its query."""
        query = "&".join(f"{name}={value}" for name, value in self.query)
        return f"{self.path}?{query}" if query else self.path

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies)
        return [*self.headers, ("Cookie", cookie)] if cookie else self.headers


class PathTemplates:
    """The paths of a document, to detect a request that would address another one."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = paths

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        # Built with the first value that contains a slash, which is rare.
        return [(path, re.compile(self._to_pattern(path))) for path in self._paths]

    def _to_pattern(self, path: str) -> str:
        literals = _VARIABLE.split(_normalize_path(unquote(path)))[::2]
        return "[^/]+".join(map(re.escape, literals))

    def is_other(self, own: str, path: str) -> bool:
        """Return whether another template matches a path once it is decoded."""
        decoded = _normalize_path(unquote(path))
        return any(other != own and pattern.fullmatch(decoded) for other, pattern in self._patterns)


def _normalize_path(path: str) -> str:
    """Return a path in the form in which lenient servers look up routes."""
    return re.sub(r"[/\\]+", "/", path).rstrip("/").lower()


class OperationBinding(Struct, frozen=True):
    """Binding of one operation, as used when its tool is called."""

    operation: Operation
    arguments: tuple[ArgumentBinding, ...]
    body: RequestBody | None
    # Arguments that are members of the body, by argument name; None: the body is one argument.
    body_arguments: dict[str, str] | None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    accept: str
    templates: PathTemplates

    def build_request(self, arguments: dict[str, Any]) -> ApiRequest:
        """Return the request for arguments that fit the schema. Raises ToolError for values that cannot be sent."""
        request = ApiRequest(self.operation.method.upper(), self._build_path(arguments))
        request.headers.append(("Accept", self.accept))
        for argument in self.arguments:
            if argument.location not in ("path", "body") and arguments.get(argument.name) is not None:
                _set_argument(request, argument, arguments[argument.name])
        self._set_body(request, arguments)
        return request

    def _build_path(self, arguments: dict[str, Any]) -> str:
        by_wire = {argument.parameter_name: argument for argument in self.arguments if argument.location == "path"}

        def value(match: re.Match[str]) -> str:
            argument = by_wire[match[1]]
            if argument.name not in arguments:
                # Reached when the arguments could not be validated against the schema.
                raise ToolError(f"{argument.name} is missing.", error_type="ValidationError")
            if argument.is_json:
                return serialize_path(argument.parameter_name, encode_json_argument(arguments[argument.name]))
            return serialize_path(argument.parameter_name, arguments[argument.name], argument.style, argument.explode)

        pieces = _VARIABLE.split(self.operation.path)
        if len(pieces) == 1:
            return self.operation.path
        path = _VARIABLE.sub(value, self.operation.path)
        # Most servers decode the path before they look up its route, so that a slash in a value leads elsewhere.
        if ("%2F" in path or "%5C" in path) and self.templates.is_other(self.operation.path, path):
            # It is not named: the caller may not know it.
            raise ToolError(
                "The slashes in the path arguments lead to another operation.", error_type="ValidationError"
            )
        return path

    def _set_body(self, request: ApiRequest, arguments: dict[str, Any]) -> None:
        if self.body is None:
            return
        if self.body_arguments is None:
            name = next(argument.name for argument in self.arguments if argument.location == "body")
            if name not in arguments:
                return
            value = arguments[name]
        else:
            value = {wire: arguments[name] for name, wire in self.body_arguments.items() if name in arguments}
            if not value and not self.body.required:
                return
        media, request.body = encode_body(self.body, value)
        request.headers.append(("Content-Type", media))


def encode_json_argument(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _set_argument(request: ApiRequest, item: ArgumentBinding, value: Any) -> None:
    if item.location == "query":
        if item.is_json:
            request.query.append(
                (
                    percent_encode_name(item.parameter_name),
                    percent_encode(encode_json_argument(value), reserved=item.allow_reserved),
                )
            )
        else:
            request.query += serialize_query(item.parameter_name, value, item.style, item.explode, item.allow_reserved)
        return
    if item.location == "cookie":
        pairs = (
            [(item.parameter_name, percent_encode(encode_json_argument(value)))]
            if item.is_json
            else serialize_query(item.parameter_name, value, "form", item.explode)
        )
        request.cookies += pairs
        return
    text = encode_json_argument(value) if item.is_json else serialize_header(value, item.explode)
    if not text.isascii() or not text.isprintable():
        raise ToolError(
            (f"{item.name} contains characters that are not allowed in a header."), error_type="ValidationError"
        )
    request.headers.append((item.parameter_name, text))


class BindingBuilder:
    """Builds the bindings of a document's operations."""

    def __init__(self, document: OpenApiDocument, *, validate_output: bool = True) -> None:
        self._document = document
        self._schemas = SchemaConverter(document)
        self._templates = PathTemplates(document.paths)
        self._outputs = validate_output

    def build(self, operation: Operation) -> OperationBinding:
        """Return the binding of an operation. Raises UsageError if its description is malformed."""
        try:
            return self._build(operation)
        except _MALFORMED_ERRORS as failure:
            raise UsageError(f"its description is not valid OpenAPI ({type(failure).__name__})") from failure

    def _build(self, operation: Operation) -> OperationBinding:
        properties: dict[str, Any] = {}
        required: list[str] = []
        arguments: list[ArgumentBinding] = []
        parameters = operation.parameters(self._document)
        if len(parameters) > MAX_PARAMETERS:
            raise UsageError(f"it must have at most {MAX_PARAMETERS} parameters")
        for parameter in parameters:
            made = self._build_argument(parameter, properties)
            if made is not None:
                argument, schema = made
                arguments.append(argument)
                properties[argument.name] = schema
                if parameter.get("required") is True or argument.location == "path":
                    required.append(argument.name)
        _validate_path(operation, arguments)
        body = select_request_body(self._document, _decode(operation.decode.request_body))
        members = None if body is None else self._flatten_body(body, properties, required)
        if body is not None and members is None:
            name = _unique_name("body", "request", properties)
            arguments.append(ArgumentBinding(name, "body", ""))
            properties[name] = self._body_schema(body)
            if body.required:
                required.append(name)
        root: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            root["required"] = required
        output, accept = self._output_schema(operation)
        return OperationBinding(
            operation,
            tuple(arguments),
            body,
            members,
            self._schemas.with_definitions(root, "in", MAX_INPUT_DEFS_BYTES),
            output,
            accept,
            self._templates,
        )

    def _build_argument(
        self, parameter: dict[str, Any], used_names: dict[str, Any]
    ) -> tuple[ArgumentBinding, dict[str, Any]] | None:
        location, wire = parameter.get("in"), parameter.get("name")
        if (
            not isinstance(location, str)
            or location not in _STYLES_BY_LOCATION
            or not isinstance(wire, str)
            or not wire
        ):
            return None
        if location == "header" and (
            wire.lower() in _IGNORED_HEADERS | CONNECTION_HEADERS or not HEADER_NAME.fullmatch(wire)
        ):
            return None
        if location == "cookie" and not HEADER_NAME.fullmatch(wire):
            return None
        content = parameter.get("content")
        is_json = isinstance(content, dict) and bool(content)
        schema_holder = next(iter(content.values()), None) if isinstance(content, dict) else parameter
        schema = self._schemas.convert(schema_holder.get("schema") if isinstance(schema_holder, dict) else {}, "in")
        style = parameter.get("style")
        style = style if style in _STYLES_BY_LOCATION[location] else _STYLES_BY_LOCATION[location][0]
        explode = parameter.get("explode")
        for word in ("description", "deprecated"):
            if word in parameter and "$ref" not in schema:
                schema = {**schema, word: parameter[word]}
        if isinstance(description := parameter.get("description"), str) and "$ref" in schema:
            schema = {**schema, "description": description}
        name = _unique_name(wire, location, used_names)
        exploded = explode if isinstance(explode, bool) else style in ("form", "deepObject")
        reserved = parameter.get("allowReserved") is True
        return ArgumentBinding(name, location, wire, style, exploded, reserved, is_json), schema

    def _body_schema(self, body: RequestBody) -> dict[str, Any]:
        if body.body_encoding == "bytes":
            description = body.description or "The body"
            return {"type": "string", "contentEncoding": "base64", "description": f"{description} (base64)"}
        if body.body_encoding == "text":
            return {"type": "string", "description": body.description or "The body, as a text"}
        schema = self._schemas.convert(body.schema, "in")
        if body.file_fields and "properties" not in schema:
            schema = self._schemas.convert(self._document.resolve(body.schema), "in")
        if body.file_fields:
            body_properties = self._document.resolve(body.schema)["properties"]
            files = {name: file_schema(self._document, body_properties[name]) for name in body.file_fields}
            schema = {**schema, "properties": {**schema["properties"], **files}}
        if body.description and "description" not in schema:
            schema = {**schema, "description": body.description}
        return schema

    def _flatten_body(
        self, body: RequestBody, properties: dict[str, Any], required: list[str]
    ) -> dict[str, str] | None:
        """Turn the members of the body into arguments, and return their names. Returns None if that is ambiguous."""
        body_schema = self._document.resolve(body.schema)
        if body.body_encoding not in ("json", "form", "multipart") or not isinstance(body_schema, dict):
            return None
        schema = self._schemas.convert(body_schema, "in")
        members = schema.get("properties")
        needed = schema.get("required", [])
        # Keywords such as oneOf constrain the body as a whole, which separate arguments could not express.
        shut = set(schema) - {
            "type",
            "properties",
            "required",
            "additionalProperties",
            "title",
            "description",
            "examples",
        }
        open_ended = schema.get("additionalProperties", False) is not False
        if (
            not members
            or shut
            or open_ended
            or schema.get("type", "object") != "object"
            or not isinstance(needed, list)
        ):
            return None
        names = {to_argument_name(wire): wire for wire in members}
        if len(names) != len(members) or names.keys() & properties.keys() or (needed and not body.required):
            return None
        if not set(needed) <= members.keys():
            return None
        for name, wire in names.items():
            is_file = wire in body.file_fields
            properties[name] = (
                file_schema(self._document, body_schema["properties"][wire]) if is_file else members[wire]
            )
        required += [name for name, wire in names.items() if wire in needed]
        return names

    # Results

    def _output_schema(self, operation: Operation) -> tuple[dict[str, Any] | None, str]:
        """Return the schema of successful responses, and the Accept header."""
        responses = operation.decode.responses
        good = {status: item for status, item in responses.items() if re.fullmatch(r"2(\d\d|XX)", status)}
        if not good and "default" in responses and len(responses) == 1:
            good = {"default": responses["default"]}
        schemas: list[dict[str, Any]] = []
        media: list[str] = []
        for raw in good.values():
            resolved = self._document.resolve(_decode(raw))
            content = resolved.get("content") if isinstance(resolved, dict) else None
            content = content if isinstance(content, dict) else {}
            media += [item for item in content if item not in media and _MEDIA_TYPE.fullmatch(item)]
            as_json = next((item for item in content if _is_json(item)), None)
            if as_json is not None:
                about = content[as_json] if isinstance(content[as_json], dict) else {}
                schema = self._schemas.convert(about.get("schema", {}), "out")
            elif content:
                # A response other than JSON is returned as content, so there is no structured output to describe.
                return None, _accept_header(media)
            else:
                schema = {"type": "null"}
            if schema not in schemas:
                schemas.append(schema)
        if not self._outputs or operation.method == "head" or all(item in ({"type": "null"}, {}) for item in schemas):
            return None, _accept_header(media)
        root = self._inline_root_ref(schemas[0]) if len(schemas) == 1 else {"anyOf": schemas}
        return self._schemas.with_definitions(root, "out", MAX_OUTPUT_DEFS_BYTES), _accept_header(media)

    def _inline_root_ref(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Replace a root that only refers to an object by that object: older clients expect `type` at the root."""
        if "$ref" in schema:
            shared = self._schemas.definition(schema["$ref"].rpartition("/")[2], "out").schema
            if shared.get("type") == "object":
                return shared
        return schema


_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+*-]+/[A-Za-z0-9!#$&^_.+*-]+(;[ -~]*)?")


def _accept_header(media: list[str]) -> str:
    first = sorted(media, key=lambda media_type: not _is_json(media_type))[:8]
    return ", ".join((*first, "*/*;q=0.1")) if first else "application/json, */*;q=0.5"


def _is_json(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind in ("application/json", "*/*") or kind.endswith("+json")


def _decode(raw: Any) -> Any:
    return msgspec.json.decode(raw)


def _validate_path(operation: Operation, arguments: list[ArgumentBinding]) -> None:
    path_names = {argument.parameter_name for argument in arguments if argument.location == "path"}
    for name in _VARIABLE.findall(operation.path):
        if name not in path_names:
            raise UsageError(f"{operation.method.upper()} {operation.path}: the parameter {{{name}}} is not described")


def to_argument_name(wire: str) -> str:
    """Return an argument name that every model API accepts."""
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_.-]", "_", wire))[:MAX_ARGUMENT_NAME_CHARS].strip("_") or "argument"


MAX_ARGUMENT_NAME_CHARS = 64


def _unique_name(wire: str, location: str, used_names: dict[str, Any]) -> str:
    name = to_argument_name(wire)
    if name in used_names:
        name = f"{name[: MAX_ARGUMENT_NAME_CHARS - 8]}_{location}"
    number, free = 1, name
    while free in used_names:
        number += 1
        free = f"{name}_{number}"
    return free


__all__ = ["ApiRequest", "ArgumentBinding", "BindingBuilder", "OperationBinding", "format_value"]
