"""Remaining monthly budgets of principals.

The store has hashes of principals only, so a report needs their names, such as those in the audit log. What a process
has reserved counts as spent until it returns it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from msgspec import Struct

from portico.store.transaction import Transaction
from portico_gateway.policy.shared_limit_store import budget_key, current_month

# Budgets of all principals that are looked up; the rest is not reported.
MAX_LOOKUPS = 100_000
# Keys in one query.
_KEYS_PER_QUERY = 500

LOCAL_PRINCIPAL, ANONYMOUS_PRINCIPAL = "(local)", "(anonymous)"


class PrincipalBudget(Struct, frozen=True):
    """A budget that every principal of a server has."""

    server: str
    name: str
    unit: str
    amount: float


class RemainingBudget(Struct, frozen=True):
    """Remaining budget of a principal this month."""

    name: str
    unit: str
    left: int
    amount: int

    def __str__(self) -> str:
        return f"{self.name}: {self.left:,} of {self.amount:,} {self.unit}"


def principal_key(issuer: str | None, id: str) -> str:
    """Return the part of a limit's key that identifies a principal.

    Two issuers may use the same ID for different users, who must not share a limit.
    """
    return f"id {id}" if issuer is None else f"{issuer} {id}"


def read_remaining_budgets(tx: Transaction, principals: Iterable[str]) -> dict[str, list[RemainingBudget]]:
    """Return the budgets that principals have used this month, by principal.

    Principals are named as in rules and usage reports: `ISSUER#ID`, `ID`, `(anonymous)` or `(local)`.
    """
    budgets = tx.fetch_all(
        PrincipalBudget, "select server, name, unit, amount from portico_quota_budget order by server, name, unit"
    )
    owners: dict[str, tuple[str, PrincipalBudget]] = {}
    for principal in principals:
        if len(owners) + 2 * len(budgets) > MAX_LOOKUPS:
            break
        for budget in budgets:
            for value in _key_values(principal):
                owners[budget_key(budget.server, budget.name, (value,), budget.unit)] = (principal, budget)
    result: dict[str, list[RemainingBudget]] = {}
    for key, spent in _read_spent(tx, list(owners)).items():
        principal, budget = owners[key]
        left = max(0, int(budget.amount - spent))
        result.setdefault(principal, []).append(RemainingBudget(budget.name, budget.unit, left, int(budget.amount)))
    return result


def _read_spent(tx: Transaction, keys: Sequence[str]) -> dict[str, float]:
    """Return the spent parts of budgets this month, in the order of the keys."""
    spent: dict[str, float] = {}
    month = current_month(time.time())
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        part = keys[start : start + _KEYS_PER_QUERY]
        rows = tx.fetch_all(
            tuple[str, float],
            "select key, spent from portico_quota_month where month = :month and key in :keys",
            {"month": month, "keys": part},
        )
        spent |= dict(rows)
    return {key: spent[key] for key in keys if key in spent}


def _key_values(principal: str) -> tuple[str, ...]:
    if principal in (LOCAL_PRINCIPAL, ANONYMOUS_PRINCIPAL):
        return ("" if principal == LOCAL_PRINCIPAL else "anonymous",)
    issuer, separator, id = principal.partition("#")
    # The ID of a principal without an issuer may contain the separator, too.
    return (principal_key(None, principal), *([principal_key(issuer, id)] if separator else []))
