"""`portico policy`: explains rules and runs policy tests."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from portico import Client, Server, UsageError
from portico.cli import tool_search
from portico.cli.main import main
from portico.server.policy import settings as access_settings
from portico.server.server import ToolSearchConfig
from support.paths import ROOT

RULES = """
[[rule]]
name = "operators"
principal = "group:ops"
tool = "github.*"
[[rule]]
tool = "*.delete_*"
deny = true
[[rule]]
tool = "github.*"
[[require]]
tool = "*.delete_*"
confirm = "Delete {arguments.repo}?"
[[require]]
tool = "github.push"
scopes = "repo:write"
"""

EXPECTED = """
[[policy_test]]
principal = "olga"
groups = "ops"
tool = "github.delete_repo"
arguments = { repo = "a" }
expect = "confirm"
[[policy_test]]
principal = "gina"
tool = "github.delete_repo"
expect = "deny"
[[policy_test]]
principal = "gina"
tool = "github.push"
expect = "insufficient_scope"
[[policy_test]]
principal = "gina"
scopes = ["repo:write"]
tool = "github.push"
expect = "allow"
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(RULES)
    return path


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = 0
    try:
        main(["policy", *words])
    except SystemExit as end:
        status = int(str(end.code))
    output = capsys.readouterr()
    return status, output.out, output.err


def test_rule_that_decided_is_named(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = ["--tool", "github.delete_repo", "--arguments", '{"repo": "main"}', str(rules)]
    status, out, _ = said(["explain", "--principal", "olga", "--group", "ops", *about], capsys)
    assert status == 0 and "rule 1 (operators): allows it" in out and "Delete main?" in out
    status, out, _ = said(["explain", "--principal", "gina", *about], capsys)
    assert status == 1 and "rule 2: denies it" in out and "denied" in out
    status, out, _ = said(["explain", str(rules), "--principal", "gina", "--tool", "gitlab.push"], capsys)
    assert status == 1 and "no rule matches" in out
    status, out, _ = said(["explain", str(rules), "--principal", "gina", "--tool", "github.push"], capsys)
    assert status == 1 and "repo:write" in out


def test_server_of_ones_own_is_explained_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own_server.py"
    path.write_text(
        "from portico import Server\nfrom portico.extend import configure_access\nserver = Server('own')\n"
        "configure_access(server, {'rule': [{'principal': 'ann', 'tool': 'own.*'}]})\n"
    )
    assert said(["explain", str(path), "--principal", "ann", "--tool", "own.x"], capsys)[0] == 0
    assert said(["explain", str(path), "--principal", "bob", "--tool", "own.x"], capsys)[0] == 1


def test_policy_tests_are_read_from_the_file_or_next_to_it(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["test", str(rules)], capsys)[0] == 2
    beside = rules.with_suffix(".tests.toml")
    beside.write_text(EXPECTED)
    status, out, _ = said(["test", str(rules)], capsys)
    assert status == 0 and "4 of 4" in out
    rules.write_text(RULES + EXPECTED.replace('"deny"', '"allow"'))
    status, out, err = said(["test", str(rules)], capsys)
    assert status == 1 and "7 of 8" in out
    assert "[[policy_test]] 2" in err and "expected allow, got deny: rule 2: denies it" in err


@pytest.mark.parametrize(
    "text, words",
    [
        ("[[rule]]\ntol = 'a.b'", ("[[rule]] 1", "tool")),
        ("[[policy_test]]\nprincipal = 'a'\ntool = 'a.b'\nexpct = 'deny'", ("[[policy_test]] 1", "expect")),
        ("[[policy_test]]\nprincipal = 'a'\nexpect = 'deny'", ("[[policy_test]] 1", "tool")),
        ("rule =", ("TOML",)),
    ],
)
def test_bad_file_is_a_clear_mistake(
    text: str, words: tuple[str, ...], rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules.write_text(text)
    status, _, err = said(["test", str(rules)], capsys)
    assert status == 2 and all(word in err for word in ("access.toml", *words)), err


def test_example_policy_passes_its_tests(capsys: pytest.CaptureFixture[str]) -> None:
    example = ROOT / "examples" / "access.toml"
    status, out, err = said(["test", str(example)], capsys)
    assert (status, err) == (0, "") and "4 of 4" in out


@pytest.mark.parametrize("target", ["own_server.py", ""])
async def test_rules_of_a_config_hold_for_any_target(target: str, tmp_path: Path) -> None:
    server = tmp_path / "own_server.py"
    server.write_text(
        "from portico import Server\nserver = Server('own')\n"
        "@server.tool\ndef one() -> str:\n    return '1'\n@server.tool\ndef two() -> str:\n    return '2'\n"
    )
    rules = tmp_path / "access.toml"
    allowed = "own.one" if target else "tasks.list_tasks"
    rules.write_text(f"[[rule]]\nprincipal = 'local'\ntool = '{allowed}'\n[[limit]]\nrate = '100/min'\ntool = '*'\n")
    what = [str(server)] if target else ["--services", "tasks", "--data", str(tmp_path)]
    words = [sys.executable, "-m", "portico", "serve", *what, "--config", str(rules)]
    async with Client(words, timeout=60) as client:
        names = [tool.name for tool in await client.list_tools()]
    # Rules do not apply to the tool that reads shortened results of the caller.
    assert [name for name in names if name != "read_result"] == [allowed.partition(".")[2]]


def test_scripts_of_the_code_face_are_reported_which_rule_they_need(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["policy", "explain", str(rules), "--principal", "gina", "--tool", "code.run"])
    assert 'tool = "code.*"' in capsys.readouterr().out
    main(["policy", "explain", str(rules), "--principal", "gina", "--tool", "tool_search.find_tools"])
    assert "needs no rule" in capsys.readouterr().out
    rules.write_text(f'{RULES}\n[[rule]]\ntool = "code.*"\n')
    main(["policy", "explain", str(rules), "--principal", "gina", "--tool", "code.run"])
    assert "→ allowed" in capsys.readouterr().out


def test_code_mode_without_an_allowing_rule_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    for rule, words in (("shop.*", "no access rule allows scripts"), ("code.*", "")):
        caplog.clear()
        server = Server("shop")
        access_settings.apply(server, access_settings.read({"rule": [{"tool": rule}]}))
        result = Namespace(transport="stdio", face="code", view=None, store="sqlite://", data=None)
        try:
            tool_search.mount_tool_search(server, result, ToolSearchConfig())
        except UsageError:
            pass  # no jail here
        assert words in caplog.text and bool(words) == bool(caplog.text)


def test_rule_about_scripts_means_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[rule]]\ntool = "code.*"\n[[rule]]\nname = "typo"\ntool = "cod.*"\n')
    with pytest.raises(SystemExit):
        main(["gateway", "check", str(file)])
    assert capsys.readouterr().err == "rule 2 (typo) matches no tool, prompt or resource\n"
