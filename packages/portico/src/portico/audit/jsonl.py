"""An audit as JSON lines, one record or checkpoint a line: write, read and verify them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from portico.audit.checkpoints import ExpectedHead, StoredCheckpoint
from portico.audit.signing_keys import TrustedKeys
from portico.audit.verification import (
    AuditReport,
    ChainCheck,
    CheckpointCheck,
    Row,
    SignedChain,
    Tampering,
    report,
)
from portico.protocol.errors import UsageError

PAGE = 10_000
LONGEST_LINE = 1024 * 1024


class AuditLine(Struct):
    """A line of a sink or an export: a record in its place, or a checkpoint."""

    chain: str = ""
    hash: str = ""
    record: Raw = Raw()
    checkpoint: str = ""
    signature: str = ""


def record_line(chain: str, hash: str, body: str) -> str:
    """Return the line of a record. `body` is the JSON that was hashed, and stays as it is."""
    return f'{{"chain":"{chain}","hash":"{hash}","record":{body}}}'


def checkpoint_line(stored: StoredCheckpoint) -> str:
    """Return the line of a checkpoint."""
    return msgspec.json.encode({"signature": stored.signature, "checkpoint": stored.body}).decode()


class _NumberedRecord(Struct):
    number: int
    at: int = 0


_line = msgspec.json.Decoder(AuditLine)
_numbered = msgspec.json.Decoder(_NumberedRecord)


def verify_files(paths: list[Path], keys: TrustedKeys, expected: ExpectedHead | None = None) -> AuditReport:
    """The audit in files of JSON lines, in their order."""
    # One who keeps no store numbers its checkpoints for itself.
    groups: dict[str, CheckpointCheck] = {"": CheckpointCheck(keys, expected)}
    for _, line in _lines(paths):
        if line is not None and line.checkpoint:
            stored, chain = _checkpoint(line)
            groups.setdefault(chain, CheckpointCheck(keys)).feed(stored)
    for one in groups.values():
        one.end()
    checks: dict[str, ChainCheck] = {}
    broken: list[Tampering] = []
    # Where nothing can be signed, a chain is all there is.
    unsigned = None if len(keys) else SignedChain()
    known = {name: signed for one in groups.values() for name, signed in one.chains.items()}
    for name in known:
        checks[name] = ChainCheck(name, known[name])
    pages: dict[str, list[Row]] = {}
    for where, line in _lines(paths):
        row = None if line is None else _row(line)
        if line is None or (row is None and not line.checkpoint):
            broken.append(Tampering("changed", f"{where} is not a line of an audit"))
        elif row is not None:
            page = pages.setdefault(line.chain, [])
            page.append(row)
            if len(page) >= PAGE:
                checks.setdefault(line.chain, ChainCheck(line.chain, unsigned)).feed(page)
                pages[line.chain] = []
    for name, page in pages.items():
        if page:
            checks.setdefault(name, ChainCheck(name, unsigned)).feed(page)
    for check in checks.values():
        check.end()
    last = groups[""] if groups[""].count else list(groups.values())[-1]
    done = report(groups[""], checks.values())
    done.head = "" if last.last is None else str(last.last.head)
    for name, one in groups.items():
        if name and one.found is not None:
            done.found.append(one.found)
        done.checkpoints += one.count if name else 0
    done.found += broken[:1]
    return done


def _checkpoint(line: AuditLine) -> tuple[StoredCheckpoint, str]:
    try:
        number = _numbered.decode(line.checkpoint).number
        chain = msgspec.json.decode(line.checkpoint, type=AuditLine).chain
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        number, chain = 0, ""
    return StoredCheckpoint(number, line.checkpoint, line.signature), chain


def _row(line: AuditLine) -> Row | None:
    if not len(line.record):
        return None
    try:
        said = _numbered.decode(line.record)
    except (msgspec.DecodeError, RecursionError):
        return None
    return said.number, said.at, bytes(line.record).decode(), line.hash


def _lines(paths: list[Path]) -> Iterator[tuple[str, AuditLine | None]]:
    for path in paths:
        try:
            with path.open("rb") as opened:
                number = 0
                while line := opened.readline(LONGEST_LINE):
                    number += 1
                    if line.strip():
                        yield f"line {number} of {path.name}", read_line(line)
        except OSError as failure:
            raise UsageError(f"{path} cannot be read: {failure.strerror}") from None


def read_line(line: bytes) -> AuditLine | None:
    try:
        return _line.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
