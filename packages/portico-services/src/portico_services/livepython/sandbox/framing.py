"""Wire format between the server and a worker: a four-byte length, then JSON. Both sides use this module.

    → {"id": 7, "op": "evaluate", "arguments": {…}}
    ← {"id": 7, "output": "…"}           only from workers without a separate pipe for output
    ← {"id": 7, "calls": [{…}, …]}       only from a worker that runs a script: see `script_runner.py`
    → {"answers": [{…}, …]}              to those calls, in the order of delivery to the script
    ← {"id": 7, "rescued": "…"}          a chunk of the session's names, when asked to save them; then a result
    ← {"id": 7, "result": {…}}           or {"id": 7, "refusal": "why not"}, or "missing" for "refusal"

A worker sends {"id": 0, …} unsolicited when it is ready. The server trusts nothing else: it accepts only replies to its
requests, and only up to the agreed size.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate
from json import dumps

_LENGTH_PREFIX_BYTES = struct.Struct(">I")

READY_ID = 0
# Needed by workers that run scripts, and preloaded only for them.
SCRIPT_MODULE = "portico_services.livepython.sandbox.script_runner"
# Maximum nesting of JSON exchanged with a script. Python versions differ in their limits; all support this depth.
MAX_JSON_DEPTH = 500
# The arguments of one call by a script, in bytes.
MAX_ARGUMENTS_BYTES = 1024 * 1024
# Everything except brackets outside of strings, and the depth change of each bracket.
_NON_BRACKETS = re.compile(rb'[^][{}"]+|"(?:[^"\\]|\\.)*"', re.DOTALL)
_DEPTH_DELTAS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
# Exit status of a worker whose interpreter is broken.
EXIT_INTERPRETER_BROKEN = 70


def encode_json(message: object) -> bytes:
    """Encode a message as JSON. Lone surrogates, which UTF-8 cannot represent, become question marks."""
    return dumps(message, ensure_ascii=False).encode("utf-8", "replace")


def is_too_deep(encoded: bytes, around: int = 0) -> bool:
    """Return whether a value is nested deeper than MAX_JSON_DEPTH.

    `around` is the number of levels that enclose the value in this JSON.
    """
    deepest = MAX_JSON_DEPTH + around
    # Fast path: the number of opening brackets bounds the depth.
    if encoded.count(b"[") + encoded.count(b"{") <= deepest:
        return False
    steps = array("b", _NON_BRACKETS.sub(b"", encoded).translate(_DEPTH_DELTAS))
    return max(accumulate(steps), default=0) > deepest


class FrameTooLarge(ValueError):
    """A frame longer than the agreed maximum."""


def encode_frame(payload: bytes) -> bytes:
    return _LENGTH_PREFIX_BYTES.pack(len(payload)) + payload


class FrameDecoder:
    """Incremental decoder of frames."""

    def __init__(self, longest: int) -> None:
        self._max_bytes = longest
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that are complete. Raises FrameTooLarge as soon as a length prefix exceeds the limit."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH_PREFIX_BYTES.size:
            (length,) = _LENGTH_PREFIX_BYTES.unpack_from(self._buffer)
            if length > self._max_bytes:
                raise FrameTooLarge(f"a frame of {length} bytes")
            end = _LENGTH_PREFIX_BYTES.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH_PREFIX_BYTES.size : end])
            del self._buffer[:end]
            yield frame

    @property
    def pending(self) -> bool:
        """Return whether a partial frame is buffered."""
        return bool(self._buffer)


def read_frame(descriptor: int) -> bytes | None:
    """Read the next frame from a blocking descriptor, or None at its end. Only for the side that trusts the other."""
    head = _read_exactly(descriptor, _LENGTH_PREFIX_BYTES.size)
    if head is None:
        return None
    return _read_exactly(descriptor, _LENGTH_PREFIX_BYTES.unpack(head)[0])


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_frame(descriptor: int, payload: bytes) -> None:
    left = memoryview(encode_frame(payload))
    while left:
        left = left[os.write(descriptor, left) :]
