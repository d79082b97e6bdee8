"""The dispatcher: protocol version of a request, and exactly one response for each.

A single message goes through a Channel in front of the handler; what only a stream has (cancellation, batches while
others run) through the Channel and the Session that a transport puts in front of a server.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from portico import Context, ProtocolError, Server, ToolError
from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from portico.protocol.versions import (
    HANDSHAKE_VERSIONS,
    MODERN_VERSIONS,
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)
from portico.rpc.call import Call
from support.channels import knock

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
UNSUPPORTED_VERSION = -32022
TIMEOUT_SECONDS = 5.0

META = {PROTOCOL_VERSION_META_KEY: V2026_07_28, CLIENT_CAPABILITIES_META_KEY: {}}

Connect = Callable[..., Any]


class Gate:
    """Where a tool waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.opened.wait()

    async def wait(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.reached.wait()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def server(gate: Gate) -> AsyncIterator[Server]:
    server = Server("door", version="1.0.0")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def slow() -> str:
        await gate.pass_through()
        return "done"

    @server.tool
    async def breaks() -> str:
        raise RuntimeError("the password is swordfish")

    @server.tool
    def breaks_in_a_thread() -> str:
        raise KeyError("swordfish")

    @server.tool(run_in_thread=False)
    def breaks_inline() -> str:
        raise ValueError("swordfish")

    @server.tool
    async def refuses() -> str:
        raise ToolError("Not on a Sunday.")

    @server.tool
    async def refuses_unspeakably() -> str:
        raise ToolError("no such file: caf\udce9.txt")

    @server.tool
    async def refuses_by_protocol() -> str:
        raise ProtocolError("no", {"why": object()})

    @server.tool
    async def ends_itself() -> str:
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        lost.cancel()
        return await lost

    @server.tool(run_in_thread=False)
    def ends_itself_inline() -> str:
        raise asyncio.CancelledError

    @server.tool
    async def exits() -> str:
        raise SystemExit(2)

    @server.tool
    async def unspeakable() -> str:
        return "half a pair: \ud800"

    @server.tool
    async def progresses(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    @server.tool
    async def asks(ctx: Context) -> str:
        return (await ctx.elicit("Sure?", bool)).action

    @server.resource("door://open")
    async def opened() -> str:
        return "open"

    @server.resource("door://broken")
    async def broken() -> str:
        raise RuntimeError("swordfish")

    @server.prompt
    async def broken_prompt() -> str:
        raise RuntimeError("swordfish")

    @server.completion("door://{room}", "room")
    def rooms(typed: str) -> list[str]:
        raise RuntimeError("swordfish")

    @server.resource("door://{room}")
    async def room_of(room: str) -> str:
        return room

    yield server
    gate.opened.set()


def written(method: str, params: dict[str, Any] | None = None, id: Any = 1, **more: Any) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, **more}
    if id is not None:
        message["id"] = id
    if params is not None:
        message["params"] = params
    return json.dumps(message).encode()


def modern(method: str, params: dict[str, Any] | None = None, id: Any = 1, **meta: Any) -> bytes:
    return written(method, {**(params or {}), "_meta": {**META, **meta}}, id)


async def replied(data: bytes, handler: Any, **options: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        reply = await knock(data, handler, **options)
    return None if reply is None else json.loads(reply)


async def code(data: bytes, handler: Any, **options: Any) -> int:
    reply = await replied(data, handler, **options)
    assert "result" not in reply
    return int(reply["error"]["code"])


async def turns() -> None:
    """Let the loop go round often enough for everything that waits for nothing else."""
    for _ in range(20):
        await asyncio.sleep(0)


# Which era


async def test_request_with_version_in_meta_is_stateless(server: Server) -> None:
    """2026-07-28, basic/lifecycle: every request carries what it needs; nothing has to come before it."""
    reply = await replied(modern("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}), server)
    assert reply["id"] == 1
    assert reply["result"]["structuredContent"] == {"result": 3}
    assert reply["result"]["resultType"] == "complete"
    assert reply["result"]["_meta"][SERVER_INFO_META_KEY] == {"name": "door", "version": "1.0.0"}


async def test_client_metadata_is_scoped_to_its_request(server: Server) -> None:
    calls: list[Call] = []

    async def remember(call: Call) -> Any:
        calls.append(call)
        return await server(call)

    who = {"name": "c", "version": "2"}
    everything = {
        CLIENT_CAPABILITIES_META_KEY: {"roots": {}},
        CLIENT_INFO_META_KEY: who,
        LOG_LEVEL_META_KEY: "error",
        "progressToken": "t",
    }
    await knock(modern("tools/list", **everything), remember, principal="me")
    await knock(modern("tools/list"), remember)
    full, bare = calls
    assert full.client is not None
    assert (full.client.name, full.log_level, full.progress_token, full.principal) == ("c", "error", "t", "me")
    assert full.capabilities.roots == {}
    assert (bare.client, bare.log_level, bare.progress_token, bare.principal) == (None, None, None, None)
    assert bare.capabilities.roots is None


@pytest.mark.parametrize("missing", [PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY])
@pytest.mark.parametrize("method", ["tools/list", "server/discover", "tools/call"])
async def test_missing_required_key_is_invalid_params(missing: str, method: str, server: Server) -> None:
    """2026-07-28, basic, `_meta`: both keys are required on every request; a server MUST answer -32602."""
    meta = {name: value for name, value in META.items() if name != missing}
    reply = await replied(written(method, {"_meta": meta}), server)
    assert reply["error"]["code"] == INVALID_PARAMS
    assert missing in reply["error"]["message"]


@pytest.mark.parametrize("params", [None, {}, {"_meta": {}}, {"_meta": {"progressToken": 1}}])
@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen"])
async def test_method_of_2026_07_28_without_the_envelope_is_invalid_params(
    method: str, params: dict[str, Any] | None, server: Server
) -> None:
    assert await code(written(method, params), server) == INVALID_PARAMS


async def test_client_info_is_not_required(server: Server) -> None:
    """2026-07-28, basic: SHOULD. Whoever leaves it out is served."""
    assert "result" in await replied(modern("server/discover"), server)


@pytest.mark.parametrize(
    "meta",
    [
        {PROTOCOL_VERSION_META_KEY: 20260728},
        {PROTOCOL_VERSION_META_KEY: None},
        {CLIENT_CAPABILITIES_META_KEY: None},
        {CLIENT_CAPABILITIES_META_KEY: []},
        {CLIENT_CAPABILITIES_META_KEY: {"roots": True}},
        {CLIENT_INFO_META_KEY: {"name": "only"}},
        {CLIENT_INFO_META_KEY: "me"},
        {LOG_LEVEL_META_KEY: "loud"},
        {"progressToken": 1.5},
        {"progressToken": None},
        {"progressToken": {}},
    ],
)
async def test_key_of_the_wrong_kind_is_invalid_params(meta: dict[str, Any], server: Server) -> None:
    assert await code(modern("tools/list", **meta), server) == INVALID_PARAMS


@pytest.mark.parametrize("meta", [None, [], "x", 1])
async def test_non_object_meta_is_invalid_params(meta: Any, server: Server) -> None:
    assert await code(written("tools/list", {"_meta": meta}), server) == INVALID_PARAMS


async def test_escaped_meta_is_a_meta_anyway(server: Server) -> None:
    data = modern("tools/list").replace(b'"_meta"', b'"\\u005fmeta"')
    assert (await replied(data, server))["result"]["resultType"] == "complete"


@pytest.mark.parametrize("version", ["1900-01-01", "2099-01-01", "v999", "", *HANDSHAKE_VERSIONS])
async def test_unsupported_version_error_lists_supported_versions(version: str, server: Server) -> None:
    """2026-07-28, basic/versioning: -32022 with `supported` and `requested`; and the same list as in discover."""
    reply = await replied(modern("tools/list", **{PROTOCOL_VERSION_META_KEY: version}), server)
    assert reply["error"]["code"] == UNSUPPORTED_VERSION
    assert reply["error"]["data"] == {"supported": list(MODERN_VERSIONS), "requested": version}
    discovered = (await replied(modern("server/discover"), server))["result"]
    assert discovered["supportedVersions"] == reply["error"]["data"]["supported"]


async def test_missing_key_is_reported_before_an_unknown_version(server: Server) -> None:
    """The order that the reference implementations and the conformance suite agree on."""
    assert await code(written("tools/list", {"_meta": {PROTOCOL_VERSION_META_KEY: "v999"}}), server) == INVALID_PARAMS


@pytest.mark.parametrize("method", ["no/such", "tools", "", "rpc.discover", "sampling/createMessage", "roots/list"])
async def test_unknown_method_is_method_not_found(method: str, server: Server, connect: Connect) -> None:
    assert await code(modern(method), server) == METHOD_NOT_FOUND
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    assert (await wire.request(method))["error"]["code"] == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    "method,params",
    [
        (
            "initialize",
            {"protocolVersion": V2025_11_25, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
        ),
        ("ping", {}),
        ("logging/setLevel", {"level": "info"}),
        ("resources/subscribe", {"uri": "door://open"}),
        ("resources/unsubscribe", {"uri": "door://open"}),
    ],
)
async def test_methods_removed_in_2026_07_28_are_not_found(
    method: str, params: dict[str, Any], server: Server, connect: Connect
) -> None:
    """2026-07-28, changelog: the handshake, ping, logging/setLevel and resource subscriptions are removed.
    The era is decided first, so also in a session the envelope makes them unknown."""
    assert await code(modern(method, params), server) == METHOD_NOT_FOUND
    wire = connect(server)
    assert (await wire.request_stateless(method, params))["error"]["code"] == METHOD_NOT_FOUND
    await wire.initialize(V2025_11_25)
    assert (await wire.request_stateless(method, params))["error"]["code"] == METHOD_NOT_FOUND


async def test_both_eras_are_served_on_one_stream(server: Server, connect: Connect) -> None:
    """2026-07-28, basic/versioning: a server MAY serve both concurrently."""
    wire = connect(server)
    before = await wire.request_stateless("tools/list")
    await wire.initialize(V2025_06_18)
    legacy, after = await wire.request("tools/list"), await wire.request_stateless("tools/list")
    assert [item["result"].get("resultType") for item in (before, legacy, after)] == ["complete", None, "complete"]


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_results_of_a_handshake_revision_carry_no_result_type(
    revision: str, server: Server, connect: Connect
) -> None:
    """`resultType`, cache hints and `serverInfo` in `_meta` are words of 2026-07-28."""
    wire = connect(server)
    assert wire.session.protocol_version is None
    opened = await wire.initialize(revision)
    messages = [
        opened,
        (await wire.request("ping"))["result"],
        (await wire.request("tools/list"))["result"],
        (await wire.request("tools/call", {"name": "refuses", "arguments": {}}))["result"],
        (await wire.request("resources/read", {"uri": "door://open"}))["result"],
    ]
    for result in messages:
        assert result.keys().isdisjoint({"resultType", "ttlMs", "cacheScope", "_meta"})


async def test_error_result_of_2026_07_28_is_signed_like_any_other(server: Server) -> None:
    """2026-07-28, schema, ResultMetaObject: servers SHOULD include serverInfo "on every response"."""
    for tool in ("refuses", "breaks"):
        result = (await replied(modern("tools/call", {"name": tool}), server))["result"]
        assert (result["isError"], result["resultType"]) == (True, "complete")
        assert result["_meta"][SERVER_INFO_META_KEY]["name"] == "door"


# What goes wrong in a body


@pytest.mark.parametrize("tool", ["breaks", "breaks_in_a_thread", "breaks_inline"])
async def test_unexpected_exception_returns_an_error_id_without_its_text(
    tool: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await replied(modern("tools/call", {"name": tool}), server)
    assert reply["result"]["isError"] is True
    assert "swordfish" not in json.dumps(reply)
    assert "Traceback" not in json.dumps(reply)
    error = re.search(r"error id ([0-9a-f]{8})", reply["result"]["content"][0]["text"])
    assert error is not None
    assert error[1] in caplog.text
    assert "swordfish" in caplog.text


@pytest.mark.parametrize(
    "method,params",
    [
        ("resources/read", {"uri": "door://broken"}),
        ("prompts/get", {"name": "broken_prompt"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "door://{room}"}, "argument": {"name": "room", "value": ""}},
        ),
    ],
)
async def test_outside_of_tools_an_unexpected_exception_is_an_internal_error(
    method: str, params: dict[str, Any], server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await replied(modern(method, params), server)
    assert reply["error"]["code"] == INTERNAL_ERROR
    assert reply["error"]["data"]["errorId"] in caplog.text
    assert "swordfish" not in json.dumps(reply)


async def test_tool_error_is_a_result_with_its_text(server: Server) -> None:
    """server/tools, Error Handling: tool execution errors are results with `isError: true`."""
    result = (await replied(modern("tools/call", {"name": "refuses"}), server))["result"]
    assert (result["isError"], result["content"]) == (True, [{"type": "text", "text": "Not on a Sunday."}])
    assert "structuredContent" not in result


@pytest.mark.parametrize("params", [{}, {"name": 1}, {"name": None}, {"name": ["add"]}])
async def test_params_that_do_not_fit_the_method_are_invalid_params(params: dict[str, Any], server: Server) -> None:
    assert await code(modern("tools/call", params), server) == INVALID_PARAMS


@pytest.mark.parametrize(
    "tool", ["refuses_unspeakably", "refuses_by_protocol", "unspeakable", "ends_itself", "ends_itself_inline", "exits"]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_caller_gets_a_response_to_any_exception(tool: str, server: Server) -> None:
    """JSON-RPC 2.0, 5: "When a rpc call is made, the Server MUST reply with a Response".

    A refusal that quotes a file name which is no UTF-8, an error with data that is no JSON, text that cannot be
    written, a task that was cancelled by the body itself, a library that calls `sys.exit`: the caller must not wait
    for ever, and the server must live on.
    """
    try:
        reply = await replied(modern("tools/call", {"name": tool}), server)
    except BaseException as escaped:
        pytest.fail(f"{escaped!r} came out of the door")
    assert reply["id"] == 1
    assert ("result" in reply) != ("error" in reply)


@pytest.mark.parametrize("tool", ["refuses_unspeakably", "refuses_by_protocol", "ends_itself", "ends_itself_inline"])
async def test_caller_on_a_stream_gets_a_response_to_any_exception(
    tool: str, server: Server, connect: Connect, recwarn: pytest.WarningsRecorder
) -> None:
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    try:
        wire.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool}})
    except BaseException as escaped:
        pytest.fail(f"{escaped!r} came out of the channel")
    await turns()
    assert not wire.is_silent, "the call was never answered"
    assert (await wire.receive())["id"] == 7
    assert (await wire.request("ping"))["result"] == {}


@pytest.mark.requirement("progress.token")
@pytest.mark.parametrize("revision", [V2024_11_05, V2025_11_25, V2026_07_28])
async def test_progress_token_of_any_size_is_no_trouble(revision: str, server: Server, connect: Connect) -> None:
    wire = connect(server)
    if revision in HANDSHAKE_VERSIONS:
        await wire.initialize(revision)
    params = {
        "name": "progresses",
        "_meta": {**(META if revision not in HANDSHAKE_VERSIONS else {}), "progressToken": 2**63 - 1},
    }
    assert (await wire.request("tools/call", params))["result"]["isError"] is False
    assert wire.other_messages[0]["params"] == {"progressToken": 2**63 - 1, "progress": 1}


# Notifications


@pytest.mark.parametrize(
    "data",
    [
        written("notifications/initialized", id=None),
        written("notifications/cancelled", {"requestId": 99}, id=None),
        written("notifications/cancelled", {"requestId": {}}, id=None),
        written("notifications/cancelled", id=None),
        written("notifications/unheard_of", {"a": 1}, id=None),
        written("no/such/method", id=None),
        written("initialize", id=None),
        written("initialize", {"nonsense": 1}, id=None),
        written("ping", id=None),
        written("tools/list", id=None),
        written("tools/call", {"name": "breaks"}, id=None),
        written("server/discover", id=None),
        modern("tools/call", {"name": "breaks"}, id=None),
        modern("no/such/method", id=None),
        modern("tools/list", id=None, **{PROTOCOL_VERSION_META_KEY: "v999"}),
        written("tools/list", {"_meta": {PROTOCOL_VERSION_META_KEY: V2026_07_28}}, id=None),
        written("tools/list", {"_meta": None}, id=None),
    ],
)
async def test_notification_is_never_answered_not_even_a_wrong_one(
    data: bytes, server: Server, connect: Connect
) -> None:
    """JSON-RPC 2.0, 4.1: "The Server MUST NOT reply to a Notification, including those that are within a batch
    request"."""
    assert await knock(data, server) is None
    assert await knock(b"[" + data + b"]", server, batches=True) is None
    for revision in (None, V2025_03_26, V2025_11_25):
        wire = connect(server)
        if revision is not None:
            await wire.initialize(revision)
        wire.send_bytes(data)
        assert (await wire.request("ping", id="after")) == {"jsonrpc": "2.0", "id": "after", "result": {}}
        assert wire.other_messages == []
        assert wire.is_silent


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/cancelled", "notifications/unheard_of"])
async def test_ordinary_notification_leaves_no_error_in_the_log(
    method: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert await knock(written(method, id=None), server) is None
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.requirement("jsonrpc.notification-id")
@pytest.mark.parametrize("method", ["notifications/initialized", "initialized", "notifications/cancelled"])
@pytest.mark.parametrize("revision", [V2024_11_05, V2025_11_25])
async def test_notification_that_comes_with_an_id_is_an_unknown_request(
    method: str, revision: str, server: Server, connect: Connect
) -> None:
    """basic, Notifications: "Notifications MUST NOT include an ID"; and no result is ever null."""
    wire = connect(server)
    await wire.initialize(revision)
    reply = await wire.request(method, {"requestId": 99})
    assert reply.get("error", {}).get("code") in (METHOD_NOT_FOUND, INVALID_REQUEST)


@pytest.mark.requirement("jsonrpc.late-response")
@pytest.mark.parametrize(
    "data", [b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":9,"error":{"code":-1,"message":"no"}}']
)
async def test_unmatched_response_is_ignored(data: bytes, server: Server, connect: Connect) -> None:
    assert await knock(data, server) is None
    wire = connect(server)
    wire.send_bytes(data)
    assert wire.is_silent


@pytest.mark.parametrize("error", [{"code": "x", "message": "no"}, {"message": "no"}, "no", None])
async def test_invalid_response_ends_its_server_request(error: Any, server: Server, connect: Connect) -> None:
    """The id in a response is one of ours; said back, it would answer some request of the client's. And whoever waits
    for that response must not wait for ever (JSON-RPC 2.0, 5: the caller of the tool is owed an answer)."""
    wire = connect(server)
    await wire.initialize(V2025_11_25, {"elicitation": {}})
    wire.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "asks"}})
    question = await wire.receive()
    assert question["method"] == "elicitation/create"
    wire.send({"jsonrpc": "2.0", "id": question["id"], "error": error})
    await turns()
    messages = []
    while not wire.is_silent:
        messages.append(await wire.receive())
    assert question["id"] not in [frame.get("id") for frame in messages]
    assert [frame["id"] for frame in messages if frame.get("id") is not None] == [5]


# What cannot be read


@pytest.mark.parametrize("revision", [None, *HANDSHAKE_VERSIONS])
@pytest.mark.parametrize(
    "data,expected",
    [(b"{", PARSE_ERROR), (b"1", INVALID_REQUEST), (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST)],
)
async def test_unreadable_message_error_uses_the_stream_version(
    data: bytes, expected: int, revision: str | None, server: Server, connect: Connect
) -> None:
    """`id: null` until 2025-06-18, no id from 2025-11-25 on."""
    wire = connect(server)
    if revision is not None:
        await wire.initialize(revision)
    wire.send_bytes(data)
    reply = await wire.receive()
    assert reply["error"]["code"] == expected
    assert reply.get("id", "left out") == ("left out" if revision == V2025_11_25 else None)
    assert await replied(data, server, revision=revision) == reply


# Two calls at once


async def test_id_in_flight_cannot_be_reused(server: Server, gate: Gate, connect: Connect) -> None:
    """basic, Requests: "The request ID MUST NOT have been previously used by the requestor within the same session"."""
    wire = connect(server)
    slow = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "slow", "_meta": META}}
    wire.send(slow)
    await gate.wait()
    wire.send(slow)
    refused = await wire.receive()
    assert (refused["id"], "error" in refused) == (5, True)
    assert "result" in await wire.request_stateless("tools/list", id="5")
    gate.opened.set()
    assert (await wire.response(5))["result"]["content"][0]["text"] == "done"
    assert "result" in await wire.request_stateless("tools/list", id=5)


