"""Tools called by scripts are subject to policy, limits and audit; hostile tool definitions."""

from __future__ import annotations

import ast
import asyncio
from argparse import Namespace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import Client, Middleware, Server, ToolError
from portico.auth import Principal
from portico.cli.tool_search import mount_tool_search
from portico.extend import Call, principal_id
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.search import ToolSearchServer, searchable_tools
from portico.search.auto_search import AutoToolSearch
from portico.server.policy import settings as access_settings
from portico.server.server import ToolSearchConfig
from portico.types import ClientCapabilities, ToolAnnotations
from portico_gateway import Gateway
from portico_services.codemode import CodeModeServer, process_lease, stubs
from portico_services.codemode.journal import RunJournal, RunStore, digest
from portico_services.codemode.service import ANONYMOUS_OWNER
from portico_services.codemode.tool_catalog import ScriptTool, ToolCatalog
from support.script_tools import READS, jail_only, run

ANN, EVE = Principal("ann", groups=frozenset({"ops"})), Principal("eve")
ELICITS = ClientCapabilities(elicitation={})
CODE = "from tools import price\nawait price('abc')"


@pytest.fixture
def server() -> Server:
    server = Server("shop", version="1")

    @server.tool(annotations=READS)
    def price(item: str) -> int:
        """Return the price of an item."""
        return len(item)

    @server.tool(annotations=READS)
    def secret() -> str:
        """Not for everybody."""
        return "hidden"

    return server


class Noting:
    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []

    def on_request(self, passage: Any) -> None: ...
    def on_rejected(self, *_: Any) -> None: ...
    def on_response(self, passage: Any, result: Any, failure: Any) -> None:
        if passage.component is not None:
            self.noted.append(tuple(passage.component))


async def names(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools(refresh=True)]


@jail_only
async def test_code_mode_calls_are_audited_with_server_and_tool_names(server: Server) -> None:
    witness = Noting()
    server.set_policy(audit_hook=witness)
    async with Client(CodeModeServer(server), principal=ANN) as client:
        await client.call_tool("find_tools", {"queries": "price"})
        await run(client, CODE, save="prices")
        await client.call_tool("prices", {})
    assert witness.noted == [
        ("tool_search", "find_tools"),
        ("shop", "price"),
        ("code", "run"),
        ("shop", "price"),
        ("code", "run_saved"),
    ]


@jail_only
async def test_calls_of_a_script_are_attributed_to_their_own_run(server: Server) -> None:
    """The jail of the second run was made during the first, in what was around that one."""
    above: list[tuple[Any, Any]] = []

    class Placing(Noting):
        def on_response(self, passage: Any, result: Any, failure: Any) -> None:
            if passage.component == ("shop", "price"):
                above.append((passage.call.principal.id, passage.parent.call.principal.id))

    server.set_policy(audit_hook=Placing())
    face = CodeModeServer(server)
    async with server.lifespan(), face.own_tools.lifespan():
        for who in (ANN, EVE, ANN):
            params = Raw(msgspec.json.encode({"name": "run", "arguments": {"code": CODE}}))
            await face(Call(method="tools/call", id=1, params=params, principal=who))
    assert above == [("ann", "ann"), ("eve", "eve"), ("ann", "ann")]


class Naming(Middleware):
    def __init__(self) -> None:
        self.named: list[str] = []

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        self.named.append(context.name)
        return await call_next(context)

    async def on_list_tools(self, context: Any, call_next: Any) -> Any:
        listed = await call_next(context)
        return msgspec.structs.replace(listed, tools=[tool for tool in listed.tools if tool.name != "secret"])


@jail_only
@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_middleware_wraps_code_mode_tools_and_script_calls(server: Server, revision: Any) -> None:
    naming, methods = Naming(), []

    def note(handler: Any) -> Any:
        async def handle(call: Call) -> Any:
            methods.append(call.method)
            return await handler(call)

        return handle

    server.add_middleware(naming)
    server.add_middleware(note)
    async with Client(CodeModeServer(server), principal=ANN, protocol_version=revision) as client:
        assert await names(client) == ["find_tools", "run", "describe_tools"]
        await client.call_tool("find_tools", {"queries": "price"})
        assert (await run(client, CODE, save="prices")).structured["value"] == 3
        await client.call_tool("prices", {})
        hidden = await run(client, "from tools import secret")
    assert naming.named == ["find_tools", "run", "price", "run_saved", "price", "run"]
    assert "has no 'secret'" in hidden.text
    assert {"tools/call", "tools/list"} <= set(methods)
    async with Client(ToolSearchServer(server), principal=ANN, protocol_version=revision) as client:
        del naming.named[:]
        await client.call_tool("call_tool", {"name": "price", "arguments": {"item": "abc"}})
        await client.call_tool("call_tool", {"nam": "price"}, raise_on_error=False)
    assert naming.named == ["price", "call_tool"]


