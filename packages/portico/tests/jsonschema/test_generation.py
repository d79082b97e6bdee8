"""JSON Schema from Python types, and descriptions of parameters."""

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import socket
import subprocess
import sys
import time
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
)

import annotated_types as at
import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from typing_extensions import TypeAliasType

from portico.jsonschema import SchemaError
from portico.jsonschema.docstrings import Docstring, parse_docstring
from portico.jsonschema.generation import Field, schema_for_fields, schema_for_type

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """How loud."""

    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Documented:
    """A thing.

    Attributes:
        size: How big it is.
    """

    size: int
    shade: Annotated[str, "Its shade."] = "dark"


@dataclasses.dataclass
class Node:
    value: int
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Left:
    right: "Right | None" = None


@dataclasses.dataclass
class Right:
    left: Left | None = None


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


@dataclasses.dataclass
class Boxes(Box[list[T]], Generic[T]):
    first: T


class Movie(TypedDict, total=False):
    name: Required[str]
    year: int


class Review(TypedDict):
    stars: int
    text: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: str = "b"


class Cat(msgspec.Struct, tag="cat", rename="camel"):
    whisker_count: int
    name: str = "Tom"


class Inner(pydantic.BaseModel):
    a: int


class Model(pydantic.BaseModel):
    """A model."""

    inner: Inner
    both: list[Inner] = []
    size: int = pydantic.Field(3, ge=1, title="The size")


class Tree(pydantic.BaseModel):
    branches: "list[Tree]" = []


Name = NewType("Name", str)
Alias = TypeAliasType("Alias", list[int])
Many = TypeAliasType("Many", list[T], type_params=(T,))


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (datetime.timedelta, {"type": "string", "format": "duration"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (decimal.Decimal, {"type": "string", "format": "decimal"}),
        (pathlib.Path, {"type": "string", "format": "path"}),
        (ipaddress.IPv4Address, {"type": "string", "format": "ipv4"}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (frozenset[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[bool], {"type": "array", "items": {"type": "boolean"}}),
        (tuple, {"type": "array"}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (tuple[()], {"type": "array", "maxItems": 0}),
        (dict, {"type": "object", "additionalProperties": True}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": True}),
        (
            dict[int, str],
            {"type": "object", "propertyNames": {"pattern": r"^-?\d+$"}, "additionalProperties": {"type": "string"}},
        ),
        (Literal["a"], {"type": "string", "const": "a"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Literal[Color.RED], {"type": "string", "const": "red"}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2], "description": "How loud."}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | str | None, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}),
        (int | msgspec.UnsetType, {"type": "integer"}),
        (Name, {"type": "string"}),
        (Alias, {"type": "array", "items": {"type": "integer"}}),
        (Many[str], {"type": "array", "items": {"type": "string"}}),
        (T, {}),
    ],
    ids=str,
)
def test_plain_types(tp: Any, expected: dict[str, Any]) -> None:
    assert schema_for_type(tp) == expected


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (
            Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "A"})],
            {"type": "string", "x-mcp-header": "A"},
        ),
        (Annotated[int, at.Ge(1), at.Lt(5)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 5}),
        (Annotated[int, at.Interval(gt=0, le=5)], {"type": "integer", "exclusiveMinimum": 0, "maximum": 5}),
        (Annotated[float, at.MultipleOf(0.5)], {"type": "number", "multipleOf": 0.5}),
        (Annotated[str, at.Len(1, 3)], {"type": "string", "minLength": 1, "maxLength": 3}),
        (Annotated[list[int], at.MinLen(1)], {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
        (
            Annotated[dict[str, int], at.MaxLen(2)],
            {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "maxProperties": 2,
            },
        ),
        (Annotated[bytes, at.MinLen(5)], {"type": "string", "contentEncoding": "base64", "minLength": 8}),
        (Annotated[str, at.Predicate(str.isupper)], {"type": "string"}),
        (Annotated[int | None, at.Ge(1)], {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
        (
            Annotated[str, pydantic.Field(pattern="^a", examples=["ab"], description="D", title="T")],
            {
                "type": "string",
                "pattern": "^a",
                "examples": ["ab"],
                "description": "D",
                "title": "T",
            },
        ),
        (pydantic.PositiveInt, {"type": "integer", "exclusiveMinimum": 0}),
        (Annotated[Annotated[int, "inner"], "outer"], {"type": "integer", "description": "outer"}),
    ],
    ids=str,
)
def test_annotated_types(tp: Any, expected: dict[str, Any]) -> None:
    assert schema_for_type(tp) == expected


def test_object_schemas_declare_required_and_forbid_extra() -> None:
    assert schema_for_type(Point) == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert "additionalProperties" not in schema_for_type(Point, forbid_extra=False)


def test_nothing_required_is_not_said() -> None:
    assert "required" not in schema_for_type(Left)


def test_docstrings_describe_a_class_and_its_attributes() -> None:
    described = schema_for_type(Documented)
    assert described["description"] == "A thing."
    assert described["properties"]["size"]["description"] == "How big it is."
    assert described["properties"]["shade"] == {"type": "string", "description": "Its shade.", "default": "dark"}


def test_generated_docstrings_are_ignored() -> None:
    assert "description" not in schema_for_type(Point)
    assert "description" not in schema_for_type(Pair)


def test_typed_dicts_know_required_and_not_required() -> None:
    assert schema_for_type(Movie)["required"] == ["name"]
    assert schema_for_type(Review)["required"] == ["stars"]
    assert schema_for_type(Review)["properties"]["text"] == {"type": "string"}


def test_not_required_is_seen_in_string_annotations() -> None:
    class Late(TypedDict):
        a: "NotRequired[int]"
        b: "int"

    assert schema_for_type(Late)["required"] == ["b"]


def test_named_tuples_are_arrays_like_in_msgspec() -> None:
    assert schema_for_type(Pair) == {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string", "default": "b"}],
        "minItems": 1,
        "maxItems": 2,
    }


def test_structs_show_their_tag_and_renamed_fields() -> None:
    assert schema_for_type(Cat) == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "const": "cat"},
            "whiskerCount": {"type": "integer"},
            "name": {"type": "string", "default": "Tom"},
        },
        "required": ["type", "whiskerCount"],
        "additionalProperties": False,
    }


