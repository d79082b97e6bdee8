"""Cancelled and timed-out code is interrupted; the session keeps its names if the code stops."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client, Server
from portico_services.livepython.attachment import AttachedPython
from portico_services.livepython.sandbox import worker
from support.live_python import REVISION, WorkerDialog, jail_only, wait_until

Begin = Callable[..., Any]

# So that code is known to have got to where it stays.
BEGIN = "open('begun', 'w').close()"
YIELDING = {
    "a loop": "while True: pass",
    "a sleep": "import time; time.sleep(1000)",
    "a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a pattern": "import re; re.match('(a|a)*b', 'a' * 60)",
    "a C function that calls back": "import itertools; any(map(lambda one: 0, itertools.repeat(0)))",
    "an await": "import asyncio; await asyncio.sleep(1000)",
    "a loop in an await": "async def spin():\n    while True: pass\nawait spin()",
    "one that catches the first": (
        "import time; caught = 0\nwhile True:\n    try:\n        while True: time.sleep(0.001)\n"
        "    except KeyboardInterrupt:\n        caught += 1\n        if caught == 2: raise"
    ),
    "a repr": "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
    "an exception that does not say what it is": (
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow"
    ),
    "its own handler": "import signal; signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\nwhile True: pass",
}
STUBBORN = {
    "one that catches everything": (
        f"import time\nwhile True:\n    try:\n        {BEGIN}\n        time.sleep(1000)\n    except BaseException: pass"
    ),
    "one that is deaf": f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{BEGIN}\nwhile True: pass",
    "a C function that does not come back": (
        f"import itertools; any(itertools.chain(iter(lambda: {BEGIN}, None), itertools.repeat(0)))"
    ),
}


# More than can be saved, and no part of it takes long.
LARGE = "globals().update({f'large{n}': str(n) * 4_000_000 for n in range(10)})"


async def begun(live: WorkerDialog, code: str) -> asyncio.Task[Any]:
    """A call whose code runs by now."""
    home = (await live.run("import os; x = 5; os.getcwd()")).structured["value"]
    calling = asyncio.ensure_future(live.run(code, timeout=60))
    await wait_until(lambda: os.access(os.path.join(home, "begun"), os.F_OK))
    return calling


async def cancelled(calling: asyncio.Task[Any]) -> None:
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


@jail_only
@pytest.mark.parametrize("code", YIELDING.values(), ids=YIELDING)
async def test_names_survive_a_call_that_is_cancelled(talk: Begin, code: str) -> None:
    live = await talk()
    await cancelled(await begun(live, f"{BEGIN}\n{code}"))
    assert await live.text("x") == "5"


@jail_only
@pytest.mark.parametrize("code", YIELDING.values(), ids=YIELDING)
async def test_names_survive_a_timeout(talk: Begin, code: str) -> None:
    live = await talk()
    await live.run("x = 5")
    assert "The session 'main' still has its names" in await live.text(code, timeout=0.05)
    assert await live.text("x") == "5"


@jail_only
@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN)
async def test_uninterruptible_code_is_killed_and_its_names_are_saved(
    talk: Begin, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INTERRUPT_GRACE_SECONDS", 0.2)
    live = await talk()
    await live.run(HELD)
    told = await live.text(code, timeout=0.1)
    assert (
        "because it did not stop within 0.1 s. The session 'main' continues in another process, with its names" in told
    )
    assert "but without running (generator:" in told and "slow (Slow: it takes more than 1 s)" in told
    assert await live.text(HELD_STILL) == "True"
    calling = await begun(live, code)
    # From the last line in Python into C.
    await asyncio.sleep(0.3)
    await cancelled(calling)
    result = await live.run(f"x == 5 and {HELD_STILL}")
    kept = "Session 'main' continues in another process, with its names (it was cancelled and did not stop)."
    assert [block.text for block in result.content] == [kept, "True"]
    assert await live.text("x") == "5"


HELD = """
class Point:
    def __init__(self, x): self.x = x
    def double(self): return 2 * self.x
points = [Point(n) for n in range(5)]
first = points[0]
running = (n for n in range(3))
class Slow:
    def __reduce__(self):
        while True: pass
