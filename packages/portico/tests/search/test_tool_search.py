"""Tool search: two tools instead of all, under the same policy and names."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico import Client, Context, Server, ToolError
from portico.auth.principal import Principal
from portico.extend import Handler, serve_http
from portico.protocol.client_features import ElicitResult
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.search import searchable_tools
from portico.search.auto_search import AutoToolSearch
from portico.search.tool_search import ToolSearchServer
from portico.server.policy import settings as access_settings
from portico_gateway import Gateway

GUEST, OPS = Principal("gina"), Principal("olga", groups=frozenset({"ops"}))


def forge() -> Server:
    server = Server("forge", instructions="A forge.")

    @server.tool
    async def create_issue(repo: str, title: str, labels: list[str] | None = None) -> dict[str, str]:
        """Open an issue in a repository."""
        return {"url": f"{repo}/{title}"}

    @server.tool
    def deleteRepository(repo: str) -> str:
        """Remove a repository for good."""
        return f"deleted {repo}"

    @server.tool
    async def import_history(ctx: Context, repo: str) -> str:
        """Bring in commits from elsewhere."""
        await ctx.report_progress(1, 2, "half")
        result = await ctx.elicit(f"Really {repo}?", bool)
        return f"{result.action} {result.data}"

    @server.tool
    async def wait_for_build(ctx: Context) -> str:
        """Wait until a build is over."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    return server


started, stopped = asyncio.Event(), asyncio.Event()


def weather() -> Server:
    server = Server("weather")

    @server.tool
    async def forecast(city: str, days: int = 3) -> str:
        """Forecast the weather of a city."""
        return f"{city} {days}"

    return server


def gateway() -> Gateway:
    return Gateway({"forge": forge(), "weather": weather()}, max_result_tokens=0)


async def names(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools()]


async def found(client: Client, queries: Any, **more: Any) -> str:
    return (await client.call_tool("find_tools", {"queries": queries, **more})).text


async def yes(*_: Any) -> dict[str, Any]:
    return {"value": True}


@pytest.fixture(params=[forge, gateway], ids=["server", "gateway"])
def server(request: pytest.FixtureRequest) -> Server:
    made: Server = request.param()
    return made


def prefix(server: Server) -> str:
    return "forge_" if isinstance(server, Gateway) else ""


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tools_are_found_and_called_at_every_revision(server: Server, revision: Any) -> None:
    start = prefix(server)
    async with Client(ToolSearchServer(server), protocol_version=revision, elicitation_handler=yes) as client:
        assert await names(client) == ["find_tools", "call_tool"]
        line = f"{start}create_issue(repo: str, title: str, labels: list[str] | None = None) -> dict[str, str]"
        assert line in await found(client, "open an issue")
        result = await client.call_tool(
            "call_tool", {"name": f"{start}create_issue", "arguments": {"repo": "a", "title": "b"}}
        )
        assert result.text == '{"url":"a/b"}'
        if revision >= "2025-06-18":
            progress: list[float] = []
            result = await client.call_tool(
                "call_tool",
                {"name": f"{start}import_history", "arguments": {"repo": "a"}},
                progress_handler=lambda item, *_: progress.append(item),
            )
            assert (result.text, progress[:1]) == ("accept True", [1])


async def test_search_tools_have_no_output_schema(server: Server) -> None:
    async with Client(ToolSearchServer(server)) as client:
        assert [tool.output_schema for tool in await client.list_tools()] == [None, None]


