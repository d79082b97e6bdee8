"""The envelope of a result: success, status, data, error and explanation, for clients that look for those.

It has the words of two systems. `error_type`, `error_message` and `error_details` are one's, `code`, `message` and
`details` the other's; what they are about is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.extend import ERROR, RESULT, CallToolParams, CallToolResult, TextContent, to_json
from portico.jsonschema import Problem, Reader, kind_of, types_of

# Members of `portico/error` that are said in another place, or are no details.
_SAID_ELSEWHERE = frozenset({"error_type", "error_message", "error_details", "brief", "problems", "message", "details"})
# A wrong value that is longer than this as JSON is described, and not repeated.
LONGEST_REPEATED = 200


def around(result: CallToolResult, error: Mapping[str, Any], code_prefix: str = "") -> dict[str, Any]:
    """Return the members that stand beside the content. On success there is no `error` at all: its published schema
    wants an object there. With a `code_prefix` an error has its code in a table of error codes, such as
    `MCP-ValidationError`, as `errorCode`."""
    own = _own_words(result)
    if not result.is_error:
        if own is not None:
            return {"success": True, **own}
        declared = result.meta.get(RESULT) if isinstance(result.meta, dict) else None
        said = {"status": "success", "explanation": None, **(declared if isinstance(declared, dict) else {})}
        return {"success": True, "status": said["status"], "data": _data(result), "explanation": said["explanation"]}
    text = "\n".join(one.text for one in result.content if isinstance(one, TextContent))
    message = error.get("message", error.get("error_message", text))
    described = {
        "error_type": error.get("error_type", "ToolExecutionError"),
        "error_message": message,
        "error_details": error["error_details"] if "error_details" in error else _rest(error),
        "code": error.get("code", "ToolExecutionError"),
        "message": message,
        "details": error.get("details", error.get("error_details")),
    }
    if code_prefix:
        is_invalid = described["code"] == "InvalidParams" or described["error_type"] == "ValidationError"
        described["errorCode"] = f"{code_prefix}{'ValidationError' if is_invalid else 'ToolExecutionError'}"
    explanation = own["explanation"] if own is not None else None
    return {"success": False, "status": "failure", "data": None, "error": described, "explanation": explanation}


def _rest(error: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a failure says of itself besides its type: a parameter, an id, a path."""
    return {name: part for name, part in error.items() if name not in _SAID_ELSEWHERE} or None


def _own_words(result: CallToolResult) -> dict[str, Any] | None:
    """What a tool says that speaks the envelope's words itself; None for every other."""
    data = _data(result)
    if not isinstance(data, Raw):
        return None
    said = msgspec.json.decode(data)
    if not isinstance(said, dict) or said.keys() != {"status", "data", "error", "explanation"}:
        return None
    return {name: part for name, part in said.items() if name != "error" or part is not None}


def about(result: CallToolResult) -> dict[str, Any]:
    """What a failure says of itself to programs."""
    said = result.meta.get(ERROR) if isinstance(result.meta, dict) else None
    return said if isinstance(said, dict) else {}


def _data(result: CallToolResult) -> Any:
    """The structured content as an object, or nothing."""
    if result.structured_content is UNSET:
        return None
    said = Raw(to_json(result.structured_content))
    return said if bytes(said).startswith(b"{") else {"result": said}


def mistake(problem: Problem, schema: dict[str, Any], params: CallToolParams) -> dict[str, Any]:
    """A wrong argument, in the types of JSON where it is the type that is wrong."""
    details = {"path": problem.path, "expected": problem.expected, "received": problem.received}
    message = problem.message
    name = problem.path.removeprefix("arguments").removeprefix(".")
    reader = Reader(schema)
    kinds = [kind for option in reader.options(reader.member(schema, name)) for kind in types_of(option)]
    wanted = list(dict.fromkeys("number" if kind == "integer" else kind for kind in kinds if kind != "null"))
    sent = _sent(params)
    given = _kind(sent[name]) if name in sent else None
    if wanted and given is not None and given not in wanted:
        expected = " or ".join(wanted)
        details |= {"expected": expected, "received": given}
        message = f"Invalid parameter: {name} must be {'an' if expected[0] in 'aeiou' else 'a'} {expected}"
    elif wanted and name not in sent:
        # The same words whether an argument is missing or of another type.
        details["expected"] = " or ".join(wanted)
    said: dict[str, Any] = {"parameter": name, "constraint": problem.expected}
    if name in sent:
        repeated = len(msgspec.json.encode(sent[name])) <= LONGEST_REPEATED
        said["provided_value"] = sent[name] if repeated else problem.received
    return {
        "error_type": "ValidationError",
        "error_details": said,
        "code": "InvalidParams",
        "message": message,
        "details": details,
    }


def _sent(params: CallToolParams) -> dict[str, Any]:
    """What was sent. It has been read before, and was JSON then."""
    try:
        sent = msgspec.json.decode(params.arguments)
    except (ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}


def _kind(value: Any) -> str:
    kind = kind_of(value)
    return "number" if kind == "integer" else kind
