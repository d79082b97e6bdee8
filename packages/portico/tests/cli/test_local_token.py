"""Built-in services over HTTP are available to their owner only, not to every user of the machine."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portico.cli import local_token
from support.forks import ForkServer, PipedCommand

Start = Callable[..., tuple[str, str]]
Listed = Callable[..., "subprocess.CompletedProcess[str]"]
PORTICO = [sys.executable, "-m", "portico"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PORTICO_")}
    return kept | {"PORTICO_DATA": str(tmp_path / "data")}


@pytest.fixture
def start(fork_server: ForkServer, env: dict[str, str]) -> Iterator[Start]:
    """Serves the built-in services; returns the URL and the lines after it."""
    children: list[PipedCommand] = []

    def begin(*options: str, lines: int = 2, **more: str) -> tuple[str, str]:
        child = fork_server.start("serve", "--services", "tasks", "--transport", "http", *options, env=env | more)
        children.append(child)
        url = next(line for line in child.stderr if line.startswith("Serving on")).split()[2]
        return url, "".join(child.stderr.readline() for _ in range(lines))

    yield begin
    for child in children:
        child.terminate()
        child.communicate()


def status(url: str, token: str | None = None) -> int:
    """Of a look at the metrics, which is refused before anything is done."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url.replace("/mcp", "/metrics"), headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


@pytest.fixture
def listed(fork_server: ForkServer, env: dict[str, str]) -> Listed:
    return lambda url, **more: fork_server.run("list", "tools", url, env=env | more)


def test_commands_of_the_same_user_find_the_token(
    listed: Listed, start: Start, env: dict[str, str], tmp_path: Path
) -> None:
    url, message = start("--port", "0")
    (file,) = (tmp_path / "data").glob("http-*[0-9].token")
    token = file.read_text().strip()
    assert f"PORTICO_TOKEN=$(cat {file})" in message
    assert status(url) == 401
    assert status(url, "wrong") == 401
    assert status(url, token) == 200
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert listed(url).returncode == 0
    assert listed(url, PORTICO_DATA=str(tmp_path / "other")).returncode == 3


@pytest.mark.parametrize(
    "options", [[], ["--service-admin"], ["--log-format", "json"], ["--log-level", "debug"]], ids=str
)
def test_secrets_are_not_written_to_a_pipe(
    fork_server: ForkServer, env: dict[str, str], tmp_path: Path, options: list[str]
) -> None:
    """Neither the first start nor the second: a log has readers who must not become the owner."""
    message = ""
    port = "0"
    for _ in range(2):
        command = ["serve", "--services", "tasks", "--transport", "http", "--port", port, *options]
        child = fork_server.start(*command, env=env)
        for line in child.stderr:
            message += line
            if "Console: " in line:
                break
        url = re.search(r"Serving on (\S+)", message)[1]  # type: ignore[index]
        port = url.split(":")[2].split("/")[0]
        command = ["console", url.removesuffix("/mcp")]
        link = fork_server.run(*command, env=env).stdout.strip()
        # A request with secrets in all places, for the lines of the request log.
        status(f"{url}?token=in-the-query", "in-the-header")
        child.terminate()
        out, rest = child.communicate()
        message += out + rest
        assert "#token=" in link
    secrets = [file.read_text().strip() for file in (tmp_path / "data").glob("http-*.token")]
    assert len(secrets) >= 2
    assert not [item for item in [*secrets, "#token=", "in-the-query", "in-the-header"] if item in message]
    assert f"run `portico console http://127.0.0.1:{port}/` for a link" in message


def test_terminal_shows_the_token_once_and_a_link_each_time(terminal: Callable[..., Any], tmp_path: Path) -> None:
    data = tmp_path / "data"
    port = "0"
    for time in (1, 2):
        child = terminal("serve", "--services", "tasks", "--transport", "http", "--port", port, PORTICO_DATA=str(data))
        child.wait_for("Console: http://127.0.0.1:")
        child.wait_for("/#token=")
        (file,) = data.glob("http-*[0-9].token")
        port = file.name.split("-")[1].split(".")[0]
        assert (file.read_text().strip() in child.shown.replace("\n", "")) is (time == 1)
        child.process.send_signal(signal.SIGTERM)
        child.end()


