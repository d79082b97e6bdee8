"""Journal of a run, so that no write is executed twice: every finished call and every write about to be made.

Reads are recorded in memory until the next write or pause; they can be repeated. A write is recorded before it is made
and again when its outcome is known, and each record is on disk before the run continues. The outcome of a write that
was begun and has no recorded result is unknown.
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
from portico.errors import StoreError
from portico.extend import BackgroundTasks, Database, SigningKeys, Transaction, encode_json_column
from portico_services.codemode import process_lease

log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).with_name("migrations")
# Retention of unfinished runs and of outputs, and the period in which an interrupted run is resumed automatically.
RETENTION_SECONDS = 24 * 3600.0
RESUME_WINDOW_SECONDS = 3600.0
# How long a run waits for its client to return: longer than a `requestState` is valid.
PAUSED_SECONDS = 3600.0
# Total of all outcomes in one journal.
MAX_JOURNAL_BYTES = 32 * 2**20
# Limits for the journals of paused runs: per caller and in total. Each counts with a minimum size, which also bounds
# their number.
MAX_BYTES_PER_CALLER = 64 * 2**20
MAX_TOTAL_BYTES = 1024 * 2**20
MIN_ACCOUNTED_BYTES = 2**20
# Limits for stored outputs, which have a few MiB at most: per caller and in total.
MAX_OUTPUTS_PER_CALLER = 64
MAX_OUTPUTS = 512
# Lease of a process on another host, whose liveness cannot be checked, and the interval of its renewal.
LEASE_SECONDS = 30.0
HEARTBEAT_SECONDS = 10.0


class JournalEntry(Struct):
    """A call or a sleep of a script; `tool` is empty for a sleep."""

    n: int
    tool: str
    digest: str
    # Position in the order of delivery to the script; None for a write that was begun and has no outcome.
    place: int | None = None
    at: float = 0.0
    # `{"value": …}` or `{"error": …}` as JSON; `{"task": id}` for a call that continues as a task.
    outcome: str = "{}"
    signature: str | None = None

    # `at` is not signed: it only affects the clock that a replayed script sees.
    def signed_fields(self, run: str) -> tuple[str, ...]:
        return run, str(self.n), self.tool, self.digest, str(self.place), self.outcome

    @property
    def task(self) -> str | None:
        """Return the id of the unfinished task that the call has become, if any."""
        return msgspec.json.decode(self.outcome).get("task") if self.place is None else None


class RunRecord(Struct):
    id: str
    owner: str
    digest: str
    status: str
    seed: str
    begun_at: float
    holder: str
    held_until: float
    # Digests of tools, as JSON that is decoded after the signature was checked.
    approved: str
    size: int
    signature: str | None = None

    def signed_fields(self) -> tuple[str, ...]:
        return self.id, self.owner, self.digest, self.seed, self.approved


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def digest(*parts: Any) -> str:
    return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


class RunStore:
    """Store of runs, their outputs and saved scripts. The database is opened on first use."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    @property
    def is_durable(self) -> bool:
        """Return whether the contents survive this process."""
        return bool(self.url) and self.url not in ("sqlite://", ":memory:")

    @property
    def is_open(self) -> bool:
        return self._database is not None

    async def database(self) -> Database:
        if self._database is None:
            # Checked again inside the lock, since another task may have opened the database while this one waited.
            async with self._opening:
                if self._database is None:
                    self._database = await self._open_database()
        return self._database

    async def _open_database(self) -> Database:
        try:
            database = await Database(self.url or "sqlite://").open()
        except StoreError as failure:
            raise _store_unavailable_error() from failure
        try:
            # SQLite keeps its key in a file next to the database; PostgreSQL has no such place.
            if not database.signing.keys:
                raise ToolError(
                    "Runs in PostgreSQL need a key outside the database, or a role that can write to it could "
                    "run scripts as any caller: set PORTICO_ENCRYPTION_KEYS on the server.",
                    error_type="ToolExecutionError",
                )
            await database.migrate("code", MIGRATIONS)
        except BaseException:
            await database.close()
            raise
        return database

    async def signing(self) -> SigningKeys:
        """Return the keys that sign rows. Rows without a valid signature are ignored."""
        return (await self.database()).signing

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def read(self, fn: Any, *arguments: Any) -> Any:
        try:
            return await (await self.database()).read(partial(_call_in_transaction, fn, arguments))
        except StoreError as failure:
            raise _store_unavailable_error() from failure

    async def write(self, fn: Any, *arguments: Any) -> Any:
        try:
            return await (await self.database()).write(partial(_call_in_transaction, fn, arguments))
        except StoreError as failure:
            raise _store_unavailable_error() from failure


