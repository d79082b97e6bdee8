"""`portico audit`: verify, list and export the audit log."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from portico.audit.checkpoints import CheckpointFile, CheckpointRef
from portico.audit.jsonl import checkpoint_line, verify_files
from portico.audit.log_file import log_file_parts, verify_log_file
from portico.audit.records import AuditEvent
from portico.audit.signing_keys import PUBLIC_KEYS_FILE, TrustedKeys, load_public_keys
from portico.audit.verification import VerificationReport
from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_json, is_terminal, report_write_errors
from portico.protocol.errors import UsageError
from portico.store.data_directory import resolve_data_directory
from portico.store.transaction import Transaction
from portico_gateway.audit import store as tables
from portico_gateway.audit.formats import FORMATTERS, format_timestamp
from portico_gateway.audit.queries import AuditFilter, iter_by_chain, newest_events
from portico_gateway.audit.store import verify_store
from portico_gateway.cli.audit_store import default_audit_store, find_audit_store, parse_moment, read_audit_store

# Audit logs that services write by themselves, whether or not `[audit]` is configured.
AUDIT_FILES = ("system-audit.jsonl", "operator-audit.jsonl")
HEADINGS = ("WHEN", "WHO", "METHOD", "WHAT", "OUTCOME", "RULE", "MS")


def run(words: list[str]) -> int:
    arguments = parser_for("audit").parse(words)
    return asyncio.run(AuditCommand(arguments).run())


class AuditCommand:
    """One invocation of `portico audit`. Each action returns the exit status."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.printer = Printer(arguments.format)
        self.data = resolve_data_directory(arguments.data)

    async def run(self) -> int:
        status = await ACTIONS[self.arguments.action](self)
        self.printer.flush()
        return status

    @property
    def store(self) -> str:
        """Return the URL or path of the audit store. Raises UsageError if the file does not exist."""
        return find_audit_store(self.arguments)

    async def _read(self, fn: Callable[[Transaction], Any]) -> Any:
        return await read_audit_store(self.arguments, fn)

    def _keys(self) -> TrustedKeys:
        """Return the public keys from --public-key, or those of the data directory."""
        files = [Path(item) for item in self.arguments.public_key] or [self.data / PUBLIC_KEYS_FILE]
        if not self.arguments.public_key and not files[0].exists():
            # A missing log is the more likely mistake, so it is reported first.
            wrong = "" if self.arguments.input else self.store
            raise UsageError(
                f"cannot verify {wrong or 'the files'}: {files[0]} does not exist; pass --public-key FILE or --data DIR"
            )
        return TrustedKeys(key for file in files for key in load_public_keys(file))

    def _load_checkpoint(self, store: str | None) -> CheckpointRef | None:
        """Return the checkpoint that the log must contain: --checkpoint, or the one recorded next to the store."""
        if self.arguments.checkpoint is not None:
            return CheckpointRef.parse(self.arguments.checkpoint)
        return None if store is None else CheckpointFile(self.data, store).read()

    # Actions

    async def verify(self) -> int:
        trails = self._trails()
        if trails and not self.arguments.input and self._has_no_store:
            report = VerificationReport()
            self._verify_trails(report, trails)
            self._print(report)
            return 1 if report.findings else 0
        keys = self._keys()
        if self.arguments.input:
            expected = self._load_checkpoint(None)
            report = await asyncio.to_thread(
                verify_files, [Path(item) for item in self.arguments.input], keys, expected
            )
        else:
            expected = self._load_checkpoint(self.store)
            report = await self._read(lambda tx: verify_store(tx, keys, expected))
        if expected is None:
            report.notes.append(
                "no trusted checkpoint is known, so a rollback to an older copy would not be detected: pass "
                "--checkpoint"
            )
        self._verify_trails(report, trails)
        self._print(report)
        return 1 if report.findings else 0

    @property
    def _has_no_store(self) -> bool:
        default = default_audit_store(self.data)
        return not self.arguments.store and not os.path.exists(default) and "://" not in default

    def _trails(self) -> list[Path]:
        """Return the audit logs that services write into the data directory."""
        if self.arguments.input or self.arguments.store:
            return []
        return [self.data / name for name in AUDIT_FILES if log_file_parts(self.data / name)]

    def _verify_trails(self, report: VerificationReport, trails: list[Path]) -> None:
        for trail in trails:
            result = verify_log_file(trail)
            report.records += result.records
            report.chains += result.chains
            report.checkpoints += result.checkpoints
            report.findings += [
                replace(item, description=f"{item.description} ({trail.name})") for item in result.findings
            ]

    def _print(self, report: VerificationReport) -> None:
        if self.printer.is_json:
            self.printer.print_json(report)
            return
        for finding in report.findings:
            self.printer.print_line(str(finding))
        for note in report.notes:
            self.printer.print_line(f"note: {note}")
        verdict = "verification FAILED" if report.findings else "verified"
        counts = f"{report.records} records in {report.chains} chains, {report.checkpoints} checkpoints"
        self.printer.print_line(f"{verdict}: {counts}; last checkpoint: {report.head or 'none'}")

    async def checkpoint(self) -> int:
        last = await self._read(tables.last_checkpoint)
        if last is None:
            raise UsageError("the audit log has no checkpoint yet")
        self.printer.print_value({"checkpoint": str(last.head)}, str(last.head))
        return 0

    async def list_records(self) -> int:
        query = self._build_filter()
        result = await self._read(lambda tx: newest_events(tx, query, self.arguments.limit))
        plain = self.printer.is_json
        if not plain:
            # Name the store, since a running server may use another one.
            self.printer.print_error(f"records from {self.store if '://' not in self.store else 'the store'}")
        items = [_to_json_object(record) if plain else record for _, record in result]
        self.printer.print_rows(items, HEADINGS, _row, empty="no records")
        return 0

    async def export(self) -> int:
        query, form = self._build_filter(), self.arguments.export_format
        write = FORMATTERS[form]
        # Names of clients and tools are foreign text: a terminal must not interpret it, and a file has the exact bytes.
        escape = escape_json if is_terminal(sys.stdout) else str

        def lines(tx: Transaction) -> None:
            with report_write_errors():
                for stored, record in iter_by_chain(tx, query):
                    sys.stdout.write(escape(write(stored, record)) + "\n")
                if form == "jsonl" and query == AuditFilter():
                    # A complete export includes the signed checkpoints, so that the file can be verified on its own.
                    sys.stdout.writelines(
                        escape(checkpoint_line(checkpoint)) + "\n" for checkpoint in tables.iter_checkpoints(tx)
                    )

        await self._read(lines)
        return 0

    def _build_filter(self) -> AuditFilter:
        arguments = self.arguments
        times = {
            name: parse_moment(text) for name in ("since", "until") if (text := getattr(arguments, name)) is not None
        }
        return AuditFilter(**times, principal=arguments.principal, tool=arguments.target, outcome=arguments.outcome)


ACTIONS: dict[str, Callable[[AuditCommand], Awaitable[int]]] = {
    "verify": AuditCommand.verify,
    "list": AuditCommand.list_records,
    "export": AuditCommand.export,
    "checkpoint": AuditCommand.checkpoint,
}


def _to_json_object(record: AuditEvent) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {"time": format_timestamp(record.at), **fields}


def _row(record: AuditEvent) -> tuple[str, ...]:
    return (
        format_timestamp(record.at),
        record.principal or record.client or "-",
        record.method or record.kind,
        f"{record.owner}.{record.name}" if record.name else record.owner,
        f"{record.outcome} {record.error}".strip(),
        record.rule,
        f"{record.micros / 1000:.1f}" if record.method else "",
    )
