"""The client table: a row per scenario, a column per client."""

from __future__ import annotations

from typing import Any

from client_scenarios import CLIENT_QUESTIONS, ClientSize
from peers import Peer
from scenarios import Answers
from table import aligned, cell, failures, heading, peer_line, piped, ratio

LEGEND = (
    "Every client calls the same tool of the same Portico server, on stdio as its child and over HTTP on loopback, by"
    " its own public call; ours on uvloop. CPU is the client's own process. The clients take turns, each turn a new"
    " process. Connections: from nothing to the first answer of a tool, and closed again, one after the other."
)


def report(facts: dict[str, Any], answers: Answers, peers: list[Peer], size: ClientSize, markdown: bool) -> str:
    draw = piped if markdown else aligned
    bullet = "- " if markdown else ""
    head = ["question", "unit", *(peer.title for peer in peers), "official ÷ Portico"]
    body = [
        [
            client_question.text,
            client_question.unit,
            *(cell(answers, client_question, peer) for peer in peers),
            ratio(answers, client_question),
        ]
        for client_question in CLIENT_QUESTIONS
    ]
    rounds = "one round" if size.rounds == 1 else f"{size.rounds} rounds"
    blocks = [
        heading("clients", facts, bullet),
        [f"{bullet}{peer_line(peer)}" for peer in peers],
        draw([head, *body]),
        [f"{bullet}{line}" for line in failures(answers, peers)],
        [f"{LEGEND} A cell is the median of {rounds}; ~ marks rounds that differ by more than 10 %."],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)
