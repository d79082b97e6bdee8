"""Hostile clients leave nothing behind and never block the event loop.

`STORM=1` sends two hundred thousand requests; otherwise a few thousand, which is enough for what leaks every time.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.pauses import is_short
from support.storm import times

MODERN = "2026-07-28"
MOST_GROWTH = 20 * 1024 * 1024
REQUESTS = times(1600, 200_000)
AT_ONCE = 20

# The pause is processor time of the loop's thread between two turns: a busy machine makes it no longer.
SCRIPT = """
import asyncio
import time
from contextlib import asynccontextmanager
from typing import Any

from portico import Server


@asynccontextmanager
async def lifespan(server):
    watching = asyncio.create_task(watch())
    yield
    watching.cancel()


longest = [0.0]


async def watch():
    before = time.thread_time()
    while True:
        await asyncio.sleep(0.001)
        now = time.thread_time()
        longest[0] = max(longest[0], now - before)
        before = now


server = Server("patient", version="1", lifespan=lifespan)


@server.tool
async def pause() -> float:
    told, longest[0] = longest[0], 0.0
    return told


@server.tool
async def echo(text: str = "", of: Any = None) -> str:
    return text[:10]


@server.prompt
async def greet(name: str) -> str:
    return name[:10]


@server.resource("note://{a}/{b}{?c*}")
async def note(a: str, b: str, c: list[str] | None = None) -> str:
    return a[:10]


@server.resource("file:///{+path}")
async def file(path: str) -> str:
    return path[:10]


