"""Names for generated code, out of names that may be anything."""

from __future__ import annotations

import re

LONGEST = 80


def pieces(text: str) -> list[str]:
    """The words of a name: `placeOrder`, `place_order` and `place-order` have the same."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text[:LONGEST])
    return [word for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def pascal(text: str) -> str:
    found = "".join(word[:1].upper() + word[1:] for word in pieces(text))
    return found if found[:1].isalpha() else f"T{found}"


def camel(text: str) -> str:
    found = pascal(text)
    return found[:1].lower() + found[1:]


def snake(text: str) -> str:
    found = "_".join(word.lower() for word in pieces(text))
    return found if found[:1].isalpha() else f"t_{found}".rstrip("_")


def unique(wanted: str, taken: set[str]) -> str:
    """The name, or with a number behind it; it is taken then."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}{number}"
    taken.add(name)
    return name
