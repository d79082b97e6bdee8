"""Heuristics for whether a string is random, a placeholder, or made of words.

Entropy alone does not distinguish a key from an identifier: `getUserAccountFromRequestToken` has more of it than most
passwords. Letter bigrams do: nine of ten bigrams in English and in code are among the 230 below; in random letters it
is one of three.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from math import log2

from portico.screening.lazy_patterns import lazy_pattern

# Each letter with its frequent successors.
_COMMON_BIGRAMS = """
    a:bcdgiklmnprstuvwxy b:aeilorsu c:aehiklorstu d:adeilosu e:acdefgilmnpqrstvwx f:aefiloru g:aehinrs h:aeiot
    i:abcdefglmnoprstvxz k:ei l:adeilostuy m:abeimopsu n:acdefgiknostuv o:abcdfgiklmnoprstuvw p:aehiloprstu q:u
    r:acdegilmnoprstuvy s:acehilopstuy t:acehilorstuy u:abceilmnprst v:aei w:aehio x:ept y:ps z:e
"""
_COMMON = frozenset(group[0] + second for group in _COMMON_BIGRAMS.split() for second in group[2:])

# Number of characters to examine; more add no information.
_MAX_SAMPLED_CHARS = 128

# Placeholder words, matched in lower case.
_PLACEHOLDER = lazy_pattern(
    r"""(?x)
      example | sample | dummy | placehold | redact | change[-_ ]?(?:me|this|it) | replace[-_ ]?(?:me|with|this)
    | insert[-_ ] | your(?: [-_ ] | api|key|token|secret|pass|own ) | my[-_](?:api|key|token|secret|pass)
    | [-_ ]here\b | fill[-_]?(?:me|in) | to-?do\b | fixme | fake[-_] | [-_]fake | not[-_ ]?a?[-_ ]?real | lorem | ipsum
    | x{4} | \.{3} | … | \*{3} | •{3} | -{6} | _{6} | \$\{ | \{\{ | \#\{
    """
)
# Shell and template syntax, matched against the whole value.
_VARIABLE = lazy_pattern(
    r"""(?x)
      <[^<>]{0,60}+> | \[[A-Za-z_ :-]{1,40}+\] | \$\(.{0,200}+ | %\(.{0,200}+ | \{[\w.]{0,40}+\} | %[A-Za-z_]{1,40}+% | %[sdrv]
    | \$(?:[A-Z_][A-Z0-9_]{0,60}+|[a-z_]{1,60}+) | @[A-Z_]{1,60}+@ | __[A-Z_]{1,60}?__
    """
)
_IN_ORDER = "0123456 1234567 abcdef 9876543 7654321 zyxwvu uvwxyz qwerty foobar deadbeef abc123 0000000"
_SEQUENCES = tuple(_IN_ORDER.split())


def shannon_entropy(value: str) -> float:
    """Return the Shannon entropy in bits per character."""
    size = len(value)
    return -sum(count / size * log2(count / size) for count in Counter(value).values()) if size else 0.0


def is_placeholder(value: str) -> bool:
    """Return whether a value is a placeholder, in words or in template syntax."""
    return _VARIABLE.fullmatch(value) is not None or _PLACEHOLDER.search(value[:_MAX_SAMPLED_CHARS].lower()) is not None


def is_fake_key(value: str) -> bool:
    """Return whether a value only imitates a key: `your-api-key-here`, `ghp_xxxxxxxx`, `sk-1234567890abcdef`."""
    if is_placeholder(value):
        return True
    low = value[:_MAX_SAMPLED_CHARS].lower()
    # Keys typed by hand follow the keyboard or the alphabet, or repeat a few characters.
    if any(run in low for run in _SEQUENCES) or len(set(low)) < min(6, len(low) / 3):
        return True
    return len(low) > 11 and max(Counter(low).values()) > len(low) * 0.4


def common_bigram_share(value: str) -> float:
    """Return the share of letter bigrams that are common in words; 0 without bigrams."""
    value = value[:_MAX_SAMPLED_CHARS]
    low = value.lower()
    # A lowercase-uppercase pair marks a word boundary and is not counted.
    pairs = [
        low[at : at + 2]
        for at in range(len(value) - 1)
        if low[at].isalpha() and low[at + 1].isalpha() and not (value[at].islower() and value[at + 1].isupper())
    ]
    return sum(pair in _COMMON for pair in pairs) / len(pairs) if pairs else 0.0


def _has_random_case(value: str) -> bool:
    """Return whether case changes as often as by chance; in names it changes once per word."""
    pairs = [(first, two) for first, two in pairwise(value) if first.isalpha() and two.isalpha()]
    return len(pairs) > 7 and sum(first.islower() != two.islower() for first, two in pairs) > 0.45 * len(pairs)


_HEX = lazy_pattern(r"[0-9a-f]++|[0-9A-F]++")
_UUID = lazy_pattern(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBER = lazy_pattern(r"[0-9][0-9.,:_\-/+TZ]*+")


def is_hex(value: str) -> bool:
    return _HEX.fullmatch(value) is not None


def is_uuid(value: str) -> bool:
    return _UUID.fullmatch(value) is not None


def is_numeric(value: str) -> bool:
    """Return whether a value is a number, version, date or time."""
    return _NUMBER.fullmatch(value) is not None


def is_random(value: str, min_length: int = 16, *, named: bool = False) -> bool:
    """Return whether a string of at least `min_length` characters looks generated. With `named`, its name indicates a
    secret, so it may look slightly more like words.
    """
    if len(value) < min_length or is_numeric(value):
        return False
    looked = value[:_MAX_SAMPLED_CHARS]
    # Sixteen symbols have at most four bits each, so the thresholds for other text do not apply.
    if is_hex(looked):
        letters = sum(map(str.isalpha, looked))
        return letters > len(looked) / 12 and shannon_entropy(looked) > 2.6 and not is_fake_key(value)
    if shannon_entropy(looked) < (3.0 if len(value) < 20 else 3.4):
        return False
    digits = sum(map(str.isdigit, looked))
    words = common_bigram_share(looked)
    # Without digits it must look very unlike words; with several digits it may look like words by chance.
    allowed = 0.45 if not digits else 0.62 if digits < len(looked) / 8 else 0.72
    return words < allowed + 0.12 * named + 0.2 * _has_random_case(looked) and not is_fake_key(value)
