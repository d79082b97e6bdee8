"""Groups of users who share a memory. Their memories are found with the filter `author:`.

The client that creates a group is its admin. With authentication, only admins can change a group; without it, any
client can.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Struct

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput, MemoryToolError
from portico_services.memory.store import validation

Role = Literal["read", "write", "admin"]
# Bounds of the result of `list`, which returns every group with its members.
MAX_GROUPS, MAX_MEMBERS = 1000, 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class GroupMember(Struct, frozen=True):
    """A member of a group."""

    member: Annotated[str, "Member name, as used in author"]
    role: Annotated[Role, "Role in the group"]


class UserGroup(Struct, frozen=True, kw_only=True):
    """A group of users."""

    name: Annotated[str, "Name"]
    description: Annotated[str, "Description"]
    members: Annotated[list[GroupMember], "Members with their roles"]


def list_groups(tx: Transaction) -> list[UserGroup]:
    names = tx.fetch_all(str, "select name from memory_group order by name limit :most", {"most": MAX_GROUPS})
    return [get_group(tx, name) for name in names]


def get_group(tx: Transaction, name: str) -> UserGroup:
    """Return a group. Raises `InvalidInput` if it does not exist."""
    about = tx.fetch_optional(str, "select description from memory_group where name = :name", {"name": name})
    if about is None:
        raise InvalidInput(f"Group {name[:80]!r} not found. Use the action list to see all groups.")
    sql = "select member, role from memory_group_member where name = :name order by member"
    return UserGroup(name=name, description=about, members=tx.fetch_all(GroupMember, sql, {"name": name}))


def create_group(tx: Transaction, name: str, description: str, by: str) -> UserGroup:
    """Create a group with `by` as its admin. Raises `InvalidInput` for an invalid or existing name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"Invalid group name {name[:80]!r}: use up to 64 letters, digits, _, . and -.")
    if tx.fetch_optional(str, "select name from memory_group where name = :name", {"name": name}) is not None:
        raise InvalidInput(f"Group {name!r} already exists.")
    # Any client can create groups, so their number is limited.
    if tx.fetch_one(int, "select count(*) from memory_group") >= MAX_GROUPS:
        raise InvalidInput(f"Cannot create the group: the limit of {MAX_GROUPS} groups is reached.")
    row = {
        "name": name,
        "description": validation.validate_label(description, "description") or "",
        "at": timestamps.now_ms(),
    }
    tx.execute("insert into memory_group (name, description, created_at) values (:name, :description, :at)", row)
    if by:
        _upsert_member(tx, name, by, "admin")
    return get_group(tx, name)


def set_member(tx: Transaction, name: str, member: str, role: Role, by: str | None) -> UserGroup:
    """Add a member to a group or change the member's role."""
    _require_admin(get_group(tx, name), by)
    _upsert_member(tx, name, member, role)
    return _to_result(get_group(tx, name))


def remove_member(tx: Transaction, name: str, member: str, by: str | None) -> UserGroup:
    """Remove a member from a group."""
    group = get_group(tx, name)
    if by != member:  # any member may leave
        _require_admin(group, by)
    if member not in {item.member for item in group.members}:
        raise InvalidInput(f"{member[:80]!r} is not a member of the group {name}.")
    tx.execute(
        "delete from memory_group_member where name = :name and member = :member", {"name": name, "member": member}
    )
    return _to_result(get_group(tx, name))


def delete_group(tx: Transaction, name: str, by: str | None) -> None:
    """Delete a group. The memories of its members are not affected."""
    _require_admin(get_group(tx, name), by)
    tx.execute("delete from memory_group_member where name = :name", {"name": name})
    tx.execute("delete from memory_group where name = :name", {"name": name})


def _upsert_member(tx: Transaction, name: str, member: str, role: Role) -> None:
    label = validation.validate_label(member, "member")
    # Members are searched with `author:`, where a comma separates values.
    if label is None or "," in label:
        raise InvalidInput("member must be a non-empty name without commas.")
    row = {"name": name, "member": label, "role": role}
    tx.execute("delete from memory_group_member where name = :name and member = :member", row)
    tx.execute("insert into memory_group_member (name, member, role) values (:name, :member, :role)", row)


def _to_result(group: UserGroup) -> UserGroup:
    """Return the changed group. Raises `InvalidInput`, which rolls back the change, if it is too large or has no
    admin.
    """
    if len(group.members) > MAX_MEMBERS:
        raise InvalidInput(f"A group can have at most {MAX_MEMBERS} members.")
    # A group without an admin could never be changed again.
    if group.members and not any(member.role == "admin" for member in group.members):
        raise InvalidInput(f"The group {group.name} needs an admin: make another member an admin first.")
    return group


def _require_admin(group: UserGroup, by: str | None) -> None:
    """Raise `MemoryToolError` unless `by` is an admin; None means that the server has no authentication."""
    if by is not None and GroupMember(by, "admin") not in group.members:
        raise MemoryToolError(
            f"This requires the role admin in the group {group.name}.",
            error_type="PermissionError",
            code="not_allowed",
            number=InvalidInput.jsonrpc_code,
        )
