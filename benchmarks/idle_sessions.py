"""Measure ten thousand idle sessions on two workers: their cost, and the duration of a deployment.

    python benchmarks/idle_sessions.py [--sessions 10000] [--workers 2] [--store URL | --postgres]
                                       [--idle SECONDS] [--without-streams]

Each client has begun a session and listens to it by GET, as the official ones do. Then the supervisor replaces its
workers (SIGHUP). Every client whose stream ends comes back with another GET, and when all have one again
each makes a call. It fails where a session is lost, a call is not answered, or the deploy takes more than ten seconds
(on a machine that is busy with something else: more than ten seconds of CPU for each core).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import uvloop

from worker_client import Serving, busy, children, cpu, private, serving
from worker_store import postgres

DEPLOY_SECONDS = 10.0
MOST_KB = 30.0
QUIET = 0.8
PATIENCE = 120.0
AT_ONCE = 64
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
HANDSHAKE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "idle", "version": "1"}},
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", help="PostgreSQL or SQLite; otherwise the fleet's own")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL that is started for it")
    parser.add_argument("--idle", metavar="SECONDS", type=float, default=10.0, help="how long nothing is done")
    parser.add_argument("--without-streams", action="store_true", help="no client listens")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        store = options.store
        if options.postgres:
            store = stack.enter_context(postgres.server()).create_database()
        fleet = stack.enter_context(serving(options.workers, store=store))
        return uvloop.run(measure(fleet, options.sessions, options.idle, streams=not options.without_streams))


async def measure(fleet: Serving, count: int, seconds: float, streams: bool) -> int:
    workers = children(fleet.supervisor)
    before, spent, began = private(workers), cpu(workers), time.perf_counter()
    clients = [Idle(fleet.port, streams) for _ in range(count)]
    await together([client.begin() for client in clients])
    took = time.perf_counter() - began
    kept = (private(workers) - before) / count / 1e3
    print(f"{count} sessions over {len(workers)} workers, begun in {took:.1f} s,"
          f" {(cpu(workers) - spent) / count * 1e6:.0f} µs of the workers' CPU for each")  # fmt: skip
    print(f"memory of the workers: {before / 1e6:.0f} MB, and {kept:.1f} kB for each session")
    idle = cpu(workers)
    await asyncio.sleep(seconds)
    print(f"doing nothing for {seconds:g} s: {(cpu(workers) - idle) * 1e3:.0f} ms of CPU")
    took = await deploy(fleet.supervisor, workers, clients)
    print(
        f"a deploy: {took.gone:.1f} s until the old workers are gone, {took.back:.1f} s until all clients listen again"
    )
    print(
        f"its CPU: {took.old:.1f} s of the old workers, {took.new:.1f} s of the new, {took.clients:.1f} s of the"
        f" clients; other processes left {took.left:.1f} cores to all of them"
    )
    for why, times in Counter(why for client in clients for why in client.failures).most_common(5):
        print(f"{times} times a client had to try again: {why}")
    began = time.perf_counter()
    await together([client.call() for client in clients])
    print(f"a call in each afterwards: {time.perf_counter() - began:.1f} s in all")
    now = children(fleet.supervisor)
    print(f"memory of the new workers: {private(now) / 1e6:.0f} MB with all sessions")
    outcomes = Counter(client.outcome for client in clients)
    print(", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()))
    for client in clients:
        client.close()
    # On a busy machine use the CPU figures instead of elapsed times.
    cores = os.cpu_count() or 1
    seconds = took.back if took.left > QUIET * cores else (took.old + took.new + took.clients) / cores
    well = outcomes == {"answered": count} and seconds <= DEPLOY_SECONDS and kept <= MOST_KB
    print("as it should be" if well else "NOT as it should be")
    return int(not well)


class Deployed(NamedTuple):
    """Seconds until the old workers have exited, until every client listens again, and of CPU."""

    gone: float
    back: float
    old: float
    new: float
    clients: float
    left: float  # cores that were not in use by others


async def deploy(supervisor: int, workers: list[int], clients: list[Idle]) -> Deployed:
    began, used, own = time.perf_counter(), busy(), time.process_time()
    before = {worker: cpu([worker]) for worker in workers}
    spent = dict(before)
    opened = {client: client.opened for client in clients}
    os.kill(supervisor, signal.SIGHUP)
    async with asyncio.timeout(PATIENCE):
        while old := set(workers) & set(children(supervisor)):
            for worker in old:
                with suppress(OSError):
                    # The most that it was seen with: threads that have ended are not counted any more.
                    spent[worker] = max(spent[worker], cpu([worker]))
            await asyncio.sleep(0.05)
        gone = time.perf_counter() - began
        for client in clients:
            # Each has lost its stream with a worker, whether it knows that already or not.
            while client.streams and (client.opened == opened[client] or not client.listens.is_set()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    back = time.perf_counter() - began
    old_cpu, new_cpu = sum(spent.values()) - sum(before.values()), cpu(children(supervisor))
    own_cpu = time.process_time() - own
    others = max(0.0, busy() - used - old_cpu - new_cpu - own_cpu)
    return Deployed(gone, back, old_cpu, new_cpu, own_cpu, (os.cpu_count() or 1) - others / back)


async def together(coroutines: list[Any]) -> None:
    """Run all of them, a limited number at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def take(one: Any) -> None:
        async with turns:
            await one

    await asyncio.gather(*map(take, coroutines))


