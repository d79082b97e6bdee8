"""Required behaviour on any transport, where other implementations have failed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from portico import Client, Context, ProtocolError, Server, ToolError, ToolResult, UsageError
from portico.protocol import errors, notifications
from portico.protocol.client_features import (
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
)
from portico.protocol.content import TextContent
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    SUBSCRIPTION_ID_META_KEY,
    ServerCapabilities,
)
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tools import CallToolResult, ListToolsResult, Tool as Definition
from portico.protocol.versions import (
    FIRST_MODERN_VERSION,
    HANDSHAKE_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    SUPPORTED_PROTOCOL_VERSIONS,
)
from portico.rpc.call import Call
from portico.server.components.tools import Tool
from portico.transports.http_server.application import HttpApplication, HttpServerSettings
from portico.transports.http_server.listener import Listener

SERVED = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})

Connect = Callable[..., Any]

OBJECT = {"type": "object"}
EVERYTHING = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}


@dataclass
class Point:
    x: int
    y: int


def small() -> Server:
    """One of each."""
    server = Server("small", version="1.0.0", instructions="Ask.")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    async def book(ctx: Context) -> str:
        seats = await ctx.elicit("How many seats?", int)
        return f"{seats.action}: {seats.data}"

    @server.tool
    async def quiet(ctx: Context) -> str:
        await ctx.error("something to log")
        return "done"

    @server.resource("small://here")
    async def here() -> str:
        return "here"

    @server.resource("small://{place}")
    async def place(place: str) -> str | None:
        return place if place == "there" else None

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    return server


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "small://here"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": ""}},
    ),
]
CACHEABLE = (
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
)


# Era and dispatch


@pytest.mark.requirement("modern.era-before-method")
@pytest.mark.parametrize(
    "method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
)
async def test_era_is_decided_before_the_method(connect: Connect, method: str) -> None:
    """What 2026-07-28 has removed is unknown to whoever speaks it, however well an older client may say it."""
    params = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
        "level": "info",
        "uri": "small://here",
    }
    response = await connect(small()).request_stateless(method, params)
    assert response["error"]["code"] == -32601
    assert method in response["error"]["message"]


@pytest.mark.requirement("modern.envelope-is-no-handshake")
async def test_handshake_that_was_rejected_as_modern_can_still_be_made(connect: Connect) -> None:
    """An `initialize` in a modern envelope leaves no trace on the stream."""
    wire = connect(small())
    await wire.request_stateless("initialize", {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}})
    assert (await wire.initialize(LATEST_HANDSHAKE_VERSION))["protocolVersion"] == LATEST_HANDSHAKE_VERSION


@pytest.mark.requirement("lifecycle.version-counter")
@pytest.mark.parametrize("asked", ["2026-07-28", "2099-01-01", "1.0.0", "", "draft"])
async def test_initialize_never_negotiates_a_modern_revision(connect: Connect, asked: str) -> None:
    """The handshake offers its own newest revision for everything it does not know, 2026-07-28 among it."""
    assert (await connect(small()).initialize(asked))["protocolVersion"] == "2025-11-25"


@pytest.mark.requirement("lifecycle.version-echo")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_initialize_returns_the_supported_version(connect: Connect, revision: str) -> None:
    """A known handshake revision is agreed to as it is."""
    assert (await connect(small()).initialize(revision))["protocolVersion"] == revision


@pytest.mark.requirement("modern.failed-probe")
@pytest.mark.parametrize(
    "probe",
    [
        {},
        {"_meta": {PROTOCOL_VERSION_META_KEY: "2099-01-01", CLIENT_CAPABILITIES_META_KEY: {}}},
        {"_meta": {CLIENT_CAPABILITIES_META_KEY: {}}},
    ],
    ids=["bare", "of an unknown revision", "without a revision"],
)
async def test_failed_probe_does_not_spoil_the_handshake(connect: Connect, probe: Any) -> None:
    """A client may try the new way, fail, and open the stream the old way; we answer both and live on."""
    wire = connect(small())
    assert "error" in await wire.request("server/discover", probe)
    assert (await wire.initialize(LATEST_HANDSHAKE_VERSION))["protocolVersion"] == LATEST_HANDSHAKE_VERSION
    assert (await wire.request("ping"))["result"] == {}


@pytest.mark.requirement("jsonrpc.error-codes")
def test_no_error_of_ours_has_a_code_from_the_drafts() -> None:
    """The released codes are -32020 to -32022; the numbers the drafts had mean other things elsewhere."""
    kinds = [errors.ProtocolError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    codes = {kind.code for kind in kinds}
    assert codes.isdisjoint({-32001, -32003, -32004})
    assert {-32020, -32021, -32022} <= codes


@pytest.mark.requirement("jsonrpc.error-codes")
async def test_draft_code_is_only_a_number_to_the_client() -> None:
    """-32001 may be a time-out or a lost session: the client reports it and makes nothing of it."""

    async def handler(call: Call) -> Any:
        if call.method == "tools/list":
            raise ProtocolError("Session not found", code=-32001)
        return DiscoverResult(
            supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
        )

    async with Client(handler) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.list_tools()
    assert (type(raised.value), raised.value.code) == (ProtocolError, -32001)


@pytest.mark.requirement("modern.envelope-is-no-handshake")
async def test_envelope_is_not_a_handshake(connect: Connect) -> None:
    """A modern request is served, and the session of the same stream is as closed as before."""
    wire = connect(small())
    assert "result" in await wire.request_stateless("tools/list")
    assert wire.session.state == "CREATED"
    assert (await wire.request("tools/list"))["error"]["code"] == -32600


@pytest.mark.requirement("modern.no-memory", "modern.missing-capability")
async def test_capabilities_are_not_remembered_between_modern_requests(connect: Connect) -> None:
    """What one request could be asked for, the next one on the pipe cannot unless it says so too."""
    wire = connect(small())
    first = await wire.request_stateless("tools/call", {"name": "book"}, capabilities={"elicitation": {}})
    second = await wire.request_stateless("tools/call", {"name": "book"})
    assert first["result"]["resultType"] == "input_required"
    assert second["error"]["code"] == -32021


@pytest.mark.requirement("modern.no-memory", "logging.per-request")
async def test_session_lends_nothing_to_a_modern_request(connect: Connect) -> None:
    """Neither the capabilities nor the log level of the handshake hold for a request that stands alone."""
    wire = connect(small())
    await wire.initialize(LATEST_HANDSHAKE_VERSION, {"elicitation": {}})
    assert (await wire.request_stateless("tools/call", {"name": "book"}))["error"]["code"] == -32021
    await wire.request_stateless("tools/call", {"name": "quiet"})
    assert wire.other_messages == []


@pytest.mark.requirement("modern.client-info-decides-nothing")
async def test_responses_do_not_depend_on_client_info(connect: Connect) -> None:
    """A different name and version get the same bytes."""
    wire = connect(small())
    response = await wire.request_stateless("tools/list", client={"name": "one", "version": "1"})
    other = await wire.request_stateless("tools/list", client={"name": "other", "version": "2"})
    assert response["result"] == other["result"]


@pytest.mark.requirement("modern.client-info-optional")
async def test_client_info_is_optional(connect: Connect) -> None:
    """`clientInfo` is a courtesy: absent it is not missed."""
    assert "result" in await connect(small()).request_stateless("tools/list")


@pytest.mark.requirement("modern.client-info-optional")
@pytest.mark.parametrize("info", ["Ada", {"name": "c"}, {"name": 1, "version": "1"}])
async def test_client_that_misspells_itself_is_informed(connect: Connect, info: Any) -> None:
    """Present but malformed is another matter than absent."""
    response = await connect(small()).request_stateless("tools/list", client=info)
    assert response["error"]["code"] == -32602
    assert "_meta" in response["error"]["message"]


@pytest.mark.requirement("discover.result")
async def test_discover_keeps_the_servers_name_in_meta(connect: Connect) -> None:
    """`serverInfo` stands in `_meta`, not beside the capabilities."""
    result = (await connect(small()).request_stateless("server/discover"))["result"]
    assert "serverInfo" not in result
    assert result["_meta"][SERVER_INFO_META_KEY] == {"name": "small", "version": "1.0.0"}
    assert result["supportedVersions"] == [FIRST_MODERN_VERSION]
    assert result["instructions"] == "Ask."


@pytest.mark.requirement("modern.server-info")
@pytest.mark.parametrize("method, params", [("server/discover", {}), *REQUESTS])
async def test_every_modern_result_has_server_info(connect: Connect, method: str, params: Any) -> None:
    """All results carry the server's name and version in `_meta`."""
    result = (await connect(small()).request_stateless(method, params))["result"]
    assert result["_meta"][SERVER_INFO_META_KEY]["name"] == "small"


