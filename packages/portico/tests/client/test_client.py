"""The client: the same methods on every protocol version, with a Server or any Handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import Client, Context, ProtocolError, Server, ToolError, UsageError
from portico.protocol import notifications
from portico.protocol.client_features import ElicitResult, InputRequiredResult
from portico.protocol.content import TextContent
from portico.protocol.errors import ConnectionClosed, MethodNotFound, RequestTimeout, TransportError
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    ServerCapabilities,
)
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc import client_requests
from portico.rpc.call import Call
from portico.types import LogMessage

EVERYTHING = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})

TIMEOUT_SECONDS = 10.0


def weather() -> Server:
    server = Server("weather", version="1.0.0", instructions="Ask about the weather.")

    @server.tool
    async def forecast(city: str, days: int = 3) -> dict[str, Any]:
        """What it will be like."""
        return {"city": city, "days": days}

    @server.tool
    async def fail() -> str:
        raise ToolError("No forecast on Sundays.")

    @server.tool
    async def forever() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        await ctx.debug("quietly")
        await ctx.warning({"loud": True})
        return "worked"

    @server.resource("weather://{city}/today", mime_type="text/plain")
    async def today(city: str) -> str:
        return f"sun in {city}"

    @server.prompt
    async def plan(city: str) -> str:
        """Plan a trip."""
        return f"Plan a trip to {city}."

    return server


def handler_of(answer: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """A Handler that knows how to be opened, and for the rest does as it is told."""

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            raise MethodNotFound
        result = answer(call)
        return await result if asyncio.iscoroutine(result) else result

    return handler


# Opening and closing


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_opening_lists_the_members(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        assert client.protocol_version == revision
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("weather", "1.0.0")
        assert client.instructions == "Ask about the weather."
        assert client.server_capabilities.tools == {"listChanged": True}


async def test_unknown_protocol_version_is_negotiated_down() -> None:
    """A handshake settles on what both know; the client then speaks that."""
    async with Client(weather(), protocol_version="2025-11-25") as client:
        assert client.protocol_version == "2025-11-25"
    with pytest.raises((ProtocolError, UsageError), match="2099-01-01"):
        async with Client(weather(), protocol_version="2099-01-01"):
            pass


async def test_client_can_be_opened_again() -> None:
    client = Client(weather())
    for _ in range(2):
        async with client:
            assert (await client.call_tool("forecast", {"city": "Rome"})).data["city"] == "Rome"


async def test_client_that_is_not_open_says_so() -> None:
    client = Client(weather())
    with pytest.raises(UsageError, match="async with"):
        await client.list_tools()


@pytest.mark.parametrize("call", ["list_tools", "ping"])
async def test_closed_client_says_so(call: str) -> None:
    client = Client(weather())
    async with client:
        pass
    with pytest.raises((UsageError, TransportError)):
        await getattr(client, call)()


@pytest.mark.parametrize("target", [5, None, object(), "", [], [1], {"name": "x"}, "nothing.json", "nowhere.py:server"])
def test_invalid_targets_raise_usage_error(target: Any) -> None:
    with pytest.raises(UsageError):
        Client(target)


async def test_closing_the_client_fails_pending_calls() -> None:
    async with Client(weather()) as client:
        call = asyncio.ensure_future(client.call_tool("forever"))
        await client.list_tools()
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(call, TIMEOUT_SECONDS)


async def test_server_that_cannot_be_opened_leaves_nothing_open() -> None:
    async def refuse(call: Call) -> Any:
        raise ProtocolError("closed", code=-32000)

    client = Client(refuse)
    with pytest.raises(ProtocolError, match="closed"):
        await client.__aenter__()
    with pytest.raises((UsageError, TransportError)):
        await client.list_tools()


# What goes over the wire


@pytest.mark.requirement("modern.client-info-sent")
async def test_modern_request_says_everything_each_time() -> None:
    seen: list[Any] = []

    def answer(call: Call) -> Any:
        seen.append(msgspec.json.decode(call.params)["_meta"])
        return Raw(b'{"resultType":"complete","tools":[],"ttlMs":0,"cacheScope":"private"}')

    async with Client(
        handler_of(answer), client_name="probe", client_version="9", roots=[], log_level="info"
    ) as client:
        await client.list_tools()
        await client.list_tools()
    assert seen[0] == seen[1]
    assert seen[0] == {
        PROTOCOL_VERSION_META_KEY: FIRST_MODERN_VERSION,
        CLIENT_CAPABILITIES_META_KEY: {"roots": {}},
        CLIENT_INFO_META_KEY: {"name": "probe", "version": "9"},
        LOG_LEVEL_META_KEY: "info",
    }


@pytest.mark.requirement("lifecycle.client-opens")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_older_request_says_it_once(revision: str) -> None:
    seen: list[bytes] = []

    def answer(call: Call) -> Any:
        seen.append(bytes(call.params))
        return Raw(b'{"tools":[]}')

    async with Client(handler_of(answer), protocol_version=revision) as client:
        await client.list_tools()
    assert b"_meta" not in seen[0]


@pytest.mark.requirement("roots.declared")
@pytest.mark.broken_frames("a server that says no more than it has to")
@pytest.mark.parametrize(
    "options, declared",
    [
        ({}, set()),
        ({"sampling_handler": lambda asked: ""}, {"sampling"}),
        ({"elicitation_handler": lambda asked: {}}, {"elicitation"}),
        ({"roots": []}, {"roots"}),
    ],
)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_only_capabilities_with_a_handler_are_declared(revision: str, options: Any, declared: set[str]) -> None:
    seen: list[set[str]] = []

    def answer(call: Call) -> Any:
        data = msgspec.json.decode(msgspec.json.encode(call.capabilities))
        seen.append(set(data))
        return Raw(b'{"tools":[]}')

    if revision < "2025-06-18":
        declared = declared - {"elicitation"}  # which it has no word for
    async with Client(handler_of(answer), protocol_version=revision, **options) as client:
        await client.list_tools()
    assert seen == [declared]


# Calls


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_is_called(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        result = await client.call_tool("forecast", {"city": "Rome", "days": 1})
    assert result.is_error is False
    assert isinstance(result.content[0], TextContent)
    assert result.text == '{"city":"Rome","days":1}'
    if revision >= "2025-06-18":
        assert result.structured == result.data == {"city": "Rome", "days": 1}
    else:
        assert result.structured is None
        assert result.data == result.text


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_rejection_is_raised_or_returned(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        with pytest.raises(ToolError, match=r"No forecast on Sundays\.") as refused:
            await client.call_tool("fail")
        # The server states no type, so it is the generic one.
        assert (refused.value.error_type, refused.value.details) == ("ToolExecutionError", {})
        result = await client.call_tool("fail", raise_on_error=False)
    assert (result.is_error, result.text, result.structured) == (True, "No forecast on Sundays.", None)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_error_of_the_protocol_is_always_raised(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.call_tool("forecst", raise_on_error=False)
    assert raised.value.code == -32602
    assert raised.value.data["suggestions"] == ["forecast"]


async def test_object_that_looks_wrapped_and_is_not_is_left_unchanged() -> None:
    """2026-07-28 wraps nothing, so there is nothing to unwrap."""
    server = Server("s")

    @server.tool
    async def give() -> dict[str, int]:
        return {"result": 5}

    async with Client(server) as client:
        assert (await client.call_tool("give")).data == {"result": 5}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_client_methods_cover_every_request(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        await client.ping()
        assert (await client.list_tools())[0].name == "forecast"
        assert await client.list_resources() == []
        assert [item.name for item in await client.list_resource_templates()] == ["today"]
        assert [item.name for item in await client.list_prompts()] == ["plan"]
        [contents] = await client.read_resource("weather://Rome/today")
        assert (contents.uri, contents.text, contents.mime_type) == (
            "weather://Rome/today",
            "sun in Rome",
            "text/plain",
        )
        response = await client.get_prompt("plan", {"city": "Rome"})
        assert response.description == "Plan a trip."
        assert response.messages[0].content.text == "Plan a trip to Rome."  # type: ignore[union-attr]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_prompt_arguments_that_are_not_texts_are_sent_as_json(revision: str) -> None:
    server = Server("scalars")

    @server.prompt
    def show(a: str, b: str, c: str, d: str = "") -> str:
        return f"{a}|{b}|{c}|{d}"

    async with Client(server, protocol_version=revision) as client:
        response = await client.get_prompt("show", {"a": 2, "b": True, "c": [1.5, None], "d": "2"})
    assert response.messages[0].content.text == "2|true|[1.5,null]|2"  # type: ignore[union-attr]


async def test_structured_content_has_the_protocol_s_name_too() -> None:
    async with Client(weather()) as client:
        result = await client.call_tool("forecast", {"city": "Rome"})
    assert result.structured_content == result.structured != None  # noqa: E711


async def test_many_calls_share_one_client() -> None:
    async with Client(weather()) as client:
        said = await asyncio.gather(*(client.call_tool("forecast", {"city": str(n)}) for n in range(100)))
    assert [result.data["city"] for result in said] == [str(n) for n in range(100)]


async def test_any_request_can_be_made() -> None:
    async with Client(weather()) as client:
        response = await client.request("tools/list", {})
    assert b'"forecast"' in bytes(response)


# Results that are none


@pytest.mark.broken_frames("a server that answers wrongly")
@pytest.mark.parametrize("said", [b"{}", b'{"tools":5}', b'{"tools":[{"name":"t"}]}', b"[]", b'"text"', b"null"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_result_of_the_wrong_shape_is_said_to_be_so(revision: str, said: bytes) -> None:
    async with Client(handler_of(lambda call: Raw(said)), protocol_version=revision, timeout=TIMEOUT_SECONDS) as client:
        with pytest.raises(ProtocolError, match="tools/list"):
            await client.list_tools()


async def test_server_may_omit_optional_fields() -> None:
    async with Client(handler_of(lambda call: Raw(b'{"content":[]}')), protocol_version="2024-11-05") as client:
        result = await client.call_tool("t")
    assert (result.content, result.is_error, result.structured, result.data) == ([], False, None, None)


@pytest.mark.broken_frames("a server of another revision")
async def test_members_of_tomorrow_are_ignored() -> None:
    message = b'{"resultType":"complete","content":[{"type":"text","text":"t","x":1}],"isError":false,"y":{"z":1}}'
    async with Client(handler_of(lambda call: Raw(message))) as client:
        assert (await client.call_tool("t")).text == "t"


async def test_server_that_never_stops_asking_is_left() -> None:
    rounds: list[int] = []

    def answer(call: Call) -> Any:
        rounds.append(1)
        return InputRequiredResult(request_state="again")

    async with Client(handler_of(answer)) as client:
        with pytest.raises(ProtocolError, match="still requires input after 10 rounds"):
            await client.call_tool("t")
    assert len(rounds) <= 12


@pytest.mark.broken_frames("a server that answers wrongly")
async def test_elicitation_without_a_handler_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server is another's: ours would not ask it.
    monkeypatch.setattr(client_requests, "validate_input_requests", lambda call, request: None)
    request = b'{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}'
    async with Client(handler_of(lambda call: Raw(request)), timeout=TIMEOUT_SECONDS) as client:
        with pytest.raises(ProtocolError, match="sampling/createMessage"):
            await client.call_tool("t")


# Waiting


@pytest.mark.requirement("cancellation.timeout")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_call_has_its_time(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        with pytest.raises(RequestTimeout, match=r"tools/call.*0\.01"):
            await client.call_tool("forever", timeout=0.01)
        await client.ping()


@pytest.mark.requirement("cancellation.client-tells")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_call_that_is_given_up_is_stopped_on_the_other_side(revision: str, how: str) -> None:
    server = Server("s")
    begun, ended = asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with Client(server, protocol_version=revision) as client, asyncio.timeout(TIMEOUT_SECONDS):
        if how == "timeout":
            with pytest.raises(RequestTimeout):
                await client.call_tool("wait", timeout=0.01)
        else:
            call = asyncio.ensure_future(client.call_tool("wait"))
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await ended.wait()


# What the server says on the way


@pytest.mark.requirement("progress.token-unique")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_progress_goes_to_the_call_that_requested_it(revision: str) -> None:
    mine: list[Any] = []
    everybodys: list[Any] = []
    async with Client(
        weather(), protocol_version=revision, progress_handler=lambda *message: everybodys.append(message)
    ) as client:
        await client.call_tool("work", progress_handler=lambda *message: mine.append(message))
        await client.call_tool("work")
    expected = (1.0, 2.0, "half" if revision >= "2025-03-26" else None)
    assert (mine, everybodys) == ([expected], [expected])


@pytest.mark.parametrize("level, levels", [("debug", ["debug", "warning"]), ("warning", ["warning"]), ("alert", [])])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_log_messages_are_received_from_a_level_on(revision: str, level: Any, levels: list[str]) -> None:
    heard: list[notifications.LogMessageParams] = []
    async with Client(weather(), protocol_version=revision, log_handler=heard.append, log_level=level) as client:
        await client.call_tool("work")
    assert [message.level for message in heard] == levels
    if "warning" in levels:
        assert (heard[-1].data, heard[-1].logger) == ({"loud": True}, "weather")


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_level_may_be_changed(revision: str) -> None:
    heard: list[notifications.LogMessageParams] = []
    async with Client(weather(), protocol_version=revision, log_handler=heard.append) as client:
        await client.set_log_level("emergency")
        await client.call_tool("work")
        assert heard == []
        await client.set_log_level("debug")
        await client.call_tool("work")
    assert [message.level for message in heard] == ["debug", "warning"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_log_handler_without_a_level_receives_messages(revision: str) -> None:
    heard: list[LogMessage] = []
    async with Client(weather(), protocol_version=revision, log_handler=heard.append) as client:
        await client.call_tool("work")
    # A session has the server's default level; 2026-07-28 has none, and the client asks for everything.
    assert all(type(message) is LogMessage for message in heard)
    assert [message.level for message in heard] == (
        ["debug", "warning"] if revision >= FIRST_MODERN_VERSION else ["warning"]
    )


async def test_no_log_messages_without_a_log_level_on_2026_07_28(heard: Any) -> None:
    async with Client(weather(), message_handler=heard) as client:
        await client.call_tool("work")
    assert heard.methods == []


# What the server asks


@pytest.mark.parametrize(
    "answer, expected",
    [
        ({"value": 3}, "accept 3"),
        (None, "decline None"),
        (ElicitResult("accept", {"value": 3}), "accept 3"),
        (ElicitResult("cancel"), "cancel None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_handler_may_answer_in_many_ways(revision: str, waiting: bool, answer: Any, expected: str) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        result = await ctx.elicit("?", int)
        return f"{result.action} {result.data}"

    async def later(asked: Any) -> Any:
        return answer

    handler = later if waiting else (lambda asked: answer)
    async with Client(server, protocol_version=revision, elicitation_handler=handler) as client:
        assert (await client.call_tool("ask")).text == expected


# Changes


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_subscribing_is_a_request_of_the_handshake_revisions(heard: Any, revision: str) -> None:
    server = weather()
    async with Client(server, protocol_version=revision, message_handler=heard) as client:
        await client.subscribe("weather://Rome/today")
        server.notify_resource_updated("weather://Rome/today")
        await heard.wait_for("notifications/resources/updated")
        await client.unsubscribe("weather://Rome/today")
        await client.unsubscribe("weather://never/subscribed")


async def test_2026_07_28_listens_instead(heard: Any) -> None:
    server = weather()
    async with Client(server, message_handler=heard) as client:
        with pytest.raises(UsageError, match="listen"):
            await client.subscribe("weather://Rome/today")
        with pytest.raises(UsageError, match="listen"):
            await client.unsubscribe("weather://Rome/today")
        async with client.listen(SubscriptionFilter(resource_subscriptions=["weather://Rome/today"])):
            server.notify_resource_updated("weather://Rome/today")
            await heard.wait_for("notifications/resources/updated")
    assert heard.methods[0] == "notifications/subscriptions/acknowledged"


async def test_two_subscriptions_can_end_in_any_order(heard: Any) -> None:
    server = weather()
    async with Client(server, message_handler=heard) as client:
        first = client.listen(SubscriptionFilter(tools_list_changed=True))
        second = client.listen(SubscriptionFilter(prompts_list_changed=True))
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        server.tool("t")(lambda: "")
        server.prompt("p")(lambda: "")
        await heard.wait_for("notifications/prompts/list_changed")
        await second.__aexit__(None, None, None)
    assert "notifications/tools/list_changed" not in heard.methods


async def test_server_that_does_not_listen_says_so() -> None:
    async with Client(handler_of(lambda call: None)) as client, asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(ProtocolError):
            async with client.listen(SubscriptionFilter(tools_list_changed=True)):
                pass


# Two sides


async def test_client_may_be_owned_by_any_task() -> None:
    """Opened here, used there, closed somewhere else."""
    client = Client(weather())
    await asyncio.create_task(client.__aenter__())
    result = await asyncio.create_task(client.call_tool("forecast", {"city": "Rome"}))
    await asyncio.create_task(client.__aexit__(None, None, None))
    assert result.data["city"] == "Rome"


async def test_server_may_have_many_clients() -> None:
    server = weather()
    async with Client(server) as client, Client(server, protocol_version="2024-11-05") as other:
        assert (await client.call_tool("forecast", {"city": "Rome"})).data["city"] == "Rome"
        assert (await other.call_tool("forecast", {"city": "Pisa"})).text == '{"city":"Pisa","days":3}'
