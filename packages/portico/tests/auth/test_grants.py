"""Grants without a browser: the extensions of ext-auth."""

from __future__ import annotations

from typing import Any

import pytest

from portico.auth.assertions import SigningKey, generate_key
from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import AuthorizationError, GrantDenied, RegistrationError
from portico.auth.grants import (
    ID_JAG,
    ClientCredentials,
    EnterpriseManagedAuthorization,
    IdentityProvider,
    WorkloadIdentity,
)

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def test_client_credentials_with_a_secret(world: Any, issuer: Any, server: Any) -> None:
    issuer.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
    server.document["scopes_supported"] = ["a"]
    issuer.metadata["scopes_supported"] = ["a", "offline_access"]
    world.call(world.oauth(ClientCredentials(ClientRegistration(client_id="me", client_secret="s:1"))))
    (request,) = issuer.tokens
    assert request.basic == ("me", "s:1")
    assert request.form == {"grant_type": "client_credentials", "resource": server.url, "scope": "a"}
    assert not world.visited


def test_client_credentials_with_a_key(world: Any, issuer: Any, make: Any) -> None:
    from joserfc import jwt

    key = generate_key()
    issuer.metadata |= {"token_endpoint_auth_methods_supported": ["private_key_jwt"]}
    private = SigningKey(key.as_pem(private=True).decode(), "ES256")
    world.call(world.oauth(ClientCredentials(ClientRegistration(client_id="me", key=private))))
    (request,) = issuer.tokens
    assert request.form["grant_type"] == "client_credentials"
    assert request.form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assert "client_id" not in request.form
    claims = jwt.decode(request.form["client_assertion"], key, algorithms=["ES256"]).claims
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("me", "me", issuer.issuer)


def test_client_credentials_need_no_pkce(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(code_challenge_methods_supported=None, authorization_endpoint=None))
    grant = ClientCredentials(ClientRegistration(client_id="me", client_secret="s"))
    assert world.call(world.oauth(grant)).status == 200


def test_client_credentials_that_ran_out_are_presented_again(world: Any, issuer: Any, server: Any) -> None:
    issuer.lifetime = 60
    server.accepts = lambda token, operation: token == issuer.issued[-1]
    oauth = world.oauth(ClientCredentials(ClientRegistration(client_id="me", client_secret="s")))
    world.call(oauth)
    world.now += 100
    world.call(oauth)
    assert len(issuer.tokens) == 2


def test_client_credentials_stay_with_their_issuer(world: Any, issuer: Any) -> None:
    client = ClientRegistration(client_id="me", client_secret="s", issuer="https://other.example")
    with pytest.raises(RegistrationError, match="is registered with"):
        world.call(world.oauth(ClientCredentials(client)))
    assert not issuer.tokens


class Provider:
    """An enterprise's identity provider."""

    origin = "https://idp.example"

    def __init__(self, make: Any) -> None:
        self.make = make
        self.asked: list[Any] = []
        self.answer: Any = {"access_token": "the-grant", "issued_token_type": ID_JAG, "token_type": "N_A"}

    def __call__(self, asked: Any) -> Any:
        if asked.path == "/.well-known/openid-configuration":
            return self.make.reply({"issuer": self.origin, "token_endpoint": f"{self.origin}/token"})
        if asked.path == "/token":
            self.asked.append(asked)
            return self.make.reply(self.answer, 400 if "error" in self.answer else 200)
        return self.make.reply(None, 404)


@pytest.fixture
def provider(make: Any) -> Provider:
    return Provider(make)


def enterprise(endpoint: str | None = "https://idp.example/token") -> EnterpriseManagedAuthorization:
    return EnterpriseManagedAuthorization(
        IdentityProvider("https://idp.example", ClientRegistration(client_id="us-at-idp"), endpoint),
        ClientRegistration(client_id="us", client_secret="s"),
        lambda: "an-id-token",
    )


