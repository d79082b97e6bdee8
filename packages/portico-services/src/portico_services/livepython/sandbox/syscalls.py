"""System calls that the standard library does not expose."""

from __future__ import annotations

import ctypes
import json
import os
import platform
from pathlib import Path
from typing import NamedTuple


class Architecture(NamedTuple):
    """A supported processor architecture."""

    # As reported by seccomp: the ELF machine, with the bits for 64-bit and little-endian (linux/audit.h).
    audit: int
    syscall_numbers: dict[str, int]
    # Numbers from here on belong to another ABI (x32), which is not allowed.
    max_syscall: int


# By architecture and name; seccomp works with numbers only.
_SYSCALL_NUMBERS = json.loads(Path(__file__).with_name("syscalls.json").read_text(encoding="utf-8"))

ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, _SYSCALL_NUMBERS["x86_64"], 0x40000000),
    "aarch64": Architecture(0xC00000B7, _SYSCALL_NUMBERS["aarch64"], 0x80000000),
}
# Both architectures share numbers from 424 on; calls after this one are not in the tables.
MAX_KNOWN_SYSCALL = 450


PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

_CAPABILITY_VERSION_3 = 0x20080522


class SandboxUnavailable(Exception):
    """The sandbox cannot be created; the message is for the operator of the server."""


def current_architecture() -> Architecture:
    """Return the processor architecture. Raises SandboxUnavailable if its system calls are not listed."""
    machine = platform.machine()
    try:
        return ARCHITECTURES[machine]
    except KeyError:
        raise SandboxUnavailable(
            f"the Linux sandbox supports {' and '.join(ARCHITECTURES)}, and this is {machine}"
        ) from None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def syscall(name: str, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call by its name. Raises OSError."""
    number = current_architecture().syscall_numbers[name]
    # Each argument takes a full register; a plain int would be passed as 32 bits.
    passed = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result = int(_libc().syscall(ctypes.c_long(number), *passed))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    """Call prctl through libc, which works on any architecture. Raises OSError."""
    passed = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    passed += [ctypes.c_ulong(0)] * (4 - len(passed))
    if _libc().prctl(ctypes.c_int(option), *passed) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")


def to_buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return a buffer that the kernel can read."""
    return ctypes.create_string_buffer(data, len(data))


def drop_capabilities() -> None:
    """Drop all capabilities of root permanently: nothing can be executed that would restore them."""
    header = _CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4)
    syscall("capset", to_buffer(header), to_buffer(bytes(24)))
