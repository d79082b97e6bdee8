"""A tree of work items for people: in colours by rich where that is installed and there is a terminal, else plain."""

from __future__ import annotations

from portico.cli.printable import one_line
from portico.cli.printer import Printer
from portico.services.tasks.results import Node, Plan

MARKS = {"pending": "○", "in_progress": "◐", "completed": "●", "failed": "✗"}
STYLES = {"pending": "", "in_progress": "yellow", "completed": "green", "failed": "red"}
LONGEST = 300


def draw(plan: Plan, printer: Printer, shown: int) -> None:
    rows = [(_branch(plan.tasks, at), one) for at, one in enumerate(plan.tasks)]
    if printer.form == "table" and printer.is_terminal and _in_colours(rows, printer, shown):
        return
    for branch, one in rows:
        printer.raw(f"{branch}{MARKS[one.status]} {one.id[-shown:]} {_words(one)}\n")


def _in_colours(rows: list[tuple[str, Node]], printer: Printer, shown: int) -> bool:
    """Whether there is rich. What others wrote is Text: nothing in it is markup."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=printer.out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for branch, one in rows:
        style = "dim" if one.status == "completed" else "magenta" if one.blocked else ""
        text = Text.assemble(
            (branch, "dim"),
            (f"{MARKS[one.status]} ", STYLES[one.status]),
            (f"{one.id[-shown:]} ", "cyan"),
            (_words(one), style),
        )
        console.print(text)
    return True


def _branch(nodes: list[Node], at: int) -> str:
    """The lines that lead to it: whether anything else comes on each level above."""
    depth = nodes[at].depth
    if depth == 0:
        return ""
    parts = []
    for level in range(1, depth + 1):
        later = next((one for one in nodes[at + 1 :] if one.depth <= level), None)
        goes_on = later is not None and later.depth == level
        if level == depth:
            parts.append("├─ " if goes_on else "└─ ")
        else:
            parts.append("│  " if goes_on else "   ")
    return "".join(parts)


def _words(one: Node) -> str:
    said = [f"P{one.priority}" if one.priority != 3 else "", one.worker or ""]
    if one.blocked and one.status in ("pending", "in_progress"):
        said.append("blocked")
    notes = ", ".join(filter(None, said))
    return one_line(f"{one.description} ({notes})" if notes else one.description, LONGEST)