async def test_hidden_tools_are_indistinguishable_from_missing_ones(server: Server) -> None:
    rules = [{"principal": "group:ops", "tool": "*"}, {"tool": "*.create_*"}, {"tool": "*.forecast"}]
    access_settings.apply(server, access_settings.read({"rule": rules}))
    start, face = prefix(server), ToolSearchServer(server, pinned_tools=[f"{prefix(server)}deleteRepository"])
    async with Client(face, principal=OPS) as client:
        assert await names(client) == ["find_tools", "call_tool", f"{start}deleteRepository"]
        assert "deleteRepository(" in await found(client, "remove a repository")
    async with Client(face, principal=GUEST) as client:
        assert await names(client) == ["find_tools", "call_tool"]
        for detail in ("signature", "schema"):
            result = await found(client, ["remove a repository", "delete repository for good"], detail=detail, limit=25)
            assert "deleteRepository" not in result and "create_issue" in result
        refusals = []
        for name in ("deleteRepository", "deleteRepositorz"):
            with pytest.raises(ToolError) as refused:
                await client.call_tool("call_tool", {"name": f"{start}{name}", "arguments": {"repo": "a"}})
            refusals.append(str(refused.value).replace(name, ""))
        assert refusals[0] == refusals[1]


async def test_limits_count_under_the_real_name(server: Server) -> None:
    access_settings.apply(server, access_settings.read({"limit": [{"rate": "1/hour", "tool": "forge.create_issue"}]}))
    call = {"name": f"{prefix(server)}create_issue", "arguments": {"repo": "a", "title": "b"}}
    async with Client(ToolSearchServer(server), principal=GUEST) as client:
        await client.call_tool("call_tool", call)
        with pytest.raises(Exception, match="Too many"):
            await client.call_tool("call_tool", call)


async def test_audit_has_the_real_name_and_arguments(server: Server) -> None:
    noted: list[Any] = []

    class Noting:
        def on_request(self, passage: Any) -> None: ...
        def on_rejected(self, *_: Any) -> None: ...
        def on_response(self, passage: Any, result: Any, failure: Any) -> None:
            if passage.call.method == "tools/call":
                noted.append((tuple(passage.component), bytes(passage.call.decode_params().arguments)))

    server.set_policy(audit_hook=Noting())
    async with Client(ToolSearchServer(server)) as client:
        call = {"name": f"{prefix(server)}create_issue", "arguments": {"repo": "a", "title": "b"}}
        await client.call_tool("call_tool", call)
    assert noted == [(("forge", "create_issue"), b'{"repo":"a","title":"b"}')]


async def test_tool_hidden_by_pinning_is_not_found_or_callable() -> None:
    upstream = forge()
    pinned = Gateway(max_result_tokens=0)
    pinned.add_upstream("forge", upstream, pinning="enforce")
    async with Client(ToolSearchServer(pinned)) as client:
        assert "forge_create_issue(" in await found(client, "open an issue")
        upstream.remove("create_issue")

        @upstream.tool
        async def create_issue(repo: str) -> str:
            """Open an issue, and something else that nobody has approved."""
            return ""

        async with asyncio.timeout(20):
            while "forge_create_issue(" in await found(client, "open an issue"):
                pass
        held = []
        for name, arguments in (
            ("forge_create_issue", {"repo": "a"}),
            ("call_tool", {"name": "forge_create_issue", "arguments": {"repo": "a"}}),
        ):
            with pytest.raises(ToolError, match="is blocked") as refused:
                await client.call_tool(name, arguments)
            held.append(str(refused.value))
        assert held[0] == held[1]


async def test_wrong_arguments_are_answered_with_the_schema_and_a_wrong_name_with_the_nearest(server: Server) -> None:
    start = prefix(server)
    async with Client(ToolSearchServer(server)) as client:
        with pytest.raises(ToolError) as refused:
            await client.call_tool("call_tool", {"name": f"{start}create_issue", "arguments": {"repo": "a"}})
        assert "Missing argument 'title'" in str(refused.value) and '"required":["repo","title"]' in str(refused.value)
        with pytest.raises(ToolError, match=rf"Similar tools:\n{start}create_issue\(repo: str"):
            await client.call_tool("call_tool", {"name": f"{start}create_isue", "arguments": {}})
        with pytest.raises(ToolError, match="Missing argument 'name'"):
            await client.call_tool("call_tool", {"tool": "x"})
        # Some models write the object as a text.
        result = await client.call_tool("call_tool", {"name": f"{start}deleteRepository", "arguments": '{"repo": "a"}'})
        assert result.text == "deleted a"


