"""Other people's clients, and a server of two workers."""

import asyncio

import pytest

CONNECTIONS = 10


@pytest.mark.revisions(transport="http")
async def test_ten_connections_side_by_side_have_every_call_answered(connect_to_workers):
    async def one(number):
        async with connect_to_workers() as peer:
            peer.person.content = {"username": f"user {number}", "email": "a@b.example"}
            said = await peer.call("test_simple_text")
            assert not said.is_error
            asked = await peer.call("test_elicitation", {"message": "Who?"})
            assert f"user {number}" in asked.content[0].text or peer.revision < "2025-06-18"
            told = await peer.call("test_tool_with_progress")
            assert not told.is_error
            return peer.revision

    revisions = await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
    assert len(set(revisions)) == 1
