"""Access policy applies to servers written for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from portico import Client, Context, Server, Tool
from portico.auth.principal import Principal
from portico.auth.verifiers.base import InvalidToken, RequestCredentials, VerifiedToken
from portico.compat.fastmcp import FastMCP, LocalProvider
from portico.compat.fastmcp.auth import (
    IntrospectionTokenVerifier,
    MultiAuth,
    RemoteAuthProvider,
    StaticTokenVerifier,
    SupabaseProvider,
)
from portico.compat.fastmcp.dependencies import get_access_token
from portico.compat.mcp_sdk import AuthSettings, LowLevelServer
from portico.compat.mcp_sdk.extension import Extension, MethodBinding
from portico.protocol.errors import (
    ComponentNotFound,
    InsufficientScope,
    InvalidParams,
    ResourceNotFound,
    ToolError,
    UsageError,
)
from portico.rpc.call import Call
from portico.server.components.auth_checks import AuthMiddleware, require_scopes, restrict_tag
from portico.server.middleware import ResponseCachingMiddleware
from portico.server.policy import settings as access_settings
from portico.server.providers import FileSystemProvider
from portico.server.transforms import forward
from portico.server.transforms.arguments import ArgTransform
from portico.server.transforms.builtin import Namespace, ToolTransform
from portico_gateway.policy.engine import PolicyEngine
from portico_gateway.policy.settings import parse_rules

BOB = Principal("bob", frozenset())


async def ask(server: Server, method: str, params: dict[str, Any] | None = None, **about: Any) -> Any:
    said = msgspec.Raw(msgspec.json.encode(params or {}))
    result = await server(Call(method=method, params=said, id=1, protocol_version="2026-07-28", **about))
    return msgspec.json.decode(msgspec.json.encode(result))


async def text(server: Server, name: str, arguments: dict[str, Any] | None = None, **about: Any) -> str:
    result = await ask(server, "tools/call", {"name": name, "arguments": arguments or {}}, **about)
    return str(result["content"][0]["text"])


def search(q: str, admin: bool = False) -> str:
    return f"{q} {admin}"


def guarded(*tables: dict[str, Any]) -> PolicyEngine:
    return PolicyEngine(parse_rules(list(tables)))


class Seen:
    """A witness."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_request(self, passage: Any) -> None: ...

    def on_response(self, passage: Any, result: Any, failure: BaseException | None) -> None:
        if passage.component is not None:
            self.names.append(passage.component.name)

    def on_rejected(self, status: int, reason: str, address: str | None) -> None: ...


# Shapes


@pytest.mark.parametrize("way", ["from_tool", "transform"])
async def test_hidden_argument_cannot_be_set_by_clients(way: str) -> None:
    server = FastMCP("s")
    changes = {"admin": ArgTransform(hide=True)}
    if way == "from_tool":
        server.add(Tool.from_tool(search, transform_args=changes))
    else:
        server.tool(search)
        server.add_transform(ToolTransform({"search": {"arguments": changes}}))
    assert await text(server, "search", {"q": "x"}) == "x False"
    with pytest.raises(ToolError, match=r"Unknown argument 'admin'. Accepted: 'q'."):
        await text(server, "search", {"q": "x", "admin": True})


async def test_tool_that_is_not_listed_is_not_had_without_its_shape() -> None:
    server = FastMCP("s")
    server.tool(visibility=["app"])(search)
    server.add_transform(ToolTransform({"search": {"arguments": {"admin": ArgTransform(hide=True)}}}))
    with pytest.raises(InvalidParams, match="Unknown tool: search"):
        await text(server, "search", {"q": "x", "admin": True})


async def test_invalid_transform_removes_only_its_tool() -> None:
    server = FastMCP("s")
    server.tool(search)
    server.tool("other")(search)
    server.add_transform(ToolTransform({"search": {"arguments": {"misspelt": {"hide": True}}}}))
    assert [tool["name"] for tool in (await ask(server, "tools/list"))["tools"]] == ["other"]
    with pytest.raises(InvalidParams, match="Unknown tool: search"):
        await text(server, "search", {"q": "x"})