async def test_cancelled_call_ends_the_tool() -> None:
    async with Client(ToolSearchServer(gateway())) as client:
        running = asyncio.create_task(client.call_tool("call_tool", {"name": "forge_wait_for_build"}))
        async with asyncio.timeout(20):
            await started.wait()
            running.cancel()
            await stopped.wait()


async def test_call_becomes_the_task_of_the_tool() -> None:
    server = Server("jobs")

    @server.tool(task="required")
    async def count(to: int) -> int:
        """Count."""
        return to

    for revision in ("2025-11-25", "2026-07-28"):
        async with Client(ToolSearchServer(server), protocol_version=revision) as client:
            await client.list_tools()
            task = await client.start_task("call_tool", {"name": "count", "arguments": {"to": 7}})
            assert (await task.result(timeout=20)).text == "7"


async def test_server_argument_restricts_the_search() -> None:
    async with Client(ToolSearchServer(gateway())) as client:
        assert "forecast(" in await found(client, "weather in a repository")
        assert "forecast(" not in await found(client, "weather in a repository", server="forge")
        with pytest.raises(ToolError, match=r"expected one of forge \(4\), weather \(1\)"):
            await found(client, "weather", server="sky")
        assert "No match" in await found(client, "zzzz qqqq")
        for wrong in ([], ["x"] * 11):
            with pytest.raises(ToolError):
                await found(client, [f"{n}{one}" for n, one in enumerate(wrong)])


async def test_tools_added_later_are_found() -> None:
    server = forge()
    async with Client(ToolSearchServer(server)) as client:
        assert "nothing" not in await found(client, "merge branches")

        @server.tool
        async def merge_branches() -> str:
            """Merge."""
            return ""

        assert "merge_branches()" in await found(client, "merge branches")


async def test_tool_order_is_independent_of_the_first_caller() -> None:
    server = Server("decks")

    @server.tool
    async def add_slide() -> None:
        """Put a slide at the end."""

    @server.tool
    async def recolor_slide() -> None:
        """Give a slide, or each slide, a colour."""

    access_settings.apply(
        server, access_settings.read({"rule": [{"principal": "group:ops", "tool": "*"}, {"tool": "*.recolor_*"}]})
    )
    face = ToolSearchServer(server)
    async with Client(face, principal=GUEST) as client:
        assert "recolor_slide(" in await found(client, "slide", limit=1)
    async with Client(face, principal=OPS) as client:
        assert "add_slide(" in await found(client, "slide", limit=1)


async def test_tool_search_preserves_resources_and_prompts() -> None:
    async with Client(ToolSearchServer(forge())) as client:
        assert client.instructions is not None
        assert client.instructions.startswith("A forge.") and "find_tools" in client.instructions
        # A tool that a client knows by another way is called by its own name.
        assert (await client.call_tool("deleteRepository", {"repo": "a"})).text == "deleted a"


async def test_auto_mode_lists_all_tools_of_small_catalogs() -> None:
    server = Server("grows")

    async def some() -> str:
        return ""

    handler: Handler = AutoToolSearch(ToolSearchServer(server))
    access_settings.apply(server, access_settings.read({"rule": [{"principal": "group:ops", "tool": "*"}]}))
    for number in range(45):
        async with Client(handler, principal=GUEST) as client:
            assert (await names(client) == ["find_tools", "call_tool"]) == (number >= 40)
        server.tool(f"some_{number}")(some)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_faces_have_their_paths(revision: Any, served: str) -> None:
    async with Client(f"{served}/search", protocol_version=revision) as client:
        assert await names(client) == ["find_tools", "call_tool"]
        assert "forge_create_issue(" in await found(client, "open an issue")
        call = {"name": "forge_create_issue", "arguments": {"repo": "a", "title": "b"}}
        assert "a/b" in (await client.call_tool("call_tool", call)).text


