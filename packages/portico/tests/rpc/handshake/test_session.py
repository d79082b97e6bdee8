"""The handshake of 2024-11-05 to 2025-11-25 (basic/lifecycle), and the state of a session.

CREATED ──initialize──▶ INITIALIZING ──notifications/initialized──▶ OPERATING ──end of stream──▶ SHUTDOWN
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from portico import Context, Server
from portico.protocol.meta import LOG_LEVEL_RANKS, Icon
from portico.protocol.versions import (
    HANDSHAKE_VERSIONS,
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)
from portico.rpc.call import Call, Handler
from portico.rpc.handshake.session import MAX_RESOURCE_SUBSCRIPTIONS

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
TIMEOUT_SECONDS = 5.0
WHO = {"name": "a client", "version": "1"}

Connect = Callable[..., Any]


@pytest.fixture
def server() -> Server:
    server = Server(
        "host",
        version="1.0.0",
        title="The host",
        description="A server",
        website_url="https://host.test",
        icons=[Icon(src="https://host.test/icon.png")],
        instructions="Be kind.",
    )

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.client_info.name if ctx.client_info else None} at {ctx.protocol_version}"

    @server.tool
    async def speak(ctx: Context) -> str:
        for level in LOG_LEVEL_RANKS:
            await ctx.log(level, level)  # type: ignore[arg-type]
        return "spoken"

    @server.resource("note://a")
    async def note() -> str:
        return "a"

    return server


def opening(**params: Any) -> dict[str, Any]:
    whole = {"protocolVersion": V2025_11_25, "capabilities": {}, "clientInfo": WHO, **params}
    return {name: value for name, value in whole.items() if value is not ...}


async def code(wire: Any, method: str, params: Any = None) -> int:
    reply = await wire.request(method, params)
    assert "result" not in reply, reply
    return int(reply["error"]["code"])


async def turns() -> None:
    """Let the loop go round often enough for everything that waits for nothing else."""
    for _ in range(20):
        await asyncio.sleep(0)


# The state machine


async def test_session_goes_from_created_to_initializing_to_operating_to_shutdown(
    server: Server, connect: Connect
) -> None:
    """basic/lifecycle: Initialization, Operation, Shutdown."""
    wire = connect(server)
    assert wire.session.state == "CREATED"
    await wire.initialize(V2025_11_25, initialized=False)
    assert wire.session.state == "INITIALIZING"
    wire.notify("notifications/initialized")
    assert wire.session.state == "OPERATING"
    assert "result" in await wire.request("tools/list")
    wire.session.close()
    assert wire.session.state == "SHUTDOWN"


@pytest.mark.requirement("ping.empty")
async def test_ping_is_answered_in_every_state(server: Server, connect: Connect) -> None:
    """basic/utilities/ping: "The receiver MUST respond promptly with an empty response"; basic/lifecycle allows it
    before everything else."""
    wire = connect(server)
    assert (await wire.request("ping"))["result"] == {}
    await wire.initialize(V2025_11_25, initialized=False)
    assert (await wire.request("ping", {}))["result"] == {}
    wire.notify("notifications/initialized")
    assert (await wire.request("ping"))["result"] == {}
    wire.session.close()
    assert (await wire.request("ping"))["result"] == {}


@pytest.mark.requirement("lifecycle.order")
@pytest.mark.parametrize(
    "method",
    [
        "tools/list",
        "tools/call",
        "resources/list",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "completion/complete",
        "logging/setLevel",
        "no/such",
    ],
)
@pytest.mark.parametrize("lifecycle", ["auto", "strict", "lenient"])
async def test_before_initialize_everything_else_is_an_invalid_request(
    method: str, lifecycle: str, server: Server, connect: Connect
) -> None:
    """basic/lifecycle: "The initialization phase MUST be the first interaction between client and server"."""
    wire = connect(server, lifecycle=lifecycle)
    assert await code(wire, method, {"uri": "note://a", "level": "info", "name": "who"}) == INVALID_REQUEST
    assert wire.session.state == "CREATED"


async def test_initialized_before_initialize_changes_nothing(server: Server, connect: Connect) -> None:
    wire = connect(server)
    wire.notify("notifications/initialized")
    assert wire.session.state == "CREATED"
    assert await code(wire, "tools/list") == INVALID_REQUEST


@pytest.mark.requirement("lifecycle.initialized")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("lifecycle", ["auto", "strict", "lenient"])
async def test_requests_before_initialized_follow_the_lifecycle_option(
    lifecycle: str, revision: str, server: Server, connect: Connect
) -> None:
    """By themselves 2024-11-05 clients, which often never sent it, may; later ones may not. Both can be overruled."""
    wire = connect(server, lifecycle=lifecycle)
    await wire.initialize(revision, initialized=False)
    allowed = lifecycle == "lenient" or (lifecycle == "auto" and revision == V2024_11_05)
    for method, params in [("tools/list", None), ("logging/setLevel", {"level": "info"})]:
        reply = await wire.request(method, params)
        assert ("result" in reply) == allowed
        assert reply.get("error", {}).get("code", INVALID_REQUEST) == INVALID_REQUEST
    assert wire.session.state == ("OPERATING" if allowed else "INITIALIZING")
    wire.notify("notifications/initialized")
    assert wire.session.state == "OPERATING"
    assert "result" in await wire.request("tools/list")


async def test_short_name_of_initialized_is_understood(server: Server, connect: Connect) -> None:
    """Early servers knew it as `initialized`, and clients of theirs still say so."""
    wire = connect(server)
    await wire.initialize(V2025_11_25, initialized=False)
    wire.notify("initialized")
    assert wire.session.state == "OPERATING"


async def test_initialized_twice_is_no_trouble(server: Server, connect: Connect) -> None:
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    wire.notify("notifications/initialized")
    assert wire.session.state == "OPERATING"
    await turns()
    server.add(_newcomer)
    assert [frame["method"] for frame in await heard(wire)] == ["notifications/tools/list_changed"]


def _newcomer() -> str:
    return "new"


@pytest.mark.requirement("lifecycle.once")
@pytest.mark.parametrize("initialized", [False, True])
async def test_second_initialize_is_an_invalid_request_and_changes_nothing(
    initialized: bool, server: Server, connect: Connect
) -> None:
    wire = connect(server)
    await wire.initialize(V2025_06_18, initialized=initialized)
    before = (wire.session.state, wire.session.protocol_version, wire.session.client)
    assert await code(wire, "initialize", opening(clientInfo={"name": "other", "version": "2"})) == INVALID_REQUEST
    assert (wire.session.state, wire.session.protocol_version, wire.session.client) == before


@pytest.mark.requirement("lifecycle.shutdown")
@pytest.mark.parametrize("revision", [None, V2025_11_25])
async def test_request_after_shutdown_is_rejected_without_logging_an_error(
    revision: str | None, server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """SHUTDOWN is the last state: there is no way from it back to answering."""
    wire = connect(server)
    if revision is not None:
        await wire.initialize(revision)
    wire.session.close()
    assert await code(wire, "tools/list") == INVALID_REQUEST
    assert caplog.records == []


# What is negotiated


@pytest.mark.requirement("lifecycle.version-echo")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_revision_we_know_is_echoed(revision: str, server: Server, connect: Connect) -> None:
    """basic/lifecycle, Version Negotiation: "If the server supports the requested protocol version, it MUST respond
    with the same version"."""
    wire = connect(server)
    assert (await wire.initialize(revision))["protocolVersion"] == revision
    assert wire.session.protocol_version == wire.channel.protocol_version == revision
    assert wire.channel.batching_enabled == (revision <= V2025_03_26)


