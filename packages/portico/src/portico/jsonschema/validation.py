"""Values held against schemas that others wrote, by compiled validators and within bounds.

Nothing is fetched, and no pattern takes more than linear time. Validators are jsonschema-rs, where it is installed.
"""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from portico.jsonschema import Schema, SchemaError
from portico.jsonschema.cost import EASY, LARGEST, LONGEST_SCHEMA, MOST_LOOKS, Cost, cost_of, size_of
from portico.jsonschema.reader import MOST_FIELDS, Reader, definitions_of, properties_of, required_of

MOST_COMPLAINTS = 20
# To say why a value does not fit, all ways to be valid are gone through: this many at most.
MOST_WAYS = 1_000_000
LONGEST_REASON = 300

_FORMATS: dict[str, Callable[[str], Any]] = {
    "date-time": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "uuid": uuid.UUID,
}


class Unfit(SchemaError, ValueError):
    """A schema that cannot be used; its text says why."""


class Unbounded(Unfit):
    """Nothing is wrong with the schema, but checking would take too long."""


class Complaint(Struct, frozen=True):
    """What is wrong with a value: where, which keyword of the schema says so, and in words."""

    path: str
    keyword: str
    message: str
    received: Any = None


DOES_NOT_FIT = Complaint("", "", "it does not fit")


class Validator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterable[Any]: ...


def compiled(schema: Schema) -> Validator | None:
    """The compiled schema; None where jsonschema-rs is not installed. Raises Unfit for what is no schema, or refers to
    what is not in it."""
    try:
        import jsonschema_rs
    except ImportError:
        return None
    try:
        # A regular expression of the linear-time engine: what is held against it may be hostile.
        validator: Validator = jsonschema_rs.validator_for(
            schema, offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, jsonschema_rs.ValidationError) as failure:
        raise Unfit(str(failure).partition("\n")[0][:LONGEST_REASON]) from None
    return validator


class Checker(Struct, frozen=True):
    """A schema that was found fit to be used. Without a validator every value is valid."""

    validator: Validator | None
    cost: Cost

    def is_valid(self, value: Any) -> bool:
        if self.cost.times > EASY // 10 and size_of(value, MOST_LOOKS) * self.cost.times > MOST_LOOKS:
            raise Unbounded("it makes too much work of this value")
        return self.validator is None or self.validator.is_valid(value)

    def complaints(self, value: Any) -> Iterator[Complaint]:
        """Why a value is not valid; nothing where it would take too long to say."""
        if self.validator is not None and not self._takes_long(value):
            yield from map(_complaint, self.validator.iter_errors(value))

    def reason(self, value: Any) -> str:
        """The first reason in the validator's words, where a schema does not contain itself."""
        if self.validator is None or self.cost.recursive or self._takes_long(value):
            return DOES_NOT_FIT.message
        return str(next(iter(self.validator.iter_errors(value))).message)[:LONGEST_REASON]

    def _takes_long(self, value: Any) -> bool:
        """Where a schema contains itself, each level of the value multiplies the ways to be valid."""
        if not self.cost.recursive:
            return self.cost.times > EASY
        return float(self.cost.times) ** (_depth(value) + 1) > MOST_WAYS


UNCHECKED = Checker(None, Cost(1, False))


def checker(schema: Schema) -> Checker:
    """Raises Unfit for a schema that cannot be used, and Unbounded for one that is too long."""
    _encoded(schema)
    try:
        # Its cost first: to compile it is work as well.
        cost = cost_of(schema)
        return Checker(compiled(schema), cost)
    except (ValueError, RecursionError) as failure:
        raise Unfit(str(failure)[:LONGEST_REASON]) from None


def _encoded(schema: Schema) -> bytes:
    try:
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, OverflowError) as failure:
        raise Unfit(f"it is no JSON: {failure}") from None
    if len(encoded) > LONGEST_SCHEMA:
        raise Unbounded(f"it is longer than {LONGEST_SCHEMA} bytes")
    return encoded


