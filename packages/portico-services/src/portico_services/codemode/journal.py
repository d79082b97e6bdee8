"""What a run has done, so that it is never done twice: every finished call, and every write that was about to be made.

Calls that only read are kept in memory until it matters, which is before the next write and before a pause; they can be
made again. A write is written down before it is made and again when its outcome is known, and both are on the disk
before anything else happens. Of what was begun and has no outcome it is not known whether it was done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import msgspec
from msgspec import Struct

from portico import ToolError
from portico.extend import BackgroundTasks, Database, SigningKeys, StoreError, Transaction, json_column
from portico_services.codemode import process_lease

log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).with_name("migrations")
# How long runs that never ended, and outputs, are kept; and for how long a killed one is gone on with by itself.
KEPT_SECONDS = 24 * 3600.0
RESUMED_SECONDS = 3600.0
# How long a run waits for its client to come back: longer than a `requestState` is valid.
PAUSED_SECONDS = 3600.0
# Of all outcomes in one journal.
LONGEST_JOURNAL = 32 * 2**20
# Of the journals of runs that wait for an answer: those of one caller, and all. Each counts as so many bytes at least,
# so that there cannot be too many small ones.
MOST_OF_ONE_CALLER = 64 * 2**20
MOST_IN_ALL = 1024 * 2**20
LEAST_COUNTED = 2**20
# Outputs, each of some MiB at most: those of one caller, and all.
MOST_OUTPUTS_OF_ONE_CALLER = 64
MOST_OUTPUTS = 512
# How long a process is taken to be alive that cannot be looked at, and how often it says that it is.
HELD_SECONDS = 30.0
BEAT_SECONDS = 10.0


class JournalEntry(Struct):
    """One call of a script, or one wait: `tool` is empty then."""

    n: int
    tool: str
    digest: str
    # In which place the script learnt of it; None for what was begun and has no outcome.
    place: int | None = None
    at: float = 0.0
    # `{"value": …}` or `{"error": …}`, as JSON; `{"task": id}` of what goes on as a task.
    outcome: str = "{}"
    signature: str | None = None

    def signed(self, run: str) -> tuple[str, ...]:
        return run, str(self.n), self.tool, self.digest, str(self.place), self.outcome

    @property
    def task(self) -> str | None:
        """The task that it is, if it is one that has no outcome yet."""
        return msgspec.json.decode(self.outcome).get("task") if self.place is None else None


class RunRow(Struct):
    id: str
    owner: str
    digest: str
    status: str
    seed: str
    begun_at: float
    holder: str
    held_until: float
    approved: list[str]
    size: int
    signature: str | None = None

    def signed(self) -> tuple[str, ...]:
        return self.id, self.owner, self.digest, self.seed, json_column(self.approved)


def bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def digest_of(*parts: Any) -> str:
    return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


class RunStore:
    """Where runs, their outputs and saved scripts are kept. It is opened with the first of them."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    @property
    def lasts(self) -> bool:
        """Whether anything of it survives this process."""
        return bool(self.url) and self.url not in ("sqlite://", ":memory:")

    @property
    def is_open(self) -> bool:
        return self._database is not None

    async def database(self) -> Database:
        if self._database is None:
            async with self._opening:
                if self._database is None:
                    self._database = await self._opened()
        return self._database

    async def _opened(self) -> Database:
        try:
            database = await Database(self.url or "sqlite://").open()
        except StoreError as failure:
            raise _away() from failure
        try:
            if not database.signing.keys:
                raise ToolError(
                    "Runs in PostgreSQL need a key that is not in the database, or a role that can write to it could "
                    "run scripts as any caller: the operator has to set PORTICO_SEALING_KEYS.",
                    kind="ToolExecutionError",
                )
            await database.migrate("code", MIGRATIONS)
        except BaseException:
            await database.close()
            raise
        return database

    async def signing(self) -> SigningKeys:
        """What rows are signed with: those that are not are not believed."""
        return (await self.database()).signing

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def read(self, fn: Any, *given: Any) -> Any:
        try:
            return await (await self.database()).read(partial(_called, fn, given))
        except StoreError as failure:
            raise _away() from failure

    async def write(self, fn: Any, *given: Any) -> Any:
        try:
            return await (await self.database()).write(partial(_called, fn, given))
        except StoreError as failure:
            raise _away() from failure


