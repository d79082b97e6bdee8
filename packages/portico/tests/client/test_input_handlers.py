"""Handlers for server requests, logs and progress, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Context, ProtocolError, Server
from portico.client import notifications
from portico.jsonschema.reader import get_form_defaults
from portico.protocol.client_features import CreateMessageResult, ElicitResult, Root
from portico.protocol.content import TextContent
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc import client_requests
from portico.rpc.call import Call

EVERYTHING = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})

TIMEOUT_SECONDS = 10.0


def asking(*rounds: Any) -> Any:
    """A server whose tool asks all this, one round after the other, and remembers what came back."""
    seen: list[Any] = []

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        seen.append({"id": call.id, **json.loads(bytes(call.params))})
        number = len(seen) - 1
        if number >= len(rounds):
            return Raw(b'{"resultType":"complete","content":[]}')
        return Raw(json.dumps({"resultType": "input_required", **rounds[number]}).encode())

    return handler, seen


def question(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


FORM = question("elicitation/create", message="?", requestedSchema={"type": "object", "properties": {}})


# Rounds


async def test_each_round_brings_its_own_answers_and_the_state_as_it_came() -> None:
    """2026-07-28, basic/patterns: a new id, the same params, only this round's answers, the state byte for byte."""
    state = '  {"weird": "\\u00e9\\/ é \\" } ='
    handler, seen = asking(
        {"inputRequests": {"a": FORM, "b": question("roots/list")}, "requestState": state},
        {"requestState": ""},
        {"inputRequests": {"c": FORM}},
    )
    async with Client(handler, elicitation_handler=lambda request: {"x": 1}, roots=["file:///r"]) as client:
        await client.call_tool("t", {"y": 2}, progress_handler=lambda *message: None)
    assert len({item["id"] for item in seen}) == 4
    assert all((item["name"], item["arguments"]) == ("t", {"y": 2}) for item in seen)
    assert len({item["_meta"]["progressToken"] for item in seen}) == 1
    first, second, third, fourth = seen
    assert "inputResponses" not in first
    assert "requestState" not in first
    assert second["requestState"] == state
    assert second["inputResponses"] == {
        "a": {"action": "accept", "content": {"x": 1}},
        "b": {"roots": [{"uri": "file:///r"}]},
    }
    assert (third["requestState"], "inputResponses" in third) == ("", False)
    assert "requestState" not in fourth
    assert set(fourth["inputResponses"]) == {"c"}


@pytest.mark.broken_frames("a server that asks wrongly")
@pytest.mark.parametrize("method", ["tools/list", "completion/complete", "ping"])
async def test_only_some_requests_may_be_answered_with_questions(method: str) -> None:
    handler, _ = asking({"requestState": "x"})
    async with Client(handler) as client:
        with pytest.raises(ProtocolError, match="unknown resultType: input_required"):
            await client.request(method, {})


@pytest.mark.broken_frames("a server that asks wrongly")
@pytest.mark.parametrize(
    "asked, complaint",
    [
        (question("elicitation/create", message=5), "sent an invalid input request"),
        (question("sampling/createMessage"), "sent an invalid input request"),
        ({"method": "elicitation/create", "params": 5}, "sent an invalid input request"),
        (question("tools/call"), "but the client has no handler for it"),
        ({"params": {}}, "invalid result"),
        (5, "invalid result"),
    ],
    ids=range(6),
)
async def test_question_of_the_wrong_shape_is_an_error_of_the_servers(
    monkeypatch: pytest.MonkeyPatch, asked: Any, complaint: str
) -> None:
    # The server is another's: ours would not ask it.
    monkeypatch.setattr(client_requests, "validate_input_requests", lambda call, asked: None)
    handler, _ = asking({"inputRequests": {"a": asked}})
    options: Any = {"elicitation_handler": lambda asked: {}, "sampling_handler": lambda asked: ""}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(handler, **options) as client:
        with pytest.raises(ProtocolError, match=complaint) as raised:
            await client.call_tool("t")
    assert "tools/call" in str(raised.value)


async def test_handler_that_fails_fails_the_call() -> None:
    """On 2026-07-28 there is no way to say it to the server, so it is said to the caller."""
    handler, seen = asking({"inputRequests": {"a": FORM}})

    async def fail(asked: Any) -> Any:
        raise LookupError("nobody home")

    async with Client(handler, elicitation_handler=fail) as client:
        with pytest.raises(LookupError, match="nobody home"):
            await client.call_tool("t")
    assert len(seen) == 1


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_handler_that_fails_is_reported_without_its_words(
    revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def pushy(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        assert call.reply.can_request
        try:
            await call.reply.request("elicitation/create", FORM["params"])
        except ProtocolError as failure:
            return Raw(json.dumps({"content": [{"type": "text", "text": failure.message}]}).encode())

    def fail(asked: Any) -> Any:
        raise LookupError("a secret")

    async with Client(pushy, protocol_version=revision, elicitation_handler=fail) as client:
        result = (await client.call_tool("t")).text
    assert "Internal error" in result
    assert "secret" not in result


# Forms


def test_defaults_of_a_form() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "Ada"},
            "age": {"type": "integer", "default": 0},
            "rate": {"type": "number", "default": 1.5},
            "sure": {"type": "boolean", "default": False},
            "tags": {"type": "array", "items": {"enum": ["a"]}, "default": ["a"]},
            "none": {"type": "string"},
            "odd": 5,
        },
    }
    assert get_form_defaults(schema) == {"name": "Ada", "age": 0, "rate": 1.5, "sure": False, "tags": ["a"]}
    assert get_form_defaults({}) == get_form_defaults({"properties": 5}) == {}


