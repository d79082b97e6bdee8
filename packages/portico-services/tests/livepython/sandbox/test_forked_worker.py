"""A server process with forked workers, and the workers after its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from portico_services.livepython.sandbox.forked_worker import ForkedWorkerFactory
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.session_pool import SessionPool
from support.live_python import REVISION, jail_only, wait_until
from support.paths import ROOT

pytestmark = jail_only

EXAMPLE = ROOT / "examples" / "live_session.py"
WHO = "import os; [os.getpid(), os.getppid(), os.getcwd()]"


def evaluate(code: str, **more: Any) -> dict[str, Any]:
    return {"name": "evaluate", "arguments": {"expression": code, **more}}


def is_gone(pid: int) -> bool:
    return str(pid) not in os.listdir("/proc")


async def test_server_on_stdio_answers_while_code_runs(spawn: Callable[..., Any]) -> None:
    child = await spawn("serve", EXAMPLE)
    await child.initialize(REVISION)
    assert (await child.request("tools/call", evaluate("3 + 4")))["result"]["content"][0]["text"] == "7"
    slow = evaluate("while True: pass", timeout=0.5)
    child.send({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": slow})
    assert (await child.request("ping"))["result"] == {}
    # What code writes to standard output is not the server's, whose words these are.
    loud = evaluate("import os; os.write(1, b'{}\\n'); print('loud')", session="loud")
    assert "loud" in (await child.request("tools/call", loud))["result"]["content"][0]["text"]
    assert (await child.response("slow"))["result"]["isError"]
    code, rest, _ = await child.end()
    assert (code, rest) == (0, "")


async def test_cancelling_interrupts_the_running_code(spawn: Callable[..., Any]) -> None:
    child = await spawn("serve", EXAMPLE)
    await child.initialize(REVISION)
    response = await child.request("tools/call", evaluate(WHO))
    who = response["result"]["structuredContent"]["value"]
    child.send({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": evaluate("while True: pass")})
    await child.request("ping")
    child.notify("notifications/cancelled", {"requestId": "x"})
    response = await child.request("tools/call", evaluate(WHO))
    assert response["result"]["structuredContent"]["value"] == who


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
async def test_no_process_outlives_the_server(spawn: Callable[..., Any], way: int) -> None:
    child = await spawn("serve", EXAMPLE)
    await child.initialize(REVISION)
    response = await child.request("tools/call", evaluate(f"open('file', 'w').write('x'); {WHO}"))
    pid, parent, home = response["result"]["structuredContent"]["value"]
    child.send({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": evaluate("while True: pass")})
    await child.request("ping")
    os.kill(child.process.pid, way)
    await wait_until(lambda: is_gone(pid) and is_gone(parent))
    await wait_until(lambda: not os.access(os.path.dirname(home), os.F_OK))


async def test_sessions_come_and_go_and_leave_no_descriptors_behind() -> None:
    pool = SessionPool(
        ForkedWorkerFactory(sys.executable, SandboxLimits()), max_sessions=4, warm_workers=1, idle_timeout=60
    )
    await pool.open()
    try:
        counts = []
        for number in range(30):
            await pool.request((None, "a"), "evaluate", {"expression": "open('file', 'w').write('x')"}, 10)
            pool.reset((None, "a"))
            if number % 10 == 9:
                await wait_until(lambda: len(pool.workers.waiting) == 1 and len(pool.workers.starter._alive) == 1)  # type: ignore[attr-defined]
                counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[1] == counts[2]
        await wait_until(lambda: len(os.listdir(pool.workers.starter._directory)) == 1)  # type: ignore[attr-defined]
    finally:
        await pool.close()


async def test_cancelled_start_does_not_take_another_callers_worker() -> None:
    starter = ForkedWorkerFactory(sys.executable, SandboxLimits())
    await starter.open()
    try:
        for _ in range(20):
            starting = asyncio.ensure_future(starter.start())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            starting.cancel()
            worker = await starter.start()
            answer = await worker.request("evaluate", {"expression": WHO}, 10)
            assert f"[{worker.ends.pid}, " in bytes(answer.result).decode()  # type: ignore[attr-defined]
            worker.kill("it was a test")
            with pytest.raises(asyncio.CancelledError):
                await starting
    finally:
        await starter.close()


async def test_worker_factory_that_fails_to_open_reports_it_and_can_be_retried() -> None:
    starter = ForkedWorkerFactory("/bin/false", SandboxLimits())
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match="must be Python"):
            await starter.open()
    await starter.close()


async def test_one_owner_cannot_take_every_session() -> None:
    pool = SessionPool(
        ForkedWorkerFactory(sys.executable, SandboxLimits()), max_sessions=4, warm_workers=0, idle_timeout=60
    )
    await pool.open()
    try:
        for name in "ab":
            await pool.request(("greedy", name), "evaluate", {"expression": "1"}, 10)
        with pytest.raises(InspectionError, match="limit of 2 sessions"):
            await pool.request(("greedy", "c"), "evaluate", {"expression": "1"}, 10)
        for owner in ("second", "third", "fourth"):
            # The last of them finds no room but what the first has more than an equal share of.
            await pool.request((owner, "a"), "evaluate", {"expression": "1"}, 10)
        assert [len(pool.sessions(owner)) for owner in ("greedy", "second", "third", "fourth")] == [1, 1, 1, 1]
        with pytest.raises(InspectionError, match="limit of 4 sessions"):
            await pool.request(("fifth", "a"), "evaluate", {"expression": "1"}, 10)
    finally:
        await pool.close()