async def test_calls_without_an_id_count_against_the_bound_as_well(connect: Connect) -> None:
    """A tools/call that is written as a notification must not be a way around the number of calls in flight."""
    server = Server("bounded")
    running = []

    @server.tool
    async def work(n: int) -> str:
        running.append(n)
        await asyncio.Event().wait()
        return "never"

    wire = connect(server)
    await wire.initialize(V2025_11_25)
    wire.channel.max_concurrent_requests = 3
    for n in range(20):
        wire.notify("tools/call", {"name": "work", "arguments": {"n": n}})
    await turns()
    assert len(running) <= 3


async def test_cancelled_call_is_not_answered(server: Server, gate: Gate, connect: Connect) -> None:
    """basic/utilities/cancellation: receivers SHOULD "not send a response for the cancelled request"."""
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    wire.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "slow"}})
    await gate.wait()
    wire.notify("notifications/cancelled", {"requestId": "5", "reason": "another type, another call"})
    assert wire.channel.in_flight == 1
    wire.notify("notifications/cancelled", {"requestId": 5, "reason": "never mind"})
    assert (await wire.request("ping"))["result"] == {}
    await turns()
    assert wire.channel.in_flight == 0
    gate.opened.set()
    assert (await wire.request("ping"))["result"] == {}
    assert wire.other_messages == []


