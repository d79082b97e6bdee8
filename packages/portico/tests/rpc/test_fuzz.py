"""Arbitrary input never raises, and all output is valid JSON-RPC.

The examples are the same on every run, more of them with `STORM=1`; `FUZZ=100 pytest tests/fuzz` looks a hundred times
as far, at random.
"""

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from portico import Context, Server, ToolError
from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    LOG_LEVEL_RANKS,
    PROTOCOL_VERSION_META_KEY,
)
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS, V2026_07_28
from portico.rpc.channel import Channel
from portico.rpc.handshake.session import HandshakeSession
from support.channels import knock
from support.storm import times

TIMES = int(os.environ.get("FUZZ", "1"))
TIMEOUT_SECONDS = 10.0


def effort(examples: int) -> settings:
    return settings(
        max_examples=examples * TIMES * times(1, in_a_storm=3),
        derandomize=TIMES == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# A server with something to hit


@dataclass
class Place:
    city: str
    zip: int | None = None


def make_server() -> Server:
    server = Server("target", version="1.0.0", list_page_size=2)

    @server.tool(run_in_thread=False)
    def plain(text: str, number: int = 1, flag: bool = False) -> str:
        return text * min(number, 3)

    @server.tool
    async def nested(places: list[Place], kind: Literal["a", "b"] = "a") -> list[Place]:
        return places

    @server.tool
    async def open_ended(anything: Any = None, more: dict[str, Any] | None = None) -> Any:
        return anything

    @server.tool
    async def refuses(why: str = "") -> str:
        raise ToolError(why)

    @server.tool
    async def breaks(ctx: Context) -> str:
        raise RuntimeError("secret")

    @server.tool
    async def reports(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        await ctx.info(ctx.meta)
        return "done"

    @server.tool
    async def asks(ctx: Context) -> str:
        return (await ctx.elicit("Who?", str)).action + (await ctx.sample("Hm?")).text + str(await ctx.list_roots())

    @server.resource("note://a")
    async def note() -> str:
        return "a"

    @server.resource("note://{day}/{page}")
    async def page(day: str, page: int) -> dict[str, Any]:
        return {"day": day, "page": page}

    @server.prompt
    async def greeting(name: str, tone: Literal["warm", "cool"] = "warm") -> str:
        return f"{name} {tone}"

    return server


SERVER = make_server()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    log = logging.getLogger("portico")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    with asyncio.Runner() as runner:
        yield runner
    log.setLevel(level)


# What a frame is


def check(data: bytes) -> list[dict[str, Any]]:
    """The frames in a message of ours; fails when it is not one valid frame, or an array of responses."""
    assert b"\n" not in data
    said = json.loads(data, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    if isinstance(said, list):
        assert said, "an empty array is no answer"
        assert all("method" not in item for item in said)
        return [check_frame(item) for item in said]
    return [check_frame(said)]


def check_frame(frame: Any) -> dict[str, Any]:
    assert type(frame) is dict
    assert frame["jsonrpc"] == "2.0"
    assert frame.keys() <= {"jsonrpc", "id", "method", "params", "result", "error"}
    assert sum(member in frame for member in ("method", "result", "error")) == 1
    id = frame.get("id")
    assert id is None or type(id) in (int, str)
    if "method" in frame:
        assert type(frame["method"]) is str
        assert type(frame.get("params", {})) is dict
        assert id is not None or "id" not in frame
    elif "result" in frame:
        assert id is not None
        assert type(frame["result"]) is dict
    else:
        error = frame["error"]
        assert error.keys() <= {"code", "message", "data"}
        assert type(error["code"]) is int
        assert type(error["message"]) is str
        assert "secret" not in json.dumps(error)
    return dict(frame)


# What could come

text = st.text(max_size=20)
numbers = st.integers() | st.floats() | st.sampled_from([0, 1, -1, 2**53, 2**63, 2**64, 10**400, 1e308])
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)

NAMES = [tool.name for tool in SERVER.tools] + ["greeting", "unknown", ""]
URIS = ["note://a", "note://monday/1", "note://monday/x", "note://{day}/{page}", "note://%zz", "", ":"]
VERSIONS = [*SUPPORTED_PROTOCOL_VERSIONS, "2099-01-01", "1.0.0", ""]
WHO = {"name": "fuzz", "version": "1"}
CAPABILITIES = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}


def either(*likely: Any) -> st.SearchStrategy[Any]:
    """One of these mostly, and anything now and then."""
    return st.one_of(st.sampled_from(likely), st.sampled_from(likely), values)


arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": either("hi"),
        "number": either(2),
        "flag": either(True),
        "places": either([], [{"city": "Ulm"}], [{"city": "Ulm", "zip": 89073}], [{}]),
        "kind": either("a", "c"),
        "anything": values,
        "why": either("no"),
        "name": either("Ada"),
        "tone": either("warm"),
    },
)

