"""A question, parsed: the terms to search for, and what kind of question it is."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from portico.extend import listed, stem, words
from portico_services.memory.search.analyzer import term_of
from portico_services.memory.search.dates import date_words, relative_words

LONGEST = 4000
MOST_TERMS = 40
# “Can you give me a summary of the different things I mentioned about …” is about what comes after it. These words
# count for less in a question.
ASKING = listed(
    """
    according across after ask asked asking aspect aspects based before between bring brought chat chats clear
    comprehensive conversation conversations cover covered describe different discuss discussed discussing discussion
    discussions during ever explain first get give go going got happen happened help include including item items key
    kind know like list long made make many mention mentioned mentions much often only order overview please provide
    recall regarding related remember remind said say saying says session sessions show sort summarise summarize summary
    tell think thought throughout told type use used uses using various want wanted way
    """
)
ASKING_SHARE = 0.3
# What is written as one word or as two: “how do we back up” asks for backups.
COMPOUNDS = listed(
    """
    backend backup changelog checkout database datastore filesystem frontend hotfix kickoff layout loadbalancer
    lockfile login logout logon monorepo offsite onboarding oncall payroll postmortem pullrequest ratelimit rollback
    rollout setup shutdown signin signup standup startup teardown timeout timezone webhook webserver website workaround
    workflow
    """
)

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


class Manner(NamedTuple):
    """What kind of question it is."""

    when: bool
    # About many things, or a long time.
    broad: bool
    # Asks for something to be done, rather than about the past.
    request: bool
    # About what the assistant said, rather than what the user did.
    of_assistant: bool


class Question(Struct, frozen=True):
    # Each term, and its weight.
    terms: dict[str, float]
    # Each term as it is written in the question, to explain a result.
    written: dict[str, str]
    # Words that may be a person's name, and whether they have a capital letter.
    names: dict[str, bool]
    manner: Manner


def terms_of(text: str) -> dict[str, float]:
    """The terms to search for, each with its weight."""
    return _words(text[:LONGEST].lower().strip(), None)[0]


def ask(text: str, now: int | None = None) -> Question:
    """Parse a question. `now` is what “yesterday” is relative to."""
    lower = text[:LONGEST].lower().strip()
    terms, written, content_words = _words(lower, now)
    # The first word always has a capital letter.
    capitals = {word for one in _WORD.findall(text[:LONGEST])[1:] if one[0].isupper() for word in words(one.lower())}
    names = {word: word in capitals for word in content_words}
    broad, of_assistant = bool(_BROAD.search(lower)), bool(_OF_ASSISTANT.search(lower))
    # “Can you list …” and “what did you recommend” ask about the past.
    request = not broad and not of_assistant and bool(_REQUEST.search(lower))
    return Question(terms, written, names, Manner(bool(_WHEN.search(lower)), broad, request, of_assistant))


def _words(lower: str, now: int | None) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """The terms with their weights, how each is written, and all words that are not stop words."""
    terms: dict[str, float] = {}
    written: dict[str, str] = {}
    content_words = []
    spoken = words(lower)
    for word in dict.fromkeys(spoken):
        term = term_of(word)
        if not term:
            continue
        share = ASKING_SHARE if word in ASKING else 1.0
        terms[term] = max(share, terms.get(term, 0.0))
        written.setdefault(term, word)
        content_words.append(word)
        if len(terms) == MOST_TERMS:
            break
    for word in sorted(COMPOUNDS.intersection(map(str.__add__, spoken, spoken[1:]))):
        terms[term_of(word)] = 1.0
        written.setdefault(term_of(word), word)
    days = date_words(lower)
    if now is not None:
        days |= relative_words(lower, now)
    for day in sorted(days):
        term = stem(day)
        terms[term] = 1.0
        written.setdefault(term, day.lstrip("@"))
    return terms, written, content_words
