"""What the service's tools give."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from portico.definitions import Level
from portico.jsonschema import draft07
from portico_services.contracts import definitions
from portico_services.contracts.background_calls import BackgroundCall, CallLogLine
from portico_services.contracts.definitions import CONTRACT_VERSION, Contract, Definition
from portico_services.contracts.diff import ContractChange, Difference, VersionVerdict, migration
from portico_services.contracts.lint import LintFinding
from portico_services.contracts.outcomes import Outcome, data_schema, is_declared

Name = Annotated[str, "The name that the server lists it by"]
Invocation = Annotated[str, "Its name in calls by contract: module_name.tool_name"]
Words = Annotated[str, "The first paragraph of its description"]


class ToolEntry(Struct):
    """One tool."""

    name: Name
    invocation: Invocation
    version: Annotated[str, "X.Y.Z; the server's where the tool declares none"]
    description: Words
    has_output_schema: Annotated[bool, "Whether it says what it gives"]
    read_only: Annotated[bool, "Whether it says that it changes nothing"]


class ToolListing(Struct):
    """The tools of a server that have a specification, which is all of them."""

    server: Annotated[str, "The server's name"]
    version: Annotated[str, "The server's version"]
    contract_version: Annotated[str, "The version of the contract"]
    tools: Annotated[list[ToolEntry], "One page of them"]
    total: Annotated[int, "How many there are in all"]
    next_offset: Annotated[int | None, "Where the next page begins; null on the last"]


class Specified(Struct):
    """One tool's specification, in the form that was asked for."""

    tool: Invocation
    version: Annotated[str, "X.Y.Z"]
    format: Annotated[Literal["md", "json", "draft-07"], "Which form this is"]
    markdown: Annotated[str | None, "Eight sections, for md"]
    definition: Annotated[dict[str, Any] | None, "The definition with its schemas, for the others"]


class Rendered(Struct):
    """A specification as Markdown."""

    tool: Invocation
    file: Annotated[str, "What such a file is called"]
    markdown: Annotated[str, "Eight sections"]


class Linted(Struct):
    """Whether a specification is complete and holds together."""

    ok: Annotated[bool, "Whether there are no errors"]
    errors: Annotated[int, "How many errors"]
    warnings: Annotated[int, "How many things that could be better"]
    recommendations: Annotated[int, "How many recommendations of the standard are not followed"]
    findings: Annotated[list[LintFinding], "Each with its line, from the top"]


class Compared(Struct):
    """Two versions of a tool, or of several."""

    level: Annotated[Level, "The worst of all changes"]
    changes: Annotated[list[ContractChange], "Each change, and why it is what it is"]
    versions: Annotated[list[VersionVerdict], "What the changes demand"]
    migration: Annotated[str, "A guide for callers, in Markdown"]


class Generated(Struct):
    """A typed client."""

    language: Annotated[Literal["python", "typescript"], "Which language it is in"]
    file: Annotated[str, "What the file could be called"]
    code: Annotated[str, "The text of the module"]


class ToolMatch(Struct):
    """A tool that a search has found."""

    name: Name
    invocation: Invocation
    description: Words
    score: Annotated[float, "The higher, the better it fits"]


class Searched(Struct):
    """What a search has found, best first."""

    tools: Annotated[list[ToolMatch], "The tools"]


class ErrorDetail(Struct):
    """What went wrong."""

    error_type: Annotated[str, "ValidationError, ResourceNotFound, ToolExecutionError and the like"]
    error_message: Annotated[str, "In words"]
    error_details: Annotated[dict[str, Any] | str | None, "More about it"]


class Envelope(Struct):
    """What came of one call."""

    status: Annotated[Literal["success", "failure", "no_change_needed", "partial_success"], "What came of it"]
    data: Annotated[dict[str, Any] | None, "What the tool gave"]
    error: Annotated[ErrorDetail | None, "What went wrong, when something did"]
    explanation: Annotated[str | None, "Words about it"]


class Batch(Struct):
    """What came of several calls."""

    results: Annotated[list[Envelope], "One for each call, in the order of the calls"]
    succeeded: Annotated[int, "How many did not fail"]
    failed: Annotated[int, "How many failed, or were never begun"]


class Running(Struct):
    """A call that goes on by itself."""

    job_id: Annotated[str, "Finds it again"]
    tool_name: Annotated[str, "What was called"]
    status: Annotated[Literal["working", "completed", "failed", "cancelled"], "How it stands"]
    started: Annotated[str, "When it began"]
    ended: Annotated[str | None, "When it ended"]
    progress: Annotated[float | None, "How far it is, if it says so"]
    total: Annotated[float | None, "How far it has to go"]
    message: Annotated[str, "What it said last about that"]
    log: Annotated[list[CallLogLine], "What it has said since"]


class Finished(Struct):
    """What a call that went on by itself came to."""

    job_id: Annotated[str, "Which it is"]
    status: Annotated[Literal["working", "completed", "failed", "cancelled"], "How it stands"]
    result: Annotated[Envelope | None, "What came of it; null while it is working"]


def summary(text: str) -> str:
    """The first paragraph, in one line."""
    return " ".join(text.strip().partition("\n\n")[0].split())[:500]


def listing(contract: Contract, offset: int = 0, limit: int | None = None) -> ToolListing:
    """The tools of a server, or a page of them."""
    total = len(contract.tools)
    end = total if limit is None else offset + limit
    page = [_entry(contract, one) for one in contract.tools[offset:end]]
    after = end if end < total else None
    return ToolListing(contract.server, contract.version, CONTRACT_VERSION, page, total, after)


def _entry(contract: Contract, tool: Definition) -> ToolEntry:
    return ToolEntry(
        tool.name,
        tool.invocation,
        str(contract.version_of(tool)),
        summary(tool.description),
        is_declared(tool.output_schema),
        tool.hint("readOnlyHint"),
    )


def definition(tool: Definition, *, is_old: bool) -> dict[str, Any]:
    """As JSON; `is_old`: with schemas of draft-07."""
    said = definitions.plain(tool)
    if is_old:
        said["inputSchema"] = draft07(tool.input_schema)
        said["outputSchema"] = draft07(data_schema(tool.output_schema))
    return said


def linted(findings: list[LintFinding]) -> Linted:
    count = Counter(one.severity for one in findings)
    errors = count["error"]
    return Linted(not errors, errors, count["warning"], count["recommendation"], findings)


def compared(difference: Difference) -> Compared:
    return Compared(difference.level, difference.changes, difference.verdicts, migration(difference))


def envelope(outcome: Outcome) -> Envelope:
    return msgspec.convert(outcome, Envelope)


def running(job: BackgroundCall, since: int = 0) -> Running:
    return Running(
        job.id,
        job.tool,
        job.status,
        _moment(job.started),
        None if job.ended is None else _moment(job.ended),
        job.progress,
        job.total,
        job.message,
        [one for one in job.lines if one.number > since],
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
