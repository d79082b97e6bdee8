"""Tasks over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from portico import Client, ProtocolError, Server
from portico.protocol.subscriptions import SubscriptionFilter
from portico.server.http import build_application
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from support.task_servers import (
    CLIENT_CAPABILITIES,
    EXTENSION,
    HANDSHAKE,
    MODERN,
    TIMEOUT_SECONDS,
    ToolEvents,
    wait_for_status,
    with_tools,
)

TOKEN = "a-token-that-nobody-guesses"


class Site:
    def __init__(self, server: Server, gates: ToolEvents, port: int) -> None:
        self.server, self.gates, self.port = server, gates, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def post(self, method: str, params: dict[str, Any], **headers: str | None) -> tuple[int, Any]:
        """A request of 2026-07-28, by hand. A header that is None is left out."""
        prefix = "io.modelcontextprotocol/"
        meta = {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": CLIENT_CAPABILITIES}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        body = json.dumps(message).encode()
        fields: dict[str, str | None] = {
            "host": f"127.0.0.1:{self.port}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            "content-length": str(len(body)),
            "connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        head, _, said = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), json.loads(said)


@pytest.fixture
async def site() -> AsyncIterator[Callable[..., Any]]:
    """`await site(token=…)` serves on a port of its own."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Site:
            server, gates = with_tools()
            await stack.enter_async_context(server.lifespan())
            made = build_application(server, HttpServerSettings(allow_loopback=True, **settings))
            listener = Listener(made)
            [(_, port)] = await listener.listen("127.0.0.1", 0)
            stack.push_async_callback(listener.stop, 0)
            return Site(server, gates, port)

        yield start


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
async def test_task_is_started_asked_and_fetched(site: Callable[..., Any], revision: Any) -> None:
    here = await site()
    async with Client(
        here.url,
        protocol_version=revision,
        elicitation_handler=lambda request: {"value": "Ada"},
        timeout=TIMEOUT_SECONDS,
    ) as client:
        task = await client.start_task("ask")
        assert (await task.result(timeout=TIMEOUT_SECONDS)).text == "accept: Ada"


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
async def test_task_outlives_the_connection_it_was_started_on(site: Callable[..., Any], revision: Any) -> None:
    here = await site()
    async with Client(here.url, protocol_version=revision, timeout=TIMEOUT_SECONDS) as client:
        id = (await client.start_task("running", {"name": "x"})).id
    await here.gates.wait_for("x begun")
    here.gates["x"].set()
    async with Client(here.url, protocol_version=revision, timeout=TIMEOUT_SECONDS) as client:
        assert (await client.task(id, "running").result(timeout=TIMEOUT_SECONDS)).text == "x is done"


async def test_name_of_the_task_is_in_a_header(site: Callable[..., Any]) -> None:
    """The client must set Mcp-Name to the value of params.taskId, and here it is looked at."""
    here = await site()
    _, created = await here.post("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, mcp_name="add")
    id = created["result"]["taskId"]
    await wait_for_status(here.server, id, "completed")
    status, message = await here.post("tasks/get", {"taskId": id}, mcp_name=id)
    assert (status, message["result"]["status"]) == (200, "completed")
    for name in (None, "another"):
        status, message = await here.post("tasks/get", {"taskId": id}, mcp_name=name)
        assert (status, message["error"]["code"]) == (400, -32020)


async def test_task_request_without_the_extension_is_http_400(site: Callable[..., Any]) -> None:
    here = await site()
    async with Client(here.url, protocol_version=MODERN, timeout=TIMEOUT_SECONDS) as client:
        with pytest.raises(ProtocolError) as refused:
            await client.request("tasks/get", {"taskId": "x"})
    assert refused.value.code == -32021
    assert refused.value.http_status == 400


@pytest.mark.requirement("tasks.no-list")
async def test_task_list_requires_authentication(site: Callable[..., Any]) -> None:
    here = await site()
    async with Client(here.url, protocol_version=HANDSHAKE, timeout=TIMEOUT_SECONDS) as client:
        assert client.server_capabilities.tasks == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        task = await client.start_task("add", {"a": 1, "b": 2})
        with pytest.raises(ProtocolError) as refused:
            await client.request("tasks/list", {})
        assert refused.value.code == -32601
        assert (await task.result(timeout=TIMEOUT_SECONDS)).data == 3


async def test_authenticated_client_can_list_its_tasks(site: Callable[..., Any]) -> None:
    here = await site(token=TOKEN)
    async with Client(here.url, protocol_version=HANDSHAKE, auth=TOKEN, timeout=TIMEOUT_SECONDS) as client:
        assert client.server_capabilities.tasks is not None
        assert "list" in client.server_capabilities.tasks
        task = await client.start_task("add", {"a": 1, "b": 2})
        listed = json.loads(bytes(await client.request("tasks/list", {})))
        assert [one["taskId"] for one in listed["tasks"]] == [task.id]


async def test_tasks_belong_to_the_token_and_not_to_the_session(site: Callable[..., Any]) -> None:
    here = await site(token=TOKEN)
    async with Client(here.url, protocol_version=MODERN, auth=TOKEN, timeout=TIMEOUT_SECONDS) as client:
        id = (await client.start_task("add", {"a": 1, "b": 2})).id
    async with Client(here.url, protocol_version=HANDSHAKE, auth=TOKEN, timeout=TIMEOUT_SECONDS) as client:
        assert (await client.task(id, "add").result(timeout=TIMEOUT_SECONDS)).data == 3
    # Whoever is on the machine's own pipes is somebody else.
    async with Client(here.server, protocol_version=HANDSHAKE, timeout=TIMEOUT_SECONDS) as client:
        with pytest.raises(ProtocolError) as refused:
            await client.task(id, "add").refresh()
        assert refused.value.code == -32602


async def test_listeners_are_reported_over_http(site: Callable[..., Any]) -> None:
    here = await site()
    heard: asyncio.Queue[Any] = asyncio.Queue()
    extensions: dict[str, Any] = {EXTENSION: {}}
    async with Client(
        here.url,
        protocol_version=MODERN,
        extensions=extensions,
        timeout=TIMEOUT_SECONDS,
        message_handler=lambda method, params: heard.put_nowait((method, json.loads(bytes(params)))),
    ) as client:
        id = (await client.start_task("running", {"name": "x"})).id
        async with client.listen(SubscriptionFilter(task_ids=[id])) as listening:
            assert listening.accepted_filter is not None
            assert listening.accepted_filter.task_ids == [id]
            here.gates["x"].set()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while True:
                    method, params = await heard.get()
                    if method == "notifications/tasks" and params["status"] == "completed":
                        break
        assert params["result"]["content"][0]["text"] == "x is done"