@pytest.mark.parametrize("meta", [{}, {PROTOCOL_VERSION_META_KEY: V2026_07_28}, META, {"com.example/x": 1}])
async def test_cancellation_without_meta_is_applied(
    meta: dict[str, Any], server: Server, gate: Gate, connect: Connect
) -> None:
    """2026-07-28, basic, `_meta`: the required keys are required on requests; a notification has none."""
    wire = connect(server)
    wire.send_bytes(modern("tools/call", {"name": "slow"}, id=5))
    await gate.wait()
    wire.notify("notifications/cancelled", {"requestId": 5, "_meta": meta})
    await turns()
    assert wire.channel.in_flight == 0
    assert wire.is_silent


# Batches: only 2025-03-26 has them (basic, Batching), and they are let in as long as nothing is settled

PING: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
NOTICE: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/whatever"}
OPENING: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 9,
    "method": "initialize",
    "params": {"protocolVersion": V2025_03_26, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}
BATCHING = [V2024_11_05, V2025_03_26]


async def opened(connect: Connect, server: Server, revision: str | None) -> Any:
    wire = connect(server)
    if revision is not None:
        await wire.initialize(revision)
    return wire


@pytest.mark.parametrize("revision", BATCHING)
async def test_empty_batch_is_one_invalid_request(revision: str | None, server: Server, connect: Connect) -> None:
    """JSON-RPC 2.0, 7: "rpc call with an empty Array" is answered by a single error with id null."""
    wire = await opened(connect, server, revision)
    wire.send([])
    reply = await wire.receive()
    assert (reply["id"], reply["error"]["code"]) == (None, INVALID_REQUEST)
    assert wire.is_silent


