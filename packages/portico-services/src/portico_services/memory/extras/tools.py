"""The tools for those who share a memory: groups of people, and webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from portico import Context
from portico_services.database_service import requester
from portico_services.memory.errors import InvalidInput
from portico_services.memory.extras import groups
from portico_services.memory.extras.groups import MemberGroup, Role
from portico_services.memory.extras.webhooks import HookState, Webhooks
from portico_services.memory.sync import schema
from portico_services.memory.tools.context import Access


class Groups(Struct, frozen=True, kw_only=True, omit_defaults=True):
    groups: Annotated[list[MemberGroup], "The groups that are meant"]
    note: Annotated[str | None, "What was done"] = None


class WebhookList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    webhooks: Annotated[list[HookState], "The webhooks that are meant"]
    note: Annotated[str | None, "What is to be known about them"] = None


class SharingTools:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def groups(
        self,
        ctx: Context,
        action: Annotated[
            Literal["list", "get", "create", "add_member", "remove_member", "update_role", "delete"], "What to do"
        ] = "list",
        name: Annotated[str | None, Meta(max_length=200, description="The group")] = None,
        description: Annotated[str, Meta(max_length=500, description="For create: what it is")] = "",
        member: Annotated[str | None, Meta(max_length=200, description="Who: as memories name their authors")] = None,
        role: Annotated[Role, "For add_member and update_role: what they may do with the group"] = "read",
    ) -> Groups:
        """Groups of people who share this memory. What a group's members have said is found with the filter author: and
        their names."""
        memories = await (
            self._access.memories(ctx, any_project=True)
            if action in ("list", "get")
            else self._access.writable(ctx, any_project=True)
        )
        await schema.prepare(memories)
        if action == "list":
            found = await memories.read(groups.listed)
            return Groups(groups=found, note=None if found else "There are none yet.")
        if name is None:
            raise InvalidInput(f"The action {action} needs the name of a group.")
        group, by = name, None if ctx.principal is None else requester(ctx)
        if action == "get":
            return Groups(groups=[await memories.read(lambda tx: groups.get(tx, group))])
        if action == "create":
            made = await memories.write(lambda tx: groups.create(tx, group, description, requester(ctx)))
            return Groups(groups=[made], note="It was created.")
        if action == "delete":
            await memories.write(lambda tx: groups.delete(tx, group, by))
            return Groups(
                groups=[], note=f"The group {group} is deleted. The memories of its members are as they were."
            )
        if member is None:
            raise InvalidInput(f"The action {action} needs a member.")
        who = member
        if action == "remove_member":
            left = await memories.write(lambda tx: groups.remove_member(tx, group, who, by))
            return Groups(groups=[left])
        return Groups(groups=[await memories.write(lambda tx: groups.put_member(tx, group, who, role, by))])

    async def webhooks(
        self,
        ctx: Context,
        action: Annotated[Literal["list", "test"], "list: how they do; test: send one message now"] = "list",
        name: Annotated[str | None, Meta(max_length=200, description="For test: which one")] = None,
    ) -> WebhookList:
        """Who is told of changes, and how that goes. Webhooks are settings of the server: no call can add one."""
        hooks = Webhooks({}) if self._access.webhooks is None else self._access.webhooks
        if action == "list":
            found = hooks.states()
            return WebhookList(webhooks=found, note=None if found else "There are none in the settings of this server.")
        tried = await hooks.test(name or "")
        if tried is None:
            raise InvalidInput(f"There is no webhook {(name or '')[:80]!r}. The action list shows those there are.")
        answered = tried.last.isdigit()
        note = f"It answered {tried.last}." if answered else f"Nothing was delivered: {tried.last}."
        return WebhookList(webhooks=[tried], note=note)
