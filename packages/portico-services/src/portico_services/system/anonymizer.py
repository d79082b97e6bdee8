"""Anonymizes results: users, hosts, addresses, SIDs and e-mails become tokens.

A token is a keyed digest, so the same user is the same token everywhere and always, and without the key a token does
not tell whether it stands for a certain name. It is done in two passes. First the fields that say what they are: what
is in `TargetUserName` is a user. Then the texts, which are searched for the names just learned, and for what is
recognised by its form.

What was learned from one result is forgotten with it, or a program that can write to a log could teach us that
`error` is a user, for all results. Only the names that this machine itself is known by are always looked for, and in
the answer to a question those that the question gave back as tokens.

Accounts and addresses that every machine has (`SYSTEM`, `S-1-5-18`, `127.0.0.1`) identify no one and stay, except under
`strict`, where nothing does.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from portico_services.system.access_levels import Privacy
from portico_services.system.errors import InvalidArgument

Kind = str
"""user, host, address, sid, mail, machine; and under `strict` mac, id, url."""

# The names of fields are those of Windows, journald, syslog, macOS, osquery and of our own results.
_FIELDS = {
    "user": r".*user_?name|.*account_?name|.*_user|user|logname|acct|owner|ruser|display_?name|.*principal_?name",
    "sid": r".*sid|user_?id|securityid",
    "host": r".*computer(?:_?name)?|.*host(?:_?name)?|.*workstation(?:_?name)?|.*domain(?:_?name)?|.*server_?name"
    r"|.*machine_?name",
    "address": r"(?:.*_)?ip|(?:source|destination|client|remote|local|src|dst)_?ip|.*address|.*_?addr",
    "mail": r".*e?mail",
    "machine": r".*machine_?id|.*serial(?:_?number)?|uuid",
}
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _FIELDS.items()]

# Accounts, domains and addresses that every machine has, and what is written where there is none.
WELL_KNOWN = frozenset(Path(__file__).with_name("well_known_names.txt").read_text(encoding="utf-8").splitlines())
_WELL_KNOWN_SID = re.compile(
    r"S-1-(?:[0-4]-\d+|5-(?:\d{1,3}|32-\d{3}|64-\d{1,2}|80-0|90-0-\d+|96-0-\d+)|15-[23]-[\d-]+|16-\d+)", re.IGNORECASE
)
_WORDS = (
    "and at by for from id in is logged login name not of on or password public shared the to user was with invalid"
)
_NO_NAME = frozenset(_WORDS.split())


# Forms, each with something that a text must contain to have any: most texts have none.
FORMS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("sid", "S-1-", re.compile(r"\bS-1-\d{1,3}(?:-\d{1,10}){1,15}\b")),
    (
        "mail",
        "@",
        # Not the units of systemd, which look the same: `getty@tty1.service`.
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
# What is private only to the strict: hardware addresses, identifiers, and where a URL leads.
STRICT_FORMS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("mac", "", re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])")),
    ("id", "-", re.compile(r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b")),
    ("id", "", re.compile(r"\b[0-9a-f]{32}\b")),
    ("url", "://", re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>]{1,2000}")),
)
# A name is given away by what stands before it, and a folder may be called after its owner.
_NAME = r"[\"']?([A-Za-z_][\w.$-]{0,63})"
_SPOKEN: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("user",), re.compile(rf"\b[Uu]ser(?:[Nn]ame)?(?:=|: ){_NAME}|\b(?:for|invalid|illegal) user {_NAME}")),
    (("logname=", "acct=", "uid="), re.compile(rf"\b(?:logname|acct|uid)={_NAME}")),
    ((" for ",), re.compile(rf" for {_NAME} (?:from|by) ")),
    (("home", "sers", "Settings"), re.compile(rf"[/\\](?:home|[Uu]sers|Documents and Settings)[/\\]{_NAME}")),
)
_HOST = re.compile(r"(?:\brhost=|\bfrom (?:\S{1,64} \()?)([A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})")


# A line of a text log has its host behind the time.
_LINE = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,32}) ([A-Za-z][\w.-]{1,252}) \S{1,100}:",
    re.M,
)
_LETTER = re.compile(r"[^\W\d_]|::|\d\.\d")
# Values of fields that hold a name elsewhere: a number, and where a program has a text (`@%SystemRoot%\\x.dll,-1`).
_NOT_A_NAME = re.compile(r"%%\d|@[^@]{1,250},-\d{1,6}(?:;|\Z)|0x[0-9A-Fa-f]+\Z")
# Four numbers with dots are a version behind one of these words, and an address behind one of those.
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
# `DriverVer` and `app_ver`, but not `Server`.
_VERSION_FIELD = re.compile(r"(?i:.*version.*|pv)|.*[a-z]Ver|(?:.*_)?ver")
_VERSION = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_CONTEXT_CHARS = 64

_kinds: dict[str, Kind | None] = {}


def kind_of(field: str) -> Kind | None:
    """What a field of this name names. Such names are few, so each is looked at once."""
    if field not in _kinds:
        if len(_kinds) > 10_000:
            _kinds.clear()
        _kinds[field] = next((kind for kind, names in _KINDS if names.fullmatch(field)), None)
    return _kinds[field]


def in_field(kind: Kind, value: str) -> Iterator[tuple[Kind, str]]:
    """The names in a field: `DOMAIN\\user` and `user@domain` are two, and a host may come with its domain."""
    value = value.strip()
    if not 1 < len(value) <= 256 or _NOT_A_NAME.match(value) or not _LETTER.search(value):
        return
    if kind == "sid":
        if FORMS[0][2].fullmatch(value):
            yield kind, value
    elif kind == "address":
        bare = value.strip("[]").partition("%")[0]
        if is_address(bare):
            yield kind, bare
    elif kind == "user":
        domain, _, name = value.rpartition("\\")
        yield from in_field("host", domain)
        name, _, realm = name.partition("@")
        yield from in_field("host", realm)
        # A machine has an account, too, and its name ends so.
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
            yield from in_field(kind, domain)
    else:
        yield kind, value


def in_text(text: str) -> Iterator[tuple[Kind, str]]:
    """Names that a text gives away by the words around them."""
    for signs, pattern in _SPOKEN:
        if any(sign in text for sign in signs):
            for found in pattern.finditer(text):
                name = next(filter(None, found.groups())).rstrip(".-$")
                if name.lower() not in _NO_NAME:
                    yield "user", name
    if text.count(":") > 2:
        for found in _LINE.finditer(text):
            yield from in_field("host", found[1])
    if "rhost=" in text or "from " in text:
        for found in _HOST.finditer(text):
            yield from in_field("host", found[1].rstrip("."))


def is_well_known(name: str) -> bool:
    """Whether it is on every machine, and so says nothing about this one."""
    return name.casefold() in WELL_KNOWN or _WELL_KNOWN_SID.fullmatch(name) is not None


def looks_like_address(match: re.Match[str], *, is_strict: bool = False) -> bool:
    """Return whether a match in a text is the address of a host, although no field calls it one.

    `a::b` could be an address but is rather C++, and `1::0` is a position. `1.249.252.0` could be a network, but is
    rather a version, unless the words around it say otherwise. `is_strict` takes every doubtful case for an address.
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
    # A network, or an identifier of X.500: 2.5.29.15 is the use of a key, 2.5.4.3 a common name.
    is_doubtful = text.endswith(".0") or text.startswith(("2.5.29.", "2.5.4."))
    return not is_doubtful or match.string[match.end() : match.end() + 1] == "/" or bool(_ADDRESS_WORD.search(before))


