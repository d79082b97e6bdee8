"""What one worker tells another about a request that it sends on: signed, for this request alone, and good once."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from portico.auth.principal import Principal
from portico.fleet import signing
from portico.fleet.signing import Forwarding, Forwardings, SigningKeys
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
