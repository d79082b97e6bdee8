"""Hostile servers on both transports cause a clear error that names the server and the call.

Whatever happened, the client answers the next question, or says that it is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, ProtocolError
from portico.client import pagination, requests
from portico.jsonschema.validation import convert_formats
from portico.protocol import jsonrpc
from portico.protocol.errors import ConnectionClosed, RequestTimeout
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.rpc.call import Call
from portico.transports import process
from portico.transports.http_client import event_streams
from support.scripted import Endpoint, Peer, Request

Serve = Callable[..., Any]
EVERYTHING = ServerCapabilities(tools={}, prompts={}, resources={"subscribe": True}, completions={})
TIMEOUT_SECONDS = 20.0
MODERN, OLD = "2026-07-28", "2025-11-25"

# A server whose answer to tools/call is whatever its argument does.
CHILD = """
import json, os, sys, time
def raw(data):
    sys.stdout.buffer.write(data + b"\\n")
    sys.stdout.flush()
def say(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode())
def result(result, id=None):
    say({"id": said["id"] if id is None else id, "result": {"resultType": "complete", **result}})
HAS = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
early = sys.argv[2] if len(sys.argv) > 2 else ""
exec(early)
for line in sys.stdin:
    said = json.loads(line)
    method = said.get("method")
    if method == "server/discover":
        result({"supportedVersions": ["2026-07-28"], "capabilities": HAS, "ttlMs": 0, "cacheScope": "private"})
    elif method == "initialize":
        result({"protocolVersion": "2025-11-25", "capabilities": HAS, "serverInfo": {"name": "n", "version": "1"}})
    elif method == "tools/call":
        exec(sys.argv[1])
    elif method == "prompts/list":
        result({"prompts": []})
"""


def child(answer: str, early: str = "") -> list[str]:
    return [sys.executable, "-S", "-c", CHILD, answer, early]


async def still_works(client: Client) -> None:
    assert await client.list_prompts() == []


# Over stdio

LIES: dict[str, str] = {
    "result({'content': []}, id='2')": "id '2'",
    "result({'content': []}, id=77)": "was not answered within 0.3 s; it sent a response with the unknown id '77'",
    "say({'id': None, 'result': {}})": "was not answered within 0.3 s; it sent a response without an id",
    "say({'id': said['id']})": "cannot be decoded",
    "say({'id': said['id'], 'result': {}, 'error': {'code': 1, 'message': ''}})": "cannot be decoded",
    "say({'id': said['id'], 'error': 5})": "cannot be decoded",
    'raw(b\'{"jsonrpc": "1.0", "id": %d, "result": {}}\' % said[\'id\'])': "cannot be decoded",
    'raw(b\'{"jsonrpc": "2.0", "id": %d, "result": {"x": "\\xff"}}\' % said[\'id\'])': "cannot be decoded",
    'raw(b\'{"jsonrpc": "2.0", "id": %d, "result": {"x": \' % said[\'id\'])': "cannot be decoded",
    'raw(b\'{"jsonrpc": "2.0", "id": %d, "result": \' % said[\'id\'] + b\'[\' * 50000)': "cannot be decoded",
    'raw(b\'[{"jsonrpc": "2.0", "id": %d, "result": {}}]\' % said[\'id\'])': "batch",
    "result({'content': 5})": "invalid result",
    "result({'content': [{'type': 'hologram'}]})": "invalid result",
    "result({'content': [], 'resultType': 'perhaps'})": "unknown resultType: perhaps",
    "result({'content': [], 'resultType': 'task'})": "unknown resultType: task",
    "result({'resultType': 'input_required'})": "without inputRequests or requestState",
    "result({'resultType': 'input_required', 'inputRequests': {'a': {'method': 'x/y'}}})": "x/y, but the client has no",
    "many = {str(n): {'method': 'roots/list'} for n in range(500)}\n"
    "result({'resultType': 'input_required', 'inputRequests': many})": "sent 500 input requests (maximum 100)",
    "raw(b'x' * 200_000)": "more than 100000 bytes",
    "raw(b'{\"jsonrpc\": \"2.0\", \"id\": %d, ' % said['id'] + b'x' * 200_000)": "more than 100000 bytes",
    "print('Oops')": "was not answered within 0.3 s",
}


@pytest.mark.requirement("jsonrpc.one-answer")
@pytest.mark.parametrize("answer", LIES, ids=lambda one: one[:60])
@pytest.mark.parametrize("revision", [MODERN, OLD])
async def test_lie_over_stdio_is_an_error_that_names_both(revision: str, answer: str) -> None:
    complaint = LIES[answer]
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=revision, roots=[]) as client:
        client._upstream.transport._lines.max_line_bytes = 100_000  # type: ignore[attr-defined]
        timeout = 0.3 if "0.3 s" in complaint else TIMEOUT_SECONDS
        with pytest.raises((ProtocolError, RequestTimeout)) as raised:
            await client.call_tool("t", timeout=timeout)
        text = str(raised.value)
        assert complaint in text
        assert "tools/call" in text
        assert "python" in text
        assert len(text) < 1000
        await still_works(client)


async def test_answer_that_comes_before_its_question_is_no_answer() -> None:
    """The next question has an answer of its own."""
    answer = "say({'id': said['id'] + 1, 'result': {'prompts': 5}})"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=MODERN) as client:
        with pytest.raises(RequestTimeout, match=r"python: tools/call .* it sent a response with the unknown id '3'"):
            await client.call_tool("t", timeout=0.3)
        await still_works(client)


async def test_right_answer_may_come_after_a_wrong_one() -> None:
    """JSON-RPC: an answer has the id of its request. One with another id is nobody's, and no reason to give up."""
    answer = "result({'content': []}, id=77); result({'content': [{'type': 'text', 'text': 'right'}]})"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=MODERN) as client:
        assert (await client.call_tool("t")).text == "right"


