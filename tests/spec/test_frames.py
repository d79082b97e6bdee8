"""Every frame of a server is valid under the JSON Schema of its protocol version, without unknown members."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema_rs
import msgspec
import pytest

from portico import Audio, Context, File, Image, Server, ToolError, ToolResult
from portico.protocol.client_features import SamplingMessage
from portico.protocol.content import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    SUBSCRIPTION_ID_META_KEY,
    Icon,
)
from portico.protocol.prompts import PromptMessage
from portico.protocol.tools import Tool
from portico.protocol.versions import (
    HANDSHAKE_VERSIONS,
    SUPPORTED_PROTOCOL_VERSIONS,
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)
from portico.rpc.channel import Channel
from portico.rpc.handshake.session import HandshakeSession
from portico.server.options import CacheHint
from support import frames
from support.frames import complaints

pytestmark = pytest.mark.skipif(not frames.SCHEMAS.is_dir(), reason=frames.ABSENT)

TIMEOUT_SECONDS = 5.0

# An eager client: it declares everything it knows, whichever revision it then gets.
EVERYTHING = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
}

# 2026-07-28, server/utilities/caching: the results that must carry `ttlMs` and `cacheScope`.
CACHEABLE = {
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}


# A server that uses everything


@dataclass
class Point:
    x: int
    y: float = 0.5


@dataclass
class Chain:
    value: int
    next: "Chain | None" = None


@dataclass
class Trip:
    city: str
    days: int = 3
    window: bool = False
    budget: float = 99.5
    size: Literal["small", "large"] = "small"


ICONS = [Icon(src="https://icons.test/a.png", mime_type="image/png", sizes=["48x48"], theme="dark")]
NOTES = Annotations(audience=["user"], priority=0.5, last_modified="2025-01-12T15:00:58Z")
OWN = {"test.portico/note": 1}
PIXEL = b"\x89PNG\r\n"


def rich_server() -> Server:
    server = Server(
        "rich",
        version="1.2.3",
        title="A rich server",
        description="It uses everything",
        website_url="https://rich.test",
        icons=ICONS,
        instructions="Try everything.",
        list_page_size=20,
        cache=CacheHint(1000, "public"),
    )
    _tools(server)
    _tools_that_ask(server)
    _resources(server)
    _prompts(server)
    return server


def _tools(server: Server) -> None:
    @server.tool(
        title="Plain",
        version="1.0.0",
        icons=ICONS,
        meta=OWN,
        annotations={"title": "Plain", "readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    )
    def plain(text: str = "hello", times: int = 1) -> str:
        """Say something."""
        return text * times

    @server.tool
    def a_point() -> Point:
        return Point(1)

    @server.tool
    def a_list() -> list[Point]:
        return [Point(1), Point(2)]

    @server.tool
    def a_number() -> int:
        return 7

    @server.tool
    def maybe(there: bool = True) -> Point | None:
        return Point(1) if there else None

    @server.tool
    def chained() -> Chain:
        return Chain(1, Chain(2))

    @server.tool
    def chains() -> list[Chain]:
        return [Chain(1, Chain(2))]

    @server.tool
    def a_dict() -> dict[str, Any]:
        return {"huge": 2**70, "nothing": float("nan"), "deep": {"list": [1, None, True]}}

    @server.tool
    def blocks() -> list[Any]:
        return [
            TextContent(text="text", annotations=NOTES, meta=OWN),
            ImageContent(data="aGk=", mime_type="image/png", annotations=NOTES, meta=OWN),
            AudioContent(data="aGk=", mime_type="audio/wav", annotations=NOTES, meta=OWN),
            EmbeddedResource(
                resource=TextResourceContents(uri="note://1", mime_type="text/plain", text="t", meta=OWN),
                annotations=NOTES,
                meta=OWN,
            ),
            EmbeddedResource(resource=BlobResourceContents(uri="note://2", blob="aGk=", meta=OWN)),
        ]

    @server.tool
    def link() -> ResourceLink:
        return ResourceLink(
            uri="note://1",
            name="one",
            title="The first",
            description="A note",
            mime_type="text/plain",
            size=12,
            icons=ICONS,
            annotations=NOTES,
            meta=OWN,
        )

    @server.tool
    def media() -> list[Any]:
        return [
            "words",
            Image(data=PIXEL, format="png"),
            Audio(data=b"RIFF", format="wav"),
            File(data=b"a,b", name="t.csv", mime_type="text/csv"),
        ]

    @server.tool
    def in_full() -> ToolResult:
        return ToolResult(content="said in full", structured={"a": [1]}, meta=OWN)

    @server.tool
    def refuses() -> str:
        raise ToolError("Not today.")

    @server.tool
    def breaks() -> str:
        raise RuntimeError("secret")

    @server.tool
    async def reports(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half of it")
        await ctx.report_progress(2.5)
        await ctx.info({"said": "something"})
        await ctx.error("something else", logger="elsewhere")
        await ctx.debug(None)
        return "reported"


def _tools_that_ask(server: Server) -> None:
    @server.tool
    async def elicits(ctx: Context) -> str:
        return (await ctx.elicit("Where to?", Trip)).action

    @server.tool
    async def elicits_nothing(ctx: Context) -> str:
        return (await ctx.elicit("All right?")).action

    @server.tool
    async def elicits_one(ctx: Context) -> str:
        return str((await ctx.elicit("Which?", ["red", "blue"])).data)

    @server.tool
    async def elicits_several(ctx: Context) -> str:
        return str((await ctx.elicit("Which ones?", list[Literal["red", "blue"]])).data)

    @server.tool
    async def elicits_url(ctx: Context) -> str:
        return (await ctx.elicit_url("Please sign in", "https://sign.in.test/")).action

    @server.tool
    async def samples(ctx: Context) -> str:
        result = await ctx.sample(
            "What is 2 + 2?",
            system_prompt="Be brief",
            temperature=0.5,
            model_preferences=["small", "fast"],
            stop_sequences=["."],
        )
        return result.text

    @server.tool
    async def samples_at_length(ctx: Context) -> str:
        several = [TextContent(text="this", meta=OWN, annotations=NOTES), TextContent(text="and that")]
        return (await ctx.sample([SamplingMessage("user", several, meta=OWN)])).text

    @server.tool
    async def samples_sound(ctx: Context) -> str:
        sound = AudioContent(data="aGk=", mime_type="audio/wav")
        return (await ctx.sample([SamplingMessage("user", sound)])).text

    @server.tool
    async def samples_with_tools(ctx: Context) -> str:
        tool = Tool(name="add", description="Add", input_schema={"type": "object"}, title="Add", icons=ICONS)
        return (await ctx.sample("2 + 2?", tools=[tool], tool_choice="auto")).text

    @server.tool
    async def looks_at_roots(ctx: Context) -> str:
        return ", ".join(root.uri for root in await ctx.list_roots())


def _resources(server: Server) -> None:
    described: dict[str, Any] = {"title": "Notes", "icons": ICONS, "annotations": NOTES, "meta": OWN}

    @server.resource("note://text", mime_type="text/plain", size=5, **described)
    def text() -> str:
        """A text."""
        return "hello"

    @server.resource("note://bytes", mime_type="image/png")
    def data() -> bytes:
        return PIXEL

    @server.resource("note://several")
    def several() -> list[Any]:
        return [
            TextResourceContents(uri="note://several/1", mime_type="text/plain", text="1", meta=OWN),
            BlobResourceContents(uri="note://several/2", blob=base64.b64encode(b"2").decode(), meta=OWN),
        ]

    @server.resource("note://refuses")
    def refusing() -> str:
        raise ToolError("Not today.")

    @server.resource("note://{day}/page", mime_type="application/json", **described)
    def page(day: str) -> dict[str, str]:
        """A page of one day."""
        return {"day": day}

    @server.completion("note://{day}/page", "day")
    def days(typed: str) -> list[str]:
        return [f"{typed}{n}" for n in range(150)]


def _prompts(server: Server) -> None:
    @server.prompt(title="Greeting", icons=ICONS, meta=OWN)
    def greeting(name: str, tone: Literal["warm", "cool"] = "warm") -> str:
        """Greet somebody."""
        return f"Greet {name}, {tone}"

    @server.prompt
    def conversation() -> list[Any]:
        link = ResourceLink(uri="note://text", name="text", title="A text", icons=ICONS, meta=OWN)
        return [
            PromptMessage("user", TextContent(text="hi", annotations=NOTES, meta=OWN)),
            PromptMessage("assistant", ImageContent(data="aGk=", mime_type="image/png", meta=OWN)),
            PromptMessage("user", AudioContent(data="aGk=", mime_type="audio/wav", meta=OWN)),
            PromptMessage("user", EmbeddedResource(resource=TextResourceContents(uri="note://1", text="t", meta=OWN))),
            PromptMessage("user", link),
        ]

    @server.prompt
    async def asking(ctx: Context) -> str:
        return (await ctx.elicit("Sure?", bool)).action

    @server.prompt
    def refusing() -> str:
        raise ToolError("Not today.")


# A client that keeps what it hears


@dataclass
class Peer:
    """A client's end of a stream, connected as a transport connects it. It answers what it is asked."""

    revision: str
    server: Server = field(default_factory=rich_server)
    frames: list[dict[str, Any]] = field(default_factory=list)
    asked: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.session = HandshakeSession(self.server)
        self.channel = Channel(self.server, self._hear, session=self.session)
        self.session.stream = self.channel
        self._last = 0

    async def __aenter__(self) -> "Peer":
        if self.revision in HANDSHAKE_VERSIONS:
            who = {"name": "eager", "version": "1"}
            opening = {"protocolVersion": self.revision, "capabilities": EVERYTHING, "clientInfo": who}
            await self.request("initialize", opening)
            self.send({"method": "notifications/initialized"})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.shutdown(0)
        self.session.close()

    def _hear(self, message: bytes) -> None:
        frame = json.loads(message, parse_constant=pytest.fail)
        self.frames.append(frame)
        self.heard.put_nowait(frame)

    def send(self, message: dict[str, Any]) -> None:
        reply = self.channel.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())
        if reply is not None:
            self._hear(reply)

    def meta(self, **more: Any) -> dict[str, Any]:
        modern = {PROTOCOL_VERSION_META_KEY: self.revision, CLIENT_CAPABILITIES_META_KEY: EVERYTHING}
        return {**(modern if self.revision not in HANDSHAKE_VERSIONS else {}), **more}

    def start(self, method: str, params: dict[str, Any] | None = None, meta: dict[str, Any] | None = None) -> int:
        self._last += 1
        self.asked[self._last] = method
        envelope = self.meta(**(meta or {}))
        params = {**(params or {}), "_meta": envelope} if envelope else params
        self.send({"id": self._last, "method": method} | ({"params": params} if params is not None else {}))
        return self._last

    async def request(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """The response, after everything the server asked on the way is answered."""
        id = self.start(method, params, meta)
        frame = await self.wait_for(lambda frame: frame.get("id") == id and "method" not in frame)
        result = frame.get("result", {})
        if result.get("resultType") == "input_required":
            answers = {key: reply_to(one) for key, one in result.get("inputRequests", {}).items()}
            again = {"inputResponses": answers, "requestState": result["requestState"]}
            return await self.request(method, {**(params or {}), **again}, **meta)
        return frame

    async def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                frame = await self.heard.get()
                if wanted(frame):
                    return frame
                if "method" in frame and "id" in frame:
                    self.send({"id": frame["id"], "result": reply_to(frame)})

    async def notice(self, method: str) -> dict[str, Any]:
        return await self.wait_for(lambda frame: frame.get("method") == method)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        return await self.request("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)


def reply_to(question: dict[str, Any]) -> dict[str, Any]:
    if question["method"] == "roots/list":
        return {"roots": [{"uri": "file:///home/user", "name": "home"}]}
    if question["method"] == "sampling/createMessage":
        message = {"type": "text", "text": "four"}
        return {"role": "assistant", "content": message, "model": "small", "stopReason": "endTurn"}
    response = question["params"].get("requestedSchema", {}).get("properties", {})
    return {"action": "accept", "content": {name: _fill(one) for name, one in response.items()}}


def _fill(asked: dict[str, Any]) -> Any:
    if asked["type"] == "array":
        return asked["items"]["enum"][:1]
    plain = {"string": "text", "integer": 1, "number": 1.5, "boolean": True}
    return asked["enum"][0] if "enum" in asked else plain[asked["type"]]


# The exchanges

Exchange = Callable[[Peer], Awaitable[Any]]
EXCHANGES: dict[str, tuple[Exchange, tuple[str, ...]]] = {}


def exchange(*revisions: str) -> Callable[[Exchange], Exchange]:
    def add(fn: Exchange) -> Exchange:
        EXCHANGES[fn.__name__] = (fn, revisions or SUPPORTED_PROTOCOL_VERSIONS)
        return fn

    return add


def _simple(name: str, method: str, params: dict[str, Any] | None = None, revisions: tuple[str, ...] = ()) -> None:
    async def asked(peer: Peer) -> None:
        await peer.request(method, params)

    EXCHANGES[name] = (asked, revisions or SUPPORTED_PROTOCOL_VERSIONS)


_simple("the_handshake", "ping", revisions=HANDSHAKE_VERSIONS)
_simple("set_level", "logging/setLevel", {"level": "warning"}, HANDSHAKE_VERSIONS)
_simple("subscribe", "resources/subscribe", {"uri": "note://text"}, HANDSHAKE_VERSIONS)
_simple("unsubscribe", "resources/unsubscribe", {"uri": "note://text"}, HANDSHAKE_VERSIONS)
_simple("discover", "server/discover", revisions=(V2026_07_28,))
_simple("tools", "tools/list")
_simple("resources", "resources/list")
_simple("templates", "resources/templates/list")
_simple("prompts", "prompts/list")
for _name in ("text", "bytes", "several", "missing", "refuses", "monday/page"):
    _simple(f"read_{_name}", "resources/read", {"uri": f"note://{_name}"})
_simple("get_greeting", "prompts/get", {"name": "greeting", "arguments": {"name": "Ada"}})
_simple("get_greeting_without_its_argument", "prompts/get", {"name": "greeting"})
for _name in ("conversation", "asking", "refusing", "unknown"):
    _simple(f"get_{_name}", "prompts/get", {"name": _name})
_simple(
    "complete_prompt",
    "completion/complete",
    {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "tone", "value": "w"}},
)
_simple(
    "complete_template",
    "completion/complete",
    {"ref": {"type": "ref/resource", "uri": "note://{day}/page"}, "argument": {"name": "day", "value": "m"}},
)
_simple("unknown_method", "nothing/here")
_simple("bad_cursor", "tools/list", {"cursor": "nonsense"})
for _name in (
    "plain",
    "a_point",
    "a_list",
    "a_number",
    "maybe",
    "chained",
    "chains",
    "a_dict",
    "blocks",
    "link",
    "media",
    "in_full",
    "refuses",
    "breaks",
    "elicits",
    "elicits_nothing",
    "elicits_one",
    "elicits_several",
    "elicits_url",
    "samples",
    "samples_at_length",
    "samples_sound",
    "samples_with_tools",
    "looks_at_roots",
    "unknown",
):
    _simple(f"call_{_name}", "tools/call", {"name": _name, "arguments": {}})
_simple("call_with_wrong_arguments", "tools/call", {"name": "plain", "arguments": {"times": "many"}})


@exchange()
async def pages_of_tools(peer: Peer) -> None:
    first = await peer.request("tools/list")
    await peer.request("tools/list", {"cursor": first["result"]["nextCursor"]})


@exchange()
async def progress_and_log(peer: Peer) -> None:
    if peer.revision in HANDSHAKE_VERSIONS:
        await peer.request("logging/setLevel", {"level": "debug"})
        await peer.call("reports", progressToken="p-1")
    else:
        await peer.call("reports", progressToken=7, **{LOG_LEVEL_META_KEY: "debug"})
    messages = [frame["method"] for frame in peer.frames if "method" in frame]
    assert messages == ["notifications/progress"] * 2 + ["notifications/message"] * 3


@exchange(*HANDSHAKE_VERSIONS)
async def changes(peer: Peer) -> None:
    await peer.request("resources/subscribe", {"uri": "note://text"})
    peer.server.notify_resource_updated("note://text")
    await peer.notice("notifications/resources/updated")
    for method in _change_everything(peer.server):
        await peer.notice(method)


@exchange(V2026_07_28)
async def changes_to_a_listener(peer: Peer) -> None:
    expected = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["note://text"],
    }
    id = peer.start("subscriptions/listen", {"notifications": expected})
    first = await peer.wait_for(lambda frame: True)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    peer.server.notify_resource_updated("note://text")
    await peer.notice("notifications/resources/updated")
    for method in _change_everything(peer.server):
        await peer.notice(method)
    # 2026-07-28, basic/patterns/subscriptions: each event carries the id of its listen request, in the same type.
    assert all(frame["params"]["_meta"][SUBSCRIPTION_ID_META_KEY] == id for frame in peer.frames)
    await peer.channel.shutdown(TIMEOUT_SECONDS)
    assert [frame.get("method", frame.get("id")) for frame in peer.frames[-2:]] == [id, "notifications/cancelled"]


