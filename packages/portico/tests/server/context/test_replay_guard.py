"""An answer of the user is used once, however often the call is repeated."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import Context, Server
from portico.protocol.errors import InvalidParams
from portico.protocol.meta import ClientCapabilities
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call
from portico.rpc.dispatcher import dispatch_in_process
from portico.server.context.replay_guard import UsedStates
from portico.server.context.request_state import RequestState

ANSWER = {"elicitation-1": {"action": "accept", "content": {"value": "yes"}}}


def shop(paid: list[int], **options: Any) -> Server:
    server = Server("shop", **options)

    @server.tool
    async def pay(ctx: Context, amount: int) -> str:
        if (await ctx.elicit(f"Pay {amount}?", ["yes", "no"])).data == "yes":
            await ctx.step("charge", lambda: paid.append(amount))
        return "done"

    return server


async def say(server: Server, **more: Any) -> Any:
    params = {"name": "pay", "arguments": {"amount": 100}, **more}
    call = Call(
        method="tools/call",
        params=Raw(msgspec.json.encode(params)),
        id=1,
        protocol_version=FIRST_MODERN_VERSION,
        capabilities=ClientCapabilities(elicitation={}),
    )
    return msgspec.json.decode(await dispatch_in_process(call, server))


async def asked(server: Server) -> dict[str, Any]:
    return {"requestState": (await say(server))["result"]["requestState"], "inputResponses": ANSWER}


async def test_answer_pays_once() -> None:
    paid: list[int] = []
    server = shop(paid)
    async with server.lifespan():
        again = await asked(server)
        assert (await say(server, **again))["result"]["content"][0]["text"] == "done"
        for _ in range(3):
            error = (await say(server, **again))["error"]
            assert error["code"] == -32602
            assert "used before" in error["message"]
        assert paid == [100]
        # Another call is another question.
        await say(server, **await asked(server))
        assert paid == [100, 100]


async def test_of_calls_side_by_side_one_pays() -> None:
    paid: list[int] = []
    server = shop(paid)
    async with server.lifespan():
        again = await asked(server)
        result = await asyncio.gather(*(say(server, **again) for _ in range(5)))
        assert ["result" in item for item in result].count(True) == 1
        assert paid == [100]


@pytest.mark.parametrize("restarts", [False, True], ids=["two processes", "after a restart"])
async def test_processes_with_a_store_know_of_each_other(tmp_path: Path, restarts: bool) -> None:
    paid: list[int] = []
    options = {"store": f"sqlite:///{tmp_path / 'store.db'}", "request_state_keys": b"k" * 32}
    first, second = shop(paid, **options), shop(paid, **options)
    async with first.lifespan():
        again = await asked(first)
        await say(first, **again)
        if not restarts:
            async with second.lifespan():
                assert "used before" in (await say(second, **again))["error"]["message"]
    if restarts:
        async with second.lifespan():
            assert "used before" in (await say(second, **again))["error"]["message"]
    assert paid == [100]


async def test_used_states_are_bounded_and_evicted_states_are_rejected() -> None:
    spent = UsedStates(max_entries=10)
    end = time.time() + 100
    states = [RequestState(b"", f"{n}", end + n, {}, {}) for n in range(30)]
    for state in states:
        await spent.mark_used(state)
    for state in states:
        with pytest.raises(InvalidParams):
            await spent.mark_used(state)
    assert len(spent._seen) == 10


async def test_state_of_a_rejected_call_can_be_used_again() -> None:
    """Only what has been verified, and whose arguments fit, can be used up."""
    paid: list[int] = []
    server = shop(paid)
    async with server.lifespan():
        again = await asked(server)
        assert "error" in await say(server, **{**again, "requestState": again["requestState"] + "x"})
        assert "error" in await say(server, **{**again, "arguments": {"amount": 1}})
        await say(server, **again)
        assert paid == [100]
