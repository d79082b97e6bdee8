"""Forwarded requests are signed, bound to the request, and valid once."""

from __future__ import annotations

import asyncio
import os
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from portico.auth.principal import Principal
from portico.rpc.handshake.session import SessionState
from portico.rpc.supervision import BackgroundTasks
from portico.store.keys import SigningKeys
from portico.transports.http_server.cluster_hooks import FORWARDED_HEADER
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import HttpRequest
from portico.transports.http_server.session_snapshot import SessionSnapshot
from portico.transports.http_server.workers import reverse_proxy, signing
from portico.transports.http_server.workers.batch_loader import BatchLoader
from portico.transports.http_server.workers.forwarding import RequestForwarder
from portico.transports.http_server.workers.local_sessions import LocalSessions
from portico.transports.http_server.workers.session_queries import SessionRow
from portico.transports.http_server.workers.session_router import SessionRouter
from portico.transports.http_server.workers.signing import ForwardClaims, ForwardSigner, SignedSessionIds
from portico.transports.http_server.workers.socket_dir import WorkerSocketDir

KEY = os.urandom(32)


def request(**said: Any) -> HttpRequest:
    fields = {"method": "POST", "path": "/mcp", "query": "", "body": b"{}", **said}
    return HttpRequest(headers=Headers([(b"mcp-session-id", b"one")]), **fields)


def test_it_is_opened_once() -> None:
    ours, theirs = ForwardSigner(SigningKeys([KEY])), ForwardSigner(SigningKeys([os.urandom(32), KEY]))
    sealed = ours.sign(ForwardClaims(to="them", principal=Principal("ada"), hops=1), request())
    opened = theirs.verify(sealed, request())
    assert opened is not None
    assert (opened.to, opened.hops) == ("them", 1)
    assert opened.principal == Principal("ada")
    assert theirs.verify(sealed, request()) is None


@pytest.mark.parametrize(
    "other", [{"method": "GET"}, {"path": "/other"}, {"query": "x=1"}, {"body": b'{"id":2}'}], ids=str
)
def test_forward_signature_is_bound_to_its_request(other: dict[str, Any]) -> None:
    both = ForwardSigner(SigningKeys([KEY]))
    sealed = both.sign(ForwardClaims(to="them"), request())
    assert both.verify(sealed, request(**other)) is None
    another = ForwardSigner(SigningKeys([os.urandom(32)]))
    assert another.verify(sealed, request()) is None
    assert both.verify(sealed[:-2], request()) is None


def test_token_is_valid_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ForwardSigner(SigningKeys([KEY]))
    sealed = both.sign(ForwardClaims(to="them"), request())
    later = time.time() + signing.FORWARD_TTL_SECONDS + 1
    monkeypatch.setattr(signing.time, "time", lambda: later)
    assert both.verify(sealed, request()) is None


def test_database_is_opened_once_by_concurrent_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "MAX_SEEN_NONCES", 10)
    both = ForwardSigner(SigningKeys([KEY]))
    first = both.sign(ForwardClaims(to="them"), request())
    assert both.verify(first, request()) is not None
    for _ in range(50):
        assert both.verify(both.sign(ForwardClaims(to="them"), request()), request()) is not None
    assert both.verify(first, request()) is None
    assert len(both._seen_nonces) <= 10