@pytest.mark.requirement("jsonrpc.late-response")
async def test_second_answer_is_ignored() -> None:
    answer = "[result({'content': [{'type': 'text', 'text': str(n)}]}) for n in range(3)]"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer)) as client:
        for _ in range(3):
            assert (await client.call_tool("t")).text == "0"
        await still_works(client)


async def test_only_the_call_that_was_lied_to_fails() -> None:
    """An answer to nobody could be anybody's when several wait; it is no reason to fail them all."""
    answer = (
        "number = said['params']['arguments']['n']\n"
        "if number == 0: result({'content': []}, id='nobody')\n"
        "else: time.sleep(0.01); result({'content': []})"
    )
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer)) as client:
        first = asyncio.ensure_future(client.call_tool("t", {"n": 0}, timeout=0.5))
        rest = await asyncio.gather(*(client.call_tool("t", {"n": n}) for n in range(1, 5)))
        assert len(rest) == 4
        with pytest.raises((ProtocolError, RequestTimeout), match="nobody"):
            await first


async def test_notifications_without_end_do_not_stand_in_the_way() -> None:
    answer = (
        'for n in range(50_000): raw(b\'{"jsonrpc":"2.0","method":"notifications/x","params":{"n":%d}}\' % n)\n'
        "result({'content': []})"
    )
    heard = 0

    def count(method: str, params: Raw) -> None:
        nonlocal heard
        heard += 1

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), message_handler=count) as client:
        await client.call_tool("t")
        await still_works(client)
    assert heard == 50_000