@lru_cache(maxsize=256)
def _remembered(encoded: bytes) -> Checker:
    found = checker(msgspec.json.decode(encoded))
    if found.validator is None:
        raise SchemaError("JSON Schemas are checked by the package jsonschema-rs: install portico[schema]")
    return found


def require(schema: Schema) -> None:
    """Raises Unfit if this is no schema that could be used, and SchemaError where none can be."""
    _remembered(_encoded(schema))


def complaints(schema: Schema, value: Any) -> list[Complaint]:
    """What is wrong with a value; nothing, if all is well. Raises Unfit where the schema cannot be used."""
    found = _remembered(_encoded(schema))
    if found.is_valid(value):
        return []
    return list(islice(found.complaints(value), MOST_COMPLAINTS)) or list(_roughly(schema, value)) or [DOES_NOT_FIT]


def _roughly(schema: Schema, value: Any) -> Iterator[Complaint]:
    """Which members do not fit, without why."""
    known = properties_of(schema)
    if not isinstance(value, dict) or not known:
        return
    for name in required_of(schema):
        if name not in value:
            yield Complaint(name, "required", "it is required")
    for name, one in islice(value.items(), MOST_FIELDS):
        if name in known:
            part = {"properties": {name: known[name]}, **definitions_of(schema)}
            if not _remembered(_encoded(part)).is_valid({name: one}):
                yield Complaint(name, "", "it does not fit", one)
        elif schema.get("additionalProperties") is False:
            yield Complaint(name, "additionalProperties", "there is no such member", one)


def _depth(value: Any, most: int = 16) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 0 if not inside or not most else 1 + max(_depth(one, most - 1) for one in inside)


def _complaint(error: Any) -> Complaint:
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    steps, received, message = list(error.instance_path), error.instance, str(error.message)[:LONGEST_REASON]
    if keyword == "required":
        return Complaint(path_of([*steps, error.kind.property]), keyword, "it is required", None)
    if keyword == "additionalProperties" and getattr(error.kind, "unexpected", None):
        name = error.kind.unexpected[0]
        return Complaint(path_of([*steps, name]), keyword, "there is no such member", received.get(name))
    return Complaint(path_of(steps), keyword, message, received)


def path_of(steps: list[str | int]) -> str:
    """`address.lines[0]`"""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


# Reading values by a schema


def has_formats(schema: Schema) -> bool:
    """Whether `with_formats` could find anything to do."""
    try:
        return b'"format"' in msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return True


def with_formats(value: Any, schema: Schema) -> Any:
    """A JSON value with its dates, times and ids as such, where the schema says that they are."""
    size = size_of(value, LARGEST)
    try:
        return _FormatReader(schema, 16 * size + 1000).read(value, schema) if size < LARGEST else value
    except (_Enough, RecursionError):
        return value


class _Enough(Exception):
    """The schema makes more work of the value than it is worth: it stays as it came."""


class _FormatReader(Reader):
    def __init__(self, root: Schema, steps: int) -> None:
        super().__init__(root)
        self._steps = steps

    def read(self, value: Any, schema: Schema) -> Any:
        """What the first option makes of it that makes something of it: `X | None` and its like."""
        for option in self.options(schema):
            self._steps -= 1
            if self._steps < 0:
                raise _Enough
            found = self._read(value, option)
            if found is not value and found != value:
                return found
        return value

    def _read(self, value: Any, option: Schema) -> Any:
        if isinstance(value, str) and (parse := _FORMATS.get(option.get("format", ""))):
            with contextlib.suppress(ValueError):
                return parse(value)
        if isinstance(value, dict) and option.keys() & {"properties", "additionalProperties"}:
            return {name: self.read(one, self.property(option, name)) for name, one in value.items()}
        if isinstance(value, list) and option.keys() & {"items", "prefixItems"}:
            return [self.read(one, self.item(option, at)) for at, one in enumerate(value)]
        return value
