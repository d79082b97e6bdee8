"""URIs in results and tools are unchanged unless two upstreams use the same one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import Raw

from portico import Client, Server
from portico.extend import Call
from portico.server.providers.naming import exposed_uri, upstream_uri
from portico.types import EmbeddedResource, ResourceLink, TextResourceContents
from portico_gateway import Gateway
from portico_gateway.gateway.uri_rewriting import rewrite_meta_uris, rewrite_result_uris

URIS = ["note://hello", "urn:isbn:1", "memo:x", "ui://page/main"]


def upstream(name: str) -> Server:
    server = Server(name)
    for uri in URIS:

        @server.resource(uri, name=uri.replace(":", "-").replace("/", "-"))
        async def one(uri: str = uri) -> str:
            return f"{name} {uri}"

    @server.resource("file:///{path}")
    async def file(path: str) -> str:
        return f"{name} {path}"

    @server.tool(meta={"ui": {"resourceUri": "ui://page/main"}})
    async def link(uri: str) -> list[Any]:
        inside = EmbeddedResource(resource=TextResourceContents(uri=uri, text="inside"))
        return [ResourceLink(uri=uri, name="it"), inside]

    return server


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("uri", [*URIS, "file:///a.txt"])
async def test_link_leads_to_the_upstream_that_gave_it(uri: str, revision: Any) -> None:
    gateway = Gateway({"one": upstream("one"), "two": upstream("two")}, max_result_tokens=0)
    async with Client(gateway, protocol_version=revision) as client:
        for name in ("one", "two"):
            link, inside = (await client.call_tool(f"{name}_link", {"uri": uri})).content
            assert str(link.uri) == str(inside.resource["uri"]) == (uri if name == "one" else exposed_uri("two", uri))
            assert str(link.uri).partition(":")[0] == uri.partition(":")[0]
            (read,) = await client.read_resource(str(link.uri))
            assert read.text.startswith(name)
            assert str(read.uri) == str(link.uri)


async def test_page_of_a_tool_is_that_of_its_upstream() -> None:
    async with Client(Gateway({"one": upstream("one"), "two": upstream("two")}, max_result_tokens=0)) as client:
        pages = {tool.name: tool.meta["ui"]["resourceUri"] for tool in await client.list_tools()}
        assert pages == {"one_link": "ui://page/main", "two_link": "ui://two/page/main"}


RESULT = '{"content":[{"type":"resource_link","uri":"note://x","name":"n","size":1.0}],"_meta":{"deep":[1e2,null]}}'


async def test_result_without_rewritten_uris_is_byte_identical() -> None:
    async def faithful(call: Call) -> Any:
        if call.method == "tools/list":
            return Raw(b'{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}')
        return Raw(RESULT.encode()) if call.method == "tools/call" else Raw(b"{}")

    gateway = Gateway({"one": upstream("one"), "raw": faithful}, max_result_tokens=0)
    call = Call(method="tools/call", params=Raw(b'{"name":"raw_t"}'), id=1, protocol_version="2026-07-28")
    async with gateway.lifespan():
        assert RESULT.encode() == bytes(await gateway(call))


def test_only_addresses_are_written_again() -> None:
    result = rewrite_result_uris("tools/call", Raw(RESULT.encode()), lambda uri: exposed_uri("two", uri))
    assert bytes(result).decode() == RESULT.replace("note://x", "note://two/x")


@pytest.mark.parametrize(
    "meta, known",
    [
        ('{"ui":{"resourceUri":"ui://a"},"x":1.0}', '{"ui":{"resourceUri":"ui://two/a"},"x":1.0}'),
        ('{"ui/resourceUri":"ui://a"}', '{"ui/resourceUri":"ui://two/a"}'),
        ('{"ui":"resourceUri"}', None),
        ('{"ui":{"resourceUri":5}}', None),
        ("[]", None),
    ],
)
def test_address_of_a_page(meta: str, known: str | None) -> None:
    result = rewrite_meta_uris(Raw(meta.encode()), lambda uri: exposed_uri("two", uri))
    assert (None if result is None else bytes(result).decode()) == known


@given(
    st.sampled_from(["tools/call", "prompts/get", "resources/read"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["content", "contents", "messages", "resource", "uri", "_meta", "ui", "resourceUri"]),
                inner,
            )
        ),
    ),
)
def test_any_result_is_forwarded_unchanged(method: str, said: Any) -> None:
    raw = Raw(json.dumps(said).encode())
    assert bytes(rewrite_result_uris(method, raw, lambda uri: uri)) == bytes(raw)
    rewrite_result_uris(method, raw, lambda uri: f"x:{uri}")


@given(st.sampled_from(["a", "two", "x-y"]), st.text(min_size=1))
def test_two_functions_undo_each_other(alias: str, uri: str) -> None:
    assert upstream_uri(alias, exposed_uri(alias, uri)) == uri
