"""The linter reports missing, empty and invalid parts with their line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from portico import Client, Server
from portico_services import plugin
from portico_services.contracts import invoker, service
from portico_services.contracts.lint import lint_document, lint_tools
from portico_services.contracts.markdown import escape_paragraphs
from portico_services.contracts.spec_parser import contract_from_specification

TEMPLATE = (service.PAGES_DIR / "template.md").read_text()
META = (service.PAGES_DIR / "meta.md").read_text()
TITLES = re.findall(r"^### (.+)$", TEMPLATE, re.MULTILINE)


def found(text: str) -> list[tuple[str, str, str]]:
    """(severity, rule, the line that it is about)"""
    lines = text.splitlines()
    return [(item.severity, item.rule, lines[item.line - 1] if lines else "") for item in lint_document(text)]


def messages(text: str, severity: str = "error") -> list[str]:
    return [item.message for item in lint_document(text) if item.severity == severity]


def body(title: str) -> str:
    start = TEMPLATE.index(f"### {title}")
    end = TEMPLATE.find("\n### ", start)
    return TEMPLATE[start : end + 1 if end > 0 else len(TEMPLATE)]


def test_template_has_no_findings() -> None:
    assert lint_document(TEMPLATE) == []


def test_rules_document_names_every_linted_section() -> None:
    for title in TITLES:
        assert title.partition(" ")[2] in META


@pytest.mark.parametrize("text", ["", "nothing", "# A title\n\nSome words.\n"])
def test_empty_text_lacks_every_section(text: str) -> None:
    result = messages(text)
    assert len([item for item in result if item.startswith("section")]) == 8
    assert any("## Tool:" in item for item in result)
    assert any("Version" in item for item in result)


@pytest.mark.parametrize("title", TITLES)
def test_missing_section_is_an_error(title: str) -> None:
    text = TEMPLATE.replace(body(title), "")
    assert f"section {title[0]} is missing: {title[3:]}" in messages(text)
    assert ("error", "section", "## Tool: `module_name.tool_name`") in found(text)


@pytest.mark.parametrize("title", TITLES)
def test_empty_section_is_an_error_at_its_heading(title: str) -> None:
    text = TEMPLATE.replace(body(title), f"### {title}\n\n")
    assert ("error", "section", f"### {title}") in found(text)


def test_order_is_fixed() -> None:
    item, other = body(TITLES[4]), body(TITLES[5])
    text = TEMPLATE.replace(item + other, other + item)
    assert ("error", "order", f"### {TITLES[5]}") in found(text)


def test_duplicate_section_is_an_error() -> None:
    text = TEMPLATE.replace(body(TITLES[5]), body(TITLES[5]) * 2)
    assert ("error", "section", f"### {TITLES[5]}") in found(text)


@pytest.mark.parametrize(
    "old, new, rule, line",
    [
        ("**Version**: 1.0.0\n", "", "version", "## Tool: `module_name.tool_name`"),
        ("**Version**: 1.0.0", "**Version**: 1.0", "version", "**Version**: 1.0"),
        ("**Version**: 1.0.0", "**Version**: latest", "version", "**Version**: latest"),
        ("## Tool: `module_name.tool_name`\n", "", "tool", "### 1. Tool Purpose and Description"),
        ("\n`module_name.tool_name`\n", "\n`module_name.other`\n", "invocation", "`module_name.other`"),
        ("\n`module_name.tool_name`\n", "\n`ToolName`\n", "invocation", "`ToolName`"),
        (
            "| `text` | string | yes |  | The text |\n",
            "",
            "table",
            "| Parameter | Type | Required | Default | Description |",
        ),
        ("| `text` | string | yes |", "| `text` | string | no |", "table", "| `text` | string | no |  | The text |"),
        ("| `text` | string | yes |", "| `text` | string |  |", "table", "| `text` | string |  |  | The text |"),
        (
            "| `words` | integer | yes |",
            "| `words` | integer | no |",
            "table",
            "| `words` | integer | no | Number of words |",
        ),
        (
            '| no | `"en"` |',
            '| no | `"de"` |',
            "table",
            '| `language` | string | no | `"de"` | Language of the text, as a code of two letters |',
        ),
        ("| yes |  | The text |", "| yes | 7 | The text |", "table", "| `text` | string | yes | 7 | The text |"),
        (
            "| `words` | integer |",
            "| `wurst` | integer |",
            "table",
            "| `wurst` | integer | yes | Number of words |",
        ),
        (
            "| Parameter | Type | Required |",
            "| Parameter | Type | Needed |",
            "table",
            "| Parameter | Type | Needed | Default | Description |",
        ),
        (
            '"required": ["text"],\n  "additional',
            '"required": ["text"\n  "additional',
            "schema",
            '  "additionalProperties": false',
        ),
        (
            '  "type": "object",\n  "description": "The arg',
            '  "type": "array",\n  "description": "The arg',
            "schema",
            "{",
        ),
        ('"type": "integer", "description"', '"type": "whole", "description"', "schema", "{"),
        ('{"words": 3}\n```\n\n### 5', '{"words": -3}\n```\n\n### 5', "example", '{"words": -3}'),
        ('{"words": 3}\n```\n\n### 5', '{"words": \n```\n\n### 5', "example", '{"words": '),
        ('"arguments": {"text": "Three', '"arguments": {"txt": "Three', "example", "{"),
        ('  "tool_name": "module_name.tool_name"', '  "tool_name": "module_name.other"', "example", "{"),
        ('"status": "success"', '"status": "done"', "example", "{"),
        ('"data": {"words": 3}', '"data": {"words": "three"}', "example", "{"),
        ('  "data": null,\n  "error": {', '  "data": {},\n  "error": {', "example", "{"),
        ("**Idempotent**: yes. Repeated", "Repeated", "idempotency", "### 6. Idempotency"),
    ],
)
def test_lint_reports_errors_with_their_line(old: str, new: str, rule: str, line: str) -> None:
    assert old in TEMPLATE
    assert ("error", rule, line) in found(TEMPLATE.replace(old, new, 1))


@pytest.mark.parametrize(
    "marker, message",
    [
        ('"tool_name"', "a complete call"),
        ('"status": "success"', "successful"),
        ('"status": "failure"', "failed"),
    ],
)
def test_each_kind_of_example_has_to_be_there(marker: str, message: str) -> None:
    examples = body(TITLES[6])
    [block] = [one for one in re.findall(r"```json\n.*?```", examples, re.DOTALL) if marker in one]
    assert any(message in one for one in messages(TEMPLATE.replace(block, "")))


def test_table_and_a_schema_have_to_be_there() -> None:
    for title in TITLES[2:4]:
        text = TEMPLATE.replace(body(title), f"### {title}\n\nWords.\n\n")
        assert {rule for _, rule, line in found(text) if line == f"### {title}"} >= {"table", "schema"}


def test_error_types_have_to_be_named() -> None:
    text = TEMPLATE.replace(body(TITLES[4]), f"### {TITLES[4]}\n\nIt may fail.\n\n")
    assert any("no error type" in message for message in messages(text))


def test_error_type_that_tools_do_not_share_is_a_warning() -> None:
    text = TEMPLATE.replace("ToolExecutionError", "WeatherError")
    assert ["WeatherError" in message for message in messages(text, "warning")] == [True]
    assert messages(text) == []


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('"type": "string", "description": "The text",', '"type": "string",', "'text' has no description"),
        ("Access control: every caller of the server may call this tool.", "", "access control"),
        ("| Error type | When | Message |", "| Error type | When | Text |", "the error messages"),
        ("Operational notes:\n\n- The tool stores nothing and has no dependencies.\n\n", "", "operational notes"),
        ("```python", "```json", "from a program"),
    ],
)
def test_missing_required_content_is_a_lint_error(old: str, new: str, message: str) -> None:
    assert any(message in one for one in messages(swapped(old, new)))


@pytest.mark.parametrize(
    "old, name",
    [(', "examples": ["Three short words"]', "'text'"), (', "examples": [3]', "'words'")],
)
def test_missing_examples_are_a_recommendation(old: str, name: str) -> None:
    text = swapped(old, "")
    assert found(text) == [("recommendation", "examples", "{")]
    assert name in messages(text, "recommendation")[0]


def test_every_tool_in_a_document_is_linted() -> None:
    tool = TEMPLATE[TEMPLATE.index("## Tool:") :]
    second = tool.replace("module_name.tool_name", "module_name.second").replace("**Version**: 1.0.0", "**Version**: x")
    [finding] = lint_document(TEMPLATE + "\n" + second)
    assert (finding.tool, finding.rule) == ("module_name.second", "version")
    assert any("specified twice" in message for message in messages(TEMPLATE + "\n" + tool))


def test_heading_variants_are_accepted() -> None:
    text = TEMPLATE.replace("### 3. Input Schema (Parameters)", "## Input Schema").replace("### 8. ", "### 8) ")
    assert lint_document(text) == []


def test_heading_inside_a_code_block_is_ignored() -> None:
    text = TEMPLATE.replace(
        "**Idempotent**: yes.", "**Idempotent**: yes.\n\n~~~\n### 1. Tool Purpose and Description\n~~~\n\n"
    )
    assert lint_document(text) == []


def test_nan_is_invalid_json() -> None:
    assert any(
        "invalid JSON" in message
        for message in messages(TEMPLATE.replace('{"words": 3}\n```\n\n### 5', '{"words": NaN}\n```\n\n### 5'))
    )


def test_specification_can_be_read_as_a_contract() -> None:
    [tool] = contract_from_specification(TEMPLATE).tools
    assert (tool.invocation, tool.version, tool.name) == ("module_name.tool_name", "1.0.0", "tool_name")
    assert tool.input_schema["required"] == ["text"]
    assert tool.description.startswith("Count the words")


def test_number_of_findings_is_limited() -> None:
    assert len(lint_document("## Tool: `a.b`\n" * 2000)) == 1000


LONG = 200_000


@pytest.mark.parametrize(
    "line",
    [
        "# a" + " " * LONG + "b",
        "#" * LONG,
        "```" + "a" * LONG + "`",
        "```" + "`" * LONG,
        "-" + " " * LONG + "x",
        "|" * LONG + "\n|---|",
        "| a |\n|" + "-|" * LONG + "x",
        "## Tool:" + " " * LONG + "`x`",
        "### " + "(" * LONG,
        "## Tool: `a.b`\n### 2. Invocation Name\n`" + " " * LONG,
        "## Tool: `a.b`\n**Version**:" + " " * LONG,
        "## Tool: `a.b`\n### 5. Error Handling\n" + "A" * LONG,
        "\n" * LONG,
        "## Tool: `a.b`\n### 3. Input Schema\n```json\n" + "[" * LONG + "\n```",
    ],
    ids=range(14),
)
def test_no_line_takes_long(line: str) -> None:
    """By the square of its length, each of these would take hours."""
    assert lint_document(line)
    assert escape_paragraphs(line) is not None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_mutation_of_a_specification_breaks_the_linter(data: st.DataObject) -> None:
    text = TEMPLATE
    for _ in range(3):
        at = data.draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["```", "|", "#", "{", '"', "\n\n", "", "`", "[", "\x00"]))
            + text[at + data.draw(st.integers(0, 40)) :]
        )
    assert all(1 <= item.line <= len(text.splitlines()) + 1 for item in lint_document(text))


def test_pages_are_shipped() -> None:
    pages = {"meta.md", "template.md", "review-tool-spec.md", "write-tool-spec.md"}
    assert {page.name for page in Path(service.PAGES_DIR).iterdir()} == pages


def swapped(old: str, new: str) -> str:
    assert old in TEMPLATE
    return TEMPLATE.replace(old, new, 1)


@pytest.mark.parametrize(
    "old, new",
    [
        ("| `text` | string |", "| `text` | integer |"),
        ("| `text` | string |", "| `text` | string or integer |"),
        ("| `text` | string |", "| `text` | string or null |"),
        ("| `text` | string |", "| `text` | string[] |"),
        ("| `text` | string |", "| `text` | array of string |"),
        ("| `text` | string |", "| `text` | any |"),
        ("| `text` | string |", "| `text` |  |"),
        ("| `text` | string |", "| `text` | `bool` |"),
        ("| `words` | integer |", "| `words` | string |"),
        ("| `words` | integer |", "| `words` | boolean |"),
        ("| Field | Type |", "| Field | Sort |"),
    ],
)
def test_table_types_must_match_the_schema(old: str, new: str) -> None:
    assert [item[:2] for item in found(swapped(old, new))] == [("error", "table")]


@pytest.mark.parametrize(
    "old, new",
    [
        ("| `text` | string |", "| `text` | `String` (short) |"),
        ("| `text` | string |", "| `text` | str |"),
        ("| `text` | string |", "| `text` | path |"),
        ("| `language` | string |", "| `language` | string, optional |"),
        ("| `words` | integer |", "| `words` | number |"),
        ("| `words` | integer |", "| `words` | int |"),
        ('| no | `"en"` |', "| no | en |"),
        ('| no | `"en"` |', "| no | English |"),
        ('| no | `"en"` |', "| no |  |"),
        ("| yes |  | The text |", "| yes | none | The text |"),
        ("| yes |  | The text |", "| yes | null | The text |"),
    ],
)
def test_equivalent_type_and_default_wordings_are_accepted(old: str, new: str) -> None:
    assert lint_document(swapped(old, new)) == []


def test_alternatives_and_arrays_are_reported_unchanged() -> None:
    of = '"text": {"type": "string", "description": "The text", "examples": ["Three short words"]}'
    for schema, right, wrong in (
        ({"type": ["string", "null"]}, "string", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "integer | string", "string"),
        ({"enum": ["Three short words", "b"]}, "string", "integer"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "string or list", "string"),
    ):
        text = swapped(of, f'"text": {json.dumps({**schema, "description": "The text"})}')
        result = text.replace("| `text` | string |", f"| `text` | {right.replace('|', chr(92) + '|')} |")
        assert [item for item in lint_document(result) if item.severity != "recommendation"] == []
        assert messages(text.replace("| `text` | string |", f"| `text` | {wrong} |"))


@pytest.mark.parametrize(
    "old, new",
    [
        ("Use cases:\n\n- Check the length of a text before sending it.\n\n", ""),
        ("- Check the length of a text before sending it.\n\n", ""),
        ("Use cases:\n\n- Check the length", "- Check the length"),
    ],
)
def test_use_cases_have_to_be_named(old: str, new: str) -> None:
    assert messages(swapped(old, new)) == ["use cases are missing"]


@pytest.mark.parametrize(
    "property, message",
    [
        ({"description": "The text", "examples": ["a"]}, "'text' has no type in the schema"),
        ({"description": "The text", "default": "a", "maxLength": 5}, "'text' has no type in the schema"),
        (
            {"description": "The text", "type": "string", "default": 3},
            "the default of 'text' does not match the schema: 3 is not of type \"string\"",
        ),
        ({"description": "The text", "type": "array"}, "array 'text' does not declare its items"),
        ({"description": "The text", "type": "array", "items": {}}, "array 'text' does not declare its items"),
        ({"description": "x", "type": ["array", "null"]}, "array 'text' does not declare its items"),
        (
            {"description": "x", "anyOf": [{"type": "array"}, {"type": "null"}]},
            "array 'text' does not declare its items",
        ),
        (
            {"description": "x", "type": "array", "items": {"type": "array"}},
            "array 'text[]' does not declare its items",
        ),
        (
            {"description": "x", "type": "object", "additionalProperties": {"type": "array"}},
            "array 'text.*' does not declare its items",
        ),
    ],
)
def test_incomplete_schema_is_reported(property: dict[str, Any], message: str) -> None:
    of = '"text": {"type": "string", "description": "The text", "examples": ["Three short words"]}'
    text = swapped(of, f'"text": {json.dumps(property)}')
    severity = "warning" if "default of" in message else "error"
    assert message in messages(text, severity)


@pytest.mark.parametrize(
    "returns, is_declared",
    [
        (dict, False),
        (dict[str, Any], False),
        (dict[str, Any] | None, False),
        (list[dict[str, Any]], False),
        (dict[str, dict[str, Any]], False),
        (dict[str, int], True),
        (list[int], True),
        (int, True),
    ],
)
async def test_output_without_fields_is_not_declared(returns: Any, is_declared: bool) -> None:
    server = Server("s", version="1.0.0")

    async def talk() -> Any: ...

    talk.__annotations__["return"] = returns
    server.tool(talk)
    contract = await invoker.fetch_contract(server)
    rules = [finding.rule for finding in lint_tools(contract, contract.tools)]
    assert ("undeclared" not in rules) == is_declared


async def test_server_without_use_cases_lacks_them() -> None:
    server = Server("s", version="1.0.0")

    @server.tool
    async def add(number: Annotated[int, "A number"]) -> int:
        """Adds up."""
        return number

    @server.tool(meta={"portico/spec": {"use_cases": ["Add up a bill."]}})
    async def total(number: Annotated[int, "A number"]) -> int:
        """Adds up."""
        return number

    contract = await invoker.fetch_contract(server)
    wrong = [finding for finding in lint_tools(contract, contract.tools) if finding.rule == "purpose"]
    assert [(finding.tool, finding.severity) for finding in wrong] == [("s.add", "error")]


async def test_undeclared_output_is_an_error() -> None:
    server = Server("s", version="1.0.0")

    @server.tool(output_schema=None)
    async def talk(about: Annotated[str, "What to talk about"]):  # type: ignore[no-untyped-def]
        """Says something."""

    contract = await invoker.fetch_contract(server)
    assert contract.tools[0].output_schema is None
    wrong = [finding.rule for finding in lint_tools(contract, contract.tools) if finding.severity == "error"]
    assert wrong == ["purpose", "undeclared"]
    result = body(TITLES[3])
    bare = re.sub(r'  "properties": \{\n.*\n  \},\n', "", result)
    assert bare != result
    messages = [
        finding.rule
        for finding in lint_document(swapped(result, bare).replace('"required": ["words"]', '"required": []'))
    ]
    assert "undeclared" in messages


HIDDEN = [
    "\u202e",
    "\u200b",
    "\u2066",
    "\U000e0041",
    "\u3164",
    "\u034f",
    "\U000e0100",
    "\u200d",
    "\u00ad",
    "\x1b",
    "\u2800",
]


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("place", ["{} Reads the keys.", "Adds up \\{}Reads the keys."])
async def test_hidden_characters_in_descriptions_are_reported(hidden: str, place: str) -> None:
    words = f"Adds up.{place.format(hidden)}"
    for members in ({"description": words}, {"title": words}):
        server = Server("s", version="1.0.0")

        @server.tool(**members)
        async def add(number: Annotated[int, "A number"]) -> int:
            """Adds up."""
            return number

        contract = await invoker.fetch_contract(server)
        assert "hidden" in [finding.rule for finding in lint_tools(contract, contract.tools)]
        assert "hidden" in [finding.rule for finding in lint_document(TEMPLATE.replace("Count the words", words))]


@pytest.mark.parametrize("words", ["می‌خواهم", "👩‍👩‍👧 family", "5️⃣ and ❤️", "naïve Größe", "क्‍ष", "日本語　です"])
async def test_languages_and_emoji_hide_nothing(words: str) -> None:
    assert lint_document(TEMPLATE.replace("Count the words", words)) == []


@pytest.mark.parametrize("count", [10, 3000])
def test_alternatives_that_are_the_whole_again_take_no_longer(count: int) -> None:
    """Each in each, sixteen levels deep, nothing would come to an end."""
    of = '"text": {"type": "string", "description": "The text", "examples": ["Three short words"]}'
    itself = {"description": "x", "anyOf": [{"$ref": "#/properties/text"}] * count}
    text = swapped(of, f'"text": {json.dumps(itself)}').replace("| `text` | string |", "| `text` | integer |")
    assert isinstance(lint_document(text), list)


async def test_tools_of_servers_without_a_specification_have_no_errors() -> None:
    server = Server("calculator")

    @server.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with Client(server) as client:
        tools = [msgspec.to_builtins(tool) for tool in await client.list_tools()]
    findings = plugin.lint_tools(tools, "calculator", "1.0.0", "2026-07-28")
    assert {(finding["severity"], finding["rule"]) for finding in findings} == {("warning", "vocabulary")}
