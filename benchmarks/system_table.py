"""The system service table: journals, hives, file search and privacy, against programs with the same purpose."""

from __future__ import annotations

import json
import lzma
import mmap
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

import apt
from driver import DriverError
from file_search import FILE_QUESTIONS, ask_files, file_columns
from goals import Goal, limit, multiple
from journal_generator import make_journal
from log_search import LOG_QUESTIONS, ask_logs, log_columns
from peers import ROOT, NotInstalled, Peer, prepare
from portico_services.system.anonymizer import Anonymizer
from portico_services.system.logs.discovery import DirectoryLog
from portico_services.system.logs.entries import LEVELS, LogQuery, format_iso
from portico_services.system.logs.journal.file import JournalFile
from portico_services.system.logs.journal.log import JournalLog
from portico_services.system.path_access import AllowedPaths
from portico_services.system.registry.hive import Hive
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "system"
PROGRAMS = Path(__file__).resolve().parent / "system_programs"
CORPUS = ROOT.parent / "shared" / "data"
SYSTEM_PYTHON = "/usr/bin/python3"  # the one that the distribution's packages are for
TIMEOUT = 120

JOURNAL_QUESTIONS = (
    Question("journal_json", "entries with all fields, written as JSON", "per s", more_is_better=True),
    Question("journal_fields", "entries with all fields", "per s", more_is_better=True),
    Question("journal_entries", "entries as eventlog_query sees them", "per s", more_is_better=True),
)
HIVE_QUESTIONS = (Question("hive", "keys with their times and values", "per s", more_is_better=True),)
PRIVACY_QUESTIONS = (
    Question("anonymize", "hiding names in an entry, anonymize", "µs"),
    Question("strict", "hiding names in an entry, strict", "µs"),
)
LEGEND = (
    "Journals, hives and privacy: CPU time of our process and its children. Files: elapsed time from the query to the"
    " result, at most 25 results; other programs are started for each query, ours is not."
    " Journal: {entries:,} entries of 15 fields, written by systemd-journal-remote; journalctl is `journalctl -o json"
    " --all`, its start included. Hive: SYSTEM of a Windows machine, 30,756 keys and 73,456 values; regipy is measured"
    " for two seconds. Privacy: entries of syslog. Text logs and contents of files: CPU time, {megabytes}"
    " MB and {files:,} files of 2.5 KB; grep is `grep -F`, `grep -iF` and `grep -riIlF`, its start included.",
)


@dataclass(frozen=True)
class SystemSize:
    entries: int
    files: int
    megabytes: int  # of a text log
    repeats: int  # of a question to the index, in a round
    least: float  # processor seconds that a reading is repeated for


SYSTEM_FULL = SystemSize(entries=50_000, files=100_000, megabytes=500, repeats=200, least=0.2)
SYSTEM_QUICK = SystemSize(entries=5_000, files=10_000, megabytes=20, repeats=20, least=0.0)


def measure(size: Size) -> Table:
    how = SYSTEM_QUICK if size.quick else SYSTEM_FULL
    answers, notes, ours = Answers(), [], this_tree()
    sections: list[Callable[..., Grid]] = [journals, texts, hives, files, privacy]
    grids = []
    for section in sections:
        with tempfile.TemporaryDirectory() as folder:
            grids.append(section(answers, ours, how, size.rounds, Path(folder), notes))
    legend = [line.format(entries=how.entries, megabytes=how.megabytes, files=how.files) for line in LEGEND]
    return Table("system service", grids, answers, judge(answers, how), notes, legend)


def judge(answers: Answers, how: SystemSize) -> list[Goal]:
    searches = [answers.value(question.key, "index") for question in FILE_QUESTIONS if question.key != "filled"]
    known_items = [value for value in searches if value is not None]
    slowest = max(known_items) if len(known_items) == len(searches) else None
    journal, hive = (answers.value(question, "portico") for question in ("journal_json", "hive"))
    return [
        limit("a minute in a large text log: below 50 ms", answers.value("log_minute", "portico"), 50, "ms"),
        multiple(
            "contents of files: as many as grep", *(answers.value("contents", key) for key in ("portico", "grep")), 1
        ),
        multiple("journal: twice journalctl -o json", journal, answers.value("journal_json", "journalctl"), 2),
        multiple("hive: as many keys as libregf", hive, answers.value("hive", "libregf"), 1),
        limit(f"search by the index among {how.files:,} files, the slowest: below 1 ms", slowest, 1000, "µs"),
    ]