@jail_only
async def test_middleware_that_rejects_rejects_scripts(server: Server) -> None:
    def closed(handler: Any) -> Any:
        async def handle(call: Call) -> Any:
            if call.method == "tools/call":
                raise ToolError("closed")
            return await handler(call)

        return handle

    server.add_middleware(closed)
    async with Client(CodeModeServer(server), principal=ANN) as client:
        for tool, arguments in (("run", {"code": "1"}), ("find_tools", {"queries": "price"}), ("price", {"item": "a"})):
            with pytest.raises(ToolError, match="closed"):
                await client.call_tool(tool, arguments)


@jail_only
@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_access_rules_apply_to_scripts_and_hide_denied_tools(server: Server, revision: Any) -> None:
    rules = [{"principal": "group:ops", "tool": "code.*"}, {"tool": "shop.price"}]
    access_settings.apply(server, access_settings.read({"rule": rules}))
    face = CodeModeServer(server)
    async with Client(face, principal=ANN, protocol_version=revision) as ann:
        assert await names(ann) == ["find_tools", "run", "describe_tools"]
        assert (await run(ann, CODE, save="prices")).structured["value"] == 3
    async with Client(face, principal=EVE, protocol_version=revision) as eve:
        assert await names(eve) == ["find_tools"]
        assert "price(" in (await eve.call_tool("find_tools", {"queries": "what something costs"})).text
        for tool, arguments in (("run", {"code": "1"}), ("run_saved", {"name": "x"}), ("prices", {})):
            with pytest.raises(Exception, match=f"(?i)unknown tool: {tool}|no tool"):
                await eve.call_tool(tool, arguments)
        assert (await eve.call_tool("price", {"item": "ab"})).structured in (2, {"result": 2})


@jail_only
async def test_limits_count_runs_and_searches(server: Server) -> None:
    limits = [{"rate": "1/hour", "tool": "code.run"}, {"rate": "1/hour", "tool": "tool_search.find_tools"}]
    access_settings.apply(server, access_settings.read({"limit": limits}))
    async with Client(CodeModeServer(server), principal=ANN) as client:
        for tool, arguments in (("run", {"code": CODE}), ("find_tools", {"queries": "price"})):
            await client.call_tool(tool, arguments)
            with pytest.raises(Exception, match="Too many"):
                await client.call_tool(tool, arguments)


@jail_only
@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_confirmation_rule_elicits_before_the_script_runs(server: Server, revision: Any) -> None:
    @server.tool
    def order(item: str) -> str:
        return f"ordered {item}"

    said = {"rule": [{"tool": "*"}], "require": [{"tool": "code.run", "confirm": "Run this?"}]}
    access_settings.apply(server, access_settings.read(said))
    requests: list[str] = []

    async def answer(message: Any, *_: Any, **__: Any) -> Any:
        requests.append(getattr(message, "message", str(message)))
        return {}

    async with Client(
        CodeModeServer(server), principal=ANN, protocol_version=revision, elicitation_handler=answer
    ) as client:
        done = await run(client, "from tools import order\nawait order('pen')")
    assert done.structured["value"] == "ordered pen"
    assert [one.partition("\n")[0] for one in requests] == [
        "Run this?",
        "A script is about to call tools that may change data:",
    ]


# Saved scripts


@jail_only
async def test_script_with_the_name_of_a_hidden_tool_is_called_as_it_is_listed(server: Server) -> None:
    access_settings.apply(
        server, access_settings.read({"rule": [{"principal": "group:ops", "tool": "*"}, {"tool": "code.*"}]})
    )
    async with Client(CodeModeServer(server), principal=EVE) as eve:
        assert not (await run(eve, "'mine'", save="secret")).is_error
        assert "secret" in await names(eve)
        assert (await eve.call_tool("secret", {})).structured["value"] == "mine"


