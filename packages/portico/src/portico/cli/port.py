"""`portico port PATH`: rewrite FastMCP or MCP SDK code for Portico."""

from __future__ import annotations

import sys
from pathlib import Path

from portico._lazy import load_module
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_control
from portico.protocol.errors import UsageError

EXIT_MANUAL_STEPS = 1


def run(argv: list[str]) -> int:
    """Run `portico port`."""
    arguments = parser_for("port").parse(argv)
    try:
        project = load_module("portico.compat.port.project")
    except ModuleNotFoundError as missing:
        # Another missing module is a defect of this package; advising to install libcst would hide it.
        if (missing.name or "").partition(".")[0] != "libcst":
            raise
        raise UsageError("`portico port` requires libcst: pip install 'portico[port]'") from None
    changed = left = 0
    for path in arguments.paths:
        for ported in project.port_project(Path(path)):
            changed += ported.is_changed
            left += len(ported.findings)
            if ported.is_changed and arguments.write:
                ported.write()
                print(f"{escape_control(str(ported.path))}: rewritten", file=sys.stderr)
            elif ported.is_changed:
                # A patch has the exact bytes; a terminal must not interpret those of the source.
                diff = ported.diff()
                sys.stdout.write(escape_control(diff) if sys.stdout.isatty() else diff)
            for line, subject, advice in ported.findings:
                print(escape_control(f"{ported.path}:{line}: {subject}: {advice}"), file=sys.stderr)
    print(_summary(changed, left, arguments.write), file=sys.stderr)
    return EXIT_MANUAL_STEPS if left else 0


def _summary(changed: int, left: int, written: bool) -> str:
    if not changed and not left:
        return "no code uses FastMCP or the official SDK"
    files = f"{changed} file{'' if changed == 1 else 's'}"
    done = (
        f"{files} rewritten" if written else f"{files} would change; --write changes {'it' if changed == 1 else 'them'}"
    )
    todo = f"; {left} thing{'' if left == 1 else 's'} left to do by hand" if left else ""
    return f"{done if changed else 'nothing to rewrite'}{todo}"
