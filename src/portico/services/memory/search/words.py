"""Text to words: what the index holds of a memory, and what it is asked for.

User text is data here and never syntax: whatever it is, words come out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from portico.services.memory.search.dates import date_words
from portico.services.memory.search.stemming import stem
from portico.services.memory.search.text_flags import marks
from portico.services.memory.search.vocabulary import STOP

# A version number is one word; an underscore, a hyphen and an apostrophe part two.
_WORD = re.compile(r"\d+(?:\.\d+)+|[^\W_]+")
_HUMP = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}")
_HUMPED = re.compile(r"\b\w*(?:[a-z][A-Z]|[A-Z]{2}[a-z]{2})\w*")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
# Scripts that put no space between words: CJK and what belongs to it.
_UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
HEAD = 60
LONGEST = 64
MOST_TERMS = 20_000


class Reading(Struct, frozen=True):
    """What is known of a text once it was read."""

    # Each word of the index, and how often it is there.
    terms: dict[str, int]
    # Those that stand near the beginning: what a text is about is said early.
    heads: set[str]
    length: int
    # How many different words of content it has.
    substance: int
    marks: int


def read(text: str, at: int | None = None) -> Reading:
    """Code in fences is found by its words, but it neither begins a text nor tells what kind of text it is."""
    plain, code = prose(text), ""
    if len(plain) < len(text):
        code = " ".join(_CODE.findall(text))
    small = plain.lower()
    said = list(words(small))
    rest = [*words(code.lower()), *_humps(text)]
    terms: dict[str, int] = {}
    for word in (*said, *rest):
        term = term_of(word)
        if term:
            terms[term] = terms.get(term, 0) + 1
    substance = len(terms)
    heads = {term_of(word) for word in said[:HEAD]}
    for word in date_words(small, at):
        term = stem(word)
        heads.add(term)
        terms.setdefault(term, 1)
    if len(terms) > MOST_TERMS:
        terms = dict(list(terms.items())[:MOST_TERMS])
    return Reading(terms, heads, len(said) + len(rest), substance, marks(plain, small, said))


def prose(text: str) -> str:
    """Without what is code."""
    return _CODE.sub(" ", text)


def words(small: str) -> Iterator[str]:
    """The words of a text in small letters, in order."""
    if small.isascii():
        yield from _WORD.findall(small)
        return
    for word in _WORD.findall(small):
        yield from (word,) if word.isascii() else _plain(word)


@lru_cache(65536)
def term_of(word: str) -> str:
    """What the index has for a word; nothing for one that says nothing."""
    return "" if word in STOP else stem(word[:LONGEST])


def _plain(word: str) -> list[str]:
    """Without accents; where no spaces part the words, each two characters are one."""
    letters = unicodedata.normalize("NFKD", word).casefold()
    plain = unicodedata.normalize("NFC", "".join(one for one in letters if not unicodedata.combining(one)))
    if not _UNSPACED.search(plain):
        return _WORD.findall(plain)
    found = []
    for run in _UNSPACED.findall(plain):
        found += [run[n : n + 2] for n in range(max(1, len(run) - 1))]
    return found + _WORD.findall(_UNSPACED.sub(" ", plain))


def _humps(text: str) -> list[str]:
    """`user` and `name` of `getUserName`; the whole of it is a word already."""
    if not _HUMP.search(text):
        return []
    return [part.lower() for one in _HUMPED.findall(text) for part in _PARTS.findall(one)]
