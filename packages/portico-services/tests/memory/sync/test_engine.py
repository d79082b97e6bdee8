"""Synchronisation of two clones of a repository, with real git."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from portico import UsageError
from portico_services import git_project
from portico_services.memory.errors import MemoryNotFound, SyncError
from portico_services.memory.store import conflicts, garbage_collection
from portico_services.memory.store.screening import ContentScreen
from portico_services.memory.sync import git_repository as git_module
from portico_services.memory.sync.engine import SYNC_REF, sync_memories
from support.git_clones import Clone, file_command, git, page, push_changes, read_state, sync_both
from support.memories import KEY, call_failing_tool, capture_memory, search_contents

TIMEOUT_SECONDS = 60.0

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")


async def test_memories_captured_in_one_clone_are_recalled_in_the_other(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "Ann knows about bananas", tags=["fruit"])
    await capture_memory(bob, "Bob knows about cherries")
    await capture_memory(ann, "This is private", domain="user")
    assert (await sync_memories(ann)).sent == 1
    synced = await sync_memories(bob)
    assert (synced.added, synced.sent) == (1, 1)
    assert (await sync_memories(ann)).added == 1
    assert await search_contents(bob, "bananas") == ["Ann knows about bananas"]
    assert await search_contents(ann, "cherries") == ["Bob knows about cherries"]
    assert await search_contents(bob, "private") == []
    again = await sync_memories(ann)
    assert (again.added, again.updated, again.sent, again.merged) == (0, 0, 0, 0)


async def test_changes_and_deletions_travel(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    first, second = await capture_memory(ann, "first about apples"), await capture_memory(ann, "second about pears")
    await sync_both(ann, bob)
    await ann.update(first.id, content="first about oranges", who="ann")
    await bob.delete(second.id)
    await sync_both(ann, bob)
    assert await search_contents(bob, "oranges") == ["first about oranges"]
    assert (await ann.get(second.id)).status == "deleted"
    assert (await bob.history(first.id))[1][0].change == "synced"
    await bob.restore(second.id)
    await sync_both(ann, bob)
    assert (await ann.get(second.id)).status == "active"


async def test_different_parts_of_one_memory_are_put_together(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about plums", tags=["fruit", "old"])
    await sync_both(ann, bob)
    await ann.update(kept.id, content="about ripe plums")
    await bob.update(kept.id, tags=["fruit", "sweet"])
    await sync_memories(ann)
    synced = await sync_memories(bob)
    assert (synced.merged, synced.conflicts) == (1, [])
    await sync_both(ann, bob)
    after = await ann.get(kept.id)
    assert (after.content, after.tags, after.version) == ("about ripe plums", ["fruit", "sweet"], 3)


async def test_conflict_is_listed_and_decided_alike_by_both(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    await ann.update(kept.id, content="Ann's plums")
    await bob.update(kept.id, content="Bob's first plums")
    await bob.update(kept.id, content="Bob's plums")
    await sync_memories(ann)
    synced = await sync_memories(bob)
    assert [(conflict.id, conflict.fields, conflict.kept) for conflict in synced.conflicts] == [
        (kept.id, ["content"], "ours")
    ]
    await sync_both(ann, bob)
    assert (await ann.get(kept.id)).content == "Bob's plums"
    assert "Ann's plums" in [conflict.was.content for conflict in (await ann.history(kept.id))[1]]


async def test_concurrent_delete_and_update_are_merged(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    await ann.delete(kept.id)
    await bob.update(kept.id, content="about better plums")
    await sync_memories(ann)
    assert len((await sync_memories(bob)).conflicts) == 1
    await sync_both(ann, bob)
    after = await ann.get(kept.id)
    assert (after.status, after.content) == ("deleted", "about better plums")


async def test_permanently_deleted_memory_is_soft_deleted_in_other_clones(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    await ann.delete(kept.id, hard=True)
    await sync_both(ann, bob)
    with pytest.raises(MemoryNotFound):
        await ann.get(kept.id)
    assert (await bob.get(kept.id)).status == "deleted" and await search_contents(bob) == []
    await sync_both(ann, bob)
    # Somebody may have erased it by mistake, or another's.
    await bob.restore(kept.id)
    assert (await sync_memories(bob)).sent == 1


async def test_erased_memory_is_absent_from_the_git_history(clone: Clone, origin: Path, tmp_path: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about Zanzibarquux")
    await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    await ann.update(kept.id, content="about Zanzibarquux and more")
    await sync_both(ann, bob)
    assert "Zanzibarquux" in git(origin, "log", "-p", SYNC_REF)
    await garbage_collection.erase_memories(ann, id=kept.id)
    await sync_both(ann, bob)
    for folder in (origin, tmp_path / "ann", tmp_path / "bob"):
        assert "Zanzibarquux" not in git(folder, "log", "-p", "--all")
        assert not list(folder.glob("**/portico-*"))
        git(folder, "-c", "gc.pruneExpire=now", "gc", "--quiet", "--prune=now")
        objects = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
        assert "Zanzibarquux" not in "".join(git(folder, "cat-file", "-p", one) for one in objects)
    assert await search_contents(bob) == ["about plums"]
    await capture_memory(bob, "about pears")
    await sync_both(ann, bob)


async def test_three_clones_converge(clone: Clone) -> None:
    clones = [await clone(name) for name in ("ann", "bob", "cat")]
    kept = await capture_memory(clones[0], "about plums")
    for memories in (*clones, *clones):
        await sync_memories(memories)
    for at, memories in enumerate(clones):
        await memories.update(kept.id, content=f"plums of {at}", tags=[f"t{at}"])
        await capture_memory(memories, f"only known to number {at}")
    for memories in (*clones, *clones, *clones):
        await sync_memories(memories)
    states = [await read_state(memories) for memories in clones]
    assert states[0] == states[1] == states[2]
    assert len(states[0]) == 4
    assert (await sync_memories(clones[0])).sent == 0


async def test_synonyms_apply_in_one_direction(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about apples")
    await capture_memory(bob, "about pears")
    assert (await sync_memories(ann, direction="push")).sent == 1
    pushed = await sync_memories(bob, direction="push")
    assert (pushed.added, pushed.sent) == (0, 1)
    assert await search_contents(bob) == ["about pears"]
    fetched = await sync_memories(ann, direction="fetch")
    assert (fetched.added, fetched.sent) == (1, 0)
    await sync_both(ann, bob)


async def test_branches_and_files_are_left_alone(clone: Clone, origin: Path, tmp_path: Path) -> None:
    ann = await clone("ann")
    await capture_memory(ann, "about plums")
    await sync_memories(ann)
    assert git(tmp_path / "ann", "status", "--porcelain") == ""
    assert git(tmp_path / "ann", "branch", "--all") == ""
    assert SYNC_REF in git(origin, "for-each-ref")


async def test_memories_of_other_committers_are_validated(clone: Clone, origin: Path, tmp_path: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about plums")
    await sync_memories(ann)
    tip = git(origin, "rev-parse", SYNC_REF)
    stream = f"commit {SYNC_REF}\ncommitter Eve <eve@example.com> 0 +0000\ndata 4\nevil\nfrom {tip}\n"
    key = f'---\nid: "00aabbccdd"\nnamespace: "config"\n---\nThe key is {KEY}\n'
    evil = {
        "memories/00/00aabbccdd.md": key,
        "memories/11/11.md": "no head at all",
        "memories/22/22aabbccdd.md": '---\nid: "33aabbccdd"\nnamespace: "config"\n---\nnot its name\n',
        "memories/44/44aabbccdd.md": '---\nid: "44aabbccdd"\ndomain: "user"\nnamespace: "config"\n---\nof the user\n',
        "elsewhere/x.md": "not ours",
    }
    for path, text in evil.items():
        stream += f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n"
    git(origin, "fast-import", "--quiet", stdin=stream)
    synced = await sync_memories(bob, screen=ContentScreen().screen_text)
    assert (synced.added, len(synced.problems)) == (1, 4)
    assert KEY not in str(synced.problems)
    assert await search_contents(bob) == ["about plums"]


async def test_missing_repository_or_remote_is_reported(tmp_path: Path, clone: Clone) -> None:
    ann = await clone("ann")
    git(tmp_path / "ann", "remote", "remove", "origin")
    with pytest.raises(SyncError, match="no remote"):
        await sync_memories(ann)
    git(tmp_path / "ann", "remote", "add", "origin", str(tmp_path / "nowhere.git"))
    with pytest.raises(SyncError, match="git ls-remote failed") as failure:
        await sync_memories(ann)
    assert str(tmp_path) not in str(failure.value)
    for other in ("elsewhere", "--upload-pack=touch x", "ext::sh -c touch% x", str(tmp_path)):
        with pytest.raises(SyncError, match="Unknown remote"):
            await sync_memories(ann, remote=other)
    ann.root = None
    with pytest.raises(SyncError, match="requires a git repository"):
        await sync_memories(ann)


async def test_sync_that_fails_has_its_number(serving: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    client = await serving(project_dir=folder)
    _, error = await call_failing_tool(client, "memory_sync")
    assert error["number"] == -32610


def test_project_is_the_same_however_its_remote_is_written() -> None:
    for remote in (
        "https://github.com/Owner/name.git",
        "https://user:secret@github.com/Owner/name",
        "git@github.com:Owner/name.git",
        "ssh://git@github.com:22/Owner/name.git/",
        "ssh://git@ssh.github.com:443/owner/Name.git",
        "GIT@GitHub.com:OWNER/NAME",
    ):
        assert git_project.normalize_remote(remote) == "github.com/owner/name"
    for remote in ("https://ann@dev.azure.com/org/Shop/_git/api", "git@ssh.dev.azure.com:v3/org/shop/api"):
        assert git_project.normalize_remote(remote) == "dev.azure.com/org/shop/api"
    assert git_project.normalize_remote("git@git.corp:Owner/name.git") == "git.corp/Owner/name"
    assert git_project.normalize_remote("/srv/git/name.git") == "path/srv/git/name"
    assert git_project.normalize_remote("file:///srv/git/Name.git") == "path/srv/git/Name"


# What somebody who can push may do


async def test_names_that_git_would_take_for_commands_do_nothing(clone: Clone, origin: Path, tmp_path: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about plums")
    await sync_memories(ann)
    evil = '"memories/aa/x\\nreset refs/heads/taken\\nfrom refs/portico/memories^0\\n.md"'
    push_changes(origin, file_command(evil, "x") + file_command('"memories/aa/\\\\..\\t\\".md"', "y"))
    before = git(origin, "rev-parse", SYNC_REF)
    await capture_memory(bob, "about pears")
    synced = await sync_memories(bob)
    assert (synced.added, synced.sent, len(synced.problems)) == (1, 1, 2)
    for folder in (tmp_path / "bob", origin):
        assert "taken" not in git(folder, "for-each-ref")
    # What cannot be read is left where it is, byte for byte.
    old, new = (set(git(origin, "ls-tree", "-r", commit).splitlines()) for commit in (before, SYNC_REF))
    assert old <= new


async def test_links_and_oversized_files_are_ignored(clone: Clone, origin: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about plums")
    await sync_memories(ann)
    ids = [f"{number}" * 16 for number in range(1, 5)]
    paths = [f"memories/{id[:2]}/{id}.md" for id in ids]
    push_changes(
        origin,
        file_command(paths[0], "/etc/passwd", mode="120000")
        + file_command(paths[1], page(ids[1], "x" * 1_100_000))
        + file_command(paths[2], page(ids[2], "x" * 300_000))
        + f"M 160000 {git(origin, 'rev-parse', SYNC_REF)} {paths[3]}\n"
        + file_command("README.md", "elsewhere"),
    )
    synced = await sync_memories(bob)
    assert synced.added == 1 and len(synced.problems) == 4
    assert set(await read_state(bob)) == {kept.id}
    await bob.delete(kept.id)
    await sync_memories(bob)
    left = git(origin, "ls-tree", "-r", "--name-only", SYNC_REF).splitlines()
    assert {*paths, "README.md"} <= set(left)


async def test_head_that_lies_is_rejected(clone: Clone, origin: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about plums")
    await sync_memories(ann)
    ids = [f"{number:02d}" * 8 for number in range(10, 16)]
    lies = [
        page(ids[0], namespace="nonsense"),
        page(ids[1], status="asleep"),
        page(ids[2], at="yesterday"),
        page(ids[3], content="\0" * 10 + " "),
        page(ids[4], tags="not a list"),
        "---\n" + "[" * 5000 + "\n---\nx\n",
    ]
    push_changes(
        origin, "".join(file_command(f"memories/{id[:2]}/{id}.md", lie) for id, lie in zip(ids, lies, strict=True))
    )
    synced = await sync_memories(bob)
    assert len(synced.problems) == len(lies) - 1 and synced.added == 2
    assert all(len(problem) <= 300 for problem in synced.problems)
    assert "\ufffd" in (await bob.get(ids[3])).content


async def test_foreign_id_is_not_overwritten(clone: Clone, origin: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about plums")
    await sync_memories(ann)
    private = await capture_memory(bob, "This is private", domain="user")
    push_changes(origin, file_command(f"memories/{private.id[:2]}/{private.id}.md", page(private.id, "mine now")))
    synced = await sync_memories(bob)
    assert synced.added == 1 and len(synced.problems) == 1 and private.id in synced.problems[0]
    assert await bob.get(private.id) == private
    assert "private" not in git(origin, "grep", "-h", "", SYNC_REF)


async def test_more_than_can_be_held_is_rejected_without_being_read(
    clone: Clone, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    for number in range(20):
        await capture_memory(ann, f"number {number} about plums", on_duplicate="keep")
    await sync_memories(ann)
    monkeypatch.setattr(git_module, "MAX_READ_BYTES", 1000)
    synced = await sync_memories(bob)
    assert 0 < synced.added < 20 and len(synced.problems) == 20 - synced.added
    monkeypatch.setattr(git_module, "MAX_LISTING_BYTES", 500)
    with pytest.raises(SyncError, match="too large to read"):
        await sync_memories(bob)


# Without a network


async def test_memories_captured_while_the_remote_is_missing_are_sent_later(clone: Clone, origin: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    first = await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    shutil.move(origin, origin.parent / "away.git")
    await capture_memory(ann, "written on the train")
    await bob.update(first.id, content="about ripe plums")
    for memories in (ann, bob):
        with pytest.raises(SyncError, match="No memory is lost") as failure:
            await sync_memories(memories)
        # To try again does not help: first the repository has to be there.
        assert not failure.value.retryable
    shutil.move(origin.parent / "away.git", origin)
    await sync_both(ann, bob)
    assert sorted(await search_contents(bob)) == ["about ripe plums", "written on the train"]


async def test_concurrent_syncs_converge(clone: Clone) -> None:
    clones = [await clone(name) for name in ("ann", "bob", "cat")]
    for at, memories in enumerate(clones):
        await capture_memory(memories, f"only known to number {at}")
    await asyncio.gather(*(sync_memories(memories) for memories in clones), sync_memories(clones[0]))
    for memories in clones:
        await sync_memories(memories)
    states = [await read_state(memories) for memories in clones]
    assert states[0] == states[1] == states[2] and len(states[0]) == 3


async def test_enclosing_repository_is_not_used(clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a hook of another repository has started us."""
    ann = await clone("ann")
    await capture_memory(ann, "about plums")
    other = tmp_path / "other"
    git(tmp_path, "init", "--quiet", str(other))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert (await sync_memories(ann)).sent == 1


