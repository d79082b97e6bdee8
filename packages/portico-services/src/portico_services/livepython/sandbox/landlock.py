"""The jail: what a worker does to itself, for good, before it reads the first byte of a client's code.

Nothing here can be taken back by the process that has done it. Linux only: seccomp decides which system calls there
are, Landlock which files, rlimits how much.
"""

from __future__ import annotations

import os
import signal
import site
import stat
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence

from portico_services.livepython.sandbox import seccomp
from portico_services.livepython.sandbox.limits import Limits
from portico_services.livepython.sandbox.syscalls import (
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    SandboxUnavailable,
    buffer,
    drop_capabilities,
    prctl,
    syscall,
)

# Landlock: which files a process can open, and nothing else of the file system. Each version of the interface (ABI)
# knows more rights than the one before. What the kernel does not know it does not hold, so those rights are also kept
# by the seccomp filter.

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


# Behind those who wait for an answer, and first to go when memory runs out.
NICENESS = 10
OUT_OF_MEMORY_FIRST = "1000"

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
_TABLES = ("/etc/localtime", "/usr/share/zoneinfo", "/usr/share/fonts")
_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/random")


def obstacle(limits: Limits) -> str | None:
    """Why the jail cannot be built here, or None."""
    if sys.platform != "linux":
        return f"the jail is made of Linux's Landlock and seccomp, and this is {sys.platform}"
    try:
        version()
        seccomp.check()
    except SandboxUnavailable as reason:
        return str(reason)
    if limits.threads and os.getuid() == 0:
        return "threads can only be counted for an ordinary user, and this is root: use threads=0, or another user"
    return None


def settle(scratch: str, limits: Limits, parent: int) -> None:
    """What is done in any case: a group of its own, a place of its own, and bounds. No jail yet."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SandboxUnavailable("the process that workers come from has ended")
    os.chdir(scratch)
    os.umask(0o077)
    os.nice(NICENESS)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(OUT_OF_MEMORY_FIRST)
    set_limits(limits)


def lock(scratch: str, readable: Iterable[str], limits: Limits) -> dict[str, int]:
    """Lock this process up. Its only thread is ours, its descriptors are already those it may keep."""
    import resource  # there is none on Windows, which gets as far as asking for an obstacle

    processes = _tasks() + limits.threads if limits.threads else 0
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    abi = restrict(rules(scratch, readable))
    seccomp.install(os.getpid(), threads=limits.threads > 0)
    return {"landlock": abi}


def rules(scratch: str, readable: Iterable[str]) -> list[tuple[str, int]]:
    """What is open: Python to read, the scratch directory to write, and a few tables and devices."""
    given = [(path, READ) for path in (*readable, *_LIBRARIES, *_TABLES, *_DEVICES)]
    return [(scratch, READ_WRITE), ("/dev/null", READ_FILE | WRITE_FILE), *given]


def set_limits(limits: Limits) -> None:
    import resource

    bounds = {
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, bound in bounds.items():
        resource.setrlimit(which, (bound, bound))
    # The first is a signal that can be caught, the second is the end.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 1))


def _tasks() -> int:
    """How many threads the user of this process has on this machine: the kernel counts them all."""
    user, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended meanwhile
    return count


def installation(more: Sequence[str] = ()) -> list[str]:
    """The directories of this Python: its standard library, its packages, the libraries they need.

    Not all of `sys.path`: a project that is installed for editing may have its secrets next to its code.
    """
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [os.path.join(sys.base_prefix, "lib"), *site.getsitepackages()]
    homes = tuple(os.path.join(prefix, "lib") + os.sep for prefix in (sys.prefix, sys.base_prefix))
    found += [path for path in sys.path if path.startswith(homes)]
    return list(dict.fromkeys([*found, *more]))
