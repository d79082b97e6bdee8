"""Query parsing: the terms to search for and the intent of the query."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from portico.search import stem, tokenize_words, word_set
from portico_services.memory.search.analyzer import normalize_term
from portico_services.memory.search.dates import date_terms, relative_date_terms

# A longer query is pasted text; its first 4,000 characters hold far more terms than are used. The limits bound the
# number of index lookups and the width of the bit masks of a search.
MAX_QUERY_CHARS = 4000
MAX_QUERY_TERMS = 40
# “Can you give me a summary of the different things I mentioned about …”: the subject comes after these words. They
# have a lower weight in a query.
LOW_SIGNAL_WORDS = word_set(
    """
    according across after ask asked asking aspect aspects based before between bring brought chat chats clear
    comprehensive conversation conversations cover covered describe different discuss discussed discussing discussion
    discussions during ever explain first get give go going got happen happened help include including item items key
    kind know like list long made make many mention mentioned mentions much often only order overview please provide
    recall regarding related remember remind said say saying says session sessions show sort summarise summarize summary
    tell think thought throughout told type use used uses using various want wanted way
    """
)
# Not zero: “summary” or “order” may be the subject of a query after all.
LOW_SIGNAL_WEIGHT = 0.3
# Compounds written as one word or as two: “how do we back up” searches for backups.
COMPOUNDS = word_set(
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
_ABOUT_ASSISTANT = re.compile(
    r"\b(?:you (?:recommend|suggest|advise|tell|told|say|said|mention|give|gave|explain|provide)\w*"
    r"|your (?:advice|suggestion|recommendation)|did you)\b"
)


class QueryIntent(NamedTuple):
    """Intent of a query."""

    asks_when: bool
    # Covers many things or a long period.
    is_broad: bool
    # Requests an action instead of asking about the past.
    is_request: bool
    # Asks about statements of the assistant instead of the user.
    about_assistant: bool


class ParsedQuery(Struct, frozen=True):
    """Parsed query."""

    # Query terms with their weights.
    terms: dict[str, float]
    # The original spelling of each term, used to explain a result.
    spellings: dict[str, str]
    # Words that may be a person's name, and whether they are capitalized.
    names: dict[str, bool]
    intent: QueryIntent


def query_terms(text: str) -> dict[str, float]:
    """Return the query terms with their weights."""
    return _weighted_terms(text[:MAX_QUERY_CHARS].lower().strip(), None)[0]


def parse_query(text: str, now: int | None = None) -> ParsedQuery:
    """Parse a query. Relative dates such as “yesterday” are resolved against `now`."""
    lower = text[:MAX_QUERY_CHARS].lower().strip()
    terms, spellings, content_words = _weighted_terms(lower, now)
    # Skip the first word, which is always capitalized.
    capitals = {
        word
        for item in _WORD.findall(text[:MAX_QUERY_CHARS])[1:]
        if item[0].isupper()
        for word in tokenize_words(item.lower())
    }
    names = {word: word in capitals for word in content_words}
    broad, of_assistant = bool(_BROAD.search(lower)), bool(_ABOUT_ASSISTANT.search(lower))
    # “Can you list …” and “what did you recommend” ask about the past.
    request = not broad and not of_assistant and bool(_REQUEST.search(lower))
    return ParsedQuery(terms, spellings, names, QueryIntent(bool(_WHEN.search(lower)), broad, request, of_assistant))


def _weighted_terms(lower: str, now: int | None) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """Return the terms with their weights, the original spelling of each, and all words that are not stopwords."""
    terms: dict[str, float] = {}
    spellings: dict[str, str] = {}
    content_words = []
    spoken = tokenize_words(lower)
    for word in dict.fromkeys(spoken):
        term = normalize_term(word)
        if not term:
            continue
        share = LOW_SIGNAL_WEIGHT if word in LOW_SIGNAL_WORDS else 1.0
        terms[term] = max(share, terms.get(term, 0.0))
        spellings.setdefault(term, word)
        content_words.append(word)
        if len(terms) == MAX_QUERY_TERMS:
            break
    # Sorted, because the order of the terms decides their bits and must not depend on the hash seed.
    for word in sorted(COMPOUNDS.intersection(map(str.__add__, spoken, spoken[1:]))):
        terms[normalize_term(word)] = 1.0
        spellings.setdefault(normalize_term(word), word)
    days = date_terms(lower)
    if now is not None:
        days |= relative_date_terms(lower, now)
    for day in sorted(days):
        term = stem(day)
        terms[term] = 1.0
        spellings.setdefault(term, day.lstrip("@"))
    return terms, spellings, content_words
