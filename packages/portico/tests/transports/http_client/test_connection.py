"""HTTP/1.1 in the client: framing, reuse, limits, and connections closed at any moment."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from portico.protocol.errors import ConnectError, ConnectionClosed, ProtocolError, UsageError
from portico.transports.http_client import pool as pools
from portico.transports.http_client.connection import MAX_HEAD_BYTES, READ_AHEAD_BYTES, HttpClientResponse
from portico.transports.http_client.pool import HttpConnectionPool, HttpUrl
from support.scripted import Peer, Site, wait_until

Listen = Callable[..., Any]
TIMEOUT_SECONDS = 10.0
LONGEST = 1024 * 1024


@pytest.fixture
async def pool() -> AsyncIterator[HttpConnectionPool]:
    pool = HttpConnectionPool()
    yield pool
    assert not pool._open, "a connection was not given back"
    await pool.close()


async def ask(pool: HttpConnectionPool, site: Site, body: bytes = b"{}", **options: Any) -> tuple[int, bytes]:
    """One exchange, from the request to the end of the body."""
    place = HttpUrl(site.url)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        answer = await pool.send("POST", place, options.get("headers", ()), body)
        try:
            return answer.status, await answer.read(LONGEST)
        finally:
            pool.release(place, answer)


def saying(*answers: bytes, then: str = "wait") -> Callable[[Peer], Any]:
    """A server that answers each request with these bytes, in so many writes, and then waits, closes or resets."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            for answer in answers:
                peer.send(answer)
                await peer.drained()
                await asyncio.sleep(0)
            if then == "close":
                return
            if then == "reset":
                peer.abort()
                return

    return script


# Framing

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer, body",
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: y\r\n\r\n", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", b""),
        (b"HTTP/1.1 102 Processing\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 103 Early\r\nLink: </x>\r\n\r\n" * 3 + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    ],
    ids=["length", "empty", "chunks", "chunks with extras", "204", "304", "102", "103 thrice"],
)
@pytest.mark.parametrize("pieces", ["at once", "byte by byte"])
async def test_connection_is_used_again(
    listen: Listen, pool: HttpConnectionPool, answer: bytes, body: bytes, pieces: str
) -> None:
    parts = [answer] if pieces == "at once" else [bytes([item]) for item in answer]
    site = await listen(saying(*parts))
    for _ in range(3):
        status, message = await ask(pool, site)
        assert message == body
        assert status in (200, 204, 304)
    assert len(site.peers) == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
    ids=["said so", "1.0", "until the end", "1.0 until the end"],
)
async def test_connection_that_is_not_kept_is_not_used_again(
    listen: Listen, pool: HttpConnectionPool, answer: bytes
) -> None:
    site = await listen(saying(answer, then="close"))
    for _ in range(2):
        assert await ask(pool, site) == (200, b"hello")
    assert len(site.peers) == 2


async def test_head_is_there_before_the_body(listen: Listen, pool: HttpConnectionPool) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(CHUNKED)
        await go_on.wait()
        peer.send("2\r\nhi\r\n0\r\n\r\n")
        await peer.request()

    site = await listen(script)
    place = HttpUrl(site.url)
    answer = await pool.send("POST", place, ())
    assert (answer.status, answer.media_type) == (200, "text/plain")
    go_on.set()
    assert await answer.read_chunk() == b"hi"
    assert await answer.read_chunk() == b""
    assert await answer.read_chunk() == b""
    pool.release(place, answer)


async def test_body_can_be_read_twice(listen: Listen, pool: HttpConnectionPool) -> None:
    site = await listen(saying(OK + b"Content-Length: 5\r\n\r\nhello"))
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    assert await answer.read(5) == await answer.read(5) == b"hello"
    pool.release(place, answer)


async def test_headers_that_come_twice_are_joined(listen: Listen, pool: HttpConnectionPool) -> None:
    """RFC 9110, section 5.3."""
    site = await listen(saying(b"HTTP/1.1 204 X\r\nWWW-Authenticate: A\r\nwww-authenticate: B x=1\r\n\r\n"))
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    assert answer.headers["www-authenticate"] == "A, B x=1"
    pool.release(place, answer)


