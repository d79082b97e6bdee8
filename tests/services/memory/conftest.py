"""A memory on both engines, and servers that have one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]  # for postgres.py and remembering.py

import debian  # noqa: E402
import postgres  # noqa: E402
from portico import Client, Server  # noqa: E402
from portico.services.memory import memories as memories_module  # noqa: E402
from portico.services.memory.memories import Memories  # noqa: E402
from portico.services.memory.service import Memory  # noqa: E402
from portico.store.database import Database  # noqa: E402

STAND_IN = """
create table memory (
    id text primary key, domain text not null, namespace text not null, content text not null, tags text not null,
    source text, author text, author_kind text, thread text, place bigint, project text, branch text, path text,
    status text not null, version bigint not null, at bigint not null, created_at bigint not null,
    updated_at bigint not null, expires_at bigint, deleted_at bigint, digest text not null
);
"""


@pytest.fixture(scope="session", autouse=True)
def tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not list(memories_module.MIGRATIONS.glob("0001_*")):
        folder = tmp_path_factory.mktemp("migrations")
        shutil.copytree(memories_module.MIGRATIONS, folder, dirs_exist_ok=True)
        (folder / "0001_stand_in.sql").write_text(STAND_IN)
        memories_module.MIGRATIONS = folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    try:
        with postgres.server() as server:
            yield server
    except debian.NotInstalled as why:
        debian.without(why)


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.release(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is empty."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/memory.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def memories(url: str) -> AsyncIterator[Memories]:
    async with Database(url) as database:
        opened = Memories(database, project="here/project")
        await opened.open()
        yield opened


@pytest.fixture
async def serving(url: str) -> AsyncIterator[Callable[..., Any]]:
    """`client = await serving(secrets="redact")`: a client of a server with a memory."""
    async with AsyncExitStack() as stack:

        async def start(*, revision: str | None = None, client: dict[str, Any] | None = None, **options: Any) -> Any:
            server = Server("remembering", version="1")
            memory = Memory(url, **{"project": "here/project", **options})
            server.add(memory)
            memory.added(server)
            await stack.enter_async_context(server.lifespan())
            more = {} if revision is None else {"revision": revision}
            return await stack.enter_async_context(Client(server, **more, **(client or {})))

        yield start
