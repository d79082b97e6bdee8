"""Names depend only on the settings, are unique, and have a maximum length."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st

from portico.server.providers.naming import exposed_name, exposed_uri, normalize_alias, upstream_uri

ALIASES = st.text("abcAB_-.0 é", min_size=1, max_size=12)
NAMES = st.text("abcAB_-.0/ é", min_size=1, max_size=100)
URIS = st.from_regex(r"(file|ui|note)://[a-z/%.]{0,20}|(urn|memo):[a-z:/]{0,20}|[a-z/]{1,9}", fullmatch=True)


@settings(deadline=None)
@given(ALIASES, NAMES, ALIASES, NAMES)
def test_no_two_tools_have_one_name(alias: str, name: str, other: str, others: str) -> None:
    if normalize_alias(alias) == normalize_alias(other) and alias != other:
        return  # such a file is refused
    if (alias, name) != (other, others):
        assert exposed_name(alias, name) != exposed_name(other, others)


@settings(deadline=None)
@given(ALIASES, NAMES, st.integers(20, 128))
def test_name_is_bounded_and_can_be_said_everywhere(alias: str, name: str, longest: int) -> None:
    result = exposed_name(alias, name, max_length=longest)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", result) and len(result) <= longest
    assert result == exposed_name(alias, name, max_length=longest)


@pytest.mark.parametrize(
    "alias, name, prefix, found",
    [
        ("git", "status", "{alias}_", "git_status"),
        ("git", "status", "", "status"),
        ("my_git", "status", "{alias}_", "my-git_status"),
        ("git", "status", "x-{alias}-", "x-git-status"),
    ],
)
def test_ordinary_name_is_plain(alias: str, name: str, prefix: str, found: str) -> None:
    assert exposed_name(alias, name, prefix) == found


def test_varying_end_of_long_names_is_not_lost() -> None:
    long = "a" * 100
    assert exposed_name("git", long + "1") != exposed_name("git", long + "2")


@settings(deadline=None)
@given(ALIASES, URIS)
def test_address_is_found_again(alias: str, uri: str) -> None:
    there = exposed_uri(alias, uri)
    assert upstream_uri(alias, there) == uri
    assert there.partition(":")[0] == uri.partition(":")[0] or ":" not in uri


@settings(deadline=None)
@given(ALIASES, ALIASES, URIS)
def test_and_not_by_another(alias: str, other: str, uri: str) -> None:
    result = upstream_uri(other, exposed_uri(alias, uri))
    if normalize_alias(alias) != normalize_alias(other):
        assert result is None or exposed_uri(other, result) == exposed_uri(alias, uri)


@pytest.mark.parametrize(
    "uri, found",
    [
        ("note://a/b", "note://git/a/b"),
        ("ui://page", "ui://git/page"),
        ("urn:isbn:1", "urn:git/isbn:1"),
        ("memo:x", "memo:git/x"),
    ],
)
def test_scheme_stays(uri: str, found: str) -> None:
    assert exposed_uri("git", uri) == found
