"""Catalogs are per caller if the upstream lists differ by caller, and shared otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import Client, Server, ToolError
from portico.auth import Principal
from portico.extend import Call
from portico.protocol.errors import ComponentNotFound, InternalError, MethodNotFound, ResourceNotFound
from portico.protocol.resources import ListResourcesResult, Resource
from portico.protocol.tools import ListToolsResult, Tool
from portico.server.components.auth_checks import require_scopes
from portico.server.options import CacheHint
from portico_gateway import Gateway
from portico_gateway.gateway import catalog

ADMIN = Principal("ann", frozenset({"admin"}))
ANN = Principal("ann", frozenset())
BOB = Principal("bob", frozenset())
# Who is on this machine may do everything; who comes over HTTP without a name is None.
LOCAL = Principal("local")

LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}


def guarded(**options: Any) -> Server:
    """A server that has something for everybody, and something for admins."""
    server = Server("notes", **options)
    for name, auth in (("read", None), ("erase", require_scopes("admin"))):
        server.tool(name=name, auth=auth)(lambda: "done")
        server.prompt(name=name, auth=auth)(lambda: "say")
        server.resource(f"notes://{name}", auth=auth)(lambda: "text")
        server.resource(f"{name}://{{id}}", auth=auth)(lambda id: "text")
    return server


async def ask(gateway: Any, method: str, principal: Principal | None = None, **params: Any) -> Any:
    about: dict[str, Any] = {"principal": None} if principal is LOCAL else {"principal": principal, "address": "::1"}
    call = Call(method=method, params=Raw(msgspec.json.encode(params)), id=1, protocol_version="2026-07-28", **about)
    result = await gateway(call)
    return msgspec.json.decode(result if isinstance(result, Raw) else msgspec.json.encode(result))


async def shown(gateway: Any, principal: Principal | None, method: str = "tools/list") -> list[str]:
    member, key = LISTS[method]
    return [item[key] for item in (await ask(gateway, method, principal))[member]]


@pytest.mark.parametrize(
    "order", [(LOCAL, ADMIN, ANN, BOB, None), (None, BOB, ANN, ADMIN, LOCAL)], ids=["admin first", "admin last"]
)
@pytest.mark.parametrize("method", LISTS)
async def test_callers_see_only_their_components(method: str, order: Any) -> None:
    gateway = Gateway({"n": guarded()}, max_result_tokens=0)
    async with gateway.lifespan():
        for _ in range(2):
            for principal in order:
                result = await shown(gateway, principal, method)
                assert len(result) == (2 if principal in (ADMIN, LOCAL) else 1), (principal, result)
                assert any("erase" in item for item in result) == (principal in (ADMIN, LOCAL))


@pytest.mark.parametrize("listed", [True, False])
async def test_unlisted_components_are_indistinguishable_from_missing_ones(listed: bool) -> None:
    gateway = Gateway({"n": guarded(), "m": guarded()}, max_result_tokens=0)
    async with gateway.lifespan():
        if listed:
            await shown(gateway, ADMIN)
            await shown(gateway, BOB)
        response = await ask(gateway, "tools/call", ADMIN, name="n_erase", arguments={})
        assert response["content"][0]["text"] == "done"
        assert (await ask(gateway, "resources/read", ADMIN, uri="notes://erase"))["contents"]
        refusals = []
        for name in ("n_erase", "n_other"):
            with pytest.raises(ComponentNotFound) as refusal:
                await ask(gateway, "tools/call", BOB, name=name, arguments={})
            refusals.append(str(refusal.value).replace(name, "it"))
        # Not even whether it is there.
        assert "erase" not in refusals[1]
        assert refusals[0].split(".")[0] == refusals[1].split(".")[0]
        with pytest.raises(ResourceNotFound):
            await ask(gateway, "resources/read", BOB, uri="notes://erase")


async def test_conflicting_name_resolves_to_the_visible_component() -> None:
    """Without prefixes: the first upstream hides its own from most."""
    first, second = Server("first"), Server("second")
    first.tool(name="work", auth=require_scopes("admin"))(lambda: "first")
    second.tool(name="work")(lambda: "second")
    gateway = Gateway(max_result_tokens=0)
    gateway.add_upstream("a", first, prefix="")
    gateway.add_upstream("b", second, prefix="")
    async with gateway.lifespan():
        for principal, answer in ((ADMIN, "first"), (BOB, "second"), (ADMIN, "first")):
            assert await shown(gateway, principal) == ["work"]
            response = await ask(gateway, "tools/call", principal, name="work", arguments={})
            assert response["content"][0]["text"] == answer


async def test_public_catalog_is_requested_once_for_all_users() -> None:
    requests: list[str] = []

    def watch(inner: Any) -> Any:
        async def watched(call: Call) -> Any:
            requests.append(call.method)
            return await inner(call)

        return watched

    server = Server("open", cache=CacheHint(60_000, "public"))
    server.tool(name="work")(lambda: "done")
    server.add_middleware(watch)
    gateway = Gateway({"a": server}, max_result_tokens=0)
    async with gateway.lifespan():
        for principal in (BOB, ANN, None, ADMIN, LOCAL):
            assert await shown(gateway, principal) == ["a_work"]
    assert requests.count("tools/list") == 1


async def test_public_is_not_said_of_a_list_that_depends_on_the_caller() -> None:
    gateway = Gateway({"n": guarded(cache=CacheHint(60_000, "public"))}, max_result_tokens=0)
    async with gateway.lifespan():
        response = await ask(gateway, "tools/list", ADMIN)
        assert response["cacheScope"] == "private"
        assert await shown(gateway, BOB) == ["n_read"]
        assert len(await shown(gateway, ADMIN)) == 2


async def test_callers_with_equal_catalogs_share_memory() -> None:
    gateway = Gateway({"n": guarded()}, max_result_tokens=0)
    async with gateway.lifespan():
        people = [Principal(f"p{number}", frozenset()) for number in range(50)]
        for item in people:
            await shown(gateway, item)
        of = gateway._router.upstreams["n"].catalog
        names = {id(of.get(Call(method="tools/list", principal=item)).entries) for item in people}
        assert len(names) == 1
        assert len(gateway._router._tables) == 0


async def test_caller_catalogs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_CALLER_CATALOGS", 3)
    gateway = Gateway({"n": guarded()}, max_result_tokens=0)
    async with gateway.lifespan():
        for number in range(10):
            scopes = frozenset({"admin"} if number % 2 else ())
            assert len(await shown(gateway, Principal(f"p{number}", scopes))) == 1 + number % 2
        assert len(gateway._router.upstreams["n"].catalog._callers) == 3
        assert len(await shown(gateway, Principal("p1", frozenset({"admin"})))) == 2


async def test_newly_authorized_tool_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MIN_REFRESH_SECONDS", 0.0)
    admins: set[str] = set()
    server = Server("notes")
    server.tool(name="erase", auth=lambda context: context.token is not None and context.principal.id in admins)(
        lambda: "erased"
    )
    gateway = Gateway({"n": server}, max_result_tokens=0)
    async with gateway.lifespan():
        assert await shown(gateway, BOB) == []
        with pytest.raises(ComponentNotFound):
            await ask(gateway, "tools/call", BOB, name="n_erase", arguments={})
        admins.add("bob")
        response = await ask(gateway, "tools/call", BOB, name="n_erase", arguments={})
        assert response["content"][0]["text"] == "erased"
        assert await shown(gateway, BOB) == ["n_erase"]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_changes_are_notified_to_permitted_callers(revision: Any) -> None:
    server = guarded()
    gateway = Gateway({"n": server}, max_result_tokens=0)

    def known(inner: Any) -> Any:
        async def as_admin(call: Call) -> Any:
            return await inner(msgspec.structs.replace(call, principal=ADMIN))

        return as_admin

    gateway.add_middleware(known)
    async with Client(gateway, protocol_version=revision) as client, client.listen(tools=True) as changes:
        assert len(await client.list_tools()) == 2
        server.tool(name="more", auth=require_scopes("admin"))(lambda: "more")
        async with asyncio.timeout(20):
            await anext(aiter(changes))
            assert {tool.name for tool in await client.list_tools(refresh=True)} == {"n_read", "n_erase", "n_more"}


async def test_hanging_upstream_does_not_delay_other_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(call: Call) -> Any:
        if call.principal == BOB and call.method == "tools/list":
            await asyncio.Event().wait()
        if call.method == "tools/list":
            tool = Tool(name="work", input_schema={"type": "object"})
            return ListToolsResult(tools=[tool], ttl_ms=0, cache_scope="private")
        raise MethodNotFound(call.method)

    monkeypatch.setattr(Gateway, "first_list_seconds", 0.2)
    gateway = Gateway({"a": handler}, max_result_tokens=0)
    async with gateway.lifespan(), asyncio.timeout(20):
        assert await shown(gateway, BOB) == []
        assert await shown(gateway, ANN) == ["a_work"]
        assert await shown(gateway, None) == ["a_work"]


async def test_private_catalog_is_not_shared_while_it_becomes_public() -> None:
    begun, going_on = asyncio.Event(), asyncio.Event()
    name, scope = "secret", "private"

    async def handler(call: Call) -> Any:
        local = call.principal is None and call.address is None
        if call.method == "tools/list":
            tool = Tool(name=name, input_schema={"type": "object"})
            return ListToolsResult(tools=[tool], ttl_ms=0, cache_scope=scope)
        if call.method == "prompts/list" and local and scope == "public":
            begun.set()
            await going_on.wait()
        raise MethodNotFound(call.method)

    gateway = Gateway({"a": handler}, max_result_tokens=0)
    async with gateway.lifespan(), asyncio.timeout(20):
        assert await shown(gateway, LOCAL) == ["a_secret"]
        name, scope = "open", "public"
        reading = asyncio.ensure_future(gateway._router.upstreams["a"].refresh())
        await begun.wait()
        assert await shown(gateway, BOB) == ["a_open"]
        going_on.set()
        await reading


async def test_catalog_that_becomes_private_is_separate_per_caller() -> None:
    begun, going_on = asyncio.Event(), asyncio.Event()
    public = True

    async def handler(call: Call) -> Any:
        if call.method != "tools/list":
            raise MethodNotFound(call.method)
        name = "open" if public else call.principal.id if call.principal else "secret"
        if name == "secret":
            begun.set()
            await going_on.wait()
        tool = Tool(name=name, input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], ttl_ms=60_000, cache_scope="public" if public else "private")

    gateway = Gateway({"a": handler}, max_result_tokens=0)
    async with gateway.lifespan(), asyncio.timeout(20):
        assert await shown(gateway, BOB) == ["a_open"]
        public = False
        upstream = gateway._router.upstreams["a"]
        ours = asyncio.ensure_future(upstream.refresh())
        await begun.wait()
        await upstream.refresh(by=Call(method="tools/list", principal=BOB, address="::1"))
        going_on.set()
        await ours
        assert await shown(gateway, BOB) == ["a_bob"]
        assert await shown(gateway, ANN) == ["a_ann"]
        assert await shown(gateway, LOCAL) == ["a_secret"]


async def test_private_list_that_fails_is_not_shown_to_all_with_the_public_ones() -> None:
    failing = False

    async def handler(call: Call) -> Any:
        if call.method == "tools/list":
            tool = Tool(name="work", input_schema={"type": "object"})
            return ListToolsResult(tools=[tool], ttl_ms=0, cache_scope="public")
        if call.method == "resources/list":
            if failing:
                raise InternalError("no")
            own = Resource(uri=f"notes://{call.principal.id}", name="own")
            return ListResourcesResult(resources=[own], ttl_ms=0, cache_scope="private")
        raise MethodNotFound(call.method)

    gateway = Gateway({"a": handler}, max_result_tokens=0)
    async with gateway.lifespan():
        assert await shown(gateway, ANN, "resources/list") == ["notes://ann"]
        failing = True
        await gateway._router.upstreams["a"].refresh(by=Call(method="tools/list", principal=ANN, address="::1"))
        assert await shown(gateway, ANN, "resources/list") == ["notes://ann"]
        assert await shown(gateway, BOB, "resources/list") == []


async def test_shared_lists_are_not_fetched_per_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def handler(call: Call) -> Any:
        if call.method != "tools/list":
            raise MethodNotFound(call.method)
        if call.principal == BOB:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        tool = Tool(name="work", input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], ttl_ms=60_000, cache_scope="public")

    monkeypatch.setattr(Gateway, "first_list_seconds", 0.1)
    gateway = Gateway({"a": handler}, max_result_tokens=0)
    async with gateway.lifespan(), asyncio.timeout(20):
        assert await shown(gateway, BOB) == []
        assert await shown(gateway, ANN) == ["a_work"]
        assert await shown(gateway, BOB) == ["a_work"]
        await ended.wait()


async def test_failed_upstream_is_listed_after_recovery(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    async def handler(call: Call) -> Any:
        if broken:
            raise ZeroDivisionError("secret")
        tool = Tool(name="work", input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], ttl_ms=0, cache_scope="private")

    gateway = Gateway({"a": handler, "n": guarded()}, max_result_tokens=0)
    async with gateway.lifespan():
        assert await shown(gateway, BOB) == ["n_read"]
        assert "cannot list a" in caplog.text
        broken = False
        assert await shown(gateway, BOB) == ["a_work", "n_read"]


async def test_private_catalog_is_not_stored_for_other_users(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/kept.db"
    for principal, tools in ((LOCAL, 2), (None, 1), (BOB, 1), (ADMIN, 2)):
        gateway = Gateway({"n": guarded()}, store=store, max_result_tokens=0)
        async with gateway.lifespan():
            assert len(await shown(gateway, principal)) == tools


async def test_tool_search_results_are_per_caller() -> None:
    gateway = Gateway({"n": guarded()}, max_result_tokens=0)
    gateway.add_view("all")
    async with gateway.lifespan():
        for principal, names in ((ADMIN, ["n_read", "n_erase"]), (BOB, ["n_read"])):
            assert await shown(gateway.views["all"], principal) == names
        with pytest.raises((ComponentNotFound, ToolError)):
            await ask(gateway.views["all"], "tools/call", BOB, name="n_erase", arguments={})


@pytest.mark.parametrize("alike", [True, False], ids=["nearly the same", "all others"])
async def test_caller_catalog_is_merged_once_per_change(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many callers there are: when all of their lists have changed, each is looked at once."""
    callers, tools, looked_at = 40, 20, 0
    news = {"title": ""}

    async def handler(call: Call) -> Any:
        if call.method != "tools/list":
            raise MethodNotFound(call.method)
        who = call.principal.id if call.principal is not None else "nobody"
        names = [f"{'' if alike else who}{number}" for number in range(tools)]
        results = [Tool(name=name, **news, input_schema={"type": "object"}) for name in (*names, who)]
        return ListToolsResult(tools=results, ttl_ms=0, cache_scope="private")

    digest = catalog.CatalogEntry.digest

    def counted(entry: catalog.CatalogEntry) -> bytes:
        nonlocal looked_at
        looked_at += 1
        return digest(entry)

    monkeypatch.setattr(catalog.CatalogEntry, "digest", counted)
    gateway = Gateway({"up": handler}, max_result_tokens=0)
    async with gateway.lifespan():
        known_names = gateway._router.upstreams["up"].catalog
        for news["title"] in ("1", "2"):
            known_names.mark_stale()
            looked_at = 0
            for number in range(callers):
                shown_to = await shown(gateway, Principal(f"caller{number}"))
                assert f"caller{number}" in " ".join(shown_to)
            assert looked_at <= 2 * callers * (tools + 1)
        everything = known_names.merged.entries["tools/list"]
        assert {bytes(entry.members["title"]) for entry in everything} == {b'"2"'}
