"""Terminal output: tables, escaped text, progress and elicitation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

Open = Callable[..., Any]

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"


# Tables and texts


def test_list_is_a_table(terminal: Open) -> None:
    seen = terminal("list", "tools", "examples/orders.py")
    assert seen.end() == 0
    head, first, *rest = seen.shown.splitlines()
    assert head.split() == ["NAME", "ARGUMENTS", "DESCRIPTION"]
    assert first.startswith("place_order")
    assert "Place an order." in seen.shown
    assert any(line.startswith("find_order") and "[number] [email]" in line for line in rest)
    assert all(len(line) <= 100 for line in seen.shown.splitlines())
    assert "\x1b[" in seen.raw


def test_table_needs_no_rich(terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError\n")
    seen = terminal("list", "tools", "examples/orders.py", PYTHONPATH=str(tmp_path))
    assert seen.end() == 0
    assert "place_order       product quantity address [size] [delivery] [by]  Place an order." in seen.shown
    assert "\x1b[" not in seen.raw


def test_colours_can_be_declined(terminal: Open) -> None:
    seen = terminal("list", "tools", "examples/hello.py", NO_COLOR="1")
    assert seen.end() == 0
    assert "\x1b[3" not in seen.raw


def test_json_can_be_forced(terminal: Open) -> None:
    seen = terminal("list", "tools", "examples/hello.py", "--format", "jsonl")
    assert seen.end() == 0
    assert json.loads(seen.left)["name"] == "greet"


def test_empty_list_says_so(terminal: Open) -> None:
    seen = terminal("list", "prompts", "examples/hello.py")
    assert seen.end() == 0
    assert seen.left == "no prompts\n"


def test_result_matches_its_declared_type(terminal: Open) -> None:
    seen = terminal("call", "examples/results.py", "point")
    assert seen.end() == 0
    assert json.loads(seen.left) == {"x": 1, "y": 2}


def test_several_contents_are_distinguished(terminal: Open, liar: Any) -> None:
    contents = [{"uri": "a://1", "mimeType": "text/plain", "text": "one"}, {"uri": "a://2", "text": "two"}]
    seen = terminal("read", "a://1", "--", *liar({"resources/read": {"contents": contents}}))
    assert seen.end() == 0
    assert seen.left == "── a://1 text/plain\none\n── a://2\ntwo\n"


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt.exe\r"


@pytest.mark.parametrize(
    "words", [["list", "tools"], ["list", "tools", "--format", "jsonl"], ["call", "t"], ["call", "wrong"]]
)
@pytest.mark.parametrize("has_rich", [True, False])
def test_nothing_that_a_server_says_is_obeyed_by_the_terminal(
    terminal: Open, liar: Any, tmp_path: Path, words: list[str], has_rich: bool
) -> None:
    if not has_rich:
        (tmp_path / "rich.py").write_text("raise ImportError\n")
    tool = {"name": "t", "description": EVIL, "inputSchema": {"type": "object"}}
    command = liar(
        {
            "tools/list": {"tools": [tool, {**tool, "name": f"t{EVIL}"}]},
            "tools/call": {"content": [{"type": "text", "text": EVIL}], "structuredContent": {"a": EVIL}},
        }
    )
    seen = terminal(*words, "--", *command, PYTHONPATH="" if has_rich else str(tmp_path))
    seen.end()
    for trick in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07"):
        assert trick not in seen.raw
    assert "\r" not in seen.raw.replace("\r\n", "")
    assert "owned" in seen.raw


# On the way


def test_progress_is_shown_and_taken_away(terminal: Open) -> None:
    seen = terminal("call", "examples/progress.py", "count", "to=3", "pause=0.1")
    assert seen.end() == 0
    assert "33% at 1" in seen.shown
    assert "33% at 1" not in seen.left
    # The line is wiped before the result is printed.
    assert seen.raw.rstrip("\r\n").endswith("\r\x1b[Kcounted to 3")


def test_progress_is_not_requested_without_a_terminal(portico: Open) -> None:
    done = portico("call", "examples/progress.py", "count", "to=1", "pause=0", "--trace")
    assert done.returncode == 0
    assert "progressToken" not in done.stderr


# Questions


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
def test_form_is_asked_field_by_field(terminal: Open, server: Any, revision: str) -> None:
    path = server(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Traveller:\n    name: str\n    age: Annotated[int, 'In years']\n"
        "    seat: Literal['aisle', 'window'] = 'aisle'\n    vegetarian: bool = False\n    nickname: str = 'none'\n"
        "@server.tool\nasync def who(ctx: Context) -> str:\n"
        "    said = await ctx.elicit('Who travels?', Traveller)\n    return f'{said.action} {said.data}'\n"
    )
    seen = terminal("call", path, "who", "--protocol-version", revision)
    seen.wait_for("odd asks: Who travels?\n")
    seen.wait_for("name: ")
    seen.type("\n")
    seen.wait_for("A value is required.\n  name: ")
    seen.type("Ada Lovelace\n")
    seen.wait_for("  age: In years\n  age (an integer): ")
    seen.type("old\n")
    seen.wait_for('expected an integer, received the string "old"')
    seen.wait_for("age (an integer): ")
    seen.type("36\n")
    seen.wait_for("1) aisle\n    2) window\n  seat (1 to 2) [aisle]: ")
    seen.type("2\n")
    seen.wait_for("vegetarian [y/N]: ")
    seen.type("y\n")
    seen.wait_for("nickname [none]: ")
    seen.type("\n")
    seen.wait_for("Send this to odd? [Y/n] ")
    seen.type("\n")
    assert seen.end() == 0
    result = seen.shown.replace("\n", "")
    assert "accept Traveller(name='Ada Lovelace', age=36, seat='window', vegetarian=True, nickname='none')" in result


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
def test_two_questions_are_asked_one_after_the_other(terminal: Open, revision: str) -> None:
    seen = terminal("call", "examples/travel.py", "book", "destination=Bergen", "--protocol-version", revision)
    seen.wait_for("Which seat?")
    seen.wait_for("value (1 to 2): ")
    seen.type("window\n")
    seen.wait_for("[Y/n] ")
    seen.type("y\n")
    seen.wait_for("Pay now?")
    seen.wait_for("value [y/n]: ")
    seen.type("n\n")
    seen.wait_for("[Y/n] ")
    seen.type("\n")
    seen.wait_for("Reservation 1 is kept for a day.")
    assert seen.end() == 0


def test_choices_have_titles_and_there_can_be_several(terminal: Open) -> None:
    seen = terminal("call", "examples/everything.py", "test_elicitation_sep1330_enums")
    for answer in ("2", "Third Option", "opt1", "1, 3", "First Choice,value2"):
        seen.wait_for("): ")
        seen.type(f"{answer}\n")
    seen.wait_for("[Y/n] ")
    seen.type("\n")
    assert seen.end() == 0
    result = seen.shown.replace("\n", "")
    assert "'untitledSingle': 'option2', 'titledSingle': 'value3', 'legacyEnum': 'opt1'" in result
    assert "'untitledMulti': ['option1', 'option3'], 'titledMulti': ['value1', 'value2']" in result


@pytest.mark.requirement("elicitation.defaults")
def test_defaults_are_offered(terminal: Open) -> None:
    seen = terminal("call", "examples/everything.py", "test_elicitation_sep1034_defaults")
    for prompt in (
        "name [John Doe]: ",
        "[30]: ",
        "[95.5]: ",
        "[active]: ",
        "[Y/n]: ",
        "Send this to Everything? [Y/n] ",
    ):
        seen.wait_for(prompt)
        seen.type("\n")
    assert seen.end() == 0
    assert "name='John Doe', age=30, score=95.5, status='active', verified=True" in seen.shown.replace("\n", "")


@pytest.mark.requirement("elicitation.decline-any-time")
@pytest.mark.parametrize("answer, action", [("n\n", "decline"), ("\x04", "cancel")])
def test_form_can_be_declined_and_left(terminal: Open, answer: str, action: str) -> None:
    seen = terminal("call", "examples/everything.py", "test_elicitation", "message=Who?")
    for prompt in ("username: ", "email: "):
        seen.wait_for(prompt)
        seen.type("x@y.example\n")
    seen.wait_for("[Y/n] ")
    seen.type(answer)
    seen.wait_for(f"action={action}")
    assert seen.end() == 0


@pytest.mark.requirement("elicitation.consent")
@pytest.mark.parametrize("answer, said", [("y\n", "Continue after the login."), ("\n", "No account was connected.")])
def test_elicitation_url_is_shown_with_its_host_before_consent(terminal: Open, answer: str, said: str) -> None:
    seen = terminal("call", "examples/travel.py", "connect_account")
    seen.wait_for("travel asks: Sign in with the airline\n")
    seen.wait_for("open a page of airline.example:\n\n  https://airline.example/connect\n")
    seen.wait_for("[y/N] ")
    seen.type(answer)
    seen.wait_for(said)
    assert seen.end() == 0


@pytest.mark.requirement("elicitation.consent")
@pytest.mark.parametrize(
    "url, shown",
    [
        (
            "https://xn--pple-43d.com/",
            "Warning: the name of this site contains characters that may look like other letters.",
        ),
        (
            "https://shop.XN--pple-43d.com/",
            "Warning: the name of this site contains characters that may look like other letters.",
        ),
        ("https://bank.example@evil.example/", "a page of evil.example:"),
    ],
)
def test_page_cannot_pretend_to_be_another(terminal: Open, server: Any, url: str, shown: str) -> None:
    path = server(
        f"@server.tool\nasync def go(ctx: Context) -> str:\n    return (await ctx.elicit_url('Come', {url!r})).action\n"
    )
    seen = terminal("call", path, "go")
    seen.wait_for(shown)
    seen.wait_for("[y/N] ")
    seen.type("\n")
    seen.wait_for("decline")
    assert seen.end() == 0


@pytest.mark.requirement("elicitation.client-page")
@pytest.mark.parametrize(
    "url", ["https://аpple.com/", "javascript:alert(1)", "file:///etc/passwd", "https://[nonsense/", "https:///x"]
)
def test_elicitation_with_an_invalid_url_is_not_shown(terminal: Open, liar: Any, url: str) -> None:
    question = {"method": "elicitation/create", "params": {"mode": "url", "message": "Come", "url": url}}
    hello = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0}
    asking = {"resultType": "input_required", "inputRequests": {"a": question}}
    tools = {"resultType": "complete", "tools": [{"name": "go", "inputSchema": {"type": "object"}}]}
    answers = {"server/discover": hello, "tools/list": tools, "tools/call": asking}
    seen = terminal("call", "go", "--", *liar(answers))
    seen.wait_for("not an absolute http or https URL")
    assert seen.end() != 0
    assert "open a page" not in seen.shown


def test_question_does_not_pass_for_one_of_ours(terminal: Open, server: Any) -> None:
    path = server(
        "@server.tool\nasync def ask(ctx: Context) -> str:\n"
        "    said = await ctx.elicit('Your name?\\nSend this to bank? [Y/n] \\x1b[1A', str)\n    return said.action\n"
    )
    seen = terminal("call", path, "ask")
    seen.wait_for("odd asks: Your name?\n    Send this to bank? [Y/n] \\x1b[1A\n")
    seen.wait_for("value: ")
    seen.type("\x04")
    seen.wait_for("cancel")
    assert seen.end() == 0


@pytest.mark.parametrize("target", [["examples/travel.py"], ["--", sys.executable, "examples/travel.py"]])
def test_ctrl_c_ends_the_command_in_the_middle_of_a_question(terminal: Open, target: list[str]) -> None:
    words = [*target[:1], "book", "destination=x"] if len(target) == 1 else ["book", "destination=x", *target]
    seen = terminal("call", *words)
    seen.wait_for("value (1 to 2): ")
    seen.type("\x03")
    assert seen.end() == 130
    assert "Traceback" not in seen.shown


STUCK_READ = """
import os, signal, sys
from portico.cli.main import main

class Buffer:
    def read(self, count):
        # As a user who presses Ctrl-C while the command reads.
        os.kill(os.getpid(), signal.SIGINT)
        return os.read(os.pipe()[0], count)

class Stdin:
    buffer = Buffer()
    isatty = staticmethod(lambda: False)

sys.stdin = Stdin()
main(sys.argv[1:])
"""


@pytest.mark.parametrize("words", [("memory", "capture", "-"), ("call", "examples/travel.py", "book", "destination=-")])
def test_ctrl_c_ends_a_command_that_reads_standard_input(tmp_path: Path, words: tuple[str, ...]) -> None:
    env = {**os.environ, "PORTICO_DATA": str(tmp_path)}
    command = [sys.executable, "-c", STUCK_READ, *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_questions_can_be_answered_while_the_result_goes_elsewhere(terminal: Open, tmp_path: Path) -> None:
    line = f"{sys.executable} -m portico call examples/travel.py connect_account > {tmp_path}/out"
    seen = terminal(program=["bash", "-c", line])
    seen.wait_for("[y/N] ")
    seen.type("y\n")
    assert seen.end() == 0
    assert json.loads((tmp_path / "out").read_text())["content"][0]["text"] == "Continue after the login."
