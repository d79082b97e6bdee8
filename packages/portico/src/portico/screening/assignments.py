"""Secrets identified by a name or keyword: values assigned to a name (`DB_PASSWORD=…`), and values near a keyword, in a
comment or in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from portico.caching import LruCache
from portico.screening.assigned_values import BARE, AssignedValue, AssignmentMatch, assigned_value, full_name, names
from portico.screening.entropy import is_hex, is_random, is_uuid
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import lazy_pattern
from portico.screening.passwords import is_code, is_identifier, is_passphrase, is_password, is_path
from portico.screening.secret_names import SecretKind, classify_name, is_specific_key

_CONTINUATION = lazy_pattern(r"[0-9A-Za-z+/=_\-.%]{0,16000}+")
_MAX_NAMES = 1000


def find_assigned_secrets(text: str, lower: str) -> Iterator[Finding]:
    reached = 0
    kind_cache: LruCache[str, SecretKind | None] = LruCache(_MAX_NAMES)
    for named in names(lower):
        if named.start < reached or not _is_password_noun(text, lower, named):
            continue
        value = assigned_value(text, lower, named)
        if value is None or not _is_plausible(value):
            continue
        name = full_name(lower, named.start, named.rest)
        if name not in kind_cache:
            kind_cache[name] = classify_name(name)
        kind = kind_cache[name]
        if kind is not None and (confidence := _confidence(kind, name, value)):
            reached = value.start + len(value.text)
            if len(value.text) >= 200 and value.style != "quoted" and (more := _CONTINUATION.match(text, reached)):
                reached = more.end()
            yield Finding("secret", _finding_name(kind, name, value.text), value.start, reached, confidence)


_PASS = lazy_pattern(r"pass(?!word|wort|ord|wd|phrase|code)")
_OWNERS = "db user root smtp mail bind sudo ssh ftp my app http sql admin"
_OWNERS_OF_PASS = tuple(_OWNERS.split())


def _is_password_noun(text: str, lower: str, named: AssignmentMatch) -> bool:
    """Return whether `pass` means a password: `smtp_pass = …`, `dbPass: …`; not the verb, nor a part of bypass or
    compass.
    """
    start = named.start
    if not _PASS.match(lower, start):
        return True
    if (
        named.words
        or lower[start + 4 : named.rest].strip("0123456789")
        or named.operator not in ("=", ":", ":=", "=>", ">")
    ):
        return False
    alone = start == 0 or not text[start - 1].isalpha() or text[start].isupper() != text[start - 1].isupper()
    return alone or lower[max(0, start - 5) : start].endswith(_OWNERS_OF_PASS)


_PASSWORD_CHAR = lazy_pattern(r"[0-9!@#$%^&*+=~|?]")


def _is_plausible(value: AssignedValue) -> bool:
    """Return False for most text after a keyword: the next word of a sentence, or a variable."""
    size = len(value.text)
    if value.style in ("quoted", "line"):
        return size >= 4
    return size >= 12 or (size >= 6 and _PASSWORD_CHAR.search(value.text) is not None)


def _confidence(kind: SecretKind, name: str, value: AssignedValue) -> float:
    """Return the confidence that a value is a secret, or 0."""
    if kind == "password":
        return _password_confidence(name, value)
    if _is_key(kind, name, value):
        return 0.9
    # A secret may also be chosen by a person and then looks like a password.
    text, writing = value.text, value.style
    if kind == "secret" and writing in ("quoted", "line") and len(text) >= 8:
        return 0.7 * (not _DESCRIBED.search(text) and any(map(str.isdigit, text)) and is_password(text, writing))
    return 0.0


def _password_confidence(name: str, value: AssignedValue) -> float:
    text, writing = value.text, value.style
    if "passphrase" in name and writing == "quoted" and is_passphrase(text):
        return 0.8
    if value.on_next_line and writing != "quoted":
        # `password:` followed by a line break usually begins a list.
        return 0.6 * (is_password(text, "prose") and text.lower() != text != text.upper())
    return 0.85 * is_password(text, writing)


# Values that describe themselves: `as1-client-secret`.
_DESCRIBED = lazy_pattern(
    r"(?i)client[_\-]?(?:secret|id)|api[_\-]?key|secret[_\-]?key|access[_\-]?(?:key|token)|password"
)


def _is_key(kind: SecretKind, name: str, value: AssignedValue) -> bool:
    text, writing = value.text, value.style
    if " " in text or "://" in text or _DESCRIBED.search(text):
        return False
    if writing in ("bare", "prose") and (is_code(text) or is_path(text)):
        return False
    digest = is_hex(text) or is_uuid(text)
    if kind == "key" and (digest or writing == "prose") and not is_specific_key(name):
        return False
    if kind == "credential" and digest and "authorization" not in name and "_auth" not in name:
        return False
    # Below a name, a UUID is more often the id of the next item than the value.
    if is_uuid(text):
        return not value.on_next_line
    if writing == "prose":
        return is_random(text, 24 if digest else 20, named=True)
    return is_random(text, 12, named=kind != "credential")


_FLAT = str.maketrans("", "", "_.- ")


def _finding_name(kind: SecretKind, name: str, value: str) -> str:
    flat = name.translate(_FLAT)
    if ("aws" in flat and "secret" in flat) or ("secretaccesskey" in flat and len(value) == 40):
        return "aws_secret_key"
    if "accountkey" in flat or "sharedaccesskey" in flat:
        return "azure_storage_key"
    return "api_key" if kind == "key" else kind


# Mentions without assignment

# In the query of a URL a short name is sufficient.
_QUERY = lazy_pattern(
    r"[?&](?i:sig|signature|x-(?:amz|goog)-signature|x-amz-security-token|key|code|auth|apikey|appid|hmac|access_token)"
    r"=(?P<value>[0-9A-Za-z_\-.~%+/=]{20,2000}+)"
)


def find_query_secrets(text: str) -> Iterator[Finding]:
    for match in _QUERY.finditer(text):
        if is_random(match["value"], 20):
            yield Finding("secret", "url_secret", *match.span("value"), 0.85)


# `user anna password …`: without a sign, the value must be unmistakable.
_ADJACENT = lazy_pattern(r"(?:passwor[dt]|passwd|kennwort|pwd|pw(?<=\bpw))[ \t]{1,2}(?=[^\s\"'`<>,;]{8})")
_WORD_AND_DIGITS = lazy_pattern(r"(?!version|field|level|step|rfc|port|line|page|test)[a-z._]{4,24}[0-9]{2,6}")
_SCHEMES = lazy_pattern(
    r"(?:sha|md|base|oauth|argon|utf|aes|rsa|bcrypt|pbkdf|scrypt|http|win|ipv)[\-_]?[0-9]", re.IGNORECASE
)
_SIGNS = frozenset("!@#$%^&*+=~|?")


def find_adjacent_passwords(text: str, lower: str) -> Iterator[Finding]:
    for match in _ADJACENT.finditer(lower):
        bare = BARE.match(text, match.end())
        value = bare[0].rstrip(".:)]}|*") if bare is not None else ""
        if not any(map(str.isdigit, value)) or _SCHEMES.match(value) or not is_password(value, "prose"):
            continue
        mixed = value.lower() != value != value.upper() or not _SIGNS.isdisjoint(value)
        if mixed or _WORD_AND_DIGITS.fullmatch(value):
            yield Finding("secret", "password", match.end(), match.end() + len(value), 0.6)


def _values_before(
    text: str, words: Iterator[re.Match[str]], backwards: re.Pattern[str], reach: int
) -> Iterator[tuple[str, int, bool]]:
    """Yield the value before each keyword, its end, and whether it should be a password."""
    for word in words:
        last = backwards.match(text[max(0, word.start() - reach) : word.start()][::-1])
        if last is not None:
            yield last[1][::-1], word.start() - last.start(1), "passw" in word[0]


# Reversed order: `… is the password`.
_THEN_NAMED = lazy_pattern(
    r" (?:is|as) (?:the|your|my|our|his|her|their) (?:[\w\-]{1,20}+ ){0,3}?"
    r"(?:passwor[dt]|token|api key|access key|secret)\b"
)
_LAST = lazy_pattern(r"[\"'`)]{0,2}([^\s\"'`<>]{6,200}+)")


def find_secrets_named_after(text: str, lower: str) -> Iterator[Finding]:
    for value, end, password in _values_before(text, _THEN_NAMED.finditer(lower), _LAST, 202):
        value = value.lstrip("([#/*;")
        if is_password(value, "prose") if password else is_random(value):
            yield Finding("secret", "password" if password else "token", end - len(value), end, 0.75)


# Named in the following comment: `login("…")  # the password`.
_COMMENT = lazy_pattern(r"(?://|#|--|/\*)[ \t]{0,3}[^\r\n\"']{0,40}?(?:passwor[dt]|token|secret|api key)\b")
_LAST_QUOTED = lazy_pattern(r"[^\"'\r\n]{0,60}+[\"']([^\s\"']{6,200}+)[\"']")


def find_commented_secrets(text: str, lower: str) -> Iterator[Finding]:
    for value, end, password in _values_before(text, _COMMENT.finditer(lower), _LAST_QUOTED, 264):
        is_assignment = (
            is_password(value, "quoted") and not is_identifier(value)
            if password
            else is_random(value) or is_uuid(value)
        )
        if is_assignment:
            yield Finding("secret", "password" if password else "token", end - len(value), end, 0.65)


# Anywhere after a keyword in the same sentence: the value must clearly look random.
_NEAR = lazy_pattern(
    r"(?:passwor[dt]|secret|token|api[ _\-]?key|access[ _\-]?key|credential|bearer|creds)[\w.\-]{0,24}+"
)
_OTHER_MEANING = lazy_pattern(
    r"sha[0-9-]{0,4}\b|hash|digest|commit|checksum|integrity|etag|uuid|nonce|public|fingerprint|base64|data:|revision"
    r"|build|image|version|cache|request.?id|trace|span|file|path|https?:|module|import|class|function|return|\n\s{0,9}\n"
)
_DIGIT = lazy_pattern("[0-9]")
_GENERATED = lazy_pattern(r"[0-9A-Za-z_\-+/=.~]{20,512}+")


def find_secrets_near_keywords(text: str, lower: str, start: int, end: int) -> Iterator[Finding]:
    """Yield the secrets in a run without white space, based on keywords in the 60 characters before it."""
    for match in _GENERATED.finditer(text, start, end):
        # Generated keys of this length almost always have a digit; long identifiers rarely do.
        if not _DIGIT.search(text, *match.span()):
            continue
        words = list(_NEAR.finditer(lower, max(0, match.start() - 60), match.start()))
        if not words or _OTHER_MEANING.search(lower, words[-1].end(), match.start()):
            continue
        value = match[0].rstrip(".,")
        between = lower[words[-1].end() : match.start()].strip(" \t\"'`")
        if value.count("/") > 3 or (between and (is_hex(value) or is_uuid(value))):
            continue
        if classify_name(full_name(lower, *words[-1].span())) is not None and is_random(value, 20):
            yield Finding("secret", "token", match.start(), match.start() + len(value), 0.7)
