"""2025-03-26, 2025-06-18 and 2025-11-25 over HTTP: sessions, streams and resumption.

The official suite has nothing for the first two, so their texts are gone through here, MUST by MUST.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from portico import Server
from portico.auth.principal import Principal
from portico.auth.resource_server import ResourceServer
from portico.auth.verifiers.base import RequestCredentials
from portico.transports.http_server import session as keeping
from portico.transports.http_server.messages import MAX_UNREAD_BYTES

R2, R3, R4 = "2025-03-26", "2025-06-18", "2025-11-25"
MODERN = "2026-07-28"
Serve = Callable[..., Any]

every = pytest.mark.parametrize("revision", [R2, R3, R4])
without_batches = pytest.mark.parametrize("revision", [R3, R4])
with_version_header = pytest.mark.parametrize("revision", [R3, R4])

PING = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ELICIT = {"elicitation": {}}


def initialize(revision: str, **more: Any) -> dict[str, Any]:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params, **more}


def call(tool: str, arguments: Any = None, *, id: Any = 1, meta: Any = None) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}}
    params = params if meta is None else params | {"_meta": meta}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def text_of(message: Any) -> str:
    text: str = message["result"]["content"][0]["text"]
    return text


# Lifecycle


@pytest.mark.requirement("lifecycle.version-echo")
@every
async def test_supported_version_is_negotiated(serve: Serve, server: Server, revision: str) -> None:
    """basic/lifecycle, Version Negotiation: MUST respond with the same version if it is supported."""
    site = await serve(server)
    session = await site.initialize(revision)
    assert session.result["protocolVersion"] == revision
    assert session.result["serverInfo"]["name"] == "tested"
    assert "tools" in session.result["capabilities"]


@pytest.mark.requirement("lifecycle.version-counter")
@pytest.mark.parametrize("asked", ["2026-07-28", "1999-01-01", "2099-12-31", "nonsense", ""])
async def test_unsupported_version_is_negotiated_to_a_supported_one(serve: Serve, server: Server, asked: str) -> None:
    """basic/lifecycle, Version Negotiation: MUST respond with another version it supports."""
    site = await serve(server)
    assert (await site.initialize(asked)).result["protocolVersion"] == R4


@every
async def test_initialize_is_answered_in_a_form_that_the_client_accepts(
    serve: Serve, server: Server, revision: str
) -> None:
    """basic/transports, Sending Messages: MUST be application/json or text/event-stream."""
    site = await serve(server)
    plain = await site.post(initialize(revision))
    assert plain["content-type"] == "application/json"
    events = await site.post(initialize(revision), {"accept": "text/event-stream, application/json"})
    assert events["content-type"] == "text/event-stream"
    assert events.messages[-1]["result"]["protocolVersion"] == revision
    assert events["mcp-session-id"]


@pytest.mark.requirement("lifecycle.order")
async def test_first_request_is_initialize(serve: Serve, server: Server) -> None:
    """basic/lifecycle: initialization MUST be the first interaction."""
    site = await serve(server)
    response = await site.post(LIST)
    assert response.status == 400


@pytest.mark.requirement("batch.no-initialize")
async def test_initialize_cannot_be_in_a_batch(serve: Serve, server: Server) -> None:
    """2025-03-26, basic/lifecycle: the initialize request MUST NOT be part of a JSON-RPC batch."""
    site = await serve(server)
    refused = await site.post([initialize(R2)])
    assert refused.status == 400
    assert "mcp-session-id" not in refused
    session = await site.initialize(R2)
    inside = await session.post([initialize(R2), PING])
    answers = {item.get("id"): item for item in inside.json}
    assert answers[0]["error"]["code"] == -32600
    assert answers[9]["result"] == {}


@pytest.mark.requirement("ping.empty")
@every
async def test_ping_is_answered_before_the_handshake_is_complete(serve: Serve, server: Server, revision: str) -> None:
    """basic/lifecycle, basic/utilities/ping: pings may come before initialized; MUST be answered promptly, empty."""
    site = await serve(server)
    session = await site.initialize(revision, initialized=False)
    assert (await session.post(PING)).json == {"jsonrpc": "2.0", "id": 9, "result": {}}


@pytest.mark.requirement("lifecycle.server-silent")
@every
async def test_server_sends_nothing_before_initialized(serve: Serve, server: Server, revision: str) -> None:
    """basic/lifecycle: before `initialized` a server SHOULD send nothing but pings and log messages."""
    site = await serve(server)
    session = await site.initialize(revision, initialized=False)
    stream = await session.get()
    await site.call("grow", {"name": "too_early"})
    await session.notify("notifications/initialized")
    # The session listens from now on.
    await session.request("ping")
    await site.call("grow", {"name": "in_time"})
    assert (await stream.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.requirement("lifecycle.negotiated-version")
@every
async def test_methods_of_later_revisions_are_not_found(serve: Serve, server: Server, revision: str) -> None:
    """basic/lifecycle, Operation: respect the negotiated protocol version."""
    site = await serve(server)
    session = await site.initialize(revision)
    for method in ("server/discover", "subscriptions/listen"):
        response = await session.request(method)
        assert response.json["error"]["code"] in (-32601, -32602)


@pytest.mark.requirement("sessions.id")
async def test_initialize_that_fails_begins_no_session(serve: Serve, server: Server) -> None:
    """basic/transports, Session Management: the id comes with the response that has the InitializeResult."""
    site = await serve(server)
    response = await site.post(initialize(R4) | {"params": {"capabilities": {}}})
    assert response.json["error"]["code"] == -32602
    assert len(site.exchange.sessions) == 0
    assert "mcp-session-id" not in response


# Sessions


@pytest.mark.requirement("sessions.id")
@every
async def test_session_id_is_visible_ascii_and_cannot_be_guessed(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Session Management: MUST only contain 0x21 to 0x7E; SHOULD be cryptographically secure."""
    site = await serve(server)
    ids = [(await site.initialize(revision, initialized=False)).id for _ in range(50)]
    assert all(0x21 <= ord(letter) <= 0x7E for id in ids for letter in id)
    assert len(set(ids)) == 50
    assert min(map(len, ids)) >= 22
    # No two have more in common than chance gives them.
    shared = max(
        sum(a == b for a, b in zip(item, other, strict=True)) for item in ids for other in ids if item != other
    )
    assert shared < len(ids[0]) // 2


