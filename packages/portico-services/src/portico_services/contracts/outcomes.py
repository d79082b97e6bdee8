"""From what a server answers a call with to the contract's result: status, data, error, explanation.

Plain JSON in, plain JSON out. Whatever went wrong ends as a failure with one of the eight types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portico import UsageError
from portico.extend import ERROR, RESULT, V2025_06_18, WRAPPED, decode_bounded
from portico.jsonschema import (
    Complaint,
    Schema,
    SchemaError,
    Unfit,
    as_property,
    complaints,
    definitions_of,
    properties_of,
    require,
    resolved,
    types_of,
)
from portico_services.contracts.definitions import Contract, Definition
from portico_services.contracts.result_schema import MEMBERS, UNDECLARED_DATA, data_of_result, is_result_schema
from portico_services.contracts.schemas import STATUSES

# What `data` of a result holds when a tool has no output schema: the words it said, and the rest where there is more.
UNDECLARED: Schema = {
    "type": "object",
    "description": "The tool declares no output schema: what it says, as text or as blocks of content.",
    "properties": {
        "text": {"type": "string", "description": "All text of the result."},
        "content": {
            "type": "array",
            "description": "The blocks of content, where there are others than text.",
            "items": {"type": "object"},
        },
    },
    "required": [],
}


def data_schema(output: Schema | None) -> Schema:
    """Return the schema of `data`, which is always an object: other values are its member `result`.

    A tool that returns MCPToolResult has the schema of its data inside that of the result.
    """
    if output is None:
        return UNDECLARED
    if is_result_schema(output):
        return data_of_result(output)
    output = unwrapped(output)
    if is_object(output):
        return output
    return as_property(output, "result", description="The value that the tool gives.")


def is_declared(output: Schema | None) -> bool:
    """Return whether a tool declares a schema of its data."""
    return output is not None and data_schema(output) != UNDECLARED_DATA


def unwrapped(output: Schema) -> Schema:
    """The schema of the value itself, out of the object that older revisions put around it."""
    inner = properties_of(output).get("result")
    if not output.get(WRAPPED) or not isinstance(inner, dict):
        return output
    return {**inner, **definitions_of(output)}


def is_object(output: Schema) -> bool:
    """Whether what a tool gives is an object by its own word, and so is `data` as it stands."""
    found = resolved(output, output)
    return types_of(found) == ["object"] or ("type" not in found and bool(properties_of(found)))


def require_validator() -> None:
    """Raises UsageError where the package that checks values is not installed."""
    try:
        require({})
    except SchemaError as error:
        raise UsageError(str(error)) from None


Outcome = dict[str, Any]


class UnkeptPromise(Exception):
    """A result that does not fit what its tool promised. `outcome` says so."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


LONGEST_MESSAGE = 4000
NOT_FOUND = "MCP-ToolNotFound"


def success(data: dict[str, Any] | None, explanation: str | None = None, status: str = "success") -> Outcome:
    return {"status": status, "data": data, "error": None, "explanation": explanation}


def failure(
    error_type: str, message: str, details: dict[str, Any] | str | None = None, explanation: str | None = None
) -> Outcome:
    error = {"error_type": error_type, "error_message": message[:LONGEST_MESSAGE], "error_details": details}
    return {"status": "failure", "data": None, "error": error, "explanation": explanation}


# What a tool said


def outcome(result: Mapping[str, Any], tool: Definition | None = None, revision: str = "") -> Outcome:
    """The result of `tools/call`, as JSON. Raises UnkeptPromise."""
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
    said = structured if given else _in_text(content, text, revision)
    schema = tool.output_schema if tool is not None else None
    if isinstance(said, dict) and _is_outcome(said):
        adopted = _adopted(said, text)
        if schema is not None and adopted["data"] is not None:
            _require_kept(data_schema(schema), adopted["data"])
        return adopted
    if schema is not None:
        if not given:
            said = "The tool promises structured data, and gave none."
            raise UnkeptPromise(failure("ToolExecutionError", said, {"constraint": "outputSchema"}))
        _require_kept(schema, structured)
    data = _data(structured, schema) if given else _from_content(content, text, revision)
    declared = _declared(result)
    explanation = None if not given or _says(text, structured) else text or None
    return success(data, _explanation(declared) or explanation, declared.get("status", "success"))


