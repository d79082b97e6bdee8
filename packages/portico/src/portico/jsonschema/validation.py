"""Validation against schemas of other parties, with compiled validators and bounded work.

Nothing is fetched, and patterns run in linear time. The validators come from jsonschema-rs, if it is installed.
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

from portico.jsonschema.cost import (
    CHEAP_EVALUATIONS,
    MAX_EVALUATIONS,
    MAX_SCHEMA_BYTES,
    MAX_VALUE_NODES,
    SchemaCost,
    count_nodes,
    estimate_cost,
)
from portico.jsonschema.reader import MAX_PROPERTIES, SchemaReader, get_definitions, get_properties, get_required
from portico.jsonschema.schema import Schema, SchemaError

MAX_ISSUES = 20
# Explaining a failure tries every way to be valid: at most this many in recursive schemas.
MAX_EXPLAIN_BRANCHES = 1_000_000
# Explaining collects all errors, each with a copy of the value that it is about, before it returns the first one.
# Evaluations of nodes, where each error takes ten microseconds, and copied nodes or characters, which take less.
MAX_EXPLAIN_EVALUATIONS, MAX_COPIED_NODES, MAX_COPIED_CHARS = 20_000, 500_000, 50_000_000
MAX_REASON_CHARS = 300

_FORMATS: dict[str, Callable[[str], Any]] = {
    "date-time": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "uuid": uuid.UUID,
}


class InvalidSchema(SchemaError, ValueError):
    """The schema cannot be used; the message says why."""


class SchemaTooExpensive(InvalidSchema):
    """The schema is valid, but validation would take too long."""


class ValidationIssue(Struct, frozen=True):
    """One validation error: its location, the failing keyword and a message."""

    path: str
    keyword: str
    message: str
    received: Any = None


UNSPECIFIED_ISSUE = ValidationIssue("", "", "does not match the schema")


class CompiledValidator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterable[Any]: ...


def compile_validator(schema: Schema) -> CompiledValidator | None:
    """Compile a schema, or return None if jsonschema-rs is not installed.

    Raises `InvalidSchema` for an invalid schema or an unresolvable reference.
    """
    try:
        # Optional dependency, imported here: most servers never validate a schema of another party.
        import jsonschema_rs
    except ImportError:
        return None
    try:
        # The linear-time regex engine, because the values may be hostile.
        # Offline, because a `$ref` to a URL would let the author of a schema make this process send requests.
        validator: CompiledValidator = jsonschema_rs.validator_for(
            schema, offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, jsonschema_rs.ValidationError) as failure:
        raise InvalidSchema(str(failure).partition("\n")[0][:MAX_REASON_CHARS]) from None
    return validator


class SchemaValidator(Struct, frozen=True):
    """Checked schema. Without a compiled validator every value is valid."""

    validator: CompiledValidator | None
    cost: SchemaCost

    def is_valid(self, value: Any) -> bool:
        """Return whether a value is valid. Raises SchemaTooExpensive."""
        if (
            # Counting nodes costs time as well, so cheap schemas skip it.
            self.cost.evaluations > CHEAP_EVALUATIONS // 10
            and count_nodes(value, MAX_EVALUATIONS) * self.cost.evaluations > MAX_EVALUATIONS
        ):
            raise SchemaTooExpensive("validating this value would take too long")
        # is_valid() stops at the first error; errors are only collected for values that are rejected.
        return self.validator is None or self.validator.is_valid(value)

    def iter_issues(self, value: Any) -> Iterator[ValidationIssue]:
        """Yield the validation errors; nothing if explaining would take too long."""
        if self.validator is not None and not self._is_expensive(value):
            yield from map(_to_issue, self.validator.iter_errors(value))

    def reason(self, value: Any) -> str:
        """Return the first error message, unless explaining would take too long."""
        if self.validator is None or self.cost.recursive or self._is_expensive(value):
            return UNSPECIFIED_ISSUE.message
        return str(next(iter(self.validator.iter_errors(value))).message)[:MAX_REASON_CHARS]

    def _is_expensive(self, value: Any) -> bool:
        """Return whether explaining is too expensive. In recursive schemas each level multiplies the work."""
        evaluations = self.cost.evaluations
        if evaluations > CHEAP_EVALUATIONS or _exceeds_work(value, evaluations):
            return True
        if not self.cost.recursive:
            return False
        return float(self.cost.evaluations) ** (_depth(value) + 1) > MAX_EXPLAIN_BRANCHES


ACCEPT_ALL = SchemaValidator(None, SchemaCost(1, False))


def create_validator(schema: Schema) -> SchemaValidator:
    """Check and compile a schema. Raises InvalidSchema, or SchemaTooExpensive if it is too large."""
    # First, because it also rejects Python objects that contain themselves.
    _encode_schema(schema)
    try:
        # The cost first, because compiling is work as well.
        cost = estimate_cost(schema)
        return SchemaValidator(compile_validator(schema), cost)
    except (ValueError, RecursionError) as failure:
        raise InvalidSchema(str(failure)[:MAX_REASON_CHARS]) from None


def _encode_schema(schema: Schema) -> bytes:
    try:
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, OverflowError) as failure:
        raise InvalidSchema(f"it is not valid JSON: {failure}") from None
    # Every later step takes time at least in proportion to the size.
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise SchemaTooExpensive(f"it exceeds {MAX_SCHEMA_BYTES} bytes")
    return encoded


# Compiling takes longer than validating. Keyed by the encoded schema, because dicts are mutable.
@lru_cache(maxsize=256)
def _cached_validator(encoded: bytes) -> SchemaValidator:
    validator = create_validator(msgspec.json.decode(encoded))
    if validator.validator is None:
        raise SchemaError("validating JSON Schemas needs the package jsonschema-rs: pip install 'portico[schema]'")
    return validator


def check_schema(schema: Schema) -> None:
    """Raise InvalidSchema if the schema is unusable, and SchemaError if jsonschema-rs is missing."""
    _cached_validator(_encode_schema(schema))


def validate(schema: Schema, value: Any) -> list[ValidationIssue]:
    """Return the validation errors of a value; empty if it is valid. Raises InvalidSchema."""
    result = _cached_validator(_encode_schema(schema))
    if result.is_valid(value):
        return []
    return (
        # The best explanation that is affordable: exact errors, then the names of the members, then the bare fact.
        list(islice(result.iter_issues(value), MAX_ISSUES))
        or list(_find_invalid_members(schema, value))
        or [UNSPECIFIED_ISSUE]
    )


def _find_invalid_members(schema: Schema, value: Any) -> Iterator[ValidationIssue]:
    """Yield the members that are invalid, without the reason."""
    properties = get_properties(schema)
    if not isinstance(value, dict) or not properties:
        return
    for name in get_required(schema):
        if name not in value:
            yield ValidationIssue(name, "required", "is required")
    for name, member in islice(value.items(), MAX_PROPERTIES):
        if name in properties:
            # One member at a time: explaining the whole was too expensive, but each part is known to be cheap to
            # check.
            part = {"properties": {name: properties[name]}, **get_definitions(schema)}
            if not _cached_validator(_encode_schema(part)).is_valid({name: member}):
                yield ValidationIssue(name, "", "does not match the schema", member)
        elif schema.get("additionalProperties") is False:
            yield ValidationIssue(name, "additionalProperties", "unexpected member", member)


def _exceeds_work(value: Any, evaluations: int) -> bool:
    """Return whether the errors of a value, up to `evaluations` for each node, may take too much time or memory."""
    nodes = copied = chars = 0
    # A stack instead of recursion, with the nodes that each error about a node may copy: those inside it.
    pending = [(value, 1)]
    while pending:
        node, depth = pending.pop()
        nodes += 1
        copied += depth
        if isinstance(node, str):
            chars += depth * len(node)
        elif isinstance(node, dict):
            # Errors about names copy the whole object.
            copied += len(node) * len(node)
            chars += (depth + len(node)) * sum(map(len, node))
            pending += [(item, depth + 1) for item in node.values()]
        elif isinstance(node, list):
            pending += [(item, depth + 1) for item in node]
        if (
            (nodes + len(pending)) * evaluations > MAX_EXPLAIN_EVALUATIONS
            or copied * evaluations > MAX_COPIED_NODES
            or chars * evaluations > MAX_COPIED_CHARS
        ):
            return True
    return False


def _depth(value: Any, max_depth: int = 16) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 0 if not inside or not max_depth else 1 + max(_depth(item, max_depth - 1) for item in inside)


def _to_issue(error: Any) -> ValidationIssue:
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    steps, received, message = list(error.instance_path), error.instance, str(error.message)[:MAX_REASON_CHARS]
    # The error is located at the object; the caller needs the path of the member that is missing.
    if keyword == "required":
        return ValidationIssue(format_path([*steps, error.kind.property]), keyword, "is required", None)
    if keyword == "additionalProperties" and getattr(error.kind, "unexpected", None):
        name = error.kind.unexpected[0]
        return ValidationIssue(format_path([*steps, name]), keyword, "unexpected member", received.get(name))
    return ValidationIssue(format_path(steps), keyword, message, received)


def format_path(segments: list[str | int]) -> str:
    """Format a path such as `address.lines[0]`."""
    path = ""
    for step in segments:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


# Conversion of formats


def has_formats(schema: Schema) -> bool:
    """Return whether `convert_formats` could change anything."""
    try:
        # A property named "format" is a harmless false positive: the conversion then finds nothing to change.
        return b'"format"' in msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return True


def convert_formats(value: Any, schema: Schema) -> Any:
    """Convert dates, times and UUIDs in a JSON value where the schema declares their format."""
    size = count_nodes(value, MAX_VALUE_NODES)
    try:
        # Proportional to the value: a schema with alternatives may visit a node several times, but not without limit.
        return _FormatConverter(schema, 16 * size + 1000).convert(value, schema) if size < MAX_VALUE_NODES else value
    except (SchemaTooExpensive, RecursionError):
        return value


class _FormatConverter(SchemaReader):
    def __init__(self, root: Schema, max_steps: int) -> None:
        super().__init__(root)
        self._steps = max_steps

    def convert(self, value: Any, schema: Schema) -> Any:
        """Return the result of the first alternative that changes the value, as for `X | None`."""
        for option in self.alternatives(schema):
            self._steps -= 1
            if self._steps < 0:
                raise SchemaTooExpensive
            result = self._read(value, option)
            # An alternative that leaves the value unchanged says nothing; the next one may convert it.
            if result is not value and result != value:
                return result
        return value

    def _read(self, value: Any, option: Schema) -> Any:
        if isinstance(value, str) and (parse := _FORMATS.get(option.get("format", ""))):
            # `format` is an annotation in JSON Schema 2020-12 (Validation, section 7), so other text stays text.
            with contextlib.suppress(ValueError):
                return parse(value)
        if isinstance(value, dict) and option.keys() & {"properties", "additionalProperties"}:
            return {name: self.convert(member, self.property_schema(option, name)) for name, member in value.items()}
        if isinstance(value, list) and option.keys() & {"items", "prefixItems"}:
            return [self.convert(member, self.item_schema(option, at)) for at, member in enumerate(value)]
        return value
