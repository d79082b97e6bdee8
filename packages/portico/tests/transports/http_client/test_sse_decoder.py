"""Server-sent events, compared with a plain implementation of the HTML standard (9.2.6)."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, strategies as st

from portico.protocol.errors import ProtocolError
from portico.transports.http_client.sse_decoder import ServerSentEvent, SseDecoder

LONGEST = 10_000


class Reference:
    """The standard's algorithm, word by word, on the whole stream at once."""

    def __init__(self, stream: bytes) -> None:
        self.events: list[ServerSentEvent] = []
        self.last_id: str | None = None
        self.retry: float | None = None
        self._read(stream.removeprefix(b"\xef\xbb\xbf"))

    def _read(self, stream: bytes) -> None:
        data: list[bytes] = []
        name, id = "", None
        # What comes after the last line end is no line.
        for line in re.split(rb"\r\n|\n|\r", stream)[:-1]:
            if not line:
                self.last_id = id
                if data:
                    self.events.append(ServerSentEvent(b"\n".join(data), name or "message", id))
                data, name = [], ""
                continue
            field, mark, value = line.partition(b":")
            value = value[1:] if mark and value[:1] == b" " else value
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode(errors="replace")
            elif field == b"id" and re.fullmatch(rb"[\x20-\x7e]*", value):
                id = value.decode() or None
            elif field == b"retry" and re.fullmatch(rb"[0-9]+", value):
                self.retry = int(value) / 1000


def read(stream: bytes, cuts: list[int]) -> tuple[list[ServerSentEvent], SseDecoder]:
    """The events of a stream that comes in pieces."""
    events = SseDecoder(LONGEST)
    edges = [0, *sorted({min(cut, len(stream)) for cut in cuts}), len(stream)]
    results: list[ServerSentEvent] = []
    for begin, end in itertools.pairwise(edges):
        results += events.feed(stream[begin:end])
    return results, events


def agrees(stream: bytes, cuts: list[int]) -> None:
    result, events = read(stream, cuts)
    reference = Reference(stream)
    assert result == reference.events
    assert (events.last_id, events.retry_ms) == (reference.last_id, reference.retry)


DATA = [b"data: one", b"data:two", b"data", b"data:  three", b"data: \xc3\xa9\xff", b"data : no", b" data: no"]
OTHERS = [b"event: message", b"event: endpoint", b"event", b": comment", b":", b"nonsense", b"\xef\xbb\xbf"]
IDS = [
    b"id: 7",
    b"id",
    b"id: \xc3\xa9",
    b"id: a\x00b",
    b"id:x y",
    b"retry: 100",
    b"retry: soon",
    b"retry: ",
    b"retry:5",
]
LINES = st.sampled_from([*DATA, *OTHERS, *IDS, b"", b"", b"", b""])
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=14).map(
    lambda lines: b"".join(line + ending for line, ending in lines)
)
MARKS = st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb", b"\xef\xbb\xbf\xef\xbb\xbf"])


@given(MARKS, STREAMS, st.binary(max_size=6), st.lists(st.integers(0, 200), max_size=8))
def test_streams_are_read_as_the_standard_reads_them(mark: bytes, stream: bytes, rest: bytes, cuts: list[int]) -> None:
    agrees(mark + stream + rest, cuts)


@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=8))
def test_any_bytes_are_read_as_the_standard_reads_them(stream: bytes, cuts: list[int]) -> None:
    agrees(stream, cuts)


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"], ids=repr)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=repr)
def test_stream_may_be_cut_at_every_byte(mark: bytes, ending: bytes) -> None:
    lines = [
        b"id: 1",
        b"data: a",
        b"data: b",
        b"",
        b": c",
        b"retry: 20",
        b"event: e",
        b"data:",
        b"",
        b"data: z",
        b"",
        b"",
    ]
    stream = mark + ending.join(lines)
    for cut in range(len(stream) + 1):
        agrees(stream, [cut])
    agrees(stream, list(range(len(stream))))


def test_lines_of_data_are_joined() -> None:
    [event] = SseDecoder(LONGEST).feed(b'data: {"a":\ndata: 1}\n\n')
    assert event == ServerSentEvent(b'{"a":\n1}')


def test_event_without_data_only_sets_the_id() -> None:
    """2025-11-25, basic/transports: a stream begins with an id and nothing else."""
    events = SseDecoder(LONGEST)
    assert events.feed(b"id: 9\n\n") == []
    assert events.last_id == "9"


def test_incomplete_event_does_not_set_the_last_event_id() -> None:
    """Or else the server would take the event for heard."""
    events = SseDecoder(LONGEST)
    events.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert events.last_id == "1"


def test_reset_discards_an_unfinished_event() -> None:
    events = SseDecoder(LONGEST)
    events.feed(b"id: 1\ndata: a\n\nretry: 30\nevent: odd\nid: 2\ndata: b\nda")
    events.reset()
    assert events.feed(b"\xef\xbb\xbfdata: c\n\n") == [ServerSentEvent(b"c", "message", "1")]
    assert events.retry_ms == 0.03


@pytest.mark.parametrize("id", ["", "é", "a\x00b", "x" * 1025, "tab\there"])
def test_id_that_no_header_can_carry_is_not_kept(id: str) -> None:
    events = SseDecoder(LONGEST)
    events.feed(f"id: {id}\n\n".encode())
    assert events.last_id is None


def test_empty_id_takes_the_last_one_back() -> None:
    """The standard: nothing is said on coming back when the id is the empty string."""
    events = SseDecoder(LONGEST)
    events.feed(b"id: 1\n\nid\n\n")
    assert events.last_id is None


@pytest.mark.parametrize("said", ["-1", "1.5", "ten", "", "1" * 10, "١"])
def test_non_numeric_retry_is_ignored(said: str) -> None:
    events = SseDecoder(LONGEST)
    events.feed(f"retry: {said}\n".encode())
    assert events.retry_ms is None


@pytest.mark.parametrize(
    "endless",
    [b"data: " + b"x" * 99, b"data: xx\n", b"data:\n", b"event: " + b"x" * 99, b": " + b"x" * 99, b"xx"],
    ids=lambda one: repr(one[:8]),
)
def test_endless_event_is_rejected(endless: bytes) -> None:
    events = SseDecoder(LONGEST)
    with pytest.raises(ProtocolError, match="longer than 10000 bytes"):
        for _ in range(LONGEST * 2):
            events.feed(endless)


def test_events_without_end_are_no_endless_event() -> None:
    events = SseDecoder(100)
    heard = sum(len(events.feed(b": still here\n\ndata: 1\n\n")) for _ in range(1000))
    assert heard == 1000
