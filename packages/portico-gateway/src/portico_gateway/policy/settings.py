"""Parsing of `[[rule]]`, `[[require]]` and `[[limit]]`. Every error names the table and the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

from msgspec import Struct

from portico._options import check_table
from portico.jsonschema.argument_issues import closest_names
from portico.protocol.errors import UsageError
from portico.rpc.rate_limit import parse_rate
from portico.server.context.replay_guard import process_store
from portico.server.server import Server
from portico.store.data_directory import named_store, resolve_data_directory
from portico.store.database import parse_database_url
from portico.store.keys import MEMORY
from portico_gateway.policy.budgets import Budget, BudgetUnit
from portico_gateway.policy.conditions import CelCondition
from portico_gateway.policy.confirmation import parse_prompt
from portico_gateway.policy.engine import ComponentSelector, PolicyEngine, Requirement, Rule
from portico_gateway.policy.limiter import Limit, LimitDimension, PolicyLimiter
from portico_gateway.policy.patterns import parse_pattern, parse_principals, unqualified_ids

# Every rule takes one bit of a mask and one comparison per new name; beyond this, a generated file is more likely a
# mistake.
MAX_TABLES = 10_000
# The store adds budgets as floating-point numbers, which are exact far beyond this.
MAX_BUDGET = 10**12

BUDGET_FILE_NAME = "budgets.db"

StringOrList = str | Sequence[str]


class RuleOptions(TypedDict, total=False):
    """Keys of `[[rule]]`."""

    # Name in explanations and audit records. None: the position of the rule.
    name: str
    # Callers: ids, `ISSUER#ID`, `group:NAME`, `scope:NAME`, `client:ID`, `issuer:URL`, `id:token`, `anonymous`, `local`
    # or `*`; conditions joined by ` and ` must all match.
    principal: StringOrList
    # Tools as patterns of `owner.name`, with `*` and `?`.
    tool: StringOrList
    # Prompts as patterns of `owner.name`.
    prompt: StringOrList
    # Resources as patterns of `owner.URI`.
    resource: StringOrList
    # Whether the rule allows the calls that it matches.
    allow: bool
    # Whether the rule denies the calls that it matches.
    deny: bool
    # CEL condition on the principal, the arguments and the time; needs `portico-gateway[cel]`.
    when: str
    # Whether the rule is only logged and audited, not enforced.
    dry_run: bool


class RequirementOptions(TypedDict, total=False):
    """Keys of `[[require]]`."""

    # Name in explanations and audit records. None: the position of the requirement.
    name: str
    # Callers: ids, `ISSUER#ID`, `group:NAME`, `scope:NAME`, `client:ID`, `issuer:URL`, `id:token`, `anonymous`, `local`
    # or `*`; conditions joined by ` and ` must all match.
    principal: StringOrList
    # Tools as patterns of `owner.name`, with `*` and `?`.
    tool: StringOrList
    # Prompts as patterns of `owner.name`.
    prompt: StringOrList
    # Resources as patterns of `owner.URI`.
    resource: StringOrList
    # CEL condition on the principal, the arguments and the time; needs `portico-gateway[cel]`.
    when: str
    # Scopes that the caller needs over HTTP. A requirement has either `scopes` or `confirm`.
    scopes: StringOrList
    # Question to the user before the call, with `{arguments.NAME}`, `{tool}`, `{provider}` and `{principal}`.
    confirm: str


class ParsedTables(Struct, eq=False):
    """Tables of a file with the objects parsed from them. Compared by the tables."""

    tables: Any
    parsed: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        # Parsed objects contain closures, which never compare equal. Comparing the tables tells a reload whether the
        # section changed.
        return isinstance(other, ParsedTables) and self.tables == other.tables

    def __hash__(self) -> int:
        return len(self.parsed)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parsed)


EMPTY_TABLES = ParsedTables([], ())


class LimitOptions(TypedDict, total=False):
    """Keys of `[[limit]]`."""

    # Name in messages, and key of the monthly budgets. None: the position of the limit.
    name: str
    # What is counted separately, one or several together: `principal`, `client`, `ip`, `tool`, `provider`.
    by: StringOrList
    # Callers: ids, `ISSUER#ID`, `group:NAME`, `scope:NAME`, `client:ID`, `issuer:URL`, `id:token`, `anonymous`, `local`
    # or `*`; conditions joined by ` and ` must all match.
    principal: StringOrList
    # Tools as patterns of `owner.name`, with `*` and `?`.
    tool: StringOrList
    # Prompts as patterns of `owner.name`.
    prompt: StringOrList
    # Resources as patterns of `owner.URI`.
    resource: StringOrList
    # Calls per time: `5/s`, `30/min`, `1000/day`, `100/10min`.
    rate: str
    # Calls that may come at once. None: the number of the rate.
    burst: int | float
    # How much one call counts: a number, or numbers by tool pattern.
    cost: int | float | Mapping[str, int | float]
    # Maximum concurrent calls, over all processes that share the store; at least 1.
    max_concurrency: int
    # Calls per calendar month (UTC).
    calls_per_month: int
    # Estimated tokens of calls and results per calendar month (UTC).
    tokens_per_month: int


def parse_rules(tables: Any, base_dir: Path = Path()) -> ParsedTables:
    """Parse `[[rule]]` tables. Raises UsageError with the location of the mistake."""
    return _parse_tables("rule", tables, _parse_rule)


def parse_requirements(tables: Any, folder: Path = Path()) -> ParsedTables:
    """Parse `[[require]]` tables. Raises UsageError."""
    return _parse_tables("require", tables, _parse_requirement)


def parse_limits(tables: Any, folder: Path = Path()) -> ParsedTables:
    """Parse `[[limit]]` tables. Raises UsageError."""
    return _parse_tables("limit", tables, _parse_limit)


def _parse_tables(name: str, tables: Any, make: Callable[[str, Mapping[str, Any]], Any]) -> ParsedTables:
    return ParsedTables(
        tables, tuple(make(f"[[{name}]] {at}", table) for at, table in enumerate(_validate_tables(name, tables), 1))
    )


def apply_limits(server: Server, limits: Iterable[Limit]) -> None:
    """Set the limits of a server. They are shared with other processes if the server has a shared store."""
    stores = partial(_shared_store, server), partial(_budget_store, server)
    server.set_policy(rate_limiter=PolicyLimiter(limits, *stores, server=server.name))


def _shared_store(server: Server) -> str | None:
    # An in-memory store is not shared with anyone, so it would only add the cost of queries.
    url = named_store(server.store) or process_store()
    return None if url is None or parse_database_url(url)[1] == MEMORY else url


def _budget_store(server: Server) -> str:
    """Return the store of the monthly budgets, which outlasts the server: its own, or a file in the data directory."""
    url = named_store(server.store)
    if url is None or parse_database_url(url)[1] == MEMORY:
        data = resolve_data_directory(server.data_dir)
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as failure:
            raise UsageError(
                f"cannot store monthly budgets in {data}: {failure.strerror}; set a store or a data directory"
            ) from None
        return str(data / BUDGET_FILE_NAME)
    return url


def apply_rules(server: Server, rules: Iterable[Rule]) -> None:
    """Set the rules of a server and keep its requirements. Raises UsageError for ambiguous IDs."""
    rules = tuple(rules)
    _check_unqualified_ids(server, rules)
    server.set_policy(access_policy=PolicyEngine(rules, _policy_of(server).requirements))


def _check_unqualified_ids(server: Server, rules: Iterable[Rule]) -> None:
    """Raise UsageError if an allow rule has an unqualified ID and several issuers could issue it to different users."""
    # Checked when the policy is applied, not when it is parsed: only the server knows which issuers it accepts.
    sources = sorted(getattr(server.auth, "sources", ()))
    if len(sources) < 2:
        return
    for rule in rules:
        if rule.allow and rule.bare:
            issuer = next((source for source in sources if source.startswith("http")), "https://ISSUER")
            raise UsageError(
                f"{rule.name}: principal = {rule.bare[0]!r} is ambiguous, since {len(sources)} issuers may issue that "
                f"id: write '{issuer}#{rule.bare[0]}', or 'tokens#{rule.bare[0]}' for a static token"
            )


def apply_requirements(server: Server, requirements: Iterable[Requirement]) -> None:
    server.set_policy(access_policy=PolicyEngine(_policy_of(server).rules, tuple(requirements)))


def _policy_of(server: Server) -> PolicyEngine:
    """Return the current policy engine of a server, or an empty one."""
    guard = None if server.policy is None else server.policy.access_policy
    return guard if isinstance(guard, PolicyEngine) else PolicyEngine()


def _validate_tables(name: str, tables: Any) -> list[Mapping[str, Any]]:
    if not isinstance(tables, list) or not all(isinstance(item, Mapping) for item in tables):
        raise UsageError(f"{name} must be a list of tables: write [[{name}]]")
    if len(tables) > MAX_TABLES:
        raise UsageError(f"at most {MAX_TABLES} tables [[{name}]] are allowed, got {len(tables)}")
    return tables


def _parse_rule(where: str, table: Mapping[str, Any]) -> Rule:
    check_table(where, table, RuleOptions)
    allow = not table.get("deny", not table.get("allow", True))
    if "allow" in table and "deny" in table and table["allow"] is table["deny"]:
        raise UsageError(f"{where}: allow and deny are both {str(table['allow']).lower()}")
    return Rule(
        name=_table_label(where, table),
        who=parse_principals(
            f"{where}: principal", parse_strings(where, "principal", table.get("principal", "*")), strict=allow
        ),
        about=parse_selector(where, table),
        allow=allow,
        when=CelCondition(f"{where}: when", table["when"]) if "when" in table else None,
        dry_run=table.get("dry_run", False),
        bare=tuple(unqualified_ids(parse_strings(where, "principal", table.get("principal", "*")))),
    )


def _parse_requirement(where: str, table: Mapping[str, Any]) -> Requirement:
    check_table(where, table, RequirementOptions)
    if ("scopes" in table) == ("confirm" in table):
        raise UsageError(
            f"{where} needs exactly one of scopes and confirm, got {'both' if 'scopes' in table else 'none'}"
        )
    return Requirement(
        name=_table_label(where, table),
        who=parse_principals(
            f"{where}: principal", parse_strings(where, "principal", table.get("principal", "*")), strict=False
        ),
        about=parse_selector(where, table),
        need=frozenset(parse_strings(where, "scopes", table["scopes"])) if "scopes" in table else frozenset(),
        ask=parse_prompt(f"{where}: confirm", table["confirm"]) if "confirm" in table else None,
        when=CelCondition(f"{where}: when", table["when"]) if "when" in table else None,
    )


def _parse_limit(where: str, table: Mapping[str, Any]) -> Limit:
    check_table(where, table, LimitOptions)
    by = parse_strings(where, "by", table.get("by", "principal"))
    for dimension in by:
        if dimension not in _DIMENSIONS:
            close = closest_names(dimension, _DIMENSIONS)
            hint = f"did you mean {close[0]!r}?" if close else f"expected any of {', '.join(_DIMENSIONS)}"
            raise UsageError(f"{where}: unknown dimension {dimension!r} in by ({hint})")
    if not {"rate", "max_concurrency", *_BUDGET_UNITS} & table.keys():
        raise UsageError(f"{where} needs at least one of rate, max_concurrency, {' and '.join(_BUDGET_UNITS)}")
    if "burst" in table and "rate" not in table:
        raise UsageError(f"{where}: burst requires a rate")
    rate = parse_rate(where, table["rate"], table.get("burst")) if "rate" in table else None
    for key in _BUDGET_UNITS.keys() & table.keys():
        if not 1 <= table[key] <= MAX_BUDGET:
            raise UsageError(f"{where}: {key} must be between 1 and {MAX_BUDGET}, got {table[key]}")
    # A call that costs more than the burst or the whole budget could never be made.
    max_cost = min(1e9 if rate is None else rate.burst, table.get("calls_per_month", MAX_BUDGET))
    cost = table.get("cost", 1)
    costs = cost if isinstance(cost, Mapping) else {}
    for name, string in (*costs.items(), *([] if isinstance(cost, Mapping) else [("cost", cost)])):
        if not 0 <= string <= max_cost:
            largest = "the burst" if rate is not None and rate.burst == max_cost else f"{max_cost:.15g}"
            raise UsageError(f"{where}: the cost of {name} must be between 0 and {largest}, got {string}")
    if table.get("max_concurrency", 1) < 1:
        raise UsageError(f"{where}: max_concurrency must be 1 or more, got {table['max_concurrency']}")
    return Limit(
        name=_table_label(where, table),
        # Without the position, so that a budget survives the insertion of another table.
        budget_name=table.get("name") or _table_label(where, table),
        by=tuple(cast("list[LimitDimension]", by)),
        who=parse_principals(
            f"{where}: principal", parse_strings(where, "principal", table.get("principal", "*")), strict=False
        ),
        about=parse_selector(where, table),
        rate=rate,
        costs=tuple((parse_pattern(f"{where}: cost", name), float(string)) for name, string in costs.items()),
        cost=1.0 if isinstance(cost, Mapping) else float(cost),
        concurrency=table.get("max_concurrency"),
        budgets=tuple(Budget(unit, float(table[key])) for key, unit in _BUDGET_UNITS.items() if key in table),
    )


_BUDGET_UNITS: dict[str, BudgetUnit] = {"calls_per_month": "calls", "tokens_per_month": "tokens"}

_DIMENSIONS: tuple[LimitDimension, ...] = ("principal", "client", "ip", "tool", "provider")


def _table_label(where: str, table: Mapping[str, Any]) -> str:
    """Return the label of a table: its position and its name."""
    plain = where.replace("[", "").replace("]", "")
    return f"{plain} ({table['name']})" if table.get("name") else plain


def parse_selector(location: str, table: Mapping[str, Any]) -> ComponentSelector:
    """Parse the component patterns of a table."""
    kinds = ("tool", "prompt", "resource")
    return ComponentSelector(
        **{
            kind: tuple(
                parse_pattern(f"{location}: {kind}", string) for string in parse_strings(location, kind, table[kind])
            )
            for kind in kinds
            if kind in table
        }
    )


def parse_strings(location: str, key: str, value: StringOrList) -> list[str]:
    """Return a string or a list of strings as a list. An empty list is rejected, since its meaning would be unclear."""
    results = [value] if isinstance(value, str) else list(value)
    # `principal = []` could mean everyone or no one, so it is rejected instead of guessed.
    if not results or not all(results):
        raise UsageError(f"{location}: {key} must be a string or a list of strings, got {value!r}")
    return results
