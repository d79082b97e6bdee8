"""A shop whose prices a script adds up: fifty calls are one.

portico serve examples/scripted.py --code-mode
python examples/scripted.py try
"""

from __future__ import annotations

import asyncio
import sys

from portico import Client, Server
from portico_services.codemode import CodeModeServer

server = Server("shop", version="1.0.0")


@server.tool(annotations={"readOnlyHint": True})
def price(item: str) -> int:
    """What something costs."""
    return len(item)


async def main() -> None:
    async with Client(CodeModeServer(server)) as client:
        code = "from tools import price\nsum(await asyncio.gather(*[price(one) for one in data]))"
        said = await client.call_tool("run", {"code": code, "data": ["pen", "ink"]})
        print(said.structured)  # {'calls': 2, 'value': 6}


if __name__ == "__main__":
    if "try" in sys.argv:
        asyncio.run(main())
    else:
        server.run()
