"""Separation of projects, and memories stored under earlier project names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services import git_project
from portico_services.memory.service import Memory
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.sync.engine import sync_memories
from support.engines import sqlite_engine  # noqa: F401
from support.git_clones import Clone, read_state
from support.memories import CAPTURE, call_tool

Serving = Callable[..., Any]


def app(folder: Path) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


async def contents(client: Client) -> list[str]:
    return [memory["content"] for memory in (await call_tool(client, "memory_recall"))["memories"]]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_two_folders_of_one_name_share_nothing(tmp_path: Path, revision: str) -> None:
    server = Server("s")
    server.add(Memory(tmp_path / "memory.db"))
    folders = [app(tmp_path / name / "app") for name in ("x", "y")]
    async with server.lifespan():
        for folder in folders:
            async with Client(server, protocol_version=revision, roots=[folder]) as client:
                await call_tool(client, "memory_capture", content=f"This is known in {folder}.", namespace="context")
        for folder in folders:
            async with Client(server, protocol_version=revision, roots=[folder]) as client:
                assert await contents(client) == [f"This is known in {folder}."]
                result = (await call_tool(client, "memory_recall", query="what is known in this app"))["memories"]
                assert [item["content"] for item in result] == [f"This is known in {folder}."]
                assert (await call_tool(client, "memory_status"))["project"] == f"path{folder}"
                listed = (await client.read_resource("memory://project/context"))[0].text
                assert str(folder) in listed and listed.count("This is known") == 1


async def test_capitals_of_a_remote_make_no_other_project(serving: Serving, tmp_path: Path) -> None:
    """And what was stored when they did is found."""
    before = await serving(project="github.com/Owner/App")
    await call_tool(before, "memory_capture", **CAPTURE)
    clones = []
    for name, remote in (("x", "https://github.com/Owner/App.git"), ("y", "git@github.com:owner/app")):
        folder = app(tmp_path / name / "app")
        (folder / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
        clones.append(await serving(project=None, project_dir=folder))
    assert await contents(clones[0]) == [CAPTURE["content"]]
    await call_tool(clones[1], "memory_capture", content="This is known in the other clone.", namespace="context")
    assert "This is known in the other clone." in await contents(clones[0])
    for name in ("github.com/Owner/App", "GitHub.com/owner/app"):
        result = await call_tool(clones[1], "memory_recall", filter=f"project:{name}")
        assert len(result["memories"]) == 2, name
    assert git_project.detect_project(tmp_path / "x" / "app").former == "github.com/Owner/App"


async def test_memories_stored_under_the_former_project_name_are_found(serving: Serving, tmp_path: Path) -> None:
    before = await serving(project="folder/app")
    await call_tool(before, "memory_capture", **CAPTURE)
    await call_tool(before, "memory_prompts", action="save", name="old", content="As before.")
    for name in ("x", "y"):
        client = await serving(project=None, project_dir=app(tmp_path / name / "app"))
        assert await contents(client) == [CAPTURE["content"]]
        result = await call_tool(client, "memory_recall", query="storage")
        assert [memory["content"] for memory in result["memories"]] == [CAPTURE["content"]]
        assert (await call_tool(client, "memory_prompts", action="run", name="old"))["text"] == "As before."
    fresh = await serving(project=None, project_dir=app(tmp_path / "x" / "other"))
    assert await contents(fresh) == []


async def test_sync_continues_after_project_rename(clone: Clone, tmp_path: Path) -> None:
    """As a version wrote it that knew folders by their last name alone."""
    ann, bob = await clone("ann"), await clone("bob")
    for item in (ann, bob):
        item.project, item.former = "folder/origin", None
    kept = (await ann.capture(MemoryDraft(content="Use PostgreSQL for storage", namespace="decisions"))).record
    await sync_memories(ann)
    await sync_memories(bob)
    later = bob.for_project(git_project.detect_project(tmp_path / "bob"))
    assert later.project != "folder/origin" and later.former == "folder/origin"
    done = await sync_memories(later)
    assert (done.added, done.updated, done.sent, done.problems) == (0, 0, 0, [])
    assert (await later.get(kept.id)).project == later.project
    await later.update(kept.id, content="Use PostgreSQL 17 for storage")
    assert (await sync_memories(later)).sent == 1
    today = ann.for_project(git_project.detect_project(tmp_path / "ann"))
    assert (await sync_memories(today)).updated == 1
    assert (await read_state(today))[kept.id].content == "Use PostgreSQL 17 for storage"


def test_hooks_tell_folders_of_one_name_apart(
    shell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x", "y"):
        monkeypatch.chdir(app(tmp_path / name / "app"))
        shell("capture", f"Known in {name} alone.", "-n", "context")
    for name in ("x", "y"):
        result = json.dumps({"cwd": str(tmp_path / name / "app")})
        (answer,) = shell("hook", "session-start", stdin=result)
        assert re.findall(r"Known in \w alone", str(answer)) == [f"Known in {name} alone"]


# Authors


@pytest.fixture
def git_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own configuration of git."""
    path = tmp_path / "gitconfig"
    path.write_text(
        '[alias]\n\tname = log\n[user]\n\temail = ann@example.com\n\tname = "Ann Smith"\n[core]\n\tname = x\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    monkeypatch.delenv("GIT_AUTHOR_NAME", raising=False)
    return path


def replace_text(path: Path, text: str) -> None:
    path.write_text(text)


async def captured_by(client: Client, **arguments: Any) -> tuple[str | None, str | None]:
    """The author, and whom the history names."""
    id = (await call_tool(client, "memory_capture", **CAPTURE, **arguments))["id"]
    history = await call_tool(client, "memory_history", memory_id=id)
    return (await call_tool(client, "memory_get", memory_id=id)).get("author"), history["changes"][-1].get("who")


async def test_author_of_a_capture_in_a_repository_is_that_of_git(
    serving: Serving, tmp_path: Path, git_user: Path
) -> None:
    folder = app(tmp_path / "app")
    client = await serving(project=None, project_dir=folder)
    assert await captured_by(client) == ("Ann Smith", "Ann Smith")
    assert (await captured_by(client, author="bob", on_duplicate="keep"))[0] == "bob"
    assert (await captured_by(client, domain="user"))[0] is None
    replace_text(folder / ".git" / "config", "[user]\n  name = Ann of this repository\n")
    assert (await captured_by(client, on_duplicate="keep"))[0] == "Ann of this repository"


async def test_memory_captured_outside_a_repository_has_no_author(
    serving: Serving, tmp_path: Path, git_user: Path
) -> None:
    assert await captured_by(await serving(project=None, project_dir=tmp_path)) == (None, None)
    assert await captured_by(await serving(project="other", project_dir=app(tmp_path / "app"))) == (None, None)


async def test_name_that_may_not_be_stored_is_left_out(serving: Serving, tmp_path: Path, git_user: Path) -> None:
    replace_text(git_user, "[user]\n\tname = ann.lee@lindholm-bakery.se\n")
    client = await serving(project=None, project_dir=app(tmp_path / "app"), pii="block")
    assert (await captured_by(client))[0] is None
