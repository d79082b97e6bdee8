"""`[[rule]]`, `[[require]]` and `[[limit]]` of a file. Every error names the table and the key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

from msgspec import Struct

from portico._options import check_options
from portico.jsonschema.argument_issues import nearest
from portico.protocol.errors import UsageError
from portico.rpc.rate_limit import rate_of
from portico.server.context.replay_guard import store_of_process
from portico.server.server import Server
from portico.store.database import parse
from portico.store.keys import MEMORY
from portico_gateway.policy.conditions import CelCondition
from portico_gateway.policy.confirmation import question
from portico_gateway.policy.engine import AccessRules, Requirement, Rule, Selection
from portico_gateway.policy.limiter import By, Limit, Quota
from portico_gateway.policy.patterns import bare_ids, pattern, who

MOST_TABLES = 10_000

Texts = str | Sequence[str]


class RuleTable(TypedDict, total=False):
    """The keys of `[[rule]]`."""

    # What it is called in explanations and records.
    name: str
    # Whom it means: principals by their id, or as ISSUER#ID; group:NAME, scope:NAME, client:ID, issuer:URL, anonymous,
    # local, *.
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


class ReadTables(Struct, eq=False):
    """Tables as they stand in a file, and what was made of them. They are the same if they say the same."""

    said: Any
    made: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadTables) and self.said == other.said

    def __hash__(self) -> int:
        return len(self.made)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.made)


NO_TABLES = ReadTables([], ())


class LimitTable(TypedDict, total=False):
    """The keys of `[[limit]]`."""

    name: str
    # What is counted apart: any of principal, client, address, tool and owner.
    by: Texts
    who: Texts
    tool: Texts
    prompt: Texts
    resource: Texts
    # Such as "30/min"; and how many at once.
    rate: str
    burst: int | float
    # What a call counts: a number, or by patterns of tools.
    cost: int | float | Mapping[str, int | float]
    # How many calls may go on at the same time.
    concurrency: int


def read_rules(said: Any, folder: Path = Path()) -> ReadTables:
    """Raises UsageError with what is wrong, and where."""
    return _read("rule", said, _rule)


def read_requirements(said: Any, folder: Path = Path()) -> ReadTables:
    return _read("require", said, _requirement)


def read_limits(said: Any, folder: Path = Path()) -> ReadTables:
    return _read("limit", said, _limit)


def _read(name: str, said: Any, make: Callable[[str, Mapping[str, Any]], Any]) -> ReadTables:
    return ReadTables(said, tuple(make(f"[[{name}]] {at}", one) for at, one in enumerate(_tables(name, said), 1)))


def apply_limits(server: Server, limits: Iterable[Limit]) -> None:
    """Shared with other processes where the server has a store that they see."""
    server.protect(meter=Quota(limits, partial(_shared_store, server)))


def _shared_store(server: Server) -> str | None:
    url = server.store or os.environ.get("PORTICO_STORE") or store_of_process()
    return None if url is None or parse(url)[1] == MEMORY else url


def apply_rules(server: Server, rules: Iterable[Rule]) -> None:
    rules = tuple(rules)
    _check_ids(server, rules)
    server.protect(guard=AccessRules(rules, _of(server).requirements))


def _check_ids(server: Server, rules: Iterable[Rule]) -> None:
    """With several issuers an id alone may be that of two people, and a rule would let in the wrong one."""
    sources = sorted(getattr(server.auth, "sources", ()))
    if len(sources) < 2:
        return
    for rule in rules:
        if rule.allow and rule.bare:
            issuer = next((one for one in sources if one.startswith("http")), "https://ISSUER")
            raise UsageError(
                f"{rule.name}: who is {rule.bare[0]!r}, and {len(sources)} issuers may give that id: write "
                f"'{issuer}#{rule.bare[0]}', or 'tokens#{rule.bare[0]}' for one of the file of tokens"
            )


def apply_requirements(server: Server, requirements: Iterable[Requirement]) -> None:
    server.protect(guard=AccessRules(_of(server).rules, tuple(requirements)))


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
        bare=tuple(bare_ids(texts(where, "who", said.get("who", "*")))),
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


def _limit(where: str, said: Mapping[str, Any]) -> Limit:
    check_options(where, said, LimitTable)
    by = [_BY.get(one, "") for one in texts(where, "by", said.get("by", "principal"))]
    if "" in by:
        wrong = texts(where, "by", said["by"])[by.index("")]
        close = nearest(wrong, _BY)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(dict.fromkeys(_BY.values()))}"
        raise UsageError(f"{where}: by is {wrong!r}; {hint}")
    if "rate" not in said and "concurrency" not in said:
        raise UsageError(f"{where} needs one of rate and concurrency; it has none")
    if "burst" in said and "rate" not in said:
        raise UsageError(f"{where} has a burst and no rate")
    rate = rate_of(where, said["rate"], said.get("burst")) if "rate" in said else None
    cost = said.get("cost", 1)
    costs = cost if isinstance(cost, Mapping) else {}
    for name, one in (*costs.items(), *([] if isinstance(cost, Mapping) else [("cost", cost)])):
        if not 0 <= one <= (1e9 if rate is None else rate.burst):
            raise UsageError(f"{where}: cost of {name} is {one}, which is not between 0 and the burst")
    if said.get("concurrency", 1) < 1:
        raise UsageError(f"{where}: concurrency is {said['concurrency']}, and has to be 1 or more")
    return Limit(
        name=_name(where, said),
        by=tuple(cast("list[By]", by)),
        who=who(f"{where}: who", texts(where, "who", said.get("who", "*")), strict=False),
        about=selection(where, said),
        rate=rate,
        costs=tuple((pattern(f"{where}: cost", name), float(one)) for name, one in costs.items()),
        cost=1.0 if isinstance(cost, Mapping) else float(cost),
        concurrency=said.get("concurrency"),
    )


# An upstream is what owns its things in a gateway.
_BY = {one: one for one in ("principal", "client", "address", "tool", "owner")} | {"upstream": "owner"}


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
