"""Tool results: decoded by schema or into a requested type."""

from __future__ import annotations

import dataclasses
import datetime
import json
import uuid
from collections.abc import Callable
from enum import Enum
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from msgspec import Raw

from portico import Client, ProtocolError, Server, UsageError
from portico.client import results
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call

EVERYTHING = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})

ID = "12345678-1234-5678-1234-567812345678"
DAY, MOMENT = datetime.date(2026, 7, 28), datetime.datetime(2026, 7, 28, 12, 30, tzinfo=datetime.UTC)


@dataclasses.dataclass
class AsDataclass:
    city: str
    day: datetime.date
    days: int = 3


class AsStruct(msgspec.Struct):
    city: str
    day: datetime.date
    days: int = 3


class AsDict(TypedDict):
    city: str
    day: datetime.date
    days: int


class AsModel(pydantic.BaseModel):
    city: str
    day: datetime.date
    days: int = 3


class AsText(msgspec.Struct):
    """Somebody for whom the day is a text, whatever the schema says."""

    city: str
    day: str


class Sky(Enum):
    CLEAR = "clear"


@dataclasses.dataclass
class Holding:
    best: AsModel
    rest: list[AsStruct]


def server() -> Server:
    server = Server("weather")
    item = {"city": "Rome", "day": "2026-07-28", "days": 2}

    @server.tool
    def forecast() -> AsDataclass:
        return AsDataclass("Rome", DAY, 2)

    @server.tool
    def forecasts() -> list[AsDataclass]:
        return [AsDataclass("Rome", DAY, 2)]

    @server.tool
    def number() -> int:
        return 5

    @server.tool
    def sky() -> Sky:
        return Sky.CLEAR

    @server.tool
    def holding() -> dict[str, Any]:
        return {"best": item, "rest": [item, item]}

    @server.tool
    def words() -> str:
        return "sun"

    @server.tool
    def nothing() -> None:
        return None

    return server


# With a type


@pytest.mark.parametrize("kind", [AsDataclass, AsStruct, AsModel], ids=lambda one: one.__name__)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_has_the_requested_type(revision: str, kind: Any) -> None:
    """Also where there is no structured content yet: then the text is JSON."""
    async with Client(server(), protocol_version=revision) as client:
        result = (await client.call_tool("forecast", result_type=kind)).data
        assert isinstance(result, kind)
        assert (result.city, result.day, result.days) == ("Rome", DAY, 2)
        [one] = (await client.call_tool("forecasts", result_type=list[kind])).data
        assert isinstance(one, kind)
        assert one.day == DAY


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_type_can_be_requested_in_other_ways(revision: str) -> None:
    async with Client(server(), protocol_version=revision) as client:
        assert (await client.call_tool("forecast", result_type=AsDict)).data == {"city": "Rome", "day": DAY, "days": 2}
        # A type of one's own says what is a date, and what is not.
        assert (await client.call_tool("forecast", result_type=AsText)).data == AsText("Rome", "2026-07-28")
        assert (await client.call_tool("forecast", result_type=dict[str, Any])).data["day"] == "2026-07-28"
        assert (await client.call_tool("number", result_type=int)).data == 5
        assert (await client.call_tool("number", result_type=float)).data == 5.0
        assert (await client.call_tool("number", result_type=str | int)).data in (5, "5")
        assert (await client.call_tool("words", result_type=str)).data == "sun"
        assert (await client.call_tool("sky", result_type=Sky)).data is Sky.CLEAR
        held = (await client.call_tool("holding", result_type=Holding)).data
        assert isinstance(held.best, AsModel)
        assert [item.day for item in held.rest] == [DAY, DAY]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_of_another_type_is_reported(revision: str) -> None:
    async with Client(server(), protocol_version=revision) as client:
        for tool, kind in [("words", int), ("number", AsStruct), ("forecast", list[int]), ("number", AsModel)]:
            with pytest.raises(
                ProtocolError, match=f"weather: {tool} returned a result that does not match "
            ) as raised:
                await client.call_tool(tool, result_type=kind)
            assert len(str(raised.value)) < 600
        with pytest.raises(UsageError, match="result_type must be a type"):
            await client.call_tool("number", result_type=object())


# By its schema


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_data_is_decoded_by_the_output_schema(revision: str) -> None:
    async with Client(server(), protocol_version=revision) as client:
        await client.list_tools()
        rich = revision >= "2025-06-18"
        forecast = (await client.call_tool("forecast")).data
        assert forecast == ({"city": "Rome", "day": DAY, "days": 2} if rich else forecast)
        number = await client.call_tool("number")
        # Before 2026-07-28 only objects could be structured, so others are wrapped; the wrapping is taken off.
        assert number.data == (5 if rich else "5")
        assert (await client.call_tool("forecasts")).data == (
            [forecast] if rich else (await client.call_tool("forecasts")).text
        )
        assert (await client.call_tool("words")).data == "sun"


def giving(structured: Any, schema: Any) -> Callable[[Call], Any]:
    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=["2026-07-28"], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        if call.method == "tools/list":
            tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
            return Raw(json.dumps({"resultType": "complete", "tools": [tool]}).encode())
        return Raw(json.dumps({"resultType": "complete", "content": [], "structuredContent": structured}).encode())

    return handler


