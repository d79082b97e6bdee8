"""`portico work`: the tasks of a server, and nothing else of it."""

from __future__ import annotations

import asyncio
import sys

from portico.cli.data import store_url
from portico.cli.forms import work_form
from portico.cli.logs import set_log_level
from portico.cli.target import load
from portico.server.server import Server
from portico.transport.loops import new_loop, on_signals
from portico.wire.errors import UsageError


def run(words: list[str]) -> int:
    arguments = work_form().parse_args(words)
    set_log_level("info")
    server = load(arguments.target)
    if server.tasks is None:
        raise UsageError(f"{arguments.target} has no tool that may become a task, so there is nothing to work on")
    server.store = store_url(arguments.store, arguments.data, server.info.name)
    server.tasks.concurrency = arguments.concurrency
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_work(server))
    return 0


async def _work(server: Server) -> None:
    """Until somebody says stop. What runs then goes back into the queue."""
    stop = asyncio.Event()
    with on_signals(stop.set):
        async with server.lifespan():
            print(f"Working on the tasks of {server.info.name}", file=sys.stderr, flush=True)
            await stop.wait()
