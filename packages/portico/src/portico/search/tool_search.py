"""The search face: `find_tools` and `call_tool` stand for all tools of a server."""

from __future__ import annotations

from collections.abc import Sequence
from types import CoroutineType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from portico.jsonschema import SchemaError
from portico.jsonschema.validation import complaints
from portico.protocol import jsonrpc
from portico.protocol.content import TextContent
from portico.protocol.errors import InvalidParams, ToolError, Unknown
from portico.protocol.json_depth import decode_bounded
from portico.protocol.tools import CallToolParams, CallToolResult
from portico.rpc.call import Call, Handler
from portico.search.signatures import printable
from portico.search.tool_search_base import ServerFace
from portico.search.visible_tools import SeenTool, ToolView
from portico.server.context.context import Context

MOST_QUERIES = 10
LONGEST_QUERY = 2000
# Of one answer, in characters: about four make a token.
LONGEST_ANSWER = 32_000
LONGEST_SUMMARY = 240
LONGEST_SCHEMA = 8_000

INSTRUCTIONS = (
    "Only a few of this server's tools are listed. Find the others with find_tools: say in a few words what each step "
    "needs, several at once. Call what was found with call_tool."
)

Queries = list[Annotated[str, Meta(max_length=LONGEST_QUERY)]] | Annotated[str, Meta(max_length=LONGEST_QUERY)]


class SearchFace(ServerFace):
    """Any server with two tools in place of all: one finds the others, one calls them.

    * **server** – a Server, a Gateway, or any Handler.
    * **always** – the names of tools that are listed all the same.
    * **brief** – whether those are listed without their output schemas, which `find_tools` gives.
    """

    def __init__(
        self, server: Handler, *, name: str = "search", always: Sequence[str] = (), brief: bool = False
    ) -> None:
        super().__init__(server, name, always=always, brief=brief, instructions=INSTRUCTIONS)
        add_find_tools(self)
        self.desk.tool(call_tool)
        self.answers["call_tool"] = self._pass_on

    def _pass_on(self, call: Call) -> Any:
        """The answer of the tool that is meant, to the same request under its own name. Its questions, its progress and
        its task are those of this request."""
        wanted = _wanted(call.typed())
        if wanted is None:
            # The desk says what is wrong with the arguments.
            return self._answer_with(self.desk.start, call)
        inner = _renamed(call, wanted)
        try:
            result = self.start_server(inner)
        except (InvalidParams, ToolError) as refusal:
            return self._refuse(inner, wanted, refusal)
        if type(result) is CoroutineType:
            return self._finish(inner, wanted, result)
        return self._explain(inner, wanted, result) if _failed(result) else result

    async def _finish(self, call: Call, wanted: WantedTool, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        try:
            result = await coroutine
        except (InvalidParams, ToolError) as refusal:
            return await self._refuse(call, wanted, refusal)
        return await self._explain(call, wanted, result) if _failed(result) else result

    async def _refuse(self, call: Call, wanted: WantedTool, refusal: InvalidParams | ToolError) -> Any:
        view = await self.seen.view(call)
        if isinstance(refusal, Unknown):
            if wanted.name in self.desk.registry.by_name:
                raise ToolError(f"{wanted.name} is a tool of its own: call it without call_tool.") from None
            raise ToolError(_unknown(view, wanted.name), kind="ResourceNotFound") from None
        told = _told(view, wanted, isinstance(refusal, ToolError) and refusal.kind == "ValidationError")
        if told is None:
            raise refusal
        kind, details = "ValidationError", getattr(refusal, "details", None) or getattr(refusal, "data", None)
        raise ToolError(f"{refusal}\n{told}", kind=kind, details=details) from None

    async def _explain(self, call: Call, wanted: WantedTool, result: Any) -> Any:
        """A failure whose reason may be the arguments: then with what the tool takes."""
        told = _told(await self.seen.view(call), wanted, sure=False)
        if told is None:
            return result
        if isinstance(result, CallToolResult):
            return replace(result, content=[*result.content, TextContent(text=told)])
        said: dict[str, Raw] = msgspec.json.decode(result, type=dict[str, Raw])
        content = msgspec.json.decode(said.get("content") or b"[]", type=list[Raw])
        return Raw(jsonrpc.encode({**said, "content": [*content, {"type": "text", "text": told}]}))


class WantedTool(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=512)]
    arguments: Any = None


_reading = msgspec.json.Decoder(WantedTool)
_params = msgspec.json.Decoder(dict[str, Raw])


