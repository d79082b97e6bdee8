"""Format the results: the machine, the peers, the stdio table, the goals, and failures."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from typing import Any

from goals import Goal
from peers import Peer
from scenarios import QUESTIONS, Answers, Question, Size, spread

NONE = "—"
NOISY = 0.10  # a quarter-to-quarter spread beyond this share of the median is marked


def machine() -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def figure(value: float) -> str:
    """Format with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(answers: Answers, question: Question, peer: Peer) -> str:
    if peer.reason:
        return "not installed"
    if peer.key in answers.failures.get(question.key, {}):
        return "failed"
    value = answers.value(question.key, peer.key)
    if value is None:
        return NONE
    if question.key == "files":
        return " + ".join(f"{number}" for number in answers.files[peer.key].values() if number) or "0"
    text = f"{value:.0f}" if question.key == "calls" else figure(value)
    noisy = question.key not in ("p50", "p99") and spread(answers.samples[question.key][peer.key]) > NOISY
    return text + (" ~" if noisy else "") + (" *" if question.own_tools and not peer.ours else "")


def ratio(answers: Answers, question: Question, peer: str = "portico") -> str:
    """Return how many times better than the official SDK a figure is; below one, worse."""
    ours, theirs = answers.value(question.key, peer), answers.value(question.key, "mcp")
    if not ours or not theirs:
        return NONE
    return f"{figure(ours / theirs if question.more_is_better else theirs / ours)} ×"


def worded(question: Question, size: Any) -> str:
    return question.text.format(many=f"{size.many:,}") if "{many}" in question.text else question.text


def rows(answers: Answers, peers: list[Peer], size: Size) -> list[list[str]]:
    head = ["question", "unit", *(peer.title for peer in peers), "official ÷ Portico"]
    body = [
        [
            worded(question, size),
            question.unit,
            *(cell(answers, question, peer) for peer in peers),
            ratio(answers, question),
        ]
        for question in QUESTIONS
    ]
    return [head, *body]


def peer_line(peer: Peer) -> str:
    if peer.reason:
        return f"{peer.title}: not installed: {peer.reason}"
    return f"{peer.title}: {peer.package} {peer.version}" + (f" ({peer.note})" if peer.note else "")


def legend(answers: Answers, peers: list[Peer]) -> list[str]:
    lines = [
        "A cell is the median of its rounds; the peers take turns within a round. ~ marks rounds that differ by more",
        "than 10 % (half the distance between the quartiles). CPU is user and system time of the server process, all",
        "threads, from its kernel clock. Handshake 2025-11-25 unless a row says 2026-07-28.",
        "p50 and p99 are over all calls of all rounds. Import: the statement alone, timed inside a fresh interpreter.",
        "A list is the mean of ten in a row, because full garbage collections fall on some of them.",
        "own files: the library's, then those of the SDK it stands on (mcp, mcp_types).",
    ]
    if any(peer.key == "go" and not peer.reason for peer in peers):
        own = answers.own_tools.get("go")
        lines.append(
            f"* Go SDK: another program (kubernetes-mcp-server) with its own {own or 'set of'} tools, not the bench"
            " server: its start, memory and list are for orientation."
        )
    return lines


def failures(answers: Answers, peers: Sequence[Peer]) -> list[str]:
    """Return one line per peer and reason, with the affected scenarios."""
    titles = {peer.key: peer.label for peer in peers}
    lost: dict[tuple[str, str], list[str]] = {}
    for question, by_peer in answers.failures.items():
        for peer, why in by_peer.items():
            lost.setdefault((peer, why), []).append(question)
    return [f"failed: {titles[peer]}, {', '.join(questions)}: {why}" for (peer, why), questions in lost.items()]


def aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    lines = [
        "  ".join(
            text.ljust(width) if n < 2 else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def piped(table: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    rule = "|" + "|".join("---" if n < 2 else "---:" for n in range(len(table[0]))) + "|"
    return [lines[0], rule, *lines[1:]]


def heading(title: str, facts: dict[str, Any], bullet: str) -> list[str]:
    where = (
        f"{title}: {facts['date']}, {facts['processor']}, {facts['cores']} cores, {facts['system']}, "
        f"{facts['python']}, load average at the start {facts['load']}"
    )
    return [where, *([f"{bullet}{facts['warning']}"] if facts.get("warning") else [])]


def verdicts(goals: list[Goal]) -> list[list[str]]:
    return [["goal", "measured", "verdict"], *([goal.text, goal.measured, goal.verdict] for goal in goals)]


def report(
    facts: dict[str, Any], answers: Answers, peers: list[Peer], size: Size, goals: list[Goal], markdown: bool
) -> str:
    draw = piped if markdown else aligned
    bullet = "- " if markdown else ""
    blocks = [
        heading("stdio", facts, bullet),
        [f"{bullet}{peer_line(peer)}" for peer in peers],
        draw(rows(answers, peers, size)),
        draw(verdicts(goals)),
        [f"{bullet}{line}" for line in failures(answers, peers)],
        legend(answers, peers),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def as_json(
    facts: dict[str, Any],
    answers: Answers,
    peers: Sequence[Peer],
    size: Any,
    goals: list[Goal],
    versions: dict[str, dict[str, str]],
    questions: Sequence[Question] = QUESTIONS,
) -> dict[str, Any]:
    return {
        "machine": facts,
        "size": vars(size),
        "peers": [
            {
                "key": peer.key,
                "package": peer.package,
                "version": peer.version,
                "note": peer.note,
                "reason": peer.reason,
                "environment": versions.get(peer.key, {}),
            }
            for peer in peers
        ],
        "rows": [
            {
                "key": question.key,
                "question": worded(question, size),
                "unit": question.unit,
                "values": {peer.key: answers.value(question.key, peer.key) for peer in peers},
                "rounds": rounds(answers, question),
            }
            for question in questions
        ],
        "goals": [vars(goal) for goal in goals],
        "failures": answers.failures,
    }


def rounds(answers: Answers, question: Question) -> dict[str, list[float]]:
    """Return every sample, so that a table can be checked later; only the count of latencies."""
    if question.key in ("p50", "p99"):
        return {}
    return answers.samples.get(question.key, {})
