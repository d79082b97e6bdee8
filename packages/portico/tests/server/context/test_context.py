"""Context methods on every protocol version: elicitation, steps, logging, progress, client information."""

from __future__ import annotations

import asyncio
import gc
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

from portico import Client, Context, ProtocolError, Server, ToolError
from portico.protocol.client_features import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    Root,
)
from portico.protocol.content import TextContent
from portico.protocol.errors import ClientRequestFailed
from portico.protocol.tools import Tool as Definition
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS

Connect = Callable[..., Any]

ELICITING = [revision for revision in SUPPORTED_PROTOCOL_VERSIONS if revision >= "2025-06-18"]
BEFORE_ELICITATION = ["2024-11-05", "2025-03-26"]
EVERYTHING = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
FORM = {"elicitation": {}}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Booking:
    name: Annotated[str, "Under which name"]
    seats: int
    window: bool = False


class Visit(BaseModel):
    city: str
    days: int = 1


async def text_of(server: Server, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
    """What the model reads, error or not."""
    async with Client(server, **{"timeout": 10.0} | options) as client:
        return (await client.call_tool(name, arguments, raise_on_error=False)).text


def asking(response_type: Any) -> Server:
    server = Server("asking")

    @server.tool
    async def ask(ctx: Context) -> str:
        result = await ctx.elicit("Well?", response_type)
        return f"{result.action} {result.data!r}"

    return server


# Eliciting


@pytest.mark.parametrize(
    "response_type, content, expected",
    [
        (str, {"value": "yes"}, "'yes'"),
        (int, {"value": 3}, "3"),
        (float, {"value": 1.5}, "1.5"),
        (bool, {"value": True}, "True"),
        (Literal["a", "b"], {"value": "b"}, "'b'"),
        (["small", "large"], {"value": "large"}, "'large'"),
        (Colour, {"value": "blue"}, "<Colour.BLUE: 'blue'>"),
        (Booking, {"name": "Ada", "seats": 2}, "Booking(name='Ada', seats=2, window=False)"),
        (Visit, {"city": "Rome"}, "Visit(city='Rome', days=1)"),
        (None, {}, "None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("revision", ELICITING)
async def test_elicited_data_has_the_requested_type(
    revision: str, response_type: Any, content: dict[str, Any], expected: str
) -> None:
    server = asking(response_type)
    text = await text_of(server, "ask", protocol_version=revision, elicitation_handler=lambda request: content)
    assert text == f"accept {expected}"


@pytest.mark.parametrize("revision", ELICITING)
async def test_several_of_the_choices_may_be_taken_from_2025_11_25_on(revision: str) -> None:
    requests: list[ElicitParams] = []

    def answer(question: ElicitParams) -> dict[str, Any]:
        requests.append(question)
        return {"value": ["x"]}

    text = await text_of(asking(list[Literal["x", "y"]]), "ask", protocol_version=revision, elicitation_handler=answer)
    if revision >= "2025-11-25":
        assert text == "accept ['x']"
    else:
        assert requests == []
        assert "the client does not support: elicitation" in text


@pytest.mark.requirement("elicitation.declined")
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("revision", ELICITING)
async def test_question_may_be_left_unanswered(revision: str, action: Any) -> None:
    text = await text_of(
        asking(int), "ask", protocol_version=revision, elicitation_handler=lambda request: ElicitResult(action)
    )
    assert text == f"{action} None"


@pytest.mark.requirement("elicitation.flat")
@pytest.mark.parametrize("revision", ELICITING)
async def test_form_is_flat_and_has_descriptions(revision: str) -> None:
    requests: list[ElicitParams] = []

    def answer(question: ElicitParams) -> dict[str, Any]:
        requests.append(question)
        return {"name": "Ada", "seats": 2}

    await text_of(asking(Booking), "ask", protocol_version=revision, elicitation_handler=answer)
    assert (requests[0].message, requests[0].mode) == ("Well?", "form")
    assert requests[0].requested_schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Under which name"},
            "seats": {"type": "integer"},
            "window": {"type": "boolean", "default": False},
        },
        "required": ["name", "seats"],
    }


@pytest.mark.parametrize(
    "response_type, field",
    [
        (["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (list[Literal["x", "y"]], {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}}),
    ],
    ids=str,
)
async def test_choices_are_choices_of_a_form(connect: Connect, response_type: Any, field: dict[str, Any]) -> None:
    response = await connect(asking(response_type)).request_stateless("tools/call", {"name": "ask"}, capabilities=FORM)
    form = response["result"]["inputRequests"]["elicitation-1"]["params"]["requestedSchema"]
    properties = form["properties"]["value"]
    if field["type"] == "array":
        properties["items"].setdefault("type", "string")
    assert properties == field
    assert form["required"] == ["value"]


@pytest.mark.parametrize("revision", ELICITING)
@pytest.mark.parametrize("response_type, content", [(int, {"value": "many"}), (Booking, {"name": "Ada"}), (int, {})])
async def test_elicitation_response_of_the_wrong_type_is_a_tool_error(
    revision: str, response_type: Any, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = asking(response_type)
    # Our client would not send it.
    monkeypatch.setattr("portico.client.input_handlers.find_invalid_field", lambda form, content: None)
    text = await text_of(server, "ask", protocol_version=revision, elicitation_handler=lambda request: content)
    assert "The submitted form does not match its schema" in text
    assert "error id" not in text


@dataclass
class Trip:
    booking: Booking


@pytest.mark.parametrize("response_type", [Trip, list[int], dict[str, int], list[Booking]], ids=str)
@pytest.mark.parametrize("revision", ELICITING)
async def test_form_that_cannot_be_drawn_is_the_authors_mistake(revision: str, response_type: Any) -> None:
    requests: list[ElicitParams] = []

    def answer(question: ElicitParams) -> dict[str, Any]:
        requests.append(question)
        return {}

    text = await text_of(asking(response_type), "ask", protocol_version=revision, elicitation_handler=answer)
    assert "error id" in text
    assert requests == []


@pytest.mark.parametrize("revision", ELICITING)
async def test_elicitations_may_be_sequential(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def order(ctx: Context) -> str:
        size = await ctx.elicit("Which size?", ["small", "large"])
        count = await ctx.elicit(f"How many {size.data}?", int)
        return f"{count.data} {size.data}"

    def answer(asked: ElicitParams) -> dict[str, Any]:
        return {"value": {"Which size?": "large", "How many large?": 3}[asked.message]}

    assert await text_of(server, "order", protocol_version=revision, elicitation_handler=answer) == "3 large"


# By URL


def visiting() -> Server:
    server = Server("visiting")

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Please sign in", "https://example.com/sign-in")).action

    return server


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_page_may_be_requested(revision: str) -> None:
    requests: list[ElicitParams] = []

    def answer(question: ElicitParams) -> ElicitResult:
        requests.append(question)
        return ElicitResult("accept")

    options: Any = {"elicitation_handler": answer, "elicitation_modes": ["form", "url"]}
    assert await text_of(visiting(), "visit", protocol_version=revision, **options) == "accept"
    [question] = requests
    assert (question.mode, question.url, question.message) == ("url", "https://example.com/sign-in", "Please sign in")
    assert (question.elicitation_id is not None) is (revision == "2025-11-25")


@pytest.mark.requirement("elicitation.url")
async def test_question_for_a_page_has_no_form(connect: Connect) -> None:
    response = await connect(visiting()).request_stateless("tools/call", {"name": "visit"}, capabilities=EVERYTHING)
    assert response["result"]["inputRequests"]["elicitation-1"] == {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": "Please sign in", "url": "https://example.com/sign-in"},
    }


@pytest.mark.requirement("elicitation.modes")
async def test_url_elicitation_requires_2025_11_25(connect: Connect) -> None:
    """Whatever such a client declares, its revision has forms alone."""
    wire = connect(visiting())
    await wire.initialize("2025-06-18", {"elicitation": {"form": {}, "url": {}}})
    wire.send({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "visit"}})
    message = await wire.receive()
    assert "method" not in message
    assert message["result"]["isError"] is True


# Sampling and roots


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_clients_model_may_be_asked(revision: str) -> None:
    requests: list[CreateMessageParams] = []

    def answer(question: CreateMessageParams) -> str:
        requests.append(question)
        return "postgres, storage"

    server = Server("s")

    @server.tool
    async def enrich(ctx: Context) -> str:
        result = await ctx.sample(
            "Suggest tags for: Use PostgreSQL",
            system_prompt="Be brief.",
            max_tokens=100,
            temperature=0.5,
            model_preferences=["small"],
            stop_sequences=["."],
        )
        return f"{result.text} by {result.model}"

    assert (
        await text_of(server, "enrich", protocol_version=revision, sampling_handler=answer)
        == "postgres, storage by handler"
    )
    [question] = requests
    assert (question.max_tokens, question.system_prompt, question.temperature) == (100, "Be brief.", 0.5)
    assert question.messages[0].role == "user"
    assert question.model_preferences is not None
    assert question.model_preferences.hints is not None
    assert question.model_preferences.hints[0].name == "small"
    assert question.stop_sequences == ["."]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_model_may_be_given_tools(revision: str) -> None:
    requests: list[CreateMessageParams] = []

    async def answer(question: CreateMessageParams) -> CreateMessageResult:
        requests.append(question)
        return CreateMessageResult(role="assistant", content=[TextContent(text="a"), TextContent(text="b")], model="m")

    server = Server("s")

    @server.tool
    async def think(ctx: Context) -> str:
        tools = [Definition(name="look", input_schema={"type": "object"})]
        return (await ctx.sample(["Think", "again"], tools=tools, tool_choice="auto")).text

    assert (
        await text_of(server, "think", protocol_version=revision, sampling_handler=answer, sampling_tools=True) == "ab"
    )
    assert requests[0].tools is not None
    assert requests[0].tools[0].name == "look"
    assert len(requests[0].messages) == 2


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_users_folders_may_be_requested(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def where(ctx: Context) -> str:
        return " ".join(f"{root.uri} {root.name}" for root in await ctx.list_roots())

    folders = ["file:///a", Root("file:///b", "B")]
    assert await text_of(server, "where", protocol_version=revision, roots=folders) == "file:///a None file:///b B"


# What the client cannot do


def needy() -> Server:
    server = Server("needy")

    @server.tool
    async def elicit(ctx: Context) -> str:
        return (await ctx.elicit("?", int)).action

    @server.tool
    async def sample(ctx: Context) -> str:
        return (await ctx.sample("?")).text

    @server.tool
    async def roots(ctx: Context) -> str:
        return str(await ctx.list_roots())

    return server


@pytest.mark.parametrize("tool, capability", [("elicit", "elicitation"), ("sample", "sampling"), ("roots", "roots")])
async def test_missing_client_capability_is_code_32021(connect: Connect, tool: str, capability: str) -> None:
    error = (await connect(needy()).request_stateless("tools/call", {"name": tool}))["error"]
    assert error["code"] == -32021
    assert capability in error["message"]
    assert error["data"] == {"requiredCapabilities": {capability: {}}}


@pytest.mark.parametrize("tool, capability", [("elicit", "elicitation"), ("sample", "sampling"), ("roots", "roots")])
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_before_that_the_model_is_informed(revision: str, tool: str, capability: str) -> None:
    async with Client(needy(), protocol_version=revision) as client:
        result = await client.call_tool(tool, raise_on_error=False)
    assert result.is_error
    assert capability in result.text
    assert "error id" not in result.text


@pytest.mark.parametrize("revision", BEFORE_ELICITATION)
async def test_form_elicitation_requires_2025_06_18(connect: Connect, revision: str) -> None:
    """Even a client that declares it: its revision has no such request."""
    wire = connect(needy())
    await wire.initialize(revision, EVERYTHING)
    response = await wire.request("tools/call", {"name": "elicit"})
    assert response["result"]["isError"] is True
    assert "elicitation" in response["result"]["content"][0]["text"]
    assert wire.other_messages == []


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_body_may_do_without(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def tags(ctx: Context) -> str:
        if ctx.client_capabilities.sampling is None:
            return "guessed"
        return (await ctx.sample("?")).text

    assert await text_of(server, "tags", protocol_version=revision) == "guessed"
    assert await text_of(server, "tags", protocol_version=revision, sampling_handler=lambda request: "asked") == "asked"


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_client_that_rejects_is_an_error_that_a_body_can_catch(connect: Connect, revision: str) -> None:
    server = Server("s")

    @server.tool
    async def careful(ctx: Context) -> str:
        try:
            return (await ctx.sample("?")).text
        except ClientRequestFailed as refusal:
            return f"without: {refusal}"

    wire = connect(server)
    await wire.initialize(revision, {"sampling": {}})
    wire.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "careful"}})
    question = await wire.receive()
    assert question["method"] == "sampling/createMessage"
    wire.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "User rejected"}})
    assert (await wire.response(5))["result"]["content"][0]["text"].startswith("without: ")


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_client_that_rejects_is_otherwise_a_tool_that_failed(connect: Connect, revision: str) -> None:
    """The tool ran, so what went wrong in it is a result; and a code of the client's is not one of ours."""
    wire = connect(needy())
    await wire.initialize(revision, {"sampling": {}})
    wire.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "sample"}})
    question = await wire.receive()
    wire.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "User rejected"}})
    result = (await wire.response(5))["result"]
    assert result["isError"] is True
    assert "User rejected" in result["content"][0]["text"]


