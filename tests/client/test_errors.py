"""Errors come back as the class they were raised with, on every revision and over every transport."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from failing import EXAMPLES, server

from portico import Client
from portico.server.endpoint import exchange
from portico.transport.http.exchange import Settings
from portico.transport.http.listener import Listener
from portico.wire import errors, jsonrpc
from portico.wire.errors import InvalidParams, ProtocolError, from_wire
from portico.wire.jsonrpc import ErrorBody
from portico.wire.revisions import HANDSHAKE, REVISIONS, Revision

OLDEST = "2024-11-05"


def subclasses(kind: type[ProtocolError]) -> Iterator[type[ProtocolError]]:
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__:
            yield one
            yield from subclasses(one)


def test_there_is_an_example_of_every_class() -> None:
    assert {kind.__name__ for kind in subclasses(ProtocolError)} | {"ProtocolError"} == set(EXAMPLES)


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_was_sent_is_what_was_raised(name: str, revision: Revision) -> None:
    raised = EXAMPLES[name]
    sent = msgspec.convert(msgspec.json.decode(jsonrpc.error(1, raised, revision))["error"], ErrorBody)
    received = from_wire(sent.code, sent.message, sent.data)
    assert type(received) is type(raised)
    assert (received.message, received.data) == (raised.message, raised.data)
    # Whoever passes it on says it with the code of their own revision.
    assert [received.code_at(one) for one in REVISIONS] == [raised.code_at(one) for one in REVISIONS]


@pytest.mark.parametrize(
    "sent",
    [(-32602, "Unknown", {"name": "x"}), (-32602, "no", {"uri": "a://b"}), (-32602, "Resource not found", None)],
)
def test_what_only_looks_alike_keeps_to_its_code(sent: tuple[int, str, Any]) -> None:
    assert type(from_wire(*sent)) is InvalidParams


def test_a_code_that_is_not_known_is_kept() -> None:
    failure = from_wire(-32000, "Bad Request: no session")
    assert type(failure) is ProtocolError
    assert failure.code == -32000


@asynccontextmanager
async def connected(how: str, revision: Revision) -> AsyncIterator[Client]:
    if how in ("memory", "stdio"):
        target: Any = server if how == "memory" else [sys.executable, str(Path(__file__).parent / "failing.py")]
        async with Client(target, revision=revision) as client:
            yield client
        return
    listener = Listener(exchange(server, Settings(sse=True)))
    [(host, port, *_)] = await listener.start("127.0.0.1", 0)
    try:
        url = f"http://{host}:{port}"
        target = {"url": f"{url}/sse", "type": "sse"} if how == "sse" else f"{url}/mcp"
        async with Client(target, revision=revision) as client:
            yield client
    finally:
        await listener.stop(0)


TRANSPORTS = [(how, revision) for how in ("memory", "stdio", "http") for revision in REVISIONS] + [("sse", OLDEST)]


@pytest.mark.parametrize(("how", "revision"), TRANSPORTS)
async def test_a_client_catches_what_the_server_raised(how: str, revision: Revision) -> None:
    async with connected(how, revision) as client:
        assert client.revision == revision
        for name, example in EXAMPLES.items():
            with pytest.raises(type(example)) as raised:
                await client.get_prompt(name)
            assert type(raised.value) is type(example), name
            assert (raised.value.message, raised.value.data) == (example.message, example.data)


@pytest.mark.requirement("resources.missing-accepted")
def test_before_2026_07_28_a_missing_resource_has_a_code_of_its_own() -> None:
    missing = EXAMPLES["ResourceNotFound"]
    assert {missing.code_at(revision) for revision in HANDSHAKE} == {-32002}