def test_token_stays_the_same(start: Start, env: dict[str, str], tmp_path: Path) -> None:
    url, _ = start("--port", "0")
    port = url.rpartition(":")[2].partition("/")[0]
    kept = tmp_path / "data" / f"http-{port}.token"
    token = kept.read_text()
    # The same port on the same data, in another family of addresses.
    again, message = start("--port", port, "--host", "::1")
    assert str(kept) in message
    assert status(again, token.strip()) == 200


def test_no_auth_prints_a_warning(start: Start, env: dict[str, str]) -> None:
    url, message = start("--port", "0", "--no-auth")
    assert "No token is required (--no-auth): every user of this machine" in message
    assert status(url) == 200


def test_profile_stays_as_its_document_has_it(start: Start) -> None:
    url, message = start("--port", "0", "--profile", "subcog")
    assert "No token is required (no_auth = true in its settings)" in message
    assert status(url) == 200


@pytest.mark.parametrize("profile", ["pharo", "sysmcp", "bossman"])
def test_other_profiles_require_the_token(start: Start, tmp_path: Path, profile: str) -> None:
    url, message = start("--port", "0", "--profile", profile)
    assert "A token is required." in message
    (file,) = (tmp_path / "data").glob("http-*[0-9].token")
    assert (status(url), status(url, file.read_text().strip())) == (401, 200)


def test_token_of_the_environment_is_the_one(start: Start) -> None:
    url, _ = start("--port", "0", lines=0, PORTICO_TOKEN="mine")
    assert (status(url), status(url, "mine")) == (401, 200)


def test_file_that_others_can_read_is_no_secret(tmp_path: Path) -> None:
    path = Path(local_token.save_token("secret", 1, str(tmp_path)))
    assert local_token.find_token(1, str(tmp_path)) == "secret"
    path.chmod(0o644)
    assert local_token.find_token(1, str(tmp_path)) is None
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert local_token.find_token(1, str(tmp_path)) is None


