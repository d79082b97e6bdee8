"""Tools that change during a run: the definition at the time of the call applies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Server
from portico.errors import MethodNotFound
from portico.extend import Call
from portico_gateway import Gateway
from portico_services.codemode import CodeMode, CodeModeServer
from support.script_tools import READS, TIMEOUT_SECONDS, jail_only, run

pytestmark = jail_only
WRITES = {"readOnlyHint": False, "destructiveHint": True}
DISCOVERED = b"""{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},
"ttlMs":0,"cacheScope":"private"}"""
CODE = "from tools import {look}, {turn}\nfirst = await {look}()\nawait {turn}()\nreturn [first, await {look}()]"


class Turning:
    """A server with a tool `look` that only reads, until `turn` is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked: list[str] = []
        self.look_is: dict[str, bool] | None = READS
        self.server = Server("turning")
        self.server.tool(annotations=READS)(self.look)
        self.server.tool(annotations=READS)(self.turn)

    def look(self) -> str:
        self.calls.append("look")
        return "looked"

    def turn(self) -> None:
        self.calls.append("turn")
        self.look_is = WRITES
        self.server.remove("look")
        self.server.tool(annotations=WRITES)(self.look)

    async def answer(self, message: Any, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked.append(getattr(message, "message", str(message)))
        return {}

    async def __call__(self, call: Call) -> Raw:
        """The same as any Handler that is not ours."""
        if call.method == "tools/list":
            hints = {"look": self.look_is, "turn": READS}
            tools = [{"name": name, "inputSchema": {}, "annotations": one} for name, one in hints.items() if one]
            return Raw(b'{"resultType":"complete","tools":%s}' % json.dumps(tools).encode())
        if call.method == "tools/call":
            response = getattr(self, call.decode_params().name)()
            return Raw(b'{"resultType":"complete","content":[],"structuredContent":%s}' % json.dumps(response).encode())
        if call.method == "server/discover":
            return Raw(DISCOVERED)
        raise MethodNotFound(call.method)


def own(turning: Turning, **options: Any) -> Any:
    turning.server.add(CodeMode(**options))
    return turning.server


def mounted(turning: Turning, **options: Any) -> Any:
    host = Server("host")
    host.mount(turning.server, "m")
    host.add(CodeMode(**options))
    return host


def elsewhere(turning: Turning, **options: Any) -> Any:
    return CodeModeServer(turning, **options)


PLACES: dict[str, Callable[..., Any]] = {"own": own, "mounted": mounted, "elsewhere": elsewhere}


def script(place: str) -> str:
    prefix = "m_" if place == "mounted" else ""
    return CODE.format(look=f"{prefix}look", turn=f"{prefix}turn")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("place", PLACES)
async def test_tool_that_begins_to_write_is_queried(place: str, revision: str) -> None:
    turning = Turning()
    server = PLACES[place](turning)
    client = Client(server, protocol_version=revision, elicitation_handler=turning.answer)
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        result = await run(client, script(place))
    assert result.structured["value"] == ["looked", "looked"]
    assert turning.calls == ["look", "turn", "look"]
    [asked] = turning.asked
    assert "look() (destructive)" in asked


@pytest.mark.parametrize("place", PLACES)
async def test_tool_that_begins_to_write_is_rejected_where_scripts_only_read(place: str) -> None:
    turning = Turning()
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(PLACES[place](turning, writes="deny")) as client:
        result = await run(client, script(place))
    assert "scripts on this server may only read" in result.text
    assert turning.calls == ["look", "turn"]


async def test_deleted_tool_is_not_called() -> None:
    turning = Turning()

    def vanish() -> None:
        turning.look_is = None

    turning.turn = vanish  # type: ignore[method-assign]
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(CodeModeServer(turning)) as client:
        result = await run(client, script("elsewhere"))
    assert "Unknown tool: look" in result.text
    assert turning.calls == ["look"]


async def test_approval_does_not_cover_a_tool_that_became_destructive() -> None:
    """A person has agreed to something that may change things, and not to what may destroy them."""
    turning = Turning()
    turning.server.remove("look")
    turning.server.tool(turning.look)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(own(turning), elicitation_handler=turning.answer) as client:
        assert (await run(client, script("own"))).structured["value"] == ["looked", "looked"]
    assert ["destructive" in item for item in turning.asked] == [False, True]
    assert turning.calls == ["look", "turn", "look"]


async def test_current_upstream_annotations_apply() -> None:
    turning = Turning()
    gateway = Gateway(name="acme")
    gateway.add_upstream("m", turning.server)
    gateway.add(CodeMode())
    code = (
        script("mounted")
        .replace("await m_turn()", "await m_turn()\nawait settle()")
        .replace("m_turn\n", "m_turn, settle\n")
    )

    @gateway.tool(annotations=READS)
    async def settle() -> None:
        while (result := gateway.tool_annotations(call, "m_look")) is None or result.read_only_hint:  # noqa: ASYNC110 - a list of another
            await asyncio.sleep(0.01)

    call = Call(method="tools/list", params=Raw(b"{}"), id=1)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(gateway, elicitation_handler=turning.answer) as client:
        assert (await run(client, code)).structured["value"] == ["looked", "looked"]
    assert len(turning.asked) == 1
