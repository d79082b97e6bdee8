"""Search large text logs and file contents, compared with grep."""

from __future__ import annotations

import random
import resource
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apt
from driver import DriverError
from peers import Peer
from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.files.queries import FileQueries
from portico_services.system.files.walk import FileCriteria
from portico_services.system.logs.discovery import log_from_path
from portico_services.system.logs.entries import LogQuery
from portico_services.system.logs.log_registry import LogRegistry
from portico_services.system.path_access import AllowedPaths
from scenarios import Answers, Question, take_turns

LOG_QUESTIONS = (
    Question("log_minute", "a minute near the beginning of a text log", "ms"),
    Question("log_text", "a text that a text log does not have", "MB/s", more_is_better=True),
    Question("log_total", "the total of a text log, which has grown by a line", "ms"),
    Question("contents", "a text in the contents of files", "per s", more_is_better=True),
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NOWHERE = "zebra crossing"
NEEDLE = "the needle 4711"
WORDS = [f"word{n}" for n in range(2000)]


def log_columns(ours: Peer) -> list[Peer]:
    return [ours, apt.prepare(Peer("grep", "grep", "grep"))]


def ask_logs(answers: Answers, peers: list[Peer], rounds: int, folder: Path, megabytes: int, files: int) -> None:
    """Measure CPU time: ours in this process, grep's from start to end."""
    log, tree = folder / "large.log", folder / "tree"
    write_log(log, megabytes * 1_000_000)
    grow(tree, files)
    logs = LogRegistry(lambda: {"log": log_from_path("log", str(log))}, EncryptedCursorCodec())
    contents = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec())
    size = log.stat().st_size / 1e6
    asks: dict[str, dict[str, Callable[[], float]]] = {
        "portico": {
            "log_minute": lambda: 1000 * spent(lambda: ask_minute(logs)),
            "log_text": lambda: size / spent(lambda: ask_text(logs)),
            "log_total": lambda: 1000 * spent(lambda: ask_total(logs), before=lambda: add_line(log)),
            "contents": lambda: files / spent(lambda: ask_contents(contents)),
        },
        "grep": {
            "log_minute": lambda: 1000 * spent_by([*peers[-1].program, "-F", "2026-01-01T01:00", str(log)]),
            "log_text": lambda: size / spent_by([*peers[-1].program, "-iF", NOWHERE, str(log)]),
            "contents": lambda: files / spent_by([*peers[-1].program, "-riIlF", NEEDLE, str(tree)]),
        },
    }
    logs.query("log", LogQuery(), limit=1)  # counted once
    take_turns(
        answers,
        rounds,
        [
            (peer, (question,), lambda ask=ask, question=question: {question: ask()})
            for peer in peers
            for question, ask in asks[peer.key].items()
        ],
    )


def spent(run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    before()
    began = time.process_time()
    run()
    return time.process_time() - began


def spent_by(command: list[str]) -> float:
    """Return the CPU time of a program and read its output: grep stops at the first match if nothing reads it."""
    began = _children()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode > 1:
        raise DriverError(f"it ended with {done.returncode}")
    return _children() - began


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# What is asked


def ask_minute(logs: LogRegistry) -> None:
    start = int((BEGIN + timedelta(hours=1)).timestamp()) * 1_000_000
    page = logs.query("log", LogQuery(start=start, end=start + 59_999_999), limit=1000)
    if not page.entries or page.timed_out:
        raise DriverError("the minute was not found")


def ask_text(logs: LogRegistry) -> None:
    page = logs.query("log", LogQuery(contains=NOWHERE), limit=10)
    while page.cursor is not None:
        page = logs.query("log", LogQuery(contains=NOWHERE), limit=10, cursor=page.cursor)


def ask_total(logs: LogRegistry) -> None:
    if not logs.query("log", LogQuery(), limit=1).counted:
        raise DriverError("the entries were not counted")


def ask_contents(files: FileQueries) -> None:
    page = files.search(FileCriteria(), None, NEEDLE, 25, None)
    result = len(page.files)
    while page.next_cursor is not None:
        page = files.search(FileCriteria(), None, NEEDLE, 25, page.next_cursor)
        result += len(page.files)
    if not result:
        raise DriverError("nothing was found")


# What is asked about


def line(n: int) -> str:
    moment = BEGIN + timedelta(milliseconds=700 * n)
    level = "ERROR" if n % 50 == 0 else "INFO"
    stamp = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
    return f"{stamp} {level} shop.orders: order {n} was charged to card {n * 7919 % 1_000_003}\n"


def write_log(path: Path, size: int) -> None:
    number = 0
    with path.open("w") as file:
        while file.tell() < size:
            file.writelines(map(line, range(number, number + 10_000)))
            number += 10_000


def add_line(path: Path) -> None:
    with path.open("a") as file:
        file.write(line(10**8))


def grow(top: Path, files: int) -> None:
    """Create fifty files of 2.5 kB per folder; three of them contain the text."""
    chance = random.Random(1)
    folder = top
    for n in range(files):
        if n % 50 == 0:
            folder = top / f"{n % 20:02}" / f"{n}"
            folder.mkdir(parents=True)
        text = " ".join(chance.choices(WORDS, k=chance.randrange(20, 600)))
        (folder / f"{n:06}.txt").write_text(f"{text}\n{NEEDLE if n % (files // 3) == 7 else 'hay'}\n")
