"""One line for each request: docs/how-to/monitor.md."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from portico.telemetry.log_formatters import create_formatter
from support.otlp import PORTICO, SERVED, TIMEOUT_SECONDS, call, serving

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "double", "arguments": {"n": 1}}}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "me", "version": "1"}},
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a server says in JSON of some calls."""
    log = tmp_path_factory.mktemp("log") / "err"
    with serving(SERVED, "--log-format", "json", log=log) as url:
        call(url, "double", "n=2")
        call(url, "refuse")
        call(url, "breaks", "--protocol-version", "2025-06-18")
        call(url, "--arguments", "{}", "no\x1b[31m\nsuch")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("/mcp", "/nowhere"), timeout=TIMEOUT_SECONDS)
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def _of(lines: list[dict[str, Any]], target: str) -> dict[str, Any]:
    (line,) = [line for line in lines if line.get("target") == target]
    return line


def test_request_log_line_has_caller_target_and_outcome(lines: list[dict[str, Any]]) -> None:
    line = _of(lines, "double")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert 0 < line.pop("ms") < 10_000
    assert line.pop("bytes") > 50
    assert line.pop("client").startswith("portico/")
    assert line == {
        "level": "info",
        "logger": "portico.requests",
        "method": "tools/call",
        "target": "double",
        "outcome": "ok",
        "revision": "2026-07-28",
        "address": "127.0.0.1",
    }


def test_unexpected_error_is_logged_with_the_reported_id(lines: list[dict[str, Any]]) -> None:
    assert _of(lines, "refuse")["outcome"] == "tool_error"
    broken = _of(lines, "breaks")
    assert (broken["outcome"], broken["revision"]) == ("KeyError", "2025-06-18")
    (error,) = [line for line in lines if line["level"] == "error"]
    assert broken["error_id"] in error["message"]
    assert "KeyError: 'nothing'" in error["exception"]


def test_traceback_begins_at_the_authors_frame(lines: list[dict[str, Any]]) -> None:
    (error,) = [line for line in lines if line["level"] == "error"]
    files = re.findall(r'File "(.*?)"', error["exception"])
    assert files == [str(SERVED)] * 2


def test_rejected_http_requests_are_logged(lines: list[dict[str, Any]]) -> None:
    assert [(line["method"], line["outcome"]) for line in lines if "nowhere" in line.get("method", "")] == [
        ("GET /nowhere", "http 404")
    ]


def test_handshake_log_line_has_the_client(lines: list[dict[str, Any]]) -> None:
    (line,) = [line for line in lines if line.get("method") == "initialize"]
    assert line["client"].startswith("portico/")


def _on_stdio(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    result = "".join(json.dumps(item) + "\n" for item in (HELLO, READY, CALL))
    clean = {name: value for name, value in os.environ.items() if name != "PORTICO_LOG_LEVEL"}
    return subprocess.run(
        [*PORTICO, "serve", str(SERVED), *words],
        input=result,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**clean, **env},
    )


@pytest.mark.parametrize("env", [{}, {"PORTICO_LOG_LEVEL": ""}, {"PORTICO_LOG_LEVEL": "warn"}])
def test_stdio_request_log_is_off_by_default(env: dict[str, str]) -> None:
    assert _on_stdio(**env).stderr == ""


def test_level_asks_for_lines_of_text_on_stdio() -> None:
    done = _on_stdio("--log-level", "info")
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"\S+Z tools/call double ok \d+\.\d\dms \d+B client=me/1 revision=2025-06-18", lines[-1])
    assert len(done.stdout.splitlines()) == 2


def test_trace_is_debug_over_http_as_on_stdio(tmp_path: Path) -> None:
    log = tmp_path / "err"
    with serving(SERVED, log=log, PORTICO_LOG_LEVEL="trace") as url:
        call(url, "double", "n=2")
    for message in (
        "incoming message: tools/call",
        "handler invocation: tools/call double at 2026-07-28",
        "performance: ",
    ):
        assert message in log.read_text()


def test_unknown_log_level_error_is_one_sentence() -> None:
    done = _on_stdio("--log-level", "loud")
    error = "debug, info, warning, error, critical"
    assert (done.returncode, done.stderr) == (2, f"portico: --log-level must be one of {error}, got 'loud'\n")


