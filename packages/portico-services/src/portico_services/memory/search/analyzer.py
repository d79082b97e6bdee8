"""The terms of a memory, and the flags of its text: what the index holds of it, computed once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from portico.extend import STOP, camel_parts, listed, stem, words
from portico_services.memory.search.dates import MONTHS, WEEKDAYS, date_words

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
HEAD = 60
LONGEST = 64
MOST_TERMS = 20_000


class TextTerms(Struct, frozen=True, gc=False):
    # Each term of the text, and how often it occurs.
    terms: dict[str, int]
    # The terms near the beginning: what a text is about is said early.
    heads: set[str]
    length: int
    # How many different words of content there are.
    substance: int
    # The bits below.
    flags: int


def read(text: str, at: int | None = None, labels: Iterable[str | None] = ()) -> TextTerms:
    """The terms of a text that was written at a moment, in milliseconds. Code in fences is found by its words, but it
    neither begins a text nor sets a flag. A label is a tag, or where the text comes from; its words count as if the
    text began with them."""
    plain = prose(text)
    lower = plain.lower()
    spoken = words(lower)
    said = list(map(term_of, spoken))
    heads = set(said[:HEAD])
    rest = camel_parts(text)
    if len(plain) < len(text):
        rest = [*words(" ".join(_CODE.findall(text)).lower()), *rest]
    if rest:
        said += map(term_of, rest)
    terms: dict[str, int] = {}
    for term in said:
        terms[term] = terms.get(term, 0) + 1
    terms.pop("", None)
    substance = len(terms)
    if substance > MOST_TERMS:
        # Before the labels, which come in no order: a text has the same terms each time it is read.
        terms = dict(list(terms.items())[:MOST_TERMS])
    for term in label_terms(labels):
        heads.add(term)
        terms[term] = terms.get(term, 0) + 1
    for term in map(stem, date_words(lower, at)):
        heads.add(term)
        terms.setdefault(term, 1)
    return TextTerms(terms, heads, len(said), substance, text_flags(plain, lower, spoken))


def label_terms(labels: Iterable[str | None]) -> set[str]:
    """The terms of tags and of names of files: `user-auth`, `docs/adr/0007-storage.md`, `UserStore.java`."""
    said = " ".join(filter(None, labels))
    if not said:
        return set()
    return {term for word in (*words(said.lower()), *camel_parts(said)) if (term := term_of(word))}


def prose(text: str) -> str:
    """The text without its code."""
    return _CODE.sub(" ", text) if "```" in text else text


@lru_cache(65536)
def term_of(word: str) -> str:
    """The term of a word in the index; empty for one that is not indexed."""
    return "" if word in STOP else stem(word[:LONGEST])


# Flags of a text, one bit each

QUESTION = 1  # asks something
AFTER_QUESTION = 2  # what came before it in the thread asks something
NUMBER = 4
TIME = 8  # says when
SPEAKS_OF_SELF = 16  # I, my, we
SPEAKS_TO_OTHER = 32  # you, your
NAMES = 64  # words with a capital letter inside of sentences
REPLIES = 128  # begins as an answer to what was said: yes, thanks, hmm
STANDING = 256  # a wish for all time: always …, I prefer …, whenever I ask …

_SELF = listed("i my me mine we our us")
_OTHER = listed("you your yours")
_TIME = listed("yesterday today tonight tomorrow last next ago week weekend month year recently since").union(
    MONTHS, WEEKDAYS
)
_REPLIES = listed(
    """
    hmm ok okay yes yeah yep no nah sure thanks thank great wow that what how so absolutely definitely certainly sounds
    cool awesome agreed totally
    """
)
_REPLIES_OF_TWO = {("got", "it"), ("makes", "sense"), ("can", "you"), ("you", "re")}
_STANDING_FIRST = listed("always never please whenever")
_STANDING = re.compile(r"^\s*(?:from now on|when i ask)\b|\bi prefer\b|\bwhen(?:ever)? i ask\b")
_STANDING_WORDS = listed("prefer ask now")
_OF_WORD = dict.fromkeys(_TIME, TIME) | dict.fromkeys(_SELF, SPEAKS_OF_SELF) | dict.fromkeys(_OTHER, SPEAKS_TO_OTHER)
_TELLING = _STANDING_WORDS.union(_OF_WORD)
# A look back is quicker than to begin with what is found everywhere.
_NAMES = re.compile(r" [A-Z](?<=[a-z,;] [A-Z])[a-z]")
_WHEN = re.compile(r"\d(?<=\b\d)(?:\d{3}\b|\d*(?:st|nd|rd|th)\b)")
_DIGIT, _ASCII_DIGIT = re.compile(r"\d"), re.compile("[0-9]")
# The rest of a long text is of the same kind.
_ENOUGH = 8000


def text_flags(plain: str, lower: str, spoken: list[str]) -> int:
    """The flags of a text without its code, given also in lower case and as words."""
    telling = _TELLING.intersection(spoken)
    flags = QUESTION if "?" in plain else 0
    if number := (_ASCII_DIGIT if lower.isascii() else _DIGIT).search(lower):
        flags |= NUMBER
        if _WHEN.search(lower, number.start(), _ENOUGH):
            flags |= TIME
    for word in telling:
        flags |= _OF_WORD.get(word, 0)
    if _NAMES.search(plain, 0, _ENOUGH):
        flags |= NAMES
    if spoken and (spoken[0] in _REPLIES or tuple(spoken[:2]) in _REPLIES_OF_TWO):
        flags |= REPLIES
    if spoken and (
        spoken[0] in _STANDING_FIRST
        or (not telling.isdisjoint(_STANDING_WORDS) and _STANDING.search(lower, 0, _ENOUGH))
    ):
        flags |= STANDING
    return flags
