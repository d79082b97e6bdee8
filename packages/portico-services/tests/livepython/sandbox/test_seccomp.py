"""The seccomp filter: simulated for both architectures, and in the kernel for this one."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico_services.livepython.sandbox import seccomp
from portico_services.livepython.sandbox.seccomp import RET_ALLOW, RET_ENOSYS, RET_EPERM, RET_KILL, RET_SUCCESS
from portico_services.livepython.sandbox.syscalls import ARCHITECTURES, MAX_KNOWN_SYSCALL, Architecture
from support.live_python import jail_only

PID = 4711
MACHINES = list(ARCHITECTURES)


def judge(machine: Architecture, number: int, *arguments: int, audit: int | None = None, threads: bool = False) -> int:
    """What the filter says to a call: the kernel's packet filter, in a few lines."""
    data = struct.pack("=iIQ6Q", number, audit or machine.audit, 0, *(*arguments, *[0] * (6 - len(arguments))))
    code = seccomp.build_filter(machine, PID, threads=threads)
    value = at = 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        if op == 0x20:
            (value,) = struct.unpack_from("=I", data, k)
        elif op == 0x54:
            value &= k
        elif op == 0x15:
            at += yes if value == k else no
        elif op == 0x35:
            at += yes if value >= k else no
        else:
            assert op == 0x06
            return k


@pytest.fixture(params=MACHINES)
def says(request: pytest.FixtureRequest) -> Callable[..., int]:
    """`says("kill", 1, 9)`; a call that this architecture does not have is refused by definition."""
    machine = ARCHITECTURES[request.param]

    def ask(name: str, *arguments: int, **more: Any) -> int:
        number = machine.syscall_numbers.get(name)
        return RET_EPERM if number is None else judge(machine, number, *arguments, **more)

    return ask


@pytest.mark.parametrize("name", MACHINES)
def test_jump_stays_inside_the_program(name: str) -> None:
    code = seccomp.build_filter(ARCHITECTURES[name], PID, threads=True)
    assert len(code) < 4096
    for at, (op, yes, no, _) in enumerate(code):
        if op in (0x15, 0x35):
            assert max(yes, no) <= 255
            assert at + 1 + max(yes, no) < len(code)
    assert code[-1][0] == 0x06


@pytest.mark.parametrize("name", MACHINES)
def test_only_listed_syscalls_are_allowed(name: str) -> None:
    machine = ARCHITECTURES[name]
    allowed = {machine.syscall_numbers[item] for item in seccomp.ALLOWED_SYSCALLS if item in machine.syscall_numbers}
    pretended = {machine.syscall_numbers[item] for item in seccomp.NOOP_SYSCALLS if item in machine.syscall_numbers}
    checked = {
        machine.syscall_numbers[item] for item in seccomp.argument_rules(PID, True) if item in machine.syscall_numbers
    }
    for number in range(600):
        # With arguments that fit nothing.
        answer = judge(machine, number, *[0x7FFFFFF7] * 6)
        assert (answer == RET_ALLOW) == (number in allowed)
        assert (answer == RET_SUCCESS) == (number in pretended)
        if number > MAX_KNOWN_SYSCALL:
            assert answer == RET_ENOSYS
        if number in checked:
            assert answer == RET_EPERM


@pytest.mark.parametrize("name", MACHINES)
def test_foreign_architecture_syscall_kills_the_process(name: str) -> None:
    machine = ARCHITECTURES[name]
    read = machine.syscall_numbers["read"]
    assert judge(machine, read) == RET_ALLOW
    assert judge(machine, read, audit=0x40000003) == RET_KILL
    assert judge(machine, read + machine.max_syscall - (1 << 32 if machine.max_syscall >= 1 << 31 else 0)) == RET_KILL


def test_signals_go_to_oneself(says: Callable[..., int]) -> None:
    for call in ("kill", "tgkill", "tkill"):
        assert says(call, PID, PID, 9) == RET_ALLOW
        for other in (PID + 1, 1, 0, 0xFFFFFFFF, 0xFFFFFFFF - PID + 1):
            assert says(call, other, other, 9) == RET_EPERM


