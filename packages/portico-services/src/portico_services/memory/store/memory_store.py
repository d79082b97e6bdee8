"""Everything that can be done with memories in a database, without any protocol.

async with Database(url) as database:
    memories = Memories(database)
    await memories.open()
    taken = await memories.capture(Draft(content="Use PostgreSQL", namespace="decisions"))
    hits = await memories.recall("which database?")
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.extend import BadStatement, Damaged, Database, NotUnique, StoreError, Transaction, UnfitValue
from portico_services import text as texts
from portico_services import timestamps
from portico_services.git_project import Where
from portico_services.memory.errors import InvalidInput, MemoryChanged, MemoryRefusal, MemoryStoreFailed
from portico_services.memory.search import index_builder
from portico_services.memory.search import retrieval as recall
from portico_services.memory.search.embeddings import Meanings, NoModel, Sense
from portico_services.memory.search.index_maintenance import IndexUpkeep
from portico_services.memory.store import filters, listing, records, statistics, validation
from portico_services.memory.store.filters import Condition, MemoryFilter
from portico_services.memory.store.namespaces import CURRENT, STATUSES, checked_namespace
from portico_services.memory.store.ownership import LOCAL_OWNER
from portico_services.memory.store.records import Listed, MemoryEvent, Record

if TYPE_CHECKING:
    from portico_services.memory.store import as_of as past
    from portico_services.memory.store import capture, entities, mutations
    from portico_services.memory.store.capture import Draft, Taken
else:
    # What a search does not need.
    capture = LazyModule("portico_services.memory.store.capture")
    mutations = LazyModule("portico_services.memory.store.mutations")
    entities = LazyModule("portico_services.memory.store.entities")
    past = LazyModule("portico_services.memory.store.as_of")

T = TypeVar("T")
log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).parent / "migrations"
HISTORY = "memory"
MOST_RESULTS = 1000
# How many memories one transaction changes: on SQLite others wait for it.
BATCH = 100
# How many are read at once.
PIECE = 5000
# …and of new ones, which are quick to write, but rewrite most pages of the index each time.
LOT = 5000
# How long a search waits for an index that is being built. What is not in it by then is not found yet.
INDEX_SECONDS = 0.5
NOT_DELETED = Condition("status", ("deleted",), negated=True)


class Hit(Struct, frozen=True):
    record: Record
    score: float
    # Whether it has little of what was asked for.
    weak: bool = False


class RecallPage(Struct, frozen=True):
    hits: list[Hit]
    # Whether there are more behind these.
    more: bool
    # Where the last one stands in a list of the newest, if there are more.
    last: Listed | None = None
    # What was not looked at.
    note: str | None = None


class Sweep(Struct, frozen=True):
    ids: list[str]
    count: int


class Memories:
    """`project` is the one that is meant unless a filter says otherwise. `meanings` are there where a model is."""

    def __init__(
        self,
        database: Database,
        *,
        project: str | None = None,
        root: str | None = None,
        former: str | None = None,
        meanings: Meanings | None = None,
        owner: str = LOCAL_OWNER,
    ) -> None:
        self.database = database
        self._meanings = meanings
        self._keeper = IndexUpkeep(database, meanings)
        self.project = project
        # The folder of its repository, if it is in one.
        self.root = root
        # What it was called once: see `repository.Where`.
        self.former = former
        # Whose memories of the user domain are meant: see `ownership`.
        self.owner = owner

    def owned_by(self, owner: str) -> Memories:
        """The same memories, as another owner sees them."""
        if owner == self.owner:
            return self
        other = copy(self)
        other.owner = owner
        return other

    def of(self, where: Where) -> Memories:
        """The same memories, seen from another project."""
        other = copy(self)
        other.project, other.root, other.former = where.project, where.root, where.former
        return other

    @property
    def homes(self) -> tuple[str, ...]:
        return tuple(name for name in (self.project, self.former) if name is not None)

    async def open(self, *, thorough: bool = False, read_only: bool = False) -> None:
        """From now on the index is looked after in the background, unless nothing is to be changed; `thorough` also
        looks whether it has everything."""
        await self.database.migrate(HISTORY, MIGRATIONS)
        if not read_only:
            await self._keeper.start(thorough=thorough)

    async def close(self) -> None:
        """Before the database is."""
        await self._keeper.stop()

    async def settled(self) -> None:
        """Wait until the index is whole, and where there is a model, until every memory has a vector."""
        await self._keeper.done()

    async def loaded(self, written: int) -> None:
        """To be said where very many have been written at once."""
        if written < statistics.MUCH:
            return
        try:
            await self.database.write(partial(statistics.note_load, written=written), isolation="read committed")
        except StoreError as failure:
            # What was written is there, and is found: more slowly for some minutes.
            log.info("The database could not look at what it has: %s", failure)

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        return await self._perform(self.database.read, fn)

    async def write(self, fn: Callable[[Transaction], T]) -> T:
        done = await self._perform(self.database.write, fn)
        self._keeper.wake()
        return done

    async def _perform(
        self, how: Callable[[Callable[[Transaction], T]], Awaitable[T]], fn: Callable[[Transaction], T]
    ) -> T:
        """Again, where it was the index that failed and could be mended."""
        try:
            try:
                return await how(fn)
            except (BadStatement, Damaged, NotUnique):
                if not await self._keeper.mend():
                    raise
                return await how(fn)
        except StoreError as failure:
            raise refusal_of(failure) from failure

    def filter(self, text: str | None, at: int | None = None) -> MemoryFilter:
        """What was written, within the project that this is about."""
        return self.seen(filters.parse(text or "", timestamps.now() if at is None else at))

    def seen(self, filter: MemoryFilter, *, every_project: bool = False) -> MemoryFilter:
        """The filter, restricted to what this project and this owner see."""
        return filter.within(() if every_project else self.homes, self.owner)

    @property
    def modes(self) -> list[str]:
        return ["text"] if self._meanings is None else ["text", "hybrid", "vector"]

    @property
    def model(self) -> str | None:
        """What gives memories their vectors, where there is one."""
        return None if self._meanings is None else self._meanings.name

    def mode(self, wanted: str) -> str:
        """How a search is really done."""
        if wanted == "vector" and self._meanings is None:
            raise InvalidInput(recall.NO_VECTORS)
        return "text" if self._meanings is None else wanted

    # Taking in

    async def capture(self, draft: Draft, *, who: str = "", compare: bool = True) -> Taken:
        record = capture.record_of(self._at_home(draft), timestamps.now())
        return await self.write(lambda tx: capture.take(tx, draft, record, who=who, compare=compare))

    async def capture_all(self, drafts: Sequence[Draft], *, who: str = "") -> list[Taken]:
        """Many at once: exact duplicates are found, others are not looked for."""
        now = timestamps.now()
        made = [(draft, capture.record_of(self._at_home(draft), now)) for draft in drafts]
        taken: list[Taken] = []
        for at in range(0, len(made), LOT):
            some = made[at : at + LOT]
            taken += await self.write(lambda tx, some=some: capture.take_all(tx, some, who=who))  # type: ignore[misc]
        return taken

    def _at_home(self, draft: Draft) -> Draft:
        return replace(draft, owner=self.owner, project=self.project if draft.project is None else draft.project)

    # Looking

    async def recall(
        self,
        query: str,
        filter: MemoryFilter,
        *,
        limit: int = 10,
        offset: int = 0,
        after: Listed | None = None,
        as_of: int | None = None,
        mode: recall.Mode = "hybrid",
    ) -> RecallPage:
        """The best first; without words to look for, the newest, `after` being where in that list to begin."""
        limit, offset = _bounded(limit, offset)
        words = texts.storable(" ".join(said for said in (query, filter.words) if said.strip() not in ("", "*")))
        if len(words) > filters.LONGEST:
            raise InvalidInput(f"The query has {len(words):,} characters; at most {filters.LONGEST:,} are read.")
        now = timestamps.now()
        wanted = offset + limit + 1
        if as_of is not None:
            known = await self.read(lambda tx: past.known(tx, words, filter, as_of, wanted))
            return _page(
                [Hit(one, score, bool(words) and score < recall.LITTLE) for one, score in known], limit, offset
            )
        if not words:
            found = await self.read(
                lambda tx: listing.matching(tx, filter, limit=limit + 1, offset=offset, at=now, after=after)
            )
            more = len(found) > limit
            last = (found[limit - 1].at, found[limit - 1].id) if more else None
            return RecallPage([Hit(one, 0.0) for one in found[:limit]], more, last)
        sense = await self._sense(words, mode)
        whole = await self._keeper.ready(INDEX_SECONDS)

        def look(tx: Transaction) -> list[Hit]:
            scored = recall.recall(tx, words, filter, wanted, at=now, sense=sense, mode=mode)
            found = records.fetch(tx, [one.memory for one in scored])
            return [Hit(found[one.memory], one.score, one.weak) for one in scored if one.memory in found]

        page = _page(await self.read(look), limit, offset)
        if not whole:
            page = replace(page, note="The index is being built: some memories are not found yet. Ask again soon.")
        if recall.is_looked_through(filter):
            most = recall.MOST_LOOKED_THROUGH
            if await self.read(lambda tx: listing.count(tx, filter, at=now, most=most + 1)) > most:
                note = f"Of memories that are not current, the newest {most:,} were looked through. Narrow the filter."
                page = replace(page, note=note)
        return page

    async def _sense(self, words: str, mode: str) -> Sense | None:
        """What the words mean, as far as it matters and can be known."""
        if mode == "text" or self._meanings is None:
            return None
        try:
            return await asyncio.to_thread(self._meanings.of_question, words)
        except NoModel as failure:
            if mode == "vector":
                raise InvalidInput(f"{failure} {recall.NO_VECTORS}") from failure
            return None

    async def get(self, id: str) -> Record:
        return await self.read(lambda tx: records.get(tx, _id(id), self.owner))

    async def history(self, id: str, limit: int = 20) -> tuple[Record, list[MemoryEvent]]:
        limit, _ = _bounded(limit, 0)

        def look(tx: Transaction) -> tuple[Record, list[MemoryEvent]]:
            record = records.get(tx, _id(id), self.owner)
            return record, records.history(tx, record.id, limit)

        return await self.read(look)

    # Changing

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
    ) -> Record:
        now = timestamps.now()
        fresh = {
            "content": None if content is None else validation.content(content),
            "tags": None if tags is None else validation.tags(tags),
            "namespace": None if namespace is None else checked_namespace(namespace),
            "status": None if status is None else _settable(status),
        }
        fields = {name: value for name, value in fresh.items() if value is not None}
        if ttl is not None:
            lasting = validation.span(ttl)
            fields["expires_at"] = None if lasting is None else now + lasting  # type: ignore[assignment]
        if not fields:
            raise InvalidInput("Nothing is to be changed. Give content, tags, namespace, status or ttl.")

        def write(tx: Transaction) -> Record:
            before = _expected(tx, id, self.owner, expected_version)
            if before.status == "deleted":
                raise InvalidInput(f"The memory {before.id} is deleted. memory_restore brings it back; then change it.")
            after = replace(before, updated_at=now, **fields)
            return mutations.change(tx, before, after, "updated", who=who, reason=reason)

        return await self.write(write)

    async def delete(
        self, id: str, *, hard: bool = False, expected_version: int | None = None, who: str = "", reason: str = ""
    ) -> Record:
        """Softly, so that it can be brought back; or for good."""
        now = timestamps.now()

        def write(tx: Transaction) -> Record:
            before = _expected(tx, id, self.owner, expected_version)
            if hard:
                mutations.remove(tx, [before], now)
                return before
            return mutations.delete(tx, before, now, who=who, reason=reason)

        return await self.write(write)

    async def restore(self, id: str, *, who: str = "") -> Record:
        """Bring back what was deleted, superseded or archived, as it was before."""
        now = timestamps.now()

        def write(tx: Transaction) -> Record:
            before = records.get(tx, _id(id), self.owner)
            if before.status in CURRENT:
                return before
            past = [one.was.status for one in records.history(tx, before.id, limit=1)]
            status = past[0] if past and past[0] in CURRENT else "active"
            after = replace(before, status=status, deleted_at=None, updated_at=now)
            if after.expires_at is not None and after.expires_at <= now:
                after = replace(after, expires_at=None)
            return mutations.change(tx, before, after, "restored", who=who)

        return await self.write(write)

    async def reindex(self, done: Callable[[int, int], None] = lambda count, total: None) -> int:
        """Build the index anew, and note anew what memories speak of, a batch at a time; others go on meanwhile."""
        total = await self.read(lambda tx: tx.one(int, "select count(*) from memory"))
        count, last = 0, ""

        def some(tx: Transaction) -> list[Record]:
            found = records.which(tx, "memory.id > :last", {"last": last}, BATCH)
            entities.note_anew(tx, found)
            return found

        while found := await self.write(some):
            count, last = count + len(found), found[-1].id
            done(count, 2 * total)
        await self.write(index_builder.begin)
        while lot := await self.write(index_builder.build):
            count += lot
            done(min(count, 2 * total), 2 * total)
        await self.loaded(total)
        return total

    async def delete_all(
        self,
        filter: MemoryFilter,
        *,
        dry_run: bool = True,
        hard: bool = False,
        who: str = "",
        done: Callable[[int], object] = lambda count: None,
    ) -> Sweep:
        """Everything that a filter lets through, a few at a time. Where it is cancelled, those of before are deleted;
        `done` is told how many that are."""
        if filter.words:
            raise InvalidInput(f"{filter.words[:80]!r} is no condition, and words are not enough to delete by.")
        if not filter.conditions and filter.since is None and filter.until is None:
            raise InvalidInput(
                "A filter is needed, such as ns:progress until:2026-01-31. domain:project is everything there."
            )
        if not hard and filter.names("status"):
            filter = replace(filter, conditions=(*filter.conditions, NOT_DELETED))
        now = timestamps.now()
        statuses = STATUSES if hard else CURRENT
        after: Listed | None = None

        def look(tx: Transaction) -> list[Listed]:
            return listing.listed(tx, filter, limit=PIECE, at=now, statuses=statuses, after=after)

        def delete(tx: Transaction) -> list[Listed]:
            found = listing.matching(tx, filter, limit=BATCH, at=now, statuses=statuses, after=after)
            if hard:
                mutations.remove(tx, found, now)
            for one in found if not hard else ():
                mutations.delete(tx, one, now, who=who, reason="delete_all")
            return [(one.at, one.id) for one in found]

        first: list[str] = []
        count = 0
        while some := await (self.read(look) if dry_run else self.write(delete)):
            first += [id for _, id in some[: 100 - len(first)]]
            count, after = count + len(some), some[-1]
            done(count)
        return Sweep(first, count)


def _page(hits: list[Hit], limit: int, offset: int) -> RecallPage:
    return RecallPage(hits[offset : offset + limit], len(hits) > offset + limit)


def _expected(tx: Transaction, id: str, owner: str, version: int | None) -> Record:
    found = records.get(tx, _id(id), owner)
    if version is not None and version != found.version:
        raise MemoryChanged(found.id, version, found.version)
    return found


def _id(given: str) -> str:
    """An id, or an address that ends with one: `memory://project/decisions/1f…`, `urn:memory:project:decisions:1f…`."""
    return texts.storable(given).strip().rstrip("/").rpartition("/")[2].rpartition(":")[2]


def _settable(status: str) -> str:
    if status not in STATUSES or status == "deleted":
        settable = ", ".join(one for one in STATUSES if one != "deleted")
        raise InvalidInput(f"Invalid status: {status[:40]}. Use one of {settable}; memory_delete deletes.")
    return status


def _bounded(limit: int, offset: int) -> tuple[int, int]:
    if not 1 <= limit <= MOST_RESULTS or not 0 <= offset <= 1_000_000:
        raise InvalidInput(f"limit is 1 to {MOST_RESULTS}, and offset 0 to 1,000,000.")
    return limit, offset


def refusal_of(failure: StoreError) -> MemoryRefusal:
    """What a client is told of a failed store: without the paths and addresses that the store names."""
    if isinstance(failure, UnfitValue):
        return InvalidInput("An argument has a NUL or half of a character, which no database holds. Leave it out.")
    return MemoryStoreFailed(f"The memory could not be stored or read: {failure.outward}.", retryable=failure.passing)
