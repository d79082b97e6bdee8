"""Conversion of return values to results, validated against the output schema."""

from __future__ import annotations

import datetime
import decimal
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jsonschema_rs
import msgspec
import pytest
from msgspec import Struct
from pydantic import BaseModel, Field

from portico import Audio, Client, File, Image, Server, ToolError, ToolResult, UsageError
from portico.protocol.content import (
    Annotations,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.server.components.tools import Tool
from portico.server.options import ComponentDefaults

Connect = Callable[..., Any]

STRUCTURED = [revision for revision in SUPPORTED_PROTOCOL_VERSIONS if revision >= "2025-06-18"]


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Reading(Struct, rename="camel"):
    at_time: datetime.datetime
    degrees: float


class Cat(Struct, tag=True):
    lives: int = 9


class Dog(Struct, tag=True):
    tricks: list[str] = []


class Person(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0)] = 0
    nick: str | None = Field(default=None, alias="nickName")


class Movie(TypedDict):
    title: str
    year: int


class Pair(NamedTuple):
    first: str
    second: int


class Colour(Enum):
    RED = "red"


class Bare:
    """Something no encoder has heard of."""

    def __str__(self) -> str:
        return "bare"


WHEN = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
ID = uuid.UUID(int=7)

# What is annotated, what is returned, and the JSON that stands for it.
VALUES: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, 2**70, 2**70),
    (float, 1.5, 1.5),
    (float, 2, 2),
    (bool, True, True),
    (Point, Point(1, 2), {"x": 1, "y": 2}),
    (Reading, Reading(WHEN, 20.5), {"atTime": "2026-01-31T12:00:00Z", "degrees": 20.5}),
    (Person, Person(name="Ada", nickName="A"), {"name": "Ada", "age": 0, "nickName": "A"}),
    (Movie, {"title": "M", "year": 1931}, {"title": "M", "year": 1931}),
    (Pair, Pair("a", 1), ["a", 1]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[str, int], {}, {}),
    (dict, {"result": 1}, {"result": 1}),
    (dict[str, Point], {"p": Point(1)}, {"p": {"x": 1, "y": 0}}),
    (dict[int, str], {1: "a"}, {"1": "a"}),
    (list[int], [1, 2], [1, 2]),
    (list[int], [], []),
    (list[Point], [Point(1)], [{"x": 1, "y": 0}]),
    (list[Person], [Person(name="Ada")], [{"name": "Ada", "age": 0, "nickName": None}]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (set[int], {1}, [1]),
    (list[str], ["a", "b"], ["a", "b"]),
    (datetime.datetime, WHEN, "2026-01-31T12:00:00Z"),
    (datetime.date, datetime.date(2026, 1, 31), "2026-01-31"),
    (uuid.UUID, ID, str(ID)),
    (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
    (Colour, Colour.RED, "red"),
    (Literal["a", "b"], "a", "a"),
    (Path, Path("a/b"), "a/b"),
    (int | None, 3, 3),
    (int | None, None, None),
    (Point | None, Point(1), {"x": 1, "y": 0}),
    (Point | None, None, None),
    (Cat | Dog, Dog(["sit"]), {"type": "Dog", "tricks": ["sit"]}),
    (Cat | Dog, Cat(), {"type": "Cat", "lives": 9}),
    (Point | list[int], Point(1), {"x": 1, "y": 0}),
    (Point | list[int], [1], [1]),
    (Person | Point, Point(1), {"x": 1, "y": 0}),
    (Tree, Tree("a", [Tree("b")]), {"name": "a", "children": [{"name": "b", "children": []}]}),
    (list[Tree], [Tree("a")], [{"name": "a", "children": []}]),
    (Annotated[int, msgspec.Meta(ge=0)], 3, 3),
    (str | int, "a", "a"),
    (str | Point, Point(1), {"x": 1, "y": 0}),
]


def returning(hint: Any, value: Any) -> Server:
    async def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    server = Server("s")
    server.tool(give)
    return server


async def listed_and_called(connect: Connect, server: Server, revision: str) -> tuple[Any, Any]:
    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    [tool] = (await wire.request_as(revision, "tools/list"))["result"]["tools"]
    return tool, (await wire.request_as(revision, "tools/call", {"name": tool["name"]}))["result"]


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return type(one) is type(other) and one == other


@pytest.mark.requirement("tools.structured-text")
@pytest.mark.parametrize("hint, value, json", VALUES, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("revision", STRUCTURED)
async def test_value_is_structured_as_an_object(
    connect: Connect, revision: str, hint: Any, value: Any, json: Any
) -> None:
    """A value of a type that is not always an object is the member `result` of one, on every version."""
    tool, result = await listed_and_called(connect, returning(hint, value), revision)
    assert result["isError"] is False
    assert tool["outputSchema"]["type"] == "object"
    is_wrapped = bool(tool["outputSchema"].get("x-fastmcp-wrap-result"))
    assert is_wrapped or isinstance(json, dict)
    assert same(result["structuredContent"], {"result": json} if is_wrapped else json)
    [block] = result["content"]
    assert block["type"] == "text"
    data = block["text"] if isinstance(value, str) else msgspec.json.decode(block["text"])
    assert same(data, json)


@pytest.mark.parametrize("hint, value, json", VALUES, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("revision", STRUCTURED)
async def test_structured_content_fits_its_schema(
    connect: Connect, revision: str, hint: Any, value: Any, json: Any
) -> None:
    tool, result = await listed_and_called(connect, returning(hint, value), revision)
    schema = tool["outputSchema"]
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.validator_for(schema).validate(result["structuredContent"])


@pytest.mark.parametrize("hint, value, json", VALUES, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_structured_content_is_an_object_until_2025_11_25(
    connect: Connect, revision: str, hint: Any, value: Any, json: Any
) -> None:
    tool, result = await listed_and_called(connect, returning(hint, value), revision)
    assert tool["outputSchema"]["type"] == "object"
    assert isinstance(result["structuredContent"], dict)


@pytest.mark.parametrize("hint, value, json", VALUES, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("revision", STRUCTURED)
async def test_client_gets_the_value_back(revision: str, hint: Any, value: Any, json: Any) -> None:
    """`.data` is the value, whatever an older revision had to wrap around it."""
    async with Client(returning(hint, value), protocol_version=revision) as client:
        result = await client.call_tool("give")
    # Dates and ids are dates and ids, and not how JSON spells them.
    assert same(msgspec.json.decode(msgspec.json.encode(result.data)), json)
    assert type(result.data) is type(value) or not isinstance(value, datetime.date | uuid.UUID)


@pytest.mark.parametrize("hint, value, json", VALUES, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
async def test_before_2025_06_18_there_is_text(
    connect: Connect, revision: str, hint: Any, value: Any, json: Any
) -> None:
    tool, result = await listed_and_called(connect, returning(hint, value), revision)
    assert "outputSchema" not in tool
    assert result.keys() == {"content", "isError"}
    assert [block["type"] for block in result["content"]] == ["text"]


# What is not structured


@pytest.mark.parametrize("hint", [Any, None, Annotated[str, "said"]])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_text_is_a_text(connect: Connect, revision: str, hint: Any) -> None:
    tool, result = await listed_and_called(connect, returning(hint, "words"), revision)
    assert "outputSchema" not in tool
    assert result["content"] == [{"type": "text", "text": "words"}]
    assert "structuredContent" not in result


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_promised_text_is_structured_too(connect: Connect, revision: str) -> None:
    """As FastMCP and the official SDK have it: their clients read the value there."""
    tool, result = await listed_and_called(connect, returning(str, "words"), revision)
    assert result["content"] == [{"type": "text", "text": "words"}]
    known_names = revision >= "2025-06-18"
    assert ("outputSchema" in tool, "structuredContent" in result) == (known_names, known_names)
    if known_names:
        assert result["structuredContent"] == {"result": "words"}


async def test_server_may_keep_texts_plain(connect: Connect) -> None:
    server = Server("s", component_defaults=ComponentDefaults(structured_output=False))

    @server.tool
    async def give() -> str:
        return "words"

    tool, result = await listed_and_called(connect, server, "2026-07-28")
    assert "outputSchema" not in tool and "structuredContent" not in result


async def test_return_annotation_is_optional(connect: Connect) -> None:
    server = Server("s")
    server.add(Tool(lambda: "words", name="give"))
    tool, result = await listed_and_called(connect, server, "2026-07-28")
    assert "outputSchema" not in tool
    assert result["content"] == [{"type": "text", "text": "words"}]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("hint", [None, Any, str | None])
async def test_none_has_no_content(connect: Connect, revision: str, hint: Any) -> None:
    _, result = await listed_and_called(connect, returning(hint, None), revision)
    assert result["content"] == []
    assert result["isError"] is False
    assert "structuredContent" not in result


@pytest.mark.parametrize(
    "value, text, structured",
    [
        ({"a": 1}, '{"a":1}', True),
        (Point(1), '{"x":1,"y":0}', True),
        (Person(name="Ada"), '{"name":"Ada","age":0,"nickName":null}', True),
        (5, "5", False),
        (True, "true", False),
        ([1, 2], "[1,2]", False),
        (WHEN, '"2026-01-31T12:00:00Z"', False),
        (Path("a/b"), '"a/b"', False),
        ({"deep": {"when": WHEN}}, '{"deep":{"when":"2026-01-31T12:00:00Z"}}', True),
        (range(3), '"range(0, 3)"', False),
        (Bare(), '"bare"', False),
    ],
    ids=str,
)
async def test_without_output_schema_only_objects_are_structured(
    connect: Connect, value: Any, text: str, structured: bool
) -> None:
    tool, result = await listed_and_called(connect, returning(Any, value), "2026-07-28")
    assert "outputSchema" not in tool
    assert result["content"] == [{"type": "text", "text": text}]
    assert ("structuredContent" in result) is structured


# Media and blocks

PNG = b"\x89PNG"
MEDIA: list[tuple[Any, Any]] = [
    (Image(data=PNG), {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}),
    (Image(data=PNG, format="JPEG"), {"type": "image", "data": "iVBORw==", "mimeType": "image/jpeg"}),
    (Image(data=PNG, mime_type="image/webp"), {"type": "image", "data": "iVBORw==", "mimeType": "image/webp"}),
    (Audio(data=b"\x00"), {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
    (Audio(data=b"\x00", format="mp3"), {"type": "audio", "data": "AA==", "mimeType": "audio/mp3"}),
    (
        File(data=b"a,b", mime_type="text/csv", name="t.csv"),
        {"type": "resource", "resource": {"uri": "file:///t.csv", "mimeType": "text/csv", "text": "a,b"}},
    ),
    (
        File(data=b"\xff", name="f"),
        {"type": "resource", "resource": {"uri": "file:///f", "mimeType": "application/octet-stream", "blob": "/w=="}},
    ),
    (TextContent(text="t"), {"type": "text", "text": "t"}),
    (
        TextContent(text="t", annotations=Annotations(priority=1.0)),
        {"type": "text", "text": "t", "annotations": {"priority": 1.0}},
    ),
    (ImageContent(data="AA==", mime_type="image/png"), {"type": "image", "data": "AA==", "mimeType": "image/png"}),
    (AudioContent(data="AA==", mime_type="audio/wav"), {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
    (ResourceLink(uri="a://b", name="b"), {"type": "resource_link", "uri": "a://b", "name": "b"}),
    (
        EmbeddedResource(resource=TextResourceContents(uri="a://b", text="t")),
        {"type": "resource", "resource": {"uri": "a://b", "text": "t"}},
    ),
    (
        b"\x00",
        {
            "type": "resource",
            "resource": {"uri": "tool://give/result", "mimeType": "application/octet-stream", "blob": "AA=="},
        },
    ),
]


@pytest.mark.requirement("content.base64")
@pytest.mark.parametrize("value, block", MEDIA, ids=lambda one: type(one).__name__)
async def test_media_and_blocks_are_content(connect: Connect, value: Any, block: dict[str, Any]) -> None:
    for hint in (Any, type(value)):
        tool, result = await listed_and_called(connect, returning(hint, value), "2026-07-28")
        assert "outputSchema" not in tool
        assert result["content"] == [block]
        assert "structuredContent" not in result


@pytest.mark.parametrize("hint", [Any, list, list[Any], list[str | Image], tuple[str, Image]])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_texts_and_media_may_be_mixed(connect: Connect, revision: str, hint: Any) -> None:
    value: Any = ["look", Image(data=PNG)]
    tool, result = await listed_and_called(connect, returning(hint, value), revision)
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    if "outputSchema" in tool:
        jsonschema_rs.validator_for(tool["outputSchema"]).validate(result["structuredContent"])


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_content_unknown_to_a_protocol_version_is_sent_as_text(connect: Connect, revision: str) -> None:
    value = [Audio(data=b"\x00" * 300), ResourceLink(uri="a://b", name="b", title="The b")]
    _, result = await listed_and_called(connect, returning(Any, value), revision)
    audio, link = result["content"]
    assert audio["type"] == ("audio" if revision >= "2025-03-26" else "text")
    assert link["type"] == ("resource_link" if revision >= "2025-06-18" else "text")
    if revision < "2025-03-26":
        assert audio["text"] == "[audio/wav, 300 bytes]"
    if revision < "2025-06-18":
        assert link["text"] == "The b: a://b"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_members_that_a_revision_does_not_know_are_left_out(connect: Connect, revision: str) -> None:
    late = Annotations(last_modified="2026-01-01T00:00:00Z", audience=["user"])
    block = TextContent(text="t", annotations=late, meta={"example.com/a": 1})
    _, result = await listed_and_called(connect, returning(Any, block), revision)
    [said] = result["content"]
    assert ("_meta" in said) is (revision >= "2025-06-18")
    assert ("lastModified" in said["annotations"]) is (revision >= "2025-06-18")
    assert said["annotations"]["audience"] == ["user"]


async def test_file_is_read_when_sent_and_path_is_not_disclosed(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    value = [Image(path), File(path)]
    path.write_text("<svg/>")
    _, result = await listed_and_called(connect, returning(Any, value), "2026-07-28")
    image, file = result["content"]
    assert image["mimeType"] == "image/svg+xml"
    assert file["resource"] == {"uri": "file:///chart.svg", "mimeType": "image/svg+xml", "text": "<svg/>"}
    assert str(tmp_path) not in str(result)


async def test_missing_image_file_does_not_reveal_its_path(tmp_path: Path) -> None:
    async with Client(returning(Any, Image(tmp_path / "gone.png"))) as client:
        result = await client.call_tool("give", raise_on_error=False)
    assert result.is_error
    assert str(tmp_path) not in result.text
    assert "error id" in result.text


def test_picture_has_one_source() -> None:
    for options in ({}, {"path": "a", "data": b"b"}):
        with pytest.raises(UsageError, match="Image takes a path or data"):
            Image(**options)


# In full


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_may_be_said_in_full(connect: Connect, revision: str) -> None:
    full = ToolResult(content=["a", Image(data=PNG)], structured={"n": 1}, meta={"example.com/a": 1})
    _, result = await listed_and_called(connect, returning(ToolResult, full), revision)
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert result.get("structuredContent") == ({"n": 1} if revision >= "2025-06-18" else None)
    assert result["_meta"]["example.com/a"] == 1


@pytest.mark.parametrize(
    "full, content",
    [
        (ToolResult(content="text"), [{"type": "text", "text": "text"}]),
        (ToolResult(), []),
        (ToolResult(content=[]), []),
        (ToolResult(structured={"n": 1}), [{"type": "text", "text": '{"n":1}'}]),
        (ToolResult(structured=None), []),
        (ToolResult(structured=[1]), [{"type": "text", "text": "[1]"}]),
        (ToolResult(content={"n": 1}), [{"type": "text", "text": '{"n":1}'}]),
        (ToolResult(content="no", is_error=True), [{"type": "text", "text": "no"}]),
    ],
    ids=str,
)
async def test_incomplete_tool_results_are_completed(connect: Connect, full: ToolResult, content: Any) -> None:
    _, result = await listed_and_called(connect, returning(Any, full), "2026-07-28")
    assert result["content"] == content
    assert result["isError"] is full.is_error
    assert ("structuredContent" in result) is (full.structured not in (None, msgspec.UNSET))
    assert isinstance(result.get("structuredContent", {}), dict)


async def test_result_said_in_full_is_not_used_up(connect: Connect) -> None:
    """The same object may be returned to many clients of many revisions."""
    full = ToolResult(content="same", meta={"example.com/a": 1})
    server = returning(Any, full)
    first = [(await listed_and_called(connect, server, revision))[1] for revision in SUPPORTED_PROTOCOL_VERSIONS]
    again = [(await listed_and_called(connect, server, revision))[1] for revision in SUPPORTED_PROTOCOL_VERSIONS]
    assert first == again


# A schema by the author


@pytest.mark.parametrize("revision", STRUCTURED)
async def test_author_may_write_the_output_schema(connect: Connect, revision: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "description": "How many"}}, "required": ["n"]}
    server = Server("s")

    @server.tool(output_schema=schema)
    async def give() -> dict[str, int]:
        return {"n": 1}

    tool, result = await listed_and_called(connect, server, revision)
    assert tool["outputSchema"] == schema
    assert result["structuredContent"] == {"n": 1}


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def promising(value: Any, schema: dict[str, Any]) -> Server:
    server = Server("s")

    @server.tool(output_schema=schema)
    async def give() -> Any:
        return value

    return server


@pytest.mark.requirement("tools.output-author")
@pytest.mark.parametrize(
    "value",
    [
        {"n": "one"},
        {},
        [1],
        None,
        "n",
        ToolResult(structured={"m": 1}),
        ToolResult(content=["x"]),
        CallToolResult(content=[], structured_content={"n": None}, is_error=False),
        CallToolResult(content=[], is_error=False),
        Image(data=b"", format="png"),
    ],
    ids=range(10),
)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_that_violates_an_explicit_schema_is_not_sent(revision: str, value: Any) -> None:
    """server/tools, Output Schema: "Servers MUST provide structured results that conform to this schema"."""
    async with Client(promising(value, SCHEMA), protocol_version=revision) as client:
        result = await client.call_tool("give", raise_on_error=False)
    assert result.is_error
    assert result.structured is None
    assert "error id" in result.text


@pytest.mark.parametrize(
    "value",
    [
        {"n": 1},
        ToolResult(content="one", structured={"n": 1}),
        CallToolResult(content=[], structured_content={"n": 1}, is_error=False),
    ],
    ids=range(3),
)
@pytest.mark.parametrize("revision", STRUCTURED)
async def test_result_that_matches_an_explicit_schema_is_sent(connect: Connect, revision: str, value: Any) -> None:
    _, result = await listed_and_called(connect, promising(value, SCHEMA), revision)
    assert result["structuredContent"] == {"n": 1}


@pytest.mark.parametrize("revision", STRUCTURED)
async def test_explicit_result_is_an_object_for_clients_with_schema(connect: Connect, revision: str) -> None:
    result = CallToolResult(content=[], structured_content=[1], is_error=False)
    _, message = await listed_and_called(connect, promising(result, {"type": "array"}), revision)
    assert message["structuredContent"] == ([1] if revision == "2026-07-28" else {"result": [1]})


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_error_needs_no_structured_content(connect: Connect, revision: str) -> None:
    _, result = await listed_and_called(connect, promising(ToolResult(content="no", is_error=True), SCHEMA), revision)
    assert (result["isError"], result["content"][0]["text"]) == (True, "no")


@pytest.mark.requirement("tools.output-author")
@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"properties": 5}, {"$ref": "https://example.com/schema"}])
def test_invalid_output_schema_raises_usage_error(schema: Any) -> None:
    with pytest.raises(UsageError, match="invalid output_schema"):
        promising(1, schema)


async def test_obviously_invalid_arguments_are_rejected_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    for value, fits in (({"n": 1}, True), ({"n": "one"}, False), ({}, False)):
        async with Client(promising(value, SCHEMA)) as client:
            assert (await client.call_tool("give", raise_on_error=False)).is_error is not fits


# What was promised and not kept


@pytest.mark.requirement("tools.validated")
@pytest.mark.parametrize(
    "hint, value",
    [
        (int, "three"),
        (Point, {"x": "one"}),
        (Point, None),
        (list[int], ["a"]),
        (dict[str, int], {"a": "b"}),
        (bool, 1),
        (Movie, {}),
        (list[Movie], [{}]),
        (list[Point], [{"x": "one"}]),
        (Point, ToolResult(structured={"x": "one"})),
        (Point, ToolResult(content="x")),
        (Point, Image(data=b"", format="png")),
    ],
)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_that_violates_the_inferred_schema_is_not_sent(revision: str, hint: Any, value: Any) -> None:
    async with Client(returning(hint, value), protocol_version=revision) as client:
        result = await client.call_tool("give", raise_on_error=False)
    assert result.is_error
    assert result.structured is None
    assert "error id" in result.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("revision", STRUCTURED)
async def test_number_that_json_does_not_have_is_not_sent_as_null(revision: str, value: float) -> None:
    async with Client(returning(float, value), protocol_version=revision) as client:
        assert (await client.call_tool("give", raise_on_error=False)).is_error


@pytest.mark.parametrize("hint, expected", [(int, "int"), (list[int], "list[int]"), (int | None, "int | None")])
async def test_wrong_result_type_is_logged_by_its_name(
    hint: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("wrong")

    def give() -> Any:
        return "x"

    give.__annotations__["return"] = hint
    server.tool(give)
    async with Client(server) as client:
        with pytest.raises(ToolError, match="Internal error"):
            await client.call_tool("give")
    assert f"give returned str, expected {expected}: " in caplog.text
