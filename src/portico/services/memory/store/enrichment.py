"""Making one memory easier to find: tags, a clearer text, what is known around it."""

from __future__ import annotations

from msgspec import Struct

from portico.services.memory.store import advice, entities, inputs, records
from portico.services.memory.store.advice import Ask
from portico.services.memory.store.filters import MemoryFilter
from portico.services.memory.store.memories import Memories
from portico.services.memory.store.records import Record

NEAR = 5
# Of a long text, the beginning is enough to find what is around it.
LONGEST_QUESTION = 400


class Enrichment(Struct, frozen=True, kw_only=True):
    """What is added. `by` says who thought of it: client, provider or local."""

    record: Record
    tags: list[str]
    content: str
    entities: list[str]
    by: str


async def enrich(
    memories: Memories, id: str, *, tags: bool, structure: bool, context: bool, ask: Ask | None
) -> Enrichment:
    """A proposal; nothing is written yet."""
    record = await memories.get(id)
    by = "local"
    found: list[str] = []
    content = record.content
    if tags:
        answer = None if ask is None else await ask(advice.ask_for_tags(record.content), advice.TAGS_TOKENS)
        found = [] if answer is None else [one for one in advice.read_tags(answer.text) if one not in record.tags]
        by = answer.by if answer is not None and found else by
        found = (found or advice.local_tags(record))[: max(0, inputs.MOST_TAGS - len(record.tags))]
    if structure and ask is not None:
        answer = await ask(advice.ask_for_structure(record.content), advice.SUMMARY_TOKENS)
        if answer is not None:
            content, by = answer.text, answer.by
    if context:
        near = await _near(memories, record)
        answer = None
        if ask is not None and near:
            answer = await ask(advice.ask_for_context(record.content, near), advice.SUMMARY_TOKENS)
        more = f"\n\nSee also: {', '.join(one.id for one in near)}" if near else ""
        if answer is not None:
            more, by = f"\n\nContext: {answer.text}", answer.by
        # What has no room left is long enough to be understood by itself.
        content += more if len(content) + len(more) <= inputs.LONGEST_CONTENT else ""
    named, _ = entities.extract(content, record.author)
    return Enrichment(record=record, tags=found, content=content, entities=[one.label for one in named], by=by)


async def _near(memories: Memories, record: Record) -> list[Record]:
    wanted = MemoryFilter().within(memories.project)
    page = await memories.recall(record.content[:LONGEST_QUESTION], wanted, limit=NEAR + 1)
    return [hit.record for hit in page.hits if hit.record.id != record.id][:NEAR]


async def apply(memories: Memories, proposed: Enrichment, *, who: str = "") -> records.Record:
    """Refused if the memory has changed since the proposal was made."""
    before = proposed.record
    if not proposed.tags and proposed.content == before.content:
        return before
    return await memories.update(
        before.id,
        content=proposed.content,
        tags=[*before.tags, *proposed.tags],
        expected_version=before.version,
        who=who,
        reason=f"enriched ({proposed.by})",
    )
