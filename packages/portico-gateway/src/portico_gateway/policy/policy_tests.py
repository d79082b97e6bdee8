"""What rules are expected to say: `[[expect]]` in their file or beside it, for tests; and what they say, explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Struct

from portico._options import check_options
from portico.auth.principal import Principal
from portico.protocol.errors import InsufficientScope, UsageError
from portico.rpc.call import Call
from portico.server.policy.interfaces import Kind, Owned
from portico.server.server import Server
from portico_gateway.policy.confirmation import shown
from portico_gateway.policy.engine import AccessRules
from portico_gateway.policy.patterns import owner_and_name
from portico_gateway.policy.settings import ReadTables, Texts, texts

Outcome = Literal["allow", "deny", "need", "ask"]

_METHODS: dict[Kind, str] = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
ANONYMOUS, LOCAL = "anonymous", "local"
# Where it is said that a call came over HTTP; no one is there.
_ADDRESS = "192.0.2.1"


class ExpectTable(TypedDict, total=False):
    """The keys of `[[expect]]`: who asks for what, and what comes of it."""

    name: str
    group: Texts
    scope: Texts
    client: str
    issuer: str
    claims: Mapping[str, Any]
    tool: str
    prompt: str
    resource: str
    args: Mapping[str, Any]
    # It may be had; or not; or only with more scopes; or after a person was asked.
    outcome: Outcome


# `as` is no name that Python would take for a field.
ExpectTable.__annotations__["as"] = str


# What every face has, and what is said of scripts that no rule allows.
FIND_TOOLS = Owned("faces", "find_tools")
SCRIPTS = 'scripts, also those of the code face, need a rule of their own: tool = "code.*"'


class AskedRule(Struct, frozen=True):
    """A question to rules: who asks for what."""

    call: Call
    kind: Kind
    owned: Owned
    arguments: bytes = b""


class Expectation(Struct, frozen=True):
    name: str
    asked: AskedRule
    outcome: Outcome


class RuleVerdict(Struct, frozen=True):
    """What rules say of something, and why."""

    outcome: Outcome
    why: list[str]


def asked(
    where: str,
    kind: Kind,
    what: str,
    *,
    principal: str = LOCAL,
    groups: Iterable[str] = (),
    scopes: Iterable[str] = (),
    client: str | None = None,
    issuer: str | None = None,
    claims: Mapping[str, Any] | None = None,
    arguments: Any = None,
) -> AskedRule:
    """Raises UsageError for what names nothing."""
    wanted = frozenset(scopes)
    who = None
    if principal not in (ANONYMOUS, LOCAL):
        has = None if "*" in wanted else wanted
        who = Principal(principal, has, frozenset(groups), dict(claims or {}), client, issuer)
    call = Call(method=_METHODS[kind], principal=who, address=None if principal == LOCAL else _ADDRESS)
    given = b"" if arguments is None else msgspec.json.encode(arguments)
    return AskedRule(call, kind, Owned(*owner_and_name(f"{where}: {kind}", what)), given)


def judge(rules: AccessRules, about: AskedRule) -> RuleVerdict:
    """What comes of a call, with the rule that decides and what else is required."""
    call, kind, owned, arguments = about.call, about.kind, about.owned, about.arguments
    if kind == "tool" and owned == FIND_TOOLS:
        return RuleVerdict("allow", ["find_tools gives no more than what its caller is shown, and needs no rule"])
    why = rules.explain(call, kind, owned, arguments)
    if not rules.decide(call, kind, owned, arguments).allowed:
        return RuleVerdict("deny", [*why, SCRIPTS] if kind == "tool" and owned.owner == "code" else why)
    try:
        questions = rules.require(call, kind, owned, arguments)
    except InsufficientScope as refusal:
        return RuleVerdict("need", [*why, str(refusal)])
    return RuleVerdict("ask" if questions else "allow", [*why, *(f"a person is asked: {one}" for one in questions)])


def read_expectations(said: Any, folder: Path = Path()) -> ReadTables:
    if not isinstance(said, list) or not all(isinstance(one, Mapping) for one in said):
        raise UsageError("expect is no list of tables: write [[expect]]")
    return ReadTables(said, tuple(_expectation(f"[[expect]] {at}", one) for at, one in enumerate(said, 1)))


def apply_expectations(server: Server, said: ReadTables) -> None:
    """They are for `portico policy test`, and change nothing."""


def failures(rules: AccessRules, expected: Iterable[Expectation]) -> Iterator[str]:
    """Of those that are not met: what was expected, what came of it, and why."""
    for one in expected:
        verdict = judge(rules, one.asked)
        if verdict.outcome != one.outcome:
            yield f"{one.name}: expected {one.outcome}, and it is {verdict.outcome}: {verdict.why[-1]}"


def _expectation(where: str, said: Mapping[str, Any]) -> Expectation:
    check_options(where, said, ExpectTable)
    kinds: list[Kind] = [kind for kind in _METHODS if kind in said]
    if len(kinds) != 1 or "outcome" not in said:
        raise UsageError(f"{where} needs an outcome, and one of tool, prompt and resource")
    about = asked(
        where,
        kinds[0],
        said[kinds[0]],
        principal=said.get("as", LOCAL),
        groups=texts(where, "group", said["group"]) if "group" in said else (),
        scopes=texts(where, "scope", said["scope"]) if "scope" in said else (),
        client=said.get("client"),
        issuer=said.get("issuer"),
        claims=said.get("claims"),
        arguments=said.get("args"),
    )
    who = said.get("as", LOCAL)
    name = f"{where}: {shown(who)}, {kinds[0]} {shown(said[kinds[0]])}"
    return Expectation(f"{name} ({said['name']})" if said.get("name") else name, about, said["outcome"])
