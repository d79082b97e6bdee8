"""The cost of tool queries does not grow with the number of tools: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Server
from portico.extend import Call, Handler
from portico.search.fuzzy_names import FuzzyNames
from portico_services.contracts import Contracts
from portico_services.contracts.api import MCPToolCall, call

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("spec_get", {"tool": "big.tool_7"}),
    ("spec_get", {"tool": "big.tool_7", "format": "json"}),
    ("spec_render", {"tool": "tool_7"}),
    ("spec_lint", {"tool": "tool_7"}),
    ("spec_list", {"limit": 5, "offset": 10}),
    ("spec_codegen", {"tool": "tool_7"}),
    ("tools_search", {"query": "seventh"}),
    ("tools_batch", {"calls": [{"tool_name": "big.tool_7", "arguments": {"number": 1}}]}),
    ("spec_get", {"tool": "big.tool_77777"}),
]


def big(tools: int) -> Server:
    server = Server("big", version="1.0.0")
    server.add(Contracts())
    for at in range(tools):
        words = "The seventh" if at == 7 else "Some other"

        @server.tool(name=f"tool_{at}", description=f"{words} tool.")
        async def body(number: int) -> int:
            return number + 1

    return server


@contextmanager
def counted(counts: list[int]) -> Iterator[None]:
    """How many functions of Python are entered meanwhile."""
    entered = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        counts.append(entered)


def passing(following: Handler) -> Handler:
    """With a middleware it may depend on the caller what is listed."""

    async def pass_on(call: Call) -> Any:
        return await following(call)

    return pass_on


@pytest.mark.parametrize("name, arguments", QUESTIONS)
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["plain", "wrapped"])
async def test_batch_overhead_is_independent_of_catalog_size(
    name: str, arguments: dict[str, Any], is_wrapped: bool
) -> None:
    counts: list[int] = []
    for tools in (50, 400):
        server = big(tools)
        if is_wrapped:
            server.add_middleware(passing)
        async with Client(server) as client:
            for _ in range(2):
                await client.call_tool(name, arguments, raise_on_error=False)
            with counted(counts):
                result = await client.call_tool(name, arguments, raise_on_error=False)
        assert result.is_error == ("77777" in str(arguments))
    assert counts[1] < 1.5 * counts[0] + 200


async def test_tool_change_is_visible_immediately() -> None:
    server = big(20)
    async with Client(server) as client:
        assert (await client.call_tool("spec_list", {"limit": 1})).structured["total"] == 32

        @server.tool
        async def later(x: int) -> int:
            return x

        assert (await client.call_tool("spec_list", {"limit": 1})).structured["total"] == 33
        assert (await client.call_tool("tools_search", {"query": "later"})).structured["tools"][0]["name"] == "later"
        server.remove("later")
        assert (await client.call_tool("spec_list", {"limit": 1})).structured["total"] == 32


async def test_calls_by_contract_cost_the_same() -> None:
    counts: list[int] = []
    for tools in (50, 400):
        server = big(tools)
        request = MCPToolCall(tool_name="big.tool_7", arguments={"number": 1})
        for _ in range(2):
            assert (await call(server, request)).data == {"result": 2}
        with counted(counts):
            await call(server, request)
    assert counts[1] < 1.5 * counts[0] + 200


async def test_spec_list_shows_each_caller_its_visible_tools() -> None:
    """What was worked out for one caller is not given to another who is shown other tools."""
    server = big(3)

    def hiding(following: Handler) -> Handler:
        async def answer(call: Call) -> Any:
            result = await following(call)
            if call.method == "tools/list" and call.client is not None and call.client.name == "guest":
                return Raw(bytes(result).replace(b"Some other tool", b"Nothing"))
            return result

        return answer

    server.add_middleware(hiding)
    for client_name, words in (("owner", "Some other tool."), ("guest", "Nothing."), ("owner", "Some other tool.")):
        async with Client(server, client_name=client_name) as client:
            listed = (await client.call_tool("spec_list", {"limit": 1000})).structured["tools"]
            assert {item["description"] for item in listed if item["name"] == "tool_1"} == {words}


def test_name_is_found_in_a_large_catalog() -> None:
    names = FuzzyNames(f"s.tool_number_{at}" for at in range(3000))
    assert names.nearest("s.tool_numbr_2999")[0] == "s.tool_number_2999"
    assert FuzzyNames(["a.b", "weather.rain"]).nearest("weather.rian") == ["weather.rain"]
    assert FuzzyNames(["weather.rain"]).nearest("x" * 10_000) == FuzzyNames([]).nearest("a") == []
