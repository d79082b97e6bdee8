"""The sandbox: restrictions that a worker applies to itself before it reads any client code.

They are irreversible for the process. Linux only: seccomp restricts system calls, Landlock files, and rlimits
resources.
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
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.syscalls import (
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    SandboxUnavailable,
    drop_capabilities,
    prctl,
    syscall,
    to_buffer,
)

# Landlock restricts which files a process can access. Each ABI version adds rights; the kernel does not enforce those
# that it does not know, so the seccomp filter covers them, too.

LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

# All rights of the first version, and those added by later ones.
_RIGHTS = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
# TCP bind and connect (4); abstract sockets and signals to outside processes (6).
_NET_RIGHTS, _SCOPE_RIGHTS = (4, 0b11), (6, 0b11)
# Denied attempts are not logged (7): code that keeps trying must not fill the disk.
_NO_LOG_FLAG = (7, 1)

READ_RIGHTS = READ_FILE | READ_DIR
# No devices, sockets or pipes, and nothing executable.
READ_WRITE_RIGHTS = (
    READ_RIGHTS | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
)
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV


def landlock_abi() -> int:
    """Return the Landlock ABI version of this kernel. Raises SandboxUnavailable if there is none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    except OSError as refusal:
        raise SandboxUnavailable(
            f"Landlock is not available ({refusal.strerror}): it needs Linux 5.13 or newer, with 'landlock' in the "
            "list of security modules (the boot parameter lsm=), in a container that lets its system calls through"
        ) from None


def handled_rights(abi: int) -> int:
    """Return the rights that this ABI version enforces: all are denied, then some are granted per path."""
    return sum(rights for since, rights in _RIGHTS.items() if since <= abi)


def restrict(rules: Iterable[tuple[str, int]]) -> int:
    """Restrict this process to these paths, irreversibly, and return the ABI version.

    Paths that do not exist are skipped, since distributions differ.
    """
    abi = landlock_abi()
    rights = handled_rights(abi)
    attributes = struct.pack("=Q", rights)
    for since, value in (_NET_RIGHTS, _SCOPE_RIGHTS):
        if since <= abi:
            attributes += struct.pack("=Q", value)
    ruleset = syscall("landlock_create_ruleset", to_buffer(attributes), len(attributes), 0)
    try:
        for path, path_rights in rules:
            _allow(ruleset, path, path_rights & rights)
        syscall("landlock_restrict_self", ruleset, _NO_LOG_FLAG[1] if _NO_LOG_FLAG[0] <= abi else 0)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # The kernel rejects directory rights in a rule for a file.
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FILE_RIGHTS
        syscall(
            "landlock_add_rule",
            ruleset,
            LANDLOCK_RULE_PATH_BENEATH,
            to_buffer(struct.pack("=Qi", rights, descriptor)),
            0,
        )
    finally:
        os.close(descriptor)


# Lower priority than the server, and first victim of the OOM killer.
NICENESS = 10
OOM_SCORE_ADJ = "1000"

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
_READABLE_DATA = ("/etc/localtime", "/usr/share/zoneinfo", "/usr/share/fonts")
_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/random")


def unavailable_reason(limits: SandboxLimits) -> str | None:
    """Return why the sandbox cannot be created here, or None."""
    if sys.platform != "linux":
        return f"the Linux sandbox needs Landlock and seccomp, and this is {sys.platform}"
    try:
        landlock_abi()
        seccomp.check_available()
    except SandboxUnavailable as reason:
        return str(reason)
    if limits.max_threads and os.getuid() == 0:
        return (
            "max_threads needs an unprivileged user, because the kernel does not count the threads of root: set it to "
            "0, or run the server as another user"
        )
    return None


def prepare_process(scratch: str, limits: SandboxLimits, parent: int) -> None:
    """Set up the process: session, working directory, priority and limits. This is not the sandbox yet."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before PDEATHSIG was set; then the signal never comes.
    if os.getppid() != parent:
        raise SandboxUnavailable("the fork server has ended")
    os.chdir(scratch)
    os.umask(0o077)
    os.nice(NICENESS)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE_ADJ)
    set_limits(limits)


def lock_down(scratch: str, readable: Iterable[str], limits: SandboxLimits) -> dict[str, int]:
    """Enter the sandbox. The process must have one thread, and only the descriptors it may keep."""
    import resource  # not available on Windows, where `unavailable_reason` must still work

    processes = _user_thread_count() + limits.max_threads if limits.max_threads else 0
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # Landlock and seccomp require no_new_privs for an unprivileged process.
    abi = restrict(path_rules(scratch, readable))
    seccomp.install_filter(os.getpid(), threads=limits.max_threads > 0)
    # seccomp comes last, since it blocks the system calls used above.
    return {"landlock": abi}


def path_rules(scratch: str, readable: Iterable[str]) -> list[tuple[str, int]]:
    """Return the accessible paths: Python to read, the scratch directory to write, and a few data files and devices."""
    rules = [(path, READ_RIGHTS) for path in (*readable, *_LIBRARIES, *_READABLE_DATA, *_DEVICES)]
    return [(scratch, READ_WRITE_RIGHTS), ("/dev/null", READ_FILE | WRITE_FILE), *rules]


def set_limits(limits: SandboxLimits) -> None:
    import resource

    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.max_file_bytes,
        resource.RLIMIT_NOFILE: limits.max_open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for resource_kind, bound in bounds.items():
        resource.setrlimit(resource_kind, (bound, bound))
    # The soft limit sends a signal that can be caught, the hard limit kills.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))


def _user_thread_count() -> int:
    """Return how many threads this user has on the machine: RLIMIT_NPROC counts all of them."""
    user, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended in between
    return count


def python_directories(more: Sequence[str] = ()) -> list[str]:
    """Return the directories of this Python: standard library, packages and shared libraries.

    Not all of `sys.path`: an editable project may have secrets next to its code.
    """
    paths = sysconfig.get_paths()
    result = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    result += [os.path.join(sys.base_prefix, "lib"), *site.getsitepackages()]
    homes = tuple(os.path.join(prefix, "lib") + os.sep for prefix in (sys.prefix, sys.base_prefix))
    result += [path for path in sys.path if path.startswith(homes)]
    return list(dict.fromkeys([*result, *more]))
