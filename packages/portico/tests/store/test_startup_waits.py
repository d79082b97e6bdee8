"""A starting server waits for a slow or locked store."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from portico import Server, Service
from portico.store.database import Database, retry_until_ready
from portico.store.errors import DatabaseCorrupt, DatabaseOpenError
from portico_services.memory import Memory
from portico_services.workitems import Tasks

TIMEOUT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "timeout" in Database.__init__.__kwdefaults__
    monkeypatch.setitem(Database.__init__.__kwdefaults__, "timeout", 0.1)


@contextmanager
def locked_file(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma journal_mode = wal")
        other.execute("begin immediate")
        yield str(path)
        other.execute("rollback")


@contextmanager
def locked_migrations(url: str) -> Iterator[str]:
    with psycopg.connect(url) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('portico migrations', 0))")
        yield url
        other.rollback()


@contextmanager
def no_connection_left(url: str) -> Iterator[str]:
    name = f"crowded_{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"create role {name} login connection limit 1")
        owner.execute(f"grant all on schema public to {name}")
    crowded = f"{url}{'&' if '?' in url else '?'}user={name}"
    other = psycopg.connect(crowded)
    try:
        yield crowded
    finally:
        other.close()
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(f"alter role {name} connection limit -1")


TROUBLES: list[tuple[str, Callable[..., Any]]] = [
    ("sqlite", locked_file),
    ("postgresql", locked_migrations),
    ("postgresql", no_connection_left),
]


class NotificationRecorder(logging.Handler):
    """Sets an event when the log says that the store is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for the store" in record.getMessage():
            self.loop.call_soon_threadsafe(self.waiting.set)


def serving(kind: type[Service] | None, url: str) -> Server:
    server = Server("waiting", version="1", store=url)
    if kind is None:

        @server.tool(task="required")
        async def work() -> str:
            """Work."""
            return "done"

    else:
        server.add(kind(url))  # type: ignore[call-arg]
    return server


@pytest.mark.parametrize(("engine", "trouble"), TROUBLES, ids=lambda one: getattr(one, "__name__", one))
@pytest.mark.parametrize("kind", [None, Memory, Tasks])
async def test_starting_server_waits_for_its_store(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, trouble: Callable[..., Any], kind: type[Service] | None
) -> None:
    place = tmp_path / "store.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    heard = NotificationRecorder()
    logging.getLogger("portico").addHandler(heard)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), AsyncExitStack() as stack:
            with trouble(place) as url:
                server = serving(kind, url)
                starting = asyncio.ensure_future(stack.enter_async_context(server.lifespan()))
                await asyncio.wait(
                    [starting, asyncio.ensure_future(heard.waiting.wait())], return_when="FIRST_COMPLETED"
                )
                assert heard.waiting.is_set() and not starting.done()
            await starting
    finally:
        logging.getLogger("portico").removeHandler(heard)


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/nothing", "postgresql://no-such-host.invalid/x"])
async def test_address_where_nothing_is_is_not_waited_for(url: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(DatabaseOpenError):
            await retry_until_ready(Database(url).open)


async def test_permanent_errors_are_not_retried(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(DatabaseCorrupt):
        await retry_until_ready(Database(tmp_path / "store.db").open)
