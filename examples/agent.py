"""A client for agents: handlers, typed results, subscriptions and error handling.

python examples/agent.py                          the server of weather.py, in this process
python examples/agent.py http://127.0.0.1:8080/mcp
python examples/agent.py "portico serve examples/weather.py"
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portico import Client, PorticoError, ProtocolError, SyncClient, ToolError

HERE = Path(__file__).parent


@dataclass
class Forecast:
    city: str
    summary: str
    unit: str


def answer(question: Any) -> dict[str, Any] | None:
    """Answer for the user. Omitted fields get the defaults of the form; None declines."""
    print(question.message)
    return {"value": "celsius"}


def think(request: Any) -> str:
    """Answer for the model."""
    return f"Received {len(request.messages)} message(s)."


async def list_contents(target: Any) -> list[str]:
    async with Client(target) as client:
        print(client.server_info, client.protocol_version, client.instructions)
        tools = await client.list_tools()
        async for prompt in client.iter_prompts():
            print(prompt.name)
    return [tool.name for tool in tools]


async def ask(target: Any) -> Forecast:
    async with Client(target, elicitation_handler=answer, sampling_handler=think, roots=["file:///home/me"]) as client:
        result = await client.call_tool("forecast", {"city": "Rome"}, timeout=30, result_type=Forecast)
        forecast: Forecast = result.data
        return forecast


async def watch(target: Any, title: str) -> str:
    async with Client(target) as client, client.listen(tools=True, uris=[f"notes://{title}"]) as changes:
        async for change in changes:
            if change.kind == "tools":
                print([tool.name for tool in await client.list_tools()])
            else:
                return (await client.read_resource(change.uri))[0].text
    return "the server ended the subscription"


def without_asyncio(target: Any) -> Any:
    with SyncClient(target, elicitation_handler=answer) as client:
        return client.call_tool("forecast", {"city": "Oslo"}).data


async def call_safely(target: Any, tool: str) -> str:
    try:
        async with Client(target, timeout=5) as client:
            return (await client.call_tool(tool)).text
    except ToolError as failure:
        return f"tool error: {failure}"
    except ProtocolError as failure:
        return f"protocol error: {failure}"
    except PorticoError as failure:
        return f"connection failed: {failure}"


async def main(target: Any) -> None:
    print(await list_contents(target))
    print(await ask(target))
    print(await call_safely(target, "no_such_tool"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(HERE / "weather.py")))
