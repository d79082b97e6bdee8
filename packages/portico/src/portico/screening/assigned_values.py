"""Parser for assignments: a keyword for a secret, an assignment sign, and the value.

`DB_PASSWORD=…`, `"apiKey": "…"`, `the token for staging is …`, `setSecret("…")`, with a type or a field in between:
there are many forms. This module only parses them; `assignments.py` decides whether the value is a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from portico.screening.lazy_patterns import lazy_pattern
from portico.screening.passwords import ValueStyle, is_identifier
from portico.screening.secret_names import PASSWORD_WORDS, SECRET_WORDS

# `token: str = …` has a type before the sign; `name: TOKEN, value: …` and `<key>Token</key><string>…` have the value in
# a separate field; `token: |` has it below.
_TYPED = r":[ \t]{0,3}+[&'\w.<>\[\]?| ]{1,30}?=(?=[ \t]?+[bu]?+[\"'`])"
_FIELD = r"[:=]?[\s\"',;{]{0,40}+(?:value|val|default)[\"']?[ \t]{0,3}+[:=]|</\w{1,10}+>\s{0,12}+<\w{1,10}+>"
_WORDED = r"(?:, (?:it|which|that) )?(?:['’]s|\b(?:is|to|or|was|from|ist|lautet|est|es|é|è|jest|är|je|là|adalah|это|este|on))\b(?: now| currently| still)?:?"
_BLOCK = r":[ \t]{0,3}+[|>][+\-]?+[ \t]{0,3}+(?=\r?\n)"
_MARK = r"=>|->|→|[:?+.|]{0,3}={1,3}|:{1,2}|[>(,]|\|\||\||\?\?|[\-–—](?=[ \t])|(?=[\"'`])"
_SIGN = rf"{_TYPED}|{_FIELD}|{_WORDED}|{_BLOCK}|{_MARK}"
_NAMED = lazy_pattern(
    rf"(?P<word>(?>{SECRET_WORDS}))(?P<rest>[\w.\-]{{0,24}}+)"
    r"(?P<said>(?:[ \t]{1,3}+[a-z0-9_’\-]{1,20}+){0,6}?)"
    r"(?P<closed>[\"'`\]\)\\*]{0,4}+)(?:[ \t]{0,2}+\([^()\r\n]{1,40}+\)(?=[ \t]?[:=]))?[ \t]{0,12}+"
    rf"(?P<sign>{_SIGN})"
)
_WORD = lazy_pattern(rf"(?:{SECRET_WORDS})[\w.\-]{{0,24}}+")
_IN_WORDS = lazy_pattern(r"(?:, (?:it|which|that) )?['’]?[a-zé]")
_ENDS = lazy_pattern(rf"(?:{PASSWORD_WORDS}|secret|token|key|auth|authorization|credentials?)s?$")
_BEFORE = lazy_pattern(r"([\w.\-]{0,40}+)(?:[ \t]([\w\-]{1,20}+))?")


class AssignmentMatch(NamedTuple):
    """A name in the lowercase text: the position of its keyword, and the text up to the value."""

    start: int
    rest: int  # end of the name
    words: str  # words between name and sign
    closed: str  # quote or bracket that closes the name
    operator: str
    end: int


def names(lower: str) -> Iterator[AssignmentMatch]:
    for match in _NAMED.finditer(lower):
        start, rest, written = match.start(), match.end("rest"), match["said"]
        # `secrets set SIGNING_SECRET=`: of several keywords the last one is the name.
        for again in _WORD.finditer(lower, *match.span("said")):
            start, rest = again.span()
            written = lower[rest : match.end("said")]
        yield AssignmentMatch(start, rest, written, match["closed"], match["sign"], match.end())


def full_name(lower: str, start: int, end: int) -> str:
    """Return the complete name around a keyword, with the word before it: `x-api-key`, `access key`."""
    before = _BEFORE.match(lower[max(0, start - 64) : start][::-1])
    left, previous = (before[1][::-1], (before[2] or "")[::-1]) if before is not None else ("", "")
    return f"{previous} {left}{lower[start:end]}"


class AssignedValue(NamedTuple):
    text: str
    start: int
    style: ValueStyle
    on_next_line: bool  # on a line after the name


_OPEN = lazy_pattern(
    r"[ \t]{0,8}+(?P<below>(?:\r?\n[ \t>]{0,12}+){1,2}+)?[*_(\[]{0,3}+(?:[bBuU@]?(?P<quote>\\{0,3}[\"'`]{1,3}))?"
)
# Enough of a value to judge it; a longer one continues.
BARE = lazy_pattern(r"[^\s\"'`<>,;\\]{1,200}+")
_WHOLE = lazy_pattern(r"(?:[^\s\"'`\\]|\\(?![nrt])){1,200}+")
_MAX_QUOTED_CHARS = 4096
_NAME_AND_SIGN = lazy_pattern(rf"(?:{SECRET_WORDS})[\w.\-]{{0,24}}+[:=]")
_NEXT_FIELD = lazy_pattern(r"&(?=[\w.\-]{1,40}=)")
# Matched backwards: DB_PASSWORD, spring.datasource.password.
_SETTING = lazy_pattern(r"(?:[A-Z0-9_]{1,60}+|[a-z0-9\-]{1,40}+(?:\.[a-z0-9\-]{1,40}+){1,5})(?:[\s:;]|$)")


def assigned_value(text: str, lower: str, named: AssignmentMatch) -> AssignedValue | None:
    """Return the value assigned to a name, or None if nothing is assigned."""
    if not _assigns(text, lower, named):
        return None
    opened = _OPEN.match(text, named.end)
    if opened is None:
        return None
    start, quote, sign = opened.end(), opened["quote"], named.operator
    below = opened["below"] is not None and not sign.endswith(("|", ">", "|-", ">-", "|+", ">+"))
    if quote:
        end = text.find(quote[-1], start, start + _MAX_QUOTED_CHARS)
        quoted = text[start:end] if end > start else ""
        if not quoted or "\n" in quoted or (sign == "," and is_identifier(quoted)):
            return None
        return AssignedValue(quoted.rstrip("\\"), start, "quoted", below)
    return None if sign in (",", "(") else _unquoted_value(text, named, start, below)


def _unquoted_value(text: str, named: AssignmentMatch, start: int, below: bool) -> AssignedValue | None:
    setting = not below and _is_env_assignment(text, named)
    match = (_WHOLE if setting else BARE).match(text, start)
    # An earlier run already replaced the rest; the mark must not be redacted again.
    value = match[0].partition("[REDACTED:")[0] if match is not None else ""
    # In `password: token: …` the value is the next name.
    if not value or _NAME_AND_SIGN.match(value):
        return None
    if setting:
        return AssignedValue(value, start, "line", below)
    # In a query string or form the value ends where the next field begins.
    if named.operator == "=":
        value = _NEXT_FIELD.split(value, 1)[0]
    value = value.rstrip(".:)]}|*")
    in_words = named.words or _IN_WORDS.match(named.operator)
    return AssignedValue(value, start, "prose" if in_words else "bare", below) if value else None


def _assigns(text: str, lower: str, named: AssignmentMatch) -> bool:
    sign = named.operator
    if sign not in (",", "(", ">", "|"):
        return True
    # `("password", "…")`, `setPassword("…")`, an element, a table: nothing between the keyword and the sign.
    if named.words or not _ENDS.search(lower, named.start, named.rest):
        return False
    if sign == ",":
        return _is_argument(text, named)
    return sign != "|" or _is_table_cell(text, named.start)


def _is_argument(text: str, named: AssignmentMatch) -> bool:
    """Return whether the name is a string argument: `("db_password", …`."""
    left = _BEFORE.match(text[max(0, named.start - 64) : named.start][::-1])
    before = named.start - (left.end(1) if left is not None else 0)
    return named.closed in ("'", '"') and text[max(0, before - 1) : before] in ("'", '"')


def _is_table_cell(text: str, start: int) -> bool:
    return text[text.rfind("\n", max(0, start - 200), start) + 1 : start].lstrip().startswith("|")


def _is_env_assignment(text: str, named: AssignmentMatch) -> bool:
    """Return whether this is `NAME=value` as in shells, containers and properties files: no space around the sign."""
    if named.operator != "=" or named.words or text[named.end : named.end + 1].isspace():
        return False
    return _SETTING.match(text[max(0, named.start - 64) : named.end - 1][::-1]) is not None