def _is_host_v6(text: str) -> bool:
    """Return whether an IPv6 address can be that of a host: not a prefix (`fe80::`) and not a multicast group."""
    address = ipaddress.IPv6Address(text.partition("%")[0])
    if address.is_multicast or (text.endswith("::") and text.count(":") < 7):
        return False
    # Addresses that are in use begin with a group of several digits, or with none (`::ffff:192.0.2.1`).
    return len(text.partition(":")[0]) != 1 or text.count(":") == 7


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


MOST_REMEMBERED = 50_000
MOST_LEARNED = 50_000
MOST_MASKED = 5000
# What is ours, and no text from outside.
_SAFE = "level minLevel timestamp time id eventId logName nextCursor cursor type modified created kind oldest newest"
SAFE_FIELDS = frozenset(_SAFE.split())
# Below these the names of members are data as well, and nothing is ours.
OPEN_FIELDS = frozenset({"fields", "bySource"})
_DEEPEST_TOKEN = 3

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\b(?:user|host|address|sid|mail|machine|mac|id|url)-[0-9a-f]{12}\b")
_PLANE = 0xF0000
_OPAQUE = re.compile(f"[{chr(_PLANE)}-{chr(_PLANE + 0x7F)}]+")


class Anonymizer:
    """Makes tokens, and remembers which, so that one can be given back in a question."""

    def __init__(
        self, level: Privacy = "anonymize", key: bytes | None = None, known: Iterable[tuple[Kind, str]] = ()
    ) -> None:
        self.level = level
        self._key = key or os.urandom(32)
        self._lock = threading.Lock()
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self.known = [pair for kind, value in known for pair in in_field(kind, value)]

    def hide(
        self,
        value: Any,
        besides: Iterable[Any] = (),
        known: Iterable[tuple[Kind, str]] = (),
        around: str = "",
    ) -> Any:
        """A result with tokens for names: anything that JSON can hold. Names are also learned from the fields of
        `besides` and from the text `around`, which are not part of the result."""
        if self.level == "off":
            return value
        learned = Learned(self, known)
        for one in besides:
            learned.study(one, texts=False, is_open=True)
        learned.study(around)
        learned.study(value)
        return learned.hidden(value)

    def meaning(self, text: str) -> tuple[str, list[tuple[Kind, str]]]:
        """What was meant by a text with tokens in it, and the names that they stand for. Only those that were made
        here are known."""
        names: list[tuple[Kind, str]] = []

        def name(found: re.Match[str]) -> str:
            value = self._tokens.get(found[0])
            if value is None:
                return found[0]
            names.append((found[0].partition("-")[0], value))
            return value

        if self.level != "off" and "-" in text:
            with self._lock:
                # The name of a user may be a token within that of a mail address.
                for _ in range(_DEEPEST_TOKEN):
                    text = _TOKEN.sub(name, text)
        return text, names

    def reveal(self, text: str) -> str:
        return self.meaning(text)[0]

    def is_private(self, name: str) -> bool:
        if len(name) < 2 or name.isdigit() or _TOKEN.fullmatch(name):
            return False
        return name not in ("n/a", "::") if self.level == "strict" else not is_well_known(name)

    def token(self, kind: Kind, value: str) -> str:
        said = f"{kind}\0{value.casefold()}".encode("utf-8", "surrogatepass")
        token = f"{kind}-{hmac.digest(self._key, said, 'sha256').hex()[:12]}"
        with self._lock:
            self._tokens[token] = value
            self._tokens.move_to_end(token)
            if len(self._tokens) > MOST_REMEMBERED:
                self._tokens.popitem(last=False)
        return token


