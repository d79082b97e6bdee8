"""Limits for endless lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico.extend import Call
from portico.protocol import pagination
from portico.protocol.errors import InvalidParams, MethodNotFound, ProtocolError
from portico.protocol.pagination import Paginator
from portico.protocol.tools import CallToolResult, ListToolsResult, Tool
from portico.server.transforms.arguments import ArgTransform
from portico.server.transforms.builtin import ToolTransform, ToolTransformConfig

MOST = 20


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "MAX_PAGES", MOST)


def endless(cursor: Callable[[], str]) -> tuple[Any, list[str]]:
    """A Handler whose list of tools always goes on, and what it was asked."""
    requests: list[str] = []

    async def handler(call: Call) -> Any:
        requests.append(call.method)
        assert len(requests) < 20 * MOST, "it is asked without end"
        if call.method == "tools/list":
            tool = Tool(name=f"tool{len(requests)}", input_schema={"type": "object"})
            return ListToolsResult(tools=[tool], next_cursor=cursor(), ttl_ms=0, cache_scope="private")
        if call.method == "tools/call":
            return CallToolResult(content=[])
        raise MethodNotFound(call.method)

    return handler, requests


def growing() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: str(next(numbers))


CURSORS = pytest.mark.parametrize("cursor, pages", [(growing, MOST), (lambda: lambda: "again", 2)], ids=["new", "same"])


@CURSORS
async def test_listing_of_a_mounted_server_is_bounded(cursor: Any, pages: int) -> None:
    handler, request = endless(cursor())
    server = Server("s")
    server.mount(handler, namespace="far")
    async with Client(server) as client:
        assert len(await client.list_tools()) == pages
    assert request.count("tools/list") == pages


@CURSORS
async def test_all_of_a_list_without_end_is_an_error(cursor: Any, pages: int) -> None:
    server = Server("s")
    handler, request = endless(cursor())
    server.add_middleware(lambda inner: handler)
    with pytest.raises(ProtocolError, match="does not end"):
        await server.list_tools()
    assert len(request) == pages


@CURSORS
async def test_lookup_of_a_transformed_tool_is_bounded(cursor: Any, pages: int) -> None:
    handler, request = endless(cursor())
    server = Server("s")
    server.mount(handler, namespace="far")
    shape = ToolTransformConfig(arguments={"q": ArgTransform(name="query")})
    server.add_transform(ToolTransform({"far_none": shape}))
    async with Client(server) as client:
        with pytest.raises((InvalidParams, ToolError), match="Unknown tool"):
            await client.call_tool("far_none", {"query": 1})
    assert request.count("tools/list") <= 2 * pages


def test_paginator_stops_at_the_entry_limit() -> None:
    way = Paginator()
    assert way.next_cursor("1", 10) == "1" and not way.truncated
    assert way.next_cursor("2", pagination.MAX_LIST_ENTRIES) is None and way.truncated
    assert Paginator().next_cursor(None, 1) is None