def test_on_a_terminal_a_server_over_http_shows_its_requests(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*PORTICO, "serve", str(SERVED), "--port", "0"],
        stdin=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "PORTICO_DATA": str(tmp_path)},
    )
    os.close(theirs)
    with os.fdopen(ours, "rb", 0) as terminal, open(ours, "rb", buffering=1 << 16, closefd=False) as reader:
        try:
            url = next(line.split()[2].decode() for line in reader if line.startswith(b"Serving on"))
            call(url, "double", "n=2")
            assert next(line for line in reader if b" tools/call double ok " in line)
        finally:
            child.terminate()
            child.wait(TIMEOUT_SECONDS)
        assert not terminal.closed


def test_traceback_of_ones_own_file_is_shown_at_once() -> None:
    done = call(str(SERVED), "breaks")
    assert done.returncode == 1
    assert re.findall(r'File "(.*?)"', done.stderr) == [str(SERVED)] * 2
    assert "portico: breaks failed: Internal error (error id " in done.stderr


HOSTILE = "a\nINFO portico: forged\r\x1b[2J\x00\x9b1m\u2028\u202e\udcff end"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def _record(*, failing: bool) -> logging.LogRecord:
    if not failing:
        return logging.LogRecord("portico", logging.ERROR, __file__, 1, "no: %s", (HOSTILE,), None)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        return logging.LogRecord("portico", logging.ERROR, __file__, 1, HOSTILE, (), sys.exc_info())


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("form", ["text", "json"])
def test_record_cannot_forge_lines_or_control_a_terminal(form: str, failing: bool) -> None:
    text = create_formatter(form).format(_record(failing=failing))
    assert not RAW.search(text)
    text.encode()
    first, *rest = text.split("\n")
    assert "\\n" in first and "forged" in first
    assert all(line.startswith("    | ") for line in rest)
    assert ("ValueError" in text) is failing
    if form == "json":
        assert not rest
        assert "\nINFO portico: forged\r\x1b[2J" in json.loads(text)["message"]


@pytest.mark.parametrize("words", [[], ["--log-level", "info"]])
def test_log_of_a_command_is_escaped(tmp_path: Path, words: list[str]) -> None:
    """With and without a line for each request."""
    file = tmp_path / "hostile.py"
    file.write_text(
        "import logging\nfrom portico import Server\nserver = Server('hostile')\n"
        f"@server.tool\ndef double(n: int) -> int:\n    raise ValueError({HOSTILE!r})\n"
        f"logging.getLogger('portico.mine').warning('%s', {HOSTILE!r})\n"
    )
    result = "".join(json.dumps(item) + "\n" for item in (HELLO, READY, CALL))
    environment = {name: value for name, value in os.environ.items() if name != "PORTICO_LOG_LEVEL"}
    done = subprocess.run(
        [*PORTICO, "serve", str(file), *words], input=result.encode(), capture_output=True, timeout=TIMEOUT_SECONDS,
        env=environment,
    )  # fmt: skip
    log = done.stderr.decode()
    assert "WARNING portico.mine: a\\nINFO portico: forged" in log and "    | ValueError: a" in log
    assert not RAW.search(log)
    assert not [line for line in log.splitlines() if line.startswith("INFO portico: forged")]


def test_every_line_of_a_command_s_log_has_a_time_and_errors_name_the_tool(tmp_path: Path) -> None:
    """Also those that are no request lines, with the level that nobody chose."""
    file = tmp_path / "failing.py"
    file.write_text(
        "import logging\nfrom portico import Server\nserver = Server('failing')\n"
        "@server.tool\ndef double(n: int) -> int:\n    raise ValueError('no')\n"
        "logging.getLogger('portico.mine').warning('hello')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "LOG_LEVEL"}
    messages = "".join(json.dumps(message) + "\n" for message in (HELLO, READY, CALL))
    done = subprocess.run(
        [*PORTICO, "serve", str(file)],
        input=messages.encode(),
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        env=environment,
    )
    # The lines of a traceback are indented below theirs.
    lines = [line for line in done.stderr.decode().splitlines() if not line.startswith("    | ")]
    time = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    assert len(lines) == 2
    assert re.search(time + "WARNING portico.mine: hello$", lines[0])
    assert re.search(time + r"ERROR portico: error \w+ in tools/call 'double'$", lines[1])
