"""The arguments of a call, from what was typed: `key=value` and its relatives, read as the tool's schema wants them.

| typed | means |
|---|---|
| `key=value` | a text, number, true, false or null: whichever the schema takes |
| `key=a key=b` | an array of both |
| `key='{…}'`, `key='[…]'` | JSON, where the schema wants an object or an array and no text |
| `a.b=value` | inside an object |
| `key=@file`, `key=-` | what is in the file, or on standard input |
| `key:=json` | JSON as it is; for a prompt a string, such as `key:='"@name"'`, which is no file |
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from itertools import islice
from typing import Any

from msgspec import UNSET, Struct

from portico.cli.files import decoded, read_bytes
from portico.cli.specs import is_text
from portico.jsonschema import Schema
from portico.jsonschema.argument_issues import MOST_PROBLEMS, Inspector, child, unknown
from portico.jsonschema.explanation import quoted
from portico.jsonschema.reader import kind_of
from portico.protocol.errors import UsageError

LONGEST_INPUT = 64 * 1024 * 1024
DEEPEST_KEY = 32
# A number with more digits than this is a text that looks like one.
LONGEST_SCALAR = 400

_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class Given(Struct, frozen=True):
    """One word of the line: what was typed for which key, or where it was read."""

    key: str
    text: str
    # JSON, because the word says so.
    raw: bool = False
    # A file, or standard input; then `data` is what was there.
    source: str = ""
    data: bytes = b""

    def read(self) -> str:
        return decoded(self.data, self.source) if self.source else self.text


class Sources:
    """Where `@file` and `-` are read."""

    def __init__(self) -> None:
        self._is_read = False

    def open(self, word: str) -> tuple[str, bytes] | None:
        """The name of the place and what is there; None for a word that means itself."""
        if word == "-":
            if self._is_read:
                raise UsageError("standard input can be read once: only one value can be -")
            self._is_read = True
            return "standard input", read_bytes("-", LONGEST_INPUT)
        return (word[1:], read_bytes(word[1:], LONGEST_INPUT)) if word.startswith("@") else None


def split(word: str, sources: Sources) -> Given:
    """`key=value` or `key:=json`. The key ends at the first `=`."""
    key, mark, text = word.partition("=")
    if not is_text(word):
        raise UsageError(f"{quoted(ascii(word))} is not text in UTF-8")
    if not mark:
        raise UsageError(f"{quoted(word)} is not key=value")
    raw = key.endswith(":")
    key = key[:-1] if raw else key
    if not all(key.split(".")) or key.count(".") > DEEPEST_KEY:
        raise UsageError(f"{quoted(word)} has no key in front of the =")
    source = sources.open(text)
    return Given(key, text, raw) if source is None else Given(key, text, raw, *source)


def from_json(text: str, sources: Sources) -> dict[str, Any]:
    """The value of --json, which is an object, `@file` or `-`."""
    source = sources.open(text)
    place = "--json" if source is None else source[0]
    value = _parsed(text if source is None else decoded(source[1], place), place)
    if not isinstance(value, dict):
        raise UsageError(f"{place} is not an object: all arguments are expected there, by their names")
    return value


def for_tool(schema: Any, given: list[Given], whole: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool. Raises a UsageError that lists everything that is wrong with them."""
    arguments = dict(whole)
    by_key: dict[str, list[Given]] = {}
    for one in given:
        by_key.setdefault(one.key, []).append(one)
    form = ArgumentForm(schema)
    # An object before what is put into it.
    for key in sorted(by_key, key=lambda key: key.count(".")):
        form.fill(arguments, key, by_key[key])
    mistakes = form.mistakes or form.check(arguments)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return arguments


def for_prompt(required: dict[str, bool], given: list[Given]) -> dict[str, str]:
    """The arguments of a prompt, which are texts. `required` has all of its names, and whether each is required."""
    arguments: dict[str, str] = {}
    mistakes: list[str] = []
    for one in given:
        if one.key not in required:
            mistakes.append(unknown(one.key, one.text, list(required), "arguments").message)
        elif one.key in arguments:
            mistakes.append(f"Invalid argument '{one.key}': given more than once.")
        value = _parsed(one.read(), one.source or "the value") if one.raw else one.read()
        if not isinstance(value, str):
            mistakes.append(f"Invalid argument '{one.key}': expected a text, so {one.key}:= needs a JSON string.")
            continue
        arguments[one.key] = value
    missing = [name for name, needed in required.items() if needed and name not in arguments]
    mistakes = mistakes or [f"Missing argument '{name}': expected a text." for name in missing]
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return arguments


