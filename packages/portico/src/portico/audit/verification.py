"""Verification of audit chains: finds the first record that was tampered with, and how.

Signed data is trusted; everything else is compared with it. Unsigned records at the end are not tampering: they were
written since the last checkpoint, or by a process that was killed.
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
    Checkpoint,
    CheckpointRef,
    HashPrefixes,
    RetentionPoint,
    SignedCheckpoint,
    parse_checkpoint,
)
from portico.audit.hash_chain import HASH_PREFIX_BYTES, ChainHead, genesis_hash, hash_prefixes
from portico.audit.signing_keys import TrustedKeys

TamperingKind = Literal["changed", "removed", "reordered", "inserted", "truncated", "rolled back"]
Row = tuple[int, int, str, str]
"Number, time, body and hash of a record."


class Tampering(Struct, frozen=True, omit_defaults=True):
    """One tampering: its kind, and the first affected record or checkpoint."""

    kind: TamperingKind
    description: str
    chain: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.description}"


class VerificationReport(Struct, omit_defaults=True):
    """Result of a verification."""

    findings: list[Tampering] = []
    notes: list[str] = []
    records: int = 0
    chains: int = 0
    checkpoints: int = 0
    # The last checkpoint, to be stored elsewhere.
    head: str = ""


class SignedChain:
    """State of one chain according to the signed checkpoints."""

    def __init__(self) -> None:
        self.last = ChainHead(0, "")
        # In ascending order of their numbers.
        self.heads: list[ChainHead] = []
        self.hash_prefixes: list[HashPrefixes] = []
        self.start: ChainHead | None = None

    def first_mismatch(self, first: int, digests: list[bytes]) -> int | None:
        """Return the number of the first record whose hash differs from the signed one, or None."""
        end = first + len(digests)
        # Only the signed heads and prefixes of this page are compared; a chain may have millions of records.
        low, high = bisect_left(self.heads, first, key=_number), bisect_left(self.heads, end, key=_number)
        mismatches = [head.number for head in self.heads[low:high] if digests[head.number - first].hex() != head.hash]
        prefixes = hash_prefixes(digests)
        for part in self.hash_prefixes[max(0, bisect_left(self.hash_prefixes, first, key=_first) - 1) :]:
            if part.first >= end:
                break
            start, stop = max(part.first, first), min(part.first + len(part.marks) // HASH_PREFIX_BYTES, end)
            ours = prefixes[(start - first) * HASH_PREFIX_BYTES : (stop - first) * HASH_PREFIX_BYTES]
            theirs = part.marks[(start - part.first) * HASH_PREFIX_BYTES : (stop - part.first) * HASH_PREFIX_BYTES]
            if start < stop and ours != theirs:
                at = next(at for at in range(len(ours)) if ours[at] != theirs[at])
                mismatches.append(start + at // HASH_PREFIX_BYTES)
        return min(mismatches, default=None)


_number, _first = attrgetter("number"), attrgetter("first")


class CheckpointVerifier:
    """Verifier of checkpoints in order. `chains` collects the signed state of each chain."""

    def __init__(self, keys: TrustedKeys, expected: CheckpointRef | None = None) -> None:
        self.chains: dict[str, SignedChain] = {}
        self.finding: Tampering | None = None
        self.count = 0
        self.last: SignedCheckpoint | None = None
        self._keys = keys
        self._expected = expected
        self._met_expected = expected is None
        self._first_checkpoint: Checkpoint | None = None
        self._cut = RetentionPoint()

    def add(self, stored: SignedCheckpoint) -> None:
        """Check the next checkpoint."""
        self.count += 1
        checkpoint = parse_checkpoint(stored.body)
        if checkpoint is None or checkpoint.number != stored.number:
            self._report("changed", stored.number, "was changed")
        elif not self._keys.has(checkpoint.key):
            self._report("changed", stored.number, f"is signed with an unknown key ({checkpoint.key})")
        elif not self._keys.verify(checkpoint.key, stored.body.encode(), stored.signature):
            self._report("changed", stored.number, "does not match its signature")
        else:
            self._check_sequence(checkpoint)
            self._accept(checkpoint)
        expected = self._expected
        if expected is not None and stored.number == expected.number:
            self._met_expected = True
            if stored.hash != expected.hash:
                other = "differs from the one that was written: an older copy was restored and written to since"
                self._report("rolled back", stored.number, other)
        self.last = stored

    def _check_sequence(self, checkpoint: Checkpoint) -> None:
        previous = self.last
        if previous is None:
            self._first_checkpoint = checkpoint
            return
        follows = checkpoint.previous == previous.hash
        if checkpoint.number != previous.number + 1:
            missing = previous.number + 1
            if follows:
                description = f"to {checkpoint.number - 1} were written, and an older copy of the store was restored"
                self._report("rolled back", missing, description)
            else:
                self._report("removed", missing, f"is missing ({missing} to {checkpoint.number - 1} do not exist)")
        elif not follows:
            self._report("changed", previous.number, f"is not the one that checkpoint {checkpoint.number} followed")

    def _accept(self, checkpoint: Checkpoint) -> None:
        for name, head in checkpoint.heads.items():
            signed = self.chains.setdefault(name, SignedChain())
            signed.heads.append(head)
            # Checkpoints of several processes may arrive out of order within a chain.
            if head.number >= signed.last.number:
                signed.last = head
        for name, part in checkpoint.marks.items():
            self.chains.setdefault(name, SignedChain()).hash_prefixes.append(part)
        if checkpoint.cut is not None:
            self._cut = checkpoint.cut
            for name, start in checkpoint.cut.chains.items():
                signed = self.chains.setdefault(name, SignedChain())
                signed.start = start
                if start.number >= signed.last.number:
                    signed.last = start

    def finish(self) -> None:
        """Check that the first and the last checkpoint are the expected ones."""
        first, last = self._first_checkpoint, self.last
        if first is not None and (first.number, first.previous) != (self._cut.first, self._cut.previous):
            damage: TamperingKind = "removed" if first.number > self._cut.first else "inserted"
            self._report(damage, min(first.number, self._cut.first), "is not the expected first checkpoint")
        expected = self._expected
        if expected is not None and not self._met_expected and (last is None or last.number < expected.number):
            end = "no checkpoint exists" if last is None else f"the last one is {last.number}"
            gone = f"was written, but {end}: an older copy was restored, or the end was cut off"
            self._report("rolled back", expected.number, gone)

    def _report(self, kind: TamperingKind, number: int, description: str) -> None:
        # Only the earliest is reported: the others usually follow from it.
        if self.finding is None or number < self.finding.number:
            self.finding = Tampering(kind, f"checkpoint {number} {description}", number=number)


class _RecordPosition(Struct):
    number: int
    at: int


_position_decoder = msgspec.json.Decoder(_RecordPosition)


class ChainVerifier:
    """Verifier of the records of one chain, in order of their numbers."""

    def __init__(self, name: str, signed: SignedChain | None) -> None:
        self.name = name
        self.finding: Tampering | None = None
        self.count = 0
        self._signed = signed or SignedChain()
        start = self._signed.start
        self._is_known = signed is not None
        self._number = 0 if start is None else start.number
        self._hash = genesis_hash(name) if start is None else bytes.fromhex(start.hash)
        self._kind = ""

    def add(self, rows: list[Row]) -> None:
        """Check more records. After the first error the rest is skipped, because it depends on it."""
        self.count += len(rows)
        if self.finding is not None:
            return
        if not self._is_known:
            self._report("inserted", rows[0][0], "is in a chain that no checkpoint covers")
            return
        before, first = self._hash, self._number + 1
        digests: list[bytes] = []
        stopped: int | None = None
        for at, (number, moment, body, hash) in enumerate(rows):
            raw = body.encode()
            before = sha256(before + raw).digest()
            # The number and time inside the hashed body must match the columns, which are not hashed.
            if number != first + at or before.hex() != hash or not _matches_row(raw, number, moment):
                stopped = at
                break
            digests.append(before)
        # Signed hashes first: an attacker with write access can recompute every unsigned hash after a change.
        wrong = self._signed.first_mismatch(first, digests)
        if wrong is not None:
            self._explain(rows, wrong - first, first)
        elif stopped is not None:
            self._explain(rows, stopped, first)
        else:
            self._number, self._hash = first + len(rows) - 1, before

    def _explain(self, rows: list[Row], at: int, first: int) -> None:
        """Report the kind of tampering with the record that is expected at this position."""
        number, expected = rows[at][0], first + at
        inside, after = _number_in(rows[at][2]), _number_in(rows[at + 1][2]) if at + 1 < len(rows) else None
        if number > expected and any(row[0] == expected for row in rows[at:]):
            self._report("reordered", expected, f"is out of order: found record {number} instead")
        elif number > expected:
            description = "is missing" if number == expected + 1 else f"and those up to {number - 1} are missing"
            self._report("removed", expected, description)
        elif number < expected:
            cut = self._signed.start is not None and number <= self._signed.start.number
            description = (
                "was deleted earlier, according to a checkpoint, and is present again" if cut else "is there twice"
            )
            self._report("inserted", number, description)
        # An inserted record pushes the real one, whose body has the expected number, to the next position.
        elif after == expected and (inside is None or inside <= expected):
            self._report("inserted", expected, "was not written by the server")
        elif inside is not None and inside != expected:
            self._report("reordered", expected, f"is out of order: found record {inside} instead")
        else:
            self._report("changed", expected, "was changed")

    def finish(self) -> None:
        """Check that no signed record is missing at the end."""
        last = self._signed.last
        if self.finding is not None:
            return
        if self._number < last.number:
            missing = last.number - self._number
            gone = f"and the following ones are missing: {missing} signed records"
            self._report("truncated", self._number + 1, gone)
        # A closed chain gets no more records: its process has ended.
        elif last.ended and self._number > last.number:
            self._report("inserted", last.number + 1, "follows the end of its chain")

    @property
    def unsigned_count(self) -> int:
        """Return the number of records that no checkpoint has signed yet."""
        return max(0, self._number - self._signed.last.number)

    @property
    def is_open(self) -> bool:
        """Return whether the chain has no end marker."""
        return not self._signed.last.ended and self._number > 0

    def _report(self, kind: TamperingKind, number: int, description: str) -> None:
        self.finding = Tampering(kind, f"record {number} of the chain {self.name} {description}", self.name, number)


def _matches_row(raw: bytes, number: int, moment: int) -> bool:
    try:
        position = _position_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return position.number == number and position.at == moment


def _number_in(body: str) -> int | None:
    try:
        return _position_decoder.decode(body).number
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def build_report(checkpoints: CheckpointVerifier, checks: Iterable[ChainVerifier]) -> VerificationReport:
    """Build the build_report. `checks` is consumed after the checkpoints were read."""
    result = VerificationReport(
        checkpoints=checkpoints.count, head="" if checkpoints.last is None else str(checkpoints.last.ref)
    )
    if checkpoints.finding is not None:
        result.findings.append(checkpoints.finding)
    for check in checks:
        result.records += check.count
        result.chains += 1 if check.count else 0
        if check.finding is not None:
            result.findings.append(check.finding)
            continue
        if check.unsigned_count:
            result.notes.append(
                f"the chain {check.name} ends with {check.unsigned_count} records that no checkpoint has signed yet"
            )
        if check.is_open:
            result.notes.append(
                f"the chain {check.name} has no end marker: its process is still running, or was killed and may "
                "have lost its most recent records"
            )
    return result
