"""Threads for `def` functions, the event loop for `async def`; blocking functions delay no other call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, ToolError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc import fair_queue
from portico.rpc.call import Call
from portico.server.components.runtime import ThreadPool

Connect = Callable[..., Any]

TIMEOUT_SECONDS = 10.0
WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Gate:
    """Where a body stands until it is let through: a wait of threads, with an end to it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        self.most = 0
        self.ran: list[int] = []
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)

    def pass_through(self, number: int = 0) -> str:
        with self._arrived:
            self.ran.append(number)
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            self._arrived.notify_all()
        try:
            if not self.opened.wait(TIMEOUT_SECONDS):
                raise TimeoutError("the gate stayed closed")
        finally:
            with self._arrived:
                self.waiting -= 1
        return f"passed {number}"

    async def has(self, count: int) -> None:
        """Wait, without standing in the loop's way, until so many bodies are at the gate."""

        def wait() -> bool:
            with self._arrived:
                return self._arrived.wait_for(lambda: self.waiting >= count, TIMEOUT_SECONDS)

        assert await asyncio.to_thread(wait)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def blocking(gate: Gate, **options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    def block(number: int = 0) -> str:
        return gate.pass_through(number)

    @server.tool
    def quick() -> str:
        return "quick"

    return server


def became_cancelled(ctx: Context) -> bool:
    """Look now and then, as a body in a thread should, but not for ever."""
    pause, end = threading.Event(), time.monotonic() + TIMEOUT_SECONDS
    while not ctx.is_cancelled and time.monotonic() < end:
        pause.wait(0.001)
    return ctx.is_cancelled


# Where


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_plain_body_runs_in_a_thread_and_the_others_do_not(revision: str) -> None:
    server = Server("s")

    def here() -> str:
        return threading.current_thread().name

    async def here_async() -> str:
        return here()

    server.tool("thread")(here)
    server.tool(name="inline", run_in_thread=False)(here)
    server.tool("loop")(here_async)
    ours = threading.current_thread().name
    async with Client(server, protocol_version=revision) as client:
        assert (await client.call_tool("thread")).text.startswith("portico-")
        assert (await client.call_tool("inline")).text == ours
        assert (await client.call_tool("loop")).text == ours


async def test_body_in_a_thread_sees_the_context_it_was_called_in() -> None:
    server = Server("s")

    def introduce(handler: Any) -> Any:
        async def with_name(call: Call) -> Any:
            WHO.set("ada")
            return await handler(call)

        return with_name

    server.add_middleware(introduce)
    server.tool("who")(lambda: WHO.get())
    async with Client(server) as client:
        assert (await client.call_tool("who")).text == "ada"
    assert WHO.get() == "nobody"


async def test_threads_are_used_again() -> None:
    server = Server("s", max_threads=3)
    server.tool("here")(lambda: threading.current_thread().name)
    async with Client(server) as client:
        names = {(await client.call_tool("here")).text for _ in range(20)}
    assert len(names) <= 3


async def test_no_thread_is_started_before_it_is_needed() -> None:
    # Those of other tests may end meanwhile.
    before = set(threading.enumerate())
    server = Server("s")
    server.tool(name="inline", run_in_thread=False)(lambda: "")
    async with Client(server) as client:
        await client.call_tool("inline")
    assert set(threading.enumerate()) <= before


# How many


async def test_max_threads_limits_concurrent_calls(gate: Gate) -> None:
    server = blocking(gate, max_threads=2)
    async with Client(server) as client:
        calls = [asyncio.ensure_future(client.call_tool("block", {"number": n})) for n in range(6)]
        await gate.has(2)
        gate.opened.set()
        said = await asyncio.gather(*calls)
    assert [result.text for result in said] == [f"passed {n}" for n in range(6)]
    assert gate.most <= 2


async def test_queued_calls_run_in_order(gate: Gate) -> None:
    server = blocking(gate, max_threads=1)
    async with Client(server) as client:
        calls = [asyncio.ensure_future(client.call_tool("block", {"number": n})) for n in range(5)]
        await gate.has(1)
        gate.opened.set()
        await asyncio.gather(*calls)
    assert gate.ran == [0, 1, 2, 3, 4]


async def test_all_the_threads_there_may_be_are_used(gate: Gate) -> None:
    server = blocking(gate, max_threads=4)
    async with Client(server) as client:
        for _ in range(3):
            await client.call_tool("quick")
        calls = [asyncio.ensure_future(client.call_tool("block")) for _ in range(4)]
        await gate.has(4)
        gate.opened.set()
        await asyncio.gather(*calls)
    assert gate.most == 4


async def test_threads_do_not_keep_a_process_from_ending() -> None:
    threads = ThreadPool(1)
    assert await threads.run(lambda: threading.current_thread().daemon, ()) is True


# In nobody's way


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_blocked_body_does_not_stop_anything_else(gate: Gate, revision: str) -> None:
    server = blocking(gate, max_threads=1)

    @server.tool
    async def on_the_loop() -> str:
        return "on the loop"

    async with Client(server, protocol_version=revision, timeout=TIMEOUT_SECONDS) as client:
        call = asyncio.ensure_future(client.call_tool("block"))
        await gate.has(1)
        await client.ping()
        assert len(await client.list_tools()) == 3
        assert (await client.call_tool("on_the_loop")).text == "on the loop"
        assert not call.done()
        gate.opened.set()
        assert (await call).text == "passed 0"


async def test_blocked_body_can_be_cancelled_and_is_not_answered(connect: Connect, gate: Gate) -> None:
    server = blocking(gate)
    wire = connect(server)
    await wire.initialize("2025-11-25")
    wire.send({"jsonrpc": "2.0", "id": "it", "method": "tools/call", "params": {"name": "block"}})
    await gate.has(1)
    wire.notify("notifications/cancelled", {"requestId": "it"})
    assert (await wire.request("ping"))["result"] == {}
    gate.opened.set()
    assert (await wire.request("tools/call", {"name": "quick"}))["result"]["content"][0]["text"] == "quick"
    assert wire.other_messages == []


async def test_function_can_detect_cancellation(connect: Connect) -> None:
    server = Server("s")
    begun, seen = threading.Event(), threading.Event()

    @server.tool
    def look(ctx: Context) -> str:
        begun.set()
        if became_cancelled(ctx):
            seen.set()
        return "stopped"

    wire = connect(server)
    await wire.initialize("2025-11-25")
    wire.send({"jsonrpc": "2.0", "id": "it", "method": "tools/call", "params": {"name": "look"}})
    assert await asyncio.to_thread(begun.wait, TIMEOUT_SECONDS)
    assert not seen.is_set()
    wire.notify("notifications/cancelled", {"requestId": "it"})
    assert await asyncio.to_thread(seen.wait, TIMEOUT_SECONDS)
    assert wire.is_silent


async def test_call_that_is_cancelled_before_it_has_a_thread_never_runs(connect: Connect, gate: Gate) -> None:
    server = blocking(gate, max_threads=1)
    wire = connect(server)
    await wire.initialize("2025-11-25")
    for number in (1, 2, 3):
        params = {"name": "block", "arguments": {"number": number}}
        wire.send({"jsonrpc": "2.0", "id": f"n{number}", "method": "tools/call", "params": params})
    await gate.has(1)
    wire.notify("notifications/cancelled", {"requestId": "n2"})
    assert (await wire.request("ping"))["result"] == {}
    gate.opened.set()
    assert "result" in await wire.response("n1")
    assert "result" in await wire.response("n3")
    assert gate.ran == [1, 3]


# Too long


async def test_timeout_of_a_threaded_tool_is_a_tool_error(gate: Gate) -> None:
    server = Server("s")
    server.tool(name="slow", timeout=0.01)(gate.pass_through)
    async with Client(server, timeout=TIMEOUT_SECONDS) as client:
        with pytest.raises(ToolError) as raised:
            await client.call_tool("slow")
    assert "'slow'" in str(raised.value)
    assert "0.01 s" in str(raised.value)


async def test_body_in_a_thread_can_see_that_its_time_is_over() -> None:
    server = Server("s")
    began, seen = threading.Event(), threading.Event()

    @server.tool(timeout=0.01)
    def look(ctx: Context) -> str:
        began.set()
        if became_cancelled(ctx):
            seen.set()
        return "too late"

    async with Client(server, timeout=TIMEOUT_SECONDS) as client:
        # A busy machine may not come to the body before its time is over, and then it is not run at all.
        while not began.is_set():
            with pytest.raises(ToolError, match="did not finish"):
                await client.call_tool("look")
        assert await asyncio.to_thread(seen.wait, TIMEOUT_SECONDS)


async def test_body_that_is_quick_enough_is_not_hurried() -> None:
    server = Server("s")
    server.tool(name="quick", timeout=TIMEOUT_SECONDS)(lambda: "quick")
    async with Client(server) as client:
        assert (await client.call_tool("quick")).text == "quick"


# What is raised there


class Outrage(BaseException):
    """What does not want to be caught by `except Exception`."""


@pytest.mark.parametrize("failure", [ValueError("secret"), StopIteration("secret"), Outrage("secret")], ids=type)
async def test_exception_in_a_thread_ends_the_call_only(failure: BaseException) -> None:
    server = Server("s", max_threads=1)

    @server.tool
    def fail() -> str:
        raise failure

    server.tool("fine")(lambda: "fine")
    async with Client(server, timeout=TIMEOUT_SECONDS) as client:
        result = await client.call_tool("fail", raise_on_error=False)
        assert result.is_error
        assert "error id" in result.text
        assert "secret" not in result.text
        assert (await client.call_tool("fine")).text == "fine"


EXITING = """
import sys
from portico import Server

server = Server("exiting")

@server.tool
def thread() -> str:
    sys.exit("enough")

@server.tool(run_in_thread=False)
def inline() -> str:
    sys.exit("enough")

@server.tool
async def loop() -> str:
    sys.exit("enough")
"""


@pytest.mark.parametrize("tool", ["thread", "inline", "loop"])
async def test_system_exit_ends_only_its_call(spawn: Callable[..., Any], tmp_path: Path, tool: str) -> None:
    """Libraries call `sys.exit` (argparse does); one call of one client is no reason to leave the others."""
    (tmp_path / "exiting.py").write_text(EXITING)
    child = await spawn("serve", "exiting.py", cwd=tmp_path)
    await child.initialize("2025-11-25")
    result = (await child.request("tools/call", {"name": tool}))["result"]
    assert result["isError"] is True
    assert "enough" not in result["content"][0]["text"]
    assert (await child.request("ping"))["result"] == {}


async def test_tool_error_in_a_thread_is_the_authors_own_word() -> None:
    server = Server("s")

    @server.tool
    def refuse() -> str:
        raise ToolError("Not on Sundays.")

    async with Client(server) as client:
        with pytest.raises(ToolError, match=r"Not on Sundays\."):
            await client.call_tool("refuse")


async def test_notifications_of_a_threaded_tool_precede_its_result(connect: Connect) -> None:
    server = Server("s")

    @server.tool
    def work(ctx: Context) -> str:
        for number in range(20):
            ctx.info(number)
            ctx.report_progress(number)
        return "worked"

    wire = connect(server)
    await wire.request_stateless("tools/call", {"name": "work"}, log_level="info", progressToken="t")
    messages = [
        other_message["params"].get("data", other_message["params"].get("progress"))
        for other_message in wire.other_messages
    ]
    assert messages == [number for number in range(20) for _ in range(2)]


# Turns


def ordered(order: list[str], gate: Gate, **options: Any) -> Server:
    """A server with one thread, and a tool that says who had a turn."""
    server = Server("s", max_threads=1, **options)

    @server.tool
    def work(who: str) -> str:
        gate.pass_through()
        order.append(who)
        return who

    return server


async def queued(server: Server, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while server.thread_pool._turns.size < count:  # noqa: ASYNC110  a queue that nothing waits for tells nobody
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "greedy, modest",
    [
        ({"principal": "ada"}, {"principal": "bob"}),
        ({"principal": "ada", "client_name": "a"}, {"principal": "bob"}),
        ({"client_name": "a"}, {"client_name": "b"}),
    ],
    ids=["principals", "principals and clients", "clients"],
)
async def test_busy_caller_does_not_delay_another(gate: Gate, greedy: Any, modest: Any) -> None:
    order: list[str] = []
    server = ordered(order, gate)
    async with Client(server, **greedy) as many, Client(server, **modest) as client:
        calls = [asyncio.create_task(many.call_tool("work", {"who": "greedy"})) for _ in range(20)]
        await gate.has(1)
        await queued(server, 19)
        calls.append(asyncio.create_task(client.call_tool("work", {"who": "modest"})))
        await queued(server, 20)
        gate.opened.set()
        await asyncio.gather(*calls)
    # After the one that had begun, and at most one more.
    assert order.index("modest") <= 2


async def test_clients_of_one_principal_share_one_turn(gate: Gate) -> None:
    """Whoever calls itself by many names has no more of the server than others."""
    order: list[str] = []
    server = ordered(order, gate)
    async with AsyncExitStack() as stack:
        names = [f"name-{n}" for n in range(10)]
        many = [await stack.enter_async_context(Client(server, principal="ada", client_name=name)) for name in names]
        modest = await stack.enter_async_context(Client(server, principal="bob"))
        calls = [asyncio.create_task(client.call_tool("work", {"who": "greedy"})) for client in many]
        await gate.has(1)
        await queued(server, 9)
        calls.append(asyncio.create_task(modest.call_tool("work", {"who": "modest"})))
        await queued(server, 10)
        gate.opened.set()
        await asyncio.gather(*calls)
    assert order.index("modest") <= 2


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_beyond_a_bound_a_caller_is_informed_when_to_come_back(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    monkeypatch.setattr(fair_queue, "MAX_QUEUED_CALLS_PER_CALLER", 3)
    server = ordered([], gate)
    async with (
        Client(server, protocol_version=revision, principal="ada") as many,
        Client(server, principal="bob") as client,
    ):
        calls = [asyncio.create_task(many.call_tool("work", {"who": "ada"}))]
        await gate.has(1)
        calls += [asyncio.create_task(many.call_tool("work", {"who": "ada"})) for _ in range(3)]
        await queued(server, 3)
        with pytest.raises(ToolError, match=r"Try again in \d+ s"):
            await many.call_tool("work", {"who": "ada"})
        # Another caller is not told so.
        calls.append(asyncio.create_task(client.call_tool("work", {"who": "bob"})))
        await queued(server, 4)
        gate.opened.set()
        await asyncio.gather(*calls)


async def test_call_that_was_cancelled_while_it_waited_does_not_count(gate: Gate) -> None:
    order: list[str] = []
    server = ordered(order, gate)
    async with Client(server, principal="ada") as client:
        first = asyncio.create_task(client.call_tool("work", {"who": "first"}))
        await gate.has(1)
        waiting = [asyncio.create_task(client.call_tool("work", {"who": "gone"})) for _ in range(5)]
        await queued(server, 5)
        for item in waiting:
            item.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while server.thread_pool._turns.size:  # noqa: ASYNC110  a queue that nothing waits for tells nobody
                await asyncio.sleep(0)
        last = asyncio.create_task(client.call_tool("work", {"who": "last"}))
        await queued(server, 1)
        gate.opened.set()
        await asyncio.gather(first, last)
    assert order == ["first", "last"]


async def test_bound_holds_after_calls_that_were_cancelled_while_they_waited(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_queue, "MAX_QUEUED_CALLS_PER_CALLER", 3)
    server = ordered([], gate)
    async with Client(server, principal="ada") as client:

        async def wait() -> list[asyncio.Task[Any]]:
            """As many as may."""
            calls = [asyncio.create_task(client.call_tool("work", {"who": "ada"})) for _ in range(3)]
            await queued(server, 3)
            return calls

        first = asyncio.create_task(client.call_tool("work", {"who": "ada"}))
        await gate.has(1)
        for _ in range(5):
            gone = await wait()
            for item in gone:
                item.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
        gate.opened.set()
        await first
        # After this the thread has come upon all that was left of them.
        assert (await client.call_tool("work", {"who": "ada"})).text == "ada"
        gate.opened.clear()
        calls = [asyncio.create_task(client.call_tool("work", {"who": "ada"}))]
        await gate.has(1)
        calls += await wait()
        with pytest.raises(ToolError, match=r"Try again in \d+ s"):
            await asyncio.wait_for(client.call_tool("work", {"who": "ada"}), TIMEOUT_SECONDS / 2)
        gate.opened.set()
        await asyncio.gather(*calls)


def test_default_thread_limit_matches_anyio() -> None:
    assert Server("s").thread_pool.max_threads == 40
