"""Protection against SSRF (2026-07-28, security best practices, Server-Side Request Forgery)."""

from __future__ import annotations

import pytest

from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import (
    check_addresses,
    check_redirect,
    check_url,
    classify_address,
    is_loopback_name,
    resource_covers,
    same_origin,
)


@pytest.mark.parametrize(
    "url",
    ["https://a.example/x", "http://localhost:3000/x", "http://127.0.0.1/", "http://[::1]:8/", "http://app.localhost/"],
)
def test_https_and_this_machine_are_fine(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/",
        "http://10.0.0.1/",
        "http://localhost.example/",
        "ftp://a.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "//a.example/",
        "/relative",
        "https://",
        "https://user@a.example/",
        "https://user:pw@a.example/",
        "https://a.example:99999/",
        "https://a.example/\r\nX: y",
        "https://a.example/ x",
        "https://a.example\\@b.example/",
        "https://ä.example/",
        "https://[::1/",
        "",
    ],
)
def test_anything_else_is_rejected(url: str) -> None:
    with pytest.raises(UnsafeUrl):
        check_url(url)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("93.184.216.34", "public"),
        ("2606:2800:220:1::1", "public"),
        ("127.8.9.1", "loopback"),
        ("192.0.0.192", "link-local"),
        ("168.63.129.16", "link-local"),
        ("64:ff9b:1::7f00:1", "nowhere"),
        ("::127.0.0.1", "nowhere"),
        ("::ffff:0:127.0.0.1", "nowhere"),
        ("3fff::1", "nowhere"),
        ("192.88.99.1", "nowhere"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fc00::1", "private"),
        ("::ffff:10.0.0.1", "private"),
        ("64:ff9b::a00:1", "private"),
        ("2002:a00:1::", "private"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("0.0.0.0", "nowhere"),
        ("::", "nowhere"),
        ("224.0.0.1", "nowhere"),
        ("ff02::1", "nowhere"),
    ],
)
def test_addresses_have_a_kind_also_in_disguise(address: str, kind: str) -> None:
    assert classify_address(address) == kind


@pytest.mark.parametrize("target", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "::ffff:10.0.0.1"])
def test_public_server_points_nowhere_but_out(target: str) -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses("https://auth.example/", [target], ["93.184.216.34"])


def test_one_bad_address_among_good_ones_is_enough() -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses("https://auth.example/", ["93.184.216.34", "10.0.0.1"], ["93.184.216.34"])


def test_server_on_a_private_network_may_point_at_it() -> None:
    check_addresses("https://auth.corp.example/", ["10.0.0.9"], ["10.0.0.1"])
    check_addresses("https://auth.example/", ["93.184.216.34"], ["10.0.0.1"])


@pytest.mark.parametrize("server", ["10.0.0.1", "127.0.0.1", "93.184.216.34"])
def test_where_clouds_keep_their_credentials_is_out_of_reach(server: str) -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses("https://metadata.example/", ["169.254.169.254"], [server])


def test_server_that_names_an_inner_address_beside_its_own_points_nowhere_but_out() -> None:
    """Its name server could name any address in order to get us there."""
    for inner in ("127.0.0.1", "10.0.0.1"):
        with pytest.raises(UnsafeUrl):
            check_addresses("https://auth.example/", [inner], ["8.8.8.8", inner])


def test_private_server_does_not_point_at_this_machine() -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses("https://localhost/", ["127.0.0.1"], ["10.0.0.1"])


def test_server_on_this_machine_points_at_this_machine() -> None:
    check_addresses("http://localhost:9000/token", ["127.0.0.1", "::1"], ["127.0.0.1"])


def test_http_is_not_for_a_localhost_that_is_elsewhere() -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses("http://localhost:9000/token", ["93.184.216.34"], ["127.0.0.1"])


def test_name_without_an_address_is_rejected() -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses("https://auth.example/", [], ["93.184.216.34"])


def test_redirects_stay_at_their_origin() -> None:
    assert check_redirect("GET", "https://a.example/x/y", "../z") == "https://a.example/z"
    assert check_redirect("GET", "https://a.example/x", "https://A.example:443/z") == "https://A.example:443/z"
    for target in ("https://b.example/", "http://a.example/", "https://a.example:444/", "//b.example/"):
        with pytest.raises(UnsafeUrl):
            check_redirect("GET", "https://a.example/x", target)


@pytest.mark.requirement("auth.not-redirected")
def test_post_requests_are_never_redirected() -> None:
    with pytest.raises(UnsafeUrl):
        check_redirect("POST", "https://a.example/token", "/elsewhere")


def test_same_origin_has_more_than_one_spelling() -> None:
    assert same_origin("https://A.example/x", "https://a.example:443/y")
    assert not same_origin("https://a.example", "http://a.example")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"]
)
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback_name(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "0.0.0.0",
        "::",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        # The IPv4 address inside is a loopback one, but the packets leave this machine.
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "::ffff:10.0.0.1",
    ],
)
def test_hosts_that_are_not_this_machine(host: str) -> None:
    assert not is_loopback_name(host)


@pytest.mark.parametrize(
    "resource",
    [
        "https://mcp.example/team/mcp",
        "https://mcp.example/team/mcp/",
        "https://mcp.example/team",
        "https://mcp.example/",
        "https://mcp.example",
        "HTTPS://MCP.example:443/team/mcp",
    ],
)
def test_resource_covers_urls_at_and_below_it(resource: str) -> None:
    assert resource_covers(resource, "https://mcp.example/team/mcp")


@pytest.mark.parametrize(
    "resource",
    [
        "https://evil.example/team/mcp",
        "http://mcp.example/team/mcp",
        "https://mcp.example:8443/team/mcp",
        "https://mcp.example/team/mcp/more",
        "https://mcp.example/te",
        "https://mcp.example/other",
        "https://mcp.example/team/mcp#part",
        "https://mcp.example/team/mcp?x=1",
        "https://mcp.example/other/..",
        "https://mcp.example/%2e%2e",
        "https://user@mcp.example/team/mcp",
        "mcp.example/team/mcp",
        "",
    ],
)
def test_and_for_nothing_else(resource: str) -> None:
    assert not resource_covers(resource, "https://mcp.example/team/mcp")