def test_type_used_once_is_inlined() -> None:
    @dataclasses.dataclass
    class Line:
        start: Annotated[Point, "Where it starts."]

    described = schema_for_type(Line)
    assert "$defs" not in described
    assert described["properties"]["start"] == {**schema_for_type(Point), "description": "Where it starts."}


def test_type_used_twice_uses_defs() -> None:
    described = schema_for_type(tuple[Point, Point])
    assert described["prefixItems"] == [{"$ref": "#/$defs/Point"}] * 2
    assert described["$defs"] == {"Point": schema_for_type(Point)}


def test_recursive_type_uses_defs() -> None:
    described = schema_for_type(Node)
    assert described["type"] == "object"
    assert described["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    validator = jsonschema_rs.Draft202012Validator(described)
    assert validator.is_valid({"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]})
    assert not validator.is_valid({"value": 1, "children": [{"value": 2, "children": [{"value": "3"}]}]})


def test_types_that_contain_each_other_use_defs() -> None:
    validator = jsonschema_rs.Draft202012Validator(schema_for_type(Left))
    assert validator.is_valid({"right": {"left": {"right": None}}})
    assert not validator.is_valid({"right": {"left": {"right": 1}}})


def test_two_classes_of_one_name_keep_apart() -> None:
    result = dataclasses.make_dataclass("Same", [("a", int)])
    two = dataclasses.make_dataclass("Same", [("b", int)])
    described = schema_for_type(tuple[result, result, two, two])  # type: ignore[valid-type]
    assert list(described["$defs"]) == ["Same", "Same_2"]


def test_generic_classes_are_filled_in() -> None:
    assert schema_for_type(Box[int])["properties"]["item"] == {"type": "integer"}
    assert schema_for_type(Boxes[int])["properties"] == {
        "item": {"type": "array", "items": {"type": "integer"}},
        "first": {"type": "integer"},
    }
    assert list(schema_for_type(tuple[Box[int], Box[int]])["$defs"]) == ["Box_int"]


def test_pydantic_models_keep_their_schema_without_made_up_titles() -> None:
    described = schema_for_type(Model)
    assert described["description"] == "A model."
    assert described["properties"]["size"] == {"type": "integer", "default": 3, "minimum": 1, "title": "The size"}
    assert described["properties"]["inner"] == {"$ref": "#/$defs/Inner"}
    assert "title" not in described
    assert "title" not in described["$defs"]["Inner"]["properties"]["a"]


def test_pydantic_definitions_are_hoisted_and_shared() -> None:
    described = schema_for_type(tuple[Model, Inner, Tree, Inner])
    jsonschema_rs.Draft202012Validator(described)
    assert "Tree" in described["$defs"]
    assert "Tree_2" not in described["$defs"]


def test_recursive_pydantic_model_has_a_type_at_the_root() -> None:
    described = schema_for_type(Tree)
    assert described["type"] == "object"
    assert jsonschema_rs.is_valid(described, {"branches": [{"branches": []}]})


def test_pydantic_computed_fields_are_only_written() -> None:
    class Square(pydantic.BaseModel):
        side: int

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def area(self) -> int:
            return self.side**2

    assert list(schema_for_type(Square)["properties"]) == ["side"]
    assert list(schema_for_type(Square, for_output=True)["properties"]) == ["side", "area"]


def test_pydantic_validators_in_annotations_are_left_to_pydantic() -> None:
    checked = Annotated[int, pydantic.AfterValidator(abs)]
    assert schema_for_type(checked) == {"type": "integer"}


def test_defaults_are_shown_as_json() -> None:
    fields = [
        Field("path", pathlib.Path, pathlib.Path("x")),
        Field("color", Color, Color.RED),
        Field("tags", set[str], {"b", "a"}),
        Field("day", datetime.date, datetime.date(2026, 1, 31)),
        Field("model", Inner, Inner(a=1)),
        Field("odd", Any, object()),
        Field("far", float, float("inf")),
    ]
    described = schema_for_fields(fields)
    output = {name: body.get("default", "nothing") for name, body in described["properties"].items()}
    assert output == {
        "path": "x",
        "color": "red",
        "tags": ["a", "b"],
        "day": "2026-01-31",
        "model": {"a": 1},
        "odd": "nothing",
        "far": "nothing",
    }
    assert "required" not in described


def test_default_factory_is_not_run_to_describe_it() -> None:
    def explode() -> int:
        raise AssertionError

    late = dataclasses.make_dataclass("late", [("a", int, dataclasses.field(default_factory=explode))])
    assert schema_for_type(late)["properties"] == {"a": {"type": "integer"}}
    assert "required" not in schema_for_type(late)


def test_init_variables_are_accepted_and_not_written() -> None:
    @dataclasses.dataclass
    class Loaded:
        source: dataclasses.InitVar[str]
        size: int = dataclasses.field(init=False, default=0)
        limit: typing.ClassVar[int] = 3

    assert list(schema_for_type(Loaded)["properties"]) == ["source"]
    assert list(schema_for_type(Loaded, for_output=True)["properties"]) == ["size"]


def test_object_schema_describes_parameters() -> None:
    assert schema_for_fields([Field("city", str, description="Where."), Field("days", int, 3)]) == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert schema_for_fields([]) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_parameter_description_overrides_the_class() -> None:
    described = schema_for_fields([Field("thing", Documented, description="The one to paint.")])
    assert described["properties"]["thing"]["description"] == "The one to paint."


def test_undescribable_type_error_names_its_location() -> None:
    @dataclasses.dataclass
    class Connection:
        wires: list[socket.socket]

    with pytest.raises(SchemaError, match=r"Connection\.wires\[\]: socket cannot be described"):
        schema_for_type(Connection)


def test_annotation_that_cannot_be_resolved_is_a_usage_error() -> None:
    broken = dataclasses.make_dataclass("broken", [("a", "Missing")])
    with pytest.raises(SchemaError, match="Missing"):
        schema_for_type(broken)


def test_every_schema_is_valid_2020_12() -> None:
    everything = tuple[Point, Documented, Node, Left, Box[int], Movie, Pair, Cat, Model, Tree, Color, dict[int, Point]]
    jsonschema_rs.meta.validate(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema_for_type(everything)}
    )


def test_schemas_are_the_same_in_every_process() -> None:
    program = (
        "from portico.jsonschema.generation import *; import json;"
        "print(json.dumps(schema_for_fields([Field('a', set[str], set('hello world'))])))"
    )
    runs = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
                       capture_output=True, text=True, check=True).stdout
        for seed in "123"
    }  # fmt: skip
    assert len(runs) == 1


