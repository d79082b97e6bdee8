"""Frames between the server and a worker."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given, strategies as st

from portico_services.livepython.sandbox.framing import (
    FrameDecoder,
    FrameTooLarge,
    encode_frame,
    read_frame,
    write_frame,
)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_frames_are_decoded_however_the_bytes_are_split(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, payloads))
    frames, result = FrameDecoder(1000), []
    while data:
        for cut in cuts:
            result += frames.feed(data[:cut])
            data = data[cut:]
    assert result == payloads
    assert not frames.pending


@given(st.binary(max_size=2000))
def test_bytes_of_any_kind_are_frames_or_too_long(data: bytes) -> None:
    frames = FrameDecoder(100)
    try:
        assert all(len(frame) <= 100 for frame in frames.feed(data))
    except FrameTooLarge:
        assert len(data) >= 4


def test_oversized_frame_is_rejected_before_it_is_complete() -> None:
    with pytest.raises(FrameTooLarge):
        list(FrameDecoder(100).feed(b"\0\0\0\x65"))


def test_descriptors_carry_frames_of_any_length() -> None:
    source, sink = os.pipe()
    payload = os.urandom(300_000)
    writing = threading.Thread(target=write_frame, args=(sink, payload))
    writing.start()
    assert read_frame(source) == payload
    writing.join()
    os.close(sink)
    assert read_frame(source) is None
    os.close(source)