def _change_everything(server: Server) -> Iterator[str]:
    def newcomer() -> str:
        return "new"

    server.add(newcomer)
    yield "notifications/tools/list_changed"
    server.remove("note://bytes")
    yield "notifications/resources/list_changed"
    server.remove("greeting")
    yield "notifications/prompts/list_changed"


@exchange(V2025_11_25)
async def what_cannot_be_read(peer: Peer) -> None:
    """From 2025-11-25 on an error may leave its id out; before, the schema and JSON-RPC contradict each other."""
    reply = peer.channel.receive(b"{")
    assert reply is not None
    peer._hear(reply)


CASES = [(name, revision) for name, (_, revisions) in EXCHANGES.items() for revision in revisions]


@pytest.mark.requirement("schema.frames")
@pytest.mark.parametrize("name,revision", CASES)
async def test_server_frames_match_the_schema_of_the_protocol_version(name: str, revision: str) -> None:
    run, _ = EXCHANGES[name]
    async with Peer(revision) as peer:
        await run(peer)
    assert peer.frames
    results = [
        complaint
        for frame in peer.frames
        for complaint in complaints(frame, revision, peer.asked.get(frame.get("id"), ""))
    ]
    assert not results


@pytest.mark.requirement("modern.server-info", "modern.result-type", "modern.no-server-requests", "caching.hints")
@pytest.mark.parametrize("name,revision", [case for case in CASES if case[1] == V2026_07_28])
async def test_results_of_2026_07_28_have_result_type_server_info_and_cache_hints(name: str, revision: str) -> None:
    """2026-07-28, basic: `resultType` MUST, `serverInfo` SHOULD, server/utilities/caching: the hints MUST; and
    basic/lifecycle: a server MUST NOT send requests."""
    run, _ = EXCHANGES[name]
    async with Peer(revision) as peer:
        await run(peer)
    for frame in peer.frames:
        assert not ("method" in frame and "id" in frame)
        if "result" not in frame:
            continue
        result, method = frame["result"], peer.asked[frame["id"]]
        assert result["resultType"] in ("complete", "input_required")
        hinted = method in CACHEABLE and result["resultType"] == "complete"
        assert ("ttlMs" in result, "cacheScope" in result) == (hinted, hinted)
        if method != "subscriptions/listen":
            assert result["_meta"][SERVER_INFO_META_KEY]["name"] == "rich"


