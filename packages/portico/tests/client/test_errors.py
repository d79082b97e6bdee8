"""Errors keep their class on every protocol version and transport."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import portico.errors
from portico import Client, Server
from portico.protocol import errors, jsonrpc
from portico.protocol.errors import InvalidParams, ProtocolError, error_from_response
from portico.protocol.jsonrpc import ErrorObject
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS, ProtocolVersion
from portico.server.http import build_application
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from support.paths import PROGRAMS
from support.programs.failing_server import EXAMPLES, server

OLDEST = "2024-11-05"


def subclasses(kind: type[ProtocolError]) -> Iterator[type[ProtocolError]]:
    for item in kind.__subclasses__():
        if item.__module__ == errors.__name__:
            yield item
            yield from subclasses(item)


def test_every_class_has_an_example() -> None:
    assert {kind.__name__ for kind in subclasses(ProtocolError)} | {"ProtocolError"} == set(EXAMPLES)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_errors_round_trip_with_their_class(name: str, revision: ProtocolVersion) -> None:
    raised = EXAMPLES[name]
    sent = msgspec.convert(msgspec.json.decode(jsonrpc.encode_error(1, raised, revision))["error"], ErrorObject)
    received = error_from_response(sent.code, sent.message, sent.data)
    assert type(received) is type(raised)
    assert (received.message, received.data) == (raised.message, raised.data)
    # Whoever passes it on says it with the code of their own revision.
    assert [
        received.code_for(supported_protocol_version) for supported_protocol_version in SUPPORTED_PROTOCOL_VERSIONS
    ] == [raised.code_for(supported_protocol_version) for supported_protocol_version in SUPPORTED_PROTOCOL_VERSIONS]


@pytest.mark.parametrize(
    "sent",
    [(-32602, "Unknown", {"name": "x"}), (-32602, "no", {"uri": "a://b"}), (-32602, "Resource not found", None)],
)
def test_similar_errors_are_not_mistaken_for_specific_classes(sent: tuple[int, str, Any]) -> None:
    assert type(error_from_response(*sent)) is InvalidParams


def test_code_that_is_not_known_is_kept() -> None:
    failure = error_from_response(-32000, "Bad Request: no session")
    assert type(failure) is ProtocolError
    assert failure.code == -32000


@asynccontextmanager
async def connected(how: str, revision: ProtocolVersion) -> AsyncIterator[Client]:
    if how in ("memory", "stdio"):
        target: Any = server if how == "memory" else [sys.executable, str(PROGRAMS / "failing_server.py")]
        async with Client(target, protocol_version=revision, max_retries=0) as client:
            yield client
        return
    listener = Listener(build_application(server, HttpServerSettings(sse=True)))
    [(host, port, *_)] = await listener.listen("127.0.0.1", 0)
    try:
        url = f"http://{host}:{port}"
        target = {"url": f"{url}/sse", "type": "sse"} if how == "sse" else f"{url}/mcp"
        async with Client(target, protocol_version=revision, max_retries=0) as client:
            yield client
    finally:
        await listener.stop(0)


TRANSPORTS = [(how, revision) for how in ("memory", "stdio", "http") for revision in SUPPORTED_PROTOCOL_VERSIONS] + [
    ("sse", OLDEST)
]


@pytest.mark.parametrize(("how", "revision"), TRANSPORTS)
async def test_client_raises_the_error_of_the_server(how: str, revision: ProtocolVersion) -> None:
    async with connected(how, revision) as client:
        assert client.protocol_version == revision
        for name, example in EXAMPLES.items():
            with pytest.raises(type(example)) as raised:
                await client.get_prompt(name)
            assert type(raised.value) is type(example), name
            assert (raised.value.message, raised.value.data) == (example.message, example.data)


@pytest.mark.requirement("resources.missing-accepted")
def test_missing_resource_is_code_32002_before_2026_07_28() -> None:
    missing = EXAMPLES["ResourceNotFound"]
    assert {missing.code_for(revision) for revision in HANDSHAKE_VERSIONS} == {-32002}


# The builtin bases

SLOW = "import sys; sys.stdin.read()"


async def test_call_that_takes_too_long_is_a_timeout_error() -> None:
    slow = Server("slow")

    @slow.tool
    async def wait() -> str:
        await asyncio.Event().wait()
        return ""

    async with Client(slow, timeout=0.05) as client:
        with pytest.raises(TimeoutError) as raised:
            await client.call_tool("wait")
    assert isinstance(raised.value, portico.errors.RequestTimeout)
    assert "within 0.05 s" in str(raised.value)


async def test_server_that_never_answers_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError) as raised:
        async with Client([sys.executable, "-c", SLOW], timeout=0.2):
            pass
    assert isinstance(raised.value, portico.errors.RequestTimeout)


async def test_missing_server_is_a_connection_error() -> None:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{item.getsockname()[1]}/mcp"
        with pytest.raises(ConnectionError) as raised:
            async with Client(url, max_retries=0, timeout=10):
                pass
    assert isinstance(raised.value, portico.errors.ConnectError)
    assert "cannot connect to 127.0.0.1" in str(raised.value)


async def test_child_that_ends_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError) as raised:
        async with Client([sys.executable, "-c", "raise SystemExit(3)"], max_retries=0, timeout=10):
            pass
    assert isinstance(raised.value, portico.errors.TransportError)
    assert "status 3" in str(raised.value)


def test_every_public_exception_is_an_error_of_portico() -> None:
    for name in portico.errors.__all__:
        assert issubclass(getattr(portico.errors, name), portico.PorticoError), name


def test_every_exception_of_the_wire_is_public() -> None:
    ours = {
        name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.PorticoError)
    }
    assert ours <= set(portico.errors.__all__)
