"""Consolidation: merge near-duplicate memories, in runs that can be reverted.

A plan is made first. Applying it skips clusters in which a memory has changed since. The table `memory_consolidated`
records which run made which change.

Contradictory memories are near-duplicates by their words ("the limit is 100", "the limit is 300"). Merging them would
decide for one of them, so they are excluded from a plan unless the caller includes them.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction, run_blocking
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.extras import enrichment
from portico_services.memory.extras.enrichment import ModelCaller
from portico_services.memory.store import capture, conflicts, listing, mutations, near_duplicates, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.ownership import LOCAL_OWNER, is_visible, visible
from portico_services.memory.store.records import MemoryEvent, MemoryRecord

Strategy = Literal["merge", "summarize", "dedupe"]
# Comparison is quadratic in the worst case, and a plan must stay readable for the user who confirms it.
MAX_SCANNED_MEMORIES, MAX_CLUSTERS, MAX_CLUSTER_SIZE = 5000, 50, 20
# Clusters for which a model is called; the others are merged by rules.
MAX_MODEL_CALLS = 10
DEFAULT_SIMILARITY = 0.7
# Changes made by consolidation runs.
_CONSOLIDATION_EVENTS = (
    "memory_event join memory_consolidated on memory_consolidated.memory = memory_event.memory "
    "and memory_consolidated.version = memory_event.version where memory_event.change = 'consolidated'"
)


class DuplicateCluster(Struct, frozen=True):
    """Near-duplicate memories, the surviving one first, and its new content."""

    members: list[MemoryRecord]
    content: str
    by: str

    @property
    def survivor(self) -> MemoryRecord:
        """Return the memory that survives."""
        return self.members[0]


class ConsolidationPlan(Struct, frozen=True):
    """Planned clusters of a consolidation."""

    strategy: Strategy
    looked_at: int
    clusters: list[DuplicateCluster]
    # Ids of memories excluded because they contradict others.
    left_out: list[str] = field(default_factory=list)
    include_conflicts: bool = False


class ConsolidationOutcome(Struct, frozen=True):
    """Changes made by a consolidation run."""

    run: str
    kept: list[str]
    superseded: list[str]


async def plan_consolidation(
    memories: MemoryStore,
    filter: MemoryFilter,
    *,
    strategy: Strategy,
    similarity: float = DEFAULT_SIMILARITY,
    minimum: int = 2,
    ask: ModelCaller | None = None,
    include_conflicts: bool = False,
) -> ConsolidationPlan:
    """Return the clusters that a run would merge. Contradictory memories are excluded unless `include_conflicts`."""
    now = timestamps.now_ms()
    result = await memories.read(lambda tx: listing.list_memories(tx, filter, limit=MAX_SCANNED_MEMORIES, at=now))
    left_out: set[str] = set()
    while True:
        candidates = [item for item in result if item.id not in left_out]
        groups = (await run_blocking(_group_similar, candidates, similarity, max(minimum, 2)))[:MAX_CLUSTERS]
        # Excluding memories changes the groups, so grouping is repeated until no contradiction is left.
        opposed = set() if include_conflicts else await _find_contradicting(memories, groups)
        if not opposed:
            break
        left_out |= opposed
    clusters: list[DuplicateCluster] = []
    for group in groups:
        asking = ask if len(clusters) < MAX_MODEL_CALLS else None
        clusters.append(await _cluster(group, strategy, asking))
    return ConsolidationPlan(strategy, len(result), clusters, sorted(left_out), include_conflicts)


async def _find_contradicting(memories: MemoryStore, groups: Sequence[Sequence[MemoryRecord]]) -> set[str]:
    """Return the ids of memories that contradict another one, in their group or in a recorded conflict."""
    ids = [item.id for group in groups for item in group]
    noted = await memories.read(lambda tx: conflicts.find_disputed(tx, ids)) if ids else set()
    return noted | await run_blocking(_contradicting_ids, groups)


def _contradicting_ids(groups: Sequence[Sequence[MemoryRecord]]) -> set[str]:
    """Return the ids of memories that contradict another one of their group, by the same rules as on capture. Imported
    and synced memories have not been compared before.
    """
    opposed: set[str] = set()
    for group in groups:
        split = [(item, near_duplicates.TokenizedText(item.content)) for item in group]
        for (item, statement), (other, otherwise) in combinations(split, 2):
            same = near_duplicates.is_near_duplicate(
                statement, otherwise, near_duplicates.duplicate_threshold(item.namespace)
            )
            if not same and near_duplicates.find_contradiction_tokenized(statement, otherwise) is not None:
                opposed |= {item.id, other.id}
    return opposed


async def _cluster(group: list[MemoryRecord], strategy: Strategy, ask: ModelCaller | None) -> DuplicateCluster:
    """Build a cluster with its merged content, written by a model if `ask` is given and responds."""
    # The newest survives, then the longest; the id makes the result reproducible.
    ordered = sorted(group, key=lambda member: (-member.at, -len(member.content), member.id))
    contents = [item.content for item in ordered]
    if strategy == "dedupe":
        return DuplicateCluster(ordered, ordered[0].content, "local")
    if ask is not None:
        answer = await ask(enrichment.summary_prompt(contents), enrichment.MAX_SUMMARY_TOKENS)
        if answer is not None:
            return DuplicateCluster(ordered, answer.text, answer.by)
    return DuplicateCluster(ordered, enrichment.extractive_summary(contents), "local")


def _group_similar(memories: Sequence[MemoryRecord], similarity: float, minimum: int) -> list[list[MemoryRecord]]:
    """Return groups of similar records within a scope. Only records with common words are compared."""
    words = [frozenset(near_duplicates.tokenize(item.content[:5000])) for item in memories]
    leader = list(range(len(memories)))
    # Records by word (an inverted index). A word that most records contain is not selective and is skipped.
    holders: dict[tuple[str, str, str | None, str], list[int]] = defaultdict(list)
    for index, item in enumerate(memories):
        shared: Counter[int] = Counter()
        # The key includes the scope, so memories of different projects or owners are never compared, let alone merged.
        keys = [(item.domain, item.namespace, item.project, word) for word in words[index]]
        for key in keys:
            # Bounds the work per word; near-duplicates share rarer words as well.
            if len(holders[key]) <= 200:
                shared.update(holders[key])
            holders[key].append(index)
        # Candidates are the records that share the most words; the threshold is their Jaccard similarity.
        for other_index, _ in shared.most_common(20):
            both = len(words[index] & words[other_index])
            if both and both / len(words[index] | words[other_index]) >= similarity:
                # Union-find: join the groups of both records.
                leader[_first(leader, index)] = _first(leader, other_index)
    groups: dict[int, list[MemoryRecord]] = defaultdict(list)
    for index, item in enumerate(memories):
        groups[_first(leader, index)].append(item)
    fine = [group[:MAX_CLUSTER_SIZE] for group in groups.values() if len(group) >= minimum]
    return sorted(fine, key=lambda group: (-len(group), group[0].id))


def _first(leader: list[int], at: int) -> int:
    """Return the representative of a group, with path compression."""
    while leader[at] != at:
        leader[at] = leader[leader[at]]
        at = leader[at]
    return at


async def apply_consolidation(memories: MemoryStore, plan: ConsolidationPlan, *, who: str = "") -> ConsolidationOutcome:
    """Apply a plan in one transaction and return the changes."""
    run = os.urandom(6).hex()
    now = timestamps.now_ms()

    def write(tx: Transaction) -> ConsolidationOutcome:
        remaining: list[str] = []
        superseded: list[str] = []
        for cluster in plan.clusters:
            current = records.fetch(tx, [member.id for member in cluster.members])
            if any(current.get(member.id) != member for member in cluster.members):
                continue  # one of them changed since; the next run includes it
            if not plan.include_conflicts and conflicts.find_disputed(tx, list(current)):
                continue  # a contradicting memory was captured since
            joined = _merge_cluster(tx, cluster, plan.strategy, run, now, who)
            # A summary is a new memory, so all members give way to it.
            merged = cluster.members if plan.strategy == "summarize" else cluster.members[1:]
            changed = [joined]
            for member in merged:
                after = replace(member, status="superseded", updated_at=now)
                changed.append(
                    mutations.update(tx, member, after, "consolidated", who=who, reason=_format_reason(run, joined.id))
                )
            _record_run(tx, run, changed, joined.id)
            remaining.append(joined.id)
            superseded += [member.id for member in merged]
        return ConsolidationOutcome(run, remaining, superseded)

    return await memories.write(write)


def _record_run(tx: Transaction, run: str, changed: Sequence[MemoryRecord], retained: str) -> None:
    tx.execute_many(
        "insert into memory_consolidated (run, memory, version, kept) values (:run, :memory, :version, :kept)",
        [{"run": run, "memory": item.id, "version": item.version, "kept": retained} for item in changed],
    )


def _merge_cluster(
    tx: Transaction, cluster: DuplicateCluster, strategy: Strategy, run: str, now: int, who: str
) -> MemoryRecord:
    """Write the merged memory and return it: a new summary, or the updated survivor."""
    first = cluster.survivor
    # One below the limit leaves room for the tag `summary`.
    tags = list(dict.fromkeys(tag for member in cluster.members for tag in member.tags))[: validation.MAX_TAGS - 1]
    if strategy == "summarize":
        summary = replace(
            first,
            id=capture.new_id(),
            content=cluster.content,
            tags=[*tags, "summary"] if "summary" not in tags else tags,
            source=_format_reason(run),
            version=1,
            created_at=now,
            updated_at=now,
            digest=records.content_digest(cluster.content),
        )
        mutations.insert(tx, [summary])
        return summary
    after = replace(first, content=cluster.content, tags=tags, updated_at=now)
    return mutations.update(tx, first, after, "consolidated", who=who, reason=_format_reason(run, first.id))


async def undo_consolidation(memories: MemoryStore, run: str, *, who: str = "") -> list[str]:
    """Revert a run, except for memories changed since. Raises `InvalidInput` if there is nothing to revert."""
    now = timestamps.now_ms()

    def write(tx: Transaction) -> list[str]:
        summaries = records.select_where(
            tx,
            "status <> 'deleted' and id in (select memory from memory_consolidated where run = :run and version = 1)",
            {"run": run},
            1000,
        )
        # A run id is not a permission: memories of other users are left out.
        summaries = visible(summaries, memories.owner)
        events = tx.fetch_all(
            MemoryEvent,
            "select memory_event.memory, memory_event.version, change, at, who, reason, was from "
            f"{_CONSOLIDATION_EVENTS} "
            "and run = :run order by memory_event.id desc",
            {"run": run},
        )
        events = [event for event in events if is_visible(event.was, memories.owner)]
        back = mutations.revert(tx, events, now, who=who)
        for summary in summaries:
            mutations.delete(tx, summary, now, who=who, reason="its consolidation was reverted")
        return back

    back = await memories.write(write)
    if not back:
        raise InvalidInput(f"Consolidation run {run[:40]!r} not found, or already reverted.")
    return back


def summary_sources(tx: Transaction, summary: MemoryRecord, owner: str = LOCAL_OWNER) -> list[MemoryRecord]:
    """Return the memories that a summary replaces and the owner sees; empty if it is not a summary."""
    rows = tx.fetch_all(
        str,
        f"select memory_event.memory from {_CONSOLIDATION_EVENTS} and kept = :id and memory_event.memory <> :id "
        "order by memory_event.id",
        {"id": summary.id},
    )
    result = records.fetch(tx, rows)
    return visible((result[id] for id in dict.fromkeys(rows) if id in result), owner)


def _format_reason(run: str, retained: str = "") -> str:
    """Return the reason shown in the history. The table `memory_consolidated` is the machine-readable record."""
    return f"consolidation {run}" + (f" into {retained}" if retained else "")
