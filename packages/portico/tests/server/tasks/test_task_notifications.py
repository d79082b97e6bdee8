"""notifications/tasks: tasks of 2026-07-28 on a listen stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from portico import Context, Server
from portico.server.tasks.engine import TaskEngine
from portico.store.transaction import Event
from support.task_servers import (
    ADA,
    BOB,
    CLIENT_CAPABILITIES,
    EXTENSION,
    YES,
    ModernTasksClient,
    wait_for_status,
    with_tools,
)

Talk = Callable[..., ModernTasksClient]
Serve = Callable[[Server], Awaitable[Server]]

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Listening:
    """A listen stream, as its client has it."""

    def __init__(self, client: ModernTasksClient, ids: list[str], id: str = "listen", **envelope: Any) -> None:
        self.client = client
        self.id = id
        envelope.setdefault("capabilities", CLIENT_CAPABILITIES)
        params = {"notifications": {"taskIds": ids}, "_meta": client.wire.envelope(**envelope)}
        client.wire.send({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params})

    async def message(self) -> Any:
        return await self.client.wire.receive()

    async def acknowledged(self) -> Any:
        result = await self.message()
        assert result["method"] == "notifications/subscriptions/acknowledged", result
        assert result["params"]["_meta"][SUBSCRIPTION] == self.id
        return result["params"]["notifications"]

    async def told(self) -> Any:
        """The next one, without its tag."""
        result = await self.message()
        assert result["method"] == "notifications/tasks", result
        assert "id" not in result
        meta = result["params"].pop("_meta")
        assert meta == {SUBSCRIPTION: self.id}
        return result["params"]

    async def wait_for(self, status: str) -> Any:
        while (result := await self.told())["status"] != status:
            pass
        return result


def without_signature(found: Any) -> Any:
    """What tasks/get says, as a notification has it."""
    return {name: one for name, one in found.items() if name not in ("_meta", "resultType")}


async def test_listen_acknowledges_task_ids_and_sends_current_status(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    ids = [await client.start("running", {"name": name}) for name in ("x", "y")]
    listening = Listening(client, ids)
    assert sorted((await listening.acknowledged())["taskIds"]) == sorted(ids)
    first = [await listening.told() for _ in ids]
    assert sorted(item["taskId"] for item in first) == sorted(ids)
    assert {item["status"] for item in first} == {"working"}


async def test_every_change_is_reported_in_full(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client, asking = modern(await serving(server)), modern(server)
    id = await client.start("ask")
    await wait_for_status(server, id, "waiting")
    listening = Listening(client, [id])
    await listening.acknowledged()
    result = await listening.told()
    assert result == without_signature(await asking.get(id))
    assert set(result["inputRequests"]) == {"elicitation-1"}
    await asking.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": YES}})
    over = await listening.wait_for("completed")
    assert over == without_signature(await asking.get(id))
    assert over["result"]["content"][0]["text"] == "accept: yes"


async def test_only_subscribers_of_a_task_are_checked(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    ids = [await client.start("running", {"name": name}) for name in ("x", "y", "z")]
    listening = [Listening(modern(server), [id]) for id in ids]
    for item in listening:
        await item.acknowledged()
        await item.told()
    assert server.tasks is not None
    assert {id: len(those) for id, those in server.tasks._subscribers.items()} == dict.fromkeys(ids, 1)
    await client.request("tasks/cancel", {"taskId": ids[1]})
    assert (await listening[1].wait_for("cancelled"))["taskId"] == ids[1]


async def test_progress_is_a_change(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    go = asyncio.Event()

    @server.tool(task="required")
    async def count(ctx: Context) -> str:
        await go.wait()
        ctx.report_progress(1, 2, "half")
        await asyncio.Event().wait()
        return "never"

    client = modern(await serving(server))
    listening = Listening(client, [await client.start("count")])
    await listening.acknowledged()
    assert "statusMessage" not in await listening.told()
    go.set()
    assert (await listening.told())["statusMessage"] == "1 of 2: half"


@pytest.mark.parametrize(("tool", "status"), [("err", "failed"), ("refuse", "completed")])
async def test_end_is_reported_as_looking_would(modern: Talk, serving: Serve, tool: str, status: str) -> None:
    server, _ = with_tools()
    client, asking = modern(await serving(server)), modern(server)
    id = await client.start(tool)
    listening = Listening(client, [id])
    await listening.acknowledged()
    assert await listening.wait_for(status) == without_signature(await asking.get(id))


async def test_cancellation_is_reported(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client, asking = modern(await serving(server)), modern(server)
    id = await client.start("running", {"name": "x"})
    listening = Listening(client, [id])
    await listening.acknowledged()
    await asking.request("tasks/cancel", {"taskId": id})
    await listening.wait_for("cancelled")


async def test_finished_task_is_reported_once(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = (await client.end("add", {"a": 1, "b": 2}))["taskId"]
    listening = Listening(client, [id, id])
    assert (await listening.acknowledged())["taskIds"] == [id]
    assert (await listening.told())["status"] == "completed"
    await modern(server).get(id)
    assert client.wire.is_silent


async def test_others_tasks_and_unknown_ones_are_not_honoured(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    await serving(server)
    ada, bob = modern(server, principal=ADA), modern(server, principal=BOB)
    mine, theirs = await ada.start("running", {"name": "x"}), await bob.start("running", {"name": "y"})
    listening = Listening(ada, [theirs, "nothing", "", "a\u0000b", "x" * 1000, mine])
    assert (await listening.acknowledged())["taskIds"] == [mine]
    assert (await listening.told())["taskId"] == mine
    gates["y"].set()
    await wait_for_status(server, theirs, "completed")
    gates["x"].set()
    assert (await listening.told())["taskId"] == mine
    assert ada.wire.is_silent


async def test_unrequested_tasks_are_not_reported(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    item, other = await client.start("running", {"name": "x"}), await client.start("running", {"name": "y"})
    listening = Listening(client, [item])
    await listening.acknowledged()
    await listening.told()
    gates["y"].set()
    await wait_for_status(server, other, "completed")
    gates["x"].set()
    assert (await listening.wait_for("completed"))["taskId"] == item


async def test_several_listeners_hear_the_same(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    await serving(server)
    clients = [modern(server) for _ in range(3)]
    id = await clients[0].start("running", {"name": "x"})
    listening = [Listening(client, [id], f"listen {n}") for n, client in enumerate(clients)]
    for item in listening:
        await item.acknowledged()
    gates["x"].set()
    ends = [await item.wait_for("completed") for item in listening]
    assert ends[0] == ends[1] == ends[2]


async def test_listening_to_tasks_needs_the_extension(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("add", {"a": 1, "b": 2})
    params = {"notifications": {"taskIds": [id]}}
    async with asyncio.timeout(1):
        error = await client.request_error("subscriptions/listen", params, capabilities={"elicitation": {}})
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


async def test_listening_has_a_bound(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    error = await client.request_error("subscriptions/listen", {"notifications": {"taskIds": ["x"] * 1001}})
    assert "too many" in error["message"]


async def test_change_between_looking_and_listening_is_not_missed(
    modern: Talk, serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    id = await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    looked: Any = TaskEngine.get_many

    async def slowly(self: TaskEngine, ids: list[str], owner: str) -> Any:
        """As it stood before the task ended; by the time the answer is there, it has."""
        result = await looked(self, ids, owner)
        gates["x"].set()
        await wait_for_status(server, id, "completed")
        return result

    monkeypatch.setattr(TaskEngine, "get_many", slowly)
    listening = Listening(client, [id])
    await listening.acknowledged()
    assert (await listening.told())["status"] == "working"
    await listening.wait_for("completed")


async def test_when_events_were_lost_listeners_are_reported_anyway(modern: Talk, serving: Serve) -> None:
    """Of too many events only the topic is left; then it may have been any task."""
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_status(server, id, "waiting")
    listening = Listening(client, [id])
    await listening.acknowledged()
    before = await listening.told()
    assert server.tasks is not None
    await (await server.tasks.engine())._on_event(Event("portico.job.changed"))
    assert await listening.told() == before
