"""Audit log in a file, for a service with its own log: chained and signed like the log of a server.

One process writes to it and resumes after a restart. Full files are renamed to `file.1`, `file.2`, …
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.audit import hash_chain
from portico.audit.checkpoints import (
    GENESIS_HASH,
    ChainProgress,
    Checkpoint,
    CheckpointFile,
    CheckpointRef,
    hash_checkpoint,
    parse_checkpoint,
    sign_checkpoint,
)
from portico.audit.hash_chain import ChainHead
from portico.audit.jsonl import AuditLine, checkpoint_line, read_line, record_line, verify_files
from portico.audit.records import AuditEvent
from portico.audit.signing_keys import (
    PUBLIC_KEYS_FILE,
    AuditSigningKey,
    TrustedKeys,
    load_or_create_key,
    load_public_keys,
)
from portico.audit.verification import Tampering, VerificationReport
from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import to_line

# Small enough to open in an editor; older parts stay next to it.
MAX_FILE_BYTES = 10 * 2**20
# A signature takes as long as writing dozens of records; unsigned records can be changed unnoticed.
RECORDS_PER_CHECKPOINT = 1000
# Bytes read from the end to resume: more than a thousand records and their checkpoint.
_TAIL_BYTES = 4 * 2**20
_LEGACY_GENESIS_HASH = "0" * 64


class ChainedRecord(Struct, frozen=True):
    """A record with its position in the chain."""

    record: AuditEvent
    previous: str
    hash: str
    # Number of bytes written.
    size: int


class AuditLogFile:
    """Audit log file. A file of more than `max_bytes` is rotated. Without a signing key it is only a hash chain."""

    def __init__(self, path: Path, service: str, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._service = service
        self._max_bytes = max_bytes
        self._key = _key(path.parent)
        self._head = CheckpointFile(path.parent, str(path))
        self._chain = hash_chain.new_chain_id()
        self._number = 0
        self._last_hash = hash_chain.genesis_hash(self._chain)
        self._unsigned: list[bytes] = []
        # Number and hash of the last checkpoint, and whether a checkpoint covers the existing records.
        self._checkpoint_number, self._checkpoint_hash = 0, GENESIS_HASH
        self._is_signed = False
        # The last hash of a preceding log in the legacy format.
        self._follows = ""
        self._resume()
        if self._follows:
            note = {"follows": self._follows}
            self.append(AuditEvent(number=0, at=time.time_ns() // 1000, kind="begin", note=note))

    def append(self, record: AuditEvent) -> ChainedRecord:
        """Append a record, assigning its number. Raises OSError."""
        lines = [] if self._is_signed else [self._checkpoint_line()] if self._number else []
        previous = self._last_hash.hex()
        record = replace(record, number=self._number + 1, owner=self._service)
        body = to_line(msgspec.json.encode(record))
        last = hash_chain.chain_hash(self._last_hash, body)
        lines.append(record_line(self._chain, last.hex(), body.decode()))
        self._number, self._last_hash = record.number, last
        self._unsigned.append(last)
        # The first record is signed immediately, so that a new log cannot be replaced by an empty one.
        if not self._is_signed or len(self._unsigned) >= RECORDS_PER_CHECKPOINT:
            lines.append(self._checkpoint_line())
        size = self._write([line for line in lines if line])
        self._is_signed = True
        return ChainedRecord(record, previous, last.hex(), size)

    def close(self) -> None:
        """Sign the records that are not signed yet."""
        if self._unsigned:
            line = self._checkpoint_line()
            self._write([line] if line else [])

    def _checkpoint_line(self) -> str:
        """Return a checkpoint line that signs all records so far; empty without a key."""
        own = ChainProgress(self._chain, ChainHead(self._number, self._last_hash.hex()), self._unsigned)
        self._unsigned = []
        if self._key is None:
            return ""
        at = time.time_ns() // 1000
        heads, marks = {own.chain: own.head}, own.hash_prefixes()
        checkpoint = Checkpoint(
            self._checkpoint_number + 1, at, self._checkpoint_hash, self._key.id, self._chain, heads=heads, marks=marks
        )
        stored = sign_checkpoint(checkpoint, self._key)
        self._checkpoint_number, self._checkpoint_hash = stored.number, stored.hash
        return checkpoint_line(stored)

    def _write(self, lines: list[str]) -> int:
        if not lines:
            return 0
        data = "".join(f"{line}\n" for line in lines).encode()
        _rotate(self._path, self._max_bytes)
        # O_NOFOLLOW: a symbolic link must not redirect the log.
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(fd, "ab") as opened:
            opened.write(data)
        # After the log itself: a crash in between leaves an older checkpoint in the file, which does not indicate
        # tampering.
        if self._checkpoint_number and not self._unsigned:
            self._head.write(CheckpointRef(self._checkpoint_number, self._checkpoint_hash))
        return len(data)

    def _resume(self) -> None:
        """Resume at the end of the log. If it is unreadable, start another chain, which verification reports."""
        result = log_file_parts(self._path)
        if not result:
            return
        lines = [read_line(line) for line in _read_tail(result[-1])]
        if lines and all(item is not None and not item.chain and not item.checkpoint for item in lines):
            # Legacy format: continue in the new format, in a new file.
            self._follows = lines[-1].hash if lines[-1] is not None else ""
            _rotate(self._path, 0)
            return
        last = next((item for part in reversed(result) for item in _iter_records_backwards(part)), None)
        if last is None:
            return
        self._chain, self._number = last.chain, _number(last.record)
        self._last_hash = bytes.fromhex(last.hash)
        for part in reversed(result):
            checkpoints = [
                item.checkpoint for item in map(read_line, _read_tail(part)) if item is not None and item.checkpoint
            ]
            checkpoint = parse_checkpoint(checkpoints[-1]) if checkpoints else None
            if checkpoint is not None:
                self._checkpoint_number, self._checkpoint_hash = checkpoint.number, hash_checkpoint(checkpoints[-1])
                return


def _key(folder: Path) -> AuditSigningKey | None:
    try:
        return load_or_create_key(folder)
    except UsageError:
        return None


def _iter_records_backwards(part: Path) -> list[AuditLine]:
    """Return the last records of a file, newest first."""
    return [item for item in map(read_line, reversed(_read_tail(part))) if item is not None and item.chain]


def _number(body: Raw) -> int:
    return msgspec.json.decode(body, type=AuditEvent).number


def _read_tail(path: Path) -> list[bytes]:
    """Return the complete lines at the end of a file."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        opened.seek(max(0, size - _TAIL_BYTES))
        lines = opened.read(_TAIL_BYTES).splitlines()
    # The first line of a cut tail is incomplete.
    return lines if size <= _TAIL_BYTES else lines[1:]


