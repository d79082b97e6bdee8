"""FastMCP and MCP SDK APIs as their users write them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel

from portico import (
    Client,
    Depends,
    ProtocolError,
    ToolError,
    ToolResult,
    UsageError,
)
from portico.auth.principal import Principal
from portico.compat.fastmcp import (
    AssistantMessage,
    AuthMiddleware,
    CallArgument,
    Context,
    CurrentContext,
    CurrentHeaders,
    DirectoryResource,
    FastMCP,
    FileResource,
    StaticTokenVerifier,
    TextResource,
    UserMessage,
    lifespan,
    require_scopes,
)
from portico.compat.mcp_sdk import (
    Elicit,
    ListRoots,
    LowLevelServer,
    MCPServer,
    ReadResourceContents,
    RequestStateSecurity,
    Resolve,
    ResourceNotFoundError,
    ServerRequestContext,
    TransportSecuritySettings,
)
from portico.errors import InvalidParams
from portico.extend import Call
from portico.protocol.client_features import InputRequest
from portico.protocol.errors import ComponentNotFound, TooManyRequests
from portico.search.tool_search import ToolSearchServer
from portico.server.middleware import RateLimitingMiddleware
from portico.server.options import CacheHint, InvalidRequestState, ResourceSecurity
from portico.types import (
    LATEST_PROTOCOL_VERSION,
    V2025_06_18,
    AcceptedElicitation,
    ElicitResult,
    InputRequiredResult,
    Root,
)
from portico_gateway.policy.engine import PolicyEngine
from portico_gateway.policy.settings import parse_rules
from support.logins import served


class TextContent(BaseModel):
    """As `mcp.types` has it."""

    type: str = "text"
    text: str


class CallToolResult(BaseModel):
    content: list[TextContent]
    structuredContent: dict[str, Any] | None = None
    isError: bool = False


class ToolAnnotations(BaseModel):
    readOnlyHint: bool | None = None
    title: str | None = None


# Results


async def test_content_of_other_libraries_is_sent_unchanged() -> None:
    server = FastMCP()

    @server.tool
    async def block() -> TextContent:
        return TextContent(text="one")

    @server.tool
    async def blocks() -> list[TextContent]:
        return [TextContent(text="one"), TextContent(text="two")]

    @server.tool
    async def result() -> CallToolResult:
        return CallToolResult(content=[TextContent(text="said")], structuredContent={"n": 1})

    async with Client(server) as client:
        assert [tool.output_schema for tool in await client.list_tools()] == [None, None, None]
        assert [tool.text for tool in (await client.call_tool("block")).content] == ["one"]
        assert [tool.text for tool in (await client.call_tool("blocks")).content] == ["one", "two"]
        said = await client.call_tool("result")
        assert (said.content[0].text, said.structured) == ("said", {"n": 1})


async def test_tool_result_takes_structured_content() -> None:
    server = FastMCP()

    @server.tool
    async def told() -> ToolResult:
        return ToolResult("for the model", structured_content={"n": 1}, meta={"k": "v"})

    async with Client(server) as client:
        result = await client.call_tool("told")
        assert (result.content[0].text, result.structured, result.meta["k"]) == ("for the model", {"n": 1}, "v")


async def test_structured_output_can_be_wanted_or_not() -> None:
    server = FastMCP()

    @server.tool(structured_output=True)
    async def text() -> str:
        return "x"

    @server.tool(structured_output=False)
    async def number() -> int:
        return 1

    async with Client(server) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert tools["text"].output_schema is not None
        assert tools["number"].output_schema is None
        assert (await client.call_tool("text")).data == "x"
        assert (await client.call_tool("number")).structured is None


async def test_annotations_tags_and_icons_of_another_library_are_read() -> None:
    server = FastMCP(icons=[{"src": "https://example.com/a.png"}])

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True), tags={"b", "a"})
    async def one() -> None: ...

    async with Client(server) as client:
        tool = (await client.list_tools())[0]
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.meta is not None
        assert tool.meta["portico/tags"] == ["a", "b"]
    with pytest.raises(UsageError, match="invalid icon"):
        FastMCP(icons=[{"nothing": 1}])


async def test_prompts_are_made_of_messages() -> None:
    server = FastMCP()

    @server.prompt
    def review() -> list[Any]:
        return [UserMessage("look"), AssistantMessage("I do")]

    async with Client(server) as client:
        response = await client.get_prompt("review")
        assert [(message.role, message.content.text) for message in response.messages] == [
            ("user", "look"),
            ("assistant", "I do"),
        ]


# The Context


@dataclass
class App:
    name: str


async def test_lifespan_context_is_available_to_tools() -> None:
    @asynccontextmanager
    async def lifespan(server: FastMCP) -> AsyncIterator[App]:
        yield App("kept")

    server = FastMCP(lifespan=lifespan)

    @server.tool
    async def name(ctx: Context[App]) -> str:
        assert ctx.lifespan_context is ctx.request_context.lifespan_context
        return str(ctx.lifespan_context.name)

    async with server.lifespan(), Client(server) as client:
        assert (await client.call_tool("name")).data == "kept"


async def test_state_belongs_to_one_conversation() -> None:
    server = FastMCP()

    @server.tool
    async def swap(ctx: Context, value: str) -> dict[str, Any]:
        before = await ctx.get_state("k")
        await ctx.set_state("k", value)
        return {"before": before, "id": ctx.session_id}

    async with Client(server) as client, Client(server) as other:
        first = (await client.call_tool("swap", {"value": "a"})).data
        assert (await other.call_tool("swap", {"value": "b"})).data["before"] is None
        again = (await client.call_tool("swap", {"value": "c"})).data
        assert again == {"before": "a", "id": first["id"]}


async def test_unserializable_state_raises_tool_error() -> None:
    server = FastMCP()

    @server.tool
    async def keep(ctx: Context) -> None:
        await ctx.set_state("k", object())

    async with Client(server) as client:
        with pytest.raises(ToolError, match="Cannot store the state"):
            await client.call_tool("keep")


async def test_body_looks_around_in_its_server() -> None:
    server = FastMCP(list_page_size=1)

    @server.tool
    async def names(ctx: Context) -> list[str]:
        return [tool.name for tool in await ctx.list_tools()]

    @server.tool
    async def other() -> None: ...

    async with Client(server) as client:
        assert (await client.call_tool("names")).data == ["names", "other"]
    assert [tool.name for tool in await server.list_tools()] == ["names", "other"]


async def test_response_is_decoded_to_its_class() -> None:
    server = FastMCP()

    @server.tool
    async def ask(ctx: Context) -> str:
        match await ctx.elicit("How many?", schema=int):
            case AcceptedElicitation(data=count):
                return f"{count}"
            case _:
                return "none"

    async with Client(server, elicitation_handler=lambda _: {"value": 3}) as client:
        assert (await client.call_tool("ask")).data == "3"
    async with Client(server, elicitation_handler=lambda _: ElicitResult("decline")) as client:
        assert (await client.call_tool("ask")).data == "none"


# Dependencies


SAID: list[str] = []


async def connection() -> AsyncIterator[str]:
    SAID.append("open")
    yield "db"
    SAID.append("closed")


def user(name: str, db: str = Depends(connection)) -> str:
    return f"{name} of {db}"


async def test_dependencies_are_made_once_for_a_call_and_ended_with_it() -> None:
    server = FastMCP()
    SAID.clear()

    @server.tool
    async def greet(name: str, who: Annotated[str, Resolve(user)], db: str = Depends(connection)) -> str:
        return f"{who}, {db}, {len(SAID)}"

    async with Client(server) as client:
        schema = (await client.list_tools())[0].input_schema
        assert list(schema["properties"]) == ["name"]
        assert (await client.call_tool("greet", {"name": "ann"})).data == "ann of db, db, 1"
    assert SAID == ["open", "closed"]


async def test_dependencies_of_a_def_and_of_prompts_and_resources() -> None:
    server = FastMCP()

    def number() -> Iterator[int]:
        yield 7

    @server.tool
    def tool(ctx: Context, n: int = Depends(number)) -> int:
        return n

    @server.prompt
    def prompt(n: int = Depends(number)) -> str:
        return f"{n}"

    @server.resource("a://b")
    def resource(n: int = Depends(number)) -> str:
        return f"{n}"

    async with Client(server) as client:
        assert (await client.call_tool("tool")).data == 7
        assert (await client.get_prompt("prompt")).messages[0].content.text == "7"
        assert (await client.read_resource("a://b"))[0].text == "7"


def confirm(title: str) -> Elicit[bool]:
    return Elicit(f"Order {title}?", bool)


def roots() -> ListRoots:
    return ListRoots()


async def test_dependency_asks() -> None:
    server = FastMCP()

    @server.tool
    async def order(
        title: str, sure: Annotated[bool, Resolve(confirm)], folders: Annotated[list[Root], Resolve(roots)]
    ) -> dict[str, Any]:
        return {"title": title, "sure": sure, "folders": [folder.uri for folder in folders]}

    async with Client(server, elicitation_handler=lambda _: {"value": True}, roots=["file:///srv"]) as client:
        assert (await client.call_tool("order", {"title": "Dune"})).data["folders"] == ["file:///srv"]
    async with Client(server, elicitation_handler=lambda _: ElicitResult("decline"), roots=["file:///srv"]) as client:
        with pytest.raises(ToolError, match="declined"):
            await client.call_tool("order", {"title": "Dune"})


# The FastMCP


async def test_one_function_completes_everything() -> None:
    server = FastMCP()

    @server.prompt
    def review(language: str) -> str:
        return language

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> list[str]:
        return [f"{ref.name}.{argument.name}.{argument.value}"]

    async with Client(server) as client:
        result = await client.complete({"type": "ref/prompt", "name": "review"}, "language", "p")
        assert result.values == ["review.language.p"]


def test_options_by_their_names_there() -> None:
    server, part = FastMCP(), FastMCP("part")
    server.mount(server=part, namespace="p")
    server.add_tool(lambda: 1, name="one")
    server.remove_tool("one")
    hosts = TransportSecuritySettings(allowed_hosts=["example.com:*"])
    assert MCPServer().streamable_http_app(json_response=True, transport_security=hosts) is not None
    assert server.http_app(path="/x") is not None
    assert MCPServer().sse_app() is not None
    with pytest.raises(UsageError, match="log_level must be debug"):
        FastMCP(log_level="loud")


async def test_tools_are_disabled_and_enabled_by_tag() -> None:
    server = FastMCP()
    server.add_tool(lambda: 1, name="one", tags={"beta"})
    server.add_tool(lambda: 2, name="two")
    async with Client(server) as client:
        server.disable(tags={"beta"})
        assert [tool.name for tool in await client.list_tools()] == ["two"]
        with pytest.raises(ProtocolError):
            await client.call_tool("one")
        server.enable(tags={"beta"})
        assert {tool.name for tool in await client.list_tools()} == {"one", "two"}


async def test_highest_version_of_a_tool_has_its_name() -> None:
    server = FastMCP(on_duplicate="error")
    server.add_tool(lambda: "nine", name="add", version="1.9")
    server.add_tool(lambda: "ten", name="add", version="1.10")
    server.add_tool(lambda: "two", name="add", version="1.2")
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        assert (await client.call_tool("add")).data == "ten"
        assert (await client.call_tool("add@1.2")).data == "two"
    with pytest.raises(UsageError, match="already registered"):
        server.add_tool(lambda: "again", name="add", version="1.10")


# What servers are told, and how they are put together


async def test_sdk_middleware_receives_the_context_and_call_next() -> None:
    seen: list[tuple[str, Any]] = []

    async def watch(ctx: ServerRequestContext, call_next: Any) -> Any:
        seen.append((ctx.method, (ctx.params or {}).get("name")))
        return await call_next(ctx)

    server = FastMCP("s", middleware=[watch])
    server.tool(name="a")(lambda: "1")
    async with Client(server) as client:
        await client.call_tool("a", {})
    assert ("tools/call", "a") in seen


async def test_hint_for_one_method_stands_beside_the_server_s_own() -> None:
    server = FastMCP("s", cache_ttl=0.005, cache_hints={"tools/list": CacheHint(ttl_ms=60_000, scope="public")})
    tools = msgspec.json.decode(await server(_call("tools/list")))
    prompts = msgspec.json.decode(await server(_call("prompts/list")))
    assert (tools["ttlMs"], tools["cacheScope"]) == (60_000, "public")
    assert (prompts["ttlMs"], prompts["cacheScope"]) == (5, "private")


def _call(method: str) -> Call:
    return Call(method=method, params=msgspec.Raw(b"{}"), id=1, protocol_version=LATEST_PROTOCOL_VERSION)


class _Codec:
    def seal(self, payload: bytes) -> str:
        return "v1." + payload[::-1].hex()

    def unseal(self, token: str) -> bytes:
        if not token.startswith("v1."):
            raise InvalidRequestState("not ours")
        return bytes.fromhex(token[3:])[::-1]


@pytest.mark.parametrize(
    "security",
    [RequestStateSecurity(keys=["a" * 32]), RequestStateSecurity(codec=_Codec()), RequestStateSecurity.ephemeral()],
    ids=["keys", "codec", "ephemeral"],
)
async def test_states_are_sealed_as_the_server_is_informed(security: RequestStateSecurity) -> None:
    server = FastMCP("s", request_state_security=security)

    @server.tool
    async def refund(amount: int, ctx: Context) -> str:
        answer = await ctx.elicit(f"Refund {amount}?", bool)
        return f"{answer.action} {answer.data}"

    async with Client(server, elicitation_handler=lambda question: {"value": True}) as client:
        assert (await client.call_tool("refund", {"amount": 3})).data == "accept True"


def test_state_is_opened_with_every_key_and_sealed_with_the_first() -> None:
    old = RequestStateSecurity(keys=["a" * 32]).create_sealer("s")
    both = RequestStateSecurity(keys=["b" * 32, "a" * 32]).create_sealer("s")
    sealed = old.seal(b"x", {}, {}, [])
    assert both.unseal(sealed, b"x").binding == b"x"
    with pytest.raises(InvalidParams):
        old.unseal(both.seal(b"x", {}, {}, []), b"x")


def test_state_expires_after_its_ttl() -> None:
    sealer = RequestStateSecurity(keys=["a" * 32], ttl=-1.0).create_sealer("s")
    with pytest.raises(InvalidParams, match="expired"):
        sealer.unseal(sealer.seal(b"x", {}, {}, []), b"x")


async def test_author_may_ask_by_a_result_and_give_a_state_along() -> None:
    server = FastMCP("s")

    @server.tool
    async def refund(amount: int, ctx: Context) -> Any:
        if ctx.input_responses is None:
            schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
            ask = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": schema}}
            return InputRequiredResult(
                input_requests={"ok": msgspec.convert(ask, InputRequest)}, request_state=f"refund:{amount}"
            )
        answer = ctx.input_responses["ok"]
        return f"{ctx.request_state} {answer.action} {answer.content}"

    async with Client(server, elicitation_handler=lambda question: {"ok": True}) as client:
        result = (await client.call_tool("refund", {"amount": 3})).content[0].text
    assert result == "refund:3 accept {'ok': True}"


@pytest.mark.parametrize("value", ["..", "a/../../b", "/etc/passwd", "C:/x", "%2e%2e/x"])
async def test_value_that_leads_out_of_a_folder_never_reaches_the_function(value: str) -> None:
    server = FastMCP("s")
    server.resource("f://x/{+path}")(lambda path: path)
    server.resource("g://x/{+path}", security=None)(lambda path: path)
    server.resource("h://x/{+path}", security=ResourceSecurity(exempt_params={"path"}))(lambda path: path)
    async with Client(server) as client:
        with pytest.raises(ResourceNotFoundError):
            await client.read_resource(f"f://x/{value}")
        for scheme in ("g", "h"):
            assert await client.read_resource(f"{scheme}://x/{value}")
        assert (await client.read_resource("f://x/a/../b..c"))[0].text == "a/../b..c"


@pytest.mark.parametrize(("how", "said"), [("ignore", "1"), ("replace", "2"), ("warn", "2")])
async def test_on_duplicate_decides_which_tool_is_called(how: Any, said: str) -> None:
    server = FastMCP("s", on_duplicate=how)
    server.tool(name="a")(lambda: "1")
    server.tool(name="a")(lambda: "2")
    server.prompt(name="a")(lambda: "p")
    server.prompt(name="a")(lambda: "p")
    async with Client(server) as client:
        assert (await client.call_tool("a", {})).content[0].text == said


async def test_options_of_theirs_are_understood() -> None:
    server: Any = FastMCP(
        "s", "Be kind.", version=2, mask_error_details=True, list_page_size=1, cache_ttl=60, on_duplicate_tools="error",
        tools=[lambda_tool], experimental_capabilities={"x": {}}, host="127.0.0.1", port=9, middleware=None,
    )  # fmt: skip
    assert (server.instructions, server.version) == ("Be kind.", "2")
    assert server.http_defaults == {"host": "127.0.0.1", "port": 9}
    assert server.capabilities.experimental == {"x": {}}
    assert [tool.name for tool in await server.list_tools()] == ["lambda_tool"]
    with pytest.raises(UsageError, match="unknown option 'mask_errors'"):
        FastMCP("s", mask_errors=True)  # type: ignore[call-arg]


def lambda_tool() -> str:
    return "x"


async def test_scopes_are_required_of_tools_resources_and_prompts() -> None:
    server = FastMCP("s", auth=StaticTokenVerifier({"good": {"client_id": "a", "scopes": ["write"]}, "bad": {}}))
    server.tool(name="t", auth=require_scopes("write"))(lambda: "t")
    server.resource("r://x", name="r", auth=[require_scopes("write")])(lambda: "r")
    server.prompt(name="p", auth=lambda ctx: ctx.token is not None and "write" in ctx.token.scopes)(lambda: "p")
    async with Client(server) as client:  # who sits at this machine
        assert (await client.call_tool("t", {})).data == "t"
    async with served(server) as url:
        async with Client(url, auth="good") as client:
            assert (await client.call_tool("t", {})).data == "t"
            assert await client.read_resource("r://x")
            assert await client.get_prompt("p")
        async with Client(url, auth="bad") as client:
            for request in (client.call_tool("t", {}), client.read_resource("r://x"), client.get_prompt("p")):
                with pytest.raises(Exception, match=r"scope|Unknown prompt: p"):
                    await request


async def seen_by(client: Client) -> list[str]:
    """All that a client is shown, by its name."""
    results = [await client.list_tools(), await client.list_prompts(), await client.list_resources()]
    return [item.name for part in [*results, await client.list_resource_templates()] for item in part]


@pytest.mark.parametrize("around", ["alone", "mounted", "with rules", "middleware"])
async def test_components_denied_by_an_auth_check_are_hidden(around: str) -> None:
    check: Any = [require_scopes("write")]
    value = {} if around == "middleware" else {"auth": check}
    server = FastMCP("s", middleware=[AuthMiddleware(check)] if around == "middleware" else [])
    server.tool(name="secret", **value)(lambda: "t")
    server.prompt(name="p", **value)(lambda item: item)
    server.resource("r://x", name="r", **value)(lambda: "r")
    server.resource("r://y/{item}", name="t", **value)(lambda item: item)
    if around == "mounted":
        inner, server = server, FastMCP("outer")
        server.mount(inner)
    if around == "with rules":
        server.set_policy(
            access_policy=PolicyEngine(parse_rules([{"principal": "*", "tool": "*", "prompt": "*", "resource": "*"}]))
        )
    async with Client(server, principal=Principal("ann", frozenset({"write"}))) as client:
        assert await seen_by(client) == ["secret", "p", "r", "t"]
    nobody = Principal("bob", frozenset())
    async with Client(server, principal=nobody) as client, Client(ToolSearchServer(server), principal=nobody) as search:
        assert await seen_by(client) == []
        with pytest.raises(ToolError, match="needs the scope write"):
            await client.call_tool("secret", {})
        if around == "middleware":
            return  # it refuses the tools of the face, and those that are not there
        assert "secret(" not in (await search.call_tool("find_tools", {"queries": "a secret"})).text
        with pytest.raises(ComponentNotFound) as refused:
            await client.call_tool("secre", {})
        assert "suggestions" not in refused.value.data
        with pytest.raises(ProtocolError, match="Nothing to complete"):
            await client.complete({"type": "ref/prompt", "name": "p"}, "one", "")


async def test_lifespans_are_put_together() -> None:
    left: list[str] = []

    @lifespan
    async def one(server: Any) -> AsyncIterator[dict[str, int]]:
        yield {"a": 1}
        left.append("one")

    @lifespan
    async def two(server: Any) -> AsyncIterator[dict[str, int]]:
        yield {"b": 2}
        left.append("two")

    server = FastMCP("s", lifespan=one | two)
    server.tool(name="t")(_sees_lifespan)
    async with Client(server) as client:
        assert (await client.call_tool("t", {})).data == {"a": 1, "b": 2}
    assert left == ["two", "one"]


def _sees_lifespan(ctx: Context) -> dict[str, int]:
    return dict(ctx.lifespan_context)


async def test_resources_need_no_function(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    server = FastMCP("s", resources=[TextResource(uri="n://x", name="Notice", text="Closed.", tags={"a"})])  # type: ignore[call-arg]
    server.add_resource(FileResource(uri="file:///a.txt", path=tmp_path / "a.txt", mime_type="text/plain"))
    server.add_resource(DirectoryResource(uri="d://x", path=tmp_path))
    async with Client(server) as client:
        read = [(await client.read_resource(uri))[0].text for uri in ("n://x", "file:///a.txt", "d://x")]
    assert read == ["Closed.", "hello", '{"files":["a.txt"]}']


async def test_only_the_requested_item_is_shown() -> None:
    server = FastMCP("s")
    for name, tags in (("a", {"safe"}), ("b", {"safe", "slow"}), ("c", set())):
        server.tool(name=name, tags=tags)(lambda: "x")
    server.enable(tags={"safe"}, only=True)
    assert [tool.name for tool in await server.list_tools()] == ["a", "b"]
    server.disable(keys={"tool:b"})
    assert [tool.name for tool in await server.list_tools()] == ["a"]
    server.enable(components={"tool"})
    assert {tool.name for tool in await server.list_tools()} == {"a", "b", "c"}


async def test_too_many_requests_are_rejected() -> None:
    server = FastMCP("s", middleware=[RateLimitingMiddleware(max_requests_per_second=0.001, burst_capacity=3)])
    server.tool(name="a")(lambda: "1")
    async with Client(server) as client:  # which asks once by itself
        assert (await client.call_tool("a", {})).data == "1"
        assert (await client.call_tool("a", {})).data == "1"
        with pytest.raises(ToolError, match="Too many requests"):
            await client.call_tool("a", {})
        with pytest.raises(TooManyRequests, match="wait") as refusal:
            await client.list_tools()
    assert refusal.value.code == -32005 and refusal.value.data["retryAfter"] > 900


def test_rate_is_more_than_nothing() -> None:
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="must be more than 0"):
            RateLimitingMiddleware(max_requests_per_second=wrong)


async def test_context_that_is_a_dependency_too_is_one() -> None:
    server = FastMCP("s")

    @server.tool
    async def look(name: str, ctx: Context = CurrentContext()) -> str:
        await ctx.info("looking", extra={"name": name})
        return f"{name} {ctx.client_id}"

    @server.tool
    async def headers(seen: dict[str, str] = CurrentHeaders()) -> int:
        return len(seen)

    @server.tool
    async def account(owner: str, made: str = Depends(_account, user=CallArgument("owner"), plan="pro")) -> str:
        return made

    async with Client(server) as client:
        assert (await client.call_tool("look", {"name": "x"})).data == "x None"
        assert (await client.call_tool("account", {"owner": "ann"})).data == "ann pro"
        assert (await client.call_tool("headers", {})).data == 0


def _account(user: str, plan: str) -> str:
    return f"{user} {plan}"


# The low-level server


async def test_low_level_server_answers_with_its_own_functions() -> None:
    async def list_tools(ctx: Any, params: Any) -> Any:
        return {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}

    async def call_tool(ctx: Any, params: Any) -> Any:
        return {"content": [{"type": "text", "text": f"{params.name} {params.arguments}"}]}

    server = LowLevelServer("s", on_list_tools=list_tools, on_call_tool=call_tool)
    for revision in (LATEST_PROTOCOL_VERSION, V2025_06_18):
        async with Client(server, protocol_version=revision) as client:
            assert [tool.name for tool in await client.list_tools()] == ["add"]
            assert (await client.call_tool("add", {"a": 1})).content[0].text == "add {'a': 1}"
            with pytest.raises(ProtocolError, match="does not declare prompts"):
                await client.list_prompts()


async def test_low_level_server_is_served_as_every_other(tmp_path: Path) -> None:
    program = tmp_path / "low.py"
    program.write_text(
        "from portico.compat.mcp_sdk import LowLevelServer, stdio_server\n"
        "async def tools(ctx, params):\n"
        "    return {'tools': [{'name': 'add', 'inputSchema': {'type': 'object'}}]}\n"
        "server = LowLevelServer('low', on_list_tools=tools)\n"
        "async def main():\n"
        "    async with stdio_server() as (read, write):\n"
        "        await server.run(read, write, server.create_initialization_options())\n"
        "if __name__ == '__main__':\n"
        "    import asyncio; asyncio.run(main())\n"
    )
    for command in ([sys.executable, "-m", "portico", "serve", str(program)], [sys.executable, str(program)]):
        async with Client(command) as client:
            assert [tool.name for tool in await client.list_tools()] == ["add"]


async def test_low_level_server_has_the_decorators_of_the_first_sdk() -> None:
    server = LowLevelServer("s", version="1.2")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    @server.list_tools()
    async def tools() -> list[Any]:
        return [{"name": "add", "inputSchema": schema}]

    @server.call_tool()
    async def call(name: str, arguments: dict[str, Any]) -> list[Any]:
        assert server.request_context.request_id is not None
        return [TextContent(text=f"{name} {arguments['a']}")]

    @server.list_resources()
    async def resources() -> list[Any]:
        return [{"uri": "a://b", "name": "b"}]

    @server.read_resource()
    async def read(uri: str) -> Any:
        return [ReadResourceContents(content=f"at {uri}", mime_type="text/plain")]

    @server.list_prompts()
    async def prompts() -> list[Any]:
        return [{"name": "p"}]

    @server.get_prompt()
    async def prompt(name: str, arguments: dict[str, str]) -> Any:
        return {"messages": [{"role": "user", "content": {"type": "text", "text": name}}]}

    async with Client(server) as client:
        assert (await client.call_tool("add", {"a": 1})).content[0].text == "add 1"
        with pytest.raises(ToolError, match="Invalid arguments"):
            await client.call_tool("add", {"a": "x"})
        assert (await client.read_resource("a://b"))[0].text == "at a://b"
        assert (await client.get_prompt("p")).messages[0].content.text == "p"
        assert [resource.uri for resource in await client.list_resources()] == ["a://b"]


async def test_def_function_may_return_a_coroutine() -> None:
    async def inner(x: int) -> str:
        return f"{x}!"

    def outer(x: int) -> str:
        return inner(x)  # type: ignore[return-value]

    async with Client(FastMCP("s", tools=[outer])) as client:  # type: ignore[call-arg]
        assert (await client.call_tool("outer", {"x": 3})).data == "3!"
