"""JSON Schema: made from types, read, explained, checked, sampled, compared. Nothing else knows its keywords.

The names below are public; all but the first two are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portico._lazy import lazy_exports

Schema = dict[str, Any]


class SchemaError(Exception):
    """A schema cannot be made or used: a type that JSON cannot express, or a package that is not installed."""


# Two tables, one module after the other: what type checkers see, and where the names are.
# ruff: isort: off
# fmt: off
if TYPE_CHECKING:
    from portico.jsonschema.validation import (
        ValidationIssue as ValidationIssue,
        InvalidSchema as InvalidSchema,
        validate as validate,
        check_schema as check_schema,
    )
    from portico.jsonschema.comparison import (
        UNREADABLE_KEYWORD as UNREADABLE_KEYWORD,
        ChangeEffect as ChangeEffect,
        SchemaChange as SchemaChange,
        compare_schemas as compare_schemas,
    )
    from portico.jsonschema.cost import MAX_SCHEMA_BYTES as MAX_SCHEMA_BYTES
    from portico.jsonschema.generation import schema_for_type as schema_for_type
    from portico.jsonschema.dialects import (
        DRAFT_07 as DRAFT_07,
        wrap_as_property as wrap_as_property,
        to_draft_07 as to_draft_07,
        simplify as simplify,
    )
    from portico.jsonschema.explanation import (
        TableField as TableField,
        describe_constraints as describe_constraints,
        list_fields as list_fields,
        format_type as format_type,
    )
    from portico.jsonschema.argument_issues import (
        ArgumentIssue as ArgumentIssue,
        did_you_mean as did_you_mean,
        closest_names as closest_names,
    )
    from portico.jsonschema.reader import (
        SchemaReader as SchemaReader,
        get_definitions as get_definitions,
        json_type as json_type,
        merge_schemas as merge_schemas,
        get_alternatives as get_alternatives,
        get_properties as get_properties,
        get_required as get_required,
        resolve_references as resolve_references,
        get_types as get_types,
        get_enum_values as get_enum_values,
        merge_all_of as merge_all_of,
        omit_keywords as omit_keywords,
    )
    from portico.jsonschema import codegen as codegen
    from portico.jsonschema.examples import NoExampleFound as NoExampleFound, generate_example as generate_example

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.jsonschema": ("Schema", "SchemaError"),
    "portico.jsonschema.validation": ("ValidationIssue", "InvalidSchema", "validate", "check_schema"),
    "portico.jsonschema.comparison": ("UNREADABLE_KEYWORD", "ChangeEffect", "SchemaChange", "compare_schemas"),
    "portico.jsonschema.cost": ("MAX_SCHEMA_BYTES",),
    "portico.jsonschema.generation": ("schema_for_type",),
    "portico.jsonschema.dialects": ("DRAFT_07", "wrap_as_property", "to_draft_07", "simplify"),
    "portico.jsonschema.explanation": ("TableField", "describe_constraints", "list_fields", "format_type"),
    "portico.jsonschema.argument_issues": ("ArgumentIssue", "did_you_mean", "closest_names"),
    "portico.jsonschema.reader": (
        "SchemaReader", "get_definitions", "json_type", "merge_schemas", "get_alternatives", "get_properties",
        "get_required",
        "resolve_references", "get_types", "get_enum_values", "merge_all_of", "omit_keywords",
    ),
    "portico.jsonschema.codegen": (),
    "portico.jsonschema.examples": ("NoExampleFound", "generate_example"),
}
# fmt: on

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
