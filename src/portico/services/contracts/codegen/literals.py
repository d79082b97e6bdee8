"""Values as Python writes them, in the form that formatters leave alone."""

from __future__ import annotations

from typing import Any

INDENT = "    "


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
