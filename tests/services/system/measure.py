"""Measures the system service beside the programs that do the same: journals, hives, finding files, privacy.

    python tests/services/system/measure.py [journal] [hive] [search] [privacy] [--files N] [--entries N]

Each figure is the best of several runs, in one go with what it is compared with, and counts the processor's time, so
that it does not depend on what else the machine does. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from portico.services.system.containment import Roots
from portico.services.system.eventlog.entries import LEVELS, Query, iso
from portico.services.system.eventlog.folderlog import FolderLog
from portico.services.system.eventlog.journal.file import JournalFile
from portico.services.system.files.index import Index
from portico.services.system.files.walk import Wanted, walk
from portico.services.system.privacy import Anonymizer
from portico.services.system.registry.hive.file import Hive

RUNS = 7
CORPUS = Path(__file__).resolve().parents[4] / "shared" / "data"
SYSTEM_PYTHON = "/usr/bin/python3"


def spent() -> float:
    """Processor seconds of this process and of the children it has waited for."""
    return sum(os.times()[:4])


def best(run: Callable[[], object], runs: int = RUNS) -> float:
    """Seconds of the quickest run. The clock is coarse, so what is quick is run many times."""
    times = []
    for _ in range(runs):
        began, count = spent(), 0
        while spent() - began < 0.2:
            run()
            count += 1
        times.append((spent() - began) / count)
    return min(times)


def row(name: str, figure: str, remark: str = "") -> None:
    print(f"  {name:<44} {figure:>16}  {remark}")


def program(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


# Journals


def exported(entries: int) -> Iterator[bytes]:
    chance = random.Random(1)
    moment = 1_700_000_000_000_000
    for n in range(entries):
        moment += chance.randint(1, 100_000)
        unit = chance.choice(["sshd", "cron", "nginx", "kernel", "dbus", "postgres"])
        yield (
            f"__REALTIME_TIMESTAMP={moment}\n__MONOTONIC_TIMESTAMP={n + 1}\n_BOOT_ID=4f2fd2ad2a2b4a2ea2e5e5b2ad7bd5ae\n"
            f"_HOSTNAME=maschine\n_MACHINE_ID=2dc07f7a727e4b46a1927eab9d6cd4b7\n_TRANSPORT=syslog\n_UID=0\n_GID=0\n"
            f"PRIORITY={chance.randint(0, 7)}\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER={unit}\n_COMM={unit}\n"
            f"_EXE=/usr/sbin/{unit}\n_CMDLINE=/usr/sbin/{unit} -D\n_SYSTEMD_UNIT={unit}.service\n"
            f"_PID={chance.randint(1, 5000)}\nMESSAGE=request {n} of {unit} took {chance.randint(1, 999)} ms\n\n"
        ).encode()


def read_fields(path: Path) -> int:
    file = JournalFile(path.read_bytes())
    count = 0
    for offset in file.entries.backwards(len(file.entries)):
        file.fields(file.head(offset))
        count += 1
    return count


def read_json(path: Path) -> None:
    """What `journalctl -o json` does: every field of every entry as a line of JSON."""
    file = JournalFile(path.read_bytes())
    encode = msgspec.json.Encoder().encode
    with open(os.devnull, "wb") as out:
        for offset in file.entries.backwards(len(file.entries)):
            head = file.head(offset)
            fields: dict[str, Any] = dict(file.fields(head))
            fields["__REALTIME_TIMESTAMP"] = str(head[3])
            out.write(encode(fields))
            out.write(b"\n")


def measure_journal(folder: Path, entries: int) -> None:
    print(f"Journal: entries per second ({entries:,} entries)")
    remote = "/usr/lib/systemd/systemd-journal-remote"
    if not os.path.exists(remote):
        print("  systemd-journal-remote is not installed")
        return
    (folder / "export").write_bytes(b"".join(exported(entries)))
    path = folder / "made.journal"
    subprocess.run([remote, f"--output={path}", str(folder / "export")], check=True, capture_output=True)
    fields = entries / best(lambda: read_fields(path), 3)
    row("ours, fields", f"{fields:,.0f}")
    ours = entries / best(lambda: read_json(path), 3)
    row("ours, fields as JSON", f"{ours:,.0f}")
    if journalctl := program("journalctl"):
        command = [journalctl, f"--file={path}", "--output=json", "--all", "--no-pager"]
        theirs = entries / best(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True), 3)
        row("journalctl -o json", f"{theirs:,.0f}", f"ours is {ours / theirs:.1f} times that")
    try:
        from cysystemd.reader import JournalOpenMode, JournalReader  # noqa: F401
    except ImportError:
        print("  cysystemd is not installed")
    else:

        def read_cysystemd() -> None:
            reader = JournalReader()
            reader.open_files(str(path))
            reader.seek_head()
            for record in reader:
                record.data  # noqa: B018

        theirs = entries / best(read_cysystemd, 3)
        row("cysystemd, fields", f"{theirs:,.0f}", f"ours is {fields / theirs:.1f} times that")


# Hives

LIBREGF = """
import sys, time
import pyregf
times = []
for _ in range(3):
    began = time.process_time()
    file = pyregf.file()
    file.open(sys.argv[1])
    waiting, keys = [file.get_root_key()], 0
    while waiting:
        key = waiting.pop()
        keys += 1
        key.name, key.get_last_written_time_as_integer()
        for value in key.values:
            value.name, value.type, value.data
        waiting += list(key.sub_keys)
    file.close()
    times.append(time.process_time() - began)
