"""The task engine without a server, on both stores: claims, leases, retries, and crashed workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw

from portico.protocol.errors import InternalError, UsageError
from portico.server.components.tools import TaskConfig
from portico.server.tasks import engine as engines, execution as running_jobs, jobs, leases
from portico.server.tasks.engine import TaskEngine
from portico.server.tasks.execution import JobConcurrencyLimit, JobRun, LeaseLost
from portico.server.tasks.jobs import Job, JobOutcome
from portico.server.tasks.leases import Lease
from portico.store.database import Database
from portico.store.errors import ConnectionLost, InvalidValue, RowMismatch
from portico.store.transaction import Transaction
from support.task_servers import TIMEOUT_SECONDS, wait_until

DONE = JobOutcome("completed", Raw(b'{"content":[]}'))
FAILED = JobOutcome("completed", Raw(b'{"content":[]}'), is_retryable=True)

Body = Callable[[JobRun], Awaitable[Any]]
Make = Callable[..., Awaitable[TaskEngine]]


def job(tool: str = "work", **values: Any) -> Job:
    moment = int(time.time() * 1000)
    usual: dict[str, Any] = {
        "id": jobs.new_id(),
        "server": "s",
        "tool": tool,
        "arguments": Raw(b"{}"),
        "owner": "",
        "caller": Raw(b"{}"),
        "status": "queued",
        "priority": 0,
        "created_at": moment,
        "updated_at": moment,
        "run_at": moment,
        "ttl": 3_600_000,
        "expires_at": moment + 3_600_000,
        "attempts": 0,
        "deaths": 0,
        "worker": None,
        "lease": None,
        "message": None,
        "progress": None,
        "total": None,
        "questions": {},
        "answers": {},
        "outcome": Raw(),
    }
    return Job(**usual | values)


@pytest.fixture
async def make(url: str) -> AsyncIterator[Make]:
    """`await make(body, tool=config, …)` is an engine that runs; each has connections of its own."""
    made: list[TaskEngine] = []

    async def start(
        body: Body | None = None, /, *, concurrency: int = 16, lease: float = 60.0, **tools: Any
    ) -> TaskEngine:
        async def run(running: JobRun) -> JobOutcome:
            result = None if body is None else await body(running)
            return result if isinstance(result, JobOutcome) else DONE

        configs: dict[str, TaskConfig] = tools or {"work": TaskConfig()}
        response = TaskEngine("s", Database(url), lambda: configs, run, concurrency=concurrency, lease_seconds=lease)
        await response.start()
        made.append(response)
        return response

    yield start
    for response in made:
        await response.stop()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Database]:
    """The tables, and nobody at work."""
    async with Database(url) as database:
        await database.migrate("tasks", engines.MIGRATIONS)
        yield database


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by themselves: whatever happens, happens because somebody was told."""
    monkeypatch.setattr(engines, "POLL_SECONDS", 3600.0)


async def until(engine: TaskEngine, id: str, *statuses: str) -> Job:
    with engine.watch(id) as news:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                news.clear()
                response = await engine.get(id, None)
                if response is not None and response.status in statuses:
                    return response
                await news.wait()


async def is_over(engine: TaskEngine, id: str) -> bool:
    response = await engine.get(id, None)
    return response is not None and response.is_finished


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await event.wait()


# Order


async def test_jobs_run_by_priority_and_then_by_run_at(make: Make) -> None:
    ran: list[int] = []
    go = asyncio.Event()

    async def body(running: JobRun) -> None:
        await go.wait()
        ran.append(running.job.priority * 100 + running.job.run_at % 100)

    engine = await make(body, concurrency=1)
    first = await engine.create(job())
    await until_running(engine, first.id)
    moment = 1_700_000_000_000
    queued = [job(priority=priority, run_at=moment + n) for priority in (0, 5, -5) for n in (3, 1, 2)]
    for item in queued:
        await engine.create(item)
    go.set()
    for item in queued:
        await until(engine, item.id, "completed")
    assert ran[1:] == [501, 502, 503, 1, 2, 3, -499, -498, -497]


async def until_running(engine: TaskEngine, id: str) -> JobRun:
    """Wait until this engine has begun it."""
    running: JobRun = await wait_until(lambda: engine._running.get(id))
    return running


async def test_jobs_claimed_together_start_in_priority_order(make: Make) -> None:
    began: list[int] = []

    async def body(running: JobRun) -> None:
        began.append(running.job.priority)

    idle = await make(body, other=TaskConfig())
    queued = [await idle.create(job(priority=n % 7)) for n in range(14)]
    engine = await make(body)
    for item in queued:
        await until(engine, item.id, "completed")
    # All were taken at once; bodies that do not wait run in the order in which they began.
    assert began == sorted(began, reverse=True)


# How many at once


