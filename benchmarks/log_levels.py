"""Measure the lines of LogHub's labelled logs whose time and level are parsed correctly.

    python benchmarks/log_levels.py PATH

PATH is a copy of https://github.com/logpai/loghub: its folder, or its git directory. Nothing of it is stored here.
Of its sixteen logs these eight are the ones that reading was made better with; judge with the others.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from portico_services.system.logs.entries import LEVELS, LogEntry, LogQuery
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths

TIME_GOAL, LEVEL_GOAL = 0.99, 0.97


@dataclass(frozen=True)
class LabelledLog:
    """The columns of the time and the level, and the format of the time."""

    columns: tuple[str, ...]
    form: str
    has_level: bool = True
    has_year: bool = True


LOGS = {
    "Apache": LabelledLog(("Time",), "%a %b %d %H:%M:%S %Y"),
    "Hadoop": LabelledLog(("Date", "Time"), "%Y-%m-%d %H:%M:%S,%f"),
    "HDFS": LabelledLog(("Date", "Time"), "%y%m%d %H%M%S"),
    "Linux": LabelledLog(("Month", "Date", "Time"), "%b %d %H:%M:%S", has_level=False, has_year=False),
    "OpenSSH": LabelledLog(("Date", "Day", "Time"), "%b %d %H:%M:%S", has_level=False, has_year=False),
    "Spark": LabelledLog(("Date", "Time"), "%y/%m/%d %H:%M:%S"),
    "Windows": LabelledLog(("Date", "Time"), "%Y-%m-%d %H:%M:%S"),
    "Zookeeper": LabelledLog(("Date", "Time"), "%Y-%m-%d %H:%M:%S,%f"),
}
OF_LABEL = {
    "TRACE": "DEBUG", "DEBUG": "DEBUG", "INFO": "INFORMATION", "NOTICE": "INFORMATION", "WARN": "WARNING",
    "WARNING": "WARNING", "ERROR": "ERROR", "SEVERE": "ERROR", "FATAL": "CRITICAL", "CRITICAL": "CRITICAL",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("path", type=Path, help="a copy of logpai/loghub: its folder, or its git directory")
    path: Path = parser.parse_args().path
    os.environ["TZ"] = "UTC"  # the labels have no zone, and neither have most lines
    time.tzset()
    print(f"{'log':<12}{'lines':>8}{'time right':>12}{'level right':>13}")
    for name, log in LOGS.items():
        lines, times, levels = judged(path, name, log)
        level = f"{levels / lines:12.1%}" if log.has_level else f"{'none stated':>13}"
        print(f"{name:<12}{lines:>8,}{times / lines:12.1%}{level}{verdict(lines, times, levels, log)}")


def verdict(lines: int, times: int, levels: int, log: LabelledLog) -> str:
    met = times >= TIME_GOAL * lines and (not log.has_level or levels >= LEVEL_GOAL * lines)
    return "" if met else "   below the goal"


def judged(path: Path, name: str, log: LabelledLog) -> tuple[int, int, int]:
    """Return the number of lines, and of those with the right time and level."""
    labels = list(csv.DictReader(io.StringIO(content(path, f"{name}/{name}_2k.log_structured.csv").decode())))
    results = list(entries(content(path, f"{name}/{name}_2k.log")))
    if len(results) != len(labels):
        raise SystemExit(f"{name} has {len(labels):,} labelled lines, and {len(results):,} entries were read")
    pairs = list(zip(results, labels, strict=True))
    times = sum(has_time(entry, label, log) for entry, label in pairs)
    levels = sum(LEVELS[entry.level] == OF_LABEL.get(label.get("Level", "").upper()) for entry, label in pairs)
    return len(labels), times, levels


def has_time(entry: LogEntry, label: dict[str, str], log: LabelledLog) -> bool:
    meant = " ".join(label[column] for column in log.columns)
    if not log.has_year:
        # No year, so any leap year will do to read it.
        expected = datetime.strptime(f"2024 {meant}", f"%Y {log.form}")
        return datetime.fromtimestamp(entry.time / 1e6).replace(year=2024) == expected
    return datetime.fromtimestamp(entry.time / 1e6) == datetime.strptime(meant, log.form)


def entries(text: bytes) -> Iterator[LogEntry]:
    """Return the entries of a log in file order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(text)
        roots = AllowedPaths([folder])
        log = TextLog("log", "", roots, partial(find_rotated_files, roots, str(path)))
        results = [entry for entry in log.scan_newest_first(LogQuery(), None, []) if isinstance(entry, LogEntry)]
    yield from reversed(results)


def content(path: Path, name: str) -> bytes:
    if (path / name).exists():
        return (path / name).read_bytes()
    done = subprocess.run(["git", "-C", str(path), "show", f"HEAD:{name}"], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"there is no {name} in {path}")
    return done.stdout


if __name__ == "__main__":
    main()
