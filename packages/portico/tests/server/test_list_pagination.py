"""Lists: pages, cursors, order, and cached encodings."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from portico import Client, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.server.components.tools import Tool
from portico.server.options import CacheHint

Connect = Callable[..., Any]

LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


def full(count: int, **options: Any) -> Server:
    """A server with so many of each."""
    server = Server("s", **options)
    for number in range(count):
        server.tool(f"t{number}")(lambda: "")
        server.prompt(f"t{number}")(lambda: "")
        server.resource(f"a://{number}", name=f"t{number}")(lambda: "")
        server.resource(f"b{number}://{{x}}", name=f"t{number}")(lambda x: x)
    return server


async def opened(connect: Connect, server: Server, revision: str) -> Any:
    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    return wire


# Pages


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_long_list_comes_in_pages(connect: Connect, revision: str, method: str) -> None:
    wire = await opened(connect, full(7, list_page_size=3), revision)
    names, sizes, params = [], [], {}
    while True:
        page = (await wire.request_as(revision, method, params))["result"]
        names += [item["name"] for item in page[LISTS[method]]]
        sizes.append(len(page[LISTS[method]]))
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert names == [f"t{number}" for number in range(7)]
    assert sizes == [3, 3, 1]


@pytest.mark.requirement("pagination.end")
@pytest.mark.parametrize("count, pages", [(0, 1), (2, 1), (3, 1), (4, 2), (6, 2)])
async def test_last_page_has_no_cursor(connect: Connect, count: int, pages: int) -> None:
    wire = connect(full(count, list_page_size=3))
    cursors: list[Any] = []
    params: dict[str, Any] = {}
    while True:
        page = (await wire.request_stateless("tools/list", params))["result"]
        cursors.append(page.get("nextCursor"))
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert len(cursors) == pages
    assert cursors[-1] is None


@pytest.mark.requirement("pagination.client")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_client_reads_all_pages(revision: str) -> None:
    async with Client(full(10, list_page_size=3), protocol_version=revision) as client:
        assert len(await client.list_tools()) == 10
        assert len(await client.list_resources()) == 10
        assert len(await client.list_resource_templates()) == 10
        assert len(await client.list_prompts()) == 10


@pytest.mark.requirement("caching.pages")
async def test_every_page_has_the_same_cache_hints(connect: Connect) -> None:
    wire = connect(full(4, list_page_size=2, cache=CacheHint(60_000, "public")))
    first = (await wire.request_stateless("tools/list"))["result"]
    second = (await wire.request_stateless("tools/list", {"cursor": first["nextCursor"]}))["result"]
    for page in (first, second):
        assert (page["ttlMs"], page["cacheScope"]) == (60_000, "public")


# Cursors


async def cursor_of(wire: Any) -> str:
    cursor: str = (await wire.request_stateless("tools/list"))["result"]["nextCursor"]
    return cursor


@pytest.mark.requirement("pagination.cursor-opaque")
async def test_cursor_is_opaque(connect: Connect) -> None:
    cursor = await cursor_of(connect(full(4, list_page_size=2)))
    assert not cursor.isdigit()
    assert "t1" not in cursor


@pytest.mark.requirement("pagination.cursor-invalid")
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("cursor", ["", "nonsense", "2", "!!!!", "YWZ0ZXIgMg==", "YWZ0ZXIgOTk5OQ==", "ä", "A" * 10_000])
async def test_cursor_that_we_did_not_issue_is_rejected(
    connect: Connect, revision: str, method: str, cursor: str
) -> None:
    wire = await opened(connect, full(4, list_page_size=2), revision)
    error = (await wire.request_as(revision, method, {"cursor": cursor}))["error"]
    assert error["code"] == -32602
    assert "Invalid cursor" in error["message"]
    assert len(error["message"]) < 200


@pytest.mark.requirement("pagination.cursor-invalid")
@pytest.mark.parametrize("cursor", [5, True, [], {}])
async def test_cursor_is_a_text(connect: Connect, cursor: Any) -> None:
    error = (await connect(full(4)).request_stateless("tools/list", {"cursor": cursor}))["error"]
    assert error["code"] == -32602
    assert "cursor" in error["message"]


@pytest.mark.requirement("pagination.cursor-opaque")
@pytest.mark.parametrize(
    "change",
    [
        lambda cursor: f"{cursor}!",
        lambda cursor: f" {cursor}",
        lambda cursor: urlsafe_b64encode(urlsafe_b64decode(cursor).replace(b"2", b"1")).decode(),
        lambda cursor: urlsafe_b64encode(urlsafe_b64decode(cursor).replace(b"2", b"002")).decode(),
    ],
    ids=["a character more", "a blank before", "another place", "the same place written otherwise"],
)
async def test_modified_cursor_is_rejected(connect: Connect, change: Callable[[str], str]) -> None:
    """What can be made up can be made up a million times, and each page that is asked for is kept."""
    wire = connect(full(6, list_page_size=2))
    cursor = change(await cursor_of(wire))
    assert (await wire.request_stateless("tools/list", {"cursor": cursor}))["error"]["code"] == -32602


@pytest.mark.requirement("pagination.cursor-invalid", "pagination.cursor-own-list")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_cursor_belongs_to_its_list(connect: Connect, revision: str) -> None:
    wire = await opened(connect, full(4, list_page_size=2), revision)
    cursors = {method: (await wire.request_as(revision, method))["result"]["nextCursor"] for method in LISTS}
    for method in LISTS:
        for other, cursor in cursors.items():
            response = await wire.request_as(revision, method, {"cursor": cursor})
            assert ("result" in response) == (other == method), (method, other)


@pytest.mark.requirement("pagination.cursor-own-list")
@pytest.mark.parametrize(
    "one, other, known",
    [
        ({}, {}, True),
        ({"request_state_keys": b"a"}, {"request_state_keys": b"a"}, True),
        ({"request_state_keys": b"a"}, {"request_state_keys": b"b"}, False),
        ({}, {"list_page_size": 1}, False),
    ],
)
async def test_cursor_is_valid_in_other_processes(connect: Connect, one: Any, other: Any, known: bool) -> None:
    """basic, Statelessness: two objects stand for two processes."""
    cursor = await cursor_of(connect(full(4, **{"list_page_size": 2, **one})))
    response = await connect(full(4, **{"list_page_size": 2, **other})).request_stateless(
        "tools/list", {"cursor": cursor}
    )
    assert ("result" in response) == known


def test_pages_of_a_list_are_cut_from_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is listed is gathered once for all pages, not once for each."""
    server = full(40, list_page_size=2)
    assert server.tools.definitions is server.tools.definitions
    cut: list[int] = []
    encode = server.tools.encode
    monkeypatch.setattr(
        server.tools, "encode", lambda listed, *rest: (cut.append(id(listed)), encode(listed, *rest))[1]
    )
    cursor = None
    while True:
        page = msgspec.json.decode(server.tools.page("2026-07-28", cursor))
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert len(cut) == 20
    assert len(set(cut)) == 1