class Gauge:
    """How many are inside, and how many ever were."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def __call__(self, running: JobRun) -> None:
        for name in ("all", running.job.tool):
            self.now[name] = self.now.get(name, 0) + 1
            self.most[name] = max(self.most.get(name, 0), self.now[name])
        for _ in range(5):
            await running.finish_step(f"step {len(running.steps)}", Raw(b"1"))
        for name in ("all", running.job.tool):
            self.now[name] -= 1


async def test_no_more_run_at_once_than_there_is_room_for(make: Make) -> None:
    gauge = Gauge()
    engine = await make(gauge, concurrency=3)
    queued = [await engine.create(job()) for _ in range(20)]
    for item in queued:
        await until(engine, item.id, "completed")
    assert gauge.most["all"] == 3


async def test_of_one_tool_no_more_run_at_once_in_all_processes(make: Make) -> None:
    gauge = Gauge()
    tools = {"few": TaskConfig(max_concurrency=2), "one": TaskConfig(max_concurrency=1), "work": TaskConfig()}
    both = [await make(gauge, **tools) for _ in range(2)]
    queued = [job(tool) for _ in range(15) for tool in tools]

    def create(tx: Transaction) -> None:
        for item in queued:
            item.sign(both[0].keys)
            jobs.create(tx, item, {})

    await both[0].database.write(create)
    for item in queued:
        await until(both[0], item.id, "completed")
    assert gauge.most["few"] == 2
    assert gauge.most["one"] == 1
    assert gauge.most["work"] > 2


@pytest.mark.usefixtures("deaf")
async def test_idle_worker_takes_a_job_when_its_tool_limit_frees_up(make: Make) -> None:
    """One worker makes room for the tool and has none itself; the other has room, and had been waiting for it."""
    gates = {name: asyncio.Event() for name in ("one", "busy")}
    began: list[tuple[str, str]] = []

    def body(name: str) -> Body:
        async def run(running: JobRun) -> None:
            began.append((name, running.job.tool))
            if name == "first":
                await gates[running.job.tool].wait()

        return run

    tools = {"one": TaskConfig(max_concurrency=1), "busy": TaskConfig()}
    first = await make(body("first"), concurrency=1, **tools)
    running = await first.create(job("one"))
    await until_running(first, running.id)
    second = await make(body("second"), one=TaskConfig(max_concurrency=1))
    waiting = await first.create(job("one"))
    await first.create(job("busy", priority=9))
    gates["one"].set()
    await until(first, running.id, "completed")
    await until(second, waiting.id, "completed")
    await wait_until(lambda: len(began) == 3)
    assert began[0] == ("first", "one")
    assert sorted(began[1:]) == [("first", "busy"), ("second", "one")]
    gates["busy"].set()


@pytest.mark.usefixtures("deaf")
async def test_jobs_left_by_one_worker_are_claimed_by_another(make: Make) -> None:
    """A worker that locks more than it takes, because it looks for limited tools too, leaves the rest to others."""
    gate = asyncio.Event()
    tools = {"work": TaskConfig(), "few": TaskConfig(max_concurrency=5)}

    async def body(running: JobRun) -> None:
        await gate.wait()

    both = [await make(body, concurrency=5, **tools) for _ in range(2)]
    queued = [job(tool) for tool in ("work", "few") for _ in range(5)]

    def create(tx: Transaction) -> None:
        for item in queued:
            item.sign(both[0].keys)
            jobs.create(tx, item, {})

    await both[0].database.write(create)
    await wait_until(lambda: sum(len(item._running) for item in both) == 10)
    gate.set()
    for item in queued:
        await until(both[0], item.id, "completed")


# Trying again


async def test_unexpected_failures_are_retried_with_exponential_backoff(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    released: Any = leases.release

    def release(tx: Transaction, hold: Lease, run_at: int | None, now: int) -> bool:
        """It waits no longer in a test, and the wait is written down."""
        if run_at is not None:
            waits.append((run_at - now) / 1000)
        return bool(released(tx, hold, now, now))

    monkeypatch.setattr(leases, "release", release)
    attempts: list[int] = []

    async def body(running: JobRun) -> JobOutcome:
        attempts.append(running.job.attempts)
        return FAILED if len(attempts) < 5 else DONE

    engine = await make(body, work=TaskConfig(max_retries=6, retry_delay=10.0))
    result = await engine.create(job())
    ended = await until(engine, result.id, "completed")
    assert attempts == [1, 2, 3, 4, 5]
    assert ended.attempts == 5
    for n, wait in enumerate(waits):
        assert 0.74 * 10 * 2**n < wait < 1.26 * 10 * 2**n


async def test_wait_has_an_end_however_often_it_failed(make: Make) -> None:
    async def body(running: JobRun) -> JobOutcome:
        return FAILED

    engine = await make(body, work=TaskConfig(max_retries=10**6, retry_delay=1.0))
    result = await engine.create(job(attempts=5000))
    with engine.watch(result.id) as news:
        await soon(news)
    response = await engine.get(result.id, None)
    assert response is not None
    assert response.status == "queued"
    assert 0 < response.run_at - response.updated_at <= 1.26 * engines.MAX_BACKOFF_SECONDS * 1000


async def test_delayed_retry_runs_when_due(make: Make) -> None:
    ran: list[int] = []

    async def body(running: JobRun) -> JobOutcome:
        ran.append(running.job.attempts)
        return FAILED if len(ran) == 1 else DONE

    engine = await make(body, work=TaskConfig(max_retries=1, retry_delay=0.05))
    result = await engine.create(job())
    await until(engine, result.id, "completed")
    assert ran == [1, 2]


async def test_last_retry_fails_the_task(make: Make) -> None:
    runs = 0

    async def body(running: JobRun) -> JobOutcome:
        nonlocal runs
        runs += 1
        return FAILED

    engine = await make(body, work=TaskConfig(max_retries=2, retry_delay=0.0))
    result = await engine.create(job())
    assert (await until(engine, result.id, "completed")).outcome == FAILED.value
    assert runs == 3


async def test_result_that_cannot_be_stored_fails_the_job_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0
    finished: Any = leases.finish

    def finish(tx: Transaction, hold: Lease, outcome: JobOutcome, now: int) -> bool:
        if outcome.status == "completed":
            raise InvalidValue("The value is too long.")
        return bool(finished(tx, hold, outcome, now))

    async def body(running: JobRun) -> None:
        nonlocal runs
        runs += 1

    monkeypatch.setattr(leases, "finish", finish)
    engine = await make(body)
    result = await engine.create(job())
    ended = await until(engine, result.id, "failed")
    assert b"-32603" in bytes(ended.outcome)
    assert b"too long" not in bytes(ended.outcome)
    assert runs == 1


# Waiting for answers


async def test_job_waiting_for_input_frees_its_slot(make: Make) -> None:
    async def body(running: JobRun) -> None:
        if running.job.tool == "ask":
            await running.wait_for_response("key", {"method": "roots/list"})

    engine = await make(body, concurrency=1, ask=TaskConfig(), work=TaskConfig())
    asking = [await engine.create(job("ask")) for _ in range(3)]
    for item in asking:
        await until(engine, item.id, "waiting")
    work = await engine.create(job())
    await until(engine, work.id, "completed")
    for item in asking:
        assert await engine.update(item.id, {"key": Raw(b"{}")})
        await until(engine, item.id, "completed")
    await wait_until(lambda: engine.concurrency_limit.free == 1)


async def test_resumed_job_waits_for_a_slot_and_runs_before_queued_ones(make: Make) -> None:
    gates = {name: asyncio.Event() for name in ("busy", "back")}
    order: list[str] = []

    async def body(running: JobRun) -> None:
        if running.job.tool == "ask":
            await running.wait_for_response("key", {"method": "roots/list"})
        if running.job.tool == "busy":
            gates["back"].set()
            await gates["busy"].wait()
        order.append(running.job.tool)

    tools = {"ask": TaskConfig(), "busy": TaskConfig(), "work": TaskConfig()}
    engine = await make(body, concurrency=1, **tools)
    asking = await engine.create(job("ask"))
    await until(engine, asking.id, "waiting")
    busy = await engine.create(job("busy"))
    await soon(gates["back"])
    work = await engine.create(job("work", priority=100))
    await engine.update(asking.id, {"key": Raw(b"{}")})
    await until(engine, asking.id, "running")
    gates["busy"].set()
    for item in (asking, busy, work):
        await until(engine, item.id, "completed")
    assert order == ["busy", "ask", "work"]
    await wait_until(lambda: engine.concurrency_limit.free == 1)


async def test_waiting_task_releases_one_slot(make: Make) -> None:
    gauge = Gauge()

    async def body(running: JobRun) -> None:
        if running.job.tool == "ask":
            await asyncio.gather(*(running.wait_for_response(f"key {n}", {"method": "roots/list"}) for n in range(5)))
        else:
            await gauge(running)

    engine = await make(body, concurrency=2, ask=TaskConfig(), work=TaskConfig())
    asking = await engine.create(job("ask"))
    running = await until_running(engine, asking.id)
    await wait_until(lambda: running.waiting == 5)
    assert engine.concurrency_limit.free == 2
    queued = [await engine.create(job()) for _ in range(10)]
    for item in queued:
        await until(engine, item.id, "completed")
    assert gauge.most["all"] == 2
    await engine.update(asking.id, {f"key {n}": Raw(b"{}") for n in range(5)})
    await until(engine, asking.id, "completed")
    assert engine.concurrency_limit.free == 2


@pytest.mark.parametrize("moment", ["waiting", "coming back"])
async def test_slot_is_released_once_on_cancellation(make: Make, moment: str) -> None:
    gates = {name: asyncio.Event() for name in ("busy", "begun")}

    async def body(running: JobRun) -> None:
        if running.job.tool == "ask":
            await running.wait_for_response("key", {"method": "roots/list"})
        elif running.job.tool == "busy":
            gates["begun"].set()
            await gates["busy"].wait()

    engine = await make(body, concurrency=1, ask=TaskConfig(), busy=TaskConfig())
    asking = await engine.create(job("ask"))
    await until(engine, asking.id, "waiting")
    busy = await engine.create(job("busy"))
    await soon(gates["begun"])
    if moment == "coming back":
        await engine.update(asking.id, {"key": Raw(b"{}")})
        await wait_until(lambda: engine.concurrency_limit._returning)
    task = engine._running[asking.id].task
    assert task is not None
    await engine.cancel(asking.id)
    await asyncio.wait([task], timeout=TIMEOUT_SECONDS)
    gates["busy"].set()
    await until(engine, busy.id, "completed")
    await wait_until(lambda: not engine._running)
    assert engine.concurrency_limit.free == 1


async def test_slot_that_is_given_in_the_moment_of_a_cancellation_is_not_lost() -> None:
    slots = JobConcurrencyLimit(1, lambda: None)
    slots.acquire()
    coming = asyncio.ensure_future(slots.reacquire())
    await asyncio.sleep(0)
    slots.release()
    coming.cancel()
    await asyncio.wait([coming], timeout=TIMEOUT_SECONDS)
    assert coming.cancelled()
    assert slots.free == 1


@pytest.mark.usefixtures("deaf")
async def test_answer_in_another_process_is_received(make: Make) -> None:
    async def body(running: JobRun) -> JobOutcome:
        return JobOutcome("completed", await running.wait_for_response("key", {"method": "roots/list"}))

    item, other = await make(body), await make(body, elsewhere=TaskConfig())
    asking = await other.create(job())
    await until(other, asking.id, "waiting")
    await other.update(asking.id, {"key": Raw(b'{"roots":[]}')})
    assert bytes((await until(item, asking.id, "completed")).outcome) == b'{"roots":[]}'


async def test_answer_with_lost_event_is_found_by_polling(make: Make) -> None:
    async def body(running: JobRun) -> JobOutcome:
        return JobOutcome("completed", await running.wait_for_response("key", {"method": "roots/list"}))

    engine = await make(body, lease=0.3)
    asking = await engine.create(job())
    await until(engine, asking.id, "waiting")

    def quietly(tx: Transaction) -> None:
        jobs.store_responses(tx, asking.id, {"key": Raw(b"1")}, int(time.time() * 1000) + 1)
        tx.events.clear()

    await engine.database.write(quietly)
    await until(engine, asking.id, "completed")


async def test_answer_before_a_restart_is_used(make: Make) -> None:
    """Its worker died while it waited; the answer comes while it is in the queue."""
    requests: list[str] = []

    async def body(running: JobRun) -> JobOutcome:
        requests.append(running.job.status)
        return JobOutcome("completed", await running.wait_for_response("key", {"method": "roots/list"}))

    first = await make(body)
    asking = await first.create(job())
    await until(first, asking.id, "waiting")
    await first.stop()
    other = await make(elsewhere=TaskConfig())
    response = await other.get(asking.id, None)
    assert response is not None
    assert response.status == "queued"
    assert await other.update(asking.id, {"key": Raw(b"7")})
    second = await make(body)
    assert bytes((await until(second, asking.id, "completed")).outcome) == b"7"
    assert len(requests) == 2


# Cancelling


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_cancelled_body_is_stopped(make: Make, where: str) -> None:
    stopped = asyncio.Event()

    async def body(running: JobRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    engine, other = await make(body), await make(elsewhere=TaskConfig())
    result = await engine.create(job())
    await until_running(engine, result.id)
    cancelled = await (engine if where == "here" else other).cancel(result.id)
    assert cancelled is not None
    assert cancelled.status == "cancelled"
    await soon(stopped)


async def test_cancellation_with_lost_event_is_found_by_polling(make: Make) -> None:
    stopped = asyncio.Event()

    async def body(running: JobRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    engine = await make(body, lease=0.3)
    result = await engine.create(job())
    await until_running(engine, result.id)

    def quietly(tx: Transaction) -> None:
        jobs.cancel(tx, result.id, int(time.time() * 1000))
        tx.events.clear()

    await engine.database.write(quietly)
    await soon(stopped)


# Holding, and letting go


async def is_lost(write: Callable[[], Awaitable[Any]]) -> bool:
    """Whether a body may not write any more; one that does not care that it was told to stop."""
    while True:
        try:
            await write()
        except LeaseLost:
            return True
        except asyncio.CancelledError:
            continue
        return False


async def test_worker_that_lost_a_job_writes_nothing(make: Make) -> None:
    """It was thought dead, and its job is somebody else's."""
    gates = {name: asyncio.Event() for name in ("first", "second")}
    lost: list[str] = []

    async def slow(running: JobRun) -> JobOutcome:
        await running.finish_step("begun", Raw(b'"first"'))
        while not gates["first"].is_set():
            try:
                await gates["first"].wait()
            except asyncio.CancelledError:
                pass  # it does not even listen
        for name, write in {
            "step": lambda: running.finish_step("late", Raw(b'"first"')),
            "report": lambda: running.write(leases.store_progress, 1.0, None, "late", 0),
            "ask": lambda: running.wait_for_response("late", {"method": "roots/list"}),
            "finish": lambda: running.write(leases.finish, DONE, 0),
            "release": lambda: running.write(leases.release, 0, 0),
        }.items():
            if await is_lost(write):
                lost.append(name)
        gates["second"].set()
        raise LeaseLost

    async def quick(running: JobRun) -> JobOutcome:
        gates["first"].set()
        await gates["second"].wait()
        assert set(running.steps) == {"begun"}
        return JobOutcome("completed", Raw(b'"second"'))

    first = await make(slow, concurrency=1)
    result = await first.create(job())
    running = await until_running(first, result.id)
    await wait_until(lambda: running.steps)
    second = await make(quick)
    await second.database.write(lambda tx: leases.reclaim(tx, "s", [first.worker], 0))
    ended = await until(second, result.id, "completed")
    assert bytes(ended.outcome) == b'"second"'
    assert (ended.progress, ended.message, ended.questions) == (None, None, {})
    assert lost == ["step", "report", "ask", "finish", "release"]
    assert set(await second.database.read(lambda tx: jobs.finished_steps(tx, [result.id])[result.id])) == {"begun"}


