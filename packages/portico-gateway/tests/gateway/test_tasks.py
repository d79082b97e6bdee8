"""Tasks of upstreams in both designs, visible to their owner only."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from portico import Client
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import InvalidParams, MissingClientCapability, ProtocolError
from portico_gateway import Gateway
from support.paths import PROGRAMS

SERVER = [sys.executable, str(PROGRAMS / "task_server.py")]
ERAS = ["2025-11-25", "2026-07-28"]
EXTENSION = "io.modelcontextprotocol/tasks"
TIMEOUT_SECONDS = 30.0


def gateway_to(revision: str, **options: Any) -> Gateway:
    gateway = Gateway()
    gateway.add_upstream("one", SERVER, protocol_version=revision, **options)  # type: ignore[arg-type]
    return gateway


async def say_ada(params: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


def client_of(gateway: Gateway, revision: Any, **options: Any) -> Client:
    return Client(gateway, protocol_version=revision, elicitation_handler=say_ada, **options)


@pytest.mark.parametrize("below", [*ERAS, "here"])
@pytest.mark.parametrize("above", ERAS)
async def test_task_goes_through(above: str, below: str) -> None:
    from support.programs.task_server import server

    gateway = Gateway({"one": server}) if below == "here" else gateway_to(below)
    async with client_of(gateway, above, principal="ada") as client:
        await gateway.wait_until_listed(20)
        plain = await client.start_task("one_add", {"a": 1, "b": 2})
        assert (await plain.result(timeout=TIMEOUT_SECONDS)).text == "3"
        must = await client.start_task("one_must", {"text": "it"})
        assert (await must.result(timeout=TIMEOUT_SECONDS)).text == "did it"
        assert must.id.startswith("one."), "its upstream, and that upstream's own id"
        asks = await client.start_task("one_greet")
        assert (await asks.result(timeout=TIMEOUT_SECONDS)).text == "Hello, Ada!"
        again = client.task(must.id, "one_must")
        assert await again.refresh() == "completed"
        endless = await client.start_task("one_endless")
        await endless.cancel()
        assert endless.status == "cancelled"
        await endless.cancel()
        with pytest.raises(ProtocolError):
            await endless.result(timeout=TIMEOUT_SECONDS)


@pytest.mark.parametrize("below", ERAS)
@pytest.mark.parametrize("above", ERAS)
async def test_task_of_another_principal_is_unknown(above: str, below: str) -> None:
    gateway = gateway_to(below, isolation="shared")
    async with (
        client_of(gateway, above, principal="ada") as ada,
        client_of(gateway, above, principal="bob") as bob,
    ):
        await gateway.wait_until_listed(20)
        task = await ada.start_task("one_must", {"text": "it"})
        refusals = []
        for id in (task.id, task.id[:-1] + "_", "one.nothing.at-all", "nothing"):
            with pytest.raises(InvalidParams) as refused:
                await bob.task(id).refresh()
            refusals.append(refused.value.message.replace(id, ""))
        assert set(refusals) == {"Unknown task: "}
        with pytest.raises(InvalidParams, match="Unknown task"):
            await bob.task(task.id).cancel()
        assert (await task.result(timeout=TIMEOUT_SECONDS)).text == "did it"


@pytest.mark.parametrize("below", ERAS)
async def test_client_without_tasks_calls_a_task_only_tool(below: str) -> None:
    """One of 2026-07-28 is told what it needs; for one that could not have it the gateway waits."""
    gateway = gateway_to(below)
    async with client_of(gateway, "2025-06-18") as client:
        await gateway.wait_until_listed(20)
        assert (await client.call_tool("one_must", {"text": "it"})).text == "did it"
        assert (await client.call_tool("one_greet")).text == "Hello, Ada!"
    async with client_of(gateway_to(below), "2026-07-28") as client:
        with pytest.raises(MissingClientCapability):
            await client.request("tools/call", {"name": "one_must", "arguments": {"text": "it"}})


async def test_call_with_elicitation_becomes_a_task() -> None:
    """In place of being parked."""
    gateway = gateway_to("2025-11-25")
    async with client_of(gateway, "2026-07-28", principal="ada") as client:
        await gateway.wait_until_listed(20)
        task = await client.start_task("one_plainly")
        assert task.id
        assert not len(gateway._bridge)
        async with client_of(gateway, "2026-07-28", principal="bob") as bob:
            with pytest.raises(InvalidParams, match="Unknown task"):
                await bob.task(task.id).refresh()
        assert (await task.result(timeout=TIMEOUT_SECONDS)).text == "Plainly, Ada!"
        # A client that has none is asked in rounds.
        assert (await client.call_tool("one_plainly")).text == "Plainly, Ada!"


async def test_plain_upstream_tool_can_run_as_a_gateway_task() -> None:
    gateway = gateway_to("2026-07-28")
    async with client_of(gateway, "2025-11-25", principal="ada") as client:
        await gateway.wait_until_listed(20)
        task = await client.start_task("one_plainly")
        assert (await task.result(timeout=TIMEOUT_SECONDS)).text == "Plainly, Ada!"
        assert task.id


@pytest.mark.parametrize("below", ERAS)
async def test_tasks_are_listed_to_their_own_principal(below: str) -> None:
    gateway = gateway_to(below, isolation="shared")
    async with (
        client_of(gateway, "2025-11-25", principal="ada") as ada,
        client_of(gateway, "2025-11-25", principal="bob") as bob,
    ):
        await gateway.wait_until_listed(20)
        task = await ada.start_task("one_must", {"text": "it"})
        await task.result(timeout=TIMEOUT_SECONDS)
        response = await ada.request("tasks/list", {})
        assert task.id in bytes(response).decode()
        assert bytes(await bob.request("tasks/list", {})) == b'{"tasks":[]}'


@pytest.mark.parametrize("below", ERAS)
async def test_tasks_are_advertised_where_an_upstream_has_them(below: str) -> None:
    async with client_of(gateway_to(below), "2025-11-25") as client:
        assert client.server_capabilities.tasks is not None
    async with client_of(gateway_to(below), "2026-07-28") as client:
        assert EXTENSION in (client.server_capabilities.extensions or {})
    async with client_of(Gateway(), "2026-07-28") as client:
        assert EXTENSION not in (client.server_capabilities.extensions or {})


@pytest.mark.parametrize("below", ERAS)
async def test_listener_hears_of_a_task(below: str) -> None:
    gateway = gateway_to(below)
    async with client_of(gateway, "2026-07-28") as client:
        await gateway.wait_until_listed(20)
        task = await client.start_task("one_endless")
        heard: asyncio.Event = client._notifications.task_event(task.id)
        from portico.protocol.subscriptions import SubscriptionFilter

        async with client.listen(SubscriptionFilter(task_ids=[task.id])) as changes:
            assert changes.accepted_filter is not None and changes.accepted_filter.task_ids == [task.id]
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await heard.wait()
                heard.clear()
                await task.cancel()
                await heard.wait()
