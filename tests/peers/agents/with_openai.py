"""OpenAI's Agents SDK: an agent with a model of our own, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    """Calls `greet` once, and then says what it gave."""

    def __init__(self) -> None:
        self.tools: list[str] = []

    async def get_response(self, *given: Any, **more: Any) -> ModelResponse:
        message = more["input"] if "input" in more else given[1]
        tools = more["tools"] if "tools" in more else given[3]
        results = (
            [item for item in message if item.get("type") == "function_call_output"]
            if isinstance(message, list)
            else []
        )
        if results:
            given_back = results[0]["output"]
            text = given_back if isinstance(given_back, str) else given_back[0]["text"]
            spoken = ResponseOutputText(text=text, type="output_text", annotations=[])
            output: Any = ResponseOutputMessage(
                id="1", content=[spoken], role="assistant", status="completed", type="message"
            )
        else:
            self.tools = [tool.name for tool in tools]
            output = ResponseFunctionToolCall(
                arguments='{"name": "Ibsen"}', call_id="1", name="greet", type="function_call"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def use(server: Any) -> list[Any]:
    async with server:
        model = ScriptedModel()
        done = await Runner.run(Agent(name="a", model=model, mcp_servers=[server]), "Greet Ibsen.")
        output = done.final_output
        return [model.tools, json.loads(output)["text"] if output.startswith("{") else output]


async def main(url: str, command: str, *words: str) -> dict[str, Any]:
    set_tracing_disabled(True)
    return {
        "stdio": await use(MCPServerStdio(params={"command": command, "args": list(words)})),
        "http": await use(MCPServerStreamableHttp(params={"url": url})),
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
