"""Subscriptions as context manager and iterator, on every protocol version, with misbehaving servers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Server
from portico.client import subscriptions as listening
from portico.client.subscriptions import Change
from portico.protocol.errors import ConnectionClosed, MethodNotFound, ProtocolError, RequestTimeout, UsageError
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from support.scripted import Endpoint

EVERYTHING = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})

TIMEOUT_SECONDS = 10.0
ID = "io.modelcontextprotocol/subscriptionId"


def notes() -> Server:
    server = Server("notes")

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return name

    return server


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_loop_hears_of_everything_it_requested(revision: str) -> None:
    server = notes()
    heard: list[Change] = []
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(server, protocol_version=revision) as client,
        client.listen(tools=True, prompts=True, resources=True, uris=["note://a"]) as changes,
    ):
        server.tool("t")(lambda: "")
        server.prompt("p")(lambda: "")
        server.resource("note://fixed")(lambda: "")
        server.notify_resource_updated("note://a")
        server.notify_resource_updated("note://b")
        async for change in changes:
            heard.append(change)
            if len(set(heard)) == 4:
                break
    assert set(heard) == {Change("tools"), Change("prompts"), Change("resources"), Change("resource", "note://a")}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_loop_needs_no_block(revision: str) -> None:
    server = notes()
    begun = asyncio.Event()
    heard: list[Change] = []
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server, protocol_version=revision) as client:
        changes = client.listen(tools=True)

        async def loop() -> None:
            async for change in changes:
                heard.append(change)
                begun.set()

        task = asyncio.ensure_future(loop())
        while changes.accepted_filter is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        server.tool("t")(lambda: "")
        await begun.wait()
        assert heard == [Change("tools")]
        task.cancel()
        await asyncio.wait({task})
        # Who is gone is not told any more.
        assert client._notifications.listeners == set()


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_subscriptions_deliver_only_requested_changes(revision: str) -> None:
    server = notes()
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(server, protocol_version=revision) as client,
        client.listen(prompts=True) as changes,
        client.listen(uris=["note://a"]) as others,
    ):
        server.tool("t")(lambda: "")
        server.notify_resource_updated("note://b")
        server.prompt("p")(lambda: "")
        server.notify_resource_updated("note://a")
        assert await anext(aiter(changes)) == Change("prompts")
        assert await anext(aiter(others)) == Change("resource", "note://a")


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_repeated_changes_are_coalesced(revision: str, heard: Any) -> None:
    """A loop that is slow finds one entry for each thing, not one for each time."""
    server = notes()
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(server, protocol_version=revision, message_handler=heard) as client,
        client.listen(tools=True, uris=["note://a", "note://b"]) as changes,
    ):
        for number in range(20):
            server.tool(f"t{number}")(lambda: "")
            server.notify_resource_updated("note://a")
            await heard.wait_for("notifications/resources/updated", number + 1)
        server.notify_resource_updated("note://b")
        await heard.wait_for("notifications/resources/updated", 21)
        assert set(changes._pending) == {
            Change("tools"),
            Change("resource", "note://a"),
            Change("resource", "note://b"),
        }


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_end_of_the_client_is_the_end_of_the_loop(revision: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        client = Client(notes(), protocol_version=revision)
        await client.connect()
        changes = client.listen(tools=True)
        await changes.__aenter__()

        async def loop() -> list[Change]:
            return [change async for change in changes]

        task = asyncio.ensure_future(loop())
        await asyncio.sleep(0)
        await client.close()
        assert await task == []


async def test_client_that_is_not_open_does_not_listen() -> None:
    with pytest.raises(UsageError):
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(notes()).listen(tools=True):
            pass


# Servers that do as they please


class Pleasing:
    """A server whose listening is whatever it is told to be."""

    def __init__(self, listen: Callable[[Call], Any]) -> None:
        self.listen = listen
        self.listens = 0

    async def __call__(self, call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=["2026-07-28"], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            self.listens += 1
            return await self.listen(call)
        return Raw(b'{"resultType":"complete","tools":[]}')


def acknowledge(call: Call, id: Any = ..., notifications: Any = ...) -> None:
    data = json.loads(bytes(call.params))["notifications"]
    params = {
        "_meta": {ID: call.id if id is ... else id},
        "notifications": data if notifications is ... else notifications,
    }
    call.reply.notify("notifications/subscriptions/acknowledged", params)


def change(call: Call, what: str, id: Any = ..., **params: Any) -> None:
    call.reply.notify(f"notifications/{what}", {"_meta": {ID: call.id if id is ... else id}, **params})


END = Raw(b'{"resultType":"complete"}')


@pytest.mark.broken_frames("a server that says no more than it has to")
@pytest.mark.requirement("subscriptions.graceful-end")
async def test_server_may_end_it() -> None:
    async def listen(call: Call) -> Any:
        acknowledge(call)
        change(call, "tools/list_changed")
        return END

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(Pleasing(listen)) as client:
        assert [item async for item in client.listen(tools=True)] == [Change("tools")]


@pytest.mark.requirement("subscriptions.client-looks")
@pytest.mark.broken_frames("a server of another revision")
async def test_accepted_filter_is_exposed() -> None:
    async def listen(call: Call) -> Any:
        acknowledge(call, notifications={"toolsListChanged": True, "futureThings": True})
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(Pleasing(listen)) as client,
        client.listen(tools=True, prompts=True) as changes,
    ):
        assert changes.accepted_filter == SubscriptionFilter(tools_list_changed=True)
        assert changes.filter == SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True)


async def test_server_that_never_says_yes_is_not_waited_for_without_end() -> None:
    async def listen(call: Call) -> Any:
        await asyncio.Event().wait()

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(Pleasing(listen), timeout=0.05) as client:
        with pytest.raises(RequestTimeout, match=r"acknowledged within 0\.05 s"):
            async with client.listen(tools=True):
                pass
        assert client._notifications.listeners == set()


@pytest.mark.broken_frames("a server that says no more than it has to")
@pytest.mark.parametrize("how", ["ends", "refuses", "acknowledges something else"])
async def test_server_that_does_not_say_yes_is_reported_not_to(how: str) -> None:
    async def listen(call: Call) -> Any:
        if how == "refuses":
            raise MethodNotFound
        if how == "acknowledges something else":
            acknowledge(call, id=77)
            acknowledge(call, id=str(call.id))
            acknowledge(call, id=True)
            acknowledge(call, notifications=5)
        return END

    server = Pleasing(listen)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server) as client:
        with pytest.raises(ProtocolError):
            async with client.listen(tools=True):
                pass
        assert await client.list_tools() == []
    assert server.listens == 1


@pytest.mark.broken_frames("a server that says no more than it has to")
@pytest.mark.requirement("subscriptions.id", "subscriptions.correlated")
async def test_changes_of_others_are_not_ours() -> None:
    """2026-07-28, basic/patterns/subscriptions: each event is tagged, and the tag has the type of the id."""

    async def listen(call: Call) -> Any:
        acknowledge(call)
        assert isinstance(call.id, int)
        for id in (call.id + 1, str(call.id), None, [call.id], True, float(call.id) + 0.5):
            change(call, "tools/list_changed", id=id)
        call.reply.notify("notifications/tools/list_changed", {})
        change(call, "resources/updated")
        change(call, "resources/updated", uri=5)
        change(call, "resources/updated", uri="a://b")
        return END

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(Pleasing(listen)) as client:
        assert [item async for item in client.listen(tools=True, uris=["a://b"])] == [Change("resource", "a://b")]


@pytest.mark.broken_frames("a server that says no more than it has to")
@pytest.mark.requirement("subscriptions.id", "subscriptions.correlated")
async def test_two_listeners_receive_their_own_events() -> None:
    async def listen(call: Call) -> Any:
        acknowledge(call)
        change(call, "resources/updated", uri=f"a://{call.id}")
        return END

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(Pleasing(listen)) as client:
        item, other = client.listen(tools=True), client.listen(tools=True)
        first, second = [each async for each in item], [each async for each in other]
    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.broken_frames("a server that says no more than it has to")
@pytest.mark.parametrize("habit", ["many resources", "long names"])
async def test_unread_changes_are_bounded(habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than can be told one by one is told as a gap."""
    monkeypatch.setattr(listening, "MAX_PENDING_CHANGES", 100)
    result = asyncio.Event()

    async def listen(call: Call) -> Any:
        acknowledge(call)
        for number in range(1000):
            change(
                call, "resources/updated", uri=f"a://{number}" if habit == "many resources" else "a://" + "x" * 10_000
            )
        change(call, "tools/list_changed")
        result.set()
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(Pleasing(listen)) as client,
        client.listen(tools=True, uris=["a://"]) as changes,
    ):
        await result.wait()
        await client.list_tools()
        assert len(changes._pending) <= 100
        assert {Change("tools", missed=True), Change("resource", "a://", missed=True)} <= set(changes._pending)


