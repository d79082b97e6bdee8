"""A resource server over HTTP: accepted and rejected tokens, and challenges."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk

from portico import Client, Context, Server, ToolError, UsageError
from portico.auth import InvalidToken, ResourceServer
from portico.auth.principal import Principal
from portico.auth.verifiers import jwks as issuer_keys
from portico.auth.verifiers.claims import ClaimNames, to_verified_token
from portico.auth.verifiers.client_certificate import ClientCertificateVerifier
from portico.auth.verifiers.dpop import MemoryReplayCache
from portico.auth.verifiers.introspection import IntrospectionVerifier
from portico.auth.verifiers.jwt import JwtVerifier
from portico.auth.verifiers.token_file import generate_token, hash_token
from portico.extend import serve_http
from portico.protocol.errors import InsufficientScope
from portico.transports.http_server.bind_address import origins_of
from portico.transports.http_server.messages import HttpResponse
from support.issuers import Issuer, Prover, b64, compact, signed

Serve = Callable[..., Any]
R4 = "2025-11-25"
AUDIENCE = "https://mcp.example/mcp"


@pytest.fixture
async def issuer(serve: Serve) -> Issuer:
    issuer = Issuer()
    site = await serve(issuer.pages())
    issuer.url = f"http://127.0.0.1:{site.port}"
    return issuer


def add_tools(server: Server) -> Server:
    @server.tool(scopes=["notes:write", "notes:read"])
    async def write(text: str, ctx: Context) -> str:
        return f"{ctx.principal.id}: {text}"

    @server.tool(scopes=["notes:read"])
    async def read(ctx: Context) -> str:
        return "read"

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        principal = ctx.principal
        return {
            "id": principal.id,
            "issuer": principal.issuer,
            "scopes": sorted(principal.scopes or []),
            "groups": sorted(principal.groups),
            "client": principal.client_id,
            "actors": list(principal.actor_chain),
        }

    return server


@pytest.fixture
def guarded(server: Server, issuer: Issuer) -> Server:
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE, public_url="https://mcp.example")
    return add_tools(server)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def call(site: Any, token: str | None, tool: str = "who", **arguments: Any) -> Any:
    headers = None if token is None else bearer(token)
    return await site.request_stateless("tools/call", {"name": tool, "arguments": arguments}, headers=headers)


def told(response: Any) -> Any:
    return response.json["result"]["structuredContent"]


def challenge(response: Any) -> str:
    return str(response["www-authenticate"])


@pytest.mark.parametrize(
    "host, status", [("mcp.acme.test:8443", 200), ("mcp.acme.test", 200), ("other.acme.test", 403)]
)
async def test_proxy_may_drop_the_port_of_the_public_url(
    server: Server, serve: Serve, issuer: Issuer, host: str, status: int
) -> None:
    """nginx's `$host` has no port, `$http_host` has."""
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE, public_url="https://mcp.acme.test:8443")
    site = await serve(add_tools(server))
    headers = {**bearer(issuer.token(AUDIENCE)), "host": host}
    response = await site.request_stateless("tools/call", {"name": "who", "arguments": {}}, headers=headers)
    assert response.status == status


async def test_audience_of_a_rejected_token_is_logged_as_a_warning(
    guarded: Server, serve: Serve, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "portico.auth")
    site = await serve(guarded)
    assert (await call(site, issuer.token("https://elsewhere.example"))).status == 401
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"expected {AUDIENCE!r}, got 'https://elsewhere.example'" in record.getMessage()


async def test_signed_token_identifies_its_subject(guarded: Server, serve: Serve, issuer: Issuer) -> None:
    site = await serve(guarded)
    token = issuer.token(
        AUDIENCE,
        scope="notes:read x",
        groups=["ops"],
        client_id="app",
        act={"sub": "agent", "act": {"sub": "scheduler"}},
    )
    assert told(await call(site, token)) == {
        "id": "ada",
        "issuer": issuer.url,
        "scopes": ["notes:read", "x"],
        "groups": ["ops"],
        "client": "app",
        "actors": ["agent", "scheduler"],
    }
    assert issuer.fetched == ["/.well-known/openid-configuration", "/keys"]
    # Once for all of them, and in a session as well.
    session = await site.initialize(R4, headers=bearer(token))
    assert (await session.call("who", {}, id=1)).json["result"]["structuredContent"]["id"] == "ada"
    assert len(issuer.fetched) == 2


