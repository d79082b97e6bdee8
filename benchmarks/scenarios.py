"""The questions of the table, and how each is put.

The peers take turns: every round asks each of them once before the next round begins, so that a busy moment of the
machine falls on all alike, and a cell is the median of its rounds. A peer that fails one question keeps the others.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from call_counts import count
from driver import Batch, Driver, DriverError
from peers import Peer

WINDOW = 64
LISTS = 10  # asked in one go: see ask_lists
SLOW_START = 180.0  # seconds: registering 10,000 tools takes some peers half a minute on a quiet machine


@dataclass(frozen=True)
class Question:
    """One row of the table."""

    key: str
    text: str
    unit: str
    more_is_better: bool = False
    own_tools: bool = False  # a peer that does not run our server file answers with its own tools


QUESTIONS = (
    Question("start", "start to first answer: spawn to the initialize response", "ms", own_tools=True),
    Question("import_package", "import of the package", "ms"),
    Question("import_server", "import of the server class, as an author writes it", "ms"),
    Question("ping", "server CPU per ping", "µs"),
    Question("call_sync", "server CPU per tools/call, def body", "µs"),
    Question("call_async", "server CPU per tools/call, async def body", "µs"),
    Question("call_inline", "server CPU per tools/call, inline body", "µs"),
    Question("call_modern", "server CPU per tools/call, async def body, 2026-07-28", "µs"),
    Question("p50", "latency of a tools/call, one at a time, p50", "µs"),
    Question("p99", "latency of a tools/call, one at a time, p99", "µs"),
    Question("rate", f"tools/call with {WINDOW} in flight", "per s", more_is_better=True),
    Question("rate_cpu", f"server CPU per tools/call with {WINDOW} in flight", "µs"),
    Question("memory", "resident memory with one tool", "MB", own_tools=True),
    Question("list_cpu", "server CPU per tools/list of 1,000 tools", "ms", own_tools=True),
    Question("list_latency", "latency of a tools/list of 1,000 tools, mean", "ms", own_tools=True),
    Question("call_one", "server CPU per tools/call with 1 tool registered", "µs"),
    Question("call_many", "server CPU per tools/call with {many} tools registered", "µs"),
    Question("files", "own source files one tools/call passes through", ""),
    Question("calls", "Python calls one tools/call makes, all code", ""),
)


@dataclass(frozen=True)
class Size:
    """How much of everything. A batch lasts about `seconds`, whatever the peer's speed."""

    starts: int
    imports: int
    rounds: int
    seconds: float
    lists: int
    many: int


FULL = Size(starts=11, imports=9, rounds=11, seconds=0.4, lists=7, many=10_000)
QUICK = Size(starts=3, imports=3, rounds=3, seconds=0.12, lists=3, many=1_000)


