"""Tool search: `find_tools` and `call_tool` replace the tools of a server."""

from __future__ import annotations

from collections.abc import Sequence
from types import CoroutineType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from portico.jsonschema import SchemaError
from portico.jsonschema.validation import validate
from portico.protocol import jsonrpc
from portico.protocol.content import TextContent
from portico.protocol.errors import ComponentNotFound, InvalidParams, ToolError
from portico.protocol.json_depth import decode_bounded
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.tools import CallToolParams, CallToolResult
from portico.rpc.call import Call, Handler
from portico.search.searchable_tools import ToolView, VisibleTool
from portico.search.tool_search_base import ToolSearchBase
from portico.server.context.context import Context
from portico.text import one_line

MAX_QUERIES = 10
MAX_QUERY_CHARS = 2000
# Per response, in characters (about four per token).
MAX_RESPONSE_CHARS = 32_000
MAX_SUMMARY_CHARS = 240
MAX_SCHEMA_CHARS = 8_000

INSTRUCTIONS = (
    "Only a few of this server's tools are listed. Use find_tools to find the others: describe each step of "
    "the task in a few words, several queries per call. Call the results with call_tool."
)

Queries = list[Annotated[str, Meta(max_length=MAX_QUERY_CHARS)]] | Annotated[str, Meta(max_length=MAX_QUERY_CHARS)]