@pytest.mark.requirement("auth.tokens-validated")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("aud", "https://other.example/mcp"),
        ("aud", None),
        ("aud", ["https://mcp.example"]),
        ("iss", "https://other.example"),
        ("iss", None),
        ("exp", 1_000_000_000),
        ("exp", None),
        ("exp", "tomorrow"),
        ("exp", True),
        ("nbf", 9_000_000_000),
        ("sub", None),
        ("cnf", {"x5t#S256": "abc"}),
    ],
)
async def test_wrong_claim_is_rejected(guarded: Server, serve: Serve, issuer: Issuer, name: str, value: Any) -> None:
    site = await serve(guarded)
    response = await call(site, issuer.token(AUDIENCE, **{name: value}))
    assert response.status == 401
    assert 'error="invalid_token"' in challenge(response)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"email": None},
        {"email": ""},
        {"email": " "},
        {"email": 7},
        {"email": ["ada@acme.example"]},
        {"email": " ada@acme.example"},
        {"email": "ada@acme.example\u200b"},
        {"Email": "ada@acme.example"},
        {"email": "ada@acme.example", "email_verified": False},
        {"email": "ada@acme.example", "email_verified": "false"},
        {"email": "ada@acme.example", "email_verified": None},
        {"email": "ada@acme.example", "xms_edov": False},
        {"gty": "client-credentials"},
    ],
)
async def test_token_without_the_claim_that_is_the_id_is_rejected(
    serve: Serve, server: Server, issuer: Issuer, claims: dict[str, Any]
) -> None:
    """Otherwise all users of one client would be one principal."""
    add_tools(server).auth = ResourceServer(issuer.url, audience=AUDIENCE, claim_names=ClaimNames("email"))
    site = await serve(server)
    made = {key: value for key, value in issuer.claims(AUDIENCE).items() if key != "email"}
    token = signed(issuer.keys["one"], {"alg": "ES256", "kid": "one"}, {**made, "azp": "webapp", **claims})
    assert (await call(site, token)).status == 401
    good = issuer.token(AUDIENCE, email="ada@acme.example", azp="webapp")
    assert told(await call(site, good))["id"] == "ada@acme.example"


@pytest.mark.parametrize(
    ("claims", "id"),
    [
        ({"sub": "ada"}, "ada"),
        ({}, None),
        ({"gty": "client-credentials"}, "webapp"),
        ({"idtyp": "app"}, "webapp"),
        ({"gty": "password"}, None),
        ({"active": True}, "webapp"),
        ({"active": True, "username": "ada"}, None),
        ({"active": True, "sub": None}, None),
        ({"active": True, "sub": ""}, None),
        ({"active": True, "sub": 7}, None),
        ({"sub": 7, "gty": "client-credentials"}, None),
        ({"sub": "ada\n"}, None),
    ],
)
def test_client_id_is_the_principal_only_for_client_credentials(claims: dict[str, Any], id: str | None) -> None:
    result: str | None
    try:
        result = to_verified_token(
            {"client_id": "webapp", **claims}, "https://login.example", ClaimNames(), None
        ).principal.id
    except InvalidToken:
        result = None
    assert result == id


@pytest.mark.parametrize("name", ["jku", "x5u", "x5c", "jwk", "crit"])
async def test_token_does_not_name_its_own_key(guarded: Server, serve: Serve, issuer: Issuer, name: str) -> None:
    site = await serve(guarded)
    response = await call(site, issuer.token(AUDIENCE, header={name: f"{issuer.url}/evil"}))
    assert response.status == 401
    assert issuer.fetched == []


async def test_algorithm_is_not_the_tokens_choice(guarded: Server, serve: Serve, issuer: Issuer) -> None:
    site = await serve(guarded)
    claims = issuer.claims(AUDIENCE)
    rsa = jwk.RSAKey.generate_key(2048)
    issuer.keys["rsa"] = rsa
    assert (await call(site, signed(rsa, {"alg": "RS256", "kid": "rsa"}, claims))).status == 200
    for header in ({"alg": "none"}, {"alg": "None", "kid": "one"}, {}):
        assert (await call(site, compact(header, claims, b"x"))).status == 401
    # The public key as the secret of an HMAC.
    pem = rsa.as_pem(private=False)
    body = compact({"alg": "HS256", "kid": "rsa"}, claims).rpartition(".")[0]
    forged = f"{body}.{b64(hmac.digest(pem, body.encode(), 'sha256'))}"
    assert (await call(site, forged)).status == 401
    # A key of another kind, under the name of a good one.
    assert (await call(site, signed(rsa, {"alg": "RS256", "kid": "one"}, claims))).status == 401
    for wrong in ("none", "HS256"):
        with pytest.raises(UsageError, match="unknown algorithm"):
            JwtVerifier(issuer.url, algorithms=[wrong])


@pytest.mark.parametrize("kind", ["dpop+jwt", "oauth-id-jag+jwt", "logout+jwt"])
async def test_jwt_with_another_typ_is_rejected(guarded: Server, serve: Serve, issuer: Issuer, kind: str) -> None:
    site = await serve(guarded)
    assert (await call(site, issuer.token(AUDIENCE, header={"typ": kind}))).status == 401


@pytest.mark.parametrize("token", ["x", "a.b.c", "eyJ.eyJ.x", "eyJ" + "x" * 20_000, "eyJhIjoxfQ.W10.eA", "e30..x"])
async def test_malformed_tokens_are_rejected(guarded: Server, serve: Serve, token: str) -> None:
    assert (await call(await serve(guarded), token)).status == 401