@pytest.mark.requirement("lifecycle.version-counter")
@pytest.mark.parametrize("asked", [V2026_07_28, "2099-01-01", "1999-01-01", "1.0.0", "2025-11-26", ""])
async def test_any_other_revision_is_countered_with_our_newest_handshake(
    asked: str, server: Server, connect: Connect
) -> None:
    """basic/lifecycle, Version Negotiation: "Otherwise, the server MUST respond with another protocol version it
    supports. This SHOULD be the latest". 2026-07-28 has no initialize, so it is never the answer to one."""
    wire = connect(server)
    assert (await wire.initialize(asked))["protocolVersion"] == V2025_11_25


async def test_missing_initialize_fields_get_defaults(server: Server, connect: Connect) -> None:
    wire = connect(server)
    reply = await wire.request("initialize", {"clientInfo": WHO})
    assert reply["result"]["protocolVersion"] == V2024_11_05
    assert wire.session.capabilities.roots is None
    assert wire.session.client.name == "a client"


@pytest.mark.requirement("lifecycle.client-info")
@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        opening(clientInfo=...),
        opening(clientInfo=None),
        opening(clientInfo={}),
        opening(clientInfo={"name": "x"}),
        opening(clientInfo={"version": "1"}),
        opening(clientInfo={"name": 1, "version": "1"}),
        opening(clientInfo="me"),
        opening(protocolVersion=20251125),
        opening(protocolVersion=None),
        opening(capabilities=[]),
        opening(capabilities={"roots": 1}),
    ],
)
async def test_client_without_info_may_retry(params: Any, server: Server, connect: Connect) -> None:
    """basic/lifecycle: the client MUST send its version, capabilities and implementation information."""
    wire = connect(server)
    assert await code(wire, "initialize", params) == INVALID_PARAMS
    assert wire.session.state == "CREATED"
    assert "result" in await wire.request("initialize", opening())


