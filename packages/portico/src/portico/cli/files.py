"""Reading and writing the files that a command is given. Failures are UsageErrors that name the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from portico.protocol.errors import UsageError


def read_bytes(path: str, longest: int) -> bytes:
    """What is in a file; of standard input for `-`."""
    place = "standard input" if path == "-" else path
    read: Callable[[int], bytes] = sys.stdin.buffer.read if path == "-" else lambda count: _head(path, count)
    try:
        data = read(longest + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as failure:
        raise UsageError(f"{place} cannot be read: {failure.strerror or failure}") from None
    if len(data) > longest:
        raise UsageError(f"{place} has more than {longest} bytes")
    return data


def _head(path: str, count: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(count)


def read_text(path: str, longest: int) -> str:
    return decoded(read_bytes(path, longest), path)


def decoded(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{place} is not text in UTF-8") from None


def write_text(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file whole or not at all."""
    draft = f"{path}.{os.getpid()}.draft"
    try:
        write_new(draft, text, mode)
        try:
            os.replace(draft, path)
        except OSError:
            os.unlink(draft)
            raise
    except OSError as failure:
        raise UsageError(f"{path} cannot be written: {failure.strerror or failure}") from None


def write_new(path: str, text: str, mode: int) -> None:
    """Write a file that does not exist yet. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
