"""Audit records and checkpoints as JSON lines: writing, reading and verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from portico.audit.checkpoints import CheckpointRef, SignedCheckpoint
from portico.audit.signing_keys import TrustedKeys
from portico.audit.verification import (
    ChainVerifier,
    CheckpointVerifier,
    Row,
    SignedChain,
    Tampering,
    VerificationReport,
    build_report,
)
from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import to_line

# Bounds memory: a page of rows is verified at a time, whatever the size of the file.
PAGE_ROWS = 10_000
# A longer line is read in parts, none of which is valid, and is reported as changed.
MAX_LINE_BYTES = 1024 * 1024


class AuditLine(Struct):
    """One line of a sink or an export: a record or a checkpoint."""

    chain: str = ""
    hash: str = ""
    record: Raw = Raw()
    checkpoint: str = ""
    signature: str = ""


def record_line(chain: str, hash: str, body: str) -> str:
    """Return the line of a record. `body` is the hashed JSON, which has no line breaks when it is written."""
    # The row comes from the database: whoever can write there must not add lines to a log file or a collector.
    row = msgspec.json.encode({"chain": chain, "hash": hash, "record": Raw(body.encode())})
    return to_line(row).decode()


def checkpoint_line(stored: SignedCheckpoint) -> str:
    """Return the line of a checkpoint."""
    return msgspec.json.encode({"signature": stored.signature, "checkpoint": stored.body}).decode()


class _RecordHeader(Struct):
    number: int
    at: int = 0


_line_decoder = msgspec.json.Decoder(AuditLine)
_header_decoder = msgspec.json.Decoder(_RecordHeader)


def verify_files(paths: list[Path], keys: TrustedKeys, expected: CheckpointRef | None = None) -> VerificationReport:
    """Verify the audit in JSON lines files, in the given order."""
    # Writers without a store number their checkpoints per chain.
    groups: dict[str, CheckpointVerifier] = {"": CheckpointVerifier(keys, expected)}
    for _, line in _lines(paths):
        if line is not None and line.checkpoint:
            stored, chain = _parse_checkpoint_line(line)
            groups.setdefault(chain, CheckpointVerifier(keys)).add(stored)
    for group in groups.values():
        group.finish()
    checks: dict[str, ChainVerifier] = {}
    broken: list[Tampering] = []
    # Without keys only the hash chain can be checked.
    unsigned = None if len(keys) else SignedChain()
    signed_chains = {name: signed for group in groups.values() for name, signed in group.chains.items()}
    # Also for chains without a record in the files, so that a removed chain is reported.
    for name in signed_chains:
        checks[name] = ChainVerifier(name, signed_chains[name])
    # The second pass: all checkpoints must be known before the first record can be compared with them.
    pages: dict[str, list[Row]] = {}
    for position, line in _lines(paths):
        row = None if line is None else _row(line)
        if line is None or (row is None and not line.checkpoint):
            broken.append(Tampering("changed", f"{position} is not a line of an audit log"))
        elif row is not None:
            page = pages.setdefault(line.chain, [])
            page.append(row)
            if len(page) >= PAGE_ROWS:
                checks.setdefault(line.chain, ChainVerifier(line.chain, unsigned)).add(page)
                pages[line.chain] = []
    for name, page in pages.items():
        if page:
            checks.setdefault(name, ChainVerifier(name, unsigned)).add(page)
    for check in checks.values():
        check.finish()
    last = groups[""] if groups[""].count else list(groups.values())[-1]
    result = build_report(groups[""], checks.values())
    result.head = "" if last.last is None else str(last.last.ref)
    for name, group in groups.items():
        if name and group.finding is not None:
            result.findings.append(group.finding)
        result.checkpoints += group.count if name else 0
    result.findings += broken[:1]
    return result


def _parse_checkpoint_line(line: AuditLine) -> tuple[SignedCheckpoint, str]:
    try:
        number = _header_decoder.decode(line.checkpoint).number
        chain = msgspec.json.decode(line.checkpoint, type=AuditLine).chain
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        number, chain = 0, ""
    return SignedCheckpoint(number, line.checkpoint, line.signature), chain


def _row(line: AuditLine) -> Row | None:
    if not len(line.record):
        return None
    try:
        row = _header_decoder.decode(line.record)
    except (msgspec.DecodeError, RecursionError):
        return None
    return row.number, row.at, bytes(line.record).decode(), line.hash


def _lines(paths: list[Path]) -> Iterator[tuple[str, AuditLine | None]]:
    for path in paths:
        try:
            with path.open("rb") as file:
                number = 0
                while line := file.readline(MAX_LINE_BYTES):
                    number += 1
                    if line.strip():
                        yield f"line {number} of {path.name}", read_line(line)
        except OSError as failure:
            raise UsageError(f"cannot read {path}: {failure.strerror}") from None


def read_line(line: bytes) -> AuditLine | None:
    try:
        return _line_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
