"""Tools with unusual names, results and errors, and clients that disconnect during a run."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Server, ToolError
from portico.compat.mcp_sdk import LowLevelServer, ToolDefinition
from portico.errors import MethodNotFound
from portico.extend import Call
from portico.search import ToolSearchServer
from portico_services.codemode import CodeMode, CodeModeServer, service
from portico_services.livepython.sandbox.worker import PythonWorker
from support.script_tools import READS, TIMEOUT_SECONDS, ToolShop, jail_only, run

pytestmark = jail_only
DISCOVERED = b"""{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},
"ttlMs":0,"cacheScope":"private"}"""


def structured(value: bytes) -> bytes:
    return b'{"resultType":"complete","content":[],"structuredContent":%s}' % value


class Oddity:
    """A server that says what it was told to, to the byte: of each tool, its whole result."""

    def __init__(self, results: dict[str, bytes]) -> None:
        self.results = results

    async def __call__(self, call: Call) -> Raw:
        if call.method == "tools/list":
            tools = [
                {"name": result, "inputSchema": {"type": "object"}, "annotations": READS} for result in self.results
            ]
            return Raw(b'{"resultType":"complete","tools":%s}' % json.dumps(tools).encode())
        if call.method == "tools/call":
            return Raw(self.results[call.decode_params().name])
        if call.method == "server/discover":
            return Raw(DISCOVERED)
        raise MethodNotFound(call.method)


# What a tool says, and what the script makes of it.
RESULTS: dict[str, tuple[bytes, str]] = {
    "half_a_character": (structured(b'"\\ud800"'), "InvalidResult"),
    "not_a_number": (structured(b"NaN"), "InvalidResult"),
    "cut_off": (structured(b"{"), "InvalidResult"),
    "not_utf8": (structured(b'"\xff"'), "InvalidResult"),
    "many_digits": (structured(b"1" * 80_000), "TooLarge"),
    "no_bottom": (structured(b"[" * 100_000 + b"]" * 100_000), "InvalidResult"),
    "no_object": (b"[1]", "InvalidResult"),
    "no_content": (b'{"resultType":"complete","content":null}', "InvalidResult"),
    "a_task_without_a_name": (b'{"resultType":"task","taskId":5,"content":5}', "InvalidResult"),
    "a_question_that_is_none": (
        b'{"resultType":"input_required","inputRequests":{"a":{"method":"x"}}}',
        "ToolExecutionError",
    ),
    "endless_questions": (b'{"resultType":"input_required","requestState":"x"}', "ToolExecutionError"),
    "an_odd_refusal": (b'{"content":[],"isError":true,"_meta":{"portico/error":5}}', "ToolExecutionError"),
    "beyond_64_bits": (structured(b"1180591620717411303424"), "1180591620717411303424"),
    "beyond_a_float": (structured(b"1e999"), "inf"),
    "twice_the_same": (structured(b'{"result":1,"result":2}'), "{'result': 2}"),
    "a_word_that_means_more": (structured(b'"\\"task\\" \\"input_required\\""'), '"task" "input_required"'),
}


async def test_results_of_all_kinds_come_to_a_value_or_to_an_error() -> None:
    code = "import tools\nfound = {}\nfor name in data:\n"
    code += "    try:\n        found[name] = str(await getattr(tools, name)())\n"
    code += "    except ToolError as failure:\n        found[name] = failure.kind\nreturn found"
    face = CodeModeServer(Oddity({name: result for name, (result, _) in RESULTS.items()}), timeout=10.0)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(face) as client:
        said = await run(client, code, data=list(RESULTS))
    assert said.structured["value"] == {name: wanted for name, (_, wanted) in RESULTS.items()}


# fmt: off
NAMES = [
    "class", "None", "ToolError", "a-b", "a_b", "a b", "__getattr__", "__path__", "__tool__", "tool", "9lives", "await",
    "print", "tools", "_", "fi", "ﬁ", "名前", "😀", "", "\n", "from tools import z", "x" * 300, "\u202eevil", "a\0b",
]
# fmt: on


async def test_tool_of_any_name_can_be_called_and_described() -> None:
    code = "import tools\nreturn [await one() for one in vars(tools).values() if type(one).__name__ == 'ToolFunction']"
    face = CodeModeServer(Oddity({name: structured(json.dumps(name).encode()) for name in NAMES}))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(face) as client:
        result = (await run(client, code)).structured["value"]
        stubs = (await client.call_tool("describe_tools", {"tools": NAMES})).text
    assert set(result) == set(NAMES)
    compile(stubs, "<stubs>", "exec")


async def test_tool_and_a_server_may_have_one_name() -> None:
    host, github = Server("host"), Server("github")

    @host.tool(name="github", annotations=READS)
    async def own() -> str:
        return "the tool"

    for name in ("issue", "github", "tool"):

        @github.tool(name=name, annotations=READS)
        async def one(name: str = name) -> str:
            return f"the server's {name}"

    host.mount(github, "github")
    host.add(CodeMode())
    code = "from tools import github\nreturn [await github(), await github.issue(), await github.github(), "
    code += "await github.tool()]"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(host) as client:
        result = await run(client, code)
        assert result.structured["value"] == [
            "the tool",
            "the server's issue",
            "the server's github",
            "the server's tool",
        ]
        refused = await run(client, "import tools\ntools()")
    assert "not a tool" in refused.text


ODD_REFUSALS: dict[str, ToolError] = {
    "details that are no JSON": ToolError("no", details={"n": object()}),
    "a number that is none": ToolError("no", details={"n": float("nan")}),
    "half a character": ToolError("no \ud800", error_type="\ud800"),
}


@pytest.mark.parametrize("what", ODD_REFUSALS)
async def test_error_that_json_cannot_represent_is_still_a_tool_error(what: str) -> None:
    server = Server("odd")

    @server.tool(annotations=READS)
    async def refuse() -> str:
        raise ODD_REFUSALS[what]

    server.add(CodeMode(timeout=5.0))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server) as client:
        error = await run(client, "from tools import refuse\nawait refuse()")
    assert "ToolError: no" in error.text
    assert "Traceback" not in error.text


@pytest.mark.parametrize("face", [ToolSearchServer, CodeModeServer])
async def test_code_mode_and_tool_search_wrap_a_low_level_server(face: Any) -> None:
    server = LowLevelServer("low")

    @server.list_tools()
    async def tools() -> list[ToolDefinition]:
        return [
            ToolDefinition(name="echo", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})
        ]

    @server.call_tool()
    async def call(name: str, arguments: dict[str, Any]) -> list[Any]:
        return [{"type": "text", "text": f"{name}: {arguments['text']}"}]

    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(face(server, **({"writes": "allow"} if face is CodeModeServer else {}))) as client,
    ):
        assert "echo(text: str" in (await client.call_tool("find_tools", {"queries": "echo"})).text
        if face is CodeModeServer:
            result = await run(client, "from tools import echo\nreturn await echo(text='a')")
        else:
            result = await client.call_tool("call_tool", {"name": "echo", "arguments": {"text": "a"}})
    assert "echo: a" in result.text


UNCAUGHT = {
    "a callback": ("asyncio.get_running_loop().call_soon(lambda: 1 / 0)\nawait price('a')", "ZeroDivisionError"),
    "a task": ("asyncio.create_task(refuse('pen'))\nawait price('a')\nawait price('b')\ngc.collect()", "no pen"),
}


@pytest.mark.parametrize("what", UNCAUGHT)
async def test_uncaught_error_in_a_script_is_reported_without_internal_paths(what: str) -> None:
    code, words = UNCAUGHT[what]
    async with ToolShop().client() as client:
        error = await run(client, f"import gc\nfrom tools import price, refuse\n{code}\n1")
    assert error.structured["value"] == 1
    assert words in error.text
    assert "Traceback" not in error.text and "portico" not in error.text and ".py" not in error.text


# Clients that leave


def kept_runs(store: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute("select status from portico_run").fetchall()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("state", ["in a write", "after a write", "while a person is asked"])
async def test_cancelled_run_is_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str, state: str
) -> None:
    monkeypatch.setattr(service, "INTERRUPTED_RUN_RETENTION_SECONDS", 0.05)
    store, reached = tmp_path / "runs.db", asyncio.Event()
    shop = ToolShop(store=store, allow_tasks=False)

    @shop.server.tool
    async def build(item: str) -> str:
        reached.set()
        return await asyncio.get_running_loop().create_future()

    @shop.server.tool(annotations=READS)
    async def look_on() -> str:
        reached.set()
        return await asyncio.get_running_loop().create_future()

    async def answer(*_: Any, **__: Any) -> dict[str, Any]:
        if state == "while a person is asked":
            reached.set()
            await asyncio.get_running_loop().create_future()
        return {}

    code = {"in a write": "await build('a')", "after a write": "await order('a')\nawait look_on()"}
    script = "from tools import build, order, look_on\n" + code.get(state, "await order('a')")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(shop.server, protocol_version=revision, elicitation_handler=answer) as client,
    ):
        running = asyncio.create_task(run(client, script))
        await reached.wait()
        running.cancel()
        await asyncio.wait([running])
        # At 2026-07-28 a person is asked between two requests, and neither is there to be cancelled.
        left = [("paused",)] if (state, revision) == ("while a person is asked", "2026-07-28") else []
        while kept_runs(store) != left:  # noqa: ASYNC110 - rows of a database
            await asyncio.sleep(0.01)
        # No process says any more that it works on it.
        assert not [all_task for all_task in asyncio.all_tasks() if "_say_alive" in repr(all_task.get_coro())]
        assert (await run(client, "1 + 1")).structured["value"] == 2


# Speed


async def test_calls_side_by_side_are_answered_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    notifications: list[int] = []
    tell = PythonWorker.send
    monkeypatch.setattr(
        PythonWorker, "send", lambda self, message: (notifications.append(message.count(b'"n":')), tell(self, message))
    )
    shop = ToolShop(max_concurrent_calls=50)
    async with shop.client() as client:
        code = "from tools import price\nawait asyncio.gather(*[price('a') for _ in range(50)])\nawait price('b')\nNone"
        await run(client, code)
    assert sum(notifications) == 51
    assert len(notifications) <= 5
