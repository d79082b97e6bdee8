"""Subscribers are notified when a class of the session changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from portico import Server
from portico_services.livepython import LivePython
from portico_services.livepython.worker_client import MAX_TRACKED_CLASSES
from support.live_python import REVISION, jail_only

pytestmark = jail_only


class Listener:
    """A client that hears of what it subscribed to."""

    def __init__(self, wire: Any, live: LivePython) -> None:
        self.wire, self.live = wire, live

    async def heard(self, name: str, **arguments: Any) -> set[str]:
        """The resources that a call has changed. It is told a few turns of the loop later."""
        answer = await self.wire.request("tools/call", {"name": name, "arguments": arguments})
        assert not answer["result"].get("isError"), answer
        for _ in range(20):
            await asyncio.sleep(0)
        await self.wire.request("ping")
        notifications = [
            other_message["params"]["uri"]
            for other_message in self.wire.other_messages
            if other_message.get("method", "").endswith("resources/updated")
        ]
        self.wire.other_messages.clear()
        return set(notifications)


@pytest.fixture
async def listener(connect: Callable[..., Any]) -> AsyncIterator[Listener]:
    server = Server("live", version="1")
    live = LivePython(tools="all")
    server.add(live)
    async with server.lifespan():
        wire = connect(server)
        await wire.initialize(REVISION)
        for uri in ("python://class/A", "python://method/A/f", "python://package/__main__", "pharo://class/A"):
            await wire.request("resources/subscribe", {"uri": uri})
        yield Listener(wire, live)


CLASS = {"python://class/A", "pharo://class/A", "python://package/__main__"}
METHOD = {*CLASS, "python://method/A/f"}


async def test_class_changes_are_notified(listener: Listener) -> None:
    assert await listener.heard("evaluate", expression="class A:\n    def f(self): return 1") == METHOD
    assert await listener.heard("evaluate", expression="A().f()") == set()
    assert await listener.heard("define_method", className="A", source="def f(self): return 2") == METHOD
    assert await listener.heard("define_method", className="A", source="def g(self): return 2") == CLASS
    assert await listener.heard("evaluate", expression="setattr(A, 'f', len)") == METHOD
    assert await listener.heard("evaluate", expression="class B: ...") == {"python://package/__main__"}
    assert await listener.heard("evaluate", expression="class A:\n    def f(self): return 1", session="other") == set()
    assert await listener.heard("evaluate", expression="del A.f") == METHOD
    assert await listener.heard("reset_session") == CLASS
    assert await listener.heard("reset_session") == set()


async def test_class_of_an_ended_session_is_reported_removed(listener: Listener) -> None:
    await listener.heard("evaluate", expression="class A: ...")
    answer = await listener.wire.request(
        "tools/call", {"name": "evaluate", "arguments": {"expression": "import os; os._exit(1)"}}
    )
    assert answer["result"]["isError"]
    assert await listener.heard("evaluate", expression="1") == CLASS


async def test_number_of_tracked_classes_is_limited(listener: Listener) -> None:
    many = "for n in range({}, {} + 15): globals()[f'C{{n}}'] = type(f'C{{n}}', (), {{'__module__': '__main__'}})"
    for turn in range(40):
        await listener.heard("evaluate", expression=many.format(turn * 15, turn * 15))
    assert [len(item) for item in listener.live._client._known.values()] == [MAX_TRACKED_CLASSES]
