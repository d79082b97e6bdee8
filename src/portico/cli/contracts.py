"""`portico contracts`: findings are printed for people, for programs, or as workflow commands of GitHub."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import msgspec

from portico.cli.connect import Target, run_with_client
from portico.cli.forms import parse
from portico.cli.printable import one_line
from portico.cli.printer import Printer
from portico.client.client import Client
from portico.schema.problems import did_you_mean
from portico.services.contracts import lock, reading, specification
from portico.services.contracts.codegen.python import python
from portico.services.contracts.codegen.shapes import surface
from portico.services.contracts.codegen.typescript import typescript
from portico.services.contracts.definitions import Contract, Definition, contract_of
from portico.services.contracts.diff import ContractChange, Difference, Verdict, diff, migration
from portico.services.contracts.lint import LintFinding, lint
from portico.services.contracts.lock import Drift
from portico.services.contracts.render import render
from portico.services.contracts.versions import LEVELS, Level
from portico.wire.errors import UsageError

WRITERS = {"python": python, "typescript": typescript}
LONGEST_FILE = 32 * 1024 * 1024
LONGEST_QUOTE = 300
# The workflow command that shows each kind of finding.
_WORKFLOW_COMMANDS = {
    "error": "error",
    "warning": "warning",
    "breaking": "error",
    "minor": "warning",
    "patch": "notice",
}


def run(words: list[str]) -> int:
    arguments = parse("contracts", words)
    # What stands behind `--` is the last of the targets.
    targets: list[Target] = [*arguments.targets, *([arguments.target] if "target" in arguments else [])]
    arguments.output = "json" if arguments.format == "json" else "text"
    printer = Printer(arguments.output)
    status = _ACTIONS[arguments.action](arguments, targets, printer)
    printer.flush()
    return status


# Where contracts come from


def _one(targets: list[Target]) -> Target:
    if len(targets) != 1:
        raise UsageError("exactly one TARGET is required")
    return targets[0]


def _contract(target: Target, arguments: argparse.Namespace, revision: str | None = None) -> Contract:
    """The contract of a target: from a file, or from a server."""
    contract = _from_file(target) if isinstance(target, str) else None
    return _chosen(contract or _from_server(target, arguments, revision), arguments.tools)


def _from_file(word: str) -> Contract | None:
    """The contract in a file; None if the word is not such a file but the target of a client."""
    if not word.endswith((".md", ".lock", ".json")) or "://" in word:
        return None
    text = _text(word)
    if word.endswith(".json") and _is_configuration(text):
        return None
    try:
        return reading.from_text(text)
    except reading.UnreadableContract as failure:
        raise UsageError(f"{word}: {failure}") from None


def _is_configuration(text: str) -> bool:
    """Whether this is an mcp.json, which says how servers are reached."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and any(key in document for key in ("mcpServers", "servers", "command", "url"))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LONGEST_FILE + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"{path} cannot be read: {failure}") from None
    if len(text) > LONGEST_FILE:
        raise UsageError(f"{path} is longer than {LONGEST_FILE} characters")
    return text


def _from_server(target: Target, arguments: argparse.Namespace, revision: str | None) -> Contract:
    found: list[Contract] = []

    async def look(client: Client, printer: Printer) -> int:
        info = client.server_info
        listed = [msgspec.to_builtins(tool) for tool in await client.list_tools(fresh=True)]
        found.append(
            contract_of(
                listed,
                server=info.name if info is not None else "",
                version=info.version if info is not None else "",
                revision=client.revision,
                instructions=client.instructions,
            )
        )
        return 0

    asking = copy(arguments)
    asking.target, asking.revision = target, arguments.revision or revision
    run_with_client(asking, look)
    if not found:
        raise UsageError("the server was not asked")
    return found[0]


def _chosen(contract: Contract, names: list[str]) -> Contract:
    if not names:
        return contract
    return msgspec.structs.replace(contract, tools=tuple(_found(contract, name) for name in names))


def _found(contract: Contract, name: str) -> Definition:
    tool = contract.find(name)
    if tool is None:
        meant = did_you_mean(name, [one.name for one in contract.tools])
        raise UsageError(f"there is no tool {name!r}{f'; {meant}' if meant else ''}")
    return tool


# Writing


def _written(text: str, arguments: argparse.Namespace, printer: Printer) -> None:
    """To the file that was named, or to standard output."""
    if arguments.out is None:
        printer.text(text)
    else:
        _save(arguments.out, text)
        printer.aside(f"{arguments.out}: written")


