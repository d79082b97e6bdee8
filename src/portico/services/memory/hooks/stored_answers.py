"""Answers of hooks that write, and of those whose database one look is not enough for: PostgreSQL, older tables."""

from __future__ import annotations

import asyncio
from typing import Any

from portico.extend import Database
from portico.services import moments
from portico.services.memory.hooks import answers, transcript_picks
from portico.services.memory.hooks.answers import Answer
from portico.services.memory.hooks.transcript_picks import Picked
from portico.services.memory.store import cleanup
from portico.services.memory.store.capture import Draft
from portico.services.memory.store.memories import Memories
from portico.services.memory.store.namespaces import suggested
from portico.services.memory.store.screening_policy import Guard
from portico.services.repository import Where


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
        for picked in transcript_picks.pick(answers.said(given, "transcript_path")):
            await _capture(memories, picked, answers.said(given, "session_id"))
        return None
    if name == "stop":
        await cleanup.collect(memories, dry_run=False)
        return None
    now = moments.now()
    return await memories.read(lambda tx: answers.look(name, given, where, tx, now))


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
