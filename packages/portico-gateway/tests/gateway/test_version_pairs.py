"""All four combinations of protocol generations through a gateway, with real processes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from portico import Client, Server
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import MissingClientCapability
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_gateway.gateway.gateway import Gateway
from support.paths import PROGRAMS

SERVER = PROGRAMS / "elicitation_server.py"
ASKING = [one for one in SUPPORTED_PROTOCOL_VERSIONS if one >= "2025-06-18"]


def gateway_to(revision: str) -> Gateway:
    gateway = Gateway(max_result_tokens=0)
    gateway.add_upstream("one", [sys.executable, str(SERVER)], protocol_version=revision)  # type: ignore[arg-type]
    return gateway


ERAS = SUPPORTED_PROTOCOL_VERSIONS[-2:]
PAIRS = [
    (above, below)
    for above in SUPPORTED_PROTOCOL_VERSIONS
    for below in SUPPORTED_PROTOCOL_VERSIONS
    if above in ERAS or below in ERAS
]


@pytest.mark.parametrize("above, below", PAIRS)
async def test_everything_goes_through(above: str, below: str) -> None:
    requests: list[str] = []
    progress: list[float] = []

    async def answer(params: Any) -> ElicitResult:
        requests.append(params.message)
        return ElicitResult("accept", {"name": ["Ada", "Grace"][(len(requests) + 1) % 2]})

    def hear(done: float, *_: Any) -> None:
        progress.append(done)

    gateway = gateway_to(below)
    async with Client(gateway, protocol_version=above, elicitation_handler=answer) as client:  # type: ignore[arg-type]
        names = {tool.name for tool in await client.list_tools()}
        assert names == {"one_add", "one_greet", "one_greet_twice", "one_count"}
        assert (await client.call_tool("one_add", {"a": 1, "b": 2})).text == "3"
        assert (await client.call_tool("one_count", progress_handler=hear)).text == "counted"
        assert progress == [1, 2, 3]
        assert (await client.read_resource("note://hello"))[0].text == "hello"
        assert (await client.read_resource("note://of/me"))[0].text == "of me"
        prompt = await client.get_prompt("one_advise", {"topic": "tea"})
        assert prompt.messages[0].content.text == "Advise on tea."
        if above in ASKING and below in ASKING:
            assert (await client.call_tool("one_greet")).text == "Hello, Ada!"
            requests.clear()
            assert (await client.call_tool("one_greet_twice")).text == "Hello, Ada and Grace!"
            assert requests == ["[one] Who is the first?", "[one] And the second?"]
    assert not len(gateway._bridge)


@pytest.mark.parametrize("above, below", [("2025-11-25", one) for one in ERAS] + [("2024-11-05", "2026-07-28")])
async def test_model_is_informed_if_client_has_no_elicitation(above: Any, below: str) -> None:
    """The code for that is of 2026-07-28; older clients get a result, whatever the upstream speaks."""
    async with Client(gateway_to(below), protocol_version=above) as client:
        result = await client.call_tool("one_greet", raise_on_error=False)
        assert result.is_error
        assert result.text == "This tool requires client capabilities that the client does not support: elicitation."


@pytest.mark.parametrize(
    "data", [None, [], {"requiredCapabilities": "all"}, {"requiredCapabilities": {"sampling": {}}}]
)
async def test_malformed_missing_capability_data_is_accepted(data: Any) -> None:
    below = Server("below")

    @below.tool
    async def odd() -> str:
        missing = MissingClientCapability({})
        missing.data = data
        raise missing

    async with Client(Gateway({"one": below}, max_result_tokens=0), protocol_version="2025-11-25") as client:
        result = await client.call_tool("one_odd", raise_on_error=False)
        assert result.is_error
        assert "that the client does not support" in result.text
