"""A server with every kind of component that the console shows."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

from portico import Audio, Context, Image, Server, ToolError

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
WAV = b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA==")

server = Server("varied", version="1.2.3", instructions="Something of everything.")

TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "who": {"type": "string", "description": "Who travels", "minLength": 1},
        "days": {"type": "integer", "minimum": 1, "maximum": 30, "default": 3},
        "class": {"enum": ["first", "second"], "default": "second"},
        "begins": {"type": "string", "format": "date"},
        "quiet": {"type": "boolean", "default": True},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "What else there is to say"},
        "stops": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "extras": {"type": "array", "items": {"enum": ["meal", "bicycle", "dog"]}},
        "by": {
            "oneOf": [
                {"title": "Train", "type": "object", "required": ["line"],
                 "properties": {"kind": {"const": "train"}, "line": {"type": "string"}}, "additionalProperties": False},
                {"title": "Car", "type": "object", "required": ["seats"],
                 "properties": {"kind": {"const": "car"}, "seats": {"type": "integer"}}, "additionalProperties": False},
            ]
        },
        "party": {"$ref": "#/$defs/person"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["who", "days"],
    "additionalProperties": False,
    "$defs": {
        "person": {
            "type": "object",
            "title": "Person",
            "properties": {"name": {"type": "string"}, "friend": {"$ref": "#/$defs/person"}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}  # fmt: skip


@server.tool(input_schema=TRIP)
async def trip(arguments: dict[str, Any]) -> dict[str, Any]:
    """Plan a trip. It gives back what it was given."""
    return {"planned": arguments}


@server.tool
async def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool
async def cities(count: int = 3) -> list[dict[str, Any]]:
    """A list of objects: a table."""
    return [{"name": f"City {n}", "people": 1000 * (count - n)} for n in range(count)]


@server.tool
async def count_slowly(ctx: Context, to: int = 3) -> str:
    """Progress and log lines on the way."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
        await ctx.info(f"counted {n}")
        await asyncio.sleep(0.02)
    return f"counted to {to}"


@server.tool
async def wait_for_ever(ctx: Context) -> str:
    """To be cancelled."""
    await ctx.info("waiting")
    await asyncio.Event().wait()
    return "never"


@server.tool
async def book(ctx: Context, city: str) -> str:
    """Asks before it does something."""
    answer = await ctx.elicit(f"Which seat to {city}?", ["window", "aisle"])
    return f"{answer.action}: {answer.data}"


@server.tool
async def rhyme(ctx: Context, word: str) -> str:
    """Lets a model say something."""
    result = await ctx.sample(f"What rhymes with {word}?")
    return f"the model said: {getattr(result, 'text', result)}"


@server.tool
async def folders(ctx: Context) -> str:
    """Asks for the folders of the client."""
    return json.dumps([str(root.uri) for root in await ctx.list_roots()])


@server.tool
def picture() -> Image:
    """A picture."""
    return Image(data=PNG, format="png")


@server.tool
def sound() -> Audio:
    """A sound."""
    return Audio(data=WAV, format="wav")


@server.tool
async def refuse(why: str = "because") -> str:
    """A tool that says no."""
    raise ToolError(f"No, {why}.")


@server.tool
async def large(megabytes: int = 5) -> dict[str, Any]:
    """A large result."""
    row = {"id": 0, "name": "x" * 60, "tags": ["one", "two"], "nested": {"a": 1, "b": [1, 2, 3]}}
    return {"rows": [{**row, "id": n} for n in range(megabytes * 1024 * 1024 // 130)], "note": "y" * 1000}


@server.resource("varied://readme", mime_type="text/plain")
async def readme() -> str:
    """A text to read."""
    return "Read me."


@server.resource("varied://cities/{name}", mime_type="application/json")
async def city(name: str) -> dict[str, str]:
    """One city."""
    return {"name": name}


@server.completion("city", "name")
async def names(value: str) -> list[str]:
    return [name for name in ("Bern", "Berlin", "Basel") if name.lower().startswith(value.lower())]


@server.prompt
async def greet(name: str, tone: str = "warm") -> str:
    """A greeting."""
    return f"Greet {name} in a {tone} tone."


for n in range(2000):

    @server.tool(name=f"many_{n:04}", description=f"Number {n} of very many tools.")
    async def one(value: str = "") -> str:
        return value
