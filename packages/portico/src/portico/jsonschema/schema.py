"""The type of JSON Schemas, and the error of one that cannot be made or used."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


class SchemaError(Exception):
    """A schema cannot be made or used: a type that JSON cannot express, or a package that is not installed."""
