"""One operation as a tool: the schema of its arguments, the request that they come to, the schema of its results."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct, field

from portico.protocol.errors import ToolError, UsageError
from portico.server.providers.openapi.document import ApiDocument
from portico.server.providers.openapi.operations import Operation
from portico.server.providers.openapi.parameter_styles import (
    escape_name,
    escaped,
    in_header,
    in_path,
    in_query,
    written,
)
from portico.server.providers.openapi.request_bodies import RequestBody, body_of, encoded, file_schema
from portico.server.providers.openapi.schemas import Schemas

# How many bytes of `$defs` the arguments and the results of a tool may have; what is beyond is left open.
MOST_INPUT, MOST_OUTPUT = 32 * 1024, 8 * 1024
MOST_PARAMETERS = 1000
# What is raised where a list stands for an object, and the like: a document may say anything anywhere.
_MALFORMED = (TypeError, AttributeError, LookupError, ValueError, RecursionError)

_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
# OpenAPI, Parameter Object: these are described elsewhere, and parameters of these names are ignored.
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
# What a call may not say: they are about the connection, not about the request.
OUR_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "trailer"})
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"\{([^{}]+)\}")


class ApiArgument(Struct, frozen=True):
    """An argument of the tool, and where it goes."""

    name: str
    place: str
    wire: str
    style: str = ""
    explode: bool = False
    reserved: bool = False
    # It is written as JSON, whatever it is.
    json: bool = False


class ApiRequest(Struct):
    """What is sent: the path has its query with it, and both are escaped."""

    method: str
    path: str
    query: list[tuple[str, str]] = field(default_factory=list)
    headers: list[tuple[str, str]] = field(default_factory=list)
    cookies: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    @property
    def target(self) -> str:
        """The path with its query."""
        query = "&".join(f"{name}={value}" for name, value in self.query)
        return f"{self.path}?{query}" if query else self.path

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies)
        return [*self.headers, ("Cookie", cookie)] if cookie else self.headers


class OperationShape(Struct, frozen=True):
    """What is known of an operation when its tool is used."""

    operation: Operation
    arguments: tuple[ApiArgument, ...]
    body: RequestBody | None
    # The arguments that are members of the body, by what they are called there; None: the body is one argument.
    members: dict[str, str] | None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    accept: str

    def request(self, given: dict[str, Any]) -> ApiRequest:
        """The request for these arguments, which fit the schema. Raises ToolError for what cannot be sent."""
        request = ApiRequest(self.operation.method.upper(), self._path(given))
        request.headers.append(("Accept", self.accept))
        for one in self.arguments:
            if one.place not in ("path", "body") and given.get(one.name) is not None:
                _put(request, one, given[one.name])
        self._put_body(request, given)
        return request

    def _path(self, given: dict[str, Any]) -> str:
        by_wire = {one.wire: one for one in self.arguments if one.place == "path"}

        def value(found: re.Match[str]) -> str:
            one = by_wire[found[1]]
            if one.name not in given:
                # Arguments that could not be checked come here too.
                raise ToolError(f"{one.name} is missing.", kind="ValidationError")
            if one.json:
                return in_path(one.wire, written_json(given[one.name]))
            return in_path(one.wire, given[one.name], one.style, one.explode)

        pieces = _VARIABLE.split(self.operation.path)
        if len(pieces) == 1:
            return self.operation.path
        return _VARIABLE.sub(value, self.operation.path)

    def _put_body(self, request: ApiRequest, given: dict[str, Any]) -> None:
        if self.body is None:
            return
        if self.members is None:
            name = next(one.name for one in self.arguments if one.place == "body")
            if name not in given:
                return
            value = given[name]
        else:
            value = {wire: given[name] for name, wire in self.members.items() if name in given}
            if not value and not self.body.required:
                return
        media, request.body = encoded(self.body, value)
        request.headers.append(("Content-Type", media))


def written_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _put(request: ApiRequest, one: ApiArgument, value: Any) -> None:
    if one.place == "query":
        if one.json:
            request.query.append((escape_name(one.wire), escaped(written_json(value), reserved=one.reserved)))
        else:
            request.query += in_query(one.wire, value, one.style, one.explode, one.reserved)
        return
    if one.place == "cookie":
        pairs = (
            [(one.wire, escaped(written_json(value)))] if one.json else in_query(one.wire, value, "form", one.explode)
        )
        request.cookies += pairs
        return
    text = written_json(value) if one.json else in_header(value, one.explode)
    if not text.isascii() or not text.isprintable():
        raise ToolError(f"{one.name} has characters that a header cannot have.", kind="ValidationError")
    request.headers.append((one.wire, text))


class ShapeMaker:
    """Makes the shapes of a document's operations."""

    def __init__(self, document: ApiDocument, *, outputs: bool = True) -> None:
        self._document = document
        self._schemas = Schemas(document)
        self._outputs = outputs

    def make(self, operation: Operation) -> OperationShape:
        """What an operation comes to. Raises UsageError for one that cannot be read."""
        try:
            return self._made(operation)
        except _MALFORMED as failure:
            raise UsageError(f"it is not described as OpenAPI has it ({type(failure).__name__})") from failure

    def _made(self, operation: Operation) -> OperationShape:
        properties: dict[str, Any] = {}
        required: list[str] = []
        arguments: list[ApiArgument] = []
        parameters = operation.parameters(self._document)
        if len(parameters) > MOST_PARAMETERS:
            raise UsageError(f"it has more than {MOST_PARAMETERS} parameters")
        for parameter in parameters:
            made = self._argument(parameter, properties)
            if made is not None:
                one, schema = made
                arguments.append(one)
                properties[one.name] = schema
                if parameter.get("required") is True or one.place == "path":
                    required.append(one.name)
        _check_path(operation, arguments)
        body = body_of(self._document, _plain(operation.what.request_body))
        members = None if body is None else self._flatten(body, properties, required)
        if body is not None and members is None:
            name = _distinct("body", "request", properties)
            arguments.append(ApiArgument(name, "body", ""))
            properties[name] = self._body_schema(body)
            if body.required:
                required.append(name)
        root: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            root["required"] = required
        output, accept = self._output(operation)
        return OperationShape(
            operation,
            tuple(arguments),
            body,
            members,
            self._schemas.gather(root, "in", MOST_INPUT),
            output,
            accept,
        )

    def _argument(self, parameter: dict[str, Any], taken: dict[str, Any]) -> tuple[ApiArgument, dict[str, Any]] | None:
        place, wire = parameter.get("in"), parameter.get("name")
        if not isinstance(place, str) or place not in _STYLES or not isinstance(wire, str) or not wire:
            return None
        if place == "header" and (wire.lower() in _IGNORED_HEADERS | OUR_HEADERS or not TOKEN.fullmatch(wire)):
            return None
        if place == "cookie" and not TOKEN.fullmatch(wire):
            return None
        content = parameter.get("content")
        is_json = isinstance(content, dict) and bool(content)
        said = next(iter(content.values()), None) if isinstance(content, dict) else parameter
        schema = self._schemas.convert(said.get("schema") if isinstance(said, dict) else {}, "in")
        style = parameter.get("style")
        style = style if style in _STYLES[place] else _STYLES[place][0]
        explode = parameter.get("explode")
        for word in ("description", "deprecated"):
            if word in parameter and "$ref" not in schema:
                schema = {**schema, word: parameter[word]}
        if isinstance(told := parameter.get("description"), str) and "$ref" in schema:
            schema = {**schema, "description": told}
        name = _distinct(wire, place, taken)
        exploded = explode if isinstance(explode, bool) else style in ("form", "deepObject")
        reserved = parameter.get("allowReserved") is True
        return ApiArgument(name, place, wire, style, exploded, reserved, is_json), schema

    def _body_schema(self, body: RequestBody) -> dict[str, Any]:
        if body.form == "bytes":
            told = body.description or "The body"
            return {"type": "string", "contentEncoding": "base64", "description": f"{told} (base64)"}
        if body.form == "text":
            return {"type": "string", "description": body.description or "The body, as a text"}
        schema = self._schemas.convert(body.schema, "in")
        if body.files and "properties" not in schema:
            schema = self._schemas.convert(self._document.resolved(body.schema), "in")
        if body.files:
            said = self._document.resolved(body.schema)["properties"]
            files = {name: file_schema(self._document, said[name]) for name in body.files}
            schema = {**schema, "properties": {**schema["properties"], **files}}
        if body.description and "description" not in schema:
            schema = {**schema, "description": body.description}
        return schema

    def _flatten(self, body: RequestBody, properties: dict[str, Any], required: list[str]) -> dict[str, str] | None:
        """Make the members of the body arguments, if none of them is called as another is; otherwise None."""
        said = self._document.resolved(body.schema)
        if body.form not in ("json", "form", "multipart") or not isinstance(said, dict):
            return None
        schema = self._schemas.convert(said, "in")
        members = schema.get("properties")
        needed = schema.get("required", [])
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
        names = {folded_argument(wire): wire for wire in members}
        if len(names) != len(members) or names.keys() & properties.keys() or (needed and not body.required):
            return None
        if not set(needed) <= members.keys():
            return None
        for name, wire in names.items():
            is_file = wire in body.files
            properties[name] = file_schema(self._document, said["properties"][wire]) if is_file else members[wire]
        required += [name for name, wire in names.items() if wire in needed]
        return names

    # Results

    def _output(self, operation: Operation) -> tuple[dict[str, Any] | None, str]:
        """The schema of what comes back when all goes well, and which media types we take."""
        responses = operation.what.responses
        good = {status: one for status, one in responses.items() if re.fullmatch(r"2(\d\d|XX)", status)}
        if not good and "default" in responses and len(responses) == 1:
            good = {"default": responses["default"]}
        schemas: list[dict[str, Any]] = []
        media: list[str] = []
        for raw in good.values():
            said = self._document.resolved(_plain(raw))
            content = said.get("content") if isinstance(said, dict) else None
            content = content if isinstance(content, dict) else {}
            media += [one for one in content if one not in media and _MEDIA.fullmatch(one)]
            as_json = next((one for one in content if _is_json(one)), None)
            if as_json is not None:
                about = content[as_json] if isinstance(content[as_json], dict) else {}
                schema = self._schemas.convert(about.get("schema", {}), "out")
            elif content:
                # What is no JSON is content only, and then nothing can be promised.
                return None, _accept(media)
            else:
                schema = {"type": "null"}
            if schema not in schemas:
                schemas.append(schema)
        if not self._outputs or operation.method == "head" or all(one in ({"type": "null"}, {}) for one in schemas):
            return None, _accept(media)
        root = self._opened(schemas[0]) if len(schemas) == 1 else {"anyOf": schemas}
        return self._schemas.gather(root, "out", MOST_OUTPUT), _accept(media)

    def _opened(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A root that is only a reference to an object, as that object: older clients want to see its type."""
        if "$ref" in schema:
            shared = self._schemas.definition(schema["$ref"].rpartition("/")[2], "out").schema
            if shared.get("type") == "object":
                return shared
        return schema


_MEDIA = re.compile(r"[A-Za-z0-9!#$&^_.+*-]+/[A-Za-z0-9!#$&^_.+*-]+(;[ -~]*)?")


def _accept(media: list[str]) -> str:
    first = sorted(media, key=lambda one: not _is_json(one))[:8]
    return ", ".join((*first, "*/*;q=0.1")) if first else "application/json, */*;q=0.5"


def _is_json(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind in ("application/json", "*/*") or kind.endswith("+json")


def _plain(raw: Any) -> Any:
    return msgspec.json.decode(raw)


def _check_path(operation: Operation, arguments: list[ApiArgument]) -> None:
    known = {one.wire for one in arguments if one.place == "path"}
    for name in _VARIABLE.findall(operation.path):
        if name not in known:
            raise UsageError(f"{operation.method.upper()} {operation.path}: nothing is said of {{{name}}}")


def folded_argument(wire: str) -> str:
    """A name of an argument that every model takes."""
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_.-]", "_", wire))[:LONGEST_ARGUMENT].strip("_") or "argument"


LONGEST_ARGUMENT = 64


def _distinct(wire: str, place: str, taken: dict[str, Any]) -> str:
    name = folded_argument(wire)
    if name in taken:
        name = f"{name[: LONGEST_ARGUMENT - 8]}_{place}"
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


__all__ = ["ApiArgument", "ApiRequest", "OperationShape", "ShapeMaker", "written"]
