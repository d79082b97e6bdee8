"""Explanations of invalid tool arguments that a language model can act on.

This code runs only after decoding has failed. The caller may be hostile, so the number of steps, the number of issues
and the length of every quoted value are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from portico.jsonschema.decoding import ConversionError
from portico.jsonschema.explanation import describe_alternatives, describe_value, format_values, quote
from portico.jsonschema.generation import PRIMITIVE_SCHEMAS
from portico.jsonschema.reader import SchemaReader, alternative_accepts_type, get_enum_values, json_type
from portico.jsonschema.schema import Schema
from portico.protocol.json_depth import decode_bounded
from portico.text import truncate

# A model corrects a handful at a time; a hostile array could have a million.
MAX_ARGUMENT_ISSUES = 20
# About a tenth of a second. Schemas with alternatives multiply the work for nested values.
MAX_INSPECTION_STEPS = 50_000
MAX_COMPARED_NAME_CHARS = 64
# The similarity of two names takes time proportional to the product of their lengths.
MAX_COMPARED_NAMES = 200

FORMAT_TYPES = {body["format"]: tp for tp, body in PRIMITIVE_SCHEMAS.items() if "format" in body}


class ArgumentIssue(Struct, frozen=True, omit_defaults=True):
    """One invalid argument. `path` is its location, from `arguments` down."""

    path: str
    expected: str
    received: str
    message: str
    suggestion: str = ""


def join_path(path: str, name: str | int) -> str:
    """Append a property name or an array index to a path."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    return (
        f"{path}.{name}" if name.isidentifier() and len(name) <= MAX_COMPARED_NAME_CHARS else f"{path}[{quote(name)}]"
    )


def arguments_issue(message: str, *, expected: str, received: str) -> ArgumentIssue:
    """Return an issue about the arguments as a whole."""
    return ArgumentIssue("arguments", expected, received, message)


