"""Servers written for FastMCP or the MCP SDK: logins, transforms, tool directories, extensions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import portico
from portico import Client, Depends, Tool, ToolError, UsageError
from portico.auth import InvalidToken, Principal, RequestCredentials
from portico.compat.fastmcp import (
    AccessToken,
    Context,
    FastMCP,
    GitHubProvider,
    LocalProvider,
    Provider,
    StaticTokenVerifier,
    TokenVerifier,
    create_proxy,
    get_access_token,
    get_context,
)
from portico.compat.mcp_sdk import AuthSettings, Extension, MethodBinding, ToolBinding
from portico.errors import InvalidParams
from portico.server.providers import FileSystemProvider
from portico.server.transforms import (
    ArgTransform,
    Namespace,
    PromptsAsTools,
    ResourcesAsTools,
    ToolTransform,
    ToolTransformConfig,
    Transform,
    VersionFilter,
    forward,
    forward_raw,
)
from portico.types import ElicitationResult


def search(q: str, limit: int = 2, key: str = "") -> list[str]:
    """Search.

    Args:
        q: What
    """
    return [f"{q}{number}{key}" for number in range(limit)]


async def data(server: Any, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    async with Client(server, **options) as client:
        return (await client.call_tool(name, arguments or {})).data


# Tools in another shape


async def test_arguments_are_renamed_hidden_and_fixed() -> None:
    server = FastMCP("s")
    shape = {
        "q": ArgTransform(name="query", description="What to find"),
        "limit": ArgTransform(default=1),
        "key": ArgTransform(hide=True, default="!"),
    }
    server.add(Tool.from_tool(search, name="find", description="Find.", tags={"a"}, transform_args=shape))
    async with Client(server) as client:
        [tool] = await client.list_tools()
        assert (tool.name, tool.description) == ("find", "Find.")
        assert set(tool.input_schema["properties"]) == {"query", "limit"}
        assert tool.input_schema["required"] == ["query"]
        assert tool.input_schema["properties"]["query"]["description"] == "What to find"
        assert tool.input_schema["properties"]["limit"]["default"] == 1
        assert (await client.call_tool("find", {"query": "a"})).data == ["a0!"]
        assert (await client.call_tool("find", {"query": "a", "limit": 2})).data == ["a0!", "a1!"]
        for wrong in ({"q": "a"}, {"query": "a", "key": "mine"}, {}):
            with pytest.raises(ToolError):
                await client.call_tool("find", wrong)


async def test_function_wraps_a_tool() -> None:
    async def around(query: str, **rest: Any) -> list[str]:
        result = await forward(query=query.upper(), **rest)
        return ["first", *result.structured_content["result"]]

    async def raw(query: str) -> list[str]:
        return list((await forward_raw(q=query, limit=1)).structured_content["result"])

    async def fails() -> str:
        await forward(query=3)
        return "never"

    server = FastMCP("s")
    shape = {"q": ArgTransform(name="query")}
    server.add(Tool.from_tool(search, name="around", transform_args=shape, transform_fn=around))
    server.add(Tool.from_tool(search, name="raw", transform_args=shape, transform_fn=raw))
    server.add(Tool.from_tool(search, name="fails", transform_args=shape, transform_fn=fails))
    assert await data(server, "around", {"query": "a", "limit": 1}) == ["first", "A0"]
    assert await data(server, "raw", {"query": "a"}) == ["a0"]
    with pytest.raises(ToolError, match="Invalid argument"):
        await data(server, "fails")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nothing": ArgTransform(name="x")}, "has no argument 'nothing'"),
        ({"q": ArgTransform(hide=True)}, "is required and must have a default"),
        ({"q": ArgTransform(name="limit")}, "two arguments 'limit'"),
    ],
)
def test_shape_that_cannot_be_is_rejected_while_building(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Tool.from_tool(search, transform_args=changes)


async def test_transform_applies_to_mounted_tools() -> None:
    inner = FastMCP("inner")
    inner.tool(search)
    server = FastMCP("s")
    server.mount(inner, "in")
    server.tool(name="plain")(lambda: 1)
    change = ToolTransformConfig(name="find", arguments={"q": ArgTransform(name="query")})
    server.add_transform(ToolTransform({"in_search": change, "plain": {"enabled": False}}))
    assert await data(server, "find", {"query": "a", "limit": 1}) == ["a0"]
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["find"]
        for gone in ("in_search", "plain"):
            with pytest.raises(InvalidParams):
                await client.call_tool(gone, {"q": "a"})


async def test_namespace_stands_before_every_name() -> None:
    server = FastMCP("s", transforms=[Namespace("api")])
    server.tool(search)
    server.prompt(name="hi")(lambda: "hi")
    assert await data(server, "api_search", {"q": "a", "limit": 1}) == ["a0"]
    async with Client(server) as client:
        assert [prompt.name for prompt in await client.list_prompts()] == ["api_hi"]
        with pytest.raises(InvalidParams):
            await client.call_tool("search", {"q": "a"})


async def test_resources_and_prompts_are_available_as_tools() -> None:
    server = FastMCP("s")
    server.resource("a://b")(lambda: "text")
    server.resource("c://{d}")(_described)
    server.prompt(name="hi")(_greeting)
    server.add_transform(ResourcesAsTools(server))
    server.add_transform(PromptsAsTools(server))
    assert '"a://b"' in await data(server, "list_resources")
    assert '"c://{d}"' in await data(server, "list_resources")
    assert await data(server, "read_resource", {"uri": "c://x"}) == "x"
    assert '"who"' in await data(server, "list_prompts")
    assert '"hi you"' in await data(server, "get_prompt", {"name": "hi", "arguments": {"who": "you"}})


def _described(d: str) -> str:
    return d


def _greeting(who: str) -> str:
    return f"hi {who}"


async def test_session_receives_the_events_it_subscribed_to() -> None:
    server = FastMCP("s")
    server.tool(name="money", tags={"finance"})(lambda: "money")

    @server.tool
    async def show(ctx: Context) -> str:
        await ctx.enable_components(tags={"finance"})
        return "shown"

    @server.tool
    async def hide(ctx: Context) -> str:
        await ctx.disable_components(names={"show"})
        return "hidden"

    @server.tool
    async def reset(ctx: Context) -> str:
        await ctx.reset_visibility()
        return "as before"

    server.disable(tags={"finance"})

    async def names(client: Client) -> set[str]:
        return {tool.name for tool in await client.list_tools(refresh=True)}

    async with (
        Client(server, protocol_version="2025-11-25") as one,
        Client(server, protocol_version="2025-11-25") as other,
    ):
        with pytest.raises(InvalidParams):
            await one.call_tool("money", {})
        await one.call_tool("show", {})
        assert await names(one) == {"show", "hide", "reset", "money"}
        assert (await one.call_tool("money", {})).data == "money"
        assert await names(other) == {"show", "hide", "reset"}
        with pytest.raises(InvalidParams):
            await other.call_tool("money", {})
        await one.call_tool("hide", {})
        assert await names(one) == {"hide", "reset", "money"}
        with pytest.raises(InvalidParams):
            await one.call_tool("show", {})
        await one.call_tool("reset", {})
        assert await names(one) == {"show", "hide", "reset"}


# Versions, and where components come from


async def test_several_servers_have_one_bundle_in_the_versions_they_want() -> None:
    bundle = LocalProvider()
    for number in (1, 2, 3):
        bundle.tool(name="work", version=f"{number}.0")(lambda number=number: number)
        bundle.prompt(name="p", version=f"{number}.0")(lambda number=number: str(number))
        bundle.resource("r://x", version=f"{number}.0")(lambda number=number: str(number))
    first = FastMCP("one", providers=[bundle], transforms=[VersionFilter(version_lt="2.0")])
    second = FastMCP("two", providers=[bundle], transforms=[VersionFilter(version_gte="2.0", version_lt="3.0")])
    latest = FastMCP("all", providers=[bundle])
    for server, number in ((first, 1), (second, 2), (latest, 3)):
        async with Client(server) as client:
            assert (await client.call_tool("work", {})).data == str(number)
            [prompt] = await client.list_prompts()
            assert prompt.meta["portico/version"] == f"{number}.0"
            assert (await client.read_resource("r://x"))[0].text == str(number)
    bundle.tool(name="late")(lambda: "late")
    assert await data(latest, "late") == "late"


async def test_higher_version_that_is_removed_leaves_the_lower_one() -> None:
    server = FastMCP("s", on_duplicate="error")
    server.prompt(name="p", version="2")(lambda: "two")
    server.prompt(name="p", version="1")(lambda: "one")
    server.registry.remove(server.prompts.get("p"))
    async with Client(server) as client:
        assert (await client.get_prompt("p")).messages[0].content.text == "one"
    with pytest.raises(UsageError, match="already registered"):
        server.prompt(name="p", version="1")(lambda: "again")


async def test_folder_of_files_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "tools.py"
    file.write_text("from portico import tool\n\n\n@tool\ndef one(x: int) -> int:\n    return x\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "_private.py").write_text("raise SystemExit\n")
    server = FastMCP("s", providers=[FileSystemProvider(tmp_path, reload=True)])
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["one"]
        file.write_text(
            "from portico import prompt, tool\n\n\n@tool(name='two')\ndef one() -> str:\n    return 'two'\n"
        )
        os.utime(file, ns=(1, 1))
        assert [tool.name for tool in await client.list_tools()] == ["two"]
        assert (await client.call_tool("two", {})).data == "two"
        file.unlink()
        assert await client.list_tools() == []
    with caplog.at_level("WARNING", "portico"):
        assert await FastMCP("t", providers=[FileSystemProvider(tmp_path / "nothing")]).list_tools() == []
    assert "does not exist; no components are loaded" in caplog.text


async def test_proxy_passes_everything_on() -> None:
    inner = FastMCP("inner")
    inner.tool(search)
    assert await data(create_proxy(inner, name="outer"), "search", {"q": "a", "limit": 1}) == ["a0"]


# What a text is


async def test_text_is_structured_content_where_the_server_says_so() -> None:
    server = FastMCP("s", structured_output=True)
    server.tool(name="text")(_greeting)
    server.tool(name="plain", structured_output=False)(_greeting)
    async with Client(server) as client:
        assert (await client.call_tool("text", {"who": "you"})).structured == {"result": "hi you"}
        assert (await client.call_tool("plain", {"who": "you"})).structured is None
        schemas = {tool.name: tool.output_schema for tool in await client.list_tools()}
        assert schemas["text"] is not None
        assert schemas["plain"] is None
    async with Client(server, protocol_version="2025-11-25") as client:
        assert (await client.call_tool("text", {"who": "you"})).data == "hi you"


class Described:
    name: str
    age: int

    def __init__(self) -> None:
        self.name, self.age = "Ann", 30


class Opaque:
    pass


async def test_unserializable_results_are_rejected() -> None:
    server = FastMCP("s")
    server.tool(name="described")(lambda: Described())
    for name, value in (("opaque", Opaque()), ("inside", {"a": [Opaque()]}), ("function", _greeting)):
        server.tool(name=name)(lambda value=value: value)
    assert await data(server, "described") == {"name": "Ann", "age": 30}
    for name in ("opaque", "inside", "function"):
        with pytest.raises(ToolError, match="cannot be serialized") as refused:
            await data(server, name)
        assert "0x" not in str(refused.value)


# Who is asking


class Verifies(TokenVerifier):
    async def verify_token(self, token: str) -> AccessToken | None:
        known_names = {"good": None, "ended": 1}
        if token not in known_names:
            return None
        return AccessToken(token=token, client_id="app", scopes=["read"], expires_at=known_names[token], subject="ann")


async def test_fastmcp_verifier_determines_the_principal() -> None:
    settings = AuthSettings(
        issuer_url="https://login.example.com/",
        resource_server_url="https://notes.example.com/mcp",
        required_scopes=["read"],
    )
    auth = FastMCP("s", auth=settings, token_verifier=Verifies()).auth
    assert auth is not None
    assert (auth.public_url, auth.required_scopes) == ("https://notes.example.com", frozenset({"read"}))
    assert auth.authorization_servers == ["https://login.example.com"]
    result = await auth.verifier(RequestCredentials("bearer", "good"))
    assert result.principal == Principal("ann", frozenset({"read"}), client_id="app")
    for wrong in ("ended", "unknown"):
        with pytest.raises(InvalidToken):
            await auth.verifier(RequestCredentials("bearer", wrong))


async def test_tokens_of_the_program_s_own() -> None:
    verifier = StaticTokenVerifier({"t": {"client_id": "ci", "scopes": ["a"]}}, required_scopes=["a"])
    auth = FastMCP("s", auth=verifier).auth
    assert auth is not None
    result = await auth.verifier(RequestCredentials("bearer", "t"))
    assert (result.principal.id, auth.required_scopes) == ("ci", frozenset({"a"}))


def test_login_is_read_when_the_server_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    empty = FastMCP("s", auth=GitHubProvider(base_url="http://localhost:8000"))
    with pytest.raises(UsageError, match="client_id is missing"):
        _ = empty.auth
    result = GitHubProvider(client_id="id", client_secret="s", base_url="https://a.example.com", allow=["user:ann"])
    auth = FastMCP("s", auth=result, store=str(tmp_path / "a.db")).auth
    assert auth is not None
    assert auth.public_url == "https://a.example.com"
    with pytest.raises(UsageError, match="auth must be an auth provider"):
        FastMCP("s", auth=5)


async def test_function_without_a_context_parameter_can_read_the_caller() -> None:
    server = FastMCP("s")

    @server.tool
    async def who() -> str:
        token = get_access_token()
        return "nobody" if token is None else f"{token.client_id} {token.scopes}"

    @server.tool(name="thread")
    def in_thread() -> str:
        return get_context().principal.id

    ann = Principal("ann", frozenset({"a"}))
    assert await data(server, "who") == "nobody"
    assert await data(server, "who", principal=ann) == "ann ['a']"
    assert await data(server, "thread", principal=ann) == "ann"
    with pytest.raises(RuntimeError):
        get_context()


async def test_dependency_without_elicitation_counts_as_accepted() -> None:
    server = FastMCP("s")

    @server.tool
    async def ask(path: str, answer: ElicitationResult[int] = Depends(lambda path: len(path))) -> str:
        return f"{answer.action} {answer.data}"

    assert await data(server, "ask", {"path": "abc"}) == "accept 3"


# Extensions of the official SDK


class Echo(Extension):
    identifier = "com.example/echo"

    def settings(self) -> dict[str, Any]:
        return {"loud": True}

    def tools(self) -> list[ToolBinding]:
        return [ToolBinding(fn=_greeting, kwargs={"name": "greet"})]

    def methods(self) -> list[MethodBinding]:
        return [MethodBinding("com.example/echo", dict[str, Any], _echo)]

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        if params.name == "greet" and b"nobody" in bytes(params.arguments):
            raise ToolError("there is nobody to greet")
        return await call_next(ctx)


async def _echo(ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
    assert ctx.protocol_version
    return {"resultType": "complete", "said": params["say"]}


async def test_extension_adds_tools_and_methods_and_stands_before_calls() -> None:
    server = FastMCP("s", extensions=[Echo()])
    async with Client(server) as client:
        assert client.server_capabilities.extensions == {"com.example/echo": {"loud": True}}
        assert (await client.call_tool("greet", {"who": "you"})).data == "hi you"
        with pytest.raises(ToolError, match="nobody to greet"):
            await client.call_tool("greet", {"who": "nobody"})
        assert b'"said":"x"' in bytes(await client.request("com.example/echo", {"say": "x"}))


def test_words_that_are_not_ours_are_rejected() -> None:
    with pytest.raises(UsageError, match="expected a portico Transform"):
        FastMCP("s").add_transform(object())
    with pytest.raises(UsageError, match="must have an identifier"):
        FastMCP("s", extensions=[object()])
    with pytest.raises(ValueError, match="cannot remove 'x'"):
        FastMCP("s").remove_prompt("x")
    assert issubclass(Context, portico.Context)


def test_unsupported_custom_sources_suggest_a_replacement() -> None:
    with pytest.raises(UsageError, match=r"Rows: subclasses of Provider are not supported.*Service"):

        class Rows(Provider):
            async def _list_tools(self) -> Any:
                return []


async def test_custom_transform_selects_tools() -> None:
    class Short(Transform):
        def includes(self, component: Any) -> bool:
            return len(component.name) < 3

    server = FastMCP("s")
    server.tool(name="ab")(lambda: "")
    server.add_transform(Short())
    server.tool(name="abc")(lambda: "")
    assert [tool.name for tool in await server.list_tools()] == ["ab"]


async def test_files_of_a_folder_have_checks_too(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from portico import tool\n\n\n@tool(auth=lambda call: False)\ndef hidden() -> str:\n    return ''\n"
    )
    server = FastMCP("s", providers=[FileSystemProvider(tmp_path)])
    assert [tool.name for tool in server.tools] == ["hidden"]
    async with Client(server) as client:
        assert await client.list_tools() == []
