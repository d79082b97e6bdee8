"""Parsing of `WWW-Authenticate` (RFC 9110, section 11.6.1; RFC 9728, section 5.1)."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, strategies as st

from portico.auth.challenges import Challenge, parse_auth_challenge, parse_challenges
from portico.auth.flow import FetchResponse


@pytest.mark.requirement("auth.exact-challenge")
def test_one_challenge_with_quoted_parameters() -> None:
    result = parse_challenges(
        'Bearer resource_metadata="https://a.example/.well-known/x", scope="files:read files:write"'
    )
    assert result == [
        Challenge("bearer", {"resource_metadata": "https://a.example/.well-known/x", "scope": "files:read files:write"})
    ]


@pytest.mark.requirement("auth.exact-challenge")
def test_several_challenges_share_a_field() -> None:
    error = parse_challenges(
        'Basic realm="a, b", Bearer error="invalid_token", scope=one, Negotiate, DPoP algs="ES256"'
    )
    assert error == [
        Challenge("basic", {"realm": "a, b"}),
        Challenge("bearer", {"error": "invalid_token", "scope": "one"}),
        Challenge("negotiate", {}),
        Challenge("dpop", {"algs": "ES256"}),
    ]


def test_token68_is_not_a_parameter() -> None:
    assert parse_challenges("Negotiate YII==, Bearer realm=x") == [
        Challenge("negotiate", {}, "YII=="),
        Challenge("bearer", {"realm": "x"}),
    ]


def test_names_and_schemes_have_no_case_and_values_do() -> None:
    assert parse_challenges('BEARER Scope="Aa"') == [Challenge("bearer", {"scope": "Aa"})]


def test_field_may_be_folded_over_lines() -> None:
    field = 'Bearer error="insufficient_scope",\r\n   scope="a b",\r\n\tresource_metadata="https://x.example/y"'
    assert parse_challenges(field)[0].parameters == {
        "error": "insufficient_scope",
        "scope": "a b",
        "resource_metadata": "https://x.example/y",
    }


def test_escapes_inside_quotes_are_undone() -> None:
    assert parse_challenges(r'Bearer realm="say \"hi\" \\ there"')[0].parameters == {"realm": r'say "hi" \ there'}


def test_space_around_the_equals_sign_and_missing_commas_do_no_harm() -> None:
    assert parse_challenges('Bearer realm = "x" scope= "a"')[0].parameters == {"realm": "x", "scope": "a"}


def test_of_a_repeated_parameter_the_first_is_meant() -> None:
    assert parse_challenges('Bearer scope="a", scope="b"')[0].parameters == {"scope": "a"}


def test_unclosed_quote_ends_the_reading() -> None:
    assert parse_challenges('Bearer scope="a", error="never closed, Basic realm=x')[0].parameters == {"scope": "a"}


def test_parameters_before_a_scheme_are_ignored() -> None:
    assert parse_challenges('scope="a", Bearer') == [Challenge("bearer", {})]


_names = st.text(string.ascii_lowercase + string.digits + "_-", min_size=1, max_size=12)
_values = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)
_challenges = st.lists(
    st.builds(Challenge, _names, st.dictionaries(_names, _values, min_size=1, max_size=4)), min_size=1, max_size=4
)


@given(_challenges, st.sampled_from([", ", ",", " ,\t", ",,  ,"]))
def test_well_formed_challenges_round_trip(written: list[Challenge], comma: str) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    texts = [
        f"{item.scheme} {comma.join(f'{name}={quote(value)}' for name, value in item.parameters.items())}"
        for item in written
    ]
    assert parse_challenges(comma.join(texts)) == written


@given(st.text(alphabet='abcBearer="\\, \t\r\n;:/', max_size=200))
@example('"' * 1000)
@example('a="' + '\\"' * 1000)
@example("a " * 5000)
def test_reading_never_fails(field: str) -> None:
    for parse_challenge in parse_challenges(field):
        assert parse_challenge.scheme == parse_challenge.scheme.lower()
        assert '"' not in parse_challenge.scheme


def test_challenge_combines_bearer_and_dpop_only() -> None:
    answer = FetchResponse(
        401,
        (
            ("WWW-Authenticate", 'Basic scope="not ours"'),
            ("www-authenticate", 'DPoP error="use_dpop_nonce", algs="ES256"'),
            ("WWW-Authenticate", 'Bearer scope="b a b", resource_metadata="https://x.example/prm"'),
        ),
    )
    result = parse_auth_challenge(answer)
    assert result.scopes == ("b", "a")
    assert result.resource_metadata == "https://x.example/prm"
    assert result.error == "use_dpop_nonce"
    assert not result.requires_dpop


def test_no_challenge_is_no_demand() -> None:
    assert parse_auth_challenge(FetchResponse(401)).schemes == frozenset()
