"""The tables of those who share: how far syncs are, and groups. They are made when they are first needed."""

from __future__ import annotations

from pathlib import Path

from portico_services.memory.store.memory_store import Memories

HISTORY = "memory share"
MIGRATIONS = Path(__file__).parent / "migrations"


async def prepare(memories: Memories) -> None:
    await memories.database.migrate(HISTORY, MIGRATIONS)
