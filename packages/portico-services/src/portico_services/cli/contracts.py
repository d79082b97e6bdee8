"""`portico contracts`: findings are printed for people, for programs, or as workflow commands of GitHub."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import msgspec

from portico.cli.connect import Target, run_with_client
from portico.cli.files import read_text, write_text
from portico.cli.output import Printer
from portico.cli.specs import parse
from portico.cli.terminal_text import one_line
from portico.client.client import Client
from portico.definitions import LEVELS, Level, Offer, OfferKind, offers_of
from portico.jsonschema.argument_issues import did_you_mean
from portico.jsonschema.explanation import fields
from portico.protocol.errors import MethodNotFound, UsageError
from portico_services.contracts import loader, spec_parser
from portico_services.contracts import lockfile as lock
from portico_services.contracts.codegen.client_model import surface
from portico_services.contracts.codegen.python import python
from portico_services.contracts.codegen.typescript import typescript
from portico_services.contracts.definitions import Contract, Definition, contract_of
from portico_services.contracts.diff import ContractChange, Difference, VersionVerdict, diff, migration
from portico_services.contracts.lint import LintFinding, lint, lint_offers, lint_tools
from portico_services.contracts.lockfile import Drift
from portico_services.contracts.outcomes import data_schema
from portico_services.contracts.spec_merge import merge
from portico_services.contracts.spec_writer import render

WRITERS = {"python": python, "typescript": typescript}
LONGEST_FILE = 32 * 1024 * 1024
LONGEST_QUOTE = 300
# These look at prompts, resources and templates, too.
_WHOLE = ("lint", "lock", "check", "diff")
# The workflow commands that show the levels of a change. Errors and warnings are called the same.
_WORKFLOW_COMMANDS = {"breaking": "error", "minor": "warning", "patch": "notice", "recommendation": "notice"}


def run(words: list[str]) -> int:
    arguments = parse("contracts", words)
    arguments.output = "json" if arguments.format == "json" else "text"
    command = ContractsCommand(arguments)
    status = ACTIONS[arguments.action](command)
    command.printer.flush()
    return status


class ContractsCommand:
    """One action; each gives its exit status."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.printer = Printer(arguments.output)
        self.form: str = arguments.format
        # What stands behind `--` is the last of the targets.
        self.targets: list[Target] = [*arguments.targets, *([arguments.target] if "target" in arguments else [])]

    # Where contracts come from

    def only_target(self) -> Target:
        if len(self.targets) != 1:
            raise UsageError("exactly one TARGET is required")
        return self.targets[0]

    def contract(self, target: Target, revision: str | None = None) -> Contract:
        """The contract of a target: from a file, or from a server."""
        contract = _from_file(target) if isinstance(target, str) else None
        return self.chosen(contract or self._from_server(target, revision))

    def chosen(self, contract: Contract) -> Contract:
        """The contract with only the tools of --tool, if there are any."""
        names = self.arguments.tools
        if not names:
            return contract
        tools = tuple(_tool(contract, name) for name in names)
        return msgspec.structs.replace(contract, tools=tools, offers=None)

    def _from_server(self, target: Target, revision: str | None) -> Contract:
        contracts: list[Contract] = []

        async def look(client: Client, printer: Printer) -> int:
            info = client.server_info
            found = contract_of(
                [msgspec.to_builtins(tool) for tool in await client.list_tools(fresh=True)],
                server=info.name if info is not None else "",
                version=info.version if info is not None else "",
                revision=client.revision,
                instructions=client.instructions or "",
            )
            if self.arguments.action in _WHOLE:
                found = msgspec.structs.replace(found, offers=await _offers(client))
            contracts.append(found)
            return 0

        asking = copy(self.arguments)
        asking.target, asking.revision = target, self.arguments.revision or revision
        run_with_client(asking, look)
        if not contracts:
            raise UsageError("the server was not asked")
        return contracts[0]

    # Writing

    def render(self) -> int:
        contract = self.contract(self.only_target())
        lines = [{"tool": tool.invocation, "markdown": render(contract, [tool])} for tool in contract.tools]
        text = render(contract)
        path = self.arguments.out
        if path is not None:
            # Text that was written by hand into the file is preserved.
            text = merge(text, read_text(path, LONGEST_FILE) if os.path.exists(path) else "")
        return self._write(text, lines)

    def codegen(self) -> int:
        contract, language = self.contract(self.only_target()), self.arguments.language
        code = WRITERS[language](surface(contract, contract.tools))
        return self._write(code, [{"language": language, "code": code}])

    def _write(self, text: str, lines: list[dict[str, str]]) -> int:
        """The text to the file of --out, or to standard output; there, the lines as JSON if that is wanted."""
        if self.arguments.out is not None:
            write_text(self.arguments.out, text)
            self.printer.aside(f"{self.arguments.out}: written")
        elif self.form == "json":
            for line in lines:
                self.printer.json(line)
        else:
            self.printer.text(text)
        return 0

    def lock(self) -> int:
        contract, path = self.contract(self.only_target()), self.arguments.lock
        lock.write_file(Path(path), contract)
        counted = f"{path}: {_counted(contract.tools, 'tool')} of {contract.server} {contract.version}"
        self.printer.show({"lock": path, "server": contract.server, "tools": len(contract.tools)}, counted)
        return 0

    # Lint

    def lint(self) -> int:
        if not self.targets:
            raise UsageError("a TARGET is required")
        findings = [one for target in self.targets for one in self._findings(target)]
        for file, finding in findings:
            self._print_finding(file, finding)
        errors = [one for _, one in findings if one.severity == "error"]
        warnings = [one for _, one in findings if one.severity == "warning"]
        if self.form != "json":
            advice = [one for _, one in findings if one.severity == "recommendation"]
            counts = [_counted(errors, "error"), _counted(warnings, "warning")]
            counts += [_counted(advice, "recommendation")] if advice else []
            self.printer.line(f"specifications: {', '.join(counts)}")
        return 1 if errors or (self.arguments.strict and warnings) else 0

    def _findings(self, target: Target) -> Iterable[tuple[str, LintFinding]]:
        """Each finding with its file: of a file, or of what would be rendered for a server."""
        if isinstance(target, str) and target.endswith(".md"):
            yield from ((target, finding) for finding in lint(read_text(target, LONGEST_FILE)))
            return
        contract = self.contract(target)
        findings = [*lint_offers(contract), *lint_tools(contract, contract.tools)]
        yield from ((spec_parser.FILE, finding) for finding in findings)

    def _print_finding(self, file: str, finding: LintFinding) -> None:
        message = f"{finding.tool}: {finding.message}" if finding.tool else finding.message
        if self.form == "json":
            self.printer.json({"file": file, **msgspec.to_builtins(finding)})
            return
        plain = f"{file}:{finding.line}: {finding.severity}: {message} [{finding.rule}]"
        self._report(finding.severity, message, f"specification: {finding.rule}", plain, file, finding.line)

    # Diff and check

    def diff(self) -> int:
        if not 1 <= len(self.targets) <= 2:
            raise UsageError("one TARGET is required, or two to be compared")
        before = self.targets[0] if len(self.targets) == 2 else self.arguments.lock
        old = self.contract(before)
        # The revision of a lock is spoken again, because lists differ between revisions; two servers may share none.
        is_lock = isinstance(before, str) and before.endswith(".lock")
        difference = diff(old, self.contract(self.targets[-1], old.revision or None if is_lock else None))
        self._print_difference(difference)
        if self.arguments.out is not None:
            write_text(self.arguments.out, migration(difference))
        threshold = self.arguments.fail_on
        if threshold == "undeclared":
            return 1 if difference.undeclared else 0
        return 1 if threshold != "never" and LEVELS.index(difference.level) >= LEVELS.index(threshold) else 0

    def _print_difference(self, difference: Difference) -> None:
        level, changes = difference.level, difference.changes
        if self.form == "json":
            line = {"level": level, "changes": changes, "versions": difference.verdicts}
            self.printer.json({**line, "migration": migration(difference)})
            return
        self._print_changes(changes)
        for verdict in difference.undeclared:
            self._print_undeclared(verdict)
        self.printer.line("no changes" if level == "none" else f"{level}: {_counted(changes, 'change')}")

    def _print_undeclared(self, verdict: VersionVerdict) -> None:
        text = f"{verdict.tool}: {verdict.level} changes demand version {verdict.demanded}; it has {verdict.new}"
        if not verdict.new:
            text = f"{verdict.tool}: it is gone, and that demands version {verdict.demanded} of the server"
        self._report("error", text, "version", f"undeclared: {text}")

    def check(self) -> int:
        path = self.arguments.lock
        found = lock.read_file(Path(path))
        if found is None:
            raise UsageError(f"there is no file {path}; `portico contracts lock TARGET` writes it")
        pinned = self.chosen(found)
        # In the revision of the lock, because lists differ between revisions.
        drift = lock.check(pinned, self.contract(self.only_target(), pinned.revision or None))
        allowed: Level = "none" if self.arguments.allow == "nothing" else self.arguments.allow
        self._print_drift(drift, path, allowed)
        return 1 if any(_is_refused(one, allowed) for one in drift.changes) else 0

    def _print_drift(self, drift: Drift, path: str, allowed: Level) -> None:
        level, changes = drift.difference.level, drift.changes
        summary = f"drifted from {path}: {_counted(changes, 'change')}"
        if level == "none":
            summary = f"as in {path}: {_counted(drift.new.tools, 'tool')}"
        if self.form != "json":
            self._print_changes(changes, allowed, drift)
        self.printer.show({"lock": path, "level": level, "changes": changes}, summary)

    def _print_changes(
        self, changes: list[ContractChange], allowed: Level = "breaking", drift: Drift | None = None
    ) -> None:
        """The worst first. What exceeds the level that is allowed is shown as an error."""
        for change in sorted(changes, key=lambda change: -LEVELS.index(change.level)):
            where = ".".join(part for part in (change.place if change.place != "tool" else "", change.path) if part)
            subject = f"{change.tool or 'the server'}{f' ({where})' if where else ''}"
            text = f"{subject}: {change.reason}.{f' {change.migration}' if change.migration else ''}"
            refused = _is_refused(change, allowed) if drift is not None else _exceeds(change.level, allowed)
            shown_as = "breaking" if refused else change.level
            kind = "words" if change.is_words else change.level
            quotes = [f"{word} {one_line(quote, LONGEST_QUOTE)!r}" for word, quote in _quotes(change, drift)]
            if self.form == "github":
                # An annotation is one line: what was and what is has to stand in it.
                text = " ".join([text, *(f"{quote};" for quote in quotes)]).removesuffix(";")
            self._report(shown_as, text, f"contract: {kind}", f"{kind}: {text}")
            for quote in quotes if self.form != "github" else ():
                self.printer.line(f"    {quote}")

    def _report(self, kind: str, message: str, title: str, plain: str, file: str = "", line: int = 0) -> None:
        """The plain line; or a workflow command in one line, so that nothing in a server's text can be another one."""
        if self.form != "github":
            self.printer.line(plain)
            return
        # GitHub finds files from the root of the repository, where the workflow usually is.
        path = os.path.relpath(file) if os.path.isabs(file) else file
        place = f"file={_property(path)},line={line}," if file else ""
        text = one_line(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        self.printer.line(f"::{_WORKFLOW_COMMANDS.get(kind, kind)} {place}title={_property(title)}::{text}")


ACTIONS: dict[str, Callable[[ContractsCommand], int]] = {
    "render": ContractsCommand.render,
    "lint": ContractsCommand.lint,
    "diff": ContractsCommand.diff,
    "codegen": ContractsCommand.codegen,
    "lock": ContractsCommand.lock,
    "check": ContractsCommand.check,
}


async def _offers(client: Client) -> tuple[Offer, ...]:
    """What the server offers besides tools."""
    able = client.server_capabilities
    lists: dict[OfferKind, Callable[[], Awaitable[Iterable[Any]]]] = {}
    if able.prompts is not None:
        lists["prompt"] = client.list_prompts
    if able.resources is not None:
        lists |= {"resource": client.list_resources, "template": client.list_resource_templates}
    found: list[Offer] = []
    for kind, listed in lists.items():
        # Some declare more than they have.
        with suppress(MethodNotFound):
            found += offers_of(kind, map(msgspec.to_builtins, await listed()))
    return tuple(found)


def _from_file(word: str) -> Contract | None:
    """The contract in a file; None if the word is not such a file but the target of a client."""
    if not word.endswith((".md", ".lock", ".json")) or "://" in word:
        return None
    text = read_text(word, LONGEST_FILE)
    if word.endswith(".json") and _is_configuration(text):
        return None
    try:
        return loader.from_text(text)
    except loader.UnreadableContract as failure:
        raise UsageError(f"{word}: {failure}") from None


def _is_configuration(text: str) -> bool:
    """Whether this is an mcp.json, which says how servers are reached."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and any(key in document for key in ("mcpServers", "servers", "command", "url"))


def _tool(contract: Contract, name: str) -> Definition:
    tool = contract.find(name)
    if tool is None:
        hint = did_you_mean(name, [one.name for one in contract.tools])
        raise UsageError(f"there is no tool {name!r}{f'; {hint}' if hint else ''}")
    return tool


def _quotes(change: ContractChange, drift: Drift | None) -> list[tuple[str, str]]:
    """Before and after, where a text has changed: it is what a model obeys."""
    if drift is None or not change.is_words:
        return []
    return [("was", _words(change, drift.old)), ("is", _words(change, drift.new))]


def _words(change: ContractChange, contract: Contract) -> str:
    """The words that a change is about, as one side has them."""
    if change.place == "server":
        return contract.instructions or ""
    if change.place in ("prompt", "resource", "template"):
        offers = [one for one in contract.offers or () if (one.kind, one.key) == (change.place, change.tool)]
        return offers[0].words(change.path) if offers else ""
    tool = contract.find(change.tool)
    if tool is None:
        return ""
    if change.place == "tool":
        told = {"title": tool.title, "description": tool.description}
        return told.get(change.path) or str(tool.annotations.get(change.path, ""))
    schema = tool.input_schema if change.place == "input" else data_schema(tool.output_schema)
    places = {"": schema, **{one.name: one.schema for one in fields(schema)}}
    found = places.get(change.path, {})
    return " ".join(str(found[word]) for word in ("title", "description") if word in found)


def _exceeds(level: Level, allowed: Level) -> bool:
    return LEVELS.index(level) > LEVELS.index(allowed)


def _is_refused(change: ContractChange, allowed: Level) -> bool:
    """Words are never allowed by a level: a poisoned description is a patch, too."""
    return _exceeds(change.level, allowed) or change.is_words


def _property(text: str) -> str:
    return one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def _counted(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
