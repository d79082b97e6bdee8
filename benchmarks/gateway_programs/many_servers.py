"""Upstreams for a gateway: `python many_servers.py TOOLS PORT…`, one per port.

All in one process; `GET /metrics` of each counts its requests.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "servers"))

from portico_server import build

from portico.server.http import serve_http


async def serve(tools, ports):
    await asyncio.gather(*(serve_http(build(tools), host="127.0.0.1", port=port) for port in ports))


if __name__ == "__main__":
    tools, *ports = map(int, sys.argv[1:])
    asyncio.run(serve(tools, ports))
