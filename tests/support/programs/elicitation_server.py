"""A server with elicitation: `python elicitation_server.py [VERSION] [http]`, optionally of one protocol version."""

from __future__ import annotations

from typing import Any

from portico import Context, Server

server = Server("asking", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def greet(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"Hello, {answer.data['name']}!"


@server.tool
async def greet_twice(ctx: Context) -> str:
    form: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
    first = await ctx.elicit("Who is the first?", form)
    second = await ctx.elicit("And the second?", form)
    return f"Hello, {first.data['name']} and {second.data['name']}!"


@server.tool
async def count(ctx: Context) -> str:
    for number in range(3):
        await ctx.report_progress(number + 1, 3)
    return "counted"


@server.resource("note://hello")
async def hello() -> str:
    return "hello"


@server.resource("note://of/{name}")
async def of(name: str) -> str:
    return f"of {name}"


@server.prompt
async def advise(topic: str) -> str:
    return f"Advise on {topic}."


if __name__ == "__main__":
    server.run()
