"""Placeholders are reported where configured, and ignored elsewhere."""

from __future__ import annotations

import pytest

from portico.screening import ScreeningPolicy, find, screen

MADE_UP = [
    ("AWS key AKIAIOSFODNN7EXAMPLE", "aws_access_key"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_key"),
    ("use sk-1234567890abcdef1234567890abcdef", "openai_key"),
    ("ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "github_token"),
    ("xoxb-1234567890-abcdefghijklmnop", "slack_token"),
    ("The database password is SuperSecret123!", "password"),
    ("DB_PASSWORD=changeme", "password"),
    ("postgres://user:password@localhost:5432/db", "url_password"),
    ("-----BEGIN RSA PRIVATE KEY-----", "private_key"),
    ("SSN: 123-45-6789", "us_ssn"),
    ("Card 4111-1111-1111-1111", "card"),
    ("credit card 4242 4242 4242 4242", "card"),
    ("write to john.doe@example.com", "email"),
    ("call (555) 123-4567", "phone"),
    ("NI number QQ123456C", "uk_nino"),
]


@pytest.mark.parametrize(("text", "name"), MADE_UP)
def test_placeholders_are_found_only_if_included(text: str, name: str) -> None:
    assert find(text) == []
    assert [item.name for item in find(text, include_placeholders=True)] == [name]
    assert screen(text, ScreeningPolicy(pii="block")).text == text
    assert screen(text, ScreeningPolicy(pii="block", flag_placeholders=True)).blocked == {name: 1}


@pytest.mark.parametrize(
    "text",
    [
        "The password is kept in the vault, and the token: see the wiki",
        "max_tokens = 4096; the auth token is refreshed hourly",
        "git clone git@github.com:owner/name.git, or https://host:8080/x@1.2.3",
        "Released 2026-11-16, build 20261116-1234, version 1.2.3-4567",
        "PASSWORD=${DB_PASSWORD_2} and api_key: <your-key-1>",
        "the CSS class sk-folding-cube-something is unused",
        "tel. 12-34, ticket ABC-123-4567, port 8080",
    ],
)
def test_ordinary_text_is_not_flagged(text: str) -> None:
    assert find(text, include_placeholders=True) == []
