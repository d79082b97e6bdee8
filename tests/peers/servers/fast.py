"""The same server on FastMCP: `python fast.py stdio|http|sse PORT`.

Its questions are asked by hand: with `ctx.elicit` and its like before 2026-07-28, with an `InputRequiredResult` there.
"""

import asyncio
import os
import sys
from datetime import date
from typing import Annotated

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Audio, Image
from pydantic import BaseModel, Field

MODERN = "2026-07-28"
PIXEL = bytes.fromhex("89504e470d0a1a0a")

server = FastMCP("fast", version="1.2.3", instructions="A server of others.")


class Forecast(BaseModel):
    city: str
    day: date
    degrees: float


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def forecast(city: str) -> Forecast:
    """The weather of one day."""
    return Forecast(city=city, day=date(2026, 7, 28), degrees=21.5)


@server.tool
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


@server.tool
async def refuse() -> str:
    """Say no."""
    raise ToolError("not today")


@server.tool
async def crash() -> str:
    """Fail."""
    raise RuntimeError("swordfish")


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Report progress."""
    for done in range(1, to + 1):
        await ctx.report_progress(done, to, f"{done} of {to}")
    return "counted"


@server.tool
async def chatter(ctx: Context) -> str:
    """Log at four levels."""
    await ctx.debug("one")
    await ctx.info("two")
    await ctx.warning("three")
    await ctx.error("four")
    return "said"


@server.tool
async def route(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """On 2026-07-28 over HTTP, the argument is also a header, and the SDK compares the two."""
    return f"Routed to {region}."


@server.tool
async def die() -> str:
    """End the server in the middle of the call."""
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)


# What a client asks, and gives up on

waiting = {"begun": 0, "cancelled": 0}


@server.tool
async def wait() -> str:
    """Wait for a cancellation."""
    waiting["begun"] += 1
    try:
        await asyncio.Event().wait()
    finally:
        waiting["cancelled"] += 1
    return "never"


@server.tool
async def waited() -> dict[str, int]:
    """How often `wait` has begun, and was cancelled."""
    return waiting


# Questions


class Name(BaseModel):
    name: str
    age: int = Field(default=42, description="How old")


FRANCE = types.SamplingMessage(
    role="user", content=types.TextContent(type="text", text="What is the capital of France?")
)


def modern(ctx):
    return ctx.request_context.protocol_version >= MODERN


def asked(ctx, key, request):
    """The answer, or None and the way to ask for it."""
    response = (ctx.input_responses or {}).get(key)
    return response, types.InputRequiredResult(input_requests={key: request}, request_state="asked")


@server.tool(output_schema=None)
async def greet(ctx: Context):
    """Ask the user."""
    if modern(ctx):
        params = types.ElicitRequestFormParams(message="Who are you?", requested_schema=Name.model_json_schema())
        message, ask = asked(ctx, "who", types.ElicitRequest(params=params))
        if message is None:
            return ask
        if message.action != "accept":
            return message.action
        return f"accept: {message.content['name']}, {message.content['age']}"
    answer = await ctx.elicit("Who are you?", Name)
    return f"accept: {answer.data.name}, {answer.data.age}" if answer.action == "accept" else answer.action


@server.tool(output_schema=None)
async def capital(ctx: Context):
    """Ask the model."""
    if modern(ctx):
        params = types.CreateMessageRequestParams(messages=[FRANCE], max_tokens=100)
        result, ask = asked(ctx, "model", types.CreateMessageRequest(params=params))
        if result is None:
            return ask
    else:
        result = await ctx.session.create_message(messages=[FRANCE], max_tokens=100, related_request_id=ctx.request_id)
    return f"{result.model} says {result.content.text}"


@server.tool(output_schema=None)
async def places(ctx: Context):
    """Ask for the roots."""
    if modern(ctx):
        result, ask = asked(ctx, "roots", types.ListRootsRequest())
        if result is None:
            return ask
    else:
        result = await ctx.session.list_roots()
    return ", ".join(str(root.uri) for root in result.roots)


# Changes, which FastMCP tells of before 2026-07-28 only


@server.tool
async def change(ctx: Context) -> str:
    """Tell that there are other tools."""
    await ctx.send_notification(types.ToolListChangedNotification())
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


@server.completion
async def complete(ref, argument, context):
    if argument.name == "name":
        style = (context.arguments or {}).get("style") if context else None
        names = ["Sir Anton", "Sir Arno"] if style == "formal" else ["anna", "anton", "bert"]
        return [name for name in names if name.startswith(argument.value)]
    return []


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(show_banner=False)
    else:
        server.run(sys.argv[1], show_banner=False, port=int(sys.argv[2]))
