"""Ownership of memories in the `user` domain: on a server with authentication, each user has a separate domain.

The column `project` of such a memory holds the key of its owner. Index scopes, duplicates and consolidation all go by
domain, namespace and project, so those of different owners never mix. The local owner, the only user without
authentication, has the empty key, stored as null.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from portico.extend import Transaction
from portico_services.memory.store.namespaces import CURRENT_STATUSES

if TYPE_CHECKING:
    from portico_services.memory.store.records import MemoryRecord

LOCAL_OWNER = ""
# Shared by all clients without a token, on a server that also has clients with one.
ANONYMOUS_OWNER = "~anonymous"
_OWNER_KEY_CHARS = 32

# Condition on the table `memory`; its parameter is the key of the owner.
VISIBLE = "(memory.domain <> 'user' or coalesce(memory.project, '') = :owner)"


def owner_key(identity: str) -> str:
    """Return the owner key of an authenticated principal. It is a hash, because identities can be long and contain any
    character.
    """
    # The prefix keeps keys apart from project names, which share the column.
    return "~" + hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:_OWNER_KEY_CHARS]


def home_of(domain: str, project: str | None, owner: str) -> str | None:
    """Return the value of the column `project` for a memory of this domain."""
    if domain == "project":
        return project
    # The organisation is shared by all, so its memories have no owner.
    return (owner or None) if domain == "user" else None


def owner_of(record: MemoryRecord) -> str | None:
    """Return the owner's key, or None if the memory is shared."""
    return (record.project or LOCAL_OWNER) if record.domain == "user" else None


def is_visible(record: MemoryRecord, owner: str | None) -> bool:
    """Return whether this owner sees the memory. An owner of None sees everything."""
    return owner is None or owner_of(record) in (None, owner)


def visible(memories: Iterable[MemoryRecord], owner: str | None) -> list[MemoryRecord]:
    """Return the memories that this owner sees."""
    return [item for item in memories if is_visible(item, owner)]


class HiddenCounts:
    """Numbers of memories that an owner does not see, by tag, branch, status and so on.

    The counters of the store include the memories of all owners. Subtracting the hidden ones costs nothing if there are
    none, which is the usual case.
    """

    def __init__(self, tx: Transaction, owner: str) -> None:
        self._tx = tx
        self._owner = owner
        self.exist = any(
            tx.fetch_optional(int, f"select 1 from memory where {part} limit 1", self._values)
            for part in self._conditions
        )

    @property
    def _conditions(self) -> tuple[str, ...]:
        """Return two conditions, each served by an index: memories of other principals, and those of the local
        owner.
        """
        # Written as ranges instead of VISIBLE negated: an `or` would prevent both engines from using the index.
        others = "memory.domain = 'user' and memory.project > '' and memory.project <> :owner"
        local = "memory.domain = 'user' and memory.project is null and :owner <> ''"
        return (others, local) if self._owner else (others,)

    @property
    def _values(self) -> dict[str, object]:
        return {"owner": self._owner}

    def count(self, name: str, source: str = "memory", *, current: bool = True) -> Counter[str]:
        """Count the hidden memories by an expression over `source`, which joins `memory`."""
        counter: Counter[str] = Counter()
        if not self.exist:
            return counter
        status = " and memory.status in :current" if current else ""
        for part in self._conditions:
            sql = f"select {name}, count(*) from {source} where {part} and {name} is not null{status} group by {name}"
            counter.update(
                dict(self._tx.fetch_all(tuple[str, int], sql, {**self._values, "current": list(CURRENT_STATUSES)}))
            )
        return counter

    def count_tags(self) -> Counter[str]:
        return self.count("memory_tag.tag", "memory join memory_tag on memory_tag.memory = memory.id")

    def count_mentions(self) -> Counter[str]:
        return self.count("memory_mention.entity", "memory join memory_mention on memory_mention.memory = memory.id")


def without(counts: Mapping[str, int], hidden: Mapping[str, int]) -> dict[str, int]:
    """Return the counts minus the hidden ones, in order, without counts of zero."""
    left = {name: count - hidden.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in left.items() if count > 0}
