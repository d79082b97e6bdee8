"""How to test a server: no network, no processes. This file is part of our own tests, too."""

from weather import server

from portico import Client


async def test_the_unit_is_the_one_that_was_chosen() -> None:
    async with Client(server, elicitation_handler=lambda question: {"value": "fahrenheit"}) as client:
        result = await client.call_tool("forecast", {"city": "Oslo"})
        assert result.data == {"city": "Oslo", "summary": "3 days of sun", "unit": "fahrenheit"}


async def test_the_oldest_clients_read_why_they_cannot_be_asked() -> None:
    async with Client(server, protocol_version="2024-11-05") as client:
        result = await client.call_tool("forecast", {"city": "Oslo"}, raise_on_error=False)
        assert result.is_error
        assert "elicitation" in result.text
