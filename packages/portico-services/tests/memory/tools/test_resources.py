"""Resources of the memory service: reading and subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client
from portico.protocol.errors import ProtocolError
from support.memories import CAPTURE, call_tool, template

Serving = Callable[..., Any]
TIMEOUT_SECONDS = 30.0
TWINS = (
    "The nightly build takes forty minutes on the big machine",
    "The nightly build takes forty minutes on the big machine because of the database",
)


async def read(client: Client, uri: str) -> Any:
    content = (await client.read_resource(uri))[0]
    assert content.uri == uri
    return json.loads(content.text) if content.mime_type == "application/json" else content.text


async def heard(client: Client, uri: str, do: Callable[[], Any]) -> str:
    """What a listener to a URI is told when something is done."""
    async with client.listen(uris=[uri]) as changes, asyncio.timeout(TIMEOUT_SECONDS):
        await do()
        return str((await anext(aiter(changes))).uri)


async def test_every_resource_is_listed_and_every_family_has_a_template(serving: Serving) -> None:
    client = await serving()
    listed = {item.uri for item in await client.list_resources()}
    places = ("help", "_", "project", "user", "org", "namespaces", "topics", "summaries", "_prompts", "status")
    assert listed == {f"memory://{place}" for place in places}
    templates = {item.uri_template for item in await client.list_resource_templates()}
    families = """
        help/{topic} {domain}/{namespace} {domain}/{namespace}/{id} memory/{id} search/{query} topics/{topic}
        summaries/{id} {domain}/_prompts {domain}/_prompts/{name} graph/{entity}
    """
    assert templates == {f"memory://{family}" for family in families.split()}


async def test_status_resource_matches_the_status_tool(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", **CAPTURE, branch="main")
    status = await read(client, "memory://status")
    assert status == await call_tool(client, "memory_status")
    assert (status["by_project"], status["by_branch"]) == ({"here/project": 1}, {"main": 1})


async def test_summaries_list_their_sources(serving: Serving) -> None:
    client = await serving(tools="all")
    ids = [
        (await call_tool(client, "memory_capture", content=text, namespace="learnings", on_duplicate="keep"))["id"]
        for text in TWINS
    ]
    run = await call_tool(client, "memory_consolidate", strategy="summarize", similarity=0.6, dry_run=False)
    (summary,) = run["kept"]
    listing = await read(client, "memory://summaries")
    assert [item["id"] for item in listing["memories"]] == [summary]
    message = await read(client, f"memory://summaries/{summary}")
    assert {item["id"] for item in message["sources"]} == set(ids)
    assert await call_tool(client, "subcog_get_summary", memory_id=summary) == message
    assert (await read(client, f"memory://summaries/{ids[0]}"))["sources"] == []


async def test_saved_prompts_are_resources_too(serving: Serving) -> None:
    client = await serving()
    await call_tool(
        client, "memory_prompts", action="save", name="greet", content="Hello {{who}}", description="Greets"
    )
    await call_tool(client, "memory_prompts", action="save", name="mine", content="Mine", domain="user")
    everything = await read(client, "memory://_prompts")
    assert [(item["name"], item["domain"], item["variables"]) for item in everything["prompts"]] == [
        ("greet", "project", ["who"]),
        ("mine", "user", []),
    ]
    assert (await read(client, "memory://user/_prompts"))["count"] == 1
    item = await read(client, everything["prompts"][0]["uri"])
    assert (item["content"], item["description"]) == ("Hello {{who}}", "Greets")
    for missing in ("memory://user/_prompts/greet", "memory://nobody/_prompts", "memory://project/_prompts/gone"):
        with pytest.raises(ProtocolError):
            await client.read_resource(missing)
    family = template("memory://{domain}/_prompts/{name}")
    assert (await client.complete(family, "name", "gr")).values == ["greet"]


async def test_graph_resource_returns_the_edges_of_an_entity(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", content="Django uses PostgreSQL", namespace="apis")
    around = await read(client, "memory://graph/django")
    assert [(edge["source"], edge["kind"], edge["target"]) for edge in around["edges"]] == [
        ("Django", "Uses", "PostgreSQL")
    ]
    assert (await client.complete(template("memory://graph/{entity}"), "entity", "post")).values == ["PostgreSQL"]
    with pytest.raises(ProtocolError):
        await client.read_resource("memory://graph/nobody")


async def test_names_of_other_servers_are_read_and_not_listed(serving: Serving) -> None:
    client = await serving()
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    assert (await read(client, "subcog://project/decisions"))["count"] == 1
    assert (await read(client, f"subcog://project/decisions/{id}"))["id"] == id
    assert "memory_recall" in await read(client, "subcog://help")
    listed = {resource.uri for resource in await client.list_resources()}
    assert not any(uri.startswith("subcog:") for uri in listed)
    for address in (f"subcog://project/decisions/{id}", f"urn:memory:project:decisions:{id}"):
        assert (await call_tool(client, "memory_get", memory_id=address))["id"] == id
    other = await serving(tool_prefix="subcog")
    assert (await read(other, "memory://project/decisions"))["count"] == 1


@pytest.mark.parametrize(
    "place",
    [
        "project", "project/decisions", "_", "_/decisions", "topics", "topics/db", "status", "summaries",
        "search/which%20storage", "graph/postgresql",
    ],
)  # fmt: skip
async def test_every_listing_can_be_listened_to(serving: Serving, place: str) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", content="PostgreSQL it is", namespace="context", tags=["db"])
    await read(client, f"memory://{place}")

    async def capture() -> None:
        await call_tool(client, "memory_capture", **CAPTURE, tags=["db"])

    assert (await heard(client, f"memory://{place}", capture)).startswith(f"memory://{place}")


async def test_one_memory_can_be_listened_to_by_each_of_its_addresses(serving: Serving) -> None:
    client = await serving()
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    for number, uri in enumerate(
        (f"memory://memory/{id}", f"memory://project/decisions/{id}", f"subcog://project/decisions/{id}")
    ):

        async def change(number: int = number) -> None:
            await call_tool(client, "memory_update", memory_id=id, content=f"Use version {number}")

        assert await heard(client, uri, change) == uri


async def test_saved_prompts_can_be_listened_to(serving: Serving) -> None:
    client = await serving()

    async def save() -> None:
        await call_tool(client, "memory_prompts", action="save", name="greet", content="Hello")

    assert await heard(client, "memory://_prompts", save) == "memory://_prompts"
    assert await heard(client, "memory://project/_prompts/greet", save) == "memory://project/_prompts/greet"