async def test_unknown_keys_are_fetched_for_once_in_a_while(
    guarded: Server, serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await serve(guarded)
    assert (await call(site, issuer.token(AUDIENCE))).status == 200
    fetched = len(issuer.fetched)
    for number in range(5):
        assert (await call(site, issuer.token(AUDIENCE, kid=f"made-up-{number}"))).status == 401
    assert len(issuer.fetched) == fetched
    # A new key of the issuer's is found as soon as it may be looked for.
    issuer.keys["two"] = jwk.ECKey.generate_key("P-256")
    monkeypatch.setattr(issuer_keys, "MIN_REFETCH_SECONDS", 0.0)
    assert (await call(site, issuer.token(AUDIENCE, kid="two"))).status == 200


async def test_keys_are_kept_while_the_issuer_is_away(
    guarded: Server, serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await serve(guarded)
    issuer.down = True
    away = await call(site, issuer.token(AUDIENCE))
    assert (away.status, away["retry-after"]) == (503, "5")
    issuer.down = False
    monkeypatch.setattr(issuer_keys, "RETRY_DELAY_SECONDS", 0.0)
    assert (await call(site, issuer.token(AUDIENCE))).status == 200
    issuer.down = True
    monkeypatch.setattr(issuer_keys, "MIN_REFETCH_SECONDS", 0.0)
    assert (await call(site, issuer.token(AUDIENCE, kid="new"))).status == 401
    assert (await call(site, issuer.token(AUDIENCE, sub="eve"))).status == 200


async def test_metadata_of_another_issuer_is_rejected(serve: Serve, server: Server, issuer: Issuer) -> None:
    real, issuer.url = issuer.url, "https://evil.example"
    server.auth = ResourceServer(real, audience=AUDIENCE)
    site = await serve(server)
    token = issuer.token(AUDIENCE, iss=real)
    assert (await site.request_stateless("tools/list", headers=bearer(token))).status == 503
    assert "/keys" not in issuer.fetched


async def test_issuer_does_not_send_us_elsewhere(guarded: Server, serve: Serve, issuer: Issuer) -> None:
    """A redirect is no document, and neither is one that has no end."""
    site = await serve(guarded)
    token = issuer.token(AUDIENCE)
    issuer.keys.clear()
    issuer.instead = HttpResponse(302, ((b"location", f"{issuer.url}/elsewhere".encode()),))
    assert (await call(site, token)).status == 503
    assert "/elsewhere" not in issuer.fetched


@pytest.mark.requirement("auth.metadata-published")
async def test_challenge_has_metadata_url_and_scopes(guarded: Server, serve: Serve) -> None:
    site = await serve(guarded)
    response = await call(site, None, "write", text="x")
    metadata = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
    expected = f'Bearer scope="notes:read notes:write", resource_metadata="{metadata}"'
    assert (response.status, challenge(response)) == (401, expected)
    plain = await site.post({"jsonrpc": "2.0", "id": 1, "method": "initialize"})
    assert challenge(plain) == f'Bearer resource_metadata="{metadata}"'
    for path in ("", "/mcp"):
        document = (await site.request("GET", f"/.well-known/oauth-protected-resource{path}")).json
        assert document["resource"] == "https://mcp.example/mcp"
        assert document["authorization_servers"] == [guarded.auth.authorization_servers[0]]  # type: ignore[union-attr]
        assert document["bearer_methods_supported"] == ["header"]


async def test_behind_a_prefix_the_metadata_can_still_be_reached(serve: Serve, server: Server, issuer: Issuer) -> None:
    server.auth = ResourceServer(
        issuer.url, public_url="https://acme.example/tools/", required_scopes=["mcp", "offline_access"]
    )
    site = await serve(server)
    response = await site.request_stateless("tools/list")
    where = "https://acme.example/tools/.well-known/oauth-protected-resource/mcp"
    assert challenge(response) == f'Bearer scope="mcp", resource_metadata="{where}"'
    for path in ("", "/mcp", "/tools/mcp"):
        document = (await site.request("GET", f"/.well-known/oauth-protected-resource{path}")).json
        assert document["resource"] == "https://acme.example/tools/mcp"
        assert document["scopes_supported"] == ["mcp"]
    # The audience is what the resource is called.
    good = issuer.token("https://acme.example/tools/mcp", scope="mcp offline_access")
    assert (await site.request_stateless("tools/list", headers=bearer(good))).status == 200
    # The public name is one of ours.
    named = {"host": "acme.example"}
    assert (await site.request("GET", "/.well-known/oauth-protected-resource", named)).status == 200


async def test_on_this_machine_the_resource_is_the_url_that_was_asked(
    serve: Serve, server: Server, issuer: Issuer
) -> None:
    server.auth = ResourceServer(issuer.url)
    site = await serve(server)
    here = f"http://127.0.0.1:{site.port}"
    document = (await site.request("GET", "/.well-known/oauth-protected-resource/mcp")).json
    assert document["resource"] == f"{here}/mcp"
    assert (await site.request_stateless("tools/list", headers=bearer(issuer.token(f"{here}/mcp")))).status == 200
    assert (await site.request_stateless("tools/list", headers=bearer(issuer.token(f"{here}/other")))).status == 401


async def test_host_header_does_not_choose_the_audience(serve: Serve, server: Server, issuer: Issuer) -> None:
    """A token that was shown to another server of this machine is of no use here."""
    server.auth = ResourceServer(issuer.url)
    site = await serve(server)
    for elsewhere in ("localhost:9999", "127.0.0.1:9999", "localhost", f"[::1]:{site.port}", f"localhost.:{site.port}"):
        stolen = bearer(issuer.token(f"http://{elsewhere}/mcp"))
        for host in (elsewhere, f"localhost:{site.port}", f"127.0.0.1:{site.port}"):
            assert (await site.request_stateless("tools/list", headers={**stolen, "host": host})).status in (401, 403)
        document = await site.request("GET", "/.well-known/oauth-protected-resource", {"host": elsewhere})
        assert document.status == 403 or document.json["resource"] == f"http://127.0.0.1:{site.port}/mcp"
    for name in ("localhost", "127.0.0.1"):
        own, host = f"http://{name}:{site.port}/mcp", {"host": f"{name}:{site.port}"}
        document = (await site.request("GET", "/.well-known/oauth-protected-resource/mcp", host)).json
        assert document["resource"] == own
        assert (await site.request_stateless("tools/list", headers={**bearer(issuer.token(own)), **host})).status == 200


async def test_host_header_does_not_change_the_proof_target(serve: Serve, server: Server, issuer: Issuer) -> None:
    """RFC 9449, 4.3: two servers may share an audience, and one of them must not use what it was shown at the other."""
    server.auth = ResourceServer(issuer.url, audience="shared")
    site = await serve(add_tools(server))
    prover = Prover()
    token = issuer.token("shared", cnf={"jkt": prover.thumbprint})
    for host, status in ((f"127.0.0.1:{site.port}", 200), ("localhost:9999", 401)):
        proof = prover.proof(token, f"http://{host}/mcp")
        headers = {"authorization": f"DPoP {token}", "dpop": proof, "host": host}
        assert (await site.request_stateless("tools/list", headers=headers)).status == status


def with_views(server: Server) -> Server:
    for path in ("/mcp/look", "/mcp/look/more", "/ops"):
        server.add_endpoint(path, add_tools(Server(path.rpartition("/")[2])).public_handler)
    return add_tools(server)


@pytest.mark.parametrize("public", ["https://mcp.example", "https://acme.example/tools", None])
async def test_token_for_one_endpoint_is_not_for_another(
    serve: Serve, server: Server, issuer: Issuer, public: str | None
) -> None:
    """RFC 8707: a token for the main endpoint is valid below it, and one for a view at that view alone."""
    server.auth = ResourceServer(issuer.url, public_url=public)
    site = await serve(with_views(server))
    base = public or f"http://127.0.0.1:{site.port}"
    valid = {
        "/mcp": {"/mcp", "/mcp/look", "/mcp/look/more", "/", "/metrics"},
        "/mcp/look": {"/mcp/look"},
        "/mcp/look/more": {"/mcp/look/more"},
        "/ops": {"/ops"},
        "": set(),
        "/": set(),
        "/mcp/": set(),
        "/mcp/other": set(),
    }
    for audience, paths in valid.items():
        token = bearer(issuer.token(base + audience))
        # Twice: what was verified for one endpoint is not remembered for others.
        for path in ("/mcp/look", "/mcp", "/mcp/look/more", "/ops", "/") * 2:
            status = (await site.request_stateless("tools/list", path=path, headers=token)).status
            assert (audience, path, status) == (audience, path, 200 if path in paths else 401)
        assert ((await site.request("GET", "/metrics", token)).status == 200) == ("/metrics" in paths)
    for path in ("/mcp", "/mcp/look", "/mcp/look/more", "/ops"):
        data = (await site.request("GET", f"/.well-known/oauth-protected-resource{path}")).json
        assert data["resource"] == base + path
        refused = await site.request_stateless("tools/list", path=path)
        assert f'resource_metadata="{base}/.well-known/oauth-protected-resource{path}"' in challenge(refused)


@pytest.mark.parametrize("public", ["https://mcp.example", None])
@pytest.mark.parametrize("own", [False, True])
async def test_configured_audience_that_names_a_view_is_for_that_view(
    serve: Serve, server: Server, issuer: Issuer, public: str | None, own: bool
) -> None:
    audiences = ["api", "https://mcp.example/mcp", "https://mcp.example/mcp/look"]
    verifier = JwtVerifier(issuer.url, audience=audiences) if own else issuer.url
    server.auth = ResourceServer(verifier, audience=audiences, public_url=public)
    site = await serve(with_views(server))
    for audience in audiences:
        for path in ("/mcp/look", "/mcp", "/ops"):
            refused = audience.endswith("/look") and path != "/mcp/look"
            response = await site.request_stateless("tools/list", path=path, headers=bearer(issuer.token(audience)))
            assert (audience, path, response.status) == (audience, path, 401 if refused else 200)
    document = (await site.request("GET", "/.well-known/oauth-protected-resource/mcp/look")).json
    assert document["resource"] == "https://mcp.example/mcp/look"


def test_socket_origins_are_the_bound_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as item, socket.create_server(("127.0.0.2", 0)) as other:
        ports = item.getsockname()[1], other.getsockname()[1]
        assert origins_of([item, other], secure=True) == [
            f"https://127.0.0.1:{ports[0]}",
            f"https://localhost:{ports[0]}",
            f"https://127.0.0.2:{ports[1]}",
            f"https://localhost:{ports[1]}",
        ]
    with socket.socket(socket.AF_UNIX) as nameless:
        assert origins_of([nameless], secure=False) == []


async def test_server_without_a_known_url_requires_public_url(server: Server, issuer: Issuer, tmp_path: Path) -> None:
    server.auth = ResourceServer(issuer.url)
    with pytest.raises(UsageError, match=r"Unix socket has no URL.*--public-url"):
        await serve_http(server, unix_socket=str(tmp_path / "socket"))
    with pytest.raises(UsageError, match=r"ASGI.*--public-url"):
        server.http_app()
    # Not where nothing compares audiences.
    for auth in (
        ResourceServer(JwtVerifier(issuer.url, audience="api")),
        ResourceServer(issuer.url, public_url="http://localhost:8000"),
        ResourceServer(ClientCertificateVerifier("x-client-dn")),
    ):
        server.auth = auth
        server.http_app()


@pytest.mark.requirement("auth.header-only")
async def test_token_in_the_query_is_rejected(guarded: Server, serve: Serve, issuer: Issuer) -> None:
    site = await serve(guarded)
    token = issuer.token(AUDIENCE)
    assert (await call(site, token)).status == 200
    for headers in (None, bearer(token)):
        response = await site.request_stateless("tools/list", headers=headers, path=f"/mcp?access_token={token}")
        assert response.status == 400
        assert 'error="invalid_request"' in challenge(response)
    unreadable = await site.request_stateless("tools/list", headers={"authorization": "Bearer"})
    assert unreadable.status == 400


@pytest.mark.requirement("auth.scopes-all-at-once")
async def test_missing_scopes_are_named_all_at_once(guarded: Server, serve: Serve, issuer: Issuer) -> None:
    site = await serve(guarded)
    token = issuer.token(AUDIENCE, scope="other")
    response = await call(site, token, "write", text="x")
    assert response.status == 403
    result = challenge(response)
    assert 'error="insufficient_scope"' in result
    assert 'scope="notes:read notes:write"' in result
    assert "resource_metadata=" in result
    assert response.json["id"] == 1
    # In a session too, and a batch is answered as one.
    session = await site.initialize(R4, headers=bearer(token))
    within = await session.call("write", {"text": "x"}, id=7)
    assert (within.status, within.json["id"]) == (403, 7)
    assert 'scope="notes:read notes:write"' in challenge(within)
    # The same principal with more scopes goes on in the same session.
    more = issuer.token(AUDIENCE, scope="notes:read notes:write")
    message = {
        "jsonrpc": "2.0",
        "id": 8,
        "method": "tools/call",
        "params": {"name": "write", "arguments": {"text": "x"}},
    }
    again = await session.post(message, bearer(more))
    assert again.json["result"]["content"][0]["text"] == "ada: x"


@pytest.mark.requirement("auth.scope-hierarchy")
async def test_one_scope_may_include_others(serve: Serve, server: Server, issuer: Issuer) -> None:
    implies = {"admin": ["notes:write"], "notes:write": ["notes:read"]}
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE, implied_scopes=implies, required_scopes=["notes:read"])
    site = await serve(add_tools(server))
    assert (await call(site, issuer.token(AUDIENCE, scope="admin"), "write", text="x")).status == 200
    assert (await call(site, issuer.token(AUDIENCE, scope="notes:read"), "write", text="x")).status == 403
    lacking = await call(site, issuer.token(AUDIENCE), "who")
    assert (lacking.status, 'scope="notes:read"' in challenge(lacking)) == (403, True)


async def test_anonymous_clients_can_call_tools_without_scopes(serve: Serve, server: Server, issuer: Issuer) -> None:
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE, allow_anonymous=True)
    site = await serve(add_tools(server))
    assert (await site.request_stateless("tools/call", {"name": "echo", "arguments": {"text": "x"}})).status == 200
    refused = await call(site, None, "read")
    assert (refused.status, 'scope="notes:read"' in challenge(refused)) == (401, True)
    assert (await call(site, issuer.token("https://other.example"), "echo", text="x")).status == 401


