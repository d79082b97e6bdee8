"""An audit in a file, for a service that keeps one of its own, wherever it is served: the same records, chained and
signed as those of a server.

One process writes to it. It goes on where it ended, and a file that is full is put aside as `file.1`, `file.2`, …
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
    FIRST,
    Checkpoint,
    ExpectedHead,
    HeadFile,
    OwnPart,
    checkpoint_hash,
    read_checkpoint,
    signed,
)
from portico.audit.hash_chain import ChainHead
from portico.audit.jsonl import AuditLine, checkpoint_line, read_line, record_line, verify_files
from portico.audit.records import CallRecord
from portico.audit.signing_keys import PUBLIC, AuditKey, TrustedKeys, load_or_make, read_public
from portico.audit.verification import AuditReport, Tampering
from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import to_line

LARGEST_FILE = 10 * 2**20
CHECKPOINT_RECORDS = 1000
# What is read of the end, to go on there: more than a thousand records and their checkpoint.
_TAIL = 4 * 2**20
_OLD_START = "0" * 64


class ChainedRecord(Struct, frozen=True):
    """A record in its place."""

    record: CallRecord
    previous: str
    hash: str
    # How many bytes were written.
    size: int


class FileTrail:
    """`largest`: at how many bytes a file is put aside. Where nothing can sign, it is a chain and no more."""

    def __init__(self, file: Path, owner: str, largest: int = LARGEST_FILE) -> None:
        self._file = file
        self._owner = owner
        self._largest = largest
        self._key = _key(file.parent)
        self._head = HeadFile(file.parent, str(file))
        self._chain = hash_chain.new_name()
        self._number = 0
        self._last = hash_chain.origin(self._chain)
        self._unsigned: list[bytes] = []
        # The number and the hash of the last checkpoint; and whether there is one that knows all that is there.
        self._seen, self._previous = 0, FIRST
        self._is_signed = False
        # The last hash of the older form that came before.
        self._follows = ""
        self._resume()
        if self._follows:
            note = {"follows": self._follows}
            self.append(CallRecord(number=0, at=time.time_ns() // 1000, kind="begin", note=note))

    def append(self, record: CallRecord) -> ChainedRecord:
        """Write a record, which is given its number. Raises OSError."""
        lines = [] if self._is_signed else [self._checkpoint()] if self._number else []
        previous = self._last.hex()
        record = replace(record, number=self._number + 1, owner=self._owner)
        body = to_line(msgspec.json.encode(record))
        last = hash_chain.link(self._last, body)
        lines.append(record_line(self._chain, last.hex(), body.decode()))
        self._number, self._last = record.number, last
        self._unsigned.append(last)
        if not self._is_signed or len(self._unsigned) >= CHECKPOINT_RECORDS:
            lines.append(self._checkpoint())
        size = self._write([one for one in lines if one])
        self._is_signed = True
        return ChainedRecord(record, previous, last.hex(), size)

    def close(self) -> None:
        """Sign what has not been signed."""
        if self._unsigned:
            line = self._checkpoint()
            self._write([line] if line else [])

    def _checkpoint(self) -> str:
        """A line that signs all so far; empty where there is no key."""
        own = OwnPart(self._chain, ChainHead(self._number, self._last.hex()), self._unsigned)
        self._unsigned = []
        if self._key is None:
            return ""
        at = time.time_ns() // 1000
        heads, marks = {own.chain: own.head}, own.marks()
        said = Checkpoint(self._seen + 1, at, self._previous, self._key.id, self._chain, heads=heads, marks=marks)
        stored = signed(said, self._key)
        self._seen, self._previous = stored.number, stored.hash
        return checkpoint_line(stored)

    def _write(self, lines: list[str]) -> int:
        if not lines:
            return 0
        data = "".join(f"{line}\n" for line in lines).encode()
        _put_aside(self._file, self._largest)
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(fd, "ab") as opened:
            opened.write(data)
        if self._seen and not self._unsigned:
            self._head.write(ExpectedHead(self._seen, self._previous))
        return len(data)

    def _resume(self) -> None:
        """Go on where it ends. What cannot be read there begins another chain, and verifying shows it."""
        found = trail_parts(self._file)
        if not found:
            return
        lines = [read_line(line) for line in _tail(found[-1])]
        if lines and all(one is not None and not one.chain and not one.checkpoint for one in lines):
            # Of an older version: it goes on in another form, in a file of its own.
            self._follows = lines[-1].hash if lines[-1] is not None else ""
            _put_aside(self._file, 0)
            return
        last = next((one for part in reversed(found) for one in _records(part)), None)
        if last is None:
            return
        self._chain, self._number = last.chain, _number(last.record)
        self._last = bytes.fromhex(last.hash)
        for part in reversed(found):
            checkpoints = [one.checkpoint for one in map(read_line, _tail(part)) if one is not None and one.checkpoint]
            said = read_checkpoint(checkpoints[-1]) if checkpoints else None
            if said is not None:
                self._seen, self._previous = said.number, checkpoint_hash(checkpoints[-1])
                return


def _key(folder: Path) -> AuditKey | None:
    try:
        return load_or_make(folder)
    except UsageError:
        return None


def _records(part: Path) -> list[AuditLine]:
    """The last ones of a file, the newest first."""
    return [one for one in map(read_line, reversed(_tail(part))) if one is not None and one.chain]


def _number(body: Raw) -> int:
    return msgspec.json.decode(body, type=CallRecord).number


def _tail(path: Path) -> list[bytes]:
    """The lines at the end of a file, all of them whole."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        opened.seek(max(0, size - _TAIL))
        lines = opened.read(_TAIL).splitlines()
    return lines if size <= _TAIL else lines[1:]


