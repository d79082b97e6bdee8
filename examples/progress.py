"""Progress, logging and cancellation; and where bodies run.

portico serve examples/progress.py
"""

import asyncio
import time

from portico import Context, Server

server = Server("progress", version="1.0.0")


@server.tool
async def count(to: int, ctx: Context, pause: float = 0.1) -> str:
    """Count, and tell how far. Cancelling the call stops it at once."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
        await asyncio.sleep(pause)
    await ctx.info(f"counted to {to}")
    return f"counted to {to}"


@server.tool(timeout=30)
def grind(seconds: float, ctx: Context) -> str:
    """Work that blocks. It is in a thread, so everything else goes on; it looks whether anybody still waits."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ctx.is_cancelled:
            return "nobody waits any more"
        time.sleep(0.05)
    return "done"


@server.tool(run_in_thread=False)
def add(a: int, b: int) -> int:
    """Add two numbers, right on the loop: quicker than finding a thread for it."""
    return a + b


if __name__ == "__main__":
    server.run()
