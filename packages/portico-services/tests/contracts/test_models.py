"""Contract messages: valid and rejected ones."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pydantic
import pytest

from portico_services.contracts import schemas
from portico_services.contracts.api import (
    CONTRACT_VERSION,
    ERROR_TYPES,
    ContractContext,
    MCPErrorDetail,
    MCPToolCall,
    MCPToolResult,
)
from portico_services.contracts.invocation_names import INVOCATION_PATTERN
from portico_services.contracts.models import CONTEXT_KEY

CALL = {
    "tool_name": "ai_code_editing.generate_code",
    "arguments": {"prompt": "Add up numbers.", "language": "python", "context_code": "# here"},
}
SUCCESS = {
    "status": "success",
    "data": {
        "generated_code": "def add(numbers):\n    return sum(numbers)",
        "language": "python",
        "lines_generated": 2,
    },
    "explanation": "A function that adds up.",
    "error": None,
}
FAILURE = {
    "status": "failure",
    "data": None,
    "error": {
        "error_type": "ValidationError",
        "error_message": "The prompt is empty",
        "error_details": {"parameter": "prompt", "provided_value": "", "constraint": "not empty"},
    },
    "explanation": "The arguments were wrong.",
}


def refuses(model: type[pydantic.BaseModel], value: Any) -> str:
    with pytest.raises(pydantic.ValidationError) as failure:
        model.model_validate(value)
    schema = model.model_json_schema()
    assert schema["title"]
    return str(failure.value)


# A call


def test_sample_call_is_one_and_survives_a_round_trip() -> None:
    call = MCPToolCall.model_validate_json(json.dumps(CALL))
    assert call.model_dump() == CALL
    assert MCPToolCall.model_validate_json(call.model_dump_json(indent=2)) == call
    assert call.model_dump_json(indent=2).splitlines()[1] == '  "tool_name": "ai_code_editing.generate_code",'


@pytest.mark.parametrize(
    "name",
    [
        "generate_code",
        "Ai.generate",
        "ai.Generate",
        "ai.",
        ".ai",
        "ai..code",
        "ai code.x",
        "ai-x.y",
        "",
        "a.b\n",
        "ä.b",
    ],
)
def test_invalid_invocation_name_is_rejected(name: str) -> None:
    assert "tool_name" in refuses(MCPToolCall, CALL | {"tool_name": name})
    assert not jsonschema_rs.is_valid(MCPToolCall.model_json_schema(), CALL | {"tool_name": name})


@pytest.mark.parametrize("name", ["a.b", "a.b.c", "0.1", "_._", "system.eventlog_query"])
def test_name_of_two_or_more_parts_is_one(name: str) -> None:
    assert MCPToolCall(tool_name=name, arguments={}).tool_name == name
    assert jsonschema_rs.is_valid(MCPToolCall.model_json_schema(), CALL | {"tool_name": name})


def test_unknown_call_members_are_rejected() -> None:
    assert "id" in refuses(MCPToolCall, CALL | {"id": 1})
    assert not jsonschema_rs.is_valid(MCPToolCall.model_json_schema(), CALL | {"id": 1})


@pytest.mark.parametrize("missing", ["tool_name", "arguments"])
def test_both_members_of_a_call_are_required(missing: str) -> None:
    assert missing in refuses(MCPToolCall, {name: value for name, value in CALL.items() if name != missing})


@pytest.mark.parametrize("arguments", [None, [], "text", 3])
def test_arguments_are_an_object(arguments: Any) -> None:
    refuses(MCPToolCall, CALL | {"arguments": arguments})


def test_values_of_python_become_values_of_json() -> None:
    values = {
        "text": "ä",
        "whole": 3,
        "part": 1.5,
        "yes": True,
        "list": [1, "a"],
        "object": {"a": None},
        "nothing": None,
        "when": datetime(2024, 1, 15, 10, 30, tzinfo=UTC),
        "where": Path("/tmp/x"),
    }
    data = json.loads(MCPToolCall(tool_name="a.b", arguments=values).model_dump_json())["arguments"]
    assert data == values | {"when": "2024-01-15T10:30:00Z", "where": "/tmp/x"}
    assert [type(data[name]) for name in ("whole", "part", "yes")] == [int, float, bool]


# A result


@pytest.mark.parametrize("sample", [SUCCESS, FAILURE])
def test_sample_results_are_results(sample: dict[str, Any]) -> None:
    result = MCPToolResult.model_validate(sample)
    assert json.loads(result.model_dump_json()) == sample
    assert MCPToolResult.model_validate_json(result.model_dump_json(indent=2)) == result
    assert jsonschema_rs.is_valid(MCPToolResult.model_json_schema(), sample)


def test_result_status_defaults_to_success_and_data_is_optional() -> None:
    assert MCPToolResult().model_dump() == {"status": "success", "data": None, "error": None, "explanation": None}
    assert MCPToolResult.model_validate({"status": "no_change_needed"}).data is None
    assert MCPToolResult(status="partial_success", data={"a": 1}).data == {"a": 1}


def test_unknown_status_is_rejected() -> None:
    assert "status" in refuses(MCPToolResult, SUCCESS | {"status": "done"})
    assert not jsonschema_rs.is_valid(MCPToolResult.model_json_schema(), {"status": "done"})


def test_failure_without_an_error_is_rejected() -> None:
    assert "error" in refuses(MCPToolResult, {"status": "failure"})
    assert "error" in refuses(MCPToolResult, FAILURE | {"error": None})


def test_failure_with_data_is_rejected() -> None:
    assert "data" in refuses(MCPToolResult, FAILURE | {"data": {}})


def test_result_cannot_be_made_inconsistent_afterwards() -> None:
    result = MCPToolResult()
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        result.status = "failure"  # type: ignore[misc]
    assert result.status == "success"


def test_extra_result_members_are_preserved() -> None:
    message = SUCCESS | {"content": [{"type": "text", "text": "hello"}], "isError": False}
    assert MCPToolResult.model_validate(message).model_dump() == message
    assert jsonschema_rs.is_valid(MCPToolResult.model_json_schema(), message)


@pytest.mark.parametrize("data", [[], "text", 3])
def test_data_is_an_object_or_nothing(data: Any) -> None:
    refuses(MCPToolResult, {"status": "success", "data": data})


# An error


def test_error_has_a_type_and_a_message() -> None:
    for missing in ("error_type", "error_message"):
        assert missing in refuses(
            MCPErrorDetail, {name: "x" for name in ("error_type", "error_message") if name != missing}
        )


@pytest.mark.parametrize("details", [{"path": "/x"}, "words", None])
def test_details_are_an_object_a_text_or_nothing(details: Any) -> None:
    detail = MCPErrorDetail(error_type="FileNotFoundError", error_message="gone", error_details=details)
    assert detail.error_details == details
    assert jsonschema_rs.is_valid(MCPErrorDetail.model_json_schema(), detail.model_dump())


def test_other_details_are_rejected() -> None:
    refuses(MCPErrorDetail, {"error_type": "x", "error_message": "y", "error_details": [1]})


def test_eight_error_types_exist() -> None:
    assert list(ERROR_TYPES) == [
        "ValidationError",
        "FileNotFoundError",
        "AuthenticationError",
        "ResourceNotFound",
        "ToolExecutionError",
        "ApiLimitExceeded",
        "TimeoutError",
        "PermissionError",
    ]


# Their schemas


@pytest.mark.parametrize(
    "model, title",
    [
        (MCPToolCall, "MCP Tool Call"),
        (MCPToolResult, "MCP Tool Result"),
        (MCPErrorDetail, "MCP Error Detail"),
        (ContractContext, "MCP Contract Context"),
    ],
)
def test_schema_of_draft_07_is_published(model: type[pydantic.BaseModel], title: str) -> None:
    schema = model.model_json_schema()
    assert (schema["title"], schema["$schema"]) == (title, "http://json-schema.org/draft-07/schema#")
    jsonschema_rs.Draft7Validator(schema)
    assert set(schema["properties"]) == set(model.model_fields)
    assert all(item.get("description") for item in schema["properties"].values())
    schema["title"] = "changed"
    assert model.model_json_schema()["title"] == title


def test_shape_of_the_published_schemas_is_the_documented_one() -> None:
    call, result = MCPToolCall.model_json_schema(), MCPToolResult.model_json_schema()
    assert call["required"] == ["tool_name", "arguments"]
    assert call["additionalProperties"] is False
    assert call["properties"]["tool_name"]["pattern"] == r"^[a-z0-9_]+(\.[a-z0-9_]+)+$"
    assert call["properties"]["arguments"]["additionalProperties"] is True
    assert result["required"] == ["status"]
    assert result["properties"]["status"]["enum"] == ["success", "failure", "no_change_needed", "partial_success"]
    assert result["properties"]["status"]["default"] == "success"
    assert result["properties"]["data"]["type"] == ["object", "null"]
    assert result["properties"]["explanation"]["type"] == ["string", "null"]
    error = result["definitions"]["MCPErrorDetail"]
    assert error["required"] == ["error_type", "error_message"]
    assert [item["type"] for item in error["properties"]["error_details"]["oneOf"]] == ["object", "string", "null"]
    assert MCPErrorDetail.model_json_schema()["properties"]["error_type"]["examples"] == list(ERROR_TYPES)


# The context


def test_published_schemas_match_the_code() -> None:
    assert schemas.TOOL_CALL_SCHEMA["properties"]["tool_name"]["pattern"] == INVOCATION_PATTERN
    assert schemas.CONTEXT_SCHEMA["properties"]["contract_version"]["default"] == CONTRACT_VERSION
    for error in (schemas.ERROR_DETAIL_SCHEMA, schemas.TOOL_RESULT_SCHEMA["definitions"]["MCPErrorDetail"]):
        assert error["properties"]["error_type"]["examples"] == list(ERROR_TYPES)


def test_context_travels_in_meta() -> None:
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    context = ContractContext(caller="planner", deadline=deadline, roots=["file:///srv"], metadata={"a": 1})
    meta = context.to_meta()
    assert meta[CONTEXT_KEY]["deadline"] == "2030-01-01T00:00:00Z"
    assert ContractContext.from_meta(meta) == context
    assert ContractContext.from_meta({}) is None
    assert jsonschema_rs.is_valid(ContractContext.model_json_schema(), meta[CONTEXT_KEY])


def test_contract_1_0_0_accepts_only_versions_1_x() -> None:
    assert CONTRACT_VERSION == "1.0.0"
    assert ContractContext(contract_version="1.7.2").contract_version == "1.7.2"
    refuses(ContractContext, {"contract_version": "2.0.0"})


def test_deadline_has_a_time_zone() -> None:
    assert "time zone" in refuses(ContractContext, {"deadline": "2030-01-01T00:00:00"})


def test_every_context_has_a_unique_correlation_id() -> None:
    assert ContractContext().correlation_id != ContractContext().correlation_id


# Without pydantic

MISSING = """
import sys
sys.modules["pydantic"] = None
from portico_services.contracts.api import CONTRACT_VERSION, Contracts
Contracts()
try:
    from portico_services.contracts.api import MCPToolCall
