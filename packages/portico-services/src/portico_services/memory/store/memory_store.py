"""Memory store: all operations on memories in a database, independent of any protocol.

async with Database(url) as database:
    memories = MemoryStore(database)
    await memories.open()
    outcome = await memories.capture(MemoryDraft(content="Use PostgreSQL", namespace="decisions"))
    page = await memories.recall("which database?", memories.filter(None))
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.errors import StoreError
from portico.extend import Database, Transaction, run_blocking
from portico.store.errors import DatabaseCorrupt, InvalidStatement, InvalidValue, UniqueViolation
from portico_services import text as texts, timestamps
from portico_services.git_project import ProjectInfo
from portico_services.memory.errors import STORAGE_ERROR, InvalidInput, MemoryToolError
from portico_services.memory.search import index_builder, retrieval
from portico_services.memory.search.embeddings import EmbeddingIndex, EmbeddingsUnavailable, QueryEmbedding
from portico_services.memory.search.explain import Explanation, explain as explain_match
from portico_services.memory.search.index_maintenance import IndexMaintenance
from portico_services.memory.search.query import parse_query
from portico_services.memory.search.reranker import MIN_STRONG_SHARE
from portico_services.memory.store import filters, listing, records, statistics, validation
from portico_services.memory.store.filters import FilterCondition, MemoryFilter
from portico_services.memory.store.namespaces import CURRENT_STATUSES, STATUSES, validate_namespace
from portico_services.memory.store.ownership import LOCAL_OWNER
from portico_services.memory.store.records import ListKey, MemoryEvent, MemoryRecord

if TYPE_CHECKING:
    from portico_services.memory.store import as_of as past, capture, entities, mutations
    from portico_services.memory.store.capture import CaptureOutcome, MemoryDraft
else:
    # Not needed for a search; loaded on first use to keep hooks fast.
    capture = LazyModule("portico_services.memory.store.capture")
    mutations = LazyModule("portico_services.memory.store.mutations")
    entities = LazyModule("portico_services.memory.store.entities")
    past = LazyModule("portico_services.memory.store.as_of")

T = TypeVar("T")
log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_HISTORY = "memory"
MAX_RESULTS = 1000
# Memories changed per transaction: on SQLite, other writers wait for it.
WRITE_BATCH_SIZE = 100
# Memories read per statement.
READ_BATCH_SIZE = 5000
# New memories per transaction: inserts are fast, but each transaction rewrites most pages of the index.
INSERT_BATCH_SIZE = 5000
# How long a search waits for an index that is being built. Memories not indexed by then are not found yet.
INDEX_WAIT_SECONDS = 0.5
NOT_DELETED = FilterCondition("status", ("deleted",), negated=True)


class SearchHit(Struct, frozen=True):
    """A search result."""

    record: MemoryRecord
    score: float
    # Whether it covers little of the query.
    weak: bool = False
    # Reasons for the result, if requested.
    explanation: Explanation | None = None


class RecallPage(Struct, frozen=True):
    """One page of search results."""

    hits: list[SearchHit]
    # Whether there are further results.
    more: bool
    # Key of the last memory in a list of the newest, if there are further results.
    last: ListKey | None = None
    # Limitation of the search, such as an incomplete index.
    note: str | None = None
    # Whether there was a query and no strong match on any page.
    nothing_known: bool = False


class DeletionReport(Struct, frozen=True):
    """Result of `delete_all`: the first ids and the total count."""

    ids: list[str]
    count: int


class MemoryStore:
    """Memories in a database.

    `project` is the default project of captures and searches. `embeddings` is set if a model is installed.
    """

    def __init__(
        self,
        database: Database,
        *,
        project: str | None = None,
        root: str | None = None,
        former: str | None = None,
        embeddings: EmbeddingIndex | None = None,
        owner: str = LOCAL_OWNER,
    ) -> None:
        self.database = database
        self._embeddings = embeddings
        self._index_maintenance = IndexMaintenance(database, embeddings)
        self.project = project
        # Root folder of the project's repository, if it has one.
        self.root = root
        # Former name of the project; see `git_project.ProjectInfo`.
        self.former = former
        # Owner in the user domain; see `ownership`.
        self.owner = owner

    def owned_by(self, owner: str) -> MemoryStore:
        """Return a view of the store for another owner."""
        # The view shares the database and the index maintenance; only the owner differs.
        if owner == self.owner:
            return self
        other = copy(self)
        other.owner = owner
        return other

    def for_project(self, where: ProjectInfo) -> MemoryStore:
        """Return a view of the store for another project."""
        other = copy(self)
        other.project, other.root, other.former = where.project, where.root, where.former
        return other

    @property
    def project_scopes(self) -> tuple[str, ...]:
        """Return the current and the former name of the project."""
        return tuple(name for name in (self.project, self.former) if name is not None)

    async def open(self, *, verify: bool = False, read_only: bool = False) -> None:
        """Migrate the schema and, unless `read_only`, start the index maintenance in the background.

        With `verify`, maintenance also checks that the index is complete.
        """
        await self.database.migrate(MIGRATION_HISTORY, MIGRATIONS)
        # A read-only server may run next to a writing one, which maintains the index.
        if not read_only:
            await self._index_maintenance.start(verify=verify)

    async def close(self) -> None:
        """Stop the background maintenance. Call it before closing the database."""
        await self._index_maintenance.stop()

    async def wait_until_indexed(self) -> None:
        """Wait until the index is complete and, if there is a model, every memory has an embedding."""
        await self._index_maintenance.wait_until_done()

    async def note_bulk_load(self, written: int) -> None:
        """Update the statistics of the query planner after a large number of inserts."""
        if written < statistics.BULK_LOAD_ROWS:
            return
        try:
            await self.database.write(
                partial(statistics.analyze_after_load, written=written), isolation="read committed"
            )
        except StoreError as failure:
            # The memories are stored and can be found; queries are only slower until the database updates its
            # statistics.
            log.info("updating the planner statistics failed: %s", failure)

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        return await self._perform(self.database.read, fn)

    async def write(self, fn: Callable[[Transaction], T]) -> T:
        done = await self._perform(self.database.write, fn)
        # Only after the commit, so that the maintenance task sees the new memories.
        self._index_maintenance.wake()
        return done

    async def _perform(
        self, how: Callable[[Callable[[Transaction], T]], Awaitable[T]], fn: Callable[[Transaction], T]
    ) -> T:
        """Run a transaction, and retry it once if it failed because of a damaged index that was repaired.

        Raises `MemoryToolError` for errors of the database.
        """
        try:
            try:
                return await how(fn)
            # Signs of a damaged index: a missing table, an unreadable page, or a leftover row that blocks an insert.
            # Memories themselves are in another table, so the index can be rebuilt from them.
            except (InvalidStatement, DatabaseCorrupt, UniqueViolation):
                if not await self._index_maintenance.repair():
                    raise
                return await how(fn)
        except StoreError as failure:
            raise store_error(failure) from failure

    def filter(self, text: str | None, at: int | None = None) -> MemoryFilter:
        """Parse a filter and restrict it to the project and owner of this store."""
        return self.restrict_to_visible(filters.parse_filter(text or "", timestamps.now_ms() if at is None else at))

    def restrict_to_visible(self, filter: MemoryFilter, *, every_project: bool = False) -> MemoryFilter:
        """Return the filter restricted to the project and owner of this store."""
        return filter.with_projects(() if every_project else self.project_scopes, self.owner)

    @property
    def modes(self) -> list[str]:
        """Return the available search modes."""
        return ["text"] if self._embeddings is None else ["text", "hybrid", "vector"]

    @property
    def model(self) -> str | None:
        """Return the name of the embedding model, or None without one."""
        return None if self._embeddings is None else self._embeddings.name

    def resolve_mode(self, mode: str) -> str:
        """Return the effective search mode. Raises `InvalidInput` for mode `vector` without a model."""
        if mode == "vector" and self._embeddings is None:
            raise InvalidInput(retrieval.VECTORS_UNAVAILABLE)
        return "text" if self._embeddings is None else mode

    # Capture.

    async def capture(self, draft: MemoryDraft, *, who: str = "", compare: bool = True) -> CaptureOutcome:
        """Store a memory and return the outcome."""
        record = capture.build_record(self._at_home(draft), timestamps.now_ms())
        return await self.write(lambda tx: capture.capture(tx, draft, record, who=who, compare=compare))

    async def capture_batch(self, drafts: Sequence[MemoryDraft], *, who: str = "") -> list[CaptureOutcome]:
        """Store many memories. Exact duplicates are detected, near-duplicates are not."""
        now = timestamps.now_ms()
        # All drafts are validated before the first is stored.
        pairs = [(draft, capture.build_record(self._at_home(draft), now)) for draft in drafts]
        outcomes: list[CaptureOutcome] = []
        for at in range(0, len(pairs), INSERT_BATCH_SIZE):
            some = pairs[at : at + INSERT_BATCH_SIZE]
            outcomes += await self.write(lambda tx, some=some: capture.capture_batch(tx, some, who=who))  # type: ignore[misc]
        return outcomes

    def _at_home(self, draft: MemoryDraft) -> MemoryDraft:
        return replace(draft, owner=self.owner, project=self.project if draft.project is None else draft.project)

    # Search.

    async def recall(
        self,
        query: str,
        filter: MemoryFilter,
        *,
        limit: int = 10,
        offset: int = 0,
        after: ListKey | None = None,
        as_of: int | None = None,
        mode: retrieval.Mode = "hybrid",
        explain: bool = False,
    ) -> RecallPage:
        """Search memories and return the best matches first, with the reasons for each if `explain` is set.

        Without a query, return the newest memories; `after` is the key at which the page begins. `as_of` searches the
        memories as they were at that time.
        """
        limit, offset = _validate_paging(limit, offset)
        words = texts.replace_unstorable(
            " ".join(text for text in (query, filter.words) if text.strip() not in ("", "*"))
        )
        if len(words) > filters.MAX_FILTER_CHARS:
            raise InvalidInput(
                f"The query must have at most {filters.MAX_FILTER_CHARS:,} characters, got {len(words):,}."
            )
        now = timestamps.now_ms()
        # One more than the page shows whether there are further results.
        window = offset + limit + 1
        if as_of is not None:
            hits = await self.read(lambda tx: past.search_as_of(tx, words, filter, as_of, window))
            results = [SearchHit(item, score, bool(words) and score < MIN_STRONG_SHARE) for item, score in hits]
            return _page(_explain_hits(results, words, now) if explain else results, limit, offset, bool(words))
        if not words:
            result = await self.read(
                lambda tx: listing.list_memories(tx, filter, limit=limit + 1, offset=offset, at=now, after=after)
            )
            more = len(result) > limit
            last = (result[limit - 1].at, result[limit - 1].id) if more else None
            return RecallPage([SearchHit(item, 0.0) for item in result[:limit]], more, last)
        # The query is embedded before the transaction, because encoding takes milliseconds.
        query_embedding = await self._embed_query(words, mode)
        # While the index is being built, incomplete results now are better than complete ones in minutes; a note tells
        # the model.
        is_complete = await self._index_maintenance.wait_until_ready(INDEX_WAIT_SECONDS)

        def retrieve_and_fetch(tx: Transaction) -> list[SearchHit]:
            scored = retrieval.retrieve(tx, words, filter, window, at=now, query_embedding=query_embedding, mode=mode)
            result = records.fetch(tx, [item.memory for item in scored])
            hits = [
                SearchHit(result[item.memory], item.score, item.is_weak) for item in scored if item.memory in result
            ]
            return (
                _explain_hits(hits, words, now, {item.memory: item.similarity for item in scored}) if explain else hits
            )

        page = _page(await self.read(retrieve_and_fetch), limit, offset, searched=True)
        if not is_complete:
            page = replace(
                page,
                note="The search index is being built; some memories are missing from the results. Try again soon.",
            )
        if retrieval.needs_full_scan(filter):
            max_scanned = retrieval.MAX_SCAN
            if (
                await self.read(lambda tx: listing.count_memories(tx, filter, at=now, limit=max_scanned + 1))
                > max_scanned
            ):
                note = (
                    f"Only the newest {max_scanned:,} memories that are not current were searched. Narrow the filter."
                )
                page = replace(page, note=note)
        return page

    async def _embed_query(self, words: str, mode: str) -> QueryEmbedding | None:
        """Return the embedding of the query, or None in mode `text` or without a model."""
        if mode == "text" or self._embeddings is None:
            return None
        try:
            return await run_blocking(self._embeddings.embed_query, words)
        except EmbeddingsUnavailable as failure:
            if mode == "vector":
                raise InvalidInput(f"{failure} {retrieval.VECTORS_UNAVAILABLE}") from failure
            return None

    async def get(self, id: str) -> MemoryRecord:
        return await self.read(lambda tx: records.get(tx, _parse_id(id), self.owner))

    async def history(self, id: str, limit: int = 20) -> tuple[MemoryRecord, list[MemoryEvent]]:
        limit, _ = _validate_paging(limit, 0)

        def read_history(tx: Transaction) -> tuple[MemoryRecord, list[MemoryEvent]]:
            record = records.get(tx, _parse_id(id), self.owner)
            return record, records.history(tx, record.id, limit)

        return await self.read(read_history)

    # Changes.

    async def update(
        self,
        id: str,
        *,
        content: str | None = None,
        tags: Sequence[str] | None = None,
        namespace: str | None = None,
        status: str | None = None,
        ttl: str | None = None,
        expected_version: int | None = None,
        who: str = "",
        reason: str = "",
    ) -> MemoryRecord:
        now = timestamps.now_ms()
        fresh = {
            "content": None if content is None else validation.validate_content(content),
            "tags": None if tags is None else validation.normalize_tags(tags),
            "namespace": None if namespace is None else validate_namespace(namespace),
            "status": None if status is None else _validate_status(status),
        }
        fields = {name: value for name, value in fresh.items() if value is not None}
        if ttl is not None:
            lasting = validation.parse_duration(ttl)
            fields["expires_at"] = None if lasting is None else now + lasting  # type: ignore[assignment]
        if not fields:
            raise InvalidInput("Pass at least one of content, tags, namespace, status and ttl.")

        def write(tx: Transaction) -> MemoryRecord:
            before = _require_version(tx, id, self.owner, expected_version)
            if before.status == "deleted":
                raise InvalidInput(f"Memory {before.id} is deleted. Restore it with memory_restore before changing it.")
            after = replace(before, updated_at=now, **fields)
            return mutations.update(tx, before, after, "updated", who=who, reason=reason)

        return await self.write(write)

    async def delete(
        self, id: str, *, hard: bool = False, expected_version: int | None = None, who: str = "", reason: str = ""
    ) -> MemoryRecord:
        """Delete a memory so that it can be restored, or permanently with `hard`."""
        now = timestamps.now_ms()

        def write(tx: Transaction) -> MemoryRecord:
            before = _require_version(tx, id, self.owner, expected_version)
            if hard:
                mutations.purge(tx, [before], now)
                return before
            return mutations.delete(tx, before, now, who=who, reason=reason)

        return await self.write(write)

    async def restore(self, id: str, *, who: str = "") -> MemoryRecord:
        """Restore a deleted, superseded or archived memory to its previous status."""
        now = timestamps.now_ms()

        def write(tx: Transaction) -> MemoryRecord:
            before = records.get(tx, _parse_id(id), self.owner)
            if before.status in CURRENT_STATUSES:
                return before
            # The newest event holds the state before the deletion.
            past = [item.was.status for item in records.history(tx, before.id, limit=1)]
            status = past[0] if past and past[0] in CURRENT_STATUSES else "active"
            after = replace(before, status=status, deleted_at=None, updated_at=now)
            # An expired memory would be collected again immediately, so its expiry is dropped.
            if after.expires_at is not None and after.expires_at <= now:
                after = replace(after, expires_at=None)
            return mutations.update(tx, before, after, "restored", who=who)

        return await self.write(write)

    async def reindex(self, done: Callable[[int, int], None] = lambda count, total: None) -> int:
        """Extract entities again and rebuild the index, in batches; other requests continue in between."""
        total = await self.read(lambda tx: tx.fetch_one(int, "select count(*) from memory"))
        count, last = 0, ""

        def reindex_batch(tx: Transaction) -> list[MemoryRecord]:
            where = records.select_where(tx, "memory.id > :last", {"last": last}, WRITE_BATCH_SIZE)
            entities.reindex_mentions(tx, where)
            return where

        while result := await self.write(reindex_batch):
            count, last = count + len(result), result[-1].id
            done(count, 2 * total)
        # Entities first: searches by text keep working on the old index until this point.
        await self.write(index_builder.reset)
        while lot := await self.write(index_builder.build_batch):
            count += lot
            done(min(count, 2 * total), 2 * total)
        await self.note_bulk_load(total)
        return total

    async def delete_all(
        self,
        filter: MemoryFilter,
        *,
        dry_run: bool = True,
        hard: bool = False,
        who: str = "",
        done: Callable[[int], object] = lambda count: None,
    ) -> DeletionReport:
        """Delete all memories that match a filter, in batches.

        `done` receives the number deleted so far. If the task is cancelled, deleted batches stay deleted.
        """
        # Words select by rank, which has no end; only conditions define a set that can be deleted.
        if filter.words:
            raise InvalidInput(f"The filter must consist of conditions, got the words {filter.words[:80]!r}.")
        if not filter.conditions and filter.since is None and filter.until is None:
            raise InvalidInput(
                "A filter is required, for example ns:progress until:2026-01-31. domain:project matches all of it."
            )
        if not hard and filter.has_key("status"):
            filter = replace(filter, conditions=(*filter.conditions, NOT_DELETED))
        now = timestamps.now_ms()
        # A permanent deletion includes memories that were deleted before and can still be restored.
        statuses = STATUSES if hard else CURRENT_STATUSES
        after: ListKey | None = None

        def list_batch(tx: Transaction) -> list[ListKey]:
            return listing.list_keys(tx, filter, limit=READ_BATCH_SIZE, at=now, statuses=statuses, after=after)

        def delete(tx: Transaction) -> list[ListKey]:
            memories = listing.list_memories(tx, filter, limit=WRITE_BATCH_SIZE, at=now, statuses=statuses, after=after)
            if hard:
                mutations.purge(tx, memories, now)
            for item in memories if not hard else ():
                mutations.delete(tx, item, now, who=who, reason="delete_all")
            return [(item.at, item.id) for item in memories]

        first: list[str] = []
        count = 0
        while some := await (self.read(list_batch) if dry_run else self.write(delete)):
            # The first hundred ids are enough for a user to check; the count is complete.
            first += [id for _, id in some[: 100 - len(first)]]
            count, after = count + len(some), some[-1]
            done(count)
        return DeletionReport(first, count)


def _page(hits: list[SearchHit], limit: int, offset: int, searched: bool) -> RecallPage:
    # All results up to the end of the page count, so a later page does not contradict the first one.
    nothing_known = searched and all(hit.weak for hit in hits)
    return RecallPage(hits[offset : offset + limit], len(hits) > offset + limit, nothing_known=nothing_known)


def _explain_hits(
    hits: list[SearchHit], words: str, now: int, similarities: Mapping[str, float | None] | None = None
) -> list[SearchHit]:
    """Return the results with the reasons for each. Without a query there are none."""
    if not words:
        return hits
    query, similarity = parse_query(words, now), similarities or {}
    return [replace(hit, explanation=explain_match(hit.record, query, similarity.get(hit.record.id))) for hit in hits]


def _require_version(tx: Transaction, id: str, owner: str, version: int | None) -> MemoryRecord:
    """Return the memory. Raises `InvalidInput` if its version is not the expected one."""
    record = records.get(tx, _parse_id(id), owner)
    if version is not None and version != record.version:
        raise InvalidInput(
            f"Memory {record.id}: expected version {version}, got {record.version}; it has changed since you read it. "
            "Read it again with memory_get and retry with its version.",
            code="version_conflict",
            id=record.id,
            expected=version,
            found=record.version,
        )
    return record


def _parse_id(text: str) -> str:
    """Return the id from an id or an address that ends with one: `memory://project/decisions/1f…`,
    `urn:memory:project:decisions:1f…`.
    """
    # Models often pass the URN that a result contains, so every form of it is accepted.
    return texts.replace_unstorable(text).strip().rstrip("/").rpartition("/")[2].rpartition(":")[2]


def _validate_status(status: str) -> str:
    if status not in STATUSES or status == "deleted":
        settable = ", ".join(item for item in STATUSES if item != "deleted")
        raise InvalidInput(f"Invalid status: {status[:40]}. Use one of {settable}; use memory_delete to delete.")
    return status


def _validate_paging(limit: int, offset: int) -> tuple[int, int]:
    if not 1 <= limit <= MAX_RESULTS or not 0 <= offset <= 1_000_000:
        raise InvalidInput(f"limit must be between 1 and {MAX_RESULTS}, and offset between 0 and 1,000,000.")
    return limit, offset


def store_error(failure: StoreError) -> MemoryToolError:
    """Return the error for the client, without the paths and addresses that the database error contains."""
    if isinstance(failure, InvalidValue):
        return InvalidInput("An argument contains a NUL or a lone surrogate, which cannot be stored. Remove it.")
    return MemoryToolError(
        f"The memory could not be stored or read: {failure.public_message}.",
        retryable=failure.retryable,
        code="storage_error",
        number=STORAGE_ERROR,
    )
