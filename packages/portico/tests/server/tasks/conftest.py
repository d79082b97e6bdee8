"""Task fixtures on both engines, and clients. Every wait has a timeout, and no test sleeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from portico import Server
from support import postgres
from support.task_servers import HANDSHAKE, LEGACY_CAPABILITIES, LegacyTasksClient, ModernTasksClient

# Engines


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store.db"


@pytest.fixture(scope="session")
def postgres_database(postgres_server: postgres.Server) -> str:
    return postgres_server.create_database()


@pytest.fixture
def postgres_url(postgres_server: postgres.Server, postgres_database: str, sealing_key: str) -> str:
    """Return the same database, emptied: creating one takes longer than most tests."""
    name = postgres_database.rpartition("/")[2].partition("?")[0]
    postgres_server.sql("drop table if exists portico_job_step, portico_job, portico_migration", name)
    return postgres_database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Return an empty store that several processes can open."""
    response: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return response


@pytest.fixture
async def serving() -> AsyncIterator[Callable[[Server], Awaitable[Server]]]:
    """`await serving(server)` runs it until the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(server: Server) -> Server:
            await stack.enter_async_context(server.lifespan())
            return server

        yield start


@pytest.fixture
def modern(connect: Callable[..., Any]) -> Callable[..., ModernTasksClient]:
    return lambda server, **options: ModernTasksClient(connect(server, **options), server)


@pytest.fixture
def old(connect: Callable[..., Any]) -> Callable[..., Awaitable[LegacyTasksClient]]:
    async def make(server: Server, capabilities: Any = None, **options: Any) -> LegacyTasksClient:
        wire = connect(server, **options)
        await wire.initialize(HANDSHAKE, LEGACY_CAPABILITIES if capabilities is None else capabilities)
        return LegacyTasksClient(wire, server)

    return make
