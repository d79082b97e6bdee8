"""Authorization server discovery (2026-07-28)."""

from __future__ import annotations

from typing import Any

import pytest

from portico.auth.challenges import AuthChallenge
from portico.auth.errors import DiscoveryError, IssuerMismatch, ResourceMismatch, UnsafeUrl
from portico.auth.metadata import (
    MetadataDiscovery,
    authorization_server_urls,
    canonical_server_uri,
    discover,
    protected_resource_urls,
)

SERVER = "https://mcp.example/mcp"
PRM = "https://mcp.example/.well-known/oauth-protected-resource"


@pytest.mark.requirement("auth.resource-metadata")
def test_resource_metadata_is_sought_at_the_path_then_at_the_root() -> None:
    assert list(protected_resource_urls("https://mcp.example/team/mcp")) == [f"{PRM}/team/mcp", PRM]
    assert list(protected_resource_urls("https://mcp.example/")) == [PRM]
    assert list(protected_resource_urls("https://mcp.example")) == [PRM]
    assert list(protected_resource_urls("https://mcp.example/mcp?tenant=1")) == [f"{PRM}/mcp?tenant=1", PRM]


@pytest.mark.requirement("auth.server-metadata")
def test_server_metadata_is_sought_in_the_order_prescribed() -> None:
    assert list(authorization_server_urls("https://auth.example/tenant1")) == [
        "https://auth.example/.well-known/oauth-authorization-server/tenant1",
        "https://auth.example/.well-known/openid-configuration/tenant1",
        "https://auth.example/tenant1/.well-known/openid-configuration",
    ]
    for issuer in ("https://auth.example", "https://auth.example/"):
        assert list(authorization_server_urls(issuer)) == [
            "https://auth.example/.well-known/oauth-authorization-server",
            "https://auth.example/.well-known/openid-configuration",
        ]


@pytest.mark.parametrize("issuer", ["https://auth.example?x=1", "https://auth.example#x"])
def test_issuer_has_no_query_and_no_fragment(issuer: str) -> None:
    with pytest.raises(DiscoveryError):
        list(authorization_server_urls(issuer))


@pytest.mark.requirement("auth.canonical-uri")
def test_server_that_does_not_say_is_called_by_its_canonical_name() -> None:
    assert canonical_server_uri("HTTPS://MCP.Example/") == "https://mcp.example"
    assert canonical_server_uri("https://mcp.example/Team/mcp") == "https://mcp.example/Team/mcp"
    assert canonical_server_uri("https://mcp.example/mcp#x") == "https://mcp.example/mcp"


def find(world: Any, demand: AuthChallenge | None = None, **search: Any) -> Any:
    return world.hold(discover(MetadataDiscovery(world.server.url, **search), demand or AuthChallenge()))


@pytest.mark.requirement("auth.resource-parameter")
def test_resource_is_kept_to_the_letter(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(resource="HTTPS://mcp.example:443/mcp/"), issuer)
    assert find(world).resource == "HTTPS://mcp.example:443/mcp/"


@pytest.mark.requirement("auth.resource-metadata")
def test_challenge_says_where_and_nothing_else_is_asked(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(prm="/custom"), issuer)
    find(world, AuthChallenge(resource_metadata="https://mcp.example/custom"))
    assert world.urls[0] == "https://mcp.example/custom"
    assert not any("protected-resource" in url for url in world.urls)


def test_relative_resource_metadata_url_in_a_challenge_is_ignored(world: Any) -> None:
    find(world, AuthChallenge(resource_metadata="/elsewhere"))
    assert world.urls[0] == f"{PRM}/mcp"


@pytest.mark.parametrize("named", ["https://mcp.example/gone", "/gone"])
def test_server_that_speaks_of_metadata_and_has_none_is_not_guessed_at(make: Any, issuer: Any, named: str) -> None:
    world = make.World(make.Server(prm=None), issuer)
    with pytest.raises(DiscoveryError, match="could not be read"):
        find(world, AuthChallenge(resource_metadata=named))


def test_server_in_trouble_is_not_guessed_at(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(prm=None), issuer)
    world.fetch = lambda expected: make.reply(None, 503)
    with pytest.raises(DiscoveryError, match="503"):
        find(world)


@pytest.mark.requirement("auth.resource-matches")
def test_metadata_about_another_server_is_rejected_before_anything_else(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(resource="https://evil.example/mcp"), issuer)
    with pytest.raises(ResourceMismatch, match=r"evil\.example"):
        find(world)
    assert world.urls == [f"{PRM}/mcp"]


def test_metadata_without_an_authorization_server_says_so(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(authorization_servers=[]), issuer)
    with pytest.raises(DiscoveryError, match="names no authorization server"):
        find(world)


def test_page_that_says_200_and_means_404_is_no_document(make: Any, issuer: Any) -> None:
    world = make.World(make.Server(prm="/.well-known/oauth-protected-resource", resource="https://mcp.example"), issuer)
    real = world.fetch
    world.fetch = lambda expected: make.reply("<html>") if expected.url == f"{PRM}/mcp" else real(expected)
    assert find(world).resource == "https://mcp.example"


@pytest.mark.requirement("auth.issuer-equal")
@pytest.mark.parametrize(
    "found", ["https://auth.example/", "https://AUTH.example", "https://auth.example:443", "https://honest.example"]
)
def test_issuer_is_equal_to_the_letter(make: Any, server: Any, found: str) -> None:
    world = make.World(server, make.Issuer(issuer=found))
    with pytest.raises(IssuerMismatch):
        find(world)


