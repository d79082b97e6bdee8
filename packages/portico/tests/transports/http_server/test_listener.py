"""The listener at the level of bytes, on uvloop and asyncio."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shutil
import signal
import socket
import ssl
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from portico import Server
from portico.protocol.errors import UsageError
from portico.transports.http_server import connection, listener
from portico.transports.http_server.bind_address import BindAddress, is_loopback
from portico.transports.http_server.listener import ConnectionTimeouts
from portico.transports.http_server.messages import MAX_UNREAD_BYTES
from portico.transports.http_server.stateless import HttpReply

Serve = Callable[..., Any]
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
KIND = {"content-type": "application/json"}


def text_of(response: Any) -> str:
    text: str = response.json["result"]["content"][0]["text"]
    return text


def calling(site: Any, tool: str, arguments: Any = None, **options: Any) -> bytes:
    data: bytes = site.modern_bytes("tools/call", {"name": tool, "arguments": arguments or {}}, **options)
    return data


def chunked(data: bytes, body: bytes, size: int = 10, ending: bytes = b"0\r\n\r\n") -> bytes:
    """A request with its body in chunks."""
    head = data.partition(b"\r\n\r\n")[0]
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""]) + framed + ending


async def in_step(raw: Any) -> None:
    """After a refusal the connection is closed, or the next request is understood; never anything in between."""
    with suppress(OSError, RuntimeError):
        raw.send(HEALTH)
        raw.half_close()
    rest = await raw.rest()
    assert rest == b"" or rest.startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the deadlines of connections more often than once per second."""
    for module in (connection, listener):
        monkeypatch.setattr(module, "TICK_INTERVAL_SECONDS", 0.05)


# Connections


async def test_connection_is_kept(serve: Serve, server: Server) -> None:
    """RFC 9112 9.3: persistent unless somebody says otherwise."""
    site = await serve(server)
    raw = await site.connect()
    for number in range(20):
        raw.send(calling(site, "echo" if number % 2 else "later", {"text": f"n{number}"}))
        assert text_of(await raw.response()) == f"n{number}"


async def test_connection_that_should_be_closed_is(serve: Serve, server: Server) -> None:
    """RFC 9112 9.6: `Connection: close` is honoured, and said."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "echo", {"text": "last"}, headers={"connection": "close"}))
    response = await raw.response()
    assert response["connection"] == "close"
    assert await raw.is_over()


async def test_cached_head_does_not_imply_a_cached_body(serve: Serve, server: Server) -> None:
    """docs/decisions/http-server.md: a head that was read before is not read again; its body always is."""
    site = await serve(server)
    raw, other = await site.connect(), await site.connect()
    for item in (raw, other, raw):
        for text in ("aaaa", "bbbb", "cccc"):
            item.send(calling(site, "echo", {"text": text}))
            assert text_of(await item.response()) == text
    wrong = calling(site, "echo", {"text": "aaaa"}).replace(b'"echo"', b'"grow"')
    raw.send(wrong)
    assert (await raw.response()).error == (400, -32020)


async def test_known_head_in_pieces_is_the_same_head(serve: Serve, server: Server) -> None:
    """The same: cut anywhere, twice in one piece, or with another request behind it."""
    site = await serve(server)
    raw = await site.connect()
    data = calling(site, "echo", {"text": "same"})
    head = data.index(b"\r\n\r\n")
    raw.send(data)
    assert text_of(await raw.response()) == "same"
    for cut in (1, 20, head, head + 2, head + 4, head + 5, len(data) - 1):
        raw.send(data[:cut])
        await site.turn()
        raw.send(data[cut:])
        assert text_of(await raw.response()) == "same"
    raw.send(data + data)
    raw.send(data + HEALTH + data)
    for kind in ("same", "same", "same", "health", "same"):
        response = await raw.response()
        assert response.json.get("status") == "ok" if kind == "health" else text_of(response) == kind


async def test_known_head_is_judged_again_by_the_moment(
    serve: Serve, server: Server, held: Any, wait_until: Any
) -> None:
    """The same: what depends on the moment, limits and draining, is never remembered."""
    site = await serve(server, max_concurrent_requests=1)
    raw, busy = await site.connect(), await site.connect()
    page = {"origin": f"http://127.0.0.1:{site.port}"}
    data = calling(site, "echo", {"text": "x"}, headers=page)
    for _ in range(3):
        raw.send(data)
        assert (await raw.response()).status == 200
    busy.send(calling(site, "hold"))
    await held.has_started()
    raw.send(data)
    refused = await raw.response()
    assert (refused.status, refused["access-control-allow-origin"]) == (503, page["origin"])
    held.release.set()
    await busy.response()
    raw.send(data)
    assert (await raw.response()).status == 200


async def test_read_heads_do_not_pile_up(serve: Serve, server: Server) -> None:
    """The same: what is remembered is bounded, whatever clients make up."""
    site = await serve(server)
    raw = await site.connect()
    for number in range(3000):
        raw.send(calling(site, "echo", {"text": "x"}, headers={"x-made-up": str(number)}))
        await raw.response()
    assert len(site.listener.request_cache) < 2000


async def test_requests_in_a_row_are_answered_in_order(serve: Serve, server: Server, held: Any) -> None:
    """RFC 9112 9.3.2: pipelined responses come in the order of the requests, also when the first is slow."""
    site = await serve(server)
    raw = await site.connect()
    requests = [calling(site, "hold", id=0)]
    requests += [calling(site, "later" if n % 2 else "echo", {"text": str(n)}, id=n) for n in range(1, 30)]
    raw.send(b"".join(requests))
    await held.has_started()
    held.release.set()
    assert [(await raw.response()).json["id"] for _ in range(30)] == list(range(30))


async def test_pipelined_requests_beyond_the_buffer_are_answered(serve: Serve, server: Server, held: Any) -> None:
    """RFC 9112 9.3.2: the line has a bound; what does not fit is not read yet, and not lost."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "hold", id=0))
    raw.send(b"".join(calling(site, "large", {"size": 10}, id=n) for n in range(1, 2000)))
    await held.has_started()
    held.release.set()
    assert [(await raw.response()).json["id"] for _ in range(2000)] == list(range(2000))


