"""Fair scheduling between callers when many calls are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from portico import Server, ToolError
from portico.rpc import dispatcher, fair_queue
from portico.rpc.call import Call

Serve = Callable[..., Any]
REVISIONS = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
MOST = 4
GREEDY, MODEST = "192.0.2.1", "192.0.2.2"


@pytest.fixture(autouse=True)
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "FAIRNESS_THRESHOLD", 0)
    monkeypatch.setattr(fair_queue, "MAX_RUNNING_CALLS", MOST)


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
async def site(serve: Serve, held: Any, order: list[str]) -> Any:
    server = Server("shared", version="1")

    @server.tool
    async def work(who: str) -> str:
        order.append(who)
        await held.body()
        return who

    return await serve(server, trusted_proxies=["127.0.0.1"])


async def begun(site: Any, revision: str, who: str, address: str, count: int) -> list[Any]:
    """So many calls from there, of which nothing was read yet."""
    headers = {"x-forwarded-for": address}
    params = {"name": "work", "arguments": {"who": who}}
    if revision != "2026-07-28":
        session = await site.initialize(revision, headers=headers)
        messages = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": params} for n in range(count)]
        return [await session.send(message) for message in messages]
    calls = [await site.connect() for _ in range(count)]
    for raw in calls:
        raw.send(site.modern_bytes("tools/call", params, headers=headers))
    return calls


def waiting(site: Any) -> int:
    return int(site.exchange.metrics.scheduler._turns.size)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_caller_with_few_calls_is_not_queued_behind_a_busy_one(
    site: Any, held: Any, order: list[str], revision: str, wait_until: Callable[..., Any]
) -> None:
    calls = await begun(site, revision, "greedy", GREEDY, 10)
    await wait_until(lambda: waiting(site) == 10 - MOST)
    calls += await begun(site, revision, "modest", MODEST, 1)
    await wait_until(lambda: "modest" in order)
    assert order == ["greedy"] * MOST + ["modest"]
    held.release.set()
    for raw in calls:
        assert (await raw.response()).status == 200
    assert len(order) == 11
    shares = site.exchange.metrics.scheduler
    assert (shares._running, shares._held, waiting(site)) == (0, {}, 0)


async def test_turns_go_round(site: Any, held: Any, order: list[str], wait_until: Callable[..., Any]) -> None:
    calls = await begun(site, "2026-07-28", "greedy", GREEDY, 10)
    calls += await begun(site, "2026-07-28", "modest", MODEST, MOST)
    await wait_until(lambda: waiting(site) == 10 - MOST + MOST // 2)
    held.release.set()
    await asyncio.gather(*(raw.response() for raw in calls))
    # Half of what may go on at once is the share of either, and then one follows the other.
    assert order[: 2 * MOST + 2] == ["greedy"] * MOST + ["modest"] * (MOST // 2) + ["greedy", "modest"] * 2


async def test_disconnected_queued_calls_are_not_run(
    site: Any, held: Any, order: list[str], wait_until: Callable[..., Any]
) -> None:
    calls = await begun(site, "2026-07-28", "here", GREEDY, MOST)
    gone = await begun(site, "2026-07-28", "gone", GREEDY, 3)
    await wait_until(lambda: waiting(site) == 3)
    for raw in gone:
        raw.abort()
    metrics = site.exchange.metrics
    await wait_until(lambda: metrics.in_flight == MOST)
    calls += await begun(site, "2026-07-28", "here", GREEDY, 1)
    held.release.set()
    for raw in calls:
        assert (await raw.response()).status == 200
    assert order == ["here"] * (MOST + 1)
    assert (metrics.scheduler._held, waiting(site)) == ({}, 0)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_full_queue_returns_an_error_with_a_retry_delay(
    site: Any, held: Any, revision: str, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(fair_queue, "MAX_QUEUED_CALLS_PER_CALLER", 2)
    calls = await begun(site, revision, "greedy", GREEDY, MOST + 2)
    await wait_until(lambda: waiting(site) == 2)
    (refused,) = await begun(site, revision, "greedy", GREEDY, 1)
    result = (await refused.response()).messages[-1]["result"]
    assert result["isError"] is True
    assert "Try again in 1 s" in result["content"][0]["text"]
    held.release.set()
    for raw in calls:
        assert (await raw.response()).status == 200


async def test_disconnected_calls_do_not_count_towards_the_queue_limit(
    site: Any, held: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(fair_queue, "MAX_QUEUED_CALLS_PER_CALLER", 2)
    calls = await begun(site, "2026-07-28", "here", GREEDY, MOST)
    gone = await begun(site, "2026-07-28", "gone", GREEDY, 2)
    await wait_until(lambda: waiting(site) == 2)
    for raw in gone:
        raw.abort()
    await wait_until(lambda: waiting(site) == 0)
    calls += await begun(site, "2026-07-28", "here", GREEDY, 2)
    await wait_until(lambda: waiting(site) == 2)
    held.release.set()
    for raw in calls:
        assert (await raw.response()).json["result"]["isError"] is False


async def test_slot_granted_during_cancellation_passes_on() -> None:
    shares, release, done = fair_queue.FairScheduler(), asyncio.Event(), []

    async def body(who: str) -> None:
        done.append(who)
        await release.wait()

    def start(who: str) -> asyncio.Task[Any]:
        call = Call(method="tools/call", address=GREEDY)
        return asyncio.create_task(shares.run(lambda _: body(who), call))

    first = [start("first") for _ in range(MOST)]
    await asyncio.sleep(0)
    second, third = start("second"), start("third")
    await asyncio.sleep(0)
    # The first one leaves, the second has its turn, and is cancelled before it could take it.
    shares._release(("", GREEDY))
    second.cancel()
    await asyncio.wait([second])
    await asyncio.sleep(0)
    assert done == ["first"] * MOST + ["third"]
    shares._count(("", GREEDY))
    release.set()
    await asyncio.gather(*first, second, third, return_exceptions=True)
    assert (shares._running, shares._held, shares._turns.size) == (0, {}, 0)


async def test_places_are_shared_between_callers_and_waiting_is_bounded() -> None:
    places = fair_queue.FairPlaces(3, 2, waiting=1, waiting_total=10, seconds=0.05)
    release, entered = asyncio.Event(), []

    async def hold(address: str) -> None:
        async with places.hold(Call(method="tools/call", address=address)):
            entered.append(address)
            await release.wait()

    greedy = [asyncio.create_task(hold(GREEDY)) for _ in range(4)]
    await asyncio.wait([greedy[3]])
    # Two run, one waits and gives up, and there is no room for another to wait.
    with pytest.raises(ToolError, match="Too many calls are waiting"):
        await greedy[3]
    other = asyncio.create_task(hold("10.0.0.2"))
    async with asyncio.timeout(10):
        with pytest.raises(ToolError, match="No slot became free") as refused:
            await greedy[2]
    assert refused.value.retryable
    assert entered == [GREEDY, GREEDY, "10.0.0.2"]
    release.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*greedy[:2], other)
    assert (places._running, places._held, places._turns.size) == (0, {}, 0)


async def test_slot_passes_to_the_next_eligible_caller() -> None:
    places = fair_queue.FairPlaces(2, 1, waiting=10, waiting_total=10, seconds=10.0)
    entered: list[str] = []
    third = asyncio.Event()
    releases = {name: asyncio.Event() for name in ("a", "b", "c")}

    async def hold(address: str) -> None:
        async with places.hold(Call(method="tools/call", address=address)):
            entered.append(address)
            if len(entered) == 3:
                third.set()
            await releases[address].wait()

    tasks = [asyncio.create_task(hold(address)) for address in ("a", "b", "a", "c")]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    tasks.append(asyncio.create_task(hold("a")))
    await asyncio.sleep(0)
    assert entered == ["a", "b"]
    releases["b"].set()
    async with asyncio.timeout(10):
        await third.wait()
        # The first in the line has its share already.
        assert entered == ["a", "b", "c"]
        for release in releases.values():
            release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == ["a", "b", "c", "a"] and places._held == {}
