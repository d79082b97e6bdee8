"""Large registry keys and long values are read in pages and parts."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, ToolError, UsageError
from portico_services.system import System
from portico_services.system.registry.hive import Hive
from support import system_forgery as forgery

CACHE = bytes(range(256)) * 219 + bytes(192)  # 56,256 bytes, as AppCompatCache had them
SERVICES = 3096


def made_hive() -> tuple[bytes, int]:
    """A SYSTEM hive with a large key and a long value, and where in it a key could be spoilt."""
    made = forgery.Hive()
    services = [made.key(f"svc{n:04}") for n in range(SERVICES)]
    words = "".join(f"C:\\Users\\alice\\number {n};" for n in range(3000))
    texts = [f"line {n}" for n in range(5000)]
    manager = made.key(
        "Manager",
        values=[
            made.value("AppCompatCache", 3, CACHE),
            made.value("Path", 2, f"{words}\0".encode("utf-16-le")),
            made.value("Lines", 7, "".join(f"{item}\0" for item in [*texts, ""]).encode("utf-16-le")),
            made.value("Solid", 1, ("x" * 9000 + "\0").encode("utf-16-le")),
        ],
    )
    control = made.key("Control", subkeys=[manager])
    healthy = made.key("Healthy", values=[made.value("n", 4, struct.pack("<I", 7))])
    second = made.key("ControlSet002", subkeys=[control, made.key("Services", subkeys=services, kind="ri")])
    select = made.key("Select", values=[made.value("Current", 4, struct.pack("<I", 2))])
    spoilt = made.key("Spoilt")
    root = made.key("ROOT", subkeys=[made.key("ControlSet001"), second, healthy, select, spoilt], root=True)
    return made.bytes(root), 4096 + spoilt


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    (tmp_path / "SYSTEM").write_bytes(made_hive()[0])
    return tmp_path / "SYSTEM"


@pytest.fixture
async def client(hive: Path) -> AsyncIterator[Client]:
    server = Server("machine")
    server.add(System(hives={"sys": hive}, platform_logs=False, privacy="off"))
    async with Client(server) as client:
        yield client


async def asked(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = (await client.call_tool(tool, arguments)).structured
    return result


async def test_every_subkey_is_on_one_page(client: Client) -> None:
    names: list[str] = []
    cursor = None
    for _ in range(10):
        page = await asked(
            client, "reg_list", path=r"sys\ControlSet002\Services", **({"cursor": cursor} if cursor else {})
        )
        names += page["subkeys"]
        cursor = page["nextCursor"]
        assert page["hasMore"] == (cursor is not None)
        if cursor is None:
            break
    assert names == [f"svc{n:04}" for n in range(SERVICES)]


async def test_cursor_belongs_to_its_key(client: Client) -> None:
    page = await asked(client, "reg_list", path=r"sys\ControlSet002\Services", limit=10)
    assert len(page["subkeys"]) == 10
    with pytest.raises(ToolError, match="does not belong to this query"):
        await client.call_tool("reg_list", {"path": r"sys\ControlSet002", "cursor": page["nextCursor"]})


async def test_writes_between_pages_do_not_shift_the_listing() -> None:
    key = r"HKCU\Software\Example"
    server = Server("machine")
    server.add(System(platform_logs=False, privacy="off", access_levels={"registry": "read-write"}))
    async with Client(server) as client:
        for name in ("b", "d", "f"):
            await asked(client, "reg_write", path=key, name=name, value=name)
        first = await asked(client, "reg_list", path=key, limit=2)
        await asked(client, "reg_write", path=key, name="a", value="new")
        second = await asked(client, "reg_list", path=key, limit=2, cursor=first["nextCursor"])
    shown_items = [[value["name"] for value in page["values"]] for page in (first, second)]
    assert (shown_items, second["nextCursor"]) == ([["b", "d"], ["f"]], None)


async def test_long_value_is_had_in_parts(client: Client) -> None:
    where = {"path": r"sys\ControlSet002\Control\Manager", "name": "AppCompatCache"}
    whole = await asked(client, "reg_read", **where)
    assert (bytes.fromhex(whole["value"]), whole["size"], whole["nextOffset"]) == (CACHE, len(CACHE), None)
    result, offset = b"", 0
    while offset is not None:
        part = await asked(client, "reg_read", **where, offset=offset, length=10_000)
        assert part["offset"] == offset
        result += bytes.fromhex(part["value"])
        offset = part["nextOffset"]
    assert result == CACHE
    assert bytes.fromhex((await asked(client, "reg_read", **where, offset=56_250, length=100))["value"]) == CACHE[-6:]
    assert (await asked(client, "reg_read", **where, offset=10**9))["value"] == ""


@pytest.mark.parametrize("name", ["Path", "Solid"])
async def test_long_text_is_divided_between_words(client: Client, name: str) -> None:
    where = {"path": r"sys\ControlSet002\Control\Manager", "name": name}
    whole = (await asked(client, "reg_read", **where, length=2**20))["value"]
    parts: list[str] = []
    offset = 0
    while offset is not None:
        part = await asked(client, "reg_read", **where, offset=offset, length=3001)
        assert part["offset"] == offset
        parts.append(part["value"])
        offset = part["nextOffset"]
    assert ("".join(parts), len(parts) > 2) == (whole, True)
    assert name == "Solid" or all(part[-1] in " ;\\" for part in parts)


async def test_list_of_texts_is_divided_between_them(client: Client) -> None:
    where = {"path": r"sys\ControlSet002\Control\Manager", "name": "Lines"}
    results: list[str] = []
    offset = 0
    while offset is not None:
        part = await asked(client, "reg_read", **where, offset=offset, length=4000)
        results += part["value"]
        offset = part["nextOffset"]
    assert results == [f"line {n}" for n in range(5000)]


async def test_no_part_begins_or_ends_within_a_name(hive: Path) -> None:
    server = Server("machine")
    server.add(System(hives={"sys": hive}, platform_logs=False))
    async with Client(server) as client:
        for offset in range(0, 80, 2):
            part = await asked(
                client, "reg_read", path=r"sys\ControlSet002\Control\Manager", name="Path", offset=offset, length=1
            )
            assert "lic" not in part["value"]
            assert "user-" in part["value"]


async def test_listing_has_the_beginning_of_a_long_value(client: Client) -> None:
    page = await asked(client, "reg_list", path=r"sys\ControlSet002\Control\Manager")
    cache = page["values"][0]
    assert (cache["name"], cache["size"], cache["nextOffset"]) == ("AppCompatCache", len(CACHE), 4096)
    assert bytes.fromhex(cache["value"]) == CACHE[:4096]


async def test_many_long_values_are_on_several_pages(tmp_path: Path) -> None:
    made = forgery.Hive()
    data = made.value("v", 3, bytes(16_000))
    (tmp_path / "hive").write_bytes(made.bytes(made.key("ROOT", values=[data] * 300, root=True)))
    server = Server("machine")
    server.add(System(hives={"sys": tmp_path / "hive"}, platform_logs=False))
    async with Client(server) as client:
        page = await asked(client, "reg_list", path="sys")
    assert page["hasMore"]
    assert 0 < len(page["values"]) < 100


async def test_current_control_set_is_the_selected_one(client: Client) -> None:
    page = await asked(client, "reg_list", path=r"sys\currentcontrolset\Control")
    assert (page["path"], page["subkeys"]) == (r"sys\ControlSet002\Control", ["Manager"])
    read = await asked(
        client, "reg_read", path=r"sys\CurrentControlSet\Control\Manager", name="appcompatcache", length=8
    )
    assert (read["path"], read["value"]) == (r"sys\ControlSet002\Control\Manager", "0001020304050607")


async def test_missing_key_is_not_a_missing_value(client: Client) -> None:
    for tool in ("reg_read", "reg_list"):
        for path in (r"sys\ControlSet002\Nothing", r"sys\CurrentControlSet\Nothing", r"HKCU\Nothing"):
            with pytest.raises(ToolError, match="does not exist"):
                await client.call_tool(tool, {"path": path})
    with pytest.raises(ToolError, match="has no value 'Nothing'"):
        await client.call_tool("reg_read", {"path": r"sys\Select", "name": "Nothing"})


async def test_healthy_key_does_not_repeat_the_damage_of_its_neighbours(tmp_path: Path) -> None:
    data, spoilt = made_hive()
    (tmp_path / "SYSTEM").write_bytes(data[: spoilt + 4] + b"??" + data[spoilt + 6 :])
    server = Server("machine")
    server.add(System(hives={"sys": tmp_path / "SYSTEM"}, platform_logs=False))
    async with Client(server) as client:
        assert (await asked(client, "reg_list", path="sys"))["problems"] != []
        assert (await asked(client, "reg_list", path=r"sys\Healthy"))["problems"] == []
        assert (await asked(client, "reg_read", path=r"sys\Healthy", name="n"))["value"] == 7


async def test_real_system_hive_is_listed_whole(hive_files: dict[str, Path]) -> None:
    """Its largest key has more subkeys than a page."""
    keys = {path: [sub.name for sub in key.subkeys()] for path, key in Hive(hive_files["SYSTEM"].read_bytes()).walk()}
    path, expected = max(keys.items(), key=lambda item: len(item[1]))
    assert len(expected) > 1000
    server = Server("machine")
    server.add(System(hives={"sys": hive_files["SYSTEM"]}, platform_logs=False, privacy="off"))
    names: list[str] = []
    more: dict[str, Any] = {}
    async with Client(server) as client:
        while len(names) < len(expected):
            page = await asked(client, "reg_list", path="\\".join(["sys", *path]), **more)
            names += page["subkeys"]
            more = {"cursor": page["nextCursor"]}
        assert (sorted(names), page["hasMore"]) == (sorted(expected), False)
        assert "Control" in (await asked(client, "reg_list", path=r"sys\CurrentControlSet"))["subkeys"]


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda path: None, "file not found: "),
        (lambda path: path.mkdir(), "expected a file, got "),
        (lambda path: path.symlink_to(path.with_name("gone")), "file not found: "),
    ],
)
def test_hive_that_is_not_a_file_is_an_error_at_the_start(
    tmp_path: Path, made: Callable[[Path], object], message: str
) -> None:
    made(tmp_path / "SYSTEM")
    with pytest.raises(UsageError, match=re.escape(f"hives.sys: {message}{tmp_path / 'SYSTEM'}")):
        System(hives={"sys": tmp_path / "SYSTEM"})