@pytest.mark.parametrize(
    "notice",
    [
        {"method": "notifications/progress", "params": {"progressToken": {}}},
        {"method": "notifications/progress"},
        {"method": "notifications/message", "params": {"level": "loud"}},
        {"method": "notifications/resources/updated", "params": {}},
        {"method": "notifications/tools/list_changed", "params": {"_meta": 5}},
        {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": 5}},
        {"method": "notifications/cancelled", "params": {"requestId": []}},
        {"method": "notifications/x", "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": [1]}}},
        {"method": "tools/list", "params": {}},
        {"method": ""},
    ],
    ids=str,
)
@pytest.mark.parametrize("revision", [MODERN, OLD])
async def test_notification_of_the_wrong_shape_is_ignored(
    revision: str, notice: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = f"say({notice!r}); result({{'content': []}})"
    options: Any = {"log_handler": print, "progress_handler": print}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=revision, **options) as client:
        if revision == OLD:
            async with client.listen(tools=True):
                await client.call_tool("t")
        else:
            await client.call_tool("t")
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.requirement("modern.no-client-responses")
async def test_questions_on_2026_07_28_are_not_answered_over_stdio_either(caplog: pytest.LogCaptureFixture) -> None:
    """2026-07-28, basic/transports: a client MUST NOT write responses."""
    answer = (
        "for n in range(1000): say({'id': n, 'method': 'ping'})\n"
        "say({'id': 'e', 'method': 'elicitation/create', 'params': {'message': '?', 'requestedSchema': {}}})\n"
        "say({'id': 'f', 'method': 5})\n"
        "raw(b'nonsense')\n"
        "result({'content': []})"
    )
    sent: list[Any] = []
    requests: list[Any] = []
    trace = lambda way, message: sent.append(json.loads(message)) if way == "sent" else None  # noqa: E731
    options: Any = {"elicitation_handler": requests.append, "on_message_bytes": trace, "protocol_version": MODERN}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), **options) as client:
        await client.call_tool("t")
        await still_works(client)
    assert [record["method"] for record in sent] == ["server/discover", "tools/call", "prompts/list"]
    assert requests == []
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_questions_of_the_handshake_are_answered_and_nonsense_is_not() -> None:
    answer = (
        "say({'id': 'p', 'method': 'ping'}); assert json.loads(sys.stdin.readline())['result'] == {}\n"
        "say({'id': 'q', 'method': 'ping', 'params': 5})\n"
        "assert json.loads(sys.stdin.readline())['error']['code'] == -32600\n"
        "raw(b'Listening on port 80')\n"
        "say({'id': 'r', 'method': 'x/y'}); assert json.loads(sys.stdin.readline())['error']['code'] == -32601\n"
        "result({'content': []})"
    )
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=OLD) as client:
        await client.call_tool("t")


