"""Conversion of `tools/call` results to contract results: status, data, error, explanation.

Input and output are plain JSON values. Every failure gets one of the eight error types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from portico import UsageError
from portico.extend import ERROR_META_KEY, RESULT, WRAP_RESULT_KEY, decode_bounded
from portico.jsonschema import (
    InvalidSchema,
    Schema,
    SchemaError,
    ValidationIssue,
    check_schema,
    get_definitions,
    get_properties,
    get_types,
    resolve_references,
    validate,
    wrap_as_property,
)
from portico.text import truncate
from portico.types import V2025_06_18
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot
from portico_services.contracts.result_schema import MEMBERS, UNDECLARED_DATA, data_of_result, is_result_schema
from portico_services.contracts.schemas import STATUSES

# Schema of `data` for tools without an output schema: the text, and all content blocks if there are others.
UNDECLARED_OUTPUT_SCHEMA: Schema = {
    "type": "object",
    "description": "Result of a tool without output schema: its text, or its content blocks.",
    "properties": {
        "text": {"type": "string", "description": "All text of the result"},
        "content": {
            "type": "array",
            "description": "Content blocks, if there are others than text",
            "items": {"type": "object"},
        },
    },
    "required": [],
}


def data_schema(output: Schema | None) -> Schema:
    """Return the schema of `data`, which is always an object: other values become its member `result`.

    For a tool that returns MCPToolResult, the schema of its data is extracted from the result schema.
    """
    if output is None:
        return UNDECLARED_OUTPUT_SCHEMA
    if is_result_schema(output):
        return data_of_result(output)
    # Protocol versions before 2026-07-28 allow only objects as structured content, so servers wrap other values in
    # `result`.
    output = unwrap_result_schema(output)
    if has_object_output(output):
        return output
    return wrap_as_property(output, "result", description="Value that the tool returns")


def is_declared(output: Schema | None) -> bool:
    """Return whether a tool declares a schema of its data."""
    return output is not None and data_schema(output) != UNDECLARED_DATA


def unwrap_result_schema(output: Schema) -> Schema:
    """Return the schema of the value without the object that older protocol versions wrap around it."""
    inner = get_properties(output).get("result")
    if not output.get(WRAP_RESULT_KEY) or not isinstance(inner, dict):
        return output
    return {**inner, **get_definitions(output)}


def has_object_output(output: Schema) -> bool:
    """Return whether the tool's output is declared to be an object, so that it can be used as `data` directly."""
    references = resolve_references(output, output)
    return get_types(references) == ["object"] or ("type" not in references and bool(get_properties(references)))


def require_validator() -> None:
    """Raise UsageError if the package that validates JSON Schema is not installed."""
    try:
        check_schema({})
    except SchemaError as error:
        raise UsageError(str(error)) from None


Outcome = dict[str, Any]


class ContractOutputViolation(Exception):
    """A result violates the output schema of its tool; `outcome` describes the violation."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


MAX_MESSAGE_CHARS = 4000
MAX_ECHOED_VALUE_CHARS = 200
TOOL_NOT_FOUND_CODE = "MCP-ToolNotFound"


def success(data: dict[str, Any] | None, explanation: str | None = None, status: str = "success") -> Outcome:
    return {"status": status, "data": data, "error": None, "explanation": explanation}


def failure(
    error_type: str, message: str, details: dict[str, Any] | str | None = None, explanation: str | None = None
) -> Outcome:
    error = {"error_type": error_type, "error_message": message[:MAX_MESSAGE_CHARS], "error_details": details}
    return {"status": "failure", "data": None, "error": error, "explanation": explanation}


# Results


def outcome_from_result(
    result: Mapping[str, Any], tool: ToolDefinitionSnapshot | None = None, revision: str = ""
) -> Outcome:
    """Convert a `tools/call` result to an outcome. Raises ContractOutputViolation."""
    # 2026-07-28: a result without resultType is complete. `input_required` and `task` carry no data yet.
    if result.get("resultType", "complete") != "complete":
        asks = "requires user input or runs as a task: call it directly with a client that supports this"
        return failure("ToolExecutionError", f"The tool {asks}.", {"result_type": str(result["resultType"])[:100]})
    content = [block for block in result.get("content") or () if isinstance(block, Mapping)]
    text = "".join(str(block.get("text", "")) for block in content if block.get("type") == "text")
    if result.get("isError"):
        return _outcome_from_error(result, text)
    # `structuredContent` may be present with the value null, so membership decides and not the value.
    structured = result.get("structuredContent")
    has_structured = "structuredContent" in result
    payload = structured if has_structured else _in_text(content, text, revision)
    schema = tool.output_schema if tool is not None else None
    # A tool that follows the contract itself is taken at its word; wrapping its result again would nest status in
    # data.
    if isinstance(payload, dict) and _is_outcome(payload):
        adopted = _from_native_outcome(payload, text)
        if schema is not None and adopted["data"] is not None:
            _require_kept(data_schema(schema), adopted["data"])
        return adopted
    if schema is not None:
        # MCP 2025-06-18, Tools: a server with an output schema MUST provide conforming structured results.
        if not has_structured:
            payload = "The tool declares structured output but returned none."
            raise ContractOutputViolation(failure("ToolExecutionError", payload, {"constraint": "outputSchema"}))
        _require_kept(schema, structured)
    data = _data(structured, schema) if has_structured else _from_content(content, text, revision)
    declared = _read_declared_status(result)
    # The text usually repeats the structured content for older clients; only other text explains something.
    explanation = None if not has_structured or _is_repeated_in_text(text, structured) else text or None
    return success(data, _explanation(declared) or explanation, declared.get("status", "success"))


def _read_declared_status(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status and explanation from a result's `_meta`, or an empty mapping if they are invalid."""
    meta = result.get("_meta")
    declared = meta.get(RESULT) if isinstance(meta, Mapping) else None
    # A failure cannot be declared in `_meta` of a successful result: clients that ignore `_meta` would miss it.
    is_valid = isinstance(declared, Mapping) and declared.get("status") in STATUSES and declared["status"] != "failure"
    return declared if is_valid and isinstance(declared, Mapping) else {}