meta = st.fixed_dictionaries(
    {},
    optional={
        PROTOCOL_VERSION_META_KEY: either(V2026_07_28, *VERSIONS),
        CLIENT_CAPABILITIES_META_KEY: either({}, CAPABILITIES),
        CLIENT_INFO_META_KEY: either(WHO),
        LOG_LEVEL_META_KEY: either(*LOG_LEVEL_RANKS),
        "progressToken": either(1, "p", 2**63),
        "traceparent": either("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    },
)
modern = st.builds(
    lambda more: {PROTOCOL_VERSION_META_KEY: V2026_07_28, CLIENT_CAPABILITIES_META_KEY: {}, **more}, st.just({}) | meta
)

params = st.fixed_dictionaries(
    {},
    optional={
        "_meta": modern | meta | values,
        "name": either(*NAMES),
        "arguments": arguments | values,
        "uri": either(*URIS),
        "cursor": either("", "YWZ0ZXIgMg=="),
        "level": either(*LOG_LEVEL_RANKS),
        "ref": either({"type": "ref/prompt", "name": "greeting"}, {"type": "ref/resource", "uri": URIS[3]}, {}),
        "argument": either({"name": "tone", "value": "w"}, {"name": "day", "value": ""}),
        "context": either({"arguments": {"day": "monday"}}, {}),
        "notifications": either({}, {"toolsListChanged": True, "resourceSubscriptions": ["note://a"]}),
        "protocolVersion": either(*VERSIONS),
        "capabilities": either({}, CAPABILITIES),
        "clientInfo": either(WHO),
        "requestId": either(1, "1"),
        "inputResponses": either({}, {"elicitation-1": {"action": "accept", "content": {"value": "x"}}}),
        "requestState": either("", "bm9uc2Vuc2U="),
        "extra": values,
    },
)

methods = st.sampled_from([*METHODS, "tools/call", "tools/call", "initialized", "no/such", ""]) | text
ids = st.integers(-3, 3) | st.sampled_from(["1", "a", "", 2**63 - 1]) | values

requests = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": methods},
    optional={"id": st.integers(-3, 3) | ids, "params": params | params | values, "extra": values},
)
responses = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": ids},
    optional={
        "result": either({}, {"action": "accept", "content": {"value": "x"}}, {"roots": []}),
        "error": either({"code": -1, "message": "no"}, {"code": 10**30, "message": "no", "data": 10**400}),
    },
)
messages = requests | requests | requests | responses
batches = st.lists(messages | values, max_size=4)


