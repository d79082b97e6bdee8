"""Anonymization of results: users, hosts, addresses, SIDs and e-mail addresses become tokens.

A token is a keyed digest: the same user has the same token everywhere, and without the key a token cannot be tested
against a name. Anonymization has two passes. The first collects names from fields whose name declares their kind: the
value of `TargetUserName` is a user. The second replaces these names, and everything that is recognized by its form, in
all texts.

Collected names are discarded with the result. Otherwise a program that can write to a log could make `error` a user
name in all later results. Only the names of this machine are always replaced, and in the response to a query also the
names that the query passed as tokens.

Accounts and addresses that exist on every machine (`SYSTEM`, `S-1-5-18`, `127.0.0.1`) identify no one and are not
replaced, except in `strict` mode, which replaces everything.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import threading
from bisect import insort
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from portico.caching import LruCache
from portico_services.system.access_levels import PrivacyMode
from portico_services.system.errors import SystemToolError

NameKind = str
"""user, host, address, sid, mail, machine; and under `strict` mac, id, url."""

# Field names of Windows, journald, syslog, macOS, osquery and of this service's results.
_FIELD_PATTERNS = {
    "user": r".*user_?name|.*account_?name|.*_user|user|logname|acct|owner|ruser|display_?name|.*principal_?name",
    "sid": r".*sid|user_?id|securityid",
    "host": r".*computer(?:_?name)?|.*host(?:_?name)?|.*workstation(?:_?name)?|.*domain(?:_?name)?|.*server_?name"
    r"|.*machine_?name",
    "address": r"(?:.*_)?ip|(?:source|destination|client|remote|local|src|dst)_?ip|.*address|.*_?addr",
    "mail": r".*e?mail",
    "machine": r".*machine_?id|.*serial(?:_?number)?|uuid",
}
_FIELD_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _FIELD_PATTERNS.items()]

# Accounts, domains and addresses that every machine has, and placeholders for missing values.
WELL_KNOWN_NAMES = frozenset(Path(__file__).with_name("well_known_names.txt").read_text(encoding="utf-8").splitlines())
_WELL_KNOWN_SID = re.compile(
    r"S-1-(?:[0-4]-\d+|5-(?:\d{1,3}|32-\d{3}|64-\d{1,2}|80-0|90-0-\d+|96-0-\d+)|15-[23]-[\d-]+|16-\d+)", re.IGNORECASE
)
_WORDS = (
    "and at by for from id in is logged login name not of on or password public shared the to user was with invalid"
)
_NOT_NAMES = frozenset(_WORDS.split())


# Patterns, each with a substring that a text must contain to match: most texts are skipped by that test.
PATTERNS: tuple[tuple[NameKind, str, re.Pattern[str]], ...] = (
    ("sid", "S-1-", re.compile(r"\bS-1-\d{1,3}(?:-\d{1,10}){1,15}\b")),
    (
        "mail",
        "@",
        # Excludes systemd units, which have the same form: `getty@tty1.service`.
        re.compile(
            r"(?<![\w.%+-])[A-Za-z0-9._%+-]{1,64}@(?![\w.-]*\.(?:service|scope|slice|socket|target|timer|mount|path)\b)"
            r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"
        ),
    ),
    ("address", ".", re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")),
    (
        "address",
        ":",
        re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?<=:)(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"),
    ),
)
# Replaced only in strict mode: hardware addresses, identifiers and URLs.
STRICT_PATTERNS: tuple[tuple[NameKind, str, re.Pattern[str]], ...] = (
    ("mac", "", re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])")),
    ("id", "-", re.compile(r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b")),
    ("id", "", re.compile(r"\b[0-9a-f]{32}\b")),
    ("url", "://", re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>]{1,2000}")),
)
# Words that precede a user name, and directories that are named after their owner.
_NAME = r"[\"']?([A-Za-z_][\w.$-]{0,63})"
_CONTEXT_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("user",), re.compile(rf"\b[Uu]ser(?:[Nn]ame)?(?:=|: ){_NAME}|\b(?:for|invalid|illegal) user {_NAME}")),
    (("logname=", "acct=", "uid="), re.compile(rf"\b(?:logname|acct|uid)={_NAME}")),
    ((" for ",), re.compile(rf" for {_NAME} (?:from|by) ")),
    (("home", "sers", "Settings"), re.compile(rf"[/\\](?:home|[Uu]sers|Documents and Settings)[/\\]{_NAME}")),
)
_HOST = re.compile(r"(?:\brhost=|\bfrom (?:\S{1,64} \()?)([A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})")


# Lines of a text log have the host name after the timestamp.
_LINE = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,32}) ([A-Za-z][\w.-]{1,252}) \S{1,100}:",
    re.M,
)
_LETTER = re.compile(r"[^\W\d_]|::|\d\.\d")
# Values of name fields that are not names: numbers, and resource references (`@%SystemRoot%\\x.dll,-1`).
_NOT_A_NAME = re.compile(r"%%\d|@[^@]{1,250},-\d{1,6}(?:;|\Z)|0x[0-9A-Fa-f]+\Z")
# Four dotted numbers are a version after one of these words, and an address after one of the words below.
_VERSION_WORD = re.compile(
    r"(?:version|definition|revision|build|firmware|(?<![a-z])ver)s?[\s\"'=:([#.]{0,4}(?:(?:is|was|number)\s)?"
    r"(?:v?\d+(?:\.\d+){1,3}\s(?:to|and|or|->)\s)*\Z",
    re.IGNORECASE,
)
_ADDRESS_WORD = re.compile(
    r"(?<![A-Za-z])(?:from|ip|ipv4|addr|address|host|net|network|subnet|src|dst|source|destination|client|peer|server|gateway|route)"
    r"[\s\"'=:(\[<]{1,3}\Z",
    re.IGNORECASE,
)
# Matches `DriverVer` and `app_ver`, but not `Server`.
_VERSION_FIELD = re.compile(r"(?i:.*version.*|pv)|.*[a-z]Ver|(?:.*_)?ver")
_VERSION = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_CONTEXT_CHARS = 64


@lru_cache(10_000)
def field_kind(field: str) -> NameKind | None:
    """Return the kind of name that a field of this name contains, or None. Cached: there are few distinct field
    names.
    """
    return next((kind for kind, names in _FIELD_KINDS if names.fullmatch(field)), None)


def names_in_field(kind: NameKind, value: str) -> Iterator[tuple[NameKind, str]]:
    r"""Yield the names in a field: `DOMAIN\\user` and `user@domain` contain two, and a host may include its domain."""
    value = value.strip()
    if not 1 < len(value) <= 256 or _NOT_A_NAME.match(value) or not _LETTER.search(value):
        return
    if kind == "sid":
        if PATTERNS[0][2].fullmatch(value):
            yield kind, value
    elif kind == "address":
        bare = value.strip("[]").partition("%")[0]
        if is_address(bare):
            yield kind, bare
    elif kind == "user":
        domain, _, name = value.rpartition("\\")
        yield from names_in_field("host", domain)
        name, _, realm = name.partition("@")
        yield from names_in_field("host", realm)
        # Account names of machines end in `$`.
        yield ("host", name[:-1]) if name.endswith("$") else (kind, name)
    elif kind == "host" and is_address(value.strip("\\")):
        yield "address", value.strip("\\")
    elif kind == "host":
        whole = value.strip("\\").removesuffix("$")
        yield kind, whole
        first, _, domain = whole.partition(".")
        # Neither "com" nor "co" of "co.uk" is a name.
        if domain and len(first) > 2:
            yield kind, first
        if "." in domain:
            yield from names_in_field(kind, domain)
    else:
        yield kind, value


def names_in_text(text: str) -> Iterator[tuple[NameKind, str]]:
    """Yield names that are recognized by the words around them."""
    for signs, pattern in _CONTEXT_PATTERNS:
        if any(sign in text for sign in signs):
            for match in pattern.finditer(text):
                name = next(filter(None, match.groups())).rstrip(".-$")
                if name.lower() not in _NOT_NAMES:
                    yield "user", name
    if text.count(":") > 2:
        for match in _LINE.finditer(text):
            yield from names_in_field("host", match[1])
    if "rhost=" in text or "from " in text:
        for match in _HOST.finditer(text):
            yield from names_in_field("host", match[1].rstrip("."))


def is_well_known(name: str) -> bool:
    """Return whether a name exists on every machine and therefore identifies none."""
    return name.casefold() in WELL_KNOWN_NAMES or _WELL_KNOWN_SID.fullmatch(name) is not None


def looks_like_address(match: re.Match[str], *, is_strict: bool = False) -> bool:
    """Return whether a match in a text is the address of a host, although no field declares it.

    `a::b` is more likely C++ than an address, and `1::0` is a position. `1.249.252.0` could be a network but is more
    likely a version, unless the words around it say otherwise. `is_strict` treats every doubtful case as an address.
    """
    text = match[0]
    if not is_address(text) or not any(character.isdigit() for character in text):
        return False
    if is_strict:
        return True
    if ":" in text:
        return _is_host_v6(text)
    before = match.string[max(0, match.start() - _CONTEXT_CHARS) : match.start()]
    if _VERSION_WORD.search(before):
        return False
    # Networks end in .0; 2.5.29.* and 2.5.4.* are X.500 object identifiers, such as key usage and common name.
    is_doubtful = text.endswith(".0") or text.startswith(("2.5.29.", "2.5.4."))
    return not is_doubtful or match.string[match.end() : match.end() + 1] == "/" or bool(_ADDRESS_WORD.search(before))


def _is_host_v6(text: str) -> bool:
    """Return whether an IPv6 address can belong to a host: not a prefix (`fe80::`) and not a multicast group."""
    address = ipaddress.IPv6Address(text.partition("%")[0])
    if address.is_multicast or (text.endswith("::") and text.count(":") < 7):
        return False
    # Addresses in use start with a group of several digits or with none (`::ffff:192.0.2.1`).
    return len(text.partition(":")[0]) != 1 or text.count(":") == 7


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# A token that has left the cache can no longer be used in a query; results are not affected.
MAX_CACHED_TOKENS = 50_000
# A log that an attacker fills with names must not exhaust memory. Failing is safer than leaving names readable.
MAX_NAMES_PER_RESULT = 50_000
MAX_CACHED_TEXTS = 5000
# Fields with values of this service, which cannot contain foreign text.
_SAFE = "level minLevel timestamp time id eventId logName nextCursor cursor type modified created kind oldest newest"
SAFE_FIELDS = frozenset(_SAFE.split())
# Below these fields the member names are data as well, so no field is safe.
DYNAMIC_FIELDS = frozenset({"fields", "bySource"})
# A token may stand for a text that contains tokens; the limit prevents loops.
_MAX_TOKEN_DEPTH = 3

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\b(?:user|host|address|sid|mail|machine|mac|id|url)-[0-9a-f]{12}\b")
_PRIVATE_USE_START = 0xF0000
_PRIVATE_USE_RUN = re.compile(f"[{chr(_PRIVATE_USE_START)}-{chr(_PRIVATE_USE_START + 0x7F)}]+")


class Anonymizer:
    """Creates tokens and remembers them, so that a later query can contain them."""

    def __init__(
        self,
        level: PrivacyMode = "anonymize",
        key: bytes | None = None,
        known_names: Iterable[tuple[NameKind, str]] = (),
    ) -> None:
        self.level = level
        self._key = key or os.urandom(32)
        self._lock = threading.Lock()
        self._tokens: LruCache[str, str] = LruCache(MAX_CACHED_TOKENS)
        self.known_names = [pair for kind, value in known_names for pair in names_in_field(kind, value)]

    def anonymize(
        self,
        value: Any,
        related: Iterable[Any] = (),
        known_names: Iterable[tuple[NameKind, str]] = (),
        around: str = "",
    ) -> Any:
        """Replace the names in a JSON value by tokens. Names are also collected from the fields of `besides` and from
        the text `around`, which are not part of the result.
        """
        if self.level == "off":
            return value
        name_index = NameIndex(self, known_names)
        for value_part in related:
            name_index.collect(value_part, texts=False, is_open=True)
        name_index.collect(around)
        name_index.collect(value)
        return name_index.anonymize(value)

    def resolve_token(self, text: str) -> tuple[str, list[tuple[NameKind, str]]]:
        """Return a text with its tokens replaced by the names they stand for, and these names. Only tokens of this
        process are known.
        """
        names: list[tuple[NameKind, str]] = []

        def name(match: re.Match[str]) -> str:
            value = self._tokens.get(match[0])
            if value is None:
                return match[0]
            names.append((match[0].partition("-")[0], value))
            return value

        if self.level != "off" and "-" in text:
            with self._lock:
                # A mail address token may contain a user token.
                for _ in range(_MAX_TOKEN_DEPTH):
                    text = _TOKEN.sub(name, text)
        return text, names

    def is_private(self, name: str) -> bool:
        # A single letter or a number would be replaced all over a text and make it unreadable.
        if len(name) < 2 or name.isdigit() or _TOKEN.fullmatch(name):
            return False
        # Strict mode trusts no list of well-known names.
        return name not in ("n/a", "::") if self.level == "strict" else not is_well_known(name)

    def token(self, kind: NameKind, value: str) -> str:
        # A keyed digest: without the key a caller cannot test whether a token stands for a guessed name.
        message = f"{kind}\0{value.casefold()}".encode("utf-8", "surrogatepass")
        token = f"{kind}-{hmac.digest(self._key, message, 'sha256').hex()[:12]}"
        with self._lock:
            self._tokens[token] = value
        return token


def encode_tokens(text: str) -> str:
    """Encode tokens in private-use characters, so that a search matches a token as a whole or not at all."""
    return _TOKEN.sub(lambda match: "".join(chr(_PRIVATE_USE_START + ord(letter)) for letter in match[0]), text)


def decode_tokens(text: str) -> str:
    """Decode the private-use characters of `encode_tokens`."""
    return _PRIVATE_USE_RUN.sub(
        lambda match: "".join(chr(ord(letter) - _PRIVATE_USE_START) for letter in match[0]), text
    )


class NameIndex:
    """Names collected from one result. Texts are matched by the first word of a name, which most texts do not
    contain.
    """

    def __init__(self, anonymizer: Anonymizer, known_names: Iterable[tuple[NameKind, str]] = ()) -> None:
        self._anonymizer = anonymizer
        self._kinds: dict[str, NameKind] = {}
        # By first word: lengths of the names, longest first, and the offset of that word within the name.
        self._shapes: dict[str, list[tuple[int, int]]] = {}
        self._text_cache: LruCache[str, str] = LruCache(MAX_CACHED_TEXTS)
        for kind, name in (*anonymizer.known_names, *known_names):
            self._add_name(kind, name)

    # First pass: collect names

    def collect(self, value: Any, field: str = "", *, texts: bool = True, is_open: bool = False) -> None:
        """Collect the names in a JSON value. With `is_open`, member names are data too."""
        if isinstance(value, dict):
            for name, item in value.items():
                below = is_open or name in DYNAMIC_FIELDS
                self.collect(item, self._field(value, name, field, is_open=is_open), texts=texts, is_open=below)
        elif isinstance(value, list | tuple):
            for item in value:
                self.collect(item, field, texts=texts, is_open=is_open)
        elif isinstance(value, str) and (is_open or field not in SAFE_FIELDS):
            kind = field_kind(field)
            for pair in names_in_field(kind, value) if kind is not None else ():
                self._add_name(*pair)
            for pair in names_in_text(value) if texts else ():
                self._add_name(*pair)

    def _field(self, parent: dict[str, Any], name: str, above: str, *, is_open: bool) -> str:
        """Return the field name that determines the kind of a member.

        XML text members are called `#text`, and in event data the name may be a sibling of its value. A registry value
        is not classified by its field: `DisplayName` and `Owner` are names of programs and services there.
        """
        if is_open and name == "value" and isinstance(parent.get("name"), str):
            return str(parent["name"])
        return above if name.startswith("#") else name

    def _add_name(self, kind: NameKind, name: str) -> None:
        low = name.casefold()
        if low in self._kinds or not self._anonymizer.is_private(name):
            return
        if len(self._kinds) >= MAX_NAMES_PER_RESULT:
            raise SystemToolError(
                "The result contains too many names to anonymize. Request less at a time.", outcome="invalid"
            )
        self._kinds[low] = kind
        # Texts masked so far may contain the new name.
        self._text_cache.clear()
        first = _WORD.search(low)
        if first is not None:
            shapes = self._shapes.setdefault(first[0], [])
            shape = (-len(low), first.start())
            if shape not in shapes:
                insort(shapes, shape)

    # Second pass: replace names

    def anonymize(self, value: Any, field: str = "", *, is_open: bool = False) -> Any:
        """Return a JSON value with the collected names replaced by tokens."""
        if isinstance(value, str):
            is_shown = (field in SAFE_FIELDS and not is_open) or self._is_version(field, value)
            return value if is_shown else self.anonymize_text(value)
        if isinstance(value, dict):
            return {
                self._member(name) if is_open else name: self.anonymize(
                    item, self._field(value, name, field, is_open=True), is_open=is_open or name in DYNAMIC_FIELDS
                )
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.anonymize(item, field, is_open=is_open) for item in value]
        return value

    def _is_version(self, field: str, value: str) -> bool:
        """Return whether a field contains a version in the form of an address, such as DriverVersion 1.0.0.11."""
        if _VERSION.fullmatch(value) is None or self._anonymizer.level == "strict":
            return False
        return _VERSION_FIELD.fullmatch(field) is not None and value not in self._kinds

    def _member(self, name: str) -> str:
        """Anonymize a member name, unless it is a well-known name: formats have members such as `System`."""
        return name if is_well_known(name) else self.anonymize_text(name)

    def anonymize_text(self, text: str) -> str:
        masked = self._text_cache.peek(text)
        if masked is None:
            masked = self._text_cache[text] = self._mask(text)
        return masked

    def _mask(self, text: str) -> str:
        low = text.casefold()
        # Most texts contain no known name; testing the words is much cheaper than searching each name.
        if not self._shapes.keys().isdisjoint(_WORD.findall(low)):
            text = self._without_names(text, low)
        forms = PATTERNS if self._anonymizer.level != "strict" else PATTERNS + STRICT_PATTERNS
        for kind, sign, pattern in forms:
            if sign in text:
                text = pattern.sub(partial(self._token_for_match, kind), text)
        return text

    def _without_names(self, text: str, low: str) -> str:
        # Case folding can turn one character into two, so offsets in the folded text must be mapped back.
        positions = None if len(low) == len(text) else [n for n, letter in enumerate(text) for _ in letter.casefold()]
        parts: list[str] = []
        end = 0
        for word in _WORD.finditer(low):
            if word.start() >= end and (name := self._name_at(low, word, end)) is not None:
                begin, after = name
                parts += (_slice(text, positions, end, begin), self._token(text, low, positions, begin, after))
                end = after
        return "".join([*parts, _slice(text, positions, end, len(low))])

    def _name_at(self, low: str, word: re.Match[str], minimum: int) -> tuple[int, int] | None:
        """Return the range of the longest name that starts with this word, or None. A host's short name is a prefix of
        its long one.
        """
        for size, lead in self._shapes.get(word[0], ()):
            begin, end = word.start() - lead, word.start() - lead - size
            if begin >= minimum and low[begin:end] in self._kinds and not _is_within(low, begin, end):
                return begin, end
        return None

    def _token(self, text: str, low: str, positions: list[int] | None, begin: int, end: int) -> str:
        return self._anonymizer.token(self._kinds[low[begin:end]], _slice(text, positions, begin, end))

    def _token_for_match(self, kind: NameKind, match: re.Match[str]) -> str:
        if kind == "address" and not looks_like_address(match, is_strict=self._anonymizer.level == "strict"):
            return match[0]
        if not self._anonymizer.is_private(match[0]):
            return match[0]
        return self._anonymizer.token(kind, match[0])


def _slice(text: str, positions: list[int] | None, begin: int, end: int) -> str:
    if positions is None:
        return text[begin:end]
    return text[
        positions[begin] if begin < len(positions) else len(text) : positions[end]
        if end < len(positions)
        else len(text)
    ]


def _is_within(text: str, begin: int, end: int) -> bool:
    """Return whether word characters directly precede or follow a range of a text."""
    return bool((begin > 0 and _WORD.match(text[begin - 1])) or (end < len(text) and _WORD.match(text[end])))