async def test_server_that_asks_and_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers to its questions do not pile up here without end."""
    monkeypatch.setattr(process, "MAX_WRITE_BUFFER_BYTES", 100_000)
    monkeypatch.setattr(process, "SHUTDOWN_TIMEOUT_SECONDS", 0.2)
    answer = 'while True: raw(b\'{"jsonrpc":"2.0","id":1,"method":"ping"}\')'
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=OLD) as client:
        with pytest.raises(ConnectionClosed, match="keeps sending requests but does not read the responses"):
            await client.call_tool("t")
        await still_works(client)


async def test_calls_to_a_server_that_does_not_read_time_out() -> None:
    answer = "time.sleep(60)"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        client = Client(child(answer))
        await client.connect()
        calls = [client.call_tool("t", {"x": "y" * 50_000}, timeout=0.3) for _ in range(100)]
        for message in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(message, RequestTimeout)
        # Not all of it: whoever finds no room waits with what they have to say.
        assert client._upstream.transport._stdin.get_write_buffer_size() < 1_000_000  # type: ignore[attr-defined]
        client._upstream.transport._transport.kill()  # type: ignore[attr-defined]
        await client.close()


@pytest.mark.requirement("stdio.stderr")
async def test_standard_error_is_bounded() -> None:
    answer = "sys.stderr.write(('x' * 1000 + '\\n') * 5000 + 'y' * 10_000_000); sys.stderr.flush(); os._exit(1)"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer)) as client:
        with pytest.raises(ConnectionClosed) as raised:
            await client.call_tool("t")
        assert len(str(raised.value)) < 100_000


# Over HTTP


@pytest.mark.parametrize("form", ["length", "chunks", "event", "events"])
@pytest.mark.parametrize("modern", [True, False])
async def test_answer_beyond_the_bound_is_not_read(serve: Serve, form: str, modern: bool) -> None:
    there = await serve(Endpoint(modern=modern))

    async def rule(peer: Peer, request: Request) -> None:
        if form == "length":
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n")
        elif form == "chunks":
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        else:
            peer.stream()
        if form == "event":
            peer.chunk("data: ")
        while peer.is_there:
            if form == "length":
                peer.send(b"x" * 10_000)
            else:
                peer.chunk(b"data: x\n" * 1000 if form == "events" else b"x" * 10_000)
            await peer.drained()

    there.rules["tools/call"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        client._upstream.transport._max_response_bytes = 100_000  # type: ignore[attr-defined]
        with pytest.raises(ProtocolError, match=rf"{there.site.port}/mcp, tools/call: .* longer than 100000 bytes"):
            await client.call_tool("t")
        assert await client.list_tools() == []


async def test_questions_without_end_over_http_have_one(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))

    async def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        number = 0
        while peer.is_there:
            number += 1
            peer.event({"jsonrpc": "2.0", "id": number, "method": "ping"})
            await peer.drained()
            await asyncio.sleep(0)

    there.rules |= {"tools/call": rule, "answer": lambda peer, request: peer.gone()}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=OLD) as client:
        with pytest.raises(ConnectionClosed, match=r"tools/call .*was closed before it ended"):
            await client.call_tool("t")
        assert len(there.requests_for("answer")) <= 300
        assert await client.list_tools() == []


async def test_server_that_lets_go_of_the_other_stream_at_once_is_not_hammered(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))

    def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.chunk(f"retry: 0\nid: {len(there.seen)}\n\n")
        peer.end()

    there.rules["GET"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=OLD) as client:
        for _ in range(20):
            await client.list_tools()
        assert len(there.requests_for("GET")) < 10


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("bound", ["events", "bytes"])
async def test_events_before_a_response_are_bounded(
    serve: Serve, modern: bool, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a call that may take as long as it likes."""
    there = await serve(Endpoint(modern=modern))
    monkeypatch.setattr(event_streams, "MAX_EVENTS_PER_RESPONSE", 100 if bound == "events" else 10_000_000)
    message = {"level": "info", "data": "x" * (1 if bound == "events" else 10_000)}

    async def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        while peer.is_there:
            peer.event({"jsonrpc": "2.0", "method": "notifications/message", "params": message})
            await peer.drained()
            await asyncio.sleep(0)

    there.rules["tools/call"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, timeout=None) as client:
        client._upstream.transport._max_response_bytes = 100_000  # type: ignore[attr-defined]
        with pytest.raises(ProtocolError, match=r"tools/call: no response within \d+ events and \d+ bytes"):
            await client.call_tool("t")
        assert await client.list_tools() == []


async def test_server_that_breaks_off_its_answer_again_and_again_is_not_hammered(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))

    def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.chunk(f"retry: 0\nid: {len(there.seen)}\n\n")
        peer.end()

    there.rules |= {"tools/call": rule, "GET": rule}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=OLD) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("t", timeout=0.5)
        # For the answer, and for what is said unasked.
        assert len(there.requests_for("GET")) < 20


# Lists without end: a Handler in this process lies as well as any


