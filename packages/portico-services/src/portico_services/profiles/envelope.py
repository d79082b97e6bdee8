"""Envelope of a result: success, status, data, error and explanation.

It contains the members of two systems: one uses `error_type`, `error_message` and `error_details`, the other `code`,
`message` and `details` with the same meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.extend import ERROR_META_KEY, RESULT, CallToolParams, to_json
from portico.jsonschema import ArgumentIssue, SchemaReader, get_types, json_type
from portico.types import CallToolResult, TextContent

# Members of `portico/error` that are returned elsewhere or are not details.
_ENVELOPE_ERROR_KEYS = frozenset(
    {"error_type", "error_message", "error_details", "brief", "problems", "message", "details"}
)
# An invalid value longer than this as JSON is described instead of repeated.
MAX_ECHOED_VALUE_CHARS = 200


def build_envelope(result: CallToolResult, error: Mapping[str, Any], code_prefix: str = "") -> dict[str, Any]:
    """Return the members added next to the content.

    A success has no `error` at all, because the published schema requires an object there. With a `code_prefix`, an
    error also has an `errorCode` such as `MCP-ValidationError`.
    """
    own = _native_envelope(result)
    if not result.is_error:
        if own is not None:
            return {"success": True, **own}
        declared = result.meta.get(RESULT) if isinstance(result.meta, dict) else None
        envelope = {"status": "success", "explanation": None, **(declared if isinstance(declared, dict) else {})}
        return {
            "success": True,
            "status": envelope["status"],
            "data": _data(result),
            "explanation": envelope["explanation"],
        }
    text = "\n".join(item.text for item in result.content if isinstance(item, TextContent))
    message = error.get("message", error.get("error_message", text))
    described = {
        "error_type": error.get("error_type", "ToolExecutionError"),
        "error_message": message,
        "error_details": error["error_details"] if "error_details" in error else _extra_error_details(error),
        "code": error.get("code", "ToolExecutionError"),
        "message": message,
        "details": error.get("details", error.get("error_details")),
    }
    if code_prefix:
        is_invalid = described["code"] == "InvalidParams" or described["error_type"] == "ValidationError"
        described["errorCode"] = f"{code_prefix}{'ValidationError' if is_invalid else 'ToolExecutionError'}"
    explanation = own["explanation"] if own is not None else None
    return {"success": False, "status": "failure", "data": None, "error": described, "explanation": explanation}


def _extra_error_details(error: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the details of an error other than its type: a parameter, an id, a path."""
    return {name: part for name, part in error.items() if name not in _ENVELOPE_ERROR_KEYS} or None


def _native_envelope(result: CallToolResult) -> dict[str, Any] | None:
    """Return the envelope that a tool produces itself, or None for all other tools."""
    data = _data(result)
    if not isinstance(data, Raw):
        return None
    envelope = msgspec.json.decode(data)
    if not isinstance(envelope, dict) or envelope.keys() != {"status", "data", "error", "explanation"}:
        return None
    return {name: part for name, part in envelope.items() if name != "error" or part is not None}


def error_details(result: CallToolResult) -> dict[str, Any]:
    """Return the machine-readable error details of a result."""
    details = result.meta.get(ERROR_META_KEY) if isinstance(result.meta, dict) else None
    return details if isinstance(details, dict) else {}


def _data(result: CallToolResult) -> Any:
    """Return the structured content as an object, or None."""
    if result.structured_content is UNSET:
        return None
    raw = Raw(to_json(result.structured_content))
    return raw if bytes(raw).startswith(b"{") else {"result": raw}


def argument_error(problem: ArgumentIssue, schema: dict[str, Any], params: CallToolParams) -> dict[str, Any]:
    """Return the error for an invalid argument, with JSON types if the type is wrong."""
    details = {"path": problem.path, "expected": problem.expected, "received": problem.received}
    message = problem.message
    name = problem.path.removeprefix("arguments").removeprefix(".")
    reader = SchemaReader(schema)
    kinds = [kind for option in reader.alternatives(reader.member_schema(schema, name)) for kind in get_types(option)]
    expected_types = list(dict.fromkeys("number" if kind == "integer" else kind for kind in kinds if kind != "null"))
    sent = _decode_params(params)
    actual_type = _json_type_name(sent[name]) if name in sent else None
    if expected_types and actual_type is not None and actual_type not in expected_types:
        expected = " or ".join(expected_types)
        details |= {"expected": expected, "received": actual_type}
        message = f"Invalid parameter: {name} must be {'an' if expected[0] in 'aeiou' else 'a'} {expected}"
    elif expected_types and name not in sent:
        # The same wording whether an argument is missing or has the wrong type.
        details["expected"] = " or ".join(expected_types)
    problem_details: dict[str, Any] = {"parameter": name, "constraint": problem.expected}
    if name in sent:
        repeated = len(msgspec.json.encode(sent[name])) <= MAX_ECHOED_VALUE_CHARS
        problem_details["provided_value"] = sent[name] if repeated else problem.received
    return {
        "error_type": "ValidationError",
        "error_details": problem_details,
        "code": "InvalidParams",
        "message": message,
        "details": details,
    }


def _decode_params(params: CallToolParams) -> dict[str, Any]:
    """Return the arguments of a call, which have been parsed successfully before."""
    try:
        sent = msgspec.json.decode(params.arguments)
    except (ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}


def _json_type_name(value: Any) -> str:
    kind = json_type(value)
    return "number" if kind == "integer" else kind
