"""Scripts over stdio and HTTP, on every protocol version, as tasks, through a gateway, and under policy.

Source: the issue on code mode.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from portico import Client, Server
from portico.cli import tool_search
from portico.extend import Call, Handler, serve_http
from portico_gateway import Gateway
from portico_services.codemode import CodeMode, CodeModeServer
from support.script_tools import READS, TIMEOUT_SECONDS, ToolShop, jail_only, run

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
pytestmark = [jail_only, pytest.mark.asyncio(loop_scope="module")]

SCRIPT = "from tools import price, order\nawait price('abc')\nawait order('pen')\nreturn 'done'"


class Served:
    """A shop, and where it is served over HTTP: as it is, and with its face beside it."""

    def __init__(self, shop: ToolShop, url: str) -> None:
        self.shop, self.url = shop, url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    shop = ToolShop()
    tool_search._add_endpoint(shop.server, "code", "/mcp/code", lambda: CodeModeServer(shop.server))
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_http(shop.server, port=0, on_ready=ready.set_result, stop=stop))
    yield Served(shop, await asyncio.wait_for(ready, TIMEOUT_SECONDS))
    stop.set()
    await asyncio.wait_for(serving, TIMEOUT_SECONDS)


def expected(revision: str) -> tuple[list[str], str]:
    """What was ordered, and what the script came to: only the newer revisions can ask a person."""
    return (["pen"], "done") if revision >= "2025-06-18" else ([], "support elicitation")


@pytest.mark.parametrize("path", ["/mcp", "/mcp/code"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_over_http_at_every_revision(served: Served, revision: str, path: str) -> None:
    served.shop.orders.clear()
    url = served.url.replace("/mcp", path)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(url, protocol_version=revision, elicitation_handler=served.shop.answer) as client,
    ):
        result = await run(client, SCRIPT)
    orders, words = expected(revision)
    assert served.shop.orders == orders
    assert words in result.text


@pytest.mark.parametrize("revision", REVISIONS)
async def test_over_stdio_at_every_revision(tmp_path: Path, revision: str) -> None:
    (tmp_path / "one.py").write_text(
        "from portico import Server\nserver = Server('one')\ndone = []\n\n"
        "@server.tool(annotations={'readOnlyHint': True})\ndef look() -> list[int]: return done\n\n"
        "@server.tool\ndef write(n: int) -> None: done.append(n)\n"
    )
    (tmp_path / "one.toml").write_text("[serve]\ncode_mode = true\ncode_limits = { max_calls = 2 }\n")
    files = [str(tmp_path / "one.py"), "--config", str(tmp_path / "one.toml"), "--data", str(tmp_path / "data")]
    command = [sys.executable, "-m", "portico", "serve", *files]

    async def agree(*_: Any) -> dict[str, Any]:
        return {}

    code = "from tools import look, write\nawait write(1)\nreturn await look()"
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(command, protocol_version=revision, elicitation_handler=agree) as client,
    ):
        assert [tool.name for tool in await client.list_tools()] == ["find_tools", "run", "describe_tools"]
        result = await run(client, code)
        most = await run(client, "from tools import look\nwhile True:\n    await look()")
    assert "at most 2 calls" in most.text
    assert ("[1]" if revision >= "2025-06-18" else "support elicitation") in result.text


async def test_client_with_tasks_is_asked_in_a_task(served: Served) -> None:
    """2026-07-28 with the tasks extension: the run goes on as a task when it has to wait for a person."""
    served.shop.orders.clear()
    served.shop.asked.clear()
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(served.url, elicitation_handler=served.shop.answer) as client:
        task = await client.start_task("run", {"code": SCRIPT})
        result = await task.result()
    assert result.structured["value"] == "done"
    assert served.shop.orders == ["pen"]
    assert len(served.shop.asked) == 1


class Recorder:
    """A witness: what was called, by whom."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def on_request(self, passage: Any) -> None:
        pass

    def on_response(self, passage: Any, result: Any, failure: BaseException | None) -> None:
        parent = passage.parent.component.name if passage.parent is not None else None
        if passage.component is not None:
            self.seen.append((passage.component.name, parent))

    def on_rejected(self, *_: Any) -> None:
        pass


async def test_every_inner_call_is_recorded_under_its_own_name(served: Served) -> None:
    recorder, shop = Recorder(), ToolShop()
    shop.server.set_policy(audit_hook=recorder)
    async with shop.client() as client:
        await run(client, "from tools import price\nawait asyncio.gather(price('a'), price('b'))")
    assert [item for item in recorder.seen if item[0] == "price"] == [("price", "run")] * 2


async def test_inner_call_carries_the_trace_and_the_caller() -> None:
    """The same principal, the same capabilities, and the trace that the request belongs to."""
    server = Server("traced")
    seen: list[Call] = []

    @server.tool(annotations=READS)
    async def look() -> None:
        """Nothing."""

    def watching(inner: Handler) -> Handler:
        async def watch(call: Call) -> Any:
            seen.append(call)
            return await inner(call)

        return watch

    server.add(CodeMode())
    server.add_middleware(watching)
    meta = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    request = {"name": "run", "arguments": {"code": "from tools import look\nawait look()"}, "_meta": meta}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server) as client:
        await client.request("tools/call", request)
    outer, inner = (item for item in seen if item.method == "tools/call")
    assert b'"look"' in bytes(inner.params)
    assert b"0af7651916cd43dd8448eb211c80319c" in bytes(inner.params)
    assert (inner.client, inner.capabilities, inner.principal) == (outer.client, outer.capabilities, outer.principal)


async def test_through_a_gateway_each_upstream_is_a_module() -> None:
    def upstream(name: str) -> Server:
        server = Server(name)

        @server.tool(annotations=READS)
        def who(greeting: str = "hello") -> str:
            """Who this is."""
            return f"{greeting} from {name}"

        return server

    gateway = Gateway({"east": upstream("east"), "west": upstream("west")})
    face = CodeModeServer(gateway)
    code = "from tools import east, west\nawait asyncio.gather(east.who(), west.who('hi'))"
    async with asyncio.timeout(TIMEOUT_SECONDS), gateway.lifespan(), face.own_tools.lifespan(), Client(face) as client:
        result = await run(client, code)
    assert result.structured["value"] == ["hello from east", "hi from west"]
