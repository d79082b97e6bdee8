"""All authorization scenarios of the conformance suite, without sockets.

Each test mirrors the scenario of its name: what the mock servers there answer, and what they check. The suite itself
judges the whole client (`make conform`); these say, in milliseconds, which rule it was.
"""

from __future__ import annotations

from typing import Any

import pytest

from portico.auth.assertions import SigningKey, generate_key
from portico.auth.authorization_code import AuthorizationCode
from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import InvalidRedirect, IssuerMismatch, ResourceMismatch, ScopeRejected
from portico.auth.grants import (
    ID_JAG,
    ClientCredentials,
    EnterpriseManagedAuthorization,
    IdentityProvider,
    WorkloadIdentity,
)

DOCUMENT = "https://conformance-test.local/client-metadata.json"
MCP, AUTH = "http://localhost:3001", "http://localhost:3002"


@pytest.fixture
def mock(make: Any) -> Any:
    """A pair of mock servers as the suite has them: on this machine, in the clear, the server at /mcp."""

    def pair(*, prefix: str = "", at: str | None = None, metadata: Any = None, **server: Any) -> Any:
        issuer = make.Issuer(
            AUTH, prefix, at, **({"authorization_response_iss_parameter_supported": True} | (metadata or {}))
        )
        server.setdefault("issuer", AUTH + prefix)
        return make.World(make.Server(f"{MCP}/mcp", **server), issuer)

    return pair


def flow(world: Any, grant: Any = None, **options: Any) -> Any:
    """What the suite has a client do: list the tools, call the first."""
    oauth = world.oauth(grant or AuthorizationCode("http://localhost:3000/callback", client_metadata_url=DOCUMENT))
    for operation in ("tools/list", "tools/call test-tool"):
        assert world.call(oauth, operation).status == 200
    return world.issuers[0]


@pytest.mark.parametrize(
    ("prm", "named", "prefix", "at"),
    [
        ("/.well-known/oauth-protected-resource/mcp", True, "", "/.well-known/oauth-authorization-server"),
        ("/.well-known/oauth-protected-resource/mcp", False, "", "/.well-known/openid-configuration"),
        (
            "/.well-known/oauth-protected-resource",
            False,
            "/tenant1",
            "/.well-known/oauth-authorization-server/tenant1",
        ),
        ("/custom/metadata/location.json", True, "/tenant1", "/tenant1/.well-known/openid-configuration"),
    ],
    ids=["metadata-default", "metadata-var1", "metadata-var2", "metadata-var3"],
)
def test_metadata(mock: Any, prm: str, named: bool, prefix: str, at: str) -> None:
    resource = MCP if prm.endswith("resource") else f"{MCP}/mcp"
    world = mock(prm=prm, named=named, prefix=prefix, at=at, resource=resource)
    issuer = flow(world)
    assert len(issuer.registrations) == len(issuer.visits) == len(issuer.tokens) == 1
    assert issuer.visits[0]["resource"] == issuer.tokens[0].form["resource"] == resource
    assert issuer.registrations[0]["application_type"] in ("native", "web")
    if named:
        assert f"{MCP}/.well-known/oauth-protected-resource" not in world.urls
    if prefix:
        assert f"{AUTH}/.well-known/oauth-authorization-server" not in world.urls


def test_basic_cimd(mock: Any) -> None:
    issuer = flow(mock(metadata={"client_id_metadata_document_supported": True}))
    assert issuer.visits[0]["client_id"] == DOCUMENT
    assert not issuer.registrations


def test_scope_from_www_authenticate(mock: Any) -> None:
    assert flow(mock(scope="mcp:basic", scopes_supported=["mcp:other"])).visits[0]["scope"] == "mcp:basic"


def test_scope_from_scopes_supported(mock: Any) -> None:
    scopes = ["mcp:basic", "mcp:read", "mcp:write"]
    assert flow(mock(scopes_supported=scopes)).visits[0]["scope"] == " ".join(scopes)


def test_scope_omitted_when_undefined(mock: Any) -> None:
    assert "scope" not in flow(mock()).visits[0]


def test_scope_step_up(mock: Any, make: Any) -> None:
    world = mock(scope="mcp:basic", scopes_supported=["mcp:profile"])
    (issuer,) = world.issuers
    world.server.refuses = lambda token, operation: (
        make.lacking("mcp:write")
        if operation.startswith("tools/call") and "mcp:write" not in issuer.visits[-1]["scope"].split()
        else None
    )
    flow(world)
    assert [visit["scope"] for visit in issuer.visits] == ["mcp:basic", "mcp:basic mcp:write"]


