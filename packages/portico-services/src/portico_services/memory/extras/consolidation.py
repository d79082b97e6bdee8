"""Consolidation: memories that are nearly the same become one, and a run can be undone.

A plan is made first. Carrying it out skips the clusters in which a memory has changed since. The table
`memory_consolidated` says which run made which change.

Memories that contradict each other are nearly the same by their words ("the limit is 100", "the limit is 300").
Merging them would decide for one of them, so they are left out of a plan unless the caller includes them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.extras import enrichment
from portico_services.memory.extras.enrichment import AskModel
from portico_services.memory.store import capture, conflicts, listing, mutations, near_duplicates, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.ownership import LOCAL_OWNER, is_visible, visible
from portico_services.memory.store.records import MemoryEvent, Record

Strategy = Literal["merge", "summarize", "dedupe"]
MOST_LOOKED_AT, MOST_CLUSTERS, LARGEST_CLUSTER = 5000, 50, 20
# A model is asked about so many of them; the others go by the rules.
MOST_ASKED = 10
USUAL_LIKENESS = 0.7
# The changes that runs have made.
_CHANGES = (
    "memory_event join memory_consolidated on memory_consolidated.memory = memory_event.memory "
    "and memory_consolidated.version = memory_event.version where memory_event.change = 'consolidated'"
)


class Cluster(Struct, frozen=True):
    """Memories that say the same, the one that stays first, and what it will say."""

    members: list[Record]
    content: str
    by: str

    @property
    def stays(self) -> Record:
        return self.members[0]


class Plan(Struct, frozen=True):
    strategy: Strategy
    looked_at: int
    clusters: list[Cluster]
    # The ids of memories that were left out because they contradict others.
    left_out: list[str] = field(default_factory=list)
    include_conflicts: bool = False


class Done(Struct, frozen=True):
    run: str
    kept: list[str]
    superseded: list[str]


async def plan(
    memories: Memories,
    filter: MemoryFilter,
    *,
    strategy: Strategy,
    similarity: float = USUAL_LIKENESS,
    least: int = 2,
    ask: AskModel | None = None,
    include_conflicts: bool = False,
) -> Plan:
    """Return which memories a run would put together. Those that contradict others are left out, unless
    `include_conflicts`."""
    now = timestamps.now()
    found = await memories.read(lambda tx: listing.matching(tx, filter, limit=MOST_LOOKED_AT, at=now))
    left_out: set[str] = set()
    while True:
        candidates = [one for one in found if one.id not in left_out]
        groups = (await asyncio.to_thread(_groups, candidates, similarity, max(least, 2)))[:MOST_CLUSTERS]
        # Without them the others fall into other groups, so it is looked at again.
        opposed = set() if include_conflicts else await _opposed(memories, groups)
        if not opposed:
            break
        left_out |= opposed
    clusters: list[Cluster] = []
    for group in groups:
        asking = ask if len(clusters) < MOST_ASKED else None
        clusters.append(await _cluster(group, strategy, asking))
    return Plan(strategy, len(found), clusters, sorted(left_out), include_conflicts)


async def _opposed(memories: Memories, groups: Sequence[Sequence[Record]]) -> set[str]:
    """Return the ids of those that contradict another one: one of their group, or one that they are known to."""
    ids = [one.id for group in groups for one in group]
    noted = await memories.read(lambda tx: conflicts.disputed(tx, ids)) if ids else set()
    return noted | await asyncio.to_thread(_contradicting, groups)


def _contradicting(groups: Sequence[Sequence[Record]]) -> set[str]:
    """Compare as a capture does. What was imported or synced has not been compared yet."""
    opposed: set[str] = set()
    for group in groups:
        split = [(one, near_duplicates.ComparedText(one.content)) for one in group]
        for (one, said), (other, otherwise) in combinations(split, 2):
            same = near_duplicates.is_same(said, otherwise, near_duplicates.same_from(one.namespace))
            if not same and near_duplicates.contradiction(said, otherwise) is not None:
                opposed |= {one.id, other.id}
    return opposed


async def _cluster(group: list[Record], strategy: Strategy, ask: AskModel | None) -> Cluster:
    ordered = sorted(group, key=lambda one: (-one.at, -len(one.content), one.id))
    contents = [one.content for one in ordered]
    if strategy == "dedupe":
        return Cluster(ordered, ordered[0].content, "local")
    if ask is not None:
        answer = await ask(enrichment.ask_for_summary(contents), enrichment.SUMMARY_TOKENS)
        if answer is not None:
            return Cluster(ordered, answer.text, answer.by)
    return Cluster(ordered, enrichment.local_summary(contents), "local")


def _groups(found: Sequence[Record], similarity: float, least: int) -> list[list[Record]]:
    """Groups of records of one place, each like one before it. Only those that share words are ever compared."""
    words = [frozenset(near_duplicates.words(one.content[:5000])) for one in found]
    leader = list(range(len(found)))
    # Which records have a word; a word that nearly all have says nothing.
    holders: dict[tuple[str, str, str | None, str], list[int]] = defaultdict(list)
    for here, one in enumerate(found):
        shared: Counter[int] = Counter()
        keys = [(one.domain, one.namespace, one.project, word) for word in words[here]]
        for key in keys:
            if len(holders[key]) <= 200:
                shared.update(holders[key])
            holders[key].append(here)
        for there, _ in shared.most_common(20):
            both = len(words[here] & words[there])
            if both and both / len(words[here] | words[there]) >= similarity:
                leader[_first(leader, here)] = _first(leader, there)
    groups: dict[int, list[Record]] = defaultdict(list)
    for here, one in enumerate(found):
        groups[_first(leader, here)].append(one)
    fine = [group[:LARGEST_CLUSTER] for group in groups.values() if len(group) >= least]
    return sorted(fine, key=lambda group: (-len(group), group[0].id))


def _first(leader: list[int], at: int) -> int:
    while leader[at] != at:
        leader[at] = leader[leader[at]]
        at = leader[at]
    return at


async def carry_out(memories: Memories, made: Plan, *, who: str = "") -> Done:
    run = os.urandom(6).hex()
    now = timestamps.now()

    def write(tx: Transaction) -> Done:
        kept: list[str] = []
        superseded: list[str] = []
        for cluster in made.clusters:
            current = records.fetch(tx, [one.id for one in cluster.members])
            if any(current.get(one.id) != one for one in cluster.members):
                continue  # one of them was changed since; the next run sees it
            if not made.include_conflicts and conflicts.disputed(tx, list(current)):
                continue  # a memory that contradicts one of them was captured since
            joined = _joined(tx, cluster, made.strategy, run, now, who)
            gone = cluster.members if made.strategy == "summarize" else cluster.members[1:]
            changed = [joined]
            for one in gone:
                after = replace(one, status="superseded", updated_at=now)
                changed.append(
                    mutations.change(tx, one, after, "consolidated", who=who, reason=_reason(run, joined.id))
                )
            _note(tx, run, changed, joined.id)
            kept.append(joined.id)
            superseded += [one.id for one in gone]
        return Done(run, kept, superseded)

    return await memories.write(write)


def _note(tx: Transaction, run: str, changed: Sequence[Record], kept: str) -> None:
    tx.many(
        "insert into memory_consolidated (run, memory, version, kept) values (:run, :memory, :version, :kept)",
        [{"run": run, "memory": one.id, "version": one.version, "kept": kept} for one in changed],
    )


def _joined(tx: Transaction, cluster: Cluster, strategy: Strategy, run: str, now: int, who: str) -> Record:
    """The memory that now stands for all of them."""
    first = cluster.stays
    tags = list(dict.fromkeys(tag for one in cluster.members for tag in one.tags))[: validation.MOST_TAGS - 1]
    if strategy == "summarize":
        summary = replace(
            first,
            id=capture.new_id(),
            content=cluster.content,
            tags=[*tags, "summary"] if "summary" not in tags else tags,
            source=_reason(run),
            version=1,
            created_at=now,
            updated_at=now,
            digest=records.digest(cluster.content),
        )
        mutations.insert(tx, [summary])
        return summary
    after = replace(first, content=cluster.content, tags=tags, updated_at=now)
    return mutations.change(tx, first, after, "consolidated", who=who, reason=_reason(run, first.id))


async def undo(memories: Memories, run: str, *, who: str = "") -> list[str]:
    """Take back a whole run: everything is as it was before it, except what has been changed since."""
    now = timestamps.now()

    def write(tx: Transaction) -> list[str]:
        summaries = records.which(
            tx,
            "status <> 'deleted' and id in (select memory from memory_consolidated where run = :run and version = 1)",
            {"run": run},
            1000,
        )
        summaries = visible(summaries, memories.owner)
        events = tx.all(
            MemoryEvent,
            f"select memory_event.memory, memory_event.version, change, at, who, reason, was from {_CHANGES} "
            "and run = :run order by memory_event.id desc",
            {"run": run},
        )
        events = [one for one in events if is_visible(one.was, memories.owner)]
        back = mutations.take_back(tx, events, now, who=who)
        for summary in summaries:
            mutations.delete(tx, summary, now, who=who, reason="its consolidation was taken back")
        return back

    back = await memories.write(write)
    if not back:
        raise InvalidInput(f"There is no consolidation {run[:40]!r} that could be taken back.")
    return back


def sources(tx: Transaction, summary: Record, owner: str = LOCAL_OWNER) -> list[Record]:
    """Return the memories that it stands for, as far as the owner sees them; none where it was not made of others."""
    rows = tx.all(
        str,
        f"select memory_event.memory from {_CHANGES} and kept = :id and memory_event.memory <> :id "
        "order by memory_event.id",
        {"id": summary.id},
    )
    found = records.fetch(tx, rows)
    return visible((found[id] for id in dict.fromkeys(rows) if id in found), owner)


def _reason(run: str, kept: str = "") -> str:
    """What a history says to people; `memory_consolidated` says it to us."""
    return f"consolidation {run}" + (f" into {kept}" if kept else "")
