"""The fast head parser gives the same result as the full parser, and leaves unusual heads to it."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import httptools
import pytest
from hypothesis import given, settings, strategies as st

from portico import Server
from portico.server.http import build_application as exchange_for
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.connection import HttpServerConnection
from portico.transports.http_server.fast_head_parser import MAX_CACHED_LINES, FastHeadParser
from portico.transports.http_server.listener import Listener

BODY = b"{}"
# Connections for each way to be set up.
ROUNDS = 500
START = b"POST /mcp HTTP/1.1"
USUAL = (b"Host: localhost", b"content-type: application/json", b"content-length: 2")

# Each is put among the usual lines, or in place of one of them, and none is plain.
STRANGE = (
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:identity",
    b"Connection: close",
    b"connection: upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Content-Length: 2",
    b"content-length: 02",
    b"content-length: +2",
    b"content-length: 2, 2",
    b"Content-Length : 2",
    b"host: elsewhere",
    b" folded: into the line before",
    b"\tfolded",
    b"no colon",
    b": no name",
    b"na me: value",
    b"name: a\x00b",
    b"name: a\nb",
    b"name: a\rb",
    b"name: caf\xc3\xa9",
    b"name: value ",
    b"name:  value",
    b"name:",
    b"",
)


class Parsed:
    """What the parser finds in a request."""

    def __init__(self, data: bytes) -> None:
        self.url, self.body, self.pairs, self.complete = b"", b"", list[tuple[bytes, bytes]](), 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method, self.keep = parser.get_method(), parser.should_keep_alive()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def head_of(*lines: bytes, start: bytes = START) -> bytes:
    return b"\r\n".join((start, *lines, b"", b""))


def agrees(heads: FastHeadParser, head: bytes) -> bool:
    """Whether a head is plain; then the parser must say the same."""
    read = heads.parse(head, len(BODY))
    if read is None:
        return False
    path, headers = read
    parsed = Parsed(head + BODY)
    assert (parsed.method, parsed.url, parsed.body) == (b"POST", path.encode(), BODY)
    assert parsed.complete == 1 and parsed.keep
    assert parsed.pairs == list(headers.items()) and not headers.duplicates
    return True


def test_usual_head_is_plain_and_so_is_one_with_a_new_line() -> None:
    heads = FastHeadParser()
    for number in range(3):
        assert agrees(heads, head_of(*USUAL, b"X-Request-Id: %d" % number, b"connection: Keep-Alive"))


@pytest.mark.parametrize("strange", STRANGE)
def test_unusual_headers_fall_back_to_the_full_parser(strange: bytes) -> None:
    heads = FastHeadParser()
    assert agrees(heads, head_of(*USUAL))
    for at in range(len(USUAL) + 1):
        assert heads.parse(head_of(*USUAL[:at], strange, *USUAL[at:]), len(BODY)) is None
    assert agrees(heads, head_of(*USUAL))


@pytest.mark.parametrize(
    "start",
    [
        b"GET /mcp HTTP/1.1",
        b"POST /mcp HTTP/1.0",
        b"POST /mcp HTTP/1.1 ",
        b"POST  /mcp HTTP/1.1",
        b"POST mcp HTTP/1.1",
        b"POST http://localhost/mcp HTTP/1.1",
        b"POST /mcp?a=b HTTP/1.1",
        b"POST /m%63p HTTP/1.1",
        b"post /mcp HTTP/1.1",
        b"\r\nPOST /mcp HTTP/1.1",
        b"POST /mcp HTTP/1.1\n",
    ],
)
def test_so_is_a_strange_start(start: bytes) -> None:
    assert FastHeadParser().parse(head_of(*USUAL, start=start), len(BODY)) is None


def test_so_is_a_body_of_another_length_and_a_head_without_its_lines() -> None:
    heads = FastHeadParser()
    assert heads.parse(head_of(*USUAL), 3) is None
    assert heads.parse(head_of(*USUAL[1:]), len(BODY)) is None
    assert heads.parse(head_of(*USUAL[:-1]), len(BODY)) is None
    assert heads.parse(head_of(*USUAL, *(b"x%d: y" % number for number in range(100))), len(BODY)) is None
    assert heads.parse(b"", 0) is heads.parse(b"\r\n\r\n", 0) is heads.parse(b"POST", 0) is None


def test_lines_are_not_kept_without_end() -> None:
    heads = FastHeadParser()
    for number in range(3 * MAX_CACHED_LINES):
        assert heads.parse(head_of(*USUAL, b"x-request-id: %d" % number, start=b"POST /%d HTTP/1.1" % number), 2)
    assert len(heads._lines) <= MAX_CACHED_LINES and len(heads._paths) <= MAX_CACHED_LINES


NAMES = st.sampled_from((b"x", b"X-Y", b"host", b"connection", b"content-length", b"te", b"x\xe9", b"x y"))
PARTS = st.tuples(NAMES, st.sampled_from((b":", b": ", b" :", b":\t", b":  ")), st.binary(max_size=6)).map(b"".join)
LINES = st.lists(st.one_of(st.sampled_from((*USUAL, *STRANGE)), PARTS, st.binary(max_size=12)), max_size=3)


@settings(max_examples=400, deadline=None)
@given(LINES, st.randoms())
def test_no_head_is_read_otherwise_than_by_the_parser(lines: list[bytes], random: object) -> None:
    heads = FastHeadParser()
    mixed = [*USUAL, *lines]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    agrees(heads, head_of(*mixed))
    agrees(heads, head_of(*mixed))


# Whole connections, with and without the shorter ways: what is asked of the server, and what is answered, is the same


class Parsing(HttpServerConnection):
    """Reads everything with the parser."""

    def _serve_fast_path(self, data: bytes) -> bool:
        return False


class Wire(asyncio.Transport):
    """What is written to a client."""

    def __init__(self, peer: str) -> None:
        super().__init__({"peername": (peer, 1)})
        self.said, self.over = b"", False

    def write(self, data: Any) -> None:
        self.said += b"" if self.over else data

    def close(self) -> None:
        self.over = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_reading(self) -> bool:
        return True


class Site:
    """A server whose connections are read in one way."""

    def __init__(self, kind: type[HttpServerConnection], **options: Any) -> None:
        self.kind = kind
        self.listener = Listener(exchange_for(Server("read", version="1"), HttpServerSettings(**options)))
        self.listener._tick()
        self.asked: list[Any] = []
        handle = self.listener.application.handle

        def noting(request: Any, writer: Any) -> None:
            message = (request.method, request.path, request.query, request.body, dict(request.headers))
            self.asked.append((*message, request.headers.duplicates, request.peer, request.cors, request.proxied))
            handle(request, writer)

        self.listener.application.handle = noting  # type: ignore[method-assign]

    async def hear(self, peer: str, pieces: list[bytes]) -> tuple[Any, ...]:
        self.asked.clear()
        connection, wire = self.kind(self.listener), Wire(peer)
        connection.connection_made(wire)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(8):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        assert self.listener.buffered_body_bytes == 0
        return re.sub(rb"date: .*?\r\n", b"", wire.said), wire.over, list(self.asked)


STARTS = (
    *[START] * 12,
    *(b"POST /mcp?a=b HTTP/1.1", b"POST http://evil.example/mcp HTTP/1.1", b"POST /mcp HTTP/1.0"),
    *(b"POST /nowhere HTTP/1.1", b"GET /readyz HTTP/1.1", b"POST //mcp HTTP/1.1", b"POST /m%63p HTTP/1.1"),
)
HOSTS = (*[b"Host: localhost"] * 12, b"host: good.example:80", b"HOST: evil.example", b"Host:localhost", b"X-No: host")
KINDS = (*[b"Content-Type: application/json"] * 12, b"content-type: text/plain", b"Content-Type:  application/json ")
MORE = (
    *(b"Authorization: Bearer secret", b"authorization: Bearer secret", b"Authorization: Bearer wrong"),
    *(b"Origin: http://localhost", b"Origin: http://evil.example", b"Connection: keep-alive", b"Connection: x, close"),
    *(b"X-Forwarded-For: 192.0.2.7", b"X-Forwarded-For: 192.0.2.8", b"Forwarded: for=192.0.2.9", b"Accept: */*"),
    *(b"Accept: text/html", b"MCP-Protocol-Version: 2025-06-18", b"TRANSFER-encoding: Chunked", b"Portico-Sent-On: x"),
    *(
        b"X-Request-Id: 1",
        b"x-request-id: 2",
        b"X-Tenant: a",
        b"X-Tenant: b",
        b"X-REQUEST-ID:3",
        b"X-Request-Id:  4",
        b"x-request-id: a b",
    ),
    *(b"traceparent: 00-1-2-01", b"Traceparent: 00-1-3-01", b"tracestate: a=1,b=2", b"x-correlation-id: 7"),
    *STRANGE,
)
MESSAGE = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()


def some_request(chance: random.Random) -> bytes:
    body = chance.choice((*[MESSAGE] * 6, b"", b"{}", b"x" * 600, MESSAGE + b" " * 300))
    length = b"%d" % (len(body) + chance.choice((*[0] * 12, 1, -1)))
    size = chance.choice((*[b"Content-Length: "] * 12, b"content-length:", b"Content-Length: 0", b"Content-Length: +"))
    lines = [
        chance.choice(HOSTS),
        chance.choice(KINDS),
        size + length,
        *chance.choices(MORE, k=chance.choice((0, 0, 1, 2))),
    ]
    if chance.random() < 0.7:
        lines.append(b"Authorization: Bearer secret")
    if chance.random() < 0.2:
        chance.shuffle(lines)
    return head_of(*lines, start=chance.choice(STARTS)) + body


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    at = sorted(chance.choices(range(len(data) + 1), k=chance.choice((0, 0, 0, 1, 2))))
    return [piece for piece in (data[i:j] for i, j in zip([0, *at], [*at, len(data)], strict=True)) if piece]


@pytest.mark.parametrize(
    "options", [{}, {"token": "secret", "max_total_body_size": 500}, {"max_body_size": 100}], ids=str
)
async def test_fast_and_full_parsers_give_equal_responses(options: dict[str, Any]) -> None:
    options = {"allowed_hosts": ["good.example"], "trusted_proxies": ["10.0.0.1"], **options}
    usual, parsing = Site(HttpServerConnection, **options), Site(Parsing, **options)
    chance = random.Random(7)
    # Some come again, and some with another id: then their heads are known.
    known_items = [some_request(chance) for _ in range(30)]
    known_items += [request.replace(b"d: 1\r\n", b"d: 5\r\n") for request in known_items if b"Id: 1\r\n" in request]
    for _ in range(ROUNDS):
        requests = [chance.choice((*known_items, some_request(chance))) for _ in range(chance.choice((1, 1, 2, 3)))]
        apart = chance.random() < 0.6
        pieces = (
            [piece for request in requests for piece in cut(request, chance)]
            if apart
            else cut(b"".join(requests), chance)
        )
        peer = chance.choice(("127.0.0.1", "10.0.0.1", "192.0.2.1"))
        assert await usual.hear(peer, pieces) == await parsing.hear(peer, pieces), (peer, pieces)
    assert usual.listener.request_cache and not parsing.listener.head_parser._lines


@pytest.mark.parametrize("name", [b"X-Request-Id", b"X-Tenant", b"X-Made-Up-%d"])
async def test_head_with_another_length_and_a_new_line_is_judged_once(name: bytes) -> None:
    site, judged = Site(HttpServerConnection, max_body_size=100), list[Any]()
    refuse = site.listener.application.precheck
    site.listener.application.precheck = lambda item: judged.append(item) or refuse(item)  # type: ignore
    for number in range(5):
        body, line = MESSAGE + b" " * number, name.replace(b"%d", b"%d" % number)
        head = head_of(*USUAL[:2], b"content-length: %d" % len(body), line + b": %d" % number)
        _, _, [request] = await site.hear("127.0.0.1", [head + body])
        assert request[3] == body and set(request[4]) == {b"host", b"content-type", b"content-length", line.lower()}
        assert request[4][line.lower()] == b"%d" % number and request[4][b"content-length"] == b"%d" % len(body)
    assert len(site.listener.request_cache) == len(judged) == 1
    head = head_of(*USUAL[:2], b"content-length: 200", b"X-Request-Id: 6")
    message, _, asked = await site.hear("127.0.0.1", [head + b"x" * 200])
    assert message.startswith(b"HTTP/1.1 413") and not asked
