"""A word for a secret, the sign after it, and the value that is written there.

`DB_PASSWORD=…`, `"apiKey": "…"`, `the token for staging is …`, `setSecret("…")`, a type or a field in between: there
are many ways to give a value a name. Here they are only parsed; `assignments.py` decides whether the value is a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from portico.screening.lazy_patterns import pattern
from portico.screening.passwords import Writing, is_name
from portico.screening.secret_names import PASSWORD_WORDS, SECRET_WORDS

# `token: str = …` has a type before the sign; `name: TOKEN, value: …` has the value in a field of its own, and so has
# `<key>Token</key><string>…`; `token: |` has it below.
_TYPED = r":[ \t]{0,3}+[&'\w.<>\[\]?| ]{1,30}?=(?=[ \t]?+[bu]?+[\"'`])"
_FIELD = r"[:=]?[\s\"',;{]{0,40}+(?:value|val|default)[\"']?[ \t]{0,3}+[:=]|</\w{1,10}+>\s{0,12}+<\w{1,10}+>"
_WORDED = r"(?:, (?:it|which|that) )?(?:['’]s|\b(?:is|to|or|was|from|ist|lautet|est|es|é|è|jest|är|je|là|adalah|это|este|on))\b(?: now| currently| still)?:?"
_BLOCK = r":[ \t]{0,3}+[|>][+\-]?+[ \t]{0,3}+(?=\r?\n)"
_MARK = r"=>|->|→|[:?+.|]{0,3}={1,3}|:{1,2}|[>(,]|\|\||\||\?\?|[\-–—](?=[ \t])|(?=[\"'`])"
_SIGN = rf"{_TYPED}|{_FIELD}|{_WORDED}|{_BLOCK}|{_MARK}"
_NAMED = pattern(
    rf"(?P<word>(?>{SECRET_WORDS}))(?P<rest>[\w.\-]{{0,24}}+)"
    r"(?P<said>(?:[ \t]{1,3}+[a-z0-9_’\-]{1,20}+){0,6}?)"
    r"(?P<closed>[\"'`\]\)\\*]{0,4}+)(?:[ \t]{0,2}+\([^()\r\n]{1,40}+\)(?=[ \t]?[:=]))?[ \t]{0,12}+"
    rf"(?P<sign>{_SIGN})"
)
_WORD = pattern(rf"(?:{SECRET_WORDS})[\w.\-]{{0,24}}+")
_IN_WORDS = pattern(r"(?:, (?:it|which|that) )?['’]?[a-zé]")
_ENDS = pattern(rf"(?:{PASSWORD_WORDS}|secret|token|key|auth|authorization|credentials?)s?$")
_BEFORE = pattern(r"([\w.\-]{0,40}+)(?:[ \t]([\w\-]{1,20}+))?")


class NameAndSign(NamedTuple):
    """A name in the lowered text: where its word for a secret starts, and what follows up to the value."""

    start: int
    rest: int  # where the name ends
    said: str  # between name and sign
    closed: str  # the quote or bracket that ends the name
    sign: str
    end: int


def names(lower: str) -> Iterator[NameAndSign]:
    for found in _NAMED.finditer(lower):
        start, rest, said = found.start(), found.end("rest"), found["said"]
        # `secrets set SIGNING_SECRET=`: of several words for secrets the last one is the name.
        for again in _WORD.finditer(lower, *found.span("said")):
            start, rest = again.span()
            said = lower[rest : found.end("said")]
        yield NameAndSign(start, rest, said, found["closed"], found["sign"], found.end())


def whole_name(lower: str, start: int, end: int) -> str:
    """The name that a word for a secret is part of, and the word before it: `x-api-key`, `access key`."""
    before = _BEFORE.match(lower[max(0, start - 64) : start][::-1])
    left, previous = (before[1][::-1], (before[2] or "")[::-1]) if before is not None else ("", "")
    return f"{previous} {left}{lower[start:end]}"


class NamedValue(NamedTuple):
    text: str
    start: int
    writing: Writing
    below: bool  # on a line after its name


_OPEN = pattern(
    r"[ \t]{0,8}+(?P<below>(?:\r?\n[ \t>]{0,12}+){1,2}+)?[*_(\[]{0,3}+(?:[bBuU@]?(?P<quote>\\{0,3}[\"'`]{1,3}))?"
)
# Enough of a value to judge it by; one that is long goes on.
BARE = pattern(r"[^\s\"'`<>,;\\]{1,200}+")
_WHOLE = pattern(r"(?:[^\s\"'`\\]|\\(?![nrt])){1,200}+")
_LONGEST_QUOTED = 4096
_NAME_AND_SIGN = pattern(rf"(?:{SECRET_WORDS})[\w.\-]{{0,24}}+[:=]")
_NEXT_FIELD = pattern(r"&(?=[\w.\-]{1,40}=)")
# Read backwards: DB_PASSWORD, spring.datasource.password.
_SETTING = pattern(r"(?:[A-Z0-9_]{1,60}+|[a-z0-9\-]{1,40}+(?:\.[a-z0-9\-]{1,40}+){1,5})(?:[\s:;]|$)")


def value_of(text: str, lower: str, named: NameAndSign) -> NamedValue | None:
    """The value that is assigned to a name; None if nothing is assigned here."""
    if not _assigns(text, lower, named):
        return None
    opened = _OPEN.match(text, named.end)
    if opened is None:
        return None
    start, quote, sign = opened.end(), opened["quote"], named.sign
    below = opened["below"] is not None and not sign.endswith(("|", ">", "|-", ">-", "|+", ">+"))
    if quote:
        end = text.find(quote[-1], start, start + _LONGEST_QUOTED)
        quoted = text[start:end] if end > start else ""
        if not quoted or "\n" in quoted or (sign == "," and is_name(quoted)):
            return None
        return NamedValue(quoted.rstrip("\\"), start, "quoted", below)
    return None if sign in (",", "(") else _bare(text, named, start, below)


def _bare(text: str, named: NameAndSign, start: int, below: bool) -> NamedValue | None:
    setting = not below and _is_setting(text, named)
    found = (_WHOLE if setting else BARE).match(text, start)
    value = found[0].partition("[REDACTED:")[0] if found is not None else ""
    # `password: token: …` names the next thing.
    if not value or _NAME_AND_SIGN.match(value):
        return None
    if setting:
        return NamedValue(value, start, "line", below)
    if named.sign == "=":
        value = _NEXT_FIELD.split(value, 1)[0]
    value = value.rstrip(".:)]}|*")
    in_words = named.said or _IN_WORDS.match(named.sign)
    return NamedValue(value, start, "prose" if in_words else "bare", below) if value else None


def _assigns(text: str, lower: str, named: NameAndSign) -> bool:
    sign = named.sign
    if sign not in (",", "(", ">", "|"):
        return True
    # `("password", "…")`, `setPassword("…")`, an element, a table: nothing between the word and the sign.
    if named.said or not _ENDS.search(lower, named.start, named.rest):
        return False
    if sign == ",":
        return _is_argument(text, named)
    return sign != "|" or _in_table(text, named.start)


def _is_argument(text: str, named: NameAndSign) -> bool:
    """The name is a string of its own: `("db_password", …`."""
    left = _BEFORE.match(text[max(0, named.start - 64) : named.start][::-1])
    before = named.start - (left.end(1) if left is not None else 0)
    return named.closed in ("'", '"') and text[max(0, before - 1) : before] in ("'", '"')


def _in_table(text: str, start: int) -> bool:
    return text[text.rfind("\n", max(0, start - 200), start) + 1 : start].lstrip().startswith("|")


def _is_setting(text: str, named: NameAndSign) -> bool:
    """`NAME=value` as shells, containers and properties files have it: no space at the sign, and a name as they are."""
    if named.sign != "=" or named.said or text[named.end : named.end + 1].isspace():
        return False
    return _SETTING.match(text[max(0, named.start - 64) : named.end - 1][::-1]) is not None