async def test_trailer_is_not_taken_for_a_header(listen: Listen, pool: HttpConnectionPool) -> None:
    """RFC 9110, section 6.5.1: it comes when all decisions have been made."""
    site = await listen(saying(CHUNKED + b"2\r\nhi\r\n0\r\nMcp-Session-Id: evil\r\nContent-Type: no\r\n\r\n"))
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    assert await answer.read(LONGEST) == b"hi"
    assert "mcp-session-id" not in answer.headers
    assert answer.media_type == "text/plain"
    pool.release(place, answer)


async def test_returned_response_does_not_affect_the_next(listen: Listen, pool: HttpConnectionPool) -> None:
    """Giving back twice must not lend one connection to two, nor end the exchange of somebody else."""
    site = await listen(saying(OK + b"Content-Length: 5\r\n\r\nhello"))
    place = HttpUrl(site.url)
    first = await pool.send("GET", place, ())
    await first.read(LONGEST)
    pool.release(place, first)
    pool.release(place, first)
    second = await pool.send("GET", place, ())
    third = await pool.send("GET", place, ())
    assert second.connection is first.connection
    assert third.connection is not second.connection
    pool.release(place, first)
    assert await first.read_chunk() == b""
    for item in (second, third):
        assert await item.read(LONGEST) == b"hello"
        pool.release(place, item)
    assert len(site.peers) == 2


# What is not HTTP, or too much of it


