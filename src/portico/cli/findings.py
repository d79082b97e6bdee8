"""What was found, for people, for programs, and for the pages on which GitHub shows what a workflow has to say."""

from __future__ import annotations

import os

import msgspec

from portico.cli.printable import one_line
from portico.cli.printer import Printer
from portico.services.contracts.diff import ContractChange, Difference, Verdict, migration
from portico.services.contracts.lint import LintFinding
from portico.services.contracts.lock import Drift
from portico.services.contracts.versions import LEVELS, Level

LONGEST_QUOTE = 300
# How GitHub shows each.
_COMMANDS = {"error": "error", "warning": "warning", "breaking": "error", "minor": "warning", "patch": "notice"}


class Findings:
    """Prints in one of three forms, and counts."""

    def __init__(self, printer: Printer, form: str) -> None:
        self._printer, self._form = printer, form
        self.errors = self.warnings = 0

    def lint(self, file: str, finding: LintFinding) -> None:
        self.errors += finding.severity == "error"
        self.warnings += finding.severity == "warning"
        whose = f"{finding.tool}: " if finding.tool else ""
        if self._form == "json":
            self._printer.json({"file": file, **msgspec.to_builtins(finding)})
        elif self._form == "github":
            title = f"specification: {finding.rule}"
            self._command(finding.severity, f"{whose}{finding.message}", title, file, finding.line)
        else:
            said = f"{file}:{finding.line}: {finding.severity}: {whose}{finding.message} [{finding.rule}]"
            self._printer.line(said)

    def conclude(self, what: str) -> None:
        if self._form == "json":
            return
        counts = f"{counted(self.errors, 'error')}, {counted(self.warnings, 'warning')}"
        self._printer.line(f"{what}: {counts}")

    def difference(self, found: Difference) -> None:
        if self._form == "json":
            said = {"level": found.level, "changes": found.changes, "versions": found.verdicts}
            self._printer.json({**said, "migration": migration(found)})
            return
        for change in _worst_first(found.changes):
            self._change(change, change.level)
        for verdict in found.undeclared:
            self._undeclared(verdict)
        count = counted(len(found.changes), "change")
        self._printer.line("no changes" if found.level == "none" else f"{found.level}: {count}")

    def _undeclared(self, verdict: Verdict) -> None:
        said = f"{verdict.tool}: {verdict.level} changes demand version {verdict.demanded}; it has {verdict.new}"
        if not verdict.new:
            said = f"{verdict.tool}: it is gone, and that demands version {verdict.demanded} of the server"
        if self._form == "github":
            self._command("error", said, "version")
        else:
            self._printer.line(f"undeclared: {said}")

    def drift(self, drift: Drift, file: str, allowed: Level) -> None:
        level = drift.difference.level
        if self._form == "json":
            self._printer.json({"lock": file, "level": level, "changes": drift.changes})
            return
        for change in _worst_first(drift.changes):
            is_bad = LEVELS.index(change.level) > LEVELS.index(allowed)
            self._change(change, "breaking" if is_bad and self._form == "github" else change.level, drift)
        if level == "none":
            self._printer.line(f"as in {file}: {counted(len(drift.new.tools), 'tool')}")
        else:
            self._printer.line(f"drifted from {file}: {counted(len(drift.changes), 'change')}")

    def _change(self, change: ContractChange, shown_as: str, drift: Drift | None = None) -> None:
        where = ".".join(part for part in (change.place if change.place != "tool" else "", change.path) if part)
        subject = f"{change.tool or 'the server'}{f' ({where})' if where else ''}"
        todo = f" {change.migration}" if change.migration else ""
        if self._form == "github":
            self._command(shown_as, f"{subject}: {change.reason}.{todo}", f"contract: {change.level}")
            return
        self._printer.line(f"{change.level}: {subject}: {change.reason}.{todo}")
        for word, text in _texts(change, drift):
            self._printer.line(f"    {word} {one_line(text, LONGEST_QUOTE)!r}")

    def _command(self, kind: str, message: str, title: str, file: str = "", line: int = 0) -> None:
        """A workflow command. What it says is one line, so nothing in it can be another command."""
        place = f"file={_property(_relative(file))},line={line}," if file else ""
        said = one_line(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        self._printer.line(f"::{_COMMANDS[kind]} {place}title={_property(title)}::{said}")


def _texts(change: ContractChange, drift: Drift | None) -> list[tuple[str, str]]:
    """Before and after, where words are what has changed: they are what a model obeys."""
    if drift is None or change.path not in ("title", "description", "instructions"):
        return []
    if change.place == "server":
        return [("was", drift.old.instructions), ("is", drift.new.instructions)]
    old, new = drift.old.find(change.tool), drift.new.find(change.tool)
    return [(word, getattr(tool, change.path)) for word, tool in (("was", old), ("is", new)) if tool is not None]


def _worst_first(changes: list[ContractChange]) -> list[ContractChange]:
    return sorted(changes, key=lambda change: -LEVELS.index(change.level))


def _property(text: str) -> str:
    said = one_line(text).replace("%", "%25")
    return said.replace(":", "%3A").replace(",", "%2C")


def _relative(path: str) -> str:
    """GitHub finds files from the root of the repository, where the workflow usually is."""
    return os.path.relpath(path) if os.path.isabs(path) else path


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