@pytest.fixture
async def served() -> Any:
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = gateway()
    server.add_tool_search_endpoint(ToolSearchServer(server))
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop))
    yield await asyncio.wait_for(ready, 20)
    stop.set()
    await serving


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_face_is_served_on_stdio(tmp_path: Path, revision: Any) -> None:
    (tmp_path / "one.py").write_text(
        "from portico import Server\nserver = Server('one')\n\n"
        "@server.tool\ndef add(a: int, b: int) -> int: return a + b\n"
    )
    command = [sys.executable, "-m", "portico", "serve", str(tmp_path / "one.py"), "--tool-search"]
    async with Client(command, protocol_version=revision) as client:
        assert await names(client) == ["find_tools", "call_tool"]
        assert (await client.call_tool("call_tool", {"name": "add", "arguments": {"a": 1, "b": 2}})).text == "3"


async def asked(app: Any, path: str) -> list[str]:
    """The names of the tools that an ASGI application lists at a path."""
    about = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": about}}
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/list",
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(20):
        await app(scope, receive, send)
    data = msgspec.json.decode(b"".join(item.get("body", b"") for item in sent))
    return [tool["name"] for tool in data["result"]["tools"]]


async def test_asgi_application_serves_tool_search_and_code_mode() -> None:
    server = forge()
    server.add_tool_search_endpoint(ToolSearchServer(server, pinned_tools=["create_issue"]))
    async with server.lifespan():
        app = server.http_app()
        assert len(await asked(app, "/mcp")) == 4
        assert await asked(app, "/mcp/search") == ["find_tools", "call_tool", "create_issue"]
        server.public_handler = ToolSearchServer(server)
        assert await asked(server.http_app(), "/mcp") == ["find_tools", "call_tool"]


async def test_gateway_view_has_a_tool_search_endpoint() -> None:
    found_gateway = gateway()
    view = found_gateway.add_view("sky", upstreams=["weather"])
    async with Client(ToolSearchServer(view)) as client:
        assert "forecast(" in await found(client, "weather in a repository", server="weather")
        assert "forge_" not in await found(client, "open an issue in a repository", limit=25)
        with pytest.raises(ToolError, match="Unknown tool 'forge_create_issue'"):
            await client.call_tool("call_tool", {"name": "forge_create_issue", "arguments": {}})


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_confirmation_names_the_called_tool(server: Server, revision: Any) -> None:
    message = {"rule": [{"tool": "*"}], "require": [{"tool": "*.delete*", "confirm": "Delete {arguments.repo}?"}]}
    access_settings.apply(server, access_settings.read(message))
    questions: list[str] = []

    async def answer(params: Any, *_: Any) -> Any:
        questions.append(params.message)
        return ElicitResult(action="accept", content={})

    call = {"name": f"{prefix(server)}deleteRepository", "arguments": {"repo": "a"}}
    async with Client(
        ToolSearchServer(server), protocol_version=revision, principal=GUEST, elicitation_handler=answer
    ) as client:
        assert (await client.call_tool("call_tool", call)).text == "deleted a"
    assert len(questions) == 1 and "Delete a?" in questions[0]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_clients_that_defer_tools_are_informed_to_leave_those_of_a_face(revision: Any) -> None:
    async with Client(ToolSearchServer(forge(), pinned_tools=["create_issue"]), protocol_version=revision) as client:
        marked = [bool((tool.meta or {}).get("anthropic/alwaysLoad")) for tool in await client.list_tools()]
    # Older revisions have no `_meta` there.
    assert marked == ([True, True, False] if revision >= "2025-06-18" else [False] * 3)


async def test_concurrent_searches_share_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    server, built = Server("large", version="1"), list[int]()

    def count() -> str:
        """Count apples."""
        return ""

    for number in range(2 * searchable_tools.SMALL_CATALOG_SIZE):
        server.add_tool(count, name=f"tool_{number}")
    build = searchable_tools._build_index
    monkeypatch.setattr(searchable_tools, "_build_index", lambda tools: built.append(len(tools)) or build(tools))
    async with Client(ToolSearchServer(server)) as client:
        await asyncio.gather(*(client.call_tool("find_tools", {"queries": [f"apples {at}"]}) for at in range(20)))
    assert built == [2 * searchable_tools.SMALL_CATALOG_SIZE]
