"""Check the goals of the design, section 8, against the figures of one run."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios import Answers, Size

# Two medians of the same thing differ by this much on a shared machine; less is not a difference.
SAME = 1.10


@dataclass(frozen=True)
class Goal:
    text: str
    measured: str
    verdict: str


def judge(answers: Answers, size: Size) -> list[Goal]:
    def ours(question: str) -> float | None:
        return answers.value(question, "portico")

    def official(question: str) -> float | None:
        return answers.value(question, "mcp")

    # The official SDK has no inline bodies; its async def is the cheapest it offers.
    inline = share(
        "CPU per call, inline: 1/20 of the official async def", ours("call_inline"), official("call_async"), 20
    )
    alone = f"a call among {size.many:,} tools costs the same as alone (within 10 %)"
    return [
        share("CPU per call, async def: 1/20 of the official SDK's", ours("call_async"), official("call_async"), 20),
        inline,
        share("CPU per call, def: 1/8 of the official SDK's", ours("call_sync"), official("call_sync"), 8),
        below_go([ours(f"call_{body}") for body in ("async", "inline", "sync")], answers.value("ping", "go")),
        share("start to first answer: 1/8 of the official SDK's", ours("start"), official("start"), 8),
        imported(ours("import_package"), ours("import_server")),
        limit("resident memory with one tool: below 35 MB", ours("memory"), 35, "MB"),
        same(alone, ours("call_one"), ours("call_many")),
        from_bytes(ours("list_cpu"), official("list_cpu")),
        Goal("ten thousand idle sessions; a week of calls", "not asked by this script", "not measured"),
    ]


def judge_http(answers: Answers) -> list[Goal]:
    """Check all goals with 32 connections and an async def tool."""

    def rate(peer: str) -> float | None:
        return answers.value("rate_32", peer)

    def cpu(peer: str) -> float | None:
        return answers.value("cpu_32", peer)

    ours, fresh = rate("portico"), rate("portico-fresh")
    official, limit = "requests per second: at least 20 times the official SDK's", rate("bare-protocol")
    through = "through ASGI on {0}: at most 1.6 times the CPU of the bare ASGI application on it"
    return [
        multiple(official, ours, rate("mcp"), 20, fresh),
        twice_go(ours, rate("go"), fresh),
        multiple("requests per second: at least 0.45 of the bare Protocol's", ours, limit, 0.45),
        multiple("requests per second with a new head each time: at least 0.30 of them", fresh, limit, 0.30),
        *(
            at_most(through.format(name), cpu(f"portico-{name}"), cpu(f"bare-{name}"), 1.6)
            for name in ("granian", "uvicorn")
        ),
    ]


def missing(text: str) -> Goal:
    return Goal(text, "a number is missing", "not measured")


def share(text: str, ours: float | None, theirs: float | None, times: int) -> Goal:
    if ours is None or theirs is None:
        return missing(text)
    return Goal(text, f"1/{theirs / ours:.1f}", verdict(ours * times <= theirs))


def limit(text: str, ours: float | None, most: float, unit: str) -> Goal:
    if ours is None:
        return missing(text)
    return Goal(text, f"{ours:.1f} {unit}", verdict(ours < most))


def multiple(text: str, ours: float | None, theirs: float | None, least: float, fresh: float | None = None) -> Goal:
    """Check the multiple with the cache of request heads disabled, too: wrk always sends the same head."""
    if ours is None or theirs is None:
        return missing(text)
    beside = f" ({fresh / theirs:.2f} with new heads)" if fresh is not None else ""
    return Goal(text, f"{ours / theirs:.2f} times{beside}", verdict(ours >= theirs * least))


def at_most(text: str, ours: float | None, theirs: float | None, most: float) -> Goal:
    if ours is None or theirs is None:
        return missing(text)
    return Goal(text, f"{ours / theirs:.2f} times", verdict(ours <= theirs * most))


def twice_go(ours: float | None, ping: float | None, fresh: float | None = None) -> Goal:
    """Compare our call with Go's ping, as in below_go; the call may take twice as long."""
    text = "requests per second: at least twice the Go SDK's (held against its ping, which does less)"
    goal = multiple(text, ours, ping, 2, fresh)
    return Goal(text, goal.measured, "undecided") if goal.verdict == "missed" else goal


def imported(package: float | None, server: float | None) -> Goal:
    """Check the import time of the package. The names a server loads lazily are shown next to it."""
    goal = limit("import portico: below 60 ms", package, 60, "ms")
    beside = f" ({server:.1f} ms with Server)" if server is not None else ""
    return Goal(goal.text, goal.measured + beside, goal.verdict)


def same(text: str, one: float | None, many: float | None) -> Goal:
    if one is None or many is None:
        return missing(text)
    return Goal(text, f"{many / one:.2f} times", verdict(many <= one * SAME))


def below_go(ours: list[float | None], ping: float | None) -> Goal:
    """Compare our most expensive tool with Go's ping, which does less: the Go program has no tool to add numbers.

    Below the ping is below the call; above it proves nothing, and is not called a miss.
    """
    text = "CPU per call, every body: below the Go SDK's (held against its ping, which does less)"
    known_items = [value for value in ours if value is not None]
    if len(known_items) < len(ours) or ping is None:
        return missing(text)
    dearest = max(known_items)
    return Goal(text, f"{dearest:.1f} µs against {ping:.1f} µs", "met" if dearest < ping else "undecided")


def from_bytes(ours: float | None, theirs: float | None) -> Goal:
    text = "tools/list of 1,000 tools: from bytes (the design names no number)"
    if ours is None:
        return missing(text)
    beside = f", 1/{theirs / ours:.0f} of the official SDK's" if theirs else ""
    return Goal(text, f"{ours:.2f} ms of CPU{beside}", "shown only")


def verdict(met: bool) -> str:
    return "met" if met else "missed"
