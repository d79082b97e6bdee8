"""`[[rule]]` and `[[require]]` of a file, as rules. Every error names the table and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from portico._options import check_options
from portico.access.conditions import CelCondition
from portico.access.consents import question
from portico.access.patterns import pattern, who
from portico.access.rules import AccessRules, Requirement, Rule, Selection
from portico.server.server import Server
from portico.wire.errors import UsageError

MOST_TABLES = 10_000

Texts = str | Sequence[str]


class RuleTable(TypedDict, total=False):
    """The keys of `[[rule]]`."""

    # What it is called in explanations and records.
    name: str
    # Whom it means: principals by their id, group:NAME, scope:NAME, client:ID, issuer:URL, anonymous, local, *.
    who: Texts
    # What it means: owner.name, with * and ?.
    tool: Texts
    prompt: Texts
    resource: Texts
    # What it does. It allows, unless it says otherwise.
    allow: bool
    deny: bool
    # In CEL.
    when: str
    # Whether it is only tried out.
    shadow: bool


class RequireTable(TypedDict, total=False):
    """The keys of `[[require]]`."""

    name: str
    who: Texts
    tool: Texts
    prompt: Texts
    resource: Texts
    when: str
    # The scopes that are needed.
    need: Texts
    # What the person is asked before.
    ask: str


def read_rules(said: Any, folder: Path = Path()) -> tuple[Rule, ...]:
    """Raises UsageError with what is wrong, and where."""
    return tuple(_rule(f"[[rule]] {at}", one) for at, one in enumerate(_tables("rule", said), 1))


def read_requirements(said: Any, folder: Path = Path()) -> tuple[Requirement, ...]:
    return tuple(_requirement(f"[[require]] {at}", one) for at, one in enumerate(_tables("require", said), 1))


def apply_rules(server: Server, rules: Sequence[Rule]) -> None:
    server.protect(guard=AccessRules(rules, _of(server).requirements))


def apply_requirements(server: Server, requirements: Sequence[Requirement]) -> None:
    server.protect(guard=AccessRules(_of(server).rules, requirements))


def _of(server: Server) -> AccessRules:
    """The rules that a server has already."""
    guard = None if server.protection is None else server.protection.guard
    return guard if isinstance(guard, AccessRules) else AccessRules()


def _tables(name: str, said: Any) -> list[Mapping[str, Any]]:
    if not isinstance(said, list) or not all(isinstance(one, Mapping) for one in said):
        raise UsageError(f"{name} is no list of tables: write [[{name}]]")
    if len(said) > MOST_TABLES:
        raise UsageError(f"there are {len(said)} tables [[{name}]], and {MOST_TABLES} are the most")
    return said


def _rule(where: str, said: Mapping[str, Any]) -> Rule:
    check_options(where, said, RuleTable)
    allow = not said.get("deny", not said.get("allow", True))
    if "allow" in said and "deny" in said and said["allow"] is said["deny"]:
        raise UsageError(f"{where}: allow and deny are both {str(said['allow']).lower()}")
    return Rule(
        name=_name(where, said),
        who=who(f"{where}: who", texts(where, "who", said.get("who", "*")), strict=allow),
        about=selection(where, said),
        allow=allow,
        when=CelCondition(f"{where}: when", said["when"]) if "when" in said else None,
        shadow=said.get("shadow", False),
    )


def _requirement(where: str, said: Mapping[str, Any]) -> Requirement:
    check_options(where, said, RequireTable)
    if ("need" in said) == ("ask" in said):
        raise UsageError(f"{where} needs one of need and ask; it has {'both' if 'need' in said else 'none'}")
    return Requirement(
        name=_name(where, said),
        who=who(f"{where}: who", texts(where, "who", said.get("who", "*")), strict=False),
        about=selection(where, said),
        need=frozenset(texts(where, "need", said["need"])) if "need" in said else frozenset(),
        ask=question(f"{where}: ask", said["ask"]) if "ask" in said else None,
        when=CelCondition(f"{where}: when", said["when"]) if "when" in said else None,
    )


def _name(where: str, said: Mapping[str, Any]) -> str:
    """Where it stands, and what it is called."""
    plain = where.replace("[", "").replace("]", "")
    return f"{plain} ({said['name']})" if said.get("name") else plain


def selection(where: str, said: Mapping[str, Any]) -> Selection:
    """What a table is about."""
    kinds = ("tool", "prompt", "resource")
    return Selection(
        **{
            kind: tuple(pattern(f"{where}: {kind}", one) for one in texts(where, kind, said[kind]))
            for kind in kinds
            if kind in said
        }
    )


def texts(where: str, key: str, said: Texts) -> list[str]:
    """One text, or several; none is a mistake, because it would mean everything or nothing."""
    found = [said] if isinstance(said, str) else list(said)
    if not found or not all(found):
        raise UsageError(f"{where}: {key} is {said!r}, and has to be a text or a list of them")
    return found
