"""Cache hints of merged lists: the shortest TTL, and public only if all upstreams agree."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, json

from portico import Server
from portico.extend import Call
from portico.server.options import CacheHint
from portico_gateway import Gateway


def upstream(name: str, **hints: Any) -> Server:
    server = Server(name, **hints)

    @server.tool
    async def work() -> str:
        return name

    return server


async def listed(gateway: Gateway, method: str = "tools/list") -> Any:
    return json.decode(await gateway(Call(method=method, params=Raw(b"{}"), id=1, protocol_version="2026-07-28")))


PUBLIC: dict[str, Any] = {"cache": CacheHint(60_000, "public")}


@pytest.mark.parametrize(
    "a, b, scope, most",
    [
        (PUBLIC, PUBLIC, "public", 60_000),
        (PUBLIC, {"cache": CacheHint(30_000, "public")}, "public", 30_000),
        (PUBLIC, {"cache": CacheHint(60_000)}, "private", 60_000),
        (PUBLIC, {}, "private", 0),
    ],
)
async def test_list_is_as_good_as_its_parts(a: Any, b: Any, scope: str, most: int) -> None:
    gateway = Gateway({"a": upstream("a", **a), "b": upstream("b", **b)}, max_result_tokens=0)
    async with gateway.lifespan():
        result = await listed(gateway)
    assert (result["cacheScope"], result["ttlMs"] <= most, bool(result["ttlMs"]) == bool(most)) == (scope, True, True)


async def test_cache_hint_includes_own_components_of_the_gateway() -> None:
    gateway = Gateway({"a": upstream("a", **PUBLIC)}, max_result_tokens=0)

    @gateway.tool
    async def own() -> str:
        return "own"

    async with gateway.lifespan():
        result = await listed(gateway)
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


async def test_fresh_list_is_not_fetched_again() -> None:
    requests: list[str] = []

    def watch(inner: Any) -> Any:
        async def watched(call: Call) -> Any:
            requests.append(call.method)
            return await inner(call)

        return watched

    good, unknown = upstream("good", **PUBLIC), upstream("unknown")
    good.add_middleware(watch)
    gateway = Gateway({"good": good, "unknown": unknown}, max_result_tokens=0)
    async with gateway.lifespan():
        for _ in range(5):
            await listed(gateway)
        assert requests.count("tools/list") == 1
        # When its time is over it is asked anew, and what there was is shown meanwhile.
        item = gateway._router.upstreams["good"]
        item.catalog.shared.fresh_until = 0.0
        assert len((await listed(gateway))["tools"]) == 2
        await item.wait_until_listed()
        assert requests.count("tools/list") == 2
        assert item.catalog.shared.fresh_until > 0
