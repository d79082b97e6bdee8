"""Namespaces, domains and statuses of memories."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from portico_services.memory.errors import InvalidInput, UnknownNamespace


class Namespace(Struct, frozen=True):
    """A namespace: a fixed category of memories."""

    name: str
    about: str
    # Words that suggest this namespace.
    signals: tuple[str, ...]
    writable: bool = True


# Name, purpose and signal words.
_TABLE = """
decisions | choices and their reasons | decided; decision; we will; chose; going with; instead of; use
patterns | recurring ways of working | pattern; always; never; convention; whenever; prefer
learnings | findings, often made the hard way | learned; turns out; discovered; realised; til; gotcha
context | background: people, goals, circumstances | background; context; stakeholder; goal; customer; team
tech-debt | shortcuts to replace later | todo; fixme; hack; workaround; debt; temporary; refactor
blockers | obstacles | blocked; blocker; waiting for; cannot; stuck; depends on
progress | finished work and next steps | done; finished; completed; next; milestone; shipped
apis | interfaces: endpoints, signatures, formats | api; endpoint; request; response; schema; signature
config | settings and environments | config; setting; environment; variable; flag; port
security | threats, permissions, findings | security; vulnerability; permission; auth; token; cve
performance | measurements and optimisations | slow; fast; latency; benchmark; memory; cache; throughput
testing | tests and how to run them | test; pytest; coverage; fixture; mock; flaky
prompts | texts for models | prompt; template
"""
_ROWS = [line.split(" | ") for line in _TABLE.strip().splitlines()]
_ALL = (
    *(Namespace(name, about, tuple(signals.split("; "))) for name, about, signals in _ROWS),
    Namespace("help", "how to use this; not to be written to", (), writable=False),
)

NAMESPACES = {namespace.name: namespace for namespace in _ALL}
WRITABLE_NAMESPACES = tuple(namespace.name for namespace in _ALL if namespace.writable)

Domain = Literal["project", "user", "org"]
DOMAINS: tuple[Domain, ...] = ("project", "user", "org")
# Domains whose memories belong to no project.
SHARED_DOMAINS: tuple[Domain, ...] = ("user", "org")

Status = Literal["active", "archived", "superseded", "pending", "deleted"]
STATUSES: tuple[Status, ...] = ("active", "archived", "superseded", "pending", "deleted")
# Statuses that a search includes by default.
CURRENT_STATUSES: tuple[Status, ...] = ("active", "pending")

_WORD = re.compile(r"[\w-]+")


def validate_readable_namespace(name: str) -> str:
    """Return the name if the namespace can be read. Raises `UnknownNamespace`."""
    if name not in NAMESPACES:
        raise UnknownNamespace(name, tuple(NAMESPACES))
    return name


def validate_namespace(name: str) -> str:
    """Return the name if the namespace can be written. Raises `UnknownNamespace`."""
    if name not in WRITABLE_NAMESPACES:
        raise UnknownNamespace(name, WRITABLE_NAMESPACES)
    return name


def normalize_domain(name: str) -> Domain:
    """Return the domain of a name; `global` is an alias for `user`. Raises `InvalidInput`."""
    if name == "global":
        return "user"
    for domain in DOMAINS:
        if name == domain:
            return domain
    raise InvalidInput(f"Invalid domain: {name[:80]}. Use one of {', '.join(DOMAINS)}.")


def suggest_namespace(text: str) -> str:
    """Return the namespace with the most signal words in the text; on a tie, the first one."""
    words = " ".join(_WORD.findall(text[:20_000].lower()))
    padded = f" {words} "
    best, best_count = "context", 0
    for item in _ALL:
        count = sum(f" {word} " in padded for word in item.signals)
        if count > best_count:
            best, best_count = item.name, count
    return best
