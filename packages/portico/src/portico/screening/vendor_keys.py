"""Keys that carry their provider's mark: a prefix that the provider chose and a body of a known length, or a sign in
the middle or at the end.

The formats are data: `providers.json`, one row a format. Prefixes are looked for all at once; only where one is found
at the start of a word is its body compared. Bodies may be longer than documented today, because providers lengthen
them. `<word>` and the like stand for the character classes at the top of that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from portico.screening.entropy import entropy, stands_for, wordiness
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import pattern


class PrefixedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key that begins with one of the prefixes, which are separated by spaces."""

    name: str
    prefixes: str
    body: str
    confidence: float = 0.97


class ShapedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key with a sign in it, which must be in the text. `first` is the class of its first character."""

    name: str
    sign: str
    first: str
    rest: str


class _Formats(msgspec.Struct, frozen=True):
    classes: dict[str, str]
    prefixed: dict[str, list[PrefixedKey]]
    shaped: list[ShapedKey]


_FORMATS = msgspec.json.decode(Path(__file__).with_name("providers.json").read_bytes(), type=_Formats)
_ROWS = [row for rows in _FORMATS.prefixed.values() for row in rows]
PROVIDER_NAMES = {row.name for row in _ROWS} | {shape.name for shape in _FORMATS.shaped}


def _expanded(source: str) -> str:
    return re.sub("<([a-z0-9]+)>", lambda found: _FORMATS.classes[found[1]], source)


_BY_PREFIX: dict[str, list[tuple[PrefixedKey, re.Pattern[str]]]] = {}
for _row in _ROWS:
    _body = pattern(_expanded(_row.body))
    for _prefix in _row.prefixes.split():
        _BY_PREFIX.setdefault(_prefix, []).append((_row, _body))


def _branching(words: list[str]) -> str:
    """An alternation that shares beginnings, so that a place in the text is compared with one word and not with all."""
    if len(words) == 1:
        return re.escape(words[0])
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[:1], []).append(word[1:])
    branches = [re.escape(head) + _branching(tails) for head, tails in sorted(heads.items(), reverse=True) if head]
    # The empty tail comes last: the longest prefix wins.
    return f"(?:{'|'.join(branches + [''] * ('' in heads))})"


# At the start of a word: after a sign, a written newline (`\n`), a written equals sign (`%3D`), a terminal's colour.
_PREFIX = _branching(sorted(_BY_PREFIX))
_FIRST = pattern(_PREFIX)
_LATER = pattern(rf"[^0-9A-Za-z](?:(?<=\\)[nrt]|(?<=%)[0-9A-Fa-f]{{2}}|(?<=\[)[0-9;]{{1,8}}m)?({_PREFIX})")


def _whole(shape: ShapedKey) -> re.Pattern[str]:
    # The look-behind comes after the first character: the engine then skips quickly to the characters it can be.
    before = rf"(?:(?<!{shape.first}.)|(?<=\\[nrt].)|(?<=%[0-9A-F][0-9A-F].))"
    return pattern(_expanded(shape.first + before + shape.rest))


_SHAPES = [(shape.name, shape.sign, _whole(shape)) for shape in _FORMATS.shaped]


def provider_keys(text: str, start: int, end: int) -> Iterator[Finding]:
    """The prefixed keys in `text[start:end]`, a stretch without white space."""
    first = _FIRST.match(text, start, end)
    if first is not None:
        yield from _with_body(text, start, first.end(), end)
    for prefix in _LATER.finditer(text, start, end):
        yield from _with_body(text, *prefix.span(1), end)


def shaped_keys(text: str) -> Iterator[Finding]:
    for name, sign, whole in _SHAPES:
        if sign in text:
            for key in whole.finditer(text):
                if _looks_generated(key[0]):
                    yield Finding("secret", name, key.start(), key.end(), 0.95)


def _with_body(text: str, start: int, body_start: int, end: int) -> Iterator[Finding]:
    for row, body in _BY_PREFIX[text[start:body_start]]:
        rest = body.match(text, body_start, end)
        if rest is not None and _looks_generated(rest[0]):
            yield Finding("secret", row.name, start, rest.end(), row.confidence)
            return


def _looks_generated(body: str) -> bool:
    """False for a name that happens to begin with the prefix, and for the invented key of a manual."""
    if entropy(body) < 2.5 or stands_for(body):
        return False
    return sum(map(str.isdigit, body)) * 10 > len(body) or wordiness(body) < 0.85
