"""Exit statuses and error messages of commands; never a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

Portico = Callable[..., Any]

TIMEOUT_SECONDS = 30


def said(done: Any, status: int) -> str:
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert all(line.startswith("portico: ") for line in done.stderr.splitlines())
    return str(done.stderr)


# 1: the server refuses


def test_tool_that_rejects(portico: Portico) -> None:
    done = portico("call", "examples/everything.py", "test_error_handling")
    assert json.loads(done.stdout)["isError"] is True
    assert "test_error_handling failed: This tool intentionally returns an error" in said(done, 1)
    done = portico("call", "examples/everything.py", "test_error_handling", "--format", "table")
    assert done.stdout == ""
    assert "failed" in said(done, 1)


def test_tool_that_breaks(portico: Portico, server: Any) -> None:
    """The file is the caller's own, so the caller is shown the traceback, from the line that raised."""
    path = server("@server.tool\ndef broken() -> str:\n    raise RuntimeError('inside')")
    done = portico("call", path, "broken")
    assert done.returncode == 1
    assert "error id" in done.stderr and "RuntimeError: inside" in done.stderr
    assert "packages/portico/src/portico" not in done.stderr


def test_error_of_the_protocol(portico: Portico, liar: Any) -> None:
    assert "Resource not found" in said(portico("read", "examples/library.py", "library://nothing"), 1)
    command = liar({"tools/list": {"code": -32000, "message": "not \x1b[31mtoday"}})
    assert said(portico("list", "tools", "--", *command), 1) == "portico: not \\x1b[31mtoday\n"


def test_elicitation_without_a_terminal(portico: Portico) -> None:
    done = portico("call", "examples/travel.py", "book", "destination=Bergen")
    assert "Run the command in a terminal to answer elicitations." in said(done, 1)


def test_invalid_response_names_the_method(portico: Portico, liar: Any) -> None:
    assert "tools/list" in said(portico("list", "tools", "--", *liar({"tools/list": {"tools": 5}})), 1)


# 2: a mistake on the line


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["call", "examples/hello.py", "greet", "nmae=Ada"], "Unknown argument 'nmae'. Did you mean 'name'?"),
        (["call", "examples/hello.py", "greet"], "Missing argument 'name': expected a string."),
        (["call", "examples/hello.py", "greeet", "name=x"], "unknown tool \"greeet\"; did you mean 'greet'?"),
        (["call", "examples/progress.py", "add", "a=1", "b=x"], "Invalid argument 'b': expected an integer, received"),
        (["prompt", "examples/library.py", "recomend"], "unknown prompt \"recomend\"; did you mean 'recommend'?"),
        (["prompt", "examples/library.py", "recommend"], "Missing argument 'author': expected a string."),
        (["list", "tools", "examples/nothing.py"], "file not found: examples/nothing.py"),
        (["list", "tools", "nothing:server"], "module 'nothing' not found"),
        (["list", "tools", "nothing.json:x"], "file not found: nothing.json"),
        (["list", "tools", ""], "the target must not be empty"),
        (["call", "x", "y", "--header", "nonsense"], "--header must be 'Name: value', got 'nonsense'"),
        (["call", "x", "y", "--header", "A: b\nC: d"], "--header must be 'Name: value'"),
        (["call", "x", "y", "--env", "nonsense"], "--env must be NAME=VALUE, got 'nonsense'"),
        (["call", "x", "y", "z"], 'expected key=value, got "z"'),
        (["call", "x", "y", "--cwd", "/no/such/folder"], "directory /no/such/folder not found"),
        (["call", "x", "y", "--token", "t"], "auth is supported for URL targets only"),
    ],
)
def test_mistake_is_met_with_a_sentence(portico: Portico, words: list[str], sentence: str) -> None:
    assert sentence in said(portico(*words), 2)