def _called(fn: Any, given: tuple[Any, ...], tx: Transaction) -> Any:
    return fn(tx, *given)


def _away() -> ToolError:
    return ToolError(
        "What a run does cannot be written down now, so it does nothing: the store is away.",
        kind="ToolExecutionError",
        retryable=True,
    )


class Journal:
    """The journal of one run. Nothing is stored before something has to be."""

    def __init__(self, store: RunStore, owner: str, digest: str, id: str | None = None) -> None:
        self._store = store
        self.id = id or token_urlsafe(18)
        self.owner, self.digest = owner, digest
        self.seed, self.begun_at = token_urlsafe(12), time.time()
        self.approved: set[str] = set()
        # What earlier processes have recorded: by number, and in the order in which the script learnt of it.
        self.entries: dict[int, JournalEntry] = {}
        self.places: list[JournalEntry] = []
        # Whether this run goes on with what a process had begun that was killed.
        self.resumed = False
        self.size = 0
        self._place = 0
        self._unsaved: dict[int, JournalEntry] = {}
        self._stored = False
        self._changed = False
        self._saving = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None

    @property
    def stored(self) -> bool:
        return self._stored

    # Going on

    async def load(self) -> bool:
        """Take over what is stored under this id. False if there is nothing, or it is another's."""
        row = await self._store.write(_taken_over, self.id, self.owner, self.digest, process_lease.own(), time.time())
        if row is None:
            return False
        entries: list[JournalEntry] = await self._store.read(_entries, self.id)
        signing = await self._store.signing()
        if not signing.is_row_signed(_RUNS, row.signature, *row.signed()) or not all(
            signing.is_row_signed(_CALLS, one.signature, *one.signed(self.id)) for one in entries
        ):
            log.warning("the run %s is not gone on with: the signature of a row is missing or wrong", self.id)
            return False
        self.seed, self.begun_at, self.approved = row.seed, row.begun_at, set(row.approved)
        self.entries = {one.n: one for one in entries}
        self.places = [one for one in entries if one.place is not None]
        self.places.sort(key=lambda one: one.place or 0)
        self._place = len(self.places)
        self.size = sum(bytes_of(one.outcome) for one in entries)
        self._stored = True
        self._beat()
        return True

    @classmethod
    async def left_behind(cls, store: RunStore, owner: str, digest: str) -> Journal | None:
        """The journal of a run of the same script whose process was killed, if there is one."""
        if not store.lasts:
            return None
        rows: list[RunRow] = await store.read(_unfinished, owner, digest, time.time() - RESUMED_SECONDS)
        for row in rows:
            if not process_lease.is_alive(row.holder, row.held_until):
                journal = cls(store, owner, digest, row.id)
                if await journal.load():
                    journal.resumed = True
                    return journal
        return None

    # Recording

    def record(self, n: int, tool: str, digest: str, at: float, outcome: str) -> None:
        """The script learns of this now. It is stored with the next that has to be."""
        self._place += 1
        self.size += bytes_of(outcome)
        self._unsaved[n] = JournalEntry(n, tool, digest, self._place, at, outcome)

    async def begin(self, n: int, tool: str, digest: str) -> None:
        """A write is about to be made: when this returns, that is on the disk, and all that led to it."""
        self._unsaved[n] = JournalEntry(n, tool, digest, None, time.time())
        await self.save()

    async def begin_task(self, n: int, tool: str, digest: str, id: str) -> None:
        """A call has become a task: when this returns, a run that goes on knows it."""
        said = msgspec.json.encode({"task": id}).decode()
        self._unsaved[n] = JournalEntry(n, tool, digest, None, time.time(), said)
        await self.save()

    def task_of(self, n: int) -> str | None:
        """The task that a call became in an earlier round, or in a process that was killed."""
        entry = self.entries.get(n)
        return None if entry is None else entry.task

    def take_back(self, n: int) -> None:
        """A write was not made after all."""
        self._unsaved[n] = JournalEntry(n, "", "", -1)

    def approve(self, tools: Sequence[str]) -> None:
        self.approved |= set(tools)
        self._changed = True

    async def save(self, status: str = "running") -> None:
        """What was recorded so far. What is recorded while this is written goes with the next."""
        async with self._saving:
            entries, self._unsaved = self._unsaved, {}
            if not entries and self._stored and not self._changed and status == "running":
                return
            try:
                await self._store.write(_save, self._row(status), list(entries.values()), await self._store.signing())
            except BaseException:
                self._unsaved = entries | self._unsaved
                raise
            self._stored, self._changed = True, False
        self._beat()

    def _row(self, status: str) -> RunRow:
        held = time.time() + HELD_SECONDS
        approved = sorted(self.approved)
        about = self.id, self.owner, self.digest, status, self.seed, self.begun_at
        return RunRow(*about, process_lease.own(), held, approved, self.size)

    async def finish(self) -> None:
        """The run has come to its end: nothing of it has to be remembered."""
        await self.rest()
        if self._stored:
            await self._store.write(_forget, self.id)
            self._stored = False

    async def rest(self) -> None:
        """No process works on it any more."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])

    def _beat(self) -> None:
        if self._beating is None and self._store.lasts:
            self._beating = BackgroundTasks().repeat("code run heartbeat", self._say_alive, BEAT_SECONDS)

    async def _say_alive(self) -> None:
        # If it fails for too long, another process takes this run for dead.
        with suppress(ToolError):
            await self._store.write(_hold, self.id, time.time() + HELD_SECONDS)


# In the database

_ROW = "id, owner, digest, status, seed, begun_at, holder, held_until, approved, size, signature"
_RUNS, _CALLS = b"rows of runs", b"rows of calls"


def _save(tx: Transaction, row: RunRow, entries: list[JournalEntry], signing: SigningKeys) -> None:
    now = time.time()
    row.signature = signing.sign_row(_RUNS, *row.signed())
    given = {**msgspec.structs.asdict(row), "approved": json_column(row.approved), "now": now}
    added = tx.run(
        f"insert into portico_run ({_ROW}, updated_at) values (:id, :owner, :digest, :status, :seed, :begun_at, "
        ":holder, :held_until, :approved, :size, :signature, :now) on conflict (id) do update set "
        "status = excluded.status, holder = excluded.holder, held_until = excluded.held_until, "
        "approved = excluded.approved, size = excluded.size, signature = excluded.signature, "
        "updated_at = excluded.updated_at",
        given,
    )
    assert added
    for one in entries:
        if one.place == -1:
            tx.run("delete from portico_run_call where run_id = ? and n = ?", (row.id, one.n))
            continue
        signature = signing.sign_row(_CALLS, *one.signed(row.id))
        tx.run(
            "insert into portico_run_call (run_id, n, tool, digest, place, at, outcome, signature) "
            "values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (run_id, n) do update set tool = excluded.tool, "
            "digest = excluded.digest, place = excluded.place, at = excluded.at, outcome = excluded.outcome, "
            "signature = excluded.signature",
            (row.id, one.n, one.tool, one.digest, one.place, one.at, one.outcome, signature),
        )
    if row.status == "paused":
        _forget_old(tx)
        _make_room(tx)


class _PausedRun(Struct):
    id: str
    owner: str
    size: int


def _make_room(tx: Transaction) -> None:
    """Of the runs that wait for an answer the newest are kept, as many as there may be of each caller and in all."""
    paused = "select id, owner, size from portico_run where status = 'paused' order by updated_at desc"
    in_all, of_caller = 0, Counter[str]()
    for one in tx.all(_PausedRun, paused):
        counted = max(one.size, LEAST_COUNTED)
        of_caller[one.owner] += counted
        if of_caller[one.owner] <= MOST_OF_ONE_CALLER and in_all + counted <= MOST_IN_ALL:
            in_all += counted
        else:
            tx.run("delete from portico_run where id = ?", (one.id,))


def _hold(tx: Transaction, id: str, until: float) -> None:
    tx.run("update portico_run set held_until = ? where id = ?", (until, id))


def _forget(tx: Transaction, id: str) -> None:
    tx.run("delete from portico_run where id = ?", (id,))
    _forget_old(tx)


def _forget_old(tx: Transaction) -> None:
    tx.run("delete from portico_run where updated_at < ?", (time.time() - KEPT_SECONDS,))
    # The client never came back with an answer. What it would come back with has expired long before.
    tx.run("delete from portico_run where status = 'paused' and updated_at < ?", (time.time() - PAUSED_SECONDS,))
    tx.run("delete from portico_run_output where made_at < ?", (time.time() - KEPT_SECONDS,))


def _unfinished(tx: Transaction, owner: str, digest: str, since: float) -> list[RunRow]:
    return tx.all(
        RunRow,
        f"select {_ROW} from portico_run where owner = ? and digest = ? and status = 'running' and updated_at > ? "
        "order by begun_at",
        (owner, digest, since),
    )


def _taken_over(tx: Transaction, id: str, owner: str, digest: str, holder: str, now: float) -> RunRow | None:
    """One process at a time: of two that find the same journal, the second finds it held."""
    row = tx.maybe(RunRow, f"select {_ROW} from portico_run where id = ? for update", (id,))
    if row is None or row.owner != owner or row.digest != digest:
        return None
    if row.status == "running" and row.holder != holder and process_lease.is_alive(row.holder, row.held_until):
        return None
    tx.run(
        "update portico_run set status = 'running', holder = ?, held_until = ?, updated_at = ? where id = ?",
        (holder, now + HELD_SECONDS, now, id),
    )
    return row


def _entries(tx: Transaction, id: str) -> list[JournalEntry]:
    return tx.all(
        JournalEntry,
        "select n, tool, digest, place, at, outcome, signature from portico_run_call where run_id = ? order by n",
        (id,),
    )


# Outputs that were too long for a result


class KeptOutput(Struct):
    owner: str
    mime_type: str
    text: str


async def keep_output(store: RunStore, owner: str, mime_type: str, text: str) -> str:
    """The id that it can be read by."""
    id = token_urlsafe(24)
    await store.write(_keep, id, KeptOutput(owner, mime_type, msgspec.json.encode(text).decode()))
    return id


def _keep(tx: Transaction, id: str, output: KeptOutput) -> None:
    tx.run(
        "insert into portico_run_output (id, owner, made_at, mime_type, text) values (?, ?, ?, ?, ?)",
        (id, output.owner, time.time(), output.mime_type, output.text),
    )
    _forget_old(tx)
    newest = "select id from portico_run_output where owner = :owner order by made_at desc limit :most"
    tx.run(
        f"delete from portico_run_output where owner = :owner and id not in ({newest})",
        {"owner": output.owner, "most": MOST_OUTPUTS_OF_ONE_CALLER},
    )
    newest = "select id from portico_run_output order by made_at desc limit ?"
    tx.run(f"delete from portico_run_output where id not in ({newest})", (MOST_OUTPUTS,))


async def kept_output(store: RunStore, owner: str, id: str) -> tuple[str, str] | None:
    """The MIME type and the text; None also for what is another's."""
    row = await store.read(_kept, id)
    if row is None or row.owner != owner:
        return None
    return row.mime_type, msgspec.json.decode(row.text, type=str)


def _kept(tx: Transaction, id: str) -> KeptOutput | None:
    return tx.maybe(KeptOutput, "select owner, mime_type, text from portico_run_output where id = ?", (id,))


def store_url(given: str | os.PathLike[str] | None, server: Any) -> str | None:
    """Where to keep things: what was said, or where the server keeps its own."""
    if given is not None or server is None:
        return os.fspath(given) if given is not None else None
    url: str | None = server.spent.url
    return url