def test_files_are_opened_with_a_name_and_not_emptied_by_readers(says: Callable[..., int]) -> None:
    read, write, both, create, empty, nameless = 0, 1, 2, 0o100, 0o1000, 0o20000000
    for flags in (read, write, both, write | create | empty, both | create | empty, read | 0o2000000):
        assert says("openat", 0, 0, flags) == RET_ALLOW
    for flags in (read | empty, write | nameless, both | nameless | empty, nameless, 3 | empty):
        assert says("openat", 0, 0, flags) == RET_EPERM


def test_pair_of_sockets_is_a_stream_and_stays_one(says: Callable[..., int]) -> None:
    assert says("socketpair", 1, 1 | 0o2000000) == RET_ALLOW
    for family, kind in ((1, 2), (1, 5), (2, 1), (16, 3), (1, 3)):
        assert says("socketpair", family, kind) == RET_EPERM
    assert says("sendto", 3, 99, 5, 0, 0, 0) == RET_ALLOW
    assert says("sendto", 3, 99, 5, 0, 99, 8) == RET_EPERM
    # A pointer whose lower half is nothing is still a pointer.
    assert says("sendto", 3, 99, 5, 0, 1 << 32, 8) == RET_EPERM


def test_threads_are_threads_if_there_are_any(says: Callable[..., int]) -> None:
    thread = 0x3D0F00
    assert says("clone", thread) == RET_EPERM
    assert says("clone", thread, threads=True) == RET_ALLOW
    # A process, a process that shares memory, and threads in a namespace of their own.
    for flags in (17, 0x4111, thread & ~0x10000, *(thread | 1 << bit for bit in (17, 25, 26, 27, 28, 29, 30))):
        assert says("clone", flags, threads=True) == RET_EPERM
    assert says("clone3", threads=True) == RET_ENOSYS


def test_limits_are_read_and_not_set(says: Callable[..., int]) -> None:
    assert says("prlimit64", 0, 7, 0, 99) == RET_ALLOW
    assert says("prlimit64", 0, 7, 99, 0) == RET_EPERM
    assert says("prlimit64", 12, 7, 0, 99) == RET_EPERM


def test_descriptors_are_not_made_to_send_signals(says: Callable[..., int]) -> None:
    assert says("fcntl", 3, 1) == RET_ALLOW
    assert says("fcntl", 3, 6) == RET_SUCCESS
    for command in (8, 10, 15, 1024, 1026, 1031, 1033):
        assert says("fcntl", 3, command) == RET_EPERM
    assert says("ioctl", 3, 0x5401) == RET_ALLOW
    for request in (0x5412, 0x541D, 0x5452, 0xC0105512):
        assert says("ioctl", 3, request) == RET_EPERM


@pytest.mark.parametrize(
    "name, header",
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_syscall_numbers_match_the_kernel_headers(name: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"the kernel's headers are not installed: {header}")
    text = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)$", Path(header).read_text(), re.MULTILINE)
    numbers = {call: int(number) for call, number in text}
    # What the generic table calls by its old name.
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    assert {call: numbers.get(call) for call in ARCHITECTURES[name].syscall_numbers} == ARCHITECTURES[
        name
    ].syscall_numbers


@jail_only
async def test_unlisted_syscalls_are_rejected_by_the_kernel(talk: Callable[..., Any]) -> None:
    """Each number that is not on the list is called, with arguments that would do nothing."""
    live = await talk()
    machine = seccomp.current_architecture()
    ours = {
        *seccomp.ALLOWED_SYSCALLS,
        *seccomp.NOOP_SYSCALLS,
        *seccomp.XATTR_SYSCALLS,
        *seccomp.argument_rules(0, True),
    } - {"clone"}
    spared = sorted(machine.syscall_numbers[our] for our in ours if our in machine.syscall_numbers)
    # Linux asks no filter about the calls of its own probes (335, 336 on x86_64); whoever else makes them is ended.
    spared += [335, 336]
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number):
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    return ctypes.get_errno() if done < 0 else -1
sorted({{call(number) for number in range(600) if number not in {spared}}})
"""
    assert (await live.run(code)).structured["value"] == [errno.EPERM, errno.ENOSYS]
