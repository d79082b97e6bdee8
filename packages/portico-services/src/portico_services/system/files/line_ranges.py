"""Reading of whole lines for anonymized callers: half a name would not be recognized."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from portico_services.system.anonymizer import NameIndex, encode_tokens
from portico_services.system.path_access import READ_BLOCK_BYTES, OpenFile
from portico_services.system.text import decode_lossy, escape_controls

MAX_LINE_BYTES = 64 * 1024
CONTEXT_BYTES = 512 * 1024
_SPACE = re.compile(rb"[\s,;]")


class LineBoundaries:
    """Positions where a file may be cut. Every block of 64 KiB has one: after a line, or after a word if the block has
    no line end. The positions therefore do not depend on the requested range.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        mark = file.read(0, 2)
        # In UTF-16 a line end must be aligned to two bytes.
        self._width = 2 if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else 1
        self._line = b"\0\n" if mark == codecs.BOM_UTF16_BE else b"\n\0" if self._width == 2 else b"\n"

    def expand(self, offset: int, length: int) -> tuple[int, int]:
        """Return the smallest range that contains these bytes and may be shown."""
        if offset >= self._file.size:
            return offset, offset
        end = min(offset + length, self._file.size)
        return self._line_start(offset), self._line_end(end)

    def _line_start(self, offset: int) -> int:
        block = offset // MAX_LINE_BYTES
        for number in (block, block - 1):
            if line_starts := [position for position in self._places(number) if position <= offset]:
                return line_starts[-1]
        return 0

    def _line_end(self, offset: int) -> int:
        block = (offset - 1) // MAX_LINE_BYTES
        for number in (block, block + 1):
            if line_ends := [position for position in self._places(number) if position >= offset]:
                return line_ends[0]
        return self._file.size

    def _places(self, block: int) -> list[int]:
        """Return the positions where a block may be cut, in order."""
        if block < 0:
            return [0]
        start = block * MAX_LINE_BYTES
        data = self._file.read(start, MAX_LINE_BYTES)
        ends = [match.end() for match in re.finditer(re.escape(self._line), data) if not match.end() % self._width]
        if not ends and len(data) == MAX_LINE_BYTES:
            ends = [self._word(data)]
        return [start + end for end in ends]

    def _word(self, data: bytes) -> int:
        words = [match.end() for match in _SPACE.finditer(data)] if self._width == 1 else []
        end = words[-1] if words else len(data)
        # Not within a UTF-8 character.
        while not words and end > 1 and self._width == 1 and data[end - 1] & 0x80:
            end -= 1
        return end


def read_context(file: OpenFile, begin: int, end: int) -> str:
    """Return the text around a range: names that are recognized there are replaced in the range as well."""
    start = max(0, begin - CONTEXT_BYTES)
    data = file.read(start, end + CONTEXT_BYTES - start)
    mark = file.read(0, 2)
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be", "replace")
    return escape_controls(decode_lossy(data))


def redacted_blocks(blocks: Iterable[bytes], name_index: NameIndex) -> Iterator[bytes]:
    """Yield the anonymized text of a file, with encoded tokens that match as a whole or not at all."""
    rest = b""
    for block in blocks:
        data = rest + block
        end = data.rfind(b"\n") + 1
        if not end and len(data) < 2 * READ_BLOCK_BYTES:
            rest = data
            continue
        end = end or len(data)
        yield _redact_block(data[:end], name_index)
        rest = data[end:]
    if rest:
        yield _redact_block(rest, name_index)


def _redact_block(data: bytes, name_index: NameIndex) -> bytes:
    text = decode_lossy(data)
    name_index.collect(text)
    return encode_tokens(name_index.anonymize_text(text)).encode("utf-8", "replace")
