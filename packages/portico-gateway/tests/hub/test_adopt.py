"""`portico adopt`: the configuration of hosts before, after and restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from portico.cli import install, jsonc
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


def test_file_that_changed_since_is_not_overwritten(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cursor", "--write"]) == 0
    path = path_of("cursor")
    changed = path.read_bytes() + b"\r\n"
    path.write_bytes(changed)
    assert run(["cursor", "--undo", "--write"]) == 1
    assert path.read_bytes() == changed
    assert "was changed after it was adopted" in capsys.readouterr().err


def test_invalid_file_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path_of("windsurf").write_text('{"mcpServers": {')
    assert run(["windsurf", "cursor", "--write"]) == 1
    assert path_of("windsurf").read_text() == '{"mcpServers": {'
    assert "not changed" in capsys.readouterr().err
    assert "connect" in path_of("cursor").read_text()
