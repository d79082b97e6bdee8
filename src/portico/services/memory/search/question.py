"""What is asked: the words to look for, and what kind of question it is."""

from __future__ import annotations

import re

from msgspec import Struct

from portico.services.memory.search.dates import date_words, relative_words
from portico.services.memory.search.stemming import stem
from portico.services.memory.search.vocabulary import ASKING
from portico.services.memory.search.words import term_of, words

LONGEST = 4000
MOST_TERMS = 40
# What a word that speaks to the memory counts for.
ASKING_SHARE = 0.3

_WORD = re.compile(r"[^\W_]+")
_WHEN = re.compile(r"\bwhen\b|\bwhat (?:date|day|month|year)\b|\bhow long\b")
_BROAD = re.compile(
    r"\b(?:summar\w+|overview|throughout|progress\w*|evolved?|developed|over time|across|in order|the order|everything"
    r"|comprehensive|all the|journey)\b"
)
_REQUEST = re.compile(
    r"^(?:can|could|would|will) you\b|^how (?:can|should|do|would|could) i\b"
    r"|^what .{0,200}(?:should i|would you|do you (?:suggest|recommend))"
    r"|\b(?:help me|show me|walk me|explain|recommend|suggest)\b|^i'm (?:planning|updating|trying|looking|working)"
    r"|^if i\b|should i"
)
_OF_ASSISTANT = re.compile(
    r"\b(?:you (?:recommend|suggest|advise|tell|told|say|said|mention|give|gave|explain|provide)\w*"
    r"|your (?:advice|suggestion|recommendation)|did you)\b"
)


class Question(Struct, frozen=True):
    # Each word of the index, and what it counts for.
    terms: dict[str, float]
    # As it was written, for those who want to know why something was found.
    written: dict[str, str]
    # Words that may be the name of somebody, and whether they are written as one.
    names: dict[str, bool]
    when: bool
    # About many things, or a long time.
    broad: bool
    # Wants something done, rather than to know what was.
    request: bool
    # About what the assistant said, rather than what the user did.
    of_assistant: bool


def terms_of(text: str) -> dict[str, float]:
    """Only the words to look for."""
    return _words(text[:LONGEST].lower().strip(), None)[0]


def ask(text: str, now: int | None = None) -> Question:
    """`now` is what “yesterday” counts from."""
    small = text[:LONGEST].lower().strip()
    terms, written, said = _words(small, now)
    # The first word has a capital letter whatever it is.
    capitals = {word for one in _WORD.findall(text[:LONGEST])[1:] if one[0].isupper() for word in words(one.lower())}
    names = {word: word in capitals for word in said}
    broad, of_assistant = bool(_BROAD.search(small)), bool(_OF_ASSISTANT.search(small))
    return Question(
        terms,
        written,
        names,
        when=bool(_WHEN.search(small)),
        broad=broad,
        # “Can you list …” and “what did you recommend” want to know what was.
        request=not broad and not of_assistant and bool(_REQUEST.search(small)),
        of_assistant=of_assistant,
    )


def _words(small: str, now: int | None) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """The words of the index and what each counts for; how each is written; and all that say something."""
    terms: dict[str, float] = {}
    written: dict[str, str] = {}
    said = []
    for word in dict.fromkeys(words(small)):
        term = term_of(word)
        if not term:
            continue
        share = ASKING_SHARE if word in ASKING else 1.0
        terms[term] = max(share, terms.get(term, 0.0))
        written.setdefault(term, word)
        said.append(word)
        if len(terms) == MOST_TERMS:
            break
    days = date_words(small)
    if now is not None:
        days |= relative_words(small, now)
    for day in sorted(days):
        term = stem(day)
        terms[term] = 1.0
        written.setdefault(term, day.lstrip("@"))
    return terms, written, said
