"""Tool and prompt arguments from the command line: `key=value` pairs, converted according to the tool's schema.

| typed | meaning |
|---|---|
| `key=value` | a string, number, true, false or null, whichever the schema accepts |
| `key=a key=b` | an array of both |
| `key='{…}'`, `key='[…]'` | JSON, if the schema expects an object or an array and no string |
| `a.b=value` | a member of an object |
| `key=@file`, `key=-` | the contents of the file, or of standard input |
| `key:=json` | JSON; for a prompt a JSON string, such as `key:='"@name"'`, which is not a file |
"""

from __future__ import annotations

import json
import math
import re
import shlex
from base64 import b64encode
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any

from msgspec import UNSET, Struct

from portico.cli.files import decode_utf8, read_bytes
from portico.cli.specs import is_utf8
from portico.jsonschema import Schema
from portico.jsonschema.argument_issues import MAX_ARGUMENT_ISSUES, ArgumentInspector, join_path, unknown_argument_issue
from portico.jsonschema.explanation import quote
from portico.jsonschema.reader import json_type
from portico.protocol.errors import UsageError

MAX_INPUT_BYTES = 64 * 1024 * 1024
# Each dot is one level of nesting; deeper arguments are written as JSON.
MAX_KEY_DEPTH = 32
# A number with more digits than this is treated as a string.
MAX_SCALAR_CHARS = 400

_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class ArgumentInput(Struct, frozen=True):
    """One word of the command line: a key and its value, or the source of its value."""

    key: str
    text: str
    # Whether the value is JSON (`:=`).
    raw: bool = False
    # A file, or standard input; `data` holds its content.
    source: str = ""
    data: bytes = b""

    def read(self) -> str:
        """Return the value as text. Raises UsageError if the source is not UTF-8."""
        return decode_utf8(self.data, self.source) if self.source else self.text


class InputSources:
    """Reads the sources `@file` and `-`."""

    def __init__(self) -> None:
        self._is_read = False

    def open(self, word: str) -> tuple[str, bytes] | None:
        """Return the name and content of a source, or None for a literal value."""
        if word == "-":
            if self._is_read:
                raise UsageError("standard input can be read only once: only one value can be -")
            # A second read would return nothing, and the tool would be called with an empty value.
            self._is_read = True
            return "standard input", read_bytes("-", MAX_INPUT_BYTES)
        return (word[1:], read_bytes(word[1:], MAX_INPUT_BYTES)) if word.startswith("@") else None


def parse_pairs(words: Sequence[str], sources: InputSources, *, accepts_json: bool = False) -> list[ArgumentInput]:
    """Parse the words of a command line, each `key=value` or `key:=json`. The key ends at the first `=`.

    `accepts_json`: whether the command has the option --arguments.
    """
    for at, word in enumerate(words):
        if not is_utf8(word):
            raise UsageError(f"{quote(ascii(word))} is not valid UTF-8")
        if "=" not in word:
            likely = (
                f"--arguments {shlex.quote(word)}" if accepts_json and word[0:1] == "{" else _likely_pair(words, at)
            )
            hint = f"; did you mean {likely}?" if likely else ""
            raise UsageError(f"expected key=value, got {quote(word)}{hint}")
    return [_parse_pair(word, sources) for word in words]


def _likely_pair(words: Sequence[str], at: int) -> str:
    """Return the `key=value` that a word without `=` belongs to, or "" if none is likely."""
    following = list(takewhile(lambda word: "=" not in word, words[at:]))
    if at:
        # The shell splits `text=hello world` at the space.
        key, _, value = words[at - 1].partition("=")
    elif len(following) > 1:
        key, value, following = following[0].removesuffix(":"), "", following[1:]
    elif words[at + 1 : at + 2] == ["="]:
        key, value, following = following[0], "", list(words[at + 2 : at + 3])
    else:
        key, _, value = words[at].partition(":")
        following = []
        if not key.isidentifier() or value.startswith("//"):
            return ""
    text = " ".join([value, *following]).strip()
    return f"{key}={shlex.quote(text)}" if text else ""


