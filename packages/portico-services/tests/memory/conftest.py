"""A memory store on both engines, and servers that use it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.cli.main import main
from portico.store.database import Database
from portico_services import git_project
from portico_services.memory.service import Memory
from portico_services.memory.store.memory_store import MIGRATION_HISTORY, MIGRATIONS, MemoryStore
from support.git_clones import Clone, git


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    """Return an empty store."""
    if engine == "sqlite":
        return f"sqlite://{tmp_path}/memory.db"
    response: str = request.getfixturevalue("migrated_postgres_url")(MIGRATION_HISTORY, MIGRATIONS)
    return response


@pytest.fixture
async def memories(url: str) -> AsyncIterator[MemoryStore]:
    async with Database(url) as database:
        opened = MemoryStore(database, project="here/project")
        await opened.open()
        yield opened
        await opened.close()


@pytest.fixture
async def serving(url: str) -> AsyncIterator[Callable[..., Any]]:
    """Connect a client to a server with a memory: `client = await serving(secrets="redact")`."""
    async with AsyncExitStack() as stack:

        async def start(*, revision: str | None = None, client: dict[str, Any] | None = None, **options: Any) -> Any:
            server = Server("remembering", version="1")
            memory = Memory(options.pop("store", url), **{"project": "here/project", **options})
            server.add(memory)
            memory.on_added(server)
            await stack.enter_async_context(server.lifespan())
            more = {} if revision is None else {"protocol_version": revision}
            return await stack.enter_async_context(Client(server, **more, **(client or {})))

        yield start


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command and return its JSON output: `shell("list")`; `fails=` is the expected exit status."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PORTICO_STORE", raising=False)

    def run(*words: str, stdin: str | bytes = "", fails: int = 0, plain: bool = False) -> Any:
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin if isinstance(stdin, bytes) else stdin.encode()))
        )
        status = 0
        try:
            main(["memory", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        output = capsys.readouterr()
        assert status == fails, output.err
        if fails:
            return output.err
        return output.out if plain else [json.loads(line) for line in output.out.splitlines()]

    return run


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
    return folder


@pytest.fixture
async def clone(origin: Path, tmp_path: Path) -> AsyncIterator[Clone]:
    """`await clone("ann")` is a clone with a memory of its own."""
    async with AsyncExitStack() as stack:

        async def make(name: str) -> MemoryStore:
            folder = tmp_path / name
            git(tmp_path, "clone", "--quiet", str(origin), str(folder))
            database = await stack.enter_async_context(Database(tmp_path / f"{name}.db"))
            where = git_project.detect_project(folder)
            memories = MemoryStore(database).for_project(where)
            await memories.open()
            stack.push_async_callback(memories.close)
            return memories

        yield make
