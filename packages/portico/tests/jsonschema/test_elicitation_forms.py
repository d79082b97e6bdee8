"""Elicitation forms: supported fields, and validation of answers."""

from __future__ import annotations

from typing import Any

import pytest

from portico.jsonschema import SchemaError
from portico.jsonschema.elicitation_forms import find_invalid_field, to_form_schema

TITLED = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]


def form_of(field: Any) -> dict[str, Any]:
    return to_form_schema({"type": "object", "properties": {"f": field}, "required": ["f"]}, "a test")


@pytest.mark.parametrize(
    "field, drawn",
    [
        ({"type": "string", "format": "uuid", "pattern": "x"}, {"type": "string"}),
        ({"type": "string", "format": "email"}, {"type": "string", "format": "email"}),
        ({"type": ["integer", "null"]}, {"type": "integer"}),
        ({"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}, {"type": "number"}),
        ({"const": "x"}, {"type": "string", "enum": ["x"]}),
        ({"oneOf": TITLED}, {"type": "string", "oneOf": TITLED}),
        ({"anyOf": [{"const": "s"}, {"const": "l"}]}, {"type": "string", "oneOf": [
            {"const": "s", "title": "s"}, {"const": "l", "title": "l"}]}),
        ({"type": "array", "items": {"enum": ["a"]}}, {"type": "array", "items": {"type": "string", "enum": ["a"]}}),
        ({"type": "array", "items": {"oneOf": TITLED}}, {"type": "array", "items": {"anyOf": TITLED}}),
        ({"type": "integer", "default": "x"}, {"type": "integer"}),
        ({"type": "boolean", "default": "yes"}, {"type": "boolean"}),
        ({"enum": ["a"], "default": "b"}, {"type": "string", "enum": ["a"]}),
        ({"type": "number", "default": float("nan"), "minimum": float("-inf")}, {"type": "number"}),
        ({"enum": ["a", "b"], "enumNames": [1, 2]}, {"type": "string", "enum": ["a", "b"]}),
        ({"enum": ["a", "b"], "enumNames": ["A"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"type": "string", "enumNames": []}, {"type": "string"}),
    ],
)  # fmt: skip
def test_field_has_the_words_of_a_form_and_no_others(field: Any, drawn: Any) -> None:
    assert form_of(field)["properties"]["f"] == drawn


@pytest.mark.parametrize(
    "field",
    [
        {},
        {"type": "object", "properties": {"deep": {"type": "string"}}},
        {"type": "array"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "object"}},
        {"type": ["string", "integer"]},
        {"type": "string", "enum": [1, 2]},
        {"type": "string", "enum": []},
        {"type": "string", "oneOf": [{"minLength": 3}]},
        {"type": "null"},
    ],
)
def test_field_that_is_not_flat_is_rejected(field: Any) -> None:
    with pytest.raises(SchemaError, match="flat fields"):
        form_of(field)


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "integer"}}]
)
def test_form_has_fields(schema: Any) -> None:
    with pytest.raises(SchemaError, match="named fields"):
        to_form_schema(schema, "a test")


@pytest.mark.parametrize("word", ["$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties"])
def test_fields_of_a_form_are_all_that_is_said_of_it(word: str) -> None:
    with pytest.raises(SchemaError, match="also has"):
        to_form_schema({"type": "object", "properties": {}, word: []}, "a test")


def test_required_names_must_be_fields() -> None:
    with pytest.raises(SchemaError, match="not one of its fields"):
        to_form_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, "a test")


def test_references_are_followed_to_the_choices() -> None:
    choices = {"type": "string", "enum": ["a", "b"]}
    fields = {"one": {"$ref": "#/$defs/C"}, "more": {"type": "array", "items": {"$ref": "#/$defs/C"}}}
    form = to_form_schema({"type": "object", "properties": fields, "$defs": {"C": choices}}, "a test")
    assert form["properties"] == {"one": choices, "more": {"type": "array", "items": choices}}


@pytest.mark.parametrize(
    "field, right, wrong",
    [
        ({"type": "integer", "minimum": 0}, [0, 7, 7.0], ["7", -1, 1.5, True, None, {"deep": 1}]),
        ({"type": "number", "maximum": 1}, [0.5, 1], [2, "0"]),
        ({"type": "boolean"}, [True, False], [1, "yes"]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "ab"], ["", "abc", 5]),
        ({"type": "string", "format": "date"}, ["2026-07-28"], ["tomorrow"]),
        ({"type": "string", "format": "email"}, ["a@b.example", "ä@ö.example"], ["a", "a@", "@b", "a b@c", "a@b@c"]),
        ({"type": "string", "format": "uri"}, ["https://x.example/?q=1", "urn:x:y"], ["x", "/x", "https://a b", ":x"]),
        ({"enum": ["a", "b"]}, ["a"], ["zzz", 1]),
        ({"oneOf": TITLED}, ["s"], ["Small", "m"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1}, [["a"], ["b", "a"]], [[], ["c"], "a", [1]]),
    ],
)
def test_answer_is_held_against_its_form(field: Any, right: list[Any], wrong: list[Any]) -> None:
    form = form_of(field)
    assert [find_invalid_field(form, {"f": value}) for value in right] == [None] * len(right)
    assert [find_invalid_field(form, {"f": value}) for value in wrong] == ["f"] * len(wrong)
    assert find_invalid_field(form, {}) == "f"


def test_additional_values_must_be_flat() -> None:
    form = form_of({"type": "string"})
    assert [find_invalid_field(form, {"f": "x", "g": more}) for more in ("y", 1, 1.5, True, ["z"])] == [None] * 5
    assert [find_invalid_field(form, {"f": "x", "g": more}) for more in ({}, None, [1], [[]])] == ["g"] * 4
