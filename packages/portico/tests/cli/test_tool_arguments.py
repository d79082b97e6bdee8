"""`key=value` arguments, converted by the tool's schema, and rejected before the call if invalid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from portico.cli.tool_arguments import (
    InputSources,
    build_prompt_arguments,
    build_tool_arguments,
    parse_json_arguments,
    parse_pairs,
)
from portico.protocol.errors import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "rate": {"type": "number"},
        "sunny": {"type": "boolean"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "level": {"enum": [1, 2, "high", None]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "array", "items": {"type": "integer"}},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
        "place": {"$ref": "#/$defs/place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "id": {"type": ["string", "integer"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "anything": {},
        "dotted.name": {"type": "integer"},
        "picture": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["city"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "at": {"$ref": "#/$defs/point"}},
            "additionalProperties": False,
        },
        "point": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
    },
}


def typed(*words: str, schema: Any = SCHEMA, whole: str | None = None) -> dict[str, Any]:
    sources = InputSources()
    arguments = {} if whole is None else parse_json_arguments(whole, sources)
    return build_tool_arguments(schema, parse_pairs(words, sources), arguments)


def refused(*words: str, schema: Any = SCHEMA, whole: str | None = None) -> str:
    with pytest.raises(UsageError) as raised:
        typed(*words, schema=schema, whole=whole)
    return str(raised.value)


# What a word becomes


@pytest.mark.parametrize(
    "words, key, value",
    [
        (["city=Oslo"], "city", "Oslo"),
        (["city=5"], "city", "5"),
        (["city="], "city", ""),
        (["city=true"], "city", "true"),
        (["city=a=b"], "city", "a=b"),
        (['city={"a":1}'], "city", '{"a":1}'),
        (["city=1e999"], "city", "1e999"),
        (["days=3"], "days", 3),
        (["days=3.0"], "days", 3),
        (["rate=3"], "rate", 3),
        (["rate=-1.5e2"], "rate", -150.0),
        (["sunny=true"], "sunny", True),
        (["sunny=false"], "sunny", False),
        (["unit=celsius"], "unit", "celsius"),
        (["level=1"], "level", 1),
        (["level=high"], "level", "high"),
        (["level=null"], "level", None),
        (["tags=a"], "tags", ["a"]),
        (["tags=a", "tags=b"], "tags", ["a", "b"]),
        (["tags=a,b"], "tags", ["a,b"]),
        (['tags=["a", "b"]'], "tags", ["a", "b"]),
        (["counts=1", "counts=2"], "counts", [1, 2]),
        (["counts=[]"], "counts", []),
        (['points={"x": 1}', 'points={"y": 2}'], "points", [{"x": 1}, {"y": 2}]),
        (["place.street=Karl Johan", "place.at.x=1"], "place", {"street": "Karl Johan", "at": {"x": 1}}),
        (['place={"street": "a"}', "place.at.y=2"], "place", {"street": "a", "at": {"y": 2}}),
        (["place.at.y=2", 'place={"street": "a"}'], "place", {"street": "a", "at": {"y": 2}}),
        (["note=hello"], "note", "hello"),
        (["note=null"], "note", None),
        (["id=5"], "id", 5),
        (["id=05"], "id", "05"),
        (["either=a"], "either", "a"),
        (["either=a", "either=b"], "either", ["a", "b"]),
        (["anything=5"], "anything", 5),
        (["anything=five"], "anything", "five"),
        (["anything=true"], "anything", True),
        (["anything=[1]"], "anything", "[1]"),
        (["anything=1", "anything=x"], "anything", [1, "x"]),
        (["dotted.name=4"], "dotted.name", 4),
        (["anything:=[1, {}]"], "anything", [1, {}]),
        (['city:="@home"'], "city", "@home"),
        (["undeclared:=5"], "undeclared", 5),
        (["rate=12345678901234567890"], "rate", 12345678901234567890),
    ],
)
def test_word_is_converted_to_the_schema_type(words: list[str], key: str, value: Any) -> None:
    given = words if key == "city" else ["city=x", *words]
    result = typed(*given)[key]
    assert result == value
    assert type(result) is type(value)


@settings(deadline=None)
@given(st.text())
def test_every_text_arrives_as_it_was_typed(text: str) -> None:
    """Where the schema wants a text and nothing else."""
    if text == "-" or text.startswith("@") or any("\ud800" <= char <= "\udfff" for char in text):
        return
    assert typed(f"city={text}") == {"city": text}


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_json_arrives_unchanged(value: Any) -> None:
    assert typed("city=x", f"anything:={json.dumps(value)}")["anything"] == value


def test_open_object_takes_any_key() -> None:
    assert typed("a=1", "b.c=x", "b.d=true", schema={"type": "object"}) == {"a": 1, "b": {"c": "x", "d": True}}
    declared = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    assert typed("a=1", "b=2", schema=declared) == {"a": "1", "b": 2}


# From elsewhere


def test_file_is_a_text_or_json_as_the_schema_wants(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("two\nlines\n")
    (tmp_path / "json").write_text('{"street": "a"}')
    (tmp_path / "number").write_text("5\n")
    (tmp_path / "bytes").write_bytes(b"\x89PNG\xff")
    result = typed(
        f"city=@{tmp_path}/text", f"place=@{tmp_path}/json", f"days=@{tmp_path}/number", f"picture=@{tmp_path}/bytes"
    )
    assert result == {"city": "two\nlines\n", "place": {"street": "a"}, "days": 5, "picture": "iVBOR/8="}
    assert typed("city=x", f"anything:=@{tmp_path}/json")["anything"] == {"street": "a"}
    assert typed(whole=f"@{tmp_path}/json", schema={}) == {"street": "a"}


def test_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "broken").write_text("{")
    assert "file no/such/file not found" in refused("city=@no/such/file")
    assert f"{tmp_path}/bytes is not valid UTF-8" in refused(f"city=@{tmp_path}/bytes")
    assert f"{tmp_path}/broken is not valid JSON" in refused("city=x", f"place=@{tmp_path}/broken")
    assert "Is a directory" in refused(f"city=@{tmp_path}")


def test_words_continue_top_of_json() -> None:
    assert typed("days=4", "place.street=b", whole='{"city": "a", "days": 2, "place": {"street": "a"}}') == {
        "city": "a",
        "days": 4,
        "place": {"street": "b"},
    }


# What is refused, in one sentence each


@pytest.mark.parametrize(
    "words, sentence",
    [
        ([], "Missing argument 'city': expected a string (Where)."),
        (["citty=Oslo"], "Unknown argument 'citty'. Did you mean 'city'? Accepted: 'city', 'days'"),
        (
            ["city=x", "days=soon"],
            "Invalid argument 'days': expected an integer between 1 and 7, received the string \"soon\".",
        ),
        (["city=x", "days=8"], "Invalid argument 'days': expected an integer between 1 and 7, received the number 8."),
        (["city=x", "sunny=yes"], "Invalid argument 'sunny': expected true or false, received the string \"yes\"."),
        (
            ["city=x", "unit=celsus"],
            "expected one of 'celsius', 'fahrenheit', received the string \"celsus\". Did you mean 'celsius'?",
        ),
        (["city=x", "counts=1", "counts=x"], "Invalid argument 'counts[1]': expected an integer"),
        (["city=x", "counts=[1,"], "Invalid argument 'counts': the value is not valid JSON"),
        (
            ["city=x", "place.stret=1"],
            "Unknown argument 'stret' in 'place'. Did you mean 'street'? Accepted: 'street', 'at'.",
        ),
        (["city=x", "city=y"], "Invalid argument 'city': given 2 times; expected a string."),
        (["city=x", "city.name=y"], "Invalid argument 'city.name': 'city' already has a value that is not an object."),
        (["city:=5"], "Invalid argument 'city': expected a string, received the number 5."),
        (["city:=NaN"], "Invalid argument 'city': the value is not valid JSON: NaN is not valid JSON."),
        (["city:=1e999"], "1e999 is too large"),
        (['city:="\\ud800"'], "the value is not valid JSON"),
        (["city:=" + "[" * 100_000], "the value is not valid JSON: nested too deeply"),
        (["city:=1", "city:=2"], "given more than once"),
        (["city"], 'expected key=value, got "city"'),
        (["=x"], '"=x" has no key'),
        (["a..b=x"], '"a..b=x" has no key'),
        (["city=\udcff"], "is not valid UTF-8"),
    ],
)
def test_invalid_tool_arguments_are_rejected(words: list[str], sentence: str) -> None:
    assert sentence in refused(*words)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("text=hello world", "text='hello world'"),
        ("text=hello big world n=1", "text='hello big world'"),
        ("text= hello", "text=hello"),
        ("text = hello", "text=hello"),
        ("text: hello world", "text='hello world'"),
        ("text:hello", "text=hello"),
        ("counts:=[1, 2]", "counts:='[1, 2]'"),
        ('{"text":1}', """--arguments '{"text":1}'"""),
    ],
)
def test_value_that_the_shell_split_is_shown_quoted(line: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_pairs(line.split(), InputSources(), accepts_json=True)
    assert str(raised.value).endswith(f"; did you mean {hint}?")


@pytest.mark.parametrize("word", ["hello", "http://127.0.0.1/", "{}", "a b:c"])
def test_word_without_a_likely_key_has_no_suggestion(word: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_pairs([word], InputSources())
    assert str(raised.value) == f'expected key=value, got "{word}"'


def test_all_mistakes_are_reported_at_once() -> None:
    assert refused("citty=x", "dayz=3").count("\n") == 1


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("{", "--arguments is not valid JSON"),
        ("[]", "--arguments must be a JSON object"),
        ("{}", "Missing argument 'city'"),
    ],
)
def test_json_that_does_not_fit_is_rejected(text: str, sentence: str) -> None:
    assert sentence in refused(whole=text)


def test_property_may_be_forbidden_however_it_is_said() -> None:
    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    assert "Unknown argument 'b'" in refused("b:=1", schema=closed)
    assert "Unknown argument 'b'" in refused(whole='{"b": 1}', schema=closed)


def test_with_several_ways_the_nearest_is_explained() -> None:
    either = {
        "type": "object",
        "properties": {"number": {"type": "integer"}, "email": {"type": "string"}},
        "oneOf": [{"required": ["number"]}, {"required": ["email"]}],
    }
    assert typed("email=a@b", schema=either) == {"email": "a@b"}
    assert "Missing argument" in refused(schema=either)


# Schemas of strangers


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        {},
        {"type": 5, "properties": [1], "required": "x", "enum": 4, "anyOf": {}, "allOf": 1, "$ref": 3},
        {"type": "object", "properties": {"a": 5, "b": {"type": {"x": 1}, "enum": 4, "minimum": "x", "items": 3}}},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "https://elsewhere.example/schema.json"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "oneOf": [{"$ref": "#"}] * 1000},
        {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 10}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+!$"}}},
        {"type": "object", "properties": {"a": True}},
        {"$ref": "#/$defs/0", "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)}},
        {"type": "object", "properties": {"a": {"type": "string", "multipleOf": 0, "description": 5, "title": []}}},
    ],
)
def test_schema_that_is_wrong_or_endless_does_no_harm(schema: Any) -> None:
    assert typed("a=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", schema=schema) == {
        "a": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"
    }


keywords = st.sampled_from(
    [
        "type",
        "properties",
        "a",
        "required",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "items",
        "$ref",
        "default",
        "additionalProperties",
        "minimum",
        "maxLength",
        "description",
        "prefixItems",
        "contentEncoding",
        "format",
    ]
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keywords, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(json_values, st.sampled_from(["a=1", "a=x", "a.b=1", "a:=[]", "a=[1]"]))
def test_any_schema_gives_arguments_or_a_sentence(schema: Any, word: str) -> None:
    try:
        text = str(typed(word, schema=schema))
    except UsageError as mistake:
        text = str(mistake)
    assert text


# Prompts take texts


def test_prompt_takes_texts() -> None:
    result = parse_pairs(["author=5", "note={}"], InputSources())
    assert build_prompt_arguments({"author": True, "note": False}, result) == {"author": "5", "note": "{}"}


@pytest.mark.parametrize(
    "words, sentence",
    [
        ([], "Missing argument 'author': expected a string."),
        (["autor=x"], "Unknown argument 'autor'. Did you mean 'author'?"),
        (["author=x", "author=y"], "Invalid argument 'author': given more than once."),
        (["author:=5"], "expected a string, so author:= needs a JSON string"),
    ],
)
def test_invalid_prompt_arguments_are_rejected(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        build_prompt_arguments({"author": True}, parse_pairs(words, InputSources()))
    assert sentence in str(raised.value)