async def test_introspection_asks_the_issuer(serve: Serve, server: Server, issuer: Issuer) -> None:
    verifier = IntrospectionVerifier(issuer.url, "us", "s%cret", audience=AUDIENCE)
    server.auth = ResourceServer(verifier, audience=AUDIENCE)
    site = await serve(add_tools(server))
    issuer.active["opaque"] = {"active": True, "sub": "bob", "aud": AUDIENCE, "scope": "notes:read", "client_id": "cli"}
    issuer.active["elsewhere"] = {"active": True, "sub": "bob", "aud": "https://other.example"}
    issuer.active["nowhere"] = {"active": True, "sub": "bob"}
    issuer.active["over"] = {"active": True, "sub": "bob", "aud": AUDIENCE, "exp": 1}
    issuer.active["theirs"] = {"active": True, "sub": "bob", "aud": AUDIENCE, "iss": "https://other.example"}
    assert told(await call(site, "opaque"))["id"] == "bob"
    for wrong in ("elsewhere", "nowhere", "over", "theirs", "unknown"):
        assert (await call(site, wrong)).status == 401, wrong
    result = len(issuer.fetched)
    assert (await call(site, "opaque")).status == 200
    assert len(issuer.fetched) == result
    issuer.down = True
    assert (await call(site, "another")).status == 503


