"""Code mode: a script calls tools, so many calls cost one round trip of the model.

portico serve examples/code_mode.py --code-mode
python examples/code_mode.py try
"""

from __future__ import annotations

import asyncio
import sys

from portico import Client, Server
from portico_services.codemode import CodeModeServer

server = Server("shop", version="1.0.0")


@server.tool(annotations={"readOnlyHint": True})
def price(item: str) -> int:
    """Return the price of an item."""
    return len(item)


async def main() -> None:
    async with Client(CodeModeServer(server)) as client:
        code = "from tools import price\nsum(await asyncio.gather(*[price(item) for item in data]))"
        result = await client.call_tool("run", {"code": code, "data": ["pen", "ink"]})
        print(result.structured)  # {'calls': 2, 'value': 6}


if __name__ == "__main__":
    if "try" in sys.argv:
        asyncio.run(main())
    else:
        server.run()
