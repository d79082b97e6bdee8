"""The seccomp filter: an allow-list of system calls for sandboxed code.

Other calls fail with an error instead of killing the process. They are not executed either way; with an error, Python
code sees a PermissionError that a model can read, and a library that only probes for a feature continues without it. A
call through the ABI of another architecture, whose numbers differ, kills the process: that is never an accident.

The filter is a classic BPF program. It sees the number of the call and its six arguments, but cannot dereference
pointers; so calls whose flags are behind a pointer (clone3, openat2) report ENOSYS, and libc falls back to the older
ones.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from portico_services.livepython.sandbox.syscalls import (
    MAX_KNOWN_SYSCALL,
    PR_SET_SECCOMP,
    SECCOMP_MODE_FILTER,
    Architecture,
    SandboxUnavailable,
    current_architecture,
    prctl,
    syscall,
    to_buffer,
)

RET_ALLOW = 0x7FFF0000
RET_KILL = 0x80000000
_ERRNO = 0x00050000
RET_EPERM = _ERRNO | errno.EPERM
# As from a kernel that does not know the call: libc then falls back to another.
RET_ENOSYS = _ERRNO | errno.ENOSYS
# As from a file system without the feature: programs expect it.
RET_ENOTSUP = _ERRNO | errno.ENOTSUP
# The call has no effect, but reports success.
RET_SUCCESS = _ERRNO

_LOAD, _AND, _EQUAL, _JGE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
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

ALLOWED_SYSCALLS = _ALLOWED.split()

# Landlock does not restrict changes of modes and times, so they are disabled, but copying a file attempts them. Locks
# are pointless in the sandbox, and each takes kernel memory without a limit.
NOOP_SYSCALLS = ("flock", "chmod", "fchmod", "fchmodat", "utime", "utimes", "futimesat", "utimensat")

XATTR_SYSCALLS = tuple(f"{kind}{what}xattr" for kind in ("", "l", "f") for what in ("set", "get", "list"))

ENOSYS_SYSCALLS = ("clone3", "openat2", "memfd_create")

_O_TRUNC, _O_TMPFILE, _O_ACCMODE = 0o1000, 0o20000000, 0b11
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_SET_NAME, _GET_NAME = 15, 16
# Duplicate descriptors, and get and set flags; no signals, directory notifications or leases.
_FCNTL = (0, 1, 2, 3, 4, 5, 36, 1030, 1032)
_FCNTL_LOCKS = (6, 7, 37, 38)
# Terminal check, bytes available, blocking mode, close-on-exec.
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
_CLONE_VM, _CLONE_SIGHAND, _CLONE_THREAD = 0x100, 0x800, 0x10000
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CLONE_THREAD_FLAGS = _CLONE_VM | _CLONE_SIGHAND | _CLONE_THREAD


class ArgumentTest(NamedTuple):
    """Test of one argument: `argument & mask == value`. The kernel treats these arguments as 32 bits."""

    argument_index: int
    value: int
    mask: int = 0xFFFFFFFF
    # Compare all 64 bits; pointers are only ever compared with NULL.
    pointer: bool = False


# Alternatives: tests that must all pass, and the result if they do.
Conditions = list[tuple[list[ArgumentTest], int]]

Instruction = tuple[int, int, int, int]


def argument_rules(pid: int, threads: bool) -> dict[str, Conditions]:
    """Return the calls that are allowed depending on their arguments."""
    checked: dict[str, Conditions] = {
        "open": _open_rules(1),
        "openat": _open_rules(2),
        "fcntl": [
            *(([ArgumentTest(1, command)], RET_ALLOW) for command in _FCNTL),
            *(([ArgumentTest(1, command)], RET_SUCCESS) for command in _FCNTL_LOCKS),
        ],
        "ioctl": [([ArgumentTest(1, request)], RET_ALLOW) for request in _IOCTL],
        # Both ends belong to the process, and it cannot send elsewhere. Event loops use such a pair to wake themselves.
        "socketpair": [([ArgumentTest(0, _AF_UNIX), ArgumentTest(1, _SOCK_STREAM, _SOCK_TYPE)], RET_ALLOW)],
        "sendto": [([_null_argument(4)], RET_ALLOW)],
        # Only to itself.
        "kill": [([ArgumentTest(0, pid)], RET_ALLOW)],
        "tgkill": [([ArgumentTest(0, pid)], RET_ALLOW)],
        "tkill": [([ArgumentTest(0, pid)], RET_ALLOW)],
        "prlimit64": [([ArgumentTest(0, 0), _null_argument(2)], RET_ALLOW)],
        "prctl": [([ArgumentTest(0, option)], RET_ALLOW) for option in (_SET_NAME, _GET_NAME)],
    }
    if threads:
        checked["clone"] = [([ArgumentTest(0, _CLONE_THREAD_FLAGS, _CLONE_THREAD_FLAGS | _CLONE_NEW)], RET_ALLOW)]
    return checked


def _open_rules(position: int) -> Conditions:
    """Return the rules for opening files.

    O_TMPFILE is rejected, because unnamed files escape the accounting of the scratch directory. O_TRUNC requires write
    access, because before ABI 3 Landlock allows truncating a file that is only readable.
    """
    return [
        ([ArgumentTest(position, 0, _O_TMPFILE | _O_TRUNC)], RET_ALLOW),
        ([ArgumentTest(position, 1, _O_TMPFILE | _O_ACCMODE)], RET_ALLOW),
        ([ArgumentTest(position, 2, _O_TMPFILE | _O_ACCMODE)], RET_ALLOW),
    ]


def _null_argument(position: int) -> ArgumentTest:
    return ArgumentTest(position, 0, pointer=True)


def build_filter(machine: Architecture, pid: int, *, threads: bool = False) -> list[Instruction]:
    """Build the filter for a process with this id."""
    numbers = machine.syscall_numbers
    code: list[Instruction] = [
        # Check the architecture first: the same number means another call elsewhere.
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, RET_KILL),
        (_LOAD, 0, 0, 0),
        (_JGE, 0, 1, machine.max_syscall),
        (_RETURN, 0, 0, RET_KILL),
    ]
    answers = {
        RET_ALLOW: ALLOWED_SYSCALLS,
        RET_SUCCESS: NOOP_SYSCALLS,
        RET_ENOTSUP: XATTR_SYSCALLS,
        RET_ENOSYS: ENOSYS_SYSCALLS,
    }
    for answer, names in answers.items():
        for name in names:
            if name in numbers:
                code += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, answer)]
    for name, alternatives in argument_rules(pid, threads).items():
        if name in numbers:
            block = _compile_rules(alternatives)
            code += [(_EQUAL, 0, len(block), numbers[name]), *block]
    # A libc newer than these tables also tries newer calls.
    code += [(_JGE, 0, 1, MAX_KNOWN_SYSCALL + 1), (_RETURN, 0, 0, RET_ENOSYS), (_RETURN, 0, 0, RET_EPERM)]
    return code


def _compile_rules(alternatives: Conditions) -> list[Instruction]:
    block: list[Instruction] = []
    for tests, answer in alternatives:
        steps = [step for test in tests for step in _compile_test(test)]
        end = len(steps)
        # If a comparison fails, jump past the return of this alternative.
        block += [(op, jt, end - at if op == _EQUAL else 0, k) for at, (op, jt, _, k) in enumerate(steps)]
        block.append((_RETURN, 0, 0, answer))
    block.append((_RETURN, 0, 0, RET_EPERM))
    return block


def _compile_test(test: ArgumentTest) -> list[Instruction]:
    low = 16 + 8 * test.argument_index
    if test.pointer:
        return [(_LOAD, 0, 0, low), (_EQUAL, 0, 0, 0), (_LOAD, 0, 0, low + 4), (_EQUAL, 0, 0, 0)]
    masked = [] if test.mask == 0xFFFFFFFF else [(_AND, 0, 0, test.mask)]
    return [(_LOAD, 0, 0, low), *masked, (_EQUAL, 0, 0, test.value)]


def check_available() -> None:
    """Raise SandboxUnavailable if seccomp filters are not supported."""
    current_architecture()
    try:
        syscall("seccomp", _GET_ACTION_AVAILABLE, 0, to_buffer(struct.pack("=I", RET_EPERM & 0x7FFF0000)))
    except OSError as refusal:
        raise SandboxUnavailable(f"seccomp filters are not available ({refusal.strerror})") from None


def install_filter(pid: int, *, threads: bool) -> None:
    """Install the filter in this thread, the only one of the process. Irreversible."""
    code = build_filter(current_architecture(), pid, threads=threads)
    packed = to_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))
    # struct sock_fprog: a count, then an aligned pointer.
    pointer = to_buffer(struct.pack("@HP", len(code), ctypes.addressof(packed)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, pointer)