class ArgumentInspector(SchemaReader):
    """Checks one value against one schema and explains what is invalid. Its step budget is spent on that value.

    `only_certain`: report only what is certainly invalid. Patterns and formats of foreign schemas are left to their
    author: a regular expression can take exponential time, and formats are not defined exactly.

    `strict`: do not decode JSON strings. A number such as 5.0 is still accepted as an integer, as JSON Schema defines
    it.
    """

    def __init__(self, schema: Any, *, only_certain: bool = False, strict: bool = False) -> None:
        super().__init__(schema)
        self.only_certain, self.strict = only_certain, strict
        self.remaining_steps = MAX_INSPECTION_STEPS

    # Repair: the most common mistake of models is JSON inside a string.

    def repair(self, value: Any, schema: Schema) -> Any:
        """Return the value with JSON strings decoded where the schema does not accept a string."""
        self.remaining_steps -= 1
        if self.remaining_steps < 0:
            return value
        if isinstance(value, str) and not self.strict:
            value = self._decode_json_string(value, schema)
        kind = json_type(value)
        if kind == "number" and value.is_integer() and not self.accepts_type(schema, "number"):
            return int(value) if self.accepts_type(schema, "integer") else value
        if kind not in ("array", "object"):
            return value
        # With several possible shapes it is unclear which schema applies inside, so nothing is repaired.
        fitting = [option for option in self.alternatives(schema) if alternative_accepts_type(option, kind)]
        if len(fitting) != 1:
            return value
        if kind == "array":
            return [self.repair(item, self.item_schema(fitting[0], at)) for at, item in enumerate(value)]
        return {name: self.repair(item, self.property_schema(fitting[0], name)) for name, item in value.items()}

    def _decode_json_string(self, text: str, schema: Schema) -> Any:
        # The text may be meant as it is: "123" for a string parameter must not become a number.
        if self.accepts_type(schema, "string"):
            return text
        try:
            value = decode_bounded(text)
        except (ValueError, RecursionError):
            return text
        kind = json_type(value)
        # JSON Schema, section 6.1.1: 1.0 is an integer.
        integral = kind == "number" and value.is_integer() and self.accepts_type(schema, "integer")
        return value if integral or self.accepts_type(schema, kind) else text

    # Diagnosis

    def find_issues(self, value: Any, schema: Schema, path: str) -> Iterator[ArgumentIssue]:
        """Yield the issues of a value, nested ones included."""
        self.remaining_steps -= 1
        if self.remaining_steps < 0:
            return
        fitting = [option for option in self.alternatives(schema) if self.matches_shallow(option, value)]
        if not fitting:
            yield self.invalid_issue(value, schema, path)
            return
        if json_type(value) not in ("array", "object"):
            return
        result = [list(islice(self.find_nested_issues(value, option, path), MAX_ARGUMENT_ISSUES)) for option in fitting]
        # Of several possible shapes, explain the closest one: the one with the fewest issues.
        yield from min(result, key=len)

    def find_nested_issues(self, value: Any, schema: Schema, path: str) -> Iterator[ArgumentIssue]:
        if isinstance(value, list):
            for at, item in enumerate(value):
                yield from self.find_issues(item, self.item_schema(schema, at), join_path(path, at))
            return
        properties = schema.get("properties", {})
        for name, item in value.items():
            if name in properties or schema.get("additionalProperties") is not False:
                yield from self.find_issues(item, self.property_schema(schema, name), join_path(path, name))
            else:
                yield unknown_argument_issue(name, item, list(properties), path)
            # Keys are checked even where any member is allowed.
            if "propertyNames" in schema and not self._accepts_property(schema["propertyNames"], name):
                keys = self.describe({"type": "string", **schema["propertyNames"]})
                yield _create_issue(join_path(path, name), f"{keys} as its key", f"the key {quote(name)}")
        # Missing members come last: a wrong name explains more than the missing right one.
        for name in schema.get("required", ()):
            if name not in value:
                yield self.missing_issue(name, self.property_schema(schema, name), path)

    def invalid_issue(self, value: Any, schema: Schema, path: str) -> ArgumentIssue:
        choices = [
            choice
            for option in self.alternatives(schema)
            for choice in get_enum_values(option)
            if isinstance(choice, str)
        ]
        suggestions = did_you_mean(value, choices) if isinstance(value, str) else ""
        return _create_issue(path, self.describe(schema), describe_value(value), suggestions)

    def missing_issue(self, name: str, schema: Schema, path: str) -> ArgumentIssue:
        expected = self.describe(schema)
        description = schema.get("description") or self.resolve(schema).get("description", "")
        meaning = f" ({_first_line(description)})" if description else ""
        where = join_path(path, name)
        message = f"Missing argument '{_argument(where)}': expected {expected}{meaning}."
        return ArgumentIssue(where, expected, "nothing", message)

    def describe(self, schema: Schema) -> str:
        """Return a description of the accepted values."""
        return describe_alternatives(self.alternatives(schema), self.resolve)

    def matches_shallow(self, option: Schema, value: Any) -> bool:
        """Return whether a value matches an alternative, without its members."""
        kind = json_type(value)
        if not alternative_accepts_type(option, kind):
            return False
        if values := get_enum_values(option):
            # Python considers True == 1; JSON does not.
            return any(type(choice) is type(value) and choice == value for choice in values)
        if kind in ("integer", "number"):
            return _is_within(option, value) and (self.only_certain or _is_multiple(option, value))
        if kind == "string":
            return _fits_size(option, "Length", len(value)) and (self.only_certain or _fits_text(option, value))
        if kind == "array":
            return _fits_size(option, "Items", len(value))
        return kind != "object" or _fits_size(option, "Properties", len(value))

    def _accepts_property(self, schema: Schema, name: str) -> bool:
        return any(self.matches_shallow({"type": "string", **option}, name) for option in self.alternatives(schema))


def unknown_argument_issue(name: str, value: Any, valid_names: list[str], path: str) -> ArgumentIssue:
    """Return the issue for an argument that the schema does not declare."""
    suggestions = did_you_mean(name, valid_names)
    inside = "" if path == "arguments" else f" in '{_argument(path)}'"
    message = f"Unknown argument {quote(name, chr(39))}{inside}."
    if suggestions:
        message += f" D{suggestions[1:]}"
    message += f" Accepted: {format_values(valid_names)}." if valid_names else " None is accepted."
    expected = f"one of {format_values(valid_names)}" if valid_names else "no argument"
    return ArgumentIssue(join_path(path, name), expected, describe_value(value), message, suggestions)


def issues_from_exception(
    error: BaseException, schema: Schema, value: Any, inspector: ArgumentInspector, path: str
) -> list[ArgumentIssue]:
    """Return issues that the schema does not express: a user's class, or pydantic, rejected the value."""
    location, cause = _origin(error, path)
    if has_pydantic_details(error):
        return _from_pydantic(cause, location)
    # The text of a ValueError was written by the author of the class for its callers.
    authored = isinstance(cause, ValueError) and not isinstance(cause, msgspec.MsgspecError)
    if authored and not type(cause).__module__.startswith("pydantic"):
        return [_rejection_issue(location, _first_line(str(cause)), value)]
    return [_create_issue(location, inspector.describe(schema), describe_value(value))]


