"""Callers of one upstream are isolated: circuit breakers, connections and queues are shared fairly."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from portico import ToolError
from portico.protocol.errors import PorticoError
from portico.protocol.meta import ClientCapabilities
from portico.rpc.call import Call
from portico.rpc.identity import principal_id
from portico_gateway import Gateway
from portico_gateway.gateway import accounting
from portico_gateway.gateway.accounting import ConcurrencyLimit
from support.paths import PROGRAMS

REVISION = "2025-11-25"
ADA, BOB = principal_id("ada"), principal_id("bob")


class TenantServer:
    """An MCP server over HTTP by hand. `answers` says with which status and header a tenant is answered."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.heard: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        finally:
            self.gate.set()
            for writer in list(self._writers):
                writer.close()
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.startswith("post"):
                    await self._post(writer, fields.get("x-tenant", ""), body)
                else:
                    _reply(writer, 405, b"")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _post(self, writer: asyncio.StreamWriter, tenant: str, body: bytes) -> None:
        data = json.loads(body)
        method = data.get("method")
        self.heard[f"{tenant} {method}"] += 1
        status, header = self.answers.get(tenant, (0, ""))
        name = data.get("params", {}).get("name") if method == "tools/call" else None
        if tenant == "hangs" or name == "slow":
            await self.gate.wait()
        if status:
            _reply(writer, status, b"{}", header)
        elif len(body) > 10_000:
            _reply(writer, 413, b"{}")
        elif name == "fails":
            _reply(writer, 500, b"")
        elif name == "breaks":
            writer.close()
        elif "id" not in data:
            _reply(writer, 202, b"")
        else:
            _reply(writer, 200, json.dumps({"jsonrpc": "2.0", "id": data["id"], **_answer(method)}).encode())


def _answer(method: str) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("work", "slow", "fails", "breaks")]
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": REVISION,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "crm", "version": "1"},
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    return {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}


def _reply(writer: asyncio.StreamWriter, status: int, body: bytes, header: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def call_of(name: str, who: str = "ada", tenant: str | None = None, **arguments: Any) -> Call:
    params = Raw(json.dumps({"name": name, "arguments": arguments}).encode())
    headers = {} if tenant is None else {b"x-tenant": tenant.encode()}
    return Call(
        method="tools/call",
        params=params,
        id=1,
        protocol_version="2026-07-28",
        principal=who,
        address="10.0.0.1",
        headers=headers,
    )


@asynccontextmanager
async def tenants(**options: Any) -> AsyncIterator[tuple[TenantServer, Gateway]]:
    server, gateway = TenantServer(), Gateway()
    async with server.serving() as url:
        gateway.add_upstream("crm", url, protocol_version=REVISION, **{"forward_headers": ["x-tenant"], **options})
        async with gateway.lifespan():
            await gateway.wait_until_listed(20)
            yield server, gateway


async def works(gateway: Gateway, who: str = "bob", tenant: str = "acme") -> bool:
    async with asyncio.timeout(20):
        return b"done" in bytes(await gateway(call_of("crm_work", who, tenant)))


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 429, 500, 503])
@pytest.mark.parametrize("header", ["", "Retry-After: 3600\r\n"])
async def test_status_for_one_tenant_does_not_affect_another(status: int, header: str) -> None:
    async with tenants() as (server, gateway):
        assert await works(gateway)
        server.answers["greedy"] = (status, header)
        for _ in range(6):
            with pytest.raises(PorticoError):
                await gateway(call_of("crm_work", tenant="greedy"))
        assert await works(gateway)
        assert await works(gateway, "ada"), "the same principal with the headers of another tenant"
        assert gateway.status()[0]["up"]


async def test_call_without_the_header_that_an_upstream_needs_does_not_affect_others() -> None:
    async with tenants() as (server, gateway):
        server.answers[""] = (400, "")
        for _ in range(3):
            with pytest.raises(Exception, match="crm"):
                await gateway(call_of("crm_work"))
        assert await works(gateway)


