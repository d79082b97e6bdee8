"""Audit writer: collects completed calls and writes their records in batches.

A record is encoded on the event loop, when the next call completes, if that is fast; otherwise in a thread, where
records are also chained. The store's thread writes a batch in one transaction. Every thousand records, or after some
seconds, a checkpoint is added.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from portico import __version__
from portico.audit import hash_chain
from portico.audit.checkpoints import (
    GENESIS_HASH,
    ChainProgress,
    Checkpoint,
    CheckpointFile,
    CheckpointRef,
    SignedCheckpoint,
    sign_checkpoint as sign,
)
from portico.audit.hash_chain import ChainHead
from portico.audit.records import AuditEvent
from portico.audit.signing_keys import AuditSigningKey
from portico.protocol.jsonrpc import to_line
from portico.rpc import supervision
from portico.rpc.supervision import SupervisedState
from portico.store.database import Database, retry_until_ready
from portico.store.errors import CommitOutcomeUnknown, StoreError
from portico.store.transaction import Transaction
from portico_gateway.audit import retention, store as tables
from portico_gateway.audit.events import ArgumentRedaction, AuditEventEncoder, CompletedCall, Redactor
from portico_gateway.audit.formats import FORMATTERS, Format, format_checkpoint
from portico_gateway.audit.queries import parse_event
from portico_gateway.audit.settings import AuditSettings
from portico_gateway.audit.sinks import AuditSink
from portico_gateway.audit.store import StoredRow

log = logging.getLogger("portico")

# Maximum delay of a record, and the batch size that is written immediately.
BATCH_DELAY_SECONDS = 0.25
MAX_BATCH_RECORDS = 4000
# Maximum unsigned records.
RECORDS_PER_CHECKPOINT = 1000
# Delay until written records are signed: normally, and after many recent signatures.
MIN_SIGNING_DELAY_SECONDS, MAX_SIGNING_DELAY_SECONDS = 1.0, 10.0
MAX_SIGNING_CREDIT = 60.0
# Minimum interval for writing the last checkpoint to its file.
CHECKPOINT_FILE_INTERVAL_SECONDS = 1.0
# Maximum total size of params and results of waiting calls.
# Records hold references to params and results until they are encoded, so a count alone would not bound the memory.
MAX_PENDING_BYTES = 64 * 1024 * 1024
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 10.0
# Time that a closing server waits for an unavailable store.
SHUTDOWN_TIMEOUT_SECONDS = 10.0
RETENTION_INTERVAL_SECONDS = 3600.0

PendingEvent = CompletedCall | tuple[int, str] | AuditEvent
"A call; the time and record of a call without its number; or another record, which gets its number later."


class SigningSchedule:
    """Schedule of checkpoints: soon after a write, but on average at most one in ten seconds.

    Each checkpoint is stored and verified repeatedly, so their number matters. Unused credit accumulates for busy
    periods.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._spare = MAX_SIGNING_CREDIT

    @property
    def next_signing_at(self) -> float:
        """Return the time of the next checkpoint, on the clock of `record_signing`."""
        return self._at + (MIN_SIGNING_DELAY_SECONDS if self._spare >= 1 else MAX_SIGNING_DELAY_SECONDS)

    def record_signing(self, now: float) -> None:
        """Record that a checkpoint was signed."""
        earned = (now - self._at) / MAX_SIGNING_DELAY_SECONDS
        # A token bucket: one checkpoint costs one credit, and a quiet period earns credits up to a limit.
        self._spare = max(0.0, min(MAX_SIGNING_CREDIT, self._spare + earned) - 1)
        self._at = now


class _RecordBatch(Struct, eq=False):
    """Chained records that wait for the store."""

    rows: list[StoredRow]
    hashes: list[bytes]


