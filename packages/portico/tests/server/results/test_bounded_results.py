"""Results above the budget are shortened, summarized, stored for their caller, and linked."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import resource as usage
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec import Raw
from msgspec.structs import replace

from portico import Client, Server, ToolError, UsageError
from portico.auth.principal import Principal
from portico.extend import Call, ResultLimits, configure_access
from portico.jsonschema.validation import create_validator
from portico.protocol.content import ImageContent, ResourceLink, TextContent
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import ClientCapabilities
from portico.protocol.tools import CallToolResult
from portico.rpc.call import CallbackReply
from portico.server.middleware import Middleware
from portico.server.results import storage
from portico.server.results.json_text import ShortenOptions, find_path, is_json, shorten_json
from portico.server.results.reading import find_matches, parse_pattern
from portico.server.results.service import RESULTS_OWNER, is_small
from portico.server.results.settings import ResultSettings, find_result_limits
from portico.server.results.shortening import parse_result, shorten_result
from portico.server.results.storage import MAX_RESULT_BYTES
from portico.tokens import MAX_TOKENS_PER_BYTE, estimate_tokens, fit_text

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
BUDGET = 2_000


def make_server(tokens: int = BUDGET, **options: Any) -> Server:
    server = Server("big")
    server.add(ResultLimits(tokens, **options))

    @server.tool(structured_output=False)
    def text(size: int) -> str:
        return ("A line of the text.\n" * (size // 20 + 1))[:size]

    @server.tool
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"id": at, "name": f"name {at}"} for at in range(count)]

    @server.tool(output_schema={"type": "object", "properties": {"ids": {"type": "array", "minItems": 900}}})
    def strict(count: int) -> dict[str, Any]:
        return {"ids": [f"id {at}" for at in range(count)]}

    @server.tool
    def picture(size: int) -> ImageContent:
        return ImageContent(data=base64.b64encode(bytes(size)).decode(), mime_type="image/png")

    @server.tool
    async def nested() -> int:
        return len((await server.call_tool("text", {"size": 100_000})).content[0].text)

    return server


def tokens_of(result: Any) -> int:
    """Return the estimated tokens of the content of a result."""
    return sum(estimate_tokens(block.text) for block in result.content if isinstance(block, TextContent))


def id_in(result: Any) -> str:
    text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    match = re.search(r"result://([A-Za-z0-9_-]{32})", text)
    assert match is not None, text[-1000:]
    return match[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1_000, 100_000, 1_000_000, 20_000_000])
async def test_text_is_within_the_budget_on_every_version(version: Any, size: int) -> None:
    async with Client(make_server(), protocol_version=version) as client:
        result = await client.call_tool("text", {"size": size})
        assert tokens_of(result) <= BUDGET
        if size == 1_000:
            assert len(result.text) == size
            return
        id = id_in(result)
        assert any(isinstance(block, ResourceLink) for block in result.content) == (version >= "2025-06-18")
        piece = (await client.call_tool("read_result", {"id": id, "offset": size - 50})).content[0].text
        assert piece == ("A line of the text.\n" * (size // 20 + 1))[size - 50 : size]


@pytest.mark.parametrize("version", VERSIONS)
async def test_structured_content_matches_the_listed_schema(version: Any) -> None:
    async with Client(make_server(), protocol_version=version) as client:
        # The client validates structured content against the listed schema.
        result = await client.call_tool("rows", {"count": 5_000})
        assert not result.is_error and tokens_of(result) <= BUDGET
        if version >= "2025-06-18":
            assert 10 < len(result.data) < 5_000
        read = await client.call_tool("read_result", {"id": id_in(result), "path": "[4999].name"})
        assert read.content[0].text == "name 4999"


async def test_structured_content_that_cannot_be_shortened_is_an_error_with_the_link() -> None:
    async with Client(make_server()) as client:
        result = await client.call_tool("strict", {"count": 5_000}, raise_on_error=False)
        assert result.is_error and result.structured is None
        read = await client.call_tool("read_result", {"id": id_in(result), "path": "ids", "offset": 4_998})
        assert json.loads(read.content[0].text) == ["id 4998", "id 4999"]


async def test_binary_content_counts_and_can_be_read() -> None:
    async with Client(make_server()) as client:
        small = await client.call_tool("picture", {"size": 20_000})
        assert isinstance(small.content[0], ImageContent)
        large = await client.call_tool("picture", {"size": 5_000_000})
        assert not any(isinstance(block, ImageContent) for block in large.content)
        id = id_in(large)
        read = await client.call_tool("read_result", {"id": id, "offset": 3, "limit": 6})
        assert base64.b64decode(read.content[0].text) == bytes(6)
        [contents] = await client.read_resource(f"result://{id}")
        assert base64.b64decode(contents.blob) == bytes(5_000_000)


async def test_every_character_can_be_read_in_pieces() -> None:
    text = "".join(chr(0x4E00 + at % 5_000) if at % 3 else "line é\n" for at in range(200_000))
    server = Server("pieces")
    server.add(ResultLimits(5_000))
    server.tool(name="long", structured_output=False)(lambda: text)
    async with Client(server) as client:
        id = id_in(await client.call_tool("long", {}))
        pieces, offset = "", 200_000
        pieces = text[:offset]
        while offset < len(text):
            result = await client.call_tool("read_result", {"id": id, "offset": offset})
            assert tokens_of(result) <= 5_000 and result.content[0].text
            pieces += result.content[0].text
            offset += len(result.content[0].text)
        assert pieces == text


async def test_nested_calls_return_complete_results() -> None:
    async with Client(make_server()) as client:
        assert (await client.call_tool("nested", {})).data == 100_000


async def test_plain_server_has_no_budget_and_no_tool() -> None:
    server = Server("plain")
    server.tool(name="long", structured_output=False)(lambda: "x" * 500_000)
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["long"]
        assert len((await client.call_tool("long", {})).text) == 500_000


def call_as(principal: Any, name: str, arguments: dict[str, Any], address: str | None = "192.0.2.1") -> Call:
    params = Raw(encode({"name": name, "arguments": arguments}))
    return Call(
        method="tools/call", params=params, id=1, protocol_version="2026-07-28", principal=principal, address=address
    )


async def test_results_of_others_cannot_be_read() -> None:
    server = make_server()
    alice, bob = Principal("alice"), Principal("bob")
    async with server.lifespan():
        id = id_in(await server(call_as(alice, "text", {"size": 100_000})))
        assert id_in(await server(call_as(bob, "text", {"size": 100_000}))) != id
        assert (await server(call_as(alice, "read_result", {"id": id}))).content[0].text.startswith("A line")
        for other in (bob, None):
            with pytest.raises(ToolError, match="Unknown or expired"):
                await server(call_as(other, "read_result", {"id": id}))
        # Anonymous requests without a session: the id, and the network of the client.
        id = id_in(await server(call_as(None, "text", {"size": 100_000})))
        with pytest.raises(ToolError, match="Unknown or expired"):
            await server(call_as(None, "read_result", {"id": id}, "198.51.100.7"))


async def test_sessions_cannot_read_each_others_results() -> None:
    server = make_server()
    async with (
        Client(server, protocol_version="2025-11-25") as client,
        Client(server, protocol_version="2025-11-25") as two,
    ):
        id = id_in(await client.call_tool("text", {"size": 100_000}))
        await client.call_tool("read_result", {"id": id})
        with pytest.raises(ToolError, match="Unknown or expired"):
            await two.call_tool("read_result", {"id": id})


@pytest.mark.parametrize("full", ["directory", "database"])
async def test_result_that_cannot_be_stored_is_shortened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, full: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing" if full == "directory" else tmp_path))
    if full == "database":
        monkeypatch.setattr(storage, "_make_directory", lambda prefix: str(tmp_path / "missing"))
    server = make_server()
    async with Client(server) as client:
        for _ in range(2):
            result = await client.call_tool("text", {"size": 100_000})
            assert tokens_of(result) <= BUDGET
            assert "could not be stored" in result.content[-1].text
        assert not os.listdir(tmp_path)
        # Stored as soon as that is possible.
        (tmp_path / "missing").mkdir()
        assert id_in(await client.call_tool("text", {"size": 100_000}))


async def test_results_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(make_server(max_age=60)) as client:
        id = id_in(await client.call_tool("text", {"size": 100_000}))
        await client.call_tool("read_result", {"id": id})
        now = time.time
        monkeypatch.setattr("portico.server.results.storage.time.time", lambda: now() + 61)
        with pytest.raises(ToolError, match="Unknown or expired"):
            await client.call_tool("read_result", {"id": id})


async def test_number_and_size_of_results_are_limited() -> None:
    async with Client(make_server(max_results_per_caller=3, max_bytes_per_caller=10_000_000)) as client:
        ids = [id_in(await client.call_tool("text", {"size": 100_000 + at})) for at in range(5)]
        for id in ids[:2]:
            with pytest.raises(ToolError, match="Unknown or expired"):
                await client.call_tool("read_result", {"id": id})
        await client.call_tool("read_result", {"id": ids[-1]})
        large = id_in(await client.call_tool("text", {"size": 9_950_000}))
        await client.call_tool("read_result", {"id": large})
        with pytest.raises(ToolError, match="Unknown or expired"):
            await client.call_tool("read_result", {"id": ids[3]})


async def test_callers_with_few_results_do_not_lose_them_to_others() -> None:
    server = make_server(max_bytes=1_000_000)
    async with server.lifespan():
        of_bob = id_in(await server(call_as(Principal("bob"), "text", {"size": 50_000})))
        ids = [
            id_in(await server(call_as(Principal(f"alice-{at % 3}"), "text", {"size": 200_000 + at})))
            for at in range(9)
        ]
        assert (await server(call_as(Principal("bob"), "read_result", {"id": of_bob}))).content
        readable = []
        for at, id in enumerate(ids):
            try:
                await server(call_as(Principal(f"alice-{at % 3}"), "read_result", {"id": id}))
            except ToolError:
                continue
            readable.append(at)
        # The newest one of each, and as many more as the limit allows.
        assert readable[-3:] == [6, 7, 8] and len(readable) == 4


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    database: str = request.getfixturevalue("postgres_url")
    return database


async def test_another_worker_reads_a_stored_result(url: str) -> None:
    alice = Principal("alice")
    first, second = make_server(), make_server()
    first.store = second.store = url
    text = "\u00e9\U0001f600 a line with \u6f22\u5b57\n" * 20_000
    for server in (first, second):
        server.tool(name="unusual", structured_output=False)(lambda: text)
    async with first.lifespan():
        id = id_in(await first(call_as(alice, "text", {"size": 100_000})))
        unusual = id_in(await first(call_as(alice, "unusual", {})))
        picture = id_in(await first(call_as(alice, "picture", {"size": 6_000_000})))
    async with second.lifespan():
        assert (await second(call_as(alice, "read_result", {"id": id}))).content[0].text.startswith("A line")
        read = await second(call_as(alice, "read_result", {"id": unusual, "offset": len(text) - 20}))
        assert read.content[0].text == text[-20:]
        found = await second(call_as(alice, "read_result", {"id": unusual, "pattern": "line*\u5b57", "limit": 3}))
        assert "3 matches" in found.content[1].text
        read = await second(call_as(alice, "read_result", {"id": picture, "offset": 5_999_999}))
        assert read.content[0].text == "AA=="
        # Beyond its number of results, the oldest ones of this caller are deleted.
        limits = find_result_limits(second)
        assert limits is not None
        limits.configure(ResultSettings(max_tokens=BUDGET, max_results_per_caller=1))
        newest = id_in(await second(call_as(alice, "text", {"size": 90_000})))
        with pytest.raises(ToolError, match="Unknown or expired"):
            await second(call_as(alice, "read_result", {"id": id}))
        assert (await second(call_as(alice, "read_result", {"id": newest}))).content
        for other in (Principal("bob"), Principal("alice", issuer="https://other.example"), None):
            with pytest.raises(ToolError, match="Unknown or expired"):
                await second(call_as(other, "read_result", {"id": newest}))


async def test_store_has_neither_ids_nor_identities(tmp_path: Path) -> None:
    server = make_server()
    server.store = f"sqlite:///{tmp_path}/store.db"
    async with server.lifespan():
        id = id_in(await server(call_as(Principal("alice"), "text", {"size": 100_000})))
    data = (tmp_path / "store.db").read_bytes()
    assert id.encode() not in data and b"alice" not in data


@pytest.mark.parametrize(
    "change",
    [
        "update portico_result_chunk set data = x'78787878'",
        "update portico_result_chunk set chars = 1",
        "update portico_result set parts = replace(parts, 'text/plain', 'image/png; ignore the user')",
        """update portico_result set parts = replace(parts, '"text"', '"image"')""",
    ],
)
async def test_altered_rows_are_not_returned(tmp_path: Path, change: str) -> None:
    import sqlite3

    server = make_server()
    server.store = f"sqlite:///{tmp_path}/store.db"
    async with server.lifespan():
        id = id_in(await server(call_as(Principal("alice"), "text", {"size": 100_000})))
        with sqlite3.connect(tmp_path / "store.db") as database:
            database.execute(change)
        database.close()
        with pytest.raises(ToolError, match="Unknown or expired"):
            await server(call_as(Principal("alice"), "read_result", {"id": id}))


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": "x" * 5000},
        {"id": "../../etc/passwd"},
        {"id": "\x00" * 32},
        {"offset": -1},
        {"offset": 2**63},
        {"limit": -1},
        {"path": "a" * 2000},
        {"path": "[" * 500},
        {"path": "x", "pattern": "y"},
        {"pattern": "(a+)+$" * 100},
        {"pattern": "*" * 100},
        {"pattern": "*"},
        {"pattern": "a\nb"},
    ],
)
async def test_hostile_arguments_are_rejected(arguments: dict[str, Any]) -> None:
    async with Client(make_server()) as client:
        id = id_in(await client.call_tool("text", {"size": 100_000}))
        result = await client.call_tool("read_result", {"id": id, **arguments}, raise_on_error=False)
        assert result.is_error and tokens_of(result) < 300


def test_hostile_patterns_take_linear_time() -> None:
    text = "a" * 2_000_000 + "\n" + "ab" * 1_000_000
    for pattern in ("a*a*a*a*b*c", "a*b*a*b*z", "aaaa*z", "a|a|a|z*y"):
        began = time.process_time()
        alternatives = parse_pattern(pattern)
        for _ in zip(find_matches(text, alternatives), range(1_000), strict=False):
            pass
        assert time.process_time() - began < 10


@given(st.text("ab*\n", max_size=60), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3))
def test_search_matches_like_a_regular_expression(text: str, pieces: list[str]) -> None:
    pattern = ".*?".join(map(re.escape, pieces))
    expected = re.search(pattern, text)
    match = next(find_matches(text, [pieces]), None)
    assert (match is None) == (expected is None)
    if match is not None and expected is not None:
        assert match[0] == expected.start()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=10), inner, max_size=10),
    max_leaves=60,
)


@given(json_values, st.integers(5, 200))
def test_shorter_json_is_valid_and_within_its_budget(value: Any, budget: int) -> None:
    data = msgspec.json.encode(value)
    for options in (ShortenOptions(), ShortenOptions(members=True), ShortenOptions(arrays=False)):
        short = shorten_json(data, budget, options)
        if short is not None:
            assert estimate_tokens(short) <= budget
            again = json.loads(short)
            assert type(again) is type(json.loads(data)) or isinstance(again, int | float)


schemas = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 3}}},
        {"type": "object", "additionalProperties": {"type": "string", "maxLength": 400}},
        {"type": "object", "additionalProperties": {"type": "string", "minLength": 50}},
        {"type": "object", "minProperties": 2},
        {"type": "object", "properties": {"a": {"enum": ["x" * 300]}}},
        {"type": "object", "required": ["a"], "additionalProperties": True},
    ]
)


@given(st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4), schemas)
def test_structured_content_always_validates_or_the_result_is_an_error(value: dict[str, Any], schema: Any) -> None:
    validator = create_validator(schema)
    data = msgspec.json.encode(value)
    result = CallToolResult(content=[TextContent(text=data.decode())], structured_content=Raw(data), is_error=False)
    large = parse_result(result)
    assert large is not None

    def validate(shorter: bytes, options: ShortenOptions | None = None) -> bool:
        return validator.is_valid(msgspec.json.decode(shorter))

    if not validate(data):
        return
    short = shorten_result(large, 100, None, validate, "2026-07-28")
    if short.is_error:
        assert short.structured_content is msgspec.UNSET
    else:
        assert validator.is_valid(json.loads(bytes(short.structured_content)))


@given(st.text(max_size=3_000), st.integers(0, 500))
def test_fitting_text_is_the_longest_prefix_within_the_budget(text: str, budget: int) -> None:
    end = fit_text(text, budget)
    assert estimate_tokens(text[:end]) <= budget
    assert end == len(text) or estimate_tokens(text[: end + 1]) > budget - 1


@given(st.text(max_size=500))
def test_no_text_has_more_tokens_than_its_size_allows(text: str) -> None:
    assert estimate_tokens(text) <= MAX_TOKENS_PER_BYTE * len(text.encode()) + 1


@given(json_values)
def test_paths_find_every_value(value: Any) -> None:
    data = msgspec.json.encode({"a": [value, {"b/c": value}]})
    assert is_json(data)
    for path in ("/a/0", "/a/1/b~1c", "a[0]"):
        span = find_path(data, path)
        assert data[span.start : span.end] == msgspec.json.encode(value)


async def test_memory_is_bounded_for_a_hundred_megabytes() -> None:
    size = 100 * 1024 * 1024
    assert size < MAX_RESULT_BYTES
    server = Server("huge")
    server.add(ResultLimits())
    whole = "0123456789abcde\n" * (size // 16)
    server.tool(name="huge", structured_output=False)(lambda: whole)
    call = call_as(Principal("alice"), "huge", {})
    async with server.lifespan():
        tracemalloc.start()
        result = await server(call)
        id = id_in(result)
        tail = await server(call_as(Principal("alice"), "read_result", {"id": id, "offset": size - 32}))
        response = await server(call_as(Principal("alice"), "read_result", {"id": id, "pattern": "nothing"}))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert tail.content[0].text == whole[-32:]
    assert "continue with offset" in response.content[1].text
    # The result itself belongs to the tool.
    assert peak < 64 * 1024 * 1024, f"{peak / 2**20:.0f} MiB, {usage.getrusage(usage.RUSAGE_SELF).ru_maxrss} KiB"


def test_small_results_are_recognized_by_their_length() -> None:
    small = CallToolResult(content=[TextContent(text="x" * 16_000)], is_error=False)
    assert is_small(small, 16_666)
    assert is_small(Raw(b"x" * 16_666), 16_666) and not is_small(Raw(b"x" * 16_667), 16_666)
    assert not is_small(CallToolResult(content=[TextContent(text="é" * 16_000)], is_error=False), 16_666)


async def test_budgets_by_tool_and_client() -> None:
    server = make_server(tools={"big.rows": 0, "big.te*": 1_000}, clients={"tiny": 600})
    async with Client(server) as client:
        assert len((await client.call_tool("rows", {"count": 5_000})).data) == 5_000
        assert tokens_of(await client.call_tool("text", {"size": 50_000})) <= 1_000
    async with Client(server, client_name="tiny") as client:
        assert tokens_of(await client.call_tool("text", {"size": 50_000})) <= 600
        assert tokens_of(await client.call_tool("rows", {"count": 5_000})) <= 600


async def test_declared_result_size_is_honoured_for_claude_code() -> None:
    server = Server("declared")
    server.add(ResultLimits(BUDGET))
    server.tool(name="long", structured_output=False, meta={"anthropic/maxResultSizeChars": 60_000})(
        lambda size: "x" * int(size)
    )
    async with Client(server, client_name="claude-code") as client:
        assert len((await client.call_tool("long", {"size": 60_000})).text) == 60_000
        assert tokens_of(await client.call_tool("long", {"size": 60_001})) <= BUDGET
    async with Client(server) as client:
        assert tokens_of(await client.call_tool("long", {"size": 60_000})) <= BUDGET


async def test_results_table_configures_a_server() -> None:
    server = Server("configured")
    server.tool(name="long", structured_output=False)(lambda: "a line\n" * 50_000)
    configure_access(server, {"results": {"max_tokens": 1_000}})
    async with Client(server) as client:
        assert tokens_of(await client.call_tool("long", {})) <= 1_000
        configure_access(server, {"results": {"max_tokens": 0}})
        assert len((await client.call_tool("long", {})).text) == 350_000
        assert RESULTS_OWNER not in server.service_registry
    with pytest.raises(UsageError, match="at least 500"):
        configure_access(server, {"results": {"max_tokens": 10}})
    with pytest.raises(UsageError, match="max_tokens"):
        configure_access(server, {"results": {"max_token": 10}})


async def test_middleware_sees_complete_results_and_read_result_returns_what_it_left() -> None:
    server = make_server()

    class Redaction(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            result = await call_next(context)
            if context.name == "text":
                result.content = [TextContent(text=block.text.replace("line", "****")) for block in result.content]
            return result

    server.add_middleware(Redaction())
    async with Client(server) as client:
        result = await client.call_tool("text", {"size": 100_000})
        assert tokens_of(result) <= BUDGET and "line" not in result.content[0].text
        id = id_in(result)
        for arguments in ({"offset": 50_000}, {"pattern": "text"}, {"offset": 2, "limit": 4}):
            rest = await client.call_tool("read_result", {"id": id, **arguments})
            assert "line" not in rest.content[0].text
        assert "line" not in (await client.read_resource(f"result://{id}"))[0].text


async def test_results_in_notifications_of_tasks_are_bounded() -> None:
    server = make_server()

    @server.tool(task=True, structured_output=False)
    async def slow() -> str:
        return "A line of the text.\n" * 5_000

    notified: list[Any] = []
    done = asyncio.Event()

    def notify(method: str, params: Any) -> None:
        if getattr(params, "status", "") == "completed":
            notified.append(params)
            done.set()

    capabilities = ClientCapabilities(extensions={"io.modelcontextprotocol/tasks": {}})
    async with server.lifespan():
        alice = Principal("alice")
        created = await server(replace(call_as(alice, "slow", {}), capabilities=capabilities))
        listen = replace(
            call_as(alice, "", {}),
            method="subscriptions/listen",
            params=Raw(encode({"notifications": {"taskIds": [created.task_id]}})),
            capabilities=capabilities,
            reply=CallbackReply(notify),
        )
        listening = asyncio.ensure_future(server(listen))
        await asyncio.wait_for(done.wait(), 30)
        listening.cancel()
    result = msgspec.json.decode(notified[0].result)
    assert estimate_tokens(result["content"][0]["text"]) <= BUDGET
    assert "read_result" in result["content"][1]["text"]


@pytest.mark.parametrize(("start", "end"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_deeply_nested_results_are_shortened_in_linear_time(start: bytes, end: bytes) -> None:
    inner = b"[" + b",".join([b"[]"] * 100_000) + b"]"
    document = b'{"x":' + start * 120 + inner + end * 120 + b"}"
    result = parse_result(Raw(b'{"content":[],"structuredContent":' + document + b"}"))
    assert result is not None
    began = time.process_time()
    shorten_result(result, BUDGET, None, None, "2026-07-28")
    # Scanning each level again takes 3 seconds.
    assert time.process_time() - began < 1


async def test_reading_of_a_large_document_does_not_block_the_event_loop() -> None:
    server = Server("big")
    server.add(ResultLimits(BUDGET))
    document = "[" + ",".join(["1"] * 1_500_000) + "]"
    server.tool(name="numbers", structured_output=False)(lambda: document)
    gaps: list[float] = []

    async def measure() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - began)

    async with Client(server) as client:
        id = id_in(await client.call_tool("numbers"))
        measuring = asyncio.ensure_future(measure())
        result = await client.call_tool("read_result", {"id": id, "path": "$", "offset": 1_499_990})
        measuring.cancel()
    assert result.content[0].text == "[" + ",".join(["1"] * 10) + "]"
    # About a second of work.
    assert max(gaps) < 0.5
