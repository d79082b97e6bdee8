"""Words that are treated apart: those that say nothing, and those that speak to the memory instead of about what is
in it."""

from __future__ import annotations


def listed(words: str) -> frozenset[str]:
    """A set that is written as a text."""
    return frozenset(words.split())


# Not indexed, not looked for.
STOP = listed(
    """
    a about am an and any are as at be been but by can could d did do does doing don for from had has have having he her
    hers him his how i if in into is it its just ll m me my not of on or our ours re s she so some t than that the their
    theirs them then there these they this to too us ve was we were what when where which while who whom whose why will
    with would you your yours
    """
)

# “Can you give me a summary of the different things I mentioned about …” is about what comes after it. These words
# count for less in a question; what share of a whole word is in `question.py`.
ASKING = listed(
    """
    according across after ask asked asking aspect aspects based before between bring brought chat chats clear
    comprehensive conversation conversations cover covered describe different discuss discussed discussing discussion
    discussions during ever explain first get give go going got happen happened help include including item items key
    kind know like list long made make many mention mentioned mentions much often only order overview please provide
    recall regarding related remember remind said say saying says session sessions show sort summarise summarize summary
    tell think thought throughout told type various want wanted way
    """
)

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