async def test_concurrent_uses_of_a_token_verify_it_once(serve: Serve, server: Server) -> None:
    verified = 0
    began, release = asyncio.Event(), asyncio.Event()

    async def slow(credentials: Any) -> Principal:
        nonlocal verified
        verified += 1
        began.set()
        await release.wait()
        return Principal(credentials.token)

    server.auth = ResourceServer(slow)
    site = await serve(add_tools(server))
    calls = [asyncio.ensure_future(call(site, "same")) for _ in range(5)]
    async with asyncio.timeout(10):
        await began.wait()
        release.set()
        assert {item.status for item in await asyncio.gather(*calls)} == {200}
    assert verified == 1


async def test_several_issuers_are_kept_apart(serve: Serve, server: Server, issuer: Issuer) -> None:
    other = Issuer()
    other.url = f"http://127.0.0.1:{(await serve(other.pages())).port}"
    server.auth = ResourceServer([issuer.url, other.url], audience=AUDIENCE)
    site = await serve(add_tools(server))
    assert told(await call(site, issuer.token(AUDIENCE)))["issuer"] == issuer.url
    assert told(await call(site, other.token(AUDIENCE)))["issuer"] == other.url
    # Signed by one in the name of the other.
    assert (await call(site, issuer.token(AUDIENCE, iss=other.url))).status == 401
    # The same id from two issuers is two principals.
    session = await site.initialize(R4, headers=bearer(issuer.token(AUDIENCE)))
    stranger = await session.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, bearer(other.token(AUDIENCE)))
    assert stranger.status == 404


