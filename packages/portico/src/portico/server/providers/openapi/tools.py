"""Tools from an OpenAPI document: one per operation; a call sends a request."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from portico._options import validate_options
from portico.jsonschema import validation
from portico.protocol import translation
from portico.protocol.content import AudioContent, EmbeddedResource, ImageContent, TextContent
from portico.protocol.errors import ConnectError, ProtocolError, ToolError, TransportError, UsageError
from portico.protocol.json_depth import decode_bounded
from portico.protocol.tools import CallToolResult, Tool as Definition, ToolAnnotations
from portico.rpc.error_ids import log_failure
from portico.server.components.results import to_resource_contents
from portico.server.components.runner import FunctionRunner
from portico.server.components.schema_signature import OutputSchemaValidator
from portico.server.components.tools import Tool, validate_tool_name
from portico.server.components.validation import build_meta
from portico.server.context.context import Context
from portico.server.providers.openapi.base_url import is_absolute_url, parse_origin, resolve_base_url
from portico.server.providers.openapi.binding import BindingBuilder, OperationBinding
from portico.server.providers.openapi.credentials import SecuritySchemes
from portico.server.providers.openapi.document import OpenApiDocument, read_document
from portico.server.providers.openapi.operations import (
    Operation,
    OperationFilter,
    assign_names,
    build_description,
    list_operations,
    method_annotations,
)
from portico.server.providers.openapi.route_maps import becomes_tool
from portico.server.providers.openapi.transports import (
    ApiResponse,
    ApiTransport,
    AsgiApiTransport,
    ClientApiTransport,
    HttpApiTransport,
)

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico.openapi")

# A result goes into a model's context, so more would be useless; the limit protects the memory of
# the server.
MAX_RESPONSE_BYTES = 2 * 1024 * 1024
# Maximum length of an error response that is passed on.
MAX_ERROR_CHARS = 2048
DEFAULT_TIMEOUT_SECONDS = 30.0
# Statuses after which the same request may succeed later (RFC 9110, 6585, 8470).
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_HEAD_RESULT_HEADERS = ("content-type", "content-length", "etag", "last-modified", "location")


class OpenApiServerOptions(OperationFilter, total=False):
    """Options of `Server.from_openapi`, in addition to the document and the options of a Server."""

    base_url: str | None
    app: Any
    client: Any
    auth: Any
    headers: Mapping[str, str]
    variables: Mapping[str, str]
    rename: Mapping[str, str]
    route_maps: Sequence[Any]
    allow_private_hosts: bool
    validate_output: bool
    timeout: float
    max_response_size: int


class OpenApiBackend(Struct):
    """The API that a set of tools calls."""

    document: OpenApiDocument
    binding_builder: BindingBuilder
    sender: ApiTransport
    schemes: SecuritySchemes
    variables: Mapping[str, str]
    requires_base_url: bool
    timeout: float
    max_response_size: int

    async def send(self, shape: OperationBinding, arguments: dict[str, Any], call: Any) -> ApiResponse:
        """Send the request for a call and return the response. Raises ToolError for error responses and failed
        requests.
        """
        request = shape.build_request(arguments)
        base = resolve_base_url(shape.operation.servers(self.document), self.variables)
        if self.requires_base_url and not is_absolute_url(base):
            raise ToolError(
                "The base URL of the API is unknown: the operator must configure its base URL.",
                error_type="ToolExecutionError",
            )
        await self.schemes.apply(request, shape.operation)
        try:
            answer = await self.sender.send(request, base, self.max_response_size, call)
        except (TransportError, ProtocolError) as failure:
            why = f": {failure}"
            if type(failure) is ConnectError:
                # The message contains the API's address, which clients must not learn.
                why = f" (error id {log_failure(log, 'cannot reach an API', failure)})"
            raise ToolError(
                f"The API cannot be reached{why}.", error_type="ToolExecutionError", retryable=True
            ) from None
        except UsageError as mistake:
            raise ToolError(f"The request cannot be sent: {mistake}.", error_type="ValidationError") from None
        if not 200 <= answer.status < 300:
            raise _error_from_response(answer)
        # The request asked for `identity`. Decompressing what comes anyway would open the way for a
        # decompression bomb.
        if answer.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ToolError(
                "The API returned a compressed response, which was not requested.", error_type="ToolExecutionError"
            )
        return answer


class OperationTool(Tool):
    """An operation as a tool. Its schemas are built on first use."""

    def __init__(self, api: OpenApiBackend, operation: Operation, name: str) -> None:
        self.api, self.operation = api, operation
        self.name = self.local_name = validate_tool_name(name)
        self.fn = self._operate
        self.version = None
        self.aliases = ()
        self.scopes = frozenset()
        self.task = self.auth = None
        self.header_params = ()
        # Results are validated in `_read`, where the error can include the response.
        self._verify = None
        self._open = self._wrapped_before_2026 = False
        self._uri = f"tool://{name}/result"

    def structure_text_output(self) -> None:
        """Do nothing: the document determines the output."""

    @property
    def required_scopes(self) -> frozenset[str]:
        """Return the author's scopes only: no service adds any, and the runner must not be built for this."""
        return self.scopes

    @cached_property
    def shape(self) -> OperationBinding:
        return self.api.binding_builder.build(self.operation)

    @cached_property
    def definition(self) -> Definition:  # type: ignore[override]
        operation, shape = self.operation.decode, self.shape
        return Definition(
            name=self.name,
            title=operation.summary.strip() or None,
            description=build_description(operation) or f"{self.operation.method.upper()} {self.operation.path}",
            input_schema=shape.input_schema,
            output_schema=translation.wrap_output_schema(shape.output_schema or {})
            if self._wraps_result
            else shape.output_schema,
            annotations=msgspec.convert(method_annotations(self.operation.method), ToolAnnotations),
            meta=build_meta({"tags": operation.tags}) or None,
        )

    @cached_property
    def runner(self) -> FunctionRunner:  # type: ignore[override]
        try:
            return FunctionRunner(self.fn, self.name, timeout=self.api.timeout, input_schema=self.shape.input_schema)
        except UsageError as mistake:
            # A regular expression in another dialect, or an invalid keyword: leave validation to the API.
            log.warning("%s: arguments are not validated: %s", self.name, mistake)
            anything = {"type": "object"}
            return FunctionRunner(self.fn, self.name, timeout=self.api.timeout, input_schema=anything)

    @cached_property
    def _wraps_result(self) -> bool:  # type: ignore[override]
        """Return whether results are sent as `{"result": …}`: see `Tool._promise_output`."""
        promised = self.shape.output_schema
        return promised is not None and promised.get("type") != "object"

    @cached_property
    def _output_validator(self) -> OutputSchemaValidator | None:
        promised = self.shape.output_schema
        return None if promised is None else OutputSchemaValidator(promised, self.name, eager=False)

    async def _operate(self, arguments: dict[str, Any], ctx: Context) -> CallToolResult:
        answer = await self.api.send(self.shape, arguments, ctx._call)
        if self.operation.method == "head":
            result_headers = {name: answer.headers[name] for name in _HEAD_RESULT_HEADERS if name in answer.headers}
            return _to_result(msgspec.json.encode({"status": answer.status, **result_headers}), structured=True)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = bool(answer.body) and (kind == "application/json" or kind.endswith("+json"))
        if self._output_validator is not None or is_json:
            return self._read(answer)
        return _content(answer, kind, self._uri)

    def _read(self, answer: ApiResponse) -> CallToolResult:
        body = answer.body.strip() or b"null"
        try:
            decode_bounded(body)
            text = body.decode()
        except (ValueError, RecursionError):
            raise self._schema_mismatch_error(answer) from None
        if self._output_validator is None:
            return _to_result(body, structured=text.startswith("{"))
        try:
            self._output_validator(None, body)
        except TypeError:
            raise self._schema_mismatch_error(answer) from None
        except UsageError as mistake:
            log.warning("%s: results are not validated: %s", self.name, mistake)
            self._output_validator = None
        return _to_result(body, structured=True)

    def _schema_mismatch_error(self, answer: ApiResponse) -> ToolError:
        return ToolError(
            f"The API returned {answer.status} with a body that does not match its schema: {_excerpt(answer.body)}",
            error_type="ToolExecutionError",
            details={"status": answer.status},
        )


