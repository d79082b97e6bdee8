"""A second process on the same work items. It prints its actions, one per line."""

from __future__ import annotations

import asyncio
import sys

from portico.store.database import Database
from portico_services.workitems.edits import WorkItemDraft
from portico_services.workitems.item_store import WorkItemStore


async def create(items: WorkItemStore, name: str) -> None:
    """One task after the other, for ever; every second one below the one before."""
    number, parent = 0, None
    while True:
        number += 1
        draft = WorkItemDraft(description=f"{name} number {number}", parent_id=parent)
        made = await items.create(draft)
        parent = made.id if parent is None else None
        print(made.id, flush=True)


async def agent(items: WorkItemStore, name: str) -> None:
    """Take and finish what there is to do."""
    print("ready", flush=True)
    sys.stdin.readline()
    while (result := await items.next(name)) is not None:
        print(result.id, flush=True)
        await items.complete(result.id, f"by {name}", worker=name)


async def take(items: WorkItemStore, name: str) -> None:
    """Take something, and be gone."""
    result = await items.next(name, lease=2)
    print("nothing" if result is None else result.id, flush=True)
    sys.stdin.readline()


async def main(what: str, url: str, name: str) -> None:
    async with Database(url, timeout=60) as database:
        items = WorkItemStore(database)
        await items.open()
        await {"create": create, "agent": agent, "take": take}[what](items, name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