def _declared(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the `_meta` of a result says of its status and explanation, if that is valid."""
    meta = result.get("_meta")
    declared = meta.get(RESULT) if isinstance(meta, Mapping) else None
    is_valid = isinstance(declared, Mapping) and declared.get("status") in STATUSES and declared["status"] != "failure"
    return declared if is_valid and isinstance(declared, Mapping) else {}


def _is_outcome(said: dict[str, Any]) -> bool:
    """A tool that speaks the contract itself."""
    return said.get("status") in STATUSES and said.keys() <= MEMBERS and ("data" in said or "error" in said)


def _adopted(said: dict[str, Any], text: str) -> Outcome:
    """What a tool says in the contract's own words, as far as they are consistent."""
    if said["status"] == "failure":
        return _typed(said.get("error"), text, _explanation(said))
    data = said.get("data")
    data = data if data is None or isinstance(data, dict) else {"result": data}
    found = success(data, _explanation(said), said["status"])
    error = said.get("error")
    return found | {"error": _typed(error, text)["error"]} if isinstance(error, Mapping) else found


def _explanation(said: Mapping[str, Any]) -> str | None:
    """Return the `explanation` of a result, or None if it has none that is a text."""
    explanation = said.get("explanation")
    return explanation[:LONGEST_MESSAGE] if isinstance(explanation, str) else None


def _typed(said: Any, text: str, explanation: str | None = None) -> Outcome:
    """An error as it describes itself; a text alone says that the tool failed, and no more."""
    if not isinstance(said, Mapping) or not isinstance(said.get("error_type"), str) or not said["error_type"]:
        message = text or "The tool failed and did not say why."
        return failure("ToolExecutionError", message, explanation=explanation)
    details = said["error_details"] if "error_details" in said else problems(said) or _rest(said)
    details = dict(details) if isinstance(details, Mapping) else details if isinstance(details, str) else None
    return failure(said["error_type"][:100], str(said.get("error_message") or text), details, explanation)


def _rest(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an error of ours says of itself besides its type: an id, a code, what would be legal."""
    return {name: part for name, part in said.items() if name not in ("error_type", "error_message", "brief")} or None


def _require_kept(schema: Schema, structured: Any) -> None:
    """Raise UnkeptPromise for a value that does not fit the tool's own output schema, whatever the tool says of it."""
    try:
        require_validator()
        wrong = complaints(schema, structured)
    except Unfit:
        return
    if wrong:
        said = f"The tool gave a result that breaks its own output schema: {wrong[0].message}"
        details = {"field": wrong[0].path, "constraint": wrong[0].keyword}
        raise UnkeptPromise(failure("ToolExecutionError", said, details))


def _data(structured: Any, schema: Schema | None) -> dict[str, Any]:
    fits = isinstance(structured, dict) and (schema is None or is_object(schema))
    return structured if fits else {"result": structured}


def _from_content(content: list[Mapping[str, Any]], text: str, revision: str) -> dict[str, Any] | None:
    if not content:
        return None
    if any(block.get("type") != "text" for block in content):
        return {"text": text, "content": [dict(block) for block in content]}
    found = _in_text(content, text, revision)
    return {"text": text} if found is None else found


def _in_text(content: list[Mapping[str, Any]], text: str, revision: str) -> dict[str, Any] | None:
    """The value in a text, where text was the only way to say anything, also what has structure. What is no object
    stands in `result`, as it does on later revisions."""
    if not revision or revision >= V2025_06_18 or any(block.get("type") != "text" for block in content):
        return None
    found = _json(text)
    if isinstance(found, bool | int | float | list):
        return {"result": found}
    return found if isinstance(found, dict) else None


def _says(text: str, structured: Any) -> bool:
    """Whether the text only repeats the data, for clients that know no better."""
    found = _json(text)
    return bool(found == structured or found == {"result": structured} or {"result": found} == structured)


def _json(text: str) -> Any:
    try:
        return decode_bounded(text)
    except (ValueError, RecursionError):
        return text


# What went wrong


def _failed(result: Mapping[str, Any], text: str) -> Outcome:
    meta, structured = result.get("_meta"), result.get("structuredContent")
    said = meta.get(ERROR) if isinstance(meta, Mapping) else None
    spoken = structured if isinstance(structured, dict) else _json(text)
    # A tool that speaks the contract explains itself there; a server with an envelope does beside the content.
    own = spoken if isinstance(spoken, dict) and _is_outcome(spoken) else result if _is_envelope(result) else None
    if own is None:
        return _typed(said, text)
    return _typed(own.get("error") if said is None else said, text, _explanation(own))


def _is_envelope(result: Mapping[str, Any]) -> bool:
    return result.get("status") == "failure" and isinstance(result.get("error"), Mapping)


def suggesting(found: Outcome, name: str, contract: Contract) -> Outcome:
    """What came of a name that is not listed: where the server says that there is no such tool, with the names that
    may have been meant."""
    if found["status"] != "failure" or not _says_unknown(found["error"], name, contract):
        return found
    said = found["error"]["error_details"]
    details = {"code": NOT_FOUND, **(said if isinstance(said, dict) else {}), "name": name}
    near = [tool.invocation for tool in contract.nearest(name)]
    suggestions = {"suggestions": near} if near else {}
    message = found["error"]["error_message"]
    return failure("ResourceNotFound", message, {**details, **suggestions}, found["explanation"])


def _says_unknown(error: Mapping[str, Any], name: str, contract: Contract) -> bool:
    """Our own servers have a code for it. Others name what they do not know, and it is not listed."""
    details = error["error_details"]
    if isinstance(details, dict) and details.get("code") == NOT_FOUND:
        return True
    general = error["error_type"] in ("ToolExecutionError", "ValidationError")
    return general and bool(contract.tools) and name in error["error_message"]


def invalid(complaints: list[Complaint]) -> Outcome:
    """Arguments that do not fit the tool's schema: found before anything was sent."""
    found = [
        {"parameter": one.path, "constraint": one.message, "provided_value": one.received}
        if one.keyword != "required"
        else {"parameter": one.path, "constraint": one.message}
        for one in complaints
    ]
    message = "; ".join(f"{one.path or 'arguments'}: {one.message}" for one in complaints)
    return failure("ValidationError", f"Invalid arguments: {message}", _first_of(found))


def problems(data: Any) -> dict[str, Any] | None:
    """The details of wrong arguments, from the `problems` that our own servers list; None if there are none."""
    listed = data.get("problems") if isinstance(data, Mapping) else None
    found = [_problem(one) for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return _first_of(found) if found else None


def _problem(said: Mapping[str, Any]) -> dict[str, Any]:
    path = str(said.get("path", "")).removeprefix("arguments").removeprefix(".")
    return {
        "parameter": path,
        "constraint": str(said.get("expected", "")),
        "provided_value": str(said.get("received", "")),
    }


def _first_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The details of the first problem, with the list of all where there are more."""
    return found[0] if len(found) == 1 else {**found[0], "problems": found}
