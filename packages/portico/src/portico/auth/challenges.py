"""Parser for `WWW-Authenticate` challenges.

Several challenges may share a field, several fields may share a response, and commas separate both challenges and
parameters (RFC 9110, section 11.6.1). Many servers get this wrong, so the parser never fails: it returns what it can
read.
"""

from __future__ import annotations

import re

from msgspec import Struct

from portico.auth.flow import FetchResponse
from portico.protocol.header_params import TOKEN_PATTERN

# Longer than any legitimate header; bounds the work that a hostile server can cause.
_MAX_HEADER_CHARS = 16 * 1024

_SPACE = re.compile(r"[\s,]*")
_SCHEME = re.compile(rf"({TOKEN_PATTERN})(?=[\s,]|$)")
_TOKEN68 = re.compile(r"[ \t\r\n]+([A-Za-z0-9\-._~+/]+=*)(?=\s*(?:,|$))")
# Unquoted values are tokens by the RFC; some servers also send unquoted URLs and scopes.
_PARAMETER = re.compile(rf'({TOKEN_PATTERN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NOISE = re.compile(r'[^\s,"]+|"(?:[^"\\]|\\.)*"', re.DOTALL)


class Challenge(Struct, frozen=True):
    """One challenge: its scheme and parameter names in lower case."""

    scheme: str
    parameters: dict[str, str]
    token68: str = ""


def parse_challenges(field: str) -> list[Challenge]:
    """Return every challenge in a header field. If a parameter is repeated, the first value wins."""
    field = field[:_MAX_HEADER_CHARS]
    results: list[Challenge] = []
    at = 0
    while True:
        at = _match_end(_SPACE.match(field, at), at)
        if at == len(field):
            return results
        if parameter := _PARAMETER.match(field, at):
            at = parameter.end()
            if results:
                name, text, bare = parameter.groups()
                results[-1].parameters.setdefault(name.lower(), _ESCAPED.sub(r"\1", text) if bare is None else bare)
        elif scheme := _SCHEME.match(field, at):
            at = scheme.end()
            token68 = _TOKEN68.match(field, at)
            at = _match_end(token68, at)
            results.append(Challenge(scheme[1].lower(), {}, token68[1] if token68 else ""))
        elif noise := _NOISE.match(field, at):
            at = noise.end()
        else:  # unterminated quote: nothing after it can be parsed
            return results


class AuthChallenge(Struct, frozen=True):
    """Combined Bearer and DPoP challenges of one response."""

    schemes: frozenset[str] = frozenset()
    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()
    error: str | None = None
    error_description: str | None = None

    @property
    def requires_dpop(self) -> bool:
        """Return whether the server accepts DPoP tokens only."""
        return "dpop" in self.schemes and "bearer" not in self.schemes


def parse_auth_challenge(response: FetchResponse) -> AuthChallenge:
    """Parse the Bearer and DPoP challenges of a 401 or 403 response; other schemes are ignored."""
    ours = [
        item
        for item in parse_challenges(response.header("WWW-Authenticate") or "")
        if item.scheme in ("bearer", "dpop")
    ]

    def first(name: str) -> str | None:
        return next((our.parameters[name] for our in ours if our.parameters.get(name)), None)

    return AuthChallenge(
        frozenset(item.scheme for item in ours),
        first("resource_metadata"),
        tuple(dict.fromkeys((first("scope") or "").split())),
        first("error"),
        first("error_description"),
    )


def _match_end(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise
