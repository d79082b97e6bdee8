"""The form of a specification: eight sections for each tool. And a file in that form, taken apart."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from msgspec import Struct, field

from portico.extend import TOO_DEEP, exceeds_depth
from portico_services.contracts.definitions import Contract, Definition
from portico_services.contracts.markdown import Fence, Heading, Subsection, Table, parts
from portico_services.contracts.outcomes import UNDECLARED

FILE = "MCP_TOOL_SPECIFICATION.md"
LONGEST = 16 * 1024 * 1024


class Chapter(NamedTuple):
    """One of the eight, and the names that it goes by."""

    key: str
    title: str


CHAPTERS = (
    Chapter("purpose", "Tool Purpose and Description"),
    Chapter("invocation", "Invocation Name"),
    Chapter("input", "Input Schema (Parameters)"),
    Chapter("output", "Output Schema (Return Value)"),
    Chapter("errors", "Error Handling"),
    Chapter("idempotency", "Idempotency"),
    Chapter("examples", "Usage Examples"),
    Chapter("security", "Security Considerations"),
)
ORDER = [chapter.key for chapter in CHAPTERS]

_TOOL = re.compile(r"tool:\s*`?([^`]*)`?", re.IGNORECASE)
_NUMBER = re.compile(r"^\d+(?:\.\d+)*[.)]?\s+")
_VERSION = re.compile(r"^\s*(?:[-*]\s+)?\*{0,2}version\*{0,2}:?\*{0,2}:?\s*`?([^\s`(,]+)", re.IGNORECASE)


def tool_of(title: str) -> str:
    """Return the name of the tool that a heading `Tool: NAME` begins; empty for any other heading."""
    named = _TOOL.fullmatch(title)
    return "" if named is None else named[1].strip()


def key_of(title: str) -> str | None:
    """Which of the eight a heading is; with or without its number and what stands in parentheses."""
    words = re.sub(r"\([^)]*\)", "", _NUMBER.sub("", title)).strip(" *_`:").lower()
    return _TITLES.get(" ".join(words.split()))


_TITLES = {re.sub(r"\s*\([^)]*\)", "", chapter.title).lower(): chapter.key for chapter in CHAPTERS}
_TITLES["purpose and description"] = "purpose"


class SpecSection(Struct):
    """One section as it stands in the file: also with what stands under headings of its own below it."""

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
    def fences(self) -> list[Fence]:
        return [fence for part in self.parts for fence in part.fences]

    @property
    def tables(self) -> list[Table]:
        return [table for part in self.parts for table in part.tables]

    @property
    def is_empty(self) -> bool:
        return not self.text.strip() and not self.fences


class Written(Struct):
    """One tool's specification as it is written. Every part may be missing, or wrong."""

    # As its heading has it; empty where there is no such heading.
    name: str
    line: int
    version: str = ""
    version_line: int = 0
    sections: list[SpecSection] = field(default_factory=list)

    def section(self, key: str) -> SpecSection | None:
        return next((one for one in self.sections if one.key == key), None)

    @property
    def invocation(self) -> tuple[str, int]:
        """The invocation name, and its line."""
        section = self.section("invocation")
        if section is None:
            return "", self.line
        for part in section.parts:
            for number, text in part.lines:
                found = _in_backticks(text)
                if found:
                    return found, number
            if part.fences:
                return part.fences[0].body.strip(), part.fences[0].line
        words = section.text.split()
        return (words[0] if words else ""), section.line


def _in_backticks(line: str) -> str:
    _, mark, rest = line.partition("`")
    return rest.lstrip("`").partition("`")[0].strip() if mark else ""


def read(text: str) -> list[Written]:
    """The tools of a file. Without a heading that names one, all of it is taken for one without a name."""
    found: list[Written] = []
    for part in parts(text):
        named = _TOOL.fullmatch(part.heading.title)
        if named is not None:
            found.append(Written(named[1].strip(), part.heading.line))
        elif not found and key_of(part.heading.title) is not None:
            found.append(Written("", part.heading.line))
        if found:
            _add(found[-1], part)
    return found or [Written("", 1)]


def _add(tool: Written, part: Subsection) -> None:
    key = key_of(part.heading.title)
    if key is not None:
        tool.sections.append(SpecSection(key, part.heading, [part]))
    elif tool.sections:
        tool.sections[-1].parts.append(part)
    if not tool.version_line and (not tool.sections or tool.sections[-1].key == "purpose"):
        for number, text in part.lines:
            said = _VERSION.match(text)
            if said is not None:
                tool.version, tool.version_line = said[1], number
                return


def decoded(fence: Fence) -> Any:
    """The JSON of a block. Raises ValueError, with the line in the file."""
    if exceeds_depth(fence.body):
        raise NotJsonExample(TOO_DEEP, fence.line)
    try:
        return json.loads(fence.body, parse_constant=_refuse)
    except json.JSONDecodeError as failure:
        raise NotJsonExample(f"this is no JSON: {failure.msg}", fence.line + failure.lineno - 1) from None
    except (ValueError, RecursionError) as failure:
        raise NotJsonExample(f"this is no JSON: {failure}", fence.line) from None


class NotJsonExample(ValueError):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number there")


def schema_of(section: SpecSection | None) -> dict[str, Any] | None:
    """The first block of JSON in a section, if it is an object."""
    for fence in section.fences if section is not None else ():
        if fence.language in ("json", "jsonc", ""):
            try:
                found = decoded(fence)
            except NotJsonExample:
                return None
            return found if isinstance(found, dict) else None
    return None


def contract(text: str) -> Contract:
    """What a file promises, to be held against something else. What cannot be read is left out."""
    tools = []
    for written in read(text):
        name = written.invocation[0] or written.name
        output = schema_of(written.section("output"))
        if name:
            tools.append(
                Definition(
                    name=name.rpartition(".")[2],
                    invocation=name,
                    version=written.version,
                    description=_description(written),
                    input_schema=schema_of(written.section("input")) or {},
                    output_schema=None if output == UNDECLARED else output,
                )
            )
    return Contract(tools=tuple(tools), in_full=False)


def _description(written: Written) -> str:
    """The first paragraph of the first section."""
    section = written.section("purpose")
    paragraphs = re.split(r"\n\s*\n", section.text.strip()) if section is not None else []
    return next((one for one in paragraphs if not _VERSION.match(one)), "")