@jail_only
async def test_later_tool_keeps_its_listed_name(server: Server) -> None:
    async with Client(CodeModeServer(server, pinned_tools=["late"]), principal=ANN) as ann:
        await run(ann, "'mine'", save="late")

        @server.tool(annotations=READS)
        def late() -> str:
            return "the tool's"

        assert (await names(ann)).count("late") == 1
        assert (await ann.call_tool("late", {})).text == "the tool's"


@jail_only
async def test_saving_a_script_publishes_list_changed(server: Server) -> None:
    face = CodeModeServer(server)
    notifications: list[str] = []
    publish = server.subscriptions.publish
    server.subscriptions.publish = lambda method, *more: (notifications.append(method), publish(method, *more))[1]  # type: ignore
    async with Client(face, principal=ANN) as ann:
        notifications.clear()
        await run(ann, "1", save="one")
    assert "notifications/tools/list_changed" in notifications


@jail_only
async def test_anonymous_http_callers_do_not_share_the_local_users_scripts(server: Server) -> None:
    face = CodeModeServer(server)
    async with Client(face) as person:
        await run(person, "'mine'", save="mine")
        assert "mine" in await names(person)
        listed = await face(Call(method="tools/list", id=1, address="127.0.0.1"))
        assert b'"mine"' not in bytes(listed) and b'"run"' in bytes(listed)


# Tools that scripts cannot call, and those that look as if


@jail_only
async def test_upstream_may_be_called_code(server: Server) -> None:
    inner = Server("inner", version="1")

    @inner.tool(annotations=READS)
    def review() -> str:
        return "fine"

    server.mount(inner, namespace="code")
    async with Client(CodeModeServer(server), principal=ANN) as client:
        assert (await run(client, "from tools import code\nawait code.review()")).structured["value"] == "fine"


QUOTE = '"'
HOSTILE: list[dict[str, Any]] = [
    {"description": f"Says {QUOTE}hello{QUOTE}"},
    {"description": f"Says {QUOTE * 2}"},
    {"inputSchema": {"properties": {"x\nimport os  #": {"type": "string", "description": "d"}}}},
    {"inputSchema": {"properties": {"x\r\fimport os": {"type": "string"}, "y": {"description": "a\u2028b"}}}},
    {"inputSchema": {"required": [{}, 5], "properties": {"a": {}}}},
    {"outputSchema": {"properties": {"z": {"title": "X): pass\nimport os\nclass Y(", "properties": {"q": {}}}}}},
]


@pytest.mark.parametrize("said", HOSTILE)
def test_stub_is_python_and_nothing_but_a_stub(said: dict[str, Any]) -> None:
    tool = ScriptTool(name="evil", annotations=ToolAnnotations(read_only_hint=True), **said)
    table = ToolCatalog([tool], lambda name: ("", name), "")
    assert bytes(table.to_json)
    for item in ast.parse(stubs.render_stubs([tool])).body:
        assert isinstance(item, ast.AsyncFunctionDef | ast.ClassDef | ast.Assign), ast.dump(item)


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(300):
    DEEP = {"type": "object", "properties": {"x": DEEP}}
LISTED: list[Any] = [
    {"name": "good", "description": None, "inputSchema": {"type": "object"}, "annotations": READS},
    {"name": 7},
    None,
    {"name": "bare", "inputSchema": True},
    {"name": "odd", "inputSchema": {"type": 5, "properties": "x", "required": {"a": 1}}},
    {"name": "hint", "inputSchema": {}, "annotations": {"readOnlyHint": "yes"}},
    {"name": "deep", "inputSchema": DEEP},
]


