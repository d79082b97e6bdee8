"""The work item table: creating and claiming tasks among many, and the cost of completed ones, on both stores."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from goals import Goal, same
from peers import NotInstalled, Peer
from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services import timestamps
from portico_services.workitems import claims
from portico_services.workitems.edits import WorkItemDraft
from portico_services.workitems.item_store import WorkItemStore
from portico_services.workitems.listing import ListQuery
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

NAME = "work items"
WINDOW = 32
FEW = 10
QUESTIONS = (
    Question("create", "tasks made one after the other, among {open} open ones", "per s", more_is_better=True),
    Question("create_many", f"tasks made with {WINDOW} in flight", "per s", more_is_better=True),
    Question("claim", "next_task one after the other", "per s", more_is_better=True),
    Question("claim_many", f"next_task with {WINDOW} in flight", "per s", more_is_better=True),
    Question("next_none", "next_task, its statements without the commit, nothing finished", "µs"),
    Question("next_finished", "the same with {finished} finished tasks", "µs"),
    Question("whole_none", "next_task, from the call to its return, nothing finished", "ms"),
    Question("whole_finished", "the same with {finished} finished tasks", "ms"),
    Question("query_rare", "list_tasks with a word of one task among {all}, median", "ms"),
    Question("query_none", "the same with a word of none", "ms"),
    Question("query_common", "the same with a word of all", "ms"),
    Question("query_next", "next_task with a word of none", "ms"),
)
KEYS = tuple(question.key for question in QUESTIONS)
LEGEND = (
    "No server and no protocol: the calls that the tools make, in one process. Each write is on disk when it returns"
    " (SQLite: synchronous=FULL; PostgreSQL 15 started for this run, fsync on); SQLite commits concurrent writes"
    " together. With and without finished tasks are two stores, loaded in advance and queried in alternation, ten"
    " calls each.",
)

# A million rows by the database itself. The ids look like ours; finished ones are older than all others.
_NUMBERS = {
    "sqlite": "with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {count}) ",
    "postgresql": "with numbers as (select generate_series(1, {count}) as n) ",
}
_DIGITS = {"sqlite": "printf('%015d', n)", "postgresql": "lpad(cast(n as text), 15, '0')"}
_INSERT = (
    "insert into work_item (id, description, status, priority, version, created_at, started_at, completed_at,"
    " updated_at, words) {numbers} select 'task_' || '{mark}' || {digits}, 'task number ' || n, '{status}', n % 5 + 1,"
    " 1, 1600000000000 + n, {moment}, {moment}, 1600000000000 + n, 'task number ' || n from numbers"
)
_QUERIES = {"query_rare": "{last}", "query_none": "nowhere", "query_common": "umbe"}
_MARKS = {"pending": "1a", "completed": "01"}


@dataclass(frozen=True)
class WorkSize:
    open: int
    finished: int
    calls: int


WORK_FULL = WorkSize(open=100_000, finished=1_000_000, calls=1000)
WORK_QUICK = WorkSize(open=10_000, finished=100_000, calls=100)


def measure(size: Size) -> Table:
    how = WORK_QUICK if size.quick else WORK_FULL
    answers = Answers()
    columns = [this_tree("sqlite", "SQLite"), this_tree("postgresql", "PostgreSQL")]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="portico-work-"))
        stores = {"sqlite": (f"{folder}/fresh.db", f"{folder}/worn.db")}
        try:
            stores["postgresql"] = _postgres(stack)
        except NotInstalled as why:
            columns[1] = replace(columns[1], reason=str(why))
        able = [peer for peer in columns if not peer.reason]
        turns = [(peer, KEYS, lambda peer=peer: _ask(stores[peer.key], how, size.rounds)) for peer in able]
        take_turns(answers, 1, turns)
    words = {"open": f"{how.open:,}", "finished": f"{how.finished:,}", "all": f"{how.open + how.finished:,}"}
    questions = [replace(question, text=question.text.format(**words)) for question in QUESTIONS]
    goals = [goal for peer in columns for goal in _judged(answers, peer, words["finished"])]
    return Table("work items", [Grid(questions, columns)], answers, goals, legend=LEGEND)


def _judged(answers: Answers, peer: Peer, finished: str) -> list[Goal]:
    text = f"{peer.title}: next_task costs the same with {finished} finished tasks as with none (within 10 %)"
    return [same(text, answers.value("next_none", peer.key), answers.value("next_finished", peer.key))]


def _postgres(stack: ExitStack) -> tuple[str, str]:
    from support import debian, postgres  # of the tests: they know how to start one

    try:
        server = stack.enter_context(postgres.server())
    except debian.NotInstalled as why:
        raise NotInstalled(str(why)) from None
    return server.create_database(), server.create_database()


def _ask(stores: tuple[str, str], how: WorkSize, rounds: int) -> dict[str, tuple[float, ...]]:
    return asyncio.run(_measured(stores, how, rounds))


async def _measured(stores: tuple[str, str], how: WorkSize, rounds: int) -> dict[str, tuple[float, ...]]:
    results: dict[str, list[float]] = {key: [] for key in KEYS}
    await _load(stores[0], {"pending": how.open})
    await _load(stores[1], {"completed": how.finished, "pending": how.open})
    async with Database(stores[0]) as fresh, Database(stores[1]) as worn:
        for _ in range(rounds):
            await _turns({"none": WorkItemStore(fresh), "finished": WorkItemStore(worn)}, how.calls, results)
        for _ in range(rounds):
            await _rates(WorkItemStore(fresh), how.calls, results)
        await WorkItemStore(worn).index_pending()
        for _ in range(rounds):
            await _queries(WorkItemStore(worn), str(how.finished), results)
    return {key: tuple(values) for key, values in results.items()}


async def _load(store: str, counts: dict[str, int]) -> None:
    """Fill the store on a separate connection: closing it makes SQLite checkpoint its log."""
    async with Database(store) as database:
        await WorkItemStore(database).open()
        for status, count in counts.items():
            await _fill(database, status, count)


async def _fill(database: Database, status: str, count: int) -> None:
    numbers, digits = _NUMBERS[database.engine].format(count=count), _DIGITS[database.engine]
    moment = "null" if status == "pending" else "1600000000000 + n"
    sql = _INSERT.format(numbers=numbers, digits=digits, mark=_MARKS[status], status=status, moment=moment)
    await database.write(lambda tx: tx.execute(sql))
    await database.write(
        lambda tx: tx.execute(
            "insert into work_item_unindexed (item) select id from work_item where true on conflict do nothing"
        )
    )
    if database.engine == "postgresql":
        # As its own upkeep does sooner or later; also off the way, so that it does not fall into what is measured.
        await database.write(lambda tx: tx.execute("analyze work_item"))
        await database.write(lambda tx: tx.execute("checkpoint"))


async def _turns(of: dict[str, WorkItemStore], calls: int, found: dict[str, list[float]]) -> None:
    """Return the medians of several rounds: of the statements, and in total.

    The stores take turns, a few calls each, so that a busy moment falls on both alike.
    """
    inside: dict[str, list[float]] = {name: [] for name in of}
    whole: dict[str, list[float]] = {name: [] for name in of}

    def claim(taken: list[float], tx: Transaction) -> None:
        began = time.perf_counter()
        assert claims.claim_next(tx, "bench", timestamps.now_ms(), None) is not None
        taken.append(time.perf_counter() - began)

    for _ in range(max(1, calls // FEW)):
        for name, items in of.items():
            for _ in range(FEW):
                began = time.perf_counter()
                await items.database.write(partial(claim, inside[name]), isolation="read committed")
                whole[name].append(time.perf_counter() - began)
    for name in of:
        found[f"next_{name}"].append(statistics.median(inside[name]) * 1e6)
        found[f"whole_{name}"].append(statistics.median(whole[name]) * 1e3)


async def _queries(items: WorkItemStore, last: str, found: dict[str, list[float]]) -> None:
    """Return the median of a few calls each."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        key: partial(items.list_page, ListQuery(query=query.format(last=last))) for key, query in _QUERIES.items()
    }
    for key, call in {**calls, "query_next": partial(items.next, "bench", query="nowhere")}.items():
        taken = []
        for _ in range(FEW):
            began = time.perf_counter()
            await call()
            taken.append(time.perf_counter() - began)
        found[key].append(statistics.median(taken) * 1e3)


async def _rates(items: WorkItemStore, calls: int, found: dict[str, list[float]]) -> None:
    async def create() -> None:
        await items.create(WorkItemDraft(description="Fix the parser", context="src/parser.py"))

    async def claim() -> None:
        assert await items.next("bench", lease=600) is not None

    for key, call in (("create", create), ("claim", claim)):
        found[key].append(await _rate(call, calls, 1))
        found[f"{key}_many"].append(await _rate(call, calls * 3, WINDOW))


async def _rate(call: Callable[[], Awaitable[None]], calls: int, window: int) -> float:
    left = iter(range(calls))

    async def one_after_the_other() -> None:
        for _ in left:
            await call()

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(window)))
    return calls / (time.perf_counter() - began)
