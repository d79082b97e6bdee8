"""Tools made from an OpenAPI document: each operation is one, and a call of it is a request."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from portico._options import check_options
from portico.jsonschema import validation
from portico.protocol.content import AudioContent, EmbeddedResource, ImageContent, TextContent
from portico.protocol.errors import ConnectFailed, ProtocolError, ToolError, TransportError, UsageError
from portico.protocol.json_depth import decode_bounded
from portico.protocol.tools import CallToolResult, ToolAnnotations
from portico.protocol.tools import Tool as Definition
from portico.rpc.error_ids import log_failure
from portico.server.components.results import contents_of
from portico.server.components.runner import Body
from portico.server.components.schema_signature import SchemaVerifier
from portico.server.components.tools import Tool, checked_name
from portico.server.components.validation import described_meta
from portico.server.context.context import Context
from portico.server.providers.openapi.base_url import base_of, is_absolute, origin_of
from portico.server.providers.openapi.binding import OperationShape, ShapeMaker
from portico.server.providers.openapi.credentials import SecuritySchemes
from portico.server.providers.openapi.document import ApiDocument, read_document
from portico.server.providers.openapi.operations import (
    Operation,
    OperationFilter,
    described,
    hints,
    named,
    operations,
)
from portico.server.providers.openapi.route_maps import is_tool
from portico.server.providers.openapi.transports import (
    ApiAnswer,
    ApiSender,
    AsgiApiSender,
    ClientApiSender,
    HttpApiSender,
)

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico.openapi")

LONGEST_ANSWER = 2 * 1024 * 1024
# Of an answer that says no.
LONGEST_REASON = 2048
SECONDS = 30.0
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOLD_OF_HEAD = ("content-type", "content-length", "etag", "last-modified", "location")


class ApiOptions(OperationFilter, total=False):
    """What `Server.from_openapi` takes besides the document and the options of a Server."""

    url: str | None
    app: Any
    client: Any
    auth: Any
    headers: Mapping[str, str]
    variables: Mapping[str, str]
    rename: Mapping[str, str]
    route_maps: Sequence[Any]
    private: bool
    outputs: bool
    timeout: float
    longest: int


class Api(Struct):
    """An API as its tools know it."""

    document: ApiDocument
    maker: ShapeMaker
    sender: ApiSender
    schemes: SecuritySchemes
    variables: Mapping[str, str]
    needs_place: bool
    timeout: float
    longest: int

    async def send(self, shape: OperationShape, arguments: dict[str, Any], call: Any) -> ApiAnswer:
        """The answer of the API. Raises ToolError for one that says no, and for none."""
        request = shape.request(arguments)
        base = base_of(shape.operation.servers(self.document), self.variables)
        if self.needs_place and not is_absolute(base):
            raise ToolError(
                "Where the API is is not known: its operator has to give its url.", kind="ToolExecutionError"
            )
        await self.schemes.put(request, shape.operation)
        try:
            answer = await self.sender.send(request, base, self.longest, call)
        except (TransportError, ProtocolError) as failure:
            why = f": {failure}"
            if type(failure) is ConnectFailed:
                # It has the address of the API, which is not for clients.
                why = f" (error id {log_failure(log, 'an API cannot be reached', failure)})"
            raise ToolError(f"The API cannot be reached{why}.", kind="ToolExecutionError", retryable=True) from None
        except UsageError as mistake:
            raise ToolError(f"The request cannot be sent: {mistake}.", kind="ValidationError") from None
        if not 200 <= answer.status < 300:
            raise _refused(answer)
        if answer.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ToolError("The API answers compressed, although it was not asked to.", kind="ToolExecutionError")
        return answer


class OperationTool(Tool):
    """An operation as a tool. What it takes and gives is worked out when it is first looked at."""

    def __init__(self, api: Api, operation: Operation, name: str) -> None:
        self.api, self.operation = api, operation
        self.name = self.inward = checked_name(name)
        self.fn = self._operate
        self.version = None
        self.aliases = ()
        self.scopes = frozenset()
        self.task = self.auth = None
        self.mirrors = ()
        # Results are held against the schema here, where it is known what to say about them.
        self._verify = None
        self._open = False
        self._uri = f"tool://{name}/result"

    def structure_text(self) -> None:
        """The document has said what its results are."""

    @property
    def needs(self) -> frozenset[str]:
        """No service asks for more; and a body is made when it is first called."""
        return self.scopes

    @cached_property
    def shape(self) -> OperationShape:
        return self.api.maker.make(self.operation)

    @cached_property
    def definition(self) -> Definition:  # type: ignore[override]
        what, shape = self.operation.what, self.shape
        return Definition(
            name=self.name,
            title=what.summary.strip() or None,
            description=described(what) or f"{self.operation.method.upper()} {self.operation.path}",
            input_schema=shape.input_schema,
            output_schema=shape.output_schema,
            annotations=msgspec.convert(hints(self.operation.method), ToolAnnotations),
            meta=described_meta({"tags": what.tags}) or None,
        )

    @cached_property
    def body(self) -> Body:  # type: ignore[override]
        try:
            return Body(self.fn, self.name, timeout=self.api.timeout, input_schema=self.shape.input_schema)
        except UsageError as mistake:
            # A pattern in another dialect, or a keyword with a strange value: the API itself will judge.
            log.warning("%s: arguments are not checked: %s", self.name, mistake)
            anything = {"type": "object"}
            return Body(self.fn, self.name, timeout=self.api.timeout, input_schema=anything)

    @cached_property
    def _wrapped(self) -> bool:  # type: ignore[override]
        promised = self.shape.output_schema
        return promised is not None and promised.get("type") != "object"

    @cached_property
    def _promise(self) -> SchemaVerifier | None:
        promised = self.shape.output_schema
        return None if promised is None else SchemaVerifier(promised, self.name, at_once=False)

    async def _operate(self, arguments: dict[str, Any], ctx: Context) -> CallToolResult:
        answer = await self.api.send(self.shape, arguments, ctx._call)
        if self.operation.method == "head":
            told = {name: answer.headers[name] for name in _TOLD_OF_HEAD if name in answer.headers}
            return _said(msgspec.json.encode({"status": answer.status, **told}), structured=True)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = bool(answer.body) and (kind == "application/json" or kind.endswith("+json"))
        if self._promise is not None or is_json:
            return self._read(answer)
        return _content(answer, kind, self._uri)

    def _read(self, answer: ApiAnswer) -> CallToolResult:
        body = answer.body.strip() or b"null"
        try:
            decode_bounded(body)
            text = body.decode()
        except (ValueError, RecursionError):
            raise self._unfit(answer) from None
        if self._promise is None:
            return _said(body, structured=text.startswith("{"))
        try:
            self._promise(None, body)
        except TypeError:
            raise self._unfit(answer) from None
        except UsageError as mistake:
            log.warning("%s: results are not checked: %s", self.name, mistake)
            self._promise = None
        return _said(body, structured=True)

    def _unfit(self, answer: ApiAnswer) -> ToolError:
        return ToolError(
            f"The API answered {answer.status} with what does not fit its own description: {_shown(answer.body)}",
            kind="ToolExecutionError",
            details={"status": answer.status},
        )


def _said(body: bytes, *, structured: bool) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=body.decode())],
        structured_content=Raw(body) if structured else UNSET,
        is_error=False,
    )


def _content(answer: ApiAnswer, kind: str, uri: str) -> CallToolResult:
    if not answer.body:
        block: Any = TextContent(text=f"The API answered {_status(answer.status)}.")
    elif kind.startswith(("image/", "audio/")):
        made = ImageContent if kind.startswith("image/") else AudioContent
        block = made(data=b64encode(answer.body).decode(), mime_type=kind)
    elif kind.startswith("text/") or kind.endswith("xml"):
        block = TextContent(text=answer.body.decode(errors="replace"))
    else:
        block = EmbeddedResource(resource=contents_of(answer.body, uri, kind or "application/octet-stream"))
    return CallToolResult(content=[block], is_error=False)


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _shown(body: bytes) -> str:
    text = body[:LONGEST_REASON].decode(errors="replace")
    return text if len(body) <= LONGEST_REASON else f"{text}…"


def _refused(answer: ApiAnswer) -> ToolError:
    said = _shown(answer.body)
    details: dict[str, Any] = {"status": answer.status}
    if "retry-after" in answer.headers:
        details["retryAfter"] = answer.headers["retry-after"][:100]
    return ToolError(
        f"The API answered {_status(answer.status)}{': ' + said if said else '.'}",
        kind="ToolExecutionError",
        details=details,
        retryable=answer.status in _RETRYABLE,
    )


def split_options(document: ApiDocument, options: Mapping[str, Any]) -> tuple[dict[str, Any], ApiOptions]:
    """The options of the server, with what the document says of it, and those that are about the API."""
    wanted = {name: value for name, value in options.items() if name in ApiOptions.__annotations__}
    rest = {name: value for name, value in options.items() if name not in wanted}
    info = document.info
    about = {"name": info.title or "api", "version": info.version, "description": info.description}
    return {**about, **rest}, cast("ApiOptions", wanted)


def add_operations(server: Server, spec: Any, options: ApiOptions) -> Api:
    """Add a tool for each operation of a document that is wanted."""
    check_options("from_openapi", options, ApiOptions)
    document = spec if isinstance(spec, ApiDocument) else read_document(spec)
    api = _api(document, options)
    kept: Any = {name: value for name, value in options.items() if name in OperationFilter.__annotations__}
    maps = options.get("route_maps") or ()
    wanted = [one for one in operations(document, kept) if is_tool(one, maps)]
    found = named(wanted, options.get("rename", {}))
    if not found:
        raise UsageError("none of the operations of the document is wanted, or it has none")
    tools = [OperationTool(api, operation, name) for name, operation in found.items()]
    _check_place(api, tools)
    if api.needs_place and (options.get("auth") is not None or options.get("headers")):
        tools = _at_one_origin(api, tools)
    server.add_components(list(_sound(tools)))
    server.hold(api.sender.lifespan)
    return api


def _at_one_origin(api: Api, tools: Sequence[OperationTool]) -> list[OperationTool]:
    """Those whose credentials go where those of the document do: a single operation may name another server."""
    home = origin_of(base_of(api.document.servers or tools[0].operation.servers(api.document), api.variables))
    found = []
    for tool in tools:
        if origin_of(base_of(tool.operation.servers(api.document), api.variables)) == home:
            found.append(tool)
        else:
            log.warning("%s is left out: it would send credentials to another server; give the url", tool.name)
    return found


def _sound(tools: Sequence[OperationTool]) -> Sequence[OperationTool]:
    """Those whose descriptions can be read: one that cannot is left out, and said so."""
    sound = []
    for tool in tools:
        try:
            tool.shape  # noqa: B018 – it is made
            sound.append(tool)
        except UsageError as mistake:
            log.warning("%s is left out: %s", tool.name, mistake)
    return sound


def _api(document: ApiDocument, options: ApiOptions) -> Api:
    ways = [name for name in ("url", "app", "client") if options.get(name) is not None]
    if len(ways) > 1 and ways != ["url", "app"]:
        raise UsageError(f"an API is reached by one of url, app and client; these are {' and '.join(ways)}")
    if validation.compiled({}) is None:
        raise UsageError("an OpenAPI document needs the package jsonschema-rs: install portico[openapi]")
    timeout, longest = options.get("timeout", SECONDS), options.get("longest", LONGEST_ANSWER)
    if not timeout > 0 or longest < 1:
        raise UsageError("timeout and longest are numbers above 0")
    return Api(
        document,
        ShapeMaker(document, outputs=options.get("outputs", True)),
        _sender(options),
        SecuritySchemes(document, options.get("auth")),
        options.get("variables", {}),
        not ways,
        timeout,
        longest,
    )


def _sender(options: ApiOptions) -> ApiSender:
    headers, url = options.get("headers", {}), options.get("url")
    if options.get("app") is not None:
        return AsgiApiSender(options["app"], headers, url or "")
    if options.get("client") is not None:
        return ClientApiSender(options["client"], headers)
    return HttpApiSender(url, headers, private=options.get("private", False))


def _check_place(api: Api, tools: Sequence[OperationTool]) -> None:
    """Raises UsageError if it is not said where the API is."""
    said = tools[0].operation.servers(api.document)
    if api.needs_place and not is_absolute(base_of(said, api.variables)):
        raise UsageError("the document does not say where the API is: give its url")
