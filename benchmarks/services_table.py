"""Definition and output of the tables about the services.

A module with such a table has a `NAME` and `measure(size) -> Table`, and run.py has a line for it. Its samples are
`Answers`, as those of the other tables; so a cell is the median of its rounds, and `take_turns` fills it. A column is a
`Peer`: one that cannot be had keeps its place with the reason, and measuring goes on without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from goals import Goal
from peers import Peer, versions
from scenarios import Answers, Question
from table import aligned, as_json, cell, failures, heading, peer_line, piped, verdicts


@dataclass(frozen=True)
class Size:
    """Sizes of the measurements, interpreted by each table."""

    quick: bool
    rounds: int


SERVICES_FULL = Size(quick=False, rounds=5)
SERVICES_QUICK = Size(quick=True, rounds=1)


@dataclass(frozen=True)
class Grid:
    """Related scenarios, with a column per peer."""

    questions: Sequence[Question]
    columns: Sequence[Peer]


@dataclass(frozen=True)
class Table:
    title: str
    grids: Sequence[Grid]
    answers: Answers
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()  # what this run could not do, and why
    legend: Sequence[str] = ()

    @property
    def peers(self) -> list[Peer]:
        """Return every peer once, in the order of the columns."""
        return list({peer.key: peer for grid in self.grids for peer in grid.columns}.values())

    @property
    def questions(self) -> list[Question]:
        return [question for grid in self.grids for question in grid.questions]


def this_tree(key: str = "portico", title: str = "Portico", **more: Any) -> Peer:
    """Return Portico from this checkout, in the Python that runs the benchmark and has its dependencies."""
    return Peer(key=key, title=title, package="portico", python=sys.executable, version=version("portico"), **more)


def drawn(grid: Grid, answers: Answers) -> list[list[str]]:
    return [
        ["question", "unit", *(peer.title for peer in grid.columns)],
        *(
            [question.text, question.unit, *(cell(answers, question, peer) for peer in grid.columns)]
            for question in grid.questions
        ),
    ]


def report(facts: dict[str, Any], table: Table, size: Size, markdown: bool) -> str:
    draw = piped if markdown else aligned
    bullet = "- " if markdown else ""
    rounds = "one round" if size.rounds == 1 else f"{size.rounds} rounds"
    cells = f"A cell is the median of {rounds}; the columns take turns. ~ marks rounds that differ by more than 10 %."
    blocks = [
        heading(table.title, facts, bullet),
        [f"{bullet}{peer_line(peer)}" for peer in table.peers],
        *(draw(drawn(grid, table.answers)) for grid in table.grids),
        draw(verdicts(list(table.goals))) if table.goals else [],
        [f"{bullet}{line}" for line in (*table.notes, *failures(table.answers, table.peers))],
        [*table.legend, cells],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def told(facts: dict[str, Any], table: Table, size: Size) -> dict[str, Any]:
    """Return all samples as JSON."""
    installed = {peer.key: versions(peer) for peer in table.peers}
    whole = as_json(facts, table.answers, table.peers, size, list(table.goals), installed, table.questions)
    return {**whole, "notes": list(table.notes)}


def ours_failed(table: Table) -> bool:
    """Return whether Portico failed. A missing program on this machine is a valid result."""
    ours = {peer.key for peer in table.peers if peer.package == "portico"}
    return any(ours & set(by_peer) for by_peer in table.answers.failures.values())