@pytest.mark.requirement("schema.frames")
@pytest.mark.parametrize("name,revision", [case for case in CASES if case[1] != V2026_07_28])
async def test_handshake_versions_receive_no_2026_07_28_members(name: str, revision: str) -> None:
    run, _ = EXCHANGES[name]
    async with Peer(revision) as peer:
        await run(peer)
    for frame in peer.frames:
        assert frame.get("result", {}).keys().isdisjoint({"resultType", "ttlMs", "cacheScope", "inputRequests"})
        assert "io.modelcontextprotocol/" not in json.dumps(frame)
        assert frame.get("error", {}).get("code") not in (-32020, -32021, -32022)


@pytest.mark.requirement("ping.empty")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_empty_results_are_empty_objects_for_the_handshake_revisions(revision: str) -> None:
    """EmptyResult of 2024-11-05 to 2025-11-25; strict peers close it."""
    async with Peer(revision) as peer:
        for method, params in [
            ("ping", None),
            ("logging/setLevel", {"level": "info"}),
            ("resources/subscribe", {"uri": "note://text"}),
            ("resources/unsubscribe", {"uri": "note://text"}),
        ]:
            assert (await peer.request(method, params))["result"] == {}


@pytest.mark.requirement("tools.output-conforms")
@pytest.mark.parametrize("revision", [V2025_06_18, V2025_11_25, V2026_07_28])
@pytest.mark.parametrize(
    "tool,arguments",
    [
        ("plain", {}),
        ("a_point", {}),
        ("a_list", {}),
        ("a_number", {}),
        ("maybe", {"there": True}),
        ("maybe", {"there": False}),
        ("chained", {}),
        ("chains", {}),
        ("a_dict", {}),
    ],
)
async def test_structured_content_conforms_to_the_output_schema_that_was_listed(
    tool: str, arguments: dict[str, Any], revision: str
) -> None:
    """server/tools, Output Schema (2025-06-18 on): servers MUST provide structured results that conform to it."""
    async with Peer(revision) as peer:
        listed = await _all_tools(peer)
        result = (await peer.call(tool, arguments))["result"]
    schema = listed[tool].get("outputSchema")
    assert (schema is not None) == ("structuredContent" in result)
    if schema is not None:
        assert revision == V2026_07_28 or (schema["type"] == "object" and type(result["structuredContent"]) is dict)
        assert list(jsonschema_rs.Draft202012Validator(schema).iter_errors(result["structuredContent"])) == []


