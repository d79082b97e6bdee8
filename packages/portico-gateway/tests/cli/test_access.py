"""Access from the command line: static tokens, and access sections for any target."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from portico import Server
from portico.server.policy import settings as access_settings
from support.forks import ForkServer
from support.paths import ROOT

SERVER = """
from portico import Context, Server

server = Server("notes")

@server.tool(scopes=["notes:read"])
def read(ctx: Context) -> str:
    return f"read by {ctx.principal.id}"
"""
GATEWAY = """
[upstream.notes]
target = "notes.py"

[auth]
token_file = "tokens.toml"
"""
TIMEOUT_SECONDS = 60
Portico = Callable[..., "subprocess.CompletedProcess[str]"]


@contextmanager
def serving(fork_server: ForkServer, folder: Path, *words: str) -> Iterator[str]:
    """The URL of `portico serve`."""
    environment = {**os.environ, "PORTICO_DATA": str(folder / "data")}
    child = fork_server.start("serve", *words, "--transport", "http", "--port", "0", cwd=folder, env=environment)
    try:
        line = child.stderr.readline()
        if not line.startswith("Serving on "):
            child.terminate()
            raise AssertionError(line + child.stderr.read())
        yield line.removeprefix("Serving on ").strip()
    finally:
        child.terminate()
        child.communicate()


def test_worker_rejects_settings_it_does_not_use(portico: Portico, tmp_path: Path) -> None:
    """As `serve` does not: rules under another name would protect nothing."""
    (tmp_path / "notes.py").write_text(SERVER.replace('scopes=["notes:read"]', 'task="optional"'))
    (tmp_path / "access.toml").write_text('[[rules]]\ntool = "notes.*"\ndeny = true\n')
    done = portico("worker", "notes.py", "--config", "access.toml", "--store", tmp_path / "tasks.db", cwd=tmp_path)
    assert done.returncode == 2 and "rules" in done.stderr


def test_token_is_added_listed_and_removed(fork_server: ForkServer, portico: Portico, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    made = portico("tokens", "add", "ci", "--scope", "notes:read", "--expires-in-days", "30", "--file", file)
    token = made.stdout.strip()
    assert token.startswith("ptk_") and token not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    again = portico("tokens", "add", "ci", "--file", file)
    assert (again.returncode, "already" in again.stderr) == (2, True)
    assert portico("tokens", "add", "x", "--scope", "a b", "--file", file).returncode == 2
    assert "notes:read" in portico("tokens", "list", "--file", file).stdout
    (tmp_path / "notes.py").write_text(SERVER)
    (tmp_path / "access.toml").write_text('[auth]\ntoken_file = "tokens.toml"\n')
    for words in (("notes.py", "--token-file", "tokens.toml"), ("notes.py", "--config", "access.toml")):
        with serving(fork_server, tmp_path, *words) as url:
            assert "read by ci" in portico("call", url, "read", PORTICO_TOKEN=token).stdout
            assert "401" in portico("call", url, "read").stderr
    assert portico("tokens", "remove", "ci", "--file", file).returncode == 0
    assert "ci" not in portico("tokens", "list", "--file", file).stdout


def test_gateway_file_configures_authentication(fork_server: ForkServer, portico: Portico, tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(SERVER)
    (tmp_path / "gateway.toml").write_text(GATEWAY)
    token = portico("tokens", "add", "ci", "--all-scopes", "--file", tmp_path / "tokens.toml").stdout.strip()
    with serving(fork_server, tmp_path, "gateway.toml") as url:
        assert "read by ci" in portico("call", url, "notes_read", PORTICO_TOKEN=token).stdout
        assert "401" in portico("call", url, "notes_read").stderr


def test_invalid_access_settings_exit_with_one_message(portico: Portico, tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(SERVER)
    wrong = {
        '[auth]\nissuer_url = "x"\n': "issuer_url: unknown key (did you mean 'issuer'?)",
        '[auth]\nissuers = ["http://login.example"]\n': "invalid issuer",
        "[auth]\n": "every request would be refused",
        '[auth]\nissuers = ["https://login.example"]\nalgorithms = ["HS256"]\n': "unknown algorithm 'HS256'",
        '[auth]\ntoken_file = "nowhere.toml"\n': "nowhere.toml",
        '[[rules]]\ntool = "*"\n': "rules",
    }
    for text, said in wrong.items():
        (tmp_path / "access.toml").write_text(text)
        for target in ("notes.py", ""):
            words = [target] if target else ["--services", "tasks", "--data", str(tmp_path)]
            done = portico(
                "serve", *words, "--config", "access.toml", "--transport", "http", "--port", "0", cwd=tmp_path
            )
            assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    done = portico(
        "serve",
        "notes.py",
        "--transport",
        "http",
        "--host",
        "0.0.0.0",
        "--auth-issuer",
        "https://l.example",
        cwd=tmp_path,
    )
    assert "--public-url" in done.stderr


ACCESS_PAGES = ("protect-with-oauth", "run-behind-nginx", "control-access", "audit-calls", "authenticate-to-upstreams")


def test_access_settings_in_the_guides_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens.toml").write_text("")
    page = "\n".join((ROOT / "docs" / "how-to" / f"{name}.md").read_text() for name in ACCESS_PAGES)
    for name in re.findall(r"\$\{env:(\w+)\}", page):
        monkeypatch.setenv(name, "said")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in re.findall(r"\$\{file:~/([^}]+)\}", page):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("said")
    blocks = [
        textwrap.dedent(block) for block in re.findall(r"^ *```toml\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    ]
    messages = [tomllib.loads(block) for block in blocks]
    results = [access_settings.read(block, tmp_path) for block in messages if "auth" in block]
    assert len(results) >= 3
    for block in results:
        server = Server("any")
        access_settings.apply(server, block)
        assert server.auth is not None


def test_token_that_expires_immediately_is_rejected(
    portico: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = portico("tokens", "add", "alice", "--expires-in-days", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--expires-in-days must be at least 1, got 0" in done.stderr and not list(tmp_path.iterdir())
