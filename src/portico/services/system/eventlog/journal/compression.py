"""Fields that were compressed, and no more of them than was bargained for."""

from __future__ import annotations

import lzma
from typing import Any

from portico.services.system.errors import DamagedData, package

XZ, LZ4, ZSTD = 1, 2, 4

_MEMORY = 64 * 2**20


def inflate(kind: int, data: bytes, most: int) -> bytes:
    """The bytes that were compressed, at most so many. What claims to be more is damaged, or a bomb."""
    if kind == ZSTD:
        return _zstd(data, most)
    if kind == LZ4:
        return _lz4(data, most)
    if kind == XZ:
        return _xz(data, most)
    raise DamagedData("a field says that it was compressed in two ways at once")


def _zstd(data: bytes, most: int) -> bytes:
    zstandard: Any = package("zstandard", "Reading the compressed fields of this journal")
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size <= most:
            return bytes(zstandard.ZstdDecompressor(max_window_size=_MEMORY).decompress(data, max_output_size=most))
        if size < 2**63:
            raise _too_large(size, most)
        # It does not say, so it is watched.
        reader = zstandard.ZstdDecompressor(max_window_size=_MEMORY).stream_reader(data)
        return _bounded(reader.read(most + 1), most)
    except zstandard.ZstdError:
        raise DamagedData("a field is no whole zstd frame") from None


def _lz4(data: bytes, most: int) -> bytes:
    block: Any = package("lz4.block", "Reading the compressed fields of this journal")
    size = int.from_bytes(data[:8], "little")
    if size > most:
        raise _too_large(size, most)
    try:
        return bytes(block.decompress(data[8:], uncompressed_size=size))
    except block.LZ4BlockError:
        raise DamagedData("a field is no whole lz4 block") from None


def _xz(data: bytes, most: int) -> bytes:
    unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    try:
        found = _bounded(unpacking.decompress(data, most + 1), most)
    except (lzma.LZMAError, EOFError):
        raise DamagedData("a field is no whole xz stream") from None
    if not unpacking.eof:
        raise DamagedData("a field is no whole xz stream")
    return found


def _bounded(found: bytes, most: int) -> bytes:
    if len(found) > most:
        raise _too_large(len(found), most)
    return found


def _too_large(size: int, most: int) -> DamagedData:
    return DamagedData(f"a compressed field claims {size:,} bytes or more, and {most:,} is the most")
