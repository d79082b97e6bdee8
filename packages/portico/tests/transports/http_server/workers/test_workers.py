"""`--workers N`: processes are started, monitored, replaced and stopped together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from portico import Client
from portico.cli import local_token
from support.worker_processes import HttpConnection, certificate, is_secret_hidden, script


async def pids(port: int, least: int = 2) -> set[int]:
    """The processes that answer: connections are made until so many have."""
    result: set[int] = set()
    for _ in range(200):
        one = await HttpConnection.to(port)
        result.add((await one.call("pid")).value)
        await one.close()
        if len(result) >= least:
            break
    return result


async def test_workers_answer_and_the_supervisor_does_not(serve: Any) -> None:
    fleet = await serve(env={"PORTICO_WORKERS": "2"})
    assert await pids(fleet.port) == fleet.workers()
    assert await fleet.end() == 0


async def test_killed_worker_is_replaced(serve: Any) -> None:
    fleet = await serve("--workers", "2")
    first, second = sorted(fleet.workers())
    os.kill(first, signal.SIGKILL)
    await fleet.wait_until(lambda: len(fleet.workers() - {first}) == 2)
    assert second in fleet.workers()

    async def all_answer() -> bool:
        return await pids(fleet.port) == fleet.workers()

    # Until the new one does, the other takes its connections.
    await fleet.wait_until(all_answer)
    assert any("restarting it" in text for text in fleet.log)


async def test_on_sighup_all_are_replaced_and_no_call_is_rejected(serve: Any, tmp_path: Path) -> None:
    fleet = await serve("--workers", "2")
    before, path, over = fleet.workers(), tmp_path / "counted", asyncio.Event()

    async def keep_calling(name: str) -> list[str]:
        made: list[str] = []
        async with Client(fleet.url) as client:
            while not over.is_set():
                made.append(f"{name}-{len(made)}")
                result = await client.call_tool("count", {"path": str(path), "word": made[-1]})
                assert not result.is_error
        return made

    calling = [asyncio.ensure_future(keep_calling(str(number))) for number in range(4)]
    fleet.process.send_signal(signal.SIGHUP)
    await fleet.wait_until(lambda: len(fleet.workers()) == 2 and not fleet.workers() & before)
    over.set()
    made = [word for words in await asyncio.gather(*calling) for word in words]
    assert sorted(path.read_text().split()) == sorted(made)


async def test_running_call_finishes_during_shutdown(serve: Any, line: Any, tmp_path: Path) -> None:
    fleet = await serve("--workers", "1")
    result = await line(fleet.port)
    calling = asyncio.ensure_future(result.call("slowly", path=str(tmp_path / "flag")))
    await fleet.wait_until((tmp_path / "flag").exists)
    fleet.process.send_signal(signal.SIGTERM)
    (tmp_path / "flag").unlink()
    assert (await calling).value == "done"
    assert await fleet.end() == 0


async def test_workers_do_not_outlive_their_supervisor(serve: Any, tmp_path: Path) -> None:
    # One that is killed does not clear up.
    fleet = await serve("--workers", "2", env={"TMPDIR": str(tmp_path)})
    workers = fleet.workers()
    await fleet.end(signal.SIGKILL)
    await fleet.wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


async def test_new_worker_that_does_not_begin_leaves_the_old_ones(serve: Any, server_file: Path) -> None:
    fleet = await serve("--workers", "1")
    before = fleet.workers()
    os.unlink(server_file)
    fleet.process.send_signal(signal.SIGHUP)
    await fleet.wait_until(lambda: any("keeping the old workers" in text for text in fleet.log))
    assert await pids(fleet.port, 1) == before


@pytest.mark.parametrize(
    "run", ['server.run("http", port=0, workers=2)', 'asyncio.run(server.run_async("http", port=0, workers=1))']
)
async def test_script_has_workers_too(start: Any, server_file: Path, run: str) -> None:
    fleet = await start(script(server_file, run))
    assert await pids(fleet.port, len(fleet.workers())) == fleet.workers()
    assert await fleet.end() == 0


async def test_server_runs_in_a_loop_that_runs_already(start: Any, server_file: Path) -> None:
    fleet = await start(script(server_file, 'asyncio.run(server.run_async("http", port=0))'))
    assert await pids(fleet.port, 1) == {fleet.process.pid}
    assert await fleet.end() == 0


async def test_response_may_reach_another_worker(standing: Any, line: Any) -> None:
    fleet = standing
    lines = [await line(fleet.port) for _ in range(20)]
    by_pid = {(await one.call("pid")).value: one for one in lines}
    assert len(by_pid) == 2
    first, second = by_pid.values()
    response = (await first.call("name")).json["result"]
    [key] = response["inputRequests"]
    answers = {key: {"action": "accept", "content": {"value": "Ada"}}}
    params = {"name": "name", "inputResponses": answers, "requestState": response["requestState"]}
    assert (await second.request_stateless("tools/call", params)).value.startswith("Ada ")


# Where they listen


async def test_unix_socket_is_private(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    fleet = await serve("--workers", "1", "--unix-socket", path)
    assert path.stat().st_mode & 0o777 == 0o600
    result = HttpConnection(*await asyncio.open_unix_connection(path))
    assert (await result.call("pid")).value in fleet.workers()
    await result.close()
    assert await fleet.end() == 0
    assert not path.exists()


async def test_unix_socket_in_use_is_not_removed(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    fleet = await serve("--unix-socket", path)
    other = await serve("--unix-socket", path, ready=False)
    assert await other.process.wait() == 2
    result = HttpConnection(*await asyncio.open_unix_connection(path))
    assert (await result.call("pid")).value == fleet.process.pid
    await result.close()


@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
async def test_sockets_of_systemd_are_taken(start: Any, server_file: Path, line: Any, workers: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # As systemd does it: the descriptor is 3, and the variables name the process.
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); "
            "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
        )
        served = ("-m", "portico", "serve", server_file, "--transport", "http", "--fd", *workers)
        fleet = await start("-c", code, listening.fileno(), *served, pass_fds=[listening.fileno()])
        response = await line(listening.getsockname()[1])
    assert (await response.call("pid")).value in (fleet.workers() or {fleet.process.pid})


async def test_workers_speak_tls(serve: Any, line: Any, tmp_path: Path) -> None:
    both = certificate(tmp_path)
    fleet = await serve("--workers", "1", "--ssl-certfile", both)
    context = ssl.create_default_context(cafile=both)
    result = await line(fleet.port, ssl=context, server_hostname="localhost")
    assert (await result.call("pid")).value in fleet.workers()


# What they are told


async def test_token_is_not_in_environment_or_command_line(start: Any, tmp_path: Path) -> None:
    fleet = await start(
        "-m", "portico", "serve", "--services", "memory", "--transport", "http", "--port", "0", "--workers", "1",
        env={"PORTICO_DATA": str(tmp_path)},
    )  # fmt: skip
    await fleet.wait_until(lambda: any("PORTICO_TOKEN=" in text for text in fleet.log))
    token = local_token.find_token(urlsplit(fleet.url).port or 0, str(tmp_path))
    assert token is not None
    assert not [text for text in fleet.log if token in text or "#token=" in text]
    for _ in range(2):
        async with Client(fleet.url, headers={"authorization": f"Bearer {token}"}) as client:
            assert await client.list_tools()
    assert len(fleet.workers()) == 1
    assert all(is_secret_hidden(token, worker) for worker in fleet.workers())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--transport", "http", "--workers", "0"], "workers must be 1 to 512"),
        (["--transport", "stdio", "--workers", "2"], "--workers requires --transport http"),
        (["--transport", "http", "--fd"], "no socket was passed"),
        (["--transport", "http", "--fd", "99"], "descriptor 99 is not a socket"),
    ],
)
def test_invalid_worker_options_are_rejected(server_file: Path, words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "portico", "serve", server_file, *words], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_worker_without_supervisor_exits(server_file: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-m", "portico", "serve", server_file, "--transport", "http", "--workers", "2"],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PORTICO_WORKER": f"{theirs.fileno()}:1"},
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 2
    assert done.stderr == "portico: the supervisor of this worker has exited\n"
