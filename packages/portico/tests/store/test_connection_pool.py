"""Worker threads start on demand and end when idle; no job is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from portico.store.connection_pool import CompletionQueue, ConnectionThreadPool, TransactionJob, run_transaction
from portico.store.errors import DatabaseClosed

TIMEOUT_SECONDS = 60.0


class Hand:
    """A worker without a connection: it tells which thread it is in."""

    hired = 0

    def __init__(self) -> None:
        Hand.hired += 1

    def run_jobs(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None]) -> None:
        jobs[0].complete(threading.current_thread())

    def on_idle(self) -> None: ...

    def close(self) -> None: ...


def pool(most: int, idle: float | None) -> ConnectionThreadPool:
    return ConnectionThreadPool(
        "a test", most, Hand, CompletionQueue(asyncio.get_running_loop(), lambda events: None), idle
    )


async def test_idle_thread_exits_and_is_replaced() -> None:
    some = pool(1, 0.01)
    first: threading.Thread = await run_transaction(some.submit, lambda tx: None, is_write=False)
    await asyncio.to_thread(first.join, TIMEOUT_SECONDS)
    assert not first.is_alive()
    second: threading.Thread = await run_transaction(some.submit, lambda tx: None, is_write=False)
    assert second is not first
    await some.close()


async def test_no_job_is_lost_while_threads_come_and_go() -> None:
    some = pool(3, 0.0)
    before = Hand.hired
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for _ in range(300):
            await asyncio.gather(*(run_transaction(some.submit, lambda tx: None, is_write=False) for _ in range(2)))
        await some.close()
    assert Hand.hired > before + 2


async def test_thread_stays_while_there_is_work() -> None:
    some = pool(1, None)
    threads = {await run_transaction(some.submit, lambda tx: None, is_write=False) for _ in range(20)}
    assert len(threads) == 1
    await some.close()
    await some.close()
    with pytest.raises(DatabaseClosed):
        await run_transaction(some.submit, lambda tx: None, is_write=False)


async def test_next_job_returns_to_the_thread_that_was_used_last() -> None:
    some = pool(8, None)
    # Both are submitted before a thread can be idle again.
    together = await asyncio.gather(*(run_transaction(some.submit, lambda tx: None, is_write=False) for _ in range(2)))
    threads = [await run_transaction(some.submit, lambda tx: None, is_write=False) for _ in range(20)]
    assert len(set(threads)) == 1
    assert threads[0] in together
    await some.close()
