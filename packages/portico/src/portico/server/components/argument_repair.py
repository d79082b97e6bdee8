"""Repair of arguments that could not be decoded.

Common mistakes of models are repaired; everything else that is wrong is reported. Imported with the first call that
needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from portico.jsonschema.argument_issues import (
    MAX_ARGUMENT_ISSUES,
    ArgumentInspector,
    ArgumentIssue,
    arguments_issue,
    has_pydantic_details,
    issues_from_exception,
    unknown_argument_issue,
)
from portico.jsonschema.decoding import dec_hook
from portico.server.components.signature import ArgumentError, FunctionSignature


def repair_arguments(signature: FunctionSignature, arguments: bytes | Raw, *, strict: bool = False) -> tuple[Any, ...]:
    """Return the values of arguments that could be repaired. Raises ArgumentError for others.

    With `strict`, a string is never decoded into a number, a boolean, an array or an object.
    """
    try:
        return _repair(signature, arguments, strict)
    # A client controls the nesting, so the interpreter's limit must become an ordinary error.
    except RecursionError:
        problem = arguments_issue(
            "Invalid arguments: nested too deeply.", expected="less nesting", received="deep nesting"
        )
        raise ArgumentError([problem]) from None


def _repair(signature: FunctionSignature, arguments: bytes | Raw, strict: bool) -> tuple[Any, ...]:
    schema = signature.input_schema
    value = ArgumentInspector(schema, strict=strict).repair(_parse(arguments), schema)
    # Encode the repaired value and decode it with the fast decoder: then exactly one code path
    # decides which values a function can receive.
    text = msgspec.json.encode(value)
    if text != bytes(arguments):
        try:
            return astuple(signature.decode(text))
        except ValueError:
            pass
    # Limit the list: a client could otherwise request an error message of unbounded size.
    result = list(islice(_problems(signature, value), MAX_ARGUMENT_ISSUES))
    # The inspector knows the schema only. A decoder hook of the author may reject a value that the
    # schema allows, and then no specific issue is known.
    raise ArgumentError(result or [arguments_issue("Invalid arguments.", expected="other values", received="these")])


def _parse(arguments: bytes | Raw) -> Any:
    try:
        value = msgspec.json.decode(arguments or b"{}")
    # msgspec reports an integer beyond its limit as a ValidationError, although the JSON is well
    # formed.
    except msgspec.ValidationError:
        raise _syntax_error("a number has too many digits") from None
    except UnicodeDecodeError:
        raise _syntax_error("the text is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        _, separator, byte = str(error).rpartition("(byte ")
        raise _syntax_error(f"malformed JSON at byte {byte[:-1]}" if separator else "the JSON ends too early") from None
    # Some clients send `"arguments": null` for a tool without parameters.
    return {} if value is None else value


def _syntax_error(problem: str) -> ArgumentError:
    return ArgumentError(
        [arguments_issue(f"Invalid arguments: {problem}.", expected="a JSON object", received=problem)]
    )


def _problems(signature: FunctionSignature, value: Any) -> Iterator[ArgumentIssue]:
    schema = signature.input_schema
    inspector = ArgumentInspector(schema)
    if not isinstance(value, dict):
        yield inspector.invalid_issue(value, schema, "arguments")
        return
    parameter_names = list(signature.types)
    for name in value:
        if name not in signature.types:
            yield unknown_argument_issue(name, value[name], parameter_names, "arguments")
    required = schema.get("required", ())
    for name in parameter_names:
        if name in value:
            yield from _describe_mismatch(signature, name, value[name], inspector)
        elif name in required:
            yield inspector.missing_issue(name, schema["properties"][name], "arguments")


def _describe_mismatch(
    signature: FunctionSignature, name: str, value: Any, inspector: ArgumentInspector
) -> Iterator[ArgumentIssue]:
    described, path = signature.input_schema["properties"][name], f"arguments.{name}"
    try:
        # Decode each argument separately: msgspec stops at the first error, but a model corrects
        # all of them in one retry if it learns of all.
        msgspec.json.decode(msgspec.json.encode(value), type=signature.types[name], dec_hook=dec_hook)
    except ValueError as error:
        results: list[ArgumentIssue] = []
        # pydantic describes the accepted values better than its schema does.
        if not has_pydantic_details(error):
            results = list(islice(inspector.find_issues(value, described, path), MAX_ARGUMENT_ISSUES))
        yield from results or issues_from_exception(error, described, value, inspector, path)
