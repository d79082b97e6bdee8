"""Is a specification complete, and does it hold together? Each finding has its line."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Literal

from msgspec import Struct

from portico.definitions import hides, spells_hidden, visible
from portico.jsonschema import (
    Schema,
    TableField,
    Unfit,
    complaints,
    fields,
    properties_of,
    require,
    required_of,
    type_words,
)
from portico_services.contracts import definitions, schemas
from portico_services.contracts.definitions import Contract, Definition, plain
from portico_services.contracts.invocation_names import is_invocation
from portico_services.contracts.markdown import Fence, Table
from portico_services.contracts.outcomes import UNDECLARED, require_validator
from portico_services.contracts.result_schema import declares_data
from portico_services.contracts.schema_lint import contradicts, unfit_defaults, unsaid, without_examples
from portico_services.contracts.spec_parser import (
    CHAPTERS,
    ORDER,
    NotJsonExample,
    SpecSection,
    Written,
    decoded,
    read,
)
from portico_services.contracts.spec_writer import render

MOST_FINDINGS = 1000

# A recommendation is advice of the standard: not even --strict demands it.
Severity = Literal["error", "warning", "recommendation"]
_TITLES = {chapter.key: chapter.title for chapter in CHAPTERS}
_USES = re.compile(
    r"\buse[- ]?cases?\b|\bscenarios?\b|\b(?:when|how) to use\b"
    r"|\bused? (?:it |this |the tool )?(?:for|when|whenever|to)\b",
    re.IGNORECASE,
)
_NOTES = re.compile(r"\b(?:operation\w*|usage)? ?notes?\b|\boperational\b", re.IGNORECASE)
_STATED = re.compile(r"\bidempoten", re.IGNORECASE)
_MESSAGES = re.compile(r"\bmessages?\b", re.IGNORECASE)
_TYPE = re.compile(r"\b[A-Z][A-Za-z]*(?:Error|NotFound|Exceeded)\b")


_UNSEEN = "are invisible characters, or some that turn the direction of writing"
MAX_NAMED = 5

# Of a table, by the name in the first cell: the line, and the cells.
Rows = dict[str, tuple[int, list[str]]]
_YES = ("yes", "true", "required", "always")


class LintFinding(Struct, frozen=True):
    """One thing that is wrong."""

    line: Annotated[int, "The line in the text, from 1"]
    severity: Annotated[Severity, "How bad it is"]
    rule: Annotated[str, "Which rule it breaks"]
    message: Annotated[str, "What is wrong, in words"]
    tool: Annotated[str, "Whose specification it is"]


def lint(text: str) -> list[LintFinding]:
    """Everything that is wrong with a file of specifications, from the top."""
    require_validator()
    found: list[LintFinding] = []
    seen: set[str] = set()
    for written in read(text):
        for finding in _Linter(written, seen).findings():
            found.append(finding)
            if len(found) >= MOST_FINDINGS:
                return found
    found += islice(_hidden(text), MOST_FINDINGS - len(found))
    return sorted(found, key=lambda finding: finding.line)


def lint_tools(contract: Contract, tools: Sequence[Definition]) -> list[LintFinding]:
    """Everything that is wrong with what would be written about these tools, with the lines it would have. What is
    hidden is looked for before it is made visible."""
    text = render(contract, tools)
    lines = {written.name: written.line for written in read(text)}
    found = [one for one in lint(text) if one.rule != "hidden"]
    for tool in tools:
        line = lines.get(tool.invocation, 1)
        if tool.trouble:
            found.append(LintFinding(line, "error", "notes", tool.trouble, tool.invocation))
        if any(hides(said) for said in _texts(plain(tool))):
            found.append(LintFinding(line, "warning", "hidden", f"in its definition {_UNSEEN}", tool.invocation))
    return sorted(found, key=lambda finding: finding.line)[:MOST_FINDINGS]


def lint_offers(contract: Contract) -> Iterator[LintFinding]:
    """What is hidden in the instructions of a server, and in what it offers besides tools: models read that, too."""
    if hides(contract.instructions or ""):
        yield LintFinding(1, "warning", "hidden", f"in the instructions {_UNSEEN}", "")
    for offer in contract.offers or ():
        if any(map(hides, _texts(offer.definition))):
            said = f"in the {offer.kind} {visible(offer.key)} {_UNSEEN}"
            yield LintFinding(1, "warning", "hidden", said, "")


def _texts(value: Any) -> Iterator[str]:
    """Every text of a definition, names included. Its schemas are no deeper than they may be."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_texts, value))


def _hidden(text: str) -> Iterator[LintFinding]:
    """What a model reads and people do not see, as it stands or as `render` makes it visible."""
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if hides(line) or spells_hidden(line):
            yield LintFinding(number, "warning", "hidden", f"here {_UNSEEN}", "")


