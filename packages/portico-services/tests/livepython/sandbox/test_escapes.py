"""Escape attempts in the real sandbox: all fail, the server stays responsive, and the session continues or is
reported as restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from portico import Client, Server
from portico_services.livepython import LivePython
from portico_services.livepython.sandbox import worker
from portico_services.livepython.sandbox.limits import MIB
from support.escapes import ALL, Escape
from support.live_python import REVISION, TIMEOUT_SECONDS, WorkerDialog, jail_only, wait_until

pytestmark = [jail_only, pytest.mark.asyncio(loop_scope="module")]

# They leave their session without memory, and it has no more for anybody.
UNRULY = {"takes memory in small pieces", "takes memory bit by bit", "answers for itself, now and later"}


class Host:
    """The outside: what code should not be able to change."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.canary = directory / "canary"
        self.canary.write_text("I am well.")
        self.canary.chmod(0o640)
        self.path = str(directory / "socket")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.listener.setblocking(False)
        self._before = self._state()

    def _state(self) -> tuple[Any, ...]:
        status = self.canary.stat()
        library = Path(json.__file__).stat()
        own = (self.canary.read_text(), status.st_mode, status.st_uid, status.st_mtime_ns, os.listxattr(self.canary))
        files = sorted(path.name for path in self.directory.iterdir())
        elsewhere = [Path("/tmp/portico-escaped").exists(), Path("/dev/shm/portico-escaped").exists()]
        return own, files, elsewhere, (library.st_mode, library.st_size, library.st_mtime_ns)

    def check(self) -> None:
        assert self._state() == self._before
        with pytest.raises(BlockingIOError):
            self.listener.accept()

    def placed(self, code: str) -> str:
        return (
            code.replace("'ESCAPED'", "'ESC' + 'APED'")
            .replace("HOST", str(self.directory))
            .replace("SERVER", str(os.getpid()))
            .replace("SOCKET", self.path)
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    # A path of a local socket is short.
    directory = tmp_path / "h"
    directory.mkdir()
    host = Host(directory)
    yield host
    host.listener.close()


@pytest.fixture(scope="module")
def secret() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PORTICO_TEST_SECRET", "SECRET")
        # Code that does not stop would use a processor for 7 s in each of these tests.
        patch.setattr(worker, "INTERRUPT_GRACE_SECONDS", 0.5)
        patch.setattr(worker, "RESCUE_TIMEOUT_SECONDS", 0.5)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prison(secret: None) -> AsyncIterator[WorkerDialog]:
    """One service, which has to outlast them all."""
    server, live = Server("live", version="1"), LivePython(scratch_bytes=200 * MIB)
    server.add(live)
    async with Client(server, protocol_version=REVISION) as client:
        yield WorkerDialog(client, live)


@pytest_asyncio.fixture(loop_scope="module")
async def prisoner(prison: WorkerDialog) -> AsyncIterator[WorkerDialog]:
    """A session that begins, in a process of its own, and is ended."""
    yield prison
    for session in ("main", "one", "two"):
        await prison.call("reset_session", session=session)


@pytest.mark.parametrize("escape", ALL, ids=lambda escape: escape.name.replace(" ", "-"))
async def test_code_that_tries_to_get_out_stays_in(escape: Escape, host: Host, prisoner: WorkerDialog) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        trying = asyncio.ensure_future(prisoner.run(host.placed(escape.code), timeout=escape.seconds))
        while not trying.done():
            await prisoner.client.ping()
            await asyncio.wait([trying], timeout=0.05)
        result = trying.result()
        assert "ESCAPED" not in result.text
        assert str(result.structured or "").count("ESCAPED") == 0
        after = await prisoner.run("3 + 4")
        if escape.name in UNRULY:
            # What code has done to the names of its own session, and what it says there, is its own affair, until it is
            # reset.
            await prisoner.call("reset_session")
            after = await prisoner.run("3 + 4")
    assert after.text.endswith("7")
    host.check()
    assert left_behind() == set()


def left_behind() -> set[int]:
    """Processes in a scratch directory that is gone: somebody of ours has left them behind."""
    result = set()
    for name in os.listdir("/proc"):
        try:
            home = os.readlink(f"/proc/{name}/cwd") if name.isdigit() else ""
        except OSError:
            continue  # it has ended, or is not ours
        if "portico-live" in home and home.endswith(" (deleted)"):
            result.add(int(name))
    return result


async def test_session_cannot_see_another(prisoner: WorkerDialog) -> None:
    await prisoner.run("secret = 'mine'; open('file', 'w').write('mine')", session="one")
    assert "NameError" in await prisoner.text("secret", session="two")
    home = json.loads(
        (await prisoner.run("import os, json; json.dumps(os.getcwd())", session="one")).structured["value"]
    )
    assert "Permission denied" in await prisoner.text(f"open({home + '/file'!r}).read()", session="two")
    assert "Permission denied" in await prisoner.text(f"import os; os.listdir({home!r})", session="two")
    pid = (await prisoner.run("import os; os.getpid()", session="one")).structured["value"]
    assert "not permitted" in await prisoner.text(f"import os; os.kill({pid}, 9)", session="two")
    assert await prisoner.text("secret", session="one") == "'mine'"


async def test_timers_left_by_code_do_not_run_between_calls(prisoner: WorkerDialog) -> None:
    """A timer, since there are no threads: it would count as long as it runs."""
    begin = """
import signal
count = 0
def ring(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
import os
os.getpid()
"""
    pid = (await prisoner.run(begin)).structured["value"]
    await wait_until(lambda: _state_of(pid) == "T")
    used = _ticks_of(pid)
    for _ in range(100):
        await prisoner.client.ping()
    assert _state_of(pid) == "T"
    assert _ticks_of(pid) == used


def _file(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def _status(pid: int) -> list[str]:
    return _file(pid, "stat").decode().rpartition(")")[2].split()


def _state_of(pid: int) -> str:
    return _status(pid)[0]


def _ticks_of(pid: int) -> tuple[str, str]:
    return _status(pid)[11], _status(pid)[12]


async def test_sandbox_is_verified_from_outside_the_process(prisoner: WorkerDialog) -> None:
    pid = (await prisoner.run("import os; os.getpid()")).structured["value"]
    status = dict(line.split(":\t", 1) for line in _file(pid, "status").decode().splitlines())
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0000000000000000"}
    assert status["Threads"] == "1"
    links = {name: os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    assert sorted(links) == ["0", "1", "2", "3"]
    assert links["0"] == "/dev/null"
    assert links["1"] == links["2"]
    assert int(_status(pid)[2]) == int(_status(pid)[3]) == pid
    assert b"PORTICO" not in _file(pid, "environ")


async def test_killed_forkserver_ends_its_workers_and_is_restarted(prisoner: WorkerDialog) -> None:
    numbers = (await prisoner.run("x = 5; import os; [os.getpid(), os.getppid()]")).structured["value"]
    pid, parent = numbers
    os.kill(parent, signal.SIGKILL)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (after := await prisoner.text("x")).startswith("5"):
            pass
        while "NameError" not in after:
            after = await prisoner.text("x")
    assert _has_ended(pid)
    assert await prisoner.text("3 + 4") == "7"


def _has_ended(pid: int) -> bool:
    try:
        return _state_of(pid) in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
