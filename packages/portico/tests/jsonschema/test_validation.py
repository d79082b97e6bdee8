"""Explanations of invalid values take bounded time, whoever chose the schema and the value."""

from __future__ import annotations

import time
from typing import Any

import pytest

from portico.jsonschema.validation import create_validator, validate


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"items": {"type": "string"}}}}, {"a": [1] * 300_000}),
        ({"items": {"anyOf": [{"type": "string"}] * 40}}, [1] * 5_000),
        ({"allOf": [{"maxItems": 0}] * 40}, [1] * 400_000),
        ({"propertyNames": {"maxLength": 1}}, {f"name {at}": 1 for at in range(8_000)}),
        ({"propertyNames": {"maxLength": 1}}, {f"{at}" + "x" * 50_000: 1 for at in range(70)}),
        ({"allOf": [{"maxLength": 1}] * 40}, "x" * 4_000_000),
    ],
)
def test_explaining_takes_bounded_time(schema: dict[str, Any], value: Any) -> None:
    began = time.process_time()
    assert validate(schema, value)
    assert create_validator(schema).reason(value)
    # Each of these takes one to ten seconds and up to gigabytes if all errors are collected.
    assert time.process_time() - began < 0.5


def test_an_error_in_a_value_of_usual_size_is_located() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    issues = validate(schema, {"a": ["x"] * 3_000 + [1]})
    assert [issue.path for issue in issues] == ["a[3000]"]


def test_a_member_of_a_large_value_is_named() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}, "b": {}}}
    issues = validate(schema, {"a": [1] * 100_000, "b": 1})
    assert [issue.path for issue in issues] == ["a"]
