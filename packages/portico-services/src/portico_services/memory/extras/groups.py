"""Groups: people who belong together. What they have said is found by the group's name.

The client that makes a group is its admin. A group is changed by its admins alone where clients log in; elsewhere by
any client.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Struct

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput, MemoryRefusal
from portico_services.memory.store import validation

Role = Literal["read", "write", "admin"]
MOST_GROUPS, MOST_MEMBERS = 1000, 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class NotAllowed(MemoryRefusal):
    number, code, kind = -32608, "not_allowed", "PermissionError"


class GroupMember(Struct, frozen=True):
    member: Annotated[str, "Who it is, as memories name their authors"]
    role: Annotated[Role, "What they may do with the group"]


class MemberGroup(Struct, frozen=True, kw_only=True):
    name: Annotated[str, "Its name"]
    description: Annotated[str, "What it is"]
    members: Annotated[list[GroupMember], "Who belongs to it"]


def listed(tx: Transaction) -> list[MemberGroup]:
    names = tx.all(str, "select name from memory_group order by name limit :most", {"most": MOST_GROUPS})
    return [get(tx, name) for name in names]


def get(tx: Transaction, name: str) -> MemberGroup:
    about = tx.maybe(str, "select description from memory_group where name = :name", {"name": name})
    if about is None:
        raise InvalidInput(f"There is no group {name[:80]!r}. The action list shows those there are.")
    sql = "select member, role from memory_group_member where name = :name order by member"
    return MemberGroup(name=name, description=about, members=tx.all(GroupMember, sql, {"name": name}))


def create(tx: Transaction, name: str, description: str, by: str) -> MemberGroup:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name[:80]!r} is no name for a group. Use letters, digits, _, . and -, at most 64.")
    if tx.maybe(str, "select name from memory_group where name = :name", {"name": name}) is not None:
        raise InvalidInput(f"There is a group {name!r} already.")
    if tx.one(int, "select count(*) from memory_group") >= MOST_GROUPS:
        raise InvalidInput(f"There are {MOST_GROUPS} groups already, and no more are kept.")
    row = {"name": name, "description": validation.label(description, "description") or "", "at": timestamps.now()}
    tx.run("insert into memory_group (name, description, created_at) values (:name, :description, :at)", row)
    if by:
        _put(tx, name, by, "admin")
    return get(tx, name)


def put_member(tx: Transaction, name: str, member: str, role: Role, by: str | None) -> MemberGroup:
    """Also to change a role."""
    _check(get(tx, name), by)
    _put(tx, name, member, role)
    return _kept(get(tx, name))


def remove_member(tx: Transaction, name: str, member: str, by: str | None) -> MemberGroup:
    group = get(tx, name)
    if by != member:  # any member may leave
        _check(group, by)
    if member not in {one.member for one in group.members}:
        raise InvalidInput(f"{member[:80]!r} is no member of the group {name}.")
    tx.run("delete from memory_group_member where name = :name and member = :member", {"name": name, "member": member})
    return _kept(get(tx, name))


def delete(tx: Transaction, name: str, by: str | None) -> None:
    _check(get(tx, name), by)
    tx.run("delete from memory_group_member where name = :name", {"name": name})
    tx.run("delete from memory_group where name = :name", {"name": name})


def _put(tx: Transaction, name: str, member: str, role: Role) -> None:
    said = validation.label(member, "member")
    if said is None or "," in said:
        raise InvalidInput("A member has a name, without commas.")
    row = {"name": name, "member": said, "role": role}
    tx.run("delete from memory_group_member where name = :name and member = :member", row)
    tx.run("insert into memory_group_member (name, member, role) values (:name, :member, :role)", row)


def _kept(group: MemberGroup) -> MemberGroup:
    if len(group.members) > MOST_MEMBERS:
        raise InvalidInput(f"A group has at most {MOST_MEMBERS} members.")
    if group.members and not any(one.role == "admin" for one in group.members):
        raise InvalidInput(f"The group {group.name} would have no admin. Make another member one first.")
    return group


def _check(group: MemberGroup, by: str | None) -> None:
    """`by` is None where clients do not log in."""
    if by is not None and GroupMember(by, "admin") not in group.members:
        raise NotAllowed(f"Only an admin of the group {group.name} may do that.")