async def test_stream_in_a_row_is_followed_by_the_next_answer(serve: Serve, server: Server) -> None:
    """RFC 9112 9.3.2: the same when the first answer is a stream of events."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "talk", {"count": 3}, meta={"progressToken": 1}) + calling(site, "echo", {"text": "next"}))
    assert len((await raw.response()).messages) == 4
    assert text_of(await raw.response()) == "next"


async def test_invalid_data_after_a_request_does_not_lose_its_response(serve: Serve, server: Server, held: Any) -> None:
    """RFC 9112 9.3.2, 2.2: the first request was fine; its answer comes before the complaint about the second."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "hold"))
    await held.has_started()
    raw.send(b"nonsense\r\n\r\n")
    await site.turn()
    held.release.set()
    assert text_of(await raw.response()) == "released"
    assert (await raw.response()).status == 400
    assert await raw.is_over()


async def test_half_closed_client_gets_its_response(serve: Serve, server: Server, held: Any) -> None:
    """RFC 9112 9.6: a half-closed connection still has a reader."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "hold") + calling(site, "echo", {"text": "second"}))
    raw.half_close()
    await held.has_started()
    await site.turn()
    held.release.set()
    assert text_of(await raw.response()) == "released"
    assert text_of(await raw.response()) == "second"
    assert await raw.is_over()


async def test_request_that_ends_in_the_middle_is_400(serve: Serve, server: Server) -> None:
    """RFC 9112 8: incomplete."""
    site = await serve(server)
    for data in (calling(site, "echo", {"text": "x"})[:-3], b"GET /health HTTP/1.1\r\nHost: lo"):
        raw = await site.connect()
        raw.send(data)
        raw.half_close()
        assert (await raw.response()).status == 400
        assert await raw.is_over()


@pytest.mark.usefixtures("short_ticks")
async def test_silent_connection_is_closed(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: between requests."""
    site = await serve(server, deadlines=ConnectionTimeouts(idle=0.1))
    fresh, used = await site.connect(), await site.connect()
    used.send(HEALTH)
    assert (await used.response()).status == 200
    assert await fresh.is_over()
    assert await used.is_over()


