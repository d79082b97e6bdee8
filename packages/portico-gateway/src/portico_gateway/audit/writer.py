"""The writer: takes note of calls that have ended, and writes them in groups.

The record of a call is written down on the loop, with the call that comes after it, if that is quick; else in a thread,
where the records are chained. The store's own thread writes a group of them at once. Every thousand records, or after
some seconds, a checkpoint goes with them.
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
from portico.audit.checkpoints import FIRST, Checkpoint, ExpectedHead, HeadFile, OwnPart, StoredCheckpoint
from portico.audit.checkpoints import signed as sign
from portico.audit.hash_chain import ChainHead
from portico.audit.records import CallRecord
from portico.audit.signing_keys import AuditKey
from portico.protocol.jsonrpc import to_line
from portico.rpc import supervision
from portico.rpc.supervision import SupervisedState
from portico.store.database import Database, when_ready
from portico.store.errors import OutcomeUnknown, StoreError
from portico.store.transaction import Transaction
from portico_gateway.audit import retention
from portico_gateway.audit import store as tables
from portico_gateway.audit.events import ArgumentPolicy, EndedCall, RecordMaker, Screen
from portico_gateway.audit.formats import WRITERS, Format, written_checkpoint
from portico_gateway.audit.queries import read_record
from portico_gateway.audit.settings import AuditSettings
from portico_gateway.audit.sinks import Sink
from portico_gateway.audit.store import StoredRow

log = logging.getLogger("portico")

# How long records wait for others, and how many make a group at once.
GROUP_SECONDS = 0.25
GROUP = 4000
# How many are written unsigned.
CHECKPOINT_RECORDS = 1000
# How long what was written goes unsigned: so long; and so long where many were signed of late.
SOON_SECONDS, LATE_SECONDS = 1.0, 10.0
MOST_SPARE = 60.0
# How often the last checkpoint is written down outside of the store, where there are very many.
HEAD_SECONDS = 1.0
# What the params and results of calls may have together that wait to be written.
MOST_BYTES = 64 * 1024 * 1024
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
# How long the end of a server waits for a store that is away.
END_SECONDS = 10.0
CUT_SECONDS = 3600.0

Waiting = EndedCall | tuple[int, str] | CallRecord
"""A call; the moment and the record of one, all but its number; or another record, which is given its number."""


class SigningPace:
    """When to sign: soon, and in the long run no more than one in ten seconds, for each of them is kept, and verified
    again and again. What was not used of that is spare, for a while in which much is done."""

    def __init__(self) -> None:
        self._at = 0.0
        self._spare = MOST_SPARE

    @property
    def due(self) -> float:
        """The moment at which the next one is to be signed, by the clock of `note`."""
        return self._at + (SOON_SECONDS if self._spare >= 1 else LATE_SECONDS)

    def note(self, now: float) -> None:
        """One was signed."""
        earned = (now - self._at) / LATE_SECONDS
        self._spare = max(0.0, min(MOST_SPARE, self._spare + earned) - 1)
        self._at = now


class _RecordGroup(Struct, eq=False):
    """Records that are made, and wait for the store."""

    rows: list[StoredRow]
    hashes: list[bytes]


class AuditWriter:
    """The chain of one process, and what waits to become part of it."""

    def __init__(
        self, settings: AuditSettings, server: str, data: Path, store: str | None, screen: Screen, key: AuditKey
    ) -> None:
        self._settings = settings
        self._server = server
        self._key = key
        self._maker = RecordMaker(ArgumentPolicy(settings.arguments, settings.shown_fields, key.salt, screen), server)
        self._database = None if store is None else Database(store, connections=1)
        self._head_file = None if store is None else HeadFile(data, store)
        self._sinks = [Sink(one) for one in settings.sink_addresses]
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0
        self._most = settings.most_waiting
        # Without a store it depends on the sinks alone.
        self._lonely = store is None
        self._dropped = 0
        self._failing = False
        self._due: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chain = hash_chain.new_name()
        self._last = hash_chain.origin(self._chain)
        self._number = 0
        # The hashes since our last checkpoint, the highest number that one is known to have, and when ours are due.
        self._unsigned: list[bytes] = []
        self._seen = 0
        self._previous = FIRST
        self._pace = SigningPace()
        self._cut_after = 0.0
        self._head_after = 0.0
        # Made, and not written yet; and whether the store may have it although it did not say so.
        self._made: _RecordGroup | None = None
        # Whether some are being made, by a thread.
        self._making = False
        self._unsure = False
        self._ending = asyncio.Event()
        # Those who wait until all is written.
        self._listeners: set[asyncio.Event] = set()

    # On the loop, for each call

    @property
    def is_full(self) -> bool:
        if len(self._waiting) >= self._most or self._waiting_bytes > MOST_BYTES:
            return True
        return self._lonely and any(sink.is_full for sink in self._sinks)

    def add(self, ended: Waiting, size: int = 0) -> None:
        waiting = self._waiting
        if len(waiting) >= self._most or self._waiting_bytes > MOST_BYTES or (self._lonely and self.is_full):
            self._dropped += 1
            return
        if waiting and type(last := waiting[-1]) is EndedCall:
            # The call before this one was answered meanwhile, so that the length of its answer is known.
            self._note(last)
        waiting.append(ended)
        self._waiting_bytes += size
        if self._due is None:
            return  # the server has not begun: it is written when it does
        if len(waiting) >= GROUP:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GROUP_SECONDS, self._due.set)

    def _note(self, last: EndedCall) -> None:
        """Write down the last call, if that is quick: it need not be kept any longer."""
        try:
            quick = self._maker.quick(last)
        except Exception:
            return  # a record that cannot be written is looked at when it is its turn
        if quick is not None:
            self._waiting[-1] = quick

    # In the background

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._due, self._ending = asyncio.Event(), asyncio.Event()
        if self._database is not None:
            await when_ready(self._open)
        self.add(self._begin())
        await self._write_all(signed=True)
        task = asyncio.create_task(self._run_observed())
        try:
            yield
        finally:
            self._ending.set()
            self._due.set()
            # In the middle of a write it is not known whether it was done: so that is waited for.
            await asyncio.wait([task], timeout=END_SECONDS)
            if not task.done():
                self._unsure = True
                task.cancel()
                await asyncio.wait([task])
            await self._end()

    async def _open(self) -> None:
        assert self._database is not None
        # Before the store is: another process may write to both meanwhile, to the store first.
        known = None if self._head_file is None else self._head_file.read()
        await self._database.open()
        try:
            await self._database.migrate(tables.HISTORY, tables.MIGRATIONS)
            last = await self._database.read(tables.last_checkpoint)
        except BaseException:
            await self._database.close()
            raise
        self._compare(last, known)

    def _compare(self, last: StoredCheckpoint | None, known: ExpectedHead | None) -> None:
        """With what is known to have been written: a store that has forgotten it is an older copy."""
        self._seen = last.number if last is not None else 0
        if known is None or known.number <= self._seen:
            return
        log.error(
            "the audit's store ends with checkpoint %d, and checkpoint %d was written: an older copy was put back",
            self._seen,
            known.number,
        )
        note = {"found": self._seen, "written": str(known)}
        self.add(CallRecord(number=0, at=_now(), kind="restored", owner=self._server, note=note))
        self._seen = known.number

    def _begin(self) -> CallRecord:
        note = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "version": __version__,
            "checkpoint": self._seen,
            "key": self._key.id,
        }
        return CallRecord(number=0, at=_now(), kind="begin", owner=self._server, note=note)

    async def _run_observed(self) -> None:
        with supervision.observed("audit writer") as state:
            await self._run(state)

    async def _run(self, state: SupervisedState) -> None:
        assert self._due is not None
        pause_seconds = FIRST_PAUSE_SECONDS
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
                await self._write_all(signed=self._is_checkpoint_due)
                if time.monotonic() >= self._cut_after:
                    await self.cut()
                pause_seconds = FIRST_PAUSE_SECONDS
                state.recover()
            except Exception as failure:
                state.fail(failure)
                self._failing = True
                if self._ending.is_set():
                    return
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)
                self._due.set()

    @property
    def _is_checkpoint_due(self) -> bool:
        return bool(self._unsigned) and time.monotonic() >= self._pace.due

    def _until_checkpoint(self) -> float | None:
        if not self._unsigned:
            return None
        return max(0.0, self._pace.due - time.monotonic())

    async def written(self) -> None:
        """Wait until everything that was noted so far is written."""
        if self._due is None:
            return
        while self._waiting or self._making or self._made is not None or self._dropped:
            heard = asyncio.Event()
            self._listeners.add(heard)
            self._due.set()
            try:
                await heard.wait()
            finally:
                self._listeners.discard(heard)

    async def _write_all(self, *, signed: bool = False, ended: bool = False) -> None:
        """Write what waits; sign it too, if that is wanted or due. Raises StoreError: then it goes on waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # What comes meanwhile waits for others to come: many small groups cost more than one.
        left = len(self._waiting)
        while self._made is not None or left > 0 or self._dropped or signed:
            if self._made is None:
                left -= GROUP
                self._making = True
                try:
                    self._made = await asyncio.to_thread(self._make, self._take())
                finally:
                    self._making = False
            group, last = self._made, left <= 0
            signs = (signed and last) or len(self._unsigned) + len(group.hashes) >= CHECKPOINT_RECORDS
            stored = await self._keep(group, signs, ended and last)
            self._made = None
            self._unsigned += group.hashes
            if stored is not None:
                self._unsigned, self._seen, self._previous = [], stored.number, stored.hash
                self._pace.note(time.monotonic())
            if self._sinks or (stored is not None and (signed or time.monotonic() >= self._head_after)):
                await asyncio.to_thread(self._tell, group, stored)
            signed = signed and not last
        if self._failing:
            log.warning("the audit is written again")
            self._failing = False
        for one in self._listeners:
            one.set()

    def _take(self) -> list[Waiting]:
        some, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
        if not self._waiting:
            self._waiting_bytes = 0
        if self._dropped:
            note = {"count": self._dropped}
            some.append(CallRecord(number=0, at=_now(), kind="dropped", owner=self._server, note=note))
            self._dropped = 0
        return some

    def _make(self, some: list[Waiting]) -> _RecordGroup:
        """Records, each bound to the one before. In a thread; one group at a time."""
        rows, hashes = [], []
        name, number, last, link = self._chain, self._number, self._last, hash_chain.link
        for one in some:
            number += 1
            at, body = self._written(one, number)
            # Callers choose names: none of them may start another line in a file of records.
            encoded = to_line(body.encode())
            last = link(last, encoded)
            rows.append((name, number, at, encoded.decode(), last.hex()))
            hashes.append(last)
        self._number, self._last = number, last
        return _RecordGroup(rows, hashes)

    def _written(self, one: Waiting, number: int) -> tuple[int, str]:
        """A record and its moment. What cannot be written down is still a record: that it was there counts."""
        try:
            if isinstance(one, tuple):
                return one[0], f'{{"number":{number}{one[1]}'
            if isinstance(one, EndedCall):
                return one.at, f'{{"number":{number}{self._maker.rest(one)}'
            record = replace(one, number=number)
            return record.at, _encode(record).decode()
        except Exception as failure:
            log.error("a call cannot be recorded as it was", exc_info=failure)
            method, outcome = (one.passage.call.method, one.outcome) if isinstance(one, EndedCall) else ("", "")
            error = type(failure).__name__
            poor = CallRecord(number=number, at=_now(), owner=self._server, method=method, outcome=outcome, error=error)
            return poor.at, _encode(poor).decode()

    async def _keep(self, group: _RecordGroup, signs: bool, ended: bool) -> StoredCheckpoint | None:
        """In the store, or nowhere if there is none; the checkpoint that went with it."""
        head = ChainHead(self._number, self._last.hex(), ended)
        own = OwnPart(self._chain, head, self._unsigned + group.hashes)
        if self._database is None:
            return self._sign_alone(own) if signs else None
        try:
            done = await self._database.write(
                lambda tx: self._store(tx, group, own if signs else None, ended), isolation="read committed"
            )
        except OutcomeUnknown:
            self._unsure = True
            raise
        self._unsure = False
        return done

    def _store(self, tx: Transaction, group: _RecordGroup, own: OwnPart | None, ended: bool) -> StoredCheckpoint | None:
        if group.rows:
            if self._unsure and tables.has_record(tx, group.rows[-1]):
                return None
            tables.add_records(tx, group.rows, ended)
        return None if own is None else tables.add_checkpoint(tx, self._key, _now(), own, self._seen)

    def _sign_alone(self, own: OwnPart) -> StoredCheckpoint:
        checkpoint = Checkpoint(
            self._seen + 1,
            _now(),
            self._previous,
            self._key.id,
            self._chain,
            heads={own.chain: own.head},
            marks=own.marks(),
        )
        return sign(checkpoint, self._key)

    def _tell(self, group: _RecordGroup, stored: StoredCheckpoint | None) -> None:
        """To the sinks, and the head to its file. In a thread."""
        written: dict[Format, list[str]] = {}
        records = [(row, read_record(row[3])) for row in group.rows] if self._sinks else []
        for sink in self._sinks:
            form = sink.address.format
            if form not in written:
                lines = [WRITERS[form](row, one) for row, one in records if one is not None]
                written[form] = lines if stored is None else [*lines, written_checkpoint(form, stored, _now())]
            sink.write(written[form])
        if stored is not None and self._head_file is not None:
            self._head_after = time.monotonic() + HEAD_SECONDS
            try:
                self._head_file.write(stored.head)
            except OSError as failure:
                log.error("the last checkpoint of the audit cannot be written down: %s", failure)

    async def cut(self) -> None:
        """Take away what is older than it has to be kept. Raises StoreError."""
        keep = self._settings.keep_seconds
        self._cut_after = time.monotonic() + CUT_SECONDS
        if keep is None or self._database is None:
            return
        moment = _now()
        before = moment - keep * 1_000_000
        stored = await self._database.write(
            lambda tx: retention.cut(tx, self._key, moment, before, self._seen), isolation="read committed"
        )
        if stored is not None:
            self._seen = stored.number
            await asyncio.to_thread(self._tell, _RecordGroup([], []), stored)

    async def _end(self) -> None:
        self.add(CallRecord(number=0, at=_now(), kind="end", owner=self._server))
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._write_all(signed=True, ended=True)
        except (StoreError, TimeoutError) as failure:
            lost = len(self._waiting) + (0 if self._made is None else len(self._made.rows))
            log.error("%d records of the audit are lost: %s", lost, str(failure) or "the store did not answer")
        self._due = None
        if self._database is not None:
            await self._database.close()
        await asyncio.to_thread(self._close_sinks)

    def _close_sinks(self) -> None:
        for sink in self._sinks:
            sink.close()


_encode = msgspec.json.Encoder().encode


def _now() -> int:
    return time.time_ns() // 1000
