"""JSON Schema: made from types, read, explained, checked, sampled, compared. Nothing else knows its keywords."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


class SchemaError(Exception):
    """A schema cannot be made or used: a type that JSON cannot express, or a package that is not installed."""