@pytest.mark.requirement("modern.server-info")
async def test_failed_tool_result_has_server_info(connect: Connect) -> None:
    """An isError result is a result like any other."""
    result = (await connect(small()).request_stateless("tools/call", {"name": "add", "arguments": {"a": 1}}))["result"]
    assert result["isError"] is True
    assert result["_meta"][SERVER_INFO_META_KEY]["name"] == "small"


@pytest.mark.requirement("modern.server-info")
async def test_input_required_result_has_server_info(connect: Connect) -> None:
    """An input_required result is a result like any other."""
    response = await connect(small()).request_stateless("tools/call", {"name": "book"}, capabilities=EVERYTHING)
    assert response["result"]["_meta"][SERVER_INFO_META_KEY]["name"] == "small"


@pytest.mark.requirement("modern.nothing-for-older-clients")
@pytest.mark.parametrize("method, params", [("ping", {}), ("logging/setLevel", {"level": "info"}), *REQUESTS])
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_older_clients_get_nothing_of_the_newest_envelope(
    connect: Connect, revision: str, method: str, params: Any
) -> None:
    """No resultType, no cache hints, no server name: strict older peers close their results."""
    wire = connect(small())
    await wire.initialize(revision)
    result = (await wire.request(method, params))["result"]
    assert not result.keys() & {"resultType", "ttlMs", "cacheScope", "_meta"}


@pytest.mark.requirement("ping.empty")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"])
async def test_empty_result_is_empty(connect: Connect, revision: str, method: str) -> None:
    """`{}` and nothing else."""
    wire = connect(small())
    await wire.initialize(revision)
    assert (await wire.request(method, {"level": "info", "uri": "small://here"}))["result"] == {}


@pytest.mark.requirement("modern.result-type", "caching.hints")
@pytest.mark.parametrize("method, params", [("server/discover", {}), *REQUESTS])
async def test_modern_clients_get_all_of_it(connect: Connect, method: str, params: Any) -> None:
    """resultType everywhere; ttlMs and cacheScope on what may be cached, and nowhere else."""
    result = (await connect(small()).request_stateless(method, params))["result"]
    assert result["resultType"] == "complete"
    hints = result.keys() & {"ttlMs", "cacheScope"}
    assert hints == ({"ttlMs", "cacheScope"} if method in CACHEABLE else set())


@pytest.mark.requirement("modern.unsupported-version")
@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05", "v999", ""])
async def test_unsupported_version_is_answered_as_discover_would(connect: Connect, version: str) -> None:
    """The list of what we speak is the same in both places, and what was asked for is said again."""
    wire = connect(small())
    error = (await wire.request_stateless("tools/list", version=version))["error"]
    offered = (await wire.request_stateless("server/discover"))["result"]["supportedVersions"]
    assert error["code"] == -32022
    assert error["data"] == {"supported": offered, "requested": version}


# Ids and notifications


@pytest.mark.requirement("jsonrpc.unreadable-id-null")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_unreadable_id_is_null_where_the_schema_wants_one(connect: Connect, revision: str) -> None:
    """The schemas up to 2025-06-18 demand an id in every error."""
    wire = connect(small())
    await wire.initialize(revision)
    wire.send_bytes(b"{not json")
    message = await wire.receive()
    assert (message["id"], message["error"]["code"]) == (None, -32700)


@pytest.mark.requirement("jsonrpc.unreadable-id-absent")
async def test_unreadable_id_is_left_out_where_null_is_forbidden(connect: Connect) -> None:
    """From 2025-11-25 on an error without a readable id has no id."""
    wire = connect(small())
    await wire.initialize("2025-11-25")
    wire.send_bytes(b"{not json")
    message = await wire.receive()
    assert "id" not in message
    assert message["error"]["code"] == -32700


@pytest.mark.requirement("jsonrpc.id-type")
@pytest.mark.parametrize("id", [None, True, 1.5, [], {}])
async def test_request_with_no_proper_id_is_invalid(connect: Connect, id: Any) -> None:
    """Null, and whatever is neither text nor an integer, is not an id."""
    wire = connect(small())
    wire.send({"jsonrpc": "2.0", "id": id, "method": "ping"})
    message = await wire.receive()
    assert message["error"]["code"] == -32600
    assert message.get("id") is None


