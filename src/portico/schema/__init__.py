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
    from portico.schema.check import (
        Complaint as Complaint, Unfit as Unfit, complaints as complaints, require as require,
    )
    from portico.schema.compare import UNREADABLE as UNREADABLE, Effect as Effect, Shift as Shift, shifts as shifts
    from portico.schema.cost import LONGEST_SCHEMA as LONGEST_SCHEMA
    from portico.schema.describe import schema as schema
    from portico.schema.dialects import (
        DRAFT_07 as DRAFT_07, as_property as as_property, draft07 as draft07, simplified as simplified,
    )
    from portico.schema.explain import (
        TableField as TableField, field_notes as field_notes, fields as fields, type_words as type_words,
    )
    from portico.schema.problems import Problem as Problem, did_you_mean as did_you_mean, nearest as nearest
    from portico.schema.reader import (
        Reader as Reader, definitions_of as definitions_of, kind_of as kind_of, merged as merged,
        options_of as options_of, properties_of as properties_of, required_of as required_of, resolved as resolved,
        types_of as types_of, values_of as values_of, with_all_of as with_all_of, without as without,
    )
    from portico.schema import shapes as shapes
    from portico.schema.samples import Unsayable as Unsayable, sample as sample

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.schema": ("Schema", "SchemaError"),
    "portico.schema.check": ("Complaint", "Unfit", "complaints", "require"),
    "portico.schema.compare": ("UNREADABLE", "Effect", "Shift", "shifts"),
    "portico.schema.cost": ("LONGEST_SCHEMA",),
    "portico.schema.describe": ("schema",),
    "portico.schema.dialects": ("DRAFT_07", "as_property", "draft07", "simplified"),
    "portico.schema.explain": ("TableField", "field_notes", "fields", "type_words"),
    "portico.schema.problems": ("Problem", "did_you_mean", "nearest"),
    "portico.schema.reader": (
        "Reader", "definitions_of", "kind_of", "merged", "options_of", "properties_of", "required_of",
        "resolved", "types_of", "values_of", "with_all_of", "without",
    ),
    "portico.schema.shapes": (),
    "portico.schema.samples": ("Unsayable", "sample"),
}
# fmt: on

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
