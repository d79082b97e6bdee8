"""JSON Schemas that somebody else wrote, compiled. Nothing is fetched, and no pattern takes more than linear time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Validator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterable[Any]: ...


def compiled(schema: dict[str, Any]) -> Validator | None:
    """None: jsonschema-rs is not installed. ValueError: no schema, or one that refers to what is not in it."""
    try:
        import jsonschema_rs
    except ImportError:
        return None
    try:
        # A regular expression of the linear-time engine: what is held against it may be hostile.
        found: Validator = jsonschema_rs.validator_for(
            schema, offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, jsonschema_rs.ValidationError) as failure:
        raise ValueError(str(failure).partition("\n")[0]) from None
    return found