print(keys / min(times))
"""
HIVEX = """
import sys, time
import hivex
times = []
for _ in range(3):
    began = time.process_time()
    hive = hivex.Hivex(sys.argv[1])
    waiting, keys = [hive.root()], 0
    while waiting:
        key = waiting.pop()
        keys += 1
        hive.node_name(key), hive.node_timestamp(key)
        for value in hive.node_values(key):
            hive.value_key(value), hive.value_value(value)
        waiting += hive.node_children(key)
    times.append(time.process_time() - began)
print(keys / min(times))
"""
REGIPY = """
import sys, time
from regipy.registry import RegistryHive
began = time.process_time()
keys = 0
hive = RegistryHive(sys.argv[1])
waiting = [hive.root]
while waiting:
    key = waiting.pop()
    keys += 1
    list(key.iter_values(as_json=False)) if key.values_count else None
    waiting += list(key.iter_subkeys()) if key.subkey_count else []
print(keys / (time.process_time() - began))
"""


def read_hive(path: Path) -> int:
    keys = 0
    for _, key in Hive(path.read_bytes()).walk():
        keys += 1
        for _ in key.values():
            pass
    return keys


def measure_hive(folder: Path) -> None:
    packed = CORPUS / "hives" / "SYSTEM.xz"
    if not packed.exists():
        print("Hive: the corpus is not on this machine")
        return
    path = folder / "SYSTEM"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    keys = read_hive(path)
    print(f"Hive: keys per second, with their values ({keys:,} keys)")
    ours = keys / best(lambda: read_hive(path), 5)
    row("ours", f"{ours:,.0f}")
    for name, code, python in (
        ("libregf (pyregf)", LIBREGF, SYSTEM_PYTHON),
        ("hivex", HIVEX, SYSTEM_PYTHON),
        ("regipy", REGIPY, sys.executable),
    ):
        done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"  {name}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'not installed'}")
            continue
        theirs = float(done.stdout)
        row(name, f"{theirs:,.0f}", f"ours is {ours / theirs:.2f} times that")


# Finding files

WORDS = [
    "report",
    "invoice",
    "photo",
    "draft",
    "budget",
    "notes",
    "backup",
    "module",
    "test",
    "config",
    "index",
    "data",
]


def grow(top: Path, files: int) -> None:
    chance = random.Random(1)
    for n in range(files):
        if n % 50 == 0:
            folder = top / f"{n % 20:02}" / f"{chance.choice(WORDS)}{n}"
            folder.mkdir(parents=True)
        name = f"{chance.choice(WORDS)}_{chance.choice(WORDS)}_{n:06}.{chance.choice(['txt', 'py', 'pdf', 'log'])}"
        (folder / name).touch()


def measure_search(folder: Path, files: int) -> None:
    print(f"Finding files by name: milliseconds ({files:,} files)")
    top = folder / "tree"
    grow(top, files)
    roots = Roots([top])
    needle = f"{files // 2:06}"
    index = Index(roots)
    began = spent()
    index.start()
    index.wait(1, 600)
    row("ours, filling the index", f"{1000 * (spent() - began):,.0f}")
    for what, wanted in (
        ("one file", Wanted(text=needle)),
        ("a common word, 25 of many", Wanted(text="report")),
        ("two words, 25 of several hundred", Wanted(text="budget_notes")),
        ("a glob", Wanted(names=(f"*{needle[:4]}*.pdf",))),
        ("nothing", Wanted(text="no such name")),
    ):
        row(f"ours, index: {what}", f"{1000 * best(lambda: index.search(wanted, str(top), 0, 25), 5):.3f}")  # noqa: B023
    index.close()

    def walked() -> int:
        return sum(1 for found in walk(roots.folder(str(top)), Wanted(text=needle), [], print) if found)

    row("ours, walking", f"{1000 * best(walked, 3):,.1f}")
    commands: list[tuple[str, list[str]]] = []
    if find := program("find"):
        commands.append(("find -name", [find, str(top), "-name", f"*{needle}*"]))
    if fd := program("fd", "fdfind"):
        commands.append(("fd", [fd, "--unrestricted", needle, str(top)]))
    if (updatedb := program("updatedb.plocate")) and (plocate := program("plocate")):
        database = str(folder / "plocate.db")
        subprocess.run([updatedb, "-U", str(top), "-o", database, "-l", "no", "--prunepaths", ""], check=True)
        commands.append(("plocate", [plocate, "-d", database, needle]))
    for name, command in commands:
        seconds = best(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=False), 5)  # noqa: B023
        row(f"{name}, as a program", f"{1000 * seconds:,.1f}")


# Privacy


def measure_privacy(folder: Path) -> None:
    source = CORPUS / "syslog"
    if not source.is_dir():
        print("Privacy: the corpus is not on this machine")
        return
    log = FolderLog("x", "", Roots([source]), str(source))
    entries = [entry for entry in log.newest_first(Query(), None, []) if entry]
    rows = [
        {
            "id": entry.id,
            "level": LEVELS[entry.level],
            "source": entry.source,
            "message": entry.message,
            "timestamp": iso(entry.time),
            "computer": entry.computer,
        }
        for entry in entries
    ]
    print("Privacy: microseconds per entry")
    for level in ("anonymize", "strict"):
        anonymizer = Anonymizer(level)
        row(level, f"{1e6 * best(lambda: anonymizer.hide(rows[:1000]), 5) / 1000:.1f}")  # noqa: B023
    print(json.dumps(Anonymizer().hide(rows[100])))


def main() -> None:
    parts: dict[str, Callable[..., None]] = {
        "journal": measure_journal,
        "hive": measure_hive,
        "search": measure_search,
        "privacy": measure_privacy,
    }
    arguments = argparse.ArgumentParser(description="Measure the system service.")
    arguments.add_argument("parts", nargs="*", help=", ".join(parts))
    arguments.add_argument("--files", type=int, default=100_000)
    arguments.add_argument("--entries", type=int, default=50_000)
    given = arguments.parse_args()
    sizes = {"journal": (given.entries,), "search": (given.files,)}
    for part in given.parts or parts:
        with TemporaryDirectory() as folder:
            parts[part](Path(folder), *sizes.get(part, ()))
        print()


if __name__ == "__main__":
    main()
