"""`portico memory` at the shell."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remembering import KEY

from portico.cli.completion import complete

Shell = Callable[..., Any]


def test_what_is_captured_at_the_shell_is_recalled_there(shell: Shell) -> None:
    (captured,) = shell("capture", "We", "decided to use", "PostgreSQL", "-t", "db")
    assert (captured["namespace"], captured["tags"]) == ("decisions", ["db"])
    shell("capture", "-", "-n", "context", stdin="From standard input\n")
    (found,) = shell("recall", "which", "PostgreSQL?")
    assert found["id"] == captured["id"]
    assert len(shell("list")) == 2
    assert [one["id"] for one in shell("list", "-f", "tag:db")] == [captured["id"]]
    assert "PostgreSQL" in shell("list", "-o", "table", plain=True)
    (edited,) = shell("edit", captured["id"][:8], "We", "use", "SQLite")
    assert edited["version"] == 2
    (shown,) = shell("show", captured["id"])
    assert [one["change"] for one in shown["history"]] == ["updated", "captured"]
    (counts,) = shell("stats")
    assert counts["total"] == 2
    shell("delete", captured["id"], "--hard")
    assert "no memory" in shell("show", captured["id"], fails=1)


def test_a_secret_is_refused_at_the_shell_too(shell: Shell) -> None:
    said = shell("capture", f"The key is {KEY}", fails=1)
    assert "Not stored" in said and KEY not in said
    (captured,) = shell("capture", f"The key is {KEY}", "--secrets", "redact")
    assert captured["redacted"]
    assert "Not stored" in shell("capture", "fine", "-t", KEY, fails=1)
    assert "Not stored" in shell("edit", captured["id"], f"The key is {KEY}", fails=1)
    mail = "ann.lee" + "@" + "lindholm-bakery.se"
    assert "Not stored" in shell("capture", f"Write to {mail}", "--personal", "block", fails=1)
    (captured,) = shell("capture", f"Write to {mail}")
    assert captured["contains"] == ["email"]


def test_an_export_is_imported_at_the_shell(shell: Shell, tmp_path: Path) -> None:
    shell("capture", "one thing", "-n", "context")
    shell("capture", "another matter", "-n", "config")
    for format in ("jsonl", "markdown"):
        data = shell("export", "--format", format, plain=True)
        other = str(tmp_path / f"{format}.db")
        (brought,) = shell("import", "--format", format, "--store", other, stdin=data)
        assert brought["added"] == 2
        path = tmp_path / format
        path.write_text(data)
        assert shell("import", str(path), "--format", format, "--store", other)[0]["unchanged"] == 2


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
    assert "not a git repository" in shell("sync", fails=1)


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
    assert [one["content"] for one in shell("list", "--store", other)] == ["about plums"]
    assert "no remote" in shell("sync", "--remote", "elsewhere", fails=1)


def test_the_words_behind_memory_are_completed() -> None:
    assert complete(["memory", "re"]) == ["recall", "restore"]
    assert complete(["memory", "hook", "pre"]) == ["pre-compact"]
    assert complete(["memory", "list", "--na"]) == ["--namespace"]


def test_what_was_deleted_is_restored_at_the_shell(shell: Shell) -> None:
    (captured,) = shell("capture", "Plants are watered on Mondays")
    shell("delete", captured["id"])
    assert shell("list") == []
    (back,) = shell("restore", captured["id"])
    assert back["id"] == captured["id"]
    assert [one["id"] for one in shell("list")] == [captured["id"]]


def test_people_get_lines_and_no_json(shell: Shell) -> None:
    (captured,) = shell("capture", "Plants are watered on Mondays", "-t", "home", "-t", "plants")
    for words in (("show", captured["id"]), ("stats",)):
        said = shell(*words, "-o", "text", plain=True)
        assert "{" not in said and '"' not in said
    assert "tags" in shell("show", captured["id"], "-o", "text", plain=True)
