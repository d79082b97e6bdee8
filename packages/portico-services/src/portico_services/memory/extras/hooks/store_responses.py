"""Responses of hooks that write, and of those whose database cannot be read directly: PostgreSQL, outdated schemas."""

from __future__ import annotations

import asyncio
from typing import Any

from portico.extend import Database
from portico_services import timestamps
from portico_services.git_project import ProjectInfo
from portico_services.memory.extras.hooks import responses, transcript
from portico_services.memory.extras.hooks.responses import HookOutput
from portico_services.memory.extras.hooks.transcript import TranscriptExcerpt
from portico_services.memory.store import garbage_collection
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.namespaces import suggest_namespace
from portico_services.memory.store.screening import ContentScreen


def respond_from_store(
    name: str, hook_input: dict[str, Any], url: str, project: ProjectInfo, *, busy_timeout: float
) -> HookOutput | None:
    """Return the JSON output of a hook, or None for no output. `patience` is the lock timeout of the database in
    seconds.
    """
    return asyncio.run(_store_response(name, hook_input, url, project, busy_timeout))


async def _store_response(
    name: str, hook_input: dict[str, Any], url: str, project: ProjectInfo, busy_timeout: float
) -> HookOutput | None:
    async with Database(url, timeout=busy_timeout) as database:
        memories = MemoryStore(database, project=project.project, root=project.root, former=project.former)
        await memories.open()
        try:
            return await _respond(memories, name, hook_input, project)
        finally:
            await memories.close()


async def _respond(
    memories: MemoryStore, name: str, hook_input: dict[str, Any], project: ProjectInfo
) -> HookOutput | None:
    if name == "pre-compact":
        for picked in transcript.extract_decisions(responses.string_field(hook_input, "transcript_path")):
            await _capture_excerpts(memories, picked, responses.string_field(hook_input, "session_id"))
        return None
    if name == "stop":
        await garbage_collection.collect_garbage(memories, dry_run=False)
        return None
    now = timestamps.now_ms()
    return await memories.read(lambda tx: responses.respond(name, hook_input, project, tx, now))


async def _capture_excerpts(memories: MemoryStore, picked: TranscriptExcerpt, session: str) -> None:
    """Capture excerpts with the status pending, because no one asked to store them, and redacted, because no one can
    confirm.
    """
    content, _ = ContentScreen("redact", "redact").screen_text(picked.sentence)
    draft = MemoryDraft(
        content=content,
        namespace=suggest_namespace(content),
        tags=["picked-up"],
        source="pre-compact",
        author=picked.author,
        thread=session[:200] or None,
    )
    captured = await memories.capture(draft)
    if captured.is_new:
        await memories.update(captured.record.id, status="pending")
