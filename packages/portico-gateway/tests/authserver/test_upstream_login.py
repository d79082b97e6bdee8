"""Presets of identity providers, the allow list, and encryption keys."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from portico import Server, UsageError
from portico.auth.errors import AuthorizationError, InvalidRedirect
from portico.compat.fastmcp import GitHubProvider
from portico.transports.http_client.oauth_fetcher import OAuthFetcher
from portico_gateway.authserver import settings as face_settings, upstream_login
from portico_gateway.authserver.identity_providers import parse_identity_provider
from portico_gateway.authserver.upstream_login import Identity, identity_from_claims, is_allowed
from portico_gateway.credentials import vault_store
from portico_gateway.credentials.encryption import DecryptionFailed, KeyRing, load_key_ring
from portico_gateway.credentials.token_vault import TokenVault
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.vault_store import CredentialKey, StoredToken
from support.access_control import served
from support.http_threads import running

OURS = {"client_id": "us", "client_secret": "secret"}


@pytest.mark.parametrize(
    ("said", "issuer"),
    [
        ({"provider": "github", "allow": ["*"]}, "https://github.com/login/oauth"),
        ({"provider": "google", "allow": ["*@acme.example"]}, "https://accounts.google.com"),
        ({"provider": "entra", "tenant": "1234"}, "https://login.microsoftonline.com/1234/v2.0"),
        ({"provider": "auth0", "domain": "acme.eu.auth0.com"}, "https://acme.eu.auth0.com/"),
        ({"provider": "keycloak", "base_url": "https://sso.acme.example/", "realm": "staff"},
         "https://sso.acme.example/realms/staff"),
        ({"issuer": "https://login.acme.example"}, "https://login.acme.example"),
    ],
)  # fmt: skip
def test_preset_sets_its_issuer(said: dict[str, Any], issuer: str) -> None:
    assert parse_identity_provider({**OURS, **said}).issuer == issuer


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({**OURS, "provider": "githup"}, "did you mean 'github'"),
        ({**OURS, "provider": "github"}, "anyone can create an account"),
        ({**OURS, "provider": "entra"}, "needs tenant"),
        ({**OURS, "provider": "entra", "tenant": "common"}, "every organization"),
        ({**OURS, "provider": "oauth", "issuer": "https://a.example"}, "needs authorization_endpoint"),
        ({"issuer": "https://login.acme.example"}, "client_id"),
        ({**OURS, "issuer": "http://login.acme.example"}, "would send credentials unencrypted"),
        (
            {**OURS, "issuer": "https://login.acme.example", "allow": ["somebody"]},
            "allow must contain .*, got 'somebody'",
        ),
        (
            {**OURS, "issuer": "https://login.acme.example", "allow": ["claim:admin"]},
            "allow must contain .*, got 'claim:admin'",
        ),
        ({**OURS, "issuer": "https://login.acme.example", "allow": []}, "allow is empty"),
    ],
)
def test_login_that_makes_no_sense_is_rejected(said: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse_identity_provider(said)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"access_token_ttl": "2h"}, "at most 1h"),
        ({"access_token_ttl": "soon"}, "must be a duration such as"),
        ({"acces_token_ttl": 5}, "access_token_ttl"),
        ({"client": [{"client_id": "x", "redirect_uris": ["javascript:x"]}]}, "redirect URI"),
        (
            {"client": [{"client_id": "x", "client_secret": "", "redirect_uris": ["https://x.example/"]}]},
            "secret must not be empty",
        ),
    ],
)
def test_face_that_makes_no_sense_is_rejected(said: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        face_settings.parse_proxy_settings({**OURS, "issuer": "https://login.acme.example", **said})


ANNA = Identity("7", "Anna", "anna", "anna@acme.example", ("ops",), {"hd": "acme.example", "roles": ["admin"]})


@pytest.mark.parametrize(
    ("entry", "provider", "who", "expected"),
    [
        ("*", "oidc", ANNA, True),
        ("anna@ACME.example", "oidc", ANNA, True),
        ("*@acme.example", "oidc", ANNA, True),
        ("*@acme.example", "google", ANNA, True),
        ("*@acme.example", "google", Identity("8", email="eve@acme.example"), False),
        ("*@example", "oidc", ANNA, False),
        ("*@acme.example", "oidc", Identity("8"), False),
        ("user:anna", "oidc", ANNA, True),
        ("user:7", "oidc", ANNA, False),
        ("sub:7", "oidc", ANNA, True),
        ("group:ops", "oidc", ANNA, True),
        ("group:op", "oidc", ANNA, False),
        ("claim:roles=admin", "oidc", ANNA, True),
        ("claim:roles=root", "oidc", ANNA, False),
        ("claim:level=None", "oidc", ANNA, False),
    ],
)
def test_allow_entries_match_identities(entry: str, provider: str, who: Identity, expected: bool) -> None:
    message = {**OURS, "provider": provider, "allow": [entry]}
    if provider == "oidc":
        message["issuer"] = "https://login.acme.example"
    assert is_allowed(parse_identity_provider(message), who) is expected


@pytest.mark.parametrize(
    ("entry", "claims"),
    [
        ("user:anna", {"preferred_username": "anna\u200b"}),
        ("user:anna", {"preferred_username": " anna"}),
        ("user:" + "a" * 100, {"preferred_username": "a" * 101}),
        ("*@acme.example", {"email": "x" * 87 + "@acme.example.evil.example", "email_verified": True}),
        ("group:" + "g" * 255, {"groups": ["g" * 256]}),
    ],
)
def test_lookalike_identities_are_not_allowed(entry: str, claims: dict[str, Any]) -> None:
    where = parse_identity_provider({**OURS, "issuer": "https://login.acme.example", "allow": [entry]})
    assert not is_allowed(where, identity_from_claims(where, {"sub": "8", **claims}))


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "anna@acme.example", "email_verified": False},
        {"email": " anna@acme.example"},
        {"email": ""},
        {"Email": "anna@acme.example"},
    ],
)
def test_email_address_that_is_not_verified_is_no_subject(claims: dict[str, Any]) -> None:
    where = parse_identity_provider(
        {**OURS, "issuer": "https://login.acme.example", "allow": ["*"], "subject_claim": "email"}
    )
    with pytest.raises(AuthorizationError):
        identity_from_claims(where, {"sub": "8", **claims})


def test_provider_that_lets_in_no_one_is_a_mistake() -> None:
    server = Server("desk", auth=GitHubProvider(client_id="id", base_url="https://desk.example", allow=[]))
    with pytest.raises(UsageError, match="anyone can create an account"):
        _ = server.auth


@pytest.mark.parametrize(("given", "path"), [({}, "/auth/callback"), ({"redirect_path": "/back"}, "/back")])
def test_redirect_path_of_a_fastmcp_provider_is_served(
    given: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    provider = GitHubProvider(
        client_id="id", client_secret="s", base_url="https://desk.example", allow=["user:ann"], **given
    )
    server = Server("desk", auth=provider, store=str(tmp_path / "a.db"))
    assert server.auth is not None
    assert ("GET", path) in {(page.method, page.path) for page in server.custom_routes}


def test_callback_path_is_a_path() -> None:
    with pytest.raises(UsageError, match="callback_path must be a path"):
        parse_identity_provider({**OURS, "issuer": "https://login.acme.example", "callback_path": "back"})


# GitHub, which knows no OpenID


class Hub(ThreadingHTTPServer):
    """As much of GitHub Enterprise as a login needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hub)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []


class _Hub(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        good = form.get("code") == "good" and form.get("code_verifier") and form["client_secret"] == "secret"
        # GitHub says 200 also where it says no.
        self._say({"access_token": "gho_1", "token_type": "bearer"} if good else {"error": "bad_verification_code"})

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        assert self.headers["Authorization"] == "Bearer gho_1"
        results: dict[str, Any] = {
            "/api/v3/user": {"id": 42, "login": "octocat", "name": "Octo", "email": "typed@by.hand"},
            "/api/v3/user/emails": [{"email": "octo@acme.example", "primary": True, "verified": True}],
            "/api/v3/user/orgs?per_page=100": [{"login": "acme"}],
            "/api/v3/user/teams?per_page=100": [{"slug": "ops", "organization": {"login": "acme"}}],
        }
        self._say(results[self.path])

    def _say(self, said: Any) -> None:
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    with running(server):
        yield server


async def here() -> list[str]:
    return ["127.0.0.1"]


async def test_github_login_returns_identity_and_organizations(hub: Hub) -> None:
    where = parse_identity_provider(
        {**OURS, "provider": "github", "base_url": hub.url, "fetch_memberships": True, "allow": ["group:acme/ops"]}
    )
    fetcher = OAuthFetcher(here)
    try:
        url, pending = await fetcher.run_conversation(upstream_login.begin(where, "http://127.0.0.1/callback"))
        message = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert message["scope"] == "read:user user:email read:org" and message["code_challenge_method"] == "S256"
        back = {"state": pending.state, "code": "good"}
        who = await fetcher.run_conversation(
            upstream_login.finish(where, pending, back, "http://127.0.0.1/callback", time.time())
        )
        assert (who.subject, who.username, who.email) == ("42", "octocat", "octo@acme.example")
        assert who.groups == ("acme", "acme/ops")
        assert is_allowed(where, who)
        with pytest.raises(AuthorizationError):
            await fetcher.run_conversation(
                upstream_login.finish(where, pending, {**back, "code": "bad"}, "http://127.0.0.1/callback", 0.0)
            )
        with pytest.raises(InvalidRedirect):
            await fetcher.run_conversation(
                upstream_login.finish(where, pending, {**back, "state": "x"}, "http://127.0.0.1/callback", 0.0)
            )
        with pytest.raises(InvalidRedirect):
            mixed = {**back, "iss": "https://evil.example"}
            await fetcher.run_conversation(
                upstream_login.finish(where, pending, mixed, "http://127.0.0.1/callback", 0.0)
            )
    finally:
        await fetcher.close()


# Keys


def test_ciphertext_is_bound_to_its_key_and_context() -> None:
    old, new = KeyRing([b"k" * 32]), KeyRing([b"n" * 32, b"k" * 32])
    sealed = old.encrypt(b"secret", "here")
    assert b"secret" not in sealed.encode() and sealed != old.encrypt(b"secret", "here")
    assert new.decrypt(sealed, "here") == b"secret" and new.needs_rotation(sealed) and not old.needs_rotation(sealed)
    for ring, text, place in (
        (old, sealed, "there"),
        (KeyRing([b"n" * 32]), sealed, "here"),
        (old, sealed[:-4] + "AAAA", "here"),
        (old, "", "here"),
        (old, sealed.partition(".")[0] + ".?", "here"),
    ):
        with pytest.raises(DecryptionFailed):
            ring.decrypt(text, place)


def test_key_ring_is_next_to_the_database_with_owner_only_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS", raising=False)
    sealed = load_key_ring(f"sqlite://{tmp_path}/store.db", ()).encrypt(b"secret", "here")
    assert load_key_ring(str(tmp_path / "store.db"), ()).decrypt(sealed, "here") == b"secret"
    assert stat.S_IMODE(os.stat(tmp_path / "store.keys").st_mode) == 0o600
    with pytest.raises(UsageError, match="PORTICO_ENCRYPTION_KEYS"):
        load_key_ring("postgresql://db.example/portico", ())
    with pytest.raises(UsageError, match="at least 16"):
        KeyRing([b"short"])


async def test_rows_are_sealed_again_after_a_key_was_replaced(tmp_path: Path) -> None:
    store, old = f"sqlite://{tmp_path}/store.db", KeyRing([b"k" * 32])
    row = StoredToken("us anna", "notes", "https://login.example", "", 1.0)
    before = TokenVault("https://gateway.example", store, old)
    async with before.lifespan():
        sealed = old.encrypt(b"{}", row.seal_context)
        await before.database.write(
            lambda tx: vault_store.put_token(tx, StoredToken("us anna", "notes", row.issuer, sealed, 1.0))
        )
    ring = KeyRing([b"n" * 32, b"k" * 32])
    after = TokenVault("https://gateway.example", store, ring)
    async with after.lifespan():
        await after.reseal_task
        (kept,) = await after.database.read(vault_store.list_tokens)
        assert not ring.needs_rotation(kept.body) and KeyRing([b"n" * 32]).decrypt(kept.body, row.seal_context) == b"{}"


async def test_token_disconnected_during_a_read_is_not_cached() -> None:
    ring, issuer = KeyRing([b"k" * 32]), "https://login.example"
    vault, slot = TokenVault("https://gateway.example", None, ring), CredentialKey("us anna", "notes")
    account = UpstreamAccount(alias="notes", url="https://notes.example/mcp")
    row = StoredToken("us anna", "notes", issuer, "", time.time())
    token = json.dumps({"access_token": "t", "issuer": issuer, "resource": account.url}).encode()
    async with vault.lifespan():
        row = replace(row, body=ring.encrypt(token, row.seal_context))
        await vault.database.write(lambda tx: vault_store.put_token(tx, row))
        read = vault.database.read

        async def taken_back(query: Any) -> Any:
            message = await read(query)
            assert await vault.disconnect(slot)
            return message

        vault.database.read = taken_back  # type: ignore[method-assign]
        await vault.get_token(account, slot)
        vault.database.read = read  # type: ignore[method-assign]
        assert await vault.get_token(account, slot) is None


async def test_authorization_server_behind_a_prefix_serves_prefix_and_root() -> None:
    server = Server("desk")
    result = face_settings.parse_proxy_settings({**OURS, "issuer": "https://login.acme.example"})
    face_settings.install_authorization_server(
        server, result, "https://acme.example/team", "https://acme.example/team/mcp"
    )
    paths = {route.path for route in server.custom_routes}
    assert {"/team/authorize", "/authorize", "/.well-known/oauth-authorization-server/team"} <= paths
    async with served(server):
        pass
