"""The seccomp filter: which system calls there are for code in the jail. An allow-list; what is not on it is refused.

Refused means an error, not death. The call is not made either way; with an error, Python code sees a PermissionError
that a model can read, and a library that only tries something goes on without it. A call in the manner of another
architecture, whose numbers mean other things, ends the process: that is no accident.

The filter is a program for the kernel's old packet filter. It sees the number of the call and its six arguments, not
what a pointer points to; so a call whose danger is behind a pointer (clone3, openat2) is not there, and libc takes the
older one.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from portico_services.livepython.sandbox.syscalls import (
    NEWEST,
    PR_SET_SECCOMP,
    SECCOMP_MODE_FILTER,
    Architecture,
    SandboxUnavailable,
    architecture,
    buffer,
    prctl,
    syscall,
)

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000
REFUSE = _ERRNO | errno.EPERM
# What a kernel says that has never heard of a call: libc then does it in another way.
ABSENT = _ERRNO | errno.ENOSYS
# What a file system says that has no such thing: programs expect it.
UNSUPPORTED = _ERRNO | errno.ENOTSUP
# Nothing happens, and the caller is told that it has.
PRETEND = _ERRNO

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_GET_ACTION_AVAILABLE = 2

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3
pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 sendfile copy_file_range fadvise64
creat stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 symlink symlinkat ftruncate fsync fdatasync
getdents getdents64 umask statfs fstatfs
mmap munmap mprotect mremap madvise brk msync
getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid
getrlimit getrusage times sysinfo uname sched_yield sched_getaffinity getcpu getrandom
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time
exit exit_group futex set_robust_list get_robust_list rseq restart_syscall
rt_sigreturn rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm
setitimer getitimer wait4 waitid
recvfrom getsockname getpeername getsockopt shutdown
"""

ALLOWED = _ALLOWED.split()

# Landlock does not hold who may change modes and times, so no code may; but copying a file begins with trying. And
# there is no one to lock a file against, while each lock takes kernel memory that has no limit.
PRETENDED = ("flock", "chmod", "fchmod", "fchmodat", "utime", "utimes", "futimesat", "utimensat")

ATTRIBUTES = tuple(f"{kind}{what}xattr" for kind in ("", "l", "f") for what in ("set", "get", "list"))

NOT_THERE = ("clone3", "openat2", "memfd_create")

_O_TRUNC, _O_TMPFILE, _O_ACCMODE = 0o1000, 0o20000000, 0b11
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_SET_NAME, _GET_NAME = 15, 16
# Duplicates, flags, questions. Not the ones that send signals, watch directories or take leases.
_FCNTL = (0, 1, 2, 3, 4, 5, 36, 1030, 1032)
_FCNTL_LOCKS = (6, 7, 37, 38)
# Is it a terminal, how much is there to read, blocking or not, closed on exec or not.
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
_CLONE_VM, _CLONE_SIGHAND, _CLONE_THREAD = 0x100, 0x800, 0x10000
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_A_THREAD = _CLONE_VM | _CLONE_SIGHAND | _CLONE_THREAD


class Test(NamedTuple):
    """The argument at this place, of its bits these, is this. The kernel takes these arguments as 32 bits."""

    place: int
    value: int
    mask: int = 0xFFFFFFFF
    # Of a pointer all 64 bits count; it is only ever compared with nothing.
    pointer: bool = False


# Alternatives: tests that must all hold, and the answer if they do.
Conditions = list[tuple[list[Test], int]]

Instruction = tuple[int, int, int, int]


