"""Flags of a text, one bit each, computed once when a memory is indexed."""

from __future__ import annotations

import re

from portico.services.memory.search.dates import MONTHS, WEEKDAYS
from portico.services.words import listed

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
_NAMES = re.compile(r"[a-z,;] [A-Z][a-z]")
_WHEN = re.compile(r"\b\d{4}\b|\b\d+(?:st|nd|rd|th)\b")
_DIGIT = re.compile(r"\d")
# The rest of a long text is of the same kind.
_ENOUGH = 8000


def text_flags(plain: str, lower: str, words: list[str]) -> int:
    """The flags of a text without its code, given also in lower case and as words."""
    different = set(words)
    flags = QUESTION if "?" in plain else 0
    if _DIGIT.search(lower):
        flags |= NUMBER
        if _WHEN.search(lower, 0, _ENOUGH):
            flags |= TIME
    for flag, any_of in ((TIME, _TIME), (SPEAKS_OF_SELF, _SELF), (SPEAKS_TO_OTHER, _OTHER)):
        if not different.isdisjoint(any_of):
            flags |= flag
    if _NAMES.search(plain, 0, _ENOUGH):
        flags |= NAMES
    if words and (words[0] in _REPLIES or tuple(words[:2]) in _REPLIES_OF_TWO):
        flags |= REPLIES
    if words and (words[0] in _STANDING_FIRST or (different & _STANDING_WORDS and _STANDING.search(lower, 0, _ENOUGH))):
        flags |= STANDING
    return flags
