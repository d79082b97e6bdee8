"""Generated specifications have all eight sections, and tool texts cannot break them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from portico import Client, Server
from portico.jsonschema.examples import NoExampleFound, generate_example
from portico_services.contracts import invoker, spec_parser
from portico_services.contracts.api import MCPToolCall, MCPToolResult, call
from portico_services.contracts.definitions import ServerContract, contract_from_tools
from portico_services.contracts.lint import LintFinding, lint_document
from portico_services.contracts.outcomes import data_schema
from portico_services.contracts.spec_writer import render_specification
from support.paths import ROOT
from support.random_schemas import ARGUMENTS, SCHEMAS

Make = Callable[..., ServerContract]
EXAMPLES = ROOT / "examples"
TITLES = [
    "1. Tool Purpose and Description",
    "2. Invocation Name",
    "3. Input Schema (Parameters)",
    "4. Output Schema (Return Value)",
    "5. Error Handling",
    "6. Idempotency",
    "7. Usage Examples",
    "8. Security Considerations",
]


# What only the author of a tool can say.
AUTHORS_RULES = ("purpose", "undeclared", "vocabulary", "examples")


def errors(text: str) -> list[LintFinding]:
    return [item for item in lint_document(text) if item.severity == "error" and item.rule not in AUTHORS_RULES]


def section(text: str, key: str) -> spec_parser.SpecSection:
    [written] = spec_parser.parse_specification(text)
    result = written.section(key)
    assert result is not None
    return result


def blocks(text: str, key: str) -> list[Any]:
    return [json.loads(fence.body) for fence in section(text, key).fences if fence.language == "json"]


async def test_specification_has_eight_sections_in_order(shop: Server) -> None:
    contract = await invoker.fetch_contract(shop)
    text = render_specification(contract)
    headings = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert headings == TITLES * len(contract.tools)
    assert errors(text) == []


async def test_specification_contains_the_declared_contract(shop: Server) -> None:
    contract = await invoker.fetch_contract(shop)
    buy = contract.find("buy")
    assert buy is not None
    text = render_specification(contract, [buy])
    assert "## Tool: `shop.buy`\n\n**Version**: 2.1.0\n" in text
    assert "| `product` | string | yes |  | What to buy |" in text
    assert '| `size` | "small" or "large" | no | `"small"` | Which size |' in text
    assert "| `to.street` | string | yes |  | The street |" in text
    assert "| `total` | number | yes | In the shop's currency |" in text
    assert "The server lists it as `buy`." in text
    assert "It stays inside the server." in text
    assert blocks(text, "input")[0]["properties"] == buy.input_schema["properties"]


async def test_tool_without_a_version_has_its_server_s(shop: Server) -> None:
    assert "**Version**: 1.4.0 (of the server:" in render_specification(await invoker.fetch_contract(shop))


async def test_examples_are_messages_of_the_contract_and_the_call_works(shop: Server) -> None:
    contract = await invoker.fetch_contract(shop)
    buy = contract.find("buy")
    assert buy is not None
    message, success, failure = blocks(render_specification(contract, [buy]), "examples")
    request = MCPToolCall.model_validate(message)
    assert MCPToolResult.model_validate(success).status == "success"
    assert MCPToolResult.model_validate(failure).error.error_type == "ValidationError"  # type: ignore[union-attr]
    assert (await call(shop, request)).status == "success"
    [program] = [
        fence.body
        for fence in section(render_specification(contract, [buy]), "examples").fences
        if fence.language == "python"
    ]
    ast.parse(program)


@pytest.mark.parametrize(
    "annotations, said",
    [
        ({"readOnlyHint": True}, "**Idempotent**: yes. It only reads"),
        ({"idempotentHint": True}, "**Idempotent**: yes. Repeated calls with"),
        ({}, "**Idempotent**: no."),
    ],
)
def test_specification_states_the_effect_of_a_repeated_call(
    tool: Make, annotations: dict[str, bool], said: str
) -> None:
    assert said in render_specification(tool(annotations=annotations))


def test_author_notes_appear_in_the_specification(tool: Make) -> None:
    notes = {
        "use_cases": ["When it rains."],
        "notes": ["Slow on Sundays."],
        "errors": [{"type": "ApiLimitExceeded", "when": "More than ten a minute.", "message": "Slow down."}],
        "idempotency": "Idempotent within a day.",
        "examples": [{"arguments": {"city": "Oslo"}, "data": {"mm": 3}, "explanation": "Rain."}],
        "security": ["It tells where you are."],
    }
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Where"}},
        "required": ["city"],
    }
    output = {"type": "object", "properties": {"mm": {"type": "number", "description": "Rain"}}}
    text = render_specification(tool(schema, output, _meta={"portico/spec": notes}))
    for words in (
        "- When it rains.",
        "- Slow on Sundays.",
        "| `ApiLimitExceeded` | More than ten a minute. | Slow down. |",
        "within a day",
    ):
        assert words in text
    assert blocks(text, "examples")[0]["arguments"] == {"city": "Oslo"}
    assert "- It tells where you are." in text
    assert [item for item in lint_document(text) if item.severity != "recommendation"] == []


def test_notes_that_cannot_be_read_are_noticed(tool: Make) -> None:
    [found] = tool(_meta={"portico/spec": {"use_case": ["typo"]}}).tools
    assert "portico/spec" in found.trouble
    assert "use_case" in found.trouble


@pytest.mark.parametrize("example", ["orders", "results", "everything", "library", "notes"])
async def test_every_tool_of_our_examples_has_a_specification_without_errors(example: str) -> None:
    async with Client(str(EXAMPLES / f"{example}.py")) as client:
        listed = [msgspec.to_builtins(tool) for tool in await client.list_tools()]
    assert errors(render_specification(contract_from_tools(listed, server=example, version="1.0.0"))) == []


# Words of others

HOSTILE = "\n\n".join(
    [
        "Harmless.",
        "## Tool: `evil.tool`",
        "**Version**: 9.9.9",
        "### 2. Invocation Name",
        "`evil.tool`",
        "```json\n{}\n```",
        "| a | b |\n| --- | --- |",
        "::error::pwned",
        "Title\n=====",
        "\u202eturned \x1b[31m red",
    ]
)


def test_description_cannot_break_out(tool: Make) -> None:
    member = {"type": "string", "description": f"a | b\n{HOSTILE}", "default": "`|`"}
    text = render_specification(
        tool({"type": "object", "properties": {"x|y`": member}}, description=HOSTILE, title=HOSTILE)
    )
    [written] = spec_parser.parse_specification(text)
    assert written.name == "s.t"
    assert written.version == "1.0.0"
    assert [section.key for section in written.sections] == spec_parser.SECTION_ORDER
    assert written.invocation[0] == "s.t"
    assert errors(text) == []
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


@pytest.mark.parametrize("name", ["a\nb", "", "## Tool: `x.y`", "É", "a`b", "x" * 300, "..", "A.B.C"])
def test_any_name_has_an_invocation_name(name: str) -> None:
    contract = contract_from_tools([{"name": name, "inputSchema": {"type": "object"}}], server="Ünicode Server!")
    text = render_specification(contract)
    assert errors(text) == []
    assert spec_parser.parse_specification(text)[0].invocation[0] == contract.tools[0].invocation


def test_names_that_would_be_the_same_are_distinguished() -> None:
    listed = [{"name": name, "inputSchema": {}} for name in ("do-it", "do_it", "DO IT", "do-it")]
    assert [tool.invocation for tool in contract_from_tools(listed, server="s").tools] == [
        "s.do_it",
        "s.do_it_2",
        "s.do_it_3",
    ]


@pytest.mark.parametrize(
    "schema", [None, [], "x", {"type": "string"}, {"properties": []}, {"$ref": "#/nowhere"}, {"type": 3}]
)
def test_invalid_schema_does_not_stop_rendering(schema: Any) -> None:
    render_specification(
        contract_from_tools(
            [{"name": "t", "inputSchema": schema, "outputSchema": schema, "annotations": 3, "_meta": []}]
        )
    )


def test_schema_without_end_is_rendered_in_bounds(tool: Make) -> None:
    wide = {f"p{n}": {"$ref": "#"} for n in range(50)}
    assert len(render_specification(tool({"type": "object", "properties": wide}))) < 200_000


def test_alternatives_that_multiply_are_put_into_words_in_bounds(tool: Make) -> None:
    many = {"anyOf": [{"$ref": "#/$defs/many"} for _ in range(100)]}
    fields = {f"p{n}": {"$ref": "#/$defs/many"} for n in range(50)}
    assert render_specification(tool({"type": "object", "properties": fields, "$defs": {"many": many}}))


def test_oversized_schema_is_omitted_with_a_reason(tool: Make) -> None:
    deep: Any = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"x": deep}}
    wide = {"type": "object", "properties": {f"p{n}": {"description": "x" * 1000} for n in range(300)}}
    for schema in (deep, wide):
        contract = tool(schema, schema)
        assert "exceeds" in contract.tools[0].trouble
        assert errors(render_specification(contract)) == []


@settings(max_examples=60, deadline=None)
@given(ARGUMENTS, st.none() | SCHEMAS, st.text())
def test_rendered_specification_has_no_lint_errors(
    arguments: dict[str, Any], output: dict[str, Any] | None, words: str
) -> None:
    try:
        generate_example(arguments)
        generate_example(data_schema(output), include_optional=True)
    except NoExampleFound:
        return
    entry = {"name": "t", "description": words, "inputSchema": arguments, "outputSchema": output}
    text = render_specification(contract_from_tools([entry], server=words, version="1.0.0"))
    assert errors(text) == []