def handler_of(answer: Callable[[Call], Any]) -> Callable[[Call], Any]:
    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return DiscoverResult(supported_versions=[MODERN], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private")
        return answer(call)

    return handler


def page(tools: int, cursor: str | None, size: int = 0) -> Raw:
    schema = {"type": "object", "description": "x" * size}
    members: Any = {"resultType": "complete", "tools": [{"name": f"t{n}", "inputSchema": schema} for n in range(tools)]}
    return Raw(json.dumps(members | ({} if cursor is None else {"nextCursor": cursor})).encode())


def endless(habit: str) -> Callable[[Call], Any]:
    pages = 0

    def answer(call: Call) -> Any:
        nonlocal pages
        pages += 1
        if habit == "the same cursor":
            return page(1, "again")
        if habit == "a circle":
            return page(1, str(pages % 7))
        if habit == "empty pages":
            return page(0, str(pages))
        if habit == "large pages":
            return page(3, str(pages), 10_000)
        if habit == "a large page":
            return page(100, None, 10_000)
        return page(1 if habit == "small pages" else 500, str(pages))

    return answer


@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
@pytest.mark.parametrize(
    "habit, complaint",
    [
        ("the same cursor", "the same cursor repeatedly"),
        ("a circle", "the same cursor repeatedly"),
        ("empty pages", "only empty pages"),
        ("small pages", "exceeds the limits after 201 entries"),
        ("many entries", "exceeds the limits after 5500 entries"),
        ("large pages", "exceeds the limits"),
        ("a large page", "more than 500000 bytes"),
    ],
)
@pytest.mark.parametrize("revision", [MODERN, OLD])
async def test_list_without_end_has_one(
    habit: str, complaint: str, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagination, "MAX_PAGES", 200)
    monkeypatch.setattr(pagination, "MAX_ITEMS", 5000)
    monkeypatch.setattr(pagination, "MAX_PAGE_BYTES", 500_000)
    monkeypatch.setattr(pagination, "MAX_LIST_BYTES", 1_000_000)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(handler_of(endless(habit)), protocol_version=revision) as client,
    ):
        with pytest.raises(ProtocolError, match=complaint) as raised:
            await client.list_tools()
        assert "tools/list" in str(raised.value)


@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
@pytest.mark.parametrize("habit", ["the same cursor", "a circle", "empty pages"])
async def test_iterator_does_not_turn_in_circles_either(habit: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(handler_of(endless(habit))) as client:
        with pytest.raises(ProtocolError, match="tools/list"):
            async for _ in client.iter_tools():
                pass


@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
async def test_iterator_continues_as_long_as_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "MAX_PAGES", 5)
    monkeypatch.setattr(pagination, "MAX_ITEMS", 5)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(handler_of(endless("small pages"))) as client:
        seen = 0
        async for _ in client.iter_tools():
            seen += 1
            if seen == 100:
                break


@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
@pytest.mark.parametrize("revision", [MODERN, OLD])
async def test_answer_of_very_many_small_things_is_not_taken_apart(
    revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bytes there are a hundred here."""
    monkeypatch.setattr(requests, "MAX_JSON_VALUES", 1000)
    texts = b'{"resultType":"complete","content":[{"type":"text","text":"' + b'[,{\\"' * 5000 + b'"}]}'
    values = b'{"resultType":"complete","content":[],"structuredContent":{"x":[' + b"[]," * 5000 + b"0]}}"
    message = values
    async with Client(handler_of(lambda call: Raw(message)), protocol_version=revision) as client:
        with pytest.raises(ProtocolError, match="tools/call returned more than 1000 JSON values"):
            await client.call_tool("t")
        message = texts
        assert len((await client.call_tool("t")).text) == 20_000


MEASURED = """
import asyncio, re, sys
from pathlib import Path
from portico import Client
from portico.protocol.errors import PorticoError

async def main():
    async with Client(sys.argv[1:]) as client:
        try:
            tools = await client.list_tools()
            print("got", len(tools))
        except PorticoError as failure:
            print(type(failure).__name__, str(failure)[:300].replace("\\n", " "))
        await client.ping()
    # The peak of this program alone: what getrusage says includes what its parent had before `exec`.
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)

