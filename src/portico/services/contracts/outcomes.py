"""From what a server answers a call with to the contract's result: status, data, error, explanation.

Plain JSON in, plain JSON out. Whatever went wrong ends as a failure with one of the eight types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from portico.schema import Schema
from portico.schema import check as schemas
from portico.schema.check import Complaint
from portico.schema.problems import nearest
from portico.services.contracts.definitions import Contract, Definition
from portico.services.contracts.outputs import is_object, require_validator
from portico.services.contracts.published import STATUSES
from portico.wire.revisions import V2025_06_18

Outcome = dict[str, Any]

# The member of a result's `_meta` in which a tool says what kind of error it was.
ERROR_KEY = "portico/error"
LONGEST_MESSAGE = 4000
NOT_FOUND = "MCP-ToolNotFound"

_MEMBERS = frozenset({"status", "data", "error", "explanation"})
# The words in which our own servers refuse arguments, and say that time is up or a scope missing.
_ARGUMENT = re.compile(r"^(?:Invalid|Missing|Unknown) argument '([^']*)'.*", re.MULTILINE)
_WORDS = (
    (re.compile(r"^(?:Invalid|Missing|Unknown) argument"), "ValidationError"),
    (re.compile(r"did not finish within [\d.]+ s\.$"), "TimeoutError"),
    (re.compile(r"needs the scope "), "PermissionError"),
)
# JSON-RPC's own, and those of the protocol.
_CODES = {-32602: "ValidationError", -32002: "ResourceNotFound", -32020: "ValidationError"}
# HTTP's, where that is how a server refuses.
_HTTP = {
    401: "AuthenticationError",
    403: "PermissionError",
    404: "ResourceNotFound",
    408: "TimeoutError",
    429: "ApiLimitExceeded",
    504: "TimeoutError",
}


def success(data: dict[str, Any] | None, explanation: str | None = None, status: str = "success") -> Outcome:
    return {"status": status, "data": data, "error": None, "explanation": explanation}


def failure(error_type: str, message: str, details: dict[str, Any] | str | None = None) -> Outcome:
    error = {"error_type": error_type, "error_message": message[:LONGEST_MESSAGE], "error_details": details}
    return {"status": "failure", "data": None, "error": error, "explanation": None}


# What a tool said


def outcome(result: Mapping[str, Any], tool: Definition | None = None, revision: str = "") -> Outcome:
    """The result of `tools/call`, as JSON."""
    if result.get("resultType", "complete") != "complete":
        asks = (
            "asks for something in the middle, or goes on as a task: call it by itself, with a client that can answer"
        )
        return failure("ToolExecutionError", f"The tool {asks}.", {"result_type": str(result["resultType"])[:100]})
    content = [block for block in result.get("content") or () if isinstance(block, Mapping)]
    text = "".join(str(block.get("text", "")) for block in content if block.get("type") == "text")
    if result.get("isError"):
        return _failed(result, text)
    structured = result.get("structuredContent")
    given = "structuredContent" in result
    if isinstance(structured, dict) and _is_outcome(structured):
        return _adopted(structured, text)
    schema = tool.output_schema if tool is not None else None
    if schema is not None:
        broken = _broken(schema, structured, given)
        if broken is not None:
            return broken
    data = _data(structured, schema) if given else _from_content(content, text, revision)
    return success(data, None if not given or _says(text, structured) else text or None)


def _is_outcome(said: dict[str, Any]) -> bool:
    """A tool that speaks the contract itself."""
    return said.get("status") in STATUSES and said.keys() <= _MEMBERS and ("data" in said or "error" in said)


def _adopted(said: dict[str, Any], text: str) -> Outcome:
    """What a tool says in the contract's own words, as far as they are consistent."""
    if said["status"] == "failure":
        return _typed(said.get("error"), text)
    data, explanation = said.get("data"), said.get("explanation")
    data = data if data is None or isinstance(data, dict) else {"result": data}
    found = success(data, explanation if isinstance(explanation, str) else None, said["status"])
    error = said.get("error")
    return found | {"error": _typed(error, text)["error"]} if isinstance(error, Mapping) else found


def _typed(said: Any, text: str) -> Outcome:
    """An error that says its type; where it does not, the words have to do."""
    if not isinstance(said, Mapping) or not isinstance(said.get("error_type"), str) or not said["error_type"]:
        return in_words(text or "The tool failed and did not say why.")
    details = said.get("error_details")
    details = dict(details) if isinstance(details, Mapping) else details if isinstance(details, str) else None
    return failure(said["error_type"][:100], str(said.get("error_message") or text), details)


