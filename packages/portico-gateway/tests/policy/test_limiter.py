"""Rate limits: keys, bursts and responses to limited callers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from portico import Client, Context, Server, ToolError, UsageError
from portico.auth.principal import Principal
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import InvalidParams, ProtocolError, TooManyRequests
from portico.protocol.meta import ClientCapabilities
from portico.rpc.call import Call
from portico.rpc.rate_limit import RateLimit, parse_rate
from portico.server.policy import settings as access_settings
from portico.server.policy.interfaces import PolicyContext, QualifiedName
from portico_gateway import Gateway
from portico_gateway.policy import concurrency_leases, limiter, shared_limit_store
from portico_gateway.policy.limiter import PolicyLimiter
from portico_gateway.policy.settings import parse_limits
from portico_services.contracts import Contracts
from support.access_control import post

ANN, BOB = Principal("ann"), Principal("bob")


def said(server: Server, *limits: dict[str, Any]) -> Server:
    access_settings.apply(server, access_settings.read({"limit": list(limits)}))
    return server


def house() -> Server:
    server = Server("house")

    @server.tool(aliases=["quick"])
    def cheap() -> str:
        """Cheap."""
        return "done"

    @server.tool
    def dear() -> str:
        """Dear."""
        return "done"

    @server.tool
    async def nested(ctx: Context) -> str:
        """Call another."""
        await ctx.call_tool("cheap")
        return "done"

    @server.tool
    async def asking(ctx: Context) -> str:
        """Ask."""
        return str((await ctx.elicit("Well?", bool)).data)

    return server


async def granted(client: Client, name: str, times: int) -> int:
    """How many of so many calls were made."""
    done = 0
    for _ in range(times):
        result = await client.call_tool(name, raise_on_error=False)
        if not result.is_error:
            done += 1
            continue
        about = (result.meta or {})["portico/error"]
        assert about["error_type"] == "ApiLimitExceeded" and about["retryable"] and about["retry_after"] > 100
        assert f"Wait {about['retry_after']} s" in result.text
    return done


@given(
    st.floats(0.01, 100),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 3)), max_size=60),
)
def test_never_more_than_the_rate_and_the_burst(interval: float, burst: int, asked: list[tuple[float, int]]) -> None:
    rate = RateLimit(interval, burst)
    now, due, item = 1000.0, 0.0, 0.0
    for pause, cost in asked:
        now += pause
        due, wait = rate.acquire(due, now, cost)
        if not wait:
            item += cost
        elif cost <= burst:
            # Those who wait as long as they were told to are served.
            assert not rate.acquire(due, now + wait + 1e-6, cost).retry_after
        assert item <= burst + (now - 1000.0) / interval + 1e-6


@pytest.mark.parametrize(
    "text, interval, burst",
    [("30/min", 2.0, 30), ("5/s", 0.2, 5), ("1000/day", 86.4, 1000), ("6 / 10 seconds", 10 / 6, 6), ("0.5/s", 2.0, 1)],
)
def test_rates_accept_common_notations(text: str, interval: float, burst: float) -> None:
    assert parse_rate("", text, None) == RateLimit(pytest.approx(interval), burst)


async def test_each_principal_has_its_own_and_every_name_of_a_tool_is_one() -> None:
    server = said(house(), {"by": ["principal", "tool"], "rate": "3/hour"})
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        assert await granted(ann, "cheap", 2) == 2
        assert await granted(ann, "quick", 5) == 1
        assert await granted(ann, "dear", 5) == 3
        assert await granted(bob, "cheap", 5) == 3


async def test_dear_tool_counts_for_more() -> None:
    server = said(house(), {"rate": "10/hour", "tool": "*", "cost": {"house.dear": 4}})
    async with Client(server, principal=ANN) as client:
        assert await granted(client, "dear", 5) == 2
        assert await granted(client, "cheap", 5) == 2


async def test_direct_calls_batches_and_calls_of_bodies_count_alike() -> None:
    server = house()
    server.add(Contracts())
    said(server, {"rate": "5/hour", "tool": "house.cheap"})
    async with Client(server, principal=ANN) as client:
        assert await granted(client, "cheap", 1) == 1
        await client.call_tool("nested")
        result = await client.call_tool("tools_batch", {"calls": [{"tool_name": "cheap"}] * 5})
        kinds = [one["status"] for one in result.structured["results"]]
        assert kinds == ["success"] * 3 + ["failure"] * 2
        assert result.structured["results"][4]["error"]["error_type"] == "ApiLimitExceeded"


async def test_upstream_and_a_mount_are_counted_by_their_owner() -> None:
    gateway = said(Gateway({"one": house(), "two": house()}), {"by": "provider", "rate": "2/hour"})
    async with Client(gateway, principal=ANN) as client:
        await client.list_tools()
        assert await granted(client, "one_cheap", 1) + await granted(client, "one_dear", 3) == 2
        assert await granted(client, "two_cheap", 3) == 2


async def test_round_that_continues_is_not_counted_again() -> None:
    async def elicit(params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={} if "sure" in params.message else {"value": True})

    server = house()
    access_settings.apply(
        server,
        access_settings.read(
            {"limit": [{"rate": "1/hour"}], "require": [{"tool": "*.asking", "confirm": "Are you sure?"}]}
        ),
    )
    async with Client(server, principal=ANN, elicitation_handler=elicit) as client:
        # The client's first request was counted too.
        server.set_policy(rate_limiter=PolicyLimiter(parse_limits([{"rate": "1/hour", "tool": "*"}])))
        assert (await client.call_tool("asking")).text == "True"
        assert await granted(client, "asking", 1) == 0


@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize(
    "responses",
    [
        None,
        {},
        {"another": {"action": "accept", "content": {}}},
        {"elicitation-1": {"nothing": "valid"}, "agreement-1": {"nothing": "valid"}},
    ],
)
async def test_round_without_a_valid_answer_counts_as_a_call(responses: Any, asks_first: bool) -> None:
    server = house()
    require = [{"tool": "*.asking", "confirm": "Are you sure?"}] if asks_first else []
    access_settings.apply(
        server, access_settings.read({"limit": [{"rate": "2/hour", "tool": "*"}], "require": require})
    )

    async def ask(**more: Any) -> Any:
        params = {"name": "asking", "arguments": {}, **more}
        raw = msgspec.Raw(msgspec.json.encode(params))
        capabilities = ClientCapabilities(elicitation={"form": {}})
        return await server(
            Call(
                method="tools/call",
                id=1,
                params=raw,
                protocol_version="2026-07-28",
                principal=ANN,
                capabilities=capabilities,
            )
        )

    more = {} if responses is None else {"inputResponses": responses}
    response = await ask()
    with pytest.raises((ToolError, InvalidParams)) as refused:
        for _ in range(3):
            response = await ask(requestState=response.request_state, **more)
    if isinstance(refused.value, InvalidParams):
        # The body has refused the answer, and that round was counted.
        assert "Invalid response" in str(refused.value)
        with pytest.raises(ToolError, match="Too many calls"):
            await ask()
    else:
        assert "Too many calls" in str(refused.value)


async def test_no_more_at_once_than_allowed_and_a_call_does_not_wait_for_itself() -> None:
    server, entered, leave = house(), asyncio.Event(), asyncio.Event()

    @server.tool
    async def slow(ctx: Context) -> str:
        """Wait."""
        entered.set()
        await leave.wait()
        return "done"

    said(server, {"max_concurrency": 1})
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        assert (await ann.call_tool("nested")).text == "done"
        waiting = asyncio.create_task(ann.call_tool("slow"))
        async with asyncio.timeout(10):
            await entered.wait()
            with pytest.raises(ToolError, match="Too many calls"):
                await ann.call_tool("cheap")
            assert (await bob.call_tool("cheap")).text == "done"
            leave.set()
            await waiting
            assert (await ann.call_tool("cheap")).text == "done"


async def test_other_methods_and_floods_are_rejected_in_the_protocol() -> None:
    server = said(house(), {"rate": "5/hour", "tool": "*"})
    limited = said(house(), {"rate": "1/hour"})

    async def ask(to: Server, method: str, **params: Any) -> Any:
        return await to(
            Call(
                method=method,
                id=1,
                params=msgspec.Raw(msgspec.json.encode(params)),
                protocol_version="2026-07-28",
                principal=ANN,
            )
        )

    await ask(limited, "tools/list")
    with pytest.raises(TooManyRequests) as refused:
        await ask(limited, "tools/list")
    assert refused.value.data == {"retryAfter": 3600}
    kinds = []
    for _ in range(5 + limiter.FLOOD_REJECTIONS + 2):
        try:
            await ask(server, "tools/call", name="cheap")
            kinds.append("done")
        except (ToolError, ProtocolError) as failure:
            kinds.append(type(failure).__name__)
    assert kinds == ["done"] * 5 + ["ToolError"] * limiter.FLOOD_REJECTIONS + ["TooManyRequests"] * 2


async def test_over_http_it_is_a_429_with_the_seconds() -> None:
    server = said(house(), {"by": "ip", "rate": "1/hour"})
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/list",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        },
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/list",
    }
    async with server.lifespan():
        assert (await post(server.http_app(), body, headers))[0] == 200
        status, said_headers, answer = await post(server.http_app(), body, headers)
    assert status == 429 and 3500 < int(said_headers[b"retry-after"]) <= 3600
    assert answer["error"]["code"] == -32005


def a_passage(principal: Principal = ANN) -> PolicyContext:
    return PolicyContext(Call(method="tools/call", principal=principal), "tool", QualifiedName("house", "cheap"))


async def count(meter: PolicyLimiter, times: int) -> int:
    done = 0
    for _ in range(times):
        passage = a_passage()
        try:
            waiting = meter.on_component(passage)
            if waiting is not None:
                await waiting
            done += 1
        except (ToolError, TooManyRequests):
            pass
    return done


async def share(url: str) -> None:
    """Two processes with one store allow together what one would, but for what one of them has taken and not spent."""
    limits = parse_limits([{"rate": "20/hour", "tool": "*"}])
    item, two = PolicyLimiter(limits, lambda: url), PolicyLimiter(limits, lambda: url)
    async with item.lifespan(), two.lifespan():
        assert await count(item, 12) == 12
        assert await count(two, 12) == 8
        assert await count(item, 3) == 0
    fast = parse_limits([{"rate": "4000/hour", "burst": 100, "tool": "*", "name": "fast"}])
    many = [PolicyLimiter(fast, lambda: url) for _ in range(3)]
    async with many[0].lifespan(), many[1].lifespan(), many[2].lifespan():
        began = time.monotonic()
        done = sum(await asyncio.gather(*(count(item, 60) for item in many)))
        assert 90 <= done <= 100 + 2 + 4000 / 3600 * (time.monotonic() - began)


async def test_processes_share_a_limit_by_a_file(tmp_path: Path) -> None:
    await share(f"sqlite:///{tmp_path / 'portico.db'}")


async def test_strangers_leave_no_rows_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address that a request comes from is a row while it counts, and not for as long as the server runs."""
    monkeypatch.setattr(shared_limit_store, "CLEANUP_INTERVAL_SECONDS", 0.0)
    store, rate = shared_limit_store.SharedLimitStore(url), RateLimit(1e-9, 1.0)
    await store.open()
    for stranger in range(20):
        assert await store.lease_permits(f"10.0.0.{stranger}", rate, 1.0)
    assert store._database is not None
    assert await store._database.read(lambda tx: tx.fetch_one(int, "select count(*) from portico_quota")) < 20
    await store.close()


