"""Contract calls: one request, one response, and a typed error for every failure.

python examples/contracts_calls.py
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from portico import Client, SyncClient
from portico_services.contracts.api import ContractContext, MCPToolCall, MCPToolResult, call

TARGET = "examples/contracts_weather.py"


async def ask(target: Any, city: str) -> MCPToolResult:
    async with Client(target) as client:
        request = MCPToolCall(tool_name="weather.rain", arguments={"city": city})
        return await call(client, request)


async def call_with_deadline(target: Any) -> MCPToolResult:
    """Send the caller and a deadline in the metadata, separate from the arguments."""
    request = MCPToolCall.model_validate_json('{"tool_name": "weather.rain", "arguments": {"city": "Rome"}}')
    context = ContractContext(caller="planner", deadline=datetime.now(UTC) + timedelta(seconds=5))
    async with Client(target) as client:
        return await call(client, request, context=context)


def call_without_asyncio(target: Any) -> MCPToolResult:
    with SyncClient(target) as client:
        return call(client, MCPToolCall(tool_name="weather.cities", arguments={}))


async def call_batch(target: Any) -> list[Any]:
    async with Client(target) as client:
        calls = [{"tool_name": "weather.rain", "arguments": {"city": city}} for city in ("Oslo", "Rome")]
        result = await client.call_tool("tools_batch", {"calls": calls, "parallel": True})
        return [item["data"]["millimetres"] for item in result.structured["results"]]


async def call_in_background(target: Any) -> Any:
    """Start a call and fetch its result later, for clients without support for tasks."""
    async with Client(target) as client:
        job = await client.call_tool("tool_start", {"tool_name": "weather.rain", "arguments": {"city": "Oslo"}})
        later = await client.call_tool("tool_result", {"job_id": job.structured["job_id"], "wait": 10})
        return later.structured["result"]["data"]


async def main() -> None:
    for city in ("Oslo", "Atlantis"):
        result = await ask(TARGET, city)
        print(result.model_dump_json(indent=2))
    print((await call_with_deadline(TARGET)).data)
    print(await call_batch(TARGET))
    print(await call_in_background(TARGET))


if __name__ == "__main__":
    asyncio.run(main())
    print(call_without_asyncio(TARGET).data)
