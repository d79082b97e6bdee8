"""Default tools of `portico serve`; all others can be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico import Client, UsageError
from portico_gateway import Gateway
from portico_services import assembly
from support.paths import ROOT

SERVE = [sys.executable, "-m", "portico", "serve", "--data"]


async def celsius(*_: Any) -> dict[str, str]:
    return {"value": "celsius"}


async def listed(*words: str) -> list[Any]:
    async with Client([*SERVE, *words]) as client:
        return await client.list_tools()


async def test_list_is_short_and_everything_answers(tmp_path: Path) -> None:
    async with Client([*SERVE, str(tmp_path)]) as client:
        tools = await client.list_tools()
        names = {tool.name for tool in tools}
        assert {"find_tools", "call_tool", "memory_capture", "memory_recall", "create_task", "evaluate"} <= names
        assert len(tools) <= 25
        # About four bytes make a token: docs/how-to/search-tools.md.
        assert len(msgspec.json.encode(tools)) <= 20_000
        assert not any(name.startswith(("fs_", "reg_")) for name in names)
        # What is not listed is found, and answers to its name as before.
        assert (
            "memory_namespaces(" in (await client.call_tool("find_tools", {"queries": "namespaces of memories"})).text
        )
        assert (await client.call_tool("memory_namespaces", {})).structured is not None
        assert (await client.call_tool("call_tool", {"name": "memory_namespaces"})).structured is not None


async def test_allowed_paths_add_file_tools(tmp_path: Path) -> None:
    assert {"fs_search", "fs_read"} <= {
        tool.name for tool in await listed(str(tmp_path), "--allow-path", str(tmp_path))
    }
    named = await listed(str(tmp_path), "--services", "memory:default")
    assert {"memory_delete_all", "memory_export"} <= {tool.name for tool in named} and len(named) > 15
    both = {tool.name for tool in await listed(str(tmp_path), "--services", "memory,tasks")}
    assert {"memory_export", "create_task"} <= both
    names = [tool.name for tool in await listed(str(tmp_path), "--tool-search")]
    assert names == ["read_result", "find_tools", "call_tool"]


async def test_memory_service_alone_lists_few_tools_and_finds_the_others(tmp_path: Path) -> None:
    async with Client([*SERVE, str(tmp_path), "--services", "memory"]) as client:
        tools = await client.list_tools()
        names = {tool.name for tool in tools}
        assert {"memory_recall", "memory_capture", "memory_update", "memory_delete", "find_tools", "call_tool"} <= names
        # About four bytes make a token.
        assert len(msgspec.json.encode(tools)) + len(client.instructions) <= 3_000 * 4
        assert "memory_recall" in client.instructions and "memory_capture" in client.instructions
        assert "memory_sync" not in names
        assert "memory_sync(" in (await client.call_tool("find_tools", {"queries": "share memories through git"})).text
        assert (await client.call_tool("memory_export", {})).structured["count"] == 0
    assert len(await listed(str(tmp_path), "--services", "memory", "--no-tool-search")) > 15


async def test_memory_that_cannot_be_changed_does_not_ask_for_captures(tmp_path: Path) -> None:
    async with Client([*SERVE, str(tmp_path), "--read-only"]) as client:
        assert "memory_recall" in client.instructions and "memory_capture" not in client.instructions
    async with Client([*SERVE, str(tmp_path), "--services", "system"]) as client:
        assert "memory" not in client.instructions


def test_unsupported_services_are_left_out_unless_named(tmp_path: Path) -> None:
    result = assembly.read_settings(None, None)
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "x.db"), over_http=True)
    usual = assembly.build_server(None, result, place)
    named = assembly.build_server(["system"], result, place)
    assert not [tool.name for tool in usual.tools if tool.name.startswith("fs_")]
    assert bool([tool.name for tool in usual.tools if tool.name.startswith("reg_")]) == (os.name == "nt")
    assert {"fs_list", "reg_list"} <= {tool.name for tool in named.tools}


async def test_gateway_file_selects_tool_search_or_code_mode(tmp_path: Path) -> None:
    weather = ROOT / "examples" / "weather.py"
    file = tmp_path / "gateway.toml"
    upstream = f"[upstream.sky]\ncommand = ['{sys.executable}', '{weather}']\n"
    file.write_text(f"[gateway]\ntool_search = true\nalways_visible = ['sky_forecast']\n{upstream}")
    command = [sys.executable, "-m", "portico", "serve", str(file), "--data", str(tmp_path)]
    async with Client(command, elicitation_handler=celsius) as client:
        assert (
            "Oslo"
            in (await client.call_tool("call_tool", {"name": "sky_forecast", "arguments": {"city": "Oslo"}})).text
        )
        assert [tool.name for tool in await client.list_tools()] == [
            "read_result",
            "find_tools",
            "call_tool",
            "sky_forecast",
        ]
    file.write_text(f"[gateway]\ntool_search = 'sideways'\n{upstream}")
    with pytest.raises(UsageError, match="tool_search: expected true or false or one of auto, got 'sideways'"):
        Gateway.load(file)
    file.write_text(f"[gateway]\ntool_search = true\ncode_mode = true\n{upstream}")
    with pytest.raises(UsageError, match="set tool_search or code_mode, not both"):
        Gateway.load(file)


def test_many_tools_example_finds_tools_of_three_servers() -> None:
    example = ROOT / "examples" / "many_tools.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "listed: read_result find_tools call_tool" in done.stdout
    assert "weather_forecast(" in done.stdout and "notes_memory_capture(" in done.stdout and "Oslo" in done.stdout
