"""`portico memory` at the shell, and the hooks of assistants."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remembering import KEY

from portico.cli.complete import complete
from portico.cli.main import main

Shell = Callable[..., Any]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """`shell("list")` gives what was printed, as JSON values; `fails=` is the exit status that is expected."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PORTICO_STORE", raising=False)

    def run(*words: str, stdin: str = "", fails: int = 0, plain: bool = False) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = 0
        try:
            main(["memory", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert status == fails, said.err
        if fails:
            return said.err
        return said.out if plain else [json.loads(line) for line in said.out.splitlines()]

    return run


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
        ("hook", "nonsense"),
        ("import", "gone"),
    ):
        shell(*words, fails=2)
    assert "not a git repository" in shell("sync", fails=1)


def test_the_words_behind_memory_are_completed() -> None:
    assert complete(["memory", "re"]) == ["recall"]
    assert complete(["memory", "hook", "pre"]) == ["pre-compact"]
    assert complete(["memory", "list", "--na"]) == ["--namespace"]


def context(said: list[Any]) -> str:
    return str(said[0]["hookSpecificOutput"]["additionalContext"])


def test_hooks_bring_what_is_known(shell: Shell, tmp_path: Path) -> None:
    assert shell("hook", "session-start", stdin="{}") == []
    shell("capture", "The deploy script needs the staging key first", "-n", "learnings")
    assert "deploy script" in context(shell("hook", "session-start", stdin="{}"))
    asked = json.dumps({"prompt": "How do I run the deploy script?"})
    assert "deploy script" in context(shell("hook", "user-prompt-submit", stdin=asked))
    assert shell("hook", "user-prompt-submit", stdin='{"prompt": "Tell me a joke"}') == []
    assert shell("hook", "post-tool-use", stdin='{"tool_input": {"file_path": "x.py"}}') == []
    assert shell("hook", "stop", stdin="{}") == []


def test_before_a_conversation_is_cut_short_its_decisions_are_picked_up(shell: Shell, tmp_path: Path) -> None:
    transcript = tmp_path / "transcript.jsonl"
    lines = [
        {"message": {"role": "user", "content": "We decided to use FastAPI for the gateway. How are you?"}},
        {"message": {"role": "assistant", "content": [{"type": "text", "text": f"From now on the key is {KEY} okay"}]}},
        {"message": {"role": "assistant", "content": "Nothing of interest."}},
        {"other": 1},
    ]
    transcript.write_text("\n".join(json.dumps(line) for line in lines) + "\nnot json\n")
    given = json.dumps({"transcript_path": str(transcript), "session_id": "s1"})
    shell("hook", "pre-compact", stdin=given)
    shell("hook", "pre-compact", stdin=given)
    found = shell("list", "-f", "status:pending thread:s1")
    assert len(found) == 2
    assert KEY not in json.dumps(found)


def test_a_hook_never_stands_in_the_way(shell: Shell, tmp_path: Path) -> None:
    assert shell("hook", "session-start", stdin="not json") == []
    assert shell("hook", "pre-compact", stdin='{"transcript_path": "/nowhere"}') == []
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    assert shell("hook", "session-start", "--store", str(tmp_path / "broken.db"), stdin="{}") == []
