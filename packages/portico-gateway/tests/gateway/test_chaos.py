"""A misbehaving HTTP upstream fails only its own calls."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import PorticoError
from portico_gateway import Gateway

REVISION = "2025-11-25"
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("work", "ask", "slow")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang when it is listed too."""
    monkeypatch.setattr(Gateway, "first_list_seconds", 2.0)


class Chaotic:
    """A server with sessions, by hand. `mode` says how the next call is answered."""

    def __init__(self) -> None:
        self.mode = ""
        self.heard: Counter[str] = Counter()
        self.sessions: list[str] = []
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self.gate = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        finally:
            self.gate.set()
            for writer in list(self._writers):
                writer.close()
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = {
                    line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.splitlines()[1:]
                }
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.startswith("POST"):
                    await self._post(writer, fields, json.loads(body))
                else:
                    _answer(writer, 405 if head.startswith("GET") else 200, b"")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _post(self, writer: asyncio.StreamWriter, fields: dict[str, str], said: dict[str, Any]) -> None:
        method = said.get("method", "answer")
        if method == "server/discover":
            _answer(writer, 400, b"no session")
        elif method == "initialize":
            self.sessions.append(f"s{len(self.sessions)}")
            about = {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": NAMED}
            _answer(writer, 200, _result(said, about), f"Mcp-Session-Id: {self.sessions[-1]}\r\n")
        elif method == "answer":
            self.answers[said["id"]].set_result(said)
            _answer(writer, 202, b"")
        elif "id" not in said:
            _answer(writer, 202, b"")
        elif method == "tools/list":
            _answer(writer, 200, _result(said, {"tools": TOOLS}))
        elif method == "tools/call":
            await self._call(writer, fields, said)
        else:
            _answer(writer, 200, _result(said, {}))

    async def _call(self, writer: asyncio.StreamWriter, fields: dict[str, str], said: dict[str, Any]) -> None:
        name, mode = said["params"]["name"], self.mode
        self.mode = ""
        self.heard[mode or name] += 1
        done = _result(said, {"content": [{"type": "text", "text": f"{name} in {fields['mcp-session-id']}"}]})
        if mode == "lost":
            _answer(writer, 404, b"")
        elif mode == "busy":
            _answer(writer, 503, b"", "Retry-After: 7\r\n")
        elif mode == "half":
            _answer(writer, 200, b'{"jsonrpc":')
        elif mode == "broken":
            writer.close()
        elif mode == "hangs":
            await self.gate.wait()
        elif mode == "drips":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
            while not self.gate.is_set():
                writer.write(b" ")
                await asyncio.sleep(0.01)
        elif mode == "long":
            text = "x" * 10_000_000
            _answer(writer, 200, _result(said, {"content": [{"type": "text", "text": text}]}))
        elif name == "ask":
            await self._ask(writer, said)
        elif name == "slow":
            await self.gate.wait()
            _answer(writer, 200, done)
        else:
            _answer(writer, 200, done)

    async def _ask(self, writer: asyncio.StreamWriter, said: dict[str, Any]) -> None:
        """A question on the stream of the call that it is about."""
        id, who = f"q{len(self.answers)}", said["params"]["arguments"]["who"]
        self.answers[id] = asyncio.get_running_loop().create_future()
        params = {"message": f"Are you {who}?", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params}
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"data: " + json.dumps(question).encode() + b"\n\n")
        answer = await self.answers[id]
        text = json.dumps(answer.get("result", answer.get("error")))
        writer.write(b"data: " + _result(said, {"content": [{"type": "text", "text": text}]}) + b"\n\n")
        writer.close()


NAMED = {"name": "chaotic", "version": "1"}


def _result(said: dict[str, Any], result: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}).encode()