async def test_unknown_capabilities_are_accepted(server: Server, connect: Connect) -> None:
    wire = connect(server)
    capabilities = {"roots": {"listChanged": True}, "experimental": {"x": {}}, "telepathy": {"range": 3}}
    assert "result" in await wire.request("initialize", opening(capabilities=capabilities, trailing=1))
    assert wire.session.capabilities.roots == {"listChanged": True}


@pytest.mark.requirement("lifecycle.server-info")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_initialize_result_has_server_info_of_the_version(
    revision: str, server: Server, connect: Connect
) -> None:
    """InitializeResult: `title` since 2025-06-18, `icons`, `description` and `websiteUrl` since 2025-11-25,
    `completions` since 2025-03-26."""
    result = await connect(server).initialize(revision)
    who = {"name": "host", "version": "1.0.0"}
    if revision >= V2025_06_18:
        who["title"] = "The host"
    if revision >= V2025_11_25:
        who |= {
            "description": "A server",
            "websiteUrl": "https://host.test",
            "icons": [{"src": "https://host.test/icon.png"}],
        }
    capabilities: dict[str, Any] = {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
    }
    if revision >= V2025_03_26:
        capabilities["completions"] = {}
    assert result == {
        "protocolVersion": revision,
        "capabilities": capabilities,
        "serverInfo": who,
        "instructions": "Be kind.",
    }


async def test_calls_of_a_session_have_the_negotiated_values(server: Server, connect: Connect) -> None:
    calls: list[Call] = []

    async def remember(call: Call) -> Any:
        calls.append(call)
        return await server(call)

    wire = connect(remember, principal="somebody")
    await wire.initialize(V2025_06_18, {"sampling": {}})
    await wire.request("tools/list")
    (call,) = [one for one in calls if one.method == "tools/list"]
    assert (call.protocol_version, call.principal, call.log_level) == (V2025_06_18, "somebody", "info")
    assert call.client is not None
    assert (call.client.name, call.capabilities.sampling) == ("a test", {})
    assert call.reply.can_request


@pytest.mark.requirement("modern.no-memory")
async def test_stateless_call_ignores_the_surrounding_session(server: Server, connect: Connect) -> None:
    """2026-07-28, basic/lifecycle: a server MUST NOT infer capabilities from earlier requests."""
    calls: list[Call] = []

    async def remember(call: Call) -> Any:
        calls.append(call)
        return await server(call)

    wire = connect(remember)
    await wire.initialize(V2025_06_18, {"sampling": {}})
    await wire.request_stateless("tools/list")
    call = calls[-1]
    assert (call.protocol_version, call.client, call.capabilities.sampling, call.reply.can_request) == (
        V2026_07_28,
        None,
        None,
        False,
    )


@pytest.mark.requirement("lifecycle.negotiated-version")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen"])
async def test_methods_new_in_2026_07_28_are_rejected_in_a_session(
    method: str, revision: str, server: Server, connect: Connect
) -> None:
    wire = connect(server)
    await wire.initialize(revision)
    assert await code(wire, method, {"notifications": {}}) in (INVALID_PARAMS, METHOD_NOT_FOUND)


