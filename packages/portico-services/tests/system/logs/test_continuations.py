"""A stack trace is part of the entry that precedes it only if that entry reports it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from portico_services.system.logs.continuations import entry_starts
from portico_services.system.logs.entries import CRITICAL, ERROR, INFORMATION, LogEntry, LogQuery
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths

pytestmark = pytest.mark.usefixtures("utc")

PYTHON = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nValueError: broken\n'
CHAINED = (
    PYTHON + "\nDuring handling of the above exception, another exception occurred:\n\n" + PYTHON +
    "\nThe above exception was the direct cause of the following exception:\n\n" + PYTHON
)  # fmt: skip
JAVA = (
    "java.lang.IllegalStateException: broken\n\tat a.B.c(B.java:1)\n\tat a.B.d(B.java:2)\n"
    "Caused by: java.io.IOException: nope\n\tat e.F.g(F.java:3)\n\t... 2 more\n"
)
NODE = "TypeError [ERR_X]: broken\n    at f (/a/b.js:1:2)\n    at g (/a/b.js:3:4)\n"
DOTNET = "System.InvalidOperationException: broken\n   at A.B() in C:\\a.cs:line 1\n   --- End of inner exception ---\n"
GO = (
    "panic: runtime error: index out of range [5]\n[signal SIGSEGV: segmentation violation code=0x1]\n\n"
    "goroutine 1 [running]:\nmain.f(0x1)\n\t/tmp/a.go:5 +0x1d\nmain.main()\n\t/tmp/a.go:9 +0x20\n"
    "created by main.start\n\t/tmp/a.go:1 +0x1\nexit status 2\n"
)
RUST = "thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`\n"
PHP = (
    "PHP Fatal error:  Uncaught Exception: x in /a.php:3\nStack trace:\n#0 /a.php(3): f()\n#1 {main}\n"
    "  thrown in /a.php\n"
)
HEAD = "2026-01-02 12:00:00 ERROR app: payment failed\n"
NEXT = "2026-01-02 12:00:01 INFO app: next\n"


def log_of(path: Path) -> TextLog:
    roots = AllowedPaths([path.parent])
    return TextLog("test", "", roots, partial(find_rotated_files, roots, str(path)))


def entries(path: Path, text: str) -> list[LogEntry]:
    """The entries of a log, oldest first; those that are counted are those that are read."""
    path.write_text(text)
    log = log_of(path)
    results = [step for step in log.scan_newest_first(LogQuery(), None, []) if isinstance(step, LogEntry)]
    assert log.count() == len(results)
    for entry in results:
        assert log.entry(entry.id) == entry
    return results[::-1]


@pytest.mark.parametrize("trace", [PYTHON, CHAINED, JAVA, NODE, DOTNET])
def test_trace_belongs_to_the_error_above_it(tmp_path: Path, trace: str) -> None:
    first, second, third, last = entries(tmp_path / "log", HEAD + trace + HEAD + trace + NEXT + HEAD)
    lines = [line for line in trace.rstrip("\n").split("\n") if line]
    for entry in (first, second):
        assert entry.message == "\n".join(["payment failed", *lines])
        assert (entry.level, entry.level_guessed, entry.time_guess) == (ERROR, False, "zone")
    assert (third.message, last.message) == ("next", "payment failed")


@pytest.mark.parametrize("trace", [PYTHON, CHAINED, JAVA, NODE, DOTNET, GO, RUST, PHP])
def test_trace_after_an_unrelated_line_is_a_separate_entry(tmp_path: Path, trace: str) -> None:
    first, second, third = entries(tmp_path / "log", NEXT + trace + NEXT)
    assert (first.message, third.message) == ("next", "next")
    assert second.message.count("\n") == len([line for line in trace.split("\n") if line]) - 1
    assert second.level >= ERROR
    assert second.time == first.time and second.time_guess == "time"


@pytest.mark.parametrize("trace", [PYTHON, JAVA, NODE, GO, RUST, PHP])
def test_traces_without_any_log_line_are_one_entry_each(tmp_path: Path, trace: str) -> None:
    assert len(entries(tmp_path / "log", trace * 5)) == 5


def test_panic_is_critical(tmp_path: Path) -> None:
    assert entries(tmp_path / "log", GO)[0].level == CRITICAL


def test_line_without_a_level_has_that_of_its_trace(tmp_path: Path) -> None:
    first, second = entries(tmp_path / "log", "12:00:00 payment failure of 5\n" + PYTHON + "12:00:01 fine\n")
    assert (first.level, second.level) == (ERROR, INFORMATION)


@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\nthree\n",
        "Error: first\nError: second\n",
        "a line\n  indented\nValueError: not of a traceback\n",
        HEAD + "goroutines are fine\n",
    ],
)
def test_other_lines_stay_entries(tmp_path: Path, text: str) -> None:
    unindented = [line for line in text.split("\n") if line and line[0] != " "]
    assert len(entries(tmp_path / "log", text)) == len(unindented)


def test_cut_trace_ends_with_the_next_line(tmp_path: Path) -> None:
    cut = 'Traceback (most recent call last):\n  File "a.py", line 1\n'
    assert [entry.message.split("\n")[0] for entry in entries(tmp_path / "log", HEAD + cut + NEXT)] == [
        "payment failed",
        "next",
    ]


def test_trace_that_is_written_later_joins_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(NEXT * 3 + HEAD)
    log = log_of(path)
    assert log.count() == 4
    with path.open("a") as file:
        file.write(PYTHON + NEXT)
    assert log.count() == 5


def test_traces_of_several_languages_in_one_log() -> None:
    data = (NEXT + HEAD + CHAINED + NEXT + GO + HEAD + JAVA).encode()
    assert len(entry_starts(data, is_file_start=True)) == 5
