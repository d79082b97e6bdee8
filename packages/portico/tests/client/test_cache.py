"""Client-side caching follows TTL and scope of the server's hints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from portico import Client
from portico.client.cache import ResponseCache
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import PROTOCOL_VERSION_META_KEY, ServerCapabilities
from portico.rpc.call import Call

EVERYTHING = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})

TIMEOUT_SECONDS = 10.0
HINTS = {"ttlMs": 60_000, "cacheScope": "public"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """A server that counts what it is asked, and says of its answers what it is told to say."""

    def __init__(self, **hints: Any) -> None:
        self.hints = hints
        self.asked: list[str] = []
        self.emit: Callable[[str, Any], None] | None = None
        # Called before each answer.
        self.before: Callable[[Call], Any] | None = None

    async def __call__(self, call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(
                supported_versions=["2026-07-28"], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private"
            )
        if call.method == "subscriptions/listen":
            return await self._listen(call)
        params = json.loads(bytes(call.params) or b"{}")
        about = params.get("uri") or params.get("cursor") or ""
        self.asked.append(f"{call.method} {about}".strip())
        if self.before is not None:
            result = self.before(call)
            if result is not None:
                return result
        return self.answer(call.method)

    def answer(self, method: str) -> Raw:
        members = {
            "tools/list": {"tools": []},
            "prompts/list": {"prompts": []},
            "resources/list": {"resources": []},
            "resources/templates/list": {"resourceTemplates": []},
            "resources/read": {"contents": []},
            "prompts/get": {"messages": []},
        }[method]
        return Raw(json.dumps({"resultType": "complete", **members, **self.hints}).encode())

    async def _listen(self, call: Call) -> Any:
        meta = {"io.modelcontextprotocol/subscriptionId": call.id}
        data = json.loads(bytes(call.params))["notifications"]
        self.emit = lambda method, params: call.reply.notify(method, {"_meta": meta, **params})
        self.emit("notifications/subscriptions/acknowledged", {"notifications": data})
        await asyncio.Event().wait()


LISTS: dict[str, Callable[[Client], Any]] = {
    "tools/list": lambda client: client.list_tools(),
    "prompts/list": lambda client: client.list_prompts(),
    "resources/list": lambda client: client.list_resources(),
    "resources/templates/list": lambda client: client.list_resource_templates(),
    "resources/read a://b": lambda client: client.read_resource("a://b"),
}


@pytest.mark.requirement("caching.fresh")
@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize("scope", ["public", "private"])
async def test_cacheable_lists_are_requested_once(what: str, scope: str) -> None:
    server = Counting(ttlMs=60_000, cacheScope=scope)
    async with Client(server) as client:
        for _ in range(3):
            await LISTS[what](client)
    assert server.asked == [what]


@pytest.mark.broken_frames("a server whose hints are wrong or not there")
@pytest.mark.requirement("caching.fresh")
@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize(
    "hints",
    [
        {},
        {"ttlMs": 0, "cacheScope": "public"},
        {"ttlMs": -5, "cacheScope": "public"},
        {"cacheScope": "public"},
    ],
    ids=str,
)
async def test_uncacheable_lists_are_requested_again(what: str, hints: Any) -> None:
    server = Counting(**hints)
    async with Client(server) as client:
        for _ in range(2):
            await LISTS[what](client)
    assert server.asked == [what, what]


@pytest.mark.broken_frames("a server whose hints are wrong or not there")
@pytest.mark.requirement("caching.older")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
async def test_before_2026_07_28_nothing_is_kept(revision: str) -> None:
    server = Counting(**HINTS)
    async with Client(server, protocol_version=revision) as client:
        await client.list_tools()
        await client.list_tools()
    assert len(server.asked) == 2


@pytest.mark.requirement("caching.key")
@pytest.mark.broken_frames("a server whose hints are wrong or not there")
async def test_resources_are_cached_per_uri_and_prompts_are_not_cached() -> None:
    server = Counting(**HINTS)
    async with Client(server) as client:
        for uri in ("a://b", "a://c", "a://b"):
            await client.read_resource(uri)
        # Not cacheable, whatever its members are called.
        for _ in range(2):
            await client.get_prompt("p")
    assert server.asked == ["resources/read a://b", "resources/read a://c", "prompts/get", "prompts/get"]


async def test_fresh_is_fresh() -> None:
    server = Counting(**HINTS)
    async with Client(server) as client:
        await client.list_tools()
        await client.list_tools(refresh=True)
        await client.list_tools()
    assert len(server.asked) == 2


@pytest.mark.requirement("caching.no-questions")
async def test_answer_that_questions_led_to_is_never_kept() -> None:
    """2026-07-28, server/utilities/caching: MUST NOT."""
    server = Counting(**HINTS)

    def before(call: Call) -> Any:
        if b"inputResponses" in bytes(call.params):
            return None
        return Raw(b'{"resultType":"input_required","inputRequests":{"r":{"method":"roots/list"}}}')

    server.before = before
    async with Client(server, roots=[]) as client:
        for _ in range(2):
            assert await client.read_resource("a://b") == []
        assert client._cache._results == {}


# Notices


@pytest.mark.requirement("caching.notices")
@pytest.mark.parametrize(
    "notice, params, stale",
    [
        ("notifications/tools/list_changed", {}, ["tools/list"]),
        ("notifications/prompts/list_changed", {}, ["prompts/list"]),
        ("notifications/resources/list_changed", {}, ["resources/list", "resources/templates/list"]),
        ("notifications/resources/updated", {"uri": "a://b"}, ["resources/read a://b"]),
        ("notifications/resources/updated", {"uri": "a://b/part"}, ["resources/read a://b"]),
        ("notifications/resources/updated", {"uri": "a://bc"}, []),
        ("notifications/elsewhere", {"data": 1}, []),
    ],
)
async def test_notification_invalidates_its_cache_entries(
    notice: str, params: Any, stale: list[str], heard: Any
) -> None:
    server = Counting(**HINTS)
    async with Client(server, message_handler=heard, log_level="info") as client, client.listen(tools=True):
        for ask in LISTS.values():
            await ask(client)
        before = len(server.asked)
        assert server.emit is not None
        server.emit(notice, params)
        await heard.wait_for(notice)
        for ask in LISTS.values():
            await ask(client)
    assert server.asked[before:] == stale


@pytest.mark.requirement("caching.notices")
async def test_response_requested_before_a_list_change_is_not_cached(heard: Any) -> None:
    """It may be of before the change, and nobody would say so again."""
    server = Counting(**HINTS)

    def before(call: Call) -> Any:
        assert server.emit is not None
        if len(server.asked) == 1:
            server.emit("notifications/tools/list_changed", {})
        return None

    server.before = before
    async with Client(server, message_handler=heard) as client, client.listen(tools=True):
        await client.list_tools()
        await client.list_tools()
        await client.list_tools()
    assert len(server.asked) == 2


# Whose it is


@pytest.mark.requirement("caching.private")
def test_cached_responses_are_not_shared_between_principals() -> None:
    clock = Clock()
    cache = ResponseCache(clock)
    for scope in ("private", "public", "nonsense", None):
        result = Raw(json.dumps({"ttlMs": 1000, **({"cacheScope": scope} if scope else {})}).encode())
        cache.put("tools/list", {}, 1, result, cache.generation)
        assert cache.get("tools/list", {}, 1) is result
        assert cache.get("tools/list", {}, 2) is None
        cache.clear()


@pytest.mark.requirement("caching.fresh", "caching.expires")
def test_time_passes() -> None:
    clock = Clock()
    cache = ResponseCache(clock)
    cache.put("tools/list", {}, 0, Raw(b'{"ttlMs":1000}'), cache.generation)
    clock.now += 0.999
    assert cache.get("tools/list", {}, 0) is not None
    clock.now += 0.001
    assert cache.get("tools/list", {}, 0) is None
    assert cache._size == 0


@pytest.mark.parametrize("ttl", ["9" * 30, "9" * 400, "1e300", '"1000"', "null", "[]", "true", "1.5"])
def test_promise_without_measure_is_not_believed(ttl: str) -> None:
    clock = Clock()
    cache = ResponseCache(clock)
    cache.put("tools/list", {}, 0, Raw(f'{{"ttlMs":{ttl}}}'.encode()), cache.generation)
    clock.now += 24 * 3600
    assert cache.get("tools/list", {}, 0) is None


def test_response_cache_is_bounded_in_bytes() -> None:
    cache = ResponseCache(Clock())
    big = Raw(b'{"ttlMs":1000,"x":"' + b"x" * 1_000_000 + b'"}')
    for number in range(100):
        cache.put("resources/read", {"uri": str(number)}, 0, big, cache.generation)
        assert cache._size <= 16 * 2**20
        assert sum(len(bytes(result.result)) for result in cache._results.values()) == cache._size
    cache.put(
        "resources/read", {"uri": "huge"}, 0, Raw(b'{"ttlMs":1000,"x":"' + b"x" * 5_000_000 + b'"}'), cache.generation
    )
    assert cache.get("resources/read", {"uri": "huge"}, 0) is None


def test_cache_key_ignores_request_metadata() -> None:
    cache = ResponseCache(Clock())
    cache.put(
        "tools/list",
        {"cursor": "a", "_meta": {PROTOCOL_VERSION_META_KEY: 1}},
        0,
        Raw(b'{"ttlMs":1000}'),
        cache.generation,
    )
    assert cache.get("tools/list", {"_meta": {PROTOCOL_VERSION_META_KEY: 2}, "cursor": "a"}, 0) is not None
    assert cache.get("tools/list", {"cursor": "b"}, 0) is None


@pytest.mark.broken_frames("a server whose hints are wrong or not there")
@pytest.mark.requirement("caching.pages")
async def test_pages_are_kept_one_by_one() -> None:
    server = Counting()

    def before(call: Call) -> Any:
        last = b'"cursor":"2"' in bytes(call.params)
        members: Any = {"tools": [], "ttlMs": 60_000 if last else 0} | ({} if last else {"nextCursor": "2"})
        return Raw(json.dumps({"resultType": "complete", **members}).encode())

    server.before = before
    async with Client(server) as client:
        await client.list_tools()
        await client.list_tools()
    assert server.asked == ["tools/list", "tools/list 2", "tools/list"]


async def test_error_is_not_kept() -> None:
    server = Counting(**HINTS)

    def before(call: Call) -> Any:
        if len(server.asked) == 1:
            raise ProtocolError("not now")

    server.before = before
    async with Client(server) as client:
        with pytest.raises(ProtocolError, match="not now"):
            await client.list_tools()
        assert await client.list_tools() == []


# Pages that lead nowhere


class Paged(Counting):
    """A list of two pages. The cursor of the first is good for as long as `cursor` is the same."""

    cursor = "1"

    async def __call__(self, call: Call) -> Any:
        if not call.method.endswith("/list"):
            return await super().__call__(call)
        params = json.loads(bytes(call.params) or b"{}")
        self.asked.append(f"{call.method} {params.get('cursor', '')}".strip())
        if params.get("cursor", self.cursor) != self.cursor:
            raise InvalidParams("Invalid cursor")
        name = "b" if "cursor" in params else "a"
        more = {} if "cursor" in params else {"nextCursor": self.cursor}
        more_of = {"tools": {"inputSchema": {"type": "object"}}, "resources": {"uri": f"x://{name}"}, "prompts": {}}
        hints = {"ttlMs": 0 if "cursor" in params else 60_000, "cacheScope": "public"}
        member = call.method.partition("/")[0]
        entry = {"name": name, **more_of[member]}
        return Raw(json.dumps({"resultType": "complete", member: [entry], **more, **hints}).encode())


@pytest.mark.requirement("caching.cursor-dead")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
async def test_list_is_fetched_again_if_a_kept_page_leads_nowhere(kind: str) -> None:
    """2026-07-28, server/utilities/caching, Interaction with Pagination."""
    server = Paged()
    async with Client(server) as client:
        fetch = getattr(client, f"list_{kind}")
        assert [item.name for item in await fetch()] == ["a", "b"]
        server.cursor = "2"
        assert [item.name for item in await fetch()] == ["a", "b"]
    method = f"{kind}/list"
    assert server.asked == [method, f"{method} 1", f"{method} 1", method, f"{method} 2"]


@pytest.mark.requirement("mrtr.client-once")
async def test_resource_that_asks_first_is_requested_once_in_each_round() -> None:
    """2026-07-28, basic/patterns: the state of the first result goes back as it came, and nothing is asked twice."""
    seen: list[Any] = []

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return await Counting()(call)
        params = json.loads(bytes(call.params))
        seen.append((params.get("requestState"), "inputResponses" in params))
        if len(seen) == 1:
            request = {
                "resultType": "input_required",
                "requestState": "s",
                "inputRequests": {"r": {"method": "roots/list"}},
            }
            return Raw(json.dumps(request).encode())
        return Raw(json.dumps({"resultType": "complete", "contents": [], **HINTS}).encode())

    async with Client(handler, roots=[]) as client:
        assert await client.read_resource("a://b") == []
        assert client._cache._results == {}
    assert seen == [(None, False), ("s", True)]