@pytest.mark.requirement("sessions.missing-400")
@every
async def test_missing_session_id_is_400(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Session Management: SHOULD respond to requests without it with 400."""
    site = await serve(server)
    session = await site.initialize(revision)
    assert (await session.post(LIST, {"mcp-session-id": None})).status == 400
    assert (await site.request("GET", "/mcp", {"accept": "text/event-stream"})).status == 400
    assert (await site.request("DELETE", "/mcp")).status == 400


@pytest.mark.requirement("sessions.gone-404")
@every
@pytest.mark.parametrize("dead", ["gone", "0" * 48, "../../etc/passwd", "\xe9\xe8", "x" * 5000])
async def test_missing_session_is_404(serve: Serve, server: Server, revision: str, dead: str) -> None:
    """basic/transports, Session Management: MUST respond with 404 after it was terminated."""
    site = await serve(server)
    session = await site.initialize(revision)
    assert (await session.post(LIST, {"mcp-session-id": dead})).status == 404
    assert (await session.post({"jsonrpc": "2.0", "method": "x"}, {"mcp-session-id": dead})).status == 404
    stream = await session.get(headers={"mcp-session-id": dead})
    assert stream.head.status == 404


@pytest.mark.requirement("sessions.delete")
async def test_deleted_session_is_gone(serve: Serve, server: Server, held: Any) -> None:
    """basic/transports, Session Management: DELETE terminates it, what it was doing is stopped, then 404."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.get()
    await stream.event()
    running = await session.open_call("talk", {"count": 1, "hold": True}, meta={"progressToken": 1})
    await held.has_started()
    assert (await session.delete()).status in (200, 204)
    await held.was_cancelled()
    assert await stream.event() is None
    while await running.event() is not None:
        pass
    for response in (await session.post(LIST), await session.delete()):
        assert response.status == 404
    assert (await session.get()).head.status == 404
    assert len(site.exchange.sessions) == 0


@pytest.mark.requirement("sessions.delete")
async def test_deleting_a_session_ends_pending_requests(serve: Serve, server: Server, held: Any) -> None:
    """The same for a POST whose response had not begun: HTTP owes it an end, or its client waits for ever."""
    site = await serve(server)
    session = await site.initialize(R4)
    running = await session.send(call("hold"))
    await held.has_started()
    await session.delete()
    await held.was_cancelled()
    async with asyncio.timeout(3):
        with suppress(asyncio.IncompleteReadError):
            assert (await running.response()).status in (200, 202, 404)


@pytest.mark.requirement("sessions.other-principal")
async def test_session_of_another_principal_is_not_found(serve: Serve, server: Server) -> None:
    """Somebody else's session must look like none; security best practices, Session Hijacking."""

    async def believing(credentials: RequestCredentials) -> Principal:
        return Principal(credentials.token)

    server.auth = ResourceServer(believing)
    site = await serve(server)
    session = await site.initialize(R4, headers={"authorization": "Bearer ada"})
    assert (await session.post(LIST)).status == 200
    eve = {"authorization": "Bearer eve"}
    stranger, dead = await session.post(LIST, eve), await session.post(LIST, eve | {"mcp-session-id": "gone"})
    assert (stranger.status, stranger.body) == (404, dead.body)
    assert (await session.get(headers=eve)).head.status == 404
    deleted = await site.request("DELETE", "/mcp", session.fields(eve))
    assert deleted.status == 404
    assert (await session.post(LIST)).status == 200


@pytest.mark.requirement("sessions.other-principal")
async def test_sessions_are_isolated(serve: Serve, server: Server) -> None:
    """basic/transports: a session is one client's; ids of requests are only unique inside one."""
    site = await serve(server)
    item, other = await site.initialize(R4, ELICIT), await site.initialize(R4)
    response = await item.open_call("ask", id=1)
    question = await response.message()
    answer = {"action": "accept", "content": {"value": "hijacked"}}
    await other.post({"jsonrpc": "2.0", "id": question["id"], "result": answer})
    assert text_of((await other.call("echo", {"text": "mine"}, id=1)).json) == "mine"
    await item.post({"jsonrpc": "2.0", "id": question["id"], "result": answer | {"content": {"value": "ada"}}})
    assert text_of(await response.message()) == "ada"


async def test_initialize_inside_a_session_begins_another(serve: Serve, server: Server) -> None:
    """basic/lifecycle has no second handshake, and a client that must start over sends no id; both get a new one."""
    site = await serve(server)
    session = await site.initialize(R4)
    again = await session.post(initialize(R3))
    assert again.json["result"]["protocolVersion"] == R3
    assert again["mcp-session-id"] != session.id
    assert (await session.post(LIST)).status == 200


async def test_oldest_unused_session_is_evicted(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: a flood of `initialize` locks nobody out; who is connected stays."""
    site = await serve(server, max_sessions=3)
    used, listening, unused = await site.initialize(R4), await site.initialize(R4), await site.initialize(R4)
    await (await listening.get()).event()
    # Its `initialized` was a use, and so is this.
    assert (await used.post(LIST)).status == 200
    for _ in range(5):
        assert (await site.post(initialize(R4))).status == 200
        assert len(site.exchange.sessions) == 3
    assert (await unused.post(LIST)).status == 404
    assert (await used.post(LIST)).status == 200
    assert (await listening.post(LIST)).status == 200


async def test_session_that_was_never_used_goes_before_an_older_one(serve: Serve, server: Server) -> None:
    site = await serve(server, max_sessions=2)
    used = await site.initialize(R4)
    flood = [(await site.post(initialize(R4)))["mcp-session-id"] for _ in range(10)]
    assert set(site.exchange.sessions) == {used.id, flood[-1]}


async def test_where_all_sessions_are_in_use_a_new_one_is_rejected(serve: Serve, server: Server) -> None:
    """503; room that is made can be used."""
    site = await serve(server, max_sessions=2)
    first, second = await site.initialize(R4), await site.initialize(R4)
    streams = [await first.get(), await second.get()]
    for stream in streams:
        await stream.event()
    refused = await site.post(initialize(R4))
    assert refused.status == 503
    assert "retry-after" in refused
    await first.delete()
    assert (await site.post(initialize(R4))).status == 200


async def test_one_address_has_a_share_of_the_sessions(serve: Serve, server: Server) -> None:
    site = await serve(server, max_sessions=100, max_sessions_per_client=3)
    first = await site.initialize(R4)
    for _ in range(20):
        assert (await site.post(initialize(R4))).status == 200
    assert len(site.exchange.sessions) == 3
    assert first.id in site.exchange.sessions


async def test_one_network_has_a_share_of_the_sessions(serve: Serve, server: Server) -> None:
    """Its sender chooses among all addresses of a /64 network."""
    site = await serve(server, max_sessions=100, max_sessions_per_client=3, trusted_proxies=["127.0.0.1"])
    neighbor = await site.initialize(R4, headers={"x-forwarded-for": "2001:db8:1::1"})
    for number in range(20):
        await site.post(initialize(R4), headers={"x-forwarded-for": f"2001:db8:2::{number + 1:x}"})
    assert len(site.exchange.sessions) == 4
    assert neighbor.id in site.exchange.sessions


async def test_housekeeping_looks_at_old_sessions_only(serve: Serve, server: Server) -> None:
    """However many there are: once a second nobody looks at those that are not old."""
    site = await serve(server)
    for _ in range(50):
        await site.post(initialize(R4))
    sessions = site.exchange.sessions
    assert sessions.expire(1800.0) == 0
    old = sessions.values()[:3]
    for session in old:
        session.last_used -= 3600
    assert sessions.expire(1800.0) == 3
    assert len(sessions) == 47


@pytest.mark.requirement("sessions.gone-404")
async def test_idle_sessions_expire(serve: Serve, server: Server, wait_until: Any) -> None:
    """basic/transports, Session Management: the server MAY terminate a session at any time, then 404."""
    site = await serve(server, session_idle_timeout=0.2)
    session = await site.initialize(R4)
    await wait_until(lambda: len(site.exchange.sessions) == 0)
    assert (await session.post(LIST)).status == 404


async def test_session_with_a_stream_or_a_call_is_not_idle(serve: Serve, server: Server, held: Any) -> None:
    """The same: what somebody waits for is in use."""
    site = await serve(server, session_idle_timeout=0.0)
    listening, working, idle = await site.initialize(R4), await site.initialize(R3), await site.initialize(R2)
    stream = await listening.get()
    await stream.event()
    running = await working.send(call("hold"))
    await held.has_started()
    site.exchange.expire_sessions()
    assert set(site.exchange.sessions) == {listening.id, working.id}
    assert (await idle.post(LIST)).status == 404
    held.release.set()
    assert text_of((await running.response()).json) == "released"


@pytest.mark.requirement("modern.both-eras", "http.one-endpoint")
async def test_both_eras_are_served_at_once(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/versioning: both eras MAY run concurrently on one endpoint."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.get()
    await stream.event()
    listen = await site.listen(1, toolsListChanged=True)
    await listen.message()
    old, new = await asyncio.gather(session.call("echo", {"text": "old"}), site.call("echo", {"text": "new"}))
    assert "resultType" not in old.json["result"]
    assert new.json["result"]["resultType"] == "complete"
    await session.call("grow", {"name": "grown"})
    assert "params" not in await stream.message()
    assert (await listen.message())["params"]["_meta"]
    # A modern request on a session's connection, even with its id, is judged alone.
    alone = await site.call("ask", headers={"mcp-session-id": session.id})
    assert alone.error == (400, -32021)


# The protocol version header


@pytest.mark.requirement("sessions.version-header")
@with_version_header
async def test_every_handshake_revision_is_a_supported_header(serve: Serve, server: Server, revision: str) -> None:
    """2025-06-18, basic/transports, Protocol Version Header: what was negotiated is what is sent."""
    site = await serve(server)
    session = await site.initialize(revision)
    assert (await session.post(LIST)).status == 200


@pytest.mark.requirement("sessions.version-header")
@every
@pytest.mark.parametrize("version", ["1999-01-01", "nonsense", "", "2025-06-18x", "2099-01-01"])
async def test_unsupported_version_header_is_400(serve: Serve, server: Server, revision: str, version: str) -> None:
    """2025-06-18, basic/transports, Protocol Version Header: invalid or unsupported MUST be 400."""
    site = await serve(server)
    session = await site.initialize(revision)
    fields = {"mcp-protocol-version": version}
    assert (await session.post(LIST, fields)).status == 400
    assert (await site.post(LIST, fields)).status == 400
    stream = await session.get(headers=fields)
    assert stream.head.status in (400, 405)
    assert (await session.post(LIST)).status == 200


@pytest.mark.requirement("sessions.version-header")
@every
async def test_without_a_version_header_the_session_knows(serve: Serve, server: Server, revision: str) -> None:
    """The same section: absent, and with no other way to tell, 2025-03-26 is assumed; a session can tell."""
    site = await serve(server)
    session = await site.initialize(revision)
    absent = {"mcp-protocol-version": None}
    assert (await session.post(LIST, absent)).status == 200
    batch = (await session.post([PING], absent)).json
    assert isinstance(batch, list) == (revision == R2)


# Posting


@pytest.mark.requirement("http.notification-202")
@every
async def test_notification_is_202_without_a_body(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Sending Messages: MUST return 202 with no body."""
    site = await serve(server)
    session = await site.initialize(revision)
    for response in (
        await session.notify("notifications/unknown"),
        await session.notify("notifications/cancelled", {"requestId": 99}),
        await session.post({"jsonrpc": "2.0", "id": 5, "result": {}}),
        await session.post({"jsonrpc": "2.0", "id": 5, "error": {"code": 1, "message": "no"}}),
    ):
        assert (response.status, response.body) == (202, b"")


@pytest.mark.requirement("http.not-accepted")
@every
@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"null", b"1", b'"ping"', b"\xff"])
async def test_malformed_bodies_are_http_400(serve: Serve, server: Server, revision: str, body: bytes) -> None:
    """The same section: what cannot be accepted MUST be an HTTP error; a body without an id MAY explain it."""
    site = await serve(server)
    session = await site.initialize(revision)
    response = await session.post(body)
    assert response.status == 400
    assert response.json["error"]["code"] in (-32700, -32600)
    assert response.json.get("id") is None


