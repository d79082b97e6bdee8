"""`portico items` on the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from portico.cli.completion import complete
from portico.cli.main import main
from support.forks import ForkServer

Shell = Callable[..., Any]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """`shell("list")` gives what was printed, as JSON values; `fails=` is the exit status that is expected."""
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PORTICO_STORE", raising=False)

    def run(*words: str, stdin: str = "", fails: int = 0, plain: bool = False) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = 0
        try:
            main(["items", *words, "--format", "table" if plain else "jsonl"])
        except SystemExit as end:
            status = int(end.code or 0)
        output = capsys.readouterr()
        assert status == fails, output.err
        if fails:
            return output.err
        return output.out if plain else [json.loads(line) for line in output.out.splitlines()]

    return run


def test_work_is_planned_and_done_at_the_shell(shell: Shell) -> None:
    (goal,) = shell("add", "Release", "1.0", "-p", "1")
    (build,) = shell("add", "Build it", "--parent", goal["id"][-6:])
    (ship,) = shell(
        "add", "Ship it", "--parent", goal["id"], "--blocked-by", build["id"][-6:], "--context", "ask first"
    )
    assert (goal["description"], goal["priority"], ship["blocked_by"]) == ("Release 1.0", 1, [build["id"]])
    assert [one["id"] for one in shell("list")] == [goal["id"], ship["id"], build["id"]]
    assert [one["id"] for one in shell("list", "--ready")] == [build["id"]]
    assert [one["id"] for one in shell("list", "--blocked")] == [ship["id"]]
    assert [one["id"] for one in shell("list", "ASK")] == [ship["id"]]
    (item,) = shell("next", "--worker", "ann", "--lease-seconds", "60")
    assert (item["id"], item["worker"], "lease_until" in item) == (build["id"], "ann", True)
    assert "1 in progress, 1 blocked" in shell("next", fails=1)
    assert "claimed by 'ann', not by 'ben'" in shell("done", build["id"], "--worker", "ben", fails=1)
    (done,) = shell("done", build["id"][-6:], "it", "is", "in dist/")
    assert (done["status"], done["result"]) == ("completed", "it is in dist/")
    (started,) = shell("start", ship["id"], "--worker", "ben")
    assert (started["status"], started["worker"]) == ("in_progress", "ben")
    (failed,) = shell("fail", ship["id"], "no network")
    assert (failed["status"], failed["result"]) == ("failed", "no network")
    assert shell("reopen", ship["id"])[0]["status"] == "pending"
    assert [(one["depth"], one["status"]) for one in shell("tree", goal["id"])] == [
        (0, "pending"),
        (1, "completed"),
        (1, "pending"),
    ]
    assert [one["change"] for one in shell("history", ship["id"])] == ["reopened", "failed", "started", "created"]
    assert {one["status"] for one in shell("list", "--all")} == {"pending", "completed"}
    assert [one["id"] for one in shell("list", "-s", "completed")] == [build["id"]]


def test_blockers_and_changes_at_the_shell(shell: Shell) -> None:
    (one,), (other,) = shell("add", "one"), shell("add", "-", stdin="other\n")
    assert other["description"] == "other"
    assert shell("block", one["id"], other["id"])[0]["blocked"]
    assert "would wait for each other forever" in shell("block", other["id"], one["id"], fails=1)
    assert not shell("unblock", one["id"], other["id"])[0]["blocked"]
    (edited,) = shell("edit", one["id"], "a new", "text", "-p", "5", "--parent", other["id"])
    assert (edited["description"], edited["priority"], edited["parent_id"]) == ("a new text", 5, other["id"])
    assert "parent_id" not in shell("edit", one["id"], "--parent", "")[0]


def test_delete_command_requires_an_option_for_children(shell: Shell) -> None:
    (top,) = shell("add", "top")
    (below,) = shell("add", "below", "--parent", top["id"])
    assert "--children keep" in shell("delete", top["id"], fails=1)
    (dry,) = shell("delete", top["id"], "--children", "delete", "--dry-run")
    assert dry["dry_run"] and len(shell("list")) == 2
    assert shell("delete", top["id"], "--children", "keep")[0]["kept"] == [below["id"]]
    assert f"{below['id']} is deleted" in shell("delete", below["id"], plain=True)
    assert shell("list") == []
    assert shell("history", top["id"])[0]["change"] == "deleted"


def test_mistakes_are_explained(shell: Shell) -> None:
    assert "not found; check --store" in shell("list", "--store", "typo.db", fails=2)
    shell("add", "a task")
    shell("add", "a task")
    for words in (
        ("add",),
        ("show",),
        ("done",),
        ("start", "a", "b"),
        ("block",),
        ("delete",),
        ("tree", "zzzzzz"),
        ("history",),
    ):
        shell(*words, fails=1 if words[0] in ("start", "tree") and len(words) == 2 else 2)
    assert "More than one" in shell("show", "task_1", fails=1)
    result = shell("done", "zzzzzz", fails=1)
    assert result == "portico: Task 'zzzzzz' does not exist. Use portico items list --all to find ids.\n"
    shell("add", "x", "-p", "9", fails=2)
    shell("nonsense", fails=2)
    assert "1000" in shell("list", "--limit", "5000", fails=1)


def test_control_characters_in_stored_text_are_escaped(shell: Shell) -> None:
    (made,) = shell("add", "\x1b[31mred\x07 [bold]x[/bold]\nnext line \u202e")
    assert made["description"].startswith("\x1b[31mred")
    for words in (("list",), ("tree",), ("show", made["id"]), ("history", made["id"])):
        printed = shell(*words, plain=True)
        assert "\x1b" not in printed and "\x07" not in printed and "\u202e" not in printed
    assert "\\x1b[31mred\\x07 [bold]x[/bold] next line \\u202e" in shell("tree", plain=True)


def test_tree_is_drawn(shell: Shell) -> None:
    (top,) = shell("add", "top", "-p", "1")
    (first,) = shell("add", "first", "--parent", top["id"])
    (leaf,) = shell("add", "leaf", "--parent", first["id"])
    (second,) = shell("add", "second", "--parent", top["id"], "--blocked-by", first["id"])
    shell("next", "--worker", "ann")
    ends = [item["id"][-6:] for item in (top, first, leaf, second)]
    assert shell("tree", plain=True).splitlines() == [
        f"○ {ends[0]} top (P1)",
        f"├─ ○ {ends[1]} first",
        f"│  └─ ◐ {ends[2]} leaf (ann)",
        f"└─ ○ {ends[3]} second (blocked)",
    ]


def test_at_a_terminal_there_are_colours(terminal: Callable[..., Any], tmp_path: Path, shell: Shell) -> None:
    (made,) = shell("add", "[red]paint the shed[/red]", "-p", "2")
    data = {"PORTICO_DATA": str(tmp_path / "data"), "PORTICO_STORE": ""}
    for action in ("list", "tree"):
        seen = terminal("items", action, **data)
        assert seen.end() == 0
        assert "[red]paint the shed[/red]" in seen.shown and made["id"][-6:] in seen.shown
        assert "\x1b[" in seen.raw
    seen = terminal("items", "done", made["id"][-6:], **data)
    assert seen.end() == 0
    assert seen.left == f"{made['id']} is completed\n"
    seen = terminal("items", "next", **data)
    assert seen.end() == 1
    assert "No work: no task is pending or in progress." in seen.shown


def test_words_behind_tasks_are_completed() -> None:
    assert complete(["items", "re"]) == ["reopen"]
    assert complete(["items", "list", "--st"]) == ["--status", "--store"]
    assert complete(["items", "list", "--status", "p"]) == ["pending"]
    assert "items" in complete(["it"])


def test_shell_and_the_server_have_the_same_tasks(shell: Shell, tmp_path: Path) -> None:
    (made,) = shell("add", "shared")
    target = f"{sys.executable} -m portico serve --services tasks --data {tmp_path / 'data'}"
    assert not (tmp_path / "data" / "tasks.db").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        main(["call", target, "get_task", f"id={made['id']}", "--format", "jsonl"])
        data = json.loads(sys.stdout.getvalue())  # type: ignore[attr-defined]
    assert data["structuredContent"]["description"] == "shared"


def test_labels_dates_notes_and_lists_at_the_shell(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    (late,) = shell("add", "Write the page", "-l", "Docs", "-l", "api", "--due", "2020-01-31")
    (other,) = shell("add", "Fix the parser", "-l", "api")
    assert (late["labels"], late["overdue"]) == (["api", "docs"], True)
    assert [one["id"] for one in shell("list", "--overdue")] == [late["id"]]
    assert [one["id"] for one in shell("list", "-l", "api")] == [other["id"], late["id"]]
    assert [one["id"] for one in shell("list", "--due", "2020-02-01")] == [late["id"]]
    (edited,) = shell("edit", late["id"], "--remove-label", "docs", "-l", "web", "--due", "")
    assert (edited["labels"], "due_at" in edited) == (["api", "web"], False)
    (noted,) = shell("note", late["id"][-6:], "ask", "Ann", "--worker", "ben")
    assert noted["notes"] == 1
    (output,) = shell("show", late["id"])
    assert [(note["who"], note["text"]) for note in output["notes"]] == [("ben", "ask Ann")]
    (item,) = shell("next", "-l", "web", "--worker", "ben")
    assert item["id"] == late["id"]
    monkeypatch.chdir(tmp_path / "two")
    assert shell("list") == []
    assert [one["id"] for one in shell("list", "--project", "*")] == [other["id"], late["id"]]
    shell("edit", other["id"], "--project", "")
    assert [one["id"] for one in shell("list")] == [other["id"]]


def test_id_of_a_new_task_is_all_that_a_shell_gets(portico: Callable[..., Any], tmp_path: Path) -> None:
    """`ID=$(portico items add …)`."""
    done = portico("items", "add", "water the plants", PORTICO_DATA=str(tmp_path))
    (id,) = done.stdout.splitlines()
    result = portico("items", "show", id, "--format", "table", PORTICO_DATA=str(tmp_path))
    assert result.stdout.startswith("id ")
    assert "water the plants" in result.stdout and "{" not in result.stdout


def test_next_waits_until_there_is_something_to_do(
    fork_server: ForkServer, surroundings: dict[str, str], tmp_path: Path
) -> None:
    env = {**surroundings, "PORTICO_DATA": str(tmp_path)}
    assert fork_server.run("items", "list", env=env).returncode == 0
    waiting = fork_server.start("items", "next", "--wait", "--format", "jsonl", env=env)
    try:
        assert fork_server.run("items", "add", "at last", env=env).returncode == 0
    finally:
        message, _ = waiting.communicate()
    assert json.loads(message)["description"] == "at last"


def test_tasks_of_one_worker_are_listed_at_the_shell(shell: Shell) -> None:
    (first,) = shell("add", "one", "-p", "1")
    shell("add", "two")
    shell("next", "--worker", "ann")
    assert [item["id"] for item in shell("list", "--worker", "ann")] == [first["id"]]
    assert shell("list", "--worker", "ben") == []


def test_empty_list_names_other_lists_at_the_shell(
    shell: Shell, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("add", "one", "--project", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        main(["items", "list", "--format", "table"])
    message = capsys.readouterr().err
    assert "Other lists have tasks: /elsewhere (1). Pass --project to use one of them" in message


@pytest.mark.parametrize("action", ["list", "tree"])
def test_unknown_project_is_an_error_in_every_format(shell: Shell, action: str) -> None:
    assert shell(action, "--project", "/here") == []  # no project has tasks yet
    shell("add", "one", "--project", "/elsewhere")
    for plain in (False, True):
        message = shell(action, "--project", "/here", fails=1, plain=plain)
        assert message == "portico: unknown project '/here'; projects with work items: /elsewhere\n"
    assert len(shell(action, "--project", "*")) == len(shell(action, "--project", "/elsewhere")) == 1