async def test_failure_in_the_middle_is_raised_in_the_loop() -> None:
    async def listen(call: Call) -> Any:
        acknowledge(call)
        change(call, "tools/list_changed")
        raise ProtocolError("enough", code=-32603)

    heard = []
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(Pleasing(listen)) as client:
        with pytest.raises(ProtocolError, match="enough"):
            async for item in client.listen(tools=True):
                heard.append(item)
    assert heard == [Change("tools")]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_many_may_listen_to_the_same_resource(revision: str) -> None:
    server = notes()
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server, protocol_version=revision) as client:
        async with client.listen(uris=["note://a"]) as item:
            async with client.listen(uris=["note://a"]) as other:
                server.notify_resource_updated("note://a")
                assert await anext(aiter(item)) == await anext(aiter(other)) == Change("resource", "note://a")
            # One has left; the other still hears.
            server.notify_resource_updated("note://a")
            assert await anext(aiter(item)) == Change("resource", "note://a")
        assert client._subscribed == {}


# A server that takes a subscription back

CANCELLING = """
import json, sys
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
listens = 0
for line in sys.stdin:
    said = json.loads(line)
    id, method = said.get("id"), said.get("method")
    if method == "server/discover":
        say({"id": id, "result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}})
    elif method == "subscriptions/listen":
        listens += 1
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
        say({"method": "notifications/subscriptions/acknowledged",
             "params": {**params, "notifications": said["params"]["notifications"]}})
        if listens == 1:
            for odd in ({}, {"requestId": "x"}, {"requestId": id + 77}, {"requestId": []}):
                say({"method": "notifications/cancelled", "params": odd})
            say({"method": "notifications/cancelled", "params": {"requestId": id, "reason": "no more"}})
        else:
            say({"method": "notifications/tools/list_changed", "params": params})
"""