async def test_function_reaches_the_tool_behind_it_each_time() -> None:
    async def middle(q: str) -> str:
        return "middle " + str((await forward(q=q)).content[0].text)

    async def top(q: str) -> list[str]:
        return [str((await forward(q=q)).content[0].text) for _ in range(2)]

    server = FastMCP("s")
    server.add(Tool.from_tool(Tool.from_tool(search, name="m", transform_fn=middle), name="t", transform_fn=top))
    result = await ask(server, "tools/call", {"name": "t", "arguments": {"q": "x"}})
    assert result["structuredContent"] == {"result": ["middle x False", "middle x False"]}


async def test_prompt_is_completed_by_the_name_that_it_is_listed_by() -> None:
    server = FastMCP("s")

    @server.prompt
    def colour(name: Literal["red", "green"]) -> str:
        return name

    server.add_transform(Namespace("api"))
    argument = {"name": "name", "value": "r"}
    request = {"ref": {"type": "ref/prompt", "name": "api_colour"}, "argument": argument}
    assert (await ask(server, "completion/complete", request))["completion"]["values"] == ["red"]
    with pytest.raises(InvalidParams, match="Nothing to complete"):
        await ask(server, "completion/complete", {**request, "ref": {"type": "ref/prompt", "name": "colour"}})


# Functions for methods


def functions() -> LowLevelServer:
    server = LowLevelServer("low")

    @server.call_tool()
    async def call_tool(name: str, arguments: dict[str, Any]) -> list[Any]:
        token = get_access_token()
        return ["nobody" if token is None else str(token.subject)]

    @server.read_resource()
    async def read_resource(uri: str) -> str:
        return uri

    @server.get_prompt()
    async def get_prompt(name: str, arguments: dict[str, Any]) -> Any:
        return {"messages": []}

    return server


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 5}),
        ("resources/read", {}),
        ("resources/read", {"uri": 5}),
        ("prompts/get", {"arguments": {}}),
    ],
)
async def test_params_that_do_not_fit_are_not_for_functions(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match=f"Invalid params for {method}"):
        await ask(functions(), method, params)


async def test_params_that_are_no_text_are_rejected() -> None:
    params = msgspec.Raw(b'{"name": "a", "arguments": {"x": "\xff"}}')
    with pytest.raises(InvalidParams, match="Invalid params for tools/call"):
        await functions()(Call(method="tools/call", params=params, id=1, protocol_version="2026-07-28"))


async def test_function_receives_the_access_token() -> None:
    assert "bob" in await text(functions(), "a", principal=BOB)


@pytest.mark.parametrize("ref", [{"type": "ref/prompt", "name": "p"}, {"type": "ref/resource", "uri": "a://{b}"}])
async def test_rules_are_about_completions_of_a_function_too(ref: dict[str, str]) -> None:
    async def complete(ctx: Any, params: Any) -> Any:
        return {"completion": {"values": ["secret"]}}

    server = LowLevelServer("low", on_completion=complete)
    server.set_policy(
        access_policy=guarded({"principal": "ann", "prompt": "low.*"}, {"principal": "ann", "resource": "low.*"})
    )
    request = {"ref": ref, "argument": {"name": "b", "value": ""}}
    assert (await ask(server, "completion/complete", request, principal=Principal("ann")))["completion"]
    with pytest.raises(InvalidParams, match="Nothing to complete"):
        await ask(server, "completion/complete", request, principal=BOB)


@pytest.mark.parametrize(
    ("identifier", "method"), [("com/x", "completion/complete"), ("t/x", "tools/call"), ("com.example/x", "tasks/all")]
)
def test_extension_answers_no_method_that_rules_are_about(identifier: str, method: str) -> None:
    async def answer(ctx: Any, params: Any) -> Any:
        return {}

    class Taking(Extension):
        def methods(self) -> list[MethodBinding]:
            return [MethodBinding(method, dict, answer)]

    Taking.identifier = identifier
    with pytest.raises(UsageError, match="is a protocol method"):
        FastMCP("s").add_extension(Taking())


# Providers


async def test_rules_apply_to_tools_a_provider_adds_later() -> None:
    bundle = LocalProvider("books")
    server = FastMCP("s", providers=[bundle])
    bundle.tool("late")(search)
    server.set_policy(
        access_policy=guarded({"principal": "*", "tool": "books.*", "deny": True}, {"principal": "*", "tool": "*"})
    )
    assert server.qualified_name("tool", "late").owner == "books"
    with pytest.raises(ComponentNotFound):
        await text(server, "late", {"q": "x"}, principal=BOB)
    server.remove("books")
    assert server.registry.tool("late") is None


