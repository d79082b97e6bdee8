"""Pydantic AI: an agent whose model calls every tool it has, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


async def use(server: Any) -> list[Any]:
    seen: list[Any] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if returned:
            return ModelResponse(parts=[TextPart(str(returned[0].content))])
        seen.append([tool.name for tool in info.function_tools])
        return ModelResponse(parts=[ToolCallPart("greet", {"name": "Ibsen"})])

    done = await Agent(FunctionModel(answer), toolsets=[MCPToolset(server)]).run("Greet Ibsen.")
    return [*seen, done.output]


async def main(url: str, command: str, *words: str) -> dict[str, Any]:
    return {"stdio": await use(StdioTransport(command, list(words))), "http": await use(url)}


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
