"""Access rules. The first matching rule decides; if there are rules and none matches, access is denied.

Rules are compiled once. The rules that apply to a caller, those that apply to a name, and the resulting decision are
cached, so that most decisions are a single lookup.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any

from msgspec import Raw, Struct

from portico.caching import LruCache
from portico.protocol.errors import InsufficientScope
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.rpc.call import Call
from portico.server.policy.interfaces import RESULTS_OWNER, Decision, Kind, QualifiedName, Visibility
from portico_gateway.policy.conditions import CelCondition
from portico_gateway.policy.confirmation import ConfirmationPrompt
from portico_gateway.policy.patterns import ComponentPattern, PrincipalMatcher

log = logging.getLogger("portico.access")

# Maximum size of each cache. Names chosen by clients are among the keys.
MAX_CACHED_DECISIONS = 10_000
MAX_CACHED_NAME_CHARS = 256

DEFAULT_RULE = "no rule"

_versions = count()


class ComponentSelector(Struct, frozen=True):
    """Patterns of a rule by kind. Without any patterns it matches everything."""

    tool: tuple[ComponentPattern, ...] = ()
    prompt: tuple[ComponentPattern, ...] = ()
    resource: tuple[ComponentPattern, ...] = ()

    def patterns_for(self, kind: Kind) -> tuple[ComponentPattern, ...] | None:
        """Return the patterns for a kind, or None if everything matches."""
        # A rule that names only tools must not apply to prompts: an empty tuple for a kind means "nothing of this
        # kind" as soon as another kind has patterns.
        if not (self.tool or self.prompt or self.resource):
            return None
        if kind == "tool":
            return self.tool
        return self.prompt if kind == "prompt" else self.resource


class Rule(Struct, frozen=True):
    """A `[[rule]]`."""

    name: str
    who: PrincipalMatcher
    about: ComponentSelector = ComponentSelector()
    allow: bool = True
    when: CelCondition | None = None
    # Only logged, not enforced.
    dry_run: bool = False
    # Principals that are named by an unqualified ID.
    bare: tuple[str, ...] = ()

    def matches(self, kind: Kind, owned: QualifiedName) -> bool:
        """Return whether the rule applies to a component.

        Allow rules match exactly, deny rules also match look-alikes.
        """
        patterns = self.about.patterns_for(kind)
        if patterns is None:
            return True
        # Fail closed in both directions: an allow rule must not admit a look-alike of the name that the operator
        # wrote, and a deny rule must not be evaded by one.
        if self.allow:
            return any(pattern.matches_for_allow(kind, *owned) for pattern in patterns)
        return any(pattern.matches_for_deny(kind, *owned) for pattern in patterns)


class Requirement(Struct, frozen=True):
    """A `[[require]]`, which only restricts what rules allow."""

    name: str
    who: PrincipalMatcher
    about: ComponentSelector = ComponentSelector()
    need: frozenset[str] = frozenset()
    ask: ConfirmationPrompt | None = None
    when: CelCondition | None = None

    def matches(self, kind: Kind, owned: QualifiedName) -> bool:
        patterns = self.about.patterns_for(kind)
        return patterns is None or any(pattern.overlaps(kind, *owned) for pattern in patterns)


# A final decision, or the rules to evaluate in order because they have conditions.
_CachedDecision = Decision | tuple[Rule, ...]


class PolicyEngine:
    """Access rules and requirements of one server."""

    def __init__(self, rules: Iterable[Rule] = (), requirements: Iterable[Requirement] = ()) -> None:
        self.rules, self.requirements = tuple(rules), tuple(requirements)
        # Distinguishes the visibility of this engine from that of its successors in caches.
        # A reload replaces the engine. Lists that were filtered by the previous rules stay in caches under another
        # version and are never served again.
        self._version = next(_versions)
        self._callers: LruCache[Any, tuple[Any, int, int]] = LruCache(MAX_CACHED_DECISIONS)
        self._decision_cache: LruCache[tuple[int, Kind, QualifiedName], _CachedDecision] = LruCache(
            MAX_CACHED_DECISIONS
        )
        self._visibility_cache: LruCache[tuple[int, Kind, QualifiedName], bool] = LruCache(MAX_CACHED_DECISIONS)
        self._required: LruCache[tuple[int, Kind, QualifiedName], tuple[Requirement, ...]] = LruCache(
            MAX_CACHED_DECISIONS
        )

    # Policy interface

    def visibility(self, call: Call) -> Visibility:
        """Return the visibility of components for a caller, with a cache key."""
        mask = self._applicable_masks(call)[1]
        return Visibility((self._version, mask), partial(self._is_visible, mask))

    def decide(self, call: Call, kind: Kind, component: QualifiedName, arguments: bytes | Raw = EMPTY_RAW) -> Decision:
        """Decide whether a call is allowed."""
        # `peek` does not reorder the cache: this is on the path of every call, and the order of eviction matters less
        # than the cost of a move.
        mask = self._applicable_masks(call)[1]
        result = self._decision_cache.peek((mask, kind, component))
        if result is None:
            result = cache_decision(
                self._decision_cache, (mask, kind, component), self._cached_decision(mask, kind, component)
            )
        if type(result) is tuple:
            result = _decide_conditional(result, call, kind, component, arguments)
        assert isinstance(result, Decision)
        if result.dry_run_rules:
            log.info("dry run: %s of %s.%s: %s", kind, *component, "; ".join(result.dry_run_rules))
        return result

    def check_requirements(
        self, call: Call, kind: Kind, component: QualifiedName, arguments: bytes | Raw = EMPTY_RAW
    ) -> list[str]:
        """Check the requirements and return the confirmation prompts. Raises InsufficientScope."""
        if not self.requirements or component.owner == RESULTS_OWNER:
            return []
        mask = self._applicable_masks(call)[2]
        result = self._required.peek((mask, kind, component))
        if result is None:
            requirements = tuple(
                item for at, item in enumerate(self.requirements) if mask >> at & 1 and item.matches(kind, component)
            )
            result = cache_decision(self._required, (mask, kind, component), requirements)
        if not result:
            return []
        # Requirements are evaluated for every call, even with a cached decision, because their conditions may depend
        # on the arguments.
        # A condition that cannot be evaluated counts as fulfilled, since a requirement only restricts.
        result = tuple(
            item for item in result if item.when is None or item.when.evaluate(call, component, arguments) is not False
        )
        needed = frozenset[str]().union(*(item.need for item in result))
        # Report all required scopes at once: a client that steps up (2026-07-28, Authorization, Step-Up Authorization
        # Flow) would otherwise ask the user once per requirement.
        missing = _missing_scopes(call, needed)
        if missing:
            raise InsufficientScope(f"The {kind} {component.name!r}", needed, missing)
        return [item.ask.render(call, component, arguments) for item in result if item.ask is not None]

    # Caches

    def _applicable_masks(self, call: Call) -> tuple[Any, int, int]:
        """Return which rules and requirements can apply to a caller, as bit masks."""
        principal = call.principal
        # The identity of the principal object is the cheapest key. Objects are reused after garbage collection, so
        # the entry holds a reference and is compared with `is` below.
        key = id(principal) if principal is not None else call.address is None
        cached = self._callers.peek(key)
        if cached is None or cached[0] is not principal:
            local = principal is None and call.address is None
            mask = _bits(item.who(principal, local) and _holds_for_caller(item, call) for item in self.rules)
            required = _bits(item.who(principal, local) for item in self.requirements)
            cached = cache_decision(self._callers, key, (principal, mask, required))
        return cached

    def _matching_rules(self, mask: int, kind: Kind, owned: QualifiedName) -> list[Rule]:
        return [rule for at, rule in enumerate(self.rules) if mask >> at & 1 and rule.matches(kind, owned)]

    def _cached_decision(self, mask: int, kind: Kind, owned: QualifiedName) -> _CachedDecision:
        if owned.owner == RESULTS_OWNER:
            # A caller reads only results that it was given before, in pieces.
            return Decision(True, "own results")
        rules = self._matching_rules(mask, kind, owned)
        # Rules after the first unconditional one can never decide, so they are dropped from the cached result.
        end = next((at for at, item in enumerate(rules) if item.when is None and not item.dry_run), len(rules))
        tried = tuple(rules[: end + 1])
        # The default rule is appended if no unconditional rule ends the list; the evaluation therefore always ends
        # with a decision.
        if any(_needs_call(item) for item in tried):
            return tried if end < len(rules) else (*tried, self._default)
        return _decide_conditional(tried if end < len(rules) else (*tried, self._default), None, kind, owned, EMPTY_RAW)

    @property
    def _default(self) -> Rule:
        """Return the rule for unmatched calls: deny, unless there are only dry-run rules."""
        # A policy that consists of dry-run rules only is being tried out on a running server and must not deny
        # anything yet.
        active = any(not rule.dry_run for rule in self.rules)
        return Rule(DEFAULT_RULE, lambda principal, local: True, allow=not active)

    def _is_visible(self, mask: int, kind: Kind, owned: QualifiedName) -> bool:
        """Return whether some call may be allowed. Components whose access depends on arguments are visible."""
        result = self._visibility_cache.peek((mask, kind, owned))
        if result is None:
            result = cache_decision(
                self._visibility_cache, (mask, kind, owned), self._may_be_allowed(mask, kind, owned)
            )
        return result

    def _may_be_allowed(self, mask: int, kind: Kind, owned: QualifiedName) -> bool:
        if owned.owner == RESULTS_OWNER:
            return True
        for matching_rule in (*self._matching_rules(mask, kind, owned), self._default):
            # A conditional deny rule may not apply to a particular call, so it does not hide the component; the call
            # itself is decided with its arguments.
            if matching_rule.dry_run or (_needs_call(matching_rule) and not matching_rule.allow):
                continue
            return matching_rule.allow
        return False

    # Explanation

    def unused_rules(self, components: Iterable[tuple[Kind, QualifiedName]]) -> list[str]:
        """Return the names of rules and requirements with patterns that match no component."""
        names = list(components)
        both: list[Rule | Requirement] = [*self.rules, *self.requirements]
        named = [item for item in both if item.about != ComponentSelector()]
        return [item.name for item in named if not any(item.matches(kind, owned) for kind, owned in names)]

    def is_allowed_for_some_caller(self, kind: Kind, owned: QualifiedName) -> bool:
        """Return whether any caller may be allowed."""
        return self._default.allow or any(
            rule.allow and not rule.dry_run and rule.matches(kind, owned) for rule in self.rules
        )

    def explain(self, call: Call, kind: Kind, owned: QualifiedName, arguments: bytes | Raw = EMPTY_RAW) -> list[str]:
        """Explain a decision rule by rule, up to the one that decides."""
        local = call.principal is None and call.address is None
        explanation = []
        for rule in self.rules:
            effect = "allows" if rule.allow else "denies"
            if not rule.who(call.principal, local):
                explanation.append(f"{rule.name}: does not apply to this caller")
            elif not rule.matches(kind, owned):
                explanation.append(f"{rule.name}: does not apply to this {kind}")
            elif rule.when is not None and not _applies(rule, rule.when.evaluate(call, owned, arguments)):
                explanation.append(f"{rule.name}: its condition is not fulfilled")
            elif rule.dry_run:
                explanation.append(f"{rule.name}: dry run, {effect} it only in the log")
            else:
                return [*explanation, f"{rule.name}: {effect} it"]
        return [*explanation, f"{DEFAULT_RULE} matches, so it is {'allowed' if self._default.allow else 'denied'}"]


def _decide_conditional(
    rules: tuple[Rule, ...], call: Call | None, kind: Kind, owned: QualifiedName, arguments: bytes | Raw
) -> Decision:
    dry_run_rules: list[str] = []
    for rule in rules:
        if _needs_call(rule):
            assert call is not None and rule.when is not None
            if not _applies(rule, rule.when.evaluate(call, owned, arguments)):
                continue
        if not rule.dry_run:
            return Decision(rule.allow, rule.name, tuple(dry_run_rules))
        dry_run_rules.append(f"{rule.name} {'allows' if rule.allow else 'denies'} it")
    raise AssertionError("the last rule has no condition")


def _applies(rule: Rule, condition_result: bool | None) -> bool:
    """Return whether a rule applies, given its condition. If it cannot be evaluated, deny rules apply and allow rules
    do not.
    """
    # Fail closed: an argument that is missing, duplicated or too deep to parse must neither satisfy an allow rule nor
    # bypass a deny rule.
    return condition_result is True or (condition_result is None and not rule.allow)


def _needs_call(rule: Rule) -> bool:
    return rule.when is not None and not rule.when.is_caller_only


def _holds_for_caller(rule: Rule, call: Call) -> bool:
    """Return whether a condition about the caller alone is fulfilled; True for other conditions."""
    if rule.when is None or not rule.when.is_caller_only:
        return True
    return _applies(rule, rule.when.evaluate(call, QualifiedName("", ""), EMPTY_RAW))


def _missing_scopes(call: Call, needed: frozenset[str]) -> frozenset[str]:
    """Return the missing scopes. The local user on stdio has all scopes; an anonymous HTTP caller has none."""
    if not needed:
        return needed
    if call.principal is not None:
        return frozenset(call.principal.missing_scopes(needed))
    # On stdio the client runs with the user's own rights, so scopes would not protect anything.
    return needed if call.is_anonymous else frozenset()


def _bits(flags: Any) -> int:
    return sum(1 << at for at, flag in enumerate(flags) if flag)


def cache_decision(cached: LruCache[Any, Any], key: Any, value: Any) -> Any:
    """Cache a value and return it. Long names, which a client may have invented, are not cached."""
    # Otherwise a client could fill the memory with a few thousand very long names: entries are counted, not measured.
    named = key[-1] if isinstance(key, tuple) else None
    if not isinstance(named, QualifiedName) or len(named.name) <= MAX_CACHED_NAME_CHARS:
        cached[key] = value
    return value
