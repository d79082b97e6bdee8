"""Search for a tool by its purpose."""

from __future__ import annotations

import pytest

from portico import Server
from portico_services.contracts import invoker
from portico_services.contracts.definitions import contract_from_tools
from portico_services.contracts.service import search_tools

TOOLS = contract_from_tools(
    [
        {"name": "eventlog_query", "description": "Read entries of a log of the machine.", "inputSchema": {}},
        {"name": "fs_search", "description": "Find files by name, text or size.", "inputSchema": {}},
        {
            "name": "createTask",
            "description": "Plan work.",
            "inputSchema": {"type": "object", "properties": {"priority": {"description": "How urgent"}}},
        },
        {
            "name": "memory_recall",
            "title": "Remember",
            "description": "What was said before about a topic.",
            "inputSchema": {},
        },
    ],
    server="s",
)


@pytest.mark.parametrize(
    "query, name",
    [
        ("find a file", "fs_search"),
        ("searching files", "fs_search"),
        ("which logs are there", "eventlog_query"),
        ("create a task", "createTask"),
        ("urgent", "createTask"),
        ("remembering topics", "memory_recall"),
        ("mem", "memory_recall"),
        ("eventlgo", "eventlog_query"),
    ],
)
def test_best_one_comes_first(query: str, name: str) -> None:
    assert search_tools(TOOLS, query)[0].tool.name == name


@pytest.mark.parametrize("query", ["", "zzz", "?!", "\x00"])
def test_query_without_matches_returns_nothing(query: str) -> None:
    assert search_tools(TOOLS, query) == []


def test_limit_is_respected() -> None:
    assert len(search_tools(TOOLS, "a file log task topic", 2)) == 2


async def test_shop_can_be_searched(shop: Server) -> None:
    response = search_tools(await invoker.fetch_contract(shop), "buy something")
    assert response[0].tool.name == "buy"
    assert [item.score for item in response] == sorted((item.score for item in response), reverse=True)