class ArgumentForm:
    """A schema being filled in. Mistakes are collected, so that all of them can be reported at once."""

    def __init__(self, schema: Any) -> None:
        self.reader = Inspector(schema, certain=True)
        self.root: Schema = schema if isinstance(schema, dict) else {}
        self.mistakes: list[str] = []

    def check(self, value: Any, schema: Schema | None = None, path: str = "arguments") -> list[str]:
        problems = self.reader.problems(value, self.root if schema is None else schema, path)
        return [problem.message for problem in islice(problems, MOST_PROBLEMS)]

    def fill(self, arguments: dict[str, Any], key: str, given: list[Given]) -> None:
        *above, last = self._path(self.root, key)
        place, schema, path = arguments, self.root, "arguments"
        for name in above:
            if not self._is_known(schema, name, path, given):
                return
            place, schema, path = place.setdefault(name, {}), self.reader.member(schema, name), child(path, name)
            if not isinstance(place, dict):
                self.mistakes.append(f"Invalid argument '{key}': '{name}' has a value of its own.")
                return
        if not self._is_known(schema, last, path, given):
            return
        try:
            place[last] = self._value(given, self.reader.member(schema, last))
        except UsageError as mistake:
            self.mistakes.append(f"Invalid argument '{key}': {mistake}")

    def _path(self, schema: Schema, key: str) -> list[str]:
        """The names that lead to a key. A dot is part of a name if the schema has such a property."""
        known = self.reader.names(schema)
        if key in known or "." not in key:
            return [key]
        for name in sorted(known, key=len, reverse=True):
            if key.startswith(f"{name}."):
                return [name, *self._path(self.reader.member(schema, name), key[len(name) + 1 :])]
        return key.split(".")

    def _is_known(self, schema: Schema, name: str, path: str, given: list[Given]) -> bool:
        """Whether the name may be used. Others than the schema names are likely typos, unless it asks for them."""
        known = self.reader.names(schema)
        if name in known or self.reader.takes_more(schema) or all(one.raw for one in given):
            return True
        self.mistakes.append(unknown(name, given[0].text, known, path).message)
        return False

    # Values

    def _value(self, given: list[Given], schema: Schema) -> Any:
        if len(given) == 1:
            return self._one(given[0], schema)
        if any(one.raw for one in given):
            raise UsageError("given more than once, which := cannot be.")
        if not self.reader.takes(schema, "array"):
            raise UsageError(f"given {len(given)} times; expected {self.reader.words(schema)}.")
        return [self._one(one, self._item(schema, at)) for at, one in enumerate(given)]

    def _one(self, given: Given, schema: Schema) -> Any:
        if given.raw:
            return _parsed(given.read(), given.source or "the value")
        if not given.source:
            return self.typed(given.text, schema)
        return self._from_source(given, schema)

    def _from_source(self, given: Given, schema: Schema) -> Any:
        if self.reader.is_base64(schema):
            return b64encode(given.data).decode()
        text = given.read()
        if self.reader.takes(schema, "string") and not self.reader.choices(schema):
            return text
        if self.reader.takes(schema, "object") or self.reader.takes(schema, "array"):
            return _parsed(text, given.source)
        return self.typed(text.strip(), schema)

    def typed(self, text: str, schema: Schema) -> Any:
        """The text as a value that the schema accepts. If there is none it stays a text, which the check refuses."""
        scalar = _scalar(text)
        for choice in self.reader.choices(schema):
            if choice == text or (kind_of(choice) == kind_of(scalar) and choice == scalar):
                return choice
        if scalar is not UNSET and self.reader.takes(schema, kind_of(scalar)):
            return scalar
        if self.reader.takes(schema, "string"):
            return text
        if isinstance(scalar, float) and scalar.is_integer() and self.reader.takes(schema, "integer"):
            return int(scalar)
        if text[:1] in ("[", "{") and (self.reader.takes(schema, "array") or self.reader.takes(schema, "object")):
            return _parsed(text, "the value")
        if self.reader.takes(schema, "array"):
            return [self.typed(text, self._item(schema, 0))]
        return text

    def _item(self, schema: Schema, at: int) -> Schema:
        for option in self.reader.options(schema):
            if self.reader.takes(option, "array"):
                return self.reader.item(option, at)
        return {}


def _scalar(text: str) -> Any:
    if len(text) > LONGEST_SCALAR or not _SCALAR.fullmatch(text):
        return UNSET
    try:
        return _parsed(text, "the value")
    except UsageError:
        return UNSET


def _parsed(text: str, place: str) -> Any:
    """The value of strict JSON. Not by msgspec, which has no integers of any size."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        # `"\ud800"` is half a character, which JSON can say and UTF-8 cannot.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as failure:
        reason = "nested too deeply" if isinstance(failure, RecursionError) else str(failure)
        raise UsageError(f"{place} is not valid JSON: {reason}.") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _finite(word: str) -> float:
    value = float(word)
    if math.isinf(value):
        raise ValueError(f"{word} is too large")
    return value
