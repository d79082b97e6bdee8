"""Streamable HTTP in the client: required headers of each protocol version, and responses."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client, ProtocolError
from portico.auth.errors import AuthorizationError
from portico.protocol.errors import ConnectionClosed, HttpStatusError, MethodNotFound, RequestTimeout
from portico.protocol.versions import HANDSHAKE_VERSIONS, V2025_03_26, V2025_06_18
from portico.transports.http_client import streamable_http
from support.scripted import MODERN, PREFIX, Endpoint, Peer, Request, text, wait_until

Serve = Callable[..., Any]
TIMEOUT_SECONDS = 10.0
BOTH = "application/json, text/event-stream"
ZONED = {
    "name": "move",
    "inputSchema": {
        "type": "object",
        "properties": {
            "zone": {"type": "string", "x-mcp-header": "Zone"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
        },
    },
}


def with_tools(*tools: Any) -> Callable[[Peer, Request], None]:
    def rule(peer: Peer, request: Request) -> None:
        peer.result(request, {"resultType": "complete", "tools": list(tools), "ttlMs": 0, "cacheScope": "private"})

    return rule


def saying(said: str) -> Callable[[Peer, Request], None]:
    return lambda peer, request: peer.result(request, {"resultType": "complete", **text(said)})


# What is said: 2026-07-28


@pytest.mark.requirement("http.standard-headers", "http.standard-headers-client")
async def test_modern_request_repeats_itself_in_its_headers(serve: Serve) -> None:
    there = await serve()
    there.rules |= {"tools/list": with_tools(ZONED), "tools/call": saying("moved")}
    async with Client(there.url, headers={"X-Own": "1"}) as client:
        await client.list_tools()
        await client.call_tool("move", {"zone": "öst", "count": 42, "deep": {"flag": True}})
    for request in there.seen:
        assert request.method == "POST"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["accept"] == BOTH
        assert request.headers["mcp-protocol-version"] == MODERN
        assert request.headers["mcp-method"] == request.json["method"]
        assert request.headers["x-own"] == "1"
        assert "mcp-session-id" not in request.headers
        assert request.json["params"]["_meta"][PREFIX + "protocolVersion"] == MODERN
    [call] = there.requests_for("tools/call")
    assert call.headers["mcp-name"] == "move"
    assert call.headers["mcp-param-zone"] == f"=?base64?{b64encode('öst'.encode()).decode()}?="
    assert call.headers["mcp-param-count"] == "42"
    assert call.headers["mcp-param-flag"] == "true"
    assert [name for name, _ in call.fields if name == "mcp-name"] == ["mcp-name"]


@pytest.mark.requirement("http.param-headers-client")
@pytest.mark.parametrize(
    "value, header",
    [
        ("plain", "plain"),
        ("", ""),
        ("two words", "two words"),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
        ("a\r\nEvil: 1", "=?base64?YQ0KRXZpbDogMQ==?="),
        ("日本", "=?base64?5pel5pys?="),
        (None, None),
    ],
)
async def test_mirrored_parameter_is_encoded_for_a_header(serve: Serve, value: str | None, header: str | None) -> None:
    there = await serve()
    there.rules |= {"tools/list": with_tools(ZONED), "tools/call": saying("moved")}
    async with Client(there.url) as client:
        await client.list_tools()
        await client.call_tool("move", {"zone": value})
    [call] = there.requests_for("tools/call")
    assert call.headers.get("mcp-param-zone") == header
    assert "mcp-param-count" not in call.headers
    assert "evil" not in call.headers


@pytest.mark.requirement("http.standard-headers", "http.standard-headers-client")
@pytest.mark.parametrize(
    "ask, says, name",
    [
        (lambda client: client.get_prompt("hé"), "prompts/get", "=?base64?aMOp?="),
        (lambda client: client.read_resource("a://b c"), "resources/read", "a://b c"),
        (lambda client: client.call_tool("never listed"), "tools/call", "never listed"),
        (lambda client: client.list_prompts(), "prompts/list", None),
    ],
)
async def test_requests_send_the_mcp_name_header(serve: Serve, ask: Any, says: str, name: str | None) -> None:
    there = await serve()
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError):
            await ask(client)
    [asked] = there.requests_for(says)
    assert asked.headers.get("mcp-name") == name


@pytest.mark.requirement("http.param-headers-client")
async def test_tool_with_a_bad_annotation_is_hidden_and_no_other(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """2026-07-28, basic/transports: clients MUST leave it out, and SHOULD say why."""
    bad = {
        "name": "bad",
        "inputSchema": {"type": "object", "properties": {"x": {"type": "number", "x-mcp-header": "X"}}},
    }
    there = await serve()
    there.rules["tools/list"] = with_tools(ZONED, bad)
    async with Client(there.url) as client:
        assert [tool.name for tool in await client.list_tools()] == ["move"]
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "'bad'" in warning.getMessage()


@pytest.mark.requirement("http.param-headers-stale")
async def test_headers_that_do_not_fit_any_more_are_made_again(serve: Serve) -> None:
    """2026-07-28, basic/transports: on -32020, list the tools again and retry."""
    there = await serve()
    asked = 0

    def listed(peer: Peer, request: Request) -> None:
        nonlocal asked
        asked += 1
        with_tools(ZONED if asked > 1 else {"name": "move", "inputSchema": {"type": "object"}})(peer, request)

    def called(peer: Peer, request: Request) -> None:
        if "mcp-param-zone" in request.headers:
            saying("moved")(peer, request)
        else:
            peer.error(request, -32020, "Mcp-Param-Zone is missing", 400)

    there.rules |= {"tools/list": listed, "tools/call": called}
    async with Client(there.url) as client:
        await client.list_tools()
        assert (await client.call_tool("move", {"zone": "a"})).text == "moved"
    assert asked == 2


@pytest.mark.requirement("http.param-headers-stale")
async def test_headers_that_never_fit_are_not_tried_without_end(serve: Serve) -> None:
    there = await serve()
    there.rules["tools/call"] = lambda peer, request: peer.error(request, -32020, "no", 400)
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.call_tool("move")
    assert raised.value.code == -32020
    assert len(there.requests_for("tools/call")) == 2


async def test_modern_notification_names_its_method(serve: Serve) -> None:
    there = await serve()
    async with Client(there.url) as client:
        await client.notify("notifications/custom", {"a": 1})
    [said] = there.requests_for("notifications/custom")
    assert said.headers["mcp-method"] == "notifications/custom"
    assert said.headers["mcp-protocol-version"] == MODERN


@pytest.mark.requirement("http.no-sessions")
async def test_session_id_of_a_stateless_server_is_ignored(serve: Serve) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.result(request, there.discovery(), Mcp_Session_Id="abc")
    async with Client(there.url) as client:
        await client.list_tools()
    assert all("mcp-session-id" not in item.headers for item in there.seen)
    assert there.requests_for("DELETE") == there.requests_for("GET") == []


# What is said: the handshake


@pytest.mark.requirement("sessions.id-sent")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_session_is_named_in_everything_that_follows(serve: Serve, revision: str) -> None:
    there = await serve(Endpoint(modern=False, revision=revision))
    there.rules["tools/call"] = lambda peer, request: peer.result(request, text("done"))
    async with Client(there.url, protocol_version=revision) as client:
        await client.call_tool("move", {"zone": "a"})
        await client.list_tools()
    first, *rest = there.seen
    assert first.says == "initialize"
    assert "mcp-session-id" not in first.headers
    assert "mcp-protocol-version" not in first.headers
    assert {item.says for item in rest} >= {"notifications/initialized", "tools/call", "tools/list", "GET", "DELETE"}
    for item in rest:
        assert item.headers["mcp-session-id"] == "s-1"
        # 2025-06-18 brought the header.
        assert item.headers.get("mcp-protocol-version") == (revision if revision >= V2025_06_18 else None)
    assert not [name for item in there.seen for name in item.headers if name in ("mcp-method", "mcp-name")]
    assert not [name for item in there.seen for name in item.headers if name.startswith("mcp-param")]
    assert there.seen[-1].says == "DELETE"


@pytest.mark.requirement("sessions.id-sent")
async def test_server_without_sessions_is_not_told_of_one(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False, session=None))
    async with Client(there.url, protocol_version="2025-11-25") as client:
        await client.list_tools()
    assert all("mcp-session-id" not in item.headers for item in there.seen)
    assert there.requests_for("DELETE") == []


@pytest.mark.requirement("sessions.version-header")
async def test_version_header_has_the_negotiated_version(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False, revision="2025-06-18"))
    async with Client(there.url, protocol_version="2025-11-25") as client:
        assert client.protocol_version == "2025-06-18"
    assert there.requests_for("notifications/initialized")[0].headers["mcp-protocol-version"] == "2025-06-18"


@pytest.mark.parametrize("id", ["two words", "é", "a, b", "tab\there"])
async def test_session_id_that_no_header_can_carry_is_rejected(serve: Serve, id: str) -> None:
    there = await serve(Endpoint(modern=False))
    there.rules["initialize"] = lambda peer, request: peer.result(request, there.greeting(), Mcp_Session_Id=id)
    with pytest.raises(ProtocolError, match=r"127\.0\.0\.1.*initialize.*session id"):
        async with Client(there.url, protocol_version="2025-11-25"):
            pass


# What comes back


@pytest.mark.requirement("http.json-or-events", "http.client-both")
@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("form", ["json", "events", "events in pieces", "primed events", "named events"])
async def test_answer_may_be_json_or_a_stream(serve: Serve, modern: bool, form: str) -> None:
    there = await serve(Endpoint(modern=modern))

    async def rule(peer: Peer, request: Request) -> None:
        message = {"jsonrpc": "2.0", "id": request.json["id"], "result": there.complete(text("hé"))}
        if form == "json":
            peer.json(message)
            return
        peer.stream()
        if form == "primed events":
            # 2025-11-25: an id and no data, which is no message.
            peer.chunk("id: 1\ndata:\n\n")
        if form == "events in pieces":
            for byte in f"data: {json.dumps(message, ensure_ascii=False)}\r\n\r\n".encode():
                peer.chunk(bytes([byte]))
        elif form == "named events":
            peer.event("{not json", name="ping")
            peer.event(message, name="message")
        else:
            peer.event(message)
        peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url) as client:
        for _ in range(2):
            assert (await client.call_tool("t")).text == "hé"


@pytest.mark.parametrize("modern", [True, False])
async def test_progress_and_logs_precede_the_response(serve: Serve, modern: bool) -> None:
    there = await serve(Endpoint(modern=modern))
    heard: list[Any] = []

    async def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        token = request.json["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1, "total": 2}
        peer.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        params = {"level": "info", "data": "working"}
        peer.event({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
        peer.event({"jsonrpc": "2.0", "id": request.json["id"], "result": there.complete(text("done"))})
        peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url, log_handler=lambda message: heard.append(message.data)) as client:
        result = await client.call_tool("t", progress_handler=lambda *message: heard.append(message))
    assert result.text == "done"
    assert heard == [(1.0, 2.0, None), "working"]


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 418, 429, 500, 503])
@pytest.mark.parametrize("modern", [True, False])
async def test_error_of_the_protocol_is_one_at_any_status(serve: Serve, modern: bool, status: int) -> None:
    there = await serve(Endpoint(modern=modern, session=None))
    there.rules["tools/call"] = lambda peer, request: peer.error(request, -32602, "Unknown tool: t", status, data=[1])
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.call_tool("t")
    assert (raised.value.code, raised.value.message, raised.value.data) == (-32602, "Unknown tool: t", [1])
    assert raised.value.http_status == status
    assert len(there.requests_for("tools/call")) == 1


@pytest.mark.parametrize("id", [None, "server-error", "absent"])
async def test_rejection_need_not_have_the_id(serve: Serve, id: str | None) -> None:
    """Who could not read the request, or did not let it in, does not know it."""
    there = await serve()
    body: Any = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Bad"}} | ({} if id == "absent" else {"id": id})
    there.rules["tools/call"] = lambda peer, request: peer.json(body, 413)
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError, match=r"^Bad$") as raised:
            await client.call_tool("t")
    assert raised.value.code == -32600


async def test_rejection_without_an_id_may_come_on_the_stream(serve: Serve) -> None:
    there = await serve()

    def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.event({"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "Bad"}})
        peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError, match=r"^Bad$"):
            await client.call_tool("t")


PAGE = "<html><body>\x1b[31mGo away\x07</body></html>"


@pytest.mark.parametrize("status", [400, 404, 405, 410, 429, 500, 502, 503])
async def test_html_response_error_says_so(serve: Serve, status: int) -> None:
    there = await serve()
    there.rules["tools/call"] = lambda peer, request: peer.answer(status, PAGE, "text/html")
    async with Client(there.url) as client:
        with pytest.raises(
            HttpStatusError, match=rf"{there.site.port}/mcp responded to tools/call with .*{status}.*Go away"
        ) as raised:
            await client.call_tool("t")
        assert "\x1b" not in str(raised.value)
        assert raised.value.http_status == status
        assert await client.list_tools() == []


@pytest.mark.parametrize("status, words", [(401, "requires authentication"), (403, "forbids")])
async def test_status_401_and_403_raise_authorization_error(serve: Serve, status: int, words: str) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.answer(status, PAGE, "text/html")
    with pytest.raises(AuthorizationError, match=words):
        async with Client(there.url):
            pass
    # It says nothing about the revision.
    assert [item.says for item in there.seen] == ["server/discover"]


@pytest.mark.parametrize("status, words", [(401, "rejected the token"), (403, "forbids")])
@pytest.mark.parametrize(
    "body, kind, reason",
    [
        ({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "the token is too old"}}, None, "too old"),
        ({"error": "invalid_token", "error_description": "the key is unknown"}, None, "the key is unknown"),
        ({"detail": "not from here"}, None, "not from here"),
        ("no entry on mondays\x1b[31m", "text/plain", "no entry on mondays"),
        ("<html><head><title>Sign in</title></head><script>x</script></html>", "text/html", "HTML page, 'Sign in'"),
        ("x" * 5000, "text/plain", "x" * 299 + "…$"),
    ],
    ids=str,
)
async def test_reason_of_a_rejection_is_in_the_error(
    serve: Serve, status: int, words: str, body: Any, kind: str | None, reason: str
) -> None:
    there = await serve()
    value = (json.dumps(body), "application/json") if kind is None else (body, kind)
    there.rules["server/discover"] = lambda peer, request: peer.answer(status, *value)
    with pytest.raises(AuthorizationError, match=f"{words}.*{reason}") as raised:
        async with Client(there.url, auth="a-token"):
            pass
    assert "\x1b" not in str(raised.value) and "a-token" not in str(raised.value)


BROKEN = [
    (lambda id: {"jsonrpc": "2.0", "id": id + 1, "result": {}}, "with the id"),
    (lambda id: {"jsonrpc": "2.0", "id": str(id), "result": {}}, "with the id"),
    (lambda id: {"jsonrpc": "2.0", "id": None, "result": {}}, "with the id null"),
    (lambda id: {"jsonrpc": "2.0", "id": "x" * 10_000, "result": {}}, "with the id"),
    (lambda id: {"jsonrpc": "2.0", "id": id + 7, "error": {"code": 1, "message": "m"}}, "with the id"),
    (lambda id: {"jsonrpc": "2.0", "id": id}, "malformed"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "result": {}, "error": {"code": 1, "message": "m"}}, "malformed"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "error": {"message": "m"}}, "malformed"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "error": "m"}, "malformed"),
    (lambda id: {"jsonrpc": "1.0", "id": id, "result": {}}, "malformed"),
    (lambda id: {"id": id, "result": {}}, "malformed"),
    (lambda id: [{"jsonrpc": "2.0", "id": id, "result": {}}], "batch|instead of a message"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "result": {"resultType": "perhaps"}}, "unknown resultType: perhaps"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "result": {"resultType": 5}}, "invalid result"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "result": []}, "invalid result"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "result": None}, "invalid result"),
    (lambda id: {"jsonrpc": "2.0", "id": id, "result": {"content": 5}}, "invalid result"),
]


@pytest.mark.parametrize("answer, complaint", BROKEN, ids=[f"{n}" for n in range(len(BROKEN))])
@pytest.mark.parametrize("form", ["json", "events"])
@pytest.mark.parametrize("modern", [True, False])
async def test_invalid_response_error_names_the_server_and_method(
    serve: Serve, modern: bool, form: str, answer: Any, complaint: str
) -> None:
    there = await serve(Endpoint(modern=modern))

    def rule(peer: Peer, request: Request) -> None:
        message = answer(request.json["id"])
        if form == "json":
            peer.json(message)
        else:
            peer.stream()
            peer.event(message)
            peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError, match=complaint) as raised:
            await client.call_tool("t")
        assert f"{there.site.port}" in str(raised.value)
        assert "tools/call" in str(raised.value)
        assert len(str(raised.value)) < 1000
        assert await client.list_tools() == []
    assert len(there.requests_for("tools/call")) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{}",
        b"null",
        b"5",
        b'"text"',
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":2,"result":"\xff"}',
        b"[" * 100_000,
        b"[]",
    ],
    ids=lambda one: repr(one[:12]),
)
@pytest.mark.parametrize("form", ["json", "events"])
@pytest.mark.parametrize("modern", [True, False])
async def test_bytes_that_are_no_message_are_an_error_that_names_both(
    serve: Serve, modern: bool, form: str, body: bytes
) -> None:
    there = await serve(Endpoint(modern=modern))

    def rule(peer: Peer, request: Request) -> None:
        if form == "json":
            peer.answer(200, body)
        else:
            peer.stream()
            peer.chunk(b"data: " + body + b"\n\n")
            peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url) as client:
        with pytest.raises((ProtocolError, ConnectionClosed), match=rf"{there.site.port}/mcp.*tools/call") as raised:
            await client.call_tool("t")
        assert len(str(raised.value)) < 1000
        assert await client.list_tools() == []


@pytest.mark.requirement("modern.result-type-missing")
async def test_missing_result_type_counts_as_complete(serve: Serve) -> None:
    there = await serve()
    there.rules["tools/call"] = lambda peer, request: peer.result(request, text("fine"))
    async with Client(there.url) as client:
        assert (await client.call_tool("t")).text == "fine"


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_empty_response_is_an_error(serve: Serve, status: int) -> None:
    there = await serve()
    there.rules["tools/call"] = lambda peer, request: (
        peer.answer(status) if status != 204 else peer.send("HTTP/1.1 204 X\r\n\r\n")
    )
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError, match=f"tools/call with no content .*{status}"):
            await client.call_tool("t")


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_compressed_response_is_reported(serve: Serve, kind: str) -> None:
    there = await serve()
    there.rules["tools/call"] = lambda peer, request: peer.answer(200, b"\x1f\x8b", kind, Content_Encoding="gzip")
    async with Client(there.url) as client:
        with pytest.raises(ProtocolError, match=r"tools/call: the response has the content encoding 'gzip'"):
            await client.call_tool("t")


async def test_batch_is_understood_where_there_are_batches(serve: Serve) -> None:
    """2025-03-26, basic/transports: the answers on a stream MAY be batched."""
    there = await serve(Endpoint(modern=False, revision=V2025_03_26))
    heard: list[Any] = []

    def rule(peer: Peer, request: Request) -> None:
        message = {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "data": "on the way"},
        }
        peer.stream()
        peer.event([{"jsonrpc": "2.0", "id": request.json["id"], "result": text("together")}, message])
        peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url, log_handler=lambda message: heard.append(message.data)) as client:
        assert (await client.call_tool("t")).text == "together"
    assert heard == ["on the way"]


# Questions of the server


@pytest.mark.requirement("modern.no-server-requests", "modern.no-client-responses")
async def test_server_request_on_2026_07_28_is_ignored(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    there = await serve()
    requests: list[Any] = []

    def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        for number in range(100):
            params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
            peer.event({"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": params})
        peer.event({"jsonrpc": "2.0", "id": 7, "method": "ping"})
        peer.event({"jsonrpc": "2.0", "id": request.json["id"], "result": {"resultType": "complete", **text("x")}})
        peer.end()

    there.rules["tools/call"] = rule
    async with Client(there.url, elicitation_handler=requests.append) as client:
        assert (await client.call_tool("t")).text == "x"
        await client.list_tools()
    assert requests == []
    assert there.requests_for("answer") == []
    # And the log is not the server's to fill.
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


QUESTIONS: dict[str, Any] = {
    "ping": (None, {}),
    "roots/list": (None, {"roots": [{"uri": "file:///x"}]}),
    "sampling/createMessage": (
        {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5},
        {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "handler"},
    ),
    "elicitation/create": (
        {"message": "?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}},
        {"action": "accept", "content": {"n": 3, "m": 4}},
    ),
}


@pytest.mark.requirement("questions.on-the-stream")
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("where", ["on the call's stream", "on the other stream"])
async def test_server_request_of_a_session_is_answered_by_post(serve: Serve, question: str, where: str) -> None:
    there = await serve(Endpoint(modern=False))
    params, expected = QUESTIONS[question]
    message: Any = {"jsonrpc": "2.0", "id": "q-1", "method": question} | ({"params": params} if params else {})
    answered = asyncio.Event()

    def answer(peer: Peer, request: Request) -> None:
        peer.answer(202)
        answered.set()

    async def stream(peer: Peer, request: Request) -> None:
        peer.stream()
        if where == "on the other stream":
            await called.wait()
            peer.event(message)
        await peer.gone()

    async def call(peer: Peer, request: Request) -> None:
        called.set()
        if where == "on the call's stream":
            peer.stream()
            peer.event(message)
            await answered.wait()
            peer.event({"jsonrpc": "2.0", "id": request.json["id"], "result": text("asked")})
            peer.end()
        else:
            await answered.wait()
            peer.result(request, text("asked"))

    called = asyncio.Event()
    there.rules |= {"tools/call": call, "answer": answer, "GET": stream}
    handlers: dict[str, Any] = {
        "sampling_handler": lambda asked: "yes",
        "elicitation_handler": lambda asked: {"m": 4},
        "roots": ["file:///x"],
    }
    async with Client(there.url, protocol_version="2025-11-25", **handlers) as client, asyncio.timeout(TIMEOUT_SECONDS):
        assert (await client.call_tool("t")).text == "asked"
    [said] = there.requests_for("answer")
    assert said.json == {"jsonrpc": "2.0", "id": "q-1", "result": expected}
    assert said.headers["mcp-session-id"] == "s-1"
    assert said.headers["mcp-protocol-version"] == "2025-11-25"


async def test_unsupported_server_request_is_rejected_by_post(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))
    answered = asyncio.Event()

    def answer(peer: Peer, request: Request) -> None:
        peer.answer(202)
        answered.set()

    async def call(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}})
        await answered.wait()
        peer.event({"jsonrpc": "2.0", "id": request.json["id"], "result": text("refused")})
        peer.end()

    there.rules |= {"tools/call": call, "answer": answer}
    async with Client(there.url, protocol_version="2025-11-25") as client, asyncio.timeout(TIMEOUT_SECONDS):
        await client.call_tool("t")
    assert there.requests_for("answer")[0].json["error"]["code"] == MethodNotFound.code


@pytest.mark.requirement("ping.client")
async def test_ping_before_the_handshake_is_over_is_answered(serve: Serve) -> None:
    """2025-11-25, basic/lifecycle: until then a server may ask for nothing else."""
    there = await serve(Endpoint(modern=False))
    answered = asyncio.Event()

    def answer(peer: Peer, request: Request) -> None:
        peer.answer(202)
        answered.set()

    async def initialize(peer: Peer, request: Request) -> None:
        peer.stream(Mcp_Session_Id="s-2")
        peer.event({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        await answered.wait()
        peer.event({"jsonrpc": "2.0", "id": request.json["id"], "result": there.greeting()})
        peer.end()

    there.rules |= {"initialize": initialize, "answer": answer}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version="2025-11-25") as client:
        await client.list_tools()
    assert there.requests_for("answer")[0].json == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert there.requests_for("tools/list")[0].headers["mcp-session-id"] == "s-2"


# Streams that break off


def result_event(peer: Peer, request: Request, said: str, id: str | None = None) -> None:
    peer.event({"jsonrpc": "2.0", "id": request.json["id"], "result": text(said)}, id=id)


@pytest.mark.requirement("sessions.resumed", "sessions.client-resumes")
@pytest.mark.parametrize("ends", ["properly", "abruptly"])
async def test_broken_stream_is_resumed(serve: Serve, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2025-11-25, basic/transports: GET with Last-Event-ID, and not before `retry`."""
    there = await serve(Endpoint(modern=False))
    pauses: list[float] = []
    calls: list[Request] = []

    async def at_once(seconds: float) -> None:
        pauses.append(seconds)

    async def call(peer: Peer, request: Request) -> None:
        calls.append(request)
        peer.stream()
        peer.chunk("retry: 1234\nid: a-1\ndata:\n\n")
        # An event that never ends: its id does not count, and its beginning is not the beginning of the next.
        peer.chunk('id: a-2\ndata: {"jsonrpc":"2.0","met')
        await peer.drained()
        if ends == "properly":
            peer.end()
        else:
            peer.close()
            raise EOFError

    def get(peer: Peer, request: Request) -> None:
        if "last-event-id" not in request.headers:
            peer.answer(405)
            return
        peer.stream()
        if len(there.requests_for("GET")) == 2:
            peer.event({"jsonrpc": "2.0", "method": "notifications/x"}, id="a-3")
        else:
            result_event(peer, calls[0], "resumed")
        peer.end()

    there.rules |= {"tools/call": call, "GET": get}
    async with Client(there.url, protocol_version="2025-11-25") as client:
        monkeypatch.setattr(streamable_http.asyncio, "sleep", at_once)
        assert (await client.call_tool("t")).text == "resumed"
        monkeypatch.undo()
        assert await client.list_tools() == []
        await wait_until(lambda: not client._upstream.transport._pool._open)  # type: ignore[attr-defined]
    resumed = there.requests_for("GET")[1:]
    assert [item.headers["last-event-id"] for item in resumed] == ["a-1", "a-3"]
    assert all(item.headers["mcp-session-id"] == "s-1" for item in resumed)
    assert pauses == [1.234, 1.234]
    assert len(calls) == 1


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_stream_that_is_not_to_be_resumed_ends_the_call(serve: Serve, status: int) -> None:
    there = await serve(Endpoint(modern=False))

    def call(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.chunk("retry: 0\nid: 1\n\n")
        peer.end()

    there.rules |= {
        "tools/call": call,
        "GET": lambda peer, request: peer.answer(status if "last-event-id" in request.headers else 405),
    }
    async with Client(there.url, protocol_version="2025-11-25") as client, asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(ConnectionClosed, match="tools/call"):
            await client.call_tool("t")
    assert len(there.requests_for("GET")) == 2


async def test_stream_that_cannot_be_resumed_is_not_requested_without_end(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))

    def call(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.chunk("retry: 0\nid: 1\n\n")
        peer.end()

    there.rules |= {
        "tools/call": call,
        "GET": lambda peer, request: peer.answer(503 if "last-event-id" in request.headers else 405),
    }
    async with Client(there.url, protocol_version="2025-11-25") as client, asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(ConnectionClosed, match=r"not retried.*tools/call and cannot be reached to resume it"):
            await client.call_tool("t")
    assert len(there.requests_for("GET")) < 10


@pytest.mark.requirement("http.no-resumption")
@pytest.mark.parametrize("modern", [True, False])
async def test_stream_without_ids_is_lost(serve: Serve, modern: bool) -> None:
    """2026-07-28 has nothing to resume; before, it takes an id."""
    there = await serve(Endpoint(modern=modern))

    def call(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.event({"jsonrpc": "2.0", "method": "notifications/x"}, id="1" if modern else None)
        peer.end()

    there.rules["tools/call"] = call
    async with Client(there.url) as client:
        with pytest.raises(ConnectionClosed, match=r"was not retried.*ended the stream of tools/call"):
            await client.call_tool("t")
    assert [item for item in there.requests_for("GET") if "last-event-id" in item.headers] == []


async def test_other_stream_is_attended_to_again(serve: Serve, heard: Any) -> None:
    there = await serve(Endpoint(modern=False))
    over = asyncio.Event()

    async def get(peer: Peer, request: Request) -> None:
        peer.stream()
        number = len(there.requests_for("GET"))
        if number <= 3:
            peer.chunk("retry: 0\n")
            peer.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}, id=f"e-{number}")
            # A message that is none spoils only itself.
            peer.event("nonsense" if number == 2 else "")
            peer.end()
        else:
            over.set()
            await peer.gone()

    there.rules["GET"] = get
    async with (
        Client(there.url, protocol_version="2025-11-25", message_handler=heard) as client,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        await heard.wait_for("notifications/tools/list_changed", 3)
        await over.wait()
        assert await client.list_tools() == []
    assert [item.headers.get("last-event-id") for item in there.requests_for("GET")] == [None, "e-1", "e-2", "e-3"]


async def test_unmatched_response_on_the_get_stream_is_ignored(serve: Serve, heard: Any) -> None:
    there = await serve(Endpoint(modern=False))

    async def get(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.event({"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "lost"}})
        peer.event({"jsonrpc": "2.0", "id": 99, "result": {}})
        peer.event({"jsonrpc": "2.0", "method": "notifications/x"})
        await peer.gone()

    there.rules["GET"] = get
    async with Client(there.url, protocol_version="2025-11-25", message_handler=heard):
        await heard.wait_for("notifications/x")
    assert len(there.requests_for("GET")) == 1


# Giving up


@pytest.mark.requirement("cancellation.http-client")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
@pytest.mark.parametrize("moment", ["before the head", "on the stream"])
async def test_leaving_a_modern_call_closes_its_stream(serve: Serve, how: str, moment: str) -> None:
    """2026-07-28, basic/patterns/cancellation: over HTTP that says it all."""
    there = await serve()
    left, begun = asyncio.Event(), asyncio.Event()

    async def call(peer: Peer, request: Request) -> None:
        if moment == "on the stream":
            peer.stream()
            peer.chunk(": wait\n\n")
        await peer.drained()
        begun.set()
        await peer.gone()
        left.set()

    there.rules["tools/call"] = call
    async with Client(there.url) as client, asyncio.timeout(TIMEOUT_SECONDS):
        if how == "timeout":
            with pytest.raises(RequestTimeout, match=rf"{there.site.port}/mcp: tools/call .* 0\.05 s"):
                await client.call_tool("t", timeout=0.05)
        else:
            task = asyncio.ensure_future(client.call_tool("t"))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await left.wait()
        assert await client.list_tools() == []
    assert there.requests_for("notifications/cancelled") == []


@pytest.mark.requirement("cancellation.session-client")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_leaving_a_call_of_a_session_is_reported(serve: Serve, how: str) -> None:
    """2025-11-25, basic/utilities/cancellation: a closed stream says nothing."""
    there = await serve(Endpoint(modern=False))
    begun = asyncio.Event()

    async def call(peer: Peer, request: Request) -> None:
        begun.set()
        await peer.gone()

    there.rules["tools/call"] = call
    async with Client(there.url, protocol_version="2025-11-25") as client, asyncio.timeout(TIMEOUT_SECONDS):
        if how == "timeout":
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", timeout=0.05)
        else:
            task = asyncio.ensure_future(client.call_tool("t"))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        response = await there.wait_for_request("notifications/cancelled")
    assert response.json["params"]["requestId"] == there.requests_for("tools/call")[0].json["id"]
    assert response.headers["mcp-session-id"] == "s-1"


@pytest.mark.requirement("lifecycle.initialize-not-cancelled", "lifecycle.client-not-cancelled")
async def test_handshake_cannot_be_cancelled(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))
    there.rules["initialize"] = lambda peer, request: peer.gone()
    with pytest.raises(RequestTimeout):
        async with Client(there.url, protocol_version="2025-11-25", timeout=0.05):
            pass
    assert there.requests_for("notifications/cancelled") == []


async def test_slow_trickle_response_times_out(serve: Serve) -> None:
    there = await serve()

    async def call(peer: Peer, request: Request) -> None:
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
        while peer.is_there:
            peer.send(" ")
            await asyncio.sleep(0.01)

    there.rules["tools/call"] = call
    async with Client(there.url) as client, asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(RequestTimeout, match="tools/call"):
            await client.call_tool("t", timeout=0.1)
        await wait_until(lambda: there.site.open <= 1)


@pytest.mark.requirement("cancellation.no-extension")
@pytest.mark.parametrize("form", ["comments", "heads"])
async def test_keep_alive_data_does_not_extend_the_timeout(serve: Serve, form: str) -> None:
    there = await serve()

    async def call(peer: Peer, request: Request) -> None:
        if form == "comments":
            peer.stream()
        while peer.is_there:
            peer.chunk(": there\n\n") if form == "comments" else peer.send("HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(0.01)

    there.rules["tools/call"] = call
    async with Client(there.url) as client, asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(RequestTimeout, match="tools/call"):
            await client.call_tool("t", timeout=0.1)


async def test_unaccepted_notification_times_out(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable_http, "POST_TIMEOUT_SECONDS", 0.05)
    there = await serve(Endpoint(modern=False))
    there.rules["notifications/initialized"] = lambda peer, request: peer.gone()
    with pytest.raises(RequestTimeout, match=r"notifications/initialized within 0\.05 s"):
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version="2025-11-25"):
            pass


async def test_notification_may_be_answered_with_a_stream_that_is_not_read(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))

    async def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        await peer.gone()

    there.rules["notifications/initialized"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version="2025-11-25") as client:
        assert await client.list_tools() == []


# Redirects


@pytest.mark.parametrize("status", [307, 308])
async def test_redirect_within_the_origin_is_followed(serve: Serve, status: int) -> None:
    there = await serve()

    def rule(peer: Peer, request: Request) -> None:
        if request.target == "/mcp":
            peer.answer(status, location="/mcp/")
        else:
            peer.result(request, there.discovery())

    there.rules["server/discover"] = rule
    async with Client(there.url, headers={"X-Own": "1"}) as client:
        await client.list_tools()
    assert [item.target for item in there.seen] == ["/mcp", "/mcp/", "/mcp/"]
    assert [item.method for item in there.seen] == ["POST"] * 3
    assert there.seen[0].body == there.seen[1].body
    assert all(item.headers["x-own"] == "1" for item in there.seen)


@pytest.mark.parametrize(
    "where", ["http://127.0.0.1:1/mcp", "https://127.0.0.1/mcp", "//evil.test/", "file:///etc/passwd"]
)
async def test_redirect_to_another_origin_is_not(serve: Serve, where: str) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.answer(307, location=where)
    with pytest.raises(HttpStatusError, match="redirects to"):
        async with Client(there.url, auth="secret"):
            pass
    assert len(there.seen) == 1


async def test_redirects_in_circles_have_an_end(serve: Serve) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.answer(308, location="/mcp")
    with pytest.raises(HttpStatusError, match="redirects too often"):
        async with Client(there.url):
            pass
    assert len(there.seen) <= 5


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_redirect_that_would_lose_the_question_is_not_followed(serve: Serve, status: int) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.answer(status, location="/other")
    with pytest.raises(HttpStatusError, match=str(status)):
        async with Client(there.url):
            pass


# Leaving


@pytest.mark.requirement("sessions.delete")
@pytest.mark.parametrize("habit", ["405", "200", "hangs", "slams the door"])
async def test_session_is_deleted_for_any_response(serve: Serve, habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable_http, "SESSION_DELETE_TIMEOUT_SECONDS", 0.1)
    there = await serve(Endpoint(modern=False))

    async def rule(peer: Peer, request: Request) -> None:
        if habit == "hangs":
            await peer.gone()
        elif habit == "slams the door":
            raise EOFError
        else:
            peer.answer(int(habit))

    there.rules["DELETE"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with Client(there.url, protocol_version="2025-11-25"):
            pass
    [said] = there.requests_for("DELETE")
    assert said.headers["mcp-session-id"] == "s-1"
    await wait_until(lambda: there.site.open == 0)


@pytest.mark.parametrize("modern", [True, False])
async def test_nothing_is_left_open(serve: Serve, modern: bool) -> None:
    there = await serve(Endpoint(modern=modern))

    async def stream(peer: Peer, request: Request) -> None:
        peer.stream()
        await peer.gone()

    there.rules |= {"GET": stream, "tools/call": lambda peer, request: peer.gone()}
    async with Client(there.url) as client:
        call = asyncio.ensure_future(client.call_tool("t"))
        await there.wait_for_request("tools/call")
        await client.list_tools()
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(call, TIMEOUT_SECONDS)
    await wait_until(lambda: there.site.open == 0)


async def test_every_message_can_be_watched(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))
    seen: list[tuple[str, Any]] = []

    def call(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.event({"jsonrpc": "2.0", "method": "notifications/x"})
        result_event(peer, request, "done")
        peer.end()

    there.rules["tools/call"] = call
    trace = lambda way, message: seen.append((way, json.loads(message)))  # noqa: E731
    async with Client(there.url, protocol_version="2025-11-25", on_message_bytes=trace) as client:
        await client.call_tool("t")
    words = [(way, said.get("method") or sorted(said)[-1]) for way, said in seen]
    assert words == [
        ("sent", "initialize"),
        ("received", "result"),
        ("sent", "notifications/initialized"),
        ("sent", "tools/call"),
        ("received", "notifications/x"),
        ("received", "result"),
    ]
