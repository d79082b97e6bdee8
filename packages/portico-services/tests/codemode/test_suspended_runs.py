"""Limits of runs that wait for input, per caller and in total."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import ToolError
from portico.auth.principal import Principal
from portico.extend import Call
from portico.types import ClientCapabilities
from portico_services.codemode import answer_replay, journal as journals
from portico_services.codemode.journal import RunJournal, RunStore, read_output, store_output
from support.script_tools import READS, TIMEOUT_SECONDS, ToolShop, jail_only, run

ELICITS = ClientCapabilities(elicitation={"form": {}})
MIB = 2**20


async def paused(store: RunStore, owner: str, size: int = 0) -> RunJournal:
    journal = RunJournal(store, owner, "script")
    journal.record(1, "look", "a", 1.5, f'{{"value":"{"x" * size}"}}')
    await journal.save("paused")
    await journal.pause()
    return journal


async def kept(store: RunStore, journals: list[RunJournal]) -> list[bool]:
    rows = await store.read(lambda tx: tx.fetch_all(str, "select id from portico_run"))
    return [journal.id in rows for journal in journals]


async def test_newest_paused_runs_of_a_caller_are_retained(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_BYTES_PER_CALLER", 3 * MIB)
    of_eve = await paused(store, "eve")
    small = [await paused(store, "ann") for _ in range(4)]
    assert await kept(store, [of_eve, *small]) == [True, False, True, True, True]
    large = await paused(store, "ann", 2 * MIB - 100)
    assert await kept(store, [of_eve, *small, large]) == [True, False, False, False, True, True]
    assert await store.read(lambda tx: tx.fetch_one(int, "select count(*) from portico_run_call")) == 3
    assert not await RunJournal(store, "ann", "script", small[0].id).load()


async def test_newest_paused_runs_in_total_are_retained(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_TOTAL_BYTES", 3 * MIB)
    results = [await paused(store, f"caller {n}") for n in range(5)]
    assert await kept(store, results) == [False, False, True, True, True]


async def test_running_journals_do_not_count_towards_the_quota(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MAX_BYTES_PER_CALLER", MIB)
    running = RunJournal(store, "ann", "script")
    await running.save()
    await running.pause()
    assert await kept(store, [running, await paused(store, "ann"), await paused(store, "ann")]) == [True, False, True]


async def test_newest_outputs_are_retained(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_OUTPUTS_PER_CALLER", 2)
    monkeypatch.setattr(journals, "MAX_OUTPUTS", 4)
    of_eve = await store_output(store, "eve", "text/plain", "hers")
    of_ann = [await store_output(store, "ann", "text/plain", str(n)) for n in range(3)]
    assert [bool(await read_output(store, "ann", id)) for id in of_ann] == [False, True, True]
    assert await read_output(store, "eve", of_eve) == ("text/plain", "hers")
    of_others = [await store_output(store, f"caller {n}", "text/plain", "theirs") for n in range(2)]
    assert await read_output(store, "eve", of_eve) is None
    assert await read_output(store, "caller 0", of_others[0])


@jail_only
@pytest.mark.parametrize(
    "about", [{"principal": Principal("ann")}, {"address": "203.0.113.9"}, {}], ids=["known", "stranger", "local"]
)
async def test_resuming_an_evicted_run_reports_that_it_expired(
    monkeypatch: pytest.MonkeyPatch, about: dict[str, Any]
) -> None:
    monkeypatch.setattr(journals, "MAX_BYTES_PER_CALLER", 2 * MIB)
    shop = ToolShop(allow_tasks=False)

    async def ask(n: int, **more: Any) -> Any:
        arguments = {"code": f"from tools import order\nawait order('{n}')"}
        params = Raw(msgspec.json.encode({"name": "run", "arguments": arguments, **more}))
        call = Call(
            method="tools/call", id=1, params=params, capabilities=ELICITS, protocol_version="2026-07-28", **about
        )
        return await shop.server(call)

    async with asyncio.timeout(TIMEOUT_SECONDS), shop.server.lifespan():
        requests = [await ask(n) for n in range(3)]
        carried = [
            {
                "inputResponses": {key: {"action": "accept", "content": {}} for key in item.input_requests},
                "requestState": item.request_state,
            }
            for item in requests
        ]
        with pytest.raises(ToolError, match=r"journal has expired.* newer runs"):
            await ask(0, **carried[0])
        for n in (1, 2):
            assert "ordered" in str(await ask(n, **carried[n]))
    assert shop.orders == ["1", "2"]


@jail_only
async def test_concurrent_results_do_not_exceed_the_journal_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_replay, "MAX_JOURNAL_BYTES", 100_000)
    shop = ToolShop()

    @shop.server.tool(annotations=READS)
    def long() -> str:
        return "x" * 30_000

    code = "from tools import long\nsaid = await asyncio.gather(*[long() for _ in range(9)], return_exceptions=True)\n"
    code += "await asyncio.sleep(0)\nreturn [len(one) if isinstance(one, str) else one.kind for one in said]"
    async with shop.client() as client:
        result = await run(client, code)
    assert result.structured["value"] == [30_000] * 3 + ["TooLarge"] * 6