# Files


def log_file_parts(file: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    result = {int(path.suffix[1:]): path for path in file.parent.glob(f"{file.name}.*") if path.suffix[1:].isdecimal()}
    return [result[number] for number in sorted(result)] + ([file] if file.exists() else [])


def _rotate(path: Path, max_bytes: int) -> None:
    if path.exists() and path.stat().st_size > max_bytes:
        last = log_file_parts(path)[:-1]
        number = int(last[-1].suffix[1:]) + 1 if last else 1
        path.rename(path.with_name(f"{path.name}.{number}"))


# Verification


def verify_log_file(file: Path) -> VerificationReport:
    """Verify a log from its first record on, including parts in the legacy format."""
    # Read before the log, which may grow in the meantime.
    expected = CheckpointFile(file.parent, str(file)).read()
    parts = log_file_parts(file)
    legacy = [part for part in parts if _is_legacy(part)]
    changed_number = _verify_legacy(legacy)
    public = file.parent / PUBLIC_KEYS_FILE
    keys = TrustedKeys(load_public_keys(public) if public.exists() else [])
    report = verify_files([part for part in parts if part not in legacy], keys)
    if changed_number is not None:
        report.findings.insert(
            0, Tampering("changed", f"record {changed_number} of {file.name} was changed", number=changed_number)
        )
    report.records += sum(1 for _ in _legacy_lines(legacy))
    finding = _check_continuation(file, legacy, [part for part in parts if part not in legacy])
    head = CheckpointRef.parse(report.head) if report.head else CheckpointRef(0, "")
    if finding is not None:
        report.findings.append(finding)
    if expected is not None and (
        head.number < expected.number or (head.number == expected.number and head != expected)
    ):
        message = f"checkpoint {expected.number} of {file.name} was written but is missing: an older copy was restored"
        report.findings.append(Tampering("rolled back", message, number=expected.number))
    return report


def _check_continuation(file: Path, legacy: list[Path], others: list[Path]) -> Tampering | None:
    """Check that the new format continues the legacy part; return the tampering otherwise."""
    first = _first_line(others[0]) if others else None
    note = _parse_note(first.record) if first is not None else {}
    last = [read_line(line) for line in _legacy_lines(legacy)][-1:]
    hash = last[0].hash if last and last[0] is not None else ""
    if note.get("follows", "") == hash or not others:
        return None
    return Tampering("removed", f"the legacy records of {file.name} are not the ones that its newer part continues")


def _first_line(part: Path) -> AuditLine | None:
    with part.open("rb") as opened:
        return read_line(opened.readline())


def _parse_note(body: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=AuditEvent).note
    except (msgspec.DecodeError, RecursionError):
        return {}


class _LegacyRecord(Struct, rename="camel"):
    """Record in the legacy format: its hash covers itself with an empty hash."""

    number: int
    time: str
    tool: str
    outcome: str
    arguments: dict[str, object]
    previous: str
    hash: str = ""


def _is_legacy(part: Path) -> bool:
    line = _first_line(part)
    return line is None or (not line.chain and not line.checkpoint)


def _legacy_lines(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        with part.open("rb") as opened:
            yield from opened


def _verify_legacy(parts: list[Path]) -> int | None:
    expected, previous = 1, _LEGACY_GENESIS_HASH
    for line in _legacy_lines(parts):
        try:
            record = msgspec.json.decode(line, type=_LegacyRecord)
        except (msgspec.DecodeError, RecursionError):
            return expected
        # The legacy hash covers the record with an empty hash field.
        bare = msgspec.json.encode(replace(record, hash=""))
        if record.hash != hashlib.sha256(bare).hexdigest() or record.previous != previous:
            return record.number
        expected, previous = record.number + 1, record.hash
    return None
