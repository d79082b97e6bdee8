"""A head that is read without the parser says what the parser would have said; what is not plain is left to that."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portico.transport.http.plain_heads import MOST_KNOWN, PlainHeads

BODY = b"{}"
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


def agrees(heads: PlainHeads, head: bytes) -> bool:
    """Whether a head is plain; then the parser must say the same."""
    read = heads.read(head, len(BODY))
    if read is None:
        return False
    path, headers = read
    parsed = Parsed(head + BODY)
    assert (parsed.method, parsed.url, parsed.body) == (b"POST", path.encode(), BODY)
    assert parsed.complete == 1 and parsed.keep
    assert parsed.pairs == list(headers.items()) and not headers.repeated
    return True


def test_a_usual_head_is_plain_and_so_is_one_with_a_new_line() -> None:
    heads = PlainHeads()
    for number in range(3):
        assert agrees(heads, head_of(*USUAL, b"X-Request-Id: %d" % number, b"connection: Keep-Alive"))


@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_strange_is_left_to_the_parser(strange: bytes) -> None:
    heads = PlainHeads()
    assert agrees(heads, head_of(*USUAL))
    for at in range(len(USUAL) + 1):
        assert heads.read(head_of(*USUAL[:at], strange, *USUAL[at:]), len(BODY)) is None
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
    assert PlainHeads().read(head_of(*USUAL, start=start), len(BODY)) is None


def test_so_is_a_body_of_another_length_and_a_head_without_its_lines() -> None:
    heads = PlainHeads()
    assert heads.read(head_of(*USUAL), 3) is None
    assert heads.read(head_of(*USUAL[1:]), len(BODY)) is None
    assert heads.read(head_of(*USUAL[:-1]), len(BODY)) is None
    assert heads.read(head_of(*USUAL, *(b"x%d: y" % number for number in range(100))), len(BODY)) is None
    assert heads.read(b"", 0) is heads.read(b"\r\n\r\n", 0) is heads.read(b"POST", 0) is None


def test_lines_are_not_kept_without_end() -> None:
    heads = PlainHeads()
    for number in range(3 * MOST_KNOWN):
        assert heads.read(head_of(*USUAL, b"x-request-id: %d" % number, start=b"POST /%d HTTP/1.1" % number), 2)
    assert len(heads._lines) <= MOST_KNOWN and len(heads._paths) <= MOST_KNOWN


NAMES = st.sampled_from((b"x", b"X-Y", b"host", b"connection", b"content-length", b"te", b"x\xe9", b"x y"))
PARTS = st.tuples(NAMES, st.sampled_from((b":", b": ", b" :", b":\t", b":  ")), st.binary(max_size=6)).map(b"".join)
LINES = st.lists(st.one_of(st.sampled_from((*USUAL, *STRANGE)), PARTS, st.binary(max_size=12)), max_size=3)


@settings(max_examples=400, deadline=None)
@given(LINES, st.randoms())
def test_no_head_is_read_otherwise_than_by_the_parser(lines: list[bytes], random: object) -> None:
    heads = PlainHeads()
    mixed = [*USUAL, *lines]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    agrees(heads, head_of(*mixed))
    agrees(heads, head_of(*mixed))
