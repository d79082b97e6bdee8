"""The live Python table: the same expression in our sandbox, in a process each time, and in other interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any

from driver import DriverError
from goals import Goal, limit
from peers import PINS, NotInstalled, Peer, environment, prepare
from portico_services.livepython.sandbox.landlock import unavailable_reason
from portico_services.livepython.sandbox.limits import SandboxLimits
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "live"
PROGRAMS = Path(__file__).resolve().parent / "live_programs"
TIMEOUT = 300
NEWER = ("python3.14", "python3.13", "python3.12")
SUITS = "import sys, venv, ensurepip; assert sys.version_info >= (3, 12)"

SPEED_QUESTIONS = (
    Question("first", "first evaluate, from the import on", "ms"),
    Question("fresh", "fresh session and its first answer", "ms"),
    Question("warm", "warm call", "µs"),
)
SPEED = tuple(question.key for question in SPEED_QUESTIONS)
JAIL_QUESTIONS = (
    Question("pss", "memory of {many} concurrent sessions, shared pages counted once", "MB"),
    Question("rss", "memory of {many} concurrent sessions, shared pages counted for each", "MB"),
    Question("ping", "longest wait for a ping while code tries to escape", "ms"),
)
LEGEND = (
    "The expression is 3 + 4. Ours is measured by the tool `evaluate`, client and server in one process, which speak to"
    " the worker in its jail; pydantic-monty and pyeryx by their own calls, without a server. no worker waiting: the"
    " pool keeps none in reserve, so that a fresh session is made when it is asked for. a process each time: `python"
    " -I -c`, with no jail and no names that stay, so that every call is the first. pydantic-monty runs a part of"
    " Python; strict and pyeryx run CPython in WebAssembly. Every turn is a new process; fresh and warm are medians in"
    " it.",
    "Memory is of the server and all workers, each session with a list of 1,000 numbers. It and the ping are measured"
    " once; the ping while each of the tests' escapes is tried, one after the other.",
)


@dataclass(frozen=True)
class LiveSize:
    warm: int
    fresh: int
    many: int
    escapes: int


LIVE_FULL = LiveSize(warm=1000, fresh=20, many=200, escapes=10_000)
LIVE_QUICK = LiveSize(warm=50, fresh=3, many=200, escapes=20)


def measure(size: Size) -> Table:
    how = LIVE_QUICK if size.quick else LIVE_FULL
    answers, columns = Answers(), live_columns()
    able = [peer for peer in columns if not peer.reason]
    take_turns(answers, size.rounds, [(peer, SPEED, lambda peer=peer: timed(peer, how)) for peer in able])
    jail = columns[0]
    aside = Aside()
    if not jail.reason:
        take_turns(answers, 1, [(jail, ("pss", "rss"), lambda: many_at_once(how))])
        take_turns(answers, 1, [(jail, ("ping",), lambda: pinged(how, aside))])
    questions = [replace(question, text=question.text.format(many=how.many)) for question in JAIL_QUESTIONS]
    grids = [Grid(SPEED_QUESTIONS, columns), Grid(questions, [jail])]
    return Table("live Python", grids, answers, judge(answers, how, aside), legend=LEGEND)


@dataclass
class Aside:
    """The escape attempt that delayed the ping most, and the number of attempts."""

    text: str = ""


def judge(answers: Answers, how: LiveSize, aside: Aside) -> list[Goal]:
    def ours(question: str) -> float | None:
        return answers.value(question, "jail")

    ping = limit("a ping while code tries to escape: within 100 ms", ours("ping"), 100, "ms")
    return [
        limit("warm call: below 0.5 ms", ours("warm"), 500, "µs"),
        limit("fresh session: below 40 ms", ours("fresh"), 40, "ms"),
        limit(f"{how.many} concurrent sessions: within 2 GB", ours("pss"), 2000, "MB"),
        replace(ping, measured=f"{ping.measured}{aside.text}"),
    ]


# Columns


def live_columns() -> list[Peer]:
    """Return the columns; the sandbox is the first."""
    hindrance = unavailable_reason(SandboxLimits()) or ""
    eryx = prepare_eryx(Peer("eryx", "pyeryx", "pyeryx"))
    return [
        this_tree("jail", "Portico, jail", program=("portico_live.py", "jail"), reason=hindrance),
        this_tree("cold", "Portico, no worker waiting", program=("portico_live.py", "cold"), reason=hindrance),
        this_tree("strict", "Portico, strict", program=("portico_live.py", "strict", eryx.python), reason=eryx.reason),
        Peer("process", "a process each time", "Python", python=sys.executable, version=sys.version.split()[0]),
        replace(prepare(Peer("monty", "pydantic-monty", "pydantic-monty")), program=("monty_live.py",)),
        replace(eryx, program=("eryx_live.py",)),
    ]


def prepare_eryx(peer: Peer) -> Peer:
    (version,) = PINS[peer.package]
    try:
        python = environment(peer.package, version, base=newer_python())
    except NotInstalled as why:
        return replace(peer, reason=str(why))
    return replace(peer, python=str(python), version=version)


def newer_python() -> str:
    for python in candidates():
        try:
            done = subprocess.run([python, "-I", "-c", SUITS], capture_output=True, check=False, timeout=60)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    raise NotInstalled("it needs Python 3.12 or newer, which is not installed")


def candidates() -> Iterator[str]:
    """Return this interpreter, those on the path, and those installed next to this one."""
    yield sys.executable
    yield from filter(None, map(which, NEWER))
    yield from map(str, sorted(Path(sys.base_prefix).parent.glob("*/bin/python3"), reverse=True))


# Asking


def timed(peer: Peer, how: LiveSize) -> dict[str, float]:
    if peer.key == "process":
        return by_a_process()
    script, *words = peer.program
    return printed(peer.python, script, str(how.warm), str(how.fresh), *words)


def by_a_process() -> dict[str, float]:
    """Measure a new process per call; none is ever warm."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-I", "-c", "print(3 + 4)"], capture_output=True, check=False)
    if done.stdout.strip() != b"7":
        raise DriverError("it did not answer 7")
    took = time.perf_counter() - began
    return {"first": 1e3 * took, "fresh": 1e3 * took, "warm": 1e6 * took}


def many_at_once(how: LiveSize) -> dict[str, float]:
    return printed(sys.executable, "portico_sessions.py", str(how.many))


def pinged(how: LiveSize, aside: Aside) -> dict[str, float]:
    output = printed(sys.executable, "portico_escapes.py", str(how.escapes))
    aside.text = f" ({output['of']}; {output['escapes']} were tried)"
    return output


def printed(python: str, script: str, *words: str) -> dict[str, Any]:
    """Return the output of one of our programs."""
    command = [python, str(PROGRAMS / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise DriverError(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return data
