"""Format of a specification (eight sections per tool), and the parser for files in that format."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from msgspec import Struct, field

from portico.extend import exceeds_depth
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot
from portico_services.contracts.markdown import CodeFence, Heading, MarkdownTable, Subsection, parse_sections
from portico_services.contracts.outcomes import UNDECLARED_OUTPUT_SCHEMA

SPEC_FILE_NAME = "MCP_TOOL_SPECIFICATION.md"


class SectionDef(NamedTuple):
    """One of the eight sections, with its key and title."""

    key: str
    title: str


# The order is that of the standard; the linter reports sections that are out of order.
SECTIONS = (
    SectionDef("purpose", "Tool Purpose and Description"),
    SectionDef("invocation", "Invocation Name"),
    SectionDef("input", "Input Schema (Parameters)"),
    SectionDef("output", "Output Schema (Return Value)"),
    SectionDef("errors", "Error Handling"),
    SectionDef("idempotency", "Idempotency"),
    SectionDef("examples", "Usage Examples"),
    SectionDef("security", "Security Considerations"),
)
SECTION_ORDER = [chapter.key for chapter in SECTIONS]

_TOOL = re.compile(r"tool:\s*`?([^`]*)`?", re.IGNORECASE)
# Authors number sections as `3.`, `3)` or `2.3`, or not at all.
_NUMBER = re.compile(r"^\d+(?:\.\d+)*[.)]?\s+")
# Accepts `Version: 1.0.0`, `**Version**: 1.0.0`, `- **Version:** `1.0.0`` and a trailing comment in parentheses.
_VERSION = re.compile(r"^\s*(?:[-*]\s+)?\*{0,2}version\*{0,2}:?\*{0,2}:?\s*`?([^\s`(,]+)", re.IGNORECASE)


def tool_of(title: str) -> str:
    """Return the tool name of a heading `Tool: NAME`, or an empty string for any other heading."""
    named = _TOOL.fullmatch(title)
    return "" if named is None else named[1].strip()


def section_key(title: str) -> str | None:
    """Return the key of a section heading, with or without number and parentheses; None if it is not one."""
    words = re.sub(r"\([^)]*\)", "", _NUMBER.sub("", title)).strip(" *_`:").lower()
    return _TITLES.get(" ".join(words.split()))


_TITLES = {re.sub(r"\s*\([^)]*\)", "", chapter.title).lower(): chapter.key for chapter in SECTIONS}
# A common short form of the first title.
_TITLES["purpose and description"] = "purpose"


class SpecSection(Struct):
    """Section of a specification, including its subsections."""

    key: str
    heading: Heading
    parts: list[Subsection]

    @property
    def line(self) -> int:
        return self.heading.line

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts)

    @property
    def fences(self) -> list[CodeFence]:
        return [fence for part in self.parts for fence in part.fences]

    @property
    def tables(self) -> list[MarkdownTable]:
        return [table for part in self.parts for table in part.tables]

    @property
    def is_empty(self) -> bool:
        return not self.text.strip() and not self.fences


class ParsedSpec(Struct):
    """Parsed specification of one tool. Every part may be missing or invalid."""

    # Name in the heading; empty if the heading is missing.
    name: str
    line: int
    version: str = ""
    version_line: int = 0
    sections: list[SpecSection] = field(default_factory=list)

    def section(self, key: str) -> SpecSection | None:
        return next((section for section in self.sections if section.key == key), None)

    @property
    def invocation(self) -> tuple[str, int]:
        """Return the invocation name and its line."""
        section = self.section("invocation")
        if section is None:
            return "", self.line
        for part in section.parts:
            for number, text in part.lines:
                # The first inline code of the section is the name; prose around it is allowed.
                _, mark, rest = text.partition("`")
                result = rest.lstrip("`").partition("`")[0].strip() if mark else ""
                if result:
                    return result, number
            if part.fences:
                return part.fences[0].body.strip(), part.fences[0].line
        # Without any code markup, the first word is the best guess, and the linter reports it if it is not a name.
        words = section.text.split()
        return (words[0] if words else ""), section.line


def parse_specification(text: str) -> list[ParsedSpec]:
    """Parse a file into the specifications of its tools. Without a tool heading, the file is one unnamed
    specification.
    """
    results: list[ParsedSpec] = []
    for part in parse_sections(text):
        named = _TOOL.fullmatch(part.heading.title)
        if named is not None:
            results.append(ParsedSpec(named[1].strip(), part.heading.line))
        # A file for a single tool may omit the tool heading; the first section heading then starts it.
        elif not results and section_key(part.heading.title) is not None:
            results.append(ParsedSpec("", part.heading.line))
        if results:
            _add(results[-1], part)
    return results or [ParsedSpec("", 1)]


def _add(tool: ParsedSpec, part: Subsection) -> None:
    key = section_key(part.heading.title)
    if key is not None:
        tool.sections.append(SpecSection(key, part.heading, [part]))
    # Headings below a section, such as `#### Example 2`, belong to that section.
    elif tool.sections:
        tool.sections[-1].parts.append(part)
    # The version is stated below the tool heading or in the first section. Later mentions, such as in an example, are
    # not the tool's version.
    if not tool.version_line and (not tool.sections or tool.sections[-1].key == "purpose"):
        for number, text in part.lines:
            match = _VERSION.match(text)
            if match is not None:
                tool.version, tool.version_line = match[1], number
                return


def decode_json_block(fence: CodeFence) -> Any:
    """Parse the JSON of a code block. Raises InvalidJsonBlock with the line in the file."""
    # Checked before parsing: the recursive parser would fail with a RecursionError that depends on the caller's
    # stack.
    if exceeds_depth(fence.body):
        raise InvalidJsonBlock("the JSON is nested too deeply", fence.line)
    try:
        # Python's parser accepts NaN and Infinity, which are not JSON.
        return json.loads(fence.body, parse_constant=_refuse)
    except json.JSONDecodeError as failure:
        raise InvalidJsonBlock(f"invalid JSON: {failure.msg}", fence.line + failure.lineno - 1) from None
    except (ValueError, RecursionError) as failure:
        raise InvalidJsonBlock(f"invalid JSON: {failure}", fence.line) from None


class InvalidJsonBlock(ValueError):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


def section_schema(section: SpecSection | None) -> dict[str, Any] | None:
    """Return the first JSON block of a section if it is an object, else None."""
    for fence in section.fences if section is not None else ():
        if fence.language in ("json", "jsonc", ""):
            try:
                json_block = decode_json_block(fence)
            except InvalidJsonBlock:
                return None
            return json_block if isinstance(json_block, dict) else None
    return None


def contract_from_specification(text: str) -> ServerContract:
    """Return the contract that a specification file describes, for comparison. Unreadable parts are skipped."""
    tools = []
    for written in parse_specification(text):
        name = written.invocation[0] or written.name
        output = section_schema(written.section("output"))
        if name:
            tools.append(
                ToolDefinitionSnapshot(
                    # A specification has only invocation names; the listed name is assumed to be the last segment.
                    name=name.rpartition(".")[2],
                    invocation=name,
                    version=written.version,
                    description=_description(written),
                    input_schema=section_schema(written.section("input")) or {},
                    output_schema=None if output == UNDECLARED_OUTPUT_SCHEMA else output,
                )
            )
    return ServerContract(tools=tuple(tools), in_full=False)


def _description(written: ParsedSpec) -> str:
    """Return the first paragraph of the purpose section."""
    section = written.section("purpose")
    paragraphs = re.split(r"\n\s*\n", section.text.strip()) if section is not None else []
    return next((paragraph for paragraph in paragraphs if not _VERSION.match(paragraph)), "")
