"""Roots of the client are readable after the user's consent; nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico_services import assembly
from portico_services.settings import SettingsFile
from portico_services.system import System


class User:
    """Answers the one question, and counts how often it was put."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, question: Any) -> dict[str, Any]:
        self.asked.append(question.message)
        return {"value": self.answer}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.txt").write_text("The plan.")
    return tmp_path


def serving(**options: Any) -> Server:
    server = Server("machine")
    server.add(System(platform_logs=False, privacy="off", **({"client_roots": True} | options)))
    return server


async def read(client: Client, path: Path) -> str:
    return str((await client.call_tool("fs_read", {"path": str(path)})).structured["content"])


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_client_root_is_readable_after_one_confirmation(folder: Path, revision: Any) -> None:
    user = User("yes")
    root = (folder / "mine").as_uri()
    async with Client(serving(), roots=[root], elicitation_handler=user, protocol_version=revision) as client:
        assert await read(client, folder / "mine" / "plan.txt") == "The plan."
        assert await read(client, folder / "mine" / "plan.txt") == "The plan."
        assert len(user.asked) == 1 and str(folder / "mine") in user.asked[0]
        result = (await client.call_tool("fs_search", {"fileName": "*.txt"})).structured["files"]
        assert [item["path"] for item in result] == [str(folder / "mine" / "plan.txt")]
        with pytest.raises(ToolError, match="outside"):
            await read(client, folder / "other" / "plan.txt")
        assert len(user.asked) == 1


async def test_first_call_can_list_or_search_the_client_roots(folder: Path) -> None:
    for tool, arguments in (("fs_list", {}), ("fs_search", {"fileName": "*.txt"})):
        user = User("yes")
        async with Client(serving(), roots=[(folder / "mine").as_uri()], elicitation_handler=user) as client:
            files = (await client.call_tool(tool, arguments)).structured["files"]
            assert (len(files), len(user.asked)) == (1, 1)


async def test_declined_elicitation_is_not_repeated(folder: Path) -> None:
    user = User("no")
    async with Client(serving(), roots=[(folder / "mine").as_uri()], elicitation_handler=user) as client:
        for _ in range(2):
            with pytest.raises(ToolError, match="outside"):
                await read(client, folder / "mine" / "plan.txt")
    assert len(user.asked) == 1


@pytest.mark.parametrize("revision", ["2024-11-05", "2026-07-28"])
async def test_client_without_elicitation_gets_instructions(folder: Path, revision: Any) -> None:
    async with Client(serving(), roots=[(folder / "mine").as_uri()], protocol_version=revision) as client:
        with pytest.raises(ToolError, match=r"cannot ask its user.*portico serve --allow-path PATH"):
            await read(client, folder / "mine" / "plan.txt")


@pytest.mark.parametrize("root", ["file:///nowhere/at/all", "file://elsewhere/tmp"])
async def test_root_that_is_not_a_local_directory_is_ignored(folder: Path, root: str) -> None:
    user = User("yes")
    async with Client(serving(), roots=[root], elicitation_handler=user) as client:
        with pytest.raises(ToolError, match="portico serve --allow-path PATH"):
            await read(client, folder / "mine" / "plan.txt")
    assert user.asked == []


async def test_answer_is_recorded(folder: Path) -> None:
    server = serving()
    async with Client(server, roots=[(folder / "mine").as_uri()], elicitation_handler=User("yes")) as client:
        await read(client, folder / "mine" / "plan.txt")
        trail = await client.read_resource("system://audit")
    assert '"roots"' in str(trail) and str(folder / "mine") in str(trail)


async def test_client_roots_are_ignored_with_configured_paths(folder: Path) -> None:
    """As `portico serve` puts it together."""
    user = User("yes")
    for roots, over_http, is_asked in (((), False, True), ((str(folder / "other"),), False, False), ((), True, False)):
        place = assembly.ServiceEnvironment(data=folder / "data", store=":memory:", roots=roots, over_http=over_http)
        server = assembly.build_server(["system"], SettingsFile(), place)
        user.asked.clear()
        async with Client(server, roots=[(folder / "mine").as_uri()], elicitation_handler=user) as client:
            result = await client.call_tool("fs_stat", {"path": str(folder / "mine")}, raise_on_error=False)
        assert (bool(user.asked), result.is_error) == (is_asked, not is_asked)


async def test_an_empty_list_of_directories_has_a_reason() -> None:
    async with Client(serving()) as client:
        page = (await client.call_tool("fs_list")).structured
        assert page["files"] == []
        assert page["problems"][0].startswith("No directory may be read here.")
        assert "portico serve --allow-path PATH" in page["problems"][0]
