"""The scratch directories of workers: made, measured and removed by those who do not trust what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

# How names count beside what is in the files.
BYTES_OF_A_NAME = 256


def usage(directory: str, process: int | None = None, *, most: int) -> tuple[int, int]:
    """The bytes on disk and the number of entries; counting ends soon after `most` entries.

    `process`: files that it has open and that have no name any more count, too.
    """
    bytes_used = entries = 0
    pending = [directory]
    while pending and entries <= most:
        for entry in _entries(pending.pop()):
            entries += 1
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it has gone meanwhile
            bytes_used += status.st_blocks * 512 + BYTES_OF_A_NAME
            if stat.S_ISDIR(status.st_mode):
                pending.append(entry.path)
            if entries > most:
                break
    return bytes_used + (_nameless(process) if process is not None else 0), entries


def time_run(process: int) -> int | None:
    """Nanoseconds that the threads of a process have run. None where the kernel does not say, or where it has children:
    they run by themselves."""
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
        with os.scandir(directory) as found:
            yield from found
    except OSError:
        return  # gone, or too deep to be named


def _nameless(process: int) -> int:
    total = 0
    for entry in _entries(f"/proc/{process}/fd"):
        try:
            status = os.stat(entry.path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            total += status.st_blocks * 512
    return total


def remove(directory: str) -> bool:
    """Remove a directory whose owner has ended, however deep it is. False if something of it is left.

    Code can nest directories deeper than any path is long, and than any recursion goes. So this walks, from descriptor
    to descriptor: in by a name, out by "..", and knows only what is still to be done on the way.
    """
    try:
        _empty(directory)
        os.rmdir(directory)
    except OSError:
        return False
    return True


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _empty(directory: str) -> None:
    way: list[tuple[str, list[str]]] = []
    here = os.open(directory, _DIRECTORY)
    try:
        pending = _files_away(here)
        while pending or way:
            if pending:
                name = pending.pop()
                # It may have been made so that not even its owner can look into it.
                os.chmod(name, 0o700, dir_fd=here)
                way.append((name, pending))
                here = _step(here, name)
                pending = _files_away(here)
            else:
                name, pending = way.pop()
                here = _step(here, "..")
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)


def _step(here: int, name: str) -> int:
    there = os.open(name, _DIRECTORY, dir_fd=here)
    os.close(here)
    return there


def _files_away(here: int) -> list[str]:
    """Remove what is no directory, and give the names of what is."""
    directories = []
    with os.scandir(here) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            directories.append(entry.name)
        else:
            os.unlink(entry.name, dir_fd=here)
    return directories