def test_pydantic_is_not_imported() -> None:
    names = "{'pydantic', 'annotated_types', 'asyncio'}"
    program = f"import sys, portico.jsonschema.generation; assert not {names} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


GOOGLE = """Look at the weather.

    More about it.

    Note: stays prose.

    Args:
        city (str, optional): The city to
            look at.
        days: How many (at most 10): days.
        *rest: The others.

    Returns:
        The forecast.

    Raises:
        ValueError: never.
    """

NUMPY = """Look at the weather.

    Parameters
    ----------
    city : str
        The city to
        look at.
    days, hours : int, optional
        How long.

    Returns
    -------
    Forecast
        The forecast.

    Examples
    --------
    >>> 1
    """

SPHINX = """Look at the weather.

    :param city: The city to
        look at.
    :param int days: How many.
    :type city: str
    :returns: The forecast.
    :rtype: Forecast
    """


def test_google_docstrings() -> None:
    assert parse_docstring(GOOGLE) == Docstring(
        "Look at the weather.\n\nMore about it.\n\nNote: stays prose.",
        {"city": "The city to look at.", "days": "How many (at most 10): days.", "rest": "The others."},
        "The forecast.",
    )


def test_numpy_docstrings() -> None:
    assert parse_docstring(NUMPY) == Docstring(
        "Look at the weather.",
        {"city": "The city to look at.", "days": "How long.", "hours": "How long."},
        "The forecast.",
    )


