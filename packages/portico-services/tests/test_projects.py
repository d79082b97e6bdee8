"""Project of a call: client roots, repository remote, directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services import git_project, project_resolver as projects
from portico_services.git_project import ProjectInfo
from portico_services.project_resolver import ProjectResolver

Connect = Callable[..., Any]
HANDSHAKES = SUPPORTED_PROTOCOL_VERSIONS[:-1]


def asked(projects: ProjectResolver) -> Server:
    server = Server("s")

    @server.tool
    async def where(ctx: Context) -> str:
        return (await projects.resolve(ctx)).project

    return server


async def text(client: Client) -> str:
    return str((await client.call_tool("where")).data)


def repo(folder: Path, remote: str = "") -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n' if remote else "")
    return folder


# Folders and repositories


def test_two_folders_of_one_name_are_two_projects(tmp_path: Path) -> None:
    item, other = repo(tmp_path / "x" / "app"), repo(tmp_path / "y" / "app")
    assert git_project.detect_project(item).project != git_project.detect_project(other).project
    assert git_project.detect_project(item).former == git_project.detect_project(other).former == "folder/app"


def test_directory_without_repository_is_identified_by_path(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert git_project.detect_project(tmp_path / "x").project == f"path{tmp_path}/x"
    assert git_project.detect_project("/").project == "path/"


@pytest.mark.parametrize("remote", ["", "../elsewhere/app.git"])
def test_worktrees_of_one_repository_are_one_project(tmp_path: Path, remote: str) -> None:
    item, tree = repo(tmp_path / "app", remote), tmp_path / "trees" / "deep" / "fix"
    inside = item / ".git" / "worktrees" / "fix"
    inside.mkdir(parents=True)
    (inside / "HEAD").write_text("ref: refs/heads/fix\n")
    (inside / "commondir").write_text("../..\n")
    tree.mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {inside}\n")
    there = git_project.detect_project(tree)
    assert (there.project, there.branch, there.root) == (git_project.detect_project(item).project, "fix", str(tree))
    # What was stored when it was a project of its own is still seen there.
    assert there.former == (f"path{tree}" if not remote else "folder/app")


def test_clones_of_one_repository_are_one_project(tmp_path: Path) -> None:
    result = repo(tmp_path / "one", "git@example.com:Team/shop.git")
    other = repo(tmp_path / "other", "https://ann:secret@example.com:8443/Team/shop/")
    assert (
        git_project.detect_project(result / ".").project
        == git_project.detect_project(other).project
        == "example.com/Team/shop"
    )
    assert git_project.detect_project(result).former is None


def test_local_remote_is_identified_by_path(tmp_path: Path) -> None:
    bare = tmp_path / "server" / "shop.git"
    written = [str(bare), f"file://{bare}", "../server/shop.git", f"{bare}/"]
    results = [git_project.detect_project(repo(tmp_path / f"clone-{at}", remote)) for at, remote in enumerate(written)]
    assert {item.project for item in results} == {f"path{tmp_path}/server/shop"}
    assert {item.former for item in results} == {"folder/shop"}
    assert (
        git_project.detect_project(repo(tmp_path / "z", str(tmp_path / "other" / "shop.git"))).project
        != results[0].project
    )


@pytest.mark.parametrize("name", ["a b", "a,b", 'a"b', "100%", "ü", "x" * 200])
def test_any_directory_name_is_valid_in_filters(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / name / "app"
    folder.mkdir(parents=True)
    result = git_project.detect_project(folder).project
    assert not set(result) & set(' ,"') and len(result) <= git_project.MAX_PROJECT_NAME_CHARS
    assert result != git_project.detect_project(folder.parent).project


# Roots


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_client_root_determines_the_project(revision: str, tmp_path: Path) -> None:
    server = asked(ProjectResolver())
    for name in ("x", "y"):
        folder = repo(tmp_path / name / "app")
        async with Client(server, protocol_version=revision, roots=[folder]) as client:
            assert await text(client) == await text(client) == f"path{folder}"
    folder = repo(tmp_path / "clone", "https://example.com/team/shop.git") / "src"
    folder.mkdir()
    async with Client(server, protocol_version=revision, roots=[folder]) as client:
        assert await text(client) == "example.com/team/shop"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_client_without_roots_works_where_the_server_does(revision: str) -> None:
    here = git_project.detect_project().project
    async with Client(asked(ProjectResolver()), protocol_version=revision) as client:
        assert await text(client) == here
    async with Client(asked(ProjectResolver()), protocol_version=revision, roots=[]) as client:
        assert await text(client) == here


@pytest.mark.parametrize("given", [ProjectResolver("said/so"), ProjectResolver(folder="/")])
async def test_operator_setting_takes_precedence_over_roots(given: ProjectResolver, tmp_path: Path) -> None:
    async with Client(asked(given), roots=[tmp_path]) as client:
        assert await text(client) in ("said/so", "path/")


async def test_roots_are_requested_once_and_after_changes(connect: Connect, tmp_path: Path) -> None:
    wire = connect(asked(ProjectResolver()))
    await wire.initialize("2025-06-18", {"roots": {"listChanged": True}})

    async def called(id: int, *answers: str) -> str:
        wire.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "where"}})
        for uri in answers:
            question = await wire.receive()
            assert question["method"] == "roots/list"
            wire.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": uri}]}})
        return str((await wire.response(id))["result"]["content"][0]["text"])

    assert await called(1, "file:///no/such/one") == "path/no/such/one"
    assert await called(2) == "path/no/such/one"
    wire.notify("notifications/roots/list_changed")
    assert await called(3, "file:///no/such/other") == "path/no/such/other"
    assert await called(4) == "path/no/such/other"


async def test_stream_of_2026_07_28_is_asked_once(connect: Connect) -> None:
    wire = connect(asked(ProjectResolver()))

    async def called(**more: Any) -> Any:
        return (await wire.request_stateless("tools/call", {"name": "where", **more}, capabilities={"roots": {}}))[
            "result"
        ]

    question = await called()
    (key,) = question["inputRequests"]
    answers = {key: {"roots": [{"uri": "file:///no/such/one"}]}}
    response = await called(inputResponses=answers, requestState=question["requestState"])
    assert response["content"] == (await called())["content"] == [{"type": "text", "text": "path/no/such/one"}]


async def test_client_that_does_not_answer_is_waited_for_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projects, "ROOTS_TIMEOUT_SECONDS", 0.05)
    wire = connect(asked(ProjectResolver()))
    await wire.initialize("2025-03-26", {"roots": {}})
    here = git_project.detect_project().project

    async def called() -> str:
        return str((await wire.request("tools/call", {"name": "where"}))["result"]["content"][0]["text"])

    assert [await called(), await called()] == [here, here]
    (question,) = [
        other_message for other_message in wire.other_messages if other_message.get("method") == "roots/list"
    ]
    # An answer that comes late is for the calls that come later.
    wire.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "file:///no/such/one"}]}})
    async with asyncio.timeout(10):
        while await called() == here:
            pass


async def test_rejection_means_no_roots(connect: Connect) -> None:
    wire = connect(asked(ProjectResolver()))
    await wire.initialize("2024-11-05", {"roots": {}})
    wire.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "where"}})
    question = await wire.receive()
    wire.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -32603, "message": "no"}})
    message = (await wire.response(7))["result"]["content"][0]["text"]
    assert message == git_project.detect_project().project


@pytest.mark.parametrize(
    "uri, path",
    [
        ("file:///a/b/../c%20d/", "/a/c d"),
        ("file://localhost/a", "/a"),
        ("file:///", "/"),
        ("file:///C:/x", "C:/x"),
        ("file:///c%3A/x", "c:/x"),
        ("file://server/share/x", "//server/share/x"),
        ("file:///a%00b", None),
        ("file:relative", None),
        ("https://example.com/a", None),
        ("file://[/a", None),
    ],
)
def test_path_of_a_root(uri: str, path: str | None) -> None:
    assert projects.path_from_file_uri(uri) == path


async def test_repository_of_a_root_is_not_read_for_remote_clients(tmp_path: Path) -> None:
    folder = repo(tmp_path / "app", "https://example.com/team/shop.git")

    class Far:
        client_address = "203.0.113.7"

    root = projects.Root(folder.as_uri())
    assert await projects._project_of_first_root([root], Far()) == ProjectInfo(f"path{folder}")  # type: ignore[arg-type]
