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
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any

from portico.services.system import naming
from portico.services.system.levels import Privacy
from portico.services.system.naming import Kind

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
        self._known = [pair for kind, value in known for pair in naming.in_field(kind, value)]

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
        return name not in ("n/a", "::") if self.level == "strict" else not naming.is_well_known(name)

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
            kind = naming.kind_of(field)
            for found in naming.in_field(kind, value) if kind is not None else ():
                self._learn(*found)
            for found in naming.in_text(value) if texts else ():
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
        forms = naming.FORMS if self._anonymizer.level != "strict" else naming.FORMS + naming.STRICT_FORMS
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
        if (kind == "address" and not naming.looks_like_address(found[0])) or not self._anonymizer.is_private(found[0]):
            return found[0]
        return self._anonymizer.token(kind, found[0])
