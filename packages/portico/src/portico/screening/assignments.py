"""Secrets that a name or a word announces: whether a value assigned to a name, `DB_PASSWORD=…`, is what the name says; and
values that are only mentioned, beside a word for a secret, before it, in front of a comment, in a URL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from portico.screening.assigned_values import BARE, NameAndSign, NamedValue, names, value_of, whole_name
from portico.screening.entropy import is_hex, is_random, is_uuid
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import pattern
from portico.screening.passwords import is_code, is_name, is_passphrase, is_password, is_path
from portico.screening.secret_names import SecretKind, is_specific_key, kind_named_by

_GOES_ON = pattern(r"[0-9A-Za-z+/=_\-.%]{0,16000}+")
_MOST_NAMES = 1000


def named_secrets(text: str, lower: str) -> Iterator[Finding]:
    reached = 0
    known: dict[str, SecretKind | None] = {}
    for named in names(lower):
        if named.start < reached or not _is_noun(text, lower, named):
            continue
        value = value_of(text, lower, named)
        if value is None or not _is_plausible(value):
            continue
        name = whole_name(lower, named.start, named.rest)
        if name not in known:
            if len(known) >= _MOST_NAMES:
                known.clear()
            known[name] = kind_named_by(name)
        kind = known[name]
        if kind is not None and (confidence := _confidence(kind, name, value)):
            reached = value.start + len(value.text)
            if len(value.text) >= 200 and value.writing != "quoted" and (more := _GOES_ON.match(text, reached)):
                reached = more.end()
            yield Finding("secret", _finding_name(kind, name, value.text), value.start, reached, confidence)


_PASS = pattern(r"pass(?!word|wort|ord|wd|phrase|code)")
_OWNERS = "db user root smtp mail bind sudo ssh ftp my app http sql admin"
_OWNERS_OF_PASS = tuple(_OWNERS.split())


def _is_noun(text: str, lower: str, named: NameAndSign) -> bool:
    """Whether `pass` is a password: `smtp_pass = …`, `dbPass: …`; not the verb, nor a part of bypass or compass."""
    start = named.start
    if not _PASS.match(lower, start):
        return True
    if named.said or lower[start + 4 : named.rest].strip("0123456789") or named.sign not in ("=", ":", ":=", "=>", ">"):
        return False
    alone = start == 0 or not text[start - 1].isalpha() or text[start].isupper() != text[start - 1].isupper()
    return alone or lower[max(0, start - 5) : start].endswith(_OWNERS_OF_PASS)


_TELLING_SIGN = pattern(r"[0-9!@#$%^&*+=~|?]")


def _is_plausible(value: NamedValue) -> bool:
    """False for most of what follows a word for a secret: the next word of a sentence, or a variable."""
    size = len(value.text)
    if value.writing in ("quoted", "line"):
        return size >= 4
    return size >= 12 or (size >= 6 and _TELLING_SIGN.search(value.text) is not None)


def _confidence(kind: SecretKind, name: str, value: NamedValue) -> float:
    """The confidence that a value is a secret; 0 for none."""
    if kind == "password":
        return _password_confidence(name, value)
    if _is_key(kind, name, value):
        return 0.9
    # A secret may be chosen by a person as well, and then it is written like a password.
    said, writing = value.text, value.writing
    if kind == "secret" and writing in ("quoted", "line") and len(said) >= 8:
        return 0.7 * (not _DESCRIBED.search(said) and any(map(str.isdigit, said)) and is_password(said, writing))
    return 0.0


def _password_confidence(name: str, value: NamedValue) -> float:
    said, writing = value.text, value.writing
    if "passphrase" in name and writing == "quoted" and is_passphrase(said):
        return 0.8
    if value.below and writing != "quoted":
        # `password:` with a line below it is mostly the head of a list.
        return 0.6 * (is_password(said, "prose") and said.lower() != said != said.upper())
    return 0.85 * is_password(said, writing)


# A value that names what it stands for: `as1-client-secret`.
_DESCRIBED = pattern(r"(?i)client[_\-]?(?:secret|id)|api[_\-]?key|secret[_\-]?key|access[_\-]?(?:key|token)|password")


def _is_key(kind: SecretKind, name: str, value: NamedValue) -> bool:
    said, writing = value.text, value.writing
    if " " in said or "://" in said or _DESCRIBED.search(said):
        return False
    if writing in ("bare", "prose") and (is_code(said) or is_path(said)):
        return False
    digest = is_hex(said) or is_uuid(said)
    if kind == "key" and (digest or writing == "prose") and not is_specific_key(name):
        return False
    if kind == "credential" and digest and "authorization" not in name and "_auth" not in name:
        return False
    if is_uuid(said):
        return not value.below
    if writing == "prose":
        return is_random(said, 24 if digest else 20, named=True)
    return is_random(said, 12, named=kind != "credential")


_FLAT = str.maketrans("", "", "_.- ")


def _finding_name(kind: SecretKind, name: str, value: str) -> str:
    flat = name.translate(_FLAT)
    if ("aws" in flat and "secret" in flat) or ("secretaccesskey" in flat and len(value) == 40):
        return "aws_secret_key"
    if "accountkey" in flat or "sharedaccesskey" in flat:
        return "azure_storage_key"
    return "api_key" if kind == "key" else kind


# Mentions

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


def _values_before(
    text: str, words: Iterator[re.Match[str]], backwards: re.Pattern[str], reach: int
) -> Iterator[tuple[str, int, bool]]:
    """The value before each word for a secret, where it ends, and whether it is to be a password."""
    for word in words:
        last = backwards.match(text[max(0, word.start() - reach) : word.start()][::-1])
        if last is not None:
            yield last[1][::-1], word.start() - last.start(1), "passw" in word[0]


# `… is the password`: the other way round.
_THEN_NAMED = pattern(
    r" (?:is|as) (?:the|your|my|our|his|her|their) (?:[\w\-]{1,20}+ ){0,3}?"
    r"(?:passwor[dt]|token|api key|access key|secret)\b"
)
_LAST = pattern(r"[\"'`)]{0,2}([^\s\"'`<>]{6,200}+)")


def named_after(text: str, lower: str) -> Iterator[Finding]:
    for value, end, password in _values_before(text, _THEN_NAMED.finditer(lower), _LAST, 202):
        value = value.lstrip("([#/*;")
        if is_password(value, "prose") if password else is_random(value):
            yield Finding("secret", "password" if password else "token", end - len(value), end, 0.75)


# `login("…")  # the password`: named in the comment behind it.
_COMMENT = pattern(r"(?://|#|--|/\*)[ \t]{0,3}[^\r\n\"']{0,40}?(?:passwor[dt]|token|secret|api key)\b")
_LAST_QUOTED = pattern(r"[^\"'\r\n]{0,60}+[\"']([^\s\"']{6,200}+)[\"']")


def commented(text: str, lower: str) -> Iterator[Finding]:
    for value, end, password in _values_before(text, _COMMENT.finditer(lower), _LAST_QUOTED, 264):
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
