"""Calls by contract: one message in, one message out, and every failure with a type.

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


async def ask_in_a_hurry(target: Any) -> MCPToolResult:
    """What the tool may know about the circumstances travels beside the arguments."""
    request = MCPToolCall.model_validate_json('{"tool_name": "weather.rain", "arguments": {"city": "Rome"}}')
    context = ContractContext(caller="planner", deadline=datetime.now(UTC) + timedelta(seconds=5))
    async with Client(target) as client:
        return await call(client, request, context=context)


def ask_without_asyncio(target: Any) -> MCPToolResult:
    with SyncClient(target) as client:
        return call(client, MCPToolCall(tool_name="weather.cities", arguments={}))


async def ask_for_both(target: Any) -> list[Any]:
    async with Client(target) as client:
        calls = [{"tool_name": "weather.rain", "arguments": {"city": city}} for city in ("Oslo", "Rome")]
        result = await client.call_tool("tools_batch", {"calls": calls, "parallel": True})
        return [one["data"]["millimetres"] for one in result.structured["results"]]


async def ask_later(target: Any) -> Any:
    """For clients that know nothing of tasks."""
    async with Client(target) as client:
        job = await client.call_tool("tool_start", {"tool_name": "weather.rain", "arguments": {"city": "Oslo"}})
        later = await client.call_tool("tool_result", {"job_id": job.structured["job_id"], "wait": 10})
        return later.structured["result"]["data"]


async def main() -> None:
    for city in ("Oslo", "Atlantis"):
        result = await ask(TARGET, city)
        print(result.model_dump_json(indent=2))
    print((await ask_in_a_hurry(TARGET)).data)
    print(await ask_for_both(TARGET))
    print(await ask_later(TARGET))


if __name__ == "__main__":
    asyncio.run(main())
    print(ask_without_asyncio(TARGET).data)