# Several questions at once


def parallel() -> Server:
    server = Server("parallel")

    @server.tool
    async def both(ctx: Context) -> str:
        size, count = await asyncio.gather(ctx.elicit("Size?", str), ctx.elicit("Count?", int))
        return f"{count.data} {size.data}"

    @server.tool
    async def three(ctx: Context) -> str:
        message, thought, folders = await asyncio.gather(ctx.elicit("?", str), ctx.sample("?"), ctx.list_roots())
        return f"{message.data} {thought.text} {len(folders)}"

    @server.tool
    async def grouped(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            size = group.create_task(ctx.elicit("Size?", str))
            count = group.create_task(ctx.elicit("Count?", int))
        return f"{count.result().data} {size.result().data}"

    return server


def size_and_count(asked: ElicitParams) -> dict[str, Any]:
    return {"value": {"Size?": "large", "Count?": 3}[asked.message]}


@pytest.mark.parametrize("tool", ["both", "grouped"])
@pytest.mark.parametrize("revision", ELICITING)
async def test_elicitations_may_be_concurrent(revision: str, tool: str) -> None:
    assert await text_of(parallel(), tool, protocol_version=revision, elicitation_handler=size_and_count) == "3 large"


@pytest.mark.parametrize("tool", ["both", "grouped"])
async def test_concurrent_elicitations_share_one_round(connect: Connect, tool: str) -> None:
    response = await connect(parallel()).request_stateless("tools/call", {"name": tool}, capabilities=EVERYTHING)
    request = response["result"]["inputRequests"]
    assert response["result"]["resultType"] == "input_required"
    assert {key: item["params"]["message"] for key, item in request.items()} == {
        "elicitation-1": "Size?",
        "elicitation-2": "Count?",
    }
    assert all(item.keys() == {"method", "params"} for item in request.values())


@pytest.mark.requirement("mrtr.kinds")
async def test_questions_of_different_kinds_travel_together(connect: Connect) -> None:
    response = await connect(parallel()).request_stateless("tools/call", {"name": "three"}, capabilities=EVERYTHING)
    request = response["result"]["inputRequests"]
    assert {key: one["method"] for key, one in request.items()} == {
        "elicitation-1": "elicitation/create",
        "sampling-1": "sampling/createMessage",
        "roots-1": "roots/list",
    }


@pytest.mark.parametrize("revision", ELICITING)
async def test_different_request_kinds_share_one_round(revision: str) -> None:
    text = await text_of(
        parallel(),
        "three",
        protocol_version=revision,
        elicitation_handler=lambda request: {"value": "said"},
        sampling_handler=lambda request: "thought",
        roots=["file:///a"],
    )
    assert text == "said thought 1"


@pytest.mark.parametrize("tool", ["both", "three", "grouped"])
async def test_suspended_function_leaves_no_task(connect: Connect, tool: str) -> None:
    """The tasks that a body has started end with it."""
    before = asyncio.all_tasks()
    await connect(parallel()).request_stateless("tools/call", {"name": tool}, capabilities=EVERYTHING)
    async with asyncio.timeout(5):
        for task in asyncio.all_tasks() - before:
            await asyncio.wait({task}, timeout=1)
    assert not [task for task in asyncio.all_tasks() - before if not task.done()]


async def answered(wire: Any, name: str, responses: dict[str, Any], state: str | None, **more: Any) -> Any:
    params = {"name": name, "arguments": {}, "inputResponses": responses, **more}
    if state is not None:
        params["requestState"] = state
    response = await wire.request_stateless("tools/call", params, capabilities=EVERYTHING)
    return response.get("result") or response["error"]


def accepted(value: Any) -> dict[str, Any]:
    return {"action": "accept", "content": {"value": value}}


@pytest.mark.requirement("mrtr.missing-again")
async def test_only_unanswered_input_requests_are_repeated(connect: Connect) -> None:
    wire = connect(parallel())
    first = await answered(wire, "both", {}, None)
    second = await answered(wire, "both", {"elicitation-2": accepted(3)}, first["requestState"])
    assert second["inputRequests"].keys() == {"elicitation-1"}
    third = await answered(wire, "both", {"elicitation-1": accepted("large")}, second["requestState"])
    assert third["content"][0]["text"] == "3 large"


@pytest.mark.requirement("mrtr.unknown-ignored")
async def test_unrequested_responses_are_ignored_in_a_call(connect: Connect) -> None:
    wire = connect(parallel())
    first = await answered(wire, "both", {}, None)
    responses = {"elicitation-1": accepted("large"), "elicitation-2": accepted(3), "made up": {"x": 1}}
    assert (await answered(wire, "both", responses, first["requestState"]))["content"][0]["text"] == "3 large"


@pytest.mark.requirement("mrtr.malformed")
@pytest.mark.parametrize(
    "responses",
    [
        {"elicitation-1": {"action": "perhaps"}, "elicitation-2": accepted(3)},
        {"elicitation-1": 5, "elicitation-2": accepted(3)},
        [],
        "yes",
    ],
)
async def test_malformed_answer_is_an_error(connect: Connect, responses: Any) -> None:
    wire = connect(parallel())
    first = await answered(wire, "both", {}, None)
    error = await answered(wire, "both", responses, first["requestState"])
    assert error["code"] == -32602


async def test_response_without_state_is_accepted_in_the_first_round(connect: Connect) -> None:
    """A client that answers in the first request saves a round."""
    wire = connect(parallel())
    responses = {"elicitation-1": accepted("large"), "elicitation-2": accepted(3)}
    assert (await answered(wire, "both", responses, None))["content"][0]["text"] == "3 large"


@pytest.mark.parametrize("revision", ELICITING)
async def test_author_may_name_the_questions(connect: Connect, revision: str) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("?", int, key="how-many")).data)

    handler = lambda request: {"value": 3}  # noqa: E731
    assert await text_of(server, "ask", protocol_version=revision, elicitation_handler=handler) == "3"
    response = await connect(server).request_stateless("tools/call", {"name": "ask"}, capabilities=FORM)
    assert response["result"]["inputRequests"].keys() == {"how-many"}