@pytest.mark.parametrize("revision", BATCHING)
async def test_batch_of_one_is_answered_by_an_array_of_one(
    revision: str | None, server: Server, connect: Connect
) -> None:
    wire = await opened(connect, server, revision)
    wire.send([PING])
    assert await wire.receive() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


@pytest.mark.parametrize("revision", BATCHING)
async def test_each_invalid_batch_member_gets_its_own_error(
    revision: str | None, server: Server, connect: Connect
) -> None:
    """JSON-RPC 2.0, 7: "rpc call with invalid Batch"."""
    wire = await opened(connect, server, revision)
    wire.send([1, "x", None, {}, [], {"jsonrpc": "1.0", "id": 4, "method": "ping"}, PING])
    replies = await wire.receive()
    assert [reply["id"] for reply in replies] == [None] * 5 + [4, 1]
    assert [reply["error"]["code"] for reply in replies[:-1]] == [INVALID_REQUEST] * 6
    assert replies[-1]["result"] == {}


@pytest.mark.parametrize("revision", BATCHING)
async def test_batch_of_notifications_has_no_response(revision: str | None, server: Server, connect: Connect) -> None:
    """JSON-RPC 2.0, 6: "If there are no Response objects ... the server MUST NOT return an empty Array"."""
    wire = await opened(connect, server, revision)
    wire.send([NOTICE, NOTICE, {"jsonrpc": "2.0", "id": 3, "result": {}}])
    assert (await wire.request("ping"))["result"] == {}
    assert wire.other_messages == []


