"""Rules: who may do what. The first that matches decides; where there are rules and none matches, it is denied.

They are compiled once. What a caller can match is worked out once for each caller, what a name can match once for each
name, and what both come to is kept, so that a decision is mostly one look-up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any

from msgspec import Raw, Struct

from portico.protocol.errors import InsufficientScope
from portico.protocol.jsonrpc import NOTHING
from portico.rpc.call import Call
from portico.server.policy.interfaces import Decision, Kind, Owned, Sight
from portico_gateway.policy.conditions import CelCondition
from portico_gateway.policy.confirmation import ConsentQuestion
from portico_gateway.policy.patterns import Pattern, Who

log = logging.getLogger("portico.access")

# Of each: names that clients make up are among them.
MOST_KEPT = 10_000
LONGEST_KEPT = 256

DEFAULT = "no rule"

_versions = count()


class Selection(Struct, frozen=True):
    """What a rule is about: of each kind the patterns; none at all is everything."""

    tool: tuple[Pattern, ...] = ()
    prompt: tuple[Pattern, ...] = ()
    resource: tuple[Pattern, ...] = ()

    def of(self, kind: Kind) -> tuple[Pattern, ...] | None:
        """None: everything of this kind."""
        if not (self.tool or self.prompt or self.resource):
            return None
        if kind == "tool":
            return self.tool
        return self.prompt if kind == "prompt" else self.resource


class Rule(Struct, frozen=True):
    """One `[[rule]]`."""

    name: str
    who: Who
    about: Selection = Selection()
    allow: bool = True
    when: CelCondition | None = None
    # Only recorded: what it would have done.
    shadow: bool = False
    # Those whom it names by an id alone.
    bare: tuple[str, ...] = ()

    def means(self, kind: Kind, owned: Owned) -> bool:
        patterns = self.about.of(kind)
        if patterns is None:
            return True
        if self.allow:
            return any(one.allows(kind, *owned) for one in patterns)
        return any(one.denies(kind, *owned) for one in patterns)


class Requirement(Struct, frozen=True):
    """One `[[require]]`: it only narrows what rules have allowed."""

    name: str
    who: Who
    about: Selection = Selection()
    need: frozenset[str] = frozenset()
    ask: ConsentQuestion | None = None
    when: CelCondition | None = None

    def means(self, kind: Kind, owned: Owned) -> bool:
        patterns = self.about.of(kind)
        return patterns is None or any(one.touches(kind, *owned) for one in patterns)


# What is decided already, or the rules that have to be asked in their order because they have conditions.
_Settled = Decision | tuple[Rule, ...]


class AccessRules:
    """The rules of one server: an AccessGuard."""

    def __init__(self, rules: Iterable[Rule] = (), requirements: Iterable[Requirement] = ()) -> None:
        self.rules, self.requirements = tuple(rules), tuple(requirements)
        # Others who come after these see other things.
        self._version = next(_versions)
        self._callers: dict[Any, tuple[Any, int, int]] = {}
        self._settled: dict[tuple[int, Kind, Owned], _Settled] = {}
        self._seen: dict[tuple[int, Kind, Owned], bool] = {}
        self._required: dict[tuple[int, Kind, Owned], tuple[Requirement, ...]] = {}

    # What a server asks

    def sight(self, call: Call) -> Sight:
        mask = self._caller(call)[1]
        return Sight((self._version, mask), partial(self._sees, mask))

    def decide(self, call: Call, kind: Kind, owned: Owned, arguments: bytes | Raw = NOTHING) -> Decision:
        mask = self._caller(call)[1]
        found = self._settled.get((mask, kind, owned))
        if found is None:
            found = keep(self._settled, (mask, kind, owned), self._settle(mask, kind, owned))
        if type(found) is tuple:
            found = _conditional(found, call, kind, owned, arguments)
        assert isinstance(found, Decision)
        if found.shadow:
            log.info("shadow: %s of %s.%s: %s", kind, *owned, "; ".join(found.shadow))
        return found

    def require(self, call: Call, kind: Kind, owned: Owned, arguments: bytes | Raw = NOTHING) -> list[str]:
        if not self.requirements:
            return []
        mask = self._caller(call)[2]
        found = self._required.get((mask, kind, owned))
        if found is None:
            meant = tuple(one for at, one in enumerate(self.requirements) if mask >> at & 1 and one.means(kind, owned))
            found = keep(self._required, (mask, kind, owned), meant)
        if not found:
            return []
        # A condition that cannot be said asks for what it would ask for.
        found = tuple(one for one in found if one.when is None or one.when.holds(call, owned, arguments) is not False)
        needed = frozenset[str]().union(*(one.need for one in found))
        missing = _missing(call, needed)
        if missing:
            raise InsufficientScope(f"The {kind} {owned.name!r}", needed, missing)
        return [one.ask.filled(call, owned, arguments) for one in found if one.ask is not None]

    # Who, and what

    def _caller(self, call: Call) -> tuple[Any, int, int]:
        """Which of the rules and of the requirements can mean the sender of a call, as bits."""
        principal = call.principal
        key = id(principal) if principal is not None else call.address is None
        kept = self._callers.get(key)
        if kept is None or kept[0] is not principal:
            local = principal is None and call.address is None
            mask = _bits(one.who(principal, local) and _early(one, call) for one in self.rules)
            required = _bits(one.who(principal, local) for one in self.requirements)
            kept = keep(self._callers, key, (principal, mask, required))
        return kept

    def _meant(self, mask: int, kind: Kind, owned: Owned) -> list[Rule]:
        return [one for at, one in enumerate(self.rules) if mask >> at & 1 and one.means(kind, owned)]

    def _settle(self, mask: int, kind: Kind, owned: Owned) -> _Settled:
        meant = self._meant(mask, kind, owned)
        end = next((at for at, one in enumerate(meant) if one.when is None and not one.shadow), len(meant))
        tried = tuple(meant[: end + 1])
        if any(_late(one) for one in tried):
            return tried if end < len(meant) else (*tried, self._default)
        return _conditional(tried if end < len(meant) else (*tried, self._default), None, kind, owned, NOTHING)

    @property
    def _default(self) -> Rule:
        """What holds where no rule matches: all that is only tried out is no rule."""
        active = any(not one.shadow for one in self.rules)
        return Rule(DEFAULT, lambda principal, local: True, allow=not active)

    def _sees(self, mask: int, kind: Kind, owned: Owned) -> bool:
        """Whether some call may be allowed: what depends on arguments is shown."""
        found = self._seen.get((mask, kind, owned))
        if found is None:
            found = keep(self._seen, (mask, kind, owned), self._may_be_allowed(mask, kind, owned))
        return found

    def _may_be_allowed(self, mask: int, kind: Kind, owned: Owned) -> bool:
        for one in (*self._meant(mask, kind, owned), self._default):
            if one.shadow or (_late(one) and not one.allow):
                continue
            return one.allow
        return False

    # For people

    def idle(self, things: Iterable[tuple[Kind, Owned]]) -> list[str]:
        """The rules and requirements that name something, and mean nothing of all that there is."""
        there = list(things)
        both: list[Rule | Requirement] = [*self.rules, *self.requirements]
        named = [one for one in both if one.about != Selection()]
        return [one.name for one in named if not any(one.means(kind, owned) for kind, owned in there)]

    def allows_some(self, kind: Kind, owned: Owned) -> bool:
        """Whether some caller may have it."""
        return self._default.allow or any(one.allow and not one.shadow and one.means(kind, owned) for one in self.rules)

    def explain(self, call: Call, kind: Kind, owned: Owned, arguments: bytes | Raw = NOTHING) -> list[str]:
        """How a decision comes about, rule by rule, down to the one that decides."""
        local = call.principal is None and call.address is None
        said = []
        for one in self.rules:
            effect = "allows" if one.allow else "denies"
            if not one.who(call.principal, local):
                said.append(f"{one.name}: is not about this caller")
            elif not one.means(kind, owned):
                said.append(f"{one.name}: is not about this {kind}")
            elif one.when is not None and not _applies(one, one.when.holds(call, owned, arguments)):
                said.append(f"{one.name}: its condition does not hold")
            elif one.shadow:
                said.append(f"{one.name}: would say that it {effect}, and is only tried out")
            else:
                return [*said, f"{one.name}: {effect} it"]
        return [*said, f"{DEFAULT} matches, so it is {'allowed' if self._default.allow else 'denied'}"]


def _conditional(
    rules: tuple[Rule, ...], call: Call | None, kind: Kind, owned: Owned, arguments: bytes | Raw
) -> Decision:
    shadow: list[str] = []
    for one in rules:
        if _late(one):
            assert call is not None and one.when is not None
            if not _applies(one, one.when.holds(call, owned, arguments)):
                continue
        if not one.shadow:
            return Decision(one.allow, one.name, tuple(shadow))
        shadow.append(f"{one.name} {'allows' if one.allow else 'denies'} it")
    raise AssertionError("the last rule has no condition")


def _applies(rule: Rule, held: bool | None) -> bool:
    """A condition that cannot be said denies where it would deny, and does not allow."""
    return held is True or (held is None and not rule.allow)


def _late(rule: Rule) -> bool:
    return rule.when is not None and not rule.when.early


def _early(rule: Rule, call: Call) -> bool:
    """Whether a condition holds that is about the caller alone."""
    if rule.when is None or not rule.when.early:
        return True
    return _applies(rule, rule.when.holds(call, Owned("", ""), NOTHING))


def _missing(call: Call, needed: frozenset[str]) -> frozenset[str]:
    """On stdio it is the user of this machine, who may do all; over HTTP who is no principal has no scope."""
    if not needed:
        return needed
    if call.principal is not None:
        return frozenset(call.principal.lacks(needed))
    return needed if call.anonymous else frozenset()


def _bits(flags: Any) -> int:
    return sum(1 << at for at, flag in enumerate(flags) if flag)


def keep(kept: dict[Any, Any], key: Any, value: Any) -> Any:
    """Remember what was found for a thing, which stands last in the key; a long name, which a client may have made up,
    is not worth the room."""
    named = key[-1] if isinstance(key, tuple) else None
    if not isinstance(named, Owned) or len(named.name) <= LONGEST_KEPT:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[key] = value
    return value