@pytest.mark.requirement("jsonrpc.error-without-id-accepted")
@pytest.mark.parametrize("id", [{"id": None}, {}], ids=["null", "absent"])
async def test_error_without_an_id_is_accepted(connect: Connect, id: dict[str, Any]) -> None:
    """Peers write it as null or leave it out; either is taken in silence."""
    wire = connect(small())
    wire.send({"jsonrpc": "2.0", **id, "error": {"code": -32700, "message": "Parse error"}})
    assert (await wire.request("ping"))["result"] == {}
    assert wire.other_messages == []


@pytest.mark.requirement("jsonrpc.notification-unanswered")
@pytest.mark.parametrize(
    "method, params",
    [
        ("notifications/initialized", None),
        ("notifications/cancelled", {"requestId": "nobody"}),
        ("notifications/cancelled", {"requestId": {}}),
        ("notifications/cancelled", None),
        ("notifications/roots/list_changed", None),
        ("notifications/made/up", {"a": 1}),
        ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
        ("tools/list", {"_meta": {PROTOCOL_VERSION_META_KEY: "v999", CLIENT_CAPABILITIES_META_KEY: {}}}),
        ("tools/list", {"_meta": 1}),
    ],
)
@pytest.mark.parametrize("opened", [True, False])
async def test_notification_is_never_answered(connect: Connect, opened: bool, method: str, params: Any) -> None:
    """Known or unknown, well formed or not: without an id there is nothing to say."""
    wire = connect(small())
    if opened:
        await wire.initialize(LATEST_HANDSHAKE_VERSION)
    wire.notify(method, params)
    assert (await wire.request("ping"))["result"] == {}
    assert wire.other_messages == []
    assert wire.is_silent


# Multi-round-trip requests


class Asking:
    """A modern server by hand: each round asks for the next answer, and the sent params are kept."""

    def __init__(self, *rounds: InputRequiredResult) -> None:
        self.rounds = list(rounds)
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    async def __call__(self, call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            raise errors.MethodNotFound
        self.calls.append((call.id, msgspec.json.decode(call.params)))
        if len(self.calls) <= len(self.rounds):
            return self.rounds[len(self.calls) - 1]
        return CallToolResult(content=[TextContent(text="done")], is_error=False)


def question(key: str, state: Any = UNSET) -> InputRequiredResult:
    form = ElicitFormParams(message="?", requested_schema={"type": "object", "properties": {}})
    return InputRequiredResult(input_requests={key: InputRequest("elicitation/create", form)}, request_state=state)


@pytest.mark.requirement("mrtr.retry-is-new")
async def test_retry_is_a_new_request() -> None:
    """Each round has an id of its own, and the same method and params."""
    server = Asking(question("a", "one"), question("b", "two"))
    async with Client(server, elicitation_handler=lambda request: {}) as client:
        await client.call_tool("t", {"x": 1})
    ids = [id for id, _ in server.calls]
    assert len(set(ids)) == 3
    assert all(params["name"] == "t" and params["arguments"] == {"x": 1} for _, params in server.calls)


@pytest.mark.requirement("mrtr.answers-of-one-round")
async def test_retry_has_only_the_answers_of_its_round() -> None:
    """Earlier answers live in the server's state; they are not sent twice."""
    server = Asking(question("a", "one"), question("b", "two"))
    async with Client(server, elicitation_handler=lambda request: {}) as client:
        await client.call_tool("t")
    assert [set(params.get("inputResponses", {})) for _, params in server.calls] == [set(), {"a"}, {"b"}]


@pytest.mark.requirement("mrtr.state-echoed")
async def test_request_state_is_returned_unchanged() -> None:
    """Whatever characters it is made of, and never from an earlier round."""
    odd = 'é "\\u0041" \n\t ☃ ='
    server = Asking(question("a", odd), question("b"), question("c", ""))
    async with Client(server, elicitation_handler=lambda request: {}) as client:
        await client.call_tool("t")
    states = [params.get("requestState", "none was sent") for _, params in server.calls]
    assert states == ["none was sent", odd, "none was sent", ""]


@pytest.mark.requirement("mrtr.answers-of-one-round")
async def test_answer_is_bare() -> None:
    """No resultType and no envelope around what is answered."""
    server = Asking(question("a"))
    async with Client(server, elicitation_handler=lambda request: {"n": 1}) as client:
        await client.call_tool("t")
    assert server.calls[1][1]["inputResponses"] == {"a": {"action": "accept", "content": {"n": 1}}}


@pytest.mark.requirement("mrtr.state-echoed")
async def test_nothing_of_a_round_leaks_into_the_next_request() -> None:
    """Another call begins without answers and without state."""
    server = Asking(question("a", "one"))
    async with Client(server, elicitation_handler=lambda request: {}) as client:
        await client.call_tool("t")
        await client.call_tool("t")
    assert not server.calls[-1][1].keys() & {"inputResponses", "requestState"}


async def asked_for_state(wire: Any, name: str = "book", arguments: Any = None) -> str:
    params = {"name": name, "arguments": arguments or {}}
    response = await wire.request_stateless("tools/call", params, capabilities=EVERYTHING)
    state = response["result"]["requestState"]
    assert isinstance(state, str)
    return state


def tables() -> Server:
    server = Server("tables")

    @server.tool
    async def book(ctx: Context, when: str = "now") -> str:
        return str((await ctx.elicit("How many seats?", int)).data)

    @server.tool
    async def cancel(ctx: Context, when: str = "now") -> str:
        return str((await ctx.elicit("How many seats?", int)).data)

    @server.tool
    async def plain(when: str = "now") -> str:
        return when

    return server


ANSWER = {"elicitation-1": {"action": "accept", "content": {"value": 4}}}


@pytest.mark.requirement("mrtr.state-continues")
async def test_request_state_is_bound_to_its_call(connect: Connect) -> None:
    """The same tool with the same arguments goes on where it stopped."""
    wire = connect(tables())
    state = await asked_for_state(wire)
    params = {"name": "book", "arguments": {}, "requestState": state, "inputResponses": ANSWER}
    response = await wire.request_stateless("tools/call", params, capabilities=EVERYTHING)
    assert response["result"]["content"][0]["text"] == "4"


@pytest.mark.requirement("mrtr.state-bound-to-request")
@pytest.mark.parametrize(
    "changed",
    [{"name": "cancel"}, {"arguments": {"when": "later"}}, {"name": "plain"}],
    ids=["another tool", "other arguments", "a tool that asks nothing"],
)
async def test_state_works_for_no_other_call(connect: Connect, changed: dict[str, Any]) -> None:
    """It is bound to the tool and to its arguments."""
    wire = connect(tables())
    state = await asked_for_state(wire)
    params = {"name": "book", "arguments": {}, "requestState": state, "inputResponses": ANSWER, **changed}
    response = await wire.request_stateless("tools/call", params, capabilities=EVERYTHING)
    assert response["error"]["code"] == -32602
    assert "requestState" in response["error"]["message"]


@pytest.mark.requirement("mrtr.state-bound-to-principal")
async def test_request_state_is_bound_to_its_principal(connect: Connect) -> None:
    """It is bound to the principal it was given to."""
    server = tables()
    state = await asked_for_state(connect(server, principal="ada"))
    params = {"name": "book", "arguments": {}, "requestState": state, "inputResponses": ANSWER}
    response = await connect(server, principal="eve").request_stateless("tools/call", params, capabilities=EVERYTHING)
    assert response["error"]["code"] == -32602


@pytest.mark.requirement("mrtr.state-integrity")
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state[:-4] + ("AAAA" if state[-4:] != "AAAA" else "BBBB"),
        lambda state: "A" + state[1:] if state[0] != "A" else "B" + state[1:],
        lambda state: state[: len(state) // 2],
        lambda state: state + "\n",
        lambda state: "",
        lambda state: "not a state",
        lambda state: "ä" * 40,
        lambda state: "A" * 2_000_000,
    ],
    ids=["last", "first", "half", "newline", "empty", "words", "not ASCII", "huge"],
)
async def test_touched_state_is_rejected(connect: Connect, change: Callable[[str], str]) -> None:
    """It is signed, and only the exact text that was issued is accepted."""
    wire = connect(tables())
    state = change(await asked_for_state(wire))
    params = {"name": "book", "arguments": {}, "requestState": state, "inputResponses": ANSWER}
    assert (await wire.request_stateless("tools/call", params, capabilities=EVERYTHING))["error"]["code"] == -32602