asyncio.run(main())
"""

MILLION = """
import json, sys
habit = sys.argv[1]
def say(id, body):
    sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%d,"result":%b}\\n' % (id, body))
    sys.stdout.flush()
tool = b'{"name":"t%d","inputSchema":{"type":"object"}}'
for line in sys.stdin:
    said = json.loads(line)
    if said["method"] == "server/discover":
        say(said["id"], b'{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}')
    elif said["method"] == "tools/list" and habit == "at once":
        say(said["id"], b'{"resultType":"complete","tools":[' + b",".join(tool % n for n in range(1_000_000)) + b"]}")
    elif said["method"] == "tools/list":
        at = int(said["params"].get("cursor", 0))
        some = b",".join(tool % n for n in range(at, at + 10_000))
        say(said["id"], b'{"resultType":"complete","tools":[%b],"nextCursor":"%d"}' % (some, at + 10_000))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what a program has used at most")
@pytest.mark.parametrize(
    "habit, complaint", [("at once", "returned a page of more than"), ("page by page", "exceeds the limits")]
)
def test_million_tools_are_not_too_many(habit: str, complaint: str, tmp_path: Path) -> None:
    """What a client takes on for them is bounded: a few times what was sent, at most."""
    (tmp_path / "million.py").write_text(MILLION)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, sys.executable, "-S", tmp_path / "million.py", habit],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    message, megabytes = done.stdout.splitlines()
    assert complaint in message
    assert "tools/list" in message
    assert int(megabytes) < 500


# Output that breaks its own schema, and schemas that are weapons


def giving(structured: Any, schema: Any, text: str = "") -> Callable[[Call], Any]:
    def answer(call: Call) -> Any:
        if call.method == "tools/list":
            tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
            return Raw(json.dumps({"resultType": "complete", "tools": [tool]}).encode())
        value = {} if structured is ... else {"structuredContent": structured}
        return Raw(json.dumps({"resultType": "complete", "content": [], **value}).encode())

    return handler_of(answer)


