"""A file by whole lines, for those from whom names are hidden: half a name is not recognised as one."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from portico_services.system.anonymizer import Learned, opaque
from portico_services.system.path_access import BLOCK, OpenFile
from portico_services.system.text import decoded, plain

LONGEST_LINE = 64 * 1024
CONTEXT = 512 * 1024
_SPACE = re.compile(rb"[\s,;]")


class WholeLines:
    """Where a file may be cut. Every block of 64 KiB has such a place: after a line, or after a word where the block
    has no line's end. So the places are the same whatever part of the file is asked for."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        mark = file.read(0, 2)
        # A character of two bytes has its end where both have been.
        self._width = 2 if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else 1
        self._line = b"\0\n" if mark == codecs.BOM_UTF16_BE else b"\n\0" if self._width == 2 else b"\n"

    def around(self, offset: int, length: int) -> tuple[int, int]:
        """The least part of the file that has all of these bytes and may be shown."""
        if offset >= self._file.size:
            return offset, offset
        wanted = min(offset + length, self._file.size)
        return self._before(offset), self._after(wanted)

    def _before(self, offset: int) -> int:
        block = offset // LONGEST_LINE
        for number in (block, block - 1):
            if found := [place for place in self._places(number) if place <= offset]:
                return found[-1]
        return 0

    def _after(self, offset: int) -> int:
        block = (offset - 1) // LONGEST_LINE
        for number in (block, block + 1):
            if found := [place for place in self._places(number) if place >= offset]:
                return found[0]
        return self._file.size

    def _places(self, block: int) -> list[int]:
        """Where a block may be cut, in order."""
        if block < 0:
            return [0]
        start = block * LONGEST_LINE
        data = self._file.read(start, LONGEST_LINE)
        ends = [found.end() for found in re.finditer(re.escape(self._line), data) if not found.end() % self._width]
        if not ends and len(data) == LONGEST_LINE:
            ends = [self._word(data)]
        return [start + end for end in ends]

    def _word(self, data: bytes) -> int:
        words = [found.end() for found in _SPACE.finditer(data)] if self._width == 1 else []
        end = words[-1] if words else len(data)
        # Not within a character.
        while not words and end > 1 and self._width == 1 and data[end - 1] & 0x80:
            end -= 1
        return end


def context(file: OpenFile, begin: int, end: int) -> str:
    """What stands around a part of a file: a name that is given away there is hidden here, too."""
    start = max(0, begin - CONTEXT)
    data = file.read(start, end + CONTEXT - start)
    mark = file.read(0, 2)
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be", "replace")
    return plain(decoded(data))


def shown_blocks(blocks: Iterable[bytes], learned: Learned) -> Iterator[bytes]:
    """The text of a file as it would be shown, with tokens that are found as a whole or not at all."""
    rest = b""
    for block in blocks:
        data = rest + block
        end = data.rfind(b"\n") + 1
        if not end and len(data) < 2 * BLOCK:
            rest = data
            continue
        end = end or len(data)
        yield _shown(data[:end], learned)
        rest = data[end:]
    if rest:
        yield _shown(rest, learned)


def _shown(data: bytes, learned: Learned) -> bytes:
    text = decoded(data)
    learned.study(text)
    return opaque(learned.masked(text)).encode("utf-8", "replace")
