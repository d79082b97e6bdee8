"""What the tools, resources and prompts are given of the service, and the arguments that several tools have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from portico.services.memory.store import statistics
from portico.services.memory.store.filters import LONGEST as LONGEST_FILTER
from portico.services.memory.store.memories import Memories
from portico.services.memory.store.screening_policy import Guard
from portico.services.stored import StoredService

Id = Annotated[str, Meta(min_length=1, max_length=300, description="The id of a memory, or its URN")]
FilterChoice = Annotated[
    str | None, Meta(max_length=LONGEST_FILTER, description="Which memories: as for memory_recall")
]


class Access:
    """`prefix` stands before the names of tools, and is the scheme of the resources' URIs."""

    def __init__(self, service: StoredService[Memories], prefix: str, guard: Guard) -> None:
        self.memories = service.store
        self.writable = service.writable_store
        self.prefix = prefix
        self.guard = guard

    async def complete_topic(self, typed: str) -> list[str]:
        memories = await self.memories()
        return list(await memories.read(lambda tx: statistics.topics(tx, 50, typed.casefold())))
