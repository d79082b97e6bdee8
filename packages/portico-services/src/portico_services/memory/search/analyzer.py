"""Text analysis for the index: the terms of a memory and the flags of its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from portico.search import STOPWORDS, split_camel_case, stem, tokenize_words, word_set
from portico_services.memory.search.dates import MONTHS, WEEKDAYS, date_terms

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
# Terms among the first `HEAD_TERMS` words are marked in their postings and count for more.
HEAD_TERMS = 60
MAX_TERM_CHARS = 64
MAX_TERMS = 20_000


class AnalyzedText(Struct, frozen=True, gc=False):
    """Terms and flags of one text, as stored in the index."""

    # Term frequencies.
    terms: dict[str, int]
    # Terms near the beginning, because a text usually names its subject early.
    heads: set[str]
    length: int
    # Number of distinct content terms.
    substance: int
    # Bit mask of the flags defined below.
    flags: int


def analyze(text: str, at: int | None = None, labels: Iterable[str | None] = ()) -> AnalyzedText:
    """Return the terms and flags of a text written at `at` (milliseconds since the epoch).

    Code in fences is indexed, but its words do not count as the head of the text and set no flags. Labels (tags,
    source, path) count as if the text began with them.
    """
    plain = strip_code(text)
    lower = plain.lower()
    words = tokenize_words(lower)
    sequence = list(map(normalize_term, words))
    heads = set(sequence[:HEAD_TERMS])
    rest = split_camel_case(text)
    if len(plain) < len(text):
        rest = [*tokenize_words(" ".join(_CODE.findall(text)).lower()), *rest]
    if rest:
        sequence += map(normalize_term, rest)
    terms: dict[str, int] = {}
    for term in sequence:
        terms[term] = terms.get(term, 0) + 1
    # Stopwords normalize to the empty string; one removal is cheaper than a check for each word.
    terms.pop("", None)
    substance = len(terms)
    if substance > MAX_TERMS:
        # Truncate before adding the labels, whose order is undefined, so that a text always yields the same terms.
        terms = dict(list(terms.items())[:MAX_TERMS])
    for term in label_terms(labels):
        heads.add(term)
        terms[term] = terms.get(term, 0) + 1
    # Date terms are set, not added: a date counts once, however often the text repeats it.
    for term in map(stem, date_terms(lower, at)):
        heads.add(term)
        terms.setdefault(term, 1)
    return AnalyzedText(terms, heads, len(sequence), substance, text_flags(plain, lower, words))


def label_terms(labels: Iterable[str | None]) -> set[str]:
    """Return the terms of tags and file names: `user-auth`, `docs/adr/0007-storage.md`, `UserStore.java`."""
    text = " ".join(filter(None, labels))
    if not text:
        return set()
    return {term for word in (*tokenize_words(text.lower()), *split_camel_case(text)) if (term := normalize_term(word))}


def strip_code(text: str) -> str:
    """Return the text without fenced code blocks."""
    return _CODE.sub(" ", text) if "```" in text else text


@lru_cache(65536)
def normalize_term(word: str) -> str:
    """Return the index term of a word, or an empty string for a stopword."""
    return "" if word in STOPWORDS else stem(word[:MAX_TERM_CHARS])


# Flags of a text, one bit each.

IS_QUESTION = 1  # contains a question
FOLLOWS_QUESTION = 2  # the previous message of the thread contains a question
HAS_NUMBER = 4
HAS_TIME = 8  # mentions a time
FIRST_PERSON = 16  # I, my, we
SECOND_PERSON = 32  # you, your
HAS_NAMES = 64  # capitalized words inside sentences
IS_REPLY = 128  # begins like a reply: yes, thanks, hmm
IS_STANDING_INSTRUCTION = 256  # a standing instruction: always …, I prefer …, whenever I ask …

_SELF = word_set("i my me mine we our us")
_OTHER = word_set("you your yours")
_TIME = word_set("yesterday today tonight tomorrow last next ago week weekend month year recently since").union(
    MONTHS, WEEKDAYS
)
_REPLIES = word_set(
    """
    hmm ok okay yes yeah yep no nah sure thanks thank great wow that what how so absolutely definitely certainly sounds
    cool awesome agreed totally
    """
)
_REPLIES_OF_TWO = {("got", "it"), ("makes", "sense"), ("can", "you"), ("you", "re")}
_STANDING_FIRST = word_set("always never please whenever")
_STANDING = re.compile(r"^\s*(?:from now on|when i ask)\b|\bi prefer\b|\bwhen(?:ever)? i ask\b")
_STANDING_WORDS = word_set("prefer ask now")
_FLAG_BY_WORD = (
    dict.fromkeys(_TIME, HAS_TIME) | dict.fromkeys(_SELF, FIRST_PERSON) | dict.fromkeys(_OTHER, SECOND_PERSON)
)
_FLAG_WORDS = _STANDING_WORDS.union(_FLAG_BY_WORD)
# Both patterns start with a rare character and check the context with a lookbehind. Starting with the context would be
# slower, because it occurs everywhere.
_NAMES = re.compile(r" [A-Z](?<=[a-z,;] [A-Z])[a-z]")
_WHEN = re.compile(r"\d(?<=\b\d)(?:\d{3}\b|\d*(?:st|nd|rd|th)\b)")
_DIGIT, _ASCII_DIGIT = re.compile(r"\d"), re.compile("[0-9]")
# Flags are computed from the beginning of a long text only; the rest rarely changes them.
_MAX_FLAG_CHARS = 8000


def text_flags(plain: str, lower: str, words: list[str]) -> int:
    """Return the flags of a text without its code, given in original case, in lower case and as words."""
    telling = _FLAG_WORDS.intersection(words)
    flags = IS_QUESTION if "?" in plain else 0
    # `[0-9]` scans faster than `\d`, which also matches digits of other scripts.
    if number := (_ASCII_DIGIT if lower.isascii() else _DIGIT).search(lower):
        flags |= HAS_NUMBER
        if _WHEN.search(lower, number.start(), _MAX_FLAG_CHARS):
            flags |= HAS_TIME
    for word in telling:
        flags |= _FLAG_BY_WORD.get(word, 0)
    if _NAMES.search(plain, 0, _MAX_FLAG_CHARS):
        flags |= HAS_NAMES
    if words and (words[0] in _REPLIES or tuple(words[:2]) in _REPLIES_OF_TWO):
        flags |= IS_REPLY
    if words and (
        words[0] in _STANDING_FIRST
        or (not telling.isdisjoint(_STANDING_WORDS) and _STANDING.search(lower, 0, _MAX_FLAG_CHARS))
    ):
        flags |= IS_STANDING_INSTRUCTION
    return flags