@pytest.mark.parametrize("revision", ELICITING)
async def test_server_that_never_stops_asking_is_stopped(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def pester(ctx: Context) -> str:
        for number in range(50):
            await ctx.elicit(f"{number}?", int)
        return "done"

    async with Client(server, protocol_version=revision, elicitation_handler=lambda request: {"value": 1}) as client:
        if revision == FIRST_MODERN_VERSION:
            with pytest.raises(ProtocolError, match="still requires input after"):
                await client.call_tool("pester")
        else:
            assert (await client.call_tool("pester")).text == "done"


@pytest.mark.parametrize("revision", ELICITING)
async def test_timeout_does_not_take_a_question_for_an_end(revision: str) -> None:
    server = Server("s")

    @server.tool(timeout=30)
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("?", int)).data)

    text = await text_of(server, "ask", protocol_version=revision, elicitation_handler=lambda request: {"value": 3})
    assert text == "3"


@pytest.mark.parametrize("revision", ELICITING)
async def test_finally_runs_when_a_function_is_suspended(revision: str) -> None:
    opened: list[str] = []
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        opened.append("open")
        try:
            return str((await ctx.elicit("?", int)).data)
        finally:
            opened.append("close")

    await text_of(server, "ask", protocol_version=revision, elicitation_handler=lambda request: {"value": 3})
    assert opened == ["open", "close"] * (2 if revision == FIRST_MODERN_VERSION else 1)


