"""Webhooks: delivery and signature of change events, without delaying calls."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from portico import UsageError
from portico.errors import TransportError
from portico.extend import http_request
from portico_services.memory.extras import webhooks
from portico_services.memory.service import Memory
from support.http_threads import running
from support.memories import CAPTURE, call_tool

Serving = Callable[..., Any]
TIMEOUT_SECONDS = 30.0
SECRET = "a secret of some length"


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiving)
        self.told: list[tuple[dict[str, str], bytes]] = []
        # What the next requests are answered with; then 204.
        self.statuses: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?token=t0ken"


class _Receiving(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.told.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with running(server):
        yield server


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.01)


async def test_each_change_is_reported_and_signed(
    serving: Serving, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    hook = {"url": receiver.url, "allow_private_hosts": True, "secret_env": "HOOK_SECRET"}
    client = await serving(webhooks={"chat": hook}, tools="all")
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    await call_tool(client, "memory_update", memory_id=id, tags=["database"])
    await call_tool(client, "memory_delete", memory_id=id)
    await call_tool(client, "memory_restore", memory_id=id)
    await until(lambda: len(receiver.told) == 4)
    messages = [json.loads(body) for _, body in receiver.told]
    changes = ["captured", "updated", "deleted", "restored"]
    assert [message["type"] for message in messages] == [f"memory.{change}" for change in changes]
    assert messages[0]["data"]["memory"]["urn"] == f"memory://project/decisions/{id}"
    assert CAPTURE["content"] not in str(receiver.told)
    for headers, body in receiver.told:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
    # The receiver has the last message before its answer has come.
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (state := (await call_tool(client, "memory_webhooks"))["webhooks"][0])["waiting"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (state["delivered"], state["signed"], state["host"]) == (4, True, "127.0.0.1")
    assert "t0ken" not in str(state)


async def test_failure_is_tried_again_in_the_background(
    serving: Serving, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "RETRY_DELAYS_SECONDS", (0.01, 0.01))
    receiver.statuses = [500, 503]
    client = await serving(
        webhooks={"chat": {"url": receiver.url, "allow_private_hosts": True, "events": ["captured"]}}
    )
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    await call_tool(client, "memory_delete", memory_id=id)
    await until(lambda: len(receiver.told) == 3)
    assert len({headers["webhook-id"] for headers, _ in receiver.told}) == 1


async def test_capture_does_not_wait_for_unreachable_webhooks(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_QUEUED_DELIVERIES", 2)
    client = await serving(webhooks={"gone": {"url": "http://127.0.0.1:1/", "allow_private_hosts": True}}, tools="all")
    for number in range(6):
        await call_tool(client, "memory_capture", content=f"Note number {number} of several.", namespace="context")
    (state,) = (await call_tool(client, "memory_webhooks"))["webhooks"]
    assert state["delivered"] == 0 and state["waiting"] <= 3 and state["failed"] >= 3


async def test_tool_can_be_tried(serving: Serving, receiver: Receiver) -> None:
    client = await serving(webhooks={"chat": {"url": receiver.url, "allow_private_hosts": True}}, tools="all")
    assert (await call_tool(client, "memory_webhooks", action="test", name="chat"))[
        "note"
    ] == "Delivered; the receiver returned 204."
    refused = await client.call_tool("memory_webhooks", {"action": "test", "name": "no"}, raise_on_error=False)
    assert refused.is_error


async def test_undelivered_webhook_counts_as_waiting(serving: Serving) -> None:
    """Also the one that is tried at the moment; and who is not reached has not answered."""
    client = await serving(webhooks={"gone": {"url": "http://127.0.0.1:1/", "allow_private_hosts": True}}, tools="all")
    tried = await call_tool(client, "memory_webhooks", action="test", name="gone")
    assert tried["note"] == "Delivery failed: ConnectError."
    await call_tool(client, "memory_capture", **CAPTURE)
    (state,) = (await call_tool(client, "memory_webhooks"))["webhooks"]
    assert (state["waiting"], state["delivered"], state["failed"]) == (1, 0, 0)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]"]
)
async def test_private_addresses_are_rejected_with_public_only(host: str) -> None:
    with pytest.raises(TransportError, match=r"address|such"):
        await http_request("POST", f"https://{host}/", timeout=10, max_response_bytes=10, public_only=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"url": "http://example.com/"},
        {"url": "https://ann:secret@example.com/"},
        {"url": "file:///etc/passwd"},
        {"url": "https://example.com/", "events": ["moved"]},
        {"url": "https://example.com/", "secret": SECRET},
    ],
)
def test_invalid_settings_are_rejected_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Memory(webhooks={"chat": wrong})
    assert SECRET not in str(caught.value) and "ann" not in str(caught.value)


# Groups


async def test_groups_have_members_with_roles(serving: Serving) -> None:
    client = await serving(tools="all")

    async def groups(**arguments: Any) -> Any:
        return (await call_tool(client, "memory_groups", **arguments))["groups"]

    assert await groups() == []

    (made,) = await groups(action="create", name="team", description="Those who build it")
    (admin,) = made["members"]
    assert admin["role"] == "admin"
    await groups(action="add_member", name="team", member="ann", role="write")
    (changed,) = await groups(action="update_role", name="team", member="ann", role="admin")
    assert {"member": "ann", "role": "admin"} in changed["members"]
    (left,) = await groups(action="remove_member", name="team", member=admin["member"])
    assert [item["member"] for item in left["members"]] == ["ann"]
    # Somebody has to be able to change it.
    arguments = {"action": "remove_member", "name": "team", "member": "nobody"}
    assert (await client.call_tool("memory_groups", arguments, raise_on_error=False)).is_error
    assert [item["name"] for item in await groups()] == ["team"]
    await groups(action="delete", name="team")
    assert await groups() == []
    arguments = {"action": "get", "name": "team"}
    assert (await client.call_tool("memory_groups", arguments, raise_on_error=False)).is_error