def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, more: str = "") -> None:
    kind = "Content-Type: application/json\r\n" if body else ""
    writer.write(f"HTTP/1.1 {status} X\r\n{kind}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def surrounded(**options: Any) -> AsyncIterator[tuple[Chaotic, Gateway]]:
    """A gateway with this one, and another that is well."""
    good = Server("good")

    @good.tool
    async def double(number: int) -> int:
        return 2 * number

    chaotic = Chaotic()
    async with chaotic.serving() as url:
        gateway = Gateway({"good": good}, max_result_tokens=0)
        gateway.add_upstream("bad", url, **options)
        async with gateway.lifespan():
            await gateway.wait_until_listed(20)
            yield chaotic, gateway


async def others_are_right(client: Client, meanwhile: Callable[[], Any]) -> Any:
    """What a call comes to, and that those to another upstream are not touched by it."""
    calls = [client.call_tool("good_double", {"number": number}) for number in range(20)]
    message, *rest = await asyncio.gather(meanwhile(), *calls, return_exceptions=True)
    assert [item.text for item in rest] == [str(2 * number) for number in range(20)]
    return message


@pytest.mark.parametrize("mode", ["half", "broken", "hangs", "drips"])
async def test_possibly_received_request_is_not_retried(mode: str) -> None:
    async with surrounded(timeout=0.5) as (chaotic, gateway), Client(gateway) as client:
        chaotic.mode = mode
        result = await others_are_right(client, lambda: client.call_tool("bad_work"))
        assert isinstance(result, PorticoError)
        assert chaotic.heard == {mode: 1}
        assert (await client.call_tool("bad_work")).text.startswith("work in")


async def test_forgotten_session_is_opened_again_and_the_call_sent_once_more() -> None:
    async with surrounded() as (chaotic, gateway), Client(gateway) as client:
        before = (await client.call_tool("bad_work")).text
        chaotic.mode = "lost"
        after = await others_are_right(client, lambda: client.call_tool("bad_work"))
        assert after.text != before
        assert chaotic.heard == {"lost": 1, "work": 2}


async def test_retry_after_header_is_respected() -> None:
    async with surrounded() as (chaotic, gateway), Client(gateway) as client:
        chaotic.mode = "busy"
        for _ in range(2):
            result = await others_are_right(client, lambda: client.call_tool("bad_work"))
            assert isinstance(result, ToolError) and "The next attempt is in 7 s" in str(result)
        assert chaotic.heard == {"busy": 1}, "the second call was not sent"
        gateway._router.upstreams["bad"].health.shared._until = 0.0
        assert (await client.call_tool("bad_work")).text.startswith("work in")


async def test_ten_megabytes_in_one_line_are_a_result() -> None:
    async with surrounded() as (chaotic, gateway), Client(gateway) as client:
        chaotic.mode = "long"
        result = await others_are_right(client, lambda: client.call_tool("bad_work"))
        assert len(result.text) == 10_000_000


@pytest.mark.parametrize("above", [REVISION, "2026-07-28"])
async def test_server_request_on_a_call_stream_belongs_to_the_call(above: Any) -> None:
    """However many are under way: each client is asked about its own."""

    def answering(name: str) -> Any:
        async def answer(params: Any) -> ElicitResult:
            return ElicitResult("accept" if params.message == f"[bad] Are you {name}?" else "decline", {})

        return answer

    async with (
        surrounded(isolation="shared") as (chaotic, gateway),
        Client(gateway, protocol_version=above, elicitation_handler=answering("ada")) as ada,
        Client(gateway, protocol_version=above, elicitation_handler=answering("bob")) as bob,
    ):
        slow = asyncio.ensure_future(ada.call_tool("bad_slow"))
        calls = [(ada, "ada"), (bob, "bob"), (ada, "ada"), (bob, "bob")]
        result = await asyncio.gather(*(item.call_tool("bad_ask", {"who": who}) for item, who in calls))
        assert {json.loads(item.text)["action"] for item in result} == {"accept"}
        assert not gateway._router.upstreams["bad"].connections.one_call_per_connection, "there was nothing to learn"
        chaotic.gate.set()
        await slow