@pytest.mark.usefixtures("short_ticks")
async def test_slow_head_is_408(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: time for the head; bytes that trickle do not buy more of it."""
    site = await serve(server, deadlines=ConnectionTimeouts(head=0.3))
    raw = await site.connect()
    raw.send(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
    trickle = asyncio.ensure_future(_trickle(raw, b"X-Slow: x\r\n"))
    response = await raw.response()
    trickle.cancel()
    assert response.status == 408
    assert response["connection"] == "close"


async def _trickle(raw: Any, data: bytes) -> None:
    while True:
        raw.send(data)
        await asyncio.sleep(0.1)


@pytest.mark.usefixtures("short_ticks")
async def test_slow_body_is_408(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: time for the body."""
    site = await serve(server, deadlines=ConnectionTimeouts(body=0.3))
    whole, chunks = await site.connect(), await site.connect()
    whole.send(site.bytes("POST", "/mcp", {**KIND, "content-length": "1000"}))
    chunks.send(site.bytes("POST", "/mcp", {**KIND, "transfer-encoding": "chunked"}))
    trickle = [asyncio.ensure_future(_trickle(whole, b" ")), asyncio.ensure_future(_trickle(chunks, b"1\r\n \r\n"))]
    for raw in (whole, chunks):
        assert (await raw.response()).status == 408
    for item in trickle:
        item.cancel()


@pytest.mark.usefixtures("short_ticks")
async def test_slow_call_has_no_deadline(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Limits: they are for clients; a body takes as long as it takes."""
    site = await serve(server, deadlines=ConnectionTimeouts(head=0.1, body=0.1, idle=0.1))
    raw = await site.connect()
    raw.send(calling(site, "hold"))
    stream = await site.listen(1, toolsListChanged=True)
    await held.has_started()
    # One that is idle is closed when the listener looks at its deadlines, which are the same for all.
    assert await (await site.connect()).is_over()
    held.release.set()
    assert text_of(await raw.response()) == "released"
    await stream.message()


async def test_max_connections_evicts_the_oldest_idle_connection(
    serve: Serve, server: Server, held: Any, wait_until: Callable[..., Any]
) -> None:
    """docs/how-to/deploy.md, Limits: beyond it the oldest that waits for nothing makes room, and none that does."""
    site = await serve(server, max_connections=3, max_connections_per_ip=3)
    busy = [await site.connect() for _ in range(2)]
    for raw in busy:
        raw.send(calling(site, "hold"))
    metrics = site.listener.application.metrics
    await wait_until(lambda: metrics.in_flight == 2)
    idle = await site.connect()
    idle.send(HEALTH)
    assert (await idle.response()).status == 200
    newer = await site.connect()
    newer.send(calling(site, "hold"))
    assert await idle.is_over()
    await wait_until(lambda: metrics.in_flight == 3)
    assert await (await site.connect()).is_over(), "all of them wait"
    held.release.set()
    for raw in (*busy, newer):
        assert text_of(await raw.response()) == "released"


async def test_one_address_leaves_room_for_others(serve: Serve, server: Server) -> None:
    """The same for each address."""
    site = await serve(server, max_connections=10, max_connections_per_ip=2)
    first, second = await site.connect(), await site.connect()
    for raw in (first, second, await site.connect()):
        raw.send(HEALTH)
    assert await first.is_over()
    assert (await second.response()).status == 200
    assert len(site.listener._connections) == 2


# Bodies


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the collector of cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("how", ["aborted", "closed", "answered", "refused"])
async def test_request_body_is_released_with_its_connection(
    serve: Serve, server: Server, how: str, wait_until: Callable[..., Any]
) -> None:
    """Nothing that was read is left when a client is gone, also before the collector has come by."""
    site = await serve(server)
    raw = await site.connect()
    await wait_until(lambda: site.listener._connections)
    (connection,) = map(weakref.ref, site.listener._connections)
    data = calling(site, "echo", {"text": "x" * 1_000_000})
    if how == "refused":
        data = data.replace(b"mcp-method: tools/call", b"mcp-method: tools/list")
    raw.send(data if how in ("answered", "refused") else data[:-10])
    if how in ("answered", "refused"):
        assert (await raw.response()).status == (200 if how == "answered" else 400)
        assert site.listener.buffered_body_bytes == 0
    else:
        await wait_until(lambda: site.listener.buffered_body_bytes > 900_000)
    if how == "aborted":
        raw.abort()
    else:
        await raw.close()
    await wait_until(lambda: connection() is None)
    assert site.listener.buffered_body_bytes == 0


@pytest.mark.usefixtures("uncollected")
async def test_call_is_released_with_its_response(serve: Serve, server: Server) -> None:
    """Calls that only the collector could let go of would stop everything for it, again and again."""
    site = await serve(server)
    raw = await site.connect()
    # Other tests may have left some.
    before = _replies()
    for _ in range(10):
        raw.send(calling(site, "later", {"text": "x"}))
        assert (await raw.response()).status == 200
    assert _replies() <= before + 1
    await raw.close()


def _replies() -> int:
    return sum(type(one) is HttpReply for one in gc.get_objects())


@pytest.mark.parametrize("framing", ["whole", "chunked", "known"])
async def test_all_bodies_together_have_a_bound(
    serve: Serve, server: Server, framing: str, wait_until: Callable[..., Any]
) -> None:
    """docs/how-to/deploy.md, Limits: who comes too much is told to come again, and others are served."""
    site = await serve(server, max_total_body_size=100_000)
    data = calling(site, "echo", {"text": "x" * 60_000})
    first, second, small = await site.connect(), await site.connect(), await site.connect()
    for _ in range(3 if framing == "known" else 0):
        second.send(data)
        assert (await second.response()).status == 200
    first.send(data[:-1])
    await wait_until(lambda: site.listener.buffered_body_bytes > 60_000)
    second.send(chunked(data, data.partition(b"\r\n\r\n")[2], 5000) if framing == "chunked" else data)
    assert (await second.response()).status == 503
    small.send(calling(site, "echo", {"text": "small"}))
    assert text_of(await small.response()) == "small"
    first.send(data[-1:])
    assert (await first.response()).status == 200
    second = await site.connect()
    second.send(data)
    assert (await second.response()).status == 200
    assert site.listener.buffered_body_bytes == 0


async def test_answer_without_content_has_no_length(serve: Serve, server: Server) -> None:
    """RFC 9110, 8.6: "A server MUST NOT send a Content-Length header field in any response with a status code of 1xx or
    204"."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.bytes("OPTIONS", "/mcp"))
    response = await raw.response()
    assert response.status == 204
    assert "content-length" not in response
    raw.send(HEALTH)
    assert (await raw.response()).status == 200


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_body_may_come_in_chunks(serve: Serve, server: Server, size: int) -> None:
    """RFC 9112 7.1: MUST be able to parse the chunked coding; extensions and trailers are ignored."""
    site = await serve(server)
    data = calling(site, "echo", {"text": "chunked"})
    body = data.partition(b"\r\n\r\n")[2]
    raw = await site.connect()
    raw.send(chunked(data, body, size))
    raw.send(chunked(data, body, size, b"0\r\nX-Trailer: y\r\n\r\n"))
    raw.send(chunked(data, body, size, b"0;ext=1\r\n\r\n"))
    for _ in range(3):
        assert text_of(await raw.response()) == "chunked"


async def test_body_may_come_byte_by_byte(serve: Serve, server: Server) -> None:
    """TCP has no messages."""
    site = await serve(server)
    raw = await site.connect()
    for byte in calling(site, "echo", {"text": "bytes"}):
        raw.send(bytes([byte]))
        await asyncio.sleep(0)
    assert text_of(await raw.response()) == "bytes"


async def test_client_that_asks_first_is_informed_to_continue(serve: Serve, server: Server) -> None:
    """RFC 9110 10.1.1: 100 before the body, when it is wanted."""
    site = await serve(server)
    raw = await site.connect()
    data = calling(site, "echo", {"text": "continued"}, headers={"expect": "100-continue"})
    head, _, body = data.partition(b"\r\n\r\n")
    raw.send(head + b"\r\n\r\n")
    assert await raw.line() == b"HTTP/1.1 100 Continue\r\n"
    assert await raw.line() == b"\r\n"
    raw.send(body)
    assert text_of(await raw.response()) == "continued"


async def test_expect_continue_does_not_interrupt_a_response(serve: Serve, server: Server, held: Any) -> None:
    """RFC 9112 9.3.2: 100 belongs to the second response, so it cannot stand in the middle of the first."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "talk", {"count": 1, "hold": True}, meta={"progressToken": 1}))
    await raw.read_head()
    await held.has_started()
    data = calling(site, "echo", {"text": "next"}, headers={"expect": "100-continue"})
    head, _, body = data.partition(b"\r\n\r\n")
    raw.send(head + b"\r\n\r\n")
    await site.turn()
    held.release.set()
    events = []
    while (event := await raw.event()) is not None:
        events.append(event.json)
    assert events[-1]["result"]
    raw.send(body)
    assert text_of(await raw.response()) == "next"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"content-length": "99999999"}, 413),
        ({"origin": "http://evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"authorization": "Bearer wrong"}, 401),
    ],
)
async def test_expect_continue_is_rejected_before_the_body(
    serve: Serve, server: Server, fields: dict[str, str], status: int
) -> None:
    """RFC 9110 10.1.1: a final status instead of 100 if the head is enough to refuse it. It waits for that."""
    site = await serve(server, token="right")
    raw = await site.connect()
    raw.send(site.bytes("POST", "/mcp", {**KIND, "expect": "100-continue", "content-length": "50", **fields}))
    async with asyncio.timeout(2):
        response = await raw.response()
    assert response.status == status
    assert response.interim == []


async def test_body_that_is_declared_too_large_is_413_at_once(serve: Serve, server: Server) -> None:
    """RFC 9110 15.5.14: the client learns it from the head, not after having sent everything."""
    site = await serve(server, max_body_size=10_000)
    raw = await site.connect()
    raw.send(site.bytes("POST", "/mcp", {**KIND, "content-length": "10001"}))
    async with asyncio.timeout(2):
        assert (await raw.response()).status == 413
    assert await raw.is_over()


async def test_body_that_becomes_too_large_is_413(serve: Serve, server: Server) -> None:
    """RFC 9110 15.5.14: the same for chunks, as soon as they are too many; it need not end for that."""
    site = await serve(server, max_body_size=10_000)
    raw = await site.connect()
    raw.send(site.bytes("POST", "/mcp", {**KIND, "transfer-encoding": "chunked"}))
    raw.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
    raw.send((b"1000\r\n" + b"x" * 0x1000 + b"\r\n") * 2)
    async with asyncio.timeout(2):
        assert (await raw.response()).status == 413


async def test_oversized_body_is_413_when_complete(serve: Serve, server: Server) -> None:
    """The same for a client that sends all of it before it listens."""
    site = await serve(server, max_body_size=10_000)
    for data in (
        site.bytes("POST", "/mcp", KIND, b"x" * 10_001),
        chunked(site.bytes("POST", "/mcp", KIND, b""), b"x" * 10_001, 1000),
    ):
        raw = await site.connect()
        raw.send(data)
        assert (await raw.response()).status == 413
        await in_step(raw)


async def test_body_of_the_greatest_size_is_read(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: up to, and including."""
    site = await serve(server, max_body_size=10_000)
    data = calling(site, "echo", {"text": ""})
    body = data.partition(b"\r\n\r\n")[2]
    padding = 10_000 - len(body)
    response = await site.call("echo", {"text": "x" * padding})
    assert response.status == 200
    assert (await site.call("echo", {"text": "x" * (padding + 1)})).status == 413


async def test_large_response_is_complete(serve: Serve, server: Server) -> None:
    """More than any buffer holds."""
    site = await serve(server)
    assert len(text_of(await site.call("large", {"size": 20_000_000}))) == 20_000_000


# Methods


async def test_head_has_no_body(serve: Serve, server: Server) -> None:
    """RFC 9110 9.3.2: MUST NOT send content, or the next response on the connection cannot be found."""
    site = await serve(server)
    raw = await site.connect()
    for path in ("/health", "/mcp", "/nowhere"):
        raw.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await raw.response("HEAD")
        assert head.status in (200, 404, 405)
        raw.send(HEALTH)
        assert (await raw.response()).status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "PROPFIND", "DELETE"])