async def test_processes_share_a_limit_by_postgresql(postgres_url: str) -> None:
    await share(postgres_url)


# Calls at once, over all processes


async def begun(meter: PolicyLimiter, most: int) -> list[PolicyContext]:
    """The calls that may begin, of so many, and do not end."""
    passages = [a_passage() for _ in range(most)]

    async def begin(passage: PolicyContext) -> bool:
        try:
            waiting = meter.on_component(passage)
            if waiting is not None:
                await waiting
        except (ToolError, TooManyRequests):
            return False
        return True

    async with asyncio.timeout(10):
        may = await asyncio.gather(*map(begin, passages))
    return [passage for passage, allowed in zip(passages, may, strict=True) if allowed]


def processes(url: str, count: int, most: int) -> list[PolicyLimiter]:
    """As many as there would be with so many workers."""
    return [PolicyLimiter(parse_limits([{"max_concurrency": most, "tool": "*"}]), lambda: url) for _ in range(count)]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'portico.db'}"
    response: str = request.getfixturevalue("postgres_url")
    return response


async def test_no_more_at_once_than_allowed_in_all_processes_together(url: str) -> None:
    item, two, three = processes(url, 3, 4)
    async with item.lifespan(), two.lifespan(), three.lifespan():
        mine = await begun(item, 3)
        both = await asyncio.gather(begun(two, 4), begun(three, 4))
        assert len(mine) == 3 and sum(map(len, both)) == 1
        for passage in mine:
            item.on_response(passage)
        # Soon: those who were refused are told to wait for a second.
        after: list[PolicyContext] = []
        async with asyncio.timeout(10):
            while len(after) < 3:
                after += await begun(two, 4) + await begun(three, 4)
        assert len(after) == 3
        assert not await begun(item, 1)