async def test_cancelled_call_does_not_ask(connect: Connect) -> None:
    """Not even when its body makes light of the cancellation."""
    server = Server("s")
    begun, ended = asyncio.Event(), asyncio.Event()

    @server.tool
    async def ask(ctx: Context) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        try:
            return str((await ctx.elicit("?", int)).data)
        finally:
            ended.set()

    @server.tool
    async def after() -> str:
        return "after"

    wire = connect(server)
    params = {"name": "ask", "_meta": wire.envelope(FORM)}
    wire.send({"jsonrpc": "2.0", "id": "it", "method": "tools/call", "params": params})
    async with asyncio.timeout(5):
        await begun.wait()
        wire.notify("notifications/cancelled", {"requestId": "it"})
        await ended.wait()
    assert "result" in await wire.request_stateless("tools/call", {"name": "after"})
    assert wire.other_messages == []
    assert wire.is_silent


# Steps


@pytest.mark.parametrize("revision", ELICITING)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_step_is_done_once(revision: str, kind: str) -> None:
    charged: list[int] = []
    server = Server("s")

    def charge() -> dict[str, int]:
        charged.append(5)
        return {"receipt": len(charged)}

    async def charge_later() -> dict[str, int]:
        return charge()

    @server.tool
    async def buy(ctx: Context) -> str:
        receipt = await ctx.step("charge", charge if kind == "plain" else charge_later)
        first = await ctx.elicit("Gift wrap?", bool)
        second = await ctx.elicit("Express?", bool)
        return f"{receipt['receipt']} {first.data} {second.data}"

    text = await text_of(server, "buy", protocol_version=revision, elicitation_handler=lambda request: {"value": True})
    assert (text, charged) == ("1 True True", [5])


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_first_run_sees_a_step_as_the_later_ones_do(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        return repr(await ctx.step("booking", lambda: Booking("Ada", 2)))

    assert await text_of(server, "look", protocol_version=revision) == "{'name': 'Ada', 'seats': 2, 'window': False}"


async def test_step_that_returns_none_is_not_repeated() -> None:
    done: list[int] = []
    server = Server("s")

    @server.tool
    async def act(ctx: Context) -> str:
        assert await ctx.step("act", lambda: done.append(1)) is None
        return str((await ctx.elicit("?", int)).data)

    assert await text_of(server, "act", elicitation_handler=lambda request: {"value": 3}) == "3"
    assert done == [1]


async def test_step_that_fails_may_be_tried_again() -> None:
    tries: list[int] = []
    server = Server("s")

    def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not now")
        return "done"

    @server.tool
    async def act(ctx: Context) -> str:
        try:
            return str(await ctx.step("act", flaky))
        except OSError:
            await ctx.elicit("Again?", bool)
            return str(await ctx.step("act", flaky))

    assert await text_of(server, "act", elicitation_handler=lambda request: {"value": True}) == "done"


# The state in between


def sealed() -> Server:
    server = Server("sealed", request_state_keys=b"k" * 32)

    @server.tool
    async def ask(ctx: Context, when: str = "now") -> str:
        price = await ctx.step("price", lambda: 5)
        return f"{(await ctx.elicit('?', int)).data} at {price}"

    @server.tool
    async def other(ctx: Context, when: str = "now") -> str:
        return str((await ctx.elicit("?", int)).data)

    @server.prompt
    async def prompted(ctx: Context) -> str:
        return str((await ctx.elicit("?", int)).data)

    return server


async def state_of(wire: Any) -> str:
    state: str = (await answered(wire, "ask", {}, None))["requestState"]
    return state


async def test_request_state_resumes_the_call(connect: Connect) -> None:
    wire = connect(sealed())
    result = await answered(wire, "ask", {"elicitation-1": accepted(3)}, await state_of(wire))
    assert result["content"][0]["text"] == "3 at 5"


async def test_order_of_the_arguments_does_not_matter(connect: Connect) -> None:
    server = sealed()

    @server.tool
    async def two(ctx: Context, a: int, b: int) -> str:
        return str((await ctx.elicit("?", int)).data)

    wire = connect(server)
    first = await answered(wire, "two", {}, None, arguments={"a": 1, "b": 2})
    responses = {"elicitation-1": accepted(3)}
    result = await answered(wire, "two", responses, first["requestState"], arguments={"b": 2, "a": 1})
    assert result["content"][0]["text"] == "3"


@pytest.mark.requirement("modern.other-process")
async def test_process_with_the_same_key_continues_the_call(connect: Connect) -> None:
    state = await state_of(connect(sealed()))
    result = await answered(connect(sealed()), "ask", {"elicitation-1": accepted(3)}, state)
    assert result["content"][0]["text"] == "3 at 5"


async def test_request_state_of_another_key_is_rejected(connect: Connect) -> None:
    state = await state_of(connect(sealed()))
    stranger = Server("sealed")
    stranger.add(next(iter(sealed().tools)))
    error = await answered(connect(stranger), "ask", {"elicitation-1": accepted(3)}, state)
    assert error["code"] == -32602


async def test_step_in_the_state_cannot_be_rewritten(connect: Connect) -> None:
    """The client can read what a step gave, and not change it."""
    wire = connect(sealed())
    data = urlsafe_b64decode(await state_of(wire))
    assert b'"price":5' in data
    forged = urlsafe_b64encode(data.replace(b'"price":5', b'"price":1')).decode()
    error = await answered(wire, "ask", {"elicitation-1": accepted(3)}, forged)
    assert error["code"] == -32602
    assert error["message"] == "Invalid requestState: it was not issued for this request"


@pytest.mark.parametrize("changed", [{"name": "other"}, {"arguments": {"when": "later"}}], ids=["tool", "arguments"])
async def test_state_is_bound_to_its_call(connect: Connect, changed: dict[str, Any]) -> None:
    wire = connect(sealed())
    params = {"name": "ask", "arguments": {}, "requestState": await state_of(wire), **changed}
    response = await wire.request_stateless("tools/call", params, capabilities=EVERYTHING)
    assert response["error"]["code"] == -32602
    assert "not issued for this request" in response["error"]["message"]


async def test_request_state_of_a_tool_is_rejected_for_a_prompt(connect: Connect) -> None:
    wire = connect(sealed())
    params = {"name": "prompted", "arguments": {}, "requestState": await state_of(wire)}
    assert (await wire.request_stateless("prompts/get", params, capabilities=EVERYTHING))["error"]["code"] == -32602


async def test_state_is_bound_to_its_principal(connect: Connect) -> None:
    server = sealed()
    state = await state_of(connect(server, principal="ada"))
    responses = {"elicitation-1": accepted(3)}
    assert (await answered(connect(server, principal="eve"), "ask", responses, state))["code"] == -32602
    assert (await answered(connect(server), "ask", responses, state))["code"] == -32602
    assert "content" in await answered(connect(server, principal="ada"), "ask", responses, state)


async def test_expired_request_state_error_has_the_remedy(connect: Connect) -> None:
    server = sealed()
    server.state_sealer.ttl = -1.0
    wire = connect(server)
    error = await answered(wire, "ask", {"elicitation-1": accepted(3)}, await state_of(wire))
    assert error["code"] == -32602
    assert "expired" in error["message"]
    assert "without it" in error["message"]


@pytest.mark.parametrize("state", [5, None, {}, ["x"]])
async def test_state_is_a_text(connect: Connect, state: Any) -> None:
    params = {"name": "ask", "arguments": {}, "requestState": state}
    error = (await connect(sealed()).request_stateless("tools/call", params, capabilities=EVERYTHING))["error"]
    assert error["code"] == -32602
    assert "requestState" in error["message"]


async def test_state_that_grows_without_end_is_rejected_in_words(connect: Connect) -> None:
    server = Server("s")

    @server.tool
    async def hoard(ctx: Context) -> str:
        await ctx.step("much", lambda: "x" * 1_000_000)
        return str((await ctx.elicit("?", int)).data)

    response = await connect(server).request_stateless("tools/call", {"name": "hoard"}, capabilities=EVERYTHING)
    assert "state" in response["error"]["message"]


# Prompts and resources ask too


@pytest.mark.parametrize("revision", ELICITING)
async def test_prompt_may_ask(revision: str) -> None:
    server = Server("s")

    @server.prompt
    async def greet(ctx: Context) -> str:
        return f"Greet {(await ctx.elicit('Whom?', str)).data}."

    async with Client(
        server, protocol_version=revision, elicitation_handler=lambda request: {"value": "Ada"}
    ) as client:
        response = await client.get_prompt("greet")
    assert response.messages[0].content.text == "Greet Ada."  # type: ignore[union-attr]


@pytest.mark.parametrize("uri", ["a://exact", "a://{x}/y"])
@pytest.mark.parametrize("revision", ELICITING)
async def test_resource_may_ask(revision: str, uri: str) -> None:
    server = Server("s")

    async def exact(ctx: Context) -> str:
        return str((await ctx.elicit("?", int)).data)

    async def template(x: str, ctx: Context) -> str:
        return str((await ctx.elicit("?", int)).data)

    server.resource(uri)(template if "{" in uri else exact)
    async with Client(server, protocol_version=revision, elicitation_handler=lambda request: {"value": 3}) as client:
        [contents] = await client.read_resource(uri.replace("{x}", "z"))
    assert contents.text == "3"


# Tools that use tools


def nested() -> Server:
    server = Server("nested")

    @server.tool
    async def inner(ctx: Context, number: int = 1) -> str:
        return f"inner {(await ctx.elicit('?', int)).data}"

    @server.tool
    async def outer(ctx: Context) -> str:
        result = await ctx.call_tool("inner", {"number": 2})
        return f"outer {result.content[0].text}"

    @server.tool
    async def plain(number: int) -> str:
        if number < 0:
            raise ToolError("Too small.")
        return str(number)

    @server.tool
    async def uses(ctx: Context, number: int) -> str:
        return f"used {(await ctx.call_tool('plain', {'number': number})).content[0].text}"

    @server.resource("a://b")
    async def b() -> str:
        return "b"

    @server.tool
    async def reads(ctx: Context) -> str:
        [contents] = await ctx.read_resource("a://b")
        return f"read {contents.text}"

    return server


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_may_use_another(revision: str) -> None:
    assert await text_of(nested(), "uses", {"number": 5}, protocol_version=revision) == "used 5"
    assert await text_of(nested(), "uses", {"number": -5}, protocol_version=revision) == "Too small."


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_may_read_a_resource(revision: str) -> None:
    assert await text_of(nested(), "reads", protocol_version=revision) == "read b"


@pytest.mark.parametrize("revision", ELICITING)
async def test_nested_tool_may_elicit(revision: str) -> None:
    handler = lambda request: {"value": 3}  # noqa: E731
    assert await text_of(nested(), "outer", protocol_version=revision, elicitation_handler=handler) == "outer inner 3"


# Saying something on the way


@pytest.mark.parametrize("running", ["async", "thread"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_progress_is_reported_to_the_progress_handler(revision: str, running: str) -> None:
    server = Server("s")

    def work(ctx: Context) -> str:
        ctx.report_progress(1, 3, "one")
        ctx.report_progress(0.5, 3, "a step back is not sent")
        ctx.report_progress(1, 3, "nor is standing still")
        ctx.report_progress(2, 3)
        return "done"

    async def work_async(ctx: Context) -> str:
        await ctx.report_progress(1, 3, "one")
        await ctx.report_progress(0.5, 3)
        await ctx.report_progress(1, 3)
        await ctx.report_progress(2, 3)
        return "done"

    server.tool("work")(work if running == "thread" else work_async)
    seen: list[Any] = []
    async with Client(server, protocol_version=revision) as client:
        result = await client.call_tool("work", progress_handler=lambda *said: seen.append(said))
        assert result.text == "done"
    message = "one" if revision >= "2025-03-26" else None
    assert seen == [(1.0, 3.0, message), (2.0, 3.0, None)]


async def test_progress_without_token_is_not_sent(connect: Connect) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    wire = connect(server)
    await wire.request_stateless("tools/call", {"name": "work"})
    assert wire.other_messages == []


@pytest.mark.requirement("progress.token")
@pytest.mark.parametrize("token", [0, 7, "seven", ""])
async def test_progress_carries_the_token_as_it_came(connect: Connect, token: int | str) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    wire = connect(server)
    await wire.request_stateless("tools/call", {"name": "work"}, progressToken=token)
    [said] = wire.other_messages
    assert said["method"] == "notifications/progress"
    assert said["params"] == {"progressToken": token, "progress": 1.0}
    assert type(said["params"]["progressToken"]) is type(token)


@pytest.mark.parametrize("level, heard", [(None, []), ("debug", 4), ("info", 3), ("warning", 2), ("emergency", 0)])
async def test_stateless_request_receives_requested_notifications(connect: Connect, level: Any, heard: Any) -> None:
    server = Server("s")

    @server.tool
    async def talk(ctx: Context) -> str:
        await ctx.debug("d")
        await ctx.info("i")
        await ctx.warning("w")
        await ctx.error({"e": 1}, logger="mine")
        return "said"

    wire = connect(server)
    await wire.request_stateless("tools/call", {"name": "talk"}, log_level=level)
    assert len(wire.other_messages) == (heard or 0)
    if level == "debug":
        assert wire.other_messages[0]["params"] == {"level": "debug", "logger": "s", "data": "d"}
        assert wire.other_messages[3]["params"] == {"level": "error", "logger": "mine", "data": {"e": 1}}


@pytest.mark.requirement("logging.unknown-level")
async def test_level_that_does_not_exist_is_rejected(connect: Connect) -> None:
    error = (await connect(needy()).request_stateless("tools/list", log_level="loud"))["error"]
    assert error["code"] == -32602
    assert "logLevel" in error["message"]


# Who is asking


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_function_can_read_its_call(revision: str) -> None:
    seen: list[Any] = []
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        client = ctx.client_info
        assert client is not None
        seen.extend([ctx.protocol_version, client.name, client.version, ctx.principal, ctx.server, ctx.is_cancelled])
        seen.append(ctx.request_id)
        return "looked"

    options: dict[str, Any] = {"client_name": "probe", "client_version": "9", "principal": "ada"}
    async with Client(server, protocol_version=revision, **options) as client:
        await client.call_tool("look")
    assert seen[:6] == [revision, "probe", "9", "ada", server, False]
    assert isinstance(seen[6], int)


async def test_body_sees_all_of_meta(connect: Connect) -> None:
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        return str(ctx.meta["traceparent"])

    response = await connect(server).request_stateless("tools/call", {"name": "look"}, traceparent="00-1-2-01")
    assert response["result"]["content"][0]["text"] == "00-1-2-01"


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_meta_is_empty_if_the_request_has_none(connect: Connect, revision: str) -> None:
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        return str(ctx.meta)

    wire = connect(server)
    await wire.initialize(revision)
    assert (await wire.request("tools/call", {"name": "look"}))["result"]["content"][0]["text"] == "{}"


async def test_body_that_never_asks_pays_for_no_rounds(connect: Connect) -> None:
    """A question that was answered leaves nothing in the server: there is nothing to be kept."""
    wire = connect(parallel())
    for _ in range(3):
        await answered(wire, "both", {}, None)
    gc.collect()
    assert wire.channel.in_flight == 0
    assert msgspec.json.encode(wire.other_messages) == b"[]"
