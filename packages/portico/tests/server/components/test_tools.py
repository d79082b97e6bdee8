"""Tools: definitions, arguments and errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from portico import Client, Context, Image, ProtocolError, Server, ToolError, ToolResult, UsageError
from portico.auth.principal import Principal
from portico.protocol.meta import Icon
from portico.protocol.tools import ToolAnnotations
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.server.components.tools import Tool
from portico.server.components.validation import META_VERSION
from portico.server.options import ComponentDefaults

Connect = Callable[..., Any]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int = 1


class Options(TypedDict):
    deep: bool


class Closed(msgspec.Struct):
    value: int


async def text_of(server: Server, name: str, arguments: dict[str, Any], **options: Any) -> str:
    """What the model reads, error or not."""
    async with Client(server, **{"timeout": 10.0} | options) as client:
        return (await client.call_tool(name, arguments, raise_on_error=False)).text


# What a client is told


async def test_bare_decorator_is_enough() -> None:
    server = Server("s")

    @server.tool
    async def forecast(city: str, days: int = 3) -> str:
        """One line that the model reads.

        Args:
            city: Where.
        """
        return city * days

    async with Client(server) as client:
        [tool] = await client.list_tools()
    assert (tool.name, tool.description) == ("forecast", "One line that the model reads.")
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


async def test_everything_can_be_said_of_a_tool() -> None:
    server = Server("s")

    @server.tool(
        name="the-tool",
        title="The Tool",
        description="It is the one.",
        version="1.2.0",
        annotations={"readOnlyHint": True, "destructive_hint": False},
        icons=[Icon("https://example.com/i.png", "image/png")],
        meta={"example.com/kind": "only"},
    )
    async def anything() -> str:
        """Not this."""
        return ""

    async with Client(server) as client:
        [tool] = await client.list_tools()
    assert (tool.name, tool.title, tool.description) == ("the-tool", "The Tool", "It is the one.")
    assert tool.annotations == ToolAnnotations(read_only_hint=True, destructive_hint=False)
    assert tool.icons == [Icon("https://example.com/i.png", "image/png")]
    assert tool.meta == {"example.com/kind": "only", META_VERSION: "1.2.0"}


async def test_decorator_accepts_only_a_name() -> None:
    server = Server("s")
    server.tool("short")(lambda: "yes")
    assert await text_of(server, "short", {}) == "yes"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_older_client_does_not_receive_unknown_members(connect: Connect, revision: str) -> None:
    server = Server("s")

    @server.tool(title="T", annotations={"readOnlyHint": True}, icons=[Icon("https://example.com/i.png")], version="1")
    async def give() -> dict[str, int]:
        return {}

    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    [tool] = (await wire.request_as(revision, "tools/list"))["result"]["tools"]
    known_names = {"name", "inputSchema"}
    known_names |= {"annotations"} if revision >= "2025-03-26" else set()
    known_names |= {"title", "outputSchema", "_meta"} if revision >= "2025-06-18" else set()
    known_names |= {"icons"} if revision >= "2025-11-25" else set()
    assert tool.keys() == known_names


def test_function_is_still_a_function() -> None:
    server = Server("s")

    @server.tool
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8


async def test_methods_partials_and_objects_that_can_be_called_are_tools_too() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        async def up(self, by: int = 1) -> str:
            self.count += by
            return str(self.count)

        async def __call__(self, to: int) -> str:
            self.count = to
            return str(self.count)

    def join(first: str, second: str) -> str:
        return first + second

    counter, server = Counter(), Server("s")
    server.add(counter.up)
    server.add(Tool(counter, name="set"))
    server.add(Tool(partial(join, "a"), name="join"))
    async with Client(server) as client:
        assert (await client.call_tool("up", {"by": 2})).text == "2"
        assert (await client.call_tool("set", {"to": 7})).text == "7"
        assert (await client.call_tool("join", {"second": "b"})).text == "ab"


def test_mistake_shows_while_the_server_is_built() -> None:
    server = Server("s")
    server.tool("twice")(lambda: "")
    with pytest.raises(UsageError, match="tool 'twice' is already registered"):
        server.tool("twice")(lambda: "")
    with pytest.raises(UsageError, match="invalid name"):
        server.tool("with space")(lambda: "")
    with pytest.raises(UsageError, match="unknown annotation 'readonly'"):
        server.tool(name="t", annotations={"readonly": True})(lambda: "")
    with pytest.raises(UsageError, match="run_in_thread=False cannot have a timeout"):
        server.tool(name="t", run_in_thread=False, timeout=1)(lambda: "")
    with pytest.raises(UsageError, match="the function or options, not both"):
        server.tool(lambda *rest: "", title="T")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"\*rest"):
        server.tool("rest")(lambda *rest: "")
    assert [tool.name for tool in server.tools] == ["twice"]


# Other names


async def test_alias_can_be_called_and_is_not_listed() -> None:
    server = Server("s")
    server.tool(name="memory_capture", aliases=["subcog_capture", "memory.capture"])(lambda: "captured")
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["memory_capture"]
        for name in ("memory_capture", "subcog_capture", "memory.capture"):
            assert (await client.call_tool(name)).text == "captured"


async def test_removing_a_tool_removes_its_aliases() -> None:
    server = Server("s")
    server.tool(name="one", aliases=["uno"])(lambda: "1")
    server.remove("one")
    async with Client(server) as client:
        with pytest.raises(ProtocolError, match="Unknown tool: uno"):
            await client.call_tool("uno")
    server.tool(name="uno")(lambda: "now a tool")


@pytest.mark.requirement("tools.unique")
@pytest.mark.parametrize("name, aliases", [("one", []), ("uno", []), ("two", ["one"]), ("two", ["uno"])])
def test_names_and_aliases_are_all_different(name: str, aliases: list[str]) -> None:
    server = Server("s")
    server.tool(name="one", aliases=["uno"])(lambda: "1")
    with pytest.raises(UsageError, match="already registered"):
        server.tool(name=name, aliases=aliases)(lambda: "2")
    assert [tool.name for tool in server.tools] == ["one"]


# What may be sent


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_arguments_arrive_as_the_types_that_were_requested(revision: str) -> None:
    seen: list[Any] = []
    server = Server("s")

    @server.tool
    async def take(
        a: int, b: float, c: Colour, d: Address, e: Options, f: list[Address], g: Literal["x"], h: int | None = None
    ) -> str:
        seen.extend([a, b, c, d, e, f, g, h])
        return "taken"

    arguments = {
        "a": 1,
        "b": 2,
        "c": "blue",
        "d": {"street": "Main", "number": 3},
        "e": {"deep": True},
        "f": [{"street": "Side"}],
        "g": "x",
    }
    assert await text_of(server, "take", arguments, protocol_version=revision) == "taken"
    assert seen == [1, 2.0, Colour.BLUE, Address("Main", 3), {"deep": True}, [Address("Side")], "x", None]


@pytest.mark.parametrize("arguments", [{}, {"arguments": {}}, {"arguments": None}])
async def test_tool_without_parameters_receives_no_arguments(connect: Connect, arguments: dict[str, Any]) -> None:
    server = Server("s")
    server.tool("bare")(lambda: "bare")
    response = await connect(server).request_stateless("tools/call", {"name": "bare", **arguments})
    assert response["result"]["content"][0]["text"] == "bare"


async def test_json_inside_a_string_is_understood() -> None:
    """Models do that, and refusing it only costs another round."""
    server = Server("s")

    @server.tool
    async def total(numbers: list[int], address: Address) -> str:
        return f"{sum(numbers)} {address.street}"

    assert await text_of(server, "total", {"numbers": "[1, 2]", "address": '{"street": "Main"}'}) == "3 Main"


async def test_context_is_not_an_argument() -> None:
    server = Server("s")

    @server.tool
    async def who(ctx: Context, name: str = "you") -> str:
        return f"{name} at {ctx.protocol_version}"

    async with Client(server) as client:
        [tool] = await client.list_tools()
        assert list(tool.input_schema["properties"]) == ["name"]
        assert (await client.call_tool("who")).text == "you at 2026-07-28"
        refused = await client.call_tool("who", {"ctx": 1}, raise_on_error=False)
    assert "Unknown argument 'ctx'" in refused.text


# What is said when it is wrong


def strict() -> Server:
    server = Server("s")

    @server.tool
    async def order(
        city: str,
        days: Annotated[int, msgspec.Meta(ge=1, le=14)] = 3,
        colour: Colour = Colour.RED,
        address: Address | None = None,
        tags: Sequence[str] = (),
    ) -> str:
        return "ordered"

    return server


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, ["Missing argument 'city'", "a string"]),
        ({"city": 5}, ["'city'", "expected a string", "received the number 5"]),
        ({"city": "x", "days": "soon"}, ["'days'", "an integer between 1 and 14", 'the string "soon"']),
        ({"city": "x", "days": 15}, ["'days'", "between 1 and 14", "the number 15"]),
        ({"city": "x", "day": 1}, ["Unknown argument 'day'", "Did you mean 'days'?", "Accepted: 'city', 'days'"]),
        (
            {"city": "x", "colour": "rad"},
            ["'colour'", "one of 'red', 'blue'", 'the string "rad"', "Did you mean 'red'?"],
        ),
        ({"city": "x", "address": {"street": 1}}, ["'address.street'", "a string", "the number 1"]),
        ({"city": "x", "address": {"strete": "a"}}, ["'strete'", "in 'address'", "Did you mean 'street'?"]),
        ({"city": "x", "tags": ["a", 2]}, ["'tags[1]'", "a string", "the number 2"]),
        ({"city": None, "days": None}, ["'city'", "'days'", "null"]),
    ],
)
async def test_invalid_argument_error_suggests_a_correction(arguments: dict[str, Any], words: list[str]) -> None:
    text = await text_of(strict(), "order", arguments)
    for word in words:
        assert word in text


@pytest.mark.requirement("tools.validated")
async def test_all_mistakes_are_named_at_once() -> None:
    text = await text_of(strict(), "order", {"days": 99, "colour": "green", "town": "x"})
    assert len(text.splitlines()) == 4
    for word in ("'days'", "'colour'", "'town'", "'city'"):
        assert word in text


async def test_long_value_is_not_repeated_in_full() -> None:
    text = await text_of(strict(), "order", {"city": "x", "days": "9" * 10_000})
    assert len(text) < 400


@pytest.mark.parametrize("arguments", [[], "city", 5, True])
async def test_non_object_arguments_are_rejected(connect: Connect, arguments: Any) -> None:
    response = await connect(strict()).request_stateless("tools/call", {"name": "order", "arguments": arguments})
    assert response["result"]["isError"] is True
    assert "Invalid arguments: expected an object" in response["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    "habit, revision, as_result",
    [
        ("auto", "2025-06-18", False),
        ("auto", "2025-11-25", True),
        ("auto", "2026-07-28", True),
        ("result", "2024-11-05", True),
        ("result", "2026-07-28", True),
        ("protocol", "2024-11-05", False),
        ("protocol", "2026-07-28", False),
    ],
)
async def test_server_may_pin_how_wrong_arguments_are_informed(
    connect: Connect, habit: Any, revision: str, as_result: bool
) -> None:
    server = Server("s", argument_errors=habit)
    server.tool("need")(lambda it: "")
    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    response = await wire.request_as(revision, "tools/call", {"name": "need"})
    if as_result:
        assert response["result"]["isError"] is True
        assert "Missing argument 'it'" in response["result"]["content"][0]["text"]
    else:
        assert response["error"]["code"] == -32602
        assert response["error"]["data"]["problems"][0]["path"] == "arguments.it"


def repairing(**options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    def book(count: int, ready: bool = False, labels: tuple[str, ...] = (), where: dict[str, int] | None = None) -> str:
        return repr((count, ready, labels, where))

    return server


@pytest.mark.parametrize(
    "arguments, path, expected",
    [
        ({"count": "5"}, "arguments.count", "an integer"),
        ({"count": 1, "ready": "true"}, "arguments.ready", "true or false"),
        ({"count": 1, "labels": '["a"]'}, "arguments.labels", "an array"),
        ({"count": 1, "where": '{"x": 1}'}, "arguments.where", "an object"),
        ({"count": 1, "where": {"x": "1"}}, "arguments.where.x", "an integer"),
    ],
)
async def test_strict_arguments_rejects_texts_that_would_be_repaired(
    connect: Connect, arguments: dict[str, Any], path: str, expected: str
) -> None:
    call = {"name": "book", "arguments": arguments}
    assert (await connect(repairing()).request_stateless("tools/call", call))["result"]["isError"] is False
    wire = connect(repairing(component_defaults=ComponentDefaults(strict_arguments=True)))
    refused = (await wire.request_stateless("tools/call", call))["result"]
    assert refused["isError"]
    [problem] = refused["_meta"]["portico/error"]["problems"]
    assert problem["path"] == path
    assert expected in problem["message"]
    assert "received" in problem["message"]
    # JSON Schema takes 5.0 for an integer, and so does a strict server.
    response = await wire.request_stateless("tools/call", {"name": "book", "arguments": {"count": 5.0}})
    assert response["result"]["content"][0]["text"] == "(5, False, (), None)"


async def test_strict_arguments_leaves_prompts_alone(connect: Connect) -> None:
    server = Server("s", component_defaults=ComponentDefaults(strict_arguments=True))

    @server.prompt
    def plan(days: int) -> str:
        return f"{days + 1} days"

    response = await connect(server).request_as(
        "2026-07-28", "prompts/get", {"name": "plan", "arguments": {"days": "2"}}
    )
    assert response["result"]["messages"][0]["content"]["text"] == "3 days"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_after_a_mistake_the_next_call_works(connect: Connect, revision: str) -> None:
    wire = connect(strict())
    if revision != "2026-07-28":
        await wire.initialize(revision)
    await wire.request_as(revision, "tools/call", {"name": "order", "arguments": {"days": 0}})
    response = await wire.request_as(revision, "tools/call", {"name": "order", "arguments": {"city": "x"}})
    assert response["result"]["content"][0]["text"] == "ordered"


async def test_misspelt_tool_is_met_with_the_nearest_names() -> None:
    server = Server("s")
    for name in ("create_task", "update_task", "weather"):
        server.tool(name)(lambda: "")
    async with Client(server) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.call_tool("creat_task")
    assert raised.value.code == -32602
    assert raised.value.message == "Unknown tool: creat_task"
    assert raised.value.data["suggestions"][0] == "create_task"
    assert "weather" not in raised.value.data["suggestions"]


@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": None}, {"name": ["add"]}])
async def test_call_without_a_name_is_no_call(connect: Connect, params: dict[str, Any]) -> None:
    error = (await connect(strict()).request_stateless("tools/call", params))["error"]
    assert error["code"] == -32602
    assert "name" in error["message"]


# What is said when the body fails


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_error_is_the_authors_own_word(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def refuse() -> str:
        raise ToolError("The library is closed on Sundays; try Monday.")

    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ToolError, match="try Monday"):
            await client.call_tool("refuse")
        result = await client.call_tool("refuse", raise_on_error=False)
    assert (result.is_error, result.text) == (True, "The library is closed on Sundays; try Monday.")


@pytest.mark.parametrize("running", ["async", "thread", "inline"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unexpected_exception_shows_an_id_and_nothing_else(
    revision: str, running: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s")

    def fail() -> str:
        raise RuntimeError("password=hunter2 in /etc/secret/file.py")

    async def fail_async() -> str:
        return fail()

    if running == "async":
        server.tool("fail")(fail_async)
    else:
        server.tool(name="fail", run_in_thread=running != "inline")(fail)
    with caplog.at_level(logging.ERROR, "portico"):
        text = await text_of(server, "fail", {}, protocol_version=revision)
    assert text.startswith("Internal error (error id ")
    for leaked in ("hunter2", "/etc", "RuntimeError", ".py"):
        assert leaked not in text
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert text.rpartition(" ")[2].rstrip(")") in record.getMessage()
    assert record.exc_info is not None
    assert "hunter2" in str(record.exc_info[1])


async def test_invalid_output_is_a_server_error() -> None:
    server = Server("s")

    @server.tool
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    async with Client(server) as client:
        result = await client.call_tool("count", raise_on_error=False)
    assert result.is_error
    assert "many" not in result.text


async def test_timeout_error_has_the_limit() -> None:
    server = Server("s")

    @server.tool(timeout=0.01)
    async def endless() -> str:
        await asyncio.Event().wait()
        return ""

    text = await text_of(server, "endless", {})
    assert "'endless'" in text
    assert "0.01 s" in text


async def test_timeout_of_the_bodys_own_is_not_ours() -> None:
    server = Server("s")

    @server.tool(timeout=60)
    async def impatient() -> str:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
        return ""

    text = await text_of(server, "impatient", {})
    assert "error id" in text
    assert "did not finish" not in text


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_that_awaits_its_own_cancelled_task_returns_an_error(revision: str) -> None:
    """Nobody has cancelled the call, so somebody waits for its answer."""
    server = Server("s")

    @server.tool
    async def trip() -> str:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return "never"

    text = await text_of(server, "trip", {}, protocol_version=revision, timeout=5.0)
    assert "error id" in text


# Who may


@pytest.mark.parametrize(
    "principal, allowed",
    [
        (None, True),
        (Principal("ada", frozenset({"write", "read"})), True),
        (Principal("root"), True),
        (Principal("eve", frozenset({"read"})), False),
        (Principal("eve", frozenset()), False),
    ],
    ids=["nobody", "enough", "everything", "too_little", "nothing"],
)
async def test_scopes_apply_to_authenticated_callers(principal: Any, allowed: bool) -> None:
    ran: list[bool] = []
    server = Server("s")
    server.tool(name="write", scopes=["write"])(lambda: str(ran.append(True)))
    async with Client(server, principal=principal) as client:
        result = await client.call_tool("write", raise_on_error=False)
    assert (not result.is_error, bool(ran)) == (allowed, allowed)
    if not allowed:
        assert "scope write" in result.text


# Schemas of others


FOREIGN = {
    "type": "object",
    "properties": {"count": {"type": "integer", "maximum": 3}, "mode": {"enum": ["fast", "slow"]}},
    "required": ["count"],
    "additionalProperties": False,
}


def foreign() -> Server:
    server = Server("s")

    @server.tool(input_schema=FOREIGN)
    async def run(arguments: dict[str, Any]) -> str:
        """Run it."""
        return str(sorted(arguments.items()))

    return server


@pytest.mark.requirement("schemas.dialect")
async def test_arguments_are_validated_against_a_foreign_schema() -> None:
    assert await text_of(foreign(), "run", {"count": 2}) == "[('count', 2)]"
    for arguments, words in (
        ({}, ["count"]),
        ({"count": 9}, ["arguments.count", "9", "3"]),
        ({"count": "x"}, ["arguments.count", "integer"]),
        ({"count": 1, "mode": "medium"}, ["arguments.mode", "fast", "slow"]),
        ({"count": 1, "extra": 1}, ["extra"]),
    ):
        text = await text_of(foreign(), "run", arguments)
        assert text.startswith("Invalid arguments")
        for word in words:
            assert word in text


async def test_function_with_a_foreign_schema_may_take_its_arguments_by_name() -> None:
    server = Server("s")

    @server.tool(input_schema=FOREIGN)
    async def named(ctx: Context, count: int, **rest: Any) -> str:
        return f"{ctx.protocol_version} {count} {rest}"

    @server.tool(input_schema=FOREIGN)
    def all_of_them(**arguments: Any) -> str:
        return str(arguments)

    assert await text_of(server, "named", {"count": 2, "mode": "fast"}) == "2026-07-28 2 {'mode': 'fast'}"
    assert await text_of(server, "all_of_them", {"count": 2}) == "{'count': 2}"
    assert "extra" in await text_of(server, "named", {"count": 1, "extra": 1})


def test_property_cannot_have_the_name_of_the_context() -> None:
    with pytest.raises(
        UsageError, match="'ctx' receives the context, but input_schema has a property of the same name"
    ):

        @Server("s").tool(input_schema={"type": "object", "properties": {"ctx": {}}})
        def named(ctx: Context, **arguments: Any) -> str:
            return ""


async def test_foreign_schema_may_go_with_the_context() -> None:
    server = Server("s")

    @server.tool(name="after", input_schema=FOREIGN)
    async def after(arguments: dict[str, Any], ctx: Context) -> str:
        return f"{arguments['count']} {ctx.protocol_version}"

    @server.tool(name="before", input_schema=FOREIGN)
    async def before(ctx: Context, arguments: dict[str, Any]) -> str:
        return f"{arguments['count']} {ctx.protocol_version}"

    for name in ("after", "before"):
        assert await text_of(server, name, {"count": 1}) == "1 2026-07-28"


async def test_foreign_schema_may_return_an_explicit_result() -> None:
    server = Server("s")

    @server.tool(input_schema=FOREIGN)
    async def full(arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(content="in full")

    @server.tool(input_schema=FOREIGN)
    async def picture(arguments: dict[str, Any]) -> Image:
        return Image(data=b"png")

    async with Client(server) as client:
        assert [tool.output_schema for tool in await client.list_tools()] == [None, None]
        assert (await client.call_tool("full", {"count": 1})).text == "in full"
        assert (await client.call_tool("picture", {"count": 1})).content[0].mime_type == "image/png"


@pytest.mark.requirement("schemas.dialect")
@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {}, {"type": "object", "properties": 5}, {"type": "object", "$ref": "#/nowhere"}]
)
def test_foreign_schema_that_cannot_be_used_is_rejected_at_once(schema: dict[str, Any]) -> None:
    server = Server("s")
    with pytest.raises(UsageError, match="input_schema"):
        server.tool(name="t", input_schema=schema)(lambda arguments: "")


# Many


async def test_calls_run_side_by_side() -> None:
    server = Server("s")
    both = asyncio.Barrier(2)

    @server.tool
    async def meet() -> str:
        await both.wait()
        return "met"

    async with Client(server) as client, asyncio.timeout(10):
        said = await asyncio.gather(client.call_tool("meet"), client.call_tool("meet"))
    assert [result.text for result in said] == ["met", "met"]


async def test_thousand_tools_are_found_by_name() -> None:
    server = Server("s")
    for number in range(1000):
        server.add(Tool(lambda number=number: str(number), name=f"t{number}"))
    assert await text_of(server, "t777", {}) == "777"