@dataclass
class Answers:
    """Samples by question and peer, and what went wrong."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    own_tools: dict[str, int] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, question: str, peer: Peer, *values: float) -> None:
        self.samples.setdefault(question, {}).setdefault(peer.key, []).extend(values)

    def fail(self, question: str, peer: Peer, why: object) -> None:
        self.failures.setdefault(question, {})[peer.key] = str(why)

    def failed(self, question: str, peer: Peer) -> bool:
        return peer.key in self.failures.get(question, {})

    def value(self, question: str, peer: str) -> float | None:
        """The cell: a percentile for the tail, the median for the rest; nothing where a round failed."""
        samples = self.samples.get(question, {}).get(peer)
        if not samples or peer in self.failures.get(question, {}):
            return None
        return percentile(samples, 99) if question == "p99" else statistics.median(samples)


def percentile(samples: list[float], rank: int) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, len(ordered) * rank // 100)]


Turn = tuple[Peer, tuple[str, ...], Callable[[], dict[str, Any]]]


def take_turns(answers: Answers, rounds: int, turns: list[Turn]) -> None:
    """Each turn answers its questions once a round; the first failure ends the turn and is recorded with its reason."""
    for _ in range(rounds):
        for peer, questions, ask in turns:
            if any(answers.failed(question, peer) for question in questions):
                continue
            try:
                response = ask()
            except (DriverError, OSError, ValueError, KeyError, subprocess.SubprocessError) as why:
                for question in questions:
                    answers.fail(question, peer, why)
                continue
            for question in questions:
                values = response[question]
                answers.add(question, peer, *(values if isinstance(values, tuple) else (values,)))


def starts(answers: Answers, peers: list[Peer], size: Size) -> None:
    def ask(peer: Peer) -> dict[str, Any]:
        with Driver(peer.command(tools=1), peer.env) as driver:
            took = driver.open()
            work(driver, peer, "tool_0", 20)
            return {"start": took / 1e6, "memory": driver.rss_bytes() / 1e6}

    turns = [(peer, ("start", "memory"), lambda peer=peer: ask(peer)) for peer in peers]
    # The first start of each reads its files from disk and may compile them: not counted.
    take_turns(Answers(), 1, turns)
    take_turns(answers, size.starts, turns)


def imports(answers: Answers, peers: list[Peer], size: Size) -> None:
    """The time of the statement alone, taken inside a fresh interpreter: the interpreter's own start is not in it."""

    def ask(peer: Peer, question: str, statement: str) -> dict[str, float]:
        script = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        done = subprocess.run(
            [peer.python, "-P", "-c", script],
            env=Driver([], peer.env).env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return {question: float(done.stdout) * 1000}

    turns = [
        (peer, (question,), lambda peer=peer, question=question, text=text: ask(peer, question, text))
        for peer in peers
        if peer.imports
        for question, text in zip(("import_package", "import_server"), peer.imports, strict=True)
    ]
    take_turns(Answers(), 1, turns)
    take_turns(answers, size.imports, turns)


def steady(answers: Answers, peers: list[Peer], size: Size) -> None:
    """Everything that is asked of a server already running: all servers stay up, and take turns being asked."""
    with ExitStack() as stack:
        turns: list[Turn] = []
        for peer in peers:
            turns += handshaken(answers, stack, peer, size)
            turns += modern(answers, stack, peer, size)
        take_turns(answers, size.rounds, turns)


def handshaken(answers: Answers, stack: ExitStack, peer: Peer, size: Size) -> list[Turn]:
    bodies = tuple(f"call_{body}" for body in peer.bodies)
    more = ("p50", "p99", "rate", "rate_cpu") if peer.ours else ()
    driver = opened(answers, stack, peer, ("ping", *bodies, *more))
    if driver is None:
        return []
    turns = pings(answers, driver, peer, size)
    for body in peer.bodies:
        questions = (f"call_{body}", *(("p50", "p99") if body == "async" else ()))
        turns += sequential_calls(answers, driver, peer, questions, f"add_{body}", size)
    return turns + (pipelined_calls(answers, driver, peer, size) if peer.ours else [])


def modern(answers: Answers, stack: ExitStack, peer: Peer, size: Size) -> list[Turn]:
    """Measure in a separate process: some servers stay in the protocol generation of their first request."""
    questions = ("call_modern",)
    if not peer.ours or not (driver := opened(answers, stack, peer, questions, modern=True)):
        return []
    return sequential_calls(answers, driver, peer, questions, "add_async", size)


def pings(answers: Answers, driver: Driver, peer: Peer, size: Size) -> list[Turn]:
    def once(number: int) -> Batch:
        return driver.sequential("ping", [None] * number)[0]

    return warmed(answers, peer, ("ping",), once, lambda number: {"ping": once(number).cpu_us}, size)


def sequential_calls(
    answers: Answers, driver: Driver, peer: Peer, questions: tuple[str, ...], tool: str, size: Size
) -> list[Turn]:
    def once(number: int) -> Batch:
        return call(driver, tool, number)

    def ask(number: int) -> dict[str, Any]:
        batch = once(number)
        latencies = tuple(latencies_n / 1000 for latencies_n in batch.latencies_ns)
        return {questions[0]: batch.cpu_us, "p50": latencies, "p99": latencies}

    return warmed(answers, peer, questions, once, ask, size)


def pipelined_calls(answers: Answers, driver: Driver, peer: Peer, size: Size) -> list[Turn]:
    def once(number: int) -> Batch:
        return call(driver, "add_async", number, window=WINDOW)

    def ask(number: int) -> dict[str, float]:
        batch = once(number)
        return {"rate": batch.per_second, "rate_cpu": batch.cpu_us}

    return warmed(answers, peer, ("rate", "rate_cpu"), once, ask, size)


def lists(answers: Answers, peers: list[Peer], size: Size) -> None:
    questions = ("list_cpu", "list_latency")
    with ExitStack() as stack:
        turns: list[Turn] = []
        for peer in peers:
            if driver := opened(answers, stack, peer, questions, tools=1_000):
                turns.append((peer, questions, lambda peer=peer, driver=driver: ask_lists(answers, peer, driver)))
        # One round to warm up: some build the list on first asking, and all compile their schemas.
        take_turns(Answers(), 1, turns)
        take_turns(answers, size.lists, turns)


def ask_lists(answers: Answers, peer: Peer, driver: Driver) -> dict[str, float]:
    """The mean of a few lists in a row, whole ones: where a server pages, every page counts.

    The mean, because a list this long sets off a full garbage collection in some servers every second time: a single
    list is then either of two numbers four times apart, and their median a matter of luck.
    """
    results = [whole_list(driver) for _ in range(LISTS)]
    sizes = {tools for _, _, tools in results}
    if peer.ours and sizes != {1_000}:
        raise DriverError(f"{sorted(sizes)} tools listed, 1000 registered")
    answers.own_tools[peer.key] = max(sizes)
    cpu, wall = (statistics.mean(column) for column in list(zip(*results, strict=True))[:2])
    return {"list_cpu": cpu / 1e6, "list_latency": wall / 1e6}


def whole_list(driver: Driver) -> tuple[int, int, int]:
    """Nanoseconds of CPU, nanoseconds of waiting, and how many tools came."""
    cpu, wall, tools, cursor = 0, 0, 0, None
    while True:
        batch, (result,) = driver.sequential("tools/list", [{"cursor": cursor} if cursor else {}])
        cpu, wall, tools = cpu + batch.cpu_ns, wall + batch.wall_ns, tools + len(result["tools"])
        if not (cursor := result.get("nextCursor")):
            return cpu, wall, tools


def crowds(answers: Answers, peers: list[Peer], size: Size) -> None:
    """The same call to the same tool, alone and among many."""
    with ExitStack() as stack:
        turns: list[Turn] = []
        for peer in (peer for peer in peers if peer.ours):
            for question, tools in (("call_one", 1), ("call_many", size.many)):
                if driver := opened(answers, stack, peer, (question,), tools=tools):
                    turns += sequential_calls(answers, driver, peer, (question,), "tool_0", size)
        take_turns(answers, size.rounds, turns)


def distances(answers: Answers, peers: list[Peer], size: Size) -> None:
    def ask(peer: Peer) -> dict[str, float]:
        result = count(peer)
        answers.files[peer.key] = result.files
        return {"files": sum(result.files.values()), "calls": result.calls}

    take_turns(answers, 1, [(peer, ("files", "calls"), lambda peer=peer: ask(peer)) for peer in peers if peer.ours])


SECTIONS = (starts, imports, steady, lists, crowds, distances)


def opened(
    answers: Answers,
    stack: ExitStack,
    peer: Peer,
    questions: tuple[str, ...],
    tools: int = 0,
    modern: bool = False,
) -> Driver | None:
    """A greeted server that lives until the stack unwinds; a failure is recorded for its scenarios."""
    timeout = SLOW_START if tools > 1 else 30.0
    try:
        driver = stack.enter_context(Driver(peer.command(tools), peer.env, modern, timeout))
        driver.open()
    except (DriverError, OSError) as why:
        for question in questions:
            answers.fail(question, peer, why)
        return None
    driver.timeout = 30.0
    return driver


def warmed(
    answers: Answers,
    peer: Peer,
    questions: tuple[str, ...],
    once: Callable[[int], Batch],
    ask: Callable[[int], dict[str, Any]],
    size: Size,
) -> list[Turn]:
    """A turn whose batches last about as long for a fast peer as for a slow one, after runs that are thrown away."""
    try:
        once(100)
        batch = once(100)
    except (DriverError, OSError, ValueError, KeyError) as why:
        for question in questions:
            answers.fail(question, peer, why)
        return []
    number = max(50, min(20_000, int(size.seconds * batch.per_second)))
    return [(peer, questions, lambda: ask(number))]


def call(driver: Driver, tool: str, number: int, window: int = 1) -> Batch:
    """Additions, each with its own numbers, and every sum checked: a cached or wrong answer does not pass."""
    paramses = [{"name": tool, "arguments": {"a": n, "b": 1}} for n in range(number)]
    if window == 1:
        batch, results = driver.sequential("tools/call", paramses)
    else:
        batch, results = driver.pipelined("tools/call", paramses, window)
    for n, result in enumerate(results):
        if result.get("isError") or result["content"][0]["text"] != str(n + 1):
            raise DriverError(f"{tool}({n}, 1) gave {str(result)[:120]}")
    return batch


def work(driver: Driver, peer: Peer, tool: str, number: int) -> None:
    """Send a few requests before memory is read, so that lazy parts are loaded."""
    if peer.ours:
        call(driver, tool, number)
    else:
        driver.sequential("ping", [None] * number)


def spread(samples: list[float]) -> float:
    """Half the distance between the quartiles, as a share of the median: how far to trust a cell."""
    if len(samples) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle if middle else 0.0
