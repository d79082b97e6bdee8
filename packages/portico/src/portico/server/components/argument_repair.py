"""Arguments that could not be decoded: what models often get wrong is repaired, and of the rest everything is said that
is wrong with it. Loaded with the first call that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from portico.jsonschema.argument_issues import (
    MOST_PROBLEMS,
    Inspector,
    Problem,
    refused,
    speaks_for_itself,
    unknown,
    whole,
)
from portico.jsonschema.decoding import hook
from portico.server.components.signature import ArgumentError, Signature


def second_look(signature: Signature, arguments: bytes | Raw, *, strict: bool = False) -> tuple[Any, ...]:
    """Return the values of arguments that could be repaired. Raises ArgumentError for others.

    With `strict`, a text is never decoded into a number, a boolean, an array or an object.
    """
    try:
        return _repaired(signature, arguments, strict)
    except RecursionError:
        problem = whole("Invalid arguments: nested too deeply.", expected="less nesting", received="deep nesting")
        raise ArgumentError([problem]) from None


def _repaired(signature: Signature, arguments: bytes | Raw, strict: bool) -> tuple[Any, ...]:
    schema = signature.input_schema
    value = Inspector(schema, strict=strict).repaired(_parsed(arguments), schema)
    text = msgspec.json.encode(value)
    if text != bytes(arguments):
        try:
            return astuple(signature.decode(text))
        except ValueError:
            pass
    found = list(islice(_problems(signature, value), MOST_PROBLEMS))
    raise ArgumentError(found or [whole("Invalid arguments.", expected="other values", received="these")])


def _parsed(arguments: bytes | Raw) -> Any:
    try:
        value = msgspec.json.decode(arguments or b"{}")
    except msgspec.ValidationError:
        raise _malformed("a number has too many digits") from None
    except UnicodeDecodeError:
        raise _malformed("the text is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        _, found, byte = str(error).rpartition("(byte ")
        raise _malformed(f"malformed JSON at byte {byte[:-1]}" if found else "the JSON ends too early") from None
    return {} if value is None else value


def _malformed(what: str) -> ArgumentError:
    return ArgumentError([whole(f"Invalid arguments: {what}.", expected="a JSON object", received=what)])


def _problems(signature: Signature, value: Any) -> Iterator[Problem]:
    schema = signature.input_schema
    inspector = Inspector(schema)
    if not isinstance(value, dict):
        yield inspector.invalid(value, schema, "arguments")
        return
    known = list(signature.types)
    for name in value:
        if name not in signature.types:
            yield unknown(name, value[name], known, "arguments")
    required = schema.get("required", ())
    for name in known:
        if name in value:
            yield from _about(signature, name, value[name], inspector)
        elif name in required:
            yield inspector.missing(name, schema["properties"][name], "arguments")


def _about(signature: Signature, name: str, value: Any, inspector: Inspector) -> Iterator[Problem]:
    described, path = signature.input_schema["properties"][name], f"arguments.{name}"
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=signature.types[name], dec_hook=hook)
    except ValueError as error:
        found: list[Problem] = []
        # pydantic knows better than its schema what it would have taken.
        if not speaks_for_itself(error):
            found = list(islice(inspector.problems(value, described, path), MOST_PROBLEMS))
        yield from found or refused(error, described, value, inspector, path)
