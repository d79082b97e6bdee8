"""Scripts that call tools, on every protocol version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from portico import Client
from portico_services.codemode import script_run, service
from support.script_tools import ToolShop, jail_only, run

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
pytestmark = [jail_only, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_shop() -> AsyncIterator[ToolShop]:
    shop = ToolShop()
    async with shop.server.lifespan():
        yield shop


@pytest.fixture
def shop(open_shop: ToolShop) -> ToolShop:
    open_shop.orders.clear()
    open_shop.asked.clear()
    open_shop.agrees = True
    open_shop.most_running = 0
    return open_shop


@pytest_asyncio.fixture(loop_scope="module")
async def client(shop: ToolShop) -> AsyncIterator[Client]:
    async with shop.client() as client:
        yield client


@pytest.mark.parametrize("revision", REVISIONS)
async def test_script_calls_tools_side_by_side(shop: ToolShop, revision: str) -> None:
    code = "from tools import price\nfound = await asyncio.gather(*[price(i) for i in data])\nprint('done')\nsum(found)"
    async with shop.client(revision) as client:
        result = await run(client, code, data=["a", "bb", "ccc"])
    assert [item.text for item in result.content] == ["done\n", "6"]
    if revision >= "2025-06-18":
        assert result.structured == {"calls": 3, "value": 6, "output": "done\n"}


@pytest.mark.parametrize("revision", REVISIONS[2:])
async def test_first_write_requires_one_confirmation(shop: ToolShop, revision: str) -> None:
    code = "from tools import order, price\nawait price('a')\nreturn [await order(one) for one in ('pen', 'ink')]"
    async with shop.client(revision) as client:
        result = await run(client, code)
    assert result.structured["value"] == ["ordered pen", "ordered ink"]
    assert shop.orders == ["pen", "ink"]
    assert len(shop.asked) == 1
    assert 'order(item="pen")' in shop.asked[0]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_writes_are_rejected_without_elicitation(shop: ToolShop, revision: str) -> None:
    async with shop.client(revision, asks=False) as client:
        result = await run(client, "from tools import order\nawait order('pen')")
    assert result.is_error
    assert "support elicitation" in result.text
    assert shop.orders == []


async def test_declined_confirmation_is_not_repeated(shop: ToolShop, client: Client) -> None:
    shop.agrees = False
    code = (
        "from tools import order, ToolError\nsaid = []\nfor item in 'abc':\n    try:\n        await order(item)\n"
        "    except ToolError as e:\n        said.append(e.kind)\nsaid"
    )
    assert (await run(client, code)).structured["value"] == ["PermissionError"] * 3
    assert shop.orders == []
    assert len(shop.asked) == 1


async def test_writes_side_by_side_are_one_list(shop: ToolShop, client: Client) -> None:
    code = "from tools import order, cancel\nawait asyncio.gather(*[order(f'pen {n}') for n in range(12)])"
    assert len((await run(client, code)).structured["value"]) == 12
    assert sorted(shop.orders) == sorted(f"pen {n}" for n in range(12))
    [asked] = shop.asked
    assert asked.count("- order(item=") == 12
    assert "It may also use: cancel." in asked


@pytest.mark.parametrize("revision", REVISIONS[2:])
async def test_time_and_chance_are_the_same_when_a_run_continues(shop: ToolShop, revision: str) -> None:
    code = (
        "import random, time, uuid, secrets, datetime, os\nfrom tools import order\n"
        "found = [random.random(), random.Random().random(), time.time(), str(uuid.uuid4()), secrets.token_hex(4),\n"
        "         datetime.datetime.now().isoformat(), os.urandom(4).hex(), list({'a', 'b', 'c', 'd'})]\n"
        "await asyncio.sleep(0.001)\nawait order(json.dumps(found))\nreturn json.dumps(found)"
    )
    async with shop.client(revision) as client:
        result = await run(client, code)
    assert shop.orders == [result.structured["value"]]


async def test_script_that_diverges_on_resume_is_stopped(shop: ToolShop, client: Client) -> None:
    code = "import os\nfrom tools import price, order\nawait price('x' * os.getpid())\nawait order('pen')"
    result = await run(client, code)
    assert result.is_error
    assert "did not repeat the recorded calls" in result.text
    assert shop.orders == []


async def test_common_script_styles_run(client: Client) -> None:
    whole = "import asyncio\nfrom tools import price\nasync def main():\n    return await price('ab')\n"
    for end in ("asyncio.run(main())", "await main()", "main()", "return await main()", "r = await main()\nr"):
        assert (await run(client, whole + end)).structured["value"] == 2, end
    assert (await run(client, "import tools\nawait tools.price({'item': 'abc'})")).structured["value"] == 3
    assert (await run(client, "x = 1")).text == "(no value)"
    limited = (
        "from tools import wait_for_ever\ntry:\n    async with asyncio.timeout(0.01):\n        await wait_for_ever()\n"
    )
    assert (await run(client, limited + "except TimeoutError:\n    done = True\ndone")).structured["value"] is True


async def test_unawaited_writes_finish_before_the_response(shop: ToolShop, client: Client) -> None:
    """A write that was begun is made, whether or not the script waited for it."""
    code = "from tools import order\nasyncio.create_task(order('pen'))\nawait asyncio.sleep(0)\nawait order('ink')"
    result = await run(client, code)
    assert not result.is_error, result.text
    assert sorted(shop.orders) == ["ink", "pen"]


async def test_unanswered_run_ends_with_its_sandbox(shop: ToolShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_run, "MAX_ASKING_SECONDS", 0.3)

    async def never(*_: object, **__: object) -> object:
        return await asyncio.get_running_loop().create_future()

    code = "from tools import order\nawait order('pen')"
    async with (
        asyncio.timeout(30),
        Client(shop.server, protocol_version="2025-11-25", elicitation_handler=never) as client,
    ):
        result = await run(client, code)
    assert result.is_error and "user did not answer within 0.3 s" in result.content[0].text
    assert shop.orders == [] and shop.code._places._held == {}


async def test_runs_of_one_caller_wait_for_each_other(shop: ToolShop) -> None:
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sum(shop.code._places._held.values()))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with shop.client() as client:
        count = service.MAX_RUNS_PER_CALLER + 2
        result = await asyncio.gather(
            *[run(client, "from tools import price\nawait price('ab')") for _ in range(count)]
        )
    watching.cancel()
    assert [item.structured["value"] for item in result] == [2] * count
    assert most == service.MAX_RUNS_PER_CALLER
