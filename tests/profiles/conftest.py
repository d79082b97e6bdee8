"""`portico serve --profile NAME` as a process, with requests from that system's documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECONDS = 20.0


class Spoken:
    """A child, and what it says to the letter."""

    def __init__(self, child: Any) -> None:
        self.child = child

    async def line(self) -> str:
        """Return the next line of standard output."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output: bytes = await self.child.process.stdout.readline()
        return output.decode()

    async def exchange(self, line: str) -> str:
        """Return the response line to one line."""
        self.child.send_bytes(line.encode())
        result = await self.line()
        assert result.endswith("\n")
        return result[:-1]

    async def request(self, message: dict[str, Any]) -> Any:
        """Return the response to a message; notifications before it are stored."""
        self.child.send(message)
        return await self.child.response(message["id"])

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        return await self.child.request("tools/call", {"name": tool, "arguments": arguments})

    async def result(self, method: str, params: Any = None) -> Any:
        answer = await self.child.request(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    async def tools(self) -> dict[str, Any]:
        return {tool["name"]: tool for tool in (await self.result("tools/list"))["tools"]}

    def notify(self, method: str, params: Any = None) -> None:
        self.child.notify(method, params)

    async def heard(self, method: str) -> Any:
        """Return the next notification of this kind."""
        while True:
            for other_message in self.child.other_messages:
                if other_message.get("method") == method:
                    self.child.other_messages.remove(other_message)
                    return other_message
            self.child.other_messages.append(await self.child.receive())

    async def open(self, revision: str, capabilities: Any = None) -> Any:
        return await self.child.initialize(revision, capabilities)

    async def end(self) -> tuple[int, str, str]:
        ended: tuple[int, str, str] = await self.child.end()
        return ended


Serve = Callable[..., Awaitable[Spoken]]


@pytest.fixture
def serve(spawn: Callable[..., Any], tmp_path: Path) -> Serve:
    """`await serve("subcog", "--read-only")`, in a folder of its own."""

    async def start(profile: str | None, *words: str | Path, **env: str) -> Spoken:
        here = tmp_path / "here"
        here.mkdir(exist_ok=True)
        places = {"PORTICO_DATA": str(tmp_path / "data"), "PORTICO_STORE": "", **env}
        chosen = [] if profile is None else ["--profile", profile]
        return Spoken(await spawn("serve", *chosen, *words, cwd=here, env=places))

    return start


def text_of(answer: Any) -> str:
    """Return the text of a tool result with one block."""
    (block,) = answer["result"]["content"]
    assert block["type"] == "text"
    return str(block["text"])


def json_of(answer: Any) -> Any:
    return json.loads(text_of(answer))