async def test_tokens_of_a_file_end_when_their_row_goes(
    serve: Serve, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portico.auth.verifiers.token_file.RELOAD_INTERVAL_SECONDS", 0.0)
    path, token, old = tmp_path / "tokens.toml", generate_token(), generate_token()
    rows = f'[[token]]\nid = "ci"\nhash = "{hash_token(token)}"\nscopes = ["notes:read"]\n'
    path.write_text(f'{rows}[[token]]\nid = "old"\nhash = "{hash_token(old)}"\nexpires = 2020-01-01\n')
    server.auth = ResourceServer(token_file=path)
    site = await serve(add_tools(server))
    assert told(await call(site, token))["id"] == "ci"
    assert (await call(site, token, "read")).status == 200
    refused = await call(site, token, "write", text="x")
    # There is no issuer to get more scopes from.
    assert (refused.status, refused.json["result"]["isError"]) == (200, True)
    assert (await call(site, old)).status == 401
    assert challenge(await call(site, generate_token())) == 'Bearer error="invalid_token"'
    assert (await site.request("GET", "/.well-known/oauth-protected-resource")).status == 404
    path.write_text("")
    assert (await call(site, token)).status == 401


async def test_certificate_is_believed_from_a_trusted_proxy_alone(serve: Serve, server: Server) -> None:
    server.auth = ResourceServer(ClientCertificateVerifier("X-Client-DN", verify_header="X-Client-Verify"))
    add_tools(server)
    message = {"x-client-dn": "CN=ada", "x-client-verify": "SUCCESS"}
    trusting = await serve(server, trusted_proxies=["127.0.0.1"])
    request = {"name": "who", "arguments": {}}
    response = await trusting.request_stateless("tools/call", request, headers=message)
    assert told(response)["id"] == "CN=ada"
    failed = await trusting.request_stateless("tools/call", request, headers={**message, "x-client-verify": "FAILED"})
    assert failed.status == 401
    assert (await trusting.request_stateless("tools/call", request)).status == 401
    direct = await serve(server)
    assert (await direct.request_stateless("tools/call", request, headers=message)).status == 401


class Proving:
    """A client with a token that is bound to its key."""

    def __init__(self, site: Any, issuer: Issuer) -> None:
        self.site = site
        self.prover = Prover()
        self.url = "https://mcp.example/mcp"
        self.token = issuer.token(AUDIENCE, cnf={"jkt": self.prover.thumbprint})

    async def call(self, proof: str | None = None, scheme: str = "DPoP", **more: Any) -> Any:
        proof = self.prover.proof(self.token, self.url, **more) if proof is None else proof
        headers = {"authorization": f"{scheme} {self.token}", "dpop": proof}
        return await self.site.request_stateless("tools/list", headers=headers)


async def test_bound_token_needs_a_proof_for_each_request(guarded: Server, serve: Serve, issuer: Issuer) -> None:
    client = Proving(await serve(guarded), issuer)
    assert (await client.call()).status == 200
    proof = client.prover.proof(client.token, client.url)
    assert (await client.call(proof)).status == 200
    replayed = await client.call(proof)
    assert (replayed.status, 'error="invalid_dpop_proof"' in str(replayed.fields)) == (401, True)
    wrong: list[dict[str, Any]] = [
        {"htm": "GET"},
        {"htu": "https://mcp.example/other"},
        {"htu": "https://evil.example/mcp"},
        {"ath": "x"},
        {"ath": None},
        {"iat": int(time.time()) - 1000},
        {"iat": int(time.time()) + 1000},
        {"iat": None},
        {"jti": None},
        {"jti": ""},
    ]
    for claims in wrong:
        assert (await client.call(**claims)).status == 401, claims
    # The same URL, spelled otherwise.
    assert (await client.call(htu="HTTPS://MCP.example:443/mcp?x=1")).status == 200
    thief = Prover().proof(client.token, client.url)
    assert (await client.call(thief)).status == 401
    assert (await client.call("nonsense")).status == 401
    assert (await client.call(scheme="Bearer")).status == 401
    unbound = issuer.token(AUDIENCE)
    headers = {"authorization": f"DPoP {unbound}", "dpop": client.prover.proof(unbound, client.url)}
    assert (await client.site.request_stateless("tools/list", headers=headers)).status == 401


async def test_proofs_may_have_to_have_a_number_of_ours(serve: Serve, server: Server, issuer: Issuer) -> None:
    server.auth = ResourceServer(
        issuer.url, audience=AUDIENCE, public_url="https://mcp.example", dpop="required", dpop_nonce=True
    )
    client = Proving(await serve(server), issuer)
    response = await client.call()
    assert (response.status, 'error="use_dpop_nonce"' in challenge(response)) == (401, True)
    assert (await client.call(nonce=response["dpop-nonce"])).status == 200
    assert (await client.call(nonce="x")).status == 401
    plain = await client.site.request_stateless("tools/list", headers=bearer(issuer.token(AUDIENCE)))
    assert (plain.status, challenge(plain).startswith("DPoP ")) == (401, True)


async def test_several_processes_know_of_each_others_proofs(serve: Serve, issuer: Issuer, tmp_path: Path) -> None:
    def make() -> Server:
        server = Server("one", request_state_keys=b"k" * 32, store=f"sqlite:///{tmp_path}/store.db")
        server.auth = ResourceServer(issuer.url, audience=AUDIENCE, public_url="https://mcp.example")
        return server

    item, other = make(), make()
    async with item.lifespan(), other.lifespan():
        client = Proving(await serve(item), issuer)
        proof = client.prover.proof(client.token, client.url)
        assert (await client.call(proof)).status == 200
        client.site = await serve(other)
        assert (await client.call(proof)).status == 401
        assert (await client.call()).status == 200


def test_full_replay_cache_rejects_replays() -> None:
    now = 1000.0
    table = MemoryReplayCache(2, clock=lambda: now)
    assert [table.try_add(id, 1100.0) for id in ("a", "b", "a")] == [True, True, False]
    with pytest.raises(Exception, match="replay cache is full"):
        table.try_add("c", 1100.0)
    now = 1200.0
    assert table.try_add("c", 1300.0)


async def test_auth_function_decides_who_may_call(serve: Serve, server: Server, issuer: Issuer) -> None:
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE)

    async def only_ada(call: Any) -> bool:
        return bool(call.principal.id == "ada")

    def never(call: Any) -> None:
        """Forgets to say anything."""

    def more(call: Any) -> bool:
        raise InsufficientScope("This", ["extra"])

    server.tool(auth=only_ada)(asynchronous("mine"))
    server.tool(auth=never)(asynchronous("lost"))
    server.tool(auth=more)(asynchronous("extra"))
    site = await serve(server)
    ada, eve = issuer.token(AUDIENCE), issuer.token(AUDIENCE, sub="eve")
    assert (await call(site, ada, "mine")).json["result"]["content"][0]["text"] == "mine"
    assert (await call(site, eve, "mine")).json["error"]["message"] == "Unknown tool: mine"
    assert (await call(site, ada, "lost")).json["error"]["message"] == "Unknown tool: lost"
    assert 'scope="extra"' in challenge(await call(site, ada, "extra"))