async def test_notifications_have_no_entry_and_ids_keep_their_types(server: Server, connect: Connect) -> None:
    wire = await opened(connect, server, V2025_03_26)
    wire.send([PING, NOTICE, {**PING, "id": "1"}, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}])
    replies = await wire.receive()
    assert [reply["id"] for reply in replies] == [1, "1", 2]
    assert replies[2]["result"]["tools"]


async def test_initialize_inside_a_batch_is_rejected_and_the_rest_is_served(server: Server, connect: Connect) -> None:
    """2025-03-26, basic/lifecycle: "The initialize request MUST NOT be part of a JSON-RPC batch"."""
    wire = await opened(connect, server, V2025_03_26)
    wire.send([OPENING, PING])
    replies = {reply["id"]: reply for reply in await wire.receive()}
    assert replies[9]["error"]["code"] == INVALID_REQUEST
    assert replies[1]["result"] == {}


@pytest.mark.parametrize("batch", [[], [PING], [OPENING], [NOTICE], [1] * 2000])
async def test_batches_require_a_session(batch: list[Any], server: Server, connect: Connect) -> None:
    """A session begins with `initialize`, which cannot be in a batch."""
    wire = connect(server)
    wire.send(batch)
    assert (await wire.receive())["error"]["code"] == INVALID_REQUEST
    assert wire.session.state == "CREATED"
    assert (await wire.initialize(V2025_03_26))["protocolVersion"] == V2025_03_26


