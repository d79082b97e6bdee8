"""Fixtures of the worker tests: a supervisor with its workers, and minimal clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.overrides import override_constants
from support.worker_processes import PORTICO_MAIN, SERVER, Fleet, HttpConnection, SharedFleet

Serve = Callable[..., Awaitable[Fleet]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Override the choice of the HTTP server tests: here only the client is in this process."""
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Allow log records of errors: these tests cause failures."""


@pytest.fixture
async def start() -> AsyncIterator[Serve]:
    """`await start("-m", "portico", …)` is a Fleet that says where it serves."""
    fleets: list[Fleet] = []

    async def begin(*words: str | Path, env: dict[str, str] | None = None, ready: bool = True, **how: Any) -> Fleet:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *map(str, words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(env or {})},
            **how,
        )
        fleets.append(Fleet(process))
        if ready:
            await fleets[-1].ready()
        return fleets[-1]

    yield begin
    for fleet in fleets:
        await fleet.close()


@pytest.fixture
def server_file(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture
def serve(start: Serve, server_file: Path) -> Serve:
    """`await serve("--workers", "2")`: our server over HTTP, at a port that is free.

    `constants` replaces constants of modules, in a server without `--workers`.
    """

    async def begin(
        *options: str | Path,
        target: str | Path = server_file,
        constants: Mapping[str, object] | None = None,
        **how: Any,
    ) -> Fleet:
        program = ["-c", override_constants(constants, PORTICO_MAIN)] if constants else ["-m", "portico"]
        return await start(*program, "serve", target, "--transport", "http", "--port", "0", *options, **how)

    return begin


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedFleet]:
    """Start two workers for all tests of a module that do not change them."""
    path = tmp_path_factory.mktemp("standing") / "server.py"
    path.write_text(SERVER)
    words = ["serve", str(path), "--transport", "http", "--port", "0", "--workers", "2"]
    command = [sys.executable, "-m", "portico", *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield SharedFleet(process)
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
async def line() -> AsyncIterator[Callable[..., Awaitable[HttpConnection]]]:
    """`await line(port)` is a new connection."""
    lines: list[HttpConnection] = []

    async def connect(port: int, **how: Any) -> HttpConnection:
        lines.append(await HttpConnection.to(port, **how))
        return lines[-1]

    yield connect
    for one in lines:
        await one.close()