@pytest.mark.requirement("tools.output-client")
@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
@pytest.mark.parametrize(
    "structured, schema, complaint",
    [
        (
            {"a": "x"},
            {"type": "object", "properties": {"a": {"type": "integer"}}},
            'violates its output schema: "x" is not',
        ),
        ({}, {"type": "object", "required": ["a"]}, '"a" is a required property'),
        ([1], {"type": "object"}, "violates its output schema"),
        (None, {"type": "object"}, "violates its output schema"),
        (..., {"type": "object"}, "returned no structured content"),
        ({}, {"$ref": "https://elsewhere.test/schema.json"}, "unusable output schema"),
        ({}, {"$ref": "file:///etc/passwd"}, "unusable output schema"),
        ({}, {"$ref": "#/$defs/nothing"}, "unusable output schema"),
        ({}, {"type": "nonsense"}, "unusable output schema"),
        ({}, {"$schema": "https://elsewhere.test/dialect"}, "unusable output schema"),
        (
            {"l": 5},
            {"$defs": {"n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
            "violates its output schema: does not match the schema",
        ),
    ],
    ids=range(11),
)
@pytest.mark.parametrize("listed", [True, False])
async def test_result_is_validated_against_the_output_schema(
    listed: bool, structured: Any, schema: Any, complaint: str
) -> None:
    async with Client(giving(structured, schema)) as client:
        if listed or structured is ...:
            await client.list_tools()
        with pytest.raises(ProtocolError, match=complaint) as raised:
            await client.call_tool("t")
        assert ": t" in str(raised.value)
        assert len(str(raised.value)) < 600
    async with Client(giving(structured, schema), validate_results=False) as client:
        assert (await client.call_tool("t")).structured == (None if structured is ... else structured)


def chain(length: int, link: Callable[[str], Any], start: Any = None) -> Any:
    """A schema whose parts each refer to the one before."""
    parts = {"a0": start or {"type": "object"}}
    parts |= {f"a{n}": link(f"#/$defs/a{n - 1}") for n in range(1, length)}
    return {"$defs": parts, "$ref": f"#/$defs/a{length - 1}"}


def to(reference: str) -> dict[str, str]:
    return {"$ref": reference}


def nested(depth: int, key: str = "properties") -> Any:
    schema: Any = {"type": "object"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}} if key == "properties" else {key: [schema]}
    return schema


def inside(depth: int, value: Any = 5) -> Any:
    for _ in range(depth):
        value = [value]
    return value


BOMBS: dict[str, tuple[Any, Any]] = {
    "itself": ({}, {"$ref": "#"}),
    "each other": ({}, chain(1, to, to("#"))),
    "itself twice": ({}, {"anyOf": [to("#"), to("#")]}),
    "all of itself": ({}, {"allOf": [to("#"), to("#")]}),
    "not itself": ({}, {"not": to("#")}),
    "all twice": ({}, chain(40, lambda one: {"allOf": [to(one), to(one)]})),
    "any twice": ({"x": 1}, chain(40, lambda one: {"anyOf": [to(one), to(one)], "unevaluatedProperties": False})),
    "one twice": ({}, chain(40, lambda one: {"oneOf": [to(one), to(one)]})),
    "if twice": ({}, chain(40, lambda one: {"if": to(one), "then": to(one), "else": to(one)})),
    "depending": ({"x": 1, "y": 1}, chain(40, lambda one: {"dependentSchemas": {"x": to(one), "y": to(one)}})),
    "items twice": (
        inside(45),
        chain(45, lambda one: {"anyOf": [{"items": to(one)}, {"items": to(one), "maxItems": 9}]}),
    ),
    "all items twice": (
        inside(45, "x"),
        chain(45, lambda one: {"items": to(one), "contains": to(one), "allOf": [{"items": to(one)}]}),
    ),
    "items of itself twice": (
        inside(60),
        {"type": "array", "anyOf": [{"items": to("#"), "title": "a"}, {"items": to("#"), "minItems": 0}]},
    ),
    "one item of itself": (
        inside(60),
        {"type": "array", "oneOf": [{"items": to("#"), "title": "a"}, {"items": to("#"), "minItems": 0}]},
    ),
    "strings of itself": ("x", {"anyOf": [to("#"), {"anyOf": [to("#"), {"format": "date"}]}]}),
    "deep": ({}, nested(300)),
    "deep choices": ({}, nested(300, "anyOf")),
    "regular expression": ({"x": "a" * 50_000 + "b"}, {"properties": {"x": {"pattern": "^(a+)+$"}}}),
    "large expression": ({"x": "a"}, {"properties": {"x": {"pattern": "((a{1,999}){1,999}){1,999}"}}}),
    "lookaround": ({"x": "a" * 5000}, {"properties": {"x": {"pattern": "^(?=(a+))\\1*b$"}}}),
    "large": ({}, {"enum": [f"{n}" for n in range(50_000)]}),
    "wide": ({}, {"allOf": [{"required": [f"p{n}"]} for n in range(9000)]}),
    "wide, and a large value": (
        [[n] for n in range(5000)],
        {"items": {"anyOf": [{"minItems": n} for n in range(3000)]}},
    ),
}


@pytest.mark.requirement("schemas.bounded")
@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
@pytest.mark.parametrize("bomb", BOMBS)
async def test_schema_that_is_a_weapon_does_no_harm(bomb: str) -> None:
    """2026-07-28, server/tools: bound depth, number and time. It is used, or refused, or left aside; at once."""
    structured, schema = BOMBS[bomb]
    handler = giving(structured, schema)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(handler) as client:
        for _ in range(2):
            complaint = ": t, output schema"
            try:
                assert (await client.call_tool("t")).structured == structured
            except ProtocolError as failure:
                complaint = str(failure)
            assert "output schema" in complaint
            assert ": t" in complaint
            assert len(complaint) < 600


@pytest.mark.parametrize("bomb", BOMBS)
def test_reading_dates_by_such_a_schema_takes_no_longer(bomb: str) -> None:
    structured, schema = BOMBS[bomb]
    assert convert_formats(structured, schema) == structured


@pytest.mark.broken_frames("a hostile server, which says no more than it has to")
async def test_listing_output_schemas_does_not_outlast_the_call_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed on the side, for their output schemas; the call itself is done."""
    number = 0

    async def slowly(call: Call) -> Any:
        nonlocal number
        if call.method == "server/discover":
            return DiscoverResult(supported_versions=[MODERN], capabilities=EVERYTHING, ttl_ms=0, cache_scope="private")
        if call.method == "tools/list":
            number += 1
            await asyncio.sleep(0.02)
            return page(1, str(number))
        return Raw(b'{"resultType":"complete","content":[],"structuredContent":{"a":1}}')

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(slowly) as client:
        assert (await client.call_tool("t", timeout=0.2)).data == {"a": 1}
        assert (await client.call_tool("t", timeout=0.2)).data == {"a": 1}


# Arrays, and what comes too late


@pytest.mark.parametrize("revision", [MODERN, OLD])
async def test_long_array_is_not_read(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2025-03-26 and after it there are no batches, so that nothing is made of one."""
    answer = "raw(b'[' + b'1,' * 8_000_000 + b'1]')"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=revision) as client:
        read = lengths_read(monkeypatch)
        with pytest.raises(
            ProtocolError, match="tools/call: it sent a batch, which this protocol version does not support"
        ):
            await client.call_tool("t", timeout=TIMEOUT_SECONDS)
        assert max(read, default=0) < 1000
        await still_works(client)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("modern", [True, False])
