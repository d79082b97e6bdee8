"""subscriptions/listen: cost per change, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client, Server
from portico.auth.principal import Principal
from portico.errors import ConnectionClosed
from portico.extend import Call, CallbackReply
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.versions import HANDSHAKE_VERSIONS
from portico.rpc.change_relay import ChangeRelay
from portico.server.registry import subscriptions
from portico.server.registry.subscriptions import Subscriber

Connect = Callable[..., Any]


class Crowd:
    """Listeners of a server, and what each of them was told."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.told: dict[str, list[tuple[str, str | None]]] = {}
        self.relays: dict[str, ChangeRelay] = {}

    def join(self, name: str, wanted: SubscriptionFilter) -> ChangeRelay:
        heard = self.told[name] = []
        relay = ChangeRelay(
            self.server, wanted, lambda method, params: heard.append((method, getattr(params, "uri", None)))
        )
        self.relays[name] = relay
        return relay

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        for relay in self.relays.values():
            relay.close()
        await self.settle()


@pytest.fixture
async def crowd() -> Any:
    server = Server("s")
    server.resource("a://{+x}")(lambda x: x)
    crowd = Crowd(server)
    yield crowd
    await crowd.leave()
    assert not server.subscriptions._listeners
    index = server.subscriptions._index
    assert (index.total.subscribers, index.total.uris, index.total.characters) == (0, 0, 0)
    assert not index.by_caller
    assert not (index._lists or index._exact or index._below or index._lengths)


async def test_only_the_calling_session_is_checked(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Subscriber] = []
    tell = Subscriber.notify
    monkeypatch.setattr(Subscriber, "notify", lambda self, *message: (looked_at.append(self), tell(self, *message))[1])
    for number in range(300):
        crowd.join(
            f"resource {number}", SubscriptionFilter(resource_subscriptions=[f"a://{number}", f"a://x/{number}"])
        )
        crowd.join(f"prompts {number}", SubscriptionFilter(prompts_list_changed=True))
    crowd.join("tools", SubscriptionFilter(tools_list_changed=True))
    find = crowd.server.subscriptions._index.find
    assert len(find("notifications/resources/updated", "a://7")) == 1
    assert len(find("notifications/resources/updated", "a://unknown")) == 0
    assert len(find("notifications/tools/list_changed", None)) == 1
    crowd.server.notify_resource_updated("a://7")
    crowd.server.tool("t")(lambda: "")
    await crowd.settle()
    assert len(looked_at) == 2
    assert {name for name, heard in crowd.told.items() if heard} == {"resource 7", "tools"}


@pytest.mark.parametrize(
    "subscribed, changed, told",
    [
        ("a://b", "a://b", True),
        ("a://b", "a://b/c", True),
        ("a://b", "a://b/c/d", True),
        ("a://b/", "a://b/c", True),
        ("a://b/", "a://b/", True),
        ("a://b/", "a://b", False),
        ("a://b", "a://bc", False),
        ("a://b/c", "a://b", False),
        ("a://", "a://anything", True),
        ("a://b", "z://b", False),
    ],
)
async def test_subscription_covers_the_resource_and_those_below(
    crowd: Crowd, subscribed: str, changed: str, told: bool
) -> None:
    crowd.server.add_middleware(lambda handler: handler)  # so that it is not known what exists
    crowd.join("one", SubscriptionFilter(resource_subscriptions=[subscribed]))
    await crowd.settle()
    crowd.server.notify_resource_updated(changed)
    await crowd.settle()
    assert crowd.told["one"] == ([("notifications/resources/updated", changed)] if told else [])


async def test_notifying_many_does_not_block_the_event_loop(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "NOTIFY_BATCH_SIZE", 2)
    for number in range(5):
        crowd.join(str(number), SubscriptionFilter(tools_list_changed=True))
    crowd.server.tool("t")(lambda: "")
    counts: list[int] = []
    for _ in range(10):
        await asyncio.sleep(0)
        counts.append(sum(map(len, crowd.told.values())))
    assert {2, 4, 5} <= set(counts)
    assert counts[-1] == 5


