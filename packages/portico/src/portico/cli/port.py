"""`portico port PATH`"""

from __future__ import annotations

import sys
from pathlib import Path

from portico._lazy import load_module
from portico.cli.specs import parser_for
from portico.cli.terminal_text import printable
from portico.protocol.errors import UsageError

LEFT_TO_DO = 1


def run(words: list[str]) -> int:
    arguments = parser_for("port").read(words)
    try:
        project = load_module("portico.compat.port.project")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "libcst":
            raise
        raise UsageError("`portico port` needs libcst; install portico[port]") from None
    changed = left = 0
    for path in arguments.paths:
        for ported in project.port(Path(path)):
            changed += ported.changed
            left += len(ported.findings)
            if ported.changed and arguments.write:
                ported.write()
                print(f"{printable(str(ported.path))}: rewritten", file=sys.stderr)
            elif ported.changed:
                sys.stdout.write(ported.diff())
            for line, what, advice in ported.findings:
                print(printable(f"{ported.path}:{line}: {what}: {advice}"), file=sys.stderr)
    print(_summary(changed, left, arguments.write), file=sys.stderr)
    return LEFT_TO_DO if left else 0


def _summary(changed: int, left: int, written: bool) -> str:
    if not changed and not left:
        return "nothing here uses FastMCP or the official SDK"
    files = f"{changed} file{'' if changed == 1 else 's'}"
    done = (
        f"{files} rewritten" if written else f"{files} would change; --write changes {'it' if changed == 1 else 'them'}"
    )
    todo = f"; {left} thing{'' if left == 1 else 's'} left to do by hand" if left else ""
    return f"{done if changed else 'nothing to rewrite'}{todo}"