def _wanted(params: CallToolParams) -> WantedTool | None:
    """None: these are no arguments of `call_tool`."""
    try:
        wanted = _reading.decode(params.arguments or b"{}")
        if isinstance(wanted.arguments, str):
            # Some models write what should be an object as a text.
            wanted.arguments = decode_bounded(wanted.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    wanted.arguments = {} if wanted.arguments is None else wanted.arguments
    return wanted if isinstance(wanted.arguments, dict) else None


def _renamed(call: Call, wanted: WantedTool) -> Call:
    params: dict[str, Any] = _params.decode(call.params)
    params |= {"name": wanted.name, "arguments": wanted.arguments}
    return replace(call, params=Raw(jsonrpc.encode(params)), read=None)


def _failed(result: Any) -> bool:
    if isinstance(result, CallToolResult):
        return result.is_error
    return type(result) is Raw and b'"isError"' in (said := bytes(result)) and _is_error(said)


class _Failed(Struct):
    isError: bool = False


def _is_error(said: bytes) -> bool:
    try:
        return msgspec.json.decode(said, type=_Failed).isError
    except msgspec.DecodeError:
        return False


def _told(view: ToolView, wanted: WantedTool, sure: bool) -> str | None:
    """What a tool takes, if the arguments do not fit that; None if they do."""
    tool = view.by_name.get(wanted.name)
    if tool is None:
        return None
    schema = tool.definition.input_schema
    try:
        wrong = complaints(schema, wanted.arguments)
    except SchemaError:
        wrong = []
    if not wrong and not sure:
        return None
    said = jsonrpc.encode(schema).decode()
    whole = f"\nIts schema: {said}" if len(said) <= LONGEST_SCHEMA else ""
    return f"It is called so: {tool.signature}{whole}"


def _unknown(view: ToolView, name: str) -> str:
    near = view.nearest(name)
    if not near:
        return f"There is no tool {name[:128]!r}. Find one with find_tools."
    return f"There is no tool {name[:128]!r}. Near it are:\n" + "\n".join(one.signature for one in near)


async def call_tool(
    name: Annotated[str, "The tool's name, as find_tools gives it"],
    arguments: Annotated[dict[str, Any] | None, "Its arguments, as its signature has them"] = None,
) -> str:
    """Call a tool that find_tools has found. What it answers is that tool's answer."""
    raise InvalidParams(f"{name} cannot be called")  # the face passes it on


def add_find_tools(face: ServerFace) -> None:
    """Give a face the tool that finds the others."""

    @face.desk.tool(annotations={"readOnlyHint": True, "openWorldHint": False})
    async def find_tools(
        ctx: Context,
        queries: Annotated[Queries, "What the tools should do, in a few words each: one for each step of the task"],
        server: Annotated[str | None, "Only the tools of this server"] = None,
        limit: Annotated[int, Meta(ge=1, le=25, description="At most so many for each query")] = 5,
        detail: Annotated[
            Literal["signature", "schema"], "`signature`: a line for each tool; `schema`: its whole JSON Schema too"
        ] = "signature",
    ) -> TextContent:
        """Find tools by what they are for. Gives their signatures, ready to be called."""
        wanted = list(dict.fromkeys([queries] if isinstance(queries, str) else queries))
        if not 1 <= len(wanted) <= MOST_QUERIES:
            raise ToolError(f"Give 1 to {MOST_QUERIES} queries, not {len(wanted)}.", kind="ValidationError")
        view = await face.seen.view(ctx.call)
        if server is not None and server not in view.owners:
            raise ToolError(f"There is no server {server[:128]!r} here; there are {_owners(view)}.")
        found = await face.seen.search(ctx.call, wanted, limit, server)
        return TextContent(text=_answer(view, wanted, found, detail))


def _owners(view: ToolView) -> str:
    return ", ".join(f"{name} ({count})" for name, count in view.owners.items())


def _answer(view: ToolView, queries: Sequence[str], found: Sequence[Sequence[SeenTool]], detail: str) -> str:
    """A tool that several queries find is written once, and then only named."""
    lines: list[str] = []
    told: set[str] = set()
    left = LONGEST_ANSWER
    for query, tools in zip(queries, found, strict=True):
        if len(queries) > 1:
            lines.append(f"# {query[:100]}")
        if not tools:
            lines.append(f"Nothing found. There are tools of {_owners(view)}.")
        for one in tools:
            said = f"{printable(one.name)}: above" if one.name in told else _written(one, detail)
            told.add(one.name)
            if len(said) > left:
                return "\n".join([*lines, "(cut off: ask for fewer tools at once)"])
            left -= len(said)
            lines.append(said)
    return "\n".join(lines)


def _written(tool: SeenTool, detail: str) -> str:
    about = summary(tool.definition.description or tool.definition.title or "")
    said = f"{tool.signature}\n  {about}" if about else tool.signature
    if detail == "signature":
        return said
    schema = jsonrpc.encode(tool.definition.input_schema).decode()
    fits = len(schema) <= LONGEST_SCHEMA
    return f"{said}\n  {schema if fits else f'(its schema has {len(schema):,} characters)'}"


def summary(text: str) -> str:
    """The beginning of a description, on one line."""
    said = printable(text[: 4 * LONGEST_SUMMARY])
    if len(said) <= LONGEST_SUMMARY:
        return said
    cut = said[:LONGEST_SUMMARY]
    whole = max(cut.rfind(". "), cut.rfind("。"))
    return cut[: whole + 1] if whole > LONGEST_SUMMARY // 3 else f"{cut.rpartition(' ')[0] or cut}…"