async def test_sequential_calls_are_never_rejected(url: str) -> None:
    item, two = processes(url, 2, 1)
    async with item.lifespan(), two.lifespan():
        for meter in (item, two) * 5:
            [passage] = await begun(meter, 1)
            meter.on_response(passage)


async def test_slots_of_an_exited_process_are_released(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limit_store, "SLOT_LEASE_SECONDS", 1.0)
    monkeypatch.setattr(concurrency_leases, "SLOT_LEASE_SECONDS", 1.0)
    item, two = processes(url, 2, 2)
    async with item.lifespan(), two.lifespan():
        assert len(await begun(item, 2)) == 2
        # It says nothing more, as one that is stopped.
        assert item._slots is not None
        item._slots._renewing.cancel()
        assert not await begun(two, 1)
        items: list[PolicyContext] = []
        async with asyncio.timeout(10):
            while not items:
                await asyncio.sleep(0.05)
                items = await begun(two, 1)
        # One that wakes up has no more than the others have left.
        assert not await begun(item, 1)
        assert len(items) == 1


async def test_slots_that_are_in_use_are_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (shared_limit_store, "SLOT_LEASE_SECONDS", 0.8),
        (concurrency_leases, "SLOT_LEASE_SECONDS", 0.8),
        (concurrency_leases, "RENEW_INTERVAL_SECONDS", 0.1),
    ):
        monkeypatch.setattr(module, name, seconds)
    item, two = processes(url, 2, 1)
    async with item.lifespan(), two.lifespan():
        assert await begun(item, 1)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert not await begun(two, 1)


