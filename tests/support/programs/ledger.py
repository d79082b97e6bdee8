"""A server on stdio that writes into a file and is killed during the write: `ledger.py FILE STORE [tasks]`."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from portico import Context, Server
from portico_services.codemode import CodeMode

file, store = Path(sys.argv[1]), sys.argv[2]
# Killed once: before or after the line is written, or while something is only read.
fate = file.with_suffix(".fate")
with_tasks = "tasks" in sys.argv
server = Server("ledger", version="1", store=store if with_tasks else None)


def die(moment: str) -> None:
    if fate.exists() and fate.read_text() == moment:
        fate.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@server.tool(annotations={"readOnlyHint": True})
def look(n: int) -> list[str]:
    """The contents written so far."""
    die(f"look {n}")
    return file.read_text().split() if file.exists() else []


@server.tool
def write(n: int) -> str:
    """Write one line."""
    die(f"before {n}")
    with file.open("a") as lines:
        lines.write(f"{n}\n")
    die(f"after {n}")
    return f"wrote {n}"


@server.tool(annotations={"idempotentHint": True})
def put(n: int) -> str:
    """Make sure that a line is there."""
    if str(n) not in look(-1):
        write(n)
    die(f"put {n}")
    return f"put {n}"


@server.tool(annotations={"readOnlyHint": True})
async def rest(n: int) -> None:
    """The server is stopped during the call, as in a deployment."""
    if fate.exists() and fate.read_text() == f"stop {n}":
        fate.unlink()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)


async def post(ctx: Context, n: int) -> str:
    """Write one line, as a task."""
    await ctx.step("write", lambda: write(n))
    while fate.exists() and not known_tasks():  # noqa: ASYNC110 - another's row
        await asyncio.sleep(0.01)
    die("known")
    if fate.exists() and fate.read_text() == "stop":
        fate.unlink()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
    return f"posted {n}"


def known_tasks() -> list[tuple[str]]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute("select outcome from portico_run_call where outcome like '%task%'").fetchall()


if with_tasks:
    server.tool(task="required")(post)

if __name__ == "__main__":
    server.add(CodeMode(store=store))
    server.run()