def _to_result(body: bytes, *, structured: bool) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=body.decode())],
        structured_content=Raw(body) if structured else UNSET,
        is_error=False,
    )


def _content(answer: ApiResponse, kind: str, uri: str) -> CallToolResult:
    if not answer.body:
        block: Any = TextContent(text=f"The API returned {_status(answer.status)}.")
    elif kind.startswith(("image/", "audio/")):
        content_class = ImageContent if kind.startswith("image/") else AudioContent
        block = content_class(data=b64encode(answer.body).decode(), mime_type=kind)
    elif kind.startswith("text/") or kind.endswith("xml"):
        block = TextContent(text=answer.body.decode(errors="replace"))
    else:
        block = EmbeddedResource(resource=to_resource_contents(answer.body, uri, kind or "application/octet-stream"))
    return CallToolResult(content=[block], is_error=False)


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _excerpt(body: bytes) -> str:
    text = body[:MAX_ERROR_CHARS].decode(errors="replace")
    return text if len(body) <= MAX_ERROR_CHARS else f"{text}…"


def _error_from_response(answer: ApiResponse) -> ToolError:
    text = _excerpt(answer.body)
    details: dict[str, Any] = {"status": answer.status}
    if "retry-after" in answer.headers:
        details["retryAfter"] = answer.headers["retry-after"][:100]
    return ToolError(
        f"The API returned {_status(answer.status)}{': ' + text if text else '.'}",
        error_type="ToolExecutionError",
        details=details,
        retryable=answer.status in _RETRYABLE,
    )


