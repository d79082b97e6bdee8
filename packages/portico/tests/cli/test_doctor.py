"""`portico doctor`: docs/reference/command-line.md. It changes nothing and reports problems by its exit status."""

from __future__ import annotations

import json
import socket
import sqlite3
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from portico import __version__
from portico.cli import doctor
from portico.cli.main import main
from portico.cli.output import MAX_TEXT_CHARS
from portico.plugins import install_command
from support.paths import ROOT

Run = Callable[..., Any]


@pytest.fixture
def examine(portico: Run, tmp_path: Path) -> Callable[..., tuple[int, dict[str, dict[str, Any]]]]:
    def run(*words: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
        (tmp_path / "home").mkdir(exist_ok=True)
        place = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "home" / ".config")}
        done = portico(
            "doctor", "--format", "jsonl", *words, cwd=tmp_path, **{**place, "PORTICO_DATA": str(tmp_path), **env}
        )
        assert done.stderr == ""
        data = json.loads(done.stdout)
        assert data["ok"] == (done.returncode == 0)
        return done.returncode, {finding["subject"]: finding for finding in data["findings"]}

    return run


def test_where_all_is_well_nothing_is_made(examine: Any, tmp_path: Path) -> None:
    status, result = examine()
    assert status == 0
    assert result["python"]["text"].startswith("CPython 3.")
    assert result["store"]["text"].endswith("portico.db does not exist yet; a server creates it")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_missing_extra_is_named_with_its_install_command(examine: Any) -> None:
    result = examine()[1]
    assert "portico[schema]" in result["extras"]["text"]
    missing = {subject: item for subject, item in result.items() if subject.startswith("extras, ")}
    assert all(item["text"].startswith("not installed: ") and item["hint"] for item in missing.values())


def test_every_missing_extra_fits_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_installed", lambda module: False)
    texts = [check.text for check in doctor._extras()]
    assert all(len(text) <= MAX_TEXT_CHARS for text in texts)
    assert all(any(f"{name} (" in text for text in texts) for name in doctor.EXTRAS)


def test_named_extras_exist_in_the_package_that_has_them() -> None:
    packages = {path.parent.name: tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")}
    for requirement in doctor.EXTRAS:
        name, _, extra = requirement.rstrip("]").partition("[")
        assert extra in packages[name]["project"]["optional-dependencies"], requirement


def test_store_that_can_be_used_says_so_and_one_of_a_newer_version_is_wrong(examine: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "portico.db")) as store, store:
        store.execute("create table portico_migration (history text, number integer)")
        store.execute("insert into portico_migration values ('memory', 1)")
    assert "is writable; " in examine()[1]["store"]["text"]
    with closing(sqlite3.connect(tmp_path / "portico.db")) as store, store:
        assert store.execute("select name from sqlite_master").fetchall() == [("portico_migration",)]
        store.execute("insert into portico_migration values ('memory', 9999)")
    status, result = examine()
    assert (status, result["store"]["level"]) == (1, "error")
    assert "used by a newer Portico" in result["store"]["text"]


@pytest.mark.parametrize(
    "env, about, words",
    [
        ({"PORTICO_DATA": "/dev/null/x"}, "data", "cannot create /dev/null/x: /dev/null is not a directory"),
        ({"PORTICO_STORE": "postgresql://me:secret@127.0.0.1:1/x"}, "store", "cannot reach the PostgreSQL server"),
    ],
)
def test_unusable_settings_are_reported_without_secrets(
    examine: Any, env: dict[str, str], about: str, words: str
) -> None:
    status, result = examine(**env)
    assert (status, result[about]["level"]) == (1, "error")
    assert words in result[about]["text"] and "secret" not in result[about]["text"]


