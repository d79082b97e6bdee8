"""The schema of `data`, the object in which every result of a contract stands."""

from __future__ import annotations

from portico import UsageError
from portico.extend import WRAPPED
from portico.schema import Schema, SchemaError, as_property, definitions_of, properties_of, require, resolved, types_of

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
    """The schema of `data`, which is always an object: other values stand in it as `result`."""
    if output is None:
        return UNDECLARED
    output = unwrapped(output)
    if is_object(output):
        return output
    return as_property(output, "result", description="The value that the tool gives.")


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
