"""A server that calls itself: `audit_child.py FOLDER STORE CALLS`. It then waits to be killed, or for its standard
input to end."""

from __future__ import annotations

import asyncio
import sys

from portico import Client, Server
from portico.server.policy import settings as access_settings
from portico_gateway.audit import writer


async def main(folder: str, store: str, number: int) -> None:
    server = Server("child")
    # What is killed has signed its beginning alone, however slow the machine is.
    writer.MIN_SIGNING_DELAY_SECONDS = 600.0

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    access_settings.apply(
        server, access_settings.read({"audit": {"include_stdio": True, "data_dir": folder, "store": store}})
    )
    assert server.policy is not None
    async with Client(server) as client:
        for at in range(number):
            await client.call_tool("add", {"a": at, "b": 1})
        await server.policy.audit_hook.writer.flush()  # type: ignore[union-attr]
        print("written", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
