"""Read corrupted files with little memory. Anything but a typed error is a failure.

It runs as a separate program, so that a hang or a hunger for memory ends it and not the tests.

python system_fuzz.py journal|hive|evtx|text SEED ROUNDS FILE...
"""

from __future__ import annotations

import random
import resource
import struct
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from portico_services.system.errors import SystemToolError
from portico_services.system.logs import evtx
from portico_services.system.logs.entries import LogQuery
from portico_services.system.logs.evtx import EvtxLog
from portico_services.system.logs.journal.file import JournalFile
from portico_services.system.logs.journal.log import JournalLog, read_entry
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths
from portico_services.system.registry.hive import Hive
from portico_services.system.registry.values import decode_value

MEMORY = 1536 * 2**20
MOST = 20_000
# What is often special: nothing, everything, the sign, powers of two, one more and one less.
NUMBERS = [0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """A copy with a few things wrong: bytes, numbers, pieces that moved, an end that is missing."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 2, 5, 20, 200])):
        at = chance.randrange(len(out))
        kind = chance.randrange(6)
        if kind == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at : at + 8] = struct.pack("<Q", chance.choice(NUMBERS))[: len(out) - at]
        elif kind == 2:
            # Somewhere else in the file: this is how circles are made.
            out[at & ~7 : (at & ~7) + 8] = struct.pack("<Q", chance.randrange(len(out)) & ~7)
        elif kind == 3:
            out[at & ~3 : (at & ~3) + 4] = struct.pack("<I", chance.randrange(len(out)) & ~7)
        elif kind == 4:
            length = chance.randrange(1, 256)
            source = chance.randrange(len(out))
            out[at : at + length] = out[source : source + length]
        else:
            out[at : at + 64] = bytes(min(64, len(out) - at))
    if chance.random() < 0.1:
        del out[chance.randrange(1, len(out)) :]
    return bytes(out)


def read_journal(data: bytes, folder: Path) -> None:
    file = JournalFile(data)
    for offset in islice(file.entries.backwards(len(file.entries)), MOST):
        try:
            read_entry(file, file.entry_header(offset))
        except SystemToolError:
            continue
    for field in ("PRIORITY", "MESSAGE", "_SYSTEMD_UNIT"):
        for _, datum in islice(file.values(field), 500):
            try:
                for _ in islice(file.entries_with(datum), MOST):
                    pass
            except SystemToolError:
                continue
    file.before_seqnum(1000)
    file.before_time(1_666_000_000_000_000)
    path = folder / "fuzz.journal"
    path.write_bytes(data)
    log = JournalLog("fuzz", "", AllowedPaths([path]), [str(path)])
    for _ in islice(log.scan_newest_first(LogQuery(min_level=3, source="systemd"), None, []), MOST):
        pass


def read_hive(data: bytes, folder: Path) -> None:
    hive = Hive(data)
    for path, key in islice(hive.walk(), MOST):
        for value in islice(key.values(), 1000):
            decode_value(value.number, value.data)
        if len(path) == 2:
            hive.find(list(path))


def read_evtx(data: bytes, folder: Path) -> None:
    path = folder / "fuzz.evtx"
    path.write_bytes(data)
    log = EvtxLog("fuzz", "", AllowedPaths([path]), str(path))
    for _ in islice(log.scan_newest_first(LogQuery(), None, []), MOST):
        pass
    log.entry(1000)


def read_text(data: bytes, folder: Path) -> None:
    path = folder / "fuzz.log"
    path.write_bytes(data)
    roots = AllowedPaths([folder])
    log = TextLog("fuzz", "", roots, lambda: find_rotated_files(roots, str(path)))
    for _ in islice(log.scan_newest_first(LogQuery(), None, []), MOST):
        pass


READERS: dict[str, Callable[[bytes, Path], None]] = {
    "journal": read_journal,
    "hive": read_hive,
    "evtx": read_evtx,
    "text": read_text,
}


def main() -> None:
    kind, seed, rounds, folder, *paths = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # A chunk that the package would read for ever costs its whole time, and there may be several.
    evtx.CHILD_TIMEOUT_SECONDS = 1.0
    originals = [Path(path).read_bytes() for path in paths]
    chance = random.Random(int(seed))
    for number in range(int(rounds)):
        data = spoilt(originals[number % len(originals)], chance)
        try:
            READERS[kind](data, Path(folder))
        except SystemToolError:
            continue
        except BaseException:
            (Path(folder) / "culprit").write_bytes(data)
            print(f"round {number} of {kind} with seed {seed}; see {folder}/culprit", file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