@pytest.mark.requirement("tools.structured-since")
@pytest.mark.parametrize("revision", [V2024_11_05, V2025_03_26])
async def test_before_2025_06_18_there_is_neither_structured_content_nor_a_schema_for_it(revision: str) -> None:
    async with Peer(revision) as peer:
        listed = await _all_tools(peer)
        for tool in ("a_point", "a_list", "a_number", "in_full"):
            assert "outputSchema" not in listed[tool]
            result = (await peer.call(tool))["result"]
            assert "structuredContent" not in result
            # What the structured channel would carry is in the text.
            assert result["content"][0]["type"] == "text"


async def _all_tools(peer: Peer) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    cursor: dict[str, Any] = {}
    while True:
        result = (await peer.request("tools/list", cursor))["result"]
        results |= {tool["name"]: tool for tool in result["tools"]}
        if "nextCursor" not in result:
            return results
        cursor = {"cursor": result["nextCursor"]}


@pytest.mark.requirement("content.audio-since")
@pytest.mark.parametrize(
    "revision,kinds",
    [
        (V2024_11_05, ["text", "image", "text", "resource", "resource"]),
        (V2025_03_26, ["text", "image", "audio", "resource", "resource"]),
        (V2026_07_28, ["text", "image", "audio", "resource", "resource"]),
    ],
)
async def test_audio_is_reported_in_words_to_2024_11_05(revision: str, kinds: list[str]) -> None:
    """`AudioContent` came with 2025-03-26."""
    async with Peer(revision) as peer:
        content = (await peer.call("blocks"))["result"]["content"]
    assert [block["type"] for block in content] == kinds


