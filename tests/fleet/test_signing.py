"""What one worker tells another about a request that it sends on: signed, for this request alone, and good once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from portico.auth.principal import Principal
from portico.fleet import sending, signing
from portico.fleet.delivery import Delivery
from portico.fleet.errands import Errands
from portico.fleet.folder import FleetFolder
from portico.fleet.searching import SessionSearch
from portico.fleet.signing import Forwarding, Forwardings, SessionIds, SigningKeys
from portico.transport.http.elsewhere import SENT_ON
from portico.transport.http.headers import Headers
from portico.transport.http.response import Request

KEY = os.urandom(32)


def request(**said: Any) -> Request:
    fields = {"method": "POST", "path": "/mcp", "query": "", "body": b"{}", **said}
    return Request(headers=Headers([(b"mcp-session-id", b"one")]), **fields)


def test_it_is_opened_once() -> None:
    ours, theirs = Forwardings(SigningKeys([KEY])), Forwardings(SigningKeys([os.urandom(32), KEY]))
    sealed = ours.seal(Forwarding(to="them", principal=Principal("ada"), hops=1), request())
    opened = theirs.open(sealed, request())
    assert opened is not None
    assert (opened.to, opened.hops) == ("them", 1)
    assert opened.principal == Principal("ada")
    assert theirs.open(sealed, request()) is None


@pytest.mark.parametrize(
    "other", [{"method": "GET"}, {"path": "/other"}, {"query": "x=1"}, {"body": b'{"id":2}'}], ids=str
)
def test_it_is_good_for_its_own_request_alone(other: dict[str, Any]) -> None:
    both = Forwardings(SigningKeys([KEY]))
    sealed = both.seal(Forwarding(to="them"), request())
    assert both.open(sealed, request(**other)) is None
    another = Forwardings(SigningKeys([os.urandom(32)]))
    assert another.open(sealed, request()) is None
    assert both.open(sealed[:-2], request()) is None


def test_it_is_good_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Forwardings(SigningKeys([KEY]))
    sealed = both.seal(Forwarding(to="them"), request())
    later = time.time() + signing.LIFETIME_SECONDS + 1
    monkeypatch.setattr(signing.time, "time", lambda: later)
    assert both.open(sealed, request()) is None


# How far it may go

OURS, THEIRS = "a" * 16, "b" * 16


async def test_it_goes_no_further_than_to_the_machine_and_to_the_worker(tmp_path: Path) -> None:
    """From a worker of another machine to any of this one, which passes it on to the right one: and there it ends."""
    keys = Forwardings(SigningKeys([KEY]))
    passed: list[Forwarding | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        passed.append(keys.open(fields[SENT_ON], request()))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    folder, exchange = FleetFolder(str(tmp_path), OURS), Mock(draining=False)
    delivery = Delivery(OURS, folder, Mock(), keys, exchange, Mock(), Errands())

    async def arriving(to: str, hops: int) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange.answer_at = lambda request, writer: answered.set_result(request)
        came = request()
        came.headers[b"origin"] = b"https://page.example"
        came.headers[SENT_ON] = keys.seal(Forwarding(to=to, hops=hops), came)
        delivery.receive(came, Mock(answer=answered.set_result))
        return await asyncio.wait_for(answered, 10)

    server = await asyncio.start_unix_server(serve, folder.path(THEIRS))
    async with server:
        for to in (OURS, THEIRS):
            for hops in (0, 3, 100):
                assert (await arriving(to, hops)).status == 403
        assert (await arriving(THEIRS, 2)) == sending.GONE
        assert passed == []
        assert (await arriving(THEIRS, 1)).status == 200
        assert [(one.to, one.hops) for one in passed if one is not None] == [(THEIRS, 2)]
        # What is for us is answered here, and says how far it has come: it is not sent on again.
        assert [(await arriving(OURS, hops)).hops for hops in (1, 2)] == [1, 2]
        # The page that has asked may read the answer: its origin was let in where it came from.
        assert (b"access-control-allow-origin", b"https://page.example") in (await arriving(OURS, 1)).cors


async def test_what_was_sent_on_is_not_sent_further(tmp_path: Path) -> None:
    """Who gets it, and does not have the session, says so; the one who has sent it looks further."""
    ids = SessionIds(SigningKeys([KEY]), THEIRS)
    delivery, sessions = Mock(), Mock(retiring=False)

    async def at_once(id: str, then: Any) -> None:
        then()

    sessions.when_left = at_once
    search = SessionSearch(OURS, ids, Mock(), sessions, delivery, Errands())
    for retiring, said in ((False, sending.ABSENT), (True, sending.LEAVING)):
        sessions.retiring = retiring
        for seeks in (False, True) if retiring else (False,):
            came, answered = request(), asyncio.get_running_loop().create_future()
            came.hops, came.seeks = 1, seeks
            assert search.find(Mock(), ids.make(), came, Mock(answer=answered.set_result), Mock())
            assert await asyncio.wait_for(answered, 10) == said
    delivery.send.assert_not_called()
