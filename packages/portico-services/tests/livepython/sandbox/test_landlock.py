"""Landlock and the other sandbox layers without the service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import portico
import portico_services
from portico_services.livepython.sandbox import landlock, syscalls
from portico_services.livepython.sandbox.limits import SandboxLimits
from support.live_python import jail_only

SOURCE = "\n".join(str(Path(str(one.__file__)).parent.parent) for one in (portico, portico_services))

# In a process of its own: locks itself up, tries what it is told, and says how it went.
PROGRAM = """
import json, os, sys
sys.path[:0] = sys.argv[1].splitlines()
from portico_services.livepython.sandbox import landlock as jail
from portico_services.livepython.sandbox.limits import SandboxLimits
scratch, threads = sys.argv[2], int(sys.argv[3])
limits = SandboxLimits(max_threads=threads)
child = os.fork()
if child == 0:
    jail.prepare_process(scratch, limits, os.getppid())
    report = jail.lock_down(scratch, jail.python_directories(), limits)
    import threading
    event, started = threading.Event(), 0
    try:
        while started < 100:
            threading.Thread(target=event.wait, daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    def attempt(what):
        try:
            what()
            return "done"
        except OSError as refusal:
            return refusal.strerror
    tried = {
        "passwd": attempt(lambda: open("/etc/passwd")),
        "scratch": attempt(lambda: open("file", "w")),
        "fork": attempt(os.fork),
        "user": os.getuid(),
        "threads": started,
    }
    sys.stdout.write(json.dumps(tried | report))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_each_version_holds_more_than_the_one_before() -> None:
    rights = [landlock.handled_rights(abi) for abi in range(1, 9)]
    assert rights[0] == 0b1111111111111
    assert rights[1] == rights[0] | landlock.REFER
    assert rights[2] == rights[3] == rights[1] | landlock.TRUNCATE
    assert rights[4] == rights[7] == rights[2] | landlock.IOCTL_DEV


def test_arguments_are_never_executed() -> None:
    for path, rights in landlock.path_rules("/scratch", ["/python"]):
        assert not rights & (landlock.EXECUTE | landlock.MAKE_CHAR | landlock.MAKE_BLOCK | landlock.MAKE_SOCK)
        assert not rights & landlock.WRITE_FILE or path in ("/scratch", "/dev/null")


def test_project_that_is_installed_for_editing_is_not_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/somewhere/project")
    assert "/somewhere/project" not in landlock.python_directories()
    assert "/somewhere/project" in landlock.python_directories(["/somewhere/project"])


def test_missing_landlock_is_reported_with_the_kernel_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *arguments: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(landlock, "syscall", refuse)
    reason = landlock.unavailable_reason(SandboxLimits())
    assert reason is not None
    assert "Landlock" in reason
    assert "lsm=" in reason


def test_unsupported_architecture_is_the_reason_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "riscv64")
    assert "riscv64" in (landlock.unavailable_reason(SandboxLimits()) or "")


def test_unsupported_operating_system_is_the_reason_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock.sys, "platform", "darwin")
    assert "darwin" in (landlock.unavailable_reason(SandboxLimits()) or "")


def test_threads_are_rejected_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("there is no jail on this system")
    monkeypatch.setattr(landlock.os, "getuid", lambda: 0)
    monkeypatch.setattr(landlock, "landlock_abi", lambda: 1)
    monkeypatch.setattr(landlock.seccomp, "check_available", lambda: None)
    assert landlock.unavailable_reason(SandboxLimits()) is None
    assert "root" in (landlock.unavailable_reason(SandboxLimits(max_threads=4)) or "")


def _someone_else() -> tuple[str, dict[str, object]]:
    """A Python that an ordinary user can run, and how to be one."""
    if os.getuid() != 0:
        return sys.executable, {}
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("we are root, and there is no Python here that another user could run")
    done = subprocess.run([python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
    if done.stdout.strip() != b"True":
        pytest.skip(f"we are root, and {python}, which another user could run, is older than 3.11")
    return python, {"user": 65534, "group": 65534, "extra_groups": []}


@pytest.fixture
def scratch() -> Iterator[str]:
    """Not below pytest's own directory, which another user cannot enter."""
    with tempfile.TemporaryDirectory() as directory:
        yield directory


@jail_only
@pytest.mark.parametrize("threads", [0, 3])
def test_unprivileged_user_can_enter_the_sandbox_and_limit_threads(scratch: str, threads: int) -> None:
    python, identity = _someone_else()
    if identity:
        os.chown(scratch, 65534, 65534)
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM, SOURCE, scratch, str(threads)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **identity,  # type: ignore[arg-type]
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["passwd"] == "Permission denied"
    assert data["scratch"] == "done"
    assert data["fork"] == "Operation not permitted"
    assert data["user"] != 0
    # Others of this user may come and go meanwhile; but it is a bound.
    assert (data["threads"] == 0) == (threads == 0)
    assert data["threads"] < 100
    assert data["landlock"] >= 1
