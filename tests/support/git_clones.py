"""Create clones of one git repository, and commits of an attacker who can push."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.records import MemoryRecord
from portico_services.memory.sync.engine import SYNC_REF, sync_memories

Clone = Callable[[str], Any]
GONE = MemoryRecord(
    id="", domain="", namespace="", content="", status="deleted", at=0, created_at=0, updated_at=0, digest=""
)


def git(folder: Path, *words: str, stdin: str = "") -> str:
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, input=stdin, capture_output=True, check=True, text=True)
    return done.stdout.strip()


async def read_state(memories: MemoryStore) -> dict[str, Any]:
    page = await memories.recall("", memories.filter("status:active,archived,superseded,pending,deleted"), limit=1000)
    return {hit.record.id: replace(hit.record, origin=None) for hit in page.hits}


async def sync_both(one: MemoryStore, other: MemoryStore) -> None:
    """Synchronise until both stores have the same memories."""
    for memories in (one, other, one):
        await sync_memories(memories)
    ours, theirs = await read_state(one), await read_state(other)
    for id in {*ours, *theirs}:
        # A memory that was purged in one store is marked as deleted in the other.
        assert ours.get(id) == theirs.get(id) or {ours.get(id, GONE).status, theirs.get(id, GONE).status} <= {"deleted"}


def push_changes(origin: Path, changes: str, who: str = "Eve <eve@example.com>") -> None:
    """Commit on the sync ref with raw fast-import commands."""
    tip = git(origin, "rev-parse", SYNC_REF)
    head = f"commit {SYNC_REF}\ncommitter {who} 0 +0000\ndata 4\nevil\nfrom {tip}\n"
    git(origin, "fast-import", "--quiet", stdin=head + changes)


def file_command(path: str, text: str, mode: str = "100644") -> str:
    return f"M {mode} inline {path}\ndata {len(text.encode())}\n{text}\n"


def page(id: str, content: str = "fine", **more: Any) -> str:
    head = "".join(
        f"{name}: {json.dumps(value)}\n" for name, value in {"id": id, "namespace": "config", **more}.items()
    )
    return f"---\n{head}---\n{content}\n"


def path(id: str) -> str:
    return f"memories/{id[:2]}/{id}.md"
