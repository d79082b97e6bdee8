"""Task-only tools called by scripts: started once, awaited, and cancelled with the run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, ProtocolError, Server, TaskConfig
from portico.errors import TransportError
from portico.server.policy import settings as access_settings
from portico.types import EmbeddedResource, ResourceLink, TextResourceContents
from portico_gateway import Gateway
from portico_services.codemode import CodeMode, CodeModeServer, script_run, service
from support.paths import PROGRAMS
from support.script_tools import READS, TIMEOUT_SECONDS, jail_only, run

pytestmark = jail_only
REVISIONS = ("2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28")
ONLY_TASK = TaskConfig(mode="required", poll_interval=0.02)
TASKING = PROGRAMS / "task_server.py"
LEDGER = PROGRAMS / "ledger.py"


class Bakery:
    """What its tools have begun and ended, and what the person says who is asked."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.asked: list[str] = []
        self.begins = asyncio.Event()
        self.server = Server("bakery", version="1")
        self._offer(self.server)

    def _offer(self, server: Server) -> None:
        @server.tool(task=ONLY_TASK)
        async def bake(ctx: Context, cake: str) -> str:
            """Bake something."""
            self.begun.append(cake)
            ctx.report_progress(1, 2, f"kneading {cake}")
            await asyncio.sleep(0.05)
            return f"baked {cake}"

        @server.tool(task=ONLY_TASK, annotations=READS)
        async def watch(ctx: Context) -> str:
            """Look on, for as long as it takes."""
            self.begun.append("watch")
            self.begins.set()
            try:
                return await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled.put_nowait("watch")
                raise

        @server.tool(annotations=READS)
        async def until_begun() -> None:
            await self.begins.wait()

        @server.tool(task=ONLY_TASK)
        async def decorate(ctx: Context) -> str:
            """Ask for a colour."""
            self.begun.append("decorate")
            result = await ctx.elicit("Which colour?", str)
            return f"in {result.data}"

        @server.tool(task=ONLY_TASK, annotations=READS)
        async def burn() -> str:
            """Fails."""
            raise ValueError("smoke")

        @server.tool
        async def sell(cake: str) -> str:
            """Sell something."""
            return f"sold {cake}"

    async def answer(self, message: Any, *_: Any, **__: Any) -> Any:
        text = getattr(message, "message", str(message))
        self.asked.append(text.partition("\n")[0])
        return {"value": "red"} if "colour" in text else {}


@pytest.fixture
def bakery() -> Bakery:
    return Bakery()


@pytest.mark.parametrize("revision", REVISIONS)
async def test_task_only_tool_is_awaited_with_progress(bakery: Bakery, revision: str) -> None:
    heard: list[str] = []
    bakery.server.add(CodeMode(writes="allow"))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(bakery.server, protocol_version=revision) as client:
        code = "from tools import bake\nawait asyncio.gather(bake('pie'), bake('tart'))"
        result = await client.call_tool(
            "run", {"code": code}, progress_handler=lambda _far, _of, words: heard.append(words or "")
        )
    assert '["baked pie","baked tart"]' in result.text
    assert sorted(bakery.begun) == ["pie", "tart"]
    # The oldest revision has numbers alone.
    assert any("bake: 1 of 2: kneading" in item for item in heard) or (heard and revision == "2024-11-05"), heard


@pytest.mark.parametrize("revision", REVISIONS[1:])
async def test_elicitation_of_a_task_reaches_the_client(bakery: Bakery, revision: str) -> None:
    face = CodeModeServer(bakery.server)
    code = "from tools import decorate, burn\ncolour = await decorate()\ntry:\n    await burn()\n"
    code += "except ToolError as failure:\n    return [colour, str(failure)]"
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(face, protocol_version=revision, elicitation_handler=bakery.answer) as client,
    ):
        result = await run(client, code)
    colour, failure = result.structured["value"]
    assert colour == "in red"
    assert "Internal error" in failure and "smoke" not in failure
    assert bakery.begun == ["decorate"]
    assert bakery.asked == ["A script is about to call tools that may change data:", "Which colour?"]