def test_scope_retry_limit(mock: Any, make: Any) -> None:
    world = mock(scope="mcp:admin", scopes_supported=["mcp:admin"])
    world.server.refuses = lambda token, operation: make.lacking("mcp:admin")
    with pytest.raises(ScopeRejected):
        flow(world)
    assert 1 <= len(world.visited) <= 3


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
def test_token_endpoint_auth(mock: Any, method: str) -> None:
    world = mock(metadata={"token_endpoint_auth_methods_supported": [method]})
    (issuer,) = world.issuers
    issuer.registered = {"client_id": "c", "token_endpoint_auth_method": method}
    if method != "none":
        issuer.registered["client_secret"] = "s"
    flow(world)
    (request,) = issuer.tokens
    assert request.basic == (("c", "s") if method == "client_secret_basic" else None)
    assert request.form.get("client_secret") == ("s" if method == "client_secret_post" else None)
    assert request.form.get("client_id") == (None if method == "client_secret_basic" else "c")


def test_pre_registration(mock: Any) -> None:
    world = mock(
        metadata={"registration_endpoint": None, "token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    )
    client = ClientRegistration(client_id="pre-registered-client", client_secret="pre-registered-secret")
    issuer = flow(world, AuthorizationCode("http://localhost:3000/callback", client=client))
    assert issuer.tokens[0].basic == ("pre-registered-client", "pre-registered-secret")
    assert not issuer.registrations


def test_2025_03_26_oauth_metadata_backcompat(make: Any) -> None:
    issuer = make.Issuer(MCP, "/oauth", "/.well-known/oauth-authorization-server", issuer=MCP)
    issuer.iss = MCP
    world = make.World(make.Server(f"{MCP}/mcp", prm=None), issuer)
    flow(world)
    assert [token.url for token in issuer.tokens] == [f"{MCP}/oauth/token"]
    assert len(issuer.registrations) == len(issuer.visits) == 1


def test_2025_03_26_oauth_endpoint_fallback(make: Any) -> None:
    issuer = make.Issuer(MCP, at="/nowhere")
    issuer.iss = None
    world = make.World(make.Server(f"{MCP}/mcp", prm=None), issuer)
    flow(world)
    assert [token.url for token in issuer.tokens] == [f"{MCP}/token"]
    assert issuer.visits[0]["code_challenge_method"] == "S256"
    assert len(issuer.registrations) == 1


def test_resource_mismatch(mock: Any) -> None:
    world = mock(resource="https://evil.example.com/mcp")
    with pytest.raises(ResourceMismatch):
        flow(world)
    assert not world.visited
    assert not any(url.startswith(AUTH) for url in world.urls)


def test_offline_access_scope(mock: Any) -> None:
    issuer = flow(mock(metadata={"scopes_supported": ["mcp:basic", "offline_access"]}, scopes_supported=["mcp:basic"]))
    assert issuer.visits[0]["scope"] == "mcp:basic offline_access"
    assert "refresh_token" in issuer.registrations[0]["grant_types"]


def test_offline_access_not_supported(mock: Any) -> None:
    scopes = ["mcp:basic", "mcp:read"]
    issuer = flow(mock(metadata={"scopes_supported": scopes}, scopes_supported=scopes))
    assert "offline_access" not in issuer.visits[0]["scope"]


def test_authorization_server_migration(make: Any) -> None:
    item, two = make.Issuer("http://localhost:3002"), make.Issuer("http://localhost:3003")
    item.registered = {"client_id": "as1-client-id", "client_secret": "as1-client-secret"}
    two.registered = {"client_id": "as2-client-id", "client_secret": "as2-client-secret"}
    server = make.Server(f"{MCP}/mcp", item.issuer, scope="mcp:basic")
    world = make.World(server, item, two)
    oauth = world.oauth()
    assert world.call(oauth).status == 200
    server.document["authorization_servers"] = [two.issuer]
    server.accepts = lambda token, operation: token in two.issued
    assert world.call(oauth, "tools/call").status == 200
    assert len(two.registrations) == 1
    assert {visit["client_id"] for visit in two.visits} == {"as2-client-id"}
    assert {asked.form["client_id"] for asked in two.tokens} == {"as2-client-id"}


@pytest.mark.parametrize(
    ("advertised", "iss"), [(True, AUTH), (None, None)], ids=["iss-supported", "iss-not-advertised"]
)
def test_iss_accepted(mock: Any, advertised: Any, iss: str | None) -> None:
    world = mock(metadata={"authorization_response_iss_parameter_supported": advertised})
    world.issuers[0].iss = iss
    assert len(flow(world).tokens) == 1


@pytest.mark.parametrize(
    ("advertised", "iss"),
    [(True, None), (True, "https://evil.example.com"), (None, "https://evil.example.com"), (True, f"{AUTH}/")],
    ids=["iss-supported-missing", "iss-wrong-issuer", "iss-unexpected", "iss-normalized"],
)
def test_iss_rejected(mock: Any, advertised: Any, iss: str | None) -> None:
    world = mock(metadata={"authorization_response_iss_parameter_supported": advertised})
    (issuer,) = world.issuers
    issuer.iss = iss
    with pytest.raises(InvalidRedirect):
        flow(world)
    assert issuer.visits
    assert not issuer.tokens


def test_metadata_issuer_mismatch(mock: Any) -> None:
    world = mock(metadata={"issuer": "https://evil.example.com"})
    (issuer,) = world.issuers
    with pytest.raises(IssuerMismatch):
        flow(world)
    assert not (issuer.registrations or issuer.visits or issuer.tokens)


def test_client_credentials_jwt(mock: Any, make: Any) -> None:
    from joserfc import jwt

    key = generate_key()
    private = SigningKey(key.as_pem(private=True).decode(), "ES256")
    metadata = {
        "token_endpoint_auth_methods_supported": ["private_key_jwt"],
        "token_endpoint_auth_signing_alg_values_supported": ["ES256"],
    }
    issuer = flow(mock(metadata=metadata), ClientCredentials(ClientRegistration(client_id="client", key=private)))
    form = issuer.tokens[0].form
    claims = jwt.decode(form["client_assertion"], key, algorithms=["ES256"]).claims
    assert form["grant_type"] == "client_credentials"
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("client", "client", AUTH)


def test_client_credentials_basic(mock: Any) -> None:
    world = mock(metadata={"token_endpoint_auth_methods_supported": ["client_secret_basic"]})
    issuer = flow(world, ClientCredentials(ClientRegistration(client_id="client", client_secret="secret")))
    assert issuer.tokens[0].basic == ("client", "secret")


def test_enterprise_managed_authorization(make: Any) -> None:
    idp = make.Issuer("http://localhost:3004")
    exchanges: list[Any] = []

    def exchange(asked: Any) -> Any:
        exchanges.append(asked.form)
        return make.reply({"access_token": "jag", "issued_token_type": ID_JAG, "token_type": "N_A"})

    idp._token = exchange
    issuer = make.Issuer(AUTH, token_endpoint_auth_methods_supported=["client_secret_basic"])
    world = make.World(make.Server(f"{MCP}/mcp", AUTH), issuer, idp)
    provider = IdentityProvider(idp.issuer, ClientRegistration(client_id="idp-client"), f"{idp.issuer}/token")
    flow(
        world,
        EnterpriseManagedAuthorization(provider, ClientRegistration(client_id="c", client_secret="s"), "id-token"),
    )
    assert (exchanges[0]["audience"], exchanges[0]["resource"]) == (AUTH, f"{MCP}/mcp")
    assert issuer.tokens[0].form["assertion"] == "jag"
    assert issuer.tokens[0].basic == ("c", "s")


@pytest.mark.parametrize("nonce", [None, "conformance-as-dpop-nonce"], ids=["dpop", "dpop-nonce"])
def test_dpop(mock: Any, make: Any, nonce: str | None) -> None:
    world = mock(metadata={"dpop_signing_alg_values_supported": ["ES256"]})
    world.server.scheme = "DPoP"
    world.issuers[0].nonce = nonce
    plain = world.server.call

    def judge(asked: Any, operation: str) -> Any:
        answer = plain(asked, operation)
        expected = nonce and nonce.replace("as", "rs")
        if "dpop" in asked.headers and make.jwt_parts(asked.headers["dpop"])[1].get("nonce") != expected:
            return make.reply(None, 401, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce=expected)
        return answer

    world.server.call = judge
    issuer = flow(world)
    assert len(issuer.tokens) == (2 if nonce else 1)
    calls = [call for call in world.server.calls if "authorization" in call.headers]
    assert all(call.headers["authorization"].startswith("DPoP ") for call in calls)
    identities = [make.jwt_parts(call.headers["dpop"])[1]["jti"] for call in calls]
    assert len(set(identities)) == len(identities) >= 2
    assert len(issuer.visits) == 1


def test_wif_jwt_bearer(mock: Any) -> None:
    world = mock(metadata={"registration_endpoint": None})
    issuer = flow(world, WorkloadIdentity("valid-jwt"))
    (request,) = issuer.tokens
    assert request.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert request.form["assertion"] == "valid-jwt"
