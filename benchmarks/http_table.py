"""The HTTP table: a block per number of connections, a row per server."""

from __future__ import annotations

from typing import Any

from goals import Goal
from http_peers import HttpPeer
from http_scenarios import CONNECTIONS, MEASURES, HttpSize, cores, put
from scenarios import Answers
from table import aligned, cell, failures, heading, peer_line, piped, ratio, verdicts


def block(answers: Answers, peers: list[HttpPeer], connections: int) -> list[list[str]]:
    questions = [put(measure, connections) for measure in MEASURES]
    head = ["server", "asked", "requests/s", "p50 µs", "p99 µs", "CPU µs", "memory MB", "÷ official"]
    body = [
        [
            peer.title,
            peer.asked,
            *(cell(answers, question, peer) for question in questions),
            ratio(answers, questions[0], peer.key),
        ]
        for peer in peers
    ]
    return [head, *body]


def peer_lines(peers: list[HttpPeer]) -> list[str]:
    """List each server once, also if several rows use it."""
    return list(dict.fromkeys(peer_line(peer) for peer in peers))


def legend(size: HttpSize) -> list[str]:
    server, asker = cores()
    where = f"the server pinned to core {server}, wrk to core {asker}"
    if server == asker:
        where = f"server and wrk on the one core there is ({server}), so they took time from each other"
    rounds = "one round" if size.rounds == 1 else f"{size.rounds} rounds"
    return [
        f"wrk with one thread; one worker each; {where}. A cell is the median of {rounds} of {size.seconds} s, after a"
        " second that is thrown away (Node.js: five); the servers take turns within a round. ~ marks rounds that"
        " differ by more than 10 %.",
        "Revision 2026-07-28, one request alone, except where it says session: that is 2025-11-25, with one session for"
        " all connections. Every request has its own id and its own numbers. The head is the same each time, and"
        " Portico's listener remembers heads; `new head each` is with an X-Request-Id that never repeats.",
        "An answer of each server was checked before each run (status 200 and the right sum); one non-2xx answer or"
        " socket error makes the cell a failure.",
        "CPU is user and system time by the kernel clock, summed over the processes of a server, divided by the"
        " requests wrk counted; memory is resident, summed likewise, so that pages two processes share count twice."
        " A server runs through all rounds, so memory retained from 256 connections affects its other cells.",
        "bare: only decodes and encodes the same JSON with msgspec. Go SDK: another program (kubernetes-mcp-server)"
        " whose ping does less than a call. ÷ official: requests per second as a multiple of the official SDK's.",
    ]


def report(
    facts: dict[str, Any],
    answers: Answers,
    peers: list[HttpPeer],
    size: HttpSize,
    goals: list[Goal],
    wrk: str,
    markdown: bool,
) -> str:
    draw = piped if markdown else aligned
    bullet = "- " if markdown else ""
    requests = [
        [f"{number} connection{'s' if number > 1 else ''}", "", *draw(block(answers, peers, number))]
        for number in CONNECTIONS
    ]
    blocks = [
        heading("HTTP", facts, bullet),
        [f"{bullet}wrk: {wrk}", *(f"{bullet}{line}" for line in peer_lines(peers))],
        *requests,
        draw(verdicts(goals)),
        [f"{bullet}{line}" for line in failures(answers, peers)],
        legend(size),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)
