"""Errors come back as the class they were raised with, on every revision and over every transport."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from failing import EXAMPLES, server

import portico.errors
from portico import Client, Server
from portico.protocol import errors, jsonrpc
from portico.protocol.errors import InvalidParams, ProtocolError, from_wire
from portico.protocol.jsonrpc import ErrorBody
from portico.protocol.versions import HANDSHAKE, REVISIONS, Revision
from portico.server.http import exchange
from portico.transports.http_server.application import Settings
from portico.transports.http_server.listener import Listener

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


# The builtin bases

SLOW = "import sys; sys.stdin.read()"


async def test_a_call_that_takes_too_long_is_a_timeout_error() -> None:
    slow = Server("slow")

    @slow.tool
    async def wait() -> str:
        await asyncio.Event().wait()
        return ""

    async with Client(slow, timeout=0.05) as client:
        with pytest.raises(TimeoutError) as raised:
            await client.call_tool("wait")
    assert isinstance(raised.value, portico.errors.TimedOut)
    assert "within 0.05 s" in str(raised.value)


async def test_a_server_that_never_answers_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError) as raised:
        async with Client([sys.executable, "-c", SLOW], timeout=0.2):
            pass
    assert isinstance(raised.value, portico.errors.TimedOut)


async def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        with pytest.raises(ConnectionError) as raised:
            async with Client(url, retries=0, timeout=10):
                pass
    assert isinstance(raised.value, portico.errors.ConnectFailed)
    assert "cannot connect to 127.0.0.1" in str(raised.value)


async def test_a_child_that_ends_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError) as raised:
        async with Client([sys.executable, "-c", "raise SystemExit(3)"], retries=0, timeout=10):
            pass
    assert isinstance(raised.value, portico.errors.TransportError)
    assert "status 3" in str(raised.value)


def test_every_public_exception_is_an_error_of_portico() -> None:
    for name in portico.errors.__all__:
        assert issubclass(getattr(portico.errors, name), portico.Error), name


def test_every_exception_of_the_wire_is_public() -> None:
    ours = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.Error)}
    assert ours <= set(portico.errors.__all__)