@pytest.mark.parametrize(
    "bound", ["MAX_SUBSCRIBERS", "MAX_URIS_PER_SUBSCRIBER", "MAX_URIS_TOTAL", "MAX_URI_CHARS_TOTAL"]
)
async def test_subscriptions_are_limited(crowd: Crowd, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd.join("first", SubscriptionFilter(resource_subscriptions=["a://1"]))
    monkeypatch.setattr(subscriptions, bound, {"MAX_URI_CHARS_TOTAL": 9}.get(bound, 1))
    second = crowd.join("second", SubscriptionFilter(resource_subscriptions=["a://2", "a://3"]))
    await second.ready.wait()
    assert second.error is not None
    assert "too many subscriptions" in second.error.message
    # Room that is made can be used.
    crowd.relays["first"].close()
    await crowd.settle()
    third = crowd.join("third", SubscriptionFilter(resource_subscriptions=["a://4"]))
    await third.ready.wait()
    assert third.acknowledged is not None


@pytest.mark.parametrize("bound, most", [("MAX_SUBSCRIBERS", 4), ("MAX_URIS_TOTAL", 8), ("MAX_URI_CHARS_TOTAL", 48)])
async def test_one_caller_leaves_subscriptions_to_others(
    crowd: Crowd, bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, bound, most)
    result = SubscriptionFilter(resource_subscriptions=["a://1", "a://2"])

    async def join(name: str, address: str, principal: Any = None) -> ChangeRelay:
        relay = crowd.relays[name] = ChangeRelay(
            crowd.server, result, lambda method, params: None, principal=principal, address=address
        )
        await relay.ready.wait()
        return relay

    # Addresses of one network are one caller, and so is a principal at any address.
    assert (await join("first", "2001:db8::1")).acknowledged is not None
    assert (await join("second", "2001:db8::2")).error is not None
    assert (await join("other", "2001:db8:0:1::1")).acknowledged is not None
    assert (await join("user", "2001:db8::1", Principal("ada"))).acknowledged is not None
    assert (await join("again", "192.0.2.1", Principal("ada"))).error is not None
    crowd.relays["first"].close()
    await crowd.settle()
    assert (await join("third", "2001:db8::3")).acknowledged is not None


# What does not exist


@pytest.mark.requirement("resources.subscribe-existing")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize(
    "uri, exists",
    [
        ("a://one", True),
        ("b://x/more", True),
        ("a://", True),
        ("c://d", True),
        ("a://none", False),
        ("c://d/e/f", False),
        ("none://", False),
    ],
)
async def test_subscription_requires_an_existing_resource(
    connect: Connect, revision: str, uri: str, exists: bool
) -> None:
    """server/resources, Error Handling: a resource that is not there is -32002; one above others stands for them."""
    server = Server("s")
    server.resource("a://one")(lambda: "")
    server.resource("b://{x}/more")(lambda x: x)
    server.resource("c://d/e")(lambda: "")
    wire = connect(server)
    await wire.initialize(revision)
    response = await wire.request("resources/subscribe", {"uri": uri})
    assert ("result" in response) == exists
    assert exists or response["error"]["code"] == -32002


@pytest.mark.requirement("resources.subscribe-existing")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_subscription_to_an_unreachable_resource_is_rejected(connect: Connect, revision: str) -> None:
    """It does not wait for a connection that may never come back."""
    server = Server("s")

    async def broken(call: Call) -> Any:
        if call.method == "subscriptions/listen":
            raise ConnectionClosed("the connection is closed")
        return await server(call)

    wire = connect(broken)
    await wire.initialize(revision)
    response = await wire.request("resources/subscribe", {"uri": "a://one"})
    assert response["error"]["code"] == -32603


async def test_listener_is_informed_which_resources_exist(connect: Connect) -> None:
    """2026-07-28, basic/patterns/subscriptions: the acknowledgement has the subset that is honoured."""
    server = Server("s")
    server.resource("a://one")(lambda: "")
    heard: list[Any] = []
    call = Call(
        method="subscriptions/listen",
        params=b'{"notifications":{"resourceSubscriptions":["a://none","a://one","a://one"]}}',  # type: ignore[arg-type]
        id=1,
        protocol_version="2026-07-28",
        reply=CallbackReply(lambda method, params: heard.append(params)),
    )
    listening = asyncio.ensure_future(server(call))
    await asyncio.sleep(0)
    assert heard[0].notifications.resource_subscriptions == ["a://one"]
    call.reply.cancel()
    listening.cancel()
    await asyncio.wait([listening])


# The first call


@pytest.mark.requirement("tools.list-changed-first")
@pytest.mark.parametrize("around", ["nothing", "a middleware", "a mount"])
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_change_in_the_first_call_is_reported(connect: Connect, revision: str, around: str) -> None:
    """server/tools, List Changed Notification: `initialized` and the call may come in one read."""
    server = Server("s")

    @server.tool
    async def change() -> str:
        server.tool("new")(lambda: "")
        return "changed"

    handler: Any = server
    name = "change"
    if around == "a middleware":

        async def slowly(call: Call) -> Any:
            return await server(call)

        handler = slowly
    elif around == "a mount":
        handler = Server("outer")
        handler.mount(server, namespace="x")
        name = "x_change"
    wire = connect(handler)
    await wire.initialize(revision, initialized=False)
    wire.notify("notifications/initialized")
    wire.send({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": name, "arguments": {}}})
    messages = [await wire.receive(), await wire.receive()]
    assert {"notifications/tools/list_changed", None} == {item.get("method") for item in messages}


async def test_client_is_notified_of_changes_made_by_its_first_call(heard: Any) -> None:
    server = Server("s")

    @server.tool
    async def change() -> str:
        server.tool("new")(lambda: "")
        return "changed"

    async with Client(server, protocol_version="2025-11-25", message_handler=heard) as client:
        await client.call_tool("change")
        await heard.wait_for("notifications/tools/list_changed")
