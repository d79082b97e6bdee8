"""Tools that bring schemas of their own: passed on verbatim, and held against arguments and results as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from portico._lazy import LazyModule
from portico.jsonschema.argument_issues import MOST_PROBLEMS, Inspector, Problem, child, whole
from portico.jsonschema.docstrings import parse_docstring
from portico.protocol.errors import UsageError
from portico.server.components.signature import ArgumentError, signature_of

if TYPE_CHECKING:
    from portico.jsonschema import validation
    from portico.jsonschema.validation import Validator
else:
    validation = LazyModule("portico.jsonschema.validation")


class SchemaSignature(Struct, frozen=True, kw_only=True):
    """The function takes the arguments as one dict, and the Context if it wants it."""

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    returns: Any
    summary: str
    context: str | None
    validator: Validator
    context_first: bool

    def bind(
        self, arguments: bytes | Raw, context: object, *, strict: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function. The schema decides alone: nothing is ever repaired."""
        try:
            value = msgspec.json.decode(arguments) if arguments else {}
        except (ValueError, RecursionError):
            problem = whole("Invalid arguments: malformed JSON.", expected="a JSON object", received="malformed JSON")
            raise ArgumentError([problem]) from None
        value = {} if value is None else value
        if not self.validator.is_valid(value):
            raise ArgumentError([_problem(error) for error in self._errors(value)])
        if self.context is None:
            return (value,), {}
        return ((context, value) if self.context_first else (value, context)), {}

    def _errors(self, value: Any) -> list[Any]:
        return list(islice(self.validator.iter_errors(value), MOST_PROBLEMS))


def _problem(error: Any) -> Problem:
    path = "arguments"
    for step in error.instance_path:
        path = child(path, step)
    message = error.message if len(error.message) <= 300 else f"{error.message[:300]}…"
    return Problem(path, "what the tool's schema says", "something else", f"Invalid {path}: {message}.")


def schema_signature(
    fn: Callable[..., Any], schema: dict[str, Any], *, context_type: type, without_output: tuple[type, ...] = ()
) -> SchemaSignature:
    """Read a function that goes with a schema of its own. References into the network are never followed."""
    if schema.get("type") != "object":
        raise UsageError('a tool\'s input_schema has "type": "object" at its root')
    own = signature_of(fn, context_type=context_type, without_output=without_output)
    names = [name for name in inspect.signature(fn).parameters if name != own.context]
    if len(names) != 1:
        raise UsageError(f"a function with an input_schema takes one dict (and the context), not {', '.join(names)}")
    return SchemaSignature(
        input_schema=schema,
        output_schema=own.output_schema,
        returns=own.returns,
        summary=parse_docstring(inspect.getdoc(fn)).summary,
        context=own.context,
        validator=_validator(schema),
        context_first=own.place == 0,
    )


def _validator(schema: dict[str, Any]) -> Validator:
    found = _compiled(schema, "input_schema")
    if found is None:
        raise UsageError("input_schema needs the package jsonschema-rs: install portico[schema]")
    return found


def _compiled(schema: dict[str, Any], option: str) -> Validator | None:
    try:
        # Few tools bring a schema of their own, so a start does not pay for checking by one.
        found: Validator | None = validation.compiled(schema)
    except ValueError as failure:
        raise UsageError(f"this {option} cannot be used: {failure}") from None
    return found


class SchemaVerifier:
    """Holds the encoded results of a tool against its output schema, where no type can vouch for them.

    `at_once`: an author wrote the schema, so that it is read while the server is built. Without the package
    jsonschema-rs only what certainly does not fit is found.
    """

    def __init__(self, schema: dict[str, Any], name: str, *, at_once: bool) -> None:
        self._schema = schema
        self._name = name
        self._fits: Callable[[Any], bool] | None = self._compile() if at_once else None

    def __call__(self, value: Any, encoded: bytes) -> None:
        if self._fits is None:
            self._fits = self._compile()
        if not self._fits(msgspec.json.decode(encoded)):
            raise TypeError(f"{self._name} returned a {type(value).__name__} that does not fit its output schema")

    def _compile(self) -> Callable[[Any], bool]:
        validator = _compiled(self._schema, "output_schema")
        return self._fits_roughly if validator is None else validator.is_valid

    def _fits_roughly(self, value: Any) -> bool:
        return next(Inspector(self._schema, certain=True).problems(value, self._schema, "result"), None) is None
