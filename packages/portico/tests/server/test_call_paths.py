"""Nested calls and steps are attributed to their place in the body, also when it is replayed."""

from __future__ import annotations

from typing import Any

import pytest

from portico import Client, Context, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS

ASKING = [revision for revision in SUPPORTED_PROTOCOL_VERSIONS if revision >= "2025-06-18"]


def server() -> tuple[Server, list[int]]:
    made = Server("places", version="1")
    reserved: list[int] = []

    @made.tool
    async def reserve(ctx: Context) -> str:
        number = await ctx.step("reserve", lambda: reserved.append(1) or len(reserved))
        return f"reserved {number}"

    @made.tool
    async def reserve_two(ctx: Context) -> list[str]:
        first = await ctx.call_tool("reserve")
        second = await ctx.call_tool("reserve")
        await ctx.elicit("Is that right?", bool)
        return [first.content[0].text, second.content[0].text]

    @made.tool
    async def ask_in_a_step(ctx: Context) -> list[str]:
        async def first() -> Any:
            return (await ctx.elicit("first?", str)).data

        result = await ctx.step("one", first)
        two = (await ctx.elicit("second?", str)).data
        three = (await ctx.elicit("third?", str)).data
        return [result, two, three]

    return made, reserved


@pytest.mark.parametrize("revision", ASKING)
async def test_two_calls_of_one_tool_do_their_steps_each(revision: str) -> None:
    made, reserved = server()
    async with Client(made, protocol_version=revision, elicitation_handler=lambda question: {"value": True}) as client:
        assert (await client.call_tool("reserve_two")).data == ["reserved 1", "reserved 2"]
    assert len(reserved) == 2


@pytest.mark.parametrize("revision", ASKING)
async def test_elicitation_inside_a_step_does_not_shift_later_keys(revision: str) -> None:
    made, _ = server()
    async with Client(
        made, protocol_version=revision, elicitation_handler=lambda question: {"value": question.message}
    ) as client:
        assert (await client.call_tool("ask_in_a_step")).data == ["first?", "second?", "third?"]