@pytest.mark.parametrize("revision", [V2025_06_18, V2025_11_25])
@pytest.mark.parametrize("batch", [[], [PING], [PING, NOTICE], [NOTICE], [1]])
async def test_from_2025_06_18_on_an_array_is_an_invalid_request(
    batch: list[Any], revision: str, server: Server, connect: Connect
) -> None:
    """2025-06-18, changelog: "Remove support for JSON-RPC batching"."""
    wire = await opened(connect, server, revision)
    wire.send(batch)
    reply = await wire.receive()
    assert reply["error"]["code"] == INVALID_REQUEST
    assert reply.get("id") is None
    assert wire.is_silent


async def test_batch_response_is_sent_when_its_last_member_completes(
    server: Server, gate: Gate, connect: Connect
) -> None:
    wire = await opened(connect, server, V2025_03_26)
    wire.send([{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}}, PING])
    await gate.wait()
    assert wire.is_silent
    assert (await wire.request("ping", id="meanwhile"))["result"] == {}
    gate.opened.set()
    assert sorted(reply["id"] for reply in await wire.receive()) == [1, 2]


async def test_cancelled_member_is_left_out_of_the_array(server: Server, gate: Gate, connect: Connect) -> None:
    wire = await opened(connect, server, V2025_03_26)
    wire.send([{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}}, PING])
    await gate.wait()
    wire.notify("notifications/cancelled", {"requestId": 2})
    assert [reply["id"] for reply in await wire.receive()] == [1]


