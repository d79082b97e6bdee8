"""Static, service, exchanged and forwarded credentials for upstreams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from portico import Client, Context, Server, UsageError
from portico.auth import ResourceServer
from portico.auth.principal import Principal
from portico.protocol.errors import ComponentNotFound, ToolError
from portico_gateway import Gateway
from portico_gateway.gateway.upstream import UpstreamProvider
from support.access_control import free_port, served
from support.http_threads import running

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class TokenService(ThreadingHTTPServer):
    """An authorization server without people: it says in each token what it was given for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.forms: list[dict[str, str]] = []


class _Answering(BaseHTTPRequestHandler):
    server: TokenService

    def do_GET(self) -> None:
        if self.path == "/api/shown":
            # The API that is described by a document, and says what it was shown.
            output = self.headers["Authorization"]
            self._say(200 if output else 401, {"shown": output})
            return
        if "oauth-authorization-server" not in self.path:
            self._say(404, {})
            return
        issuer = self.server.issuer
        self._say(200, {"issuer": issuer, "token_endpoint": f"{issuer}/token", "response_types_supported": ["code"]})

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self.server.forms.append(form)
        message: dict[str, Any] = {"token_type": "Bearer", "expires_in": 300}
        kind = form["grant_type"]
        if kind == EXCHANGE and form["requested_token_type"] == ID_JAG:
            message |= {
                "access_token": f"jag:{form['subject_token']}",
                "issued_token_type": ID_JAG,
                "token_type": "N_A",
            }
        elif kind == EXCHANGE:
            message |= {"access_token": f"for:{form['subject_token']}", "refresh_token": "never-used"}
        elif kind == "client_credentials":
            message["access_token"] = "for:ourselves"
        else:
            message["access_token"] = f"for:{form['assertion'].removeprefix('jag:')}"
        self._say(200, message)

    def _say(self, status: int, said: Any) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[TokenService]:
    server = TokenService()
    with running(server):
        yield server


async def take(credentials: Any) -> Principal | None:
    """The upstream takes what the service gives."""
    return Principal(credentials.token, frozenset(), issuer="service") if ":" in credentials.token else None


async def know(credentials: Any) -> Principal | None:
    """The gateway knows people by their names. A slash is followed by a scope, and `@` by the audience."""
    name, _, audience = credentials.token.partition("@")
    name, _, scope = name.partition("/")
    return Principal(name, frozenset([scope] if scope else []), claims={"aud": audience or "urn:gateway"}, issuer="us")