async def test_method_that_is_not_offered_is_405(serve: Serve, server: Server, method: str) -> None:
    """RFC 9110 15.5.6: with the ones that are, in `Allow`."""
    site = await serve(server)
    response = await site.request(method, "/health")
    assert response.status == 405
    assert response["allow"] == "GET"
    at_endpoint = await site.request("PUT", "/mcp")
    assert {item.strip() for item in at_endpoint["allow"].split(",")} >= {"GET", "POST", "DELETE"}


@pytest.mark.parametrize("line", ["FOO /health HTTP/1.1", "get /health HTTP/1.1", "CONNECT localhost:80 HTTP/1.1"])
async def test_unknown_http_method_is_rejected_once(serve: Serve, server: Server, line: str) -> None:
    """RFC 9110 9.1: 501 or 405, or a complaint about the syntax; one response to one request."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(f"{line}\r\nHost: localhost\r\n\r\n")
    assert (await raw.response()).status in (400, 404, 405, 501)
    raw.half_close()
    assert await raw.is_over()


async def test_missing_path_is_404(serve: Serve, server: Server) -> None:
    """RFC 9110 15.5.5."""
    site = await serve(server)
    for path in ("/nowhere", "/mcp/", "/mcp/..", "//mcp", "/MCP", "/health/"):
        assert (await site.request("GET", path)).status == 404


async def test_query_is_not_part_of_the_path(serve: Serve, server: Server) -> None:
    """RFC 3986 3.4."""
    site = await serve(server)
    assert (await site.request("GET", "/health?verbose=1")).status == 200
    assert (await site.call("echo", {"text": "x"}, path="/mcp?a=b")).status == 200


async def test_request_may_name_the_whole_address(serve: Serve, server: Server) -> None:
    """RFC 9112 3.2.2: MUST accept the absolute form, which proxies send."""
    site = await serve(server)
    assert (await site.request("GET", f"http://127.0.0.1:{site.port}/health")).status == 200


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
async def test_offer_to_upgrade_is_declined_by_answering(serve: Serve, server: Server, protocol: str) -> None:
    """RFC 9110 7.8: a server MAY ignore Upgrade. Java's client offers h2c with each first request."""
    site = await serve(server)
    raw = await site.connect()
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": protocol, "http2-settings": "AAMAAABkAAQ"}
    for tool in ("echo", "later"):
        raw.send(calling(site, tool, {"text": "plain"}, headers=offer))
        assert text_of(await raw.response()) == "plain"
    raw.send(site.bytes("GET", "/health", offer))
    assert (await raw.response()).status == 200
    raw.send(HEALTH)
    assert (await raw.response()).status == 200