# A handshake that takes its time


class Slow:
    """A handler that does not answer before it is let."""

    def __init__(self, inner: Handler) -> None:
        self.inner = inner
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.failing = False

    async def __call__(self, call: Call) -> Any:
        if call.method == "server/discover":
            self.reached.set()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self.opened.wait()
            if self.failing:
                raise RuntimeError("swordfish")
        return await self.inner(call)


@pytest.mark.requirement("lifecycle.initialize-not-cancelled")
async def test_initialize_cannot_be_cancelled(server: Server, connect: Connect) -> None:
    """basic/utilities/cancellation: "The initialize request MUST NOT be cancelled by clients"."""
    slow = Slow(server)
    wire = connect(slow)
    wire.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening()})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await slow.reached.wait()
    wire.notify("notifications/cancelled", {"requestId": 0})
    await turns()
    slow.opened.set()
    assert (await wire.response(0))["result"]["protocolVersion"] == V2025_11_25


async def test_while_initialize_is_being_answered_only_ping_is(server: Server, connect: Connect) -> None:
    slow = Slow(server)
    wire = connect(slow)
    wire.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening(protocolVersion=V2024_11_05)})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await slow.reached.wait()
    assert (await wire.request("ping"))["result"] == {}
    assert await code(wire, "initialize", opening()) == INVALID_REQUEST
    assert await code(wire, "tools/list") == INVALID_REQUEST
    wire.notify("notifications/initialized")
    assert wire.session.state == "INITIALIZING"
    slow.opened.set()
    assert "result" in await wire.response(0)


async def test_handshake_that_fails_can_be_tried_again(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(server)
    slow.opened.set()
    slow.failing = True
    wire = connect(slow)
    assert await code(wire, "initialize", opening()) == INTERNAL_ERROR
    assert (wire.session.state, wire.session.protocol_version) == ("CREATED", None)
    slow.failing = False
    assert "result" in await wire.request("initialize", opening())


# Logging


async def logged(wire: Any) -> list[str]:
    wire.other_messages.clear()
    await wire.request("tools/call", {"name": "speak", "arguments": {}})
    return [frame["params"]["level"] for frame in wire.other_messages]


@pytest.mark.requirement("logging.level")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_level_that_is_set_is_the_lowest_that_is_sent(revision: str, server: Server, connect: Connect) -> None:
    """server/utilities/logging: the eight levels of RFC 5424; the server sends those at or above the one set."""
    wire = connect(server)
    await wire.initialize(revision)
    levels = list(LOG_LEVEL_RANKS)
    assert await logged(wire) == levels[1:]
    for rank, level in enumerate(levels):
        assert (await wire.request("logging/setLevel", {"level": level}))["result"] == {}
        assert await logged(wire) == levels[rank:]


@pytest.mark.requirement("logging.level-invalid")
@pytest.mark.parametrize("params", [None, {}, {"level": "warn"}, {"level": "INFO"}, {"level": 3}, {"level": None}])
async def test_level_that_does_not_exist_is_invalid_params(params: Any, server: Server, connect: Connect) -> None:
    """server/utilities/logging, Error Handling: "Invalid log level: -32602"."""
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    assert await code(wire, "logging/setLevel", params) == INVALID_PARAMS
    assert wire.session.log_level == "info"


# Changes


async def heard(wire: Any) -> list[Any]:
    await turns()
    messages = []
    while not wire.is_silent:
        messages.append(await wire.receive())
    return messages


@pytest.mark.requirement("resources.subscribe")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_subscriber_is_notified_of_its_resource_only(revision: str, server: Server, connect: Connect) -> None:
    """server/resources, Subscriptions."""
    wire = connect(server)
    await wire.initialize(revision)
    assert (await wire.request("resources/subscribe", {"uri": "note://a"}))["result"] == {}
    server.notify_resource_updated("note://a")
    server.notify_resource_updated("note://b")
    assert await heard(wire) == [
        {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "note://a"}}
    ]


async def test_subscribing_twice_is_subscribing_once(server: Server, connect: Connect) -> None:
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    for _ in range(2):
        assert (await wire.request("resources/subscribe", {"uri": "note://a"}))["result"] == {}
    server.notify_resource_updated("note://a")
    assert len(await heard(wire)) == 1


