"""`portico memory` on the command line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico.cli.completion import complete
from portico.cli.main import main
from support.memories import KEY

Shell = Callable[..., Any]


def test_shell_captures_recalls_and_edits_memories(shell: Shell) -> None:
    (captured,) = shell("capture", "We", "decided to use", "PostgreSQL", "-t", "db")
    assert (captured["namespace"], captured["tags"]) == ("decisions", ["db"])
    shell("capture", "-", "-n", "context", stdin="From standard input\n")
    (result,) = shell("recall", "which", "PostgreSQL?")
    assert result["id"] == captured["id"]
    assert len(shell("list")) == 2
    assert [item["id"] for item in shell("list", "-f", "tag:db")] == [captured["id"]]
    assert "PostgreSQL" in shell("list", "--format", "table", plain=True)
    (edited,) = shell("edit", captured["id"][:8], "We", "use", "SQLite")
    assert edited["version"] == 2
    (output,) = shell("show", captured["id"])
    assert [item["change"] for item in output["history"]] == ["updated", "captured"]
    (counts,) = shell("stats")
    assert counts["total"] == 2
    shell("delete", captured["id"], "--permanent")
    assert "not found" in shell("show", captured["id"], fails=1)


def test_history_in_a_table_says_what_was_there_before(shell: Shell) -> None:
    (captured,) = shell("capture", "We use PostgreSQL", "-t", "db")
    shell("edit", captured["id"], "We use SQLite")
    shown = shell("show", captured["id"], "--format", "table", plain=True)
    assert re.search(r"^content +We use SQLite$", shown, re.M)
    assert re.search(r"^  previous content +We use PostgreSQL$", shown, re.M)
    (same,) = shell("show", captured["id"])
    assert same["history"][0]["content"] == "We use PostgreSQL"


def test_secret_is_rejected_at_the_shell_too(shell: Shell) -> None:
    result = shell("capture", f"The key is {KEY}", fails=1)
    assert "Not stored" in result and KEY not in result
    (captured,) = shell("capture", f"The key is {KEY}", "--secrets", "redact")
    assert captured["redacted"]
    assert "Not stored" in shell("capture", "fine", "-t", KEY, fails=1)
    assert "Not stored" in shell("edit", captured["id"], f"The key is {KEY}", fails=1)
    mail = "ann.lee" + "@" + "lindholm-bakery.se"
    assert "Not stored" in shell("capture", f"Write to {mail}", "--pii", "block", fails=1)
    (captured,) = shell("capture", f"Write to {mail}")
    assert captured["contains"] == ["email"]


def test_export_is_imported_at_the_shell(shell: Shell, tmp_path: Path) -> None:
    shell("capture", "one thing", "-n", "context")
    shell("capture", "another matter", "-n", "config")
    for format in ("jsonl", "markdown"):
        data = shell("export", "--export-format", format, plain=True)
        other = str(tmp_path / f"{format}.db")
        (brought,) = shell("import", "--export-format", format, "--store", other, stdin=data)
        assert brought["added"] == 2
        path = tmp_path / format
        path.write_text(data)
        assert shell("import", str(path), "--export-format", format, "--store", other)[0]["unchanged"] == 2


def test_export_is_written_to_a_file(shell: Shell, tmp_path: Path) -> None:
    shell("capture", "one thing", "-n", "context")
    path = tmp_path / "backup.jsonl"
    assert shell("export", str(path), plain=True) == ""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == shell("export", plain=True) == shell("export", "-", plain=True)
    assert "--force" in shell("export", str(path), fails=2)
    shell("capture", "another matter", "-n", "config")
    shell("export", str(path), "--force")
    assert len(path.read_text().splitlines()) == 2
    assert sorted(item.name for item in tmp_path.iterdir()) == ["backup.jsonl", "data", "project"]
    for words in (("export", str(tmp_path / "no" / "folder.jsonl")), ("export", "a", "b")):
        shell(*words, fails=2)


def test_export_of_everything_has_all_projects_and_the_users_own(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, words in enumerate((("--project", "a"), ("--project", "b"), ("--domain", "user"), ())):
        shell("capture", f"thing number {number}", "-n", "context", *words)
    assert len(shell("export", plain=True).splitlines()) == 2
    every = shell("export", "--all", plain=True)
    assert len(every.splitlines()) == 4
    main(["memory", "export", str(tmp_path / "two")])
    output = capsys.readouterr().err
    assert "2 memories of this project and of the user exported to " in output and "--all" in output
    (brought,) = shell("import", "--store", str(tmp_path / "other.db"), stdin=every)
    assert brought["added"] == 4


@pytest.mark.parametrize("format", ["jsonl", "markdown"])
def test_import_that_cannot_be_read_changes_nothing(shell: Shell, format: str) -> None:
    shell("capture", "one thing", "-n", "context")
    good = (
        shell("export", "--export-format", format, plain=True)
        .replace("one thing", "another thing")
        .replace('"id":"', '"id":"0')
    )
    bad = "garbage {\n" if format == "jsonl" else '<!-- memory {"id": 3} -->\n'
    assert "Nothing was imported" in shell("import", "--export-format", format, stdin="garbage", fails=1)
    assert "--skip-invalid" in shell("import", "--export-format", format, stdin=f"{good}\n{bad}", fails=1)
    assert len(shell("list")) == 1
    (brought,) = shell("import", "--export-format", format, "--skip-invalid", stdin=f"{good}\n{bad}")
    assert (brought["added"], brought["refused"]) == (1, 1)


@pytest.mark.parametrize("variable", [True, False])
def test_only_capturing_commands_create_a_missing_store(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: bool
) -> None:
    path = tmp_path / "typo.db"
    if variable:
        monkeypatch.setenv("PORTICO_STORE", str(path))
    words = () if variable else ("--store", f"sqlite://{path}")
    for action in (
        ("list",), ("recall", "x"), ("show", "x"), ("edit", "x", "y"), ("delete", "x"), ("restore", "x"), ("export",),
        ("stats",), ("conflicts",), ("list", "--project", "a"),
    ):  # fmt: skip
        assert "not found" in shell(*action, *words, fails=2)
        assert not path.exists()
    shell("capture", "one thing", *words)
    assert len(shell("list", *words)) == 1


def test_weak_matches_are_marked(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell("capture", "The staging server listens on port 8080", "-n", "config")
    result = shell("recall", "pizza", "--format", "table", plain=True)
    assert "MATCH" in result and "weak" in result
    main(["memory", "recall", "pizza", "--format", "table"])
    assert "no memory is a good match" in capsys.readouterr().err
    assert "MATCH" not in shell("recall", "staging server port", "--format", "table", plain=True)


def test_project_is_shown_where_several_are_listed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for project in ("github.com/ann/shop", "github.com/ann/site"):
        shell("capture", f"The port of {project} is 8080", "-n", "config", "--project", project)
    result = shell("list", "-f", "project:*", "--format", "table", plain=True)
    assert "PROJECT" in result and "github.com/ann/shop" in result and "github.com/ann/site" in result
    shell("capture", "nothing else", "-n", "config")
    assert "PROJECT" not in shell("list", "--format", "table", plain=True)


def test_end_of_a_projects_name_is_enough(shell: Shell) -> None:
    for project in ("github.com/ann/shop", "github.com/ann/site", "github.com/bob/site"):
        shell("capture", "We use PostgreSQL", "-n", "config", "--project", project)
    assert shell("list", "--project", "shop")[0]["project"] == "github.com/ann/shop"
    assert len(shell("export", "--project", "shop", plain=True).splitlines()) == 1
    assert shell("recall", "PostgreSQL", "--project", "ann/site")[0]["project"] == "github.com/ann/site"
    assert "github.com/bob/site" in shell("list", "--project", "site", fails=2)
    for words in (("list",), ("recall", "PostgreSQL"), ("export",), ("conflicts",)):
        message = shell(*words, "--project", "hop", fails=1)
        assert "unknown project 'hop'" in message and "github.com/ann/shop" in message


def test_edit_adds_tags_unless_replace_tags_is_given(shell: Shell) -> None:
    (captured,) = shell("capture", "The port is 8080", "-t", "api", "-t", "ports")
    id = captured["id"]
    assert shell("edit", id, "-t", "web")[0]["tags"] == ["api", "ports", "web"]
    assert shell("edit", id, "--remove-tag", "ports", "-t", "api")[0]["tags"] == ["api", "web"]
    assert shell("edit", id, "The port is 9090")[0]["tags"] == ["api", "web"]
    assert shell("edit", id, "--replace-tags", "-t", "new")[0]["tags"] == ["new"]
    assert shell("edit", id, "--replace-tags")[0]["tags"] == []


def test_delete_by_filter_requires_confirmation(shell: Shell) -> None:
    shell("capture", "about plums", "-t", "old")
    shell("capture", "about pears")
    assert "would be deleted" in shell("delete", "-f", "tag:old", "--format", "table", plain=True)
    assert shell("delete", "-f", "tag:none", "--format", "table", plain=True) == "0 memories deleted\n"
    assert len(shell("list")) == 2
    assert shell("delete", "-f", "tag:old", "--allow-bulk-delete")[0]["count"] == 1
    assert [item["content"] for item in shell("list")] == ["about pears"]
    shell("delete", "x", "-f", "tag:old", fails=2)


def test_shell_messages_name_shell_commands(shell: Shell) -> None:
    assert "`portico memory recall`" in shell("show", "zzz", fails=1)
    (captured,) = shell("capture", "about plums")
    assert "portico memory restore" in shell("delete", captured["id"], "--format", "table", plain=True)
    assert "at least 1" in shell("list", "--limit", "0", fails=2)


def test_conflicts_are_listed_at_the_shell(shell: Shell) -> None:
    for port in (8080, 9090):
        shell("capture", f"The staging server listens on port {port}", "-n", "config")
    assert len(shell("conflicts")) == 1
    assert "the numbers differ" in shell("conflicts", "--format", "table", plain=True)


# Hooks


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home" / ".claude" / "settings.json"


def test_hooks_are_installed_and_removed(shell: Shell, settings: Path) -> None:
    result = shell("hooks", "install", plain=True)
    assert "memory hook session-start" in result and "--write" in result and not settings.exists()
    theirs = {"matcher": "Bash", "hooks": [{"type": "command", "command": "echo portico"}]}
    before = {"model": "opus", "hooks": {"Stop": [theirs]}}
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(before, indent=2))
    for _ in range(2):
        shell("hooks", "install", "--write", plain=True)
        hooks = json.loads(settings.read_text())["hooks"]
        assert set(hooks) == {"SessionStart", "UserPromptSubmit", "PostToolUse", "PreCompact", "Stop"}
        assert hooks["Stop"][0] == theirs and len(hooks["Stop"]) == 2 and len(hooks["SessionStart"]) == 1
    command = hooks["SessionStart"][0]["hooks"][0]["command"]
    ended = subprocess.run(shlex.split(command), input="{}", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    shell("hooks", "remove", "--write", plain=True)
    assert json.loads(settings.read_text()) == {"model": "opus", "hooks": {"Stop": [theirs]}}


def test_some_hooks_are_installed_for_a_project(shell: Shell, settings: Path) -> None:
    shell("hooks", "install", "session-start", "--scope", "project", "--write", plain=True)
    hooks = json.loads(Path(".claude/settings.json").read_text())["hooks"]
    assert hooks == {"SessionStart": [{"hooks": [{"type": "command", "command": "portico memory hook session-start"}]}]}


def test_settings_that_cannot_be_read_stay_unchanged(shell: Shell, settings: Path) -> None:
    settings.parent.mkdir(parents=True)
    for text in ("{", '{"hooks": []}', '{"hooks": {"SessionStart": {}}}'):
        settings.write_text(text)
        assert "the file was not changed" in shell("hooks", "install", "--write", fails=2)
        assert settings.read_text() == text
    shell("hooks", "install", "nonsense", fails=2)
    shell("hooks", fails=2)


def test_mistakes_are_explained(shell: Shell) -> None:
    assert "Invalid namespace" in shell("capture", "x", "-n", "nonsense", fails=1)
    for words in (
        ("recall",),
        ("show",),
        ("edit",),
        ("delete",),
        ("capture",),
        ("import", "gone"),
    ):
        shell(*words, fails=2)
    assert "requires a git repository" in shell("sync", fails=1)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
def test_memories_are_shared_at_the_shell(shell: Shell, tmp_path: Path) -> None:
    for words in (
        ("init", "--quiet", "--bare", str(tmp_path / "origin.git")),
        ("init", "--quiet", str(tmp_path / "project")),
        ("-C", str(tmp_path / "project"), "remote", "add", "origin", str(tmp_path / "origin.git")),
    ):
        subprocess.run(["git", *words], check=True)
    shell("capture", "about plums")
    assert shell("sync")[0]["sent"] == 1
    other = str(tmp_path / "other.db")
    assert shell("sync", "--direction", "fetch", "--store", other)[0]["added"] == 1
    assert [item["content"] for item in shell("list", "--store", other)] == ["about plums"]
    assert "Unknown remote" in shell("sync", "--remote", "elsewhere", fails=1)


def test_words_behind_memory_are_completed() -> None:
    assert complete(["memory", "re"]) == ["recall", "restore"]
    assert complete(["memory", "hook", "pre"]) == ["pre-compact"]
    assert complete(["memory", "list", "--na"]) == ["--namespace"]


def test_shell_restores_a_deleted_memory(shell: Shell) -> None:
    (captured,) = shell("capture", "Plants are watered on Mondays")
    assert shell("delete", captured["id"])[0]["note"] == "`portico memory restore` restores it."
    assert shell("list") == []
    (back,) = shell("restore", captured["id"])
    assert back["id"] == captured["id"]
    assert [item["id"] for item in shell("list")] == [captured["id"]]


def test_table_format_prints_lines_without_json(shell: Shell) -> None:
    (captured,) = shell("capture", "Plants are watered on Mondays", "-t", "home", "-t", "plants")
    for words in (("show", captured["id"]), ("stats",)):
        result = shell(*words, "--format", "table", plain=True)
        assert "{" not in result and '"' not in result
    assert "tags" in shell("show", captured["id"], "--format", "table", plain=True)


@pytest.mark.parametrize("action", [("list",), ("recall", "PostgreSQL"), ("export",)])
def test_a_filter_with_an_unknown_key_is_refused(shell: Shell, action: tuple[str, ...]) -> None:
    """As text it would be searched instead, and the other memories would be listed."""
    shell("capture", "We use PostgreSQL", "-t", "db")
    assert "got 'tga:db'; its keys are ns, tag" in shell(*action, "-f", "since:7d tga:db", fails=2)