def _is_outcome(document: dict[str, Any]) -> bool:
    """Return whether a tool returned a contract result itself."""
    return (
        document.get("status") in STATUSES
        # No other members: a tool may have an own `status` field, for example the status of an order.
        and document.keys() <= MEMBERS
        and ("data" in document or "error" in document)
    )


def _from_native_outcome(document: dict[str, Any], text: str) -> Outcome:
    """Convert a result that already has the form of the contract, as far as it is consistent."""
    if document["status"] == "failure":
        return _typed_error(document.get("error"), text, _explanation(document))
    data = document.get("data")
    # `data` is an object in the contract; other values are wrapped as for any other tool.
    data = data if data is None or isinstance(data, dict) else {"result": data}
    result = success(data, _explanation(document), document["status"])
    error = document.get("error")
    return result | {"error": _typed_error(error, text)["error"]} if isinstance(error, Mapping) else result


def _explanation(document: Mapping[str, Any]) -> str | None:
    """Return the `explanation` of a result, or None if it is not a string."""
    explanation = document.get("explanation")
    return explanation[:MAX_MESSAGE_CHARS] if isinstance(explanation, str) else None


def _typed_error(error: Any, text: str, explanation: str | None = None) -> Outcome:
    """Convert a typed error. Without a type the text becomes a ToolExecutionError."""
    if not isinstance(error, Mapping) or not isinstance(error.get("error_type"), str) or not error["error_type"]:
        message = text or "The tool failed without an error message."
        return failure("ToolExecutionError", message, explanation=explanation)
    # Errors of Portico servers have their details as members of the error, errors of the contract in error_details.
    details = (
        error["error_details"] if "error_details" in error else argument_problems(error) or _additional_members(error)
    )
    details = dict(details) if isinstance(details, Mapping) else details if isinstance(details, str) else None
    return failure(error["error_type"][:100], str(error.get("error_message") or text), details, explanation)


