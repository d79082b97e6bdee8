"""The cost of a sync depends on the changes only; errors of unreachable remotes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from portico_services import git_project
from portico_services.memory.errors import SyncError
from portico_services.memory.store import garbage_collection
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.sync import engine, git_repository, serialization
from portico_services.memory.sync.engine import SyncReport, sync_memories
from portico_services.memory.sync.git_repository import GitRepository
from support.git_clones import Clone, file_command, git, page, path, push_changes, read_state
from support.memories import capture_memory

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
MANY = 40


class Counted:
    """How many pages were written and read, and how often all files were listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = self.read = self.listed = 0
        page, from_page, listing = (
            serialization.to_markdown_file,
            serialization.from_markdown_file,
            GitRepository.list_tree,
        )

        def write(record: Any) -> str:
            self.written += 1
            return page(record)

        def read(text: str) -> Any:
            self.read += 1
            return from_page(text)

        def listed(git: GitRepository, *words: Any) -> Any:
            self.listed += 1
            return listing(git, *words)

        monkeypatch.setattr(serialization, "to_markdown_file", write)
        monkeypatch.setattr(serialization, "from_markdown_file", read)
        monkeypatch.setattr(GitRepository, "list_tree", listed)

    async def sync(self, memories: MemoryStore, **more: Any) -> SyncReport:
        self.written = self.read = self.listed = 0
        return await sync_memories(memories, **more)


async def together(clone: Clone) -> tuple[MemoryStore, MemoryStore, list[str]]:
    """Two clones that have the same."""
    ann, bob = await clone("ann"), await clone("bob")
    ids = [(await capture_memory(ann, f"This is the note number {number}, about fruit.")).id for number in range(MANY)]
    for item in (ann, bob, ann, bob):
        await sync_memories(item)
    assert len(await read_state(bob)) == MANY
    return ann, bob, ids