def reads(name: str) -> str:
    return name


async def test_path_values_outside_the_folder_never_reach_the_function(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from portico import resource\n\n@resource('file://{name}')\ndef read(name: str) -> str:\n    return name\n"
    )
    bundle = LocalProvider()
    bundle.resource("bundle://{name}")(reads)
    server = FastMCP("s", providers=[FileSystemProvider(tmp_path), bundle])
    for scheme in ("file", "bundle"):
        assert (await ask(server, "resources/read", {"uri": f"{scheme}://x"}))["contents"]
        for value in ("..%2Fx", "%2Fetc"):
            with pytest.raises(ResourceNotFound):
                await ask(server, "resources/read", {"uri": f"{scheme}://{value}"})


async def test_file_that_exits_is_skipped_and_disabled_tools_stay_disabled(tmp_path: Path) -> None:
    source = "from portico import tool\n\n@tool\ndef wipe() -> str:\n    return 'one'\n"
    (tmp_path / "a.py").write_text(source)
    server = FastMCP("s", providers=[FileSystemProvider(tmp_path, reload=True)])
    server.disable(names={"wipe"})
    (tmp_path / "b.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "a.py").write_text(source.replace("one", "another"))
    assert (await ask(server, "tools/list"))["tools"] == []
    server.enable(names={"wipe"})
    assert await text(server, "wipe") == "another"


# What stands around a server


async def test_pages_are_hidden_from_models_under_rules_too() -> None:
    server = FastMCP("s")
    server.tool("both")(search)
    server.tool("page", visibility=["app"])(search)
    server.set_policy(access_policy=guarded({"principal": "*", "tool": "*"}))
    assert [tool["name"] for tool in (await ask(server, "tools/list"))["tools"]] == ["both"]


async def test_tag_restriction_applies_to_mounted_tools() -> None:
    inner = FastMCP("inner")
    inner.tool("wipe", tags={"admin"})(search)
    inner.tool("plain")(search)
    server = FastMCP("s", middleware=[AuthMiddleware(restrict_tag("admin", scopes=["admin"]))])
    server.mount(inner, "in")
    with pytest.raises(InsufficientScope):
        await text(server, "in_wipe", {"q": "x"}, principal=BOB)
    assert await text(server, "in_plain", {"q": "x"}, principal=BOB) == "x False"
    assert await text(server, "in_wipe", {"q": "x"}, principal=Principal("ann", frozenset({"admin"}))) == "x False"


async def test_calls_to_session_enabled_tools_are_audited() -> None:
    server, seen = FastMCP("s"), Seen()
    server.tool("quiet")(search)

    @server.tool
    async def show(ctx: Context) -> str:
        await ctx.enable_components(names={"quiet"})
        return "shown"

    server.disable(names={"quiet"})
    server.set_policy(audit_hook=seen)
    async with Client(server, protocol_version="2025-11-25") as client:
        await client.call_tool("show")
        assert (await client.call_tool("quiet", {"q": "x"})).content
    assert "quiet" in seen.names


async def test_request_body_does_not_grant_permissions() -> None:
    server = FastMCP("s")
    server.tool("admin", scopes=["admin"])(search)
    server.tool("checked", auth=require_scopes("admin"))(search)

    @server.tool
    async def relay(name: str) -> str:
        return str(await server.call_tool(name, {"q": "x"}))

    for name in ("admin", "checked"):
        with pytest.raises(InsufficientScope):
            await text(server, "relay", {"name": name}, principal=BOB, address="10.0.0.1")
    assert "x False" in await text(server, "relay", {"name": "admin"})


async def test_cached_result_is_shared_only_between_equal_callers() -> None:
    server = FastMCP(
        "s", request_headers=["x-tenant"], middleware=[ResponseCachingMiddleware(tools=["whose", "checked"])]
    )
    allowed = [True]

    @server.tool
    def whose(ctx: Context) -> str:
        return f"{ctx.headers.get('x-tenant')} {ctx.principal.claims.get('org')}"

    @server.tool(auth=lambda context: allowed[0])
    def checked() -> str:
        return "yes"

    for tenant, org in (("a", "x"), ("b", "x"), ("b", "y")):
        who = Principal("bob", frozenset(), claims={"org": org})
        headers = {b"x-tenant": tenant.encode()}
        assert await text(server, "whose", principal=who, headers=headers, address="10.0.0.1") == f"{tenant} {org}"
    assert await text(server, "checked", principal=BOB) == "yes"
    allowed[0] = False
    with pytest.raises(ComponentNotFound):
        await text(server, "checked", principal=BOB)


# Tokens


def tokens(**known: list[str]) -> StaticTokenVerifier:
    return StaticTokenVerifier(
        {name: {"client_id": name, "scopes": scopes} for name, scopes in known.items()}, ["read"]
    )


SETTINGS = {"issuer_url": "https://login.example", "resource_server_url": "https://api.example/mcp"}


@pytest.mark.parametrize(
    ("auth", "verifier"),
    [
        (RemoteAuthProvider(tokens(), ["https://login.example"], "https://api.example"), None),
        (
            RemoteAuthProvider(
                IntrospectionTokenVerifier(
                    introspection_url="https://login.example/i",
                    client_id="c",
                    client_secret="s",
                    required_scopes=["read"],
                ),
                ["https://login.example"],
                "https://api.example",
            ),
            None,
        ),
        (AuthSettings(**SETTINGS), tokens()),
        (SupabaseProvider(project_url="https://login.example", base_url="https://api.example"), tokens()),
        (MultiAuth(server=AuthSettings(**SETTINGS), verifiers=[], required_scopes=["read"]), tokens()),
    ],
    ids=["remote", "introspection", "settings", "issuer", "several"],
)
def test_scopes_that_a_verifier_requires_are_required(auth: Any, verifier: Any) -> None:
    resource = FastMCP("s", auth=auth, token_verifier=verifier).auth
    assert resource is not None
    assert resource.required_scopes == {"read"}


async def test_each_verifier_has_its_own_tokens_and_scopes() -> None:
    resource = FastMCP("s", auth=MultiAuth(verifiers=[tokens(a=["read"]), tokens(b=["read"], c=[])])).auth
    assert resource is not None
    for token in ("a", "b"):
        result = await resource.verifier(RequestCredentials("bearer", token))
        assert isinstance(result, VerifiedToken)
        assert result.principal.id == token
    for token in ("c", "d"):
        with pytest.raises(InvalidToken):
            await resource.verifier(RequestCredentials("bearer", token))


def test_custom_route_is_served_at_one_path_only() -> None:
    server = FastMCP("s")
    server.custom_route("/health")(lambda request: "well")
    with pytest.raises(UsageError, match="/health is already registered"):
        server.custom_route("/health", methods=["get"])
    with pytest.raises(UsageError, match="must not have variables"):
        server.custom_route("/users/{id}")


@pytest.mark.parametrize("path", ["/readyz", "/metrics", "/console", "/console/login"])
def test_page_is_not_where_the_server_itself_answers(path: str) -> None:
    with pytest.raises(UsageError, match="reserved for the server itself"):
        FastMCP("s").custom_route(path)


def test_clients_post_to_the_root_where_users_may_be_shown_a_page() -> None:
    server = FastMCP("s")
    server.custom_route("/")(lambda request: "welcome")
    with pytest.raises(UsageError, match="reserved for the server itself"):
        server.custom_route("/", methods=["GET", "POST"])


@pytest.mark.parametrize(
    "path",
    [
        "/mcp",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/token",
    ],
)
def test_page_shadows_neither_the_endpoint_nor_the_login(path: str) -> None:
    server = FastMCP("s", store="sqlite://")
    server.custom_route(path, methods=["GET", "POST"])(lambda request: "mine")
    proxy = {"provider": "oidc", "issuer": "https://login.example.com", "client_id": "c", "client_secret": "s"}
    access_settings.apply(
        server, access_settings.read({"auth": {"public_url": "https://files.example.com", "proxy": proxy}})
    )
    with pytest.raises(UsageError, match="cannot add a route at"):
        server.http_app()
