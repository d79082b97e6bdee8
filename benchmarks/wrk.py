"""wrk, the HTTP load generator: installation, scripts and results.

Every request has its own id and its own numbers: no server can answer from a cache, and no session receives an id
twice.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from driver import DriverError
from peers import NotInstalled, run

# Stands in the request wherever the number of the request goes. As long as the numbers, so that the length is right.
NUMBER = "1000000"
# wrk gives up on an answer after two seconds unless told; the slowest peer needs about one with 256 connections.
ANSWER_SECONDS = 10

# wrk's own report rounds; what `done` is given does not. Strings in Lua have the escapes that strings in JSON have.
REQUEST = """\
local n = {number}
function request()
  n = n + 1
  return {request}
end
"""
DONE = """\
function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "connect": %d, "read": %d, "write": %d,'
      .. ' "status": %d, "timeout": %d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.status, e.timeout))
end
"""


@dataclass(frozen=True)
class Load:
    """Result of a run of wrk."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def find() -> str:
    """Return the program, installed from the distribution if possible."""
    if result := shutil.which("wrk"):
        return result
    if not (apt := shutil.which("apt-get")):
        raise NotInstalled("wrk not found on PATH, and apt-get is not available")
    if os.geteuid() != 0:
        raise NotInstalled("wrk not found on PATH; only root can install it with apt-get")
    run([apt, "install", "--yes", "--quiet", "--no-install-recommends", "wrk"])
    if result := shutil.which("wrk"):
        return result
    raise NotInstalled("apt-get installed wrk, and it is still not on PATH")


def version(program: str) -> str:
    """Return the version, which wrk prints with its usage and a failing status."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    words = (output.stdout + output.stderr).split()
    return words[1].removeprefix("debian/") if len(words) > 1 else "of unknown version"


def script(request: bytes) -> str:
    parts = [json.dumps(part) for part in request.decode("ascii").split(NUMBER)]
    return REQUEST.format(number=NUMBER, request=" .. n .. ".join(parts)) + DONE


def same_script(request: bytes) -> str:
    """Return a script with one constant request, for servers that cache no request heads."""
    head, _, body = request.decode("ascii").partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    method, path, _ = first.split()
    # It sets its own host and length.
    fields = {name: value for name, value in (line.split(": ", 1) for line in lines) if name not in OWN}
    messages = [
        f"wrk.method = {json.dumps(method)}",
        f"wrk.path = {json.dumps(path)}",
        f"wrk.body = {json.dumps(body)}",
    ]
    messages += [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(messages) + "\n" + DONE


def parse(output: str) -> Load:
    """Parse the line written by our script. Any failed response is an error."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise DriverError("wrk ended without its numbers")
    data = json.loads(lines[-1])
    troubles = [f"{data[kind]} {text}" for kind, text in TROUBLES.items() if data[kind]]
    if troubles:
        raise DriverError(f"wrk, of {data['requests']} requests: {', '.join(troubles)}")
    if not data["requests"]:
        raise DriverError("wrk got no answer at all")
    return Load(data["requests"], data["microseconds"] / 1e6, data["p50"], data["p99"])


OWN = frozenset({"host", "content-length"})
TROUBLES = {
    "status": "non-2xx answers",
    "connect": "failed connects",
    "read": "failed reads",
    "write": "failed writes",
    "timeout": "timeouts",
}


def ask(
    program: str, port: int, request: bytes, connections: int, seconds: int, core: int | None, *, same: bool = False
) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        notification = Path(folder) / "request.lua"
        notification.write_text(same_script(request) if same else script(request), encoding="ascii")
        how = ["-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={ANSWER_SECONDS}s", "-s", str(notification)]
        with nullcontext() if core is None else on_core(core):
            child = subprocess.Popen(
                [program, *how, f"http://127.0.0.1:{port}/"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            output, _ = child.communicate(timeout=seconds + 2 * ANSWER_SECONDS)
        finally:
            child.kill()
            child.wait()
    if child.returncode:
        raise DriverError(f"wrk: {output.strip().splitlines()[-1:]}")
    return parse(output)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin the processes started in this block to a core, and restore our own affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
