"""Names for generated code, out of names that may be anything; and values as Python writes them."""

from __future__ import annotations

import re
from typing import Any

LONGEST = 80
INDENT = "    "


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


# Values, in the form that formatters leave alone


def text(value: str) -> str:
    """In double quotes, unless that takes more escapes than single ones would."""
    mark = "'" if value.count('"') > value.count("'") else '"'
    inner = ascii(value + "'\"")[1:-1]
    # Both kinds of quotes are in it, so Python has chosen single ones and escaped those alone.
    inner = inner.removesuffix("\\'\"").replace("\\'", "'")
    return f"{mark}{_escaped(inner, mark)}{mark}"


def _escaped(inner: str, mark: str) -> str:
    return inner.replace(mark, f"\\{mark}")


def literal(value: Any, depth: int = 0) -> str:
    """JSON as Python: one member on each line, with a comma behind the last."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict) and value:
        members = [f"{text(str(name))}: {literal(one, depth + 1)}" for name, one in value.items()]
        return _block("{", members, "}", depth)
    if isinstance(value, list) and value:
        return _block("[", [literal(one, depth + 1) for one in value], "]", depth)
    return ascii(value)


def _block(opening: str, members: list[str], closing: str, depth: int) -> str:
    inside = INDENT * (depth + 1)
    return opening + "\n" + "".join(f"{inside}{one},\n" for one in members) + INDENT * depth + closing
