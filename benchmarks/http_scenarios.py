"""The scenarios of the HTTP table.

All servers are up at the same time. Every round asks each of them once with so many connections before it asks with
more, so that compared figures are from the same minute.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

import wrk
from driver import DriverError
from http_driver import HttpDriver
from http_peers import HttpPeer
from scenarios import Answers, Question, Turn, take_turns

CONNECTIONS = (1, 32, 256)
USUAL = 32  # the one the goals speak of
MEASURES = (
    Question("rate", "requests per second", "per s", more_is_better=True),
    Question("p50", "latency, p50", "µs"),
    Question("p99", "latency, p99", "µs"),
    Question("cpu", "server CPU per request", "µs"),
    Question("memory", "resident memory after the run", "MB"),
)


def put(measure: Question, connections: int) -> Question:
    text = f"{measure.text}, {connections} connection{'s' if connections > 1 else ''}"
    return Question(f"{measure.key}_{connections}", text, measure.unit, measure.more_is_better)


HTTP_QUESTIONS = tuple(put(measure, connections) for connections in CONNECTIONS for measure in MEASURES)


@dataclass(frozen=True)
class HttpSize:
    """Sizes of the measurements. wrk counts whole seconds."""

    rounds: int
    seconds: int


HTTP_FULL = HttpSize(rounds=5, seconds=1)
HTTP_QUICK = HttpSize(rounds=1, seconds=1)


def cores() -> tuple[int, int]:
    """Return a core for the server and one for wrk, or the same one if there is only one."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[1 % len(ours)]


def ask_http(answers: Answers, peers: list[HttpPeer], size: HttpSize, program: str) -> None:
    with ExitStack() as stack:
        opened = [(peer, driver) for peer in peers if (driver := up(answers, stack, peer))]

        def turn(peer: HttpPeer, driver: HttpDriver, connections: int, seconds: int) -> Turn:
            return peer, keys(connections), lambda: ask(driver, program, connections, seconds)

        # Warm-up: lazy parts are loaded, and Node.js compiles hot code.
        take_turns(Answers(), 1, [turn(peer, driver, USUAL, peer.warm) for peer, driver in opened])
        turns = [turn(peer, driver, number, size.seconds) for number in CONNECTIONS for peer, driver in opened]
        take_turns(answers, size.rounds, turns)


def keys(connections: int) -> tuple[str, ...]:
    return tuple(f"{measure.key}_{connections}" for measure in MEASURES)


def up(answers: Answers, stack: ExitStack, peer: HttpPeer) -> HttpDriver | None:
    """Yield a server that answered correctly; record a failure for all its scenarios."""
    command = (*peer.program, *peer.serve)
    try:
        request = {"tool": peer.tool, "session": peer.session, "fresh": peer.fresh}
        driver = stack.enter_context(HttpDriver(command, peer.env, core=cores()[0], **request))
        driver.open()
    except (DriverError, OSError, ValueError, KeyError) as why:
        for question in HTTP_QUESTIONS:
            answers.fail(question.key, peer, why)
        return None
    return driver


def ask(driver: HttpDriver, program: str, connections: int, seconds: int) -> dict[str, float]:
    driver.check(int(wrk.NUMBER) + connections)
    cpu = driver.cpu_ns()
    load = wrk.ask(program, driver.port, driver.request, connections, seconds, cores()[1])
    cpu = driver.cpu_ns() - cpu
    values = (load.per_second, load.p50_us, load.p99_us, cpu / load.requests / 1000, driver.rss_bytes() / 1e6)
    return dict(zip(keys(connections), values, strict=True))