class _Linter:
    def __init__(self, written: Written, seen: set[str]) -> None:
        self._written = written
        self._seen = seen
        self._name = written.invocation[0] or written.name

    def findings(self) -> Iterator[LintFinding]:
        yield from self._head()
        yield from self._sections()
        yield from self._purpose()
        yield from self._invocation()
        arguments = yield from self._schema("input", "Parameter")
        data = yield from self._schema("output", "Field")
        yield from self._outputs(data)
        yield from self._errors()
        yield from self._idempotency()
        yield from self._examples(arguments, data)
        yield from self._security()

    def _error(self, line: int, rule: str, message: str) -> LintFinding:
        return LintFinding(line, "error", rule, message, self._name)

    def _warning(self, line: int, rule: str, message: str) -> LintFinding:
        return LintFinding(line, "warning", rule, message, self._name)

    def _filled(self, key: str) -> SpecSection | None:
        section = self._written.section(key)
        return None if section is None or section.is_empty else section

    # What has to be there

    def _head(self) -> Iterator[LintFinding]:
        tool = self._written
        if not tool.name:
            yield self._error(tool.line, "tool", "there is no heading `## Tool: `module_name.tool_name``")
        if not tool.version_line:
            yield self._error(tool.line, "version", "there is no line `**Version**: X.Y.Z` below the tool's heading")
        elif definitions.parse(tool.version) is None:
            yield self._error(tool.version_line, "version", f"{tool.version!r} is no semantic version X.Y.Z")

    def _sections(self) -> Iterator[LintFinding]:
        found = [section.key for section in self._written.sections]
        for number, key in enumerate(ORDER, 1):
            section = self._written.section(key)
            if section is None:
                yield self._error(self._written.line, "section", f"section {number} is missing: {_TITLES[key]}")
            elif section.is_empty:
                yield self._error(section.line, "section", f"section {number} is empty: {_TITLES[key]}")
        for at, section in enumerate(self._written.sections):
            if section.key in found[:at]:
                yield self._error(section.line, "section", f"there are two sections {_TITLES[section.key]}")
        first = list(dict.fromkeys(found))
        ordered = sorted(first, key=ORDER.index)
        if first != ordered:
            wrong = next(key for key, right in zip(first, ordered, strict=True) if key != right)
            section = self._written.section(wrong)
            line = section.line if section is not None else self._written.line
            yield self._error(line, "order", f"{_TITLES[wrong]} does not stand in its place: the order is fixed")

    def _invocation(self) -> Iterator[LintFinding]:
        if self._filled("invocation") is None:
            return
        name, line = self._written.invocation
        if not is_invocation(name):
            yield self._error(line, "invocation", f"{name!r} is no invocation name: lower case, module_name.tool_name")
        if self._written.name and self._written.name != name:
            yield self._error(line, "invocation", f"the heading says {self._written.name!r}, and this {name!r}")
        if name in self._seen:
            yield self._error(line, "invocation", f"{name!r} is specified twice")
        self._seen.add(name)

    # Schemas and their tables

    def _schema(self, key: str, subject: str) -> Generator[LintFinding, None, Schema | None]:
        section = self._filled(key)
        if section is None:
            return None
        if not section.tables:
            yield self._error(
                section.line, "table", f"{_TITLES[key]} has no table with one row for each {subject.lower()}"
            )
        blocks = _json_blocks(section)
        if not blocks:
            yield self._error(section.line, "schema", f"{_TITLES[key]} has no JSON Schema in a block of ```json")
            return None
        try:
            schema: Schema = decoded(blocks[0])
        except NotJsonExample as failure:
            yield self._error(failure.line, "schema", str(failure))
            return None
        wrong = _unfit(schema)
        if wrong:
            yield self._error(blocks[0].line, "schema", wrong)
            return None
        yield from self._vocabulary(schema, blocks[0].line, subject)
        if section.tables:
            yield from self._table(section.tables[0], schema, subject)
        return schema

    def _vocabulary(self, schema: Schema, line: int, subject: str) -> Iterator[LintFinding]:
        for message in unsaid(schema):
            yield self._error(line, "vocabulary", message)
        for message in unfit_defaults(schema):
            yield self._warning(line, "vocabulary", message)
        if subject == "Field" and not _declares_fields(schema):
            message = "the tool declares no schema of its data: annotate what it returns with a class that has fields"
            yield self._error(line, "undeclared", message)
        names = list(islice(without_examples(schema), MAX_NAMED + 1))
        if names:
            listed = ", ".join(map(repr, names[:MAX_NAMED])) + (", …" if len(names) > MAX_NAMED else "")
            message = f"`examples` are recommended in the schema; missing for {listed}"
            yield LintFinding(line, "recommendation", "examples", message, self._name)

    def _table(self, table: Table, schema: Schema, subject: str) -> Iterator[LintFinding]:
        known = properties_of(schema)
        named = {_bare(row[0]): (line, row) for line, row in table.rows if row}
        required = {_bare(name) for name in required_of(schema)}
        shown = {_bare(name): name for name in known}
        for bare, name in shown.items():
            if bare not in named:
                yield self._error(table.line, "table", f"the table has no row for {name!r}, which is in the schema")
        for name, (line, _) in named.items():
            top = name.split(".")[0].removesuffix("[]")
            if known and name not in shown and top not in shown and not name.startswith("("):
                yield self._error(line, "table", f"{subject.lower()} {name!r} is not in the schema")
        yield from self._types(table, schema, named)
        firm = {name: (name in required) for name in shown}
        if subject == "Field":
            yield from self._flags(table, named, firm, "alwaysthere", "always there by")
            return
        if known and _column(table, "required") is None:
            yield self._error(table.line, "table", "the table does not say which parameters are required")
        yield from self._flags(table, named, firm, "required", "required by")
        yield from self._defaults(table, known, named)

    def _flags(
        self, table: Table, named: Rows, firm: dict[str, bool], column: str, words: str
    ) -> Iterator[LintFinding]:
        """Cells that say yes or no, and say otherwise than the schema."""
        for name, (line, said) in _cells(table, named, column):
            if name in firm and (said.lower() in _YES) != firm[name]:
                yield self._error(line, "table", f"{name!r} is {'' if firm[name] else 'not '}{words} the schema")

    def _defaults(self, table: Table, known: dict[str, Any], named: Rows) -> Iterator[LintFinding]:
        """Cells with a value of JSON that is not the default of the schema."""
        defaults = {
            _bare(name): one["default"] for name, one in known.items() if isinstance(one, dict) and "default" in one
        }
        for name, (line, said) in _cells(table, named, "default"):
            try:
                value = json.loads(said.strip("`"))
            except (ValueError, RecursionError):
                continue
            if value is not None and name in map(_bare, known) and defaults.get(name) not in (value, said.strip("`")):
                yield self._error(line, "table", f"{name!r} has another default in the schema, or none")

    def _types(self, table: Table, schema: Schema, named: Rows) -> Iterator[LintFinding]:
        column = _column(table, "type")
        known: dict[str, TableField] = {_bare(one.name): one for one in fields(schema)}
        if column is None:
            if known:
                yield self._error(table.line, "table", "the table does not say which types these are of")
            return
        for name, (line, row) in named.items():
            said = row[column] if len(row) > column else ""
            if name not in known:
                continue
            if not said:
                yield self._error(line, "table", f"the table does not say of which type {name!r} is")
            elif contradicts(said, known[name].schema, schema):
                right = type_words(known[name].schema, schema)
                yield self._error(line, "table", f"{name!r} is called {said}, and is {right} in the schema")

    # Examples

    def _outputs(self, data: Schema | None) -> Iterator[LintFinding]:
        section = self._filled("output")
        if section is None or data is None:
            return
        examples = _json_blocks(section)[1:]
        if not examples:
            yield self._error(section.line, "example", "there is no example of what the tool gives")
        for fence in examples:
            yield from self._fits(fence, data, "it")

    def _fits(self, fence: Fence, schema: Schema, what: str) -> Iterator[LintFinding]:
        try:
            value = decoded(fence)
        except NotJsonExample as failure:
            yield self._error(failure.line, "example", str(failure))
            return
        yield from self._valid(value, schema, fence.line, what)

    def _valid(self, value: Any, schema: Schema, line: int, what: str) -> Iterator[LintFinding]:
        try:
            wrong = complaints(schema, value)
        except Unfit as failure:
            yield self._error(line, "example", f"{what} cannot be checked: {failure}")
            return
        for one in wrong[:3]:
            where = f" at {one.path}" if one.path else ""
            yield self._error(line, "example", f"{what} does not fit{where}: {one.message}")

    def _examples(self, arguments: Schema | None, data: Schema | None) -> Iterator[LintFinding]:
        section = self._filled("examples")
        if section is None:
            return
        kinds: set[str] = set()
        for fence in _json_blocks(section):
            try:
                value = decoded(fence)
            except NotJsonExample as failure:
                yield self._error(failure.line, "example", str(failure))
                continue
            kinds.add(_kind(value))
            yield from self._example(value, fence, arguments, data)
        missing = {
            "call": "a complete call, {tool_name, arguments}",
            "success": "the result of a call that succeeds",
            "failure": "the result of a call that fails",
        }
        for kind, words in missing.items():
            if kind not in kinds:
                yield self._error(section.line, "example", f"there is no example of {words}")
        if all(fence.language in ("json", "") for fence in section.fences):
            yield self._error(section.line, "integration", "there is no example of how it is called from a program")

    def _example(
        self, value: Any, fence: Fence, arguments: Schema | None, data: Schema | None
    ) -> Iterator[LintFinding]:
        kind = _kind(value)
        if kind == "call":
            yield from self._valid(value, schemas.TOOL_CALL, fence.line, "the call")
            said = value.get("tool_name")
            if self._name and said != self._name:
                yield self._error(fence.line, "example", f"it calls {said!r}, and this is {self._name!r}")
            if arguments is not None and isinstance(value.get("arguments"), dict):
                yield from self._valid(value["arguments"], arguments, fence.line, "`arguments`")
        elif kind:
            yield from self._valid(value, schemas.TOOL_RESULT, fence.line, "the result")
            if kind == "failure" and (not value.get("error") or value.get("data") is not None):
                yield self._error(fence.line, "example", "a failure has an `error`, and no `data`")
            if kind != "failure" and data is not None and value.get("data") is not None:
                yield from self._valid(value["data"], data, fence.line, "`data`")
        else:
            yield self._error(fence.line, "example", "this is neither a call {tool_name, …} nor a result {status, …}")

    # Words

    def _purpose(self) -> Iterator[LintFinding]:
        section = self._filled("purpose")
        if section is None:
            return
        words = "\n".join(f"{part.heading.title}\n{part.text}" for part in section.parts)
        uses = _USES.search(words)
        # A label with nothing below it names none.
        below = words[uses.end() :].lstrip(" :*_#\n") if uses is not None else ""
        if not below or _NOTES.match(below):
            yield self._error(section.line, "purpose", "no use cases are named")
        if not _NOTES.search(words):
            yield self._error(section.line, "purpose", "there are no operational notes")

    def _errors(self) -> Iterator[LintFinding]:
        section = self._filled("errors")
        if section is None:
            return
        types = _TYPE.findall(section.text)
        if not types:
            said = f"no error type is named: {', '.join(schemas.ERROR_TYPES)}"
            yield self._error(section.line, "errors", said)
        if not _MESSAGES.search(section.text):
            yield self._error(section.line, "errors", "the messages of the errors are not described")
        for kind in dict.fromkeys(types):
            if kind not in schemas.ERROR_TYPES:
                yield self._warning(section.line, "errors", f"{kind} is none of the types that tools share")

    def _idempotency(self) -> Iterator[LintFinding]:
        section = self._filled("idempotency")
        if section is not None and not _STATED.search(section.text):
            yield self._error(section.line, "idempotency", "it does not say whether the tool is idempotent")

    def _security(self) -> Iterator[LintFinding]:
        section = self._filled("security")
        if section is None:
            return
        for word, words in (("risk", "risks"), ("validat", "input validation"), ("access", "access control")):
            if word not in section.text.lower():
                yield self._error(section.line, "security", f"nothing is said about {words}")


def _declares_fields(schema: Schema) -> bool:
    """Return whether a schema of `data` says what is in it. A value that is no object is its field `result`."""
    if schema == UNDECLARED:
        return False
    members = properties_of(schema)
    if members.keys() == {"result"}:
        return declares_data(members["result"], schema)
    return declares_data(schema, schema)


def _column(table: Table, name: str) -> int | None:
    return next((at for at, heading in enumerate(table.headings) if _bare(heading).lower() == name), None)


def _cells(table: Table, named: Rows, column: str) -> Iterator[tuple[str, tuple[int, str]]]:
    """What the rows of a table say in a column, if it has that one: the name, the line and the words."""
    at = _column(table, column)
    if at is not None:
        yield from ((name, (line, row[at].strip() if len(row) > at else "")) for name, (line, row) in named.items())


def _bare(name: str) -> str:
    """A name without what Markdown puts around it."""
    return re.sub(r"[`*|\\\s]", "", visible(name))


def _json_blocks(section: SpecSection) -> list[Fence]:
    return [fence for fence in section.fences if fence.language in ("json", "jsonc", "")]


def _unfit(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "the schema is no object"
    if schema.get("type") != "object":
        return 'the schema does not say "type": "object"'
    try:
        require(schema)
    except Unfit as failure:
        return f"this is no JSON Schema that can be used: {failure}"
    return ""


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    if "tool_name" in value:
        return "call"
    status = value.get("status")
    return "" if not isinstance(status, str) else "failure" if "failure" in status else "success"
