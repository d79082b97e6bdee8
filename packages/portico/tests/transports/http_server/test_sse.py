"""Writers keep their framing for any input: server-sent events and response headers."""

from __future__ import annotations

import pytest

from portico.transports.http_server import sse
from portico.transports.http_server.messages import encode_headers


@pytest.mark.parametrize("gap", [b"\n", b"\r", b"\r\n", b"\n\n"])
def test_event_has_one_data_line(gap: bytes) -> None:
    event = sse.encode_event(b'{"a":%b[1,%b2]}' % (gap, gap), b"7", b"message")
    *lines, end, rest = event.decode().split("\n")
    assert [line.partition(":")[0] for line in lines] == ["id", "event", "data"]
    assert (end, rest) == ("", "") and b"\r" not in event


@pytest.mark.parametrize("bad", [b"1\ndata: forged", b"1\rx", b"1\x00"])
def test_event_id_and_name_have_no_line_break(bad: bytes) -> None:
    with pytest.raises(ValueError, match="line breaks"):
        sse.encode_event(b"{}", bad)
    with pytest.raises(ValueError, match="line breaks"):
        sse.encode_event(b"{}", b"1", bad)


def test_headers_are_encoded_as_lines() -> None:
    assert encode_headers([(b"a", b"1"), (b"location", b"/x")]) == b"a: 1\r\nlocation: /x\r\n"


@pytest.mark.parametrize("value", [b"x\r\nset-cookie: a=b", b"x\ny", b"x\ry", b"x\x00"])
def test_header_that_would_end_its_line_is_rejected(value: bytes) -> None:
    with pytest.raises(ValueError, match="line breaks or NUL"):
        encode_headers([(b"location", value)])
    with pytest.raises(ValueError, match="line breaks or NUL"):
        encode_headers([(value, b"x")])