def _parse_pair(word: str, sources: InputSources) -> ArgumentInput:
    key, _, text = word.partition("=")
    raw = key.endswith(":")
    key = key[:-1] if raw else key
    if not all(key.split(".")):
        raise UsageError(f"{quote(word)} has no key before the =")
    if key.count(".") > MAX_KEY_DEPTH:
        raise UsageError(f"{quote(word)}: a key may have at most {MAX_KEY_DEPTH} dots")
    source = sources.open(text)
    return ArgumentInput(key, text, raw) if source is None else ArgumentInput(key, text, raw, *source)


def parse_json_arguments(text: str, sources: InputSources) -> dict[str, Any]:
    """Parse the value of --arguments: a JSON object, `@file` or `-`."""
    source = sources.open(text)
    source_name = "--arguments" if source is None else source[0]
    value = _parse_json(text if source is None else decode_utf8(source[1], source_name), source_name)
    if not isinstance(value, dict):
        raise UsageError(f"{source_name} must be a JSON object with the arguments by name")
    return value


def build_tool_arguments(schema: Any, inputs: list[ArgumentInput], json_arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool. Raises a UsageError that lists all problems."""
    arguments = dict(json_arguments)
    by_key: dict[str, list[ArgumentInput]] = {}
    for item in inputs:
        by_key.setdefault(item.key, []).append(item)
    form = ArgumentBuilder(schema)
    # Objects before their members.
    for key in sorted(by_key, key=lambda key: key.count(".")):
        form.add(arguments, key, by_key[key])
    # A value that could not be converted is absent, and would be reported a second time as missing.
    mistakes = form.errors or form.check(arguments)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return arguments


def build_prompt_arguments(required: dict[str, bool], inputs: list[ArgumentInput]) -> dict[str, str]:
    """Return the arguments of a prompt, which are strings.

    `required` maps all argument names to whether they are required.
    """
    arguments: dict[str, str] = {}
    mistakes: list[str] = []
    for item in inputs:
        if item.key not in required:
            mistakes.append(unknown_argument_issue(item.key, item.text, list(required), "arguments").message)
        elif item.key in arguments:
            mistakes.append(f"Invalid argument '{item.key}': given more than once.")
        value = _parse_json(item.read(), item.source or "the value") if item.raw else item.read()
        if not isinstance(value, str):
            mistakes.append(f"Invalid argument '{item.key}': expected a string, so {item.key}:= needs a JSON string.")
            continue
        arguments[item.key] = value
    missing = [name for name, needed in required.items() if needed and name not in arguments]
    mistakes = mistakes or [f"Missing argument '{name}': expected a string." for name in missing]
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return arguments


class ArgumentBuilder:
    """Builds arguments for a schema. Errors are collected, so that all can be reported together."""

    def __init__(self, schema: Any) -> None:
        self.reader = ArgumentInspector(schema, only_certain=True)
        self.root: Schema = schema if isinstance(schema, dict) else {}
        self.errors: list[str] = []

    def check(self, value: Any, schema: Schema | None = None, path: str = "arguments") -> list[str]:
        """Return messages about a value that does not match the schema."""
        problems = self.reader.find_issues(value, self.root if schema is None else schema, path)
        return [problem.message for problem in islice(problems, MAX_ARGUMENT_ISSUES)]

    def add(self, arguments: dict[str, Any], key: str, inputs: list[ArgumentInput]) -> None:
        """Add the values of one key, or collect an error."""
        *above, last = self._path(self.root, key)
        container, schema, path = arguments, self.root, "arguments"
        for name in above:
            if not self._accepts_name(schema, name, path, inputs):
                return
            container, schema, path = (
                container.setdefault(name, {}),
                self.reader.member_schema(schema, name),
                join_path(path, name),
            )
            if not isinstance(container, dict):
                self.errors.append(f"Invalid argument '{key}': '{name}' already has a value that is not an object.")
                return
        if not self._accepts_name(schema, last, path, inputs):
            return
        try:
            container[last] = self._value(inputs, self.reader.member_schema(schema, last))
        except UsageError as mistake:
            self.errors.append(f"Invalid argument '{key}': {mistake}")

    def _path(self, schema: Schema, key: str) -> list[str]:
        """Return the property names that lead to a key. A dot is part of a name if the schema has such a property."""
        property_names = self.reader.property_names(schema)
        if key in property_names or "." not in key:
            return [key]
        # The longest property wins: with `a` and `a.b` in the schema, `a.b.c` is a member of `a.b`.
        for name in sorted(property_names, key=len, reverse=True):
            if key.startswith(f"{name}."):
                return [name, *self._path(self.reader.member_schema(schema, name), key[len(name) + 1 :])]
        return key.split(".")

    def _accepts_name(self, schema: Schema, name: str, path: str, inputs: list[ArgumentInput]) -> bool:
        """Return whether the name may be used.

        Names that are not in the schema are likely typos, unless it allows them.
        """
        property_names = self.reader.property_names(schema)
        if (
            name in property_names
            or self.reader.allows_additional_properties(schema)
            or all(item.raw for item in inputs)
        ):
            return True
        self.errors.append(unknown_argument_issue(name, inputs[0].text, property_names, path).message)
        return False

    # Values

    def _value(self, inputs: list[ArgumentInput], schema: Schema) -> Any:
        if len(inputs) == 1:
            return self._convert_input(inputs[0], schema)
        if any(item.raw for item in inputs):
            raise UsageError("given more than once, which is not possible with :=.")
        if not self.reader.accepts_type(schema, "array"):
            raise UsageError(f"given {len(inputs)} times; expected {self.reader.describe(schema)}.")
        return [self._convert_input(item, self._item(schema, at)) for at, item in enumerate(inputs)]

    def _convert_input(self, item: ArgumentInput, schema: Schema) -> Any:
        if item.raw:
            return _parse_json(item.read(), item.source or "the value")
        if not item.source:
            return self.convert(item.text, schema)
        return self._from_source(item, schema)

    def _from_source(self, item: ArgumentInput, schema: Schema) -> Any:
        # Binary data, such as an image, so it must not be decoded as UTF-8.
        if self.reader.is_base64(schema):
            return b64encode(item.data).decode()
        text = item.read()
        if self.reader.accepts_type(schema, "string") and not self.reader.enum_values(schema):
            return text
        if self.reader.accepts_type(schema, "object") or self.reader.accepts_type(schema, "array"):
            return _parse_json(text, item.source)
        return self.convert(text.strip(), schema)

    def convert(self, text: str, schema: Schema) -> Any:
        """Convert the text to a value that the schema accepts. Otherwise return the text, which validation rejects."""
        scalar = _scalar(text)
        for choice in self.reader.enum_values(schema):
            # The types are compared as well, because True == 1 in Python, but not in JSON.
            if choice == text or (json_type(choice) == json_type(scalar) and choice == scalar):
                return choice
        if scalar is not UNSET and self.reader.accepts_type(schema, json_type(scalar)):
            return scalar
        if self.reader.accepts_type(schema, "string"):
            return text
        if isinstance(scalar, float) and scalar.is_integer() and self.reader.accepts_type(schema, "integer"):
            return int(scalar)
        if text[:1] in ("[", "{") and (
            self.reader.accepts_type(schema, "array") or self.reader.accepts_type(schema, "object")
        ):
            return _parse_json(text, "the value")
        if self.reader.accepts_type(schema, "array"):
            return [self.convert(text, self._item(schema, 0))]
        return text

    def _item(self, schema: Schema, at: int) -> Schema:
        for option in self.reader.alternatives(schema):
            if self.reader.accepts_type(option, "array"):
                return self.reader.item_schema(option, at)
        return {}


def _scalar(text: str) -> Any:
    # The length comes first: parsing an integer takes quadratic time.
    if len(text) > MAX_SCALAR_CHARS or not _SCALAR.fullmatch(text):
        return UNSET
    try:
        return _parse_json(text, "the value")
    except UsageError:
        return UNSET


def _parse_json(text: str, source: str) -> Any:
    """Parse strict JSON. msgspec is not used because its integers are limited in size."""
    try:
        value = json.loads(text, parse_constant=_reject_constant, parse_float=_finite)
        # `"\ud800"` is a lone surrogate, which JSON can express but UTF-8 cannot.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as failure:
        reason = "nested too deeply" if isinstance(failure, RecursionError) else str(failure)
        raise UsageError(f"{source} is not valid JSON: {reason}.") from None


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not valid JSON")


def _finite(word: str) -> float:
    value = float(word)
    # 1e999 is valid JSON, but Python reads it as infinity, which JSON cannot express.
    if math.isinf(value):
        raise ValueError(f"{word} is too large")
    return value
