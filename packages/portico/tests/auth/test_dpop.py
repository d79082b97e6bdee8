"""DPoP: sender-constrained tokens (RFC 9449; SEP-1932)."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

from portico.auth.assertions import DpopProver
from portico.auth.errors import AuthorizationError, DiscoveryError, TokenRejected
from portico.auth.token_storage import TokenStorage
from portico.protocol.errors import UsageError


@pytest.fixture
def bound(make: Any) -> Any:
    """A world in which tokens are bound to keys, and the server checks."""
    issuer = make.Issuer(dpop_signing_alg_values_supported=["ES256"])
    server = make.Server()
    server.scheme = "DPoP"
    return make.World(server, issuer)


def verified(proof: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from joserfc import jwk, jwt

    head = json.loads(base64.urlsafe_b64decode(proof.split(".")[0] + "=="))
    assert head["typ"] == "dpop+jwt"
    assert head["alg"] == "ES256"
    assert "d" not in head["jwk"]
    token = jwt.decode(proof, jwk.import_key(head["jwk"]), algorithms=["ES256"])
    return head, token.claims


def test_proof_is_for_one_request(make: Any) -> None:
    prover = DpopProver(lambda: 1000.0)
    head, claims = verified(prover.create_proof("POST", "https://mcp.example/mcp?x=1#y", "the-token"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"the-token").digest()).rstrip(b"=").decode()
    assert claims["htm"] == "POST"
    assert claims["htu"] == "https://mcp.example/mcp"
    assert claims["iat"] == 1000
    assert claims["ath"] == digest
    assert "nonce" not in claims
    assert "content_digest" not in claims
    _, other = verified(prover.create_proof("POST", "https://mcp.example/mcp", "the-token"))
    assert other["jti"] != claims["jti"]
    assert head["jwk"]["kty"] == "EC"


def test_proof_without_a_token_has_no_ath() -> None:
    assert "ath" not in verified(DpopProver(lambda: 0.0).create_proof("POST", "https://auth.example/token"))[1]


def test_body_digest_is_in_the_proof_if_required() -> None:
    prover = DpopProver(lambda: 0.0, include_body_digest=True)
    _, claims = verified(prover.create_proof("POST", "https://mcp.example/", "t", b'{"hello": "world"}'))
    assert claims["content_digest"] == "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"


def test_key_survives_being_kept() -> None:
    prover = DpopProver(lambda: 0.0)
    assert DpopProver(lambda: 0.0, prover.private_key).thumbprint == prover.thumbprint


def test_nonces_are_kept_apart_by_origin(make: Any) -> None:
    prover = DpopProver(lambda: 0.0)
    prover.store_nonce("https://a.example/token", make.reply(None, 400, DPoP_Nonce="one"))
    prover.store_nonce("https://b.example/", make.reply(None, 200, DPoP_Nonce="two"))
    prover.store_nonce("https://b.example/", make.reply(None, 200, DPoP_Nonce='br"oken'))
    assert prover.nonce("https://a.example/other") == "one"
    assert prover.nonce("https://b.example/x") == "two"
    assert prover.nonce("https://c.example/") is None


def test_server_that_asks_for_it_gets_it(bound: Any) -> None:
    oauth = bound.oauth()
    bound.call(oauth)
    bound.call(oauth)
    (issuer,) = bound.issuers
    _, claims = verified(issuer.tokens[0].headers["dpop"])
    assert claims["htu"] == "https://auth.example/token"
    assert "ath" not in claims
    calls = [call for call in bound.server.calls if "authorization" in call.headers]
    assert len(calls) == 2
    assert all(call.headers["authorization"] == f"DPoP {issuer.issued[0]}" for call in calls)
    proofs = [verified(call.headers["dpop"]) for call in calls]
    assert len({claims["jti"] for _, claims in proofs}) == 2
    assert all(claims["ath"] for _, claims in proofs)
    assert issuer.visits[0]["dpop_jkt"]


def test_it_may_ask_in_its_metadata_too(bound: Any) -> None:
    bound.server.scheme = "Bearer"
    bound.server.document["dpop_bound_access_tokens_required"] = True
    bound.call(bound.oauth())
    assert bound.server.calls[-1].headers["authorization"].startswith("DPoP ")


def test_dpop_is_not_used_unless_requested(make: Any, server: Any) -> None:
    issuer = make.Issuer(dpop_signing_alg_values_supported=["ES256"])
    world = make.World(server, issuer)
    world.call(world.oauth())
    assert "dpop" not in issuer.tokens[0].headers
    assert world.server.calls[-1].headers["authorization"].startswith("Bearer ")


def test_confirmation_can_be_forced_or_declined(make: Any, server: Any) -> None:
    issuer = make.Issuer(dpop_signing_alg_values_supported=["ES256"])
    world = make.World(server, issuer)
    credentials = TokenStorage()
    world.call(world.oauth(dpop=True, storage=credentials))
    assert world.server.calls[-1].headers["authorization"].startswith("DPoP ")
    world.call(world.oauth(dpop=False, storage=credentials))
    assert world.server.calls[-1].headers["authorization"].startswith("Bearer ")


def test_where_it_cannot_be_had_nothing_weaker_is_taken(bound: Any) -> None:
    (issuer,) = bound.issuers
    issuer.metadata["dpop_signing_alg_values_supported"] = ["RS256"]
    with pytest.raises(DiscoveryError, match="DPoP"):
        bound.call(bound.oauth())
    assert not bound.visited


def test_bearer_token_for_a_proof_is_rejected(bound: Any, make: Any) -> None:
    (issuer,) = bound.issuers
    issuer._token = lambda request: make.reply({"access_token": "x", "token_type": "Bearer"})
    with pytest.raises(AuthorizationError, match="DPoP"):
        bound.call(bound.oauth())


def nonce_guard(make: Any, wanted: list[str]) -> Any:
    def guard(self: Any, asked: Any, operation: str) -> Any:
        answer = type(self).call(self, asked, operation)
        if "dpop" not in asked.headers:
            return answer
        claims = verified(asked.headers["dpop"])[1]
        if claims.get("nonce") != wanted[0]:
            return make.reply(None, 401, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce=wanted[0])
        return answer

    return guard


def test_nonces_of_both_servers_are_honoured_with_new_proofs(bound: Any, make: Any) -> None:
    (issuer,) = bound.issuers
    issuer.nonce = "as-nonce"
    expected = ["rs-nonce"]
    guard = nonce_guard(make, expected)
    bound.server.call = lambda token, operation: guard(bound.server, token, operation)
    oauth = bound.oauth()
    assert bound.call(oauth).status == 200
    first, second = (verified(token.headers["dpop"])[1] for token in issuer.tokens)
    assert "nonce" not in first
    assert second["nonce"] == "as-nonce"
    assert first["jti"] != second["jti"]
    proofs = [verified(call.headers["dpop"])[1] for call in bound.server.calls if "dpop" in call.headers]
    assert [proof.get("nonce") for proof in proofs] == [None, "rs-nonce"]
    expected[0] = "the-next"
    assert bound.call(oauth).status == 200
    assert len(issuer.visits) == 1, "a nonce is no reason to log in again"


def test_nonce_that_another_request_learned_is_used(bound: Any, make: Any) -> None:
    oauth = bound.oauth()
    bound.call(oauth)
    item, other = oauth.start_request("one"), oauth.start_request("other")
    for attempt in (item, other):
        bound.hold(attempt.headers("POST", bound.server.url))
    challenge = make.reply(None, 401, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce="n")
    assert bound.hold(item.should_retry(challenge))
    assert bound.hold(other.should_retry(challenge))
    assert len(bound.visited) == 1


def test_token_endpoint_that_never_has_enough_nonces_is_given_up(bound: Any, make: Any) -> None:
    (issuer,) = bound.issuers
    issuer._token = lambda request: make.reply(
        {"error": "use_dpop_nonce"}, 400, DPoP_Nonce=f"nonce-{len(issuer.tokens)}"
    )
    with pytest.raises(AuthorizationError, match="use_dpop_nonce"):
        bound.call(bound.oauth())
    assert len(issuer.tokens) == 3


def test_server_that_never_has_enough_nonces_is_given_up(bound: Any, make: Any) -> None:
    count = iter(range(1000))
    bound.server.refuses = lambda token, operation: make.reply(
        None, 401, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce=f"nonce-{next(count)}"
    )
    with pytest.raises(TokenRejected):
        bound.call(bound.oauth())
    assert len(bound.visited) == 1


def test_bound_token_is_of_use_after_a_restart(bound: Any) -> None:
    credentials = TokenStorage()
    (issuer,) = bound.issuers
    issuer.refresh_tokens, issuer.lifetime = True, 60
    bound.call(bound.oauth(storage=credentials))
    bound.call(bound.oauth(storage=credentials))
    bound.now += 100
    bound.call(bound.oauth(storage=credentials))
    assert len(issuer.visits) == 1
    assert issuer.tokens[-1].form["grant_type"] == "refresh_token"
    keys = {verified(request.headers["dpop"])[0]["jwk"]["x"] for request in (*issuer.tokens, bound.server.calls[-1])}
    assert len(keys) == 1


def test_servers_nonce_on_a_good_answer_is_kept(bound: Any, make: Any) -> None:
    oauth = bound.oauth()
    bound.call(oauth)
    attempt = oauth.start_request()
    bound.hold(attempt.headers("POST", bound.server.url))
    assert not bound.hold(attempt.should_retry(make.reply({}, 200, DPoP_Nonce="next")))
    headers = bound.hold(oauth.start_request().headers("POST", bound.server.url))
    assert verified(headers["DPoP"])[1]["nonce"] == "next"


def test_without_the_package_one_is_informed_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(UsageError, match=r"portico\[oauth\]"):
        DpopProver(lambda: 0.0)


def test_signing_modules_are_imported_on_demand() -> None:
    code = "import sys, portico.auth.oauth, portico.auth.authorization_code; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert not {"joserfc", "cryptography", "asyncio", "socket", "httpx2", "keyring"} & set(loaded.split())
