"""Run servers with tasks in processes (`tasks_child.py`) that tests kill."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from support.paths import PROGRAMS
from support.task_servers import CLIENT_CAPABILITIES, MODERN, TIMEOUT_SECONDS

CHILD = PROGRAMS / "tasks_child.py"
PREFIX = "io.modelcontextprotocol/"


class Child:
    """A server process. Pending requests raise EOFError when it is killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, url: str, path: Path, pace: float = 0.0, room: int = 16) -> Child:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(CHILD),
                url,
                str(path),
                str(pace),
                str(room),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**24,
            )
        )

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            message = json.loads(line)
            future = self._asked.pop(message.get("id"), None)
            if future is not None and not future.done():
                future.set_result(message)
        for future in self._asked.values():
            if not future.done():
                future.set_exception(EOFError("the child has ended"))
                future.exception()

    async def request(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Return the whole response."""
        if self._reading.done():
            raise EOFError("the child has ended")
        self._last += 1
        meta = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientCapabilities": CLIENT_CAPABILITIES}
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": {**(params or {}), "_meta": meta}}
        future = self._asked[self._last] = asyncio.get_running_loop().create_future()
        self._stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await future

    async def ready(self) -> None:
        await self.request("server/discover")

    async def create(self, tool: str, **arguments: Any) -> str:
        """Create a task, and return it once it is acknowledged."""
        response = await self.request("tools/call", {"name": tool, "arguments": arguments})
        id: str = response["result"]["taskId"]
        return id

    async def get(self, id: str) -> Any:
        return (await self.request("tasks/get", {"taskId": id}))["result"]

    async def wait_for_status(self, id: str, *statuses: str) -> Any:
        """Poll a task until it has one of these statuses."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                response = await self.get(id)
                if response["status"] in statuses:
                    return response
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self._gone()

    async def close(self) -> None:
        """Close its input, as a client does."""
        self._stdin.close()
        await self._gone()

    async def _gone(self) -> None:
        self._stdin.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._reading
            await self.process.wait()