async def test_paused_run_takes_up_the_same_task(bakery: Bakery) -> None:
    """The question about the sale ends the first round while the cake is in the oven."""
    bakery.server.add(CodeMode())
    code = "from tools import decorate, sell\ncake = asyncio.create_task(decorate())\n"
    code += "await asyncio.sleep(0.1)\nsold = await sell('pie')\nreturn [sold, await cake]"
    rules = {"rule": [{"tool": "*"}], "require": [{"tool": "bakery.sell", "confirm": "Sell?"}]}
    access_settings.apply(bakery.server, access_settings.read(rules))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(bakery.server, elicitation_handler=bakery.answer) as client:
        result = await run(client, code)
    assert result.structured["value"] == ["sold pie", "in red"]
    assert bakery.begun == ["decorate"]
    assert sorted(bakery.asked) == ["A script is about to call tools that may change data:", "Sell?", "Which colour?"]


@pytest.mark.parametrize("lasts", [False, True])
async def test_task_ends_with_its_run(
    bakery: Bakery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    monkeypatch.setattr(service, "INTERRUPTED_RUN_RETENTION_SECONDS", 0.05 if lasts else TIMEOUT_SECONDS)
    bakery.server.add(CodeMode(store=tmp_path / "runs.db" if lasts else None))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(bakery.server) as client:
        running = asyncio.create_task(run(client, "from tools import watch\nawait watch()"))
        await bakery.begins.wait()
        running.cancel()
        await asyncio.wait([running])
        await bakery.cancelled.get()
        # One that the script does not wait for.
        bakery.begins.clear()
        await run(client, "from tools import watch, until_begun\nasyncio.create_task(watch())\nawait until_begun()")
        await bakery.cancelled.get()
    assert bakery.begun == ["watch"] * 2


async def test_write_in_the_middle_is_waited_for_before_the_run_becomes_a_task(
    bakery: Bakery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_run, "DETACH_AFTER_SECONDS", 0.05)
    begun = asyncio.Event()

    @bakery.server.tool
    async def deliver(ctx: Context) -> str:
        begun.set()
        await asyncio.sleep(0.3)
        bakery.begun.append("deliver")
        return "delivered"

    bakery.server.add(CodeMode(writes="allow"))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(bakery.server) as client:
        task = await client.start_task("run", {"code": "from tools import deliver\nreturn await deliver()"})
        assert begun.is_set() and task.id
        message = (await task.result()).structured
    assert (message["value"], message.get("unknown")) == ("delivered", None)
    assert bakery.begun == ["deliver"]


async def test_runs_that_are_tasks_leave_room_for_the_tasks_they_wait_for(
    bakery: Bakery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_run, "DETACH_AFTER_SECONDS", 0.05)
    bakery.server.add(CodeMode(writes="allow"))
    assert bakery.server.tasks is not None
    bakery.server.tasks.concurrency = 1
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(bakery.server) as client:
        # By then the run is a task, and has the only place.
        code = "from tools import bake\nawait asyncio.sleep(0.2)\nawait bake('pie')"
        task = await client.start_task("run", {"code": code})
        assert (await task.result()).structured["value"] == "baked pie"


@pytest.mark.parametrize("below", ["2025-11-25", "2026-07-28"])
async def test_through_a_gateway(below: Any) -> None:
    gateway = Gateway(name="acme")
    gateway.add_upstream("b", [sys.executable, str(TASKING)], protocol_version=below)
    gateway.add(CodeMode(writes="allow"))

    async def answer(*_: Any, **__: Any) -> dict[str, Any]:
        return {"name": "Ada"}

    async with gateway.lifespan():
        for revision in REVISIONS[1:]:
            client = Client(gateway, protocol_version=revision, elicitation_handler=answer)
            async with asyncio.timeout(TIMEOUT_SECONDS), client:
                result = await run(client, "from tools import b\nreturn [await b.must('it'), await b.greet()]")
            assert result.text == '["did it","Hello, Ada!"]', revision


@pytest.mark.parametrize("fate", ["known", "stop"])
async def test_run_that_was_killed_or_stopped_takes_up_the_same_task(tmp_path: Path, fate: str) -> None:
    file = tmp_path / "ledger"
    file.with_suffix(".fate").write_text(fate)
    command = [sys.executable, str(LEDGER), str(file), str(file.with_suffix(".db")), "tasks"]

    async def answer(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    async def once() -> Any:
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(command, elicitation_handler=answer) as client:
            return await run(client, "from tools import post\nawait post(7)")

    with pytest.raises(TransportError):
        await once()
    result = await once()
    assert (result.structured["value"], result.structured["resumed"]) == ("posted 7", True)
    assert file.read_text().split() == ["7"]


@pytest.mark.parametrize("revision", REVISIONS[1:])
@pytest.mark.parametrize("prefix", ["b.c", None])
async def test_of_a_mounted_server(bakery: Bakery, revision: str, prefix: str | None) -> None:
    """Mounted twice over, and asked through a face: neither server has a task of its own."""
    village, county = Server("village"), Server("county")
    village.mount(bakery.server, prefix)
    county.mount(village)
    face = CodeModeServer(county)
    names = "bake", "decorate", "watch", "until_begun"
    listed = [name if prefix is None else f"{prefix}_{name}" for name in names]
    get = "import tools\nbake, decorate, watch, until_begun = [getattr(tools, one.replace('.', '_')) for one in data]\n"
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(face, protocol_version=revision, elicitation_handler=bakery.answer) as client,
    ):
        result = await run(client, f"{get}return [await bake('pie'), await decorate()]", data=listed)
        assert result.structured["value"] == ["baked pie", "in red"]
        await run(client, f"{get}asyncio.create_task(watch())\nawait until_begun()", data=listed)
        await bakery.cancelled.get()
    assert bakery.begun == ["pie", "decorate", "watch"]


async def test_addresses_in_the_result_of_a_task_lead_to_the_mounted_server(bakery: Bakery) -> None:
    link = ResourceLink(uri="cake://pie", name="pie")
    bakery.server.tool(name="plain", annotations=READS)(lambda: link)

    @bakery.server.tool(task=ONLY_TASK, annotations=READS)
    async def slow() -> list[Any]:
        return [link, EmbeddedResource(resource=TextResourceContents(uri="cake://tart", text="a tart"))]

    village, county = Server("village"), Server("county")
    village.mount(bakery.server, "b")
    county.mount(village, "v")
    code = "import tools\nreturn [await tools.v_b_plain(), await tools.v_b_slow()]"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(CodeModeServer(county)) as client:
        [plain], [first, second] = (await run(client, code)).structured["value"]
    assert plain["uri"] == first["uri"] == "cake://v/b/pie"
    assert second["resource"]["uri"] == "cake://v/b/tart"


async def test_of_a_mounted_server_a_run_that_is_paused_takes_up_the_same_task(bakery: Bakery) -> None:
    host = Server("village")
    host.mount(bakery.server)
    host.add(CodeMode())
    code = "from tools import decorate, sell\ncake = asyncio.create_task(decorate())\n"
    code += "await asyncio.sleep(0.1)\nsold = await sell('pie')\nreturn [sold, await cake]"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(host, elicitation_handler=bakery.answer) as client:
        assert (await run(client, code)).structured["value"] == ["sold pie", "in red"]
    assert bakery.begun == ["decorate"]


async def test_task_of_a_mounted_server_belongs_to_its_caller(bakery: Bakery) -> None:
    """Its id says whose it is, and is no way in: a client that asks for it itself is told of no such task."""
    host = Server("village")
    host.mount(bakery.server, "b")
    host.add(CodeMode(writes="allow"))
    seen: list[str] = []
    inner = bakery.server.tasks
    assert inner is not None
    created = inner._create

    async def remember(*given: Any) -> Any:
        task = await created(*given)
        seen.append(task.task_id)
        return task

    inner._create = remember  # type: ignore[method-assign]
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(host) as client:
        assert (await run(client, "from tools import b\nawait b.bake('pie')")).structured["value"] == "baked pie"
        for id in (seen[0], f"b.{seen[0]}"):
            with pytest.raises(ProtocolError, match=r"Unknown task|Missing required client capability"):
                await client.request("tasks/get", {"taskId": id})