async def test_long_array_is_not_read_over_http(
    serve: Serve, modern: bool, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await serve(Endpoint(modern=modern))
    array = "[" + "1," * 8_000_000 + "1]"

    def answer(peer: Peer, request: Request) -> None:
        if streamed:
            peer.stream()
            peer.event(array)
        else:
            peer.answer(200, array)

    there.rules["tools/call"] = answer
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        read = lengths_read(monkeypatch)
        with pytest.raises(
            ProtocolError, match=r"a batch, which this protocol version does not support|instead of a message"
        ):
            await client.call_tool("t", timeout=TIMEOUT_SECONDS)
        assert max(read, default=0) < 1000
        assert await client.list_tools() == []


def lengths_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the messages that are read from here on."""
    lengths: list[int] = []
    decode = jsonrpc.decode_message

    def reading(data: bytes, *more: Any) -> Any:
        lengths.append(len(data))
        return decode(data, *more)

    monkeypatch.setattr(jsonrpc, "decode_message", reading)
    return lengths


@pytest.mark.requirement("progress.client-late")
@pytest.mark.parametrize("revision", [MODERN, OLD])
async def test_progress_after_the_answer_is_too_late(revision: str) -> None:
    """Also if both come in one read (basic/patterns/progress: it stops with the completion)."""
    answer = (
        "token = said['params']['_meta']['progressToken']\n"
        "def progress(n): return {'jsonrpc': '2.0', 'method': 'notifications/progress', "
        "'params': {'progressToken': token, 'progress': n}}\n"
        "answer = {'jsonrpc': '2.0', 'id': said['id'], 'result': {'resultType': 'complete', 'content': []}}\n"
        "raw(b'\\n'.join(json.dumps(one).encode() for one in (progress(1), answer, progress(2))))"
    )
    heard: list[float] = []
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(child(answer), protocol_version=revision) as client:
        await client.call_tool("t", progress_handler=lambda progress, total, message: heard.append(progress))
        await still_works(client)
    assert heard == [1.0]