@pytest.mark.requirement("tools.structured-since", "content.link-since")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_resource_link_becomes_text_before_2025_06_18(revision: str) -> None:
    """`ResourceLink` came with 2025-06-18, its icons with 2025-11-25."""
    async with Peer(revision) as peer:
        (block,) = (await peer.call("link"))["result"]["content"]
    if revision < V2025_06_18:
        assert block["type"] == "text"
        assert "note://1" in block["text"]
    else:
        assert (block["type"], block["uri"]) == ("resource_link", "note://1")
    assert ("icons" in block) == (revision >= V2025_11_25)


@pytest.mark.requirement("elicitation.since", "tools.structured-since")
@pytest.mark.parametrize("revision", [V2024_11_05, V2025_03_26])
@pytest.mark.parametrize("tool", ["elicits", "elicits_nothing", "elicits_one", "elicits_url"])
async def test_server_does_not_elicit_before_2025_06_18(tool: str, revision: str) -> None:
    async with Peer(revision) as peer:
        assert (await peer.call(tool))["result"]["isError"] is True
    assert not [frame for frame in peer.frames if frame.get("method") == "elicitation/create"]


@pytest.mark.requirement("mrtr.state-continues")
@pytest.mark.parametrize("tool", ["elicits", "samples", "looks_at_roots"])
@pytest.mark.parametrize("revision", [V2025_06_18, V2025_11_25, V2026_07_28])
async def test_elicitation_in_a_function_receives_its_response(tool: str, revision: str) -> None:
    async with Peer(revision) as peer:
        result = (await peer.call(tool))["result"]
    assert result["content"][0]["text"] in ("accept", "four", "file:///home/user")


