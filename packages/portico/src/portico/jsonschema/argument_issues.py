"""What is wrong with the arguments of a call, in words that a language model can act on.

Nothing here runs unless decoding has failed. The caller may be hostile, so the work is bounded: a number of steps
through the value, a number of problems, a length for everything that is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from portico.jsonschema import Schema
from portico.jsonschema.decoding import HookError
from portico.jsonschema.explanation import described, listed, quoted, received
from portico.jsonschema.generation import SIMPLE
from portico.jsonschema.reader import Reader, kind_of, takes, values_of
from portico.protocol.json_depth import decode_bounded

MOST_PROBLEMS = 20
MOST_STEPS = 50_000
LONGEST_NAME = 64
MOST_NAMES = 200

FORMATS = {body["format"]: tp for tp, body in SIMPLE.items() if "format" in body}


class Problem(Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong. `path` says where, from `arguments` down."""

    path: str
    expected: str
    received: str
    message: str
    suggestion: str = ""


def child(path: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if name.isidentifier() and len(name) <= LONGEST_NAME else f"{path}[{quoted(name)}]"


def whole(message: str, *, expected: str, received: str) -> Problem:
    """A problem with the arguments as such."""
    return Problem("arguments", expected, received, message)


class Inspector(Reader):
    """Holds values against one schema, and says what is wrong. The work has a bound, so it is made for one value.

    `certain`: only what certainly does not fit is wrong. Of schemas that are not ours, patterns and formats are their
    author's to check: a regular expression can take for ever, and a date that we would not read may be one for others.

    `strict`: repair no texts. A number such as 5.0 is still taken as an integer, because JSON Schema has it so.
    """

    def __init__(self, schema: Any, *, certain: bool = False, strict: bool = False) -> None:
        super().__init__(schema)
        self.certain, self.strict = certain, strict
        self.steps = MOST_STEPS

    # Repairing: what models get wrong most is to send JSON inside a string.

    def repaired(self, value: Any, schema: Schema) -> Any:
        """The value, with strings decoded where the schema wants something else than a string."""
        self.steps -= 1
        if self.steps < 0:
            return value
        if isinstance(value, str) and not self.strict:
            value = self._unwrapped(value, schema)
        kind = kind_of(value)
        if kind == "number" and value.is_integer() and not self.takes(schema, "number"):
            return int(value) if self.takes(schema, "integer") else value
        if kind not in ("array", "object"):
            return value
        fitting = [option for option in self.options(schema) if takes(option, kind)]
        if len(fitting) != 1:
            return value
        if kind == "array":
            return [self.repaired(item, self.item(fitting[0], at)) for at, item in enumerate(value)]
        return {name: self.repaired(item, self.property(fitting[0], name)) for name, item in value.items()}

    def _unwrapped(self, text: str, schema: Schema) -> Any:
        if self.takes(schema, "string"):
            return text
        try:
            value = decode_bounded(text)
        except (ValueError, RecursionError):
            return text
        kind = kind_of(value)
        integral = kind == "number" and value.is_integer() and self.takes(schema, "integer")
        return value if integral or self.takes(schema, kind) else text

    # Finding what is wrong.

    def problems(self, value: Any, schema: Schema, path: str) -> Iterator[Problem]:
        self.steps -= 1
        if self.steps < 0:
            return
        fitting = [option for option in self.options(schema) if self.fits(option, value)]
        if not fitting:
            yield self.invalid(value, schema, path)
            return
        if kind_of(value) not in ("array", "object"):
            return
        found = [list(islice(self.inside(value, option, path), MOST_PROBLEMS)) for option in fitting]
        # Of several shapes the nearest is explained: the one with the fewest problems.
        yield from min(found, key=len)

    def inside(self, value: Any, schema: Schema, path: str) -> Iterator[Problem]:
        if isinstance(value, list):
            for at, item in enumerate(value):
                yield from self.problems(item, self.item(schema, at), child(path, at))
            return
        known = schema.get("properties", {})
        for name, item in value.items():
            if name in known or schema.get("additionalProperties") is not False:
                yield from self.problems(item, self.property(schema, name), child(path, name))
            else:
                yield unknown(name, item, list(known), path)
            if "propertyNames" in schema and not self._takes_key(schema["propertyNames"], name):
                keys = self.words({"type": "string", **schema["propertyNames"]})
                yield _problem(child(path, name), f"{keys} as its key", f"the key {quoted(name)}")
        for name in schema.get("required", ()):
            if name not in value:
                yield self.missing(name, self.property(schema, name), path)

    def invalid(self, value: Any, schema: Schema, path: str) -> Problem:
        choices = [choice for option in self.options(schema) for choice in values_of(option) if isinstance(choice, str)]
        near = did_you_mean(value, choices) if isinstance(value, str) else ""
        return _problem(path, self.words(schema), received(value), near)

    def missing(self, name: str, schema: Schema, path: str) -> Problem:
        expected = self.words(schema)
        said = schema.get("description") or self.resolved(schema).get("description", "")
        meaning = f" ({_first_line(said)})" if said else ""
        where = child(path, name)
        message = f"Missing argument '{_argument(where)}': expected {expected}{meaning}."
        return Problem(where, expected, "nothing", message)

    def words(self, schema: Schema) -> str:
        """What is accepted, in English."""
        return described(self.options(schema), self.resolved)

    def fits(self, option: Schema, value: Any) -> bool:
        """Whether a value fits, leaving aside what is inside it."""
        kind = kind_of(value)
        if not takes(option, kind):
            return False
        if values := values_of(option):
            return any(type(choice) is type(value) and choice == value for choice in values)
        if kind in ("integer", "number"):
            return _is_within(option, value) and (self.certain or _is_multiple(option, value))
        if kind == "string":
            return _fits_size(option, "Length", len(value)) and (self.certain or _fits_text(option, value))
        if kind == "array":
            return _fits_size(option, "Items", len(value))
        return kind != "object" or _fits_size(option, "Properties", len(value))

    def _takes_key(self, schema: Schema, name: str) -> bool:
        return any(self.fits({"type": "string", **option}, name) for option in self.options(schema))


def unknown(name: str, value: Any, known: list[str], path: str) -> Problem:
    near = did_you_mean(name, known)
    inside = "" if path == "arguments" else f" in '{_argument(path)}'"
    message = f"Unknown argument {quoted(name, chr(39))}{inside}."
    if near:
        message += f" D{near[1:]}"
    message += f" Accepted: {listed(known)}." if known else " None is accepted."
    expected = f"one of {listed(known)}" if known else "no argument"
    return Problem(child(path, name), expected, received(value), message, near)


def refused(error: BaseException, schema: Schema, value: Any, inspector: Inspector, path: str) -> list[Problem]:
    """Problems that the schema does not show: a class of the author, or pydantic, said no while being made."""
    where, cause = _origin(error, path)
    if speaks_for_itself(error):
        return _from_pydantic(cause, where)
    authored = isinstance(cause, ValueError) and not isinstance(cause, msgspec.MsgspecError)
    if authored and not type(cause).__module__.startswith("pydantic"):
        return [_refusal(where, _first_line(str(cause)), value)]
    return [_problem(where, inspector.words(schema), received(value))]


def speaks_for_itself(error: BaseException) -> bool:
    """Whether pydantic has said what is wrong. A hostile value makes it say more than anyone wants to unpack."""
    cause: Any = _origin(error, "")[1]
    return type(cause).__module__.startswith("pydantic") and cause.error_count() <= MOST_NAMES


def _origin(error: BaseException, path: str) -> tuple[str, BaseException]:
    """Where the first error was raised, and that error. Every layer of decoding adds its part of the path."""
    while True:
        text = str(error)
        if isinstance(error, msgspec.ValidationError) and text.endswith("`") and "`$" in text:
            path += text.rpartition("`$")[2][:-1]
        if error.__cause__ is None or not isinstance(error, msgspec.ValidationError | HookError):
            return path, error
        error = error.__cause__


def _from_pydantic(error: Any, path: str) -> list[Problem]:
    problems = []
    for detail in islice(error.errors(include_url=False, include_context=False), MOST_PROBLEMS):
        where = path
        for step in detail["loc"]:
            where = child(where, step)
        # "Input should be a valid integer, unable to parse …" → "a valid integer"
        words = _first_line(detail["msg"]).partition(", unable to")[0]
        words = words.removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if detail["type"] == "missing":
            problems.append(Problem(where, "a value", "nothing", f"Missing argument '{_argument(where)}'."))
        elif words.startswith("Input should be "):
            problems.append(_problem(where, words.removeprefix("Input should be "), received(detail["input"])))
        else:
            problems.append(_refusal(where, words, detail["input"]))
    return problems


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that are most like this one. Comparing takes time, so both sides have a bound."""
    # Only ever needed to explain a mistake, so it is not imported before there is one.
    from difflib import get_close_matches

    if len(name) > LONGEST_NAME:
        return []
    candidates = [other for other in islice(known, MOST_NAMES) if len(other) <= LONGEST_NAME]
    return get_close_matches(name, candidates, n=most)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f"did you mean '{close[0]}'?" if close else ""


def _problem(path: str, expected: str, got: str, suggestion: str = "") -> Problem:
    subject = "arguments" if path == "arguments" else f"argument '{_argument(path)}'"
    message = f"Invalid {subject}: expected {expected}, received {got}."
    if suggestion:
        message += f" D{suggestion[1:]}"
    return Problem(path, expected, got, message, suggestion)


def _refusal(path: str, words: str, value: Any) -> Problem:
    """In the words of who refused it."""
    return Problem(path, words, received(value), f"Invalid argument '{_argument(path)}': {words}.")


def _argument(path: str) -> str:
    return path.removeprefix("arguments").removeprefix(".")


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0].rstrip(".")
    return line if len(line) <= 200 else f"{line[:200]}…"


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
        return False  # An integer of hundreds of digits, and a step that is a float.


def _fits_size(schema: Schema, word: str, size: int) -> bool:
    return bool(schema.get(f"min{word}", 0) <= size <= schema.get(f"max{word}", size))


def _fits_text(schema: Schema, value: str) -> bool:
    if "pattern" in schema and not _matches(schema["pattern"], value):
        return False
    wanted = bytes if schema.get("contentEncoding") == "base64" else FORMATS.get(schema.get("format", ""))
    if wanted is None:
        return True
    try:
        msgspec.convert(value, wanted)
    except ValueError:
        return False
    return True


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True  # pydantic's patterns are Rust's; it will have checked them itself.