slow = Slow()
"""
HELD_STILL = "points[0] is first and points[4].double() == 8"


@jail_only
@pytest.mark.parametrize(
    ("earlier", "before", "rescue_seconds"),
    [("", "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)", 0.3), (LARGE, "", 3.0)],
    ids=["deaf to the rescue", "too large"],
)
async def test_names_that_cannot_be_saved_are_lost_and_that_is_reported(
    talk: Begin, earlier: str, before: str, rescue_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INTERRUPT_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(worker, "RESCUE_TIMEOUT_SECONDS", rescue_seconds)
    live = await talk()
    code = f"{before}\n{STUBBORN['a C function that does not come back']}"
    await live.run(earlier)
    assert "was ended, because it did not stop within 0.1 s" in await live.text(code, timeout=0.1)
    await live.run(earlier)
    calling = await begun(live, code)
    # From the last line in Python into C.
    await asyncio.sleep(0.3)
    await cancelled(calling)
    refused = await live.call("class_details", className="Gone")
    result = await live.run("'x' in globals()")
    lost = "Session 'main' was restarted and lost its names: it was cancelled and did not stop."
    assert refused.text.endswith(lost)
    assert [block.text for block in result.content] == [lost, "False"]
    assert await live.text("1") == "1"


@jail_only
@pytest.mark.parametrize("code", ["while True: pass", "import itertools; any(itertools.repeat(0))"])
async def test_timeout_is_reported_in_the_error_metadata(
    talk: Begin, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INTERRUPT_GRACE_SECONDS", 0.2)
    live = await talk()
    result = await live.run(code, timeout=0.1)
    assert result.meta["portico/error"]["error_type"] == "TimeoutError"
    assert "portico/error" not in ((await live.run("1/0")).meta or {})


@jail_only
async def test_interrupt_is_for_one_expression(talk: Begin) -> None:
    """Whenever it comes: before, while and after the code runs, and while the answer is written."""
    live = await talk()
    await live.run("x = 0")
    for turn in range(40):
        calling = asyncio.ensure_future(live.run("for _ in range(20000): pass"))
        await asyncio.sleep(turn / 10_000)
        calling.cancel()
        result = await live.run("x += 1\nfor _ in range(3000): pass\nx")
        assert result.text == str(turn + 1)


@jail_only
async def test_interrupt_that_code_holds_back_is_not_for_the_next_expression(talk: Begin) -> None:
    live = await talk()
    response = await live.text(
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "until = time.monotonic() + 0.3\nwhile time.monotonic() < until: pass\n'done'",
        timeout=0.05,
    )
    assert response == "'done'"
    freed = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\nfor _ in range(1000): pass\n'free'"
    assert await live.text(freed) == "'free'"


@jail_only
async def test_awaited_tasks_do_not_continue_in_the_next_expression(talk: Begin) -> None:
    live = await talk()
    await live.run(
        "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n        ticks += 1\n"
        "        await asyncio.sleep(0)\nasync def both():\n    asyncio.create_task(tick())\n    await tick()"
    )
    assert "still has its names" in await live.text("await both()", timeout=0.1)
    before = (await live.run("ticks")).structured["value"]
    assert (await live.run("await asyncio.sleep(0.01); ticks")).structured["value"] == before


async def test_child_processes_are_interrupted_without_a_sandbox(talk: Begin) -> None:
    live = await talk(sandbox="none")
    await live.run("x = 5")
    # While it waits for a shell, C's `system` does not listen to interrupts itself.
    code = "import os, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nos.system('sleep 1000')"
    assert "still has its names" in await live.text(f"{code}\nwhile True: pass", timeout=0.5)
    assert await live.text("x, child.wait(20)") == "(5, -2)"


@pytest.fixture
async def attached() -> Any:
    service, server = AttachedPython({"x": 5}, evaluate=True), Server("application", version="1")
    server.add(service)
    async with Client(server, protocol_version=REVISION) as client:
        yield WorkerDialog(client, service)


ATTACHED = ("a loop", "an await", "a loop in an await", "one that catches the first", "a repr")


@pytest.mark.parametrize("code", [YIELDING[name] for name in ATTACHED], ids=ATTACHED)
async def test_application_continues_after_code_that_was_stopped(attached: WorkerDialog, code: str) -> None:
    assert "The session 'main' still has its names" in await attached.text(code, timeout=0.1)
    calling = asyncio.ensure_future(attached.run(code, timeout=60))
    await wait_until(lambda: attached.live._client.interpreters.sessions(None)[0].busy)
    await cancelled(calling)
    assert await attached.text("x") == "5"


async def test_interrupt_is_for_one_expression_of_an_application(attached: WorkerDialog) -> None:
    for turn in range(40):
        calling = asyncio.ensure_future(attached.run("for _ in range(20000): pass"))
        await asyncio.sleep(turn / 10_000)
        calling.cancel()
        assert await attached.text("x += 1\nfor _ in range(3000): pass\nx") == str(turn + 6)