async def test_http_1_0_is_answered_and_closed(serve: Serve, server: Server) -> None:
    """RFC 9112 9.3: not persistent unless it asks."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert (await raw.response()).status == 200
    assert await raw.is_over()


async def test_http_1_0_gets_no_chunks(serve: Serve, server: Server) -> None:
    """RFC 9112 7: MUST NOT send transfer codings to a client that is not HTTP/1.1; the end of it is the close."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "talk", {"count": 2}, meta={"progressToken": 1}).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    response = await raw.response()
    assert "transfer-encoding" not in response
    assert len(response.messages) == 3


async def test_responses_have_a_date(serve: Serve, server: Server) -> None:
    """RFC 9110 6.6.1: an origin server with a clock MUST send Date."""
    site = await serve(server)
    for path, status in (("/health", 200), ("/nowhere", 404)):
        response = await site.request("GET", path)
        assert response.status == status
        assert parsedate_to_datetime(response["date"])
    stream = await site.open_call("talk", {"count": 1}, meta={"progressToken": 1})
    assert stream.head["date"].endswith(" GMT")


# Framing that two parsers could read differently


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="cl te"
        ),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", id="te cl"
        ),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: 2\r\nContent-Length: 2\r\n\r\nxx", id="two lengths"),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Content-Length: 2\r\nContent-Length: 3\r\n\r\nxxx", id="two other lengths"
        ),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: 2, 2\r\n\r\nxx", id="a list of lengths"),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: +2\r\n\r\nxx", id="a sign"),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: -2\r\n\r\nxx", id="a negative length"),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: 0x2\r\n\r\nxx", id="a hex length"),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: 2 2\r\n\r\nxx", id="a space in a length"),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Content-Length: 99999999999999999999999\r\n\r\nxx", id="a huge length"),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: gzip\r\n\r\nxx", id="not chunked"),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", id="chunked not last"
        ),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="nearly chunked"),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="chunked twice",
        ),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", id="a space before the colon"
        ),
        pytest.param(b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n0\r\n\r\n", id="no hex"),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n-2\r\nxx\r\n0\r\n\r\n", id="a negative chunk"
        ),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n0x2\r\nxx\r\n0\r\n\r\n", id="0x chunk"
        ),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n2\nxx\r\n0\r\n\r\n", id="chunk, bare LF"
        ),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n2\r\nxxx\r\n0\r\n\r\n", id="a chunk too long"
        ),
        pytest.param(
            b"POST /mcp HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nxx\r\n0\r\n\r\n",
            id="a chunk beyond 64 bits",
        ),
        pytest.param(b"GET /health HTTP/1.1\n{}\n", id="bare LF"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X-A: b\nX-C: d\r\n\r\n", id="bare LF in the head"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X-A: b\rX-C: d\r\n\r\n", id="bare CR"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X-A: b\r\n c\r\n\r\n", id="folded"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X-A: b\r\n\tc\r\n\r\n", id="folded by a tab"),
        pytest.param(b"GET /health HTTP/1.1\r\n X: folded\r\n{}\r\n", id="folded at the start"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X-A: b\x00c\r\n\r\n", id="NUL in a value"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X\x00A: b\r\n\r\n", id="NUL in a name"),
        pytest.param(b"GET /hea\x00lth HTTP/1.1\r\n{}\r\n", id="NUL in the path"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}X A: b\r\n\r\n", id="a space in a name"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}: b\r\n\r\n", id="no name"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}nonsense\r\n\r\n", id="no colon"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\n", id="no Host"),
        pytest.param(b"GET /health HTTP/1.1\r\n{}{}\r\n", id="two Hosts"),
        pytest.param(b"GET /health\r\n{}\r\n", id="HTTP/0.9"),
        pytest.param(b"GET /health HTTP/9.9\r\n{}\r\n", id="HTTP/9.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
async def test_ambiguous_framing_is_400_and_the_end(serve: Serve, server: Server, data: bytes) -> None:
    """RFC 9112 5.1, 5.2, 6.1, 6.3, 7.1, 11.2; docs/how-to/deploy.md: 400, and the connection is closed."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(data.replace(b"{}", b"Host: localhost\r\n"))
    response = await raw.response()
    assert response.status == 400
    # What is behind it is never taken for another request.
    raw.send(HEALTH)
    assert await raw.is_over()


async def test_smuggled_request_is_never_served(serve: Serve, server: Server, held: Any) -> None:
    """RFC 9112 11.2: whatever a front end thought the length was, the rest is not a request."""
    site = await serve(server)
    inner = calling(site, "hold")
    for outer in (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-encoding: x\r\n\r\n0\r\n\r\n",
    ):
        raw = await site.connect()
        raw.send(outer + inner)
        assert b"HTTP/1.1 400" in await raw.rest()
    assert held.runs == 0


# Sizes


@pytest.mark.parametrize("length", [9_000, 60_000, 100_000, 1_000_000])
async def test_huge_request_line_is_414(serve: Serve, server: Server, length: int) -> None:
    """RFC 9112 3: a request-target longer than the server wishes to parse is 414; deployment.md: 8 KiB."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(b"GET /" + b"a" * length + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await raw.response()).status == 414
    await in_step(raw)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"".join(b"X-%d: y\r\n" % n for n in range(101)), id="too many"),
        pytest.param(b"X-Same: y\r\n" * 150, id="too many of the same name"),
        pytest.param(b"X-Long: " + b"y" * 70_000 + b"\r\n", id="a long one"),
        pytest.param(b"x" * 70_000 + b": y\r\n", id="a long name"),
        pytest.param(b"".join(b"X-%d: %b\r\n" % (n, b"y" * 1000) for n in range(90)), id="long together"),
    ],
)
async def test_oversized_head_is_431(serve: Serve, server: Server, fields: bytes) -> None:
    """RFC 6585 5; docs/how-to/deploy.md: 64 KiB, 100 fields."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n")
    assert (await raw.response()).status == 431
    await in_step(raw)


async def test_head_without_an_end_is_431(serve: Serve, server: Server) -> None:
    """The same for one that never ends: the bound is not waited for."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    for _ in range(7):
        raw.send(b"y" * 10_000)
        await asyncio.sleep(0)
    async with asyncio.timeout(3):
        assert (await raw.response()).status == 431