def test_nothing_is_sent_that_does_not_fit(portico: Portico) -> None:
    done = portico("call", "examples/hello.py", "greet", "nmae=Ada", "--trace")
    assert done.returncode == 2
    assert "tools/list" in done.stderr
    assert "tools/call" not in done.stderr


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["list", "tools", "x", "y"], "unrecognized arguments: y"),
        (["list", "tools"], "the following arguments are required: TARGET"),
        (["call", "x"], "the following arguments are required: TOOL"),
        (["list", "tools", "--"], "expected a command after --"),
        (["read", "x", "y", "z"], "unrecognized arguments: z"),
        (["call", "x", "y", "--timeout", "-1"], "expected a positive number of seconds, got '-1'"),
        (["call", "x", "y", "--timeout", "soon"], "expected a positive number of seconds, got 'soon'"),
        (["call", "x", "y", "--protocol-version", "2020-01-01"], "invalid choice"),
        (["cal", "x", "y"], "unknown command 'cal'; did you mean 'call'?"),
        (["run", "x.py"], "unknown command 'run'; did you mean 'serve'?"),
        (["version"], "unknown command 'version'; did you mean '--version'?"),
        (["serve", "--prot", "80"], "unrecognized arguments: --prot (--prot: did you mean --port?)"),
        (["memory", "list", "--limt=3"], "did you mean --limit?"),
        (["xyz"], "unknown command 'xyz'; expected one of serve, dev, list, call, read, "),
        ([], "a command is required: serve, dev, list, "),
        (["read", "x", "\udcff"], "is not valid UTF-8"),
        (["completion", "csh"], "invalid choice: 'csh'"),
    ],
)
def test_line_that_cannot_be_read_is_met_with_the_usage(portico: Portico, words: list[str], sentence: str) -> None:
    done = portico(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: portico")
    assert done.stderr.splitlines()[-1].startswith("portico: ")
    assert sentence in done.stderr


# 3: the server cannot be reached


@pytest.mark.parametrize(
    "target, sentence",
    [
        ("http://127.0.0.1:9/mcp", "cannot connect to 127.0.0.1:9: connection refused"),
        ("no-such-command-anywhere --fast", "cannot start 'no-such-command-anywhere': No such file"),
        (".", "cannot start '.': it is a directory; name a file, a command or a URL"),
    ],
)
def test_missing_server(portico: Portico, target: str, sentence: str) -> None:
    assert sentence in said(portico("list", "tools", target), 3)


def test_program_that_is_not_an_mcp_server_is_named(portico: Portico) -> None:
    assert "cat is not an MCP server" in said(portico("list", "--", "cat"), 1)


def test_printed_text_is_quoted_when_nothing_is_answered(portico: Portico) -> None:
    program = "import time; print('Welcome!', flush=True); time.sleep(60)"
    done = portico("list", "--timeout", "2", "--", sys.executable, "-c", program)
    assert "within 2 s" in said(done, 3) and "it printed 'Welcome!', not a message" in said(done, 3)


def test_server_that_ends(portico: Portico, liar: Any) -> None:
    assert "last words" in said(portico("call", "x", "--", *liar({"tools/list": "exit"})), 3)


def test_server_that_says_nothing(portico: Portico, liar: Any) -> None:
    done = portico("list", "tools", "--timeout", "0.3", "--", *liar({"tools/list": "silence"}))
    assert re.search(r"(not answered|did not finish) within 0\.3 s", said(done, 3))


def test_server_that_requires_authentication(portico: Portico, gate: Any) -> None:
    url = f"http://127.0.0.1:{gate.server_address[1]}/mcp"
    assert "401" in said(portico("list", "tools", url), 3)
    said(portico("list", "tools", url, "--oauth"), 3)


# Signals and pipes


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("place", ["child", "here"])
def test_signal_ends_the_command_and_the_server_with_it(
    server: Any, surroundings: dict[str, str], tmp_path: Path, number: int, status: int, place: str
) -> None:
    path = server(
        "import asyncio, os\n"
        "@server.tool\nasync def wait() -> str:\n"
        f"    with open({str(tmp_path / 'waiting')!r}, 'w') as file:\n        file.write(str(os.getpid()))\n"
        "    await asyncio.sleep(600)\n    return ''\n"
        "if __name__ == '__main__':\n    server.run()"
    )
    # To read from it is to wait for whoever writes.
    os.mkfifo(tmp_path / "waiting")
    target = [str(path), "wait"] if place == "here" else ["wait", "--", sys.executable, str(path)]
    command = [sys.executable, "-m", "portico", "call", *target]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=surroundings,
    )
    pid = int((tmp_path / "waiting").read_text())
    child.send_signal(number)
    out, err = child.communicate(timeout=TIMEOUT_SECONDS)
    assert (child.returncode, out, err) == (status, b"", b"")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_reader_that_has_seen_enough_is_no_mistake(surroundings: dict[str, str]) -> None:
    line = f"{sys.executable} -m portico list tools examples/everything.py | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    first, status = done.stdout.splitlines()
    assert json.loads(first)["name"] == "test_simple_text"
    # All of it may have fitted into the pipe before `head` had gone.
    assert status in ("0", "141")
    assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("words", [["list", "tools", "examples/hello.py"], ["completion", "bash"]])
def test_full_disk_is_reported(surroundings: dict[str, str], words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "portico", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=surroundings,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    assert said(done, 1) == "portico: cannot write to standard output: No space left on device\n"


def test_closed_output_is_no_mistake(surroundings: dict[str, str]) -> None:
    line = f"{sys.executable} -m portico list tools examples/hello.py >&-"
    done = subprocess.run(
        ["bash", "-c", line], cwd=ROOT, env=surroundings, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, b"")


# Help, and how quickly a server starts


@pytest.mark.parametrize("command", ["serve", "list", "call", "read", "prompt", "completion"])
def test_every_command_explains_itself(portico: Portico, command: str) -> None:
    done = portico(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: portico {command}")
    assert command in portico("--help").stdout


@pytest.mark.parametrize(
    "words, absent",
    [
        (["serve", "examples/nothing.py"], ["portico.client.client", "rich", "difflib"]),
        (["complete", "words", ""], ["portico.client.client", "portico.server.server", "asyncio", "msgspec"]),
        (["--version"], ["portico.server.server", "asyncio", "msgspec"]),
    ],
)
def test_fast_commands_do_not_import_heavy_modules(
    surroundings: dict[str, str], words: list[str], absent: list[str]
) -> None:
    code = (
        "import sys\nfrom portico.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert not set(absent) & set(done.stderr.split())
