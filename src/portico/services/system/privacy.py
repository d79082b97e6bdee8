"""Anonymizes results: users, hosts, addresses, SIDs and e-mails become tokens.

A token is a keyed digest, so the same user is the same token everywhere and always, and a guess cannot be checked
without the key. It is done in two passes. First the fields that say what they are: what is in `TargetUserName` is a
user. Then the texts, which are searched for the names just learned, and for what is recognised by its form.

What was learned from one result is forgotten with it, or a program that can write to a log could teach us that
`error` is a user, for all results. Only the names that this machine itself is known by are always looked for.

Accounts and addresses that every machine has (`SYSTEM`, `S-1-5-18`, `127.0.0.1`) identify no one and stay, except under
`strict`, where nothing does.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from portico.services.system.levels import Privacy

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
_WELL_KNOWN_SID = re.compile(r"S-1-(?:[0-4]-\d+|5-(?:\d{1,2}|32-\d{3}|80-0|90-0-\d+|96-0-\d+)|16-\d+)", re.IGNORECASE)
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
    (("home", "sers"), re.compile(rf"[/\\](?:home|[Uu]sers)[/\\]{_NAME}")),
)
_HOST = re.compile(r"(?:\brhost=|\bfrom (?:\S{1,64} \()?)([A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})")


# A line of a text log has its host behind the time.
_LINE = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,32}) ([A-Za-z][\w.-]{1,252}) \S{1,100}:",
    re.M,
)
_LETTER = re.compile(r"[^\W\d_]|::|\d\.\d")

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
    if not 1 < len(value) <= 256 or value.startswith("%%") or not _LETTER.search(value):
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


def looks_like_address(text: str) -> bool:
    """Whether a text that no field calls an address is one: `a::b` could be, but is rather C++."""
    return is_address(text) and any(character.isdigit() for character in text)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


MOST_REMEMBERED = 50_000
MOST_LEARNED = 5000
# What is ours, and no text from outside.
_SAFE = (
    "source level minLevel timestamp time id eventId logName nextCursor cursor type modified created kind oldest newest"
)
SAFE_FIELDS = frozenset(_SAFE.split())

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\b(?:user|host|address|sid|mail|machine|mac|id|url)-[0-9a-f]{12}\b")


class Anonymizer:
    """Makes tokens, and remembers which, so that one can be given back in a question."""

    def __init__(
        self, level: Privacy = "anonymize", key: bytes | None = None, known: Iterable[tuple[Kind, str]] = ()
    ) -> None:
        self.level = level
        self._key = key or os.urandom(32)
        self._lock = threading.Lock()
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._known = [pair for kind, value in known for pair in in_field(kind, value)]

    def hide(self, value: Any, besides: Iterable[Any] = ()) -> Any:
        """A result with tokens for names: anything that JSON can hold. Names are also learned from the fields of
        `besides`, which are not part of the result."""
        if self.level == "off":
            return value
        learned = _Learned(self)
        for one in besides:
            learned.study(one, "", texts=False)
        learned.study(value, "")
        return learned.hidden(value, "")

    def text(self, text: str) -> str:
        return text if self.level == "off" else str(self.hide(text))

    def reveal(self, text: str) -> str:
        """What was meant by a text with tokens in it. Only those that were made here are known."""
        if self.level == "off" or "-" not in text:
            return text
        with self._lock:
            return _TOKEN.sub(lambda found: self._tokens.get(found[0], found[0]), text)

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

    @property
    def known(self) -> list[tuple[Kind, str]]:
        return self._known


class _Learned:
    """The names in one result. A name is looked for by its first word, and most texts have none of those."""

    def __init__(self, anonymizer: Anonymizer) -> None:
        self._anonymizer = anonymizer
        self._kinds: dict[str, Kind] = {}
        self._by_first_word: dict[str, list[str]] = {}
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._done: dict[str, str] = {}
        for kind, name in anonymizer.known:
            self._learn(kind, name)

    # The first pass

    def study(self, value: Any, field: str, *, texts: bool = True) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                self.study(one, self._field(value, name, field), texts=texts)
        elif isinstance(value, list | tuple):
            for one in value:
                self.study(one, field, texts=texts)
        elif isinstance(value, str) and field not in SAFE_FIELDS:
            kind = kind_of(field)
            for found in in_field(kind, value) if kind is not None else ():
                self._learn(*found)
            for found in in_text(value) if texts else ():
                self._learn(*found)

    def _field(self, parent: dict[str, Any], name: str, above: str) -> str:
        """What a member is called. XML's members are `#text`; a value of a registry has its name beside it."""
        if name == "value" and isinstance(parent.get("name"), str):
            return str(parent["name"])
        return above if name.startswith("#") else name

    def _learn(self, kind: Kind, name: str) -> None:
        low = name.casefold()
        if low in self._kinds or not self._anonymizer.is_private(name) or len(self._kinds) >= MOST_LEARNED:
            return
        self._kinds[low] = kind
        first = _WORD.search(low)
        if first is not None:
            self._by_first_word.setdefault(first[0], []).append(low)

    # The second pass

    def hidden(self, value: Any, field: str) -> Any:
        if isinstance(value, str):
            return value if field in SAFE_FIELDS else self.masked(value)
        if isinstance(value, dict):
            return {name: self.hidden(one, name) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.hidden(one, field) for one in value]
        return value

    def masked(self, text: str) -> str:
        if text not in self._done:
            if len(self._done) >= MOST_LEARNED:
                self._done.clear()
            self._done[text] = self._mask(text)
        return self._done[text]

    def _mask(self, text: str) -> str:
        low = text.casefold()
        if firsts := self._by_first_word.keys() & set(_WORD.findall(low)):
            names = tuple(name for first in sorted(firsts) for name in self._by_first_word[first] if name in low)
            if names:
                text = self._pattern(names).sub(self._name, text)
        forms = FORMS if self._anonymizer.level != "strict" else FORMS + STRICT_FORMS
        for kind, sign, pattern in forms:
            if sign in text:
                text = pattern.sub(partial(self._form, kind), text)
        return text

    def _pattern(self, names: tuple[str, ...]) -> re.Pattern[str]:
        if names not in self._patterns:
            # The longest first, or a host's short name would be found in its long one.
            words = sorted(map(re.escape, names), key=len, reverse=True)
            self._patterns[names] = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)
        return self._patterns[names]

    def _name(self, found: re.Match[str]) -> str:
        return self._anonymizer.token(self._kinds.get(found[0].casefold(), "user"), found[0])

    def _form(self, kind: Kind, found: re.Match[str]) -> str:
        if (kind == "address" and not looks_like_address(found[0])) or not self._anonymizer.is_private(found[0]):
            return found[0]
        return self._anonymizer.token(kind, found[0])
