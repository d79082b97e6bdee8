"""`portico contracts`: findings are printed as text, as JSON, or as GitHub workflow commands."""

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
from portico.cli.files import read_text, write_atomic
from portico.cli.output import Printer
from portico.cli.specs import parse_target_command
from portico.cli.terminal_text import to_single_line
from portico.client.client import Client
from portico.definitions import LEVELS, ComponentKind, Level, PinnedComponent, components_from_list
from portico.jsonschema.argument_issues import did_you_mean
from portico.jsonschema.explanation import list_fields
from portico.protocol.errors import ConnectError, MethodNotFound, UsageError
from portico_services.contracts import loader, lockfile as lock, spec_parser
from portico_services.contracts.codegen.client_model import build_client_model
from portico_services.contracts.codegen.python import generate_python
from portico_services.contracts.codegen.typescript import generate_typescript
from portico_services.contracts.definitions import (
    ServerContract,
    ToolDefinitionSnapshot,
    contract_from_tools,
    is_result_reader,
)
from portico_services.contracts.diff import ContractChange, ContractDiff, VersionCheck, diff_contracts, migration_guide
from portico_services.contracts.lint import LintFinding, lint_components, lint_document, lint_tools
from portico_services.contracts.lockfile import LockfileDrift
from portico_services.contracts.outcomes import data_schema
from portico_services.contracts.spec_merge import merge
from portico_services.contracts.spec_writer import render_specification

WRITERS = {"python": generate_python, "typescript": generate_typescript}
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_QUOTE_CHARS = 300
# Actions that also cover prompts, resources and resource templates.
_WHOLE = ("lint", "lock", "check", "diff")
# GitHub workflow commands for the levels of a change. Errors and warnings have the same names.
_WORKFLOW_COMMANDS = {"breaking": "error", "minor": "warning", "patch": "notice", "recommendation": "notice"}


def run(words: list[str]) -> int:
    """Run the command and return its exit status."""
    arguments = parse_target_command("contracts", words)
    command = ContractsCommand(arguments)
    status = ACTIONS[arguments.action](command)
    command.printer.flush()
    return status