async def test_conflict_of_a_sync_is_listed_until_it_is_decided(clone: Clone) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    kept = await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    await ann.update(kept.id, content="Ann's plums")
    await bob.update(kept.id, content="Bob's plums")
    await sync_memories(ann)
    await sync_memories(bob)
    assert {"Ann's plums", "Bob's plums"} <= {item.was.content for item in (await bob.history(kept.id))[1]}
    (item,) = await conflicts.list_conflicts(bob, 10)
    assert item.memory_id == item.other_id == kept.id and "content" in item.why
    assert {item.content, item.other_content} == {"Ann's plums", "Bob's plums"}
    await conflicts.resolve_conflict(bob, kept.id, kept.id, "both")
    assert await conflicts.list_conflicts(bob, 10) == []


# By itself


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await condition():  # noqa: ASYNC110 (other processes and threads have no event to wait for)
            await asyncio.sleep(0.05)


async def test_memories_are_synced_by_themselves(clone: Clone, serving: Callable[..., Any], tmp_path: Path) -> None:
    bob = await clone("bob")
    await capture_memory(bob, "Bob knows about cherries")
    await sync_memories(bob)
    await clone("ann")
    client = await serving(store=str(tmp_path / "server.db"), project=None, project_dir=tmp_path / "ann", auto_sync=1)

    async def knows(text: str) -> bool:
        recalled = await client.call_tool("memory_recall", {"query": text})
        return text in str(recalled.structured)

    async def has_received() -> bool:
        return (await sync_memories(bob, direction="fetch")).added > 0

    await eventually(lambda: knows("cherries"))
    await client.call_tool("memory_capture", {"content": "Ann knows about bananas", "namespace": "context"})
    await eventually(has_received)
    assert await search_contents(bob, "bananas") == ["Ann knows about bananas"]


async def test_automatic_sync_that_fails_is_logged_and_stops_nothing(
    serving: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = await serving(store=str(tmp_path / "server.db"), project=None, project_dir=tmp_path, auto_sync=1)

    async def is_logged() -> bool:
        return "requires a git repository" in caplog.text

    await eventually(is_logged)
    captured = await client.call_tool("memory_capture", {"content": "fine", "namespace": "context"})
    assert captured.structured["stored"]


async def test_automatic_sync_needs_a_sensible_delay(serving: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="auto_sync must be between 1 and"):
        await serving(auto_sync=0)
