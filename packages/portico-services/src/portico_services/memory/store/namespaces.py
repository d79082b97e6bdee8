"""What memories are about: the namespaces, the domains they belong to, and the states they can be in."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from portico_services.memory.errors import InvalidInput, UnknownNamespace


class Namespace(Struct, frozen=True):
    name: str
    about: str
    # Words that hint at it. They only suggest it.
    signals: tuple[str, ...]
    writable: bool = True


# The name, what it is for, and its signals.
_TABLE = """
decisions | choices that were made, and why | decided; decision; we will; chose; going with; instead of; use
patterns | ways of doing things that recur | pattern; always; never; convention; whenever; prefer
learnings | what was found out, often the hard way | learned; turns out; discovered; realised; til; gotcha
context | what is around: people, goals, background | background; context; stakeholder; goal; customer; team
tech-debt | what should be done properly one day | todo; fixme; hack; workaround; debt; temporary; refactor
blockers | what is in the way | blocked; blocker; waiting for; cannot; stuck; depends on
progress | what has been done, and what is next | done; finished; completed; next; milestone; shipped
apis | interfaces: endpoints, signatures, formats | api; endpoint; request; response; schema; signature
config | settings and environments | config; setting; environment; variable; flag; port
security | threats, permissions, findings | security; vulnerability; permission; auth; token; cve
performance | measurements and what was done about them | slow; fast; latency; benchmark; memory; cache; throughput
testing | tests and how to run them | test; pytest; coverage; fixture; mock; flaky
prompts | texts for models | prompt; template
"""
_ROWS = [line.split(" | ") for line in _TABLE.strip().splitlines()]
_ALL = (
    *(Namespace(name, about, tuple(signals.split("; "))) for name, about, signals in _ROWS),
    Namespace("help", "how to use this; not to be written to", (), writable=False),
)

NAMESPACES = {one.name: one for one in _ALL}
WRITABLE = tuple(one.name for one in _ALL if one.writable)

Domain = Literal["project", "user", "org"]
DOMAINS: tuple[Domain, ...] = ("project", "user", "org")
# What belongs to no project.
SHARED_DOMAINS: tuple[Domain, ...] = ("user", "org")

Status = Literal["active", "archived", "superseded", "pending", "deleted"]
STATUSES: tuple[Status, ...] = ("active", "archived", "superseded", "pending", "deleted")
# What a search looks at unless it says otherwise.
CURRENT: tuple[Status, ...] = ("active", "pending")

_WORD = re.compile(r"[\w-]+")


def known_namespace(name: str) -> str:
    """One that can be looked into, though perhaps not written to."""
    if name not in NAMESPACES:
        raise UnknownNamespace(name, tuple(NAMESPACES))
    return name


def checked_namespace(name: str) -> str:
    if name not in WRITABLE:
        raise UnknownNamespace(name, WRITABLE)
    return name


def checked_domain(name: str) -> Domain:
    """`global` is another word for what belongs to the user."""
    if name == "global":
        return "user"
    for one in DOMAINS:
        if name == one:
            return one
    raise InvalidInput(f"Invalid domain: {name[:80]}. Use one of {', '.join(DOMAINS)}.")


def suggested(text: str) -> str:
    """The namespace whose signal words occur most, the earlier one where two are alike."""
    said = " ".join(_WORD.findall(text[:20_000].lower()))
    padded = f" {said} "
    best, most = "context", 0
    for one in _ALL:
        count = sum(f" {word} " in padded for word in one.signals)
        if count > most:
            best, most = one.name, count
    return best