@dataclass(eq=False)
class Idle:
    """An idle client."""

    port: int
    streams: bool
    id: str = ""
    outcome: str = "nothing"
    opened: int = 0  # streams, one after the other
    listens: asyncio.Event = field(default_factory=asyncio.Event)
    failures: list[str] = field(default_factory=list)  # to listen, or of a stream that did not end properly
    _listening: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = await self._post(reader, writer, HANDSHAKE)
        self.id = head["mcp-session-id"]
        await self._post(reader, writer, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        writer.close()
        if self.streams:
            self._listening = asyncio.create_task(self._listen())
            await self.listens.wait()
        else:
            self.listens.set()

    async def call(self) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            await self._post(reader, writer, CALL)
            writer.close()
            self.outcome = "answered"
        except (OSError, ValueError, EOFError) as why:
            self.outcome = str(why)

    async def _listen(self) -> None:
        while True:
            writer = None
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(self._head("GET", 0))
                head = await reader.readuntil(b"\r\n\r\n")
                if b" 200 " not in head[:16]:
                    raise OSError(head.decode().partition("\r\n")[0])
                self.opened += 1
                self.listens.set()
                # In chunks: an empty one is the end, while the connection may stay.
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    await reader.readexactly(size + 2)
            except (OSError, EOFError) as why:
                self.failures.append(
                    f"{'listening' if self.listens.is_set() else 'asking'}: {why or type(why).__name__}"
                )
                await asyncio.sleep(0.1)
            self.listens.clear()
            if writer is not None:
                writer.close()

    async def _post(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: dict[str, Any]
    ) -> dict[str, str]:
        body = json.dumps(message).encode()
        writer.write(self._head("POST", len(body)) + body)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        if status.split()[1] not in ("200", "202"):
            raise ValueError(status)
        results = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(results.get("content-length", "0")))
        return results

    def _head(self, method: str, length: int) -> bytes:
        session = f"mcp-session-id: {self.id}\r\nmcp-protocol-version: 2025-11-25\r\n" if self.id else ""
        accept = "text/event-stream" if method == "GET" else "application/json, text/event-stream"
        body = f"content-type: application/json\r\ncontent-length: {length}\r\n" if length else ""
        return f"{method} /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\n{session}{body}\r\n".encode()

    def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()


if __name__ == "__main__":
    sys.exit(main())
