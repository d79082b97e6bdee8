"""Answers of hooks that write, and of those whose database one look is not enough for: PostgreSQL, older tables."""

from __future__ import annotations

import asyncio
from typing import Any

from portico.extend import Database
from portico_services import timestamps
from portico_services.git_project import Where
from portico_services.memory.extras.hooks import responses, transcript
from portico_services.memory.extras.hooks.responses import Answer
from portico_services.memory.extras.hooks.transcript import Picked
from portico_services.memory.store import garbage_collection
from portico_services.memory.store.capture import Draft
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.namespaces import suggested
from portico_services.memory.store.screening import Guard


def answer(name: str, given: dict[str, Any], url: str, where: Where, *, patience: float) -> Answer | None:
    """What the hook prints, as JSON; None for nothing. `patience` is for a lock of the database, in seconds."""
    return asyncio.run(_answer(name, given, url, where, patience))


async def _answer(name: str, given: dict[str, Any], url: str, where: Where, patience: float) -> Answer | None:
    async with Database(url, patience=patience) as database:
        memories = Memories(database, project=where.project, root=where.root, former=where.former)
        await memories.open()
        try:
            return await _answer_from(memories, name, given, where)
        finally:
            await memories.close()


async def _answer_from(memories: Memories, name: str, given: dict[str, Any], where: Where) -> Answer | None:
    if name == "pre-compact":
        for picked in transcript.pick(responses.said(given, "transcript_path")):
            await _capture(memories, picked, responses.said(given, "session_id"))
        return None
    if name == "stop":
        await garbage_collection.collect(memories, dry_run=False)
        return None
    now = timestamps.now()
    return await memories.read(lambda tx: responses.look(name, given, where, tx, now))


async def _capture(memories: Memories, picked: Picked, session: str) -> None:
    """As pending, because nothing says that it should be stored; redacted, because there is no one to ask."""
    content, _ = Guard("redact", "redact").passed(picked.sentence)
    draft = Draft(
        content=content,
        namespace=suggested(content),
        tags=["picked-up"],
        source="pre-compact",
        author=picked.author,
        thread=session[:200] or None,
    )
    captured = await memories.capture(draft)
    if captured.is_new:
        await memories.update(captured.record.id, status="pending")
