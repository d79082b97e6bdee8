"""The low-level API of the MCP SDK: lowlevel.py, with streams and with JSON."""

from __future__ import annotations

import asyncio

import pytest

from portico.client.subscriptions import Change
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import ProtocolError

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEGS = [
    *(("lowlevel", transport, revision) for transport in ("http", "json") for revision in ("", "2025-06-18")),
    ("lowlevel", "stdio", "2025-03-26"),
]


async def test_all_pages_are_fetched(talk):
    tools = await talk.client.list_tools()
    assert {*(tool.name for tool in tools)} >= {f"tool_{at}" for at in range(20)}
    # A list that may be kept is not asked for again; this server says of none that it may.
    assert len([item for item in talk.sent if b'"tools/list"' in item]) == 4


async def test_argument_is_mirrored_in_a_header(client):
    assert (await client.call_tool("route", {"region": "Zürich ☂"})).data == "Routed to Zürich ☂."


async def test_value_need_not_be_an_object_on_2026_07_28(talk):
    if talk.modern:
        result = await talk.client.call_tool("numbers", result_type=list[int])
        assert result.structured == result.data == [1, 2, 3]
    else:
        with pytest.raises(ProtocolError, match="invalid result"):
            await talk.client.call_tool("numbers")


async def test_result_that_breaks_the_tool_s_own_promise_is_rejected(client):
    with pytest.raises(ProtocolError, match='liar returned a result that violates its output schema: "many"'):
        await client.call_tool("liar")


async def test_error_code_and_data_are_preserved(client):
    with pytest.raises(ProtocolError, match="Unknown tool: nothing") as raised:
        await client.call_tool("nothing")
    assert (raised.value.code, raised.value.data) == (-32602, {"known": 27})


async def test_log_messages_start_at_the_requested_level(leg, talk):
    await talk.client.set_log_level("warning")
    await talk.client.call_tool("log")
    if leg.transport != "json":  # where there is no stream to send them on
        await talk.wait_for(lambda: len(talk.logs) >= 2)
        assert talk.logs == [("warning", "warning"), ("error", "error")]


async def test_resource_update_reaches_the_subscriber(talk):
    client = talk.client
    async with client.listen(uris=["notes://today"]) as changes:
        subscribed = (await client.call_tool("touch")).text
        assert subscribed == ("" if talk.modern else "notes://today")
        async with asyncio.timeout(10):
            assert await anext(aiter(changes)) == Change("resource", "notes://today")
    assert (await client.call_tool("touch")).text == ""


async def test_input_rounds_return_the_request_state_unchanged(talk):
    """Rounds came with 2026-07-28; before, the SDK does not let such a result out."""
    if not talk.modern:
        with pytest.raises(ProtocolError, match="invalid result"):
            await talk.client.call_tool("two_rounds")
        return
    assert (await talk.client.call_tool("two_rounds")).data == "2 ☂ Alice likes blue."
    assert [item.message for item in talk.asked] == ["Your name?", "Your colour, Alice?"]


async def test_page_that_has_to_be_seen_first_is_requested_or_is_in_the_error(talk):
    talk.answer = ElicitResult("accept")
    if talk.modern:
        assert (await talk.client.call_tool("browse")).data == "accept None"
        assert [item.url for item in talk.asked] == ["https://example.com/login"]
    else:
        with pytest.raises(ProtocolError, match="Log in first") as raised:
            await talk.client.call_tool("browse")
        assert raised.value.code == -32042
        assert raised.value.data["elicitations"][0]["url"] == "https://example.com/login"
