"""Tools with explicit schemas, which are listed verbatim and used to validate arguments and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from portico._lazy import LazyModule
from portico.jsonschema.argument_issues import (
    MAX_ARGUMENT_ISSUES,
    ArgumentInspector,
    ArgumentIssue,
    arguments_issue,
    join_path,
)
from portico.jsonschema.docstrings import parse_docstring
from portico.protocol.errors import UsageError
from portico.server.components.signature import ArgumentError, inspect_signature
from portico.text import truncate

if TYPE_CHECKING:
    from portico.jsonschema import validation
    from portico.jsonschema.validation import CompiledValidator
else:
    validation = LazyModule("portico.jsonschema.validation")


class SchemaSignature(Struct, frozen=True, kw_only=True):
    """Signature of a function that takes the arguments as one dict, and optionally the Context."""

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    returns: Any
    summary: str
    context: str | None
    validator: CompiledValidator
    context_first: bool
    # Whether arguments are passed by name: the function takes `**kwargs`.
    by_name: bool = False

    def bind(
        self, arguments: bytes | Raw, context: object, strict: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function. Only the schema decides: nothing is repaired. Raises ArgumentError."""
        try:
            value = msgspec.json.decode(arguments) if arguments else {}
        except (ValueError, RecursionError):
            problem = arguments_issue(
                "Invalid arguments: malformed JSON.", expected="a JSON object", received="malformed JSON"
            )
            raise ArgumentError([problem]) from None
        value = {} if value is None else value
        # `is_valid` builds no error objects: only a failure pays for the second pass that describes
        # it.
        if not self.validator.is_valid(value):
            raise ArgumentError([_problem(error) for error in self._errors(value)])
        if self.by_name:
            return (), (value if self.context is None else {**value, self.context: context})
        if self.context is None:
            return (value,), {}
        return ((context, value) if self.context_first else (value, context)), {}

    def _errors(self, value: Any) -> list[Any]:
        return list(islice(self.validator.iter_errors(value), MAX_ARGUMENT_ISSUES))


def _problem(error: Any) -> ArgumentIssue:
    path = "arguments"
    for step in error.instance_path:
        path = join_path(path, step)
    message = truncate(error.message, 300)
    return ArgumentIssue(path, "a value that fits the tool's schema", "something else", f"Invalid {path}: {message}.")


def read_schema_signature(
    fn: Callable[..., Any], schema: dict[str, Any], *, context_type: type, types_without_schema: tuple[type, ...] = ()
) -> SchemaSignature:
    """Read the signature of a function with an explicit schema. Remote references are never resolved.

    The function takes the arguments as one dict, or each by name if it has `**kwargs`.
    """
    if schema.get("type") != "object":
        raise UsageError('a tool\'s input_schema must have "type": "object" at its root')
    own = inspect_signature(fn, context_type=context_type, types_without_schema=types_without_schema, allow_kwargs=True)
    parameters = inspect.signature(fn).parameters.values()
    by_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    names = [parameter.name for parameter in parameters if parameter.name != own.context]
    if not by_name and len(names) != 1:
        raise UsageError(
            "a function with an input_schema must take one dict or **kwargs (and optionally the context), got "
            f"the parameters {', '.join(names) or 'none'}"
        )
    if by_name and any(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in parameters):
        raise UsageError("a function with an input_schema and **kwargs must not have positional-only parameters")
    # The client's value would replace the Context, or be lost, depending on the order of the
    # keywords.
    if by_name and own.context in schema.get("properties", {}):
        raise UsageError(
            f"the parameter {own.context!r} receives the context, but input_schema has a property of the same "
            "name; rename one of them"
        )
    return SchemaSignature(
        input_schema=schema,
        output_schema=own.output_schema,
        returns=own.returns,
        summary=parse_docstring(inspect.getdoc(fn)).summary,
        context=own.context,
        validator=_validator(schema),
        context_first=own.context_index == 0,
        by_name=by_name,
    )


def _validator(schema: dict[str, Any]) -> CompiledValidator:
    result = _compile(schema, "input_schema")
    if result is None:
        # Arguments must not reach a function unchecked when its author wrote a schema, so there is
        # no fallback for inputs.
        raise UsageError("input_schema needs the package jsonschema-rs: install portico[schema]")
    return result


def _compile(schema: dict[str, Any], option: str) -> CompiledValidator | None:
    try:
        # Imported on demand: few tools have an explicit schema.
        result: CompiledValidator | None = validation.compile_validator(schema)
    except ValueError as failure:
        raise UsageError(f"invalid {option}: {failure}") from None
    return result


class OutputSchemaValidator:
    """Validates encoded tool results against the output schema, where their type does not guarantee it.

    With `eager`, the schema is compiled while the server is built, because the author wrote it. Without the package
    jsonschema-rs, only certain mismatches are found.
    """

    def __init__(self, schema: dict[str, Any], name: str, *, eager: bool) -> None:
        self._schema = schema
        self._name = name
        self._fits: Callable[[Any], bool] | None = self._compile() if eager else None

    def __call__(self, value: Any, encoded: bytes) -> None:
        if self._fits is None:
            self._fits = self._compile()
        if not self._fits(msgspec.json.decode(encoded)):
            raise TypeError(f"{self._name} returned a {type(value).__name__} that does not fit its output schema")

    def _compile(self) -> Callable[[Any], bool]:
        validator = _compile(self._schema, "output_schema")
        return self._fits_roughly if validator is None else validator.is_valid

    def _fits_roughly(self, value: Any) -> bool:
        return (
            next(ArgumentInspector(self._schema, only_certain=True).find_issues(value, self._schema, "result"), None)
            is None
        )
