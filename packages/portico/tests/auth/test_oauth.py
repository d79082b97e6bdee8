"""The OAuth flow from a rejected request to an accepted one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import AuthorizationError, GrantDenied, ScopeRejected, TokenRejected, UnsafeUrl
from portico.auth.grants import ClientCredentials
from portico.auth.token_storage import TokenStorage
from portico.protocol.errors import PorticoError, UsageError


@pytest.mark.requirement("auth.header-only")
def test_token_is_on_every_request(world: Any, server: Any, issuer: Any) -> None:
    oauth = world.oauth()
    for _ in range(3):
        assert world.call(oauth).status == 200
    assert [call.headers.get("authorization") for call in server.calls] == [None, *["Bearer " + issuer.issued[0]] * 3]


@pytest.mark.requirement("auth.header-only")
def test_token_is_never_in_an_address(world: Any, issuer: Any) -> None:
    issuer.refresh_tokens = True
    world.call(world.oauth())
    assert not any(secret in url for url in world.urls for secret in (*issuer.issued, "refresh-1"))


@pytest.mark.requirement("auth.token-for-one-server")
def test_token_goes_nowhere_else(world: Any) -> None:
    oauth = world.oauth()
    world.call(oauth)
    for url in ("https://evil.example/mcp", "http://mcp.example/mcp", "https://mcp.example:8443/mcp"):
        with pytest.raises(UsageError):
            world.hold(oauth.start_request().headers("POST", url))


@pytest.mark.requirement("auth.token-for-one-server")
def test_server_in_the_clear_gets_no_token(world: Any, server: Any) -> None:
    server.url = "http://mcp.example/mcp"
    with pytest.raises(UnsafeUrl):
        world.oauth()


def test_all_failures_are_portico_errors() -> None:
    assert issubclass(AuthorizationError, PorticoError)


@pytest.mark.requirement("auth.scopes")
def test_scopes_of_a_challenge_come_first(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(scope="from:challenge", scopes_supported=["from:metadata"]), issuer)
    world.call(world.oauth())
    assert issuer.visits[0]["scope"] == "from:challenge"


@pytest.mark.requirement("auth.scopes")
def test_then_those_of_the_metadata_then_none(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(scopes_supported=["a", "b", "a"]), issuer)
    world.call(world.oauth())
    assert issuer.visits[0]["scope"] == "a b"
    world = make.World(make.Server(), issuer)
    world.call(world.oauth())
    assert "scope" not in issuer.visits[1]


def test_scopes_that_a_user_configured_replace_the_metadatas(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(scopes_supported=["a"]), issuer)
    world.call(world.oauth(scopes=["mine"]))
    world.server = make.Server(scope="b", scopes_supported=["a"])
    world.call(world.oauth(scopes=["mine"]))
    assert [visit["scope"] for visit in issuer.visits] == ["mine", "b mine"]


@pytest.mark.requirement("auth.refresh")
def test_token_that_ran_out_is_refreshed_before_it_is_sent(world: Any, issuer: Any, server: Any) -> None:
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth()
    world.call(oauth)
    world.now += 55
    world.call(oauth)
    assert [token.form["grant_type"] for token in issuer.tokens] == ["authorization_code", "refresh_token"]
    assert issuer.tokens[1].form == {
        "grant_type": "refresh_token",
        "refresh_token": "refresh-1",
        "resource": server.url,
        "client_id": "registered",
    }
    assert len(server.calls) == 3


@pytest.mark.requirement("auth.refresh", "auth.rotation")
def test_refresh_tokens_rotate(world: Any, issuer: Any) -> None:
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth()
    for _ in range(4):
        world.call(oauth)
        world.now += 100
    used = [token.form["refresh_token"] for token in issuer.tokens[1:]]
    assert used == ["refresh-1", "refresh-2", "refresh-3"]
    assert len(issuer.visits) == 1


def test_refresh_token_that_is_not_replaced_stays(world: Any, issuer: Any) -> None:
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth()
    world.call(oauth)
    issuer.refresh_tokens = False
    world.now += 100
    world.call(oauth)
    assert oauth.token.refresh_token == "refresh-1"
    assert oauth.token.access_token == issuer.issued[1]


@pytest.mark.requirement("auth.refresh-optional")
def test_revoked_refresh_token_leads_to_a_login(world: Any, issuer: Any) -> None:
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth()
    world.call(oauth)
    issuer.revoked.add("refresh-1")
    world.now += 100
    assert world.call(oauth).status == 200
    grants = [token.form["grant_type"] for token in issuer.tokens]
    assert grants == ["authorization_code", "refresh_token", "authorization_code"]


def test_refresh_that_fails_for_other_reasons_forgets_nothing(world: Any, issuer: Any, make: Any) -> None:
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth()
    world.call(oauth)
    world.now += 100
    for answer in (make.reply(None, 503), make.reply({"error": "temporarily_unavailable"}, 400), make.reply(None, 404)):
        issuer._token = lambda request, answer=answer: answer
        with pytest.raises(AuthorizationError):
            world.call(oauth)
    assert oauth.token.refresh_token == "refresh-1"


def test_token_rejected_before_its_time_is_refreshed_then_replaced(world: Any, issuer: Any, server: Any) -> None:
    issuer.refresh_tokens = True
    oauth = world.oauth()
    world.call(oauth)
    server.accepts = lambda token, operation: token == "token-3@auth.example"
    assert world.call(oauth).status == 200
    grants = [asked.form["grant_type"] for asked in issuer.tokens]
    assert grants == ["authorization_code", "refresh_token", "authorization_code"]


@pytest.mark.requirement("auth.error-codes")
def test_token_rejected_when_it_is_new_is_the_end(world: Any, issuer: Any, server: Any) -> None:
    server.accepts = lambda token, operation: False
    with pytest.raises(TokenRejected, match="audience"):
        world.call(world.oauth())
    assert len(issuer.visits) == 1


def test_restart_keeps_the_login(world: Any, issuer: Any, server: Any) -> None:
    credentials = TokenStorage()
    world.call(world.oauth(storage=credentials))
    world.call(world.oauth(storage=credentials))
    assert len(issuer.visits) == 1
    assert len(server.calls) == 3


def test_restart_with_an_expired_token_refreshes_where_the_challenge_points(make: Any) -> None:
    issuer = make.Issuer()
    issuer.refresh_tokens, issuer.lifetime = True, 60
    world = make.World(make.Server(prm="/custom"), issuer)
    credentials = TokenStorage()
    world.call(world.oauth(storage=credentials))
    world.now += 100
    world.call(world.oauth(storage=credentials))
    assert [token.form["grant_type"] for token in issuer.tokens] == ["authorization_code", "refresh_token"]
    assert not any("well-known/oauth-protected" in url for url in world.urls)


def test_token_refreshed_by_another_process_is_reused(world: Any, issuer: Any) -> None:
    credentials = TokenStorage()
    issuer.refresh_tokens, issuer.lifetime = True, 60
    item, other = world.oauth(storage=credentials), world.oauth(storage=credentials)
    world.call(item)
    world.call(other)
    world.now += 100
    world.call(item)
    world.call(other)
    assert [token.form["grant_type"] for token in issuer.tokens] == ["authorization_code", "refresh_token"]


def test_token_that_another_process_got_is_taken_over(world: Any, issuer: Any, server: Any) -> None:
    credentials = TokenStorage()
    issuer.refresh_tokens, issuer.lifetime = True, 60
    item, other = world.oauth(storage=credentials), world.oauth(storage=credentials)
    for oauth in (item, other):
        world.hold(oauth.authorize())
    world.now += 100
    world.call(other)
    world.call(item)
    assert item.token == other.token
    assert [token.form["grant_type"] for token in issuer.tokens[2:]] == ["refresh_token"]


def test_late_refresh_uses_the_token_stored_by_the_faster_one(world: Any, issuer: Any, make: Any) -> None:
    credentials = TokenStorage()
    issuer.refresh_tokens, issuer.lifetime = True, 60
    oauth = world.oauth(storage=credentials)
    world.call(oauth)
    world.now += 100
    theirs = msgspec.structs.replace(
        oauth.token, access_token="theirs", refresh_token="rotated", expires_at=world.now + 60
    )

    def used_up(asked: Any) -> Any:
        credentials.store_token(world.server.url, theirs)
        return make.reply({"error": "invalid_grant"}, 400)

    issuer._token = used_up
    assert world.call(oauth).status == 200
    assert oauth.token == theirs
    assert len(issuer.visits) == 1


def test_requests_at_once_share_one_login(world: Any, issuer: Any, server: Any, make: Any) -> None:
    oauth = world.oauth()
    item, other = oauth.start_request("one"), oauth.start_request("other")
    refused = make.reply(None, 401)
    for attempt in (item, other):
        assert world.hold(attempt.headers("POST", server.url)) == {}
    assert world.hold(item.should_retry(refused))
    assert world.hold(other.should_retry(refused))
    assert len(issuer.visits) == 1
    assert world.hold(item.headers("POST", server.url)) == world.hold(other.headers("POST", server.url))


@pytest.mark.requirement("auth.error-codes")
def test_forbidden_is_left_to_the_caller(world: Any, server: Any, make: Any, issuer: Any) -> None:
    server.refuses = lambda token, operation: make.reply(None, 403, WWW_Authenticate='Bearer error="invalid_token"')
    assert world.call(world.oauth()).status == 403
    server.refuses = lambda token, operation: make.reply(None, 403)
    assert world.call(world.oauth()).status == 403
    assert len(issuer.visits) == 2


@pytest.mark.requirement("auth.step-up")
def test_step_up_requests_additional_scopes(make: Any) -> None:
    issuer = make.Issuer()
    server = make.Server(scope="basic", scopes_supported=["profile"])
    world = make.World(server, issuer)
    granted = {"read": "read", "write": "write"}
    server.refuses = lambda token, operation: (
        None
        if operation not in granted or operation in issuer.visits[-1]["scope"].split()
        else make.lacking(granted[operation])
    )
    oauth = world.oauth()
    world.call(oauth, "list")
    world.call(oauth, "read")
    world.call(oauth, "write")
    world.call(oauth, "list")
    assert [visit["scope"] for visit in issuer.visits] == ["basic", "basic read", "basic read write"]


def test_scopes_granted_by_default_are_requested_again_on_step_up(make: Any, issuer: Any, server: Any) -> None:
    world = make.World(server, issuer)
    issuer.scope = "default:one default:two"
    server.refuses = lambda token, operation: make.lacking("more") if len(issuer.visits) == 1 else None
    world.call(world.oauth())
    assert issuer.visits[1]["scope"] == "default:one default:two more"


@pytest.mark.requirement("auth.scopes-kept")
def test_login_after_a_rejection_retains_granted_scopes(make: Any, issuer: Any) -> None:
    server = make.Server(scope="basic")
    world = make.World(server, issuer)
    server.refuses = lambda token, operation: make.lacking("write") if len(issuer.visits) == 1 else None
    oauth = world.oauth()
    world.call(oauth)
    server.accepts = lambda token, operation: token == "token-3@auth.example"
    world.call(oauth)
    assert issuer.visits[2]["scope"] == "basic write"


@pytest.mark.requirement("auth.step-up")
def test_repeated_insufficient_scope_raises_scope_rejected(world: Any, issuer: Any, server: Any, make: Any) -> None:
    server.refuses = lambda token, operation: make.lacking("admin")
    oauth = world.oauth()
    with pytest.raises(ScopeRejected, match="admin"):
        world.call(oauth, "tools/call")
    assert len(issuer.visits) == 2
    for _ in range(3):
        with pytest.raises(ScopeRejected):
            world.call(oauth, "tools/call")
    assert len(issuer.visits) <= 3
    assert world.fetched[-1].method == "POST", "giving up costs no request"


@pytest.mark.requirement("auth.insufficient-scope")
def test_server_that_always_thinks_of_another_scope_is_given_up(world: Any, server: Any, make: Any) -> None:
    count = iter(range(1000))
    server.refuses = lambda token, operation: make.lacking(f"scope-{next(count)}")
    with pytest.raises(TokenRejected):
        world.call(world.oauth())
    assert len(world.visited) <= 3


def test_success_wipes_the_slate(world: Any, issuer: Any, server: Any, make: Any) -> None:
    needed = ["write"]
    server.refuses = lambda token, operation: (
        make.lacking(needed[0]) if needed[0] not in issuer.visits[-1].get("scope", "").split() else None
    )
    oauth = world.oauth()
    for scope in ("write", "admin", "root"):
        needed[0] = scope
        assert world.call(oauth).status == 200
    assert issuer.visits[-1]["scope"] == "write admin root"


def test_insufficient_scope_on_a_401_is_a_step_up_too(world: Any, issuer: Any, server: Any, make: Any) -> None:
    refused = make.reply(None, 401, WWW_Authenticate='Bearer error="insufficient_scope", scope="more"')
    server.refuses = lambda token, operation: refused if len(issuer.visits) == 1 else None
    assert world.call(world.oauth()).status == 200
    assert issuer.visits[1]["scope"] == "more"


@pytest.mark.requirement("auth.issuer-binding", "auth.issuer-moves")
def test_move_to_another_issuer_takes_nothing_along(make: Any) -> None:
    item, other = make.Issuer("https://one.example"), make.Issuer("https://other.example")
    for issuer in (item, other):
        issuer.refresh_tokens = True
    item.registered = {"client_id": "of-one", "client_secret": "secret-of-one"}
    other.registered = {"client_id": "of-other"}
    world = make.World(make.Server(issuer=item.issuer), item, other)
    credentials = TokenStorage()
    oauth = world.oauth(storage=credentials)
    world.call(oauth)
    world.server.document["authorization_servers"] = [other.issuer]
    world.server.accepts = lambda token, operation: token.endswith("other.example")
    assert world.call(oauth).status == 200
    assert len(other.registrations) == 1
    assert other.visits[0]["client_id"] == "of-other"
    seen = [fetch for fetch in world.fetched if fetch.url.startswith(other.issuer)]
    for fetch in seen:
        everything = f"{fetch.url} {fetch.headers} {fetch.body.decode()}"
        assert "of-one" not in everything
        assert "refresh-1" not in everything or "other" in everything
        assert item.issued[0] not in everything
    assert [asked.form["grant_type"] for asked in other.tokens] == ["authorization_code"]
    assert credentials.registration(item.issuer).client_id == "of-one"
    world.call(world.oauth(storage=credentials))
    assert len(other.visits) == 1


def test_logging_out_forgets(world: Any, issuer: Any) -> None:
    credentials = TokenStorage()
    oauth = world.oauth(storage=credentials)
    world.call(oauth)
    oauth.logout()
    assert oauth.token is None
    assert credentials.token(issuer.issuer, world.server.url) is None


def test_login_that_failed_leaves_the_old_token(world: Any, issuer: Any, server: Any, make: Any) -> None:
    oauth = world.oauth()
    world.call(oauth)
    issuer.refuse = {"error": "invalid_grant"}
    server.refuses = lambda token, operation: make.lacking("more") if operation == "write" else None
    with pytest.raises(GrantDenied):
        world.call(oauth, "write")
    assert world.call(oauth, "read").status == 200


def test_failure_of_the_driver_flies_through(world: Any) -> None:
    talk = world.oauth().authorize()
    talk.send(None)
    with pytest.raises(TimeoutError):
        talk.throw(TimeoutError())


@pytest.mark.requirement("auth.confidential")
def test_no_secret_is_in_any_text(world: Any, issuer: Any) -> None:
    issuer.refuse = {"error": "invalid_client"}
    client = ClientRegistration(client_id="me", client_secret="s3cret")
    with pytest.raises(GrantDenied) as caught:
        world.call(world.oauth(ClientCredentials(client)))
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(world.fetched)
