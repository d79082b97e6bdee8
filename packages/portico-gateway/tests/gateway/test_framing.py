"""One message in gives one message out, for every pair of transports and versions and any JSON layout.

Clients and upstreams share no code with Portico, and their readers end a message wherever any reader would.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings, strategies as st

from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from support.otlp import _CLEAN, PORTICO, serving
from support.paths import PROGRAMS
from support.programs.echo_upstream_layout import lay_out
from support.storm import times

UPSTREAM = PROGRAMS / "echo_upstream.py"
TIMEOUT_SECONDS = 30.0
MODERN = "2026-07-28"
UPSTREAMS = [f"{kind}-{version}" for kind in ("stdio", "json", "events") for version in SUPPORTED_PROTOCOL_VERSIONS]

# Requests are parsed before they are sent on, so a third of the combinations is enough. STORM=1 tries all.
UPSTREAM_STEP = times(3, 1)

BREAKS = ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\n\n", "\r\n\r\n"]
SMUGGLED = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}'
PIECES = [*BREAKS, SMUGGLED, "data: x", "event: message", "id: 7", ":", "\x00", '"', "\\", "\ufeff"]
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), texts
)
message_objects = st.builds(lambda name: {**json.loads(SMUGGLED), "x": name}, texts)
values = st.recursive(
    st.one_of(scalars, message_objects),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


class StdioClient:
    """Speaks to `portico serve FILE` over its pipes."""

    BLANKS = " \t\r"

    def __init__(self, file: Path, folder: Path) -> None:
        self.child = subprocess.Popen(
            [*PORTICO, "serve", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**_CLEAN, "PORTICO_DATA": str(folder / "data")},
        )
        self._rest = b""

    def send(self, text: str, about: dict[str, Any]) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(text.encode() + b"\n")
        self.child.stdin.flush()

    def read(self) -> str:
        assert self.child.stdout is not None
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            lines = self._rest.decode(errors="ignore").splitlines(keepends=True)
            if lines and (len(lines) > 1 or self._rest.endswith((b"\n", b"\r"))):
                self._rest = self._rest[len(lines[0].encode()) :]
                return lines[0]
            assert select.select([self.child.stdout], [], [], max(0.0, end - time.monotonic()))[0], "no answer"
            data = os.read(self.child.stdout.fileno(), 1 << 16)
            assert data, "the server has ended"
            self._rest += data

    def close(self) -> None:
        self.child.communicate(timeout=TIMEOUT_SECONDS)


class HttpClient:
    """Posts to a server and reads one response: JSON, or events where `accept` puts them first."""

    BLANKS = " \t\r\n"

    def __init__(self, url: str, accept: str) -> None:
        parts = urlsplit(url)
        self.path, self.accept = parts.path, accept
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
        self.session: dict[str, str] = {}
        self._answer = ""

    def send(self, text: str, about: dict[str, Any]) -> None:
        headers = {"content-type": "application/json", "accept": self.accept, **self.session}
        if about["version"] == MODERN:
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": about["method"]}
            headers |= {"mcp-name": about["name"]} if "name" in about else {}
        self.connection.request("POST", self.path, text.encode(), headers)
        response = self.connection.getresponse()
        body = response.read().decode()
        assert response.status in (200, 202), body
        if session := response.headers.get("mcp-session-id"):
            self.session = {"mcp-session-id": session, "mcp-protocol-version": about["version"]}
        if (response.headers.get("content-type") or "").startswith("text/event-stream"):
            messages = [data for data in events(body) if data]
            assert len(messages) <= 1, messages
            body = messages[0] if messages else ""
        self._answer = body

    def read(self) -> str:
        return self._answer

    def close(self) -> None:
        self.connection.close()


class OldSseClient:
    """The transport of 2024-11-05: a stream of events, and posts beside it."""

    BLANKS = " \t\r\n"

    def __init__(self, url: str) -> None:
        self.parts = urlsplit(url)
        self.stream = http.client.HTTPConnection(self.parts.hostname or "", self.parts.port, timeout=TIMEOUT_SECONDS)
        self.stream.request("GET", "/sse", headers={"accept": "text/event-stream"})
        self.response = self.stream.getresponse()
        assert self.response.status == 200, self.response.read()
        self._text = ""
        self.path = self.read()

    def send(self, text: str, about: dict[str, Any]) -> None:
        post = http.client.HTTPConnection(self.parts.hostname or "", self.parts.port, timeout=TIMEOUT_SECONDS)
        post.request("POST", self.path, text.encode(), {"content-type": "application/json"})
        with post.getresponse() as response:
            assert response.status in (200, 202), response.read()
        post.close()

    def read(self) -> str:
        while True:
            whole, gap, rest = self._text.partition("\n\n")
            if gap:
                self._text = rest
                for data in events(whole + gap):
                    return data
            else:
                self._text += self.response.read1(1 << 16).decode()

    def close(self) -> None:
        self.response.close()
        self.stream.close()


def events(text: str) -> Iterator[str]:
    """Parse a stream of events as the readers do that split wherever `str.splitlines` does."""
    data: list[str] = []
    for line in text.splitlines():
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        else:
            name, _, value = line.partition(":")
            assert name in ("data", "event", "id", "retry", ""), line
            if name == "data":
                data.append(value.removeprefix(" "))


Connect = Callable[[], Any]


class Conversation:
    """One client of one version: the handshake where there is one, then calls."""

    def __init__(self, connect: Connect, version: str) -> None:
        self.client, self.version, self.ids = connect(), version, itertools.count(1)
        self.calls: dict[str, int] = {}
        self.upstreams: list[str] = []
        if version != MODERN:
            info = {"name": "raw", "version": "1"}
            self.request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": info})
            self.client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}', {"version": version})

    def request(self, method: str, params: dict[str, Any], chance: random.Random | None = None) -> Any:
        id = next(self.ids)
        if self.version == MODERN:
            stamp = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            params = {**params, "_meta": stamp}
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        about = {"version": self.version, "method": method, **({"name": params["name"]} if "name" in params else {})}
        self.client.send(lay_out(message, chance, self.client.BLANKS) if chance else json.dumps(message), about)
        reply = json.loads(self.client.read())
        # The upstreams start while the first clients are connected.
        while str(reply.get("method")).endswith("/list_changed"):
            reply = json.loads(self.client.read())
        assert reply.get("id") == id and "result" in reply, reply
        return reply["result"]


@pytest.fixture(scope="module")
def gateway_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("framing")
    lines = ['[gateway]\nname = "framing"']
    with ExitStack() as stack:
        for alias in UPSTREAMS:
            kind, _, version = alias.partition("-")
            command = [sys.executable, str(UPSTREAM), kind, version]
            lines.append(f"[upstream.{alias}]")
            if kind == "stdio":
                lines.append(f"command = {json.dumps(command)}")
            else:
                child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                stack.callback(child.wait, TIMEOUT_SECONDS)
                stack.callback(child.terminate)
                assert child.stdout is not None
                stack.callback(child.stdout.close)
                lines.append(f'url = "http://127.0.0.1:{int(child.stdout.readline())}/mcp"')
        file = folder / "gateway.toml"
        file.write_text("\n".join(lines))
        yield file


@pytest.fixture(scope="module")
def connects(gateway_file: Path) -> Iterator[dict[str, Connect]]:
    with serving(gateway_file, "--no-auth", "--sse", log=gateway_file.with_name("log")) as url:
        yield {
            "stdio": lambda: StdioClient(gateway_file, gateway_file.parent),
            "http": lambda: HttpClient(url, "application/json, text/event-stream"),
            "http-events": lambda: HttpClient(url, "text/event-stream, application/json"),
            "sse": lambda: OldSseClient(url),
        }


PAIRS = [(kind, version) for kind in ("stdio", "http", "http-events") for version in SUPPORTED_PROTOCOL_VERSIONS] + [
    ("sse", "2024-11-05")
]


def _choose_upstreams(pair: tuple[str, str]) -> list[str]:
    """Return upstreams of every version and transport for this pair. All pairs of transports and versions occur."""
    start = PAIRS.index(pair) + PAIRS.index(pair) // len(SUPPORTED_PROTOCOL_VERSIONS)
    return [alias for number, alias in enumerate(UPSTREAMS) if (number + start) % UPSTREAM_STEP == 0]


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def conversation(request: pytest.FixtureRequest, connects: dict[str, Connect]) -> Iterator[Conversation]:
    kind, version = request.param
    talk = Conversation(connects[kind], version)
    talk.upstreams = _choose_upstreams(request.param)
    end = time.monotonic() + TIMEOUT_SECONDS
    while len(talk.request("tools/list", {})["tools"]) < len(UPSTREAMS):
        assert time.monotonic() < end, "some upstreams did not start"
    yield talk
    talk.client.close()


@pytest.mark.parametrize("number", range(len(UPSTREAMS) // UPSTREAM_STEP))
def test_message_stays_one_message_with_equal_content(conversation: Conversation, number: int) -> None:
    alias = conversation.upstreams[number]

    @settings(max_examples=5, database=None)
    @given(arguments=st.dictionaries(texts, values, max_size=3), seed=st.integers(0, 2**32))
    def check(arguments: dict[str, Any], seed: int) -> None:
        params = {"name": f"{alias}_echo", "arguments": arguments}
        result = conversation.request("tools/call", params, random.Random(seed))
        data = json.loads(result["content"][0]["text"])
        assert data["arguments"] == arguments, alias
        assert data["invalid"] == 0, alias
        before = conversation.calls.get(alias)
        # An upstream over stdio may have one process for each session; over HTTP all tests share one, in turn.
        assert before is None or data["calls"] == before + 1
        conversation.calls[alias] = data["calls"]
        echoed = result.get("_meta", {}).get("example.com/echo")
        assert echoed is None or echoed == arguments

    check()
