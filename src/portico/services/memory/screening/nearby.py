"""What is said just before a number, and whether it tells what the number is."""

from __future__ import annotations

import string

# How far before a number a word still tells what it is.
NEAR = 48

_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation, " "))

# Before these stand numbers of things.
_OF_THINGS = """
    order orders ticket invoice inv part sku ref reference case serial version build isbn issn tracking batch lot model
    item product article asset job run commit pr issue bug rfc page line port pid sample event transaction txn request
    rev revision upc ean asin po customer account process thread seq sequence offset error code status size bytes
    timestamp
"""
_THINGS = frozenset(_OF_THINGS.split())
_NUMBER = frozenset(("no", "nr", "number", "num", "id", "code"))


def said_before(lower: str, start: int) -> str:
    """The words before a place, with single signs as spaces and a space in front; a blank line ends what is said."""
    said = lower[max(0, start - NEAR) : start]
    return " " + said[said.rfind("\n\n") + 1 :].translate(_TO_SPACE)


def is_of_a_thing(said: str) -> bool:
    words = said.rsplit(None, 2)[-2:]
    if not words:
        return False
    return words[-1] in _THINGS or (words[-1] in _NUMBER and words[0] in _THINGS)