@pytest.mark.requirement("elicitation.defaults")
@pytest.mark.parametrize(
    "answer, expected",
    [
        ({"age": 7}, {"action": "accept", "content": {"name": "Ada", "age": 7}}),
        ({}, {"action": "accept", "content": {"name": "Ada"}}),
        ({"name": ""}, {"action": "accept", "content": {"name": ""}}),
        (ElicitResult("accept", {"name": "Bob"}), {"action": "accept", "content": {"name": "Bob"}}),
        (ElicitResult("accept"), {"action": "accept", "content": {"name": "Ada"}}),
        (ElicitResult("decline", {"name": "x"}), {"action": "decline"}),
        (ElicitResult("cancel"), {"action": "cancel"}),
        (None, {"action": "decline"}),
    ],
    ids=range(8),
)
async def test_form_is_filled_with_its_defaults(answer: Any, expected: Any) -> None:
    """2025-11-25, client/elicitation: what the user did not touch is what stood there."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "default": "Ada"}, "age": {"type": "integer"}},
    }
    result = question("elicitation/create", message="Who?", requestedSchema=schema)
    handler, seen = asking({"inputRequests": {"a": result}})
    async with Client(handler, elicitation_handler=lambda result: answer) as client:
        await client.call_tool("t")
    assert seen[1]["inputResponses"] == {"a": expected}


async def test_visit_is_no_form() -> None:
    asked = question("elicitation/create", mode="url", message="Go", url="https://example.test/x")
    handler, seen = asking({"inputRequests": {"a": asked}})
    shown_items: list[Any] = []

    def answer(asked: Any) -> Any:
        shown_items.append((asked.mode, asked.url, asked.message))
        return ElicitResult("accept", {"not": "sent"})

    async with Client(handler, elicitation_handler=answer, elicitation_modes=["url"]) as client:
        await client.call_tool("t")
    assert shown_items == [("url", "https://example.test/x", "Go")]
    assert seen[1]["inputResponses"] == {"a": {"action": "accept"}}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("waiting", [True, False])
async def test_sampling_and_roots(revision: str, waiting: bool) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        result = await ctx.sample("What?")
        return f"{result.text} {[str(root.uri) for root in await ctx.list_roots()]}"

    answer = CreateMessageResult(role="assistant", content=TextContent(text="This."), model="m")

    async def later(asked: Any) -> Any:
        return answer

    handler = later if waiting else (lambda asked: answer)
    roots = ["file:///a", Root("file:///b", "B")]
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(server, protocol_version=revision, sampling_handler=handler, roots=roots) as client,
    ):
        assert (await client.call_tool("ask")).text == "This. ['file:///a', 'file:///b']"


# What is said on the way


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_handlers_may_wait(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        ctx.info("working")
        return "done"

    heard: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("progress", "log", "message")}

    async def progress(*said: Any) -> None:
        await asyncio.sleep(0)
        heard["progress"].set()

    async def log(said: Any) -> None:
        await asyncio.sleep(0)
        heard["log"].set()

    async def message(*said: Any) -> None:
        await asyncio.sleep(0)
        heard["message"].set()

    options: Any = {"log_handler": log, "log_level": "debug", "message_handler": message}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server, protocol_version=revision, **options) as client:
        assert (await client.call_tool("work", progress_handler=progress)).text == "done"
        for event in heard.values():
            await event.wait()


@pytest.mark.requirement("progress.flooding")
async def test_handlers_that_cannot_keep_up_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "MAX_PENDING_HANDLERS", 10)
    begun = 0
    go_on = asyncio.Event()

    async def slowly(method: str, params: Raw) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        for _ in range(500):
            call.reply.notify("notifications/x", {})
        return Raw(b'{"resultType":"complete","content":[]}')

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(handler, message_handler=slowly) as client:
        await client.call_tool("t")
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun <= 10
        go_on.set()
        await client.call_tool("t")


@pytest.mark.parametrize("revision", [FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS[-1]])
async def test_handler_that_fails_is_our_own_affair(revision: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        return "done"

    def fail(*said: Any) -> None:
        raise LookupError("oops")

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server, protocol_version=revision) as client:
        assert (await client.call_tool("work", progress_handler=fail)).text == "done"
        assert (await client.call_tool("work")).text == "done"
    assert [record.levelno for record in caplog.records if "error in notifications/progress" in record.message] == [
        logging.ERROR
    ]


@pytest.mark.requirement("progress.active-only")
async def test_progress_without_a_token_is_ignored() -> None:
    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        for token in (call.progress_token, 999, "x"):
            call.reply.notify("notifications/progress", {"progressToken": token, "progress": 1})
        return Raw(b'{"resultType":"complete","content":[]}')

    heard: list[Any] = []
    async with Client(handler) as client:
        await client.call_tool("t", progress_handler=lambda *message: heard.append(message))
        assert client._upstream._notification_router.by_progress_token == {}
    assert heard == [(1.0, None, None)]
