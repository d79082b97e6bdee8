"""Captures one memory after the other, and says the id of each when it is kept."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from portico.services.memory import memories as memories_module
from portico.services.memory.capturing import Draft
from portico.services.memory.memories import Memories
from portico.store.database import Database


async def capture(url: str, migrations: str, name: str) -> None:
    memories_module.MIGRATIONS = Path(migrations)
    async with Database(url) as database:
        memories = Memories(database, project="here/project")
        await memories.open()
        number = 0
        while True:
            number += 1
            draft = Draft(content=f"{name} number{number} is about pomegranates", namespace="learnings", tags=[name])
            taken = await memories.capture(draft, compare=False)
            print(taken.record.id, f"number{number}", flush=True)


if __name__ == "__main__":
    asyncio.run(capture(*sys.argv[1:4]))
