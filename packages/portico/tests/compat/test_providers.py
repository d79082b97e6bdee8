"""FastMCP's providers, added to a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from portico import Client
from portico.compat.fastmcp import ClaudeSkillsProvider, FastMCP, SkillsDirectoryProvider

SKILL = "---\nname: refund\ndescription: Refund an order\n---\nAsk for the number.\n"


async def test_skills_directory_is_served_by_a_fastmcp_server(tmp_path: Path) -> None:
    (tmp_path / "refund").mkdir()
    (tmp_path / "refund" / "SKILL.md").write_text(SKILL)
    server = FastMCP("shop", providers=[SkillsDirectoryProvider(tmp_path)])
    async with Client(server) as client:
        uris = [str(resource.uri) for resource in await client.list_resources()]
    assert any("refund" in uri for uri in uris)


async def test_claude_skills_without_a_folder_are_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    server = FastMCP("shop")
    server.add_provider(ClaudeSkillsProvider())
    async with Client(server) as client:
        assert not await client.list_resources()
