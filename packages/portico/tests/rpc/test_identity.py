"""Limits are per network: a client with a /64 of IPv6 can use any of its addresses."""

from __future__ import annotations

import pytest
from msgspec import Raw

from portico.protocol.errors import HttpStatusError
from portico.rpc.call import Call
from portico.rpc.fair_queue import get_caller_key
from portico.rpc.identity import client_network
from portico_gateway.gateway.accounting import UpstreamHealth


def call_from(address: str | None) -> Call:
    return Call(method="tools/call", params=Raw(b"{}"), id=1, address=address)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:1::1", "2001:db8:1:1::"),
        ("2001:DB8:1:1:ffff::", "2001:db8:1:1::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::1"),
        ("local", "local"),
        ("", ""),
    ],
)
def test_addresses_of_one_sender_are_one_network(address: str, network: str) -> None:
    assert client_network(address) == network


def test_all_addresses_of_a_network_are_one_caller() -> None:
    callers = {get_caller_key(call_from(f"2001:db8:1:1::{number:x}")) for number in range(1, 100)}
    assert len(callers) == 1
    assert get_caller_key(call_from("2001:db8:1:2::1")) not in callers
    assert get_caller_key(call_from(None))[0] == ""


def test_one_network_does_not_open_the_breaker_of_all_callers() -> None:
    health = UpstreamHealth("up", lambda call: None)
    for number in range(20):
        health.record_failure(call_from(f"2001:db8:1:1::{number:x}"), HttpStatusError("no", 500))
    health.check(call_from("198.51.100.7"))
    assert not health.shared.is_open
