"""What is typed is read alike wherever the options stand."""

from __future__ import annotations

import pytest

from portico.cli.forms import parser_for

ORDERS = [
    ("jobs", ["retry", "a1"], ["--store", "x.db"]),
    ("memory", ["recall", "which", "database"], ["--data", "here"]),
    ("tasks", ["add", "read", "it"], ["--data", "here"]),
    ("tokens", ["remove", "ci"], ["--file", "tokens.json"]),
    ("serve", ["server.py"], ["--port", "8081"]),
]


@pytest.mark.parametrize(("command", "words", "option"), ORDERS, ids=[one[0] for one in ORDERS])
def test_options_stand_before_behind_and_between(command: str, words: list[str], option: list[str]) -> None:
    parser = parser_for(command)
    behind = parser.read([*words, *option])
    assert parser.read([*option, *words]) == behind
    assert parser.read([words[0], *option, *words[1:]]) == behind


def test_what_begins_with_a_dash_stands_behind_two() -> None:
    """Ids of tasks did, one in sixty-four."""
    arguments = parser_for("jobs").read(["retry", "--store", "x.db", "--", "-in6NmENQ", "-o"])
    assert (arguments.action, arguments.ids, arguments.store) == ("retry", ["-in6NmENQ", "-o"], "x.db")
