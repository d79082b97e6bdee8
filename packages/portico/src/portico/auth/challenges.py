"""`WWW-Authenticate`: what a server says it wants.

Several challenges may share a field, several fields may share a response, and commas separate both the challenges and
their parameters (RFC 9110, section 11.6.1). Servers get this wrong in many ways; reading never fails, it finds less.
"""

from __future__ import annotations

import re

from msgspec import Struct

from portico.auth.flow import Fetched

# More than any server has to say, and little enough to read for one that wants us busy.
_LONGEST = 16 * 1024

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SPACE = re.compile(r"[\s,]*")
_SCHEME = re.compile(rf"({_TOKEN})(?=[\s,]|$)")
_TOKEN68 = re.compile(r"[ \t\r\n]+([A-Za-z0-9\-._~+/]+=*)(?=\s*(?:,|$))")
# An unquoted value is a token, and servers also write URLs and scopes there.
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NOISE = re.compile(r'[^\s,"]+|"(?:[^"\\]|\\.)*"', re.DOTALL)


class Challenge(Struct, frozen=True):
    """One scheme, in lower case, and its parameters, their names in lower case too."""

    scheme: str
    parameters: dict[str, str]
    token68: str = ""


def challenges(field: str) -> list[Challenge]:
    """Every challenge in a field. Of a parameter that comes twice, the first is meant."""
    field = field[:_LONGEST]
    found: list[Challenge] = []
    at = 0
    while True:
        at = _end(_SPACE.match(field, at), at)
        if at == len(field):
            return found
        if parameter := _PARAMETER.match(field, at):
            at = parameter.end()
            if found:
                name, text, bare = parameter.groups()
                found[-1].parameters.setdefault(name.lower(), _ESCAPED.sub(r"\1", text) if bare is None else bare)
        elif scheme := _SCHEME.match(field, at):
            at = scheme.end()
            token68 = _TOKEN68.match(field, at)
            at = _end(token68, at)
            found.append(Challenge(scheme[1].lower(), {}, token68[1] if token68 else ""))
        elif noise := _NOISE.match(field, at):
            at = noise.end()
        else:  # a quote that is not closed: nothing after it can be read
            return found


class Demand(Struct, frozen=True):
    """What the Bearer and DPoP challenges of one response ask for, taken together."""

    schemes: frozenset[str] = frozenset()
    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()
    error: str | None = None
    error_description: str | None = None

    @property
    def dpop_only(self) -> bool:
        return "dpop" in self.schemes and "bearer" not in self.schemes


def demand(answer: Fetched) -> Demand:
    """What a 401 or a 403 asks for. Schemes that carry no OAuth token have no say."""
    ours = [one for one in challenges(answer.header("WWW-Authenticate") or "") if one.scheme in ("bearer", "dpop")]

    def first(name: str) -> str | None:
        return next((one.parameters[name] for one in ours if one.parameters.get(name)), None)

    return Demand(
        frozenset(one.scheme for one in ours),
        first("resource_metadata"),
        tuple(dict.fromkeys((first("scope") or "").split())),
        first("error"),
        first("error_description"),
    )


def _end(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise
