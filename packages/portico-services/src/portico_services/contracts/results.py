"""Result types of the service's tools."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from portico.definitions import Level
from portico.jsonschema import to_draft_07
from portico_services.contracts import definitions
from portico_services.contracts.background_calls import BackgroundCall, CallLogLine
from portico_services.contracts.definitions import CONTRACT_VERSION, ServerContract, ToolDefinitionSnapshot
from portico_services.contracts.diff import ContractChange, ContractDiff, VersionCheck, migration_guide
from portico_services.contracts.lint import LintFinding
from portico_services.contracts.outcomes import Outcome, data_schema, is_declared

Name = Annotated[str, "Listed name of the tool"]
Invocation = Annotated[str, "Invocation name in calls by contract: module_name.tool_name"]
SummaryText = Annotated[str, "First paragraph of the description"]


class ToolEntry(Struct):
    """One tool of the server."""

    name: Name
    invocation: Invocation
    version: Annotated[str, "Version X.Y.Z; the server's version if the tool declares none"]
    description: SummaryText
    has_output_schema: Annotated[bool, "Whether the tool declares an output schema"]
    read_only: Annotated[bool, "Whether the tool is declared read-only"]


class ToolListing(Struct):
    """Page of the server's tools."""

    server: Annotated[str, "Server name"]
    version: Annotated[str, "Server version"]
    contract_version: Annotated[str, "Contract version"]
    tools: Annotated[list[ToolEntry], "Tools of this page"]
    total: Annotated[int, "Total number of tools"]
    next_offset: Annotated[int | None, "Offset of the next page; null on the last page"]


class SpecResult(Struct):
    """Specification of one tool in the requested format."""

    tool: Invocation
    version: Annotated[str, "X.Y.Z"]
    format: Annotated[Literal["md", "json", "draft-07"], "Format of the specification"]
    markdown: Annotated[str | None, "Markdown with eight sections, for md"]
    definition: Annotated[dict[str, Any] | None, "Definition with schemas, for json and draft-07"]


class RenderResult(Struct):
    """Generated Markdown specification."""

    tool: Invocation
    file: Annotated[str, "Conventional file name"]
    markdown: Annotated[str, "Markdown with eight sections"]


class LintResult(Struct):
    """Result of checking a specification."""

    ok: Annotated[bool, "Whether there are no errors"]
    errors: Annotated[int, "Number of errors"]
    warnings: Annotated[int, "Number of warnings"]
    recommendations: Annotated[int, "Number of recommendations of the standard that are not followed"]
    findings: Annotated[list[LintFinding], "Findings ordered by line"]


class DiffResult(Struct):
    """Differences between two versions of one or more tools."""

    level: Annotated[Level, "Most severe level of all changes"]
    changes: Annotated[list[ContractChange], "Changes with level and reason"]
    versions: Annotated[list[VersionCheck], "Required and actual versions"]
    migration: Annotated[str, "Migration guide in Markdown"]


class CodegenResult(Struct):
    """Generated typed client."""

    language: Annotated[Literal["python", "typescript"], "Programming language"]
    file: Annotated[str, "Suggested file name"]
    code: Annotated[str, "Source of the module"]


class ToolSearchHit(Struct):
    """Tool that matches a search."""

    name: Name
    invocation: Invocation
    description: SummaryText
    score: Annotated[float, "Relevance; higher is better"]


class ToolSearchResult(Struct):
    """Matching tools, best first."""

    tools: Annotated[list[ToolSearchHit], "Matching tools"]


class ErrorDetail(Struct):
    """Error of a call."""

    error_type: Annotated[str, "Error type, for example ValidationError, ResourceNotFound or ToolExecutionError"]
    error_message: Annotated[str, "Error message"]
    error_details: Annotated[dict[str, Any] | str | None, "Additional details"]


class CallOutcome(Struct):
    """Outcome of one call."""

    status: Annotated[Literal["success", "failure", "no_change_needed", "partial_success"], "Status of the call"]
    data: Annotated[dict[str, Any] | None, "Data that the tool returned"]
    error: Annotated[ErrorDetail | None, "Error, if the call failed"]
    explanation: Annotated[str | None, "Additional explanation"]


class BatchResult(Struct):
    """Outcomes of a batch of calls."""

    results: Annotated[list[CallOutcome], "One outcome per call, in the order of the calls"]
    succeeded: Annotated[int, "Number of calls that did not fail"]
    failed: Annotated[int, "Number of calls that failed or were skipped"]


class CallStatusResult(Struct):
    """Status of a background call."""

    job_id: Annotated[str, "Id of the call"]
    tool_name: Annotated[str, "Called tool"]
    status: Annotated[Literal["working", "completed", "failed", "cancelled"], "Current status"]
    started: Annotated[str, "Start time"]
    ended: Annotated[str | None, "End time"]
    progress: Annotated[float | None, "Progress so far, if reported"]
    total: Annotated[float | None, "Total progress, if reported"]
    message: Annotated[str, "Latest progress message"]
    log: Annotated[list[CallLogLine], "Log lines after `since`"]


class CallResult(Struct):
    """Result of a background call."""

    job_id: Annotated[str, "Id of the call"]
    status: Annotated[Literal["working", "completed", "failed", "cancelled"], "Current status"]
    result: Annotated[CallOutcome | None, "Outcome of the call; null while it is running"]


def first_paragraph(text: str) -> str:
    """Return the first paragraph on one line, at most 500 characters."""
    return " ".join(text.strip().partition("\n\n")[0].split())[:500]


def list_tools(contract: ServerContract, offset: int = 0, limit: int | None = None) -> ToolListing:
    """Return the tools of a server, or a page of them."""
    total = len(contract.tools)
    end = total if limit is None else offset + limit
    page = [_entry(contract, tool) for tool in contract.tools[offset:end]]
    after = end if end < total else None
    return ToolListing(contract.server, contract.version, CONTRACT_VERSION, page, total, after)


def _entry(contract: ServerContract, tool: ToolDefinitionSnapshot) -> ToolEntry:
    return ToolEntry(
        tool.name,
        tool.invocation,
        str(contract.version_of(tool)),
        first_paragraph(tool.description),
        is_declared(tool.output_schema),
        tool.hint("readOnlyHint"),
    )


def to_definition_json(tool: ToolDefinitionSnapshot, *, is_old: bool) -> dict[str, Any]:
    """Return the definition as JSON, with draft-07 schemas if `is_old`."""
    entry = definitions.to_tool_json(tool)
    if is_old:
        entry["inputSchema"] = to_draft_07(tool.input_schema)
        entry["outputSchema"] = to_draft_07(data_schema(tool.output_schema))
    return entry


def to_lint_result(findings: list[LintFinding]) -> LintResult:
    count = Counter(finding.severity for finding in findings)
    errors = count["error"]
    return LintResult(not errors, errors, count["warning"], count["recommendation"], findings)


def to_diff_result(difference: ContractDiff) -> DiffResult:
    return DiffResult(difference.level, difference.changes, difference.verdicts, migration_guide(difference))


def to_call_outcome(outcome: Outcome) -> CallOutcome:
    return msgspec.convert(outcome, CallOutcome)


def to_call_status(job: BackgroundCall, since: int = 0) -> CallStatusResult:
    return CallStatusResult(
        job.id,
        job.tool,
        job.status,
        _format_time(job.started),
        None if job.ended is None else _format_time(job.ended),
        job.progress,
        job.total,
        job.message,
        [line for line in job.lines if line.number > since],
    )


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
