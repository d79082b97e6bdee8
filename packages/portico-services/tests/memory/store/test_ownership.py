"""The user domain: separate per principal with logins; the local owner keeps what was stored before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from portico import Client, Server
from portico.auth.principal import Principal
from portico_services.memory.service import Memory
from support.memories import call_failing_tool, call_tool, template

ANN, BOB = Principal("ann"), Principal("bob")
UNKNOWN = "0123456789abcdef"
SALARY = "Ann Lee earns 123456 euros, says Salarybook"


@pytest.fixture
async def server(url: str) -> AsyncIterator[Server]:
    server = Server("s")
    server.add(Memory(url, tools="all", project="here"))
    async with server.lifespan():
        yield server


async def capture(client: Client, content: str = SALARY, **more: Any) -> str:
    values = {"namespace": "decisions", "domain": "user", "tags": ["salary"], **more}
    stored = await call_tool(client, "memory_capture", content=content, **values)
    return str(stored["id"])


async def texts_for(client: Client) -> str:
    """Everything that the read-only tools and resources say."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("memory_recall", {"query": "salary"}),
        ("memory_recall", {"filter": "domain:user project:*"}),
        ("memory_recall", {"filter": "project:* tag:salary"}),
        ("memory_recall", {"filter": "status:active,deleted tag:salary project:*", "query": "salary"}),
        ("memory_recall", {"as_of": "2099-01-01T00:00:00Z"}),
        ("memory_export", {"filter": "project:*"}),
        ("memory_graph", {}),
        ("memory_status", {}),
        ("memory_namespaces", {}),
        ("memory_conflicts", {}),
        ("memory_consolidate", {"similarity": 0.1}),
        ("memory_delete_all", {"filter": "domain:user"}),
        ("memory_prompts", {}),
        ("memory_init", {}),
    ]
    answers = [json.dumps(await call_tool(client, tool, **given)) for tool, given in calls]
    for place in (
        "user",
        "_",
        "user/decisions",
        "_/_",
        "topics",
        "topics/salary",
        "status",
        "search/salary",
        "summaries",
    ):
        answers.append((await client.read_resource(f"memory://{place}"))[0].text)
    for uri, argument in (("memory://topics/{topic}", "topic"), ("memory://graph/{entity}", "entity")):
        answers.append(str(await client.complete(template(uri), argument, "sal")))
    return "\n".join(answers)


@pytest.mark.parametrize("mine", [ANN, None])
async def test_user_domain_is_hidden_from_other_principals(server: Server, mine: Principal | None) -> None:
    async with Client(server, principal=mine) as owner, Client(server, principal=BOB) as bob:
        before = await texts_for(bob)
        id = await capture(owner)
        assert "123456" in await texts_for(owner)
        assert await texts_for(bob) == before
        for tool in ("get", "history", "delete", "restore", "update", "erase", "enrich", "summary"):
            more = {"update": {"content": "mine now"}, "erase": {"confirm": True}}.get(tool, {})
            for form in ("{}", "urn:memory:user:decisions:{}", "memory://user/decisions/{}"):
                hidden = await call_failing_tool(bob, f"memory_{tool}", memory_id=form.format(id), **more)
                unknown = await call_failing_tool(bob, f"memory_{tool}", memory_id=form.format(UNKNOWN), **more)
                assert str(hidden).replace(id, UNKNOWN) == str(unknown)
            assert "not found" in (await call_failing_tool(bob, f"memory_{tool}", memory_id=id[:8], **more))[0]
        assert (await call_tool(bob, "memory_delete_all", filter="domain:user project:*", dry_run=False))["count"] == 0
        assert (await call_tool(bob, "memory_erase", author="ann", confirm=True))["count"] == 0
        assert (await call_tool(owner, "memory_get", memory_id=id))["content"] == SALARY


async def test_same_content_of_two_principals_is_stored_separately(server: Server) -> None:
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob, Client(server) as local:
        ids = {await capture(client) for client in (ann, bob, local)}
        assert len(ids) == 3
        again = await call_tool(ann, "memory_capture", content=SALARY, namespace="decisions", domain="user")
        assert again["duplicate_of"] in ids
        assert (await call_tool(bob, "memory_status"))["total"] == 1


async def test_import_never_overwrites_memories_of_another_owner(server: Server) -> None:
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        id = await capture(ann)
        row = {"id": id, "domain": "user", "namespace": "decisions", "content": "bob was here", "version": 9}
        for expected in ("added", "unchanged"):
            assert (await call_tool(bob, "memory_import", data=json.dumps(row)))[expected] == 1
        assert (await call_tool(ann, "memory_get", memory_id=id))["content"] == SALARY
        assert "bob was here" in json.dumps(await call_tool(bob, "memory_recall", filter="domain:user"))
        exported = (await call_tool(bob, "memory_export", filter="domain:user"))["data"]
        assert "project" not in json.loads(exported)


async def test_collecting_leaves_the_deleted_memories_of_others(server: Server) -> None:
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        id = await capture(ann)
        await call_tool(ann, "memory_delete", memory_id=id)
        assert (await call_tool(bob, "memory_gc", purge=True, older_than="0s", dry_run=False))["purged"] == 0
        assert (await call_tool(ann, "memory_restore", memory_id=id))["content"] == SALARY


async def test_saved_prompts_of_the_user_domain_are_their_owners(server: Server) -> None:
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        save = {"action": "save", "name": "mine", "domain": "user"}
        await call_tool(ann, "memory_prompts", content="ann's {{file}}", **save)
        assert (
            "prompts" not in await call_tool(bob, "memory_prompts")
            or not (await call_tool(bob, "memory_prompts"))["prompts"]
        )
        await call_failing_tool(bob, "memory_prompts", action="get", name="mine")
        await call_tool(bob, "memory_prompts", content="bob's {{file}}", **save)
        for client, text in ((ann, "ann's x"), (bob, "bob's x")):
            filled = await call_tool(client, "memory_prompts", action="run", name="mine", variables={"file": "x"})
            assert filled["text"] == text


async def test_changes_in_a_user_domain_are_notified_only_to_the_owner(server: Server) -> None:
    heard: dict[str, list[str]] = {"ann": [], "bob": []}
    result = asyncio.Event()

    async def listen(client: Client, name: str, ready: asyncio.Event) -> None:
        async with client.listen(uris=["memory://user", "memory://project", "memory://topics"]) as events:
            ready.set()
            async for event in events:
                heard[name].append(str(event))
                # Bob is told of the later change alone; had he been told of the first, it would be here by then.
                if any("//project/" in item for item in heard["bob"]) and any(
                    "//user/" in item for item in heard["ann"]
                ):
                    result.set()

    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        ready = asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.create_task(listen(ann, "ann", ready[0])),
            asyncio.create_task(listen(bob, "bob", ready[1])),
        ]
        async with asyncio.timeout(20):
            for item in ready:
                await item.wait()
            private = await capture(ann)
            await capture(ann, "A shared decision", domain="project")
            await result.wait()
        assert not any(private in item for item in heard["bob"])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
