"""Debug logging of requests on every transport."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from portico import Server, ToolError
from portico.extend import serve_http

Connect = Callable[..., Any]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "portico.trace")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "portico.trace"]


def shop() -> Server:
    server = Server("shop", version="1")

    @server.tool
    def price(item: str) -> str:
        """The price of something."""
        if item == "moon":
            raise ToolError("It is not for sale.", error_type="NotForSale")
        if item == "bug":
            raise ValueError("secret")
        return f"{item}: 5\nERROR portico: forged"

    return server


@pytest.mark.parametrize("revision", ["2024-11-05", "2026-07-28"])
async def test_call_outcomes_are_logged_briefly(
    connect: Connect, lines: Callable[[], list[str]], revision: str
) -> None:
    wire = connect(shop())
    if revision != "2026-07-28":
        await wire.initialize(revision)
    for item in ("pen", "moon", "bug", 5):
        await wire.request_as(revision, "tools/call", {"name": "price", "arguments": {"item": item}})
    await wire.request_as(revision, "tools/call", {"name": "nothing", "arguments": {}})
    messages = [line for line in lines() if line.startswith(("execution result: tools", "validation error"))]
    assert messages[0].startswith("execution result: tools/call price returned ") and "pen: 5" in messages[0]
    assert "failed, NotForSale" in messages[1] and "It is not for sale." in messages[1]
    assert messages[2] == "execution result: tools/call price raised ValueError"
    assert messages[3].startswith("validation error: tools/call price: ") and "item" in messages[3]
    assert messages[4].startswith("validation error: tools/call nothing: ")


async def test_line_stays_one_line(connect: Connect, lines: Callable[[], list[str]]) -> None:
    wire = connect(shop())
    await wire.request_as(
        "2026-07-28", "tools/call", {"name": "price", "arguments": {"item": "\u202e\u0007" + "x" * 5000}}
    )
    assert all(line.isprintable() and len(line) < 3000 for line in lines())


async def test_it_is_the_same_over_http(lines: Callable[[], list[str]]) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(shop(), port=0, on_ready=ready.set_result))
    url = urlsplit(await asyncio.wait_for(ready, 30))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    # On several lines, and still one in the log.
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}, indent=1).encode()
    head = [
        "POST /mcp HTTP/1.1",
        f"Host: {url.netloc}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    assert b"200" in await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    messages = [line for line in lines() if line.startswith(("incoming", "execution"))]
    assert [line.split()[2] for line in messages] == ["initialize"] * 2
    assert all(line.isprintable() for line in messages)
