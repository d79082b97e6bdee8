"""A supervisor with its workers, for those who measure them; and what Linux tells of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER = """
from portico import Server

server = Server("measured", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.resource("note://one")
def note() -> str:
    return "one"


@server.tool
async def touch() -> int:
    server.resource_updated("note://one")
    return 1
"""


@dataclass(frozen=True)
class Serving:
    """What runs: the process that the workers are the children of, and the port they listen on."""

    supervisor: int
    port: int


@contextmanager
def serving(workers: int, *options: str, store: str | None = None) -> Iterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="portico-workers-") as folder:
        path = Path(folder) / "measured.py"
        path.write_text(SERVER)
        words = ["serve", str(path), "--transport", "http", "--port", "0", "--workers", str(workers), *options]
        command = [sys.executable, "-m", "portico", *words]
        env = {**os.environ, **({"PORTICO_STORE": store} if store else {})}
        with (
            (Path(folder) / "log").open("w+") as log,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env) as process,
        ):
            assert process.stderr is not None
            try:
                said = process.stderr.readline()
                if not said.startswith("Serving on "):
                    raise ValueError(said)
                yield Serving(process.pid, int(said.rsplit(":", 1)[1].partition("/")[0]))
            finally:
                process.send_signal(signal.SIGTERM)
                log.write(process.stderr.read())


def children(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def cpu(processes: list[int]) -> float:
    """Seconds that they have had so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields) / ticks


def private(processes: list[int]) -> float:
    """Bytes that they share with no other process."""
    texts = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in processes]
    lines = [line.split() for text in texts for line in text.splitlines()]
    return float(sum(int(words[1]) * 1024 for words in lines if words[0].startswith("Private_")))