@pytest.mark.requirement("logging.per-request")
async def test_logs_are_not_sent_uninvited_on_2026_07_28() -> None:
    """2026-07-28, server/utilities/logging: no `logLevel`, no log notifications."""
    async with Peer(V2026_07_28) as peer:
        await peer.call("reports")
    assert [frame for frame in peer.frames if "method" in frame] == []


@pytest.mark.requirement("schema.frames")
def test_schema_checker_finds_unknown_members() -> None:
    """A member that a revision does not know is found, wherever it stands, and one that it knows is not."""
    tool = {"name": "t", "title": "T", "icons": [], "inputSchema": {"type": "object", "additionalProperties": False}}
    frame = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [tool], "ttlMs": 0}}
    results = {revision: complaints(frame, revision, "tools/list") for revision in HANDSHAKE_VERSIONS}
    assert results[V2024_11_05] == ["$.result.tools[0].title", "$.result.tools[0].icons", "$.result.ttlMs"]
    assert results[V2025_06_18] == ["$.result.tools[0].icons", "$.result.ttlMs"]
    assert results[V2025_11_25] == ["$.result.ttlMs"]
    assert complaints(frame, V2026_07_28, "tools/list")  # resultType and cacheScope are missing
    bad: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "hologram"}]}}
    assert complaints(bad, V2025_11_25, "tools/call")
    assert msgspec.json.decode(msgspec.json.encode(bad)) == bad
