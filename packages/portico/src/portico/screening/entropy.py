"""Whether a string is random, a placeholder, or made of words.

Entropy alone does not tell a key from an identifier: `getUserAccountFromRequestToken` has more of it than most
passwords. What tells them apart is which letters follow each other. Nine in ten pairs of neighbouring letters in
English and in code are among the 230 below; in random letters it is one in three.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from math import log2

from portico.screening.lazy_patterns import pattern

# A letter, and those that often follow it.
_PAIRS = """
    a:bcdgiklmnprstuvwxy b:aeilorsu c:aehiklorstu d:adeilosu e:acdefgilmnpqrstvwx f:aefiloru g:aehinrs h:aeiot
    i:abcdefglmnoprstvxz k:ei l:adeilostuy m:abeimopsu n:acdefgiknostuv o:abcdfgiklmnoprstuvw p:aehiloprstu q:u
    r:acdegilmnoprstuvy s:acehilopstuy t:acehilorstuy u:abceilmnprst v:aei w:aehio x:ept y:ps z:e
"""
_COMMON = frozenset(group[0] + second for group in _PAIRS.split() for second in group[2:])

# So much of a value is examined: the rest says nothing new.
_ENOUGH = 128

# In words, looked for in small letters.
_PLACEHOLDER = pattern(
    r"""(?x)
      example | sample | dummy | placehold | redact | change[-_ ]?(?:me|this|it) | replace[-_ ]?(?:me|with|this)
    | insert[-_ ] | your(?: [-_ ] | api|key|token|secret|pass|own ) | my[-_](?:api|key|token|secret|pass)
    | [-_ ]here\b | fill[-_]?(?:me|in) | to-?do\b | fixme | fake[-_] | [-_]fake | not[-_ ]?a?[-_ ]?real | lorem | ipsum
    | x{4} | \.{3} | … | \*{3} | •{3} | -{6} | _{6} | \$\{ | \{\{ | \#\{
    """
)
# In the syntax of shells and templates, the whole of it.
_VARIABLE = pattern(
    r"""(?x)
      <[^<>]{0,60}+> | \[[A-Za-z_ :-]{1,40}+\] | \$\(.{0,200}+ | %\(.{0,200}+ | \{[\w.]{0,40}+\} | %[A-Za-z_]{1,40}+% | %[sdrv]
    | \$(?:[A-Z_][A-Z0-9_]{0,60}+|[a-z_]{1,60}+) | @[A-Z_]{1,60}+@ | __[A-Z_]{1,60}?__
    """
)
_IN_ORDER = "0123456 1234567 abcdef 9876543 7654321 zyxwvu uvwxyz qwerty foobar deadbeef abc123 0000000"
_RUNS = tuple(_IN_ORDER.split())


def entropy(value: str) -> float:
    """Bits for each character, as Shannon counts them."""
    size = len(value)
    return -sum(count / size * log2(count / size) for count in Counter(value).values()) if size else 0.0


def is_placeholder(value: str) -> bool:
    """Whether it says in words, or in the syntax of templates, that a value is to be put here."""
    return _VARIABLE.fullmatch(value) is not None or _PLACEHOLDER.search(value[:_ENOUGH].lower()) is not None


def stands_for(value: str) -> bool:
    """Whether a person made this up to look like a key: `your-api-key-here`, `ghp_xxxxxxxx`, `sk-1234567890abcdef`."""
    if is_placeholder(value):
        return True
    low = value[:_ENOUGH].lower()
    if any(run in low for run in _RUNS) or len(set(low)) < min(6, len(low) / 3):
        return True
    return len(low) > 11 and max(Counter(low).values()) > len(low) * 0.4


def wordiness(value: str) -> float:
    """The share of neighbouring letters that words have side by side; 0 if there are none."""
    value = value[:_ENOUGH]
    low = value.lower()
    # From a small letter to a capital one begins a word, and such a pair says nothing.
    pairs = [
        low[at : at + 2]
        for at in range(len(value) - 1)
        if low[at].isalpha() and low[at + 1].isalpha() and not (value[at].islower() and value[at + 1].isupper())
    ]
    return sum(pair in _COMMON for pair in pairs) / len(pairs) if pairs else 0.0


def _alternates(value: str) -> bool:
    """Whether small letters and capitals alternate as often as by chance; in names they do so once a word."""
    pairs = [(one, two) for one, two in pairwise(value) if one.isalpha() and two.isalpha()]
    return len(pairs) > 7 and sum(one.islower() != two.islower() for one, two in pairs) > 0.45 * len(pairs)


_HEX = pattern(r"[0-9a-f]++|[0-9A-F]++")
_UUID = pattern(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBER = pattern(r"[0-9][0-9.,:_\-/+TZ]*+")


def is_hex(value: str) -> bool:
    return _HEX.fullmatch(value) is not None


def is_uuid(value: str) -> bool:
    return _UUID.fullmatch(value) is not None


def is_number(value: str) -> bool:
    """Numbers, versions, dates and times."""
    return _NUMBER.fullmatch(value) is not None


def is_random(value: str, least: int = 16, *, named: bool = False) -> bool:
    """Whether a string of at least `least` characters looks generated rather than written. With `named`, where its name
    says that it is a secret, it may look a little more like words."""
    if len(value) < least or is_number(value):
        return False
    looked = value[:_ENOUGH]
    if is_hex(looked):
        letters = sum(map(str.isalpha, looked))
        return letters > len(looked) / 12 and entropy(looked) > 2.6 and not stands_for(value)
    if entropy(looked) < (3.0 if len(value) < 20 else 3.4):
        return False
    digits = sum(map(str.isdigit, looked))
    words = wordiness(looked)
    # Without a digit it must look very little like words; with several it may by chance.
    allowed = 0.45 if not digits else 0.62 if digits < len(looked) / 8 else 0.72
    return words < allowed + 0.12 * named + 0.2 * _alternates(looked) and not stands_for(value)