@pytest.mark.usefixtures("short_ticks")
async def test_trailers_are_bounded_too(serve: Serve, server: Server) -> None:
    """RFC 9112 7.1.2: trailer fields are fields, and a client could go on for ever with them."""
    site = await serve(server, deadlines=ConnectionTimeouts(body=0.3))
    raw = await site.connect()
    raw.send(site.bytes("POST", "/mcp", {**KIND, "transfer-encoding": "chunked"}) + b"0\r\n")
    for number in range(2000):
        raw.send(b"X-%d: %b\r\n" % (number, b"y" * 100))
    assert (await raw.response()).status in (400, 408, 413, 431)


@pytest.mark.parametrize(
    ("missing", "trailer", "status"),
    [
        (b"authorization", b"Authorization: Bearer right", 401),
        (b"mcp-method", b"Mcp-Method: tools/call", 400),
        (b"mcp-name", b"Mcp-Name: echo", 400),
        (b"none", b"Authorization: Bearer wrong", 200),
        (b"none", b"Origin: http://evil.example", 200),
        (b"none", b"Host: evil.example", 200),
        (b"none", b"X-Forwarded-For: 192.0.2.1", 200),
    ],
)
async def test_trailers_are_no_headers(
    serve: Serve, server: Server, missing: bytes, trailer: bytes, status: int
) -> None:
    """RFC 9110, 6.5.1: what stands behind the body was not judged, so nothing is decided by it."""
    site = await serve(server, token="right", trusted_proxies=["127.0.0.1"])
    data = calling(site, "echo", {"text": "x"}, headers={"authorization": "Bearer right"})
    head, _, body = data.partition(b"\r\n\r\n")
    lines = b"\r\n".join(item for item in head.split(b"\r\n") if not item.lower().startswith(missing))
    raw = await site.connect()
    raw.send(chunked(lines + b"\r\n\r\n", body, 50, b"0\r\n" + trailer + b"\r\n\r\n"))
    response = await raw.response()
    assert response.status == status
    assert "access-control-allow-origin" not in response


async def test_credentials_are_checked_when_a_request_is_handled(serve: Serve, server: Server) -> None:
    """Whatever happened to its headers since they were judged, a request without the token does nothing."""
    site = await serve(server, token="right")
    exchange = site.listener.application
    exchange.precheck = exchange.check_capacity = lambda request: None
    response = await site.call("echo", {"text": "x"}, headers={"authorization": "Bearer wrong"})
    assert response.status == 401


# Whatever comes

_piece = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            HEALTH,
            b"POST /mcp HTTP/1.1\r\n",
            b"GET /mcp HTTP/1.1\r\n",
            b"Host: localhost\r\n",
            b"Content-Length: 5\r\n",
            b"Content-Length: 999999999\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Type: application/json\r\n",
            b"MCP-Protocol-Version: 2026-07-28\r\n",
            b"Origin: http://[::1\r\n",
            b"Host: [\r\n",
            b"Expect: 100-continue\r\n",
            b"Connection: close\r\n",
            b"Upgrade: h2c\r\nConnection: upgrade\r\n",
            b"Last-Event-ID: \xb2-1\r\n",
            b"\r\n",
            b"0\r\n\r\n",
            b"5\r\nhello\r\n",
            b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
            b"%00%ff%",
            b"\x00",
            b"\xff\xfe",
        ]
    ),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(pieces=st.lists(_piece, min_size=1, max_size=12), together=st.booleans())