def test_document_of_another_issuer_does_not_hide_the_right_one(make: Any, server: Any) -> None:
    wrong = make.Issuer(issuer="https://evil.example")
    right = make.Issuer(at="/.well-known/openid-configuration")
    assert find(make.World(server, wrong, right)).server.issuer == "https://auth.example"


def test_trailing_slash_is_ignored_if_configured(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(issuer="https://auth.example/"))
    assert find(world, ignore_trailing_slash=True).server.issuer == "https://auth.example/"
    server.document["authorization_servers"] = ["https://auth.example/tenant"]
    world = make.World(server, make.Issuer(prefix="/tenant", issuer="https://auth.example/tenant/"))
    with pytest.raises(IssuerMismatch):
        find(world, ignore_trailing_slash=True)


@pytest.mark.requirement("auth.several-servers")
def test_with_several_issuers_the_first_that_works_is_taken(make: Any) -> None:
    gone, here = "https://gone.example", "https://auth.example"
    world = make.World(make.Server(authorization_servers=[gone, here]), make.Issuer())
    assert find(world).server.issuer == here


def test_with_several_issuers_the_known_one_is_asked_first(make: Any) -> None:
    item, other = make.Issuer("https://one.example"), make.Issuer("https://other.example")
    world = make.World(make.Server(authorization_servers=[item.issuer, other.issuer]), item, other)
    result = world.hold(discover(MetadataDiscovery(SERVER), AuthChallenge(), preferred_issuer=other.issuer))
    assert result.server.issuer == other.issuer


@pytest.mark.requirement("auth.endpoints-https")
@pytest.mark.parametrize("name", ["token_endpoint", "authorization_endpoint", "registration_endpoint"])
def test_endpoints_in_the_clear_are_rejected(make: Any, server: Any, name: str) -> None:
    world = make.World(server, make.Issuer(**{name: "http://auth.example/x"}))
    with pytest.raises(UnsafeUrl):
        find(world)


@pytest.mark.requirement("auth.endpoints-https")
def test_issuer_in_the_clear_is_not_asked(make: Any) -> None:
    world = make.World(make.Server(issuer="http://auth.example"), make.Issuer("http://auth.example"))
    with pytest.raises(UnsafeUrl):
        find(world)
    assert world.urls == [f"{PRM}/mcp"]


def test_null_members_are_absent_ones(make: Any, server: Any) -> None:
    issuer = make.Issuer()
    world = make.World(server, issuer)
    server.document["scopes_supported"] = None
    assert find(world).scopes == ()


@pytest.mark.requirement("auth.fallback-2025-03-26")
def test_2025_03_26_looks_at_the_root_of_the_origin(make: Any) -> None:
    issuer = make.Issuer("https://mcp.example", token_endpoint="https://mcp.example/oauth/token")
    world = make.World(make.Server(prm=None), issuer)
    result = find(world, protocol_version="2025-03-26")
    assert result.server.token_endpoint == "https://mcp.example/oauth/token"
    assert result.resource == SERVER
    assert all(("MCP-Protocol-Version", "2025-03-26") in fetch.headers for fetch in world.fetched)


def test_2025_03_26_takes_either_spelling_of_the_root(make: Any) -> None:
    issuer = make.Issuer("https://mcp.example", issuer="https://mcp.example/")
    assert find(make.World(make.Server(prm=None), issuer)).server.issuer == "https://mcp.example/"


def test_2025_03_26_rejects_the_issuer_of_another_server(make: Any) -> None:
    issuer = make.Issuer("https://mcp.example", issuer="https://evil.example")
    with pytest.raises(IssuerMismatch):
        find(make.World(make.Server(prm=None), issuer))


@pytest.mark.requirement("auth.fallback-2025-03-26")
def test_2025_03_26_without_any_metadata_has_default_endpoints(make: Any) -> None:
    result = find(make.World(make.Server("https://mcp.example:8443/v1/mcp", prm=None)))
    assert result.server.authorization_endpoint == "https://mcp.example:8443/authorize"
    assert result.server.token_endpoint == "https://mcp.example:8443/token"
    assert result.server.registration_endpoint == "https://mcp.example:8443/register"
    assert result.server.issuer == "https://mcp.example:8443"


def test_server_cannot_keep_us_busy_with_issuers(make: Any) -> None:
    world = make.World(make.Server(authorization_servers=[f"https://{n}.example" for n in range(1000)]))
    with pytest.raises(DiscoveryError, match=r"0\.example"):
        find(world)
    assert len(world.urls) < 20


def test_endpoint_has_no_fragment(make: Any, server: Any) -> None:
    world = make.World(server, make.Issuer(authorization_endpoint="https://auth.example/authorize#x"))
    with pytest.raises(DiscoveryError, match="fragment"):
        find(world)


@pytest.mark.parametrize("document", [{"issuer": "https://auth.example"}, {"token_endpoint": 7}, []])
def test_invalid_metadata_documents_raise_discovery_error(make: Any, server: Any, issuer: Any, document: Any) -> None:
    world = make.World(server, issuer)
    original = world.fetch
    world.fetch = lambda expected: (
        make.reply(document) if expected.url.endswith("authorization-server") else original(expected)
    )
    with pytest.raises(DiscoveryError, match="no readable metadata"):
        find(world)
