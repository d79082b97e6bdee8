"""Test a server with the fixtures of the pytest plugin."""

from typing import Any

import pytest
from weather import server

from portico import Client


@pytest.fixture
def portico_server() -> Any:
    return server


@pytest.fixture
def portico_client_options() -> dict[str, Any]:
    return {"elicitation_handler": lambda question: {"value": "fahrenheit"}}


@pytest.mark.protocol_version("2025-06-18", "2025-11-25", "2026-07-28")
async def test_user_chooses_the_unit(portico_client: Client, portico_transcript: Any) -> None:
    result = await portico_client.call_tool("forecast", {"city": "Oslo"})
    assert result.data["unit"] == "fahrenheit"
    assert portico_transcript.params_of("tools/call")[0]["arguments"] == {"city": "Oslo"}


async def test_contract_is_unchanged(portico_contract: Any) -> None:
    await portico_contract.check()