async def test_batch_with_only_a_cancelled_member_has_no_response(server: Server, gate: Gate, connect: Connect) -> None:
    wire = await opened(connect, server, V2025_03_26)
    wire.send([{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}}])
    await gate.wait()
    wire.notify("notifications/cancelled", {"requestId": 2})
    await turns()
    assert wire.channel.in_flight == 0
    assert (await wire.request("ping"))["result"] == {}
    assert wire.other_messages == []


async def test_batch_does_not_wait_for_a_call_that_is_not_in_it(server: Server, gate: Gate, connect: Connect) -> None:
    """Ids of the two directions are apart: a response in a batch may have the id of a request in flight."""
    wire = await opened(connect, server, V2025_03_26)
    wire.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}})
    await gate.wait()
    wire.send([{"jsonrpc": "2.0", "id": 2, "result": {}}, PING])
    assert not wire.is_silent, "the batch waits for call 2, which is no member of it"
    assert [reply["id"] for reply in await wire.receive()] == [1]


async def test_response_to_an_invalid_batch_is_bounded(server: Server, connect: Connect) -> None:
    """Each member of two bytes would get an error of a hundred; a line of 4 MB would be answered by 200."""
    wire = await opened(connect, server, V2025_03_26)
    data = b"[" + b"1," * 99_999 + b"1]"
    wire.send_bytes(data)
    assert len(await wire.receive_bytes()) <= 5 * len(data)


async def test_dispatcher_accepts_batches_only_if_enabled(server: Server) -> None:
    batch = b"[" + b",".join([written("tools/list", id=1), written("no/such", id="1"), written("n", id=None)]) + b"]"
    replies = await replied(batch, server, batches=True)
    assert [(reply["id"], "result" in reply) for reply in replies] == [(1, True), ("1", False)]
    assert (await replied(batch, server))["error"]["code"] == INVALID_REQUEST
    assert (await replied(b"[]", server, batches=True))["error"]["code"] == INVALID_REQUEST
