"""What is typed is read alike wherever the options stand."""

from __future__ import annotations

import shlex

import pytest
from portico.cli.specs.actions import ACTION_OPTIONS, EXAMPLES

from portico.cli.specs import FORMS, parser_for

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


@pytest.mark.parametrize("command", FORMS)
def test_every_command_has_an_example_that_can_be_parsed(command: str) -> None:
    assert "\nExample" in parser_for(command).format_help()
    for line in EXAMPLES[command]:
        words = shlex.split(line.partition(" -- ")[0])[1:]
        parser_for(command, with_target=" -- " not in line).read(words)


@pytest.mark.parametrize("command", ACTION_OPTIONS)
def test_the_help_of_an_action_has_its_options_only(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_for(command)
    known = {name for flag in parser.flags for name in flag.option_strings}
    assert ACTION_OPTIONS[command].keys() <= known
    for action in parser.actions:
        with pytest.raises(SystemExit) as ended:
            parser.read([action, "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0 and f"portico {command} {action}" in shown
        for option, owners in ACTION_OPTIONS[command].items():
            assert (f" {option} " in shown.replace("\n", " ").partition("xample")[0]) == (action in owners.split())


@pytest.mark.parametrize(
    "command, words, message",
    [
        ("memory", ["capture", "x", "--undo", "3"], "--undo is an option of sync, not of capture"),
        ("memory", ["--undo=3", "capture", "x"], "--undo is an option of sync, not of capture"),
        ("tasks", ["rm", "3fb8", "-spending"], "--status is an option of list, not of rm"),
        ("tokens", ["list", "--all"], "--all is an option of add, not of list"),
    ],
)
def test_an_option_of_another_action_is_refused(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_for(command).read(words)
    assert ended.value.code == 2 and message in capsys.readouterr().err
