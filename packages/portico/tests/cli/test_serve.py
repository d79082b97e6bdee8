"""`portico serve`: targets, and one clear error for invalid ones."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import portico
from support.forks import ForkServer
from support.paths import ROOT

Spawn = Callable[..., Any]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]

PORTICO = [sys.executable, "-m", "portico"]

SERVER = """
from portico import Server

server = Server("{name}", version="1.0.0")

@server.tool
def who() -> str:
    return "{name}"
"""


def python(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same from the start of an interpreter."""
    command = [sys.executable, "-m", "portico", *arguments]
    values = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=cwd, env=values, input="", capture_output=True, text=True, timeout=30)


@pytest.fixture
def run(fork_server: ForkServer) -> Run:
    """Run the command to its end, with nothing to read."""

    def ended(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return fork_server.run(*arguments, cwd=cwd, env={**os.environ, **(env or {})})

    return ended


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one sentence on standard error of a command that could not be done."""

    def sentence(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
        done = run(*arguments, cwd=cwd, env=env)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        [line] = done.stderr.splitlines()
        assert line.startswith("portico: ")
        return line

    return sentence


async def name_of(child: Any) -> str:
    """Who is serving, and an orderly end."""
    opened = await child.initialize("2025-11-25")
    response = (await child.request("tools/call", {"name": "who"}))["result"]["content"][0]["text"]
    assert response == opened["serverInfo"]["name"]
    code, rest, _ = await child.end()
    assert (code, rest) == (0, "")
    return str(response)


# What a target may be


@pytest.mark.parametrize("target", ["one.py", "one.py:server", "./one.py", "one:server", "one"])
async def test_server_is_found_by_file_and_by_module(spawn: Spawn, tmp_path: Path, target: str) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="one"))
    assert await name_of(await spawn("serve", target, cwd=tmp_path)) == "one"


async def test_file_may_lie_anywhere(spawn: Spawn, tmp_path: Path) -> None:
    place = tmp_path / "with space" / "deep"
    place.mkdir(parents=True)
    (place / "one.py").write_text(SERVER.format(name="far"))
    assert await name_of(await spawn("serve", place / "one.py")) == "far"


async def test_module_may_be_inside_a_package(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "one.py").write_text(SERVER.format(name="inside"))
    assert await name_of(await spawn("serve", "package.one:server", cwd=tmp_path)) == "inside"


async def test_object_may_have_any_name(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="app").replace("server", "app"))
    assert await name_of(await spawn("serve", "one.py:app", cwd=tmp_path)) == "app"


async def test_only_server_needs_no_name(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="only").replace("server", "app") + "\nalias = app\n")
    assert await name_of(await spawn("serve", "one.py", cwd=tmp_path)) == "only"


async def test_with_several_the_one_called_server_is_served(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="main") + '\nother = Server("other")\n')
    assert await name_of(await spawn("serve", "one.py", cwd=tmp_path)) == "main"


@pytest.mark.parametrize("target", ["one.py:make", "one.py:Holder.server"])
async def test_server_may_be_made_or_held(spawn: Spawn, tmp_path: Path, target: str) -> None:
    made = SERVER.format(name="made") + "\ndef make():\n    return server\n\nclass Holder:\n    server = server\n"
    (tmp_path / "one.py").write_text(made)
    assert await name_of(await spawn("serve", target, cwd=tmp_path)) == "made"


async def test_modules_next_to_the_server_file_can_be_imported(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text('NAME = "beside"\n')
    text = "from beside import NAME\n" + SERVER.format(name="beside")
    (tmp_path / "one.py").write_text(text)
    assert await name_of(await spawn("serve", tmp_path / "one.py")) == "beside"


async def test_file_that_runs_itself_is_served_too(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="both") + '\nif __name__ == "__main__":\n    server.run()\n')
    assert await name_of(await spawn("serve", "one.py", cwd=tmp_path)) == "both"


async def test_file_may_have_the_name_of_a_module_of_python(spawn: Spawn, tmp_path: Path) -> None:
    """Its types are still its own."""
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Mine:\n    x: int\n"
        + SERVER.format(name="calendar")
        + "\n@server.tool\ndef take(mine: Mine) -> str:\n    return str(mine.x)\n"
    )
    (tmp_path / "calendar.py").write_text(text)
    child = await spawn("serve", "calendar.py", cwd=tmp_path)
    await child.initialize("2025-11-25")
    response = await child.request("tools/call", {"name": "take", "arguments": {"mine": {"x": 3}}})
    assert response["result"]["content"][0]["text"] == "3"


# When it is nothing


@pytest.mark.parametrize("target", ["missing.py", "missing.py:server", "no/such/file.py"])
def test_missing_file(refused: Refused, tmp_path: Path, target: str) -> None:
    line = refused("serve", target, cwd=tmp_path)
    assert "file not found" in line
    assert target.partition(":")[0] in line


@pytest.mark.parametrize("target", ["missing", "missing:server", "missing.deep:server"])
def test_missing_module(refused: Refused, tmp_path: Path, target: str) -> None:
    line = refused("serve", target, cwd=tmp_path)
    assert "module '" in line
    assert "'missing" in line


def test_file_without_a_server(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    line = refused("serve", "one.py", cwd=tmp_path)
    assert "one.py has no Servers" in line


def test_file_with_several_servers_and_none_called_server(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('from portico import Server\na = Server("a")\nb = Server("b")\n')
    line = refused("serve", "one.py", cwd=tmp_path)
    assert "2 Servers" in line
    assert "a, b" in line
    assert "one.py:" in line


@pytest.mark.parametrize("target", ["one.py:nobody", "one.py:x", "one.py:server.nobody"])
def test_target_that_is_not_a_server_is_rejected(refused: Refused, tmp_path: Path, target: str) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="one") + "\nx = 1\n")
    line = refused("serve", target, cwd=tmp_path)
    assert f"{target} is not a Server" in line
    assert "(it has server)" in line


def test_level_that_does_not_exist(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="one"))
    line = refused("serve", "one.py", "--log-level", "loud", cwd=tmp_path)
    assert "--log-level" in line
    assert "loud" in line
    assert "debug" in line


# When it is broken


@pytest.mark.parametrize(
    "text, failure",
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("import no_such_module_anywhere\n", "ModuleNotFoundError"),
        ("def broken(:\n", "SyntaxError"),
        ('raise RuntimeError("my own words")\n', "my own words"),
    ],
)
@pytest.mark.parametrize("target", ["one.py", "one:server"])
def test_broken_module_shows_its_own_traceback(run: Run, tmp_path: Path, target: str, text: str, failure: str) -> None:
    (tmp_path / "one.py").write_text(text)
    done = run("serve", target, cwd=tmp_path)
    assert done.returncode != 0
    assert done.stdout == ""
    assert failure in done.stderr
    assert "one.py" in done.stderr


def test_server_that_cannot_be_made_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('def make():\n    raise RuntimeError("my own words")\n')
    done = python("serve", "one.py:make", cwd=tmp_path)
    assert done.returncode != 0
    assert "my own words" in done.stderr
    assert 'one.py", line 2' in done.stderr


def test_mistake_in_using_portico_says_where_it_was_made(run: Run, tmp_path: Path) -> None:
    """The sentence alone would leave its author to look for the line."""
    text = SERVER.format(name="one") + "\n@server.tool(name='who')\ndef again() -> str:\n    return ''\n"
    (tmp_path / "one.py").write_text(text)
    done = run("serve", "one.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "tool 'who' is already registered" in done.stderr
    assert "one.py" in done.stderr


# Options


def test_version_can_be_asked(tmp_path: Path) -> None:
    done = python("--version", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(f"portico {portico.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["serve", "one.py", "--nonsense"], ["serve", "--transport", "x"]]
)
def test_invalid_command_lines_print_usage(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "usage: portico" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("lifecycle, admitted", [("strict", False), ("lenient", True), ("auto", False)])
async def test_lifecycle_can_be_chosen(spawn: Spawn, tmp_path: Path, lifecycle: str, admitted: bool) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="one"))
    child = await spawn("serve", "one.py", "--lifecycle", lifecycle, cwd=tmp_path)
    await child.initialize("2025-11-25", initialized=False)
    assert ("result" in await child.request("tools/list")) is admitted


async def test_longest_message_can_be_chosen(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SERVER.format(name="one"))
    child = await spawn("serve", "one.py", "--max-message-size", "1000", cwd=tmp_path)
    await child.initialize("2025-11-25")
    child.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"x" * 2000 + b'"}}')
    refusal = await child.receive()
    assert refusal["error"]["code"] == -32600
    assert "1000 bytes" in refusal["error"]["message"]
    assert (await child.request("ping"))["result"] == {}


@pytest.mark.parametrize("level", ["warn", "WARN", "trace", "fatal", "", " ", "info"])
def test_level_of_the_log_goes_by_the_usual_names(run: Run, tmp_path: Path, level: str) -> None:
    done = run(
        "serve", "--services", "tasks", cwd=tmp_path, env={"PORTICO_LOG_LEVEL": level, "PORTICO_DATA": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr


def test_unknown_log_level_in_the_environment_is_a_warning(run: Run, tmp_path: Path) -> None:
    done = run("serve", cwd=tmp_path, env={"PORTICO_LOG_LEVEL": "loud"})
    assert done.returncode == 0
    assert "got 'loud'" in done.stderr


@pytest.mark.parametrize("level", ["verbose", "silly", "notice", "off", "http", "trace", "SILENT", "Fatal"])
def test_log_levels_of_other_programs_are_understood(run: Run, tmp_path: Path, level: str) -> None:
    done = run("serve", cwd=tmp_path, env={"PORTICO_LOG_LEVEL": level})
    assert done.returncode == 0
    assert "not a level" not in done.stderr


def test_unknown_log_level_on_the_command_line_is_rejected(refused: Refused, tmp_path: Path) -> None:
    assert "--log-level must be one of debug, info, warning, error, critical, got 'loud'" in refused(
        "serve", "--log-level", "loud", cwd=tmp_path
    )


@pytest.mark.parametrize("port", ["80000", "65536", "-1", "http", "²", "8080.5"])
def test_invalid_ports_are_rejected(run: Run, tmp_path: Path, port: str) -> None:
    done = run("serve", "--transport", "http", f"--port={port}", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "expected a port from 0 to 65535" in done.stderr
    with pytest.raises(portico.UsageError, match="between 0 and 65535"):
        portico.Server("s").run("http", port=80000)


@pytest.mark.parametrize("command", [["serve"], ["memory", "list"], ["items", "list"]])
@pytest.mark.parametrize("place", ["/proc/nowhere", "{file}/below"])
def test_data_directory_that_cannot_be_made_is_one_sentence(
    refused: Refused, tmp_path: Path, command: list[str], place: str
) -> None:
    (tmp_path / "file").touch()
    data = place.format(file=tmp_path / "file")
    assert f"cannot create the data directory {data}" in refused(*command, cwd=tmp_path, env={"PORTICO_DATA": data})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--allow-path", "nowhere"], "--allow-path 'nowhere': no such file or directory"),
        (["--allow-path", ".", "--services", "tasks"], "--allow-path requires the service 'system'"),
        (["--python-project", "nowhere"], "--python-project 'nowhere': no such file or directory"),
        (["--python-project", ".", "--services", "tasks"], "--python-project requires the service 'live'"),
    ],
)
def test_root_that_means_nothing_is_one_sentence(refused: Refused, tmp_path: Path, words: list[str], said: str) -> None:
    assert said in refused("serve", "--data", str(tmp_path / "data"), *words, cwd=tmp_path)


def test_store_of_the_environment_may_begin_with_home(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "PORTICO_STORE": "~/items.db"}
    done = python("items", "add", "a task", cwd=tmp_path, env=env)
    assert (done.returncode, (tmp_path / "items.db").exists()) == (0, True)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")
def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.10.12" && exit 0\nexit 3\n')
    old.chmod(0o755)
    root = ROOT
    command = ["make", "-C", str(root), "install", f"PYTHON={old}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"needs Python 3.11 or newer, got Python 3.10.12 from {old}" in done.stderr
    assert not (root / ".venv-python3.10").exists()


OWN_FILES = {
    "syntax": ("x = 1\ndef f()\n    pass\n", ["own.py, line 2: SyntaxError: expected ':'", "def f()"]),
    "exception": ("import json\n\njson.loads('{')\n", ["own.py cannot be loaded: ", "own.py, line 3, in <module>"]),
    "option": (
        "from portico import Server\nserver = Server('x')\n\n@server.tool(aliases='buy')\ndef f() -> int: ...\n",
        ["aliases: expected a list, got 'buy'", "own.py, line 4, in <module>"],
    ),
    "import": (
        "import no_such_module_here\n",
        ["No module named 'no_such_module_here'", "own.py, line 1, in <module>"],
    ),
    "exit": ("import sys\n\nsys.exit(3)\n", ["own.py cannot be loaded: SystemExit: 3", "own.py, line 3, in <module>"]),
    "fastmcp": (
        "import sys\nsys.modules['fastmcp'] = None\nfrom fastmcp import FastMCP\n",
        ["This is code for fastmcp: install that package, or run `portico port own.py` to rewrite it"],
    ),
}


@pytest.mark.parametrize("command", [["serve"], ["list"], ["worker"]], ids=str)
@pytest.mark.parametrize("kind", OWN_FILES)
def test_error_in_the_users_file_is_one_message_and_its_line(
    run: Run, tmp_path: Path, command: list[str], kind: str
) -> None:
    body, words = OWN_FILES[kind]
    (tmp_path / "own.py").write_text(body)
    done = run(*command, "own.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert all(word in done.stderr for word in words), done.stderr
    # No frame of ours, and none of Python's.
    assert len(done.stderr.splitlines()) <= 4
    assert "portico/" not in done.stderr and "importlib" not in done.stderr


def test_folder_is_not_a_server(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for target in (".", "folder", "./folder"):
        assert f"{target!r} is a folder: expected path/to/file.py[:object]" in refused("serve", target, cwd=tmp_path)


def test_options_of_other_tools_are_translated(run: Run, tmp_path: Path) -> None:
    result = run("inspect", "--json", "own.py", cwd=tmp_path)
    assert result.returncode == 2 and "--json: did you mean --format json?" in result.stderr
    result = run("memory", "list", "--output", "json", cwd=tmp_path)
    assert result.returncode == 2 and "--output: did you mean --format?" in result.stderr


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("ftp://host/mcp", "expected an http or https URL"),
        ("own", "did you mean 'own.py'?"),
        ("./plain.txt", "the file is not executable; name a Python file"),
        ("plain.txt", "the file is not executable; name a Python file"),
        ("two words.txt", "the file is not executable; name a Python file"),
        ("image.png", "the file is not executable; name a Python file"),
        ("./script.sh", "the file has no #! line; name its interpreter"),
        ("program", "did you mean './program'?"),
        ("./program", "the program in its #! line is missing"),
        ("folder", "it is a directory"),
        ("http:/localhost/mcp", "expected an http or https URL"),
    ],
)
def test_invalid_target_error_explains_targets(run: Run, tmp_path: Path, target: str, problem: str) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    (tmp_path / "folder").mkdir()
    contents = {"plain.txt": b"text", "two words.txt": b"text", "image.png": b"\x89PNG\r\n\x1a\n"}
    programs = {"script.sh": b"echo", "program": b"#!/no/such/interpreter\n"}
    for name, content in (contents | programs).items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755 if name in programs else 0o644)
    done = run("list", target, cwd=tmp_path)
    assert done.returncode == 3 and problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["plain.txt", "./plain.txt", "two words.txt", "image.png"])
def test_file_of_another_type_is_not_a_server(refused: Refused, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    assert f"{name!r} is not a Python file: expected path/to/file.py[:object]" in refused("serve", name, cwd=tmp_path)


@pytest.mark.parametrize("target", ["my servers/own.py", "my servers/own.py:server", "my servers/mcp.json:far-away"])
def test_path_may_contain_spaces(run: Run, tmp_path: Path, target: str) -> None:
    folder = tmp_path / "my servers"
    folder.mkdir()
    (folder / "own.py").write_text(SERVER.format(name="mine"))
    command = [sys.executable, "-m", "portico", "serve", str(folder / "own.py")]
    entry = {"command": command[0], "args": command[1:]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"far-away": entry, "other": entry}}))
    assert [json.loads(line)["name"] for line in run("list", "tools", target, cwd=tmp_path).stdout.splitlines()] == [
        "who"
    ]


def test_services_are_added_to_a_server_of_ones_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    env = {"PORTICO_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-m", "portico", "serve", "own.py", "--services", "contracts,tasks"]
    names = [
        json.loads(line)["name"]
        for line in run("list", "tools", "--", *command, cwd=tmp_path, env=env).stdout.splitlines()
    ]
    assert {"who", "spec_list", "create_task"} <= set(names)


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["own.py", "--allow-path", "."],
            "--allow-path requires built-in services; add them",
        ),
        (["own.py", "--service-admin"], "--service-admin requires built-in services"),
        (["mcp.json", "--services", "tasks"], "--services cannot be combined with a gateway file"),
        (["--services", " ,"], "--services must name at least one service"),
        (["own.py", "--transport", "stdio", "--port", "8080"], "--port requires --transport http, or --port"),
        (["own.py", "--allowed-host", "x.example"], "--allowed-host requires --transport http"),
        (["own.py", "--sse"], "--sse requires --transport http"),
    ],
)
def test_option_that_would_be_ignored_is_rejected(
    refused: Refused, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    assert said in refused("serve", *words, cwd=tmp_path)


def test_port_in_use_error_names_a_remedy(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    with socket.create_server(("127.0.0.1", 0)) as item:
        error = refused("serve", "own.py", "--port", str(item.getsockname()[1]), cwd=tmp_path)
    assert "choose another port with --port, or a free one with --port 0" in error


def fastmcp_json(folder: Path, deployment: dict[str, Any]) -> None:
    (folder / "own.py").write_text(SERVER.format(name="mine"))
    document = {"source": {"path": "own.py"}, "deployment": deployment}
    (folder / "fastmcp.json").write_text(json.dumps(document))


def test_fastmcp_json_is_served_as_it_is_deployed(run: Run, refused: Refused, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as item:
        port = item.getsockname()[1]
        fastmcp_json(tmp_path, {"transport": "http", "host": "127.0.0.1", "port": port, "path": "/mcp/"})
        assert f"127.0.0.1:{port}" in refused("serve", "fastmcp.json", cwd=tmp_path)
        # The command line takes precedence.
        assert run("serve", "fastmcp.json", "--transport", "stdio", cwd=tmp_path).returncode == 0


def test_unknown_members_of_a_deployment_are_rejected(refused: Refused, tmp_path: Path) -> None:
    fastmcp_json(tmp_path, {"prot": 8080})
    assert "prot: unknown key (did you mean 'port'?)" in refused("serve", "fastmcp.json", cwd=tmp_path)


def test_workers_require_an_absolute_path_if_the_file_sets_cwd(refused: Refused, tmp_path: Path) -> None:
    fastmcp_json(tmp_path, {"cwd": "."})
    message = refused("serve", "fastmcp.json", "--workers", "2", cwd=tmp_path)
    assert f"use {tmp_path}/fastmcp.json" in message


def test_server_table_for_a_program_is_rejected_rather_than_ignored(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SERVER.format(name="mine"))
    (tmp_path / "portico.toml").write_text("[serve]\nmax_message_size = 1000\n[server]\nstrict_arguments = true\n")
    message = refused("serve", "mine.py", "--config", "portico.toml", cwd=tmp_path)
    assert "portico.toml:3: [server] applies to the built-in services" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words", [["--help"], ["list", "--help"], ["list", "own.py"], ["memory", "export", "--all"], ["profiles", "list"]]
)
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    env = {**os.environ, "PORTICO_DATA": str(tmp_path)}
    subprocess.run([*PORTICO, "memory", "capture", "text"], cwd=tmp_path, env=env, check=True, capture_output=True)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PORTICO, *words], cwd=tmp_path, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "portico: cannot write to standard output: No space left on device\n")


def test_wrong_kind_is_named(run: Run, tmp_path: Path) -> None:
    done = run("list", "tool", "own.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "portico: unknown kind 'tool'; did you mean 'tools'?\n")


def test_only_required_arguments_are_reported_as_missing(run: Run, tmp_path: Path) -> None:
    assert "are required: ACTION\n" in run("hub", cwd=tmp_path).stderr


def test_private_key_without_a_certificate_is_rejected(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    line = refused("serve", "own.py", "--port", "0", "--ssl-keyfile", "key.pem", cwd=tmp_path)
    assert "ssl_keyfile requires ssl_certfile" in line
    line = refused("serve", "own.py", "--port", "0", "--ssl-certfile", "cert.pem", cwd=tmp_path)
    assert "cannot use the certificate 'cert.pem': No such file or directory" in line


def test_misspelled_service_gets_a_suggestion(refused: Refused, tmp_path: Path) -> None:
    line = refused("serve", "--services", "memry", cwd=tmp_path)
    assert line == "portico: unknown service 'memry' (did you mean 'memory'?)"


def test_profile_of_the_services_is_rejected_for_another_server(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    assert "remove TARGET" in refused("serve", "own.py", "--profile", "subcog", cwd=tmp_path)


def test_entry_has_a_command_or_a_url_and_may_follow_a_byte_order_mark(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(name="mine"))
    entry = {"command": sys.executable, "args": ["-m", "portico", "serve", "own.py"]}
    (tmp_path / "bom.json").write_text("\ufeff" + json.dumps({"mcpServers": {"own": entry}}), encoding="utf-8")
    assert run("list", "bom.json", cwd=tmp_path).returncode == 0
    both = {"mcpServers": {"own": {**entry, "url": "http://127.0.0.1:9/mcp"}}}
    (tmp_path / "both.json").write_text(json.dumps(both))
    done = run("list", "both.json", cwd=tmp_path)
    assert done.returncode == 2 and "a `command` or a `url`, not both" in done.stderr
