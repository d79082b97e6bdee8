"""Additions to examples/everything.py: tools that wait, block, crash and print, and short pages."""

import asyncio
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from portico import Context, Server
from portico.extend import ResultLimits

server = Server("small", version="2.1.0", instructions="For tests.")
# By itself, because the official client looks for the schema of a tool that it calls on the first page only.
paged = Server("paged", version="1.0.0", list_page_size=3)

# A file, so that all workers of a server know of it.
STOPPED = Path(tempfile.gettempdir()) / f"stopped-{os.getppid()}"


@dataclass
class Weather:
    city: str
    degrees: float


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers, in a thread."""
    return a + b


@server.tool
async def multiply(a: int, b: int) -> int:
    """Multiply two numbers, on the loop."""
    return a * b


@server.tool(title="The weather", annotations={"readOnlyHint": True})
def weather(city: str) -> Weather:
    """Say how warm it is."""
    return Weather(city, 21.5)


@server.tool
def give_text() -> str:
    return "words"


@server.tool
def give_number() -> int:
    return 3


@server.tool
def give_list() -> list[int]:
    return [1, 2]


@server.tool
def give_nothing() -> None:
    return None


@server.tool
def give_object() -> Weather:
    return Weather("Paris", 21.5)


@server.tool
def give_either() -> Weather | list[int]:
    return Weather("Paris", 21.5)


@server.tool
def give_maybe() -> int | None:
    return None


@server.tool
def crash() -> str:
    """Raise what nobody expected."""
    raise RuntimeError("the password is swordfish")


@server.tool
def chatter() -> str:
    """Write to standard output, from Python and from below it."""
    print("this is not a message")
    os.write(1, b"nor is this\n")
    return "done"


@server.tool
async def wait_forever(ctx: Context) -> str:
    """Never return."""
    await ctx.report_progress(1)
    try:
        await asyncio.Event().wait()
    finally:
        STOPPED.touch()
    return "never"


@server.tool
def block(ctx: Context) -> str:
    """Keep a thread until the client has lost interest."""
    ctx.report_progress(1)
    end = time.monotonic() + 10
    nothing = threading.Event()
    while not ctx.is_cancelled and time.monotonic() < end:
        nothing.wait(0.01)
    if ctx.is_cancelled:
        STOPPED.touch()
    return "late"


@server.tool
def was_stopped() -> bool:
    """Whether a body that was cancelled has noticed, or does so in a moment. Then forget it."""
    end = time.monotonic() + 5
    nothing = threading.Event()
    while not STOPPED.exists() and time.monotonic() < end:
        nothing.wait(0.01)
    noticed = STOPPED.exists()
    STOPPED.unlink(missing_ok=True)
    return noticed


@server.tool
def touch(uri: str) -> str:
    """Say that a resource has changed."""
    server.notify_resource_updated(uri)
    return "touched"


@server.tool(run_in_thread=False)
def grow() -> str:
    """Offer one tool, one prompt and one resource more."""
    number = len(server.tools)
    server.tool(name=f"more_{number}")(was_stopped)
    server.prompt(name=f"more_{number}")(greeting)
    server.resource(f"notes://more-{number}")(note)
    return "grown"


@server.tool
async def visit(ctx: Context) -> str:
    """Ask the user to open a page."""
    answer = await ctx.elicit_url("Please sign in", "https://example.com/sign-in")
    return answer.action


@server.prompt
def greeting() -> str:
    """Say hello."""
    return "Say hello."


@server.resource("notes://today")
def note() -> str:
    """A note."""
    return "Buy milk."


for number in range(10):
    paged.tool(name=f"tool_{number}")(was_stopped)


bounded = Server("bounded", version="1.0.0")
bounded.add(ResultLimits(2_000))


@bounded.tool(structured_output=False)
def long_text(size: int) -> str:
    """Return a text of this many characters."""
    return ("A line of the text.\n" * (size // 20 + 1))[:size]


@bounded.tool
def long_list(count: int) -> list[dict[str, str | int]]:
    """Return this many records."""
    return [{"id": at, "name": f"name {at}"} for at in range(count)]
