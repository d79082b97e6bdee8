"""A client: what somebody who writes an agent needs to know.

python examples/agent.py                          the example server beside it, in this process
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
    """For the user. What is left out is filled in from the form's defaults; None declines."""
    print(question.message)
    return {"value": "celsius"}


def think(request: Any) -> str:
    """For the model."""
    return f"I was asked {len(request.messages)} thing(s)."


async def look_around(target: Any) -> list[str]:
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
    return "the server will say no more"


def without_asyncio(target: Any) -> Any:
    with SyncClient(target, elicitation_handler=answer) as client:
        return client.call_tool("forecast", {"city": "Oslo"}).data


async def carefully(target: Any, tool: str) -> str:
    try:
        async with Client(target, timeout=5) as client:
            return (await client.call_tool(tool)).text
    except ToolError as refusal:
        return f"the tool said no: {refusal}"
    except ProtocolError as failure:
        return f"the server said no: {failure}"
    except PorticoError as failure:
        return f"nobody could be asked: {failure}"


async def main(target: Any) -> None:
    print(await look_around(target))
    print(await ask(target))
    print(await carefully(target, "no_such_tool"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(HERE / "weather.py")))
