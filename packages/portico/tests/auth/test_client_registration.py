"""Client registration and authentication (2026-07-28; RFC 6749, section 2.3; RFC 7523)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from portico.auth.assertions import SigningKey, create_client_assertion, generate_key, load_private_key
from portico.auth.authorization_code import AuthorizationCode
from portico.auth.client_registration import (
    ClientRegistration,
    authenticate_client,
    check_redirect_uri,
    select_auth_method,
)
from portico.auth.errors import GrantDenied, RegistrationError
from portico.auth.metadata import AuthorizationServerMetadata
from portico.auth.token_storage import TokenStorage
from portico.protocol.errors import UsageError

ISSUER = "https://auth.example"
DOCUMENT = "https://app.example/client.json"


def metadata(*methods: str, **more: Any) -> AuthorizationServerMetadata:
    offered = list(methods) if methods else None
    return AuthorizationServerMetadata(
        issuer=ISSUER, token_endpoint=f"{ISSUER}/token", token_endpoint_auth_methods_supported=offered, **more
    )


def test_registration_decides_how_a_client_shows_itself() -> None:
    client = ClientRegistration(client_id="a", client_secret="s", token_endpoint_auth_method="client_secret_post")
    assert select_auth_method(client, metadata("client_secret_basic")) == "client_secret_post"


@pytest.mark.parametrize(
    ("offered", "method"),
    [
        ((), "client_secret_basic"),
        (("client_secret_post",), "client_secret_post"),
        (("client_secret_post", "client_secret_basic"), "client_secret_basic"),
        (("none",), "none"),
        (("tls_client_auth",), "client_secret_basic"),
    ],
)
def test_else_the_metadata_does(offered: tuple[str, ...], method: str) -> None:
    assert select_auth_method(ClientRegistration(client_id="a", client_secret="s"), metadata(*offered)) == method


def test_client_without_a_secret_shows_only_its_id() -> None:
    assert authenticate_client(ClientRegistration(client_id="a"), metadata(), 0) == ({"client_id": "a"}, {})


def test_both_halves_of_basic_are_form_encoded() -> None:
    form, headers = authenticate_client(ClientRegistration(client_id="a:b c", client_secret="p%/+ü"), metadata(), 0)
    assert form == {}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"a%3Ab+c:p%25%2F%2B%C3%BC"


def test_method_that_we_cannot_do_says_which_we_can() -> None:
    client = ClientRegistration(client_id="a", client_secret="s", token_endpoint_auth_method="tls_client_auth")
    with pytest.raises(RegistrationError, match="private_key_jwt"):
        authenticate_client(client, metadata(), 0)


def test_missing_secret_is_missed() -> None:
    client = ClientRegistration(client_id="a", token_endpoint_auth_method="client_secret_basic")
    with pytest.raises(RegistrationError, match="no secret"):
        authenticate_client(client, metadata(), 0)


@pytest.mark.requirement("auth.issuer-binding")
def test_client_is_not_shown_to_another_issuer() -> None:
    with pytest.raises(UsageError):
        authenticate_client(ClientRegistration(client_id="a", issuer="https://other.example"), metadata(), 0)


@pytest.mark.parametrize("form", ["pem", "jwk"])
def test_signed_assertion_is_for_the_issuer(make: Any, form: str) -> None:
    from joserfc import jwt

    key = generate_key()
    private = key.as_pem(private=True).decode() if form == "pem" else json.dumps(key.as_dict(private=True))
    signed = create_client_assertion(SigningKey(private, key_id="k1"), "me", ISSUER, ["ES256"], 1000.0)
    verified = jwt.decode(signed, key, algorithms=["ES256"])
    assert verified.header["kid"] == "k1"
    assert {name: verified.claims[name] for name in ("iss", "sub", "aud", "iat")} == {
        "iss": "me",
        "sub": "me",
        "aud": ISSUER,
        "iat": 1000,
    }
    assert 1000 < verified.claims["exp"] <= 1300
    again = create_client_assertion(SigningKey(private), "me", ISSUER, None, 1000.0)
    assert make.jwt_parts(again)[1]["jti"] != verified.claims["jti"]


def test_rsa_key_signs_with_rs256(make: Any) -> None:
    from joserfc.jwk import RSAKey

    private = RSAKey.generate_key(2048).as_pem(private=True).decode()
    assert make.jwt_parts(create_client_assertion(SigningKey(private), "me", ISSUER, None, 0.0))[0]["alg"] == "RS256"
    with pytest.raises(RegistrationError, match="ES256"):
        create_client_assertion(SigningKey(private), "me", ISSUER, ["ES256"], 0.0)


@pytest.mark.parametrize("private", ["", "nonsense", "{}", '{"kty": "oct", "k": "AAAA"}'])
def test_invalid_private_keys_are_rejected(private: str) -> None:
    with pytest.raises(UsageError):
        create_client_assertion(SigningKey(private), "me", ISSUER, None, 0.0)


def test_public_key_does_not_sign() -> None:
    with pytest.raises(UsageError):
        load_private_key(generate_key().as_pem(private=False).decode())


@pytest.mark.requirement("auth.registration-order")
def test_client_that_was_given_comes_first(make: Any, server: Any) -> None:
    issuer = make.Issuer(client_id_metadata_document_supported=True)
    world = make.World(server, issuer)
    result = ClientRegistration(client_id="given")
    world.call(world.oauth(AuthorizationCode(make.REDIRECT, client=result, client_metadata_url=DOCUMENT)))
    assert issuer.visits[0]["client_id"] == "given"
    assert not issuer.registrations


@pytest.mark.requirement("auth.registration-order")
def test_document_of_our_own_comes_second(make: Any, server: Any) -> None:
    issuer = make.Issuer(client_id_metadata_document_supported=True)
    world = make.World(server, issuer)
    world.call(world.oauth(AuthorizationCode(make.REDIRECT, client_metadata_url=DOCUMENT)))
    assert issuer.visits[0]["client_id"] == DOCUMENT
    assert issuer.tokens[0].form["client_id"] == DOCUMENT
    assert not issuer.registrations


def test_document_with_a_key_signs_where_that_is_taken(make: Any, server: Any) -> None:
    issuer = make.Issuer(
        client_id_metadata_document_supported=True, token_endpoint_auth_methods_supported=["none", "private_key_jwt"]
    )
    world = make.World(server, issuer)
    key = SigningKey(generate_key().as_pem(private=True).decode())
    world.call(world.oauth(AuthorizationCode(make.REDIRECT, client_metadata_url=DOCUMENT, client_key=key)))
    assert make.jwt_parts(issuer.tokens[0].form["client_assertion"])[1]["sub"] == DOCUMENT


@pytest.mark.requirement("auth.registration-order", "auth.application-type")
def test_dynamic_registration_is_third_and_sends_client_metadata(world: Any, issuer: Any, make: Any) -> None:
    world.call(world.oauth(AuthorizationCode(make.REDIRECT, client_metadata_url=DOCUMENT)))
    (request,) = issuer.registrations
    assert request["application_type"] == "native"
    assert request["grant_types"] == ["authorization_code", "refresh_token"]
    assert request["redirect_uris"] == [make.REDIRECT]
    assert request["token_endpoint_auth_method"] == "none"
    assert request["response_types"] == ["code"]


@pytest.mark.requirement("auth.application-type")
def test_application_on_the_web_says_so(world: Any, issuer: Any) -> None:
    world.call(world.oauth(AuthorizationCode("https://app.example/callback")))
    assert issuer.registrations[0]["application_type"] == "web"


@pytest.mark.requirement("auth.registration-refused")
def test_error_without_hints_names_a_remedy(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(registration_endpoint=None))
    with pytest.raises(RegistrationError, match="configure its client id"):
        world.call(world.oauth())
    assert not world.visited


@pytest.mark.requirement("auth.registration-error")
def test_rejected_registration_tells_why(world: Any, issuer: Any) -> None:
    issuer.registered = {"error": "invalid_redirect_uri", "error_description": "no loopback\x1b[31m here"}
    with pytest.raises(RegistrationError, match="invalid_redirect_uri") as caught:
        world.call(world.oauth())
    assert "\x1b" not in str(caught.value)
    assert not world.visited


@pytest.mark.parametrize("registered", [{}, {"client_id": 7}, {"client_id": "a", "client_secret": []}])
def test_invalid_registration_responses_raise_registration_error(world: Any, issuer: Any, registered: Any) -> None:
    issuer.registered = registered
    with pytest.raises(RegistrationError):
        world.call(world.oauth())


def test_registration_is_used_again(world: Any, issuer: Any) -> None:
    credentials = TokenStorage()
    world.hold(world.oauth(storage=credentials).authorize())
    world.hold(world.oauth(storage=credentials).authorize())
    assert len(issuer.registrations) == 1
    assert len(issuer.visits) == 2


def test_registration_for_another_redirect_or_an_old_one_is_not(world: Any, issuer: Any, make: Any) -> None:
    credentials = TokenStorage()
    issuer.registered = {"client_id": "a", "client_secret_expires_at": world.now + 100}
    world.hold(world.oauth(storage=credentials).authorize())
    world.hold(world.oauth(AuthorizationCode("http://127.0.0.1:1/x"), storage=credentials).authorize())
    assert len(issuer.registrations) == 2
    world.now += 200
    world.hold(world.oauth(AuthorizationCode("http://127.0.0.1:1/x"), storage=credentials).authorize())
    assert len(issuer.registrations) == 3


def test_forgotten_registration_over_there_is_forgotten_here(world: Any, issuer: Any) -> None:
    credentials = TokenStorage()
    issuer.refuse = {"error": "invalid_client"}
    with pytest.raises(GrantDenied):
        world.call(world.oauth(storage=credentials))
    assert credentials.registration(ISSUER) is None


def test_client_that_outgrew_its_scopes_registers_again(world: Any, issuer: Any, server: Any, make: Any) -> None:
    server.document["scopes_supported"] = ["a"]
    oauth = world.oauth()
    world.call(oauth)

    def strict(answer: dict[str, str]) -> dict[str, str]:
        registered = set(issuer.registrations[-1].get("scope", "").split())
        if set(issuer.visits[-1]["scope"].split()) <= registered:
            return answer
        return {"error": "invalid_scope", "state": answer["state"], "iss": answer["iss"]}

    issuer.answers = strict
    server.refuses = lambda token, operation: (
        None if token == issuer.issued[-1] and len(issuer.issued) > 1 else make.lacking("b")
    )
    assert world.call(oauth).status == 200
    assert [registration["scope"] for registration in issuer.registrations] == ["a", "a b"]


def test_configured_client_stays_bound_to_its_first_issuer(make: Any) -> None:
    item, other = make.Issuer("https://one.example"), make.Issuer("https://other.example")
    world = make.World(make.Server(issuer=item.issuer), item, other)
    oauth = world.oauth(
        AuthorizationCode(make.REDIRECT, client=ClientRegistration(client_id="given", client_secret="s"))
    )
    world.call(oauth)
    world.server.document["authorization_servers"] = [other.issuer]
    world.server.accepts = lambda token, operation: token.endswith("other.example")
    with pytest.raises(RegistrationError, match=r"is registered with .*one\.example"):
        world.call(oauth)
    assert not other.visits
    assert not other.tokens


def test_client_configured_for_one_issuer_is_not_sent_to_another(world: Any, make: Any) -> None:
    given = ClientRegistration(client_id="given", issuer="https://other.example")
    with pytest.raises(RegistrationError, match="is registered with"):
        world.call(world.oauth(AuthorizationCode(make.REDIRECT, client=given)))
    assert not world.visited


@pytest.mark.requirement("auth.metadata-document")
@pytest.mark.parametrize("url", ["http://app.example/c.json", "https://app.example", "https://app.example/", "x"])
def test_client_metadata_url_is_https_with_a_path(make: Any, url: str) -> None:
    with pytest.raises(UsageError):
        AuthorizationCode(make.REDIRECT, client_metadata_url=url)


@pytest.mark.requirement("auth.redirect-uris")
@pytest.mark.parametrize("uri", ["http://app.example/cb", "javascript:x", "https://a.example/#x", "myapp:/cb"])
def test_redirect_uris_that_others_could_catch_are_rejected(uri: str) -> None:
    with pytest.raises(UsageError):
        check_redirect_uri(uri)


@pytest.mark.requirement("auth.redirect-uris")
@pytest.mark.parametrize("uri", ["http://localhost:1/cb", "https://app.example/cb", "com.example.app:/cb"])
def test_redirect_uris_that_are_ours_are_fine(uri: str) -> None:
    check_redirect_uri(uri)


def test_secrets_are_not_in_representations() -> None:
    assert "s3" not in repr(ClientRegistration(client_id="a", client_secret="s3"))
    assert "s3" not in repr(SigningKey("s3"))