# Files


def trail_parts(file: Path) -> list[Path]:
    """The files of a trail, the oldest first."""
    found = {int(path.suffix[1:]): path for path in file.parent.glob(f"{file.name}.*") if path.suffix[1:].isdecimal()}
    return [found[number] for number in sorted(found)] + ([file] if file.exists() else [])


def _put_aside(file: Path, largest: int) -> None:
    if file.exists() and file.stat().st_size > largest:
        last = trail_parts(file)[:-1]
        number = int(last[-1].suffix[1:]) + 1 if last else 1
        file.rename(file.with_name(f"{file.name}.{number}"))


# Verifying


def verify_trail(file: Path) -> AuditReport:
    """Whether a trail is whole, from the first record on, also where it was begun in the older form."""
    # Before the trail is, which may be written to meanwhile.
    expected = HeadFile(file.parent, str(file)).read()
    parts = trail_parts(file)
    old = [part for part in parts if _is_old(part)]
    bad = _verify_old(old)
    public = file.parent / PUBLIC
    keys = TrustedKeys(read_public(public) if public.exists() else [])
    report = verify_files([part for part in parts if part not in old], keys)
    if bad is not None:
        report.found.insert(0, Tampering("changed", f"record {bad} of {file.name} is not what was written", number=bad))
    report.records += sum(1 for _ in _old_lines(old))
    bound = _bound(file, old, [part for part in parts if part not in old])
    found = ExpectedHead.parse(report.head) if report.head else ExpectedHead(0, "")
    if bound is not None:
        report.found.append(bound)
    if expected is not None and (
        found.number < expected.number or (found.number == expected.number and found != expected)
    ):
        said = f"checkpoint {expected.number} of {file.name} was written, and is not there: an older copy was put back"
        report.found.append(Tampering("put back", said, number=expected.number))
    return report


def _bound(file: Path, old: list[Path], others: list[Path]) -> Tampering | None:
    """Whether what is in the newer form follows what is in the older one."""
    first = _first_line(others[0]) if others else None
    note = _note(first.record) if first is not None else {}
    last = [read_line(line) for line in _old_lines(old)][-1:]
    hash = last[0].hash if last and last[0] is not None else ""
    if note.get("follows", "") == hash or not others:
        return None
    return Tampering("removed", f"the records of {file.name} before its newer form are not those that it followed")


def _first_line(part: Path) -> AuditLine | None:
    with part.open("rb") as opened:
        return read_line(opened.readline())


def _note(body: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=CallRecord).note
    except (msgspec.DecodeError, RecursionError):
        return {}


class _OldRecord(Struct, rename="camel"):
    """A record as it was before: its hash is that of itself with an empty one."""

    number: int
    time: str
    tool: str
    outcome: str
    arguments: dict[str, object]
    previous: str
    hash: str = ""


def _is_old(part: Path) -> bool:
    line = _first_line(part)
    return line is None or (not line.chain and not line.checkpoint)


def _old_lines(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        with part.open("rb") as opened:
            yield from opened


def _verify_old(parts: list[Path]) -> int | None:
    expected, previous = 1, _OLD_START
    for line in _old_lines(parts):
        try:
            record = msgspec.json.decode(line, type=_OldRecord)
        except (msgspec.DecodeError, RecursionError):
            return expected
        bare = msgspec.json.encode(replace(record, hash=""))
        if record.hash != hashlib.sha256(bare).hexdigest() or record.previous != previous:
            return record.number
        expected, previous = record.number + 1, record.hash
    return None