def _additional_members(error: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the additional members of an error from a Portico server, such as an id or a code."""
    return {name: part for name, part in error.items() if name not in ("error_type", "error_message", "brief")} or None


def _require_kept(schema: Schema, structured: Any) -> None:
    """Raise ContractOutputViolation if a value does not match the tool's own output schema."""
    try:
        require_validator()
        wrong = validate(schema, structured)
    except InvalidSchema:
        # An unusable schema cannot be violated; the linter reports it.
        return
    if wrong:
        message = f"The tool returned a result that violates its output schema: {wrong[0].message}"
        details = {"field": wrong[0].path, "constraint": wrong[0].keyword}
        raise ContractOutputViolation(failure("ToolExecutionError", message, details))


def _data(structured: Any, schema: Schema | None) -> dict[str, Any]:
    fits = isinstance(structured, dict) and (schema is None or has_object_output(schema))
    return structured if fits else {"result": structured}


def _from_content(content: list[Mapping[str, Any]], text: str, revision: str) -> dict[str, Any] | None:
    if not content:
        return None
    if any(block.get("type") != "text" for block in content):
        return {"text": text, "content": [dict(block) for block in content]}
    result = _in_text(content, text, revision)
    return {"text": text} if result is None else result


def _in_text(content: list[Mapping[str, Any]], text: str, revision: str) -> dict[str, Any] | None:
    """Parse the JSON in a text result of a protocol version that had no structured content.

    Values that are not objects are wrapped in `result`, as later versions do.
    """
    # Later versions have structuredContent, so JSON in their text is meant as text.
    if not revision or revision >= V2025_06_18 or any(block.get("type") != "text" for block in content):
        return None
    result = _json(text)
    if isinstance(result, bool | int | float | list):
        return {"result": result}
    return result if isinstance(result, dict) else None


def _is_repeated_in_text(text: str, structured: Any) -> bool:
    """Return whether the text only repeats the structured data, for clients that do not support it."""
    result = _json(text)
    return bool(result == structured or result == {"result": structured} or {"result": result} == structured)


def _json(text: str) -> Any:
    try:
        return decode_bounded(text)
    except (ValueError, RecursionError):
        return text


# Errors


def _outcome_from_error(result: Mapping[str, Any], text: str) -> Outcome:
    meta, structured = result.get("_meta"), result.get("structuredContent")
    error_meta = meta.get(ERROR_META_KEY) if isinstance(meta, Mapping) else None
    spoken = structured if isinstance(structured, dict) else _json(text)
    # A tool that returns contract results explains the failure there; a server with an envelope explains it next to the
    # content.
    own = spoken if isinstance(spoken, dict) and _is_outcome(spoken) else result if _is_envelope(result) else None
    if own is None:
        return _typed_error(error_meta, text)
    return _typed_error(own.get("error") if error_meta is None else error_meta, text, _explanation(own))


def _is_envelope(result: Mapping[str, Any]) -> bool:
    return result.get("status") == "failure" and isinstance(result.get("error"), Mapping)


def with_suggestion(outcome: Outcome, name: str, contract: ServerContract) -> Outcome:
    """Add similar tool names to the failure of a call to an unknown tool."""
    if outcome["status"] != "failure" or not _says_unknown(outcome["error"], name, contract):
        return outcome
    error_details = outcome["error"]["error_details"]
    details = {"code": TOOL_NOT_FOUND_CODE, **(error_details if isinstance(error_details, dict) else {}), "name": name}
    similar = [tool.invocation for tool in contract.suggest(name)]
    suggestions = {"suggestions": similar} if similar else {}
    message = outcome["error"]["error_message"]
    return failure("ResourceNotFound", message, {**details, **suggestions}, outcome["explanation"])


def _says_unknown(error: Mapping[str, Any], name: str, contract: ServerContract) -> bool:
    """Return whether an error means that the tool does not exist.

    Portico servers use a code. Other servers mention the name in a general error, and the name is not listed.
    """
    details = error["error_details"]
    if isinstance(details, dict) and details.get("code") == TOOL_NOT_FOUND_CODE:
        return True
    # Servers report an unknown tool in many ways: as -32602, or as a tool result with isError. The name in the
    # message, together with its absence from the list, is the best evidence.
    general = error["error_type"] in ("ToolExecutionError", "ValidationError")
    return general and bool(contract.tools) and name in error["error_message"]


def invalid_arguments(complaints: list[ValidationIssue]) -> Outcome:
    """Return the failure for arguments that do not match the tool's schema, detected before the call."""
    result = [
        {"parameter": complaint.path, "constraint": complaint.message, "provided_value": _echo(complaint.received)}
        # A missing argument has no provided value; null would claim that null was passed.
        if complaint.keyword != "required"
        else {"parameter": complaint.path, "constraint": complaint.message}
        for complaint in complaints
    ]
    message = "; ".join(f"{complaint.path or 'arguments'}: {complaint.message}" for complaint in complaints)
    return failure("ValidationError", f"Invalid arguments: {message}", _first_of(result))


def _echo(value: Any) -> Any:
    """Return the received value, or the beginning of its JSON if it is long: a response must not repeat megabytes."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except (ValueError, RecursionError, OverflowError):
        return truncate(repr(value), MAX_ECHOED_VALUE_CHARS)
    if len(text) <= MAX_ECHOED_VALUE_CHARS:
        return value
    return truncate(value if isinstance(value, str) else text, MAX_ECHOED_VALUE_CHARS)


def argument_problems(data: Any) -> dict[str, Any] | None:
    """Return the details of invalid arguments from the `problems` list of a Portico server, or None if there is
    none.
    """
    listed = data.get("problems") if isinstance(data, Mapping) else None
    result = [_problem(item) for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return _first_of(result) if result else None


def _problem(error: Mapping[str, Any]) -> dict[str, Any]:
    path = str(error.get("path", "")).removeprefix("arguments").removeprefix(".")
    return {
        "parameter": path,
        "constraint": str(error.get("expected", "")),
        "provided_value": str(error.get("received", "")),
    }


def _first_of(problems: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the details of the first problem, with all problems if there are several."""
    return problems[0] if len(problems) == 1 else {**problems[0], "problems": problems}
