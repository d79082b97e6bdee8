"""What the tools, resources and prompts are given of the service, and the arguments that several tools have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from portico import Context
from portico.extend import Call, identity_of, is_loopback
from portico_services import git_project
from portico_services.database_service import StoredService
from portico_services.memory.errors import Blocked, InvalidInput
from portico_services.memory.store import ownership, statistics, validation
from portico_services.memory.store.filters import LONGEST as LONGEST_FILTER
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.records import Record
from portico_services.memory.store.screening import Guard
from portico_services.memory.tools.wrapper import Body, Codes, speaking
from portico_services.project_resolver import Projects

if TYPE_CHECKING:
    from portico_services.memory.extras.webhooks import Webhooks

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

    async def memories(self, ctx: Context, *, any_project: bool = False) -> Memories:
        """Return the memories as the caller and the project of a call see them. With `any_project` the call is about no
        project, and the client is not asked for its roots."""
        return await self._seen(await self._service.store(), ctx, any_project)

    async def writable(self, ctx: Context, *, any_project: bool = False) -> Memories:
        """The same, or raise the refusal of a read-only service."""
        return await self._seen(await self._service.writable_store(), ctx, any_project)

    async def _seen(self, memories: Memories, ctx: Context, any_project: bool) -> Memories:
        memories = memories.owned_by(self.owner_of(ctx.call))
        return memories if any_project else memories.of(await self._projects.of(ctx))

    async def git_author(self, ctx: Context, memories: Memories) -> str | None:
        """Return whom git names as the author in the repository of a call, if the caller works there.

        None for principals, who have names of their own, for clients elsewhere, and for a name that may not be stored.
        """
        is_local = ctx.principal is None and (ctx.address is None or is_loopback(ctx.address))
        if not is_local or self._projects.is_named:
            return None
        try:
            name = validation.bounded_label(git_project.user_name(memories.root), "author")
            return (await self.guard.check(name)).texts[0] or None
        except (Blocked, InvalidInput):
            return None

    async def shared_memories(self) -> Memories:
        """Return the memories as the service itself sees them: the state that the servers' lists are made from."""
        return await self._service.store()

    async def memories_for(self, call: Call) -> Memories:
        """Return the memories as the sender of a call sees them, where there is no Context."""
        return (await self._service.store()).owned_by(self.owner_of(call))

    def owner_of(self, call: Call) -> str:
        """Return whose memories of the user domain the sender of a call has.

        A principal has its own. A client without a token is the owner of the machine, unless the server has clients
        with tokens too.
        """
        identity = identity_of(call.principal)
        if identity is not None:
            return ownership.owner_key(identity)
        if call.anonymous and any(one.auth is not None and one.auth.anonymous for one in self._service.servers):
            return ownership.ANONYMOUS_OWNER
        return ownership.LOCAL_OWNER

    async def complete_topic(self, typed: str, call: Call) -> list[str]:
        memories = await self.memories_for(call)
        return list(await memories.read(lambda tx: statistics.topics(tx, 50, typed.casefold(), owner=memories.owner)))


class OwnerOnly(Struct, frozen=True):
    """Admits the subscribers that have this owner's memories in their user domain."""

    access: Access
    owner: str

    def __call__(self, call: Call) -> bool:
        return self.access.owner_of(call) == self.owner