async def test_sync_with_nothing_new_writes_and_reads_no_page(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, _ = await together(clone)
    counted = Counted(monkeypatch)
    for item in (ann, bob):
        done = await counted.sync(item)
        assert (done.added, done.updated, done.sent) == (0, 0, 0)
        assert (counted.written, counted.read, counted.listed) == (0, 0, 0)


async def test_one_change_costs_one_change(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, ids = await together(clone)
    counted = Counted(monkeypatch)
    await ann.update(ids[3], content="This is another one now.")
    assert (await counted.sync(ann)).sent == 1
    assert counted.written <= 2 and (counted.read, counted.listed) == (0, 0)
    assert (await counted.sync(bob)).updated == 1
    assert counted.written <= 3 and (counted.read, counted.listed) == (1, 0)
    assert (await bob.get(ids[3])).content == "This is another one now."
    await bob.delete(ids[5])
    assert (await counted.sync(bob)).sent == 1 and counted.written <= 2
    assert (await counted.sync(ann)).updated == 1 and counted.read == 1
    assert (await ann.get(ids[5])).status == "deleted"


async def test_one_push_costs_a_bounded_amount_of_screening(
    clone: Clone, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Screening is slow, and who can push chooses the files, their sizes, and the name of the author of them all.
    monkeypatch.setattr(git_repository, "MAX_READ_BYTES", 100_000)
    ann = await clone("ann")
    await capture_memory(ann, "The note that makes the ref.")
    await sync_memories(ann)
    files, content = [f"{number:016x}" for number in range(60)], "fine words " * 500
    author = f"{'Eve ' * 20_000}<eve@example.com>"
    push_changes(origin, "".join(file_command(path(id), page(id, content)) for id in files), author)
    screened: list[int] = []

    def screen(text: str) -> tuple[str, list[str]]:
        screened.append(len(text))
        return text, []

    for _ in range(10):
        screened.clear()
        await sync_memories(ann, screen=screen)
        # The files that are read, and their author, whose name is screened in three forms at most.
        assert sum(screened) <= 100_000 + 3 * engine.MAX_SCREENED_ORIGIN_CHARS
    assert len(await read_state(ann)) == len(files) + 1


async def test_push_alone_does_not_lose_remote_changes(clone: Clone) -> None:
    ann, bob, ids = await together(clone)
    await bob.update(ids[1], content="Bob knows better.")
    await sync_memories(bob)
    await ann.update(ids[2], content="Ann knows better.")
    assert (await sync_memories(ann, direction="push")).sent == 1
    assert (await ann.get(ids[1])).content != "Bob knows better."
    assert (await sync_memories(ann)).updated == 1
    assert (await sync_memories(bob)).updated == 1
    assert await read_state(ann) == await read_state(bob)


async def test_fetched_only_changes_are_still_sent_later(clone: Clone) -> None:
    ann, bob, ids = await together(clone)
    await ann.update(ids[1], content="Ann knows better.")
    await bob.update(ids[2], content="Bob knows better.")
    await sync_memories(bob)
    assert (await sync_memories(ann, direction="fetch")).updated == 1
    assert (await sync_memories(ann)).sent == 1
    assert (await sync_memories(bob)).updated == 1
    assert await read_state(ann) == await read_state(bob)


async def test_locally_lost_memory_is_fetched_again(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a backup was put back."""
    ann, _, ids = await together(clone)
    await ann.write(lambda tx: tx.execute("delete from memory where id = :id", {"id": ids[0]}))
    assert (await sync_memories(ann)).added == 1
    assert (await ann.get(ids[0])).content.startswith("This is the note number 0")


async def test_erased_memory_is_removed_from_the_remote_once(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, ids = await together(clone)
    await garbage_collection.erase_memories(ann, id=ids[0])
    assert (await sync_memories(ann)).sent == 1
    assert (await sync_memories(ann)).sent == 0
    assert (await sync_memories(bob)).removed == 1
    assert (await sync_memories(bob)).sent == 0


# Words


@pytest.mark.parametrize("address", ["{tmp}/nobody/made/this.git", "file://{tmp}/nobody/made/this.git"])
async def test_missing_remote_repository_is_not_retryable(clone: Clone, tmp_path: Path, address: str) -> None:
    ann = await clone("ann")
    git(tmp_path / "ann", "remote", "set-url", "origin", address.format(tmp=tmp_path))
    with pytest.raises(SyncError, match="no repository exists at the URL of this remote") as caught:
        await sync_memories(ann)
    assert not caught.value.retryable
    assert str(tmp_path) not in str(caught.value)


async def test_push_rejected_by_the_remote_is_reported(clone: Clone, tmp_path: Path) -> None:
    """As a protected branch is, or a ref that a host keeps to itself."""
    ann = await clone("ann")
    await capture_memory(ann, "This is to be shared, and may not be.")
    origin = Path(git(tmp_path / "ann", "remote", "get-url", "origin"))
    git(origin, "config", "receive.hideRefs", "refs/portico")
    with pytest.raises(SyncError, match=r"the remote rejected the push \(deny updating a hidden ref\)") as refusal:
        await sync_memories(ann)
    assert not refusal.value.to_meta()["retryable"]
    git(origin, "config", "--unset", "receive.hideRefs")
    assert (await sync_memories(ann)).sent == 1


async def test_lost_push_race_is_retryable(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await clone("ann")
    await capture_memory(ann, "This is to be shared, and others are quicker.")
    monkeypatch.setattr(GitRepository, "push", lambda *words: False)
    with pytest.raises(SyncError, match="on every attempt") as refusal:
        await sync_memories(ann)
    assert refusal.value.to_meta()["retryable"]


async def test_server_that_is_not_reached_is_a_reason_to_try_again(clone: Clone, tmp_path: Path) -> None:
    ann = await clone("ann")
    git(tmp_path / "ann", "remote", "set-url", "origin", "git://127.0.0.1:1/team/shop.git")
    with pytest.raises(SyncError, match="Try again later") as caught:
        await sync_memories(ann)
    assert caught.value.retryable
    assert "shop.git" not in str(caught.value)


async def test_sync_sends_only_changed_memories_on_either_engine(
    memories: MemoryStore, clone: Clone, tmp_path: Path
) -> None:
    await clone("ann")
    here = memories.for_project(git_project.detect_project(tmp_path / "ann"))
    kept = await capture_memory(here, "Use PostgreSQL for storage")
    assert [(await sync_memories(here)).sent, (await sync_memories(here)).sent] == [1, 0]
    await here.update(kept.id, tags=["database"])
    assert [(await sync_memories(here)).sent, (await sync_memories(here)).sent] == [1, 0]