async def test_store_is_not_requested_each_call_where_the_limit_is_far(url: str) -> None:
    [meter] = processes(url, 1, 100)
    async with meter.lifespan():
        request = 0
        for _ in range(200):
            waiting = meter.on_component(passage := a_passage())
            if waiting is not None:
                request += 1
                await waiting
            meter.on_response(passage)
        assert request <= 3


async def test_cancelled_call_releases_its_lease(url: str) -> None:
    item, two = processes(url, 2, 1)
    async with item.lifespan(), two.lifespan():
        waiting = item.on_component(a_passage())
        assert waiting is not None
        asking = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        asking.cancel()
        async with asyncio.timeout(10):
            while not await begun(two, 1):
                pass


async def test_server_that_is_started_again_has_no_slots_of_before(url: str) -> None:
    item, two = processes(url, 2, 4)
    async with item.lifespan():
        before = await begun(item, 4)
        assert len(before) == 4
    for passage in before:
        item.on_response(passage)
    async with two.lifespan(), item.lifespan():
        assert len(await begun(two, 4)) == 4
        assert not await begun(item, 1)


async def test_without_its_store_each_process_counts_for_itself(tmp_path: Path) -> None:
    nowhere = f"sqlite:///{tmp_path / 'no' / 'such' / 'folder.db'}"
    meter = PolicyLimiter(parse_limits([{"rate": "3/hour", "tool": "*"}]), lambda: nowhere)
    async with meter.lifespan():
        assert await count(meter, 5) == 3


async def test_rate_limit_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "MAX_BUCKETS", 10)
    meter = PolicyLimiter(parse_limits([{"rate": "3/hour", "tool": "*"}]))
    for at in range(100):
        meter.on_component(a_passage(Principal(str(at))))
    assert len(meter._buckets) == 10


@pytest.mark.parametrize(
    "table, words",
    [
        ({"rat": "1/s"}, ("rat", "rate")),
        ({"by": "principals", "rate": "1/s"}, ("by", "principal")),
        ({"rate": "fast"}, ("rate", "30/min")),
        ({}, ("rate", "concurrency")),
        ({"rate": "1/s", "burst": 0}, ("burst",)),
        ({"rate": "1/s", "cost": {"a.b": 5}}, ("cost", "burst")),
        ({"max_concurrency": 0}, ("concurrency",)),
    ],
)
def test_mistake_names_the_table_and_the_key(table: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as mistake:
        parse_limits([table])
    assert all(word in str(mistake.value) for word in ("[[limit]] 1", *words)), str(mistake.value)