def asynchronous(name: str) -> Any:
    async def body() -> str:
        return name

    body.__name__ = name
    return body


async def test_bodies_see_the_headers_that_the_server_asks_for(serve: Serve) -> None:
    server = Server("tenants", request_headers=["X-Tenant"])

    @server.tool
    async def tenant(ctx: Context) -> dict[str, Any]:
        return {**ctx.headers, "from": ctx.client_address}

    site = await serve(server, trusted_proxies=["127.0.0.1"])
    headers = {"x-tenant": "acme", "x-other": "1", "x-forwarded-for": "203.0.113.7"}
    response = await site.request_stateless("tools/call", {"name": "tenant", "arguments": {}}, headers=headers)
    assert told(response) == {"x-tenant": "acme", "from": "203.0.113.7"}
    untrusting = await serve(server)
    response = await untrusting.request_stateless("tools/call", {"name": "tenant", "arguments": {}}, headers=headers)
    assert told(response) == {"x-tenant": "acme", "from": "127.0.0.1"}
    with pytest.raises(UsageError, match="request_headers must not contain"):
        Server("x", request_headers=["Authorization"])


async def test_same_by_asgi(guarded: Server, issuer: Issuer) -> None:
    application = guarded.http_app(allowed_hosts=["mcp.example"])
    refused, _ = await asked(application, "/outer/mcp", root="/outer")
    assert refused["status"] == 401
    error = dict(refused["headers"])[b"www-authenticate"].decode()
    assert error == 'Bearer resource_metadata="https://mcp.example/.well-known/oauth-protected-resource/mcp"'
    result, body = await asked(application, "/.well-known/oauth-protected-resource/mcp", method="GET")
    assert (result["status"], json.loads(body)["resource"]) == (200, "https://mcp.example/mcp")
    for _ in range(2):
        result, body = await asked(application, "/mcp", token=issuer.token(AUDIENCE))
        assert (result["status"], "tools" in json.loads(body)["result"]) == (200, True)
    lacking, _ = await asked(application, "/mcp", token=issuer.token(AUDIENCE), tool="read")
    assert lacking["status"] == 403
    await application.stop()