def _save(path: str, text: str) -> None:
    """Whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        handle, draft = tempfile.mkstemp(dir=folder, prefix=".portico-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.chmod(draft, 0o644)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as failure:
        raise UsageError(f"{path} cannot be written: {failure.strerror or failure}") from None


def _render(arguments: argparse.Namespace, targets: list[Target], printer: Printer) -> int:
    contract = _contract(_one(targets), arguments)
    text = render(contract)
    if arguments.format == "json" and arguments.out is None:
        for tool in contract.tools:
            printer.json({"tool": tool.invocation, "markdown": render(contract, [tool])})
        return 0
    _written(text, arguments, printer)
    return 0


def _codegen(arguments: argparse.Namespace, targets: list[Target], printer: Printer) -> int:
    contract = _contract(_one(targets), arguments)
    text = WRITERS[arguments.language](surface(contract, contract.tools))
    if arguments.format == "json" and arguments.out is None:
        printer.json({"language": arguments.language, "code": text})
    else:
        _written(text, arguments, printer)
    return 0


# Looking


def _lint(arguments: argparse.Namespace, targets: list[Target], printer: Printer) -> int:
    if not targets:
        raise UsageError("a TARGET is required")
    findings = Findings(printer, arguments.format)
    for target in targets:
        is_file = isinstance(target, str) and target.endswith(".md")
        for one in _of_file(str(target)) if is_file else _of_server(target, arguments):
            findings.lint(str(target) if is_file else specification.FILE, one)
    findings.conclude("specifications")
    return 1 if findings.errors or (arguments.strict and findings.warnings) else 0


def _of_file(path: str) -> list[LintFinding]:
    return lint(_text(path))


def _of_server(target: Target, arguments: argparse.Namespace) -> Iterable[LintFinding]:
    contract = _contract(target, arguments)
    for tool in contract.tools:
        if tool.trouble:
            yield LintFinding(1, "error", "notes", tool.trouble, tool.invocation)
    yield from lint(render(contract))


def _diff(arguments: argparse.Namespace, targets: list[Target], printer: Printer) -> int:
    if not 1 <= len(targets) <= 2:
        raise UsageError("one TARGET is required, or two to be compared")
    before = targets[0] if len(targets) == 2 else arguments.lock
    old = _contract(before, arguments)
    # What is listed differs from revision to revision, so that of a lock is spoken again. Two servers may have none in
    # common.
    is_lock = isinstance(before, str) and before.endswith(".lock")
    new = _contract(targets[-1], arguments, old.revision if is_lock and old.revision else None)
    found = diff(old, new)
    Findings(printer, arguments.format).difference(found)
    if arguments.out is not None:
        _save(arguments.out, migration(found))
    return 1 if _fails(found, arguments.fail_on) else 0


def _fails(found: Difference, threshold: Any) -> bool:
    if threshold == "undeclared":
        return bool(found.undeclared)
    return threshold != "never" and LEVELS.index(found.level) >= LEVELS.index(threshold)


# The lock


def _lock(arguments: argparse.Namespace, targets: list[Target], printer: Printer) -> int:
    contract = _contract(_one(targets), arguments)
    _save(arguments.lock, lock.write(contract))
    if arguments.format == "json":
        printer.json({"lock": arguments.lock, "server": contract.server, "tools": len(contract.tools)})
    else:
        printer.line(
            f"{arguments.lock}: {counted(len(contract.tools), 'tool')} of {contract.server} {contract.version}"
        )
    return 0


def _check(arguments: argparse.Namespace, targets: list[Target], printer: Printer) -> int:
    try:
        pinned = lock.read(_text(arguments.lock))
    except lock.BadLock as failure:
        raise UsageError(f"{arguments.lock}: {failure}") from None
    pinned = _chosen(pinned, arguments.tools)
    # What is listed differs from revision to revision, so the one of then is spoken.
    found = _contract(_one(targets), arguments, pinned.revision or None)
    drift = lock.check(pinned, found)
    allowed: Level = "none" if arguments.allow == "nothing" else arguments.allow
    Findings(printer, arguments.format).drift(drift, arguments.lock, allowed)
    return 1 if LEVELS.index(drift.difference.level) > LEVELS.index(allowed) else 0


_ACTIONS: dict[str, Callable[[argparse.Namespace, list[Target], Printer], int]] = {
    "render": _render,
    "lint": _lint,
    "diff": _diff,
    "codegen": _codegen,
    "lock": _lock,
    "check": _check,
}


# What is printed


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
        self._printer.line(f"::{_WORKFLOW_COMMANDS[kind]} {place}title={_property(title)}::{said}")


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