@pytest.mark.requirement("mrtr.state-expires")
async def test_state_has_an_end(connect: Connect) -> None:
    """Past its time it is refused, with the advice to begin again."""
    server = tables()
    server.state_sealer.ttl = -1.0
    wire = connect(server)
    state = await asked_for_state(wire)
    params = {"name": "book", "arguments": {}, "requestState": state, "inputResponses": ANSWER}
    error = (await wire.request_stateless("tools/call", params, capabilities=EVERYTHING))["error"]
    assert error["code"] == -32602
    assert "expired" in error["message"]


def demanding() -> Server:
    server = Server("demanding")

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Please sign in", "https://example.com/sign-in")).action

    @server.tool
    async def think(ctx: Context) -> str:
        return (await ctx.sample("Think", tools=[Definition(name="look", input_schema=OBJECT)])).text

    return server


@pytest.mark.requirement("mrtr.declared-only")
@pytest.mark.parametrize(
    "tool, declared, required",
    [
        ("visit", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("visit", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ("visit", {}, {"elicitation": {"url": {}}}),
        ("think", {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("think", {}, {"sampling": {}}),
    ],
)
async def test_only_declared_capabilities_are_requested(
    connect: Connect, tool: str, declared: Any, required: dict[str, Any]
) -> None:
    """An empty elicitation capability is forms alone, and sampling alone is without tools."""
    response = await connect(demanding()).request_stateless("tools/call", {"name": tool}, capabilities=declared)
    assert response["error"]["code"] == -32021
    assert response["error"]["data"]["requiredCapabilities"].keys() == required.keys()
    if tool == "visit" or declared:
        assert response["error"]["data"]["requiredCapabilities"] == required


@pytest.mark.requirement("mrtr.supported-requests")
@pytest.mark.parametrize("method, params", [("server/discover", {}), *REQUESTS])
async def test_requests_that_may_not_elicit_return_complete_results(connect: Connect, method: str, params: Any) -> None:
    """Lists, completions and discover are complete answers, whatever the client could be asked."""
    response = await connect(small()).request_stateless(method, params, capabilities=EVERYTHING)
    assert response["result"]["resultType"] == "complete"


@pytest.mark.requirement("mrtr.supported-requests")
@pytest.mark.parametrize("method", ["tools/list", "completion/complete"])
async def test_elicitation_in_middleware_is_a_usage_error(connect: Connect, method: str) -> None:
    """A question where the revision has no room for one must not reach the wire."""
    server = small()

    def wrong(handler: Any) -> Any:
        async def ask(call: Call) -> Any:
            return question("a") if call.method == method else await handler(call)

        return ask

    server.add_middleware(wrong)
    response = await connect(server).request_stateless(method, dict(REQUESTS)[method], capabilities=EVERYTHING)
    assert response.get("result", {}).get("resultType") != "input_required"


@pytest.mark.requirement("progress.increases")
async def test_progress_increases_across_client_requests(connect: Connect) -> None:
    """A handler that is entered again with the answers keeps its token, so it must not seem to start over."""

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            raise errors.MethodNotFound
        for progress in (1.0, 2.0):
            assert call.progress_token is not None
            call.reply.notify(
                notifications.PROGRESS,
                notifications.ProgressParams(progress_token=call.progress_token, progress=progress),
            )
        if b"inputResponses" not in bytes(call.params):
            return question("a")
        call.reply.notify(
            notifications.PROGRESS, notifications.ProgressParams(progress_token=call.progress_token, progress=3.0)
        )
        return CallToolResult(content=[], is_error=False)

    seen: list[float] = []
    client = Client(handler, protocol_version="2025-11-25", elicitation_handler=lambda request: ElicitResult("decline"))
    async with client:
        await client.call_tool("t", progress_handler=lambda progress, total, message: seen.append(progress))
    assert seen == sorted(set(seen))
    assert seen[-1] == 3.0


# Subscriptions


def grow(server: Server, name: str = "more") -> None:
    server.add(Tool(lambda: None, name=name))


@pytest.mark.requirement("subscriptions.listen-only")
async def test_modern_client_without_a_listener_is_not_notified(connect: Connect) -> None:
    """Changes go to listeners; having made requests is not listening."""
    server = small()
    wire, listener = connect(server), connect(server)
    await wire.request_stateless("tools/list")
    listener.send(listening(listener, 1, toolsListChanged=True))
    await listener.receive()
    grow(server)
    assert (await listener.receive())["method"] == "notifications/tools/list_changed"
    assert wire.is_silent


def listening(wire: Any, id: int | str, **wanted: Any) -> dict[str, Any]:
    params = {"notifications": wanted, "_meta": wire.envelope()}
    return {"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params}


@pytest.mark.requirement("subscriptions.acknowledged-first")
async def test_acknowledgement_comes_first(connect: Connect) -> None:
    """Even when the change was made in the same moment."""
    server = small()
    wire = connect(server)
    wire.send(listening(wire, 1, toolsListChanged=True))
    grow(server)
    grow(server, "most")
    assert (await wire.receive())["method"] == "notifications/subscriptions/acknowledged"


@pytest.mark.requirement("subscriptions.id")
@pytest.mark.parametrize("id", [7, "7", "seven"])
async def test_notification_has_the_subscription_id(connect: Connect, id: int | str) -> None:
    """The subscription id is the request's id: a number stays a number, a text a text."""
    server = small()
    wire = connect(server)
    wire.send(listening(wire, id, toolsListChanged=True))
    acknowledged = await wire.receive()
    grow(server)
    changed = await wire.receive()
    for message in (acknowledged, changed):
        named = message["params"]["_meta"][SUBSCRIPTION_ID_META_KEY]
        assert (type(named), named) == (type(id), id)


@pytest.mark.requirement("subscriptions.acknowledged-subset")
async def test_acknowledgement_lists_only_supported_notifications(connect: Connect) -> None:
    """The acknowledgement has the part of the wish that this server tells of."""
    server = Server("partly", capabilities={"tools": {"listChanged": True}, "resources": {}})
    wire = connect(server)
    wish = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["a://b"]}
    wire.send(listening(wire, 1, **wish))
    assert (await wire.receive())["params"]["notifications"] == {"toolsListChanged": True}


@pytest.mark.requirement("subscriptions.filter")
async def test_listener_receives_only_the_changes_it_subscribed_to(connect: Connect) -> None:
    """A listener for prompts does not hear of tools."""
    server = small()
    wire = connect(server)
    wire.send(listening(wire, 1, promptsListChanged=True))
    await wire.receive()
    grow(server)
    server.prompt(lambda: "later")
    assert (await wire.receive())["method"] == "notifications/prompts/list_changed"
    assert wire.is_silent


@pytest.mark.requirement("subscriptions.all-connections")
async def test_change_made_on_one_connection_reaches_the_listeners_of_all(connect: Connect) -> None:
    """Whoever made it, and however they are connected."""
    server = small()

    @server.tool
    async def learn() -> str:
        grow(server)
        return "learnt"

    item, other, old = connect(server), connect(server), connect(server)
    item.send(listening(item, "a", toolsListChanged=True))
    await item.receive()
    await old.initialize(LATEST_HANDSHAKE_VERSION)
    assert (await old.request("ping"))["result"] == {}
    await other.request_stateless("tools/call", {"name": "learn"})
    assert (await item.receive())["method"] == "notifications/tools/list_changed"
    assert (await old.receive())["method"] == "notifications/tools/list_changed"
    assert other.is_silent


# Pages


@pytest.mark.requirement("jsonrpc.null-is-not-absence")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_nothing_optional_is_null(connect: Connect, revision: str) -> None:
    """What is not there is left out, the next cursor first of all."""
    wire = connect(small())
    if revision != FIRST_MODERN_VERSION:
        assert None not in (await wire.initialize(revision)).values()
    for method, params in REQUESTS:
        result = (await wire.request_as(revision, method, params))["result"]
        assert "nextCursor" not in result
        assert b"null" not in msgspec.json.encode(result)


@pytest.mark.requirement("pagination.end")
async def test_empty_cursor_is_not_the_end() -> None:
    """A client reads on until there is no next cursor."""
    requests: list[Any] = []

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
            )
        requests.append(msgspec.json.decode(call.params).get("cursor", "none"))
        tool = Definition(name=f"t{len(requests)}", input_schema=OBJECT)
        following: Any = ["", "x", UNSET][len(requests) - 1]
        return ListToolsResult(tools=[tool], next_cursor=following, ttl_ms=0, cache_scope="private")

    async with Client(handler) as client:
        tools = await client.list_tools()
    assert [tool.name for tool in tools] == ["t1", "t2", "t3"]
    assert requests == ["none", "", "x"]


@pytest.mark.broken_frames("a server that writes null for what it does not have")
@pytest.mark.requirement("pagination.end")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_null_cursor_ends_the_list(revision: str) -> None:
    """Some servers write the end of the list as null; a client takes it as the end."""

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            raise errors.MethodNotFound
        return Raw(b'{"tools":[],"nextCursor":null}')

    async with Client(handler, protocol_version=revision) as client:
        assert await client.list_tools() == []


# Content and tools


def structured() -> Server:
    server = Server("structured")

    @server.tool
    async def found(there: bool) -> Point | None:
        return Point(1, 2) if there else None

    @server.tool(output_schema={"type": ["object", "null"]})
    async def nullable() -> Any:
        return None

    @server.tool
    async def many() -> list[int]:
        return [1, 2]

    @server.tool(structured_output=False)
    async def words() -> str:
        return "words"

    @server.tool
    async def fails() -> Point:
        raise ToolError("There is no such point.")

    @server.tool
    async def fails_in_full() -> Point:
        return ToolResult(content="No point.", structured={"why": "none"}, is_error=True)  # type: ignore[return-value]

    return server


@pytest.mark.requirement("tools.structured-null")
async def test_null_is_something_and_absence_is_nothing(connect: Connect) -> None:
    """On 2026-07-28 a structured null is sent as null, and a tool without structured content sends no member."""
    wire = connect(structured())
    nothing = (await wire.request_stateless("tools/call", {"name": "nullable", "arguments": {}}))["result"]
    words = (await wire.request_stateless("tools/call", {"name": "words"}))["result"]
    assert nothing["structuredContent"] is None
    assert "structuredContent" not in words


@pytest.mark.requirement("tools.structured-null")
async def test_client_tells_null_from_absence() -> None:
    """The value of a tool that found nothing is None, not the text "null"."""
    async with Client(structured()) as client:
        assert (await client.call_tool("found", {"there": False})).data is None
        assert (await client.call_tool("words")).data == "words"


@pytest.mark.requirement("tools.structured-object")
@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("name, arguments", [("many", {}), ("found", {"there": False}), ("found", {"there": True})])
async def test_older_clients_get_objects_only(connect: Connect, revision: str, name: str, arguments: Any) -> None:
    """Where structured content is an object by definition, anything else is put into one, schema and all."""
    wire = connect(structured())
    await wire.initialize(revision)
    listed = {tool["name"]: tool for tool in (await wire.request("tools/list"))["result"]["tools"]}
    result = (await wire.request("tools/call", {"name": name, "arguments": arguments}))["result"]
    schema = listed[name]["outputSchema"]
    assert schema["type"] == "object"
    assert isinstance(result["structuredContent"], dict)
    assert set(schema.get("required", ())) <= result["structuredContent"].keys()
    assert result["content"][0]["type"] == "text"


@pytest.mark.requirement("tools.structured-since")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
async def test_oldest_clients_get_text_only(connect: Connect, revision: str) -> None:
    """Before 2025-06-18 there is no structured content and no output schema."""
    wire = connect(structured())
    await wire.initialize(revision)
    result = (await wire.request("tools/call", {"name": "many"}))["result"]
    assert result == {"content": [{"type": "text", "text": "[1,2]"}], "isError": False}
    assert all("outputSchema" not in tool for tool in (await wire.request("tools/list"))["result"]["tools"])


@pytest.mark.requirement("tools.output-errors")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("name", ["fails", "fails_in_full"])
async def test_error_owes_nothing_to_the_output_schema(connect: Connect, revision: str, name: str) -> None:
    """isError comes with its text and without structured content, since several clients check it all the same."""
    wire = connect(structured())
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    result = (await wire.request_as(revision, "tools/call", {"name": name}))["result"]
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert "point" in result["content"][0]["text"]


@pytest.mark.requirement("tools.output-errors")
async def test_client_takes_an_error_from_a_tool_with_an_output_schema() -> None:
    """What failed is not held against the schema of what succeeds."""
    async with Client(structured()) as client:
        result = await client.call_tool("fails", raise_on_error=False)
    assert (result.is_error, result.structured, result.text) == (True, None, "There is no such point.")


@pytest.mark.requirement("tools.arguments-isError")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_wrong_arguments_are_for_the_model_to_read(connect: Connect, revision: str) -> None:
    """From 2025-11-25 on they are a result, so that the model sees them and tries again."""
    wire = connect(small())
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    response = await wire.request_as(revision, "tools/call", {"name": "add", "arguments": {"a": "x", "c": 1}})
    text = response["result"]["content"][0]["text"]
    assert response["result"]["isError"] is True
    assert "'a'" in text
    assert "an integer" in text
    assert 'the string "x"' in text
    assert "Missing argument 'b'" in text
    assert "Unknown argument 'c'" in text


@pytest.mark.requirement("tools.arguments-protocol-error")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_wrong_arguments_are_a_protocol_error_where_they_used_to_be(connect: Connect, revision: str) -> None:
    """Before, the text of the specification made them -32602; the same problems stand in `data`."""
    wire = connect(small())
    await wire.initialize(revision)
    error = (await wire.request("tools/call", {"name": "add", "arguments": {"a": "x"}}))["error"]
    assert error["code"] == -32602
    assert [problem["path"] for problem in error["data"]["problems"]] == ["arguments.a", "arguments.b"]
    assert error["data"]["problems"][0]["expected"] == "an integer"
    assert error["data"]["problems"][0]["received"] == 'the string "x"'


@pytest.mark.requirement("tools.unknown-name")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unknown_tool_is_a_protocol_error(connect: Connect, revision: str) -> None:
    """No tool ran, so there is no result; the nearest name is offered."""
    wire = connect(small())
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    error = (await wire.request_as(revision, "tools/call", {"name": "ad"}))["error"]
    assert (error["code"], error["message"]) == (-32602, "Unknown tool: ad")
    assert error["data"]["suggestions"] == ["add"]


KEYWORDS: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:example:order",
    "type": "object",
    "$defs": {"item": {"$anchor": "item", "type": "object", "additionalProperties": {"type": "string"}}},
    "properties": {"kind": {"const": "a"}, "item": {"$ref": "#item"}},
    "if": {"properties": {"kind": {"const": "a"}}},
    "then": {"required": ["item"]},
    "else": {"not": {"required": ["item"]}},
    "unevaluatedProperties": False,
    "x-made-up": {"kept": None},
}


@pytest.mark.requirement("tools.schema-untouched")
@pytest.mark.parametrize("mounted", [False, True], ids=["own", "mounted"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_schema_is_passed_on_unchanged(revision: str, mounted: bool) -> None:
    """Every keyword comes out on the other side, also those that we have never heard of."""
    inner = Server("inner")
    inner.add(Tool(lambda order: None, name="order", input_schema=KEYWORDS, output_schema=KEYWORDS))
    server = inner
    if mounted:
        server = Server("outer")
        server.mount(inner)
    async with Client(server, protocol_version=revision) as client:
        [tool] = await client.list_tools()
    assert tool.input_schema == KEYWORDS
    assert tool.output_schema == (KEYWORDS if revision >= "2025-06-18" else None)


REMOTE = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("somebody opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.requirement("tools.remote-ref")
@pytest.mark.usefixtures("offline")
def test_reference_that_will_not_be_followed_is_rejected_when_the_tool_is_made() -> None:
    """Arguments that cannot be checked are not let through unchecked: the author learns it at once."""
    with pytest.raises(UsageError, match="input_schema"):
        Tool(lambda arguments: None, name="far", input_schema=REMOTE)


@pytest.mark.requirement("tools.remote-ref")
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_client_does_not_follow_a_remote_reference(revision: str) -> None:
    """A server's schema may point anywhere; its client reads it, calls the tool, and does not go there.

    Nor does it let a result pass that it cannot hold against the schema, unless it was told not to look.
    """

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            raise errors.MethodNotFound
        if call.method == "tools/list":
            tool = Definition(name="far", input_schema=REMOTE, output_schema=REMOTE)
            return ListToolsResult(tools=[tool], ttl_ms=0, cache_scope="private")
        return CallToolResult(content=[], structured_content={"a": 1}, is_error=False)

    async with Client(handler, protocol_version=revision) as client:
        [tool] = await client.list_tools()
        if revision >= "2025-06-18":
            with pytest.raises(errors.ProtocolError, match="unusable output schema"):
                await client.call_tool("far", {"a": 1})
    assert tool.input_schema == REMOTE
    async with Client(handler, protocol_version=revision, validate_results=False) as client:
        await client.list_tools()
        await client.call_tool("far", {"a": 1})


@pytest.mark.requirement("tools.list-stable")
async def test_list_is_equal_for_all_callers_and_over_time(connect: Connect) -> None:
    """Neither the connection nor what was called before changes a byte of it."""
    server = small()
    item, other = connect(server), connect(server)
    before = (await item.request_stateless("tools/list"))["result"]
    await item.request_stateless("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    await item.request_stateless("tools/call", {"name": "book"}, capabilities=EVERYTHING)
    assert (await item.request_stateless("tools/list"))["result"] == before
    assert (await other.request_stateless("tools/list", capabilities=EVERYTHING))["result"] == before


@pytest.mark.requirement("tools.list-stable")
def test_order_is_the_one_in_which_things_were_added() -> None:
    """Prompt caches live on lists that do not shuffle."""
    names = ["zebra", "ant", "Mule", "b10", "b9"]
    server = Server("ordered")
    for name in names:
        grow(server, name)
    assert [tool.name for tool in server.tools] == names


@pytest.mark.requirement("tools.names-aggregated")
async def test_equal_names_are_distinguished_by_the_prefix_the_author_chose(connect: Connect) -> None:
    """Two servers may call themselves and their tools the same; the prefix decides, not their names."""
    server = Server("outer")
    for number in (1, 2):
        inner = Server("twin")
        inner.add(Tool(lambda number=number: str(number), name="which"))
        server.mount(inner, namespace=f"n{number}")
    wire = connect(server)
    listed = (await wire.request_stateless("tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["n1_which", "n2_which"]
    messages = [
        (await wire.request_stateless("tools/call", {"name": name}))["result"] for name in ("n1_which", "n2_which")
    ]
    assert [result["content"][0]["text"] for result in messages] == ["1", "2"]


@pytest.mark.requirement("tools.names-aggregated")
async def test_prompt_is_completed_under_its_outward_name() -> None:
    """`ref/prompt` carries a name too, and it is rewritten like the others."""
    inner, server = Server("inner"), Server("outer")

    @inner.prompt
    async def paint(colour: str) -> str:
        return colour

    @inner.completion("paint", "colour")
    async def colours(typed: str) -> list[str]:
        return [item for item in ("red", "rose", "blue") if item.startswith(typed)]

    server.mount(inner, namespace="x")
    async with Client(server) as client:
        result = await client.complete({"type": "ref/prompt", "name": "x_paint"}, "colour", "r")
    assert result.values == ["red", "rose"]


@pytest.mark.requirement("tools.names-aggregated")
async def test_app_page_of_a_mounted_tool_has_the_exposed_uri() -> None:
    """A tool's `_meta` may name a resource of the same server: the client must be able to read it."""
    inner, server = Server("inner"), Server("outer")
    inner.add(Tool(lambda: None, name="chart", meta={"ui": {"resourceUri": "ui://chart"}}))

    @inner.resource("ui://chart")
    async def chart() -> str:
        return "<svg/>"

    server.mount(inner, namespace="x")
    async with Client(server) as client:
        [tool] = await client.list_tools()
        assert tool.meta is not None
        [page] = await client.read_resource(tool.meta["ui"]["resourceUri"])
    assert page.text == "<svg/>"


@pytest.mark.requirement("resources.missing-modern", "resources.missing-handshake")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("uri", ["small://nowhere", "nothing://at/all"], ids=["of a template", "of nobody"])
async def test_missing_resource_is_an_error(connect: Connect, revision: str, uri: str) -> None:
    """Never an empty answer; -32002 until 2025-11-25 and -32602 since, with the URI in either case."""
    wire = connect(small())
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    error = (await wire.request_as(revision, "resources/read", {"uri": uri}))["error"]
    assert error["code"] == (-32602 if revision == FIRST_MODERN_VERSION else -32002)
    assert error["data"]["uri"] == uri


# Extensions, and what is open


@pytest.mark.requirement("tasks.only-where-offered")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel", "tasks/update"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tasks_extension_is_not_declared_without_tasks(connect: Connect, revision: str, method: str) -> None:
    """What is not offered is not found, whoever asks."""
    wire = connect(small())
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    response = await wire.request_as(revision, method, {"taskId": "1"})
    assert response["error"]["code"] == -32601


@pytest.mark.requirement("tasks.not-forced")
async def test_call_is_answered_with_a_result_and_not_with_a_task(connect: Connect) -> None:
    """Whatever a client offers to poll for."""
    offered = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {"ttl": 1000}}
    response = await connect(small()).request_stateless("tools/call", params, capabilities=offered)
    assert response["result"]["resultType"] == "complete"


@pytest.mark.requirement("jsonrpc.unknown-method")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unknown_method_is_only_unknown(connect: Connect, revision: str) -> None:
    """It is refused by its name, and the conversation goes on."""
    wire = connect(small())
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    error = (await wire.request_as(revision, "made/up", {"a": [1]}))["error"]
    assert error["code"] == -32601
    assert "made/up" in error["message"]
    assert "result" in await wire.request_as(revision, "tools/list")


@pytest.mark.requirement("subscriptions.filter-open")
async def test_unknown_kind_of_notification_may_be_wished_for(connect: Connect) -> None:
    """A filter with members of tomorrow is honoured as far as it is known."""
    wire = connect(small())
    wire.send(listening(wire, 1, toolsListChanged=True, weatherChanged=True, taskIds=["1"]))
    assert (await wire.receive())["params"]["notifications"] == {"toolsListChanged": True}


@pytest.mark.requirement("modern.result-type-unknown")
async def test_unknown_result_type_is_rejected() -> None:
    """A client must not read as complete what calls itself something else."""

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION], capabilities=SERVED, ttl_ms=0, cache_scope="private"
            )
        return Raw(b'{"resultType":"postponed","content":[],"isError":false}')

    async with Client(handler) as client:
        with pytest.raises(ProtocolError, match="postponed"):
            await client.call_tool("t")


@pytest.mark.requirement("sampling.stop-reason-open")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_why_a_model_stopped_is_an_open_word(revision: str) -> None:
    """`stopReason` may be anything a provider thinks of."""
    server = Server("stopping")

    @server.tool
    async def think(ctx: Context) -> str | None:
        return (await ctx.sample("Think")).stop_reason

    def answer(asked: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(text="…"), model="m", stop_reason="bored")

    async with Client(server, protocol_version=revision, sampling_handler=answer) as client:
        assert (await client.call_tool("think")).text == "bored"


@pytest.mark.requirement("logging.any-json")
@pytest.mark.parametrize("data", ["text", 1, 1.5, True, None, [1, {"a": None}], {"deep": {"er": []}}])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_log_data_may_be_any_json_value(revision: str, data: Any) -> None:
    """`data` is not a text by nature, and null is a value."""
    server = Server("talkative")

    @server.tool
    async def say(ctx: Context) -> str:
        await ctx.warning(data)
        return "said"

    heard: list[Any] = []
    arrived = asyncio.Event()

    def listen(said: notifications.LogMessageParams) -> None:
        heard.append((said.level, said.logger, said.data))
        arrived.set()

    async with Client(server, protocol_version=revision, log_handler=listen, log_level="debug") as client:
        await client.call_tool("say")
        async with asyncio.timeout(5):
            await arrived.wait()
    assert heard == [("warning", "talkative", data)]


@pytest.mark.requirement("jsonrpc.unknown-notification")
async def test_unknown_notifications_reach_the_message_handler(heard: Any) -> None:
    """They are passed on, and break nothing."""
    server = small()

    def herald(handler: Any) -> Any:
        async def announce(call: Call) -> Any:
            if call.method == "tools/call":
                call.reply.notify("notifications/of/tomorrow", {"a": 1})
            return await handler(call)

        return announce

    server.add_middleware(herald)
    async with Client(server, message_handler=heard) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
        await heard.wait_for("notifications/of/tomorrow")
    assert heard.messages[0] == ("notifications/of/tomorrow", {"a": 1})


@pytest.mark.requirement("tools.names")
def test_tool_names_are_validated_on_registration() -> None:
    """1 to 128 letters, digits, underscores, dots and hyphens; a mistake shows while the server is built."""
    server = Server("named")
    for name in ("a", "A-b_c.9", "x" * 128):
        grow(server, name)
    for name in ("", "x" * 129, "a b", "a/b", "ä"):
        with pytest.raises(UsageError):
            grow(server, name or " ")


@pytest.mark.requirement("subscriptions.filter-open")
async def test_subscription_filter_is_encoded_in_camel_case(connect: Connect) -> None:
    """Our own client's filter travels as the revision writes it."""
    assert msgspec.json.encode(SubscriptionFilter(tools_list_changed=True)) == b'{"toolsListChanged":true}'


# What a client does of itself


@pytest.mark.requirement("jsonrpc.own-ids")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_every_client_request_has_a_unique_id(revision: str) -> None:
    """One after the other and side by side, over the whole conversation."""
    ids: list[Any] = []

    def watch(direction: str, message: bytes) -> None:
        frame = msgspec.json.decode(message)
        if direction == "sent" and "method" in frame and "id" in frame:
            ids.append(frame["id"])

    async with Client(small(), protocol_version=revision, on_message_bytes=watch) as client:
        for _ in range(3):
            await client.list_tools()
        await asyncio.gather(*(client.call_tool("add", {"a": 1, "b": item}) for item in range(5)))
    assert len(ids) >= 8
    assert len(set(ids)) == len(ids)


@pytest.mark.requirement("ping.client")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_client_answers_a_ping(revision: str) -> None:
    answers: list[bytes] = []

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=[FIRST_MODERN_VERSION],
                capabilities=ServerCapabilities(tools={}),
                ttl_ms=0,
                cache_scope="private",
            )
        # No body can; the stream that it is answered on can.
        answers.append(bytes(await call.reply._ask("ping", None)))
        return CallToolResult(content=[], is_error=False)

    async with Client(handler, protocol_version=revision) as client:
        await client.call_tool("any")
    assert answers == [b"{}"]


@pytest.mark.requirement("http.accept")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS[1:])
async def test_every_post_of_a_client_takes_json_and_events(revision: str) -> None:
    heads: list[dict[bytes, bytes]] = []
    server = small()

    async def seen(call: Call) -> Any:
        # `initialize` has no version yet; the server describes itself with the call of that request.
        if call.headers is not None and call.method != "server/discover":
            heads.append(dict(call.headers))
        return await server(call)

    listener = Listener(HttpApplication(seen, HttpServerSettings(), dict))
    ((_, port, *_),) = await listener.listen("127.0.0.1", 0)
    try:
        async with Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision) as client:
            await client.list_tools()
            await client.call_tool("add", {"a": 1, "b": 2})
    finally:
        await listener.stop(0)
    assert len(heads) >= 2
    for head in heads:
        assert {b"application/json", b"text/event-stream"} <= {item.strip() for item in head[b"accept"].split(b",")}
        assert (head.get(b"mcp-protocol-version") == revision.encode()) == (revision != "2025-03-26")


# What a server does, and what it leaves alone


@pytest.mark.requirement("cancellation.server-only-listen")
async def test_server_cancels_nothing_but_subscriptions(connect: Connect) -> None:
    server = small()
    begun = asyncio.Event()

    @server.tool
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    @server.tool(timeout=0.001)
    async def slow() -> None:
        await asyncio.Event().wait()

    wire = connect(server)
    listening = wire.envelope()
    wire.send(
        {
            "jsonrpc": "2.0",
            "id": "listen",
            "method": "subscriptions/listen",
            "params": {"notifications": {"toolsListChanged": True}, "_meta": listening},
        }
    )
    assert (await wire.receive())["method"] == notifications.SUBSCRIPTIONS_ACKNOWLEDGED
    call = {"name": "wait", "arguments": {}, "_meta": wire.envelope()}
    wire.send({"jsonrpc": "2.0", "id": "waits", "method": "tools/call", "params": call})
    await begun.wait()
    wire.notify(notifications.CANCELLED, {"requestId": "waits"})
    assert (await wire.request_stateless("tools/call", {"name": "slow", "arguments": {}}))["result"]["isError"]
    await wire.channel.shutdown(0)
    message = wire.other_messages
    while not wire.is_silent:
        message.append(await wire.receive())
    cancelled = [item["params"]["requestId"] for item in message if item.get("method") == notifications.CANCELLED]
    assert cancelled == ["listen"]


@pytest.mark.requirement("tools.unique")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_names_of_tools_have_a_case(revision: str) -> None:
    server = Server("cased")
    server.tool(name="Add")(lambda: "large")
    server.tool(name="add")(lambda: "small")
    async with Client(server, protocol_version=revision) as client:
        assert {tool.name for tool in await client.list_tools()} == {"Add", "add"}
        assert (await client.call_tool("Add")).text == "large"
        assert (await client.call_tool("add")).text == "small"


@pytest.mark.requirement("prompts.list-changed")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_prompt_changes_are_notified(connect: Connect, revision: str) -> None:
    server = small()
    wire = connect(server)
    await wire.initialize(revision)
    await wire.request("prompts/list")
    server.prompt(name="newcomer")(lambda: "hello")
    assert (await wire.receive())["method"] == notifications.PROMPTS_LIST_CHANGED
    server.remove("newcomer")
    assert (await wire.receive())["method"] == notifications.PROMPTS_LIST_CHANGED


@pytest.mark.requirement("tools.declared")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_server_declares_its_capabilities(connect: Connect, revision: str) -> None:
    wire = connect(small())
    if revision == FIRST_MODERN_VERSION:
        response = (await wire.request_stateless("server/discover"))["result"]["capabilities"]
    else:
        response = (await wire.initialize(revision))["capabilities"]
    assert {"tools", "resources", "prompts", "logging"} <= response.keys()
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
        assert "result" in await wire.request_as(revision, method)
