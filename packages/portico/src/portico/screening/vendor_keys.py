"""Detection of vendor keys by a known prefix and body length, or a marker in the middle or at the end.

The formats are data: `providers.json`, one row per format. All prefixes are searched in one pass; the body is compared
only after a prefix at the start of a word. Bodies may be longer than documented, because vendors lengthen them.
`<word>` and similar are the character classes defined at the top of that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from portico.screening.entropy import common_bigram_share, is_fake_key, shannon_entropy
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import lazy_pattern


class PrefixKeyFormat(msgspec.Struct, frozen=True, array_like=True):
    """Key with one of several prefixes, separated by spaces."""

    name: str
    prefixes: str
    body: str
    confidence: float = 0.97


class InfixKeyFormat(msgspec.Struct, frozen=True, array_like=True):
    """Key with a marker that must be in the text. `first` is the class of its first character."""

    name: str
    infix: str
    first: str
    rest: str


class _KeyFormats(msgspec.Struct, frozen=True):
    classes: dict[str, str]
    prefixed: dict[str, list[PrefixKeyFormat]]
    shaped: list[InfixKeyFormat]


_FORMATS = msgspec.json.decode(Path(__file__).with_name("providers.json").read_bytes(), type=_KeyFormats)
_ROWS = [row for rows in _FORMATS.prefixed.values() for row in rows]
VENDOR_KEY_NAMES = {row.name for row in _ROWS} | {shape.name for shape in _FORMATS.shaped}


def _expand_classes(source: str) -> str:
    return re.sub("<([a-z0-9]+)>", lambda match: _FORMATS.classes[match[1]], source)


_BY_PREFIX: dict[str, list[tuple[PrefixKeyFormat, re.Pattern[str]]]] = {}
for _row in _ROWS:
    _body = lazy_pattern(_expand_classes(_row.body))
    for _prefix in _row.prefixes.split():
        _BY_PREFIX.setdefault(_prefix, []).append((_row, _body))


def _trie_regex(words: list[str]) -> str:
    """Return an alternation that shares prefixes, so that each position is compared with one word rather than all."""
    if len(words) == 1:
        return re.escape(words[0])
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[:1], []).append(word[1:])
    # Sorted and reversed, so that longer prefixes are tried before their beginnings.
    branches = [re.escape(head) + _trie_regex(tails) for head, tails in sorted(heads.items(), reverse=True) if head]
    # The empty tail comes last: the longest prefix wins.
    return f"(?:{'|'.join(branches + [''] * ('' in heads))})"


# At the start of a word: after punctuation, an escaped newline (`\n`), an escaped equals sign (`%3D`) or a terminal
# color code.
_PREFIX = _trie_regex(sorted(_BY_PREFIX))
_FIRST = lazy_pattern(_PREFIX)
_LATER = lazy_pattern(rf"[^0-9A-Za-z](?:(?<=\\)[nrt]|(?<=%)[0-9A-Fa-f]{{2}}|(?<=\[)[0-9;]{{1,8}}m)?({_PREFIX})")


def _infix_pattern(shape: InfixKeyFormat) -> re.Pattern[str]:
    # The lookbehind follows the first character, so that the engine can skip quickly to candidates.
    before = rf"(?:(?<!{shape.first}.)|(?<=\\[nrt].)|(?<=%[0-9A-F][0-9A-F].))"
    return lazy_pattern(_expand_classes(shape.first + before + shape.rest))


_SHAPES = [(shape.name, shape.infix, _infix_pattern(shape)) for shape in _FORMATS.shaped]


def find_prefixed_keys(text: str, start: int, end: int) -> Iterator[Finding]:
    """Yield the prefixed keys in `text[start:end]`, a run without white space."""
    first = _FIRST.match(text, start, end)
    if first is not None:
        yield from _with_body(text, start, first.end(), end)
    for prefix in _LATER.finditer(text, start, end):
        yield from _with_body(text, *prefix.span(1), end)


def find_infix_keys(text: str) -> Iterator[Finding]:
    for name, sign, pattern in _SHAPES:
        if sign in text:
            for key in pattern.finditer(text):
                if _looks_generated(key[0]):
                    yield Finding("secret", name, key.start(), key.end(), 0.95)


def _with_body(text: str, start: int, body_start: int, end: int) -> Iterator[Finding]:
    for row, body in _BY_PREFIX[text[start:body_start]]:
        rest = body.match(text, body_start, end)
        if rest is not None and _looks_generated(rest[0]):
            # The first format that matches names the key; the file decides the order of formats with the same prefix.
            yield Finding("secret", row.name, start, rest.end(), row.confidence)
            return


def _looks_generated(body: str) -> bool:
    """Return False for a name that happens to begin with the prefix, and for a made-up key."""
    if shannon_entropy(body) < 2.5 or is_fake_key(body):
        return False
    return sum(map(str.isdigit, body)) * 10 > len(body) or common_bigram_share(body) < 0.85