def test_forwards_tolerate_clock_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each knows how far the clock of the store is ahead of its own."""
    ours, theirs = ForwardSigner(SigningKeys([KEY])), ForwardSigner(SigningKeys([KEY]))
    sealed = ours.sign(ForwardClaims(to="them"), request())
    there = time.time() - 3600
    monkeypatch.setattr(signing.time, "time", lambda: there)
    assert theirs.verify(sealed, request()) is None
    theirs.clock_offset = 3600.0
    assert theirs.verify(sealed, request()) is not None


def headed(sealed: bytes, length: int, *more: tuple[bytes, bytes]) -> HttpRequest:
    """A request whose body is still to come."""
    came = request(body=b"")
    came.headers.update([(b"content-length", b"%d" % length), (FORWARDED_HEADER, sealed), *more])
    return came


def test_forwarded_body_requires_a_valid_signature() -> None:
    ours, stranger = ForwardSigner(SigningKeys([KEY])), ForwardSigner(SigningKeys([os.urandom(32)]))
    large = request(body=b"x" * 1_000_000)
    sealed = ours.sign(ForwardClaims(to="them"), large)
    assert ours.precheck(sealed, headed(sealed, 1_000_000))
    assert ours.verify(sealed, request(body=b"y" * 1_000_000)) is None
    assert ours.verify(sealed, large) is not None
    forged = stranger.sign(ForwardClaims(to="them"), large)
    for wrong in (forged, sealed[:-1] + b"x", b"", b".", b"e30=.00", b"\xff.\xff", b"W10=." + sealed[-64:]):
        assert not ours.precheck(wrong, headed(wrong, 1_000_000))
    # Without the digest of a body there is no body that it could be good for.
    result = urlsafe_b64encode(msgspec.json.encode(ForwardClaims(to="them", at=time.time(), nonce="1")))
    unsaid = result + b"." + SigningKeys([KEY]).sign(b"requests that are sent on", result).hex().encode()
    assert not ours.precheck(unsaid, headed(unsaid, 1000))
    assert ours.verify(unsaid, request()) is None


# How far it may go

OURS, THEIRS = "a" * 16, "b" * 16


async def test_request_is_forwarded_at_most_twice(tmp_path: Path) -> None:
    """From a worker of another machine to any of this one, which passes it on to the right one: and there it ends."""
    keys, theirs = ForwardSigner(SigningKeys([KEY])), ForwardSigner(SigningKeys([KEY]))
    passed: list[ForwardClaims | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        passed.append(theirs.verify(fields[FORWARDED_HEADER], request()))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    folder, exchange = WorkerSocketDir(str(tmp_path), OURS), Mock(draining=False)
    delivery = RequestForwarder(OURS, folder, Mock(), keys, exchange, Mock(), BackgroundTasks())

    async def arriving(to: str, hops: int) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange.handle_forwarded = lambda request, writer: answered.set_result(request)
        came = request()
        came.headers[b"origin"] = b"https://page.example"
        came.headers[FORWARDED_HEADER] = keys.sign(ForwardClaims(to=to, hops=hops), came)
        delivery.receive_forwarded(came, Mock(respond=answered.set_result))
        return await asyncio.wait_for(answered, 10)

    server = await asyncio.start_unix_server(serve, folder.request_socket_path(THEIRS))
    async with server:
        for to in (OURS, THEIRS):
            for hops in (0, 3, 100):
                assert (await arriving(to, hops)).status == 403
        assert (await arriving(THEIRS, 2)) == reverse_proxy.GONE_RESPONSE
        assert passed == []
        assert (await arriving(THEIRS, 1)).status == 200
        assert [(item.to, item.hops) for item in passed if item is not None] == [(THEIRS, 2)]
        # What is for us is answered here, and says how far it has come: it is not sent on again.
        assert [(await arriving(OURS, hops)).hops for hops in (1, 2)] == [1, 2]
        # The page that has asked may read the answer: its origin was let in where it came from.
        assert (b"access-control-allow-origin", b"https://page.example") in (await arriving(OURS, 1)).cors


async def test_forwarded_request_is_not_forwarded_again(tmp_path: Path) -> None:
    """Who gets it, and does not have the session, says so; the one who has sent it looks further."""
    ids = SignedSessionIds(SigningKeys([KEY]), THEIRS)
    delivery, sessions = Mock(), Mock(retiring=False)

    async def at_once(id: str, then: Any) -> None:
        then()

    sessions.call_when_settled = at_once
    search = SessionRouter(OURS, ids, Mock(), sessions, delivery, BackgroundTasks(), Mock())
    for retiring, said in ((False, reverse_proxy.NO_SESSION_RESPONSE), (True, reverse_proxy.RETIRING_RESPONSE)):
        sessions.retiring = retiring
        for seeks in (False, True) if retiring else (False,):
            came, answered = request(), asyncio.get_running_loop().create_future()
            came.hops, came.seeks = 1, seeks
            assert search.route_to_owner(
                Mock(sessions={}), ids.new_id(), came, Mock(respond=answered.set_result), Mock()
            )
            assert await asyncio.wait_for(answered, 10) == said
    delivery.forward.assert_not_called()


async def test_request_waits_for_a_takeover(tmp_path: Path) -> None:
    """Its row says already that it is ours, and the one who lost the race for it has read that."""
    keys, errands = SigningKeys([KEY]), BackgroundTasks()
    ids, written = SignedSessionIds(keys, THEIRS), asyncio.get_running_loop().create_future()
    here: dict[str, Any] = {}
    endpoint = Mock(sessions=here)

    async def adopt(id: str, owner: str | None) -> bool:
        await written
        return True

    async def restore(id: str, memo: Any) -> bool:
        here[id] = memo
        return True

    endpoint.restore_session = restore
    sessions = LocalSessions(
        Mock(take_over_session=adopt), Mock(endpoints={"/mcp": endpoint}), errands, Mock(is_expired=False)
    )
    search = SessionRouter(OURS, ids, Mock(), sessions, Mock(), errands, Mock())
    id, came, answer, again = ids.new_id(), request(), Mock(), asyncio.Event()
    memo = msgspec.json.encode(SessionSnapshot(facts=SessionState(protocol_version="2025-11-25"))).decode()
    adopting = asyncio.ensure_future(sessions.take_over(endpoint, SessionRow(id, None, "/mcp", memo)))
    await asyncio.sleep(0)
    assert sessions.has(id)
    came.hops = 1
    assert search.route_to_owner(endpoint, id, came, answer, lambda *_: again.set())
    await asyncio.sleep(0)
    written.set_result(None)
    async with asyncio.timeout(10):
        assert await adopting
        await again.wait()
    answer.respond.assert_not_called()


async def test_batched_loads_share_an_error() -> None:
    async def ask(keys: list[str]) -> dict[str, int]:
        raise ValueError("no answer")

    batches = BatchLoader(ask, 10)
    async with asyncio.timeout(10):
        result = await asyncio.gather(*(batches.load(key) for key in "abc"), return_exceptions=True)
    assert [type(item) for item in result] == [ValueError] * 3
