"""The authorization code flow (2026-07-28, Authorization Flow Steps; Authorization Response Validation)."""

from __future__ import annotations

from typing import Any

import pytest

from portico.auth.authorization_code import AuthorizationCode
from portico.auth.errors import AuthorizationError, DiscoveryError, GrantDenied, InvalidRedirect, UnsafeUrl
from portico.auth.flow import BrowserRequest, FetchResponse, parse_redirect
from portico.protocol.errors import UsageError


def test_login_carries_everything_it_has_to(world: Any, issuer: Any, server: Any, make: Any) -> None:
    server.document["scopes_supported"] = ["a", "b"]
    token = world.hold(world.oauth().authorize())
    (visit,), (asked,) = issuer.visits, issuer.tokens
    assert visit["response_type"] == "code"
    assert visit["code_challenge_method"] == "S256"
    assert visit["resource"] == asked.form["resource"] == server.url
    assert visit["scope"] == "a b"
    assert visit["redirect_uri"] == make.REDIRECT
    assert len(visit["state"]) >= 32
    assert 43 <= len(asked.form["code_verifier"]) <= 128
    assert "scope" not in asked.form
    assert (token.issuer, token.resource, token.type, token.scope) == (issuer.issuer, server.url, "Bearer", "a b")


@pytest.mark.requirement("auth.pkce")
def test_two_logins_share_no_secret(world: Any, issuer: Any) -> None:
    oauth = world.oauth()
    world.hold(oauth.authorize())
    world.hold(oauth.authorize())
    item, other = issuer.visits
    assert item["state"] != other["state"]
    assert item["code_challenge"] != other["code_challenge"]


