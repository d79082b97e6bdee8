"""The terms of a memory: what the index holds of its text."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from portico.services.memory.search.dates import date_words
from portico.services.memory.search.text_flags import text_flags
from portico.services.words import STOP, camel_parts, stem, words

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
HEAD = 60
LONGEST = 64
MOST_TERMS = 20_000


class TextTerms(Struct, frozen=True):
    # Each term of the text, and how often it occurs.
    terms: dict[str, int]
    # The terms near the beginning: what a text is about is said early.
    heads: set[str]
    length: int
    # How many different words of content there are.
    substance: int
    # The bits of `text_flags.py`.
    flags: int


def read(text: str, at: int | None = None) -> TextTerms:
    """The terms of a text that was written at a moment, in milliseconds. Code in fences is found by its words, but it
    neither begins a text nor sets a flag."""
    plain, code = prose(text), ""
    if len(plain) < len(text):
        code = " ".join(_CODE.findall(text))
    lower = plain.lower()
    spoken = list(words(lower))
    rest = [*words(code.lower()), *camel_parts(text)]
    terms: dict[str, int] = {}
    for word in (*spoken, *rest):
        term = term_of(word)
        if term:
            terms[term] = terms.get(term, 0) + 1
    substance = len(terms)
    heads = {term_of(word) for word in spoken[:HEAD]}
    for word in date_words(lower, at):
        term = stem(word)
        heads.add(term)
        terms.setdefault(term, 1)
    if len(terms) > MOST_TERMS:
        terms = dict(list(terms.items())[:MOST_TERMS])
    return TextTerms(terms, heads, len(spoken) + len(rest), substance, text_flags(plain, lower, spoken))


def prose(text: str) -> str:
    """The text without its code."""
    return _CODE.sub(" ", text)


@lru_cache(65536)
def term_of(word: str) -> str:
    """The term of a word in the index; empty for one that is not indexed."""
    return "" if word in STOP else stem(word[:LONGEST])
