"""What a sync costs: what has changed, and nothing else. And what it says when the remote is not to be had."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from clones import Clone, git, state
from remembering import keep

from portico_services import git_project
from portico_services.memory.errors import SyncFailed
from portico_services.memory.store import garbage_collection
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.sync import serialization
from portico_services.memory.sync.engine import Synced, sync
from portico_services.memory.sync.git_repository import Git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
MANY = 40


class Counted:
    """How many pages were written and read, and how often all files were listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = self.read = self.listed = 0
        page, from_page, listing = serialization.page, serialization.from_page, Git.listing

        def write(record: Any) -> str:
            self.written += 1
            return page(record)

        def read(text: str) -> Any:
            self.read += 1
            return from_page(text)

        def listed(git: Git, *words: Any) -> Any:
            self.listed += 1
            return listing(git, *words)

        monkeypatch.setattr(serialization, "page", write)
        monkeypatch.setattr(serialization, "from_page", read)
        monkeypatch.setattr(Git, "listing", listed)

    async def sync(self, memories: Memories, **more: Any) -> Synced:
        self.written = self.read = self.listed = 0
        return await sync(memories, **more)


async def together(clone: Clone) -> tuple[Memories, Memories, list[str]]:
    """Two clones that have the same."""
    ann, bob = await clone("ann"), await clone("bob")
    ids = [(await keep(ann, f"This is the note number {number}, about fruit.")).id for number in range(MANY)]
    for one in (ann, bob, ann, bob):
        await sync(one)
    assert len(await state(bob)) == MANY
    return ann, bob, ids


async def test_a_sync_with_nothing_new_writes_and_reads_no_page(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, _ = await together(clone)
    counted = Counted(monkeypatch)
    for one in (ann, bob):
        done = await counted.sync(one)
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


async def test_what_is_pushed_alone_hides_nothing_of_theirs(clone: Clone) -> None:
    ann, bob, ids = await together(clone)
    await bob.update(ids[1], content="Bob knows better.")
    await sync(bob)
    await ann.update(ids[2], content="Ann knows better.")
    assert (await sync(ann, direction="push")).sent == 1
    assert (await ann.get(ids[1])).content != "Bob knows better."
    assert (await sync(ann)).updated == 1
    assert (await sync(bob)).updated == 1
    assert await state(ann) == await state(bob)


async def test_what_is_only_fetched_is_still_sent_later(clone: Clone) -> None:
    ann, bob, ids = await together(clone)
    await ann.update(ids[1], content="Ann knows better.")
    await bob.update(ids[2], content="Bob knows better.")
    await sync(bob)
    assert (await sync(ann, direction="fetch")).updated == 1
    assert (await sync(ann)).sent == 1
    assert (await sync(bob)).updated == 1
    assert await state(ann) == await state(bob)


async def test_what_was_lost_here_without_a_trace_comes_back(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a backup was put back."""
    ann, _, ids = await together(clone)
    await ann.write(lambda tx: tx.run("delete from memory where id = :id", {"id": ids[0]}))
    assert (await sync(ann)).added == 1
    assert (await ann.get(ids[0])).content.startswith("This is the note number 0")


async def test_what_was_erased_is_taken_away_there_once(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, ids = await together(clone)
    await garbage_collection.erase(ann, id=ids[0])
    assert (await sync(ann)).sent == 1
    assert (await sync(ann)).sent == 0
    assert (await sync(bob)).removed == 1
    assert (await sync(bob)).sent == 0


# Words


@pytest.mark.parametrize("address", ["{tmp}/nobody/made/this.git", "file://{tmp}/nobody/made/this.git"])
async def test_a_repository_that_is_not_there_is_no_reason_to_try_again(
    clone: Clone, tmp_path: Path, address: str
) -> None:
    ann = await clone("ann")
    git(tmp_path / "ann", "remote", "set-url", "origin", address.format(tmp=tmp_path))
    with pytest.raises(SyncFailed, match="there is no repository at the address of this remote") as caught:
        await sync(ann)
    assert not caught.value.retryable
    assert str(tmp_path) not in str(caught.value)


async def test_what_the_remote_refuses_is_said_to_be_refused(clone: Clone, tmp_path: Path) -> None:
    """As a protected branch is, or a ref that a host keeps to itself."""
    ann = await clone("ann")
    await keep(ann, "This is to be shared, and may not be.")
    origin = Path(git(tmp_path / "ann", "remote", "get-url", "origin"))
    git(origin, "config", "receive.hideRefs", "refs/portico")
    with pytest.raises(SyncFailed, match=r"the remote refuses it \(deny updating a hidden ref\)") as refusal:
        await sync(ann)
    assert not refusal.value.described()["retryable"]
    git(origin, "config", "--unset", "receive.hideRefs")
    assert (await sync(ann)).sent == 1


async def test_who_comes_too_late_every_time_may_try_again(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await clone("ann")
    await keep(ann, "This is to be shared, and others are quicker.")
    monkeypatch.setattr(Git, "push", lambda *words: False)
    with pytest.raises(SyncFailed, match="quicker every time") as refusal:
        await sync(ann)
    assert refusal.value.described()["retryable"]


async def test_a_server_that_is_not_reached_is_a_reason_to_try_again(clone: Clone, tmp_path: Path) -> None:
    ann = await clone("ann")
    git(tmp_path / "ann", "remote", "set-url", "origin", "git://127.0.0.1:1/team/shop.git")
    with pytest.raises(SyncFailed, match="Try again later") as caught:
        await sync(ann)
    assert caught.value.retryable
    assert "shop.git" not in str(caught.value)


async def test_either_engine_knows_what_has_changed(memories: Memories, clone: Clone, tmp_path: Path) -> None:
    await clone("ann")
    here = memories.of(git_project.look(tmp_path / "ann"))
    kept = await keep(here, "Use PostgreSQL for storage")
    assert [(await sync(here)).sent, (await sync(here)).sent] == [1, 0]
    await here.update(kept.id, tags=["database"])
    assert [(await sync(here)).sent, (await sync(here)).sent] == [1, 0]
