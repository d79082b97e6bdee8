"""Dependencies that block, hang, fail or are cancelled: the call ends without delaying others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from portico import Client, Depends, Server, ToolError
from portico.server.components import dependencies

TENANT: ContextVar[str] = ContextVar("tenant", default="none")


def served(dependency: Any, **options: Any) -> Server:
    server = Server("s")

    @server.tool(**options)
    async def use(x: Any = Depends(dependency)) -> str:
        return f"{x} {TENANT.get()}"

    @server.tool
    async def ping() -> str:
        return "pong"

    return server


@contextmanager
def manager(gate: threading.Event) -> Iterator[int]:
    assert gate.wait(20), "the loop was not free to open it"
    yield 1


@pytest.mark.parametrize("kind", ["generator", "manager"])
async def test_blocking_dependency_does_not_delay_other_calls(kind: str) -> None:
    gate = threading.Event()

    def generator() -> Iterator[int]:
        assert gate.wait(20), "the loop was not free to open it"
        yield 1
        assert gate.wait(20)

    dependency = generator if kind == "generator" else lambda: manager(gate)
    async with Client(served(dependency)) as client, asyncio.timeout(20):
        slow = asyncio.create_task(client.call_tool("use", {}))
        assert (await client.call_tool("ping", {})).data == "pong"
        gate.set()
        assert (await slow).data == "1 none"


async def test_context_variable_set_by_a_dependency_is_visible_and_reset() -> None:
    def tenant() -> Iterator[int]:
        token = TENANT.set("acme")
        yield 1
        TENANT.reset(token)

    async with Client(served(tenant)) as client:
        assert (await client.call_tool("use", {})).data == "1 acme"


async def test_hanging_upstream_is_abandoned_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "CLEANUP_TIMEOUT_SECONDS", 0.1)
    left: list[str] = []

    async def outer() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            left.append("outer")

    async def hanging(o: int = Depends(outer)) -> AsyncIterator[int]:
        try:
            yield o
        finally:
            left.append("hanging")
            await asyncio.Event().wait()

    server = Server("s")

    @server.tool(timeout=0.1)
    async def use(x: int = Depends(hanging)) -> None:
        await asyncio.Event().wait()

    async with Client(server) as client, asyncio.timeout(20):
        assert (await client.call_tool("use", {}, raise_on_error=False)).is_error
    assert left == ["hanging", "outer"]


@pytest.mark.parametrize("blocked", [True, False])
async def test_dependency_is_closed_when_its_call_is_cancelled(blocked: bool) -> None:
    gate, opened, closed = threading.Event(), threading.Event(), threading.Event()

    def connection() -> Iterator[int]:
        opened.set()
        if blocked:
            gate.wait(20)
        try:
            yield 1
        finally:
            closed.set()

    server = Server("s")

    @server.tool
    async def use(x: int = Depends(connection)) -> None:
        await asyncio.Event().wait()

    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("use", {}))
        assert await asyncio.to_thread(opened.wait, 20)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.set()
        assert await asyncio.to_thread(closed.wait, 20)


async def test_dependency_is_closed_without_a_free_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []

    def connection() -> Iterator[int]:
        yield 1
        left.append(True)

    server = Server("s")

    @server.tool
    async def use(x: int = Depends(connection)) -> int:
        async def refuse(*_: Any) -> None:
            raise ToolError("too many calls")

        monkeypatch.setattr(server.runtime.thread_pool, "run", refuse)
        return x

    async with Client(server) as client:
        assert (await client.call_tool("use", {})).data == 1
    assert left == [True]


async def test_failure_while_closing_a_dependency_fails_the_call() -> None:
    """It may be the commit of what the body has done."""

    def commits() -> Iterator[int]:
        yield 1
        raise OSError("/srv/secret.db is locked")

    async with Client(served(commits)) as client:
        with pytest.raises(ToolError) as failure:
            await client.call_tool("use", {})
    assert "secret" not in str(failure.value)


async def test_tool_error_is_raised_inside_the_dependency() -> None:
    seen: list[str] = []

    def watches() -> Iterator[int]:
        try:
            yield 1
        except ToolError as refusal:
            seen.append(str(refusal))
            raise

    server = Server("s")

    @server.tool
    async def use(x: int = Depends(watches)) -> None:
        raise ToolError("no such city")

    async with Client(server) as client:
        with pytest.raises(ToolError, match="no such city"):
            await client.call_tool("use", {})
    assert seen == ["no such city"]


async def test_cancelled_entry_exits_the_context_manager() -> None:
    """No two threads can be in the same variables."""
    entered, go, left = threading.Event(), threading.Event(), []

    @contextmanager
    def blocking() -> Iterator[None]:
        yield
        left.append(threading.get_ident())

    class Threads:
        async def run_in_thread(self, fn: Any, *args: Any) -> Any:
            return await asyncio.to_thread(fn, *args)

    class Slow:
        """A lock: the first thread that leaves it takes its time."""

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                go.wait(10)

    message = dependencies._InThread(blocking(), Threads())  # type: ignore[arg-type]
    message._lock = Slow()  # type: ignore[assignment]
    entering = asyncio.ensure_future(message.__aenter__())
    try:
        assert await asyncio.to_thread(entered.wait, 10)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert len(left) == 1
    finally:
        go.set()
