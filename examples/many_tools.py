"""Tool search over a gateway with three servers: two tools instead of all.

python examples/many_tools.py
portico serve examples/many_tools.py --tool-search
"""

import asyncio
import atexit
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp

from portico import Client
from portico.search import ToolSearchServer
from portico_gateway import Gateway

DATA = mkdtemp(prefix="many-tools-")
atexit.register(shutil.rmtree, DATA, ignore_errors=True)
SERVICE = [sys.executable, "-m", "portico", "serve", "--data", DATA, "--services"]

server = Gateway(
    {
        "notes": [*SERVICE, "memory"],
        "work": [*SERVICE, "tasks"],
        "weather": [sys.executable, str(Path(__file__).with_name("weather.py"))],
    }
)


async def answer(question: object) -> dict[str, str]:
    """Answer the elicitation of the forecast, which the gateway forwards."""
    return {"value": "celsius"}


async def main() -> None:
    search_client = Client(ToolSearchServer(server), elicitation_handler=answer)
    async with Client(server) as everything, search_client as client:
        await everything.list_tools()
        await server.wait_until_listed(30)
        print("all tools:", len(await everything.list_tools(refresh=True)))
        print("listed:", *[tool.name for tool in await client.list_tools()])
        result = await client.call_tool(
            "find_tools", {"queries": ["tomorrow's weather", "remember a decision", "what to do next"], "limit": 1}
        )
        print(result.text)
        forecast = await client.call_tool("call_tool", {"name": "weather_forecast", "arguments": {"city": "Oslo"}})
        print(forecast.text)


if __name__ == "__main__":
    asyncio.run(main())