def _broken(schema: Schema, structured: Any, given: bool) -> Outcome | None:
    """A tool that does not keep its own promise has failed, whatever it says."""
    if not given:
        said = "The tool promises structured data, and gave none."
        return failure("ToolExecutionError", said, {"constraint": "outputSchema"})
    try:
        require_validator()
        wrong = schemas.complaints(schema, structured)
    except schemas.Unfit:
        return None
    if not wrong:
        return None
    said = f"The tool gave a result that breaks its own output schema: {wrong[0].message}"
    return failure("ToolExecutionError", said, {"field": wrong[0].path, "constraint": wrong[0].keyword})


def _data(structured: Any, schema: Schema | None) -> dict[str, Any]:
    fits = isinstance(structured, dict) and (schema is None or is_object(schema))
    return structured if fits else {"result": structured}


def _from_content(content: list[Mapping[str, Any]], text: str, revision: str) -> dict[str, Any] | None:
    if not content:
        return None
    if any(block.get("type") != "text" for block in content):
        return {"text": text, "content": [dict(block) for block in content]}
    if revision and revision < V2025_06_18:
        # There text was the only way to say anything, also what has structure.
        found = _json(text)
        if isinstance(found, dict):
            return found
    return {"text": text}


def _says(text: str, structured: Any) -> bool:
    """Whether the text only repeats the data, for clients that know no better."""
    found = _json(text)
    return bool(found == structured or found == {"result": structured} or {"result": found} == structured)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


# What went wrong


def _failed(result: Mapping[str, Any], text: str) -> Outcome:
    meta, structured = result.get("_meta"), result.get("structuredContent")
    said = meta.get(ERROR_KEY) if isinstance(meta, Mapping) else None
    if said is None and isinstance(structured, dict) and _is_outcome(structured):
        said = structured.get("error")
    return _typed(said, text)


def in_words(text: str) -> Outcome:
    """A refusal of which there are only words."""
    kind = next((kind for pattern, kind in _WORDS if pattern.search(text)), "ToolExecutionError")
    problems = [{"parameter": found[1], "constraint": found[0]} for found in _ARGUMENT.finditer(text)]
    details = _problems(problems) if kind == "ValidationError" and problems else None
    return failure(kind, text, details)


def refusal(code: int, message: str, data: Any = None, status: int = 0) -> Outcome:
    """An error of the protocol: the tool was never run."""
    details = data if isinstance(data, dict | str) else None
    if message.startswith("Unknown tool"):
        known = data if isinstance(data, dict) else {}
        return failure("ResourceNotFound", message, {"code": NOT_FOUND, **known})
    if isinstance(data, dict) and isinstance(data.get("problems"), list):
        problems = [_problem(one) for one in data["problems"] if isinstance(one, Mapping)]
        return failure("ValidationError", message, _problems(problems) if problems else details)
    kind = _HTTP.get(status) or _CODES.get(code, "ToolExecutionError")
    return failure("ResourceNotFound" if message.startswith("Resource not found") else kind, message, details)


def suggesting(found: Outcome, name: str, contract: Contract) -> Outcome:
    """A tool that is not there, and the names that may have been meant."""
    details = found["error"]["error_details"]
    near = nearest(name, (tool.invocation for tool in contract.tools), most=3)
    if not near or not isinstance(details, dict) or details.get("code") != NOT_FOUND:
        return found
    return failure("ResourceNotFound", found["error"]["error_message"], {**details, "suggestions": near})


def unanswered(error_type: str | int, message: str) -> Outcome:
    """No answer, or not one of the protocol: by type, or by HTTP status."""
    kind = error_type if isinstance(error_type, str) else _HTTP.get(error_type, "ToolExecutionError")
    return failure(kind, message)


def invalid(problems: list[Complaint]) -> Outcome:
    """Arguments that do not fit the tool's schema: found before anything was sent."""
    found = [
        {"parameter": one.path, "constraint": one.message, "provided_value": one.received}
        if one.keyword != "required"
        else {"parameter": one.path, "constraint": one.message}
        for one in problems
    ]
    message = "; ".join(f"{one.path or 'arguments'}: {one.message}" for one in problems)
    return failure("ValidationError", f"Invalid arguments: {message}", _problems(found))


def _problem(said: Mapping[str, Any]) -> dict[str, Any]:
    """As our own servers write them."""
    path = str(said.get("path", "")).removeprefix("arguments").removeprefix(".")
    return {
        "parameter": path,
        "constraint": str(said.get("expected", "")),
        "provided_value": str(said.get("received", "")),
    }


def _problems(problems: list[dict[str, Any]]) -> dict[str, Any]:
    """The first where everybody looks, and all where there are more."""
    return problems[0] if len(problems) == 1 else {**problems[0], "problems": problems}
