"""Secrets that are mentioned, not assigned: beside a word for one, before it, in front of a comment, in a URL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.names import kind_named_by
from portico.services.memory.screening.passwords import is_name, is_password
from portico.services.memory.screening.patterns import pattern
from portico.services.memory.screening.randomness import is_hex, is_random, is_uuid
from portico.services.memory.screening.values import BARE, whole_name

# In the query of a URL a short name is enough.
_QUERY = pattern(
    r"[?&](?i:sig|signature|x-(?:amz|goog)-signature|x-amz-security-token|key|code|auth|apikey|appid|hmac|access_token)"
    r"=(?P<value>[0-9A-Za-z_\-.~%+/=]{20,2000}+)"
)


def in_queries(text: str) -> Iterator[Finding]:
    for found in _QUERY.finditer(text):
        if is_random(found["value"], 20):
            yield Finding("secret", "url_secret", *found.span("value"), 0.85)


# `user anna password …`: nothing between, so the value must be like nothing else.
_BESIDE = pattern(r"(?:passwor[dt]|passwd|kennwort|pwd|pw(?<=\bpw))[ \t]{1,2}(?=[^\s\"'`<>,;]{8})")
_WORD_AND_DIGITS = pattern(r"(?!version|field|level|step|rfc|port|line|page|test)[a-z._]{4,24}[0-9]{2,6}")
_SCHEMES = pattern(
    r"(?:sha|md|base|oauth|argon|utf|aes|rsa|bcrypt|pbkdf|scrypt|http|win|ipv)[\-_]?[0-9]", re.IGNORECASE
)
_SIGNS = frozenset("!@#$%^&*+=~|?")


def beside(text: str, lower: str) -> Iterator[Finding]:
    for found in _BESIDE.finditer(lower):
        bare = BARE.match(text, found.end())
        value = bare[0].rstrip(".:)]}|*") if bare is not None else ""
        if not any(map(str.isdigit, value)) or _SCHEMES.match(value) or not is_password(value, "prose"):
            continue
        mixed = value.lower() != value != value.upper() or not _SIGNS.isdisjoint(value)
        if mixed or _WORD_AND_DIGITS.fullmatch(value):
            yield Finding("secret", "password", found.end(), found.end() + len(value), 0.6)


# `… is the password`: the other way round.
_THEN_NAMED = pattern(
    r" (?:is|as) (?:the|your|my|our|his|her|their) (?:[\w\-]{1,20}+ ){0,3}?"
    r"(?:passwor[dt]|token|api key|access key|secret)\b"
)
_LAST = pattern(r"[\"'`)]{0,2}([^\s\"'`<>]{6,200}+)")


def named_after(text: str, lower: str) -> Iterator[Finding]:
    for found in _THEN_NAMED.finditer(lower):
        last = _LAST.match(text[max(0, found.start() - 202) : found.start()][::-1])
        if last is None:
            continue
        value, end = last[1][::-1].lstrip("([#/*;"), found.start() - last.start(1)
        password = "passw" in found[0]
        if is_password(value, "prose") if password else is_random(value):
            yield Finding("secret", "password" if password else "token", end - len(value), end, 0.75)


# `login("…")  # the password`: named in the comment behind it.
_COMMENT = pattern(r"(?://|#|--|/\*)[ \t]{0,3}[^\r\n\"']{0,40}?(?:passwor[dt]|token|secret|api key)\b")
_LAST_QUOTED = pattern(r"[^\"'\r\n]{0,60}+[\"']([^\s\"']{6,200}+)[\"']")


def commented(text: str, lower: str) -> Iterator[Finding]:
    for found in _COMMENT.finditer(lower):
        last = _LAST_QUOTED.match(text[max(0, found.start() - 264) : found.start()][::-1])
        if last is None:
            continue
        value, end = last[1][::-1], found.start() - last.start(1)
        password = "passw" in found[0]
        meant = is_password(value, "quoted") and not is_name(value) if password else is_random(value) or is_uuid(value)
        if meant:
            yield Finding("secret", "password" if password else "token", end - len(value), end, 0.65)


# Somewhere after a word for a secret, in the same sentence: the value must then look random beyond doubt.
_NEAR = pattern(r"(?:passwor[dt]|secret|token|api[ _\-]?key|access[ _\-]?key|credential|bearer|creds)[\w.\-]{0,24}+")
_ELSE = pattern(
    r"sha[0-9-]{0,4}\b|hash|digest|commit|checksum|integrity|etag|uuid|nonce|public|fingerprint|base64|data:|revision"
    r"|build|image|version|cache|request.?id|trace|span|file|path|https?:|module|import|class|function|return|\n\s{0,9}\n"
)
_DIGIT = pattern("[0-9]")
_GENERATED = pattern(r"[0-9A-Za-z_\-+/=.~]{20,512}+")


def nearby(text: str, lower: str, start: int, end: int) -> Iterator[Finding]:
    """The secrets in a stretch without white space, by the words in the 60 characters before it."""
    for found in _GENERATED.finditer(text, start, end):
        if not _DIGIT.search(text, *found.span()):
            continue
        words = list(_NEAR.finditer(lower, max(0, found.start() - 60), found.start()))
        if not words or _ELSE.search(lower, words[-1].end(), found.start()):
            continue
        value = found[0].rstrip(".,")
        between = lower[words[-1].end() : found.start()].strip(" \t\"'`")
        if value.count("/") > 3 or (between and (is_hex(value) or is_uuid(value))):
            continue
        if kind_named_by(whole_name(lower, *words[-1].span())) is not None and is_random(value, 20):
            yield Finding("secret", "token", found.start(), found.start() + len(value), 0.7)
