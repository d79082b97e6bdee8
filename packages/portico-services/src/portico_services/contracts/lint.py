"""Linter for specifications: completeness and consistency. Each finding has a line number."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Literal

from msgspec import Struct

from portico.definitions import has_escaped_invisible, has_invisible, visible
from portico.jsonschema import (
    InvalidSchema,
    Schema,
    TableField,
    check_schema,
    format_type,
    get_properties,
    get_required,
    list_fields,
    validate,
)
from portico_services.contracts import definitions, schemas
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot, to_tool_json
from portico_services.contracts.invocation_names import is_invocation_name
from portico_services.contracts.markdown import CodeFence, MarkdownTable
from portico_services.contracts.outcomes import UNDECLARED_OUTPUT_SCHEMA, require_validator
from portico_services.contracts.result_schema import declares_data
from portico_services.contracts.schema_lint import (
    contradicts_schema,
    invalid_defaults,
    missing_keywords,
    without_examples,
)
from portico_services.contracts.spec_parser import (
    SECTION_ORDER,
    SECTIONS,
    InvalidJsonBlock,
    ParsedSpec,
    SpecSection,
    decode_json_block,
    parse_specification,
)
from portico_services.contracts.spec_writer import render_specification

# A hostile specification could otherwise produce a result larger than its text.
MAX_FINDINGS = 1000

# Recommendations of the standard are not enforced, not even by --strict.
Severity = Literal["error", "warning", "recommendation"]
_TITLES = {chapter.key: chapter.title for chapter in SECTIONS}
# Authors phrase use cases in many ways, so the patterns accept headings, labels and sentences alike.
_USES = re.compile(
    r"\buse[- ]?cases?\b|\bscenarios?\b|\b(?:when|how) to use\b"
    r"|\bused? (?:it |this |the tool )?(?:for|when|whenever|to)\b",
    re.IGNORECASE,
)
_NOTES = re.compile(r"\b(?:operation\w*|usage)? ?notes?\b|\boperational\b", re.IGNORECASE)
_STATED = re.compile(r"\bidempoten", re.IGNORECASE)
_MESSAGES = re.compile(r"\bmessages?\b", re.IGNORECASE)
_TYPE = re.compile(r"\b[A-Z][A-Za-z]*(?:Error|NotFound|Exceeded)\b")


_INVISIBLE_MESSAGE = "contains invisible or bidirectional control characters"
MAX_NAMED = 5

# Table rows by the name in the first cell: line number and cells.
Rows = dict[str, tuple[int, list[str]]]
_YES = ("yes", "true", "required", "always")


class LintFinding(Struct, frozen=True):
    """Lint finding."""

    line: Annotated[int, "Line number, from 1"]
    severity: Annotated[Severity, "Severity"]
    rule: Annotated[str, "Violated rule"]
    message: Annotated[str, "Description of the problem"]
    tool: Annotated[str, "Tool whose specification is affected"]


def lint_document(text: str) -> list[LintFinding]:
    """Return all findings for a specification file, ordered by line."""
    require_validator()
    results: list[LintFinding] = []
    # Shared by all tools of the file, to detect an invocation name that is specified twice.
    seen: set[str] = set()
    for written in parse_specification(text):
        for finding in _Linter(written, seen).findings():
            results.append(finding)
            if len(results) >= MAX_FINDINGS:
                return results
    results += islice(_lint_hidden_chars(text), MAX_FINDINGS - len(results))
    return sorted(results, key=lambda finding: finding.line)


def lint_tools(contract: ServerContract, tools: Sequence[ToolDefinitionSnapshot]) -> list[LintFinding]:
    """Return all findings for the specification that would be rendered for these tools, with its line numbers.

    Invisible characters are checked in the definitions, because rendering makes them visible.
    """
    text = render_specification(contract, tools)
    lines = {written.name: written.line for written in parse_specification(text)}
    # Rendering escapes invisible characters, so findings for the rendered text would point at the escapes.
    result = [item for item in lint_document(text) if item.rule != "hidden"]
    for tool in tools:
        line = lines.get(tool.invocation, 1)
        if tool.trouble:
            result.append(LintFinding(line, "error", "notes", tool.trouble, tool.invocation))
        if any(has_invisible(value) for value in _texts(to_tool_json(tool))):
            result.append(
                LintFinding(line, "warning", "hidden", f"the definition {_INVISIBLE_MESSAGE}", tool.invocation)
            )
    return sorted(result, key=lambda finding: finding.line)[:MAX_FINDINGS]


def lint_components(contract: ServerContract) -> Iterator[LintFinding]:
    """Yield findings for invisible characters in the instructions, prompts and resources, which models read as well."""
    if has_invisible(contract.instructions or ""):
        yield LintFinding(1, "warning", "hidden", f"the instructions text {_INVISIBLE_MESSAGE}", "")
    for offer in contract.offers or ():
        if any(map(has_invisible, _texts(offer.definition))):
            message = f"the {offer.kind} {visible(offer.key)} {_INVISIBLE_MESSAGE}"
            yield LintFinding(1, "warning", "hidden", message, "")


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings of a definition, including member names. The depth of schemas was limited before."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_texts, value))


def _lint_hidden_chars(text: str) -> Iterator[LintFinding]:
    """Yield findings for characters that models read and people do not see, raw or as escaped by `render`."""
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if has_invisible(line) or has_escaped_invisible(line):
            yield LintFinding(number, "warning", "hidden", f"the line {_INVISIBLE_MESSAGE}", "")


class _Linter:
    def __init__(self, written: ParsedSpec, seen: set[str]) -> None:
        self._written = written
        self._seen = seen
        self._name = written.invocation[0] or written.name

    def findings(self) -> Iterator[LintFinding]:
        yield from self._head()
        yield from self._sections()
        yield from self._lint_purpose()
        yield from self._invocation()
        # The schemas are returned by the generators, because the examples are validated against them below.
        arguments = yield from self._schema("input", "Parameter")
        data = yield from self._schema("output", "Field")
        yield from self._outputs(data)
        yield from self._errors()
        yield from self._idempotency()
        yield from self._lint_examples(arguments, data)
        yield from self._security()

    def _error(self, line: int, rule: str, message: str) -> LintFinding:
        return LintFinding(line, "error", rule, message, self._name)

    def _warning(self, line: int, rule: str, message: str) -> LintFinding:
        return LintFinding(line, "warning", rule, message, self._name)

    def _filled_section(self, key: str) -> SpecSection | None:
        section = self._written.section(key)
        return None if section is None or section.is_empty else section

    # Required parts

    def _head(self) -> Iterator[LintFinding]:
        tool = self._written
        if not tool.name:
            yield self._error(tool.line, "tool", "missing heading `## Tool: `module_name.tool_name``")
        if not tool.version_line:
            yield self._error(tool.line, "version", "missing line `**Version**: X.Y.Z` below the tool's heading")
        elif definitions.parse_version(tool.version) is None:
            yield self._error(
                tool.version_line, "version", (f"the version must be a semantic version X.Y.Z, got {tool.version!r}")
            )

    def _sections(self) -> Iterator[LintFinding]:
        sections = [section.key for section in self._written.sections]
        for number, key in enumerate(SECTION_ORDER, 1):
            section = self._written.section(key)
            if section is None:
                yield self._error(self._written.line, "section", f"section {number} is missing: {_TITLES[key]}")
            elif section.is_empty:
                yield self._error(section.line, "section", f"section {number} is empty: {_TITLES[key]}")
        for at, section in enumerate(self._written.sections):
            if section.key in sections[:at]:
                yield self._error(section.line, "section", f"duplicate section {_TITLES[section.key]}")
        # Duplicates are reported separately; here only the first occurrence of each section counts.
        first = list(dict.fromkeys(sections))
        ordered = sorted(first, key=SECTION_ORDER.index)
        if first != ordered:
            wrong = next(key for key, expected in zip(first, ordered, strict=True) if key != expected)
            section = self._written.section(wrong)
            line = section.line if section is not None else self._written.line
            yield self._error(line, "order", f"section {_TITLES[wrong]} is out of order")

    def _invocation(self) -> Iterator[LintFinding]:
        if self._filled_section("invocation") is None:
            return
        name, line = self._written.invocation
        if not is_invocation_name(name):
            yield self._error(
                line, "invocation", (f"the invocation name must be lower case module_name.tool_name, got {name!r}")
            )
        if self._written.name and self._written.name != name:
            yield self._error(
                line, "invocation", (f"the heading names {self._written.name!r}, but this section names {name!r}")
            )
        if name in self._seen:
            yield self._error(line, "invocation", f"{name!r} is specified twice")
        self._seen.add(name)

    # Schemas and their tables

    def _schema(self, key: str, subject: str) -> Generator[LintFinding, None, Schema | None]:
        section = self._filled_section(key)
        if section is None:
            return None
        if not section.tables:
            yield self._error(section.line, "table", f"{_TITLES[key]} needs a table with one row per {subject.lower()}")
        # The first JSON block of a section is its schema; the blocks after it are examples.
        blocks = _json_blocks(section)
        if not blocks:
            yield self._error(section.line, "schema", f"{_TITLES[key]} needs a JSON Schema in a ```json block")
            return None
        try:
            schema: Schema = decode_json_block(blocks[0])
        except InvalidJsonBlock as failure:
            yield self._error(failure.line, "schema", str(failure))
            return None
        wrong = _schema_error(schema)
        if wrong:
            yield self._error(blocks[0].line, "schema", wrong)
            return None
        yield from self._vocabulary(schema, blocks[0].line, subject)
        if section.tables:
            yield from self._table(section.tables[0], schema, subject)
        return schema

    def _vocabulary(self, schema: Schema, line: int, subject: str) -> Iterator[LintFinding]:
        for message in missing_keywords(schema):
            yield self._error(line, "vocabulary", message)
        for message in invalid_defaults(schema):
            yield self._warning(line, "vocabulary", message)
        if subject == "Field" and not _declares_fields(schema):
            message = "the tool declares no output schema: annotate its return value with a class that has fields"
            yield self._error(line, "undeclared", message)
        # One more than is named, to know whether the list must end with an ellipsis.
        names = list(islice(without_examples(schema), MAX_NAMED + 1))
        if names:
            listed = ", ".join(map(repr, names[:MAX_NAMED])) + (", …" if len(names) > MAX_NAMED else "")
            message = f"the schema should have `examples`; missing for {listed}"
            yield LintFinding(line, "recommendation", "examples", message, self._name)

    def _table(self, table: MarkdownTable, schema: Schema, subject: str) -> Iterator[LintFinding]:
        properties = get_properties(schema)
        # Tables escape and decorate names, so names of both sides are compared without markup.
        named = {_strip_markdown(row[0]): (line, row) for line, row in table.rows if row}
        required = {_strip_markdown(name) for name in get_required(schema)}
        names_by_label = {_strip_markdown(name): name for name in properties}
        for bare, name in names_by_label.items():
            if bare not in named:
                yield self._error(table.line, "table", f"the table lacks a row for {name!r}, which is in the schema")
        for name, (line, _) in named.items():
            # Rows such as `a.b` and `a[]` describe nested members; only their root must be in the schema.
            top = name.split(".")[0].removesuffix("[]")
            if properties and name not in names_by_label and top not in names_by_label and not name.startswith("("):
                yield self._error(line, "table", f"{subject.lower()} {name!r} is not in the schema")
        yield from self._types(table, schema, named)
        # Output tables say whether a field is always present, input tables whether a parameter is required.
        firm = {name: (name in required) for name in names_by_label}
        if subject == "Field":
            yield from self._flags(table, named, firm, "alwaysthere", "always there by")
            return
        if properties and _column(table, "required") is None:
            yield self._error(table.line, "table", "the table needs a column that marks required parameters")
        yield from self._flags(table, named, firm, "required", "required by")
        yield from self._defaults(table, properties, named)

    def _flags(
        self, table: MarkdownTable, named: Rows, firm: dict[str, bool], column: str, words: str
    ) -> Iterator[LintFinding]:
        """Yield findings for yes/no cells that contradict the schema."""
        for name, (line, cell) in _cells(table, named, column):
            if name in firm and (cell.lower() in _YES) != firm[name]:
                yield self._error(line, "table", f"{name!r} is {'' if firm[name] else 'not '}{words} the schema")

    def _defaults(self, table: MarkdownTable, properties: dict[str, Any], named: Rows) -> Iterator[LintFinding]:
        """Yield findings for cells whose JSON value differs from the default in the schema."""
        defaults = {
            _strip_markdown(name): member["default"]
            for name, member in properties.items()
            if isinstance(member, dict) and "default" in member
        }
        for name, (line, cell) in _cells(table, named, "default"):
            try:
                # Defaults in prose ("current time") are allowed and cannot be compared; only JSON values are.
                value = json.loads(cell.strip("`"))
            except (ValueError, RecursionError):
                continue
            if (
                value is not None
                and name in map(_strip_markdown, properties)
                and defaults.get(name) not in (value, cell.strip("`"))
            ):
                yield self._error(line, "table", f"the default of {name!r} differs from the schema")

    def _types(self, table: MarkdownTable, schema: Schema, named: Rows) -> Iterator[LintFinding]:
        column = _column(table, "type")
        fields_by_label: dict[str, TableField] = {_strip_markdown(field.name): field for field in list_fields(schema)}
        if column is None:
            if fields_by_label:
                yield self._error(table.line, "table", "the table needs a column for the types")
            return
        for name, (line, row) in named.items():
            cell = row[column] if len(row) > column else ""
            if name not in fields_by_label:
                continue
            if not cell:
                yield self._error(line, "table", f"the table lacks the type of {name!r}")
            elif contradicts_schema(cell, fields_by_label[name].schema, schema):
                expected = format_type(fields_by_label[name].schema, schema)
                yield self._error(line, "table", f"the table gives type {cell} for {name!r}, the schema {expected}")

    # Examples

    def _outputs(self, data: Schema | None) -> Iterator[LintFinding]:
        section = self._filled_section("output")
        if section is None or data is None:
            return
        examples = _json_blocks(section)[1:]
        if not examples:
            yield self._error(section.line, "example", "missing example of the tool's output")
        for fence in examples:
            yield from self._lint_fence(fence, data, "it")

    def _lint_fence(self, fence: CodeFence, schema: Schema, subject: str) -> Iterator[LintFinding]:
        try:
            value = decode_json_block(fence)
        except InvalidJsonBlock as failure:
            yield self._error(failure.line, "example", str(failure))
            return
        yield from self._valid(value, schema, fence.line, subject)

    def _valid(self, value: Any, schema: Schema, line: int, subject: str) -> Iterator[LintFinding]:
        try:
            wrong = validate(schema, value)
        except InvalidSchema as failure:
            yield self._error(line, "example", f"{subject} cannot be validated: {failure}")
            return
        # An example that fits a different schema violates nearly every keyword; three findings identify it.
        for item in wrong[:3]:
            where = f" at {item.path}" if item.path else ""
            yield self._error(line, "example", f"{subject} does not match the schema{where}: {item.message}")

    def _lint_examples(self, arguments: Schema | None, data: Schema | None) -> Iterator[LintFinding]:
        section = self._filled_section("examples")
        if section is None:
            return
        # A complete section has a call, a success, a failure and a program.
        kinds: set[str] = set()
        for fence in _json_blocks(section):
            try:
                value = decode_json_block(fence)
            except InvalidJsonBlock as failure:
                yield self._error(failure.line, "example", str(failure))
                continue
            kinds.add(_kind(value))
            yield from self._example(value, fence, arguments, data)
        missing = {
            "call": "a complete call, {tool_name, arguments}",
            "success": "the result of a successful call",
            "failure": "the result of a failed call",
        }
        for kind, words in missing.items():
            if kind not in kinds:
                yield self._error(section.line, "example", f"missing example of {words}")
        # A fence in any programming language counts; the standard does not prescribe one.
        if all(fence.language in ("json", "") for fence in section.fences):
            yield self._error(section.line, "integration", "missing example of calling the tool from a program")

    def _example(
        self, value: Any, fence: CodeFence, arguments: Schema | None, data: Schema | None
    ) -> Iterator[LintFinding]:
        kind = _kind(value)
        if kind == "call":
            yield from self._valid(value, schemas.TOOL_CALL_SCHEMA, fence.line, "the call")
            tool_name = value.get("tool_name")
            if self._name and tool_name != self._name:
                yield self._error(fence.line, "example", f"the example calls {tool_name!r}, expected {self._name!r}")
            if arguments is not None and isinstance(value.get("arguments"), dict):
                yield from self._valid(value["arguments"], arguments, fence.line, "`arguments`")
        elif kind:
            yield from self._valid(value, schemas.TOOL_RESULT_SCHEMA, fence.line, "the result")
            # Same rule as MCPToolResult enforces: a failure has an error and no data.
            if kind == "failure" and (not value.get("error") or value.get("data") is not None):
                yield self._error(fence.line, "example", "a failure must have `error` and must not have `data`")
            if kind != "failure" and data is not None and value.get("data") is not None:
                yield from self._valid(value["data"], data, fence.line, "`data`")
        else:
            yield self._error(fence.line, "example", "expected a call {tool_name, …} or a result {status, …}")

    # Prose sections

    def _lint_purpose(self) -> Iterator[LintFinding]:
        section = self._filled_section("purpose")
        if section is None:
            return
        words = "\n".join(f"{part.heading.title}\n{part.text}" for part in section.parts)
        uses = _USES.search(words)
        # A label without text below it does not count.
        below = words[uses.end() :].lstrip(" :*_#\n") if uses is not None else ""
        if not below or _NOTES.match(below):
            yield self._error(section.line, "purpose", "use cases are missing")
        if not _NOTES.search(words):
            yield self._error(section.line, "purpose", "operational notes are missing")

    def _errors(self) -> Iterator[LintFinding]:
        section = self._filled_section("errors")
        if section is None:
            return
        types = _TYPE.findall(section.text)
        if not types:
            message = f"no error type is named (expected one of {', '.join(schemas.ERROR_TYPES)})"
            yield self._error(section.line, "errors", message)
        if not _MESSAGES.search(section.text):
            yield self._error(section.line, "errors", "the error messages are not described")
        for kind in dict.fromkeys(types):
            if kind not in schemas.ERROR_TYPES:
                yield self._warning(section.line, "errors", f"{kind} is not a standard error type")

    def _idempotency(self) -> Iterator[LintFinding]:
        section = self._filled_section("idempotency")
        if section is not None and not _STATED.search(section.text):
            yield self._error(section.line, "idempotency", "the section does not state whether the tool is idempotent")

    def _security(self) -> Iterator[LintFinding]:
        section = self._filled_section("security")
        if section is None:
            return
        # Stems, so that "validated", "validation" and "validates" all match.
        for word, words in (("risk", "risks"), ("validat", "input validation"), ("access", "access control")):
            if word not in section.text.lower():
                yield self._error(section.line, "security", f"the section does not cover {words}")


def _declares_fields(schema: Schema) -> bool:
    """Return whether a schema of `data` declares its contents. A value that is not an object is its member `result`."""
    if schema == UNDECLARED_OUTPUT_SCHEMA:
        return False
    members = get_properties(schema)
    if members.keys() == {"result"}:
        return declares_data(members["result"], schema)
    return declares_data(schema, schema)


def _column(table: MarkdownTable, name: str) -> int | None:
    return next((at for at, heading in enumerate(table.headings) if _strip_markdown(heading).lower() == name), None)


def _cells(table: MarkdownTable, named: Rows, column: str) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the name, line and text of each row's cell in a column, if the table has that column."""
    at = _column(table, column)
    if at is not None:
        yield from ((name, (line, row[at].strip() if len(row) > at else "")) for name, (line, row) in named.items())


def _strip_markdown(name: str) -> str:
    """Return a name without Markdown markup."""
    return re.sub(r"[`*|\\\s]", "", visible(name))


def _json_blocks(section: SpecSection) -> list[CodeFence]:
    return [fence for fence in section.fences if fence.language in ("json", "jsonc", "")]


def _schema_error(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "the schema must be an object"
    if schema.get("type") != "object":
        return 'the schema must declare "type": "object"'
    try:
        check_schema(schema)
    except InvalidSchema as failure:
        return f"invalid JSON Schema: {failure}"
    return ""


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    if "tool_name" in value:
        return "call"
    status = value.get("status")
    return "" if not isinstance(status, str) else "failure" if "failure" in status else "success"