def has_pydantic_details(error: BaseException) -> bool:
    """Return whether pydantic reported details. Hostile values can produce too many to unpack."""
    cause: Any = _origin(error, "")[1]
    return type(cause).__module__.startswith("pydantic") and cause.error_count() <= MAX_COMPARED_NAMES


def _origin(error: BaseException, path: str) -> tuple[str, BaseException]:
    """Return the path and the exception of the first error. Every decoding layer adds its part of the path."""
    while True:
        text = str(error)
        if isinstance(error, msgspec.ValidationError) and text.endswith("`") and "`$" in text:
            # msgspec ends its message with the path: `Expected …` - at `$.a[0]`.
            path += text.rpartition("`$")[2][:-1]
        if error.__cause__ is None or not isinstance(error, msgspec.ValidationError | ConversionError):
            return path, error
        error = error.__cause__


def _from_pydantic(error: Any, path: str) -> list[ArgumentIssue]:
    problems = []
    for detail in islice(error.errors(include_url=False, include_context=False), MAX_ARGUMENT_ISSUES):
        where = path
        for step in detail["loc"]:
            where = join_path(where, step)
        # "Input should be a valid integer, unable to parse …" → "a valid integer"
        words = _first_line(detail["msg"]).partition(", unable to")[0]
        words = words.removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if detail["type"] == "missing":
            problems.append(ArgumentIssue(where, "a value", "nothing", f"Missing argument '{_argument(where)}'."))
        elif words.startswith("Input should be "):
            problems.append(
                _create_issue(where, words.removeprefix("Input should be "), describe_value(detail["input"]))
            )
        else:
            problems.append(_rejection_issue(where, words, detail["input"]))
    return problems


def closest_names(name: str, candidates: Iterable[str], max_results: int = 1) -> list[str]:
    """Return the names most similar to this one. The comparison is expensive, so both sides are limited."""
    # Imported lazily: needed only to explain a mistake.
    from difflib import get_close_matches

    # difflib takes quadratic time, and the name comes from the caller.
    if len(name) > MAX_COMPARED_NAME_CHARS:
        return []
    compared = [other for other in islice(candidates, MAX_COMPARED_NAMES) if len(other) <= MAX_COMPARED_NAME_CHARS]
    return get_close_matches(name, compared, n=max_results)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the closest candidate, or an empty string."""
    close = closest_names(name, candidates)
    return f"did you mean '{close[0]}'?" if close else ""


def _create_issue(path: str, expected: str, received: str, suggestion: str = "") -> ArgumentIssue:
    subject = "arguments" if path == "arguments" else f"argument '{_argument(path)}'"
    message = f"Invalid {subject}: expected {expected}, received {received}."
    if suggestion:
        message += f" D{suggestion[1:]}"
    return ArgumentIssue(path, expected, received, message, suggestion)


def _rejection_issue(path: str, reason: str, value: Any) -> ArgumentIssue:
    """Return an issue in the words of the code that rejected the value."""
    return ArgumentIssue(path, reason, describe_value(value), f"Invalid argument '{_argument(path)}': {reason}.")


def _argument(path: str) -> str:
    return path.removeprefix("arguments").removeprefix(".")


def _first_line(text: str) -> str:
    return truncate(text.strip().partition("\n")[0].rstrip("."), 200)


def _is_within(schema: Schema, value: float) -> bool:
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        return False
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return False
    return "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]


def _is_multiple(schema: Schema, value: float) -> bool:
    step: float | None = schema.get("multipleOf")
    try:
        return step is None or value % step == 0
    except OverflowError:
        return False  # a huge integer with a float step


def _fits_size(schema: Schema, word: str, size: int) -> bool:
    return bool(schema.get(f"min{word}", 0) <= size <= schema.get(f"max{word}", size))


def _fits_text(schema: Schema, value: str) -> bool:
    if "pattern" in schema and not _matches(schema["pattern"], value):
        return False
    expected_type = bytes if schema.get("contentEncoding") == "base64" else FORMAT_TYPES.get(schema.get("format", ""))
    if expected_type is None:
        return True
    try:
        msgspec.convert(value, expected_type)
    except ValueError:
        return False
    return True


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True  # not a Python pattern: pydantic uses Rust's syntax and has checked it already