def test_token_is_not_sent_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has taken the port of a server that is not running is not told its token."""
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    local_token.save_token("secret", 8080)
    assert local_token.token_for_url("http://127.0.0.1:8080/mcp") == "secret"
    monkeypatch.setattr(local_token, "_listeners", lambda port: {str(os.geteuid() + 1)})
    assert local_token.token_for_url("http://127.0.0.1:8080/mcp") is None
    assert local_token.token_for_url("http://127.0.0.1:99999/mcp") is None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/mcp",
        "https://127.0.0.1:8080/mcp",
        "http://localhost:8080",
        "http://[::1]:8080/",
        "http://[::ffff:127.0.0.1]:8080/mcp",
    ],
)
def test_token_is_for_the_loopback_addresses_of_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    local_token.save_token("secret", 8080)
    assert local_token.token_for_url(url) == "secret"


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example:8080/mcp",
        "http://127.0.0.1.evil.example:8080/mcp",
        "http://localhost.evil.example:8080/mcp",
        "http://127.0.0.1:8080@evil.example:8080/",
        "http://127.0.0.1:8080\\@evil.example:8080/",
        "http://evil.example:8080#@127.0.0.1:8080/",
        "http://evil.example:8080?@127.0.0.1:8080/",
        "http://evil\t.example:8080/",
        "http://10.0.0.1:8080/mcp",
        "http://0.0.0.0:8080/mcp",
        "http://2130706433:8080/mcp",
        "http://0177.0.0.1:8080/mcp",
        "http://[2002:7f00:1::]:8080/mcp",
        "http://[64:ff9b::7f00:1]:8080/mcp",
        "ftp://127.0.0.1:8080/mcp",
        "//127.0.0.1:8080/mcp",
        "http://127.0.0.1:80800/mcp",
        "http://127.0.0.1/mcp",
    ],
)
def test_no_other_url_gets_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    for role in ("", "operator", "console"):
        local_token.save_token("secret", 8080, role=role)
        assert local_token.token_for_url(url, role=role) is None


@pytest.mark.parametrize("role", ["", "operator", "console"])
def test_listener_of_another_user_gets_no_token_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    local_token.save_token("secret", 8080, str(tmp_path), role)
    assert local_token.token_for_url("http://127.0.0.1:8080/", str(tmp_path), role) == "secret"
    monkeypatch.setattr(local_token, "_listeners", lambda port: {str(os.geteuid() + 1)})
    assert local_token.token_for_url("http://127.0.0.1:8080/", str(tmp_path), role) is None


def test_port_is_a_port(env: dict[str, str]) -> None:
    command = [*PORTICO, "serve", "--transport", "http", "--port", "80000"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "expected a port from 0 to 65535" in ended.stderr


def test_operator_token_is_stored_in_a_separate_file(
    fork_server: ForkServer, listed: Listed, start: Start, env: dict[str, str], tmp_path: Path
) -> None:
    url, message = start("--port", "0", "--service-admin", lines=3)
    port = int(url.split(":")[2].split("/")[0])
    tokens = {of: local_token.find_token(port, str(tmp_path / "data"), of) for of in ("", "operator")}
    assert tokens[""] and tokens["operator"] and tokens[""] != tokens["operator"]
    assert f"http-{port}.operator.token" in message and tokens["operator"] not in message

    def call(token: str | None, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        value = env | ({} if token is None else {"PORTICO_TOKEN": token})
        return fork_server.run("call", url, tool, *arguments, env=value)

    refused = call(None, "service_disable", "name=tasks")
    assert refused.returncode == 1 and "for the operator of this server" in refused.stdout + refused.stderr
    assert call(tokens["operator"], "service_disable", "name=tasks").returncode == 0
    assert "create_task" not in listed(url).stdout
    assert call(tokens["operator"], "service_enable", "name=tasks").returncode == 0
    assert "create_task" in listed(url).stdout


@pytest.fixture
def gateway(tmp_path: Path) -> Path:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": {"command": sys.executable, "args": ["-c", "input()"]}}}))
    return file


def test_gateway_requires_the_token_that_its_user_has(
    fork_server: ForkServer, env: dict[str, str], gateway: Path, tmp_path: Path
) -> None:
    """Its upstreams have keys and files that other users of the machine must not reach."""
    child = fork_server.start("serve", str(gateway), "--port", "0", env=env)
    try:
        url = next(line for line in child.stderr if line.startswith("Serving on")).split()[2]
        assert "A token is required." in child.stderr.readline()
        port = url.split(":")[2].split("/")[0]
        token = (tmp_path / "data" / f"http-{port}.token").read_text().strip()
        assert (status(url), status(url, token)) == (401, 200)
        assert fork_server.run("read", url, "nothing://x", env=env).returncode == 1
        refused = fork_server.run("read", url, "nothing://x", env=env | {"PORTICO_DATA": str(tmp_path / "other")})
        assert refused.returncode == 3
        result = fork_server.run(
            "read", url, "nothing://x", "--data", env["PORTICO_DATA"], env=env | {"PORTICO_DATA": "/nowhere"}
        )
        assert result.returncode == 1
    finally:
        child.terminate()
        child.communicate()


def test_open_gateway_requires_none(fork_server: ForkServer, env: dict[str, str], gateway: Path) -> None:
    child = fork_server.start("serve", str(gateway), "--port", "0", "--no-auth", env=env)
    try:
        url = next(line for line in child.stderr if line.startswith("Serving on")).split()[2]
        assert "No token is required (--no-auth)" in child.stderr.readline()
        assert status(url) == 200
    finally:
        child.terminate()
        child.communicate()


def test_data_directory_that_commands_do_not_search_is_named(start: Start, tmp_path: Path) -> None:
    _, message = start("--port", "0", "--data", str(tmp_path / "elsewhere"))
    assert f"find it with PORTICO_DATA={tmp_path / 'elsewhere'};" in message
