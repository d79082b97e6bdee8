"""What we ask of the kernel and Python has no words for."""

from __future__ import annotations

import ctypes
import json
import os
import platform
from pathlib import Path
from typing import NamedTuple


class Architecture(NamedTuple):
    """One of the machines whose numbers we know."""

    # What seccomp reports: the ELF machine, with the bits for 64-bit and little-endian (linux/audit.h).
    audit: int
    numbers: dict[str, int]
    # Numbers from here on belong to another way of calling the kernel (x32), which is not offered.
    end: int


# By architecture and name: seccomp knows no names.
_NUMBERS = json.loads(Path(__file__).with_name("syscalls.json").read_text(encoding="utf-8"))

ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, _NUMBERS["x86_64"], 0x40000000),
    "aarch64": Architecture(0xC00000B7, _NUMBERS["aarch64"], 0x80000000),
}
# Both have used the same numbers from 424 on; what came after this one is not in our tables.
NEWEST = 450


PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

_CAPABILITY_VERSION_3 = 0x20080522


class SandboxUnavailable(Exception):
    """Why the jail cannot be built here, in words for the operator of the server."""


def architecture() -> Architecture:
    """The processor architecture. Raises SandboxUnavailable on one whose system calls are not listed."""
    machine = platform.machine()
    try:
        return ARCHITECTURES[machine]
    except KeyError:
        raise SandboxUnavailable(
            f"the jail is written for {' and '.join(ARCHITECTURES)}, and this is {machine}"
        ) from None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def syscall(name: str, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by its name. Raises OSError."""
    number = architecture().numbers[name]
    # Each argument takes a whole register: an int alone would be passed as 32 bits.
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(_libc().syscall(ctypes.c_long(number), *passed))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    """By libc's own function: on any machine, also one whose numbers we do not know. Raises OSError."""
    passed = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    passed += [ctypes.c_ulong(0)] * (4 - len(passed))
    if _libc().prctl(ctypes.c_int(option), *passed) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")


def buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Bytes where the kernel can read them."""
    return ctypes.create_string_buffer(data, len(data))


def drop_capabilities() -> None:
    """What root can do beyond its own files, given up for good: nothing is ever executed that could bring it back."""
    header = _CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4)
    syscall("capset", buffer(header), buffer(bytes(24)))
