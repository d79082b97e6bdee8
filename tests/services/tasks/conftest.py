"""Work items on both engines, and servers that have them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]  # for postgres.py and workbench.py

from workbench import Clock  # noqa: E402

from forks import Awaited, Forks  # noqa: E402
from portico import Client, Server  # noqa: E402
from portico.store.database import Database  # noqa: E402
from portico_services.workitems.item_store import HISTORY, MIGRATIONS, WorkItems  # noqa: E402
from portico_services.workitems.service import Tasks  # noqa: E402

PATIENCE = 60.0


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    """A store with nothing in it."""
    if engine == "sqlite":
        return f"sqlite://{tmp_path}/tasks.db"
    found: str = request.getfixturevalue("migrated_postgres_url")(HISTORY, MIGRATIONS)
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def items(url: str, clock: Clock) -> AsyncIterator[WorkItems]:
    async with Database(url) as database:
        opened = WorkItems(database, clock=clock)
        await opened.open()
        yield opened


@pytest.fixture
async def serving(url: str) -> AsyncIterator[Callable[..., Any]]:
    """`client = await serving(read_only=True)`: a client of a server with tasks."""
    async with AsyncExitStack() as stack:

        async def start(*, revision: str | None = None, client: dict[str, Any] | None = None, **options: Any) -> Any:
            server = Server("planning", version="1")
            server.add(Tasks(url, **options))
            await stack.enter_async_context(server.lifespan())
            more = {} if revision is None else {"revision": revision}
            return await stack.enter_async_context(Client(server, **more, **(client or {})))

        yield start


@pytest.fixture
async def spawn(forks: Forks) -> AsyncIterator[Callable[..., Any]]:
    """`await spawn("agent", url, "ann")`: child.py in a process of its own."""
    children: list[Awaited] = []

    async def start(*words: str) -> Awaited:
        children.append(await Awaited.of(forks.start(*words, program=HERE / "child.py")))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.stdin.close()
        async with asyncio.timeout(PATIENCE):
            await child.stdout.read()
            await child.stderr.read()
            await child.wait()
