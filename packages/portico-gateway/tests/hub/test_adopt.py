"""`portico adopt`: the configuration of hosts before, after and restored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from portico.cli import install, jsonc
from portico_gateway.cli import adopt
from portico_gateway.cli.adopt import BACKUP_SUFFIX, CLIENTS, run

# With the peculiarities of files that people write: comments, tabs, a missing newline, other members, unusual order.
FILES = {
    "claude-desktop": '{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}, "theme": "dark"}',
    "claude-code": """{
\t"numStartups": 7,
\t"mcpServers": {"gh": {"type": "stdio", "command": "npx", "args": ["-y", "gh"], "env": {"TOKEN": "s3cret"}},
\t\t"far": {"type": "http", "url": "https://example.com/mcp"}},
\t"projects": {"/home/me/shop": {"mcpServers": {"db": {"command": "db-server"}}, "history": ["hello"]}}
}
""",
    "cursor": '\ufeff{\r\n  "mcpServers": {\r\n    "a b": {"command": "x", "args": [], "cwd": "/srv"}\r\n  }\r\n}\r\n',
    "vscode": """// my servers
{
  "inputs": [{"id": "key", "type": "promptString"}],
  "servers": {
    /* the first */
    "one": {
      "command": "node", // started by name
      "args": ["${workspaceFolder}/server.js", "--key=${input:key}"],
    },
  },
}
""",
    "windsurf": '{\n  "mcpServers": {\n    "time": {"command": "uvx", "args": ["mcp-server-time"]}\n  }\n}',
    "zed": """{
  // editor
  "theme": "One",
  "context_servers": {
    "new": {"command": "srv", "args": ["--flag"], "env": {"A": "1"}},
    "old": {"command": {"path": "srv", "args": ["x"], "env": {"B": "2"}}, "settings": {}}
  }
}
""",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for client, text in FILES.items():
        path = install.CLIENT_CONFIGS[client]["user"].path()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(0o600)
    return tmp_path


def path_of(client: str) -> Path:
    return install.CLIENT_CONFIGS[client]["user"].path()


def servers_of(client: str) -> dict[str, dict[str, object]]:
    text = path_of(client).read_bytes().decode("utf-8-sig")
    return dict(jsonc.read(text).value[install.CLIENT_CONFIGS[client]["user"].key])


def test_files_are_only_shown_without_write(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    output = capsys.readouterr().out
    assert "+" in output and "connect" in output and "use --write" in output
    for client, text in FILES.items():
        assert path_of(client).read_bytes() == text.encode()
        assert [item.name for item in path_of(client).parent.glob("*.portico-adopt*")] == []


def test_names_of_a_file_control_neither_the_terminal_nor_the_bridge(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ["a\x1b[2J", "b\x9b1A\u202e", "--cwd", "-m", ""]
    before = json.dumps({"mcpServers": {name: {"command": f"c{name}"} for name in odd}}, ensure_ascii=False)
    path_of("cursor").write_text(before)
    assert run(["cursor", "--write"]) == 0
    assert run(["cursor", "--undo", "--write"]) == 0
    output = capsys.readouterr().out
    assert "now run through the hub" in output
    assert all(line.replace("\t", " ").isprintable() for line in output.splitlines())
    assert path_of("cursor").read_text() == before
    run(["cursor", "--write"])
    servers = servers_of("cursor")
    assert [name for name in odd if "connect" in str(servers[name].get("args"))] == odd[:2]


@pytest.mark.parametrize("client", CLIENTS)
def test_adopted_file_is_restored_byte_for_byte(home: Path, client: str) -> None:
    path = path_of(client)
    assert run([client, "--write"]) == 0
    adopted = path.read_bytes()
    assert adopted != FILES[client].encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name(path.name + BACKUP_SUFFIX).stat().st_mode & 0o077 == 0
    # A second time there is nothing to do.
    assert run([client, "--write"]) == 0
    assert path.read_bytes() == adopted
    assert run([client, "--undo", "--write"]) == 0
    assert path.read_bytes() == FILES[client].encode()
    assert not list(path.parent.glob("*.portico-adopt*"))


def test_entries_start_the_bridge_and_keep_their_secrets(home: Path) -> None:
    assert run(["--write"]) == 0
    portico = install.portico_command()
    github = servers_of("claude-code")["gh"]
    assert [github["command"], *github["args"]] == [
        *portico,
        "connect",
        "gh",
        "--env",
        "TOKEN",
        "--",
        "npx",
        "-y",
        "gh",
    ]  # type: ignore[misc]
    assert github["env"] == {"TOKEN": "s3cret"}
    assert servers_of("claude-code")["far"] == {"type": "http", "url": "https://example.com/mcp"}
    code = json.loads(path_of("claude-code").read_text())
    assert code["projects"]["/home/me/shop"]["mcpServers"]["db"]["args"][-2:] == ["--", "db-server"]
    cursor = servers_of("cursor")["a b"]
    assert cursor["args"][-5:] == ["a b", "--cwd", "/srv", "--", "x"]  # type: ignore[index]
    old = servers_of("zed")["old"]["command"]
    assert old["args"][-6:] == ["old", "--env", "B", "--", "srv", "x"]  # type: ignore[index]
    vscode = path_of("vscode").read_text()
    for comment in ("// my servers", "/* the first */", "// started by name"):
        assert comment in vscode


@pytest.mark.parametrize("has_backup", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
def test_undo_of_a_file_that_its_host_rewrote_restores_the_servers(home: Path, client: str, has_backup: bool) -> None:
    path, before = path_of(client), servers_of(client)
    assert run([client, "--write"]) == 0
    if not has_backup:
        path.with_name(path.name + BACKUP_SUFFIX).unlink()
    # Hosts drop comments and reformat; they store counters and other settings in the same file.
    document = jsonc.read(path.read_bytes().decode("utf-8-sig")).value
    path.write_text(json.dumps({**document, "numStartups": 8}))
    assert run([client, "--undo", "--write"]) == 0
    restored = jsonc.read(path.read_text()).value
    assert restored["numStartups"] == 8
    if has_backup:
        assert servers_of(client) == before
    assert "connect" not in path.read_text()
    assert not list(path.parent.glob("*.portico-adopt*"))
    assert run([client, "--undo", "--write"]) == 0


def test_file_with_a_new_server_is_adopted_again_and_restored_without_the_hub(home: Path) -> None:
    path = path_of("claude-code")
    assert run(["claude-code", "--write"]) == 0
    added = jsonc.set_value(path.read_text(), ("mcpServers", "new"), {"command": "new-server"})
    added = jsonc.set_value(added, ("numStartups",), 8)
    path.write_text(added)
    assert run(["claude-code", "--write"]) == 0
    assert servers_of("claude-code")["new"]["args"][-2:] == ["--", "new-server"]  # type: ignore[index]
    assert run(["claude-code", "--undo", "--write"]) == 0
    restored = json.loads(path.read_text())
    assert restored["numStartups"] == 8
    assert restored["mcpServers"]["new"] == {"command": "new-server"}
    assert restored["mcpServers"]["gh"] == json.loads(FILES["claude-code"])["mcpServers"]["gh"]
    assert "connect" not in path.read_text()


def test_undo_of_one_server_leaves_the_others_adopted(home: Path) -> None:
    path = path_of("zed")
    assert run(["zed", "--write"]) == 0
    assert run(["zed", "--undo", "--server", "new", "--write"]) == 0
    assert servers_of("zed")["new"] == {"command": "srv", "args": ["--flag"], "env": {"A": "1"}}
    assert "connect" in str(servers_of("zed")["old"])
    assert run(["zed", "--undo", "--write"]) == 0
    assert servers_of("zed")["old"] == {"command": {"path": "srv", "args": ["x"], "env": {"B": "2"}}, "settings": {}}
    assert not list(path.parent.glob("*.portico-adopt*"))


def test_change_between_diff_and_write_is_not_overwritten(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of("cursor")
    changed = path.read_bytes().replace(b"/srv", b"/var")

    def show(*arguments: object) -> str:
        path.write_bytes(changed)
        return ""

    monkeypatch.setattr(adopt, "format_difference", show)
    assert run(["cursor", "--write"]) == 1
    assert path.read_bytes() == changed
    # Nothing that would stop the next attempt, and no copy of secrets.
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_link_to_a_file_elsewhere_stays_a_link(home: Path, tmp_path: Path) -> None:
    path, target = path_of("windsurf"), tmp_path / "dotfiles" / "windsurf.json"
    target.parent.mkdir()
    path.rename(target)
    path.symlink_to(target)
    assert run(["windsurf", "--write"]) == 0
    assert path.is_symlink() and "connect" in target.read_text()
    assert run(["windsurf", "--undo", "--write"]) == 0
    assert path.is_symlink() and target.read_bytes() == FILES["windsurf"].encode()


def test_read_only_file_keeps_its_mode(home: Path) -> None:
    path = path_of("windsurf")
    path.chmod(0o440)
    assert run(["windsurf", "--write"]) == 0
    assert path.stat().st_mode & 0o777 == 0o440
    assert run(["windsurf", "--undo", "--write"]) == 0
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o440, FILES["windsurf"].encode())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the owner of a file")
def test_files_of_another_user_keep_their_owner(home: Path) -> None:
    path = path_of("windsurf")
    os.chown(path, 65534, 65534)
    assert run(["windsurf", "--write"]) == 0
    assert {item.stat().st_uid for item in path.parent.iterdir()} == {65534}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_that_cannot_be_written_is_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = path_of("windsurf")
    path.parent.chmod(0o500)
    try:
        assert run(["windsurf", "--write"]) == 1
        assert "cannot write" in capsys.readouterr().err
    finally:
        path.parent.chmod(0o700)


def test_unusual_entries_keep_what_adoption_does_not_need(home: Path) -> None:
    entries = {
        "off": {"command": "a", "disabled": True, "autoApprove": ["x"], "timeout": 5, "unknown": {"deep": [1]}},
        "windows": {"command": "C:\\Program Files\\nodejs\\npx.cmd", "args": ["C:\\data", "--", "-x"]},
        "url": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer s"}},
        "no arguments": {"command": "b", "args": None},
        "not text": {"command": "c", "args": [1]},
        "list": ["x"],
        "hub only": {"command": "portico", "args": ["connect", "notes"]},
    }
    before = json.dumps({"mcpServers": entries}, indent=3).replace("\n", "\r\n")
    path_of("cursor").write_bytes(before.encode())
    assert run(["cursor", "--write"]) == 0
    servers = servers_of("cursor")
    assert {name for name in entries if servers[name] != entries[name]} == {"off", "windows", "no arguments"}
    assert {**servers["off"], "args": 0, "command": "a"} == {**entries["off"], "args": 0}  # type: ignore[dict-item]
    assert servers["windows"]["args"][-4:] == ["C:\\Program Files\\nodejs\\npx.cmd", "C:\\data", "--", "-x"]  # type: ignore[index]
    # Line by line: the host rewrites the file, so that the entries are restored one by one.
    path_of("cursor").write_bytes(path_of("cursor").read_bytes() + b"\r\n")
    assert run(["cursor", "--undo", "--write"]) == 0
    assert servers_of("cursor") == entries
    assert run(["cursor", "--write"]) == 0
    assert run(["cursor", "--undo", "--write"]) == 0


def test_project_configuration_names_no_path_of_this_machine(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    before = '{"mcpServers": {"db": {"command": "db-server", "env": {"PASSWORD": "s3cret"}}}}'
    (project / ".mcp.json").write_text(before)
    assert run(["claude-code", "--scope", "project", "--write"]) == 0
    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["db"]
    assert (entry["command"], entry["args"][:2]) == ("portico", ["connect", "db"])
    # A colleague has the file without the backup, which is not checked in.
    for record in project.glob("*.portico-adopt*"):
        record.unlink()
    assert run(["claude-code", "--scope", "project", "--undo", "--write"]) == 0
    db = json.loads((project / ".mcp.json").read_text())["mcpServers"]["db"]
    assert db == {"command": "db-server", "args": [], "env": {"PASSWORD": "s3cret"}}


def test_invalid_file_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path_of("windsurf").write_text('{"mcpServers": {')
    assert run(["windsurf", "cursor", "--write"]) == 1
    assert path_of("windsurf").read_text() == '{"mcpServers": {'
    assert "not changed" in capsys.readouterr().err
    assert "connect" in path_of("cursor").read_text()
