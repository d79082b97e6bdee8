"""Progress, logging, cancellation and threads.

portico serve examples/progress.py
"""

import asyncio
import time

from portico import Context, Server

server = Server("progress", version="1.0.0")


@server.tool
async def count(to: int, ctx: Context, pause: float = 0.1) -> str:
    """Count and report progress. Cancelling the call stops it immediately."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
        await asyncio.sleep(pause)
    await ctx.info(f"counted to {to}")
    return f"counted to {to}"


@server.tool(timeout=30)
def grind(seconds: float, ctx: Context) -> str:
    """Do blocking work in a thread, and stop if the call was cancelled."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ctx.is_cancelled:
            return "cancelled"
        time.sleep(0.05)
    return "done"


@server.tool(run_in_thread=False)
def add(a: int, b: int) -> int:
    """Add two numbers on the event loop, which is faster than in a thread."""
    return a + b


if __name__ == "__main__":
    server.run()
