"""A server on the official Python SDK, its high-level class: `python official.py stdio|http|sse PORT`.

Its questions are markers, which that SDK turns into requests or into `input_required`, as the revision wants it.
"""

import asyncio
import os
import sys
from datetime import date
from typing import Annotated

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Audio, Context, Elicit, ElicitationResult, Image, ListRoots, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.streamable_http import EventMessage, EventStore
from pydantic import BaseModel, Field

MODERN = "2026-07-28"
PIXEL = bytes.fromhex("89504e470d0a1a0a")

server = MCPServer("official", version="1.2.3", instructions="A server of others.", log_level="CRITICAL")


class Forecast(BaseModel):
    city: str
    day: date
    degrees: float


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def forecast(city: str) -> Forecast:
    """The weather of one day."""
    return Forecast(city=city, day=date(2026, 7, 28), degrees=21.5)


@server.tool()
async def blocks() -> list:
    """Every kind of content."""
    link = types.ResourceLink(type="resource_link", uri="notes://today", name="today")
    inside = types.TextResourceContents(uri="notes://today", mime_type="text/plain", text="Rain.")
    return [
        "text",
        Image(data=PIXEL, format="png"),
        Audio(data=b"RIFF", format="wav"),
        link,
        types.EmbeddedResource(type="resource", resource=inside),
    ]


@server.tool()
async def refuse() -> str:
    """Say no."""
    raise ToolError("not today")


@server.tool()
async def crash() -> str:
    """Fail."""
    raise RuntimeError("swordfish")


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Report progress."""
    for done in range(1, to + 1):
        await ctx.report_progress(done, to, f"{done} of {to}")
    return "counted"


@server.tool()
async def chatter(ctx: Context) -> str:
    """Log at four levels."""
    await ctx.debug("one")
    await ctx.info("two")
    await ctx.warning({"three": 3})
    await ctx.error("four")
    return "said"


@server.tool()
async def route(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """On 2026-07-28 over HTTP, the argument is also a header, and the SDK compares the two."""
    return f"Routed to {region}."


@server.tool()
async def die() -> str:
    """End the server in the middle of the call."""
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)


# What a client asks, and gives up on

waiting = {"begun": 0, "cancelled": 0}


@server.tool()
async def wait() -> str:
    """Wait for a cancellation."""
    waiting["begun"] += 1
    try:
        await asyncio.Event().wait()
    finally:
        waiting["cancelled"] += 1
    return "never"


@server.tool()
async def waited() -> dict[str, int]:
    """How often `wait` has begun, and was cancelled."""
    return waiting


@server.tool()
async def let_go(ctx: Context) -> str:
    """Close the stream that the answer is to come on."""
    await ctx.close_sse_stream()
    return "Here it is."


# Questions


class Name(BaseModel):
    name: str
    age: int = Field(default=42, description="How old")


def ask_name():
    return Elicit("Who are you?", Name)


def ask_model():
    result = types.TextContent(type="text", text="What is the capital of France?")
    return Sample([types.SamplingMessage(role="user", content=result)], max_tokens=100)


def ask_roots():
    return ListRoots()


@server.tool()
async def greet(answer: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    """Ask the user."""
    message = answer.data if answer.action == "accept" else None
    return f"{answer.action}: {message.name}, {message.age}" if message else answer.action


@server.tool()
async def capital(answer: Annotated[types.CreateMessageResult, Resolve(ask_model)]) -> str:
    """Ask the model."""
    return f"{answer.model} says {answer.content.text}"


@server.tool()
async def places(found: Annotated[types.ListRootsResult, Resolve(ask_roots)]) -> str:
    """Ask for the roots."""
    return ", ".join(str(root.uri) for root in found.roots)


@server.tool()
async def everything_asked(
    model: Annotated[types.CreateMessageResult, Resolve(ask_model)],
    name: Annotated[Name, Resolve(ask_name)],
    roots: Annotated[types.ListRootsResult, Resolve(ask_roots)],
) -> str:
    """Three questions."""
    return f"{model.content.text}, {name.name}, {len(roots.roots)}"


# Changes


@server.tool()
async def change(ctx: Context) -> str:
    """Add a tool or take it away, and tell."""
    try:
        server.remove_tool("extra")
    except ToolError:
        server.add_tool(add, name="extra")
    if ctx.protocol_version >= MODERN:
        await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("notes://today")
    else:
        await ctx.session.send_tool_list_changed()
    return "changed"


# The rest


@server.resource("notes://today", mime_type="text/plain")
def today() -> str:
    return "Rain."


@server.resource("notes://picture", mime_type="image/png")
def picture() -> bytes:
    return PIXEL


@server.resource("notes://{day}/weather", mime_type="text/plain")
def weather(day: str) -> str:
    return f"Rain on {day}."


@server.prompt(title="A greeting")
def greeting(name: str, style: str = "plain") -> str:
    """Greet somebody."""
    return f"Greet {name}, {style}."


@server.completion()
async def complete(ref, argument, context):
    if argument.name == "name":
        style = (context.arguments or {}).get("style") if context else None
        names = ["Sir Anton", "Sir Arno"] if style == "formal" else ["anna", "anton", "bert"]
        return types.Completion(values=[name for name in names if name.startswith(argument.value)], has_more=False)
    return None


class Kept(EventStore):
    """Every event, for those who come back."""

    def __init__(self) -> None:
        self._events = []

    async def store_event(self, stream_id, message):
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id, send_callback):
        last = int(last_event_id)
        stream, _ = self._events[last - 1]
        for at, (of, message) in enumerate(self._events[last:], last + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(at)))
        return stream


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run()
    else:
        old = sys.argv[1] == "sse"
        app = server.sse_app() if old else server.streamable_http_app(event_store=Kept(), retry_interval=10)
        uvicorn.run(app, port=int(sys.argv[2]))
