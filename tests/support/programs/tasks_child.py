"""A server to be killed, which writes its actions into a file, line by line.

E job step token      the step is done: its side effect, before anything is recorded
F job step            the step has returned, so that it is done is on the disk
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
from functools import partial

from portico import Context, Server, TaskConfig

STEPS = 5


def serving(store: str, path: str, pace: float, room: int) -> Server:
    server = Server("storm", version="1", store=store)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(*words: str) -> None:
        # One call, so that lines of several processes do not mix.
        os.write(file, (" ".join(words) + "\n").encode())

    def may_go() -> bool:
        return os.path.exists(f"{path}.go")

    async def act(job: str, step: str) -> str:
        await asyncio.sleep(random.uniform(0, pace))
        token = secrets.token_hex(4)
        write("E", job, step, token)
        return token

    @server.tool(task=TaskConfig(mode="required", ttl=None))
    async def work(n: int, ctx: Context) -> list[str]:
        """Do some things, each once, and tell what came of them."""
        job = str(ctx.request_id)
        results = [str(n)]
        for step in map(str, range(STEPS)):
            results.append(await ctx.step(step, partial(act, job, step)))
            write("F", job, step)
        return results

    @server.tool(task=TaskConfig(mode="required", ttl=None))
    async def wait(ctx: Context) -> str:
        """For ever, until there is a file that says otherwise; what was done before is done."""
        job = str(ctx.request_id)
        await ctx.step("one", partial(act, job, "one"))
        write("F", job, "one")
        if not may_go():
            await asyncio.Event().wait()
        await ctx.step("two", partial(act, job, "two"))
        write("F", job, "two")
        return "done"

    assert server.tasks is not None
    server.tasks.concurrency = room
    return server


if __name__ == "__main__":
    serving(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])).run()
