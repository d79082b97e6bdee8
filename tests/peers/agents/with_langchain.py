"""LangChain's adapters: the tools of a server as tools of LangChain, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient


async def use(connection: dict[str, Any]) -> list[Any]:
    tools = await MultiServerMCPClient({"server": connection}).get_tools()
    result = await tools[0].ainvoke({"name": "Ibsen"})
    return [[tool.name for tool in tools], result[0]["text"]]


async def main(url: str, command: str, *words: str) -> dict[str, Any]:
    return {
        "stdio": await use({"transport": "stdio", "command": command, "args": list(words)}),
        "http": await use({"transport": "streamable_http", "url": url}),
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