def test_sphinx_docstrings() -> None:
    assert parse_docstring(SPHINX) == Docstring(
        "Look at the weather.", {"city": "The city to look at.", "days": "How many."}, "The forecast."
    )


def test_missing_docstring_has_no_description() -> None:
    assert parse_docstring(None) == parse_docstring("") == Docstring()


def test_prose_with_colons_is_prose() -> None:
    text = "Do it.\n\nWarning: hot.\nTimes: 12:00"
    assert parse_docstring(text).summary == text


PIECES = [
    "Args:",
    "Parameters",
    "---",
    ":param x: y",
    "  a: b",
    "  a (b",
    "",
    "    c",
    "Returns:",
    "x : int",
    "::",
    "\x00",
]


@given(st.lists(st.sampled_from(PIECES) | st.text()).map("\n".join) | st.text())
def test_any_text_is_a_docstring(text: str) -> None:
    assert isinstance(parse_docstring(text), Docstring)


@pytest.mark.parametrize("piece", [*PIECES, "(", " ", "a" * 50, "    a (" + "(" * 20])
@pytest.mark.parametrize("glue", ["", "\n", " "])
def test_docstrings_take_linear_time(piece: str, glue: str) -> None:
    def seconds(size: int) -> float:
        text = "Args:\n    " + glue.join([piece] * size)
        start = time.process_time()
        parse_docstring(text)
        return time.process_time() - start

    short = min(seconds(2_000) for _ in range(3))
    # Eight times the text; a quadratic reader would need sixty-four times as long.
    assert min(seconds(16_000) for _ in range(3)) < 40 * short + 0.05