def opaque(text: str) -> str:
    """A text in which a token is found as a whole or not at all: its letters are no letters."""
    return _TOKEN.sub(lambda found: "".join(chr(_PLANE + ord(letter)) for letter in found[0]), text)


def legible(text: str) -> str:
    """An opaque text, or a part of one, as it is shown."""
    return _OPAQUE.sub(lambda found: "".join(chr(ord(letter) - _PLANE) for letter in found[0]), text)


class Learned:
    """The names in one result. A name is looked for by its first word, and most texts have none of those."""

    def __init__(self, anonymizer: Anonymizer, known: Iterable[tuple[Kind, str]] = ()) -> None:
        self._anonymizer = anonymizer
        self._kinds: dict[str, Kind] = {}
        # By first word: how long the names are, the longest first, and where in them that word begins.
        self._shapes: dict[str, list[tuple[int, int]]] = {}
        self._done: dict[str, str] = {}
        for kind, name in (*anonymizer.known, *known):
            self._learn(kind, name)

    # The first pass

    def study(self, value: Any, field: str = "", *, texts: bool = True, is_open: bool = False) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                below = is_open or name in OPEN_FIELDS
                self.study(one, self._field(value, name, field, is_open=is_open), texts=texts, is_open=below)
        elif isinstance(value, list | tuple):
            for one in value:
                self.study(one, field, texts=texts, is_open=is_open)
        elif isinstance(value, str) and (is_open or field not in SAFE_FIELDS):
            kind = kind_of(field)
            for found in in_field(kind, value) if kind is not None else ():
                self._learn(*found)
            for found in in_text(value) if texts else ():
                self._learn(*found)

    def _field(self, parent: dict[str, Any], name: str, above: str, *, is_open: bool) -> str:
        """Return the name of a member's field. Members of XML elements are called `#text`, and in the data of an event
        a name may be the sibling of its value. A value in the registry is not named by its field: `DisplayName` and
        `Owner` are names of programs and services there."""
        if is_open and name == "value" and isinstance(parent.get("name"), str):
            return str(parent["name"])
        return above if name.startswith("#") else name

    def _learn(self, kind: Kind, name: str) -> None:
        low = name.casefold()
        if low in self._kinds or not self._anonymizer.is_private(name):
            return
        if len(self._kinds) >= MOST_LEARNED:
            raise InvalidArgument("There are more names here than can be hidden in one answer. Ask for less at a time.")
        self._kinds[low] = kind
        self._done.clear()
        first = _WORD.search(low)
        if first is not None:
            shapes = self._shapes.setdefault(first[0], [])
            shape = (-len(low), first.start())
            if shape not in shapes:
                insort(shapes, shape)

    # The second pass

    def hidden(self, value: Any, field: str = "", *, is_open: bool = False) -> Any:
        if isinstance(value, str):
            is_shown = (field in SAFE_FIELDS and not is_open) or self._is_version(field, value)
            return value if is_shown else self.masked(value)
        if isinstance(value, dict):
            return {
                self._member(name) if is_open else name: self.hidden(
                    one, self._field(value, name, field, is_open=True), is_open=is_open or name in OPEN_FIELDS
                )
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.hidden(one, field, is_open=is_open) for one in value]
        return value

    def _is_version(self, field: str, value: str) -> bool:
        """Return whether a field holds a version that has the form of an address, such as DriverVersion 1.0.0.11."""
        if _VERSION.fullmatch(value) is None or self._anonymizer.level == "strict":
            return False
        return _VERSION_FIELD.fullmatch(field) is not None and value not in self._kinds

    def _member(self, name: str) -> str:
        """Formats have members that are called as an account that everybody has: `System`."""
        return name if is_well_known(name) else self.masked(name)

    def masked(self, text: str) -> str:
        if text not in self._done:
            if len(self._done) >= MOST_MASKED:
                self._done.clear()
            self._done[text] = self._mask(text)
        return self._done[text]

    def _mask(self, text: str) -> str:
        low = text.casefold()
        if not self._shapes.keys().isdisjoint(_WORD.findall(low)):
            text = self._without_names(text, low)
        forms = FORMS if self._anonymizer.level != "strict" else FORMS + STRICT_FORMS
        for kind, sign, pattern in forms:
            if sign in text:
                text = pattern.sub(partial(self._form, kind), text)
        return text

    def _without_names(self, text: str, low: str) -> str:
        # Folding makes two letters of some, and then a place in one text is not the same place in the other.
        places = None if len(low) == len(text) else [n for n, one in enumerate(text) for _ in one.casefold()]
        parts: list[str] = []
        end = 0
        for word in _WORD.finditer(low):
            if word.start() >= end and (name := self._name_at(low, word, end)) is not None:
                begin, after = name
                parts += (_slice(text, places, end, begin), self._token(text, low, places, begin, after))
                end = after
        return "".join([*parts, _slice(text, places, end, len(low))])

    def _name_at(self, low: str, word: re.Match[str], least: int) -> tuple[int, int] | None:
        """Where the longest name is whose first word this is; the short name of a host is in its long one, too."""
        for size, lead in self._shapes.get(word[0], ()):
            begin, end = word.start() - lead, word.start() - lead - size
            if begin >= least and low[begin:end] in self._kinds and not _is_within(low, begin, end):
                return begin, end
        return None

    def _token(self, text: str, low: str, places: list[int] | None, begin: int, end: int) -> str:
        return self._anonymizer.token(self._kinds[low[begin:end]], _slice(text, places, begin, end))

    def _form(self, kind: Kind, found: re.Match[str]) -> str:
        if kind == "address" and not looks_like_address(found, is_strict=self._anonymizer.level == "strict"):
            return found[0]
        if not self._anonymizer.is_private(found[0]):
            return found[0]
        return self._anonymizer.token(kind, found[0])


def _slice(text: str, places: list[int] | None, begin: int, end: int) -> str:
    if places is None:
        return text[begin:end]
    return text[places[begin] if begin < len(places) else len(text) : places[end] if end < len(places) else len(text)]


def _is_within(text: str, begin: int, end: int) -> bool:
    """Whether letters go on before or behind a part of a text."""
    return bool((begin > 0 and _WORD.match(text[begin - 1])) or (end < len(text) and _WORD.match(text[end])))