def conditions(pid: int, threads: bool) -> dict[str, Conditions]:
    """The calls that depend on their arguments."""
    checked: dict[str, Conditions] = {
        "open": _opening(1),
        "openat": _opening(2),
        "fcntl": [
            *(([Test(1, command)], ALLOW) for command in _FCNTL),
            *(([Test(1, command)], PRETEND) for command in _FCNTL_LOCKS),
        ],
        "ioctl": [([Test(1, request)], ALLOW) for request in _IOCTL],
        # Both ends of a stream are ours, and it cannot be sent anywhere else: what an event loop wakes itself with.
        "socketpair": [([Test(0, _AF_UNIX), Test(1, _SOCK_STREAM, _SOCK_TYPE)], ALLOW)],
        "sendto": [([_nothing(4)], ALLOW)],
        # To itself, and to no other process.
        "kill": [([Test(0, pid)], ALLOW)],
        "tgkill": [([Test(0, pid)], ALLOW)],
        "tkill": [([Test(0, pid)], ALLOW)],
        "prlimit64": [([Test(0, 0), _nothing(2)], ALLOW)],
        "prctl": [([Test(0, option)], ALLOW) for option in (_SET_NAME, _GET_NAME)],
    }
    if threads:
        checked["clone"] = [([Test(0, _A_THREAD, _A_THREAD | _CLONE_NEW)], ALLOW)]
    return checked


def _opening(place: int) -> Conditions:
    """A file of which the name is gone, or never was, is not counted in the scratch directory. And before its third
    version, Landlock lets a process empty a file that it may only read."""
    return [
        ([Test(place, 0, _O_TMPFILE | _O_TRUNC)], ALLOW),
        ([Test(place, 1, _O_TMPFILE | _O_ACCMODE)], ALLOW),
        ([Test(place, 2, _O_TMPFILE | _O_ACCMODE)], ALLOW),
    ]


def _nothing(place: int) -> Test:
    return Test(place, 0, pointer=True)


def program(machine: Architecture, pid: int, *, threads: bool = False) -> list[Instruction]:
    """The filter for a process with this id."""
    numbers = machine.numbers
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, machine.end),
        (_RETURN, 0, 0, KILL),
    ]
    answers = {ALLOW: ALLOWED, PRETEND: PRETENDED, UNSUPPORTED: ATTRIBUTES, ABSENT: NOT_THERE}
    for answer, names in answers.items():
        for name in names:
            if name in numbers:
                code += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, answer)]
    for name, alternatives in conditions(pid, threads).items():
        if name in numbers:
            block = _checked(alternatives)
            code += [(_EQUAL, 0, len(block), numbers[name]), *block]
    # A libc that is newer than these tables tries calls that are newer, too.
    code += [(_AT_LEAST, 0, 1, NEWEST + 1), (_RETURN, 0, 0, ABSENT), (_RETURN, 0, 0, REFUSE)]
    return code


def _checked(alternatives: Conditions) -> list[Instruction]:
    block: list[Instruction] = []
    for tests, answer in alternatives:
        steps = [step for test in tests for step in _steps(test)]
        end = len(steps)
        # Whichever comparison fails, go on behind the answer of this alternative.
        block += [(op, jt, end - at if op == _EQUAL else 0, k) for at, (op, jt, _, k) in enumerate(steps)]
        block.append((_RETURN, 0, 0, answer))
    block.append((_RETURN, 0, 0, REFUSE))
    return block


def _steps(test: Test) -> list[Instruction]:
    low = 16 + 8 * test.place
    if test.pointer:
        return [(_LOAD, 0, 0, low), (_EQUAL, 0, 0, 0), (_LOAD, 0, 0, low + 4), (_EQUAL, 0, 0, 0)]
    masked = [] if test.mask == 0xFFFFFFFF else [(_AND, 0, 0, test.mask)]
    return [(_LOAD, 0, 0, low), *masked, (_EQUAL, 0, 0, test.value)]


def check() -> None:
    """Raises SandboxUnavailable where there are no filters."""
    architecture()
    try:
        syscall("seccomp", _GET_ACTION_AVAILABLE, 0, buffer(struct.pack("=I", REFUSE & 0x7FFF0000)))
    except OSError as refusal:
        raise SandboxUnavailable(f"seccomp filters cannot be used here ({refusal.strerror})") from None


def install(pid: int, *, threads: bool) -> None:
    """Apply the filter to this thread, which is the only one. It cannot be undone."""
    code = program(architecture(), pid, threads=threads)
    packed = buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))
    # struct sock_fprog: a count, then, aligned, a pointer.
    pointer = buffer(struct.pack("@HP", len(code), ctypes.addressof(packed)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, pointer)
