"""JSON Schema: made from types, read, explained, checked, sampled, compared. Nothing else knows its keywords.

The names below are public; all but the first two are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portico._lazy import public_names

Schema = dict[str, Any]


class SchemaError(Exception):
    """A schema cannot be made or used: a type that JSON cannot express, or a package that is not installed."""


# Two tables, one module after the other: what type checkers see, and where the names are.
# ruff: isort: off
# fmt: off
if TYPE_CHECKING:
    from portico.jsonschema.validation import (
        Complaint as Complaint,
        Unfit as Unfit,
        complaints as complaints,
        require as require,
    )
    from portico.jsonschema.comparison import (
        UNREADABLE as UNREADABLE,
        Effect as Effect,
        Shift as Shift,
        shifts as shifts,
    )
    from portico.jsonschema.cost import LONGEST_SCHEMA as LONGEST_SCHEMA
    from portico.jsonschema.generation import schema as schema
    from portico.jsonschema.dialects import (
        DRAFT_07 as DRAFT_07,
        as_property as as_property,
        draft07 as draft07,
        simplified as simplified,
    )
    from portico.jsonschema.explanation import (
        TableField as TableField,
        field_notes as field_notes,
        fields as fields,
        type_words as type_words,
    )
    from portico.jsonschema.argument_issues import (
        Problem as Problem,
        did_you_mean as did_you_mean,
        nearest as nearest,
    )
    from portico.jsonschema.reader import (
        Reader as Reader,
        definitions_of as definitions_of,
        kind_of as kind_of,
        merged as merged,
        options_of as options_of,
        properties_of as properties_of,
        required_of as required_of,
        resolved as resolved,
        types_of as types_of,
        values_of as values_of,
        with_all_of as with_all_of,
        without as without,
    )
    from portico.jsonschema import codegen as codegen
    from portico.jsonschema.examples import Unsayable as Unsayable, sample as sample

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.jsonschema": ("Schema", "SchemaError"),
    "portico.jsonschema.validation": ("Complaint", "Unfit", "complaints", "require"),
    "portico.jsonschema.comparison": ("UNREADABLE", "Effect", "Shift", "shifts"),
    "portico.jsonschema.cost": ("LONGEST_SCHEMA",),
    "portico.jsonschema.generation": ("schema",),
    "portico.jsonschema.dialects": ("DRAFT_07", "as_property", "draft07", "simplified"),
    "portico.jsonschema.explanation": ("TableField", "field_notes", "fields", "type_words"),
    "portico.jsonschema.argument_issues": ("Problem", "did_you_mean", "nearest"),
    "portico.jsonschema.reader": (
        "Reader", "definitions_of", "kind_of", "merged", "options_of", "properties_of", "required_of",
        "resolved", "types_of", "values_of", "with_all_of", "without",
    ),
    "portico.jsonschema.codegen": (),
    "portico.jsonschema.examples": ("Unsayable", "sample"),
}
# fmt: on

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