@pytest.mark.parametrize(
    "answer, complaint",
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not valid HTTP"),
        (b"\x16\x03\x01\x00\x05hello", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", "not valid HTTP"),
        (CHUNKED + b"zz\r\nhello", "not valid HTTP"),
        (CHUNKED + b"ffffffffffffffffff\r\nhello", "not valid HTTP"),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 204 X\r\n\r\nHTTP/1.1 204 X\r\n\r\n", "two responses"),
        (OK + b"Content-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "two responses"),
        (OK + b"Content-Length: 5\r\n\r\nhello, world", "not HTTP|two responses"),
    ],
    ids=lambda one: repr(one[-24:]) if isinstance(one, bytes) else "",
)
async def test_malformed_responses_are_rejected(
    listen: Listen, pool: HttpConnectionPool, answer: bytes, complaint: str
) -> None:
    site = await listen(saying(answer))
    with pytest.raises(ProtocolError, match=complaint):
        await ask(pool, site)
    await wait_until(lambda: site.open == 0)


@pytest.mark.parametrize(
    "beginning, endless",
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Header: value\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\n", b"x" * 1000),
        (b"HTTP/1.1 200 ", b"O" * 1000),
        (b"", b"HTTP/1.1 102 Processing\r\nX-A: b\r\n\r\n"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (CHUNKED + b"0\r\n", b"X-Trailer: value\r\n"),
        (CHUNKED + b"0\r\nX-Trailer: ", b"x" * 1000),
        (CHUNKED + b"5;ext=", b"x" * 1000),
    ],
    ids=["headers", "value", "name", "reason", "102s with headers", "102s", "trailers", "trailer", "extension"],
)
async def test_head_without_end_is_rejected(
    listen: Listen, pool: HttpConnectionPool, beginning: bytes, endless: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(beginning)
        while True:
            peer.send(endless * 10)
            await peer.drained()
            await asyncio.sleep(0)  # or it would be megabytes before the other side reads

    site = await listen(script)
    with pytest.raises(ProtocolError, match=f"head of the response is longer than {MAX_HEAD_BYTES} bytes"):
        await ask(pool, site)


async def test_thousand_headers_are_no_harm(listen: Listen, pool: HttpConnectionPool) -> None:
    many = b"".join(b"X-%d: v\r\n" % number for number in range(1000))
    site = await listen(saying(b"HTTP/1.1 200 OK\r\n" + many + b"Content-Length: 2\r\n\r\nok"))
    assert await ask(pool, site) == (200, b"ok")


@pytest.mark.parametrize("head", [OK + b"Content-Length: 99999999\r\n\r\n", OK + b"\r\n", CHUNKED], ids=["l", "e", "c"])
async def test_body_beyond_the_bound_is_not_read(listen: Listen, pool: HttpConnectionPool, head: bytes) -> None:
    sent = 0
    piece = b"x" * 65536

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.send(head)
        while True:
            peer.send(b"%x\r\n%b\r\n" % (len(piece), piece) if head is CHUNKED else piece)
            await peer.drained()
            sent += len(piece)

    site = await listen(script)
    with pytest.raises(ProtocolError, match=f"longer than {LONGEST} bytes"):
        await ask(pool, site)
    await wait_until(lambda: site.open == 0)
    assert sent < 50 * LONGEST


async def test_unread_response_applies_backpressure(listen: Listen, pool: HttpConnectionPool) -> None:
    """What lies here unread is bounded: the server has to wait."""
    sent = 0
    piece = b"x" * 65536

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.send(OK + b"Content-Length: 1000000000\r\n\r\n")
        while True:
            peer.send(piece)
            await peer.writer.drain()
            sent += len(piece)

    site = await listen(script)
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    before = -1
    while before != sent:
        before = sent
        for _ in range(200):
            await asyncio.sleep(0)
    assert answer.connection._buffered_bytes <= READ_AHEAD_BYTES + 2**20
    # And once it is read, there is more.
    item = 0
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while item < READ_AHEAD_BYTES * 20:
            item += len(await answer.read_chunk())
    pool.release(place, answer)
    await wait_until(lambda: site.open == 0)


def in_chunks(times: int) -> Callable[[Peer], Any]:
    many = b"2\r\nhi\r\n" * 10_000

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(CHUNKED)
        for _ in range(times // 10_000):
            peer.send(many)
            await peer.drained()
        peer.end()
        await peer.request()

    return script


async def test_million_small_chunks_are_one_body(listen: Listen, pool: HttpConnectionPool) -> None:
    site = await listen(in_chunks(1_000_000))
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    async with asyncio.timeout(60):
        assert await answer.read(2**26) == b"hi" * 1_000_000
    pool.release(place, answer)


async def test_small_chunks_count_by_their_size(listen: Listen, pool: HttpConnectionPool) -> None:
    site = await listen(in_chunks(200_000))
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    tracemalloc.start()
    try:
        async with asyncio.timeout(60):
            await answer.read(2**26)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pool.release(place, answer)
    # A list of the pieces alone would be 10 MB, for 400 kB.
    assert peak < 7 * 2**20


# Ends


CUTS = [
    b"",
    b"HTTP/1.1 2",
    b"HTTP/1.1 200 OK\r\nContent-Le",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    OK + b"Content-Length: 5\r\n\r\n",
    OK + b"Content-Length: 5\r\n\r\nhell",
    CHUNKED,
    CHUNKED + b"5\r\nhel",
    CHUNKED + b"5\r\nhello\r\n",
    CHUNKED + b"5\r\nhello\r\n0\r\n",
]


@pytest.mark.parametrize("answer", CUTS, ids=lambda one: repr(one[-20:]))
@pytest.mark.parametrize("then", ["close", "reset"])
async def test_connection_may_end_at_any_moment(
    listen: Listen, pool: HttpConnectionPool, answer: bytes, then: str
) -> None:
    site = await listen(saying(answer, then=then))
    with pytest.raises(ConnectionClosed, match="closed the connection"):
        await ask(pool, site)


async def test_body_without_length_that_is_reset_is_not_whole(listen: Listen, pool: HttpConnectionPool) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK + b"\r\nhalf")
        await go_on.wait()
        peer.abort()

    site = await listen(script)
    place = HttpUrl(site.url)
    answer = await pool.send("GET", place, ())
    assert await answer.read_chunk() == b"half"
    go_on.set()
    with pytest.raises(ConnectionClosed):
        await answer.read_chunk()
    pool.release(place, answer)


async def test_connection_closed_before_a_request_is_retried(listen: Listen, pool: HttpConnectionPool) -> None:
    """ConnectFailed says that nothing was sent; Closed, that it may have been."""
    place = HttpUrl("http://127.0.0.1:1/mcp")
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        await pool.send("GET", place, ())


async def test_server_that_speaks_first_is_not_listened_to(listen: Listen, pool: HttpConnectionPool) -> None:
    """What comes unasked would be taken for the answer to the next question."""

    async def script(peer: Peer) -> None:
        peer.send(OK + b"Content-Length: 4\r\n\r\nevil")
        await peer.drained()
        await peer.gone()

    site = await listen(script)
    place = HttpUrl(site.url)
    connection = await pool._connect(place, None)
    await wait_until(lambda: connection.ended)
    with pytest.raises(ConnectError, match="sent data before a request"):
        await connection.send_request(b"GET / HTTP/1.1\r\n\r\n")


async def test_unsolicited_data_closes_an_idle_connection(listen: Listen, pool: HttpConnectionPool) -> None:
    speak, spoken = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.send(OK + b"Content-Length: 4\r\n\r\ngood")
            if not spoken.is_set():
                await speak.wait()
                peer.send(OK + b"Content-Length: 4\r\n\r\nevil")
                spoken.set()
                await peer.gone()

    site = await listen(script)
    assert await ask(pool, site) == (200, b"good")
    speak.set()
    await spoken.wait()
    await wait_until(lambda: site.open == 0)
    assert await ask(pool, site) == (200, b"good")
    assert len(site.peers) == 2


async def test_idle_connection_that_ends_is_not_used(listen: Listen, pool: HttpConnectionPool) -> None:
    site = await listen(saying(OK + b"Content-Length: 2\r\n\r\nok", then="close"))
    for _ in range(3):
        assert await ask(pool, site) == (200, b"ok")
        [idle] = pool._idle.values()
        await wait_until(lambda idle=idle: not any(item.reusable for item in idle))
    assert len(site.peers) == 3


async def test_connection_that_was_idle_for_long_is_not_used(
    listen: Listen, pool: HttpConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await listen(saying(OK + b"Content-Length: 2\r\n\r\nok"))
    await ask(pool, site)
    monkeypatch.setattr(pools, "IDLE_TIMEOUT_SECONDS", 0.0)
    await ask(pool, site)
    assert len(site.peers) == 2


# Cancelling


@pytest.mark.parametrize("moment", ["asked", "head", "body"])
async def test_cancelled_request_closes_its_connection(listen: Listen, pool: HttpConnectionPool, moment: str) -> None:
    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if moment == "head":
            peer.send("HTTP/1.1 200 OK\r\n")
        elif moment == "body":
            peer.send(OK + b"Content-Length: 5\r\n\r\nhel")
        await peer.drained()
        reached.set()
        await peer.gone()

    site = await listen(script)
    task = asyncio.ensure_future(ask(pool, site))
    await reached.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: site.open == 0)
    assert not pool._open
    assert not any(pool._idle.values())


async def test_request_cancelled_at_any_step_closes_its_connection(listen: Listen) -> None:
    """Every turn of the loop on the way to an answer, one after the other."""
    site = await listen(saying(OK + b"Content-Length: 5\r\n\r\n", b"hello"))
    for turns in range(40):
        pool = HttpConnectionPool()
        task = asyncio.ensure_future(ask(pool, site))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=TIMEOUT_SECONDS)
        assert task.done()
        assert not pool._open
        await pool.close()
        await wait_until(lambda: site.open == 0)


async def test_closing_ends_open_requests(listen: Listen) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    site = await listen(script)
    pool = HttpConnectionPool()
    task = asyncio.ensure_future(ask(pool, site))
    await wait_until(lambda: site.open == 1)
    await pool.close()
    with pytest.raises(ConnectionClosed):
        await task
    await wait_until(lambda: site.open == 0)
    with pytest.raises(ConnectionClosed):
        await ask(pool, site)


async def test_closing_the_pool_aborts_pending_connections(listen: Listen) -> None:
    requests = []

    async def script(peer: Peer) -> None:
        requests.append(await peer.request())

    site = await listen(script)
    for turns in range(10):
        pool = HttpConnectionPool()
        task = asyncio.ensure_future(ask(pool, site))
        for _ in range(turns):
            await asyncio.sleep(0)
        await pool.close()
        with pytest.raises((ConnectionClosed, ConnectError)):
            await task
        await wait_until(lambda: site.open == 0)


# What we send


@pytest.mark.parametrize(
    "headers",
    [[("X", "a\r\nEvil: 1")], [("X\r\nEvil", "1")], [("X", "a\nb")], [("X", "a\rb")], [("X", "é")], [("X", "a\x00b")]],
    ids=repr,
)
async def test_no_header_can_bring_another_one(listen: Listen, pool: HttpConnectionPool, headers: Any) -> None:
    site = await listen(saying(OK + b"Content-Length: 2\r\n\r\nok"))
    with pytest.raises(UsageError, match="header"):
        await ask(pool, site, headers=headers)
    assert site.peers == []


@pytest.mark.parametrize("url", ["http://h/a b", "http://h/\r\nX: y", "http://h/é", "http://", "h/x", "ftp://h:21/x"])
def test_invalid_urls_raise_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        HttpUrl(url)


@pytest.mark.parametrize("url", ["http://h:99999/", "http://h:x/", "http://[::1/", "socks5://h:1080", "http://h:0x/"])
def test_invalid_hosts_and_ports_raise_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        HttpUrl(url)


async def test_requests_have_a_content_length(listen: Listen, pool: HttpConnectionPool) -> None:
    seen = []

    async def script(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            peer.answer(200, "ok")

    site = await listen(script)
    await ask(pool, site, b"12345", headers=[("X-A", "b")])
    await ask(pool, site, b"")
    assert [(item.method, item.target, item.headers["content-length"]) for item in seen] == [
        ("POST", "/mcp", "5"),
        ("POST", "/mcp", "0"),
    ]
    assert seen[0].body == b"12345"
    assert seen[0].headers["host"] == f"127.0.0.1:{site.port}"


def test_answer_has_a_media_type_without_parameters() -> None:
    answer = HttpClientResponse(None, 200, {"content-type": " Text/Event-Stream ; charset=utf-8"})  # type: ignore[arg-type]
    assert answer.media_type == "text/event-stream"


# Heads that were read before


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((HEAD + b"[]",), b"[]"),
        ((HEAD, b"[]"), b"[]"),
        ((HEAD + b"[", b"]"), b"[]"),
        ((HEAD[:30], HEAD[30:] + b"[]"), b"[]"),
        ((HEAD.replace(b": 2", b": 3") + b"[1]",), b"[1]"),
    ],
)
async def test_cached_head_is_parsed_equally(
    pool: HttpConnectionPool, listen: Listen, pieces: tuple[bytes, ...], wanted: bytes
) -> None:
    async def script(peer: Peer) -> None:
        for answer in ((HEAD + b"{}",), (HEAD + b"{}",), pieces, (HEAD + b"{}",)):
            await peer.request()
            for piece in answer:
                peer.send(piece)
                await peer.drained()
                await asyncio.sleep(0.01)

    site = await listen(script)
    assert [(await ask(pool, site))[1] for _ in range(4)] == [b"{}", b"{}", wanted, b"{}"]
    assert len(site.peers) == 1


async def test_extra_data_after_a_cached_head_is_a_protocol_error(pool: HttpConnectionPool, listen: Listen) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD + b"{}")
        await peer.request()
        peer.send(HEAD + b"{}" + HEAD + b"[]")
        await peer.request()

    site = await listen(script)
    assert (await ask(pool, site))[1] == b"{}"
    with pytest.raises(ProtocolError):
        await ask(pool, site)
