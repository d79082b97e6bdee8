"""The policy engine: decisions, confirmation by the user, and no bypass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from portico import Client, Context, Server, Service, ToolError, UsageError
from portico.auth.principal import Principal
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import ComponentNotFound, InvalidParams, ProtocolError, ResourceNotFound
from portico.protocol.uri_forms import uri_variants
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.server.policy import settings as access_settings
from portico.server.policy.interfaces import QualifiedName
from portico_gateway import Gateway
from portico_gateway.policy.patterns import (
    compile_glob,
    compile_template_glob,
    glob_covers,
    globs_intersect,
    parse_pattern,
)
from portico_gateway.policy.settings import parse_requirements
from portico_services.contracts import Contracts

OPS = Principal("olga", groups=frozenset({"ops"}), scopes=frozenset({"files:read"}))
GUEST = Principal("gina", scopes=frozenset())


def said(server: Server, **tables: Any) -> Server:
    access_settings.apply(server, access_settings.read(tables))
    return server


def forge() -> Server:
    server = Server("forge")

    @server.tool(aliases=["rm_repo"])
    def delete_repo(repo: str) -> str:
        """Delete."""
        return f"deleted {repo}"

    @server.tool
    def read_repo(repo: str) -> str:
        """Read."""
        return repo

    @server.tool
    async def by_proxy(ctx: Context, tool: str) -> str:
        """Call another tool."""
        return str((await ctx.call_tool(tool, {"repo": "x"})).content[0].text)

    @server.tool
    async def ask_twice(ctx: Context) -> str:
        """Ask something itself."""
        return str((await ctx.elicit("How many?", int)).data)

    @server.resource("repo://{name}")
    def repo(name: str) -> str:
        """A repository."""
        return name

    @server.prompt
    def greet(name: str) -> str:
        """Greet."""
        return name

    return server


async def names(client: Client) -> set[str]:
    return {tool.name for tool in await client.list_tools()}


async def test_first_rule_that_matches_decides_and_none_denies() -> None:
    server = said(
        forge(),
        rule=[
            {"principal": "group:ops", "tool": "forge.*"},
            {"tool": "*.delete_*", "deny": True},
            {"tool": "forge.read_*"},
        ],
    )
    async with Client(server, principal=OPS) as client:
        assert await names(client) == {"delete_repo", "read_repo", "by_proxy", "ask_twice"}
        assert not await client.list_prompts() and not await client.list_resource_templates()
    async with Client(server, principal=GUEST) as client:
        assert await names(client) == {"read_repo"}
        assert (await client.call_tool("read_repo", {"repo": "a"})).text == "a"
        with pytest.raises(ComponentNotFound) as denied:
            await client.call_tool("delete_repo", {"repo": "a"})
        server.remove("delete_repo")
        with pytest.raises(ComponentNotFound) as unknown:
            await client.call_tool("delete_repo", {"repo": "a"})
        for item in ("code", "message", "data"):
            assert getattr(denied.value, item) == getattr(unknown.value, item)


@pytest.mark.parametrize("name", ["rm_repo", "delete_repo", "DELETE_REPO", "ｄelete_repo", "delete_repo\u200b"])
async def test_aliases_do_not_bypass_a_deny_rule(name: str) -> None:
    server = said(forge(), rule=[{"tool": "*.delete_*", "deny": True}, {"tool": "*"}])
    async with Client(server, principal=GUEST) as client:
        for _ in range(2):
            with pytest.raises(ComponentNotFound):
                await client.call_tool(name, {"repo": "a"})
        with pytest.raises((ProtocolError, ToolError)):
            await client.call_tool("by_proxy", {"tool": name})


async def test_upstream_cannot_rename_itself_out_of_a_rule() -> None:
    sly = Service("sly")

    @sly.tool("Delete_Repo")
    def shouting(repo: str) -> str:
        """Delete."""
        return repo

    server = forge()
    server.add(sly)
    said(server, rule=[{"tool": "*.delete_*", "deny": True}, {"tool": "*"}])
    async with Client(server, principal=GUEST) as client:
        assert "Delete_Repo" not in await names(client)
        with pytest.raises(ComponentNotFound):
            await client.call_tool("Delete_Repo", {"repo": "a"})


async def test_rules_use_the_original_name_of_a_renamed_tool() -> None:
    gateway = Gateway()
    gateway.add_upstream("hub", forge(), rename={"delete_repo": "harmless"})
    said(gateway, rule=[{"tool": "hub.delete_*", "deny": True}, {"tool": "hub.*"}])
    async with Client(gateway, principal=GUEST) as client:
        assert await names(client) == {
            "hub_read_repo",
            "hub_by-proxy",
            "hub_ask-twice",
        } or "harmless" not in await names(client)
        with pytest.raises(ComponentNotFound):
            await client.call_tool("harmless", {"repo": "a"})
        with pytest.raises(ComponentNotFound):
            await client.call_tool("hub_delete_repo", {"repo": "a"})


async def test_mounts_apply_their_own_and_the_outer_policy() -> None:
    inner = said(forge(), rule=[{"principal": "group:ops", "tool": "*"}, {"tool": "forge.read_repo"}])
    outer = Server("outer")
    outer.mount(inner, "hub")
    said(outer, rule=[{"tool": "hub.delete_*", "deny": True}, {"tool": "*"}])
    async with Client(outer, principal=OPS) as client:
        assert await names(client) == {"hub_read_repo", "hub_by_proxy", "hub_ask_twice"}
        for name in ("hub_delete_repo", "hub_rm_repo"):
            with pytest.raises(ComponentNotFound):
                await client.call_tool(name, {"repo": "a"})
    async with Client(outer, principal=GUEST) as client:
        assert await names(client) == {"hub_read_repo"}
        with pytest.raises(ComponentNotFound):
            await client.call_tool("hub_by_proxy", {"tool": "delete_repo"})


async def test_batches_and_searches_use_only_visible_tools() -> None:
    server = forge()
    server.add(Contracts())
    said(server, rule=[{"tool": "*.delete_*", "deny": True}, {"tool": "*"}])
    batching = replace(GUEST, scopes=frozenset({"contracts:read", "contracts:write"}))
    async with Client(server, principal=batching) as client:
        result = await client.call_tool(
            "tools_batch",
            {"calls": [{"tool_name": item, "arguments": {"repo": "a"}} for item in ("rm_repo", "read_repo")]},
        )
        first, second = result.structured["results"]
        assert first["status"] == "failure" and second["status"] == "success"
        assert "deleted" not in str(first)
        assert "delete_repo" not in (await client.call_tool("tools_search", {"query": "delete a repository"})).text


@pytest.mark.parametrize(
    "uri", ["repo://secret", "repo://%73ecret", "repo://SECRET", "repo://./secret", "REPO://secret"]
)
async def test_no_other_spelling_leads_to_a_denied_resource(uri: str) -> None:
    server = said(forge(), rule=[{"resource": "forge.repo://secret*", "deny": True}, {"resource": "*.repo://*"}])
    async with Client(server, principal=GUEST) as client:
        assert (await client.read_resource("repo://open"))[0].text == "open"
        with pytest.raises(ResourceNotFound) as denied:
            await client.read_resource(uri)
        assert denied.value.message == f"Resource not found: {uri}"
        assert [resource_template.uri_template for resource_template in await client.list_resource_templates()] == [
            "repo://{name}"
        ]


async def test_completions_and_prompts_follow_the_same_rules() -> None:
    server = said(forge(), rule=[{"prompt": "forge.greet", "principal": "group:ops"}])
    async with Client(server, principal=OPS) as client:
        assert [prompt.name for prompt in await client.list_prompts()] == ["greet"]
        await client.complete({"type": "ref/prompt", "name": "greet"}, "name", "a")
    async with Client(server, principal=GUEST) as client:
        with pytest.raises(ComponentNotFound):
            await client.get_prompt("greet", {"name": "a"})
        with pytest.raises(InvalidParams) as denied:
            await client.complete({"type": "ref/prompt", "name": "greet"}, "name", "a")
        with pytest.raises(InvalidParams) as unknown:
            await client.complete({"type": "ref/prompt", "name": "nothing"}, "name", "a")
        assert denied.value.message.replace("greet", "") == unknown.value.message.replace("nothing", "")


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_subscription_notifies_only_about_visible_components(revision: str) -> None:
    server = said(forge(), rule=[{"resource": "forge.repo://open*"}])
    notifications: list[str] = []
    async with Client(server, principal=GUEST, protocol_version=revision) as client:
        if revision < "2026":
            with pytest.raises(ResourceNotFound):
                await client.subscribe("repo://secret1")
        async with client.listen(uris=["repo://open1", *(["repo://secret1"] if revision >= "2026" else [])]) as changes:
            server.notify_resource_updated("repo://secret1")
            server.notify_resource_updated("repo://open1")
            async with asyncio.timeout(10):
                async for change in changes:
                    notifications.append(str(change.uri))
                    break
    assert notifications == ["repo://open1"]


def test_rules_match_principals_by_id_group_scope_and_issuer() -> None:
    server = forge()
    guard = said(
        server,
        rule=[
            {"principal": ["olga", "group:dev"], "tool": "forge.read_repo"},
            {"principal": "group:ops and issuer:https://a.example", "tool": "forge.delete_repo"},
            {"principal": "scope:files:read", "prompt": "*"},
            {"principal": "anonymous", "tool": "forge.by_proxy"},
            {"principal": "local", "tool": "forge.ask_twice"},
        ],
    ).policy.access_policy  # type: ignore[union-attr]

    def may(what: str, principal: Any, kind: Any = "tool", address: str | None = None) -> bool:
        call = Call(method="tools/call", principal=principal, address=address)
        return guard.decide(call, kind, server.qualified_name(kind, what), b"").allowed

    assert may("read_repo", OPS) and not may("read_repo", GUEST)
    assert may("read_repo", replace(GUEST, groups=frozenset({"dev"})))
    assert may("delete_repo", replace(OPS, issuer="https://a.example")) and not may("delete_repo", OPS)
    assert may("greet", OPS, "prompt") and not may("greet", GUEST, "prompt")
    assert may("by_proxy", None, address="10.0.0.1") and not may("by_proxy", None)
    assert may("ask_twice", None) and not may("ask_twice", None, address="10.0.0.1")
    # A principal that is called like a group is not in it.
    assert not may("read_repo", Principal("group:dev"))


async def test_dry_run_rule_only_logs_its_decision(caplog: pytest.LogCaptureFixture) -> None:
    server = said(
        forge(), rule=[{"name": "strict", "tool": "*.delete_*", "deny": True, "dry_run": True}, {"tool": "*"}]
    )
    caplog.set_level("INFO", "portico.access")
    async with Client(server, principal=GUEST) as client:
        assert (await client.call_tool("delete_repo", {"repo": "a"})).text == "deleted a"
    assert "rule 1 (strict) denies it" in caplog.text


async def test_needed_scopes_are_named_all_at_once() -> None:
    server = said(
        forge(), require=[{"tool": "*.delete_*", "scopes": ["a", "b"]}, {"tool": "forge.*", "scopes": "files:read"}]
    )
    async with Client(server, principal=OPS) as client:
        assert (await client.call_tool("read_repo", {"repo": "a"})).text == "a"
        with pytest.raises(ToolError, match="needs the scope a, b"):
            await client.call_tool("rm_repo", {"repo": "a"})
    async with Client(server) as client:
        assert (await client.call_tool("delete_repo", {"repo": "a"})).text == "deleted a"


ASK = [{"tool": "*.delete_*", "confirm": "Delete {arguments.repo}?"}, {"tool": "*.ask_twice", "confirm": "Really?"}]


@pytest.mark.parametrize("revision", [one for one in SUPPORTED_PROTOCOL_VERSIONS if one >= "2025-06-18"])
@pytest.mark.parametrize("nested", ["", "mount", "gateway"])
async def test_confirmation_is_requested_on_every_version(revision: str, nested: str) -> None:
    server, request, answer = forge(), list[str](), "accept"
    name = "hub_delete_repo" if nested else "delete_repo"
    if nested == "mount":
        outer = Server("outer")
        outer.mount(server, "hub")
        server = outer
    elif nested == "gateway":
        server = Gateway({"hub": server})
    said(server, require=ASK)

    async def elicit(params: Any) -> ElicitResult:
        request.append(params.message)
        return ElicitResult(
            action=answer if "many" not in params.message else "accept",
            content={"value": 3} if "many" in params.message else {},
        )  # type: ignore[arg-type]

    async with Client(server, principal=OPS, protocol_version=revision, elicitation_handler=elicit) as client:
        assert (await client.call_tool(name, {"repo": "a\u202eb"})).text == "deleted a\u202eb"
        assert request == ["Delete a\\u202eb?"]
        request.clear()
        assert (await client.call_tool(name.replace("delete_repo", "ask_twice"), {})).text == "3"
        assert request == ["Really?", "How many?"]
        answer = "decline"
        with pytest.raises(ToolError, match="did not consent"):
            await client.call_tool(name, {"repo": "a"})
    async with Client(server, principal=OPS, protocol_version=revision) as client:
        with pytest.raises(ToolError, match="does not support elicitation"):
            await client.call_tool(name, {"repo": "a"})


async def test_nested_calls_require_confirmation() -> None:
    server, request = said(forge(), require=ASK), list[str]()

    async def elicit(params: Any) -> ElicitResult:
        request.append(params.message)
        return ElicitResult(action="accept", content={})

    async with Client(server, elicitation_handler=elicit) as client:
        assert (await client.call_tool("by_proxy", {"tool": "rm_repo"})).text == "deleted x"
    assert request == ["Delete x?"]


async def test_agreement_is_valid_for_one_call_of_one_principal() -> None:
    server = said(forge(), require=ASK)
    able = {"elicitation": {"form": {}}}

    async def call(principal: Principal, repo: str, **more: Any) -> Any:
        import msgspec

        from portico.protocol.meta import ClientCapabilities

        params = msgspec.Raw(msgspec.json.encode({"name": "delete_repo", "arguments": {"repo": repo}, **more}))
        capabilities = msgspec.convert(able, ClientCapabilities)
        return await server(
            Call(
                method="tools/call",
                params=params,
                id=1,
                protocol_version="2026-07-28",
                principal=principal,
                capabilities=capabilities,
            )
        )

    response = await call(OPS, "a")
    yes = {
        "inputResponses": {"agreement-1": {"action": "accept", "content": {}}},
        "requestState": response.request_state,
    }
    for principal, repo in ((GUEST, "a"), (OPS, "b")):
        # Asked again, and nothing is done.
        assert (await call(principal, repo, **yes)).input_requests.keys() == {"agreement-1"}
    assert (await call(OPS, "a", **yes)).content[0].text == "deleted a"
    with pytest.raises(InvalidParams, match="used before"):
        await call(OPS, "a", **yes)
    again = await call(OPS, "a", inputResponses=yes["inputResponses"])
    assert again.request_state


@pytest.mark.parametrize(
    "tables, words",
    [
        ({"rule": [{"tol": "a.b"}]}, ("[[rule]] 1", "tol", "tool")),
        ({"rule": [{"tool": "a.b"}, {"tool": "delete"}]}, ("[[rule]] 2", "tool", "*.delete")),
        ({"rule": [{"principal": "gruop:ops"}]}, ("[[rule]] 1", "principal", "group")),
        ({"rule": [{"principal": []}]}, ("[[rule]] 1", "principal")),
        ({"rule": {"tool": "a.b"}}, ("[[rule]]",)),
        ({"rule": [{"allow": True, "deny": True}]}, ("[[rule]] 1", "allow", "deny")),
        ({"require": [{"tool": "*"}]}, ("[[require]] 1", "scopes", "confirm")),
        ({"require": [{"confirm": "Delete {arg.repo}?"}]}, ("[[require]] 1", "confirm", "arg.repo", "arguments.NAME")),
        ({"rule": [{"dry_run": "yes"}]}, ("[[rule]] 1", "dry_run")),
    ],
)
def test_mistake_names_the_table_and_the_key(tables: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as mistake:
        access_settings.read(tables)
    assert all(word in str(mistake.value) for word in words), str(mistake.value)


@pytest.mark.parametrize(
    "glob, text, found",
    [
        ("a*", "abc", True),
        ("a?c", "abc", True),
        ("a\\*", "abc", False),
        ("a\\*", "a*", True),
        ("*b*b*", "abab", True),
        ("*b*c", "abab", False),
        ("", "", True),
        ("*", "", True),
    ],
)
def test_globs(glob: str, text: str, found: bool) -> None:
    assert glob_covers(compile_glob(glob), text) is found
    assert globs_intersect(compile_glob(glob), text) is found


def test_template_meets_the_rules_that_may_mean_some_of_it() -> None:
    assert globs_intersect(compile_glob("notes://public*"), compile_template_glob("notes://{id}"))
    assert not globs_intersect(compile_glob("files://*"), compile_template_glob("notes://{id}"))
    assert parse_pattern("", "a.notes://*").matches_for_deny("template", "a", "notes://{id}")
    assert not parse_pattern("", "a.notes://secret*").matches_for_deny("template", "a", "notes://{id}")
    assert "repo://a" in uri_variants("repo://x/../a")


def test_condition_without_cel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from portico_gateway.policy import conditions

    monkeypatch.setattr(conditions, "_environments", [])
    monkeypatch.setitem(__import__("sys").modules, "cel_expr_python.cel", None)
    with pytest.raises(UsageError, match=r"\[\[rule\]\] 1: when .*portico-gateway\[cel\]"):
        access_settings.read({"rule": [{"when": "true"}]})


async def test_conditions_use_caller_and_arguments() -> None:
    pytest.importorskip("cel_expr_python", reason="conditions need portico-gateway[cel]")
    server = said(
        forge(),
        rule=[
            {"tool": "forge.delete_repo", "deny": True, "when": "arguments.repo == 'main'"},
            {"tool": "forge.delete_repo", "when": "principal.team in ['core']"},
            {"tool": "forge.read_repo", "when": "arguments.repo in principal.repos"},
        ],
    )
    core = Principal("carl", claims={"team": "core", "repos": ["a"]})
    async with Client(server, principal=core) as client:
        assert await names(client) == {"delete_repo", "read_repo"}
        assert (await client.call_tool("delete_repo", {"repo": "a"})).text == "deleted a"
        assert (await client.call_tool("read_repo", {"repo": "a"})).text == "a"
        for tool, repo in (("delete_repo", "main"), ("read_repo", "b")):
            with pytest.raises(ComponentNotFound):
                await client.call_tool(tool, {"repo": repo})
    async with Client(server, principal=GUEST) as client:
        assert await names(client) == {"read_repo"}
        with pytest.raises(ComponentNotFound):
            await client.call_tool("delete_repo", {"repo": "a"})
    with pytest.raises(UsageError, match=r"\[\[rule\]\] 1: when: invalid CEL expression 'nope'"):
        access_settings.read({"rule": [{"when": "nope"}]})


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"about":{"repo":"main","repo":"a"}}',
        b'{"about":{"repo":"a","Repo":"main"}}',
        b'{"about":{"repo":"a"},"About":{"repo":"main"}}',
        b'{"about":{"re\\u0070o":"main","repo":"a"}}',
        b'{"about":{"repo":"main"},"deep":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"about":{"repo":"main"},"long":' + b"1" * 5000 + b"}",
        b'{"about":{"repo":"main"},"half":"\\ud800"}',
        b'{"about":{"repo":"main"},"none":NaN}',
    ],
    ids=["twice", "in another case", "above", "escaped", "deep", "long", "half", "none"],
)
def test_ambiguous_arguments_do_not_bypass_conditions(arguments: bytes) -> None:
    """A gateway sends arguments on as they came, and what an upstream makes of them is its own affair."""
    pytest.importorskip("cel_expr_python", reason="conditions need portico-gateway[cel]")
    what, call = QualifiedName("forge", "delete_repo"), Call(method="tools/call", principal=OPS)
    denying = [
        {"tool": "forge.*", "deny": True, "when": "has(arguments.about) && arguments.about.repo == 'main'"},
        {"tool": "*"},
    ]
    for rules in (denying, [{"tool": "forge.*", "when": "!has(arguments.about) || arguments.about.repo != 'main'"}]):
        guard = said(forge(), rule=rules).policy.access_policy  # type: ignore[union-attr]
        assert not guard.decide(call, "tool", what, arguments).allowed
        assert guard.decide(call, "tool", what, b'{"about":{"repo":"a"}}').allowed
    [asked] = parse_requirements([{"tool": "*", "confirm": "Delete {arguments.about.repo}?"}])
    assert asked.ask.render(call, what, arguments) == "Delete ??"


async def test_no_middleware_leads_around_a_rule() -> None:
    """Rules are the innermost: what a middleware makes of a call is what they are asked about."""
    server = said(forge(), rule=[{"tool": "forge.read_repo"}])

    async def renames(call: Call, follow: Any) -> Any:
        other = bytes(call.params).replace(b"read_repo", b"delete_repo")
        return await follow(replace(call, params=Raw(other), read=None))

    server.add_middleware(lambda handler: lambda call: renames(call, handler))
    async with Client(server, principal=OPS) as client:
        with pytest.raises(ComponentNotFound):
            await client.call_tool("read_repo", {"repo": "x"})


def test_changed_login_settings_require_a_restart() -> None:
    before = access_settings.read({"auth": {"issuers": ["https://a.example"]}, "rule": [{"principal": "*"}]})
    server = forge()
    access_settings.apply(server, before)
    auth, guard = server.auth, server.policy.access_policy  # type: ignore[union-attr]
    after = access_settings.read({"auth": {"issuers": ["https://b.example"]}, "rule": [{"deny": True}]})
    with pytest.raises(UsageError, match=r"\[auth\] changed; restart the server to apply it"):
        access_settings.change(server, before, after)
    assert server.auth is auth and server.policy.access_policy is guard  # type: ignore[union-attr]
