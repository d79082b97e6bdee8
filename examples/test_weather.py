"""Test a server without a network or another process."""

from weather import server

from portico import Client


async def test_result_has_the_chosen_unit() -> None:
    async with Client(server, elicitation_handler=lambda question: {"value": "fahrenheit"}) as client:
        result = await client.call_tool("forecast", {"city": "Oslo"})
        assert result.data == {"city": "Oslo", "summary": "3 days of sun", "unit": "fahrenheit"}


async def test_client_of_2024_11_05_gets_an_explanation() -> None:
    async with Client(server, protocol_version="2024-11-05") as client:
        result = await client.call_tool("forecast", {"city": "Oslo"}, raise_on_error=False)
        assert result.is_error
        assert "elicitation" in result.text