@pytest.mark.requirement("auth.pkce")
@pytest.mark.parametrize("methods", [None, [], ["plain"]])
@pytest.mark.parametrize("at", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"])
def test_without_pkce_there_is_no_login(make: Any, server: Any, methods: Any, at: str) -> None:
    world = make.World(server, make.Issuer(at=at, code_challenge_methods_supported=methods))
    with pytest.raises(DiscoveryError, match="S256"):
        world.call(world.oauth())
    assert not world.visited
    assert not world.issuers[0].registrations


@pytest.mark.requirement("auth.resource-parameter")
def test_resource_goes_out_byte_for_byte(world: Any, issuer: Any, server: Any) -> None:
    server.document["resource"] = "https://MCP.example:443"
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth()
    world.call(oauth)
    world.now += 100
    world.call(oauth)
    sent = [issuer.visits[0]["resource"], *(token.form["resource"] for token in issuer.tokens)]
    assert [token.form["grant_type"] for token in issuer.tokens] == ["authorization_code", "refresh_token"]
    assert set(sent) == {"https://MCP.example:443"}


def test_endpoint_keeps_the_query_it_has(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(authorization_endpoint="https://auth.example/authorize?tenant=1"))
    world.call(world.oauth())
    assert world.visited[0].url.startswith("https://auth.example/authorize?tenant=1&response_type=code&")


def test_page_in_the_clear_is_not_shown(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(authorization_endpoint="javascript:alert(1)"))
    with pytest.raises(UnsafeUrl):
        world.call(world.oauth())
    assert not world.visited


def refuse(world: Any, issuer: Any, answers: Any, error: type[Exception] = InvalidRedirect) -> str:
    issuer.answers = answers
    with pytest.raises(error) as caught:
        world.call(world.oauth())
    assert len(issuer.visits) == 1
    assert not issuer.tokens, "a code was redeemed"
    return str(caught.value)


@pytest.mark.requirement("auth.response-state")
@pytest.mark.parametrize("state", [None, "", "forged", "ü"])
def test_answer_to_another_question_is_dropped(world: Any, issuer: Any, state: str | None) -> None:
    def forged(answer: dict[str, str]) -> dict[str, str]:
        rest = {name: value for name, value in answer.items() if name != "state"}
        return rest if state is None else rest | {"state": state}

    refuse(world, issuer, forged)


@pytest.mark.requirement("auth.response-issuer")
@pytest.mark.parametrize("advertised", [True, False, None])
@pytest.mark.parametrize(
    "iss",
    ["https://evil.example", "https://auth.example/", "https://AUTH.example", "https://auth.example:443", ""],
)
def test_response_from_another_sender_is_ignored(make: Any, server: Any, advertised: Any, iss: str) -> None:
    issuer = make.Issuer(authorization_response_iss_parameter_supported=advertised)
    refuse(make.World(server, issuer), issuer, lambda answer: answer | {"iss": iss})


@pytest.mark.requirement("auth.response-issuer")
def test_answer_without_the_promised_name_is_dropped(make: Any, server: Any) -> None:
    issuer = make.Issuer(authorization_response_iss_parameter_supported=True)
    issuer.iss = None
    refuse(make.World(server, issuer), issuer, lambda answer: answer)


@pytest.mark.requirement("auth.response-issuer", "auth.response-silent")
def test_stranger_puts_no_words_into_our_mouth(world: Any, issuer: Any) -> None:
    def stranger(answer: dict[str, str]) -> dict[str, str]:
        return {
            "state": answer["state"],
            "iss": "https://evil.example",
            "error": "call_this_number",
            "error_description": "at once",
            "error_uri": "https://evil.example/",
        }

    error = refuse(world, issuer, stranger)
    assert "call_this_number" not in error
    assert "at once" not in error
    assert "evil" not in error


def test_declined_elicitation_reports_the_reason(world: Any, issuer: Any) -> None:
    def declined(answer: dict[str, str]) -> dict[str, str]:
        return {name: answer[name] for name in ("state", "iss")} | {
            "error": "access_denied",
            "error_description": "not\ntoday",
        }

    error = refuse(world, issuer, declined, GrantDenied)
    assert "access_denied" in error
    assert "not today" in error


def test_answer_with_nothing_in_it_is_dropped(world: Any, issuer: Any) -> None:
    refuse(world, issuer, lambda answer: {name: answer[name] for name in ("state", "iss")})


def test_issuer_without_a_page_says_so(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(authorization_endpoint=None))
    with pytest.raises(DiscoveryError, match="log in"):
        world.call(world.oauth())


def test_redirects_are_decoded_once() -> None:
    assert parse_redirect("http://localhost/cb?code=a%2Bb&iss=https%3A%2F%2Fa.example%2F%2525") == {
        "code": "a+b",
        "iss": "https://a.example/%25",
    }
    assert parse_redirect("code=x&state=") == {"code": "x", "state": ""}
    with pytest.raises(InvalidRedirect, match="too many parameters"):
        parse_redirect("&".join(f"p{n}=1" for n in range(65)))


def test_parameter_that_comes_twice_is_rejected() -> None:
    with pytest.raises(InvalidRedirect):
        parse_redirect("http://localhost/cb?code=a&code=b")


@pytest.mark.requirement("auth.refresh")
def test_offline_access_is_requested_where_it_is_to_be_had(make: Any) -> None:
    def visit(scopes_of_issuer: Any, scopes_of_server: Any, **options: Any) -> dict[str, str]:
        issuer = make.Issuer(scopes_supported=scopes_of_issuer)
        world = make.World(make.Server(scopes_supported=scopes_of_server), issuer)
        world.call(world.oauth(AuthorizationCode(make.REDIRECT, **options)))
        return dict(issuer.visits[0])

    assert visit(["a", "offline_access"], ["a"])["scope"] == "a offline_access"
    assert visit(["a", "offline_access"], ["a"])["prompt"] == "consent"
    assert visit(["a", "offline_access"], ["a"], offline_access=False)["scope"] == "a"
    assert visit(["a"], ["a", "offline_access"])["scope"] == "a"
    assert visit(None, ["a", "offline_access"])["scope"] == "a"
    assert "scope" not in visit(["offline_access"], None)


@pytest.mark.parametrize(
    "answer",
    [
        {"token_type": "Bearer"},
        {"access_token": "", "token_type": "Bearer"},
        {"access_token": "a\r\nX: y", "token_type": "Bearer"},
        {"access_token": "a b", "token_type": "Bearer"},
        {"access_token": 7, "token_type": "Bearer"},
        {"access_token": "a"},
        {"access_token": "a", "token_type": "mac"},
        {"access_token": "a", "token_type": "DPoP"},
        {"access_token": "a", "token_type": "Bearer", "refresh_token": "r\n"},
        {"error": "invalid_grant"},
        [],
        "x",
    ],
)
def test_invalid_token_responses_are_rejected(world: Any, issuer: Any, make: Any, answer: Any) -> None:
    issuer._token = lambda request: make.reply(answer)
    with pytest.raises(AuthorizationError):
        world.call(world.oauth())
    assert len(issuer.tokens) == 1


@pytest.mark.parametrize(
    ("lifetime", "left"),
    [(60, 60.0), ("60", 60.0), (60.5, 60.5), (None, None), ("soon", None), (True, None), (0, None), (-5, None)],
)
def test_lifetimes_come_in_many_ways(world: Any, issuer: Any, lifetime: Any, left: float | None) -> None:
    issuer.lifetime = lifetime
    token = world.hold(world.oauth().authorize())
    assert token.expires_at == (None if left is None else world.now + left)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_server_that_is_not_well_is_not_a_rejection(world: Any, issuer: Any, make: Any, status: int) -> None:
    issuer._token = lambda request: make.reply(None, status)
    with pytest.raises(AuthorizationError, match="later") as caught:
        world.call(world.oauth())
    assert not isinstance(caught.value, GrantDenied)


def test_error_descriptions_from_the_server_are_truncated(world: Any, issuer: Any) -> None:
    issuer.refuse = {"error": "invalid_request", "error_description": "x" * 100_000}
    with pytest.raises(GrantDenied) as caught:
        world.call(world.oauth())
    assert len(str(caught.value)) < 1000


def test_body_beyond_the_bound_is_not_read() -> None:
    assert FetchResponse(200, (), b'{"a": "' + b"x" * (1024 * 1024) + b'"}').json_object() is None
    assert FetchResponse(200, (), b"[" * 100_000).json_object() is None


def test_driver_that_answers_the_wrong_thing_is_reported(world: Any) -> None:
    talk = world.oauth().authorize()
    talk.send(None)
    with pytest.raises(UsageError, match="must be a FetchResponse, got dict"):
        talk.send({"code": "x"})
    talk = world.oauth().authorize()
    response = talk.send(None)
    while not isinstance(response, BrowserRequest):
        response = talk.send(world.fetch(response))
    with pytest.raises(UsageError, match="mapping"):
        talk.send(FetchResponse(200))
