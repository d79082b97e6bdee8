"""For any rules and any principal, the listed components are the callable ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from portico import Client, Server, Service
from portico.auth.principal import Principal
from portico.compat.mcp_sdk import LowLevelServer
from portico.protocol.errors import ComponentNotFound, ResourceNotFound
from portico.rpc.call import Call
from portico_gateway import Gateway
from portico_gateway.policy.engine import PolicyEngine
from portico_gateway.policy.settings import parse_rules

NAMES = ("read", "write", "Write", "delete_all")


def house(name: str) -> Server:
    server = Server(name)
    service = Service("files")
    for at, one in enumerate(NAMES):
        owner: Any = server if at % 2 else service
        owner.tool(one, aliases=[f"also_{one}"])(_nothing)
        owner.prompt(one)(_nothing)
        owner.resource(f"notes://{one}")(_nothing)
    server.resource("more://{id}")(_one)
    server.add(service)
    return server


def _nothing() -> str:
    return "done"


def _one(id: str) -> str:
    return id


def mounting() -> Server:
    server = house("outer")
    server.mount(house("inner"), "inner")
    plain = Server("plain")
    plain.tool("plainly", aliases=["read", "obviously"])(_nothing)
    server.mount(plain)
    return server


def gathering() -> Server:
    gateway = Gateway(name="gate", max_result_tokens=0)
    gateway.add_upstream("one", house("one"), rename={"delete_all": "tidy"})
    gateway.add_upstream("two", mounting())
    gateway.tool("own")(_nothing)
    return gateway


def answering() -> Server:
    """A server whose methods are answered by functions: it has nothing registered."""

    def lists(member: str, *entries: dict[str, Any]) -> Any:
        async def answer(ctx: Any, params: Any) -> Any:
            return {member: list(entries)}

        return answer

    def gives(result: dict[str, Any]) -> Any:
        async def answer(ctx: Any, params: Any) -> Any:
            return result

        return answer

    named = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
    return LowLevelServer(
        "outer",
        on_list_tools=lists("tools", *named),
        on_call_tool=gives({"content": []}),
        on_list_prompts=lists("prompts", *({"name": name} for name in NAMES)),
        on_get_prompt=gives({"messages": []}),
        on_list_resources=lists("resources", *({"name": name, "uri": f"notes://{name}"} for name in NAMES)),
        on_list_resource_templates=lists("resourceTemplates", {"name": "more", "uriTemplate": "more://{id}"}),
        on_read_resource=gives({"contents": []}),
    )


OWNERS = st.sampled_from(["*", "files", "outer", "inner", "plain", "one", "two", "gate", "i*", "?ne"])
PATTERNS = st.builds(
    "{}.{}".format, OWNERS, st.sampled_from(["*", "read", "write", "*e", "delete_*", "WRITE", "inner_*", "tidy", "own"])
)
URIS = st.builds(
    "{}.{}".format, OWNERS, st.sampled_from(["*", "notes://*", "notes://write", "notes://inner/*", "more://a*"])
)
WHO = st.sampled_from(["*", "ann", "group:a", "group:b", "scope:x", "anonymous", "local", "ann and group:a"])
RULES = st.lists(
    st.fixed_dictionaries(
        {"principal": WHO},
        optional={
            "tool": PATTERNS,
            "prompt": PATTERNS,
            "resource": URIS,
            "deny": st.booleans(),
            "dry_run": st.sampled_from([False, False, True]),
        },
    ),
    max_size=6,
)
PRINCIPALS = st.one_of(
    st.none(),
    st.builds(
        Principal,
        st.sampled_from(["ann", "bob"]),
        st.sampled_from([None, frozenset(), frozenset({"x"})]),
        st.frozensets(st.sampled_from(["a", "b"])),
    ),
)

KINDS = [
    ("tools/list", "tools", "name", "tools/call"),
    ("prompts/list", "prompts", "name", "prompts/get"),
    ("resources/list", "resources", "uri", "resources/read"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate", "resources/read"),
]


async def listed(server: Server, method: str, member: str, key: str, **about: Any) -> set[str]:
    page = await server(Call(method=method, id=1, protocol_version="2026-07-28", **about))
    return {item[key] for item in msgspec.json.decode(msgspec.json.encode(page))[member]}


async def can(server: Server, method: str, name: str, **about: Any) -> bool:
    params = msgspec.Raw(msgspec.json.encode({"uri" if method == "resources/read" else "name": name}))
    try:
        await server(Call(method=method, params=params, id=1, protocol_version="2026-07-28", **about))
    except (ComponentNotFound, ResourceNotFound):
        return False
    return True


@pytest.mark.parametrize(
    "build",
    [lambda: house("outer"), answering, mounting, gathering],
    ids=["server", "functions", "mount", "gateway"],
)
async def test_listed_components_are_exactly_the_callable_ones(build: Any) -> None:
    server: Server = build()
    async with Client(server) as client:
        everything = {
            "tools/list": {item.name for item in await client.list_tools()},
            "prompts/list": {item.name for item in await client.list_prompts()},
            "resources/list": {item.uri for item in await client.list_resources()},
            "resources/templates/list": {item.uri_template for item in await client.list_resource_templates()},
        }
        assert len(everything["tools/list"]) >= 4

        async def check(tables: list[Any], principal: Principal | None, address: str | None) -> None:
            server.set_policy(access_policy=PolicyEngine(parse_rules(tables)))
            about = {"principal": principal, "address": address}
            for method, member, key, having in KINDS:
                seen = await listed(server, method, member, key, **about)
                assert seen <= everything[method]
                for name in everything[method]:
                    if "{" not in name:
                        assert await can(server, having, name, **about) is (name in seen), (tables, name)
                    elif any([await can(server, having, name.replace("{id}", item), **about) for item in ("a", "b")]):
                        assert name in seen, (tables, name)

        examples: list[Any] = []

        @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(RULES, PRINCIPALS, st.sampled_from([None, "10.0.0.1"]))
        def collect(tables: list[Any], principal: Principal | None, address: str | None) -> None:
            examples.append((tables, principal, address))

        collect()
        for tables, principal, address in examples:
            await check(tables, principal, address)


async def test_alias_is_visible_with_its_target() -> None:
    server = mounting()
    async with Client(server):
        for who, allowed in (("ann", True), ("bob", False)):
            server.set_policy(access_policy=PolicyEngine(parse_rules([{"principal": "ann", "tool": "inner.read"}])))
            for name in ("inner_read", "inner_also_read"):
                assert await can(server, "tools/call", name, principal=Principal(who)) is allowed
