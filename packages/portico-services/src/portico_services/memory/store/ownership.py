"""Ownership of the memories of the `user` domain: each user of a server with logins has a domain of their own.

The column `project` of such a memory holds the key of its owner, so that the index, the duplicates and the
consolidations of one owner never meet those of another: all of these go by domain, namespace and project. The local
owner, who is the only user without logins, has the empty key, stored as null.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from portico.extend import Transaction
from portico_services.memory.store.namespaces import CURRENT

if TYPE_CHECKING:
    from portico_services.memory.store.records import Record

LOCAL_OWNER = ""
# Shared by all clients without a token, where a server also has clients with one.
ANONYMOUS_OWNER = "~anonymous"
_OWNER_KEY_CHARS = 32

# A condition on the table `memory`; its parameter is the key of the owner.
VISIBLE = "(memory.domain <> 'user' or coalesce(memory.project, '') = :owner)"


def owner_key(identity: str) -> str:
    """Return the key of an authenticated principal. A hash, since identities may be long and hold anything."""
    return "~" + hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:_OWNER_KEY_CHARS]


def home_of(domain: str, project: str | None, owner: str) -> str | None:
    """Return what the column `project` holds for a memory of this domain."""
    if domain == "project":
        return project
    return (owner or None) if domain == "user" else None


def owner_of(record: Record) -> str | None:
    """Return the owner's key, or None if the memory is shared."""
    return (record.project or LOCAL_OWNER) if record.domain == "user" else None


def is_visible(record: Record, owner: str | None) -> bool:
    """Return whether this owner sees the memory. An owner of None sees everything."""
    return owner is None or owner_of(record) in (None, owner)


def visible(found: Iterable[Record], owner: str | None) -> list[Record]:
    return [one for one in found if is_visible(one, owner)]


class HiddenCounts:
    """The number of memories that an owner does not see, by tag, branch, status and the like.

    The counters of the store include the memories of all owners. Subtracting the hidden ones costs nothing where there
    are none, which is the rule.
    """

    def __init__(self, tx: Transaction, owner: str) -> None:
        self._tx = tx
        self._owner = owner
        self.exist = any(
            tx.maybe(int, f"select 1 from memory where {one} limit 1", self._values) for one in self._parts
        )

    @property
    def _parts(self) -> tuple[str, ...]:
        """Two conditions that an index serves each: the memories of other principals, and those of the local owner."""
        others = "memory.domain = 'user' and memory.project > '' and memory.project <> :owner"
        local = "memory.domain = 'user' and memory.project is null and :owner <> ''"
        return (others, local) if self._owner else (others,)

    @property
    def _values(self) -> dict[str, object]:
        return {"owner": self._owner}

    def count(self, name: str, source: str = "memory", *, current: bool = True) -> Counter[str]:
        """Count the hidden memories by an expression over `source`, which joins `memory`."""
        found: Counter[str] = Counter()
        if not self.exist:
            return found
        status = " and memory.status in :current" if current else ""
        for part in self._parts:
            sql = f"select {name}, count(*) from {source} where {part} and {name} is not null{status} group by {name}"
            found.update(dict(self._tx.all(tuple[str, int], sql, {**self._values, "current": list(CURRENT)})))
        return found

    def count_tags(self) -> Counter[str]:
        return self.count("memory_tag.tag", "memory join memory_tag on memory_tag.memory = memory.id")

    def count_mentions(self) -> Counter[str]:
        return self.count("memory_mention.entity", "memory join memory_mention on memory_mention.memory = memory.id")


def without(counts: Mapping[str, int], hidden: Mapping[str, int]) -> dict[str, int]:
    """Return the counts less the hidden ones, in their order, without those that come to nothing."""
    left = {name: count - hidden.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in left.items() if count > 0}
