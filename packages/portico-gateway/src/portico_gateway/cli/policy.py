"""`portico policy explain` and `portico policy test`"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from portico.cli import serve
from portico.cli.logging import set_log_level
from portico.cli.specs import parser_for
from portico.cli.terminal_text import printable
from portico.protocol.errors import UsageError
from portico.server.policy import settings as access_settings
from portico.server.policy.interfaces import Kind
from portico_gateway.policy import policy_tests
from portico_gateway.policy.engine import AccessRules

_SAYS = {
    "allow": "allowed",
    "deny": "denied",
    "need": "refused for want of a scope",
    "ask": "allowed once a person agrees",
}


def run(words: list[str]) -> int:
    arguments = parser_for("policy").read(words)
    set_log_level("error")
    return _explain(arguments) if arguments.action == "explain" else _test(arguments)


def _explain(arguments: argparse.Namespace) -> int:
    """0 if it may be had, at least when a person agrees; 1 if not."""
    kinds: tuple[Kind, ...] = ("tool", "prompt", "resource")
    given = [kind for kind in kinds if getattr(arguments, kind) is not None]
    if len(given) != 1:
        raise UsageError("say what is asked for: one of --tool, --prompt and --resource")
    asked = policy_tests.asked(
        "--" + given[0],
        given[0],
        getattr(arguments, given[0]),
        principal=arguments.principal,
        groups=arguments.group,
        scopes=arguments.scope,
        client=arguments.client,
        issuer=arguments.issuer,
        arguments=_arguments(arguments.args),
    )
    verdict = policy_tests.judge(_rules(arguments.file), asked)
    for line in verdict.why:
        print(printable(line))
    print(f"→ {_SAYS[verdict.outcome]}")
    return 0 if verdict.outcome in ("allow", "ask") else 1


def _test(arguments: argparse.Namespace) -> int:
    """0 if everything is as expected; 1 if something is not; 2 if nothing is expected."""
    tables = _tables(arguments.file)
    beside = Path(arguments.file).with_suffix(".expect.toml")
    files = [*([beside] if beside.is_file() else []), *map(Path, arguments.expectations)]
    expected = list(_said(arguments.file, tables).sections.get("expect", ()))
    for one in files:
        expected += _said(str(one), {"expect": _tables(str(one)).get("expect", [])}).sections["expect"]
    if not expected:
        raise UsageError(f"{arguments.file} has no [[expect]], and neither has a file beside it")
    wrong = list(policy_tests.failures(_rules(arguments.file), expected))
    for line in wrong:
        print(printable(line), file=sys.stderr)
    print(f"{len(expected) - len(wrong)} of {len(expected)} are as expected")
    return 1 if wrong else 0


def _rules(target: str) -> AccessRules:
    """The rules of a file, or of a server that has some."""
    if target.endswith(".toml"):
        sections = _said(target, _tables(target)).sections
        return AccessRules(sections.get("rule", ()), sections.get("require", ()))
    server = serve.load(target)
    guard = None if server.protection is None else server.protection.guard
    return guard if isinstance(guard, AccessRules) else AccessRules()


def _tables(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise UsageError(f"{path} is not TOML: {failure}") from None


def _said(path: str, tables: dict[str, Any]) -> access_settings.AccessSettings:
    """What a file says of rules. Its other sections may need what is not here."""
    known: dict[str, Any] = {name: tables[name] for name in ("rule", "require", "limit", "expect") if name in tables}
    try:
        return access_settings.read(known, Path(path).parent)
    except UsageError as mistake:
        raise UsageError(f"{path}: {mistake}") from None


def _arguments(text: str | None) -> Any:
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as mistake:
        raise UsageError(f"--args is no JSON: {mistake}") from None
    if not isinstance(found, dict):
        raise UsageError("--args is an object: one member for each argument")
    return found