class AuditWriter:
    """Hash chain of one process, and the queue of calls to be recorded."""

    def __init__(
        self,
        settings: AuditSettings,
        server: str,
        data: Path,
        store: str | None,
        screen: Redactor,
        key: AuditSigningKey,
    ) -> None:
        self._settings = settings
        self._server = server
        self._key = key
        self._maker = AuditEventEncoder(
            ArgumentRedaction(settings.arguments, settings.logged_argument_map, key.salt, screen), server
        )
        # One connection: the chain is sequential, so concurrent writes could only wait for each other.
        self._database = None if store is None else Database(store, max_connections=1)
        self._head_file = None if store is None else CheckpointFile(data, store)
        self._sinks = [AuditSink(sink_address) for sink_address in settings.sink_addresses]
        self._pending: list[PendingEvent] = []
        self._pending_bytes = 0
        self._max_pending = settings.max_pending
        # Without a store, the capacity depends on the sinks alone.
        self._lonely = store is None
        self._dropped = 0
        self._failing = False
        self._due: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        # A new chain for each start. Continuing the previous one would need a lock against another process that does
        # the same.
        self._chain = hash_chain.new_chain_id()
        self._last = hash_chain.genesis_hash(self._chain)
        self._number = 0
        # Hashes since our last checkpoint, the highest known checkpoint number, and the last checkpoint's hash.
        self._unsigned: list[bytes] = []
        self._signed_count = 0
        self._previous = GENESIS_HASH
        self._signing_schedule = SigningSchedule()
        self._cut_after = 0.0
        self._head_after = 0.0
        # Batch that is not written yet; and whether the outcome of its commit is unknown.
        self._prepared_batch: _RecordBatch | None = None
        # Whether a thread is building a batch.
        self._making = False
        self._unsure = False
        self._ending = asyncio.Event()
        # Waiters of `flush`.
        self._listeners: set[asyncio.Event] = set()

    # On the event loop, for each call

    @property
    def is_full(self) -> bool:
        """Return whether no more records can be queued."""
        if len(self._pending) >= self._max_pending or self._pending_bytes > MAX_PENDING_BYTES:
            return True
        # With a store, a sink that falls behind loses its own lines only; without one it is the only copy of the
        # record.
        return self._lonely and any(sink.is_full for sink in self._sinks)

    def enqueue(self, ended: PendingEvent, size: int = 0) -> None:
        """Queue a completed call; `size` is the size of its params and result. Drop it if the queue is full."""
        waiting = self._pending
        if (
            len(waiting) >= self._max_pending
            or self._pending_bytes > MAX_PENDING_BYTES
            or (self._lonely and self.is_full)
        ):
            self._dropped += 1
            return
        # Encoding one record per call spreads the work; a batch of thousands would block the thread that builds it.
        if waiting and type(last := waiting[-1]) is CompletedCall:
            # The previous call has been answered in the meantime, so the size of its response is known.
            self._encode_last(last)
        waiting.append(ended)
        self._pending_bytes += size
        if self._due is None:
            return  # the server has not started; the record is written when it does
        if len(waiting) >= MAX_BATCH_RECORDS:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_DELAY_SECONDS, self._due.set)

    def _encode_last(self, last: CompletedCall) -> None:
        """Encode the last queued call if that is fast, so that its objects can be freed."""
        try:
            quick = self._maker.encode_fast(last)
        except Exception:
            return  # a record that fails is handled when its batch is built
        if quick is not None:
            self._pending[-1] = quick

    # In the background

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._due, self._ending = asyncio.Event(), asyncio.Event()
        if self._database is not None:
            await retry_until_ready(self._open_log)
        # Written and signed before the first call is accepted, so that deleting everything after it is detected.
        self.enqueue(self._start_event())
        await self._flush_pending(signed=True)
        task = asyncio.create_task(self._run_observed())
        try:
            yield
        finally:
            self._ending.set()
            self._due.set()
            # An interrupted write leaves its outcome unknown, so wait for it.
            await asyncio.wait([task], timeout=SHUTDOWN_TIMEOUT_SECONDS)
            if not task.done():
                self._unsure = True
                task.cancel()
                await asyncio.wait([task])
            await self._shut_down()

    async def _open_log(self) -> None:
        assert self._database is not None
        # Read the file before the store: another process writes to the store first, then to the file.
        head = None if self._head_file is None else self._head_file.read()
        await self._database.open()
        try:
            await self._database.migrate(tables.MIGRATION_HISTORY, tables.MIGRATIONS)
            last = await self._database.read(tables.last_checkpoint)
        except BaseException:
            await self._database.close()
            raise
        self._check_rollback(last, head)

    def _check_rollback(self, last: SignedCheckpoint | None, recorded: CheckpointRef | None) -> None:
        """Detect a rollback: a store that lacks a checkpoint known to be written is an older copy."""
        self._signed_count = last.number if last is not None else 0
        # The file lies outside the store, so an attacker who restores an old copy of the database has to restore
        # the file as well.
        if recorded is None or recorded.number <= self._signed_count:
            return
        log.error(
            "audit store rollback detected: it ends with checkpoint %d, but checkpoint %d was written",
            self._signed_count,
            recorded.number,
        )
        # The finding becomes a record itself, so it is part of the signed log even if no one reads the server's
        # messages.
        note = {"found": self._signed_count, "written": str(recorded)}
        self.enqueue(AuditEvent(number=0, at=_now_us(), kind="restored", owner=self._server, note=note))
        self._signed_count = recorded.number

    def _start_event(self) -> AuditEvent:
        note = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "version": __version__,
            "checkpoint": self._signed_count,
            "key": self._key.id,
        }
        return AuditEvent(number=0, at=_now_us(), kind="begin", owner=self._server, note=note)

    async def _run_observed(self) -> None:
        with supervision.observe_task("audit writer") as state:
            await self._run(state)

    async def _run(self, state: SupervisedState) -> None:
        assert self._due is not None
        pause_seconds = MIN_BACKOFF_SECONDS
        while True:
            try:
                async with asyncio.timeout(self._until_checkpoint()):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            if self._ending.is_set():
                return
            try:
                await self._flush_pending(signed=self._is_checkpoint_due)
                if time.monotonic() >= self._cut_after:
                    await self.apply_retention()
                pause_seconds = MIN_BACKOFF_SECONDS
                state.recover()
            except Exception as failure:
                state.fail(failure)
                self._failing = True
                if self._ending.is_set():
                    return
                # Exponential back-off; records stay queued, and `is_full` decides what happens to new calls.
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, MAX_BACKOFF_SECONDS)
                self._due.set()

    @property
    def _is_checkpoint_due(self) -> bool:
        return bool(self._unsigned) and time.monotonic() >= self._signing_schedule.next_signing_at

    def _until_checkpoint(self) -> float | None:
        if not self._unsigned:
            return None
        return max(0.0, self._signing_schedule.next_signing_at - time.monotonic())

    async def flush(self) -> None:
        """Wait until all queued records are written."""
        if self._due is None:
            return
        while self._pending or self._making or self._prepared_batch is not None or self._dropped:
            flushed = asyncio.Event()
            self._listeners.add(flushed)
            self._due.set()
            try:
                await flushed.wait()
            finally:
                self._listeners.discard(flushed)

    async def _flush_pending(self, *, signed: bool = False, ended: bool = False) -> None:
        """Write the queued records, and sign them if requested or due. Raises StoreError; the records then remain
        queued.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Records queued from now on wait for the next flush: many small batches cost more than one.
        left = len(self._pending)
        while self._prepared_batch is not None or left > 0 or self._dropped or signed:
            if self._prepared_batch is None:
                left -= MAX_BATCH_RECORDS
                self._making = True
                try:
                    self._prepared_batch = await asyncio.to_thread(self._build_batch, self._take_pending())
                finally:
                    self._making = False
            group, last = self._prepared_batch, left <= 0
            # A crash loses at most this many unsigned records' protection: they are stored, but could be changed
            # without detection.
            signs = (signed and last) or len(self._unsigned) + len(group.hashes) >= RECORDS_PER_CHECKPOINT
            stored = await self._store_batch(group, signs, ended and last)
            self._prepared_batch = None
            self._unsigned += group.hashes
            if stored is not None:
                self._unsigned, self._signed_count, self._previous = [], stored.number, stored.hash
                self._signing_schedule.record_signing(time.monotonic())
            if self._sinks or (stored is not None and (signed or time.monotonic() >= self._head_after)):
                await asyncio.to_thread(self._publish_batch, group, stored)
            signed = signed and not last
        if self._failing:
            log.warning("the audit log is writable again")
            self._failing = False
        for listener in self._listeners:
            listener.set()

    def _take_pending(self) -> list[PendingEvent]:
        some, self._pending = self._pending[:MAX_BATCH_RECORDS], self._pending[MAX_BATCH_RECORDS:]
        if not self._pending:
            self._pending_bytes = 0
        if self._dropped:
            note = {"count": self._dropped}
            some.append(AuditEvent(number=0, at=_now_us(), kind="dropped", owner=self._server, note=note))
            self._dropped = 0
        return some

    def _build_batch(self, some: list[PendingEvent]) -> _RecordBatch:
        """Build chained records. Runs in a thread, one batch at a time."""
        rows, hashes = [], []
        name, number, last, link = self._chain, self._number, self._last, hash_chain.chain_hash
        for item in some:
            number += 1
            at, body = self._encode_record(item, number)
            # Names are chosen by callers and must not start a new line in a file of records.
            # Also escapes U+2028, U+2029 and U+0085, which some log readers treat as line breaks.
            encoded = to_line(body.encode())
            last = link(last, encoded)
            rows.append((name, number, at, encoded.decode(), last.hex()))
            hashes.append(last)
        self._number, self._last = number, last
        return _RecordBatch(rows, hashes)

    def _encode_record(self, item: PendingEvent, number: int) -> tuple[int, str]:
        """Return the time and body of a record.

        If encoding fails, a minimal record documents that the call took place.
        """
        try:
            if isinstance(item, tuple):
                return item[0], f'{{"number":{number}{item[1]}'
            if isinstance(item, CompletedCall):
                return item.started_at_us, f'{{"number":{number}{self._maker.encode(item)}'
            record = replace(item, number=number)
            return record.at, _encode(record).decode()
        except Exception as failure:
            log.error("cannot encode the audit record of a call", exc_info=failure)
            method, outcome = (item.passage.call.method, item.outcome) if isinstance(item, CompletedCall) else ("", "")
            error = type(failure).__name__
            poor = AuditEvent(
                number=number, at=_now_us(), owner=self._server, method=method, outcome=outcome, error=error
            )
            return poor.at, _encode(poor).decode()

    async def _store_batch(self, group: _RecordBatch, signs: bool, ended: bool) -> SignedCheckpoint | None:
        """Write a batch to the store, if there is one. Return the checkpoint that was written with it, or None."""
        head = ChainHead(self._number, self._last.hex(), ended)
        own = ChainProgress(self._chain, head, self._unsigned + group.hashes)
        if self._database is None:
            return self._sign_without_store(own) if signs else None
        try:
            done = await self._database.write(
                lambda tx: self._store(tx, group, own if signs else None, ended), isolation="read committed"
            )
        except CommitOutcomeUnknown:
            self._unsure = True
            raise
        self._unsure = False
        return done

    def _store(
        self, tx: Transaction, group: _RecordBatch, own: ChainProgress | None, ended: bool
    ) -> SignedCheckpoint | None:
        if group.rows:
            # After a commit with unknown outcome the batch may already be stored; do not insert it twice.
            # A connection lost during COMMIT leaves two possibilities. Inserting again would violate the chain's
            # unique numbers, skipping would lose records, so ask the store.
            if self._unsure and tables.record_exists(tx, group.rows[-1]):
                return None
            tables.insert_records(tx, group.rows, ended)
        return None if own is None else tables.insert_checkpoint(tx, self._key, _now_us(), own, self._signed_count)

    def _sign_without_store(self, own: ChainProgress) -> SignedCheckpoint:
        checkpoint = Checkpoint(
            self._signed_count + 1,
            _now_us(),
            self._previous,
            self._key.id,
            self._chain,
            heads={own.chain: own.head},
            marks=own.hash_prefixes(),
        )
        return sign(checkpoint, self._key)

    def _publish_batch(self, group: _RecordBatch, stored: SignedCheckpoint | None) -> None:
        """Send a batch to the sinks and write the checkpoint to its file. Runs in a thread."""
        written: dict[Format, list[str]] = {}
        records = [(row, parse_event(row[3])) for row in group.rows] if self._sinks else []
        for sink in self._sinks:
            form = sink.address.format
            if form not in written:
                lines = [FORMATTERS[form](row, event) for row, event in records if event is not None]
                written[form] = lines if stored is None else [*lines, format_checkpoint(form, stored, _now_us())]
            sink.write(written[form])
        if stored is not None and self._head_file is not None:
            # Replacing the file for every checkpoint of a busy server would be too slow.
            self._head_after = time.monotonic() + CHECKPOINT_FILE_INTERVAL_SECONDS
            try:
                self._head_file.write(stored.ref)
            except OSError as failure:
                log.error("cannot write the last audit checkpoint to its file: %s", failure)

    async def apply_retention(self) -> None:
        """Delete records older than the retention period. Raises StoreError."""
        keep = self._settings.retention_seconds
        self._cut_after = time.monotonic() + RETENTION_INTERVAL_SECONDS
        if keep is None or self._database is None:
            return
        moment = _now_us()
        before = moment - keep * 1_000_000
        stored = await self._database.write(
            lambda tx: retention.apply_retention(tx, self._key, moment, before, self._signed_count),
            isolation="read committed",
        )
        if stored is not None:
            self._signed_count = stored.number
            # The cut is a signed checkpoint: a verifier can tell retention from deletion.
            await asyncio.to_thread(self._publish_batch, _RecordBatch([], []), stored)

    async def _shut_down(self) -> None:
        self.enqueue(AuditEvent(number=0, at=_now_us(), kind="end", owner=self._server))
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_SECONDS):
                await self._flush_pending(signed=True, ended=True)
        except (StoreError, TimeoutError) as failure:
            lost = len(self._pending) + (0 if self._prepared_batch is None else len(self._prepared_batch.rows))
            log.error("%d audit records are lost: %s", lost, str(failure) or "the store did not answer")
        self._due = None
        if self._database is not None:
            await self._database.close()
        await asyncio.to_thread(self._close_sinks)

    def _close_sinks(self) -> None:
        for sink in self._sinks:
            sink.close()


_encode = msgspec.json.Encoder().encode


def _now_us() -> int:
    return time.time_ns() // 1000
