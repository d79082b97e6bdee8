"""A session of an assistant with the memory service: its calls and their results.

python examples/memory_session.py
"""

import asyncio
import json
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

from portico import Client

sys.path.insert(0, str(Path(__file__).parent))
from memory_notebook import server


def think(params: Any) -> str:
    """Answer sampling requests for tags in the role of the client's model."""
    return "database, storage, adr"


async def main() -> None:
    async with server.lifespan(), Client(server, sampling_handler=think) as client:

        async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
            print(f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
            result = await client.call_tool(tool, arguments, raise_on_error=False)
            text = result.content[0].text if result.is_error else json.dumps(result.structured)
            print(fill(text, 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
            return result.structured or {}

        decision = "We use PostgreSQL for storage, because two services write at once"
        memory = await call("memory_capture", content=decision, namespace="decisions", author="user")
        await call("memory_capture", content=decision.lower(), namespace="decisions")
        await call("memory_capture", content="The staging server listens on port 8080", namespace="config")
        await call("memory_capture", content="The staging server listens on port 9090", namespace="config")
        await call("memory_capture", content="Log in as deploy, password=kV9_tr4w-Lq2z", namespace="config")
        await call("memory_recall", query="What do we use for storage, and why?", limit=1)
        await call("memory_enrich", memory_id=memory["id"])
        await call("memory_delete", memory_id=memory["id"], expected_version=1)
        await call("memory_delete", memory_id=memory["id"], expected_version=2, reason="we moved on")
        await call("memory_history", memory_id=memory["id"])


if __name__ == "__main__":
    asyncio.run(main())