async def test_reclaimed_job_runs_once_in_one_worker(make: Make) -> None:
    """What it was doing before counts no more, though the job has the same worker."""
    runs: list[int] = []
    lost, stay = asyncio.Event(), asyncio.Event()

    async def body(running: JobRun) -> JobOutcome:
        runs.append(running.lease.run)
        if running.lease.run == 1:
            while not lost.is_set():
                try:
                    await stay.wait()
                    await running.finish_step("step", Raw(b'"first"'))
                except asyncio.CancelledError:
                    stay.set()
                except LeaseLost:
                    lost.set()
            raise LeaseLost
        await lost.wait()
        await running.finish_step("step", Raw(b'"second"'))
        return JobOutcome("completed", running.steps["step"])

    engine = await make(body)
    result = await engine.create(job())
    await until_running(engine, result.id)
    await engine.database.write(lambda tx: leases.reclaim(tx, "s", [engine.worker], 0))
    ended = await until(engine, result.id, "completed")
    assert bytes(ended.outcome) == b'"second"'
    assert runs == [1, 2]
    await wait_until(lambda: not engine._running)
    assert engine.concurrency_limit.free == 16


async def test_lease_that_runs_out_gives_the_job_away(make: Make) -> None:
    ended = asyncio.Event()

    async def for_ever(running: JobRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    silent = await make(for_ever, lease=0.2)
    result = await silent.create(job())
    await until_running(silent, result.id)
    for task in silent._tasks[1:]:
        task.cancel()  # it lives, and does not say so
    other = await make(lease=0.3)
    found = await until(other, result.id, "completed")
    assert found.deaths == 1
    assert found.attempts == 1
    # Whoever had it hears that it has not any more.
    await soon(ended)


class Away:
    """A worker that has not said that it lives for long."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.worker = "away"
        self.slots = JobConcurrencyLimit(1, lambda: None)
        self.alive_until = 0


async def test_suspended_worker_cannot_write_after_lease_loss(store: Database) -> None:
    """A step that has not begun is not begun by somebody who may not hold the job any more."""
    moment = int(time.time() * 1000)
    result = job(run_at=moment - 60_000)
    await store.write(lambda tx: jobs.create(tx, result, {}))

    def claim(tx: Transaction) -> Any:
        return leases.claim(tx, "s", {"work": None}, "away", moment - 60_000, 10_000, 1)

    [taken], _ = await store.write(claim)
    running = JobRun(Away(store), taken, {}, is_limited=False)
    await running.ensure_lease()  # late, but nobody has taken it
    await store.write(lambda tx: leases.reclaim(tx, "s", [], moment))
    with pytest.raises(LeaseLost):
        await running.ensure_lease()
    # Whoever said a moment ago that it lives does not have to ask.
    running.engine.alive_until = moment + 60_000
    await running.ensure_lease()


async def test_claimed_job_that_is_not_running_is_requeued(make: Make) -> None:
    """A claim whose answer never arrived: the store has committed it, and nobody works on it."""
    engine = await make(lease=0.3)
    other = await make(elsewhere=TaskConfig())
    result = job(tool="elsewhere, for now")
    await other.create(result)

    def claim(tx: Transaction) -> None:
        moment = int(time.time() * 1000)
        leases.claim(tx, "s", {result.tool: None}, engine.worker, moment, 60_000, 1)
        result.tool = "work"
        result.sign(engine.keys)
        tx.execute(
            "update portico_job set tool = ?, signature = ? where id = ?", (result.tool, result.signature, result.id)
        )

    await other.database.write(claim)
    await until(other, result.id, "completed")


async def test_lost_claim_response_loses_no_job(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await make(lease=0.3)
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.05)
    writes, lost = engine.database.write, asyncio.Event()

    async def write(fn: Any, **how: Any) -> Any:
        found = await writes(fn, **how)
        if isinstance(found, tuple) and found[0] and not lost.is_set():
            lost.set()
            raise ConnectionLost("The server went away while it was committing.")
        return found

    monkeypatch.setattr(engine.database, "write", write)
    result = await engine.create(job())
    await soon(lost)
    assert (await until(engine, result.id, "completed")).attempts == 1


async def test_job_is_not_failed_because_the_store_was_away_for_a_moment(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_jobs, "RETRY_SECONDS", 0.01)
    runs = 0

    async def body(running: JobRun) -> None:
        nonlocal runs
        runs += 1
        await running.finish_step("one", Raw(b"1"))

    engine = await make(body)
    failures = {"step": 3, "finish": 3}

    def failing(name: str, real: Any) -> Any:
        def fn(tx: Transaction, *arguments: Any) -> Any:
            if failures[name]:
                failures[name] -= 1
                raise ConnectionLost("away")
            return real(tx, *arguments)

        return fn

    monkeypatch.setattr(leases, "store_leased_step", failing("step", leases.store_leased_step))
    monkeypatch.setattr(leases, "finish", failing("finish", leases.finish))
    result = await engine.create(job())
    await until(engine, result.id, "completed")
    assert runs == 1
    assert set(failures.values()) == {0}


async def test_engine_recovers_from_any_failure(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.02)
    engine = await make(lease=0.1)
    trouble = {"_fill_slots": 2, "_compare": 2, "_on_event": 2}
    for name in trouble:

        def failing(name: str = name, real: Any = getattr(engine, name)) -> Any:
            async def fn(*arguments: Any) -> Any:
                if trouble[name]:
                    trouble[name] -= 1
                    raise RuntimeError(name)
                return await real(*arguments)

            return fn

        monkeypatch.setattr(engine, name, failing())
    for _ in range(3):
        result = await engine.create(job())
        await wait_until(lambda id=result.id: is_over(engine, id))
    await wait_until(lambda: set(trouble.values()) == {0})
    assert "task engine scheduler failed" in caplog.text


# The end of a worker


async def test_running_jobs_are_requeued_when_the_worker_stops(make: Make) -> None:
    begun = asyncio.Event()

    async def body(running: JobRun) -> None:
        if running.job.tool == "ask":
            await running.wait_for_response("key", {"method": "roots/list"})
        await running.finish_step("one", Raw(b"1"))
        begun.set()
        await asyncio.Event().wait()

    first = await make(body, concurrency=1, work=TaskConfig(), ask=TaskConfig())
    asking = await first.create(job("ask"))
    await until(first, asking.id, "waiting")
    running = await first.create(job())
    await soon(begun)
    queued = await first.create(job())
    await first.stop()
    other = await make(elsewhere=TaskConfig())
    for item in (asking, running, queued):
        response = await other.get(item.id, None)
        assert response is not None
        assert (response.status, response.worker, response.lease) == ("queued", None, None)
        assert (response.attempts, response.deaths) == (0, 0)


@pytest.mark.usefixtures("deaf")
async def test_requeued_job_is_taken_by_another_worker(make: Make) -> None:
    async def for_ever(running: JobRun) -> None:
        await running.finish_step("one", Raw(b"1"))
        await asyncio.Event().wait()

    async def body(running: JobRun) -> None:
        assert set(running.steps) == {"one"}

    first = await make(for_ever)
    result = await first.create(job())
    running = await until_running(first, result.id)
    await wait_until(lambda: running.steps)
    second = await make(body)
    await first.stop()
    await until(second, result.id, "completed")


async def test_body_that_does_not_stop_is_left_behind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "SHUTDOWN_TIMEOUT_SECONDS", 0.01)
    go, over = asyncio.Event(), asyncio.Event()

    async def stubborn(running: JobRun) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                pass
        over.set()

    first = await make(stubborn)
    result = await first.create(job())
    await until_running(first, result.id)
    await first.stop()
    second = await make()
    assert (await until(second, result.id, "completed")).outcome == DONE.value
    go.set()
    await soon(over)


async def test_job_claimed_during_shutdown_is_requeued(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await make()
    writes, item = engine.database.write, asyncio.Event()

    async def write(fn: Any, **how: Any) -> Any:
        response = await writes(fn, **how)
        if isinstance(response, tuple) and response[0]:
            item.set()
            for _ in range(10):
                await asyncio.sleep(0)  # the answer is on its way
        return response

    monkeypatch.setattr(engine.database, "write", write)
    result = await engine.create(job())
    await soon(item)
    await engine.stop()
    other = await make(elsewhere=TaskConfig())
    response = await other.get(result.id, None)
    assert response is not None
    assert response.status in ("queued", "completed")
    assert response.worker is None


async def test_job_is_failed_after_repeated_worker_crashes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_WORKER_DEATHS", 3)

    async def for_ever(running: JobRun) -> None:
        await asyncio.Event().wait()

    engine = await make(for_ever)
    result = await engine.create(job())
    for _ in range(3):
        await until_running(engine, result.id)
        await wait_until(lambda: engine.database.write(lambda tx: leases.reclaim(tx, "s", [engine.worker], 0)))
    ended = await until(engine, result.id, "failed")
    assert b"the task's process ended 3 times" in bytes(ended.outcome)


async def test_jobs_of_dead_workers_are_reclaimed_in_batches(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RECLAIM_BATCH_SIZE", 10)
    other = await make(elsewhere=TaskConfig())
    lost = [job(status="running", worker="nobody", lease=1) for _ in range(35)]

    def create(tx: Transaction) -> None:
        for item in lost:
            item.sign(other.keys)
            jobs.create(tx, item, {})

    await other.database.write(create)
    engine = await make(lease=0.3)
    for item in lost:
        await until(engine, item.id, "completed")


# Time to live


@pytest.mark.requirement("tasks.ttl")
async def test_expired_jobs_are_deleted(store: Database) -> None:
    moment = int(time.time() * 1000)
    over = [job(status=status, expires_at=moment - 1) for status in ("completed", "failed", "cancelled")]
    kept = [job(status="completed", expires_at=moment + 60_000), job(status="completed", expires_at=None)]
    for item in (*over, *kept):
        await store.write(lambda tx, item=item: jobs.create(tx, item, {"step": Raw(b"1")}))
    assert await store.write(lambda tx: jobs.sweep(tx, moment)) == 3
    left = await store.read(lambda tx: tx.fetch_all(str, "select id from portico_job"))
    assert sorted(left) == sorted(item.id for item in kept)
    assert await store.read(lambda tx: tx.fetch_one(int, "select count(*) from portico_job_step")) == 2


async def test_queued_and_waiting_jobs_fail_when_their_ttl_expires(make: Make) -> None:
    stopped = asyncio.Event()

    async def body(running: JobRun) -> None:
        try:
            await running.wait_for_response("key", {"method": "roots/list"})
        finally:
            stopped.set()

    engine = await make(body)
    waiting = await engine.create(job())
    queued = await engine.create(job("unknown"))
    running = await engine.create(job(status="running", worker="somebody", lease=2**60))
    await until(engine, waiting.id, "waiting")
    later = waiting.created_at + 3_600_001
    assert await engine.database.write(lambda tx: jobs.sweep(tx, later + 60_000)) == 2
    for item in (waiting, queued):
        ended = await until(engine, item.id, "failed")
        assert b"time to live" in bytes(ended.outcome)
        assert ended.message is not None
        assert ended.expires_at is not None
        assert ended.expires_at > later
    await soon(stopped)
    response = await engine.get(running.id, None)
    assert response is not None
    assert response.status == "running"


async def test_result_is_retained_for_a_minimum_time(make: Make) -> None:
    engine = await make()
    result = await engine.create(job(ttl=1))
    ended = await until(engine, result.id, "completed")
    assert ended.expires_at is not None
    assert ended.expires_at >= ended.updated_at + jobs.EXPIRY_GRACE_MS


async def test_engine_sweeps_by_itself_and_some_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SWEEP_BATCH_SIZE", 10)
    other = await make(elsewhere=TaskConfig())
    old = [job(status="completed", expires_at=1) for _ in range(25)]
    for item in old:
        await other.create(item)
    await make(lease=0.3)
    await wait_until(lambda: is_empty(other.database))


async def is_empty(database: Database) -> bool:
    return not await database.read(lambda tx: tx.fetch_one(int, "select count(*) from portico_job"))


async def test_finished_job_can_be_retried(make: Make) -> None:
    runs: list[dict[str, Raw]] = []

    async def body(running: JobRun) -> JobOutcome:
        runs.append(dict(running.steps))
        await running.finish_step("one", Raw(b"1"))
        return JobOutcome("failed", Raw(b'{"code":1,"message":"no"}'), "no") if len(runs) == 1 else DONE

    engine = await make(body)
    result = await engine.create(job())
    await until(engine, result.id, "failed")
    again = await engine.database.write(lambda tx: jobs.retry(tx, result.id, int(time.time() * 1000)))
    assert again is not None
    assert (again.status, again.message, bytes(again.outcome)) == ("queued", None, b"")
    await until(engine, result.id, "completed")
    assert list(runs[1]) == ["one"]
    assert await engine.database.write(lambda tx: jobs.retry(tx, "nothing", 0)) is None


# Others


async def test_servers_of_other_names_have_queues_of_their_own(make: Make, url: str) -> None:
    engine = await make()
    other = await engine.create(job(server="another"))
    mine = await engine.create(job())
    await until(engine, mine.id, "completed")
    assert await engine.get(other.id, None) is None
    assert await engine.list_jobs("", (-1, "")) != []
    counted = await engine.database.read(
        lambda tx: tx.fetch_one(int, "select count(*) from portico_job where server = 'another' and status = 'queued'")
    )
    assert counted == 1


async def test_engine_without_tools_claims_no_jobs(make: Make, url: str) -> None:
    response = TaskEngine("s", Database(url), dict, lambda running: asyncio.sleep(0, DONE))
    await response.start()
    created = await response.create(job())
    await response._fill_slots()
    found = await response.get(created.id, None)
    await response.stop()
    assert found is not None
    assert found.status == "queued"


async def test_two_engines_that_start_at_once_both_start(make: Make) -> None:
    both = await asyncio.gather(make(), make())
    queued = [await both[n % 2].create(job()) for n in range(10)]
    for item in queued:
        await until(both[0], item.id, "completed")


async def test_engine_start_fails_if_the_store_cannot_be_opened(tmp_path: Any) -> None:
    file = tmp_path / "store.db"
    file.write_bytes(b"this is no database, and never was one " * 100)
    engine = TaskEngine("s", Database(file), dict, lambda running: asyncio.sleep(0, DONE))
    with pytest.raises(Exception, match="not an SQLite database"):
        await engine.start()


@pytest.mark.requirement("tasks.bounded")
async def test_open_tasks_per_owner_are_limited(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_OPEN_JOBS_PER_OWNER", 2)
    engine = await make(concurrency=0)
    first = await engine.create(job(owner="one"))
    await engine.create(job(owner="one"))
    with pytest.raises(InternalError, match="2 tasks are unfinished"):
        await engine.create(job(owner="one"))
    await engine.create(job(owner="other"))
    await engine.cancel(first.id)
    await engine.create(job(owner="one"))


async def test_job_with_tampered_row_is_not_run(make: Make) -> None:
    """Whoever can write to the store cannot run a tool, with other arguments or as another caller."""
    ran: list[str] = []

    async def body(running: JobRun) -> None:
        ran.append(running.job.id)

    engine = await make(body, concurrency=1)
    changes = {
        "arguments": '{"path":"/"}',
        "owner": "somebody",
        "caller": '{"principal":{"id":"root"}}',
        "signature": None,
    }
    later = jobs.now_ms() + 3_600_000
    forged = {column: await engine.create(job(run_at=later)) for column in changes}
    unsigned = job()

    def write(tx: Transaction) -> None:
        for column, item in forged.items():
            # The signature of one job is of no use for another.
            value = forged["owner"].signature if column == "signature" else changes[column]
            tx.execute(f"update portico_job set {column} = ?, run_at = 0 where id = ?", (value, item.id))
        jobs.create(tx, unsigned, {})

    await engine.database.write(write)
    for item in (*forged.values(), unsigned):
        ended = await until(engine, item.id, "failed")
        assert b"changed in the store" in bytes(ended.outcome)
    honest = await engine.create(job())
    await until(engine, honest.id, "completed")
    assert ran == [honest.id]


async def test_tasks_in_postgresql_need_a_key(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS")

    async def run(running: JobRun) -> JobOutcome:
        return DONE

    engine = TaskEngine("s", Database(postgres_url), dict, run)
    with pytest.raises(UsageError, match="set PORTICO_ENCRYPTION_KEYS"):
        await engine.start()


@pytest.mark.parametrize("column", ["questions", "answers"])
@pytest.mark.parametrize("value", ["{", "1", '{"a":' + "[" * 5000 + "]" * 5000 + "}"], ids=["cut", "type", "deep"])
async def test_an_invalid_row_does_not_stop_the_others(make: Make, column: str, value: str) -> None:
    paused, started = asyncio.Event(), asyncio.Event()

    async def body(running: JobRun) -> None:
        started.set()
        await paused.wait()

    engine = await make(body, concurrency=1)
    await engine.create(job())
    await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
    # Queued while the only slot is taken, and the invalid one is the most urgent.
    invalid, valid = job(priority=9), job()
    for one in (invalid, valid):
        await engine.create(one)
    sql = f"update portico_job set {column} = :value where id = :id"
    await engine.database.write(lambda tx: tx.execute(sql, {"value": value, "id": invalid.id}))
    paused.set()

    async def statuses() -> list[str]:
        return [one.status for id in (invalid.id, valid.id) if (one := await engine.get(id, None)) is not None]

    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (now := await _read_or_none(statuses)) != ["failed", "completed"]:
            assert now is None or "queued" in now or "running" in now, now
            await asyncio.sleep(0.02)


async def _read_or_none(statuses: Callable[[], Awaitable[list[str]]]) -> list[str] | None:
    try:
        return await statuses()
    except RowMismatch:
        return None  # not claimed yet
