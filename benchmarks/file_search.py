"""Search files by name: index, tool and directory walk against find, fd and plocate, in one tree."""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apt
from driver import DriverError
from peers import NotInstalled, Peer
from portico import Client, Server
from portico_services.system import System
from portico_services.system.files.name_index import FileNameIndex
from portico_services.system.files.walk import FileCriteria, walk
from portico_services.system.path_access import AllowedPaths
from scenarios import Answers, Question, take_turns
from services_table import this_tree

MOST = 25  # what fs_search gives unless it is asked for more
PATIENCE = 600
FILE_QUESTIONS = (
    Question("one", "the one file with a number in its name", "µs"),
    Question("common", "a word that many names have", "µs"),
    Question("pair", "two words that some names have", "µs"),
    Question("glob", "a glob", "µs"),
    Question("none", "a text that no name has", "µs"),
    Question("filled", "taking in all names first", "ms"),
)
SEARCHES = tuple(question.key for question in FILE_QUESTIONS if question.key != "filled")
WORDS = (
    *("report", "invoice", "photo", "draft", "budget", "notes"),
    *("backup", "module", "test", "config", "index", "data"),
)


def file_columns() -> list[Peer]:
    plocate = apt.prepare(Peer("plocate", "plocate", "plocate"))
    if not plocate.reason:
        try:
            plocate = replace(plocate, program=(*plocate.program, apt.program("plocate", "updatedb.plocate")))
        except NotInstalled as why:
            plocate = replace(plocate, reason=str(why))
    return [
        this_tree("index", "Portico, index"),
        this_tree(
            "fs_search", "Portico, fs_search", note="the whole call of the tool, client and server in one process"
        ),
        this_tree("walk", "Portico, walking"),
        apt.prepare(Peer("find", "find", "findutils")),
        apt.prepare(Peer("fd", "fd", "fd-find"), "fdfind", "fd"),
        plocate,
    ]


def ask_files(answers: Answers, peers: list[Peer], rounds: int, folder: Path, files: int, repeats: int) -> None:
    top = folder / "tree"
    grow(top, files)
    patterns = sought(files)
    with ExitStack() as stack:
        turns: list[Any] = []
        for peer in peers:
            try:
                search = READY[peer.key](peer, top, stack, answers)
            except (DriverError, OSError, subprocess.SubprocessError) as why:
                for question in FILE_QUESTIONS:
                    answers.fail(question.key, peer, why)
                continue
            times = repeats if peer.key in ("index", "fs_search") else 1
            turns += [
                (peer, (key,), partial(median_of, key, partial(search, patterns[key]), times)) for key in SEARCHES
            ]
        take_turns(answers, rounds, turns)


def grow(top: Path, files: int) -> None:
    """Create fifty files per folder in twenty top folders; names of two words and a number."""
    chance = random.Random(1)
    folder = top
    for n in range(files):
        if n % 50 == 0:
            folder = top / f"{n % 20:02}" / f"{chance.choice(WORDS)}{n}"
            folder.mkdir(parents=True)
        ending = chance.choice(("txt", "py", "pdf", "log"))
        (folder / f"{chance.choice(WORDS)}_{chance.choice(WORDS)}_{n:06}.{ending}").touch()


def sought(files: int) -> dict[str, str]:
    """Return a glob per scenario; a plain text gets a star on either side."""
    number = f"{files // 2:06}"
    return {
        "one": f"*{number}*",
        "common": "*report*",
        "pair": "*budget_notes*",
        "glob": f"*{number[:4]}*.pdf",
        "none": "*no such name*",
    }


def median_of(key: str, search: Callable[[], int], times: int) -> dict[str, float]:
    """Return the microseconds of a search, which must be right about whether there are matches."""
    waits = []
    for _ in range(times):
        began = time.perf_counter()
        result = search()
        waits.append(time.perf_counter() - began)
        if (result == 0) != (key == "none"):
            raise DriverError(f"it found {result}")
    return {key: 1e6 * statistics.median(waits)}


# Who searches. Each is made ready once, and then takes a glob and gives the number of files it found, at most MOST.

Search = Callable[[str], int]


def is_text(pattern: str) -> bool:
    return pattern.count("*") == 2 and pattern.startswith("*") and pattern.endswith("*")


def index(peer: Peer, top: Path, stack: ExitStack, answers: Answers) -> Search:
    kept = FileNameIndex(AllowedPaths([top]))
    stack.callback(kept.close)
    began = time.perf_counter()
    kept.start()
    if not kept.wait(1, PATIENCE):
        raise DriverError("the index was not filled in time")
    answers.add("filled", peer, 1000 * (time.perf_counter() - began))
    below = str(top)

    def search(pattern: str) -> int:
        expected = FileCriteria(text=pattern.strip("*")) if is_text(pattern) else FileCriteria(names=(pattern,))
        return len(kept.search(expected, below, 0, MOST))

    return search


def fs_search(peer: Peer, top: Path, stack: ExitStack, answers: Answers) -> Search:
    """Measure the tool from the client's call to its result."""
    runner = stack.enter_context(asyncio.Runner())
    server, system = Server("bench", version="1.0.0"), System(allowed_paths=[top], platform_logs=False)
    server.add(system)
    client = runner.run(Client(server).__aenter__())
    stack.callback(lambda: runner.run(client.__aexit__(None, None, None)))
    kept = system.machine.index
    assert kept is not None
    kept.start()
    if not kept.wait(1, PATIENCE):
        raise DriverError("the index was not filled in time")

    def search(pattern: str) -> int:
        request = {"searchText": pattern.strip("*")} if is_text(pattern) else {"fileName": pattern}
        result = runner.run(client.call_tool("fs_search", request))
        return len(result.structured["files"])

    return search


def walking(peer: Peer, top: Path, stack: ExitStack, answers: Answers) -> Search:
    roots = AllowedPaths([top])

    def search(pattern: str) -> int:
        expected = FileCriteria(text=pattern.strip("*")) if is_text(pattern) else FileCriteria(names=(pattern,))
        result = 0
        for row in walk(roots.open_directory(str(top)), expected, [], print):
            result += row is not None
            if result == MOST:
                break
        return result

    return search


def find(peer: Peer, top: Path, stack: ExitStack, answers: Answers) -> Search:
    return lambda pattern: lines([*peer.program, str(top), "-name", pattern])


def fd(peer: Peer, top: Path, stack: ExitStack, answers: Answers) -> Search:
    how = ["--unrestricted", "--max-results", str(MOST), "--glob"]
    return lambda pattern: lines([*peer.program, *how, pattern, str(top)])


def plocate(peer: Peer, top: Path, stack: ExitStack, answers: Answers) -> Search:
    program, updatedb = peer.program
    database = str(top.parent / "plocate.db")
    began = time.perf_counter()
    subprocess.run(
        [updatedb, "-U", str(top), "-o", database, "-l", "no", "--prunepaths", "", "--prune-bind-mounts", "no"],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    answers.add("filled", peer, 1000 * (time.perf_counter() - began))
    return lambda pattern: lines([program, "-d", database, "--limit", str(MOST), "--basename", pattern])


READY = {"index": index, "fs_search": fs_search, "walk": walking, "find": find, "fd": fd, "plocate": plocate}


def lines(command: list[str]) -> int:
    """Count the lines that a program prints, at most MOST, as with `| head -25`."""
    result = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        for _ in child.stdout:
            result += 1
            if result == MOST:
                break
        child.stdout.close()
        child.terminate()
    return result