def split_options(document: OpenApiDocument, options: Mapping[str, Any]) -> tuple[dict[str, Any], OpenApiServerOptions]:
    """Split options into those of the server, with defaults from the document, and those of the API."""
    server_options = {name: value for name, value in options.items() if name in OpenApiServerOptions.__annotations__}
    rest = {name: value for name, value in options.items() if name not in server_options}
    info = document.info
    about = {"name": info.title or "api", "version": info.version, "description": info.description}
    return {**about, **rest}, cast("OpenApiServerOptions", server_options)


def add_operations(server: Server, spec: Any, options: OpenApiServerOptions) -> OpenApiBackend:
    """Add a tool to the server for each operation of a document that passes the filters."""
    validate_options("from_openapi", options, OpenApiServerOptions)
    document = spec if isinstance(spec, OpenApiDocument) else read_document(spec)
    api = _api(document, options)
    filter_options: Any = {name: value for name, value in options.items() if name in OperationFilter.__annotations__}
    maps = options.get("route_maps") or ()
    operations = [item for item in list_operations(document, filter_options) if becomes_tool(item, maps)]
    result = assign_names(operations, options.get("rename", {}))
    if not result:
        raise UsageError("the document has no operations, or the filters exclude all of them")
    tools = [OperationTool(api, operation, name) for name, operation in result.items()]
    _check_place(api, tools)
    if api.requires_base_url and (options.get("auth") is not None or options.get("headers")):
        tools = _at_one_origin(api, tools)
    server.add_components(list(_valid_tools(tools)))
    server.add_lifespan(api.sender.lifespan)
    return api


def _at_one_origin(api: OpenApiBackend, tools: Sequence[OperationTool]) -> list[OperationTool]:
    """Return the tools whose server has the same origin as the document's, so that credentials go to no other host.

    A single operation may name another server.
    """
    # The document, not the operator, names the servers. Without this a document could send the
    # operator's key to any host.
    home = parse_origin(
        resolve_base_url(api.document.servers or tools[0].operation.servers(api.document), api.variables)
    )
    results = []
    for tool in tools:
        if parse_origin(resolve_base_url(tool.operation.servers(api.document), api.variables)) == home:
            results.append(tool)
        else:
            log.warning(
                "skipping %s: it would send credentials to another server; set base_url (url of an upstream)", tool.name
            )
    return results


def _valid_tools(tools: Sequence[OperationTool]) -> Sequence[OperationTool]:
    """Return the tools whose operations can be read; others are logged and left out."""
    sound = []
    for tool in tools:
        try:
            tool.shape  # noqa: B018 – it is made
            sound.append(tool)
        except UsageError as mistake:
            log.warning("skipping %s: %s", tool.name, mistake)
    return sound


def _api(document: OpenApiDocument, options: OpenApiServerOptions) -> OpenApiBackend:
    locations = [name for name in ("base_url", "app", "client") if options.get(name) is not None]
    if len(locations) > 1 and locations != ["base_url", "app"]:
        raise UsageError(f"only one of base_url, app and client can be set, got {' and '.join(locations)}")
    # Documents are written by others, so their schemas need a complete validator.
    if validation.compile_validator({}) is None:
        raise UsageError("from_openapi requires the package jsonschema-rs: install portico[openapi]")
    timeout = options.get("timeout", DEFAULT_TIMEOUT_SECONDS)
    max_response_size = options.get("max_response_size", MAX_RESPONSE_BYTES)
    if not timeout > 0:
        raise UsageError(f"timeout must be more than 0 seconds, got {timeout!r}")
    if max_response_size < 1:
        raise UsageError(f"max_response_size must be at least 1 byte, got {max_response_size!r}")
    return OpenApiBackend(
        document,
        BindingBuilder(document, validate_output=options.get("validate_output", True)),
        _sender(options),
        SecuritySchemes(document, options.get("auth")),
        options.get("variables", {}),
        not locations,
        timeout,
        max_response_size,
    )


def _sender(options: OpenApiServerOptions) -> ApiTransport:
    headers, base_url = options.get("headers", {}), options.get("base_url")
    if options.get("app") is not None:
        return AsgiApiTransport(options["app"], headers, base_url or "")
    if options.get("client") is not None:
        return ClientApiTransport(options["client"], headers)
    return HttpApiTransport(base_url, headers, allow_private_hosts=options.get("allow_private_hosts", False))


def _check_place(api: OpenApiBackend, tools: Sequence[OperationTool]) -> None:
    """Raise UsageError if the base URL of the API is unknown."""
    servers = tools[0].operation.servers(api.document)
    if api.requires_base_url and not is_absolute_url(resolve_base_url(servers, api.variables)):
        raise UsageError("the document has no absolute server URL: set base_url (url of an upstream)")
