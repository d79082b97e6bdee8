"""Secrets that are assigned to a name, `DB_PASSWORD=…`: whether the value is what its name says."""

from __future__ import annotations

from collections.abc import Iterator

from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.names import SecretKind, is_specific_key, kind_named_by
from portico.services.memory.screening.passwords import is_code, is_passphrase, is_password, is_path
from portico.services.memory.screening.patterns import pattern
from portico.services.memory.screening.randomness import is_hex, is_random, is_uuid
from portico.services.memory.screening.values import NameAndSign, NamedValue, names, value_of, whole_name

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


_PASS = pattern(r"pass(?!word|wort|wd|phrase|code)")
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
