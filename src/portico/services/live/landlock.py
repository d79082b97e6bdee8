"""Landlock: which files a process can open, and nothing else of the file system.

Each version of the interface (ABI) knows more rights than the one before. What the kernel does not know it does not
hold, so those rights are also kept by the seccomp filter.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from portico.services.live.kernel import SandboxUnavailable, buffer, syscall

VERSION_FLAG = 1
PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

# Every right of the first version, and those that later ones brought.
_RIGHTS = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
# Binding and connecting with TCP (4), abstract sockets and signals to processes outside (6).
_NET, _SCOPES = (4, 0b11), (6, 0b11)
# Refused attempts are not logged (7): code that tries all day must not fill the disk.
_QUIET = (7, 1)

READ = READ_FILE | READ_DIR
# No devices, sockets or pipes, and nothing that could be executed.
READ_WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV


def version() -> int:
    """The version of the interface that this kernel has."""
    try:
        return syscall("landlock_create_ruleset", None, 0, VERSION_FLAG)
    except OSError as refusal:
        raise SandboxUnavailable(
            f"Landlock cannot be used here ({refusal.strerror}): it needs Linux 5.13 or newer, with 'landlock' in the "
            "list of security modules (the boot parameter lsm=), in a container that lets its system calls through"
        ) from None


def handled(abi: int) -> int:
    """The rights that this version holds: all of them are taken away, then some are given."""
    return sum(rights for since, rights in _RIGHTS.items() if since <= abi)


def restrict(rules: Iterable[tuple[str, int]]) -> int:
    """Keep this process to these paths. It cannot be undone. Gives the version of the interface.

    A path that does not exist is left out: distributions differ.
    """
    abi = version()
    rights = handled(abi)
    attributes = struct.pack("=Q", rights)
    for since, value in (_NET, _SCOPES):
        if since <= abi:
            attributes += struct.pack("=Q", value)
    ruleset = syscall("landlock_create_ruleset", buffer(attributes), len(attributes), 0)
    try:
        for path, wanted in rules:
            _allow(ruleset, path, wanted & rights)
        syscall("landlock_restrict_self", ruleset, _QUIET[1] if _QUIET[0] <= abi else 0)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        syscall("landlock_add_rule", ruleset, PATH_BENEATH, buffer(struct.pack("=Qi", rights, descriptor)), 0)
    finally:
        os.close(descriptor)