def _call_in_transaction(fn: Any, arguments: tuple[Any, ...], tx: Transaction) -> Any:
    return fn(tx, *arguments)


def _store_unavailable_error() -> ToolError:
    return ToolError(
        "The journal of the run cannot be written because the store is unavailable, so the script was stopped.",
        error_type="ToolExecutionError",
        retryable=True,
    )


class RunJournal:
    """The journal of one run. Nothing is written to the store before it is necessary."""

    def __init__(self, store: RunStore, owner: str, digest: str, id: str | None = None) -> None:
        self._store = store
        self.id = id or token_urlsafe(18)
        self.owner, self.digest = owner, digest
        self.seed, self.begun_at = token_urlsafe(12), time.time()
        self.approved: set[str] = set()
        # Recorded by earlier processes: by call number, and in the order of delivery to the script.
        self.entries: dict[int, JournalEntry] = {}
        self.sequences: list[JournalEntry] = []
        # Whether this run resumes one whose process was killed.
        self.is_resumed = False
        self.size = 0
        self._position = 0
        self._unsaved: dict[int, JournalEntry] = {}
        self._stored = False
        self._changed = False
        self._saving = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None

    @property
    def is_stored(self) -> bool:
        return self._stored

    # Resuming

    async def load(self) -> bool:
        """Take over the journal stored under this id. Return False if there is none or it has another owner."""
        row = await self._store.write(
            _take_over, self.id, self.owner, self.digest, process_lease.current_holder(), time.time()
        )
        if row is None:
            return False
        entries: list[JournalEntry] = await self._store.read(_entries, self.id)
        # Signatures protect against a database role that inserts results or approvals into a caller's run.
        signing = await self._store.signing()
        if not signing.is_row_signed(_RUNS, row.signature, *row.signed_fields()) or not all(
            signing.is_row_signed(_CALLS, entry.signature, *entry.signed_fields(self.id)) for entry in entries
        ):
            log.warning("run %s is not resumed: the signature of a row is missing or invalid", self.id)
            return False
        self.seed, self.begun_at = row.seed, row.begun_at
        self.approved = set(msgspec.json.decode(row.approved, type=list[str]))
        self.entries = {entry.n: entry for entry in entries}
        self.sequences = [entry for entry in entries if entry.place is not None]
        self.sequences.sort(key=lambda stored_entry: stored_entry.place or 0)
        self._position = len(self.sequences)
        self.size = sum(utf8_size(entry.outcome) for entry in entries)
        self._stored = True
        self._heartbeat_loop()
        return True

    @classmethod
    async def find_unfinished(cls, store: RunStore, owner: str, digest: str) -> RunJournal | None:
        """Return the journal of a run of the same script whose process was killed, if there is one."""
        if not store.is_durable:
            return None
        rows: list[RunRecord] = await store.read(_select_unfinished, owner, digest, time.time() - RESUME_WINDOW_SECONDS)
        for row in rows:
            if not process_lease.is_alive(row.holder, row.held_until):
                journal = cls(store, owner, digest, row.id)
                if await journal.load():
                    journal.is_resumed = True
                    return journal
        return None

    # Recording

    def record(self, n: int, tool: str, digest: str, at: float, outcome: str) -> None:
        """Record an outcome that is about to be delivered. It is stored with the next save."""
        self._position += 1
        self.size += utf8_size(outcome)
        self._unsaved[n] = JournalEntry(n, tool, digest, self._position, at, outcome)

    async def begin(self, n: int, tool: str, digest: str) -> None:
        """Record that a write is about to be made. On return this, and everything before it, is on disk."""
        self._unsaved[n] = JournalEntry(n, tool, digest, None, time.time())
        await self.save()

    async def begin_task(self, n: int, tool: str, digest: str, id: str) -> None:
        """Record that a call has become a task. On return it is stored, so a resumed run finds the task."""
        outcome = msgspec.json.encode({"task": id}).decode()
        self._unsaved[n] = JournalEntry(n, tool, digest, None, time.time(), outcome)
        await self.save()

    def task_of(self, n: int) -> str | None:
        """Return the task that a call became in an earlier round or in a killed process, or None."""
        entry = self.entries.get(n)
        return None if entry is None else entry.task

    def discard(self, n: int) -> None:
        """Record that a write was not made after all."""
        # Position -1 marks an entry that `_save` deletes.
        self._unsaved[n] = JournalEntry(n, "", "", -1)

    def approve(self, tools: Sequence[str]) -> None:
        self.approved |= set(tools)
        self._changed = True

    async def save(self, status: str = "running") -> None:
        """Store everything recorded so far. Entries recorded during the write go with the next one."""
        async with self._saving:
            entries, self._unsaved = self._unsaved, {}
            if not entries and self._stored and not self._changed and status == "running":
                return
            try:
                await self._store.write(_save, self._row(status), list(entries.values()), await self._store.signing())
            except BaseException:
                # Entries recorded during the failed write are newer, so they win.
                self._unsaved = entries | self._unsaved
                raise
            self._stored, self._changed = True, False
        self._heartbeat_loop()

    def _row(self, status: str) -> RunRecord:
        lease_expires_at = time.time() + LEASE_SECONDS
        approved = encode_json_column(sorted(self.approved))
        about = self.id, self.owner, self.digest, status, self.seed, self.begun_at
        return RunRecord(*about, process_lease.current_holder(), lease_expires_at, approved, self.size)

    async def finish(self) -> None:
        """Delete the run from the store, because it has ended."""
        await self.pause()
        if self._stored:
            await self._store.write(_delete_run, self.id)
            self._stored = False

    async def pause(self) -> None:
        """Stop renewing the lease: no process works on the run any longer."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])

    def _heartbeat_loop(self) -> None:
        if self._beating is None and self._store.is_durable:
            self._beating = BackgroundTasks().repeat("code run heartbeat", self._renew_lease, HEARTBEAT_SECONDS)

    async def _renew_lease(self) -> None:
        # If renewal fails for too long, another process considers this run abandoned.
        with suppress(ToolError):
            await self._store.write(_extend_lease, self.id, time.time() + LEASE_SECONDS)


# Database functions

_ROW = "id, owner, digest, status, seed, begun_at, holder, held_until, approved, size, signature"
_RUNS, _CALLS = b"rows of runs", b"rows of calls"


def _save(tx: Transaction, row: RunRecord, entries: list[JournalEntry], signing: SigningKeys) -> None:
    now = time.time()
    row.signature = signing.sign_row(_RUNS, *row.signed_fields())
    parameters = {**msgspec.structs.asdict(row), "now": now}
    added = tx.execute(
        f"insert into portico_run ({_ROW}, updated_at) values (:id, :owner, :digest, :status, :seed, :begun_at, "
        ":holder, :held_until, :approved, :size, :signature, :now) on conflict (id) do update set "
        "status = excluded.status, holder = excluded.holder, held_until = excluded.held_until, "
        "approved = excluded.approved, size = excluded.size, signature = excluded.signature, "
        "updated_at = excluded.updated_at",
        parameters,
    )
    assert added
    for entry in entries:
        if entry.place == -1:
            tx.execute("delete from portico_run_call where run_id = ? and n = ?", (row.id, entry.n))
            continue
        signature = signing.sign_row(_CALLS, *entry.signed_fields(row.id))
        tx.execute(
            "insert into portico_run_call (run_id, n, tool, digest, place, at, outcome, signature) "
            "values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (run_id, n) do update set tool = excluded.tool, "
            "digest = excluded.digest, place = excluded.place, at = excluded.at, outcome = excluded.outcome, "
            "signature = excluded.signature",
            (row.id, entry.n, entry.tool, entry.digest, entry.place, entry.at, entry.outcome, signature),
        )
    if row.status == "paused":
        _delete_expired(tx)
        _evict_paused(tx)


class _PausedRun(Struct):
    id: str
    owner: str
    size: int


def _evict_paused(tx: Transaction) -> None:
    """Delete the oldest paused runs beyond the limits per caller and in total."""
    paused = "select id, owner, size from portico_run where status = 'paused' order by updated_at desc"
    # Newest first, so a caller that pauses many runs loses its own oldest ones before those of others.
    in_all, of_caller = 0, Counter[str]()
    for item in tx.fetch_all(_PausedRun, paused):
        counted = max(item.size, MIN_ACCOUNTED_BYTES)
        of_caller[item.owner] += counted
        if of_caller[item.owner] <= MAX_BYTES_PER_CALLER and in_all + counted <= MAX_TOTAL_BYTES:
            in_all += counted
        else:
            tx.execute("delete from portico_run where id = ?", (item.id,))


def _extend_lease(tx: Transaction, id: str, until: float) -> None:
    tx.execute("update portico_run set held_until = ? where id = ?", (until, id))


def _delete_run(tx: Transaction, id: str) -> None:
    tx.execute("delete from portico_run where id = ?", (id,))
    _delete_expired(tx)


def _delete_expired(tx: Transaction) -> None:
    tx.execute("delete from portico_run where updated_at < ?", (time.time() - RETENTION_SECONDS,))
    # The client never returned with an answer, and the state it would send has expired by now.
    tx.execute("delete from portico_run where status = 'paused' and updated_at < ?", (time.time() - PAUSED_SECONDS,))
    tx.execute("delete from portico_run_output where made_at < ?", (time.time() - RETENTION_SECONDS,))


def _select_unfinished(tx: Transaction, owner: str, digest: str, since: float) -> list[RunRecord]:
    return tx.fetch_all(
        RunRecord,
        f"select {_ROW} from portico_run where owner = ? and digest = ? and status = 'running' and updated_at > ? "
        "order by begun_at",
        (owner, digest, since),
    )


def _take_over(tx: Transaction, id: str, owner: str, digest: str, holder: str, now: float) -> RunRecord | None:
    """Make `holder` the process of a run. Return None if the run is held by another live process.

    The row is locked, so that of two processes that find the same journal only one takes it over.
    """
    # Fencing: the holder is checked and replaced under the row lock, so two processes cannot both continue a run.
    row = tx.fetch_optional(RunRecord, f"select {_ROW} from portico_run where id = ? for update", (id,))
    if row is None or row.owner != owner or row.digest != digest:
        return None
    if row.status == "running" and row.holder != holder and process_lease.is_alive(row.holder, row.held_until):
        return None
    tx.execute(
        "update portico_run set status = 'running', holder = ?, held_until = ?, updated_at = ? where id = ?",
        (holder, now + LEASE_SECONDS, now, id),
    )
    return row


def _entries(tx: Transaction, id: str) -> list[JournalEntry]:
    return tx.fetch_all(
        JournalEntry,
        "select n, tool, digest, place, at, outcome, signature from portico_run_call where run_id = ? order by n",
        (id,),
    )


# Outputs that exceed the size of a result


class StoredOutput(Struct):
    owner: str
    mime_type: str
    text: str


async def store_output(store: RunStore, owner: str, mime_type: str, text: str) -> str:
    """Store an output and return the id to read it by."""
    id = token_urlsafe(24)
    await store.write(_insert_output, id, StoredOutput(owner, mime_type, msgspec.json.encode(text).decode()))
    return id


def _insert_output(tx: Transaction, id: str, output: StoredOutput) -> None:
    tx.execute(
        "insert into portico_run_output (id, owner, made_at, mime_type, text) values (?, ?, ?, ?, ?)",
        (id, output.owner, time.time(), output.mime_type, output.text),
    )
    # Delete expired rows first, then enforce the limits per caller and in total.
    _delete_expired(tx)
    newest = "select id from portico_run_output where owner = :owner order by made_at desc limit :most"
    tx.execute(
        f"delete from portico_run_output where owner = :owner and id not in ({newest})",
        {"owner": output.owner, "most": MAX_OUTPUTS_PER_CALLER},
    )
    newest = "select id from portico_run_output order by made_at desc limit ?"
    tx.execute(f"delete from portico_run_output where id not in ({newest})", (MAX_OUTPUTS,))


async def read_output(store: RunStore, owner: str, id: str) -> tuple[str, str] | None:
    """Return the MIME type and the text of an output, or None if it does not exist or belongs to another caller."""
    row = await store.read(_select_output, id)
    if row is None or row.owner != owner:
        return None
    return row.mime_type, msgspec.json.decode(row.text, type=str)


def _select_output(tx: Transaction, id: str) -> StoredOutput | None:
    return tx.fetch_optional(StoredOutput, "select owner, mime_type, text from portico_run_output where id = ?", (id,))


def resolve_store_url(store: str | os.PathLike[str] | None, server: Any) -> str | None:
    """Return the store's URL: the configured one, or else that of the server."""
    if store is not None or server is None:
        return os.fspath(store) if store is not None else None
    url: str | None = server.used_states.url
    return url