@pytest.mark.requirement("resources.subscribe")
async def test_after_unsubscribing_there_is_silence(server: Server, connect: Connect) -> None:
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    await wire.request("resources/subscribe", {"uri": "note://a"})
    assert (await wire.request("resources/unsubscribe", {"uri": "note://a"}))["result"] == {}
    await turns()
    server.notify_resource_updated("note://a")
    assert await heard(wire) == []
    assert (await wire.request("resources/unsubscribe", {"uri": "note://a"}))["result"] == {}


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
@pytest.mark.parametrize("params", [None, {}, {"uri": 1}, {"uri": None}])
async def test_subscription_needs_a_uri(method: str, params: Any, server: Server, connect: Connect) -> None:
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    assert await code(wire, method, params) == INVALID_PARAMS


async def test_session_has_a_bounded_number_of_subscriptions(server: Server, connect: Connect) -> None:
    server.resource("note://{n}")(lambda n: n)
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    for n in range(MAX_RESOURCE_SUBSCRIPTIONS):
        assert "result" in await wire.request("resources/subscribe", {"uri": f"note://{n}"})
    assert "error" in await wire.request("resources/subscribe", {"uri": "note://one-more"})
    assert "result" in await wire.request("resources/unsubscribe", {"uri": "note://0"})
    assert "result" in await wire.request("resources/subscribe", {"uri": "note://one-more"})


@pytest.mark.requirement("tools.list-changed")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_changes_of_lists_are_reported_once_for_all_that_is_done_in_one_go(
    revision: str, server: Server, connect: Connect
) -> None:
    """server/tools, List Changed Notification; unsolicited on the handshake revisions."""
    wire = connect(server)
    await wire.initialize(revision)
    await turns()
    server.add(_newcomer)
    server.remove("who")
    server.remove("note://a")
    assert await heard(wire) == [
        {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"},
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
    ]


@pytest.mark.requirement("lifecycle.server-silent")
async def test_no_notifications_before_initialized(server: Server, connect: Connect) -> None:
    """basic/lifecycle: "The server SHOULD NOT send requests other than pings and logging before receiving the
    initialized notification"; and a list that nobody has read cannot have changed."""
    wire = connect(server)
    await wire.initialize(V2025_11_25, initialized=False)
    await turns()
    server.add(_newcomer)
    assert await heard(wire) == []


@pytest.mark.requirement("lifecycle.shutdown")
async def test_ending_a_session_ends_its_subscriptions(server: Server, connect: Connect) -> None:
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    await wire.request("resources/subscribe", {"uri": "note://a"})
    await wire.close()
    await turns()
    server.add(_newcomer)
    server.notify_resource_updated("note://a")
    assert await heard(wire) == []
    assert server.subscriptions._listeners == set()


@pytest.mark.requirement("lifecycle.negotiated-capabilities", "lifecycle.declared")
@pytest.mark.parametrize(
    "method,params",
    [
        ("resources/subscribe", {"uri": "note://a"}),
        ("resources/unsubscribe", {"uri": "note://a"}),
        ("logging/setLevel", {"level": "info"}),
        ("resources/list", None),
        ("prompts/list", None),
    ],
)
async def test_capability_that_is_not_advertised_is_a_method_that_is_missing(
    method: str, params: Any, connect: Connect
) -> None:
    """basic/lifecycle, Operation (2025-06-18 on): both parties MUST "only use capabilities that were successfully
    negotiated"; -32601 is the code for a method that is not available."""
    wire = connect(Server("tools only", capabilities={"tools": {}}))
    greeted = await wire.initialize(V2025_11_25)
    assert greeted["capabilities"] == {"tools": {}}
    assert await code(wire, method, params) == METHOD_NOT_FOUND


@pytest.mark.requirement("tools.list-changed-declared")
async def test_server_that_does_not_advertise_changes_does_not_tell_of_them(connect: Connect) -> None:
    """server/tools, Capabilities: `listChanged` says whether the server emits the notification."""
    server = Server("quiet", capabilities={"tools": {}, "resources": {}})
    wire = connect(server)
    await wire.initialize(V2025_11_25)
    await turns()
    server.add(_newcomer)
    assert await heard(wire) == []