async def test_different_headers_do_not_create_different_callers() -> None:
    async with tenants() as (server, gateway):
        assert await works(gateway)
        for number in range(12):
            server.answers[f"t{number}"] = (503, "")
            with pytest.raises(ToolError):
                await gateway(call_of("crm_work", tenant=f"t{number}"))
        assert await works(gateway)


async def test_retry_after_binds_its_tenant_and_is_capped() -> None:
    async with tenants() as (server, gateway):
        assert await works(gateway, "ada", "greedy")
        server.answers["greedy"] = (429, "Retry-After: 86400\r\n")
        with pytest.raises(ToolError) as refusal:
            await gateway(call_of("crm_work", tenant="greedy"))
        assert refusal.value.details["retry_after"] <= accounting.MAX_RETRY_AFTER_SECONDS
        before = server.heard["greedy tools/call"]
        with pytest.raises(ToolError, match="The next attempt is in"):
            await gateway(call_of("crm_work", tenant="greedy"))
        assert server.heard["greedy tools/call"] == before, "the tenant was told to wait"
        assert gateway.status()[0]["refused_callers"] == 1


async def test_oversized_bodies_do_not_open_a_breaker() -> None:
    async with tenants() as (_, gateway):
        for _ in range(6):
            with pytest.raises(ToolError, match="413"):
                await gateway(call_of("crm_work", "ada", "acme", text="x" * 20_000))
        assert await works(gateway, "ada")


@pytest.mark.parametrize("tool", ["crm_slow", "crm_fails", "crm_breaks"])
@pytest.mark.parametrize("forward", [[], ["x-tenant"]])
async def test_calls_that_fail_for_one_caller_do_not_affect_another(tool: str, forward: list[str]) -> None:
    """Also at an upstream to which all callers look the same."""
    async with tenants(timeout=0.3, forward_headers=forward) as (_, gateway):
        assert await works(gateway)
        for _ in range(6):
            with pytest.raises(ToolError):
                await gateway(call_of(tool, "ada", "acme"))
        with pytest.raises(ToolError, match="The next attempt is in"):
            await gateway(call_of("crm_work", "ada", "acme"))
        assert await works(gateway)


async def test_failures_of_several_callers_in_a_row_open_the_shared_breaker() -> None:
    async with tenants() as (_, gateway):
        for number in range(6):
            with pytest.raises(ToolError):
                await gateway(call_of("crm_fails", f"user-{number % 3}", "acme"))
        with pytest.raises(ToolError, match="The next attempt is in"):
            await works(gateway)
        assert not gateway.status()[0]["up"]


async def test_success_in_between_keeps_the_shared_breaker_closed() -> None:
    async with tenants() as (_, gateway):
        for number in range(12):
            with pytest.raises(ToolError):
                await gateway(call_of("crm_fails", f"user-{number}", "acme"))
            assert await works(gateway)


async def test_breakers_of_callers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_CALLER_BREAKERS", 3)
    async with tenants() as (server, gateway):
        for number in range(6):
            server.answers[f"t{number}"] = (404, "")
            with pytest.raises(ToolError):
                await gateway(call_of("crm_work", tenant=f"t{number}"))
        assert len(gateway._router.upstreams["crm"].health._callers) == 3


async def test_greeting_that_hangs_for_one_tenant_does_not_block_another() -> None:
    async with tenants() as (server, gateway):
        hanging = asyncio.ensure_future(gateway(call_of("crm_work", tenant="hangs")))
        async with asyncio.timeout(20):
            while not server.heard["hangs initialize"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await works(gateway)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)


# Connections


async def busy_lanes(gateway: Gateway, count: int, alias: str = "crm") -> None:
    async with asyncio.timeout(20):
        while sum(lane.in_flight for lane in gateway._router.upstreams[alias].connections) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_slow_calls_of_one_caller_leave_connections_to_others() -> None:
    """With a connection for each header value, which were all idle before."""
    async with tenants(max_connections=8) as (_, gateway):
        for number in range(8):
            assert await works(gateway, "ada", f"t{number}")
        slow = [asyncio.ensure_future(gateway(call_of("crm_slow", "ada", f"t{number}"))) for number in range(8)]
        await busy_lanes(gateway, 6)
        assert await works(gateway)
        assert sum(lane.in_flight for lane in gateway._router.upstreams["crm"].connections) == 6
        for item in slow:
            item.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert await works(gateway, "ada", "t9")