def written(message: Any) -> bytes:
    return json.dumps(message).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message, a few bytes of which were lost, doubled, swapped or replaced on the way."""
    data = bytearray(written(draw(messages | batches)))
    for _ in range(draw(st.integers(1, 4))):
        at, to = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        how = draw(st.sampled_from(["lose", "double", "replace", "cut"]))
        if how == "lose":
            del data[at : at + 3]
        elif how == "double":
            data[at:at] = data[at : min(to, at + 50)]
        elif how == "replace":
            data[at : at + 1] = draw(
                st.binary(min_size=1, max_size=3) | st.sampled_from([b'"', b"{", b"]", b",", b"\\"])
            )
        else:
            del data[to:]
    return bytes(data)


anything = st.binary(max_size=200) | values.map(written) | damaged()


# The door


def through_the_door(runner: asyncio.Runner, data: bytes) -> None:
    for batch in (False, True):
        reply = runner.run(knock(data, SERVER, batches=batch))
        if reply is not None:
            frames = check(reply)
            assert all("method" not in frame for frame in frames)


@effort(100)
@given(data=anything)
def test_any_bytes_through_the_door(runner: asyncio.Runner, data: bytes) -> None:
    through_the_door(runner, data)


@effort(160)
@given(message=messages | batches)
def test_messages_through_the_door(runner: asyncio.Runner, message: Any) -> None:
    through_the_door(runner, written(message))


@effort(100)
@given(id=st.integers(-(2**63), 2**63 - 1) | st.text(), method=methods, given_params=params, envelope=modern)
def test_response_has_the_id_of_the_request(
    runner: asyncio.Runner, id: int | str, method: str, given_params: dict[str, Any], envelope: dict[str, Any]
) -> None:
    """JSON-RPC 2.0, 5: the id of a response "MUST be the same as the value of the id member in the Request Object"."""
    if method in LONG_LIVED_METHODS:
        return
    # What is not JSON is answered without an id, so only what is goes in here.
    result = written({"jsonrpc": "2.0", "id": id, "method": method, "params": {**given_params, "_meta": envelope}})
    reply = runner.run(knock(result, SERVER))
    assert reply is not None
    (frame,) = check(reply)
    if frame.get("error", {}).get("code") != -32700:
        assert (type(frame["id"]), frame["id"]) == (type(id), id)


# A stream


class Stream:
    """A Channel and a Session, as a transport connects them, and everything they say."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.session = HandshakeSession(SERVER)
        self.channel = Channel(SERVER, self.said.append, session=self.session)
        self.session.stream = self.channel

    def take(self, data: bytes) -> None:
        reply = self.channel.receive(data)
        if reply is not None:
            self.said.append(reply)

    def open(self, revision: str | None) -> None:
        if revision is not None:
            who = {"protocolVersion": revision, "capabilities": CAPABILITIES, "clientInfo": WHO}
            self.take(written({"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": who}))
            self.take(written({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    async def converse(self, revision: str | None, conversation: list[bytes]) -> list[dict[str, Any]]:
        """Everything that was said in a conversation, frame by frame."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            self.open(revision)
            for data in conversation:
                self.take(data)
                for _ in range(12):
                    await asyncio.sleep(0)
            frames = [frame for message in list(self.said) for frame in check(message)]
            await self.channel.shutdown(0)
            self.session.close()
        for message in self.said:
            check(message)
        return frames


revisions = st.sampled_from([None, *HANDSHAKE_VERSIONS])


@effort(70)
@given(revision=revisions, conversation=st.lists(anything, min_size=1, max_size=5))
def test_any_bytes_on_a_stream(runner: asyncio.Runner, revision: str | None, conversation: list[bytes]) -> None:
    runner.run(Stream().converse(revision, conversation))


@effort(130)
@given(revision=revisions, conversation=st.lists(messages | batches, min_size=1, max_size=6))
def test_messages_on_a_stream(runner: asyncio.Runner, revision: str | None, conversation: list[Any]) -> None:
    runner.run(Stream().converse(revision, [written(message) for message in conversation]))


@effort(100)
@given(revision=revisions, conversation=st.lists(requests, min_size=1, max_size=6))
def test_every_request_on_a_stream_is_answered_once(
    runner: asyncio.Runner, revision: str | None, conversation: list[dict[str, Any]]
) -> None:
    """Except the ones that go on, that ask back, or that were cancelled."""
    numbered = [
        {**message, "id": f"request-{n}"} if "id" in message else message for n, message in enumerate(conversation)
    ]
    frames = runner.run(Stream().converse(revision, [written(message) for message in numbered]))
    answered = Counter(frame.get("id") for frame in frames if "method" not in frame)
    for message in numbered:
        goes_on = message["method"] in LONG_LIVED_METHODS or _name(message) == "asks"
        unreadable = "NaN" in json.dumps(message) or "Infinity" in json.dumps(message) or "\\ud" in json.dumps(message)
        if "id" in message and not goes_on and not unreadable:
            assert answered[message["id"]] == 1, message
    assert set(answered) <= {"open", None, *(message.get("id") for message in numbered)}


def _name(message: dict[str, Any]) -> Any:
    given_params = message.get("params")
    return given_params.get("name") if isinstance(given_params, dict) else None
