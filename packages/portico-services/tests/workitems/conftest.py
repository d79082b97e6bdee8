"""Work items on both engines, and servers that use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.store.database import Database
from portico_services.workitems.item_store import MIGRATION_HISTORY, MIGRATIONS, WorkItemStore
from portico_services.workitems.service import Tasks
from support.forks import AsyncCommand, ForkServer
from support.paths import PROGRAMS
from support.work_items import Clock

TIMEOUT_SECONDS = 60.0


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    """Return an empty store."""
    if engine == "sqlite":
        return f"sqlite://{tmp_path}/tasks.db"
    response: str = request.getfixturevalue("migrated_postgres_url")(MIGRATION_HISTORY, MIGRATIONS)
    return response


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def items(url: str, clock: Clock) -> AsyncIterator[WorkItemStore]:
    async with Database(url) as database:
        opened = WorkItemStore(database, clock=clock)
        await opened.open()
        yield opened


@pytest.fixture
async def serving(url: str) -> AsyncIterator[Callable[..., Any]]:
    """Connect a client to a server with work items: `client = await serving(read_only=True)`."""
    async with AsyncExitStack() as stack:

        async def start(*, revision: str | None = None, client: dict[str, Any] | None = None, **options: Any) -> Any:
            server = Server("planning", version="1")
            server.add(Tasks(url, **options))
            await stack.enter_async_context(server.lifespan())
            more = {} if revision is None else {"protocol_version": revision}
            return await stack.enter_async_context(Client(server, **more, **(client or {})))

        yield start


@pytest.fixture
async def spawn(fork_server: ForkServer) -> AsyncIterator[Callable[..., Any]]:
    """`await spawn("agent", url, "ann")`: workitems_child.py in a process of its own."""
    children: list[AsyncCommand] = []

    async def start(*words: str) -> AsyncCommand:
        children.append(await AsyncCommand.of(fork_server.start(*words, program=PROGRAMS / "workitems_child.py")))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.stdin.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await child.stdout.read()
            await child.stderr.read()
            await child.wait()
