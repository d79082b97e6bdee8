"""Run `portico` as users do: in a process, and in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

import pytest

from support import debian
from support.forks import ForkedCommand, ForkServer
from support.paths import ROOT

TIMEOUT_SECONDS = 30.0
PORTICO = [sys.executable, "-m", "portico"]
# Cursor movements, colours, titles, and the prompt markers of shells.
SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
# A progress line that was cleared.
CLEARED = re.compile(r"[^\n]*\r\x1b\[K")


def default_signals() -> None:
    """Restore the default signal handlers in a child. Processes started in the background, as in many CI runners,
    ignore SIGINT and SIGQUIT, and children inherit that: Ctrl-C would not reach them."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """Return our environment with a separate cache and without the developer's own settings."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PORTICO_LOG_LEVEL", "PORTICO_TOKEN", "COLUMNS")
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{ours['PATH']}"
    return {**ours, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": path, "TERM": "xterm", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def portico(fork_server: ForkServer, surroundings: dict[str, str]) -> Callable[..., CompletedProcess[str]]:
    """Return a function that runs a command without a terminal: `portico("list", "tools", target)`."""

    def run(*words: str | Path, stdin: str | bytes = "", cwd: Path = ROOT, **env: str) -> CompletedProcess[str]:
        return fork_server.run(*words, env={**surroundings, **env}, cwd=cwd, stdin=stdin)

    return run


@pytest.fixture(scope="module")
def url(fork_server: ForkServer) -> Iterator[str]:
    """Serve examples/hello.py over HTTP, and yield its URL."""
    child = fork_server.start("serve", "examples/hello.py", "--transport", "http", "--port", "0", cwd=ROOT)
    try:
        yield child.stderr.readline().removeprefix("Serving on ").strip()
    finally:
        child.terminate()
        child.communicate()


class AuthorizationGate(ThreadingHTTPServer):
    """A server that responds 401 to every request and stores its headers."""

    headers: list[dict[str, str]]


@pytest.fixture
def gate() -> Iterator[AuthorizationGate]:
    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = AuthorizationGate(("127.0.0.1", 0), Refusal)
    server.headers = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(TIMEOUT_SECONDS)
    server.server_close()


class Terminal:
    """A command in a terminal with 100 columns."""

    def __init__(self, start: Callable[[int], Popen[bytes] | ForkedCommand]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        self.raw = ""
        self._seen = 0
        self._bytes = b""
        self.process = start(slave)
        os.close(slave)

    @property
    def shown(self) -> str:
        """Return all output so far, as text without control sequences."""
        return self._readable(self.raw)

    @property
    def left(self) -> str:
        """Return the output without cleared progress lines, which only slow commands print."""
        return self._readable(CLEARED.sub("", self.raw))

    @staticmethod
    def _readable(raw: str) -> str:
        return SEQUENCE.sub("", raw).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until this text appears after the text of the last wait."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.shown[self._seen :]:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} was not shown, but:\n{self.shown[self._seen :]}")
        self._seen = self.shown.index(text, self._seen) + len(text)

    def end(self) -> int:
        """Wait for its end and return its exit status."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(TIMEOUT_SECONDS)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:
            data = b""  # Linux: the other side was closed
        self._bytes += data
        self.raw = self._bytes.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(TIMEOUT_SECONDS)
        os.close(self._master)


def _at(slave: int, command: Sequence[str], env: dict[str, str], cwd: Path) -> Popen[bytes]:
    def take_over() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        default_signals()

    return Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=take_over,
    )


@pytest.fixture
def terminal(fork_server: ForkServer, surroundings: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts a command in a terminal: `terminal("call", target, "tool")`."""
    opened: list[Terminal] = []

    def start(*words: str | Path, program: Sequence[str] = (), cwd: Path = ROOT, **env: str) -> Terminal:
        values = {**surroundings, **env}

        def begin(slave: int) -> Popen[bytes] | ForkedCommand:
            # The module search path is fixed before the fork.
            if program or "PYTHONPATH" in env:
                return _at(slave, [*(program or PORTICO), *map(str, words)], values, cwd)
            return fork_server.start_at(slave, *words, env=values, cwd=cwd)

        opened.append(Terminal(begin))
        return opened[-1]

    yield start
    for item in opened:
        item.close()


@pytest.fixture
def shell() -> Callable[[str], str]:
    """Return the path of a shell. In CI it is installed first."""

    def find(name: str) -> str:
        try:
            if shutil.which(name) is None:
                debian.install(name)
        except debian.NotInstalled as why:
            debian.without(why)
        result = shutil.which(name)
        assert result is not None
        return result

    return find


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a file with a Server called `odd` and the given code: `server(body)`."""

    def write(body: str, name: str = "odd.py") -> Path:
        path = tmp_path / name
        path.write_text(
            f'from typing import *\nfrom portico import *\n\nserver = Server("odd", version="1")\n\n{body}\n'
        )
        return path

    return write


@pytest.fixture
def liar(tmp_path: Path) -> Callable[[dict[str, Any]], list[str]]:
    """Return a function that returns the command of a child with canned responses: `liar({"tools/list": {…}})`."""

    def write(answers: dict[str, Any]) -> list[str]:
        path = tmp_path / "liar.py"
        path.write_text(f"{LIAR}\nserve({answers!r})\n")
        return [sys.executable, str(path)]

    return write


LIAR = """
import json, os, sys

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
    "serverInfo": {"name": "liar", "version": "1"},
}

def serve(answers):
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        answer = {"initialize": INITIALIZE, **answers}.get(message["method"])
        if answer == "exit":
            sys.stderr.write("last words\\n")
            sys.stderr.flush()
            os._exit(7)
        if answer == "silence":
            continue
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if answer is None:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        else:
            reply["error" if "code" in answer else "result"] = answer
        print(json.dumps(reply), flush=True)
"""
