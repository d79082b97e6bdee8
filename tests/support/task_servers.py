"""A server with tools for every kind of task, and clients of both task designs. Every wait has a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

from portico import Context, ProtocolError, Server, TaskConfig, ToolError
from portico.auth.principal import Principal
from portico.server.tasks.jobs import Job

TIMEOUT_SECONDS = 30.0
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
CLIENT_CAPABILITIES = {
    "extensions": {EXTENSION: {}},
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}
LEGACY_CAPABILITIES = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ADA, BOB = Principal("ada"), Principal("bob")
YES = {"action": "accept", "content": {"value": "yes"}}


async def wait_until(condition: Callable[[], Any]) -> Any:
    """Poll a condition that has no event, and return its first true value."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            result = condition()
            if isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.001)


class ToolEvents:
    """Events that tool bodies wait for, and records of what they did, by name."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self.done: list[str] = []

    def __getitem__(self, name: str) -> asyncio.Event:
        return self._events.setdefault(name, asyncio.Event())

    async def wait_for(self, name: str) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self[name].wait()


def with_tools(store: str = "sqlite://", **options: Any) -> tuple[Server, ToolEvents]:
    """Add a tool for each thing that a task can do."""
    server, gates = Server("tasks", version="1", store=store, **options), ToolEvents()

    @server.tool
    def plain(text: str = "") -> str:
        """Never a task."""
        return text

    @server.tool(task="optional")
    async def add(a: int, b: int) -> int:
        """Done at once."""
        return a + b

    @server.tool(task="required")
    async def running(name: str, ctx: Context) -> str:
        """Runs until it is let go."""
        gates[f"{name} begun"].set()
        try:
            await gates[name].wait()
        except asyncio.CancelledError:
            gates[f"{name} stopped"].set()
            raise
        return f"{name} is done"

    @server.tool(task="required")
    async def ask(ctx: Context) -> str:
        """Asks one thing."""
        result = await ctx.elicit("Well?", str)
        return f"{result.action}: {result.data}"

    @server.tool(task="required")
    async def ask_two(ctx: Context) -> list[str]:
        """Send two requests concurrently."""
        item, two = await asyncio.gather(ctx.elicit("One?", str, key="one"), ctx.elicit("Two?", str, key="two"))
        return [str(item.data), str(two.data)]

    @server.tool(task="required")
    async def refuse() -> str:
        """Says no."""
        raise ToolError("No, and that is final.")

    @server.tool(task="required")
    async def err() -> str:
        """An error of the protocol."""
        raise ProtocolError("It went wrong.", {"why": "because"}, code=-32050)

    @server.tool(task="required")
    async def crash() -> str:
        """An unexpected exception."""
        raise RuntimeError("the secret is 42")

    @server.tool(task=TaskConfig(detachable=True))
    async def later(ctx: Context) -> str:
        """Asks first, and becomes a task then."""
        result = await ctx.elicit("Who?", str)
        await ctx.step("note", lambda: gates.done.append("noted"))
        await ctx.continue_as_task()
        gates.done.append("later")
        return f"hello {result.data}"

    return server, gates


async def get_job(server: Server, id: str) -> Job | None:
    assert server.tasks is not None
    return await (await server.tasks.engine()).get(id, None)


async def wait_for_status(server: Server, id: str, *statuses: str) -> Job:
    """Wait until a task has one of these statuses in the store."""
    assert server.tasks is not None
    engine = await server.tasks.engine()
    with engine.watch(id) as news:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                news.clear()
                job = await engine.get(id, None)
                if job is not None and job.status in statuses:
                    return job
                await news.wait()


TERMINAL_STATUSES = ("completed", "failed", "cancelled")


# Clients of both task designs


class ModernTasksClient:
    """A client of 2026-07-28. Declares the tasks extension by default."""

    def __init__(self, wire: Any, server: Server) -> None:
        self.wire = wire
        self.server = server

    async def send_request(self, method: str, params: Any = None, *, capabilities: Any = None, **more: Any) -> Any:
        """Return the whole response."""
        return await self.wire.request_stateless(
            method, params, capabilities=CLIENT_CAPABILITIES if capabilities is None else capabilities, **more
        )

    async def request(self, method: str, params: Any = None, **more: Any) -> Any:
        response = await self.send_request(method, params, **more)
        assert "result" in response, response
        return response["result"]

    async def request_error(self, method: str, params: Any = None, **more: Any) -> Any:
        response = await self.send_request(method, params, **more)
        assert "error" in response, response
        return response["error"]

    async def call(self, name: str, arguments: Any = None, **more: Any) -> Any:
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}}, **more)

    async def start(self, name: str, arguments: Any = None, **more: Any) -> str:
        created = await self.call(name, arguments, **more)
        assert created["resultType"] == "task", created
        id: str = created["taskId"]
        return id

    async def get(self, id: str, **more: Any) -> Any:
        return await self.request("tasks/get", {"taskId": id}, **more)

    async def end(self, name: str, arguments: Any = None) -> Any:
        """Wait until the task has ended, and return it."""
        id = await self.start(name, arguments)
        await wait_for_status(self.server, id, *TERMINAL_STATUSES)
        return await self.get(id)


class LegacyTasksClient:
    """A client of 2025-11-25."""

    def __init__(self, wire: Any, server: Server) -> None:
        self.wire = wire
        self.server = server

    async def send_request(self, method: str, params: Any = None) -> Any:
        return await self.wire.request(method, params)

    async def request(self, method: str, params: Any = None) -> Any:
        response = await self.send_request(method, params)
        assert "result" in response, response
        return response["result"]

    async def request_error(self, method: str, params: Any = None) -> Any:
        response = await self.send_request(method, params)
        assert "error" in response, response
        return response["error"]

    async def call(self, name: str, arguments: Any = None, task: Any = None) -> Any:
        wish = {"task": {} if task is None else task}
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}, **wish})

    async def start(self, name: str, arguments: Any = None, task: Any = None) -> str:
        id: str = (await self.call(name, arguments, task))["task"]["taskId"]
        return id

    async def get(self, id: str) -> Any:
        return await self.request("tasks/get", {"taskId": id})

    async def end(self, name: str, arguments: Any = None) -> Any:
        id = await self.start(name, arguments)
        await wait_for_status(self.server, id, *TERMINAL_STATUSES)
        return await self.get(id)
