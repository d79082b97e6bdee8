"""Scratch directories of workers: disk usage and removal. The contents are untrusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

# Bytes that a directory entry counts for, in addition to the file's contents.
DIR_ENTRY_BYTES = 256


def disk_usage(directory: str, process: int | None = None, *, limit: int) -> tuple[int, int]:
    """Return the bytes on disk and the number of entries; counting stops soon after `limit` entries.

    With `process`, deleted files that it still has open count, too.
    """
    bytes_used = entries = 0
    pending = [directory]
    while pending and entries <= limit:
        for entry in _entries(pending.pop()):
            entries += 1
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it was removed in between
            # Allocated blocks, not the apparent size: sparse files use less.
            bytes_used += status.st_blocks * 512 + DIR_ENTRY_BYTES
            if stat.S_ISDIR(status.st_mode):
                pending.append(entry.path)
            if entries > limit:
                break
    return bytes_used + (_unlinked_files(process) if process is not None else 0), entries


def cpu_time_ns(process: int) -> int | None:
    """Return the CPU time of a process's threads in nanoseconds.

    Return None if the kernel does not report it, or if the process has children, whose time is separate.
    """
    total = 0
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
            with open(f"/proc/{process}/task/{thread}/children") as file:
                if file.read():
                    return None
    except (OSError, ValueError, IndexError):
        return None
    return total


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return  # removed, or the path is too long


def _unlinked_files(process: int) -> int:
    total = 0
    for entry in _entries(f"/proc/{process}/fd"):
        try:
            status = os.stat(entry.path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            total += status.st_blocks * 512
    return total


def remove_tree(directory: str) -> bool:
    """Remove a directory of a worker that has ended, however deep. Return False if something is left.

    Code can nest directories deeper than the maximum path length and the recursion limit. So this walks from descriptor
    to descriptor, down by name and up by "..", and stores only the remaining work.
    """
    try:
        _empty_directory(directory)
        os.rmdir(directory)
    except OSError:
        return False
    return True


# O_NOFOLLOW: a symbolic link must not lead out of the directory.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _empty_directory(directory: str) -> None:
    stack: list[tuple[str, list[str]]] = []
    descriptor = os.open(directory, _DIRECTORY)
    try:
        pending = _remove_files(descriptor)
        while pending or stack:
            if pending:
                name = pending.pop()
                # Its mode may deny access even to the owner.
                os.chmod(name, 0o700, dir_fd=descriptor)
                stack.append((name, pending))
                descriptor = _descend(descriptor, name)
                pending = _remove_files(descriptor)
            else:
                name, pending = stack.pop()
                descriptor = _descend(descriptor, "..")
                os.rmdir(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _descend(descriptor: int, name: str) -> int:
    child = os.open(name, _DIRECTORY, dir_fd=descriptor)
    os.close(descriptor)
    return child


def _remove_files(descriptor: int) -> list[str]:
    """Remove all entries except directories, and return the names of those."""
    directories = []
    with os.scandir(descriptor) as listing:
        entries = list(listing)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            directories.append(entry.name)
        else:
            os.unlink(entry.name, dir_fd=descriptor)
    return directories
