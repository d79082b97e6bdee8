"""`portico doctor`: docs/guide/command-line.md. It changes nothing; its status says whether all is well."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def examine(portico: Run, tmp_path: Path) -> Callable[..., tuple[int, dict[str, dict[str, Any]]]]:
    def run(*words: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
        (tmp_path / "home").mkdir(exist_ok=True)
        place = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "home" / ".config")}
        done = portico("doctor", "-o", "json", *words, cwd=tmp_path, **{**place, "PORTICO_DATA": str(tmp_path), **env})
        assert done.stderr == ""
        said = json.loads(done.stdout)
        assert said["ok"] == (done.returncode == 0)
        return done.returncode, {one["about"]: one for one in said["findings"]}

    return run


def test_where_all_is_well_nothing_is_made(examine: Any, tmp_path: Path) -> None:
    status, found = examine()
    assert status == 0
    assert found["python"]["text"].startswith("CPython 3.")
    assert found["store"]["text"].endswith("portico.db is not there yet; a server makes it")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_an_extra_that_is_not_there_is_named_with_what_installs_it(examine: Any) -> None:
    extras = examine()[1]["extras"]
    assert "schema" in extras["text"].partition("; not there: ")[0]


def test_a_store_that_can_be_used_says_so_and_one_of_a_newer_version_is_wrong(examine: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "portico.db")) as store, store:
        store.execute("create table portico_migration (history text, number integer)")
        store.execute("insert into portico_migration values ('memory', 1)")
    assert "opens and can be written; " in examine()[1]["store"]["text"]
    with closing(sqlite3.connect(tmp_path / "portico.db")) as store, store:
        assert store.execute("select name from sqlite_master").fetchall() == [("portico_migration",)]
        store.execute("insert into portico_migration values ('memory', 9999)")
    status, found = examine()
    assert (status, found["store"]["level"]) == (1, "error")
    assert "a newer Portico has used it" in found["store"]["text"]


@pytest.mark.parametrize(
    "env, about, words",
    [
        ({"PORTICO_DATA": "/dev/null/x"}, "data", "/dev/null/x cannot be made: /dev/null is no folder"),
        ({"PORTICO_STORE": "postgresql://me:secret@127.0.0.1:1/x"}, "store", "cannot be reached"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(examine: Any, env: dict[str, str], about: str, words: str) -> None:
    status, found = examine(**env)
    assert (status, found[about]["level"]) == (1, "error")
    assert words in found[about]["text"] and "secret" not in found[about]["text"]


def test_a_port_that_is_taken_is_wrong_if_it_was_named(examine: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, found = examine("--port", str(taken.getsockname()[1]))
    assert status == 1 and "is taken" in found["port"]["text"]


def test_the_configurations_of_clients_are_read(examine: Any, tmp_path: Path) -> None:
    cursor, project = tmp_path / "home" / ".cursor" / "mcp.json", tmp_path / ".mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text('{"mcpServers": {"a": {"command": "no-such-command"}, "b": {"url": "https://x/mcp"},}} // mine')
    project.write_text("{")
    status, found = examine()
    assert status == 1
    assert found["cursor (user)"]["text"].endswith("a: there is no command no-such-command")
    assert found["claude-code (project)"]["level"] == "error"
    cursor.write_text('{"mcpServers": {"a": {"command": "python3", "args": ["/nowhere/x.py:server"]}}}')
    assert examine()[1]["cursor (user)"]["text"].endswith("a: there is no file /nowhere/x.py:server")


def test_a_target_is_tried(examine: Any) -> None:
    file = str(Path(__file__).parent.parent.parent / "examples" / "hello.py")
    assert " answers, revision 2026-07-28, " in examine(file)[1]["target"]["text"]


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


def test_the_link_of_a_login_that_is_broken_is_named(examine: Any, locked: str) -> None:
    status, found = examine(locked)
    assert status == 1
    assert found["login, server"]["level"] == "ok"
    assert found["login, resource"]["level"] == "ok"
    assert found["login, issuer"]["level"] == "error"
    assert "/gone" in found["login, issuer"]["text"]


def test_people_see_a_table(portico: Run, tmp_path: Path) -> None:
    done = portico("doctor", "-o", "table", cwd=tmp_path, PORTICO_DATA=str(tmp_path), HOME=str(tmp_path))
    assert "✓" in done.stdout and "python" in done.stdout