server.run("http", port=0)
"""


class Target:
    """The server in a child."""

    def __init__(self, process: Any, site: Any) -> None:
        self.process, self.site = process, site

    @property
    def resident(self) -> int:
        status = Path(f"/proc/{self.process.process.pid}/status")
        if not status.exists():
            pytest.skip("This system has no /proc to read a process's memory from.")
        return 1024 * int(next(line for line in status.read_text().splitlines() if line.startswith("VmRSS")).split()[1])

    async def longest_pause(self) -> float:
        """Since it was asked the last time."""
        response = await self.site.call("pause")
        return float(response.json["result"]["structuredContent"]["result"])


@pytest.fixture
async def target(run: Any, at: Callable[..., Any], tmp_path: Path) -> Target:
    (tmp_path / "patient.py").write_text(SCRIPT)
    process = await run(tmp_path / "patient.py")
    url = (await process.read_until("Serving on ")).strip()
    return Target(process, at(int(url.rpartition(":")[2].partition("/")[0])))


def hostile(site: Any, chance: random.Random) -> tuple[bytes, bool]:
    """Some request that means no good, and whether it is broken off."""
    made_up = f"{chance.getrandbits(64):x}"
    size = chance.choice([1, 100, 10_000, 200_000])
    call = {"name": "echo", "arguments": {"text": made_up * size}}
    kind = {"content-type": "application/json"}
    choices: list[Callable[[], tuple[bytes, bool]]] = [
        lambda: (site.modern_bytes("tools/call", call)[: -chance.randint(1, 100)], True),
        lambda: (site.bytes("POST", "/mcp", {**kind, "content-length": "4000000"}) + b"[" * size, True),
        lambda: (site.bytes("POST", "/mcp", {**kind, "transfer-encoding": "chunked"}) + b"5\r\nhel", True),
        lambda: (site.modern_bytes("tools/call", call), False),
        lambda: (site.modern_bytes(made_up, {}), False),
        lambda: (site.modern_bytes("tools/call", {"name": made_up}), False),
        lambda: (site.modern_bytes("resources/read", {"uri": f"note://{made_up}/{'/' * 5000}"}), False),
        lambda: (site.bytes("POST", "/mcp", kind, b"[" + b"1," * size + b"1]"), False),
        lambda: (site.bytes("POST", "/mcp", kind, b"{" * size), False),
        lambda: (site.bytes("GET", "/mcp", {"host": made_up * 100}), False),
        lambda: (site.bytes("GET", "/mcp", {"origin": "http://" + made_up * 100}), False),
        lambda: (site.bytes("GET", "/mcp", {"mcp-session-id": made_up, "last-event-id": "\xb2"}), False),
        lambda: (site.bytes("GET", "/" + made_up, {made_up: made_up}), False),
        lambda: (made_up.encode() * 100 + b"\r\n\r\n", False),
    ]
    return chance.choice(choices)()


async def attack(site: Any, requests: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(requests):
        raw = await site.connect()
        data, broken_off = hostile(site, chance)
        raw.send(data)
        if broken_off:
            with suppress(OSError):
                await raw.writer.drain()
            raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.writer.transport.abort()
        else:
            with suppress(OSError, asyncio.IncompleteReadError):
                assert (await raw.response()).status != 500
            await raw.close()
        site._open.clear()


async def test_nothing_of_a_hostile_day_stays(target: Target) -> None:
    """docs/explanation/security.md: aborted uploads, bombs and made-up names leave the memory as it was."""
    site = target.site
    for seed in range(AT_ONCE):
        await attack(site, REQUESTS // AT_ONCE // 4, seed)
    before = target.resident
    await target.longest_pause()
    await asyncio.gather(*(attack(site, REQUESTS // AT_ONCE, 1000 + seed) for seed in range(AT_ONCE)))
    assert (await site.call("echo", {"text": "well"})).json["result"]["content"][0]["text"] == "well"
    growth, pause = target.resident - before, await target.longest_pause()
    print(f"{REQUESTS:,} requests: {growth:,} bytes more, a pause of {pause:.3f} s at most")
    assert growth < MOST_GROWTH, f"{growth:,} bytes more after {REQUESTS:,} requests"
    assert is_short(pause, 3), "many at once, and nobody waits for long"


FULL = 4_000_000
ARGUMENTS = {
    "a text": {"text": "a" * FULL},
    "escapes": {"text": '"\\' * (FULL // 5)},
    "numbers": {"of": [1] * 490_000},
    "texts": {"of": ["a"] * 490_000},
    "too many": {"of": ["a"] * (FULL // 5)},
    "commas": {"text": "a," * (FULL // 2)},
    "arrays": {"of": [[]] * 190_000},
    "objects": {"of": [{"a": 1}] * 90_000},
    "members": {"of": {f"{n:x}": n for n in range(190_000)}},
    "unknown": {f"{n:x}": n for n in range(190_000)},
    "deep": {"of": json.loads("[" * 400 + "]" * 400)},
}
LONG = "/" * FULL
KIND = {"content-type": "application/json"}
PROMPT = {"type": "ref/prompt", "name": "greet"}
LARGEST: dict[str, Callable[[Any], bytes]] = {
    **{
        f"tools/call with {what}": lambda site, given=given: site.modern_bytes(
            "tools/call", {"name": "echo", "arguments": given}
        )
        for what, given in ARGUMENTS.items()
    },
    "tools/call": lambda site: site.modern_bytes("tools/call", {"name": LONG}, headers={"mcp-name": "x"}),
    "prompts/get": lambda site: site.modern_bytes("prompts/get", {"name": "greet", "arguments": {"name": LONG}}),
    "resources/read": lambda site: site.modern_bytes("resources/read", {"uri": LONG}, headers={"mcp-name": "x"}),
    "a URI": lambda site: site.modern_bytes("resources/read", {"uri": "note://" + "/" * 7000}),
    "a path": lambda site: site.modern_bytes("resources/read", {"uri": "file:///" + "/" * 7000}),
    "tools/list": lambda site: site.modern_bytes("tools/list", {"cursor": "a" * FULL}),
    "completion/complete": lambda site: site.modern_bytes(
        "completion/complete", {"ref": PROMPT, "argument": {"name": "name", "value": LONG}}
    ),
    "subscriptions/listen": lambda site: site.modern_bytes(
        "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["note://" + LONG]}}
    ),
    "a method": lambda site: site.modern_bytes("a" * FULL, headers={"mcp-method": "a"}),
    "an id": lambda site: site.modern_bytes("tools/list", id="a" * FULL),
    "a batch": lambda site: site.bytes(
        "POST", "/mcp", KIND, b"[" + b"1," * (FULL // 2) + b"1]"
    ),
    "brackets": lambda site: site.bytes("POST", "/mcp", KIND, b"[" * FULL),
    "two members": lambda site: site.bytes(
        "POST", "/mcp", KIND,
        b'{"jsonrpc":"2.0","id":1,"method":"a","x":[' + b"{}," * (FULL // 4) + b'{}],"\\u0061":1,"method":"b"}',
    ),
    "a host": lambda site: site.bytes("GET", "/mcp", {"host": "a." * 30_000}),
    "an origin": lambda site: site.bytes("GET", "/mcp", {"origin": "http://" + "a." * 30_000}),
    "a session": lambda site: site.bytes("GET", "/mcp", {"mcp-session-id": "a" * 60_000}),
    "an accept": lambda site: site.bytes("POST", "/mcp", {**KIND, "accept": "a/b," * 15_000}, b"{}"),
    "a forwarded-for": lambda site: site.bytes("GET", "/mcp", {"x-forwarded-for": "1.1.1.1," * 7000}),
    "many headers": lambda site: site.bytes("GET", "/mcp", {f"x-{n}": "a" * 600 for n in range(90)}),
    "a query": lambda site: site.bytes("GET", "/mcp?" + "%41" * 2500),
}  # fmt: skip


async def test_no_request_stops_the_loop(target: Target) -> None:
    """docs/explanation/security.md: no request, however large, delays others by more than a tenth of a second."""
    too_long = {}
    for what, request in LARGEST.items():
        for _ in range(5):
            # What is slow once may have met the collector of cycles, the first use of something, or a busy processor.
            await target.longest_pause()
            raw = await target.site.connect()
            raw.send(request(target.site))
            with suppress(asyncio.IncompleteReadError):
                assert (await raw.response()).status < 500, what
            raw.abort()
            pause = await target.longest_pause()
            if is_short(pause):
                break
        else:
            too_long[what] = round(pause, 3)
    assert not too_long