async def test_no_bytes_make_it_hang_or_fail(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture, pieces: list[bytes], together: bool
) -> None:
    """docs/how-to/deploy.md: answered or closed, never a hang, never an exception in the log."""
    site = await serve(server)
    raw = await site.connect()
    # It may be closed before we have said everything.
    with suppress(OSError, RuntimeError):
        for piece in [b"".join(pieces)] if together else pieces:
            raw.send(piece)
            await asyncio.sleep(0)
        raw.half_close()
    result = await raw.rest()
    assert result == b"" or result.startswith(b"HTTP/1.1 ")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.name == "portico"]
    await site.end()


# Slow readers


async def test_client_that_asks_and_never_reads_does_not_fill_the_memory(
    serve: Serve, server: Server, wait_until: Any
) -> None:
    """docs/explanation/security.md: nothing more is read from a client that does not read; every buffer has a bound."""
    site = await serve(server)
    raw = await site.connect(receive_buffer=4096)
    raw.writer.transport.pause_reading()
    data = calling(site, "large", {"size": 100_000})
    for _ in range(400):
        raw.send(data)
    await site.turn(50)
    # Forty megabytes were asked for.
    assert site.unread <= 8 * 1024 * 1024


@pytest.mark.requirement("progress.flooding")
async def test_log_messages_for_a_slow_reader_are_dropped(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Limits: beyond 1 MiB unread log messages are dropped; the answer is not."""
    site = await serve(server)
    raw = await site.connect(receive_buffer=4096)
    raw.writer.transport.pause_reading()
    raw.send(calling(site, "shout", {"count": 600, "size": 50_000}, meta={"logLevel": "debug"}))
    assert await site.most_unread(held.shouted) <= 2 * MAX_UNREAD_BYTES
    raw.writer.transport.resume_reading()
    message = (await raw.response()).messages
    assert len(message) < 600
    assert message[-1]["result"]["content"][0]["text"] == "shouted"


async def test_body_that_waits_for_its_reader_is_slowed_down(serve: Serve, server: Server, wait_until: Any) -> None:
    """docs/how-to/use-the-context.md: awaiting what was said waits for a slow reader, and then nothing is dropped."""
    site = await serve(server)
    raw = await site.connect(receive_buffer=4096)
    raw.writer.transport.pause_reading()
    raw.send(calling(site, "talk", {"count": 400, "size": 50_000}, meta={"progressToken": 1}))
    await wait_until(lambda: site.unread > 0)
    await site.turn(20)
    assert site.exchange.metrics.in_flight == 1
    raw.writer.transport.resume_reading()
    assert len((await raw.response()).messages) == 401


async def test_slow_listener_is_disconnected(serve: Serve, server: Server, wait_until: Any) -> None:
    """docs/how-to/deploy.md, Limits: what cannot be missed is not dropped; the connection is ended instead."""
    site = await serve(server)
    raw = await site.connect(receive_buffer=4096)
    uri = "note://" + "x" * 8000
    expected = {"notifications": {"resourceSubscriptions": [uri]}}
    raw.send(site.modern_bytes("subscriptions/listen", expected))
    await raw.read_head()
    await raw.message()
    raw.writer.transport.pause_reading()
    for _ in range(1500):
        server.notify_resource_updated(uri)
        for _ in range(3):
            await asyncio.sleep(0)
    assert site.unread <= 3 * MAX_UNREAD_BYTES
    raw.writer.transport.resume_reading()
    async with asyncio.timeout(5):
        await raw.rest()
    assert not server.subscriptions._listeners


@pytest.mark.usefixtures("short_ticks")
async def test_client_that_never_reads_is_disconnected(serve: Serve, server: Server, wait_until: Any) -> None:
    """docs/how-to/deploy.md, Limits: a client that takes too long loses its connection, read or not."""
    site = await serve(server, deadlines=ConnectionTimeouts(head=0.2, body=0.2, idle=0.2))
    raw = await site.connect(receive_buffer=4096)
    raw.writer.transport.pause_reading()
    raw.send(calling(site, "large", {"size": 30_000_000}))
    await wait_until(lambda: site.unread > 0)
    async with asyncio.timeout(4):
        await wait_until(lambda: not site.listener._connections)


# Stopping


async def test_stopping_lets_running_calls_finish(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Stopping: no new connections, no new calls, what runs may finish."""
    site = await serve(server)
    idle, busy, streaming = await site.connect(), await site.connect(), await site.connect()
    idle.send(HEALTH)
    await idle.response()
    busy.send(calling(site, "hold"))
    streaming.send(calling(site, "talk", {"count": 1, "hold": True}, meta={"progressToken": 1}))
    await held.has_started()
    await streaming.read_head()
    stopping = asyncio.ensure_future(site.stop(timeout=5))
    assert await idle.is_over()
    with pytest.raises(OSError):
        await site.connect()
    # On a connection that is still there, another call is refused.
    busy.send(calling(site, "echo", {"text": "late"}))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    held.release.set()
    assert text_of(await busy.response()) == "released"
    rest = await busy.rest()
    assert rest == b"" or rest.startswith(b"HTTP/1.1 503")
    events = []
    while (event := await streaming.event()) is not None:
        events.append(event.json)
    assert events[-1]["result"]
    await stopping


async def test_stopping_does_not_wait_for_ever(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Stopping: so many seconds, then it is over."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(calling(site, "hold"))
    await held.has_started()
    await site.stop(timeout=0.1)
    await held.was_cancelled()
    assert await raw.is_over()


async def test_running_call_finishes_while_draining(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md: whoever balances the load can look."""
    site = await serve(server)
    busy = await site.connect()
    busy.send(calling(site, "hold") + HEALTH)
    await held.has_started()
    stopping = asyncio.ensure_future(site.stop(timeout=5))
    await asyncio.sleep(0)
    held.release.set()
    assert text_of(await busy.response()) == "released"
    await stopping


# Where it listens


def certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("There is no openssl here to make a certificate with.")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    done = subprocess.run(
        [*command, *names, "-keyout", str(key), "-out", str(made)], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return made, key


async def test_listener_supports_tls(
    serve: Serve, server: Server, tmp_path: Path, held: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/how-to/deploy.md: `--ssl-certfile`, `--ssl-keyfile`; TLS 1.2 at least."""
    made, key = certificate(tmp_path)
    place = BindAddress(ssl_certfile=str(made), ssl_keyfile=str(key))
    context = place.ssl_context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    site = await serve(server, tls=context)
    site.tls = ssl.create_default_context(cafile=str(made))
    assert text_of(await site.call("echo", {"text": "secret"})) == "secret"
    assert len((await site.call("talk", {"count": 2}, meta={"progressToken": 1})).messages) == 3
    session = await site.initialize("2025-11-25")
    assert (await session.call("later", {"text": "x"})).status == 200
    # A client that goes away cancels here as well.
    raw = await site.connect()
    raw.send(calling(site, "hold"))
    await held.has_started()
    await raw.close()
    await held.was_cancelled(within=4)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_plain_http_to_tls_is_closed(
    serve: Serve, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of a client, and none of ours."""
    made, key = certificate(tmp_path)
    site = await serve(server, tls=BindAddress(ssl_certfile=str(made), ssl_keyfile=str(key)).ssl_context())
    raw = await site.connect()
    raw.send(HEALTH)
    assert b"200 OK" not in await raw.rest()


def test_invalid_certificate_raises_usage_error(tmp_path: Path) -> None:
    """Misuse is told while building."""
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(UsageError):
        BindAddress(ssl_certfile=str(tmp_path / "no.pem")).ssl_context()
    with pytest.raises(UsageError):
        BindAddress(ssl_certfile=str(tmp_path / "absent.pem")).ssl_context()


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="This system has no SO_REUSEPORT.")
async def test_several_may_share_a_port(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Multiple processes: only when asked for."""
    first = await serve(server, reuse_port=True)
    second = await serve(server, port=first.port, reuse_port=True)
    for _ in range(20):
        assert (await first.request("GET", "/health")).status == 200
    await first.stop()
    assert (await second.request("GET", "/health")).status == 200
    with pytest.raises(UsageError):
        await serve(server, port=first.port)


async def test_port_that_is_taken_is_a_usage_error(serve: Serve, server: Server) -> None:
    """In words, with the address."""
    site = await serve(server)
    with pytest.raises(UsageError, match=str(site.port)):
        await serve(server, port=site.port)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.0.0.2", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("", False),
    ],
)
def test_loopback_hosts_are_recognized(host: str, loopback: bool) -> None:
    """2026-07-28, basic/transports: bind to loopback when running locally."""
    assert is_loopback(host) is loopback


SCRIPT = """
from portico import Server
server = Server("small", version="1")

@server.tool
async def wait() -> str:
    import asyncio
    await asyncio.sleep(1)
    return "waited"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.requirement("http.local")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_other_machines_are_not_served_without_a_token(run: Any, script: Path, host: str) -> None:
    """docs/how-to/deploy.md: refused with exit status 2, and with the words that would allow it."""
    child = await run("-m", "portico", "serve", script, "--transport", "http", "--host", host, "--port", "0")
    assert await child.ended() == 2
    assert "PORTICO_TOKEN" in child.said
    assert "--insecure" in child.said
    assert "Traceback" not in child.said


async def test_other_machines_are_served_with_a_token(run: Any, at: Any, script: Path) -> None:
    """docs/how-to/deploy.md: then it is demanded from everybody."""
    arguments = ("-m", "portico", "serve", script, "--transport", "http", "--host", "0.0.0.0", "--port", "0")
    child = await run(*arguments, env={"PORTICO_TOKEN": "right"})
    url = (await child.read_until("Serving on ")).strip()
    site = at(int(url.rpartition(":")[2].partition("/")[0]), token="right")
    assert (await site.request_stateless("tools/list")).status == 200
    assert (await site.request_stateless("tools/list", headers={"authorization": None})).status == 401
    assert "right" not in child.said


@pytest.mark.requirement("http.local")
async def test_server_listens_on_loopback_by_default(run: Any, at: Any, script: Path) -> None:
    """docs/how-to/deploy.md: 127.0.0.1 is the default. A signal ends it with status 0."""
    child = await run("-m", "portico", "serve", script, "--transport", "http", "--port", "0")
    url = (await child.read_until("Serving on ")).strip()
    assert "http://127.0.0.1:" in url
    port = int(url.rpartition(":")[2].partition("/")[0])
    assert all(address == "0100007F" for address in bound_to(port))
    site = at(port)
    raw = await site.connect()
    raw.send(calling(site, "wait"))
    async with asyncio.timeout(5):
        while not await busy_with(site):
            pass
    child.process.send_signal(signal.SIGTERM)
    assert text_of(await raw.response()) == "waited"
    assert await child.ended() == 0


def bound_to(port: int) -> list[str]:
    """The addresses on which somebody listens at a port, as Linux tells them."""
    table = Path("/proc/net/tcp")
    rows = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return [address for address, at in places if int(at, 16) == port]


async def busy_with(site: Any) -> bool:
    text = (await site.request("GET", "/metrics")).body.decode()
    return "mcp_server_in_flight 1" in text


def test_curl_request_is_answered() -> None:
    """The helper of these tests itself: chunks hold the body."""
    data = chunked(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\n", json.dumps([1]).encode(), 2)
    assert data.endswith(b"\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n")
