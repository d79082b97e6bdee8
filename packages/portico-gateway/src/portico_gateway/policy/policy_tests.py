"""Tests for rules (`[[policy_test]]`, in their file or next to it), and explanations of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Struct

from portico._options import check_table
from portico.auth.principal import Principal
from portico.protocol.errors import InsufficientScope, UsageError
from portico.rpc.call import Call
from portico.server.policy.interfaces import Kind, QualifiedName
from portico.server.server import Server
from portico_gateway.policy.confirmation import format_value
from portico_gateway.policy.engine import PolicyEngine
from portico_gateway.policy.patterns import parse_qualified_name
from portico_gateway.policy.settings import ParsedTables, StringOrList, parse_strings

PolicyOutcome = Literal["allow", "deny", "insufficient_scope", "confirm"]
OUTCOME_LABELS: dict[PolicyOutcome, str] = {
    "allow": "allowed",
    "deny": "denied",
    "insufficient_scope": "denied: insufficient scope",
    "confirm": "allowed after confirmation",
}

_METHODS: dict[Kind, str] = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
ANONYMOUS, LOCAL = "anonymous", "local"
# Address of a simulated HTTP caller (TEST-NET-1, RFC 5737).
# The address must be set: a call without one is a local call, which rules treat differently.
_ADDRESS = "192.0.2.1"


class PolicyTestOptions(TypedDict, total=False):
    """Keys of `[[policy_test]]`: the caller, the component and the expected outcome."""

    # Name of the test in the output.
    name: str
    # Id of the caller, `anonymous` or `local`.
    principal: str
    # Groups of the caller.
    groups: StringOrList
    # Scopes of the caller.
    scopes: StringOrList
    # OAuth client of the caller.
    client_id: str
    # Issuer of the caller's token.
    issuer: str
    # Further claims of the caller's token.
    claims: Mapping[str, Any]
    # Tool to call, as `owner.name`.
    tool: str
    # Prompt to get, as `owner.name`.
    prompt: str
    # Resource to read, as `owner.URI`.
    resource: str
    # Arguments of the call.
    arguments: Mapping[str, Any]
    # Expected decision: allowed, denied, denied for a missing scope, or allowed after confirmation.
    expect: PolicyOutcome


# Always allowed; and the hint for scripts that no rule allows.
FIND_TOOLS = QualifiedName("tool_search", "find_tools")
CODE_MODE_HINT = 'scripts, including those of code mode, need their own rule: tool = "code.*"'


class PolicyQuery(Struct, frozen=True):
    """Query to the rules: a caller and a component."""

    call: Call
    kind: Kind
    owned: QualifiedName
    arguments: bytes = b""


class PolicyTest(Struct, frozen=True):
    """A parsed `[[policy_test]]`."""

    name: str
    asked: PolicyQuery
    outcome: PolicyOutcome


class PolicyExplanation(Struct, frozen=True):
    """Outcome of a query with its explanation."""

    outcome: PolicyOutcome
    why: list[str]


def make_query(
    location: str,
    kind: Kind,
    name: str,
    *,
    principal: str = LOCAL,
    groups: Iterable[str] = (),
    scopes: Iterable[str] = (),
    client: str | None = None,
    issuer: str | None = None,
    claims: Mapping[str, Any] | None = None,
    arguments: Any = None,
) -> PolicyQuery:
    """Create a query. Raises UsageError if `name` is not a qualified name."""
    scope_set = frozenset(scopes)
    who = None
    if principal not in (ANONYMOUS, LOCAL):
        has = None if "*" in scope_set else scope_set
        who = Principal(principal, has, frozenset(groups), dict(claims or {}), client, issuer)
    call = Call(method=_METHODS[kind], principal=who, address=None if principal == LOCAL else _ADDRESS)
    encoded = b"" if arguments is None else msgspec.json.encode(arguments)
    return PolicyQuery(call, kind, QualifiedName(*parse_qualified_name(f"{location}: {kind}", name)), encoded)


def explain(engine: PolicyEngine, query: PolicyQuery) -> PolicyExplanation:
    """Return the outcome of a query, with the deciding rule and the requirements."""
    call, kind, owned, arguments = query.call, query.kind, query.owned, query.arguments
    # Decided before the engine, as the server does: rules cannot deny the search, which filters its results itself.
    if kind == "tool" and owned == FIND_TOOLS:
        return PolicyExplanation(
            "allow", [("find_tools returns only tools that its caller can see, so it needs no rule")]
        )
    why = engine.explain(call, kind, owned, arguments)
    if not engine.decide(call, kind, owned, arguments).allowed:
        return PolicyExplanation("deny", [*why, CODE_MODE_HINT] if kind == "tool" and owned.owner == "code" else why)
    try:
        questions = engine.check_requirements(call, kind, owned, arguments)
    except InsufficientScope as refusal:
        return PolicyExplanation("insufficient_scope", [*why, str(refusal)])
    return PolicyExplanation(
        "confirm" if questions else "allow", [*why, *(f"requires confirmation: {question}" for question in questions)]
    )


def parse_policy_tests(tables: Any, folder: Path = Path()) -> ParsedTables:
    """Parse `[[policy_test]]` tables. Raises UsageError if they are invalid."""
    if not isinstance(tables, list) or not all(isinstance(item, Mapping) for item in tables):
        raise UsageError("policy_test must be a list of tables: write [[policy_test]]")
    return ParsedTables(
        tables, tuple(_parse_policy_test(f"[[policy_test]] {at}", item) for at, item in enumerate(tables, 1))
    )


def ignore_policy_tests(server: Server, tests: ParsedTables) -> None:
    """Do nothing: policy tests are used by `portico policy test` only."""


def run_policy_tests(rules: PolicyEngine, tests: Iterable[PolicyTest]) -> Iterator[str]:
    """Run tests and yield a message for each one that fails."""
    for test in tests:
        verdict = explain(rules, test.asked)
        if verdict.outcome != test.outcome:
            yield f"{test.name}: expected {test.outcome}, got {verdict.outcome}: {verdict.why[-1]}"


def _parse_policy_test(where: str, table: Mapping[str, Any]) -> PolicyTest:
    check_table(where, table, PolicyTestOptions)
    kinds: list[Kind] = [kind for kind in _METHODS if kind in table]
    if len(kinds) != 1 or "expect" not in table:
        raise UsageError(f"{where} needs expect, and exactly one of tool, prompt and resource")
    about = make_query(
        where,
        kinds[0],
        table[kinds[0]],
        principal=table.get("principal", LOCAL),
        groups=parse_strings(where, "groups", table["groups"]) if "groups" in table else (),
        scopes=parse_strings(where, "scopes", table["scopes"]) if "scopes" in table else (),
        client=table.get("client_id"),
        issuer=table.get("issuer"),
        claims=table.get("claims"),
        arguments=table.get("arguments"),
    )
    principal = table.get("principal", LOCAL)
    name = f"{where}: {format_value(principal)}, {kinds[0]} {format_value(table[kinds[0]])}"
    return PolicyTest(f"{name} ({table['name']})" if table.get("name") else name, about, table["expect"])