class ContractsCommand:
    """One action of the command; each returns its exit status."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.printer = Printer("table" if arguments.format == "github" else arguments.format)
        self.is_github = arguments.format == "github"
        # The command after `--` is the last target.
        self.targets: list[Target] = [*arguments.targets, *([arguments.target] if "target" in arguments else [])]

    # Sources of contracts.

    def only_target(self) -> Target:
        """Return the target of an action that takes exactly one. Raises `UsageError`."""
        if len(self.targets) != 1:
            raise UsageError("exactly one TARGET is required")
        return self.targets[0]

    def load_contract(self, target: Target, revision: str | None = None) -> ServerContract:
        """Load the contract of a target, from a file or from a server."""
        contract = _from_file(target) if isinstance(target, str) else None
        return self.filter_tools(contract or self._from_server(target, revision))

    def filter_tools(self, contract: ServerContract) -> ServerContract:
        """Return the contract limited to the tools of --tool, if any are given."""
        names = self.arguments.tools
        if not names:
            return contract
        tools = tuple(_tool(contract, name) for name in names)
        return msgspec.structs.replace(contract, tools=tools, offers=None)

    def _from_server(self, target: Target, revision: str | None) -> ServerContract:
        """Connect to a server and return its contract."""
        contracts: list[ServerContract] = []

        async def run_action(client: Client, printer: Printer) -> int:
            info = client.server_info
            result = contract_from_tools(
                [msgspec.to_builtins(tool) for tool in await client.list_tools(refresh=True)],
                server=info.name if info is not None else "",
                version=info.version if info is not None else "",
                revision=client.protocol_version,
                instructions=client.instructions or "",
            )
            if self.arguments.action in _WHOLE:
                result = msgspec.structs.replace(result, offers=await list_components(client))
            contracts.append(result)
            return 0

        asking = copy(self.arguments)
        asking.target, asking.protocol_version = target, self.arguments.protocol_version or revision
        status = run_with_client(asking, run_action)
        if not contracts:
            raise UsageError("the server did not respond")
        # Without the tools of a missing server, a lock would be incomplete and a comparison would pass wrongly.
        if status:
            raise ConnectError(f"not every server of {target} is available, and a contract needs the tools of all")
        return contracts[0]

    # Writing.

    def render(self) -> int:
        """Write the specification as Markdown."""
        contract = self.load_contract(self.only_target())
        lines = [
            {"tool": tool.invocation, "markdown": render_specification(contract, [tool])} for tool in contract.tools
        ]
        text = render_specification(contract)
        path = self.arguments.output
        if path is not None:
            # Text that was added to the file by hand is preserved.
            text = merge(text, read_text(path, MAX_FILE_BYTES) if os.path.exists(path) else "")
        return self._write(text, lines)

    def codegen(self) -> int:
        """Write a typed client."""
        contract, language = self.load_contract(self.only_target()), self.arguments.language
        code = WRITERS[language](build_client_model(contract, contract.tools))
        return self._write(code, [{"language": language, "code": code}])

    def _write(self, text: str, lines: list[dict[str, str]]) -> int:
        """Write the text to the file of --output or to standard output; there, as JSON lines if requested."""
        if self.arguments.output is not None:
            write_atomic(self.arguments.output, text)
            self.printer.print_error(f"{self.arguments.output}: written")
        elif self.printer.is_json:
            for line in lines:
                self.printer.print_json(line)
        else:
            self.printer.print_text(text)
        return 0

    def lock(self) -> int:
        """Write the lock file."""
        contract, path = self.load_contract(self.only_target()), self.arguments.lock_file
        lock.write_file(Path(path), contract)
        counted = f"{path}: {_format_count(contract.tools, 'tool')} of {contract.server} {contract.version}"
        self.printer.print_value({"lock": path, "server": contract.server, "tools": len(contract.tools)}, counted)
        return 0

    # Linting.

    def lint(self) -> int:
        """Check specifications and print the findings."""
        if not self.targets:
            raise UsageError("a TARGET is required")
        findings = [item for target in self.targets for item in self._findings(target)]
        for file, finding in findings:
            self._print_finding(file, finding)
        errors = [item for _, item in findings if item.severity == "error"]
        warnings = [item for _, item in findings if item.severity == "warning"]
        if not self.printer.is_json:
            advice = [item for _, item in findings if item.severity == "recommendation"]
            counts = [_format_count(errors, "error"), _format_count(warnings, "warning")]
            counts += [_format_count(advice, "recommendation")] if advice else []
            self.printer.print_line(f"specifications: {', '.join(counts)}")
        return 1 if errors or (self.arguments.strict and warnings) else 0

    def _findings(self, target: Target) -> Iterable[tuple[str, LintFinding]]:
        """Yield the findings of a Markdown file or of a server's specification, each with its file name."""
        if isinstance(target, str) and target.endswith(".md"):
            yield from ((target, finding) for finding in lint_document(read_text(target, MAX_FILE_BYTES)))
            return
        contract = self.load_contract(target)
        findings = [*lint_components(contract), *lint_tools(contract, contract.tools)]
        yield from ((spec_parser.SPEC_FILE_NAME, finding) for finding in findings)

    def _print_finding(self, file: str, finding: LintFinding) -> None:
        message = f"{finding.tool}: {finding.message}" if finding.tool else finding.message
        if self.printer.is_json:
            self.printer.print_json({"file": file, **msgspec.to_builtins(finding)})
            return
        plain = f"{file}:{finding.line}: {finding.severity}: {message} [{finding.rule}]"
        self._report(finding.severity, message, f"specification: {finding.rule}", plain, file, finding.line)

    # Diff and check.

    def diff(self) -> int:
        """Compare two contracts and print the changes."""
        if not 1 <= len(self.targets) <= 2:
            raise UsageError("expected one TARGET, or two to compare")
        before = self.targets[0] if len(self.targets) == 2 else self.arguments.lock_file
        old = self.load_contract(before)
        # Use the protocol version of the lock file, because lists differ between versions; two servers may have none in
        # common.
        is_lock = isinstance(before, str) and before.endswith(".lock")
        difference = diff_contracts(
            old, self.load_contract(self.targets[-1], old.revision or None if is_lock else None)
        )
        self._print_difference(difference)
        if self.arguments.output is not None:
            write_atomic(self.arguments.output, migration_guide(difference))
        threshold = self.arguments.fail_on
        if threshold == "undeclared":
            return 1 if difference.missing_version_bumps else 0
        return 1 if threshold != "never" and LEVELS.index(difference.level) >= LEVELS.index(threshold) else 0

    def _print_difference(self, difference: ContractDiff) -> None:
        level, changes = difference.level, difference.changes
        if self.printer.is_json:
            line = {"level": level, "changes": changes, "versions": difference.verdicts}
            self.printer.print_json({**line, "migration": migration_guide(difference)})
            return
        self._print_changes(changes)
        for verdict in difference.missing_version_bumps:
            self._print_undeclared(verdict)
        self.printer.print_line("no changes" if level == "none" else f"{level}: {_format_count(changes, 'change')}")

    def _print_undeclared(self, verdict: VersionCheck) -> None:
        text = f"{verdict.tool}: {verdict.level} changes demand version {verdict.demanded}; it has {verdict.new}"
        if not verdict.new:
            text = f"{verdict.tool}: it is gone, and that demands version {verdict.demanded} of the server"
        self._report("error", text, "version", f"undeclared: {text}")

    def check(self) -> int:
        """Compare a server with the lock file and print the drift."""
        path = self.arguments.lock_file
        file = lock.read_file(Path(path))
        if file is None:
            raise UsageError(f"{path} not found; `portico contracts lock TARGET` writes it")
        pinned = self.filter_tools(file)
        # Use the protocol version of the lock file, because lists differ between versions.
        drift = lock.check_drift(pinned, self.load_contract(self.only_target(), pinned.revision or None))
        allowed: Level = "none" if self.arguments.allow_drift == "nothing" else self.arguments.allow_drift
        self._print_drift(drift, path, allowed)
        return 1 if any(_is_refused(change, allowed) for change in drift.changes) else 0

    def _print_drift(self, drift: LockfileDrift, path: str, allowed: Level) -> None:
        level, changes = drift.difference.level, drift.changes
        summary = f"drifted from {path}: {_format_count(changes, 'change')}"
        if level == "none":
            summary = f"as in {path}: {_format_count(drift.new.tools, 'tool')}"
        if not self.printer.is_json:
            self._print_changes(changes, allowed, drift)
        self.printer.print_value({"lock": path, "level": level, "changes": changes}, summary)

    def _print_changes(
        self, changes: list[ContractChange], allowed: Level = "breaking", drift: LockfileDrift | None = None
    ) -> None:
        """Print the changes, most severe first. Changes above the allowed level are printed as errors."""
        for change in sorted(changes, key=lambda change: -LEVELS.index(change.level)):
            where = ".".join(part for part in (change.place if change.place != "tool" else "", change.path) if part)
            subject = f"{change.tool or 'the server'}{f' ({where})' if where else ''}"
            text = f"{subject}: {change.reason}.{f' {change.migration}' if change.migration else ''}"
            refused = _is_refused(change, allowed) if drift is not None else _exceeds(change.level, allowed)
            shown_as = "breaking" if refused else change.level
            kind = "words" if change.is_words else change.level
            quotes = [f"{word} {to_single_line(quote, MAX_QUOTE_CHARS)!r}" for word, quote in _quotes(change, drift)]
            if self.is_github:
                # An annotation is a single line, so it includes the old and new text.
                text = " ".join([text, *(f"{quote};" for quote in quotes)]).removesuffix(";")
            self._report(shown_as, text, f"contract: {kind}", f"{kind}: {text}")
            for quote in quotes if not self.is_github else ():
                self.printer.print_line(f"    {quote}")

    def _report(self, kind: str, message: str, title: str, plain: str, file: str = "", line: int = 0) -> None:
        """Print the plain line, or a workflow command on a single line, so that a server's text cannot inject another
        command.
        """
        if not self.is_github:
            self.printer.print_line(plain)
            return
        # GitHub resolves paths relative to the repository root, where workflows usually run.
        path = os.path.relpath(file) if os.path.isabs(file) else file
        location = f"file={_property(path)},line={line}," if file else ""
        text = to_single_line(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        self.printer.print_line(f"::{_WORKFLOW_COMMANDS.get(kind, kind)} {location}title={_property(title)}::{text}")


ACTIONS: dict[str, Callable[[ContractsCommand], int]] = {
    "render": ContractsCommand.render,
    "lint": ContractsCommand.lint,
    "diff": ContractsCommand.diff,
    "codegen": ContractsCommand.codegen,
    "lock": ContractsCommand.lock,
    "check": ContractsCommand.check,
}


async def list_components(client: Client) -> tuple[PinnedComponent, ...]:
    """Return the prompts, resources and resource templates of a server."""
    able = client.server_capabilities
    lists: dict[ComponentKind, Callable[[], Awaitable[Iterable[Any]]]] = {}
    if able.prompts is not None:
        lists["prompt"] = client.list_prompts
    if able.resources is not None:
        lists |= {"resource": client.list_resources, "template": client.list_resource_templates}
    results: list[PinnedComponent] = []
    for kind, listed in lists.items():
        # Some servers declare capabilities that they do not implement.
        with suppress(MethodNotFound):
            entries = map(msgspec.to_builtins, await listed())
            results += components_from_list(kind, (entry for entry in entries if not is_result_reader(entry)))
    return tuple(results)


def _from_file(word: str) -> ServerContract | None:
    """Load the contract in a file; None if the word is not such a file but a client target."""
    if not word.endswith((".md", ".lock", ".json")) or "://" in word:
        return None
    if word.endswith(".lock") and not os.path.exists(word):
        raise UsageError(f"{word} not found; `portico contracts lock TARGET` writes it")
    text = read_text(word, MAX_FILE_BYTES)
    if word.endswith(".json") and _is_configuration(text):
        return None
    try:
        return loader.load_text(text)
    except loader.InvalidContract as failure:
        raise UsageError(f"{word}: {failure}") from None


def _is_configuration(text: str) -> bool:
    """Return whether this is an mcp.json, which describes how to reach servers."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and any(key in document for key in ("mcpServers", "servers", "command", "url"))


def _tool(contract: ServerContract, name: str) -> ToolDefinitionSnapshot:
    tool = contract.find(name)
    if tool is None:
        hint = did_you_mean(name, [item.name for item in contract.tools])
        raise UsageError(f"unknown tool {name!r}{f'; {hint}' if hint else ''}")
    return tool


def _quotes(change: ContractChange, drift: LockfileDrift | None) -> list[tuple[str, str]]:
    """Return the old and new text of a changed description, since models act on these texts."""
    if drift is None or not change.is_words:
        return []
    return [("was", _words(change, drift.old)), ("is", _words(change, drift.new))]


def _words(change: ContractChange, contract: ServerContract) -> str:
    """Return the text that a change is about, from one of the contracts."""
    if change.place == "server":
        return contract.instructions or ""
    if change.place in ("prompt", "resource", "template"):
        offers = [item for item in contract.offers or () if (item.kind, item.key) == (change.place, change.tool)]
        return offers[0].text_of(change.path) if offers else ""
    tool = contract.find(change.tool)
    if tool is None:
        return ""
    if change.place == "tool":
        texts = {"title": tool.title, "description": tool.description}
        return texts.get(change.path) or str(tool.annotations.get(change.path, ""))
    schema = tool.input_schema if change.place == "input" else data_schema(tool.output_schema)
    schemas = {"": schema, **{item.name: item.schema for item in list_fields(schema)}}
    changed_schema = schemas.get(change.path, {})
    return " ".join(str(changed_schema[word]) for word in ("title", "description") if word in changed_schema)


def _exceeds(level: Level, allowed: Level) -> bool:
    return LEVELS.index(level) > LEVELS.index(allowed)


def _is_refused(change: ContractChange, allowed: Level) -> bool:
    """Return whether a change fails a check. Changed texts always do: a poisoned description is only a patch."""
    return _exceeds(change.level, allowed) or change.is_words


def _property(text: str) -> str:
    return to_single_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def _format_count(items: Any, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
