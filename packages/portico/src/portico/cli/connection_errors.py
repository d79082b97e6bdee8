"""Parsers for command-line options that describe a connection."""

from __future__ import annotations

import re

from portico.protocol.errors import UsageError
from portico.protocol.header_params import TOKEN_PATTERN

_HEADER_NAME = re.compile(TOKEN_PATTERN)


def is_url(target: str | list[str]) -> bool:
    """Return whether a target is a URL."""
    return isinstance(target, str) and target.lower().startswith(("http://", "https://"))


def parse_headers(words: list[str]) -> dict[str, str]:
    """Parse the values of `--header 'Name: value'`. Raises UsageError."""
    headers = {}
    for word in words:
        name, mark, value = word.partition(":")
        if not mark or not _HEADER_NAME.fullmatch(name) or not value.strip().isprintable():
            raise UsageError(f"--header must be 'Name: value', got {word!r}")
        headers[name] = value.strip()
    return headers


def parse_environment(words: list[str]) -> dict[str, str] | None:
    """Parse the values of `--env NAME=VALUE`. Raises UsageError."""
    variables = {}
    for word in words:
        name, mark, value = word.partition("=")
        if not mark or not name or "\0" in word:
            raise UsageError(f"--env must be NAME=VALUE, got {word!r}")
        variables[name] = value
    return variables or None
