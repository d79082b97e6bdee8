"""`portico audit`: what was asked of a server, and whether the record of it is whole."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from portico.audit.checkpoints import ExpectedHead, HeadFile
from portico.audit.jsonl import checkpoint_line, verify_files
from portico.audit.log_file import trail_parts, verify_trail
from portico.audit.records import CallRecord
from portico.audit.signing_keys import PUBLIC, TrustedKeys, read_public
from portico.audit.verification import AuditReport
from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.cli.terminal_text import writing
from portico.protocol.errors import UsageError
from portico.store.data_directory import data_directory
from portico.store.database import Database
from portico.store.errors import BadStatement
from portico.store.transaction import Transaction
from portico_gateway.audit import store as tables
from portico_gateway.audit.formats import WRITERS, moment
from portico_gateway.audit.hook import STORE_NAME
from portico_gateway.audit.queries import RecordFilter, by_chain, newest
from portico_gateway.audit.settings import seconds_of
from portico_gateway.audit.store import verify_store

# The audits of services that keep one wherever they are served.
TRAILS = ("system-audit.jsonl", "operator-audit.jsonl")
HEADINGS = ("WHEN", "WHO", "METHOD", "WHAT", "OUTCOME", "RULE", "MS")


def run(words: list[str]) -> int:
    arguments = parser_for("audit").read(words)
    return asyncio.run(AuditCommand(arguments).run())


class AuditCommand:
    """One action; each gives its exit status."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.printer = Printer(arguments.output)
        self.data = data_directory(arguments.data)

    async def run(self) -> int:
        status = await ACTIONS[self.arguments.action](self)
        self.printer.flush()
        return status

    # Where it is

    @property
    def store(self) -> str:
        """--store, or PORTICO_STORE where that is a server, or the file in the data directory."""
        named: str | None = self.arguments.store or (None if self.arguments.data else os.environ.get("PORTICO_STORE"))
        store = str(self.data / STORE_NAME) if named is None else os.path.expanduser(named)
        if "://" not in store and not os.path.exists(store):
            raise UsageError(f"there is no audit: {store} is not there")
        return store

    async def _read(self, fn: Callable[[Transaction], Any]) -> Any:
        async with Database(self.store, connections=1) as database:
            try:
                return await database.read(fn)
            except BadStatement:
                raise UsageError(f"there is no audit in {self.arguments.store or self.data}") from None

    def _keys(self) -> TrustedKeys:
        """Those of --key, or those that the data directory has made."""
        files = [Path(one) for one in self.arguments.key] or [self.data / PUBLIC]
        return TrustedKeys(key for file in files for key in read_public(file))

    def _expected(self, store: str | None) -> ExpectedHead | None:
        if self.arguments.expect is not None:
            return ExpectedHead.parse(self.arguments.expect)
        return None if store is None else HeadFile(self.data, store).read()

    # The actions

    async def verify(self) -> int:
        trails = self._trails()
        if trails and not self.arguments.file and self._has_no_store:
            report = AuditReport()
            self._verify_trails(report, trails)
            self._print(report)
            return 1 if report.found else 0
        keys = self._keys()
        if self.arguments.file:
            expected = self._expected(None)
            report = await asyncio.to_thread(verify_files, [Path(one) for one in self.arguments.file], keys, expected)
        else:
            expected = self._expected(self.store)
            report = await self._read(lambda tx: verify_store(tx, keys, expected))
        if expected is None:
            report.notes.append(
                "the last checkpoint is not known from elsewhere, so an older copy that was put back would not be "
                "noticed: --expect says it"
            )
        self._verify_trails(report, trails)
        self._print(report)
        return 1 if report.found else 0

    @property
    def _has_no_store(self) -> bool:
        named = self.arguments.store or os.environ.get("PORTICO_STORE")
        return not named and not (self.data / STORE_NAME).exists()

    def _trails(self) -> list[Path]:
        """What services keep in the data directory by themselves."""
        if self.arguments.file or self.arguments.store:
            return []
        return [self.data / name for name in TRAILS if trail_parts(self.data / name)]

    def _verify_trails(self, report: AuditReport, trails: list[Path]) -> None:
        for trail in trails:
            found = verify_trail(trail)
            report.records += found.records
            report.chains += found.chains
            report.checkpoints += found.checkpoints
            report.found += [replace(one, what=f"{one.what} ({trail.name})") for one in found.found]

    def _print(self, report: AuditReport) -> None:
        if self.printer.form == "json":
            self.printer.json(report)
            return
        for found in report.found:
            self.printer.line(str(found))
        for note in report.notes:
            self.printer.line(f"note: {note}")
        kept = f"{report.records} records in {report.chains} chains, {report.checkpoints} checkpoints"
        self.printer.line(f"{'NOT whole' if report.found else 'whole'}: {kept}; the last is {report.head or 'none'}")

    async def head(self) -> int:
        last = await self._read(tables.last_checkpoint)
        if last is None:
            raise UsageError("there is no checkpoint yet")
        self.printer.show({"head": str(last.head)}, str(last.head))
        return 0

    async def list_records(self) -> int:
        wanted = self._wanted()
        found = await self._read(lambda tx: newest(tx, wanted, self.arguments.limit))
        plain = self.printer.form == "json"
        if not plain:
            # A running server may have another one.
            self.printer.aside(f"records of {self.store if '://' not in self.store else 'the store'}")
        items = [_plain(record) if plain else record for _, record in found]
        self.printer.rows(items, HEADINGS, _row, empty="no records")
        return 0

    async def export(self) -> int:
        wanted, form = self._wanted(), self.arguments.format
        write = WRITERS[form]

        def lines(tx: Transaction) -> None:
            with writing():
                for stored, record in by_chain(tx, wanted):
                    sys.stdout.write(write(stored, record) + "\n")
                if form == "jsonl" and wanted == RecordFilter():
                    # With all records, what is signed of them: then the file can be verified by itself.
                    sys.stdout.writelines(checkpoint_line(one) + "\n" for one in tables.checkpoints(tx))

        await self._read(lines)
        return 0

    def _wanted(self) -> RecordFilter:
        said = self.arguments
        times = {name: _moment(text) for name in ("since", "until") if (text := getattr(said, name)) is not None}
        return RecordFilter(**times, principal=said.principal, tool=said.tool, outcome=said.outcome)


ACTIONS: dict[str, Callable[[AuditCommand], Awaitable[int]]] = {
    "verify": AuditCommand.verify,
    "list": AuditCommand.list_records,
    "export": AuditCommand.export,
    "head": AuditCommand.head,
}


def _moment(text: str) -> int:
    """A date, a date and a time, or how long ago: `2026-01-31`, `2026-01-31T12:00Z`, `2h`. In microseconds."""
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time_ns() // 1000 - seconds_of(text) * 1_000_000
        except UsageError:
            raise UsageError(
                f"{text!r} is no moment: write 2026-01-31, 2026-01-31T12:00Z, or 2h for so long ago"
            ) from None
    moment = said if said.tzinfo is not None else said.astimezone()
    return int(moment.astimezone(UTC).timestamp() * 1e6)


def _plain(record: CallRecord) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(record)
    return {"time": moment(record.at), **said}


def _row(record: CallRecord) -> tuple[str, ...]:
    return (
        moment(record.at),
        record.principal or record.client or "-",
        record.method or record.kind,
        f"{record.owner}.{record.name}" if record.name else record.owner,
        f"{record.outcome} {record.error}".strip(),
        record.rule,
        f"{record.micros / 1000:.1f}" if record.method else "",
    )
