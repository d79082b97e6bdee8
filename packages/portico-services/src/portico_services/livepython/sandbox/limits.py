"""How much of the machine a session may use."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# What comes back from a worker in one piece. It holds a value, a text and a few pictures, each with a bound of its own.
LONGEST_REPLY = 8 * MIB
# What travels to and from a worker in one piece of the names of a session, and all of them.
PART = MIB
LARGEST = 32 * MIB


@dataclass(frozen=True)
class Limits:
    """Bounds that the kernel holds, or that the server holds while it reads."""

    # Address space of one worker, in bytes.
    memory: int = 1024 * MIB
    # Seconds of processor time in the whole life of a session.
    cpu: int = 600
    # How many threads code may start; none by default. See `Jail`.
    threads: int = 0
    # Bytes in the scratch directory, and how many files and directories.
    scratch: int = 256 * MIB
    entries: int = 10_000
    # Bytes in one file, and files open at once.
    file_size: int = 64 * MIB
    open_files: int = 128
    # Bytes that code prints in one evaluation: those that are kept, and those that end it.
    output: int = 256 * KIB
    flood: int = 16 * MIB
    # Characters of the text of a value, and bytes of its JSON.
    text: int = 64 * KIB
    value: int = 64 * KIB
    # Pictures of one evaluation: how many, and bytes of each.
    pictures: int = 4
    picture: int = 1024 * KIB
