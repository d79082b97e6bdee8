"""Many sessions with open streams, on which nothing is asked, through a deploy; and what is asked for together."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import storm
from portico.fleet.batches import Batches
from portico.store.errors import StoreError

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "idle_sessions.py"


def test_a_deploy_loses_none_of_many_idle_sessions() -> None:
    count = storm.times(60, 10_000)
    command = [sys.executable, str(SCRIPT), "--sessions", str(count), "--idle", "0"]
    # What a session takes in memory, and the deploy in time, is judged where there are enough of them.
    done = subprocess.run(command, capture_output=True, text=True, timeout=storm.times(60, 600), check=False)
    assert f"{count} answered" in done.stdout.splitlines(), done.stdout + done.stderr
    assert done.returncode == 0 or count < 10_000, done.stdout


async def test_what_is_asked_for_at_the_same_time_is_one_question() -> None:
    asked: list[list[int]] = []

    async def ask(keys: list[int]) -> dict[int, int]:
        asked.append(keys)
        await asyncio.sleep(0)
        return {key: key * 10 for key in keys if key != 3}

    batches = Batches(ask, most=4)
    found = await asyncio.gather(*(batches.find(key) for key in (1, 2, 3, 4, 5, 1)))
    assert found == [10, 20, None, 40, 50, 10]
    assert asked == [[1, 2, 3, 4], [5]]


async def test_a_request_that_is_gone_takes_nothing_from_the_others() -> None:
    going_on = asyncio.Event()

    async def ask(keys: list[int]) -> dict[int, int]:
        await going_on.wait()
        return dict.fromkeys(keys, 1)

    batches = Batches(ask, most=4)
    gone, stays = asyncio.ensure_future(batches.find(1)), asyncio.ensure_future(batches.find(1))
    await asyncio.sleep(0)
    gone.cancel()
    going_on.set()
    assert await stays == 1


async def test_a_store_that_is_away_is_told_to_all_who_wait_and_asked_again_later() -> None:
    away = True

    async def ask(keys: list[int]) -> dict[int, int]:
        if away:
            raise StoreError("away")
        return dict.fromkeys(keys, 1)

    batches = Batches(ask, most=4)
    told = await asyncio.gather(batches.find(1), batches.find(2), return_exceptions=True)
    assert [type(one) for one in told] == [StoreError, StoreError]
    away = False
    assert await batches.find(1) == 1
    with pytest.raises(asyncio.CancelledError):
        waiting = asyncio.ensure_future(batches.find(2))
        await asyncio.sleep(0)
        batches.close()
        await waiting