@pytest.mark.parametrize("endpoint", ["https://idp.example/token", None])
def test_enterprise_decides_for_its_user(make: Any, provider: Provider, endpoint: str | None) -> None:
    issuer = make.Issuer(token_endpoint_auth_methods_supported=["client_secret_basic"])
    server = make.Server(scopes_supported=["a"])
    world = make.World(server, issuer, provider)
    assert world.call(world.oauth(enterprise(endpoint))).status == 200
    assert provider.asked[0].form == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "audience": issuer.issuer,
        "resource": server.url,
        "scope": "a",
        "subject_token": "an-id-token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "client_id": "us-at-idp",
    }
    (request,) = issuer.tokens
    assert request.form == {
        "grant_type": JWT_BEARER,
        "assertion": "the-grant",
        "resource": server.url,
        "scope": "a",
    }
    assert request.basic == ("us", "s")
    assert not world.visited


def test_enterprise_that_says_no_is_quoted(make: Any, provider: Provider, issuer: Any, server: Any) -> None:
    provider.answer = {"error": "invalid_grant", "error_description": "not for interns"}
    world = make.World(server, issuer, provider)
    with pytest.raises(GrantDenied, match="not for interns"):
        world.call(world.oauth(enterprise()))
    assert not issuer.tokens


def test_unexpected_issued_token_type_is_not_forwarded(make: Any, provider: Provider, issuer: Any, server: Any) -> None:
    provider.answer = {"access_token": "x", "token_type": "Bearer", "issued_token_type": "something else"}
    world = make.World(server, issuer, provider)
    with pytest.raises(AuthorizationError, match="something else"):
        world.call(world.oauth(enterprise()))
    assert not issuer.tokens


def test_workload_presents_its_platform_token(world: Any, issuer: Any, server: Any) -> None:
    world.call(world.oauth(WorkloadIdentity(lambda audience: f"jwt for {audience}")))
    (request,) = issuer.tokens
    assert request.form == {
        "grant_type": JWT_BEARER,
        "assertion": f"jwt for {issuer.issuer}",
        "resource": server.url,
    }
    assert "authorization" not in request.headers
    assert not issuer.registrations


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_scope", "unauthorized_client"])
def test_rejected_workload_does_not_try_again(world: Any, issuer: Any, error: str) -> None:
    issuer.refuse = {"error": error}
    oauth = world.oauth(WorkloadIdentity("jwt"))
    for _ in range(3):
        with pytest.raises(GrantDenied) as caught:
            world.call(oauth)
        assert caught.value.error == error
    assert len(issuer.tokens) == 1
    assert not world.visited


def test_workload_with_a_new_identity_may_try_again(world: Any, issuer: Any) -> None:
    identities = iter(["old", "new"])
    issuer.refuse = {"error": "invalid_grant"}
    oauth = world.oauth(WorkloadIdentity(lambda audience: next(identities)))
    with pytest.raises(GrantDenied):
        world.call(oauth)
    issuer.refuse = None
    assert world.call(oauth).status == 200
    assert [token.form["assertion"] for token in issuer.tokens] == ["old", "new"]


def test_workloads_identity_stays_with_its_issuer(make: Any) -> None:
    item, other = make.Issuer("https://one.example"), make.Issuer("https://other.example")
    world = make.World(make.Server(issuer=item.issuer), item, other)
    oauth = world.oauth(WorkloadIdentity("jwt"))
    world.call(oauth)
    world.server.document["authorization_servers"] = [other.issuer]
    world.server.accepts = lambda token, operation: False
    with pytest.raises(RegistrationError, match="is registered with"):
        world.call(oauth)
    with pytest.raises(RegistrationError, match="is registered with"):
        world.call(world.oauth(WorkloadIdentity("jwt", issuer=item.issuer)))
    assert not other.tokens


def test_workload_may_be_a_client_as_well(world: Any, issuer: Any) -> None:
    world.call(world.oauth(WorkloadIdentity("jwt", ClientRegistration(client_id="me"))))
    assert issuer.tokens[0].form["client_id"] == "me"