class ToolSearchServer(ToolSearchBase):
    """Server with two tools instead of all: one finds the others, one calls them.

    * **server** – a Server, a Gateway, or any Handler.
    * **pinned_tools** – names of tools that are always listed.
    * **omit_output_schemas** – whether to list those without output schemas, which `find_tools` returns.
    """

    def __init__(
        self,
        server: Handler,
        *,
        name: str = "search",
        pinned_tools: Sequence[str] = (),
        omit_output_schemas: bool = False,
    ) -> None:
        super().__init__(
            server, name, pinned_tools=pinned_tools, omit_output_schemas=omit_output_schemas, instructions=INSTRUCTIONS
        )
        add_find_tools(self)
        self.own_tools.tool(call_tool)
        self.handlers["call_tool"] = self._pass_on

    def _pass_on(self, call: Call) -> Any:
        """Forward a call to the requested tool. Its server-to-client requests, progress and task belong to this
        request.
        """
        request = _parse_request(call.decode_params())
        if request is None:
            # The regular handler reports the invalid arguments.
            return self._answer_with(self.own_tools.start, call)
        inner = _redirect_call(call, request)
        try:
            result = self.start_server(inner)
        except (InvalidParams, ToolError) as refusal:
            return self._refuse(inner, request, refusal)
        if type(result) is CoroutineType:
            return self._complete(inner, request, result)
        return self._explain(inner, request, result) if _is_failed(result) else result

    async def _complete(self, call: Call, request: ToolCallRequest, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        try:
            result = await coroutine
        except (InvalidParams, ToolError) as refusal:
            return await self._refuse(call, request, refusal)
        return await self._explain(call, request, result) if _is_failed(result) else result

    async def _refuse(self, call: Call, request: ToolCallRequest, refusal: InvalidParams | ToolError) -> Any:
        view = await self.visible_tools.view(call)
        # Similar names come from the caller's own view, so that they reveal no tool that it may not
        # see.
        if isinstance(refusal, ComponentNotFound):
            if request.name in self.own_tools.registry.by_name:
                raise ToolError(f"{request.name} is listed directly: call it without call_tool.") from None
            raise ToolError(_unknown_tool_text(view, request.name), error_type="ResourceNotFound") from None
        usage = _explain_usage(
            view, request, isinstance(refusal, ToolError) and refusal.error_type == "ValidationError"
        )
        if usage is None:
            raise refusal
        kind, details = "ValidationError", getattr(refusal, "details", None) or getattr(refusal, "data", None)
        raise ToolError(f"{refusal}\n{usage}", error_type=kind, details=details) from None

    async def _explain(self, call: Call, request: ToolCallRequest, result: Any) -> Any:
        """Append the tool's usage to a failed result if the arguments may be the reason."""
        usage = _explain_usage(await self.visible_tools.view(call), request, sure=False)
        if usage is None:
            return result
        if isinstance(result, CallToolResult):
            return replace(result, content=[*result.content, TextContent(text=usage)])
        members: dict[str, Raw] = msgspec.json.decode(result, type=dict[str, Raw])
        content = msgspec.json.decode(members.get("content") or b"[]", type=list[Raw])
        return Raw(jsonrpc.encode({**members, "content": [*content, {"type": "text", "text": usage}]}))


class ToolCallRequest(Struct, forbid_unknown_fields=True):
    """Arguments of `call_tool`."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    arguments: Any = None


_reading = msgspec.json.Decoder(ToolCallRequest)


def _parse_request(params: CallToolParams) -> ToolCallRequest | None:
    """Parse the arguments of `call_tool`, or return None if they are invalid."""
    try:
        request = _reading.decode(params.arguments or b"{}")
        if isinstance(request.arguments, str):
            # Some models send the object as a JSON string.
            request.arguments = decode_bounded(request.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    request.arguments = {} if request.arguments is None else request.arguments
    return request if isinstance(request.arguments, dict) else None


def _redirect_call(call: Call, request: ToolCallRequest) -> Call:
    params: dict[str, Any] = object_decoder.decode(call.params)
    # Other members, such as `_meta` with the progress token and the request state, stay: they
    # belong to the requested tool.
    params |= {"name": request.name, "arguments": request.arguments}
    return replace(call, params=Raw(jsonrpc.encode(params)), read=None)


def _is_failed(result: Any) -> bool:
    if isinstance(result, CallToolResult):
        return result.is_error
    # A search for the bytes first: most results are no errors, and decoding a large one for a flag
    # would cost more than the call.
    return type(result) is Raw and b'"isError"' in (encoded := bytes(result)) and _is_error(encoded)


class _FailedCall(Struct):
    isError: bool = False


def _is_error(encoded: bytes) -> bool:
    try:
        return msgspec.json.decode(encoded, type=_FailedCall).isError
    except msgspec.DecodeError:
        return False


def _explain_usage(view: ToolView, request: ToolCallRequest, sure: bool) -> str | None:
    """Return the tool's usage if the arguments are invalid (or `sure`), else None."""
    tool = view.by_name.get(request.name)
    if tool is None:
        return None
    schema = tool.definition.input_schema
    try:
        # Models call a found tool without having seen its schema. If the arguments may be the
        # reason of a failure, the usage is returned with it and saves a round trip.
        wrong = validate(schema, request.arguments)
    except SchemaError:
        wrong = []
    if not wrong and not sure:
        return None
    encoded = jsonrpc.encode(schema).decode()
    schema_text = f"\nIts schema: {encoded}" if len(encoded) <= MAX_SCHEMA_CHARS else ""
    return f"Usage: {tool.signature}{schema_text}"


def _unknown_tool_text(view: ToolView, name: str) -> str:
    suggestions = view.nearest(name)
    if not suggestions:
        return f"Unknown tool {name[:128]!r}. Use find_tools to find one."
    return f"Unknown tool {name[:128]!r}. Similar tools:\n" + "\n".join(item.signature for item in suggestions)


async def call_tool(
    name: Annotated[str, "Name of the tool, as returned by find_tools"],
    arguments: Annotated[dict[str, Any] | None, "Arguments of the tool, as in its signature"] = None,
) -> str:
    """Call a tool that find_tools returned, and return that tool's result."""
    raise InvalidParams(f"{name} cannot be called")  # ToolSearchServer handles the call


def add_find_tools(tool_search: ToolSearchBase) -> None:
    """Add the tool `find_tools`."""

    @tool_search.own_tools.tool(annotations={"readOnlyHint": True, "openWorldHint": False})
    async def find_tools(
        ctx: Context,
        queries: Annotated[Queries, "What the tools should do, in a few words each: one query per step of the task"],
        server: Annotated[str | None, "Return only tools of this server"] = None,
        limit: Annotated[int, Meta(ge=1, le=25, description="Maximum number of tools per query")] = 5,
        detail: Annotated[
            Literal["signature", "schema"], "`signature`: one line per tool; `schema`: also its JSON Schema"
        ] = "signature",
    ) -> TextContent:
        """Search the tools of this server by purpose. Use it before call_tool. Returns the signatures of the best
        matches.
        """
        unique_queries = list(dict.fromkeys([queries] if isinstance(queries, str) else queries))
        if not 1 <= len(unique_queries) <= MAX_QUERIES:
            raise ToolError(
                (f"queries must contain 1 to {MAX_QUERIES} items, got {len(unique_queries)}."),
                error_type="ValidationError",
            )
        view = await tool_search.visible_tools.view(ctx.call)
        if server is not None and server not in view.owners:
            raise ToolError(f"Unknown server {server[:128]!r} (expected one of {_tool_owners(view)}).")
        match = await tool_search.visible_tools.search(ctx.call, unique_queries, limit, server)
        return TextContent(text=_format_matches(view, unique_queries, match, detail))


def _tool_owners(view: ToolView) -> str:
    return ", ".join(f"{name} ({count})" for name, count in view.owners.items())


def _format_matches(
    view: ToolView, queries: Sequence[str], results: Sequence[Sequence[VisibleTool]], detail: str
) -> str:
    """Format the matches. A tool that several queries return is written once, and only named afterwards."""
    lines: list[str] = []
    listed_names: set[str] = set()
    left = MAX_RESPONSE_CHARS
    for query, tools in zip(queries, results, strict=True):
        if len(queries) > 1:
            lines.append(f"# {query[:100]}")
        if not tools:
            lines.append(f"No match. Servers and their number of tools: {_tool_owners(view)}.")
        for tool in tools:
            text = f"{one_line(tool.name)}: above" if tool.name in listed_names else _format_tool(tool, detail)
            listed_names.add(tool.name)
            if len(text) > left:
                return "\n".join([*lines, "(truncated: request fewer tools)"])
            left -= len(text)
            lines.append(text)
    return "\n".join(lines)


def _format_tool(tool: VisibleTool, detail: str) -> str:
    about = summarize(tool.definition.description or tool.definition.title or "")
    text = f"{tool.signature}\n  {about}" if about else tool.signature
    if detail == "signature":
        return text
    schema = jsonrpc.encode(tool.definition.input_schema).decode()
    fits = len(schema) <= MAX_SCHEMA_CHARS
    return f"{text}\n  {schema if fits else f'(its schema has {len(schema):,} characters)'}"


def summarize(text: str) -> str:
    """Return the beginning of a description on one line."""
    summary = one_line(text[: 4 * MAX_SUMMARY_CHARS])
    if len(summary) <= MAX_SUMMARY_CHARS:
        return summary
    cut = summary[:MAX_SUMMARY_CHARS]
    sentence_end = max(cut.rfind(". "), cut.rfind("。"))
    return cut[: sentence_end + 1] if sentence_end > MAX_SUMMARY_CHARS // 3 else f"{cut.rpartition(' ')[0] or cut}…"