async def listing(call: Call) -> Any:
    if call.method == "tools/list":
        page = {"tools": LISTED, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return Raw(msgspec.json.encode(page))
    if call.method == "server/discover":
        able = ServerCapabilities(tools={})
        return DiscoverResult(supported_versions=["2026-07-28"], capabilities=able, ttl_ms=0, cache_scope="private")
    return Raw(b'{"content":[{"type":"text","text":"dug"}],"resultType":"complete"}')


@jail_only
async def test_one_invalid_tool_does_not_affect_the_others() -> None:
    async with Client(CodeModeServer(listing)) as client:
        assert (await run(client, "from tools import good\nawait good()")).structured["value"] == "dug"
        assert "async def good(" in (await client.call_tool("describe_tools", {"tools": ["good", "odd", "deep"]})).text


# Several processes, and much that changes at once


async def test_process_without_cached_list_answers_equally() -> None:
    server = Server("many", version="1")
    for n in range(50):
        server.tool(name=f"tool_{n}", annotations=READS)(lambda: "answer")
    async with server.lifespan():
        params = Raw(b'{"name":"call_tool","arguments":{"name":"tool_7"}}')
        result = await AutoToolSearch(ToolSearchServer(server))(Call(method="tools/call", id=1, params=params))
        assert "answer" in str(result)
    few = Server("few", version="1")
    async with Client(AutoToolSearch(ToolSearchServer(few))) as client:
        with pytest.raises(Exception, match="find_tools"):
            await client.call_tool("find_tools", {"queries": "x"})


async def test_cache_reset_during_a_search_does_not_reveal_hidden_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The places of the tools change when all is forgotten; a search that waited for its index looks again."""
    server = Server("changing", version="1")
    for n in range(20):
        server.tool(name=f"dig_{n}", annotations=READS)(lambda: "dug")
    access_settings.apply(
        server, access_settings.read({"rule": [{"principal": "group:ops", "tool": "*"}, {"tool": "*.dig_19"}]})
    )
    face = ToolSearchServer(server)
    monkeypatch.setattr(searchable_tools, "SMALL_CATALOG_SIZE", 0)
    indexed, release = asyncio.Event(), asyncio.Event()
    to_thread = asyncio.to_thread

    async def slowly(*given: Any) -> Any:
        made = await to_thread(*given)
        indexed.set()
        await release.wait()
        return made

    monkeypatch.setattr(asyncio, "to_thread", slowly)
    async with asyncio.timeout(10), Client(face, principal=EVE) as eve, asyncio.TaskGroup() as group:
        asking = group.create_task(eve.call_tool("find_tools", {"queries": "dig", "limit": 25}))
        await indexed.wait()
        face.visible_tools._forget()
        await face.visible_tools.view(Call(method="tools/list", id=1, principal=ANN))
        release.set()
        text = (await asking).text
    assert "dig_19" in text and "dig_0" not in text


async def test_error_of_a_search_is_a_sentence() -> None:
    async with Client(ToolSearchServer(Server("few", version="1"))) as client:
        for queries in ("", "\x00", "\u202e" * 2000, ["*"] * 10, "(" * 2000, [""]):
            await client.call_tool("find_tools", {"queries": queries})
        with pytest.raises(ToolError, match="must contain 1 to 10 items"):
            await client.call_tool("find_tools", {"queries": []})


async def test_pinned_tools_ignore_duplicates_and_unknown_names(server: Server) -> None:
    async with Client(ToolSearchServer(server, pinned_tools=["price", "nowhere", "price", "find_tools"])) as client:
        assert await names(client) == ["find_tools", "call_tool", "price"]
        with pytest.raises(ToolError, match="find_tools is listed directly"):
            await client.call_tool("call_tool", {"name": "find_tools", "arguments": {"queries": "x"}})


@jail_only
async def test_empty_object_is_an_argument(server: Server) -> None:
    @server.tool(annotations=READS)
    def count(things: dict[str, int]) -> int:
        return len(things)

    code = (
        "from tools import count\n[await count({}), await count({'a': 1}), await count({'things': {'a': 1, 'b': 2}})]"
    )
    async with Client(CodeModeServer(server)) as client:
        assert (await run(client, code)).structured["value"] == [0, 1, 2]


def test_faces_are_below_the_path_of_their_server(server: Server) -> None:
    for path, found in (("/mcp", "/mcp/search"), ("/api/mcp/", "/api/mcp/search"), ("/", "/search")):
        other = Server("other", version="1")
        mount_tool_search(
            other,
            Namespace(transport="http", path=path, face=None, view=None, store=None, data=None),
            ToolSearchConfig(),
        )
        assert found in other.endpoints


# Faces of views


@pytest.fixture
def gateway(server: Server) -> Gateway:
    other = Server("other")

    @other.tool
    async def wipe() -> str:
        """Remove everything."""
        return "gone"

    result = Gateway({"shop": server, "other": other}, name="acme", max_result_tokens=0)
    result.add_view("ops", upstreams=["shop"])
    return result


@jail_only
@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_code_mode_over_a_view_finds_and_runs_only_its_tools(gateway: Gateway, revision: Any) -> None:
    witness = Noting()
    gateway.set_policy(audit_hook=witness)
    rules = [{"principal": "group:ops", "tool": "code.*"}, {"tool": "shop.price"}, {"tool": "other.*"}]
    access_settings.apply(gateway, access_settings.read({"rule": rules}))
    mount_tool_search(
        gateway,
        Namespace(transport="http", path="/mcp", face=None, view=None, store=None, data=None),
        ToolSearchConfig(),
    )
    search, code = (gateway.endpoints[f"/mcp/ops/{name}"] for name in ("search", "code"))
    async with gateway.lifespan():
        async with Client(search, principal=ANN, protocol_version=revision) as ann:
            result = (await ann.call_tool("find_tools", {"queries": ["remove everything", "what it costs"]})).text
            assert "shop_price(" in result and "wipe" not in result and "secret" not in result
            with pytest.raises(ToolError, match="Unknown tool 'other_wipe'"):
                await ann.call_tool("call_tool", {"name": "other_wipe", "arguments": {}})
        async with Client(code, principal=ANN, protocol_version=revision) as ann:
            assert await names(ann) == ["find_tools", "run", "describe_tools"]
            assert (await run(ann, "from tools import shop\nawait shop.price('abc')")).text == "3"
            assert "other" in (await run(ann, "from tools import other")).text
            assert "has no 'shop_secret'" in (await run(ann, "from tools import shop_secret")).text
        async with Client(code, principal=EVE, protocol_version=revision) as eve:
            assert await names(eve) == ["find_tools"]
    assert ("code", "run") in witness.noted and ("shop", "price") in witness.noted


@jail_only
async def test_run_cannot_be_resumed_in_another_view(gateway: Gateway, tmp_path: Path) -> None:
    gateway.add_view("rest", upstreams=["other"])
    store = str(tmp_path / "runs.db")
    rest, ops = (CodeModeServer(gateway.views[name], store=store) for name in ("rest", "ops"))
    values = {"name": "run", "arguments": {"code": "from tools import other_wipe\nawait other_wipe()"}}

    async def ask(face: CodeModeServer, **more: Any) -> Any:
        params = Raw(msgspec.json.encode({**values, **more}))
        return await face(Call(method="tools/call", id=1, params=params, principal=ANN, capabilities=ELICITS))

    async with gateway.lifespan(), rest.own_tools.lifespan(), ops.own_tools.lifespan():
        response = await ask(rest)
        answers = {key: {"action": "accept", "content": {}} for key in response.input_requests}
        carried = {"inputResponses": answers, "requestState": response.request_state}
        with pytest.raises(ToolError, match="journal has expired"):
            await ask(ops, **carried)
        response = await ask(rest)
        carried["requestState"] = response.request_state
        done = await ask(rest, **carried)
        assert msgspec.json.decode(done.structured_content)["value"] == "gone"


@jail_only
@pytest.mark.parametrize(
    ("owner", "about"), [("ann", {"principal": ANN}), (ANONYMOUS_OWNER, {"address": "203.0.113.9"})]
)
async def test_interrupted_run_is_resumed_only_for_an_identified_caller(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, about: dict[str, Any]
) -> None:
    """Whoever has not logged in cannot be told from another: the second would get what the first has done."""
    store = RunStore(str(tmp_path / "runs.db"))
    with monkeypatch.context() as patched:
        patched.setattr(process_lease, "current_holder", lambda: f"{process_lease._boot_id()} 1 never")
        journal = RunJournal(store, principal_id(about.get("principal")) or owner, digest(CODE, None))
        journal.record(1, "price", sha256(b'{"item":"abc"}').hexdigest(), 1.0, '{"value":"of another"}')
        await journal.save()
        await journal.pause()
    await store.close()
    face = CodeModeServer(server, store=store.url)
    params = Raw(msgspec.json.encode({"name": "run", "arguments": {"code": CODE}}))
    async with server.lifespan(), face.own_tools.lifespan():
        result = await face(Call(method="tools/call", id=1, params=params, **about))
    data = msgspec.json.decode(result.structured_content)
    assert (data["value"], data.get("resumed")) == ((3, None) if owner == ANONYMOUS_OWNER else ("of another", True))
