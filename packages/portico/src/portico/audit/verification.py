"""Verifying: the first record that is not what was written, and what happened to it.

What is signed is believed; all else is compared with it. A tail that no checkpoint has signed yet is no tampering: a
process writes it between two checkpoints, and one that was killed leaves it behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from hashlib import sha256
from operator import attrgetter
from typing import Literal

import msgspec
from msgspec import Struct

from portico.audit.checkpoints import (
    ChainMarks,
    Checkpoint,
    Cut,
    ExpectedHead,
    StoredCheckpoint,
    read_checkpoint,
)
from portico.audit.hash_chain import MARK_BYTES, ChainHead, marks, origin
from portico.audit.signing_keys import TrustedKeys

Damage = Literal["changed", "removed", "reordered", "inserted", "cut off", "put back"]
Row = tuple[int, int, str, str]
"""The number, moment, body and hash of a record."""


class Tampering(Struct, frozen=True, omit_defaults=True):
    """What is wrong, and the first record or checkpoint of which it is so."""

    damage: Damage
    what: str
    chain: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.damage}: {self.what}"


class AuditReport(Struct, omit_defaults=True):
    """What verifying came to."""

    found: list[Tampering] = []
    notes: list[str] = []
    records: int = 0
    chains: int = 0
    checkpoints: int = 0
    # The last checkpoint, to be kept elsewhere.
    head: str = ""


class SignedChain:
    """What the checkpoints say of one chain."""

    def __init__(self) -> None:
        self.last = ChainHead(0, "")
        # By their numbers, which grow.
        self.heads: list[ChainHead] = []
        self.marks: list[ChainMarks] = []
        self.start: ChainHead | None = None

    def first_wrong(self, first: int, digests: list[bytes]) -> int | None:
        """The first of consecutive records whose hash is not the one that was signed."""
        end = first + len(digests)
        low, high = bisect_left(self.heads, first, key=_number), bisect_left(self.heads, end, key=_number)
        wrong = [one.number for one in self.heads[low:high] if digests[one.number - first].hex() != one.hash]
        made = marks(digests)
        for part in self.marks[max(0, bisect_left(self.marks, first, key=_first) - 1) :]:
            if part.first >= end:
                break
            start, stop = max(part.first, first), min(part.first + len(part.marks) // MARK_BYTES, end)
            ours = made[(start - first) * MARK_BYTES : (stop - first) * MARK_BYTES]
            theirs = part.marks[(start - part.first) * MARK_BYTES : (stop - part.first) * MARK_BYTES]
            if start < stop and ours != theirs:
                at = next(at for at in range(len(ours)) if ours[at] != theirs[at])
                wrong.append(start + at // MARK_BYTES)
        return min(wrong, default=None)


_number, _first = attrgetter("number"), attrgetter("first")


class CheckpointCheck:
    """Reads checkpoints in their order. What the believed ones say of the chains is in `chains`."""

    def __init__(self, keys: TrustedKeys, expected: ExpectedHead | None = None) -> None:
        self.chains: dict[str, SignedChain] = {}
        self.found: Tampering | None = None
        self.count = 0
        self.last: StoredCheckpoint | None = None
        self._keys = keys
        self._expected = expected
        self._met_expected = expected is None
        self._first: Checkpoint | None = None
        self._cut = Cut()

    def feed(self, stored: StoredCheckpoint) -> None:
        self.count += 1
        said = read_checkpoint(stored.body)
        if said is None or said.number != stored.number:
            self._find("changed", stored.number, "is not what was written")
        elif not self._keys.knows(said.key):
            self._find("changed", stored.number, f"is signed with a key that is not known here ({said.key})")
        elif not self._keys.verifies(said.key, stored.body.encode(), stored.signature):
            self._find("changed", stored.number, "is not what was signed")
        else:
            self._follow(said)
            self._believe(said)
        expected = self._expected
        if expected is not None and stored.number == expected.number:
            self._met_expected = True
            if stored.hash != expected.hash:
                other = "is another than the one that was written: an older copy was put back, and written to since"
                self._find("put back", stored.number, other)
        self.last = stored

    def _follow(self, said: Checkpoint) -> None:
        before = self.last
        if before is None:
            self._first = said
            return
        follows = said.previous == before.hash
        if said.number != before.number + 1:
            missing = before.number + 1
            if follows:
                gone = f"to {said.number - 1} were written, and an older copy of the store was put back"
                self._find("put back", missing, gone)
            else:
                self._find("removed", missing, f"is missing ({missing} to {said.number - 1} are not there)")
        elif not follows:
            self._find("changed", before.number, f"is another than the one that checkpoint {said.number} followed")

    def _believe(self, said: Checkpoint) -> None:
        for name, head in said.heads.items():
            signed = self.chains.setdefault(name, SignedChain())
            signed.heads.append(head)
            if head.number >= signed.last.number:
                signed.last = head
        for name, part in said.marks.items():
            self.chains.setdefault(name, SignedChain()).marks.append(part)
        if said.cut is not None:
            self._cut = said.cut
            for name, start in said.cut.chains.items():
                signed = self.chains.setdefault(name, SignedChain())
                signed.start = start
                if start.number >= signed.last.number:
                    signed.last = start

    def end(self) -> None:
        """All have been read: is the first the one that should be, and the last?"""
        first, last = self._first, self.last
        if first is not None and (first.number, first.previous) != (self._cut.first, self._cut.previous):
            damage: Damage = "removed" if first.number > self._cut.first else "inserted"
            self._find(damage, min(first.number, self._cut.first), "is not where the checkpoints begin")
        expected = self._expected
        if expected is not None and not self._met_expected and (last is None or last.number < expected.number):
            end = "there is none" if last is None else f"the last one is {last.number}"
            gone = f"was written, and {end}: an older copy was put back, or the end was cut off"
            self._find("put back", expected.number, gone)

    def _find(self, damage: Damage, number: int, what: str) -> None:
        if self.found is None or number < self.found.number:
            self.found = Tampering(damage, f"checkpoint {number} {what}", number=number)


class _RecordPlace(Struct):
    number: int
    at: int


_place = msgspec.json.Decoder(_RecordPlace)


class ChainCheck:
    """Reads the records of one chain in the order of their numbers."""

    def __init__(self, name: str, signed: SignedChain | None) -> None:
        self.name = name
        self.found: Tampering | None = None
        self.count = 0
        self._signed = signed or SignedChain()
        start = self._signed.start
        self._is_known = signed is not None
        self._number = 0 if start is None else start.number
        self._hash = origin(name) if start is None else bytes.fromhex(start.hash)
        self._kind = ""

    def feed(self, rows: list[Row]) -> None:
        """Some more of them. After the first that is wrong nothing is looked at: what follows hangs on it."""
        self.count += len(rows)
        if self.found is not None:
            return
        if not self._is_known:
            self._find("inserted", rows[0][0], "is in a chain that no checkpoint knows")
            return
        before, first = self._hash, self._number + 1
        digests: list[bytes] = []
        stopped: int | None = None
        for at, (number, moment, body, hash) in enumerate(rows):
            raw = body.encode()
            before = sha256(before + raw).digest()
            if number != first + at or before.hex() != hash or not _is_at(raw, number, moment):
                stopped = at
                break
            digests.append(before)
        wrong = self._signed.first_wrong(first, digests)
        if wrong is not None:
            self._explain(rows, wrong - first, first)
        elif stopped is not None:
            self._explain(rows, stopped, first)
        else:
            self._number, self._hash = first + len(rows) - 1, before

    def _explain(self, rows: list[Row], at: int, first: int) -> None:
        """What happened to the record that should stand here."""
        number, expected = rows[at][0], first + at
        inside, after = _number_in(rows[at][2]), _number_in(rows[at + 1][2]) if at + 1 < len(rows) else None
        if number > expected and any(row[0] == expected for row in rows[at:]):
            self._find("reordered", expected, f"is not in its place: record {number} stands there")
        elif number > expected:
            others = "is missing" if number == expected + 1 else f"and those up to {number - 1} are missing"
            self._find("removed", expected, others)
        elif number < expected:
            cut = self._signed.start is not None and number <= self._signed.start.number
            again = "was taken away before, as a checkpoint says, and is there again" if cut else "is there twice"
            self._find("inserted", number, again)
        elif after == expected and (inside is None or inside <= expected):
            self._find("inserted", expected, "was not written by the server")
        elif inside is not None and inside != expected:
            self._find("reordered", expected, f"is not in its place: record {inside} stands there")
        else:
            self._find("changed", expected, "is not what was written")

    def end(self) -> None:
        last = self._signed.last
        if self.found is not None:
            return
        if self._number < last.number:
            missing = last.number - self._number
            self._find("cut off", self._number + 1, f"and what followed is gone: {missing} that were signed")
        elif last.ended and self._number > last.number:
            self._find("inserted", last.number + 1, "comes after the end of its chain")

    @property
    def unsigned(self) -> int:
        return max(0, self._number - self._signed.last.number)

    @property
    def is_open(self) -> bool:
        return not self._signed.last.ended and self._number > 0

    def _find(self, damage: Damage, number: int, what: str) -> None:
        self.found = Tampering(damage, f"record {number} of the chain {self.name} {what}", self.name, number)


def _is_at(raw: bytes, number: int, moment: int) -> bool:
    try:
        said = _place.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return said.number == number and said.at == moment


def _number_in(body: str) -> int | None:
    try:
        return _place.decode(body).number
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def report(checkpoints: CheckpointCheck, checks: Iterable[ChainCheck]) -> AuditReport:
    """All of it. `checks` are read one by one, after the checkpoints have been."""
    done = AuditReport(
        checkpoints=checkpoints.count, head="" if checkpoints.last is None else str(checkpoints.last.head)
    )
    if checkpoints.found is not None:
        done.found.append(checkpoints.found)
    for one in checks:
        done.records += one.count
        done.chains += 1 if one.count else 0
        if one.found is not None:
            done.found.append(one.found)
            continue
        if one.unsigned:
            done.notes.append(
                f"the chain {one.name} ends with {one.unsigned} records that no checkpoint has signed yet"
            )
        if one.is_open:
            done.notes.append(
                f"the chain {one.name} has no end: its process still runs, or was killed, and then what it had not "
                "written within the last moments is lost"
            )
    return done