def test_port_that_is_taken_is_wrong_if_it_was_named(examine: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as item:
        status, result = examine("--port", str(item.getsockname()[1]))
    assert status == 1 and "is in use" in result["port"]["text"]


def test_configurations_of_clients_are_read(examine: Any, tmp_path: Path) -> None:
    cursor, project = tmp_path / "home" / ".cursor" / "mcp.json", tmp_path / ".mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text('{"mcpServers": {"a": {"command": "no-such-command"}, "b": {"url": "https://x/mcp"},}} // mine')
    project.write_text("{")
    status, result = examine()
    assert status == 1
    assert result["cursor (user)"]["text"].endswith("a: command no-such-command not found")
    assert result["claude-code (project)"]["level"] == "error"
    cursor.write_text('{"mcpServers": {"a": {"command": "python3", "args": ["/nowhere/x.py:server"]}}}')
    assert examine()[1]["cursor (user)"]["text"].endswith("a: file /nowhere/x.py:server not found")


def test_client_configurations_in_other_formats_are_read(examine: Any, tmp_path: Path) -> None:
    codex, windsurf = tmp_path / "home" / ".codex" / "config.toml", tmp_path / "home" / ".codeium" / "windsurf"
    codex.parent.mkdir(parents=True)
    codex.write_text('[mcp_servers.a]\ncommand = "no-such-command"\n')
    windsurf.mkdir(parents=True)
    (windsurf / "mcp_config.json").write_text('{"mcpServers": {"b": {"serverUrl": "https://x/mcp"}}}')
    _, result = examine()
    assert result["codex (user)"]["text"].endswith("a: command no-such-command not found")
    assert result["windsurf (user)"]["level"] == "ok"


def test_target_is_tried(examine: Any) -> None:
    file = str(ROOT / "examples" / "hello.py")
    assert " answers, protocol version 2026-07-28, " in examine(file)[1]["target"]["text"]


def test_output_that_is_not_a_message_is_an_error(examine: Any, liar: Any, tmp_path: Path) -> None:
    program = tmp_path / "noisy.py"
    program.write_text(
        "print('Welcome to my server!', flush=True)\n" + Path(liar({"tools/list": {"tools": []}})[1]).read_text()
    )
    status, result = examine("--", sys.executable, str(program))
    assert (status, result["target"]["level"]) == (1, "ok")
    assert result["target, output"]["level"] == "error"
    assert "'Welcome to my server!'" in result["target, output"]["text"]


def test_every_server_of_a_configuration_is_tried(examine: Any, liar: Any, tmp_path: Path) -> None:
    """A gateway would answer without the one that does not start."""
    command, *words = liar({"tools/list": {"tools": []}})
    servers = {"good": {"command": command, "args": words}, "dead": {"command": "/nonexistent/server"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    status, result = examine("mcp.json")
    assert status == 1
    assert (result["target, good"]["level"], result["target, dead"]["level"]) == ("ok", "error")
    assert "cannot start '/nonexistent/server'" in result["target, dead"]["text"]


@pytest.fixture
def refusing() -> Iterator[Callable[[int, str], str]]:
    """`refusing(status, body)` is the URL of a server that answers everything so."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: str) -> str:
        class Refusing(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(status)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST

            def log_message(self, *words: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Refusing))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/mcp"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [403, 404, 502])
def test_rejection_is_an_error_with_the_reason_of_the_server(examine: Any, refusing: Any, status: int) -> None:
    code, result = examine(refusing(status, "Host 'a.test' is not allowed here"))
    assert code == 1
    for about in ("target", "login, server"):
        assert result[about]["level"] == "error"
        assert "Host 'a.test' is not allowed here" in result[about]["text"]
        assert "as expected" not in result[about]["text"]


def test_web_page_is_not_an_expected_response(examine: Any, refusing: Any) -> None:
    code, result = examine(refusing(200, "<!doctype html>Welcome"))
    assert code == 1
    assert result["login, server"]["level"] == "error"
    assert "expected a message, got text/plain" in result["login, server"]["text"]


@pytest.mark.parametrize("url", ["http://[bad", "http://a..b/mcp", f"https://{'a' * 64}.example/mcp"])
def test_invalid_url_is_a_finding(examine: Any, url: str) -> None:
    code, result = examine(url)
    assert code == 1 and result["target"]["level"] == result["login, server"]["level"] == "error"


def test_rejected_token_is_not_taken_for_none(examine: Any, locked: str) -> None:
    assert "requires authentication" in examine(locked)[1]["target"]["text"]
    result = examine(locked, "--token", "for-another")[1]
    assert "rejected the token" in result["target"]["text"]


@pytest.fixture
def locked() -> Iterator[str]:
    """A server that wants a token, and whose authorization server is not where it says."""

    class Locked(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            where = f"{address}/.well-known/oauth-protected-resource/mcp"
            self._say(401, {}, **{"WWW-Authenticate": f'Bearer resource_metadata="{where}"'})

        def do_GET(self) -> None:
            if "protected-resource" in self.path:
                self._say(200, {"resource": f"{address}/mcp", "authorization_servers": [f"{address}/gone"]})
            else:
                self._say(404, {})

        def _say(self, status: int, body: Any, **headers: str) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json", "Content-Length": len(data)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Locked)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"{address}/mcp"
    server.shutdown()
    server.server_close()


def test_link_of_a_login_that_is_broken_is_named(examine: Any, locked: str) -> None:
    status, result = examine(locked)
    assert status == 1
    assert result["login, server"]["level"] == "ok"
    assert result["login, resource"]["level"] == "ok"
    assert result["login, issuer"]["level"] == "error"
    assert "/gone" in result["login, issuer"]["text"]


def test_users_see_a_table(portico: Run, tmp_path: Path) -> None:
    done = portico("doctor", "--format", "table", cwd=tmp_path, PORTICO_DATA=str(tmp_path), HOME=str(tmp_path))
    assert "✓" in done.stdout and "python" in done.stdout


def test_versions_and_platform_are_reported_for_bug_reports(examine: Any) -> None:
    _, checks = examine(PORTICO_TOKEN="a-secret-token")
    assert checks["packages"]["text"].startswith("portico ") and "msgspec " in checks["dependencies"]["text"]
    assert "SQLite 3." in checks["platform"]["text"]
    assert "a-secret-token" not in str(checks)


def test_packages_of_different_versions_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"portico": "1.0.0", "portico-gateway": "1.0.1"}
    monkeypatch.setattr("portico.cli.environment.package_versions", lambda: versions)
    packages, _ = doctor._packages()
    assert packages.level == "error" and "same version" in packages.hint


def test_version_shows_packages_platform_and_dependencies(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"portico {__version__}"
    names = {line.rpartition(" ")[0] for line in lines}
    assert {"portico-gateway", "portico-services", "portico-console", "SQLite", "msgspec", "httptools"} <= names
    assert any(line.startswith("Python ") for line in lines) and any(line.startswith("event loop ") for line in lines)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": (ROOT / "packages" / "portico").as_uri(), "dir_info": {}},
            f"pip install {ROOT}/packages/portico-console",
        ),
        ({"url": "file:///wheels/portico-0.1.0-py3-none-any.whl"}, "pip install 'portico[console]'"),
        (None, "pip install 'portico[console]'"),
    ],
)
def test_missing_package_is_installed_from_the_same_checkout(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert install_command("console") == command