@pytest.mark.requirement("http.json-or-events")
@every
async def test_request_is_answered_with_json_or_events(serve: Serve, server: Server, revision: str) -> None:
    """The same section: MUST be one of the two, and the stream SHOULD be closed after the response."""
    site = await serve(server)
    session = await site.initialize(revision)
    assert text_of((await session.call("echo", {"text": "hi"})).json) == "hi"
    stream = await session.call("talk", {"count": 2}, meta={"progressToken": 1})
    assert [message.get("method") for message in stream.messages] == [*["notifications/progress"] * 2, None]
    assert stream.messages[-1]["id"] == 1


@every
async def test_client_that_prefers_events_gets_them(serve: Serve, server: Server, revision: str) -> None:
    """docs/how-to/choose-a-transport.md: whoever names text/event-stream first gets events from the start."""
    site = await serve(server)
    session = await site.initialize(revision)
    fields = {"accept": "text/event-stream, application/json"}
    response = await session.post(call("echo", {"text": "hi"}), fields)
    assert text_of(response.messages[-1]) == "hi"


@every
async def test_handlers_error_is_a_response(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports: a request is answered by a JSON-RPC response, with an error in it if need be."""
    site = await serve(server)
    session = await site.initialize(revision)
    unknown = await session.request("nonsense")
    assert unknown.json["error"]["code"] == -32601
    assert unknown.json["id"] == 1


@pytest.mark.requirement("jsonrpc.id-not-reused")
@every
async def test_id_that_is_in_flight_is_not_used_again(serve: Serve, server: Server, revision: str, held: Any) -> None:
    """basic: the id MUST NOT have been used before in the same session; the first call must not suffer from it."""
    site = await serve(server)
    session = await site.initialize(revision)
    running = await session.send(call("hold", id="same"))
    await held.has_started()
    assert (await session.call("hold", id="same")).json["error"]
    held.release.set()
    assert text_of((await running.response()).json) == "released"


# Batches


@pytest.mark.requirement("batch.received")
async def test_batch_is_answered_with_json(serve: Serve, server: Server) -> None:
    """2025-03-26, basic: MUST support receiving batches. basic/transports: requests in it are answered."""
    site = await serve(server)
    session = await site.initialize(R2)
    note = {"jsonrpc": "2.0", "method": "notifications/unknown"}
    response = await session.post([PING, note, call("echo", {"text": "a"}), call("later", {"text": "b"}, id="two")])
    assert response.status == 200
    answers = {item["id"]: item["result"] for item in response.json}
    assert set(answers) == {9, 1, "two"}
    assert answers["two"]["content"][0]["text"] == "b"


async def test_batch_is_answered_with_events(serve: Serve, server: Server) -> None:
    """2025-03-26, basic/transports: the stream SHOULD have one response for each request; they MAY be batched."""
    site = await serve(server)
    session = await site.initialize(R2)
    batch = [PING, call("talk", {"count": 2}, meta={"progressToken": 1}), call("later", {"text": "b"}, id="two")]
    response = (await session.post(batch)).messages
    flat = [item for message in response for item in (message if isinstance(message, list) else [message])]
    assert sorted(str(item["id"]) for item in flat if "id" in item) == ["1", "9", "two"]
    assert [item["method"] for item in flat if "method" in item] == ["notifications/progress"] * 2


@pytest.mark.requirement("batch.notifications-only")
async def test_batch_without_requests_is_202(serve: Serve, server: Server) -> None:
    """2025-03-26, basic/transports: solely responses or notifications MUST be 202 with no body."""
    site = await serve(server)
    session = await site.initialize(R2)
    for batch in (
        [{"jsonrpc": "2.0", "method": "notifications/unknown"}] * 2,
        [{"jsonrpc": "2.0", "id": 77, "result": {}}, {"jsonrpc": "2.0", "id": 78, "result": {}}],
    ):
        response = await session.post(batch)
        assert (response.status, response.body) == (202, b"")


@pytest.mark.requirement("batch.responses")
async def test_responses_may_be_in_a_batch(serve: Serve, server: Server) -> None:
    """2025-03-26, basic/transports: an array batching one or more responses."""
    site = await serve(server)
    session = await site.initialize(R2, {"sampling": {}})
    streams = [await session.open_call("sample", id=number) for number in (1, 2)]
    questions = [await item.message() for item in streams]
    result = {"role": "assistant", "content": {"type": "text", "text": "sampled"}, "model": "m"}
    answers = [{"jsonrpc": "2.0", "id": item["id"], "result": result} for item in questions]
    assert (await session.post(answers)).status == 202
    assert [text_of(await item.message()) for item in streams] == ["sampled", "sampled"]


@pytest.mark.requirement("batch.members")
async def test_one_bad_member_does_not_spoil_a_batch(serve: Serve, server: Server) -> None:
    """JSON-RPC 2.0, section 6: each invalid member gets its own error."""
    site = await serve(server)
    session = await site.initialize(R2)
    response = await session.post([PING, 1, {"jsonrpc": "1.0", "id": 3, "method": "ping"}])
    assert [item["id"] for item in response.json if "result" in item] == [9]
    assert [item["error"]["code"] for item in response.json if "error" in item] == [-32600, -32600]


@pytest.mark.requirement("batch.members")
async def test_empty_batch_is_rejected(serve: Serve, server: Server) -> None:
    """JSON-RPC 2.0, section 6: an empty array is an invalid request. What cannot be accepted is an HTTP error."""
    site = await serve(server)
    session = await site.initialize(R2)
    response = await session.post([])
    assert response.json["error"]["code"] == -32600
    assert response.status == 400


@pytest.mark.requirement("batch.only-2025-03-26", "http.one-message")
@without_batches
async def test_other_revisions_have_no_batches(serve: Serve, server: Server, revision: str) -> None:
    """2025-06-18, basic/transports: the body MUST be a single message: -32600 and 400."""
    site = await serve(server)
    session = await site.initialize(revision)
    for batch in ([PING], [{"jsonrpc": "2.0", "method": "notifications/unknown"}], []):
        response = await session.post(batch)
        assert response.json["error"]["code"] == -32600
        assert response.status == 400


@pytest.mark.requirement("cancellation.batch")
async def test_cancelled_member_is_left_out_of_a_batch(serve: Serve, server: Server, held: Any) -> None:
    """basic/utilities/cancellation: no response for a cancelled request; the rest of the batch is answered."""
    site = await serve(server)
    session = await site.initialize(R2)
    running = await session.send([PING, call("hold", id="held")])
    await held.has_started()
    await session.notify("notifications/cancelled", {"requestId": "held"})
    response = await running.response()
    assert [item["id"] for item in response.json] == [9]


# Questions


@pytest.mark.requirement("questions.on-the-stream")
@pytest.mark.parametrize("revision", [R3, R4])
async def test_server_request_is_sent_on_the_stream_of_its_call(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports: requests on a POST stream SHOULD relate to it; the answer is a POST of its own, 202."""
    site = await serve(server)
    session = await site.initialize(revision, ELICIT)
    aside = await session.get()
    item, other = await session.open_call("ask", id=1), await session.open_call("ask", id=2)
    questions = [await item.message(), await other.message()]
    assert {question["method"] for question in questions} == {"elicitation/create"}
    assert questions[0]["id"] != questions[1]["id"]
    # Answered the other way round: each finds the call that asked.
    for question, value in reversed(list(zip(questions, ("first", "second"), strict=True))):
        answer = {"action": "accept", "content": {"value": value}}
        accepted = await session.post({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        assert (accepted.status, accepted.body) == (202, b"")
    assert text_of(await item.message()) == "first"
    assert text_of(await other.message()) == "second"
    assert await item.event() is None
    # None of that was said on the GET stream.
    await session.call("grow", {"name": "grown"})
    assert (await aside.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.requirement("questions.refused")
async def test_rejected_question_is_the_tools_failure(serve: Serve, server: Server) -> None:
    """2025-11-25, client/elicitation: a client may answer with an error."""
    site = await serve(server)
    session = await site.initialize(R4, ELICIT)
    response = await session.open_call("ask")
    question = await response.message()
    await session.post({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "No."}})
    assert (await response.message())["result"]["isError"] is True


@pytest.mark.requirement("lifecycle.negotiated-capabilities")
async def test_unsupported_server_request_is_not_sent(serve: Serve, server: Server) -> None:
    """basic/lifecycle, Operation: MUST only use capabilities that were negotiated."""
    site = await serve(server)
    session = await site.initialize(R4)
    response = await session.call("ask")
    assert response["content-type"] == "application/json"
    assert response.json["result"]["isError"] is True


async def test_client_without_event_streams_receives_no_server_requests(serve: Serve, server: Server) -> None:
    """It takes JSON alone and has opened no stream, so that the question would never reach it."""
    site = await serve(server)
    session = await site.initialize(R4, ELICIT)
    raw = await session.send(call("ask"), headers={"accept": "application/json"})
    result = (await raw.response()).json["result"]
    assert result["isError"] is True
    assert "has no stream" in result["content"][0]["text"]


async def test_client_that_listens_may_answer_in_json(serve: Serve, server: Server) -> None:
    site = await serve(server)
    session = await site.initialize(R4, ELICIT)
    aside = await session.get()
    raw = await session.send(call("ask"), headers={"accept": "application/json"})
    question = await aside.message()
    answer = {"action": "accept", "content": {"value": "yes"}}
    await session.post({"jsonrpc": "2.0", "id": question["id"], "result": answer})
    assert text_of((await raw.response()).json) == "yes"


async def test_cancelled_call_cancels_its_server_request(serve: Serve, server: Server) -> None:
    """basic/utilities/cancellation: whoever stops waiting for a request says so."""
    site = await serve(server)
    session = await site.initialize(R4, ELICIT)
    aside = await session.get()
    response = await session.open_call("ask", id="a")
    question = await response.message()
    await session.notify("notifications/cancelled", {"requestId": "a"})
    messages = []
    while (event := await response.event()) is not None:
        messages.append(event.json)
    if not messages:
        messages.append(await aside.message())
    assert messages[0]["method"] == "notifications/cancelled"
    assert messages[0]["params"]["requestId"] == question["id"]


# The GET stream


@pytest.mark.requirement("sessions.get-stream", "sessions.get-405")
@every
async def test_get_is_a_stream_of_events(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Listening: MUST return text/event-stream or 405."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.get()
    assert stream.head.status == 200
    assert stream.head["content-type"] == "text/event-stream"
    assert stream.head["x-accel-buffering"] == "no"
    refused = await session.get(headers={"accept": "application/json"})
    assert refused.head.status == 406


@pytest.mark.requirement("sessions.get-stream")
@every
async def test_changes_come_on_the_get_stream(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Listening: messages unrelated to a running request."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.get()
    await session.call("grow", {"name": "grown"})
    assert (await stream.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.requirement("resources.subscribe")
@every
async def test_subscription_is_reported_on_the_get_stream(serve: Serve, server: Server, revision: str) -> None:
    """server/resources, Subscriptions."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.get()
    assert (await session.request("resources/subscribe", {"uri": "note://a"})).json["result"] == {}
    server.notify_resource_updated("note://b")
    server.notify_resource_updated("note://a")
    assert (await stream.message())["params"] == {"uri": "note://a"}
    await session.request("resources/unsubscribe", {"uri": "note://a"})
    server.notify_resource_updated("note://a")
    await session.call("grow", {"name": "grown"})
    assert (await stream.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.requirement("sessions.get-stream")
@every
async def test_no_response_ever_comes_on_the_get_stream(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Listening: MUST NOT send a response there, unless a stream is resumed."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.get()
    for number in range(5):
        await session.call("talk", {"count": 2}, id=number, meta={"progressToken": number})
        await session.call("echo", {"text": "x"}, id=f"e{number}")
    await session.call("grow", {"name": "grown"})
    assert "id" not in await stream.message()


@pytest.mark.requirement("sessions.one-stream")
@every
async def test_message_is_sent_on_one_stream_only(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Multiple Connections: MUST NOT broadcast the same message."""
    site = await serve(server)
    session = await site.initialize(revision)
    streams = [await session.get() for _ in range(3)]
    running = await session.open_call("talk", {"count": 1, "hold": True}, meta={"progressToken": 1})
    streams.append(running)
    await session.call("grow", {"name": "grown"}, id="grow")
    await session.delete()
    seen = []
    for stream in streams:
        while (event := await stream.event()) is not None:
            if event.data:
                seen.append(event.json)
    assert sum(item.get("method") == "notifications/tools/list_changed" for item in seen) == 1


@pytest.mark.requirement("progress.own-stream")
async def test_call_notifications_use_the_stream_of_the_call(serve: Serve, server: Server) -> None:
    """basic/transports: progress SHOULD relate to the request whose stream it is on."""
    site = await serve(server)
    session = await site.initialize(R4)
    responses = await asyncio.gather(
        *(session.call("talk", {"count": 3}, id=n, meta={"progressToken": f"t{n}"}) for n in range(5))
    )
    for number, response in enumerate(responses):
        *progress, last = response.messages
        assert {item["params"]["progressToken"] for item in progress} == {f"t{number}"}
        assert last["id"] == number


async def test_notifications_before_the_stream_opens_are_delivered(serve: Serve, server: Server) -> None:
    """docs/how-to/choose-a-transport.md: events are kept for those who come (back)."""
    site = await serve(server)
    session = await site.initialize(R4)
    await session.call("grow", {"name": "grown"})
    assert (await (await session.get()).message())["method"] == "notifications/tools/list_changed"


async def test_get_stream_is_kept_alive(serve: Serve, server: Server) -> None:
    """docs/how-to/choose-a-transport.md: whatever is in between must not think that it is dead."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.get()
    await stream.event()
    site.exchange.send_keep_alives()
    assert await stream.until_comment()


# Priming


@pytest.mark.requirement("sessions.primed")
async def test_stream_begins_with_an_id_to_come_back_with(serve: Serve, server: Server) -> None:
    """2025-11-25, basic/transports: an event with an id and empty data SHOULD open a stream, `retry` before it ends."""
    site = await serve(server)
    session = await site.initialize(R4)
    for stream in (await session.get(), await session.open_call("talk", {"count": 1}, meta={"progressToken": 1})):
        first = await stream.event()
        assert first.id
        assert first.data == ""
        assert first.retry is not None
        assert first.retry > 0


@pytest.mark.requirement("sessions.primed")
@pytest.mark.parametrize("revision", [R2, R3])
async def test_older_clients_are_not_primed(serve: Serve, server: Server, revision: str) -> None:
    """Clients before 2025-11-25 choke on an event without data."""
    site = await serve(server)
    session = await site.initialize(revision)
    response = await session.call("talk", {"count": 2}, meta={"progressToken": 1})
    assert all(event.data and event.retry is None for event in response.events)
    stream = await session.get()
    await session.call("grow", {"name": "grown"})
    first = await stream.event()
    assert first.json["method"] == "notifications/tools/list_changed"


# Coming back


@pytest.mark.requirement("sessions.event-ids")
@every
async def test_event_ids_are_unique_in_a_session(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Resumability: ids MUST be unique across all streams of that session."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.get()
    ids = []
    for number in range(4):
        response = await session.call("talk", {"count": 3}, id=number, meta={"progressToken": number})
        ids += [one.id for one in response.events]
        await session.call("grow", {"name": f"grown{number}"})
        while not (event := await stream.event()).data:
            ids.append(event.id)
        ids.append(event.id)
    assert None not in ids
    assert len(set(ids)) == len(ids)


@pytest.mark.requirement("cancellation.session-client", "sessions.no-cancel")
@every
async def test_dropped_connection_is_no_cancellation(serve: Serve, server: Server, revision: str, held: Any) -> None:
    """basic/transports: disconnection SHOULD NOT be taken for a cancellation."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.open_call("talk", {"count": 2, "hold": True}, meta={"progressToken": 1})
    last = None
    while last is None or last.id is None or '"progress":2' not in last.data.replace(" ", ""):
        last = await stream.event()
    await held.has_started()
    stream.abort()
    again = await session.get(last.id)
    held.release.set()
    assert text_of(await again.message()) == "said"
    assert await again.event() is None
    assert not held.cancelled.is_set()


@pytest.mark.requirement("sessions.resumed")
@every
async def test_lost_stream_is_resumed_where_it_was(serve: Serve, server: Server, revision: str) -> None:
    """basic/transports, Resumability: Last-Event-ID on a GET replays what came after it, on that stream alone."""
    site = await serve(server)
    session = await site.initialize(revision)
    response = await session.call("talk", {"count": 5}, id="a", meta={"progressToken": 1})
    await session.call("talk", {"count": 5}, id="b", meta={"progressToken": 2})
    await session.call("grow", {"name": "grown"})
    events = [item for item in response.events if item.data]
    for place, event in enumerate(events):
        stream = await session.get(event.id)
        replayed = []
        while (item := await stream.event()) is not None:
            replayed.append(item)
        assert [item.data for item in replayed if item.data] == [item.data for item in events[place + 1 :]]
        assert [item.id for item in replayed if item.data] == [item.id for item in events[place + 1 :]]


@pytest.mark.requirement("sessions.resumed")
@every
async def test_lost_get_stream_is_resumed_where_it_was(serve: Serve, server: Server, revision: str) -> None:
    """The same for the GET stream; what other streams said MUST NOT be replayed on it."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.get()
    ids = []
    for number in range(3):
        await session.call("grow", {"name": f"grown{number}"})
        while not (event := await stream.event()).data:
            pass
        ids.append(event.id)
    stream.abort()
    await session.call("talk", {"count": 3}, meta={"progressToken": 1})
    again = await session.get(ids[0])
    missed = []
    while len(missed) < 2:
        event = await again.event()
        if event.data:
            missed.append(event.id)
    assert missed == ids[1:]
    await session.call("grow", {"name": "one_more"})
    assert (await again.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.requirement("sessions.resumed")
async def test_resuming_twice_repeats_no_event(serve: Serve, server: Server, held: Any) -> None:
    """2025-11-25, basic/transports, Resumability: after the last event it has seen, whatever that event was.

    A stream that is resumed may begin with an event that has an id and no data. If a client comes back with that
    one, it must not get again what it already had.
    """
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.open_call("talk", {"count": 3, "hold": True}, meta={"progressToken": 1})
    events = [await stream.event() for _ in range(4)]
    await held.has_started()
    assert events[-1].json["params"]["progress"] == 3
    stream.abort()
    last = events[-1].id
    for _ in range(3):
        again = await session.get(last)
        site.exchange.send_keep_alives()
        await again.until_comment()
        while again.has_events:
            event = await again.event()
            assert not event.data, "what was delivered before is delivered again"
            last = event.id or last
        again.abort()
    held.release.set()
    final = await session.get(last)
    assert text_of(await final.message()) == "said"


async def test_reopened_get_stream_repeats_no_event(serve: Serve, server: Server) -> None:
    """The same for the GET stream, whose first event has an id too."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.get()
    await stream.event()
    await session.call("grow", {"name": "seen"})
    await stream.message()
    stream.abort()
    anew = await session.get()
    primed = await anew.event()
    anew.abort()
    again = await session.get(primed.id)
    await session.call("grow", {"name": "news"})
    site.exchange.send_keep_alives()
    await again.until_comment()
    events = []
    while len([event for event in events if event.data]) < 1 or again.has_events:
        events.append(await again.event())
    assert len([event for event in events if event.data]) == 1


@pytest.mark.requirement("sessions.let-go")
async def test_server_may_close_a_stream_and_client_resumes(serve: Serve, server: Server, held: Any) -> None:
    """2025-11-25, basic/transports: the server MAY close after an event with an id; the client polls (SEP-1699)."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.open_call("let_go", meta={"progressToken": 1})
    last = None
    while (event := await stream.event()) is not None:
        last = event.id or last
    await held.has_started()
    again = await session.get(last)
    held.release.set()
    assert text_of(await again.message()) == "done meanwhile"
    assert await again.event() is None


@pytest.mark.requirement("sessions.let-go")
@pytest.mark.parametrize("revision", [R2, R3])
async def test_older_clients_are_not_let_go(serve: Serve, server: Server, revision: str, held: Any) -> None:
    """2025-06-18, basic/transports: SHOULD NOT close the stream before the response."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.open_call("let_go", meta={"progressToken": 1})
    await stream.message()
    await held.has_started()
    held.release.set()
    assert text_of(await stream.message()) == "done meanwhile"


async def test_store_of_events_is_bounded(serve: Serve, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/choose-a-transport.md: so many events and bytes for each session. What is evicted is not replayed."""
    monkeypatch.setattr(keeping, "MAX_REPLAY_EVENTS", 10)
    site = await serve(server)
    session = await site.initialize(R4)
    response = await session.call("talk", {"count": 30}, meta={"progressToken": 1})
    events = [item for item in response.events if item.data]
    stream = await session.get(events[0].id)
    replayed = []
    while (item := await stream.event()) is not None:
        replayed += [item] if item.data else []
    assert [item.id for item in replayed] == [item.id for item in events[-10:]]


async def test_store_of_events_is_bounded_in_bytes(serve: Serve, server: Server) -> None:
    """The same: large events push out the older ones, and memory stays where it is."""
    site = await serve(server)
    session = await site.initialize(R4)
    for number in range(30):
        await session.call("talk", {"count": 1, "size": 100_000}, id=number, meta={"progressToken": number})
    (kept,) = [one.replay_buffer for one in site.exchange.sessions.values()]
    assert 0 < sum(len(one.message) for one in kept._stored_events) == kept.bytes <= keeping.MAX_REPLAY_BYTES


@pytest.mark.parametrize(
    "last", ["nonsense", "", "99-1", "-", "1-", "0-99999999999999999999", "²-1", "999999999999999-1"]
)
async def test_unknown_event_id_is_ignored(serve: Serve, server: Server, last: str) -> None:
    """basic/transports, Resumability: MAY replay. An id that never was is answered with a stream, or refused."""
    site = await serve(server)
    session = await site.initialize(R4)
    raw = last.encode().decode("latin-1")
    stream = await session.get(raw)
    assert stream.head.status in (200, 400)
    assert (await session.post(LIST)).status == 200


async def test_event_id_of_another_session_replays_nothing(serve: Serve, server: Server) -> None:
    """Events belong to the session: the id of somebody else's is not a way to them."""
    site = await serve(server)
    item, other = await site.initialize(R3), await site.initialize(R3)
    response = await item.call("talk", {"count": 3}, meta={"progressToken": "secret"})
    stream = await other.get(response.events[0].id)
    await other.delete()
    assert await stream.event() is None


# Cancelling


@pytest.mark.requirement("cancellation.no-response")
@every
async def test_cancelled_call_is_stopped_and_not_answered(
    serve: Serve, server: Server, revision: str, held: Any
) -> None:
    """basic/utilities/cancellation: SHOULD stop and SHOULD NOT send a response; the stream ends."""
    site = await serve(server)
    session = await site.initialize(revision)
    stream = await session.open_call("talk", {"count": 1, "hold": True}, id="x", meta={"progressToken": 1})
    await held.has_started()
    assert (await session.notify("notifications/cancelled", {"requestId": "x"})).status == 202
    await held.was_cancelled()
    messages = []
    while (event := await stream.event()) is not None:
        messages += [event.json] if event.data else []
    assert [item.get("method") for item in messages] == ["notifications/progress"]


@every
async def test_cancelled_call_that_had_said_nothing_ends_too(
    serve: Serve, server: Server, revision: str, held: Any
) -> None:
    """The same for a POST whose response has not begun: HTTP must end it somehow, without a JSON-RPC response."""
    site = await serve(server)
    session = await site.initialize(revision)
    running = await session.send(call("hold", id="x"))
    await held.has_started()
    await session.notify("notifications/cancelled", {"requestId": "x"})
    response = await running.response()
    assert b'"result"' not in response.body
    assert response.status < 500


@pytest.mark.requirement("cancellation.unknown")
@pytest.mark.parametrize("params", [{"requestId": 404}, {"requestId": None}, {}, None, {"requestId": {}}])
async def test_cancellation_of_nothing_is_ignored(serve: Serve, server: Server, held: Any, params: Any) -> None:
    """basic/utilities/cancellation: unknown or malformed ones are ignored."""
    site = await serve(server)
    session = await site.initialize(R4)
    running = await session.send(call("hold", id=1))
    await held.has_started()
    assert (await session.notify("notifications/cancelled", params)).status == 202
    held.release.set()
    assert text_of((await running.response()).json) == "released"


@pytest.mark.requirement("cancellation.own-session")
async def test_call_of_another_session_cannot_be_cancelled(serve: Serve, server: Server, held: Any) -> None:
    """basic/utilities/cancellation: requests of the same direction, in the same session."""
    site = await serve(server)
    session, stranger = await site.initialize(R4), await site.initialize(R4)
    running = await session.send(call("hold", id=1))
    await held.has_started()
    await stranger.notify("notifications/cancelled", {"requestId": 1})
    held.release.set()
    assert text_of((await running.response()).json) == "released"


# Logging


@pytest.mark.requirement("logging.level")
async def test_log_level_belongs_to_the_session(serve: Serve, server: Server) -> None:
    """server/utilities/logging: logging/setLevel sets the least level of this session."""
    site = await serve(server)
    loud, still = await site.initialize(R4), await site.initialize(R4)
    await loud.request("logging/setLevel", {"level": "debug"})
    await still.request("logging/setLevel", {"level": "error"})
    response = await loud.call("shout", {"count": 2, "size": 1})
    assert [message["method"] for message in response.messages[:-1]] == ["notifications/message"] * 2
    assert (await still.call("shout", {"count": 2, "size": 1}))["content-type"] == "application/json"


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
async def test_client_that_does_not_accept_sse_gets_json_on_the_post(
    serve: Serve, server: Server, accept: str | None
) -> None:
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.get()
    response = call("shout", {"count": 1, "size": 1})
    said = await (await session.send(response, headers={"accept": accept})).response()
    assert said["content-type"] == "application/json"
    assert said.json["result"]
    assert (await stream.message())["method"] == "notifications/message"


# The end


async def test_draining_lets_calls_finish_and_ends_streams(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Stopping: running calls have their time, sessions' streams end."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.get()
    running = await session.send(call("hold"))
    await held.has_started()
    stopping = asyncio.ensure_future(site.stop(timeout=5))
    await asyncio.sleep(0)
    held.release.set()
    assert text_of((await running.response()).json) == "released"
    await stopping
    while await stream.event() is not None:
        pass
    assert await stream.is_over()


@every
async def test_body_that_waits_for_its_reader_is_slowed_down(serve: Serve, server: Server, revision: str) -> None:
    """docs/how-to/use-the-context.md: awaiting what was said waits for the reader, in a session as anywhere else.

    Without that a client that reads as fast as it can loses its connection to a body that talks faster.
    """
    site = await serve(server)
    session = await site.initialize(revision)
    response = await session.call("talk", {"count": 200, "size": 100_000}, meta={"progressToken": 1})
    assert len(response.messages) == 201


async def test_slow_reader_loses_only_its_connection(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Limits: 1 MiB unread. The work goes on, and the end of it can be resumed."""
    site = await serve(server)
    session = await site.initialize(R4)
    raw = await site.connect(receive_buffer=4096)
    message = json.dumps(call("shout", {"count": 400, "size": 50_000}, id="s")).encode()
    fields = session.fields(**{"content-type": "application/json", "accept": "application/json, text/event-stream"})
    raw.send(site.bytes("POST", "/mcp", fields, message))
    await raw.read_head()
    first = await raw.event()
    raw.writer.transport.pause_reading()
    assert await site.most_unread(held.shouted) <= 2 * MAX_UNREAD_BYTES
    again = await session.get(first.id)
    while "result" not in (result := await again.message()):
        pass
    assert text_of(result) == "shouted"


# What is said while no stream is open


async def test_idle_session_buffers_few_events(serve: Serve, server: Server) -> None:
    """Two hundred changes of a list are one to who was not there, and cost nothing until it is."""
    site = await serve(server)
    idle = [await site.initialize(R4) for _ in range(5)]
    for number in range(200):
        server.tool(f"new{number}")(lambda: None)
        await site.turn(2)
    for session in site.exchange.sessions.values():
        assert (len(session._queued_notifications), session.replay_buffer.bytes, session.get_replay_buffer.bytes) == (
            0,
            0,
            0,
        )
    # However many sessions there are, one listener hears for all of them.
    assert len(server.subscriptions._listeners) == 1
    stream = await idle[0].get()
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    server.prompt("p")(lambda: "")
    assert (await stream.message())["method"] == "notifications/prompts/list_changed"


@every
async def test_change_before_the_first_stream_is_reported_on_it_once(
    serve: Serve, server: Server, revision: str
) -> None:
    site = await serve(server)
    session = await site.initialize(revision)
    await session.request("resources/subscribe", {"uri": "note://a"})
    for _ in range(10):
        server.notify_resource_updated("note://a")
        server.tool("new")(lambda: None)
        server.remove("new")
        await site.turn(3)
    stream = await session.get()
    messages = [await stream.message(), await stream.message()]
    assert {item["method"] for item in messages} == {
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    }
    server.prompt("p")(lambda: "")
    assert (await stream.message())["method"] == "notifications/prompts/list_changed"


async def test_queued_notifications_of_an_idle_session_are_bounded(serve: Serve, server: Server) -> None:
    site = await serve(server)
    session = await site.initialize(R4)
    for number in range(keeping.MAX_QUEUED_NOTIFICATIONS + 50):
        await session.request("resources/subscribe", {"uri": f"note://{number}"})
        server.notify_resource_updated(f"note://{number}")
    await site.turn(5)
    (kept,) = site.exchange.sessions.values()
    assert len(kept._queued_notifications) == keeping.MAX_QUEUED_NOTIFICATIONS
    assert sum(map(len, kept._queued_notifications)) == kept._notice_bytes <= keeping.MAX_QUEUED_NOTIFICATION_BYTES
    stream = await session.get()
    assert (await stream.message())["params"]["uri"] == "note://50"
    assert (len(kept._queued_notifications), kept._notice_bytes) == (0, 0)


async def test_sessions_that_end_are_forgotten_by_the_server(serve: Serve, server: Server, wait_until: Any) -> None:
    site = await serve(server)
    sessions = [await site.initialize(R4) for _ in range(5)]
    for session in sessions:
        await session.request("resources/subscribe", {"uri": "note://a"})
        await (await session.get()).event()
    assert len(server.subscriptions._listeners) == 6
    for session in sessions:
        assert (await session.delete()).status == 204
    await wait_until(lambda: len(server.subscriptions._listeners) == 1)
    assert not site.exchange.sessions.open_streams
    assert not site.exchange.sessions._by_network
    assert not site.exchange.sessions.changes._callbacks


# Several streams by GET


@pytest.mark.requirement("sessions.several-streams")
@every
async def test_client_may_hold_several_streams_and_each_message_is_on_one(
    serve: Serve, server: Server, revision: str, wait_until: Any
) -> None:
    """basic/transports, Multiple Connections: they MAY be several; a message MUST be on only one of them."""
    site = await serve(server)
    session = await site.initialize(revision)
    first, second = await session.get(), await session.get()
    server.tool("one")(lambda: None)
    assert (await second.message())["method"] == "notifications/tools/list_changed"
    second.abort()
    (kept,) = site.exchange.sessions.values()
    await wait_until(lambda: len(kept._get_streams) == 1)
    server.prompt("two")(lambda: "")
    # The first is open still, and has heard nothing of what the second was told.
    assert (await first.message())["method"] == "notifications/prompts/list_changed"


async def test_streams_are_limited(serve: Serve, server: Server) -> None:
    site = await serve(server)
    session = await site.initialize(R4)
    streams = [await session.get() for _ in range(keeping.MAX_GET_STREAMS + 1)]
    while await streams[0].event() is not None:
        pass
    server.tool("one")(lambda: None)
    assert (await streams[-1].message())["method"] == "notifications/tools/list_changed"


@pytest.mark.requirement("sessions.event-ids-once")
async def test_no_event_id_is_given_twice(serve: Serve, server: Server, held: Any) -> None:
    """2025-11-25, basic/transports, Resumability: ids MUST be globally unique within the session."""
    site = await serve(server)
    session = await site.initialize(R4)
    stream = await session.open_call("talk", {"count": 2, "hold": True}, meta={"progressToken": 1})
    ids = [(await stream.event()).id for _ in range(3)]
    for _ in range(2):
        stream.abort()
        stream = await session.get(ids[-1])
        ids.append((await stream.event()).id)
    for last in (None, None, "the one before"):
        listening = await session.get(last and ids[-1])
        ids.append((await listening.event()).id)
    assert None not in ids
    assert len(ids) == len(set(ids)), ids
    held.release.set()


# Before `initialized`


@pytest.mark.requirement("lifecycle.question-waits")
@every
async def test_question_waits_until_the_client_is_ready(
    serve: Serve, server: Server, revision: str, wait_until: Any
) -> None:
    """basic/lifecycle, Initialization: before `initialized` the server SHOULD NOT send requests; calls may overtake."""
    site = await serve(server)
    opening = initialize(revision)
    opening["params"]["capabilities"] = {"sampling": {}}
    opened = await site.post(opening)
    fields = {"mcp-session-id": opened["mcp-session-id"], "mcp-protocol-version": revision}
    asking = await site.connect()
    body = json.dumps(call("sample")).encode()
    accept = "application/json, text/event-stream"
    asking.send(site.bytes("POST", "/mcp", fields, body, content_type="application/json", accept=accept))
    (session,) = site.exchange.sessions.values()
    await wait_until(lambda: session.session._ready is not None)
    assert not session.channel._pending_requests
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await site.post(ready, fields)).status == 202
    await asking.read_head()
    question = await asking.message()
    assert question["method"] == "sampling/createMessage"
    answer = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}
    await site.post({"jsonrpc": "2.0", "id": question["id"], "result": answer}, fields)
    assert text_of(await asking.message()) == "well"


@pytest.mark.parametrize("revision", [R2, R3, R4])
async def test_error_id_follows_the_protocol_version(serve: Serve, server: Server, revision: str) -> None:
    """Up to 2025-06-18 an id that could not be read is null; from 2025-11-25 on it is left out. One that could be read
    is said again."""
    site = await serve(server)
    session = await site.initialize(revision)
    unreadable = [await session.post(b"{")]
    named = {"mcp-protocol-version": revision, "content-type": "application/json"}
    unreadable.append(await site.request("POST", "/mcp", named, b"{"))
    unreadable.append(await site.request("POST", "/mcp", {**named, "content-type": "text/plain"}, b"{}"))
    unreadable.append(await site.request("POST", "/mcp", {**named, "host": "evil.example"}, b"{}"))
    for response in unreadable:
        assert ("id" in response.json) == (revision < R4), response
        assert response.json.get("id") is None
    for fields in ({**named, "mcp-session-id": "unknown"}, named):
        ping = b'{"jsonrpc":"2.0","id":"seven","method":"ping"}'
        assert (await site.request("POST", "/mcp", fields, ping)).json["id"] == "seven"


@pytest.mark.parametrize("last", ["²", "1-²", "²-1", "٣-١", "-", "1-1-1", "9" * 500])
async def test_malformed_last_event_id_still_opens_a_stream(serve: Serve, server: Server, last: str) -> None:
    """2025-11-25, basic/transports, Resumability: an id that never was is no reason to fail."""
    session = await (await serve(server)).initialize(R4)
    stream = await session.get(last.encode().decode("latin-1"))
    assert stream.head is not None and stream.head.status == 200


@every
async def test_strict_session_waits_for_initialized(serve: Serve, server: Server, revision: str) -> None:
    """Where the order of the handshake is wanted, as bossman wants it: tools/* only in operation."""
    site = await serve(server, lifecycle="strict")
    opened = await site.post(initialize(revision))
    headers = {"mcp-session-id": opened["mcp-session-id"]}
    if revision != R2:
        headers["mcp-protocol-version"] = revision
    assert (await site.post(PING, headers)).messages[0]["result"] == {}
    refused = (await site.post(LIST, headers)).messages[0]
    assert (refused["id"], refused["error"]["code"]) == (1, -32600)
    await site.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    assert "tools" in (await site.post(LIST, headers)).messages[0]["result"]


async def test_parse_error_has_id_null_up_to_2025_06_18(serve: Serve, server: Server) -> None:
    site = await serve(server)
    for revision in (R2, R3):
        opened = await site.post(initialize(revision))
        data = (await site.post(b"{", {"mcp-session-id": opened["mcp-session-id"]})).json
        assert (data["id"], data["error"]["code"]) == (None, -32700)
