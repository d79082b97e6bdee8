"""`portico install`: other people's files, changed in one place and nowhere else."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.cli import forms, install, jsonc
from portico.cli.main import main
from portico.client.client import Client
from portico.wire.errors import UsageError

CURSOR = Path(".cursor/mcp.json")
HELLO = Path(__file__).resolve().parents[2] / "examples" / "hello.py"
OURS = {"command": "portico", "args": ["serve"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_nothing_is_written_unless_it_is_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["install", "cursor"])
    said = capsys.readouterr().out
    assert '+    "portico": {' in said and "--write" in said
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "client, path, key, says_type",
    [
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers", False),
        ("claude-code", ".claude.json", "mcpServers", True),
        ("cursor", ".cursor/mcp.json", "mcpServers", False),
        ("vscode", ".config/Code/User/mcp.json", "servers", True),
    ],
)
def test_each_client_has_its_file(home: Path, client: str, path: str, key: str, says_type: bool) -> None:
    main(["install", client, "--write"])
    found = json.loads((home / path).read_text())
    (entry,) = found[key].values()
    assert list(found[key]) == ["portico"]
    assert (entry.pop("type", None) == "stdio") is says_type
    assert os.path.isabs(entry["command"]) and entry["args"][-1] == "serve"


@pytest.mark.parametrize(
    "client, path", [("claude-code", ".mcp.json"), ("cursor", ".cursor/mcp.json"), ("vscode", ".vscode/mcp.json")]
)
def test_a_project_has_its_own_file_which_others_can_use_too(home: Path, client: str, path: str) -> None:
    main(["install", client, "--scope", "project", "--write"])
    assert '"command": "portico"' in Path(path).read_text()
    assert list(home.iterdir()) == []


def test_everything_else_in_the_file_stays_as_it_is_and_is_kept(home: Path) -> None:
    text = '// mine\r\n{\r\n\t"a": 1.50e1,\r\n\t"mcpServers": {\r\n\t\t"x": {"command": "y"}, // why\r\n\t},\r\n}\r\n'
    path = write(home / CURSOR, text)
    path.chmod(0o640)
    main(["install", "cursor", "--write"])
    after = path.read_bytes().decode()
    assert after.startswith(text[: text.index("\t},")]) and after.endswith("\t},\r\n}\r\n")
    assert set(jsonc.read(after).value["mcpServers"]) == {"x", "portico"}
    (kept,) = path.parent.glob("*.bak")
    assert kept.read_bytes().decode() == text
    assert {stat.S_IMODE(one.stat().st_mode) for one in (path, kept)} == {0o640}
    main(["install", "cursor", "--remove", "--write"])
    assert path.read_bytes().decode() == text
    assert len(list(path.parent.glob("*.bak"))) == 2


def test_a_second_time_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["install", "cursor", "--write"])
    before = (home / CURSOR).read_bytes()
    main(["install", "cursor", "--write"])
    assert "nothing to change" in capsys.readouterr().out
    assert (home / CURSOR).read_bytes() == before
    assert list((home / CURSOR).parent.glob("*.bak")) == []


@pytest.mark.parametrize(
    "text, says",
    [
        ('{"mcpServers": {', "line 1"),
        ('{"a": 1}\n{', "line 2"),
        ("[]", "an object is expected"),
        ('{"mcpServers": []}', "should be an object"),
        ('{"a": 1, "a": 2}', "twice"),
        ("[" * 100_000, "too deeply"),
        ("{\"a\": 'b'}", "expecting value"),
        ('{"a": 1 /* }', "expecting ',' delimiter"),
    ],
)
def test_a_file_that_cannot_be_read_stays_as_it_is(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = write(home / CURSOR, text)
    with pytest.raises(SystemExit) as left:
        main(["install", "cursor", "--write"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert says in said and "stays as it is" in said
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_bytes_that_are_no_text_stay_as_they_are(home: Path) -> None:
    path = home / CURSOR
    path.parent.mkdir()
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(SystemExit):
        main(["install", "cursor", "--write"])
    assert path.read_bytes() == b'{"a": "\xff"}'


def test_a_byte_order_mark_stays(home: Path) -> None:
    path = write(home / CURSOR, "\ufeff{}")
    main(["install", "cursor", "--write"])
    assert path.read_bytes().startswith(b"\xef\xbb\xbf{\n")


def test_a_link_to_the_file_stays_a_link(home: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "dotfiles" / "mcp.json", "{}")
    (home / ".cursor").mkdir()
    (home / CURSOR).symlink_to(real)
    main(["install", "cursor", "--write"])
    assert (home / CURSOR).is_symlink()
    assert "portico" in real.read_text()


def test_a_file_that_somebody_changed_meanwhile_stays_theirs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home / CURSOR, "{}")
    keep = install._back_up

    def others_write(*rest: Any) -> Path:
        path.write_text('{"theirs": 1}')
        return keep(*rest)

    monkeypatch.setattr(install, "_back_up", others_write)
    with pytest.raises(SystemExit):
        main(["install", "cursor", "--write"])
    assert path.read_text() == '{"theirs": 1}'
    assert not list(path.parent.glob("*.part"))


def test_options_for_serve_are_checked_and_paths_made_whole(home: Path) -> None:
    Path("weather.py").write_text("")
    place = install.PLACES["cursor"]["user"]
    options = ["weather.py:server", "--read-only"]
    assert install.entry(place, options, shared=False)["args"][-2:] == [
        os.path.abspath("weather.py") + ":server",
        "--read-only",
    ]
    assert install.entry(place, options, shared=True)["args"] == ["serve", *options]
    with pytest.raises(UsageError, match="no file"):
        install.entry(place, ["gone.py"], shared=False)
    with pytest.raises(UsageError, match="stdio"):
        install.entry(place, ["--transport", "http"], shared=False)
    with pytest.raises(SystemExit):
        install.entry(place, ["--no-such-thing"], shared=False)


def test_a_client_without_projects_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["install", "claude-desktop", "--scope", "project"])
    assert "--scope user" in capsys.readouterr().err


def test_every_client_that_can_be_typed_is_known() -> None:
    assert tuple(install.PLACES) == forms.FORMS["install"].words[0].options["choices"]


async def test_what_was_installed_starts_and_answers(home: Path) -> None:
    """As the client would do it: read the file, start the command."""
    main(["install", "cursor", "--name", "hello", "--write", "--", str(HELLO)])
    async with Client(f"{home / CURSOR}:hello") as client:
        assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DOCUMENT = st.dictionaries(
    st.text(max_size=5) | st.just("mcpServers"), st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=4
)


@given(DOCUMENT, st.sampled_from([None, 0, 1, 2, 4, "\t"]), st.text(max_size=5))
def test_of_any_document_only_the_one_value_changes(document: Any, indent: Any, name: str) -> None:
    text = json.dumps(document, indent=indent)
    changed = jsonc.put(text, ("mcpServers", name), OURS)
    expected = {**document, "mcpServers": {**document.get("mcpServers", {}), name: OURS}}
    assert json.loads(changed) == expected
    gone = json.loads(jsonc.drop(changed, ("mcpServers", name)))
    expected["mcpServers"] = {known: one for known, one in expected["mcpServers"].items() if known != name}
    assert gone == expected


@given(st.text(max_size=60))
def test_no_text_whatever_breaks_the_reader(text: str) -> None:
    try:
        node = jsonc.read(text)
    except jsonc.InvalidConfiguration:
        return
    assert isinstance(node.value, dict)


@pytest.mark.parametrize(
    "text",
    [
        "{ // nothing yet\n}",
        '{"mcpServers": {} /* none */}',
        '{"mcpServers": {"a": 1 // one\n}}',
        '{"mcpServers": {"a": 1, /* last */}}',
        '/* head */ {"b": [1, 2,], "mcpServers": {"a": {"x": "// no comment"}}} // tail',
    ],
)
def test_comments_stay(text: str) -> None:
    changed = jsonc.put(text, ("mcpServers", "portico"), OURS)
    assert jsonc.read(changed).value["mcpServers"]["portico"] == OURS
    assert changed.count("//") + changed.count("/*") == text.count("//") + text.count("/*")
    again = jsonc.drop(changed, ("mcpServers", "portico"))
    assert "portico" not in again
    assert jsonc.put(jsonc.drop(again, ("mcpServers", "gone")), ("mcpServers", "portico"), OURS)
