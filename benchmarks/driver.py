"""A raw stdio MCP driver: newline JSON over two pipes, no SDK, and the child's CPU and memory from the kernel.

Every server in the table is asked by this one program, so its own cost weighs on all of them alike. Requests are
encoded before the clock starts, and answers are checked after it stops: a wrong answer is an error, never a number.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import compiled  # noqa: F401

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"
CLIENT = {"name": "portico-bench", "version": "1.0.0"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}
CHUNK = 1 << 18


class DriverError(Exception):
    """The server violated the protocol or did not answer in time."""


@dataclass(frozen=True)
class Batch:
    """Cost of a run of requests: CPU time of the server, elapsed time, and latencies if measured."""

    count: int
    cpu_ns: int
    wall_ns: int
    latencies_ns: tuple[int, ...] = ()

    @property
    def cpu_us(self) -> float:
        return self.cpu_ns / self.count / 1000

    @property
    def per_second(self) -> float:
        return self.count / self.wall_ns * 1e9


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process in nanoseconds.

    `/proc/PID/schedstat` is the main thread only, which would hide a server's worker threads, and `/proc/PID/stat`
    counts in ticks of 10 ms. The kernel's CPU clock of another process has neither fault; its id is the one that
    clock_getcpuclockid(3) makes of a pid, which Python does not offer for other processes.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    """Return the resident memory, including shared pages."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise DriverError("the process has no resident memory: it has ended")


class Driver:
    """One server process. Use it as a context manager: the child is killed at the end in any case."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str] | None = None, modern: bool = False, timeout: float = 30.0
    ) -> None:
        self.command = list(command)
        self.env = {**os.environ, **(env or {})}
        self.modern = modern
        self.timeout = timeout
        self.next_id = 0
        self.pending = b""
        self.broken = ""

    def __enter__(self) -> Self:
        self.stderr = tempfile.TemporaryFile()
        self.spawned_ns = time.perf_counter_ns()
        try:
            self.child = subprocess.Popen(
                self.command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, bufsize=0
            )
        except OSError:
            self.stderr.close()
            raise
        self.pid = self.child.pid
        self.out = self.child.stdout.fileno()
        self.into = self.child.stdin.fileno()
        self.poll = select.poll()
        self.poll.register(self.out, select.POLLIN | select.POLLHUP)
        return self

    def __exit__(self, *exc: object) -> None:
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()
        self.stderr.close()

    def open(self) -> int:
        """Perform the handshake and return nanoseconds from the spawn to the first response."""
        if self.modern:
            self.ask("server/discover")
            return time.perf_counter_ns() - self.spawned_ns
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
        answer = self.ask("initialize", params)
        took = time.perf_counter_ns() - self.spawned_ns
        if answer.get("protocolVersion") != HANDSHAKE:
            raise DriverError(f"asked for {HANDSHAKE}, got {answer.get('protocolVersion')}")
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return took

    def close(self) -> None:
        """Close standard input, the normal shutdown on stdio, and wait for the process to exit."""
        self.child.stdin.close()
        try:
            self.child.wait(self.timeout)
        except subprocess.TimeoutExpired as late:
            raise DriverError("the server stayed after its input ended") from late

    def cpu_ns(self) -> int:
        return cpu_ns(self.pid)

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send one request outside of any measurement. Skip notifications, raise on an error."""
        self.next_id += 1
        self.write(self.encode(self.next_id, method, params))
        while True:
            message = json.loads(self.line())
            if message.get("id") == self.next_id and "method" not in message:
                return result_of(message)

    def sequential(self, method: str, paramses: Sequence[dict[str, Any] | None]) -> tuple[Batch, list[dict[str, Any]]]:
        """Send one request at a time, each after the previous response."""
        first, requests = self.requests(method, paramses)
        lines, latencies = [], []
        clock = time.perf_counter_ns
        cpu, start = self.cpu_ns(), clock()
        for request in requests:
            sent = clock()
            self.write(request)
            lines.append(self.line())
            latencies.append(clock() - sent)
        batch = Batch(len(requests), self.cpu_ns() - cpu, clock() - start, tuple(latencies))
        return batch, in_order(lines, first, len(requests))

    def pipelined(
        self, method: str, paramses: Sequence[dict[str, Any] | None], window: int
    ) -> tuple[Batch, list[dict[str, Any]]]:
        """Keep `window` requests in flight. Answers may come in any order."""
        first, requests = self.requests(method, paramses)
        received, self.pending = [self.pending], b""
        sent, answered = min(window, len(requests)), 0
        clock = time.perf_counter_ns
        cpu, start = self.cpu_ns(), clock()
        self.write(b"".join(requests[:sent]))
        while answered < len(requests):
            chunk = self.read()
            received.append(chunk)
            answered += chunk.count(b"\n")
            upto = min(answered + window, len(requests))
            if upto > sent:
                self.write(b"".join(requests[sent:upto]))
                sent = upto
        batch = Batch(len(requests), self.cpu_ns() - cpu, clock() - start)
        return batch, in_order(b"".join(received).splitlines(), first, len(requests))

    def requests(self, method: str, paramses: Sequence[dict[str, Any] | None]) -> tuple[int, list[bytes]]:
        first = self.next_id + 1
        self.next_id += len(paramses)
        return first, [self.encode(first + n, method, params) for n, params in enumerate(paramses)]

    def encode(self, request_id: int, method: str, params: dict[str, Any] | None) -> bytes:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if self.modern:
            params = {**(params or {}), "_meta": META}
        if params is not None:
            message["params"] = params
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def write(self, data: bytes) -> None:
        # The pipe holds 64 KiB and the largest window of requests a quarter of that, so a write cannot block for long
        # even when the server reads nothing; the read that follows is the one with a deadline.
        if self.broken:
            raise DriverError(self.broken)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.into, view) :]
        except BrokenPipeError as gone:
            raise self.failure("closed its input") from gone

    def line(self) -> bytes:
        parts = [self.pending]
        while b"\n" not in parts[-1]:
            parts.append(self.read())
        whole, _, self.pending = b"".join(parts).partition(b"\n")
        return whole

    def read(self) -> bytes:
        if not self.poll.poll(self.timeout * 1000):
            raise self.failure(f"gave no answer in {self.timeout:g} s")
        data = os.read(self.out, CHUNK)
        if not data:
            raise self.failure("ended")
        return data

    def failure(self, what: str) -> DriverError:
        """Return the failure; after one, every later response is out of step and must not be used."""
        self.stderr.seek(0)
        tail = self.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        self.broken = f"the server {what}" + (f": {tail[0][:160]}" if tail else "")
        return DriverError(self.broken)


def result_of(message: dict[str, Any]) -> dict[str, Any]:
    if "result" not in message:
        error = message.get("error") or {}
        raise DriverError(f"error {error.get('code')}: {str(error.get('message'))[:160]}")
    return message["result"]


def in_order(lines: Sequence[bytes], first: int, count: int) -> list[dict[str, Any]]:
    """Return the results by request id. Reject unknown responses, because they make the count wrong."""
    answers = {}
    for line in lines:
        message = json.loads(line)
        if "id" not in message or "method" in message:
            raise DriverError(f"an unasked message in a measured run: {line[:120]!r}")
        answers[message["id"]] = message
    result = range(first, first + count)
    if len(lines) != count or set(answers) != set(result):
        raise DriverError("the answers do not belong to the requests")
    return [result_of(answers[n]) for n in result]