@contextlib.asynccontextmanager
async def between(service: TokenService, **auth: Any) -> AsyncIterator[tuple[str, str]]:
    """A gateway, and behind it a server that says what it was shown: their URLs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    upstream = Server("upstream", auth=ResourceServer(take, authorization_servers=[service.issuer], public_url=url))

    @upstream.tool
    async def shown(ctx: Context) -> str:
        """What was shown."""
        return str(ctx.principal.id)

    @upstream.tool(auth=lambda context: context.principal.id.startswith("for:anna"))
    async def only_anna() -> str:
        """What one person has."""
        return "anna's"

    gateway = Gateway(name="gateway", auth=know, max_result_tokens=0)
    gateway.add_upstream("up", url, auth=auth)
    async with served(upstream, port), served(gateway) as here:
        yield here, url


async def shown_for(url: str, token: str) -> str:
    async with Client(url, auth=token) as client:
        await client.list_tools()
        return (await client.call_tool("up_shown")).text


async def test_static_header(service: TokenService) -> None:
    async with between(service, type="static_header", value="Bearer static:one") as (url, _):
        assert await shown_for(url, "anna") == "static:one"


async def test_token_for_ourselves(service: TokenService) -> None:
    async with between(service, type="client_credentials", client_id="us", client_secret="secret") as (url, _):
        assert {await shown_for(url, name) for name in ("anna", "ben")} == {"for:ourselves"}
        assert [form["grant_type"] for form in service.forms] == ["client_credentials"]


@pytest.mark.parametrize("kind", ["token_exchange", "id_jag"])
async def test_token_exchange_is_separate_per_caller(service: TokenService, kind: str) -> None:
    more = {"upstream_client_id": "them", "upstream_client_secret": "secret"} if kind == "id_jag" else {}
    auth = {"type": kind, "issuer": service.issuer, "client_id": "us", "client_secret": "secret", **more}
    async with between(service, **auth) as (url, upstream):
        for _ in range(2):
            assert await shown_for(url, "anna") == "for:anna"
            assert await shown_for(url, "ben") == "for:ben"
        # One that may do less is not served with what was got for one that may do more.
        assert await shown_for(url, "anna/write") == "for:anna/write"
        assert await shown_for(url, "anna") == "for:anna"
        names = ["anna", "ben", "anna/write"] * 3
        assert await asyncio.gather(*(shown_for(url, name) for name in names)) == [f"for:{name}" for name in names]
        exchanged = [form for form in service.forms if form["grant_type"] == EXCHANGE]
        # Once for each, however often they ask.
        assert sorted(form["subject_token"] for form in exchanged) == ["anna", "anna/write", "ben"]
        assert {form["resource"] for form in exchanged} == {upstream}


async def test_first_request_of_all_may_be_a_call(service: TokenService) -> None:
    auth = {"type": "token_exchange", "issuer": service.issuer, "client_id": "us", "client_secret": "secret"}
    async with between(service, **auth) as (url, _), Client(url, auth="anna") as client:
        assert (await client.call_tool("up_shown")).text == "for:anna"
        with pytest.raises(ComponentNotFound, match="up_showed"):
            await client.call_tool("up_showed")


API = {
    "openapi": "3.1.0",
    "info": {"title": "crm", "version": "1"},
    "paths": {"/shown": {"get": {"operationId": "shown", "responses": {}}}},
}


@pytest.mark.parametrize("kind", ["client_credentials", "token_exchange", "token_passthrough"])
async def test_api_of_a_document_is_shown_the_same_credentials(
    service: TokenService, kind: str, tmp_path: Path
) -> None:
    api = f"{service.issuer}/api"
    (tmp_path / "crm.json").write_text(json.dumps(API))
    ourselves = ', client_id = "us", client_secret = "s"'
    more = {
        "client_credentials": ourselves,
        "token_exchange": f', issuer = "{service.issuer}"{ourselves}',
        "token_passthrough": "",
    }[kind]
    (tmp_path / "gateway.toml").write_text(
        f'[upstream.crm]\nopenapi = "crm.json"\nurl = "{api}"\nauth = {{ type = "{kind}"{more} }}\n'
    )
    gateway = Gateway.load(tmp_path / "gateway.toml", max_result_tokens=0)
    gateway.auth = ResourceServer(know)
    audience = f"@{api}" if kind == "token_passthrough" else ""
    expected = {
        "client_credentials": "for:ourselves",
        "token_exchange": "for:{}",
        "token_passthrough": "{}" + audience,
    }[kind]
    async with served(gateway) as url:
        for name in ("anna", "ben", "anna"):
            async with Client(url, auth=name + audience) as client:
                assert [tool.name for tool in await client.list_tools()] == ["crm_shown"]
                result = (await client.call_tool("crm_shown")).structured
                assert result == {"shown": "Bearer " + expected.format(name)}
        if kind == "token_passthrough":
            async with Client(url, auth="ben@https://elsewhere.example") as client:
                with pytest.raises(ToolError, match="audience does not include it"):
                    await client.call_tool("crm_shown")


async def test_token_is_passed_on_only_where_its_audience_names_the_upstream(service: TokenService) -> None:
    async with between(service, type="token_passthrough") as (url, upstream):
        assert await shown_for(url, f"anna@{upstream}") == f"anna@{upstream}"
        for audience in ("https://elsewhere.example/mcp", "urn:gateway", upstream + "er"):
            async with Client(url, auth=f"ben@{audience}") as ben:
                with pytest.raises(ToolError, match="audience does not include it"):
                    await ben.call_tool("up_shown")
        assert service.forms == []


@pytest.mark.parametrize("first", ["anna", "ben"])
async def test_each_user_sees_the_upstream_list_of_their_account(service: TokenService, first: str) -> None:
    async with between(service, type="token_exchange", issuer=service.issuer, client_id="g", client_secret="s") as (
        url,
        _,
    ):
        for who in (first, "ben", "anna", "ben"):
            async with Client(url, auth=who) as client:
                names = {tool.name for tool in await client.list_tools()}
                assert ("up_only_anna" in names) == (who == "anna"), who
                assert "up_shown" in names
                if who == "anna":
                    assert (await client.call_tool("up_only_anna")).data == "anna's"
                else:
                    with pytest.raises(ComponentNotFound):
                        await client.call_tool("up_only_anna")


@pytest.mark.parametrize("kind", ["token_exchange", "token_passthrough"])
async def test_per_user_credentials_bypass_the_fast_path(
    service: TokenService, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that are like one before them go by a way without ceremony, on a connection that all share."""
    ways: list[bool] = []

    begin = UpstreamProvider.begin

    def noted(*given: Any) -> Any:
        begun = begin(*given)
        ways.append(begun is not None)
        return begun

    monkeypatch.setattr(UpstreamProvider, "begin", noted)
    auth = {"type": kind}
    if kind == "token_exchange":
        auth |= {"issuer": service.issuer, "client_id": "us", "client_secret": "secret"}
    async with between(service, **auth) as (url, upstream), contextlib.AsyncExitStack() as stack:
        tokens = [f"{name}@{upstream}" for name in ("anna:1", "ben:2")]
        clients = {token: await stack.enter_async_context(Client(url, auth=token)) for token in tokens}
        for client in clients.values():
            await client.list_tools()
        for _ in range(5):
            result = await asyncio.gather(*(client.call_tool("up_shown") for client in clients.values()))
            before = "for:" if kind == "token_exchange" else ""
            assert [item.text for item in result] == [before + token for token in clients]
    assert len(ways) == 10
    assert not any(ways)


async def test_client_headers_are_not_forwarded_by_default(service: TokenService) -> None:
    async with between(service, type="none") as (url, _), Client(url, auth="anna:1") as client:
        assert [tool.name for tool in await client.list_tools()] == []


@pytest.mark.parametrize(
    ("auth", "text"),
    [
        ({}, "type must be one of"),
        ({"type": "static_header"}, "value is required for type 'static_header'"),
        ({"type": "user_account", "value": "x"}, "unknown key value for type 'user_account'"),
        ({"type": "id_jag", "client_id": "x"}, "issuer is required for type 'id_jag'"),
        ({"type": "users"}, "type"),
    ],
)
def test_invalid_upstream_auth_raises_usage_error(auth: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Gateway(max_result_tokens=0).add_upstream("up", "https://up.example/mcp", auth=auth)


def test_credentials_are_for_servers_at_a_url() -> None:
    with pytest.raises(UsageError, match="with a url"):
        Gateway(max_result_tokens=0).add_upstream("up", ["server"], auth={"type": "static_header", "value": "x"})