async def test_calls_that_wait_for_a_connection_give_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_WAIT_SECONDS", 0.2)
    async with tenants(max_connections=1, forward_headers=[]) as (server, gateway):
        first = asyncio.ensure_future(gateway(call_of("crm_slow", "ada", "a")))
        await busy_lanes(gateway, 1)
        with pytest.raises(ToolError, match="no free connection for this caller"):
            await gateway(call_of("crm_work", "bob", "b"))
        server.gate.set()
        assert b"done" in bytes(await first)
        assert await works(gateway)


async def test_connections_of_a_caller_with_many_are_closed_first() -> None:
    async with tenants(max_connections=6) as (_, gateway):
        assert await works(gateway, "bob", "bobs")
        lanes = gateway._router.upstreams["crm"].connections
        before = [lane for lane in lanes if lane.owner == BOB]
        assert before
        for number in range(12):
            assert await works(gateway, "ada", f"t{number}")
        assert [lane for lane in lanes if lane.owner == BOB] == before


ASKS = PROGRAMS / "elicitation_server.py"


async def test_suspended_call_is_not_evicted_for_a_caller_with_more() -> None:
    gateway = Gateway()
    gateway.add_upstream("one", [sys.executable, str(ASKS)], protocol_version=REVISION, max_connections=4)
    able = ClientCapabilities(elicitation={"form": {}})

    def ask(who: str) -> Call:
        params = Raw(b'{"name":"one_greet","arguments":{}}')
        return Call(
            method="tools/call", params=params, id=1, protocol_version="2026-07-28", principal=who, capabilities=able
        )

    async with gateway.lifespan():
        await gateway.wait_until_listed(20)
        gateway._router.upstreams["one"].connections.require_exclusive()
        await gateway(ask("bob"))
        for _ in range(6):
            await gateway(ask("ada"))
        owners = Counter(parked.owner for parked in gateway._bridge._parked.values())
        assert owners[BOB] == 1
        assert owners[ADA] >= 1


# Calls at once


def caller(who: str) -> Call:
    return Call(method="tools/call", id=1, principal=who)


async def test_one_caller_cannot_occupy_all_slots_or_the_queue() -> None:
    room = ConcurrencyLimit(8, 8, 20.0)
    items = []
    while (owner := room.take(caller("ada"))) is not None:
        items.append(owner)
    assert len(items) == 6
    waiting = [asyncio.ensure_future(room.acquire(caller("ada"))) for _ in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(asyncio.QueueFull):
        await room.acquire(caller("ada"))
    mine = room.take(caller("bob"))
    assert mine == BOB
    room.release(mine)
    for owner in items:
        room.release(owner)
    async with asyncio.timeout(20):
        for item in waiting:
            room.release(await item)
    assert not room.busy


async def test_slots_are_granted_round_robin_and_never_lost() -> None:
    room = ConcurrencyLimit(1, 100, 20.0)
    first = room.take(caller("eve"))
    assert first is not None
    order: list[str] = []

    async def work(who: str) -> None:
        owner = await room.acquire(caller(who))
        order.append(who)
        room.release(owner)

    tasks = [asyncio.ensure_future(work(who)) for who in ["ada"] * 5 + ["bob"]]
    gone = asyncio.ensure_future(work("carl"))
    await asyncio.sleep(0)
    gone.cancel()
    room.release(first)
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert order[:2] == ["ada", "bob"]
    assert not room.busy


async def test_waiting_for_a_place_ends_in_time() -> None:
    room = ConcurrencyLimit(1, 100, 0.05)
    assert room.take(caller("eve")) is not None
    with pytest.raises(TimeoutError):
        await room.acquire(caller("ada"))
