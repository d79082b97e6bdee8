"""How the server and a worker speak: a length in four bytes, then that much JSON. Both sides use this file.

    → {"id": 7, "op": "evaluate", "arguments": {…}}
    ← {"id": 7, "output": "…"}           only from workers whose output has no pipe of its own
    ← {"id": 7, "calls": [{…}, …]}       only from a worker that runs a script: see `script.py`
    → {"answers": [{…}, …]}              to those calls, in the order in which the script is to learn of them
    ← {"id": 7, "rescued": "…"}          a part of its names, when it was told to save them; then a result
    ← {"id": 7, "result": {…}}           or {"id": 7, "refusal": "why not"}, or "missing" for "refusal"

A worker says {"id": 0, …} by itself when it is ready. The server believes nothing else: it reads no more than it has
asked for, and no more than it has said it would.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate
from json import dumps

_LENGTH = struct.Struct(">I")

READY = 0
# What a worker needs that runs scripts: it is loaded by those who ask for it.
SCRIPT = "portico_services.livepython.sandbox.script_runner"
# How deep the JSON may be that a script is given or gives. Each Python has a bound of its own, and all read this.
DEEPEST_JSON = 500
# The arguments of one call by a script, in bytes.
LONGEST_ARGUMENTS = 1024 * 1024
# All that is no bracket, and the steps that the brackets are: down, and up again.
_BETWEEN = re.compile(rb'[^][{}"]+|"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
# The exit status of a worker whose interpreter is beyond repair.
BROKEN = 70


def encode(message: object) -> bytes:
    """A message as JSON. Half a surrogate pair, which UTF-8 does not have, becomes a question mark."""
    return dumps(message, ensure_ascii=False).encode("utf-8", "replace")


def is_too_deep(encoded: bytes, around: int = 0) -> bool:
    """Whether a value is nested more than DEEPEST_JSON deep. `around`: in how many levels of this JSON it stands."""
    deepest = DEEPEST_JSON + around
    if encoded.count(b"[") + encoded.count(b"{") <= deepest:
        return False
    steps = array("b", _BETWEEN.sub(b"", encoded).translate(_STEPS))
    return max(accumulate(steps), default=0) > deepest


class TooLong(ValueError):
    """A frame beyond what was agreed on."""


def pack(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Bytes as they come, put together to frames."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are complete now. Raises TooLong as soon as one says that it will be."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._longest:
                raise TooLong(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield frame

    @property
    def pending(self) -> bool:
        """Whether a part of another frame is there."""
        return bool(self._buffer)


def read(descriptor: int) -> bytes | None:
    """The next frame of a blocking descriptor; None at its end. For the side that trusts the other."""
    head = _exactly(descriptor, _LENGTH.size)
    if head is None:
        return None
    return _exactly(descriptor, _LENGTH.unpack(head)[0])


def _exactly(descriptor: int, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(descriptor: int, payload: bytes) -> None:
    left = memoryview(pack(payload))
    while left:
        left = left[os.write(descriptor, left) :]