async def test_cursor_of_before_a_change_still_leads_somewhere(connect: Connect) -> None:
    server = full(5, list_page_size=2)
    wire = connect(server)
    cursor = await cursor_of(wire)
    for number in range(4):
        server.remove(f"t{number}")
    page = (await wire.request_stateless("tools/list", {"cursor": cursor}))["result"]
    assert page["tools"] == []
    assert "nextCursor" not in page


# Order


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_order_is_the_order_of_adding(revision: str) -> None:
    server = Server("s")
    names = ["m", "b", "Z", "a1", "a", "0"]
    for name in names:
        server.tool(name)(lambda: "")
    async with Client(server, protocol_version=revision) as client:
        assert [tool.name for tool in await client.list_tools()] == names
        server.remove("b")
        server.tool("b")(lambda: "")
        assert [tool.name for tool in await client.list_tools()] == ["m", "Z", "a1", "a", "0", "b"]


# Bytes


async def listed(server: Server, revision: str, method: str = "tools/list") -> Any:
    return await server(Call(method=method, id=1, protocol_version=revision))


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_list_is_encoded_once(revision: str, method: str) -> None:
    server = full(3)
    assert await listed(server, revision, method) is await listed(server, revision, method)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_change_makes_a_list_again(revision: str) -> None:
    server = full(3)
    before = await listed(server, revision)
    server.add(Tool(lambda: "", name="more"))
    after = await listed(server, revision)
    assert b'"more"' in bytes(after)
    assert b'"more"' not in bytes(before)
    server.remove("more")
    assert bytes(await listed(server, revision)) == bytes(before)


async def test_change_of_one_list_leaves_the_others() -> None:
    server = full(3)
    prompts = await listed(server, "2026-07-28", "prompts/list")
    server.tool("more")(lambda: "")
    assert await listed(server, "2026-07-28", "prompts/list") is prompts


async def test_each_revision_has_its_own_bytes() -> None:
    server = Server("s")
    server.tool(name="t", title="T", annotations={"readOnlyHint": True})(lambda: "")
    message = {revision: bytes(await listed(server, revision)) for revision in SUPPORTED_PROTOCOL_VERSIONS}
    assert b'"annotations"' not in message["2024-11-05"]
    assert b'"title":"T"' not in message["2025-03-26"]
    assert b'"title":"T"' in message["2025-06-18"]
    assert b'"resultType"' not in message["2025-11-25"]
    assert message["2026-07-28"].startswith(b'{"resultType":"complete"')
