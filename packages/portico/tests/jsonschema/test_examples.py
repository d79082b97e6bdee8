"""Generated examples are valid."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from portico.jsonschema import validation
from portico.jsonschema.dialects import to_draft_07, wrap_as_property
from portico.jsonschema.examples import NoExampleFound, generate_example, generate_matching_text
from support.random_schemas import SCHEMAS


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z0-9_]+(\.[a-z0-9_]+)+$",
        r"^[A-Z]{2}$",
        r"^\d{4}-\d{2}-\d{2}$",
        r"^(foo|bar)baz?$",
        r"^[^a-c]{3,}$",
        r"^task_[0-9A-Z]{26}$",
        r"a.*b",
        r"^\w+@\w+\.(com|org)$",
        r"^(?:a|b){2,3}\s\S$",
        r"^[\w.-]+$",
        r"^[+-]?\d+$",
        r"^$",
        r"\[\]",
        r"a{",
        r"(?i)^[ -~]x*?$",
    ],
)
@pytest.mark.parametrize("least", [0, 12])
def test_text_matches_its_pattern(pattern: str, least: int) -> None:
    assert re.search(pattern, generate_matching_text(pattern, least))


@pytest.mark.parametrize(
    "pattern", [r"(?=a)", r"\1", r"(", r"[", r"*", r"\p{L}", r"\bfoo", "a" * 1000, "(" * 100, "((a{999}){999}){999}"]
)
def test_unsupported_patterns_raise_unsupported_pattern(pattern: str) -> None:
    with pytest.raises(NoExampleFound):
        generate_matching_text(pattern)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "date-time"},
        {"type": "string", "minLength": 20, "maxLength": 22},
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 9},
        {"type": "integer", "minimum": 7, "multipleOf": 5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.3},
        {"type": "integer", "maximum": -7, "multipleOf": 3},
        {"type": "array", "items": {"enum": ["x", "y", "z"]}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
        {"type": "object", "required": ["unnamed"]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"]},
            ]
        },
        {
            "anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}],
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                    "required": ["kids"],
                }
            },
        },
        {
            "type": "object",
            "properties": {"number": {"type": "integer"}, "email": {"type": "string"}},
            "oneOf": [{"required": ["number"]}, {"required": ["email"]}],
            "additionalProperties": False,
        },
        {"type": "string", "contentEncoding": "base64"},
        {"type": "boolean"},
        {},
        {"const": {"deep": [1]}},
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_sample_fits_its_schema(schema: dict[str, Any], full: bool) -> None:
    assert validation.validate(schema, generate_example(schema, include_optional=full)) == []


@settings(max_examples=200, deadline=None)
@given(SCHEMAS)
def test_sample_matches_any_schema(schema: dict[str, Any]) -> None:
    try:
        result = generate_example(schema)
    except NoExampleFound:
        return
    assert validation.validate(schema, result) == []


def test_example_from_the_schema_is_used() -> None:
    assert generate_example({"type": "string", "examples": ["Oslo"]}) == "Oslo"


def test_schema_that_nothing_fits_has_no_sample() -> None:
    with pytest.raises(NoExampleFound):
        generate_example({"type": "integer", "minimum": 5, "maximum": 4})


def test_schema_that_contains_itself_without_end_is_not_followed() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    with pytest.raises(NoExampleFound):
        generate_example(endless)


# Complaints


def test_schema_from_the_network_is_not_fetched() -> None:
    with pytest.raises(validation.InvalidSchema):
        validation.validate({"$ref": "https://127.0.0.1:9/schema.json"}, {})


def test_schema_that_is_too_heavy_is_not_used() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(validation.InvalidSchema):
        validation.validate({"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {}}}, {})


def doubling(refer: Callable[[int], str], **named: Callable[[int], str]) -> dict[str, Any]:
    """Each definition refers twice to the next one, by whatever means."""
    definitions: dict[str, Any] = {
        f"d{n}": {keyword: name(n) for keyword, name in named.items()} | {"allOf": [{"$ref": refer(n + 1)}] * 2}
        for n in range(40)
    }
    definitions["d40"] = {keyword: name(40) for keyword, name in named.items()}
    return {"allOf": [{"$ref": refer(0)}], "$defs": definitions}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(lambda n: f"#/%24defs/d{n}"),
        doubling(lambda n: f"#%2F$defs/d{n}"),
        doubling(lambda n: f"#a{n}", **{"$anchor": lambda n: f"a{n}"}),
        doubling(lambda n: f"https://example.com/{n}", **{"$id": lambda n: f"https://example.com/{n}"}),
        {"$id": "https://example.com/all", **doubling(lambda n: f"https://example.com/all#/$defs/d{n}")},
        {"allOf": [{"allOf": [{"$ref": f"#/allOf/{n + 1}"}] * 2} for n in range(40)] + [{}]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [doubling(lambda n: f"#/items/0/$defs/d{n}")]},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "dependencies": {"a": doubling(lambda n: f"#/dependencies/a/$defs/d{n}")},
        },
    ],
)
def test_however_a_schema_refers_to_its_parts_they_are_counted(schema: dict[str, Any]) -> None:
    with pytest.raises(validation.InvalidSchema, match="too often"):
        validation.validate(schema, [1])
    assert validation.validate({"$ref": "#b", "$defs": {"d": {"$anchor": "b", "type": "integer"}}}, 1) == []


def test_schema_that_contains_itself_still_says_which_member_is_wrong() -> None:
    node = {
        "anyOf": [{"type": "null"}]
        + [{"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/node"}}} for n in range(8)]
    }
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}, "name": {"type": "string"}},
        "required": ["name", "other"],
        "additionalProperties": False,
        "$defs": {"node": node},
    }
    deep: Any = 3
    for _ in range(12):
        deep = {"p0": deep, "p1": deep}
    result = validation.validate(schema, {"tree": deep, "name": 3, "extra": 1})
    assert {item.path for item in result} >= {"name", "other", "extra"}


def test_path_of_a_complaint_leads_to_the_place() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer"}}}}},
    }
    [one] = validation.validate(schema, {"a": [{"b": 1}, {"b": "x"}]})
    assert (one.path, one.keyword, one.received) == ("a[1].b", "type", "x")


# draft-07


def test_schema_of_2020_12_says_the_same_in_draft_07() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
            "node": {"$ref": "#/$defs/node", "description": "beside"},
            "$defs": {"type": "string"},
            "value": {"const": {"prefixItems": [1]}},
        },
        "dependentRequired": {"pair": ["node"]},
        "unevaluatedProperties": False,
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    assert to_draft_07(schema) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False},
            "node": {"allOf": [{"$ref": "#/definitions/node"}], "description": "beside"},
            "$defs": {"type": "string"},
            "value": {"const": {"prefixItems": [1]}},
        },
        "dependencies": {"pair": ["node"]},
        "definitions": {"node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}},
    }


@settings(max_examples=100, deadline=None)
@given(SCHEMAS)
def test_sample_fits_in_draft_07_too(schema: dict[str, Any]) -> None:
    try:
        result = generate_example(schema)
    except NoExampleFound:
        return
    assert validation.validate(to_draft_07(schema), result) == []


# As a part of another


def test_references_still_lead_to_the_same_place_inside_another_schema() -> None:
    schema = {
        "type": "array",
        "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/name"}, {"$ref": "#/definitions/age"}, {"$ref": "#/not"}]},
        "not": {"const": {"$ref": "#"}},
        "$defs": {"name": {"type": "string"}},
        "definitions": {"age": {"type": "integer"}},
    }
    outer = wrap_as_property(schema, "result")
    assert outer["$defs"] == schema["$defs"] and outer["definitions"] == schema["definitions"]
    inner = outer["properties"]["result"]
    assert [item["$ref"] for item in inner["items"]["anyOf"]] == [
        "#/properties/result",
        "#/$defs/name",
        "#/definitions/age",
        "#/properties/result/not",
    ]
    assert inner["not"] == {"const": {"$ref": "#"}}
    assert validation.validate(outer, {"result": ["a", 1, [["b"]]]}) == []
