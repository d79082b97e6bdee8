"""Options and arguments that Portico does not have: `portico.compat` refuses every one of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

import pytest

import portico.compat
import portico.compat.fastmcp as fastmcp
import portico.compat.mcp_sdk as mcp_sdk
from portico import Client, Context, PorticoError, Server, ToolError, UsageError
from portico.compat.base import HTTP_UNSUPPORTED, CompatServer
from portico.compat.fastmcp import FastMCP
from portico.compat.mcp_sdk import LowLevelServer, MCPServer
from portico.compat.unsupported import UnsupportedFeature
from portico_gateway.authserver import fastmcp_providers

UNKNOWN = "no_such_option"


async def _function() -> str:
    return ""


# Values for the parameters that a callable needs.
SAMPLES: dict[str, Any] = {
    "name": "s", "method": "x/y", "uri": "data://x", "text": "x", "path": "/", "content": "x", "resource": _function,
    "fn": _function, "handler": _function, "params_type": dict, "target": "http://localhost:1/mcp", "tag": "t",
    "scopes": ["a"], "issuer_url": "https://a.example", "introspection_url": "https://a.example/i", "client_id": "c",
    "client_secret": "s", "tokens": {}, "base_url": "https://a.example", "authorization_servers": [], "prefix": "p",
    "token_verifier": None, "messages": [], "contents": [], "transforms": {}, "root": "/nowhere", "roots": "/nowhere",
    "server": Server("s"), "auth": (), "ctx": None, "identifier": "a/b", "keys": [b"k" * 32], "code": 1, "message": "m",
    "transport": "stdio", "version_gte": "1", "kind": "tool",
}  # fmt: skip


def _public_callables() -> Iterator[Any]:
    for module in (fastmcp, mcp_sdk):
        for name in dir(module):
            value = getattr(module, name) if not name.startswith("_") else None
            # `forward` passes its keywords on to a tool.
            if not callable(value) or get_origin(value) is not None or value is Any or name.startswith("forward"):
                continue
            yield pytest.param(value, id=f"{module.__name__.rpartition('.')[2]}.{name}")


def _required(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:
        return {}
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        parameter.name: SAMPLES.get(parameter.name, "x")
        for parameter in parameters
        if parameter.kind in keyword and parameter.default is parameter.empty
    }


@pytest.mark.parametrize("fn", list(_public_callables()))
def test_unknown_keyword_raises(fn: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, UsageError), match=f"{UNKNOWN}|takes no (keyword )?arguments"):
        fn(**_required(fn), **{UNKNOWN: 1})


@pytest.mark.parametrize("kind", [FastMCP, MCPServer, mcp_sdk.FastMCP, LowLevelServer])
@pytest.mark.parametrize("decorator", ["tool", "prompt", "resource"])
def test_decorator_rejects_an_unknown_keyword(kind: type[CompatServer], decorator: str) -> None:
    arguments = ("data://x",) if decorator == "resource" else ()
    with pytest.raises((TypeError, UsageError), match=UNKNOWN):
        getattr(kind("s"), decorator)(*arguments, **{UNKNOWN: 1})(_function)


METHODS = {
    FastMCP: "run http_app mount custom_route enable disable add_tool add_prompt add_provider from_openapi",
    MCPServer: "run streamable_http_app sse_app custom_route add_tool add_prompt",
    LowLevelServer: "run call_tool create_initialization_options get_capabilities",
}


@pytest.mark.parametrize(("kind", "method"), [(kind, one) for kind, names in METHODS.items() for one in names.split()])
def test_method_rejects_an_unknown_keyword(kind: type[CompatServer], method: str) -> None:
    fn = getattr(kind("s"), method)
    values = {**_required(fn), "tool": _function, "fn": _function, "prompt": _function}
    given = {name: value for name, value in values.items() if name in inspect.signature(fn).parameters}
    if method == "mount":
        given["server"] = Server("inner")
    if method == "from_openapi":
        given["openapi_spec"] = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}
    with pytest.raises((TypeError, UsageError), match=UNKNOWN):
        fn(**given, **{UNKNOWN: 1})


def _tables() -> Iterator[tuple[str, Mapping[str, UnsupportedFeature]]]:
    """Every table of unsupported options in the modules of `portico.compat`."""
    modules = [
        importlib.import_module(walk_package.name)
        for walk_package in pkgutil.walk_packages(portico.compat.__path__, "portico.compat.")
    ]
    for module in [*modules, fastmcp_providers]:
        for name, value in vars(module).items():
            if (
                isinstance(value, dict)
                and value
                and all(isinstance(walk_package, UnsupportedFeature) for walk_package in value.values())
            ):
                yield f"{module.__name__}.{name}", value


def test_every_unsupported_option_names_an_alternative() -> None:
    tables = dict(_tables())
    assert len(tables) >= 15
    for where, table in tables.items():
        for name, option in table.items():
            assert len(option.alternative) > 8, (where, name)


class _Other:
    """A value that no option accepts."""


def _unsupported() -> Iterator[Any]:
    auth = importlib.import_module("portico.compat.fastmcp.auth")
    middleware = importlib.import_module("portico.compat.fastmcp.middleware")
    settings = importlib.import_module("portico.compat.mcp_sdk.settings")
    providers = importlib.import_module("portico.compat.fastmcp.providers")
    server = importlib.import_module("portico.compat.fastmcp.server")
    lowlevel = importlib.import_module("portico.compat.mcp_sdk.lowlevel")
    rows: list[tuple[Any, Mapping[str, UnsupportedFeature]]] = [
        (FastMCP, FastMCP.unsupported),
        (MCPServer, MCPServer.unsupported),
        (FastMCP("s").http_app, {k: v for k, v in HTTP_UNSUPPORTED.items() if k != "middleware"}),
        (lambda **options: FastMCP("s").run("http", **options), HTTP_UNSUPPORTED),
        (lambda **options: MCPServer("s").run("streamable-http", **options), HTTP_UNSUPPORTED),
        (MCPServer("s").streamable_http_app, HTTP_UNSUPPORTED),
        (FastMCP("s").tool, server._TOOL_UNSUPPORTED),
        (lambda **options: FastMCP("s").resource("data://x", **options), server._RESOURCE_UNSUPPORTED),
        (FastMCP("s").prompt, server._PROMPT_UNSUPPORTED),
        (lambda **options: FastMCP("s").mount(Server("t"), **options), server._MOUNT_UNSUPPORTED),
        (FastMCP("s").enable, server._VERSION),
        (FastMCP("s").disable, server._VERSION),
        (lambda **options: FastMCP.from_openapi({}, **options), server._OPENAPI_UNSUPPORTED),
        (lambda **options: FastMCP("s").custom_route("/x", **options), server._ROUTE_UNSUPPORTED),
        (auth.JWTVerifier, auth._VERIFIER_UNSUPPORTED),
        (fastmcp.MultiAuth, auth._PROVIDER_UNSUPPORTED),
        (fastmcp.AuthKitProvider, auth._ISSUER_UNSUPPORTED),
        (mcp_sdk.AuthSettings, settings._AUTH_UNSUPPORTED),
        (mcp_sdk.RequestStateSecurity, settings._REQUEST_STATE_UNSUPPORTED),
        (mcp_sdk.RequestStateSecurity.ephemeral, settings._REQUEST_STATE_UNSUPPORTED),
        (fastmcp.LoggingMiddleware, middleware._LOGGING_UNSUPPORTED),
        (fastmcp.RetryMiddleware, middleware._RETRY_UNSUPPORTED),
        (fastmcp.ResponseCachingMiddleware, middleware._CACHING_UNSUPPORTED),
        (fastmcp.ResponseLimitingMiddleware, middleware._LIMITING_UNSUPPORTED),
        (fastmcp.ErrorHandlingMiddleware, middleware._ERRORS_UNSUPPORTED),
        (fastmcp.LocalProvider, providers._LOCAL_UNSUPPORTED),
        (fastmcp.SkillsDirectoryProvider, providers._SKILLS_UNSUPPORTED),
        (fastmcp.create_proxy, providers._PROXY_UNSUPPORTED),
        (
            lambda **options: LowLevelServer("s").run(lowlevel._StandardStreams(), None, None, **options),
            lowlevel._RUN_UNSUPPORTED,
        ),
        *((provider, fastmcp_providers._UNSUPPORTED) for provider in fastmcp_providers.PROVIDERS.values()),
    ]
    for fn, table in rows:
        for name, option in table.items():
            yield pytest.param(fn, name, option, id=f"{getattr(fn, '__qualname__', fn)}-{name}")


@pytest.mark.parametrize(("fn", "name", "option"), list(_unsupported()))
def test_unsupported_option_raises_with_the_alternative(
    fn: Callable[..., Any], name: str, option: UnsupportedFeature
) -> None:
    values = {key: value for key, value in _required(fn).items() if key != name}
    with pytest.raises(UsageError) as raised:
        fn(**values, **{name: _Other()})
    assert name in str(raised.value)
    assert option.alternative in str(raised.value)


async def test_options_of_a_context_are_rejected() -> None:
    server = FastMCP("s")
    refused: dict[str, str] = {}

    @server.tool
    async def ask(ctx: fastmcp.Context) -> str:
        calls: dict[str, Callable[[], Any]] = {
            "serializable": lambda: ctx.set_state("a", 1, serializable=False),
            "version": lambda: ctx.enable_components(version=object()),
            "keys": lambda: ctx.disable_components(keys={"tool:a"}),
            "response_title": lambda: ctx.elicit("?", str, response_title="x"),
            UNKNOWN: lambda: ctx.set_state("a", 1, **{UNKNOWN: 1}),
            "include_context": lambda: ctx.session.create_message([], max_tokens=1, include_context="allServers"),
        }
        for name, call in calls.items():
            try:
                await call()
            except UsageError as error:
                refused[name] = str(error)
        return "done"

    async with Client(server) as client:
        await client.call_tool("ask")
    assert set(refused) == {"serializable", "version", "keys", "response_title", UNKNOWN, "include_context"}
    assert "ctx.lifespan_context" in refused["serializable"]


async def test_asgi_middleware_wraps_the_application() -> None:
    seen: list[str] = []

    class Layer:
        def __init__(self, app: Any, *, name: str) -> None:
            self._app, self._name = app, name

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append(self._name)
            if scope["path"] == "/closed":
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._app(scope, receive, send)

    class StarletteMiddleware:
        def __init__(self, cls: Any, **kwargs: Any) -> None:
            self.cls, self.args, self.kwargs = cls, (), kwargs

    app = FastMCP("s").http_app(middleware=[StarletteMiddleware(Layer, name="a"), StarletteMiddleware(Layer, name="b")])
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app({"type": "http", "path": "/closed", "method": "GET", "headers": []}, receive, send)
    assert seen == ["a"]
    assert sent[0]["status"] == 403
    assert callable(app.lifespan)


async def test_native_server_has_no_names_of_other_projects() -> None:
    for name in (
        "http_defaults",
        "streamable_http_app",
        "sse_app",
        "session_manager",
        "add_extension",
        "render_prompt",
    ):
        assert not hasattr(Server, name), name
    for name in ("fastmcp", "mcp_server", "request_context", "session", "send_notification", "close_sse_stream"):
        assert not hasattr(Context, name), name
    for kind in (Server, Context):
        assert not any("compat" in base.__module__ for base in kind.__mro__)


def test_server_does_not_import_compat() -> None:
    package = Path(str(portico.compat.__file__)).parents[1] / "server"
    assert not [path for path in package.rglob("*.py") if "portico.compat" in path.read_text()]


def test_state_is_opened_with_every_key_of_a_native_server() -> None:
    old, new = b"o" * 32, b"n" * 32
    state = Server("s", request_state_keys=old).state_sealer.seal(b"binding", {}, {}, [])
    assert Server("s", request_state_keys=[new, old]).state_sealer.unseal(state, b"binding") is not None
    with pytest.raises(PorticoError):
        Server("s", request_state_keys=new).state_sealer.unseal(state, b"binding")


def test_audience_of_a_provider_is_checked() -> None:
    options = {"tenant_id": "t", "client_id": "app", "base_url": "https://a.example"}
    resource = FastMCP("s", auth=fastmcp.AzureJWTVerifier(**options)).auth
    assert resource is not None
    assert "app" in resource.audiences
    assert resource.authorization_servers == ["https://login.microsoftonline.com/t/v2.0"]


def test_login_providers_need_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    from portico import plugins
    from portico.compat.fastmcp import login_providers

    monkeypatch.setattr(plugins, "find_plugin", lambda name: None)
    with pytest.raises(ImportError, match=r"portico-gateway, which is not installed: pip install "):
        _ = login_providers.GitHubProvider


def test_error_of_a_tool_is_one_class() -> None:
    assert fastmcp.ResourceError is ToolError