async def asked(
    application: Any, path: str, *, method: str = "POST", root: str = "", token: str = "", tool: str = ""
) -> tuple[Any, bytes]:
    """One request to an ASGI application: the head of the answer, and its body."""
    about = {"name": tool, "arguments": {}} if tool else {}
    kind = "tools/call" if tool else "tools/list"
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": "2026-07-28", f"{prefix}clientCapabilities": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": kind, "params": {**about, "_meta": meta}})
    headers = {
        "host": "mcp.example",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": kind,
        **({"mcp-name": tool} if tool else {}),
        **(bearer(token) if token else {}),
    }
    scope = {
        "type": "http",
        "scheme": "https",
        "method": method,
        "path": path,
        "root_path": root,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    waiting: list[Any] = [{"type": "http.request", "body": body.encode()}]
    sent: list[Any] = []

    async def receive() -> Any:
        return waiting.pop(0) if waiting else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(10):
        await application(scope, receive, send)
    return sent[0], b"".join(item.get("body", b"") for item in sent[1:])


async def test_public_server_requires_a_name(server: Server, issuer: Issuer) -> None:
    server.auth = ResourceServer(issuer.url)
    with pytest.raises(UsageError, match="--public-url"):
        await serve_http(server, host="0.0.0.0", port=0)
    with pytest.raises(UsageError, match="--public-url"):
        await serve_http(server, port=0, allowed_hosts=["mcp.example"])
    with pytest.raises(UsageError, match="--public-url"):
        server.http_app(allowed_hosts=["mcp.example"])


async def test_tasks_and_request_state_belong_to_one_principal(serve: Serve, server: Server, issuer: Issuer) -> None:
    """Tasks, states of calls that ask, and subscriptions belong to issuer and id, whatever scopes there are by now."""
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE)

    @server.tool(task="required")
    async def slow() -> str:
        return "done"

    async with server.lifespan():
        site = await serve(server)
        ada, eve = bearer(issuer.token(AUDIENCE)), bearer(issuer.token(AUDIENCE, sub="eve"))
        same = bearer(issuer.token(AUDIENCE, scope="more"))
        able = {
            "clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
        }
        begun = await site.request_stateless("tools/call", {"name": "slow", "arguments": {}}, headers=ada, meta=able)
        id = begun.json["result"]["taskId"]

        async def of_task(method: str, id: str, who: dict[str, str]) -> Any:
            return (
                await site.request_stateless(method, {"taskId": id}, headers={**who, "mcp-name": id}, meta=able)
            ).json

        assert "result" in await of_task("tasks/get", id, same)
        for method in ("tasks/get", "tasks/cancel"):
            hers, never = await of_task(method, id, eve), await of_task(method, "0" * 32, eve)
            assert hers["error"]["code"] == never["error"]["code"] == -32602
            assert hers["error"]["message"].startswith("Unknown task")
        response = await site.request_stateless("tools/call", {"name": "ask", "arguments": {}}, headers=ada, meta=able)
        state = response.json["result"]["requestState"]
        answers = {
            key: {"action": "accept", "content": {"value": "x"}} for key in response.json["result"]["inputRequests"]
        }
        retry = {"name": "ask", "arguments": {}, "requestState": state, "inputResponses": answers}
        stolen = await site.request_stateless("tools/call", retry, headers=eve, meta=able)
        assert "it was not issued for this request" in stolen.json["error"]["message"]
        assert "result" in (await site.request_stateless("tools/call", retry, headers=same, meta=able)).json


async def test_on_stdio_missing_scopes_are_for_the_model_to_read(server: Server) -> None:
    add_tools(server)
    async with Client(server, principal=Principal("ada", frozenset({"notes:read"}))) as client:
        with pytest.raises(ToolError, match="needs the scope notes:write"):
            await client.call_tool("write", {"text": "x"})


async def test_stream_ends_with_the_token_that_it_was_opened_with(
    guarded: Server, serve: Serve, issuer: Issuer, wait_until: Callable[..., Any]
) -> None:
    now = time.time()
    guarded.auth = ResourceServer(JwtVerifier(issuer.url, audience=AUDIENCE, clock=lambda: now), audience=AUDIENCE)
    site = await serve(guarded, sse=True)
    # Good by the verifier's clock, until a moment that is long over by ours.
    ends = bearer(issuer.token(AUDIENCE, exp=int(now) - 1000, sub="short"))
    now -= 2000
    lasts = bearer(issuer.token(AUDIENCE))
    long, short = [await site.listen(headers=who, toolsListChanged=True) for who in (lasts, ends)]
    session = await site.initialize(R4, headers=lasts)
    stream = await session.get()
    brief = await site.initialize(R4, headers=ends)
    over = await brief.get()
    old = [await site.open("GET", "/sse", {"accept": "text/event-stream", **who}) for who in (lasts, ends)]
    for one in old:
        assert (await one.event()).name == "endpoint"
    for one in (long, short):
        assert (await one.message())["method"] == "notifications/subscriptions/acknowledged"
    site.exchange.send_keep_alives()
    assert (await short.message())["method"] == "notifications/cancelled"
    while await over.event() is not None:
        pass
    assert await old[1].event() is None
    await long.until_comment()
    await stream.until_comment()
    await old[0].until_comment()


async def test_stateless_session_is_bound_to_its_client(serve: Serve, server: Server, issuer: Issuer) -> None:
    server.auth = ResourceServer(issuer.url, audience=AUDIENCE)
    site = await serve(server, stateless_session_key=b"k" * 32)
    session = await site.initialize(R4, headers=bearer(issuer.token(AUDIENCE)))
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await session.post(ping)).status == 200
    assert (await session.post(ping, bearer(issuer.token(AUDIENCE, sub="eve")))).status == 404


async def test_disconnect_during_token_verification_is_handled(serve: Serve, server: Server, held: Any) -> None:
    async def slow(credentials: Any) -> Principal:
        await held.body()
        raise InvalidToken("too late")

    server.auth = ResourceServer(slow)
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/list", headers=bearer("x")))
    await held.has_started()
    raw.abort()
    held.release.set()
    assert (await site.request_stateless("tools/list", headers=bearer("y"))).status == 401