# Measuring


def spent(run: Callable[[], object], least: float) -> float:
    """Return CPU seconds per run in this process; short runs are repeated until the clock can measure them."""
    began, times = time.process_time(), 0
    while not times or time.process_time() - began < least:
        run()
        times += 1
    return (time.process_time() - began) / times


def spent_by(command: list[str], least: float) -> float:
    """Return the CPU seconds of a program from its start to its end."""
    used, times = 0.0, 0
    while not times or used < least:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert child.stderr is not None
        with child.stderr:
            complaint = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise DriverError(f"it ended with {child.returncode}: {complaint.decode(errors='replace').strip()[-300:]}")
        used += usage.ru_utime + usage.ru_stime
        times += 1
    return used / times


def rate_by(python: str, program: str, path: Path, least: float, count: int | None) -> float:
    """Return the rate of another library. All must have read the same entries, unless one stops early."""
    command = [python, str(PROGRAMS / program), str(path), str(least)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise DriverError(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    data = json.loads(done.stdout.splitlines()[-1])
    if count is not None and data["count"] != count:
        raise DriverError(f"it read {data['count']:,}, and there are {count:,}")
    return float(data["rate"])


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file as the service does."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        yield image


def able(*peers: Peer) -> list[Peer]:
    return [peer for peer in peers if not peer.reason]


# Journals


def journals(answers: Answers, ours: Peer, how: SystemSize, rounds: int, folder: Path, notes: list[str]) -> Grid:
    journalctl = apt.prepare(Peer("journalctl", "journalctl", "systemd"))
    cysystemd = prepare(Peer("cysystemd", "cysystemd", "cysystemd"))
    grid = Grid(JOURNAL_QUESTIONS, [ours, journalctl, cysystemd])
    try:
        path = make_journal(folder, how.entries)
    except NotInstalled as why:
        notes.append(f"No journal was read, because systemd-journal-remote could not write one: {why}")
        return grid
    command = [*journalctl.program, f"--file={path}", "--output=json", "--all", "--no-pager"]
    asks: dict[tuple[str, str], Callable[[], float]] = {
        ("portico", "journal_json"): lambda: how.entries / spent(lambda: read_json(path), how.least),
        ("portico", "journal_fields"): lambda: how.entries / spent(lambda: read_fields(path), how.least),
        ("portico", "journal_entries"): lambda: how.entries / spent(lambda: read_entries(path), how.least),
        ("journalctl", "journal_json"): lambda: how.entries / spent_by(command, how.least),
        ("cysystemd", "journal_fields"): lambda: rate_by(
            cysystemd.python, "cysystemd_journal.py", path, how.least, how.entries
        ),
    }
    take_turns(answers, rounds, turns(able(ours, journalctl, cysystemd), asks))
    return grid


def turns(peers: list[Peer], asks: dict[tuple[str, str], Callable[[], float]]) -> list[Any]:
    """Return one turn per scenario and column that supports it."""
    by_key = {peer.key: peer for peer in peers}
    return [
        (by_key[key], (question,), lambda ask=ask, question=question: {question: ask()})
        for (key, question), ask in asks.items()
        if key in by_key
    ]


def read_fields(path: Path) -> None:
    with mapped(path) as image:
        file = JournalFile(image)
        for offset in file.entries.backwards(len(file.entries)):
            file.fields(file.entry_header(offset))


def read_json(path: Path) -> None:
    """Return the fields of `journalctl -o json`: every field of every entry, its times, and the cursor."""
    encode = msgspec.json.Encoder().encode
    with mapped(path) as image, open(os.devnull, "wb") as out:
        file = JournalFile(image)
        counter = file.seqnum_id.hex()
        for offset in file.entries.backwards(len(file.entries)):
            head = file.entry_header(offset)
            fields: dict[str, Any] = dict(file.fields(head))
            fields["__CURSOR"] = f"s={counter};i={head[2]:x};b={head[5].hex()};m={head[4]:x};t={head[3]:x}"
            fields["__REALTIME_TIMESTAMP"] = str(head[3])
            fields["__MONOTONIC_TIMESTAMP"] = str(head[4])
            out.write(encode(fields))
            out.write(b"\n")


def read_entries(path: Path) -> None:
    log = JournalLog("made", "", AllowedPaths([path.parent]), [str(path)])
    for _ in log.scan_newest_first(LogQuery(), None, []):
        pass


# Text logs and the contents of files: in log_search.py


def texts(answers: Answers, ours: Peer, how: SystemSize, rounds: int, folder: Path, notes: list[str]) -> Grid:
    columns = log_columns(ours)
    ask_logs(answers, able(*columns), rounds, folder, how.megabytes, how.files)
    return Grid(LOG_QUESTIONS, columns)


# Hives


def hives(answers: Answers, ours: Peer, how: SystemSize, rounds: int, folder: Path, notes: list[str]) -> Grid:
    libregf = prepare(Peer("libregf", "libregf", "libregf-python"))
    hivex = prepare_hivex(Peer("hivex", "hivex", "python3-hivex"))
    regipy = prepare(Peer("regipy", "regipy", "regipy"))
    grid = Grid(HIVE_QUESTIONS, [ours, libregf, hivex, regipy])
    packed = CORPUS / "hives" / "SYSTEM.xz"
    if not packed.exists():
        notes.append("No hive was read, because the corpus is not on this machine.")
        return grid
    path = folder / "SYSTEM"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    keys = read_hive(path)
    asks: dict[tuple[str, str], Callable[[], float]] = {
        ("portico", "hive"): lambda: keys / spent(lambda: read_hive(path), how.least),
        ("libregf", "hive"): lambda: rate_by(libregf.python, "libregf_hive.py", path, how.least, keys),
        ("hivex", "hive"): lambda: rate_by(hivex.python, "hivex_hive.py", path, how.least, keys),
        ("regipy", "hive"): lambda: rate_by(regipy.python, "regipy_hive.py", path, how.least, None),
    }
    take_turns(answers, rounds, turns(able(ours, libregf, hivex, regipy), asks))
    return grid


def prepare_hivex(peer: Peer) -> Peer:
    """Return the hivex module of the distribution's Python."""

    def look() -> str | None:
        try:
            done = subprocess.run([SYSTEM_PYTHON, "-c", "import hivex"], capture_output=True, timeout=60, check=False)
        except OSError:
            return None
        return SYSTEM_PYTHON if done.returncode == 0 else None

    try:
        return replace(peer, python=apt.had(peer.package, look), version=apt.version(peer.package))
    except NotInstalled as why:
        return replace(peer, reason=str(why))


def read_hive(path: Path) -> int:
    keys = 0
    with mapped(path) as image:
        for _, key in Hive(image).walk():
            keys += 1
            for _ in key.values():
                pass
    return keys


# Files: in file_search.py


def files(answers: Answers, ours: Peer, how: SystemSize, rounds: int, folder: Path, notes: list[str]) -> Grid:
    columns = file_columns()
    ask_files(answers, able(*columns), rounds, folder, how.files, how.repeats)
    return Grid(FILE_QUESTIONS, columns)


# Privacy


def privacy(answers: Answers, ours: Peer, how: SystemSize, rounds: int, folder: Path, notes: list[str]) -> Grid:
    grid = Grid(PRIVACY_QUESTIONS, [ours])
    source = CORPUS / "syslog"
    if not source.is_dir():
        notes.append("Nothing was hidden, because the corpus is not on this machine.")
        return grid
    rows = shown_entries(source, 1000)

    def hide(level: str) -> float:
        anonymizer = Anonymizer(level)
        return 1e6 * spent(lambda: anonymizer.anonymize(rows), how.least) / len(rows)

    asks = {("portico", level): lambda level=level: hide(level) for level in ("anonymize", "strict")}
    take_turns(answers, rounds, turns([ours], asks))
    return grid


def shown_entries(source: Path, most: int) -> list[dict[str, Any]]:
    """Return the entries as eventlog_query shows them."""
    log = DirectoryLog("syslog", "", AllowedPaths([source]), str(source))
    results = [entry for entry in log.scan_newest_first(LogQuery(), None, []) if entry]
    return [
        {
            "id": entry.id,
            "level": LEVELS[entry.level],
            "source": entry.source,
            "message": entry.message,
            "timestamp": format_iso(entry.time),
            "computer": entry.computer,
        }
        for entry in results[:most]
    ]