@pytest.mark.requirement("subscriptions.cancelled")
async def test_subscription_that_the_server_cancels_is_made_again_over_stdio() -> None:
    """2026-07-28, basic/patterns/cancellation: that is how a server says it, and there may be no result."""
    command = [sys.executable, "-S", "-c", CANCELLING]
    heard: list[Change] = []
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(command) as client, client.listen(tools=True) as changes:
        async for change in changes:
            heard.append(change)
            if change == Change("tools"):
                break
    assert heard == [Change("tools", missed=True), Change("tools")]


@pytest.mark.requirement("subscriptions.cancelled")
async def test_subscription_that_the_server_cancels_is_made_again_over_http(serve: Any) -> None:
    """Also if it leaves the stream open."""
    there = await serve(Endpoint())

    def listen(peer: Any, request: Any) -> None:
        params = {"_meta": {ID: request.json["id"]}}
        expected = request.json["params"]["notifications"]
        peer.stream()
        acknowledged = {
            "method": "notifications/subscriptions/acknowledged",
            "params": {**params, "notifications": expected},
        }
        peer.event({"jsonrpc": "2.0", **acknowledged})
        if len(there.requests_for("subscriptions/listen")) == 1:
            cancelled = {"requestId": request.json["id"]}
            peer.event({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        else:
            peer.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params})

    there.rules["subscriptions/listen"] = listen
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client, client.listen(tools=True) as changes:
        async for change in changes:
            if change == Change("tools"):
                break
    assert len(there.requests_for("subscriptions/listen")) == 2


async def test_to_be_acknowledged_does_not_shorten_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends each subscription at once is asked less and less often."""
    pauses: list[float] = []
    enough = asyncio.Event()
    sleep = asyncio.sleep

    async def listen(call: Call) -> Any:
        acknowledge(call)
        raise ConnectionClosed("not now")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
        await sleep(0)

    server = Pleasing(listen)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server) as client:
        monkeypatch.setattr(client._upstream, "should_retry", _always)
        monkeypatch.setattr(listening.random, "uniform", lambda low, high: 1.0)
        monkeypatch.setattr(listening.asyncio, "sleep", pause)
        async with client.listen(tools=True):
            await enough.wait()
        monkeypatch.undo()
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8]


async def _always(link: Any, failure: Any, *, retry_temporary: bool) -> bool:
    return True