except ImportError as missing:
    print(missing)
"""


def test_missing_pydantic_is_reported_only_by_the_models() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install 'portico-services[contracts]'" in done.stdout


def test_importing_the_names_imports_no_pydantic() -> None:
    code = (
        "import sys, portico_services.contracts.api; from portico_services.contracts.api import Contracts; "
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_models_are_exported_from_mcp_schemas() -> None:
    from portico_services.contracts import mcp_schemas

    assert mcp_schemas.MCPToolCall is MCPToolCall
    assert mcp_schemas.MCPToolResult is MCPToolResult
    assert mcp_schemas.MCPErrorDetail is MCPErrorDetail


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    value = float(number)
    for kind, said in (
        (MCPToolCall, f'{{"tool_name": "a.b", "arguments": {{"x": [{number}]}}}}'),
        (MCPToolResult, f'{{"status": "success", "data": {{"x": {{"y": {number}}}}}}}'),
        (MCPErrorDetail, f'{{"error_type": "a", "error_message": "b", "error_details": {{"x": {number}}}}}'),
    ):
        with pytest.raises(pydantic.ValidationError, match="finite"):
            kind.model_validate_json(said)
    request = MCPToolCall(tool_name="a.b", arguments={})
    request.arguments["x"] = value
    with pytest.raises(ValueError, match="finite"):
        request.model_dump_json()
    with pytest.raises(pydantic.ValidationError, match="finite"):
        MCPToolResult(data={"x": value})
