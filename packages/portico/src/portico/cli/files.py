"""File access of commands. Failures are raised as UsageErrors that name the file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from portico.protocol.errors import UsageError


def read_bytes(path: str, max_bytes: int) -> bytes:
    """Return the content of a file, or of standard input for `-`."""
    source = "standard input" if path == "-" else path
    read: Callable[[int], bytes] = _read_stdin if path == "-" else lambda count: _head(path, count)
    try:
        # One byte more than allowed tells a file of exactly the limit from a larger one; size checks fail for pipes.
        data = read(max_bytes + 1)
    except FileNotFoundError:
        raise UsageError(f"file {path} not found") from None
    except OSError as failure:
        raise UsageError(f"cannot read {source}: {failure.strerror or failure}") from None
    if len(data) > max_bytes:
        raise UsageError(f"{source} is larger than {max_bytes} bytes")
    return data


def _read_stdin(count: int) -> bytes:
    with _interruptible():
        return sys.stdin.buffer.read(count)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a blocking read: an event loop's handler only cancels its task, and the read would continue."""
    try:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:
        # Only the main thread receives signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _head(path: str, count: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(count)


def read_text(path: str, max_bytes: int) -> str:
    """Return the text of a UTF-8 file."""
    return decode_utf8(read_bytes(path, max_bytes), path)


def decode_utf8(data: bytes, source: str) -> str:
    """Decode UTF-8. Raises UsageError with the name of the source."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not valid UTF-8") from None


def write_atomic(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file atomically: completely or not at all."""
    draft = f"{path}.{os.getpid()}.draft"
    try:
        create_file(draft, text, mode)
        try:
            os.replace(draft, path)
        except OSError:
            # For example if the path is a directory; the draft must not be left next to it.
            os.unlink(draft)
            raise
    except OSError as failure:
        raise UsageError(f"cannot write {path}: {failure.strerror or failure}") from None


def create_file(path: str, text: str, mode: int) -> None:
    """Create a new file and write it. Raises OSError if it exists."""
    # Exclusive, so that a link prepared at a predictable draft name is not followed. "wb" keeps line ends as they are.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(text.encode())
        file.flush()
        # Before a rename: after a crash some file systems would otherwise have the new name with an empty file.
        os.fsync(file.fileno())
