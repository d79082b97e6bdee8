"""What the tools, resources and prompts are given of the service, and the arguments that several tools have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from portico import Context
from portico.services.memory.service.speaking import Body, Codes, speaking
from portico.services.memory.store import statistics
from portico.services.memory.store.filters import LONGEST as LONGEST_FILTER
from portico.services.memory.store.memories import Memories
from portico.services.memory.store.records import Record
from portico.services.memory.store.screening_policy import Guard
from portico.services.projects import Projects
from portico.services.stored import StoredService

if TYPE_CHECKING:
    from portico.services.memory.service.webhooks import Webhooks

Id = Annotated[str, Meta(min_length=1, max_length=300, description="The id of a memory, or its URN")]
FilterChoice = Annotated[
    str | None, Meta(max_length=LONGEST_FILTER, description="Which memories: as for memory_recall")
]


class Access:
    """`prefix` stands before the names of tools, and is the scheme of the resources' URIs."""

    def __init__(
        self, service: StoredService[Memories], prefix: str, guard: Guard, projects: Projects, codes: Codes
    ) -> None:
        self._service = service
        self._projects = projects
        self._codes = codes
        self.prefix = prefix
        self.guard = guard
        # Where there are some.
        self.webhooks: Webhooks | None = None

    def tell(self, change: str, memory: Record) -> None:
        """Tell the webhooks of a change that was made by a call here."""
        if self.webhooks is not None:
            self.webhooks.tell(change, memory, self.prefix)

    def speaking(self, body: Body, name: str = "", *, resource: bool = False) -> Body:
        """A body that is offered under a name."""
        return speaking(body, name, self.prefix, self._codes, resource=resource)

    async def memories(self, ctx: Context | None = None) -> Memories:
        """As the project of a call sees them; without one, as this server's own folder does."""
        memories = await self._service.store()
        return memories if ctx is None else memories.of(await self._projects.of(ctx))

    async def writable(self, ctx: Context | None = None) -> Memories:
        memories = await self._service.writable_store()
        return memories if ctx is None else memories.of(await self._projects.of(ctx))

    async def complete_topic(self, typed: str) -> list[str]:
        memories = await self.memories()
        return list(await memories.read(lambda tx: statistics.topics(tx, 50, typed.casefold())))
