"""Code mode, saved scripts, and the stubs of tools."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from typing import Any, Literal, TypedDict

import pytest
import pytest_asyncio

from portico import Client, Server
from portico.auth import Principal
from portico_services.codemode import CodeModeServer
from portico_services.codemode.tool_catalog import ScriptTool, ToolCatalog
from support.script_tools import READS, ToolShop, jail_only, run

pytestmark = [jail_only, pytest.mark.asyncio(loop_scope="module")]


class Line(TypedDict, total=False):
    item: str
    parts: list[Line]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop() -> AsyncIterator[ToolShop]:
    shop = ToolShop()
    store = Server("store", version="1")

    @store.tool(annotations=READS)
    def find_line(color: Literal["red", "blue"], size: int = 3) -> Line:
        """A line of the catalogue."""
        return {"item": color, "parts": [{"item": "lid"}] * size}

    shop.server.mount(store, namespace="store")
    shop.face = CodeModeServer(shop.server)  # type: ignore[attr-defined]
    async with shop.server.lifespan(), shop.face.own_tools.lifespan():  # type: ignore[attr-defined]
        yield shop


def client_of(shop: Any, name: str = "", revision: str = "2026-07-28") -> Client:
    principal = Principal(name) if name else None
    return Client(shop.face, principal=principal, protocol_version=revision, elicitation_handler=shop.answer)


async def test_code_mode_lists_three_tools(shop: ToolShop) -> None:
    async with client_of(shop) as client:
        assert [tool.name for tool in await client.list_tools()] == ["find_tools", "run", "describe_tools"]
        result = await client.call_tool("find_tools", {"queries": "what something costs"})
        assert "price(item: str) -> int" in result.text
        assert (await run(client, "from tools import price\nawait price('abc')")).structured["value"] == 3


async def test_mounted_server_is_a_module(shop: ToolShop) -> None:
    code = "from tools import store\nfrom tools.store import find_line\nfrom tools import store_find_line\n" + (
        "[(await f('red', size=1))['parts'] for f in (store.find_line, find_line, store_find_line)]"
    )
    async with client_of(shop) as client:
        assert (await run(client, code)).structured["value"] == [[{"item": "lid"}]] * 3


async def test_names_that_python_can_write() -> None:
    """Of tools whose names it cannot, that are words of its own, or that say their module twice."""
    owners = {"memory_capture": "memory", "get-user.name": "my server", "import": "", "2fa": "", "run": "code"}
    tools = [ScriptTool(name) for name in owners]
    table = ToolCatalog(tools, lambda name: (owners[name], name), "", hidden=("code",))
    assert {owner: list(functions) for owner, functions in table.modules.items()} == {
        "": ["import_", "_2fa", "memory_capture", "get_user_name"],
        "memory": ["memory_capture", "capture"],
        "my_server": ["get_user_name"],
    }
    assert [item.name for item in table.tools_used_in("from tools import memory\nawait memory.capture('x')")] == [
        "memory_capture"
    ]


async def test_tools_are_described_as_python(shop: ToolShop) -> None:
    async with client_of(shop) as client:
        result = (await client.call_tool("describe_tools", {"tools": ["store.find_line", "order"]})).text
    assert 'async def store.find_line(color: Literal["red", "blue"], size: int = ...) -> FindLineResult:' in result
    # What contains itself keeps its name.
    assert "parts: NotRequired[list[FindLine" in result
    assert "[may change data]" in result
    ast.parse(result.replace("def store.", "def store_"))
    async with client_of(shop) as client:
        with pytest.raises(Exception, match="did you mean 'price'"):
            await client.call_tool("describe_tools", {"tools": ["prise"]})


async def test_saved_script_is_listed_and_callable_only_for_its_owner(shop: ToolShop) -> None:
    async with client_of(shop, "ann") as ann, client_of(shop, "eve") as eve:
        result = await run(
            ann, "# All prices.\nfrom tools import price\n[await price(i) for i in data or []]", save="prices"
        )
        assert not result.is_error, result.text
        saved = {tool.name: tool for tool in await ann.list_tools(refresh=True)}["prices"]
        assert saved.description == "All prices. (a saved script)"
        assert saved.annotations.read_only_hint is True
        assert (await ann.call_tool("prices", {"data": ["a", "bb"]})).structured["value"] == [1, 2]
        assert "prices" not in [tool.name for tool in await eve.list_tools(refresh=True)]
        with pytest.raises(Exception, match="prices"):
            await eve.call_tool("prices", {})


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_saved_scripts_are_listed_at_every_revision(shop: ToolShop, revision: str) -> None:
    async with client_of(shop, "bob", revision) as bob:
        await run(bob, "'hello'", save="greet")
        assert "greet" in [tool.name for tool in await bob.list_tools(refresh=True)]
        assert '"hello"' in (await bob.call_tool("greet", {})).text
        await bob.call_tool("forget_saved", {"name": "greet"})
        assert "greet" not in [tool.name for tool in await bob.list_tools(refresh=True)]


async def test_script_whose_tool_has_changed_is_not_run(shop: ToolShop) -> None:
    def weigh(item: str) -> int:
        """What something weighs."""
        return 1

    def weigh_again(item: str) -> int:
        """What something weighs, and where it goes."""
        return 2

    shop.server.tool(annotations=READS)(weigh)
    async with client_of(shop, "ann") as ann:
        await run(ann, "from tools import weigh\nawait weigh('a')", save="weights")
        shop.server.remove("weigh")
        shop.server.tool("weigh", annotations=READS)(weigh_again)
        assert "weights" not in [tool.name for tool in await ann.list_tools(refresh=True)]
        result = await ann.call_tool("weights", {}, raise_on_error=False)
    shop.server.remove("weigh")
    assert result.is_error
    assert "from tools import weigh" in result.text


@pytest.mark.parametrize("name", ["order", "run", "Big", "a b", "../x", ""])
async def test_names_that_cannot_be_saved(shop: ToolShop, name: str) -> None:
    async with client_of(shop, "ann") as ann:
        result = await run(ann, "1", save=name)
    assert result.is_error
    assert "is not a valid name" in result.text


@pytest.mark.parametrize("revision", ["2024-11-05", "2026-07-28"])
async def test_code_mode_server_wraps_a_server_without_the_service(revision: str) -> None:
    server = Server("plain", version="1")
    done: list[int] = []

    @server.tool(annotations=READS)
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @server.tool
    def note(n: int) -> str:
        """Write down."""
        done.append(n)
        return "noted"

    async def agree(*_: Any) -> dict[str, Any]:
        return {}

    face = CodeModeServer(server, max_output_bytes=100)
    asking = Client(face, protocol_version=revision, elicitation_handler=agree)
    async with server.lifespan(), face.own_tools.lifespan(), asking as client:
        assert [tool.name for tool in await client.list_tools()] == ["find_tools", "run", "describe_tools"]
        result = await run(client, "from tools import double\nprint('x' * 200)\nawait double(21)")
        if revision >= "2025-06-18":
            assert result.content[1].uri == result.structured["rest"]
            [whole] = await client.read_resource(result.structured["rest"])
            assert whole.text.endswith("42")
        result = await run(client, "from tools import note\nawait note(1)")
        assert done == ([1] if revision >= "2025-06-18" else [])
        assert (await client.call_tool("double", {"n": 4})).text == "8"
