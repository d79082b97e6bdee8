"""Google's Agent Development Kit: an agent with a model of our own, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
from google.genai import types
from mcp import StdioServerParameters


class ScriptedModel(BaseLlm):
    """Calls `greet` once, and then says what it gave."""

    model: str = "scripted"
    tools: list[str] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        part = (llm_request.contents[-1].parts or [])[0]
        if part.function_response is not None:
            message = part.function_response.response["content"][0]["text"]
            answer = types.Part(text=message)
        else:
            self.tools.extend(llm_request.tools_dict)
            answer = types.Part(function_call=types.FunctionCall(name="greet", args={"name": "Ibsen"}))
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


async def use(connection: Any) -> list[Any]:
    toolset, model = McpToolset(connection_params=connection), ScriptedModel()
    runner = InMemoryRunner(LlmAgent(name="a", model=model, tools=[toolset]), app_name="a")
    session = await runner.session_service.create_session(app_name="a", user_id="u")
    result = types.Content(role="user", parts=[types.Part(text="Greet Ibsen.")])
    texts = [
        part.text
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=result)
        for part in (event.content.parts if event.content else [])
        if part.text
    ]
    await toolset.close()
    return [model.tools, texts[-1]]


async def main(url: str, command: str, *words: str) -> dict[str, Any]:
    server = StdioServerParameters(command=command, args=list(words))
    return {
        "stdio": await use(StdioConnectionParams(server_params=server)),
        "http": await use(StreamableHTTPConnectionParams(url=url)),
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