DATE, TIME = {"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}


@pytest.mark.broken_frames("a server that lists its tools without hints")
@pytest.mark.parametrize(
    "structured, schema, data",
    [
        ("2026-07-28", DATE, DAY),
        ("2026-07-28T12:30:00Z", TIME, MOMENT),
        ("12:30:00", {"type": "string", "format": "time"}, datetime.time(12, 30)),
        (ID, {"type": "string", "format": "uuid"}, uuid.UUID(ID)),
        ("soon", DATE, "soon"),
        ("2026-07-28", {"type": "string"}, "2026-07-28"),
        (None, {"anyOf": [DATE, {"type": "null"}]}, None),
        ("2026-07-28", {"anyOf": [{"type": "null"}, DATE]}, DAY),
        ("2026-07-28", {"oneOf": [{"type": "integer"}, DATE]}, DAY),
        (["2026-07-28", "x"], {"type": "array", "items": DATE}, [DAY, "x"]),
        (
            {"a": "2026-07-28", "b": "2026-07-28"},
            {"type": "object", "properties": {"a": DATE}},
            {"a": DAY, "b": "2026-07-28"},
        ),
        ({"k": "2026-07-28"}, {"type": "object", "additionalProperties": DATE}, {"k": DAY}),
        ({"a": "2026-07-28"}, {"$defs": {"x/y": {"properties": {"a": DATE}}}, "$ref": "#/$defs/x~1y"}, {"a": DAY}),
        (
            {"day": "2026-07-28", "next": {"day": "2026-07-28"}},
            {"$defs": {"n": {"properties": {"day": DATE, "next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
            {"day": DAY, "next": {"day": DAY}},
        ),
        (
            {"result": "2026-07-28"},
            {"type": "object", "properties": {"result": DATE}, "x-fastmcp-wrap-result": True},
            DAY,
        ),
        ({"result": 5}, {"type": "object", "properties": {"result": {"type": "integer"}}}, {"result": 5}),
        (None, {}, None),
        (False, {"type": "boolean"}, False),
        ([], {"type": "array"}, []),
    ],
    ids=range(19),
)
async def test_dates_and_the_like_are_such(structured: Any, schema: Any, data: Any) -> None:
    async with Client(giving(structured, schema)) as client:
        result = await client.call_tool("t")
    assert result.data == data
    assert type(result.data) is type(data)
    assert result.structured == structured


@pytest.mark.broken_frames("a server that lists its tools without hints")
async def test_error_is_not_held_to_the_schema() -> None:
    """2026-07-28, server/tools: the schema is for results, and an error is none."""

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=["2026-07-28"], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        if call.method == "tools/list":
            tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"required": ["a"]}}
            return Raw(json.dumps({"resultType": "complete", "tools": [tool]}).encode())
        content = [{"type": "text", "text": "No."}]
        return Raw(json.dumps({"resultType": "complete", "content": content, "isError": True}).encode())

    async with Client(handler) as client:
        await client.list_tools()
        result = await client.call_tool("t", raise_on_error=False, result_type=int)
    assert (result.is_error, result.data) == (True, "No.")


TEXTS = st.text(alphabet='a,[{"\\é\n', max_size=8)
JSON = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.integers(1, 40), st.integers(-1, 1))
def test_value_count_ignores_string_contents(value: Any, piece: int, more: int) -> None:
    """However the text is cut."""

    def separators(value: Any) -> int:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        if inside is None:
            return 0
        return 1 + max(0, len(inside) - 1) + sum(map(separators, inside))

    exact = separators(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_PIECE", piece)
        assert results.exceeds_value_count(json.dumps(value).encode(), exact + more) == (more < 0)


@pytest.mark.broken_frames("a server that lists its tools without hints")
async def test_structured_content_that_is_null_is_not_none_at_all() -> None:
    """2026-07-28: `null` is a value. Only what is absent is checked for being absent."""
    async with Client(giving(None, {"type": "null"})) as client:
        await client.list_tools()
        assert (await client.call_tool("t")).data is None


# What a tool promised is looked for page by page


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_promise_is_searched_until_it_is_found(revision: str) -> None:
    pages = 0

    def counting(handler: Any) -> Any:
        async def answer(call: Call) -> Any:
            nonlocal pages
            pages += call.method == "tools/list"
            return await handler(call)

        return answer

    server = Server("many", list_page_size=2, middleware=[counting])
    for number in range(8):
        server.tool(f"t{number}", output_schema={"type": "object"})(lambda: {"n": 1})
    async with Client(server, protocol_version=revision) as client:
        for _ in range(2):
            assert (await client.call_tool("t2")).data == {"n": 1}
        assert (pages, list(client._tool_metadata.entries)) == (2, ["t2"])
        await client.call_tool("t1")
        assert (pages, list(client._tool_metadata.entries)) == (3, ["t2", "t1"])
        assert len(await client.list_tools()) == 8
        before = pages
        await client.call_tool("t7")
        assert pages == before
    async with Client(server, protocol_version=revision, validate_results=False) as client:
        assert (await client.call_tool("t3", result_type=dict)).data == {"n": 1}
        assert pages == before
