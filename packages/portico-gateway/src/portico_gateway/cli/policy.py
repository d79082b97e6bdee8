"""`portico policy explain` and `portico policy test`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from portico.cli import serve
from portico.cli.logging import configure_logging
from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_control
from portico.protocol.errors import UsageError
from portico.server.policy import settings as access_settings
from portico.server.policy.interfaces import Kind
from portico.settings_file import locate_errors, read_tables
from portico_gateway.policy import policy_tests
from portico_gateway.policy.engine import PolicyEngine


def run(words: list[str]) -> int:
    arguments = parser_for("policy").parse(words)
    configure_logging("error")
    return _explain(arguments) if arguments.action == "explain" else _test(arguments)


def _explain(arguments: argparse.Namespace) -> int:
    """Explain a decision. Return 0 if the call is allowed, possibly after confirmation; 1 if it is denied."""
    kinds: tuple[Kind, ...] = ("tool", "prompt", "resource")
    selected = [kind for kind in kinds if getattr(arguments, kind) is not None]
    if len(selected) != 1:
        raise UsageError("exactly one of --tool, --prompt and --resource is required")
    query = policy_tests.make_query(
        "--" + selected[0],
        selected[0],
        getattr(arguments, selected[0]),
        principal=arguments.principal,
        groups=arguments.group,
        scopes=arguments.scope,
        client=arguments.client,
        issuer=arguments.issuer,
        arguments=_arguments(arguments.arguments),
    )
    verdict = policy_tests.explain(_rules(arguments.file), query)
    printer = Printer(arguments.format)
    if printer.is_json:
        printer.print_json({"outcome": verdict.outcome, "rules": list(verdict.why)})
    else:
        for line in verdict.why:
            printer.print_line(line)
        printer.print_line(f"→ {policy_tests.OUTCOME_LABELS[verdict.outcome]}")
    printer.flush()
    return 0 if verdict.outcome in ("allow", "confirm") else 1


def _test(arguments: argparse.Namespace) -> int:
    """Run the policy tests. Return 0 if all pass and 1 if one fails. Raises UsageError if there are none."""
    tables = read_tables(arguments.file)
    tests_file = Path(arguments.file).with_suffix(".tests.toml")
    files = [*([tests_file] if tests_file.is_file() else []), *map(Path, arguments.expectations)]
    expected = list(_parse_policy(arguments.file, tables).sections.get("policy_test", ()))
    for file in files:
        expected += _parse_policy(str(file), {"policy_test": read_tables(str(file)).get("policy_test", [])}).sections[
            "policy_test"
        ]
    # An empty run must not pass: in CI it would hide that the tests were not found.
    if not expected:
        raise UsageError(f"{arguments.file} has no [[policy_test]], and there is no NAME.tests.toml next to it")
    wrong = list(policy_tests.run_policy_tests(_rules(arguments.file), expected))
    printer = Printer(arguments.format)
    for line in wrong:
        print(escape_control(line), file=sys.stderr)
    passed = len(expected) - len(wrong)
    report = {"passed": passed, "failed": len(wrong), "failures": wrong}
    printer.print_value(report, f"{passed} of {len(expected)} tests passed")
    printer.flush()
    return 1 if wrong else 0


def _rules(target: str) -> PolicyEngine:
    """Return the rules of a TOML file or of a server."""
    if target.endswith(".toml"):
        sections = _parse_policy(target, read_tables(target)).sections
        return PolicyEngine(sections.get("rule", ()), sections.get("require", ()))
    server = serve.load_server(target)
    guard = None if server.policy is None else server.policy.access_policy
    # Another policy class has no rules to explain, and neither has a server without a policy.
    return guard if isinstance(guard, PolicyEngine) else PolicyEngine()


def _parse_policy(path: str, tables: dict[str, Any]) -> access_settings.AccessSettings:
    """Parse the policy sections of a file. Other sections are ignored, since they may need resources that are absent
    here.
    """
    sections: dict[str, Any] = {
        name: tables[name] for name in ("rule", "require", "limit", "policy_test") if name in tables
    }
    with locate_errors(path):
        return access_settings.read(sections, Path(path).parent)


def _arguments(text: str | None) -> Any:
    if text is None:
        return None
    try:
        result = msgspec.json.decode(text)
    except msgspec.DecodeError as mistake:
        raise UsageError(f"--arguments must be JSON: {mistake}") from None
    if not isinstance(result, dict):
        raise UsageError("--arguments must be a JSON object")
    return result
