"""From a function signature to schemas, and from bytes to arguments."""

import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import inspect
import ipaddress
import json
import pathlib
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Generic, Literal, LiteralString, NamedTuple, NotRequired, TypedDict, TypeVar

import annotated_types as at
import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from typing_extensions import TypeAliasType

from portico.jsonschema.argument_issues import ArgumentIssue
from portico.protocol.errors import UsageError
from portico.server.components.signature import ArgumentError, FunctionSignature, inspect_signature

T = TypeVar("T")


class Context:
    pass


class Image:
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    HALF = 0.5


@dataclasses.dataclass
class Item:
    price: Annotated[float, at.Ge(0)]
    name: str = "thing"


@dataclasses.dataclass
class Order:
    items: list[Item]
    note: str | None = None


@dataclasses.dataclass
class Node:
    value: int
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Add:
    a: "Add | Multiply | int"
    b: "Add | Multiply | int"


@dataclasses.dataclass
class Multiply:
    a: "Add | Multiply | int"
    b: "Add | Multiply | int"


@dataclasses.dataclass
class Circle:
    radius: float


@dataclasses.dataclass
class Square:
    side: float


@dataclasses.dataclass
class Period:
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError("the end must not be before the start")


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


class Review(TypedDict):
    stars: Annotated[int, at.Interval(ge=1, le=5)]
    text: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: str = "b"


class PathPair(NamedTuple):
    a: pathlib.Path
    b: int = 2


class Open(msgspec.Struct, rename="camel"):
    first_name: str
    age: int = 3


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    next: "Closed | None" = None


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    bones: int = 0


class Row(msgspec.Struct, array_like=True):
    a: int
    b: int = 0


class Inner(pydantic.BaseModel):
    a: int


class Model(pydantic.BaseModel):
    inner: Inner
    day: datetime.date | None = None
    tags: list[str] = []


class Strict(pydantic.BaseModel, strict=True):
    day: datetime.date


class Lazy:
    """What `type Json = int | list[Json]` makes from Python 3.12 on: its value is looked up when it is asked for."""

    __name__ = "Json"
    __type_params__ = ()

    @property
    def __value__(self) -> Any:
        return int | list[JSON_ALIAS]

    def __repr__(self) -> str:
        return self.__name__


Lazy.__name__ = "TypeAliasType"
JSON_ALIAS: Any = Lazy()
Many = TypeAliasType("Many", list[T], type_params=(T,))


def read(fn: Callable[..., Any], **options: Any) -> FunctionSignature:
    return inspect_signature(fn, context_type=Context, types_without_schema=(Image,), **options)


def taking(tp: Any) -> FunctionSignature:
    def fn(x: Any) -> None: ...

    fn.__annotations__["x"] = tp
    return read(fn)


def call(fn: Callable[..., Any], arguments: Any, context: object = None) -> Any:
    args, kwargs = read(fn).bind(msgspec.json.encode(arguments), context)
    return fn(*args, **kwargs)


def refusal(signature: FunctionSignature, data: bytes) -> ArgumentError | None:
    """The error that these arguments give, if any. Any other exception fails the test."""
    try:
        signature.bind(data, None)
    except ArgumentError as error:
        refused = error
    else:
        return None
    assert 1 <= len(refused.problems) <= 20
    assert "`" not in str(refused) or b"`" in data, "the words of msgspec"
    return refused


def problems(signature: FunctionSignature, arguments: Any) -> list[ArgumentIssue]:
    error = refusal(signature, arguments if isinstance(arguments, bytes) else msgspec.json.encode(arguments))
    assert error is not None
    return error.problems


def message(signature: FunctionSignature, arguments: Any) -> str:
    (problem,) = problems(signature, arguments)
    return problem.message


# Reading a function


def test_schema_comes_from_the_parameters_and_the_docstring() -> None:
    def forecast(city: str, days: Annotated[int, "How many."] = 3, ctx: Context | None = None) -> Order:
        """The weather.

        Args:
            city: Where.
        """
        raise NotImplementedError

    signature = read(forecast)
    assert signature.summary == "The weather."
    assert signature.context == "ctx"
    assert signature.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many.", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert signature.output_schema is not None
    assert signature.output_schema["properties"]["items"]["items"]["required"] == ["price"]


@pytest.mark.parametrize(
    ("returned", "described"),
    [
        (None, False),
        (str, False),
        (bytes, False),
        (str | None, False),
        (Any, False),
        (Image, False),
        (list[Image], False),
        (Image | dict[str, int], False),
        (Iterable[Callable[[], int]], False),
        (threading.Thread, False),
        (int, True),
        (list[str], True),
        (Order, True),
        (dict[str, Any], True),
        (Model | None, True),
    ],
    ids=str,
)
def test_only_data_has_an_output_schema(returned: Any, described: bool) -> None:
    def fn() -> None: ...

    fn.__annotations__["return"] = returned
    assert (read(fn).output_schema is not None) is described


def test_no_annotation_has_no_output_schema() -> None:
    assert read(lambda: 1).output_schema is None


def test_unannotated_parameter_takes_anything() -> None:
    assert call(lambda x: x, {"x": [1, {"a": None}]}) == [1, {"a": None}]


@pytest.mark.parametrize("place", range(3))
def test_context_is_injected_at_any_position(place: int) -> None:
    def first(c: Context, a: int, b: int) -> Any:
        return (c, a, b)

    def middle(a: int, c: Context | None, b: int) -> Any:
        return (a, c, b)

    def last(a: int, b: int, c: Context | None = None) -> Any:
        return (a, b, c)

    context = Context()
    expected: list[Any] = [1, 2]
    expected.insert(place, context)
    fn = (first, middle, last)[place]
    assert call(fn, {"a": 1, "b": 2}, context) == tuple(expected)
    assert "c" not in read(fn).input_schema["properties"]


def test_unannotated_ctx_is_the_context() -> None:
    assert call(lambda a, ctx: (a, ctx), {"a": 1}, "context") == (1, "context")


def test_client_cannot_send_the_context() -> None:
    def fn(a: int, ctx: Context | None = None) -> None: ...

    assert problems(read(fn), {"a": 1, "ctx": {}})[0].path == "arguments.ctx"


def test_two_contexts_are_a_usage_error() -> None:
    def fn(a: Context, b: Context) -> None: ...

    with pytest.raises(UsageError, match="only one"):
        read(fn)


def test_keyword_only_parameters_are_passed_by_name() -> None:
    def fn(a: int, *, b: int, ctx: Context, c: int = 3) -> Any:
        return (a, b, ctx, c)

    assert call(fn, {"a": 1, "b": 2}, "context") == (1, 2, "context", 3)


def test_positional_only_parameters_are_passed_by_position() -> None:
    def fn(a: int, /, b: int) -> Any:
        return (a, b)

    assert call(fn, {"b": 2, "a": 1}) == (1, 2)


def test_skipped_parameters_keep_their_defaults_and_are_not_shown() -> None:
    def fn(a: int, hidden: object = "kept", b: int = 2) -> Any:
        return (a, hidden, b)

    signature = read(fn, skip={"hidden"})
    assert list(signature.input_schema["properties"]) == ["a", "b"]
    args, kwargs = signature.bind(b'{"a":1,"b":3}', None)
    assert fn(*args, **kwargs) == (1, "kept", 3)


def test_bound_methods_partials_and_callable_objects() -> None:
    class Thing:
        """Adds."""

        def add(self, a: int, b: int) -> int:
            """Adds two."""
            return a + b

        def __call__(self, a: int) -> int:
            return a

    assert call(Thing().add, {"a": 1, "b": 2}) == 3
    assert call(Thing(), {"a": 1}) == 1
    assert read(Thing()).summary == "Adds."
    fixed = functools.partial(Thing().add, b=40)
    assert call(fixed, {"a": 2}) == 42
    assert read(fixed).summary == "Adds two."


def test_arguments_bound_by_a_partial_are_not_in_the_schema() -> None:
    def fn(city: str, key: str) -> str:
        return city + key

    signature = read(functools.partial(fn, key="secret"))
    assert "secret" not in json.dumps(signature.input_schema)
    assert problems(signature, {"city": "x", "key": "mine"})[0].path == "arguments.key"


def test_wrapped_functions_keep_their_annotations() -> None:
    def fn(a: int) -> int:
        return a

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    assert call(wrapper, {"a": 1}) == 1


def test_string_annotations_are_resolved() -> None:
    def fn(order: "Order", ctx: "Context | None" = None) -> "Order":
        return order

    assert call(fn, {"order": {"items": []}}) == Order([])


def test_annotation_that_does_not_exist_is_a_usage_error() -> None:
    def fn(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="Nowhere"):
        read(fn)


@pytest.mark.parametrize("fn", [lambda *args: 1, lambda **options: 1])
def test_parameters_without_names_are_a_usage_error(fn: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"\*(args|\*options) cannot be described"):
        read(fn)


def test_type_that_cannot_be_described_is_a_usage_error() -> None:
    def fn(thread: threading.Thread) -> None: ...

    with pytest.raises(UsageError, match=r"fn\.thread: Thread"):
        read(fn)


def test_awkward_names_work() -> None:
    def fn(_a: int, __b: int, self: int, f0: int, decode: int, __struct_fields__: int) -> Any:
        return (_a, __b, self, f0, decode, __struct_fields__)

    names = ["_a", "__b", "self", "f0", "decode", "__struct_fields__"]
    assert call(fn, {name: at for at, name in enumerate(names)}) == (0, 1, 2, 3, 4, 5)


# Defaults


def test_mutable_defaults_are_not_shared() -> None:
    def fn(a: list[int] = [], b: dict[str, int] = {"x": 1}, c: Item = Item(1.0), d: set[int] = set()) -> Any:  # noqa: B006
        a.append(1)
        b["y"] = 2
        c.price += 1
        d.add(1)
        return (a, b, c, d)

    expected = ([1], {"x": 1, "y": 2}, Item(2.0), {1})
    assert call(fn, {}) == expected
    assert call(fn, {}) == expected


def test_default_that_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()

    def fn(x: Any = lock) -> Any:
        return x

    assert call(fn, {}) is lock


def test_null_is_accepted_where_it_is_the_default() -> None:
    def fn(x: int = None, y: Annotated[int, at.Ge(1), "Why."] = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return (x, y)

    assert call(fn, {"x": None, "y": None}) == (None, None)
    assert read(fn).input_schema["properties"]["y"] == {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
        "description": "Why.",
        "default": None,
    }


def test_pydantic_fields_as_defaults() -> None:
    def fn(
        x: int = pydantic.Field(3, ge=1, description="X."),
        y: list[int] = pydantic.Field(default_factory=list),
        z: Annotated[int, pydantic.Field(default=7)] = pydantic.Field(le=9),
        *,
        w: str = pydantic.Field(max_length=3),
    ) -> Any:
        return (x, y, z, w)

    assert call(fn, {"w": "a"}) == (3, [], 7, "a")
    described = read(fn).input_schema
    assert described["properties"]["x"] == {"type": "integer", "minimum": 1, "description": "X.", "default": 3}
    assert described["required"] == ["w"]
    assert len(problems(read(fn), {"x": 0, "z": 10, "w": "long"})) == 3


# What the schema accepts the decoder accepts, and the other way round.

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10, 0.5, -0.5, 10**30, "", "a", "b", "red", "green", "abc", "two", "1", "aGk=",
    "2026-01-31", "P1D", "9b2f0a3e-3b1f-4a55-9d1e-3f6f1f6d2c11", "192.0.2.1", "AQIDBAUG",
    [], [1], [1, 2], [1, "b"], [1, "b", 3], ["a"], [None], ["x", 1], [[1], [2]], [{"price": 1}], [{"price": -1}],
    {}, {"a": 1}, {"a": "1"}, {"a": 1, "b": 2}, {"1": 1}, {"x": "a"}, {"radius": 1}, {"side": 2}, {"side": 2, "z": 1},
    {"price": 1}, {"price": -1}, {"price": 1, "nam": "x"}, {"items": [{"price": 1}]}, {"items": [{"price": -1}]},
    {"items": [{"price": 1, "colour": 2}]}, {"items": [], "note": None}, {"items": [], "note": 1},
    {"value": 1, "children": [{"value": 2}]}, {"value": 1, "children": [{"value": 2, "x": 1}]},
    {"stars": 3}, {"stars": 9}, {"stars": 3, "text": "t"}, {"stars": 3, "text": 1}, {"stars": 3, "more": 1},
    {"firstName": "a"}, {"first_name": "a"}, {"firstName": "a", "x": 1}, {"a": 1, "next": {"a": 2}},
    {"a": 1, "next": {"a": 2, "b": 3}}, {"type": "Cat"}, {"type": "Cat", "lives": 1}, {"type": "Dog", "lives": 1},
    {"type": "Dog", "bones": 2}, {"type": "Eel"}, {"item": 1}, {"item": "a"}, {"inner": {"a": 1}}, {"inner": {}},
    {"a": {"a": 1, "b": 2}, "b": 3}, {"a": {"a": 1, "b": "x"}, "b": 3}, {"red": 1}, {"green": 1},
]  # fmt: skip

TYPES: list[Any] = [
    str, int, float, bool, None, Any, object, LiteralString, pathlib.Path,
    list, list[int], list[Item], set[int], frozenset[str], tuple, tuple[int, ...], tuple[int, str], tuple[()],
    Sequence[int], Iterable[int], dict, dict[str, int], dict[str, Any], dict[int, int], dict[Literal["a"], int],
    dict[Color, int], list[list[int]], list[int] | None,
    Literal["a", "b"], Literal[1, "a", None], Literal[True], Literal[Color.RED], Color, Mixed,
    int | str, int | None, float | str | None, list[int] | list[str], Literal["a"] | int, Color | int | None,
    Item, Order, Node, Review, Pair, PathPair, Open, Closed, Cat | Dog, Cat | Dog | None, Row, Box[int], Box[Box[int]],
    Circle | Square, Circle | Square | int | None, list[Circle | Square], Item | str, Closed | Item, Add,
    Inner, Inner | None, Inner | int, list[Inner], Many[int], Open | list[Open], JSON_ALIAS, dict[str, JSON_ALIAS],
    Annotated[int, at.Ge(1)], Annotated[int, msgspec.Meta(gt=1, le=7)], Annotated[int | None, at.Ge(1)],
    Annotated[int | str | None, at.Interval(ge=1, lt=7)], Annotated[float, at.MultipleOf(0.5)],
    Annotated[str, at.MinLen(1), at.MaxLen(2)], Annotated[str, pydantic.Field(pattern="^a")],
    Annotated[list[int], at.Len(1, 1)], Annotated[str | list[str], at.MinLen(2)],
    Annotated[dict[str, int], at.MinLen(1)], Annotated[set[int], at.MinLen(1)],
    list[Annotated[int, at.Ge(2)]], dict[str, Annotated[int, at.Ge(2)]], pydantic.PositiveInt,
]  # fmt: skip


@pytest.mark.parametrize("tp", TYPES, ids=str)
def test_schema_and_decoder_agree(tp: Any) -> None:
    signature = taking(tp)
    validator = jsonschema_rs.Draft202012Validator(signature.input_schema)
    for value in VALUES:
        arguments = {"x": value}
        described = validator.is_valid(arguments)
        if tp in (Inner, Inner | None, list[Inner], Inner | int) and value in ({"a": "1"}, {"a": 1, "b": 2}):
            continue  # pydantic is lax by default: that is the model's author's choice
        try:
            signature.decode(msgspec.json.encode(arguments))
            decoded = True
        except ValueError:
            decoded = False
        assert described is decoded, (value, signature.input_schema)


@pytest.mark.parametrize(
    ("tp", "good", "bad"),
    [
        (bytes, "aGk=", "a"),
        (decimal.Decimal, "1.50", "x"),
        (datetime.datetime, "2026-01-31T12:00:00Z", "2026-01-31 noon"),
        (datetime.date, "2026-01-31", "31.1.2026"),
        (datetime.time, "12:00:00Z", "noon"),
        (datetime.timedelta, "P1DT3S", "a day"),
        (uuid.UUID, "9b2f0a3e-3b1f-4a55-9d1e-3f6f1f6d2c11", "9b2f"),
        (ipaddress.IPv4Address, "192.0.2.1", "192.0.2"),
    ],
)
def test_formats_are_checked_by_decoding(tp: Any, good: str, bad: str) -> None:
    signature = taking(tp)
    ((value,), _) = signature.bind(msgspec.json.encode({"x": good}), None)
    assert isinstance(value, tp)
    validator = jsonschema_rs.Draft202012Validator(signature.input_schema, validate_formats=True)
    assert validator.is_valid({"x": good})
    assert message(signature, {"x": bad}).startswith("Invalid argument 'x': ")
    assert f'received the string "{bad}"' in problems(signature, {"x": bad})[0].message or tp is ipaddress.IPv4Address


@pytest.mark.parametrize("tp", TYPES, ids=str)
def test_rejected_values_name_the_argument_path(tp: Any) -> None:
    signature = taking(tp)
    for value in VALUES:
        for sent in (value, json.dumps(value)):
            error = refusal(signature, msgspec.json.encode({"x": sent}))
            if error is not None:
                assert all(problem.path.startswith("arguments.x") for problem in error.problems)


def test_arguments_have_the_annotated_types() -> None:
    def fn(
        order: Order,
        path: pathlib.Path,
        shape: Circle | Square,
        review: Review,
        pair: PathPair,
        model: Model,
        box: Box[int],
    ) -> Any:
        return (order, path, shape, review, pair, model, box)

    arguments = {
        "order": {"items": [{"price": 1}]},
        "path": "a/b",
        "shape": {"side": 2},
        "review": {"stars": 5},
        "pair": ["p"],
        "model": {"inner": {"a": 1}, "day": "2026-01-31"},
        "box": {"item": 1},
    }
    assert call(fn, arguments) == (
        Order([Item(1)]),
        pathlib.Path("a/b"),
        Square(2),
        {"stars": 5},
        PathPair(pathlib.Path("p"), 2),
        Model(inner=Inner(a=1), day=datetime.date(2026, 1, 31)),
        Box(1),
    )


def test_strict_model_reads_json() -> None:
    ((value,), _) = taking(Strict).bind(b'{"x":{"day":"2026-01-31"}}', None)
    assert value.day == datetime.date(2026, 1, 31)


def test_limits_that_msgspec_cannot_check_are_checked() -> None:
    signature = taking(Annotated[decimal.Decimal, at.Ge(decimal.Decimal(1))])
    assert signature.bind(b'{"x":"1.5"}', None)[0] == (decimal.Decimal("1.5"),)
    assert "ge 1" in message(signature, {"x": "0.5"})
    assert "ge 1" in message(signature, {"x": "NaN"})


@pytest.mark.parametrize("sent", ["1e99999999999999999999", "sNaN", "P99999999999999D", "9999-99-99T99:99:99Z"])
@pytest.mark.parametrize("tp", [decimal.Decimal, datetime.timedelta, datetime.datetime, datetime.date], ids=str)
def test_extreme_strings_raise_nothing_else(tp: Any, sent: str) -> None:
    refusal(taking(tp), msgspec.json.encode({"x": sent}))
    refusal(taking(Annotated[tp, at.Ge(1)]), msgspec.json.encode({"x": sent}))


def test_invalid_pattern_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="regular expression"):
        taking(Annotated[str, pydantic.Field(pattern="(")])


def test_tag_is_required_also_where_msgspec_would_do_without() -> None:
    assert message(taking(Cat), {"x": {"lives": 3}}) == "Missing argument 'x.type': expected 'Cat'."
    assert taking(Cat).bind(b'{"x":{"type":"Cat","lives":3}}', None)[0] == (Cat(3),)


def test_plain_signatures_need_no_python_to_decode() -> None:
    def fn(a: int, b: list[str], c: dict[str, float], d: Color, e: Closed, f: Literal["x"] | None = None) -> None: ...

    assert read(fn).types == {
        "a": int,
        "b": list[str],
        "c": dict[str, float],
        "d": Color,
        "e": Closed,
        "f": Literal["x"] | None,
    }


# Repairing


@pytest.mark.parametrize("absent", [b"", b"null", b"{}", msgspec.Raw(b""), msgspec.Raw(b"{}")])
def test_absent_arguments_are_no_arguments(absent: bytes | msgspec.Raw) -> None:
    assert read(lambda a=1: a).bind(absent, None) == ((1,), {})


@pytest.mark.parametrize(
    ("tp", "sent", "meant"),
    [
        (int, "5", 5),
        (int, 5.0, 5),
        (int, "5.0", 5),
        (float, "0.5", 0.5),
        (bool, "true", True),
        (int | None, "null", None),
        (list[int], "[1,2]", [1, 2]),
        (list[int], ["1", "2"], [1, 2]),
        (list[int], '["1"]', [1]),
        (dict[str, int], '{"a": "1"}', {"a": 1}),
        (tuple[int, str], ["1", "1"], (1, "1")),
        (Item, '{"price": "2"}', Item(2)),
        (Order | None, '{"items": "[]"}', Order([])),
        (Node, '{"value": "1", "children": ["{\\"value\\": 2}"]}', Node(1, [Node(2)])),
        (Literal[1, 2], "1", 1),
        (Inner, '{"a": 1}', Inner(a=1)),
    ],
    ids=str,
)
def test_json_in_a_string_is_decoded(tp: Any, sent: Any, meant: Any) -> None:
    assert taking(tp).bind(msgspec.json.encode({"x": sent}), None)[0] == (meant,)


def test_arguments_in_a_string_are_decoded() -> None:
    assert taking(int).bind(msgspec.json.encode('{"x": "3"}'), None)[0] == (3,)


@pytest.mark.parametrize("tp", [str, int | str, str | None, Any, list[int] | str, Literal["5"]], ids=str)
def test_string_stays_where_a_string_is_accepted(tp: Any) -> None:
    def fn(x: Any, other: int) -> None: ...

    fn.__annotations__["x"] = tp
    # The other argument needs repair, so this one is looked at too.
    assert read(fn).bind(b'{"x":"5","other":"1"}', None)[0] == ("5", 1)


# Explaining


def limited(
    limit: Annotated[int, at.Interval(ge=1, le=10000)], unit: Literal["celsius", "kelvin"] = "kelvin"
) -> None: ...


@pytest.mark.parametrize(
    ("tp", "sent", "expected"),
    [
        (int, "abc", 'an integer, received the string "abc"'),
        (int, True, "an integer, received true"),
        (int, None, "an integer, received null"),
        (int, [1], "an integer, received an array of 1 item"),
        (int, {"a": 1}, "an integer, received an object with 'a'"),
        (int, 1.5, "an integer, received the number 1.5"),
        (Annotated[int, at.Ge(1)], 0, "an integer of at least 1, received the number 0"),
        (Annotated[int, at.Gt(0), at.Lt(3)], 3, "an integer greater than 0 and less than 3, received the number 3"),
        (str, 5, "a string, received the number 5"),
        (Annotated[str, at.Len(1, 3)], "", 'a string of 1 to 3 characters, received the string ""'),
        (Annotated[str, at.MinLen(1)], "", 'a string of at least 1 character, received the string ""'),
        (list[int], 3, "an array of integers, received the number 3"),
        (list[Item], {}, "an array of objects, received an empty object"),
        (Annotated[list[str], at.MinLen(2)], [], "an array of strings with at least 2 items, received an empty array"),
        (Color, "green", "one of 'red', 'blue', received the string \"green\""),
        (bool, "yes", 'true or false, received the string "yes"'),
        (int | None, "x", 'an integer, or null, received the string "x"'),
        (int | bool | None, "x", 'an integer or true or false, or null, received the string "x"'),
        (datetime.date, "x", 'a date such as "2026-01-31", received the string "x"'),
        (Order, 1, "an object with 'items', received the number 1"),
        (int, "a" * 200, f'an integer, received the string "{"a" * 79}…"'),
    ],
    ids=str,
)  # fmt: skip
def test_problems_are_in_plain_words(tp: Any, sent: Any, expected: str) -> None:
    assert message(taking(tp), {"x": sent}) == f"Invalid argument 'x': expected {expected}."


def test_problem_can_be_read_by_a_program() -> None:
    (problem,) = problems(read(limited), {"limit": "abc"})
    assert msgspec.to_builtins(problem) == {
        "path": "arguments.limit",
        "expected": "an integer between 1 and 10000",
        "received": 'the string "abc"',
        "message": ("Invalid argument 'limit': expected an integer between 1 and 10000, received the string \"abc\"."),
    }


def test_all_problems_are_reported_at_once() -> None:
    message = problems(read(limited), {"unit": "celcius", "limits": 3})
    assert [problem.message for problem in message] == [
        "Unknown argument 'limits'. Did you mean 'limit'? Accepted: 'limit', 'unit'.",
        "Missing argument 'limit': expected an integer between 1 and 10000.",
        "Invalid argument 'unit': expected one of 'celsius', 'kelvin', received the string \"celcius\"."
        " Did you mean 'celsius'?",
    ]
    assert [problem.suggestion for problem in message] == ["did you mean 'limit'?", "", "did you mean 'celsius'?"]


def test_missing_argument_error_has_its_description() -> None:
    def fn(city: Annotated[str, "The city to look at."]) -> None: ...

    assert message(read(fn), {}) == "Missing argument 'city': expected a string (The city to look at)."


def test_function_without_parameters_rejects_arguments() -> None:
    assert message(read(lambda: 1), {"a": 1}) == "Unknown argument 'a'. None is accepted."


def test_paths_lead_to_the_value() -> None:
    result = problems(taking(Order), {"x": {"items": [{"price": 1}, {"price": 1}, {"price": "free", "nam": 1}, {}]}})
    assert [problem.path for problem in result] == [
        "arguments.x.items[2].price",
        "arguments.x.items[2].nam",
        "arguments.x.items[3].price",
    ]
    assert (
        result[1].message == "Unknown argument 'nam' in 'x.items[2]'. Did you mean 'name'? Accepted: 'price', 'name'."
    )


def test_keys_that_are_no_names_are_quoted_in_paths() -> None:
    assert problems(taking(dict[str, int]), {"x": {"a b": "c"}})[0].path == 'arguments.x["a b"]'


def test_keys_are_explained() -> None:
    assert 'the key "z"' in message(taking(dict[int, int]), {"x": {"z": 1}})


def test_nearest_member_of_a_union_is_explained() -> None:
    assert message(taking(Circle | Order), {"x": {"radius": "x"}}) == (
        "Invalid argument 'x.radius': expected a number, received the string \"x\"."
    )


def test_author_of_a_class_speaks() -> None:
    result = message(taking(list[Period]), {"x": [{"start": 1, "end": 2}, {"start": 2, "end": 1}]})
    assert result == "Invalid argument 'x[1]': the end must not be before the start."


def test_author_is_received_and_the_cause_is_not() -> None:
    @dataclasses.dataclass
    class Lookup:
        name: str

        def __post_init__(self) -> None:
            try:
                json.loads("{}")[self.name]
            except KeyError as error:
                raise ValueError("no such name") from error

    assert message(taking(Lookup), {"x": {"name": "a"}}) == "Invalid argument 'x': no such name."


def test_pydantic_problems_are_reported_in_our_words() -> None:
    result = problems(taking(Model), {"x": {"inner": {"a": "x"}, "tags": [1], "day": "2026-02-31"}})
    assert [problem.path for problem in result] == ["arguments.x.inner.a", "arguments.x.day", "arguments.x.tags[0]"]
    assert result[0].message == ("Invalid argument 'x.inner.a': expected a valid integer, received the string \"x\".")
    assert message(taking(Model), {"x": {}}) == "Missing argument 'x.inner'."


def test_pydantic_validators_speak() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("it must be even")
        return value

    signature = taking(Annotated[int, pydantic.AfterValidator(even)])
    assert signature.bind(b'{"x":2}', None)[0] == (2,)
    assert message(signature, {"x": 3}) == "Invalid argument 'x': it must be even."


def test_arguments_that_are_no_object() -> None:
    assert message(read(limited), [1]) == (
        "Invalid arguments: expected an object with 'limit', received an array of 1 item."
    )


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b'{"limit":}', "Invalid arguments: malformed JSON at byte 9."),
        (b'{"limit":', "Invalid arguments: the JSON ends too early."),
        (b'{"limit":"\xff"}', "Invalid arguments: the text is not valid UTF-8."),
        (b'{"limit":"\\ud800 and more text"}', "Invalid arguments: malformed JSON at byte 16."),
        (b'{"limit":' + b"1" * 5000 + b"}", "Invalid arguments: a number has too many digits."),
        (b'{"limit":' + b"[" * 100_000, "Invalid arguments: nested too deeply."),
        (b'{"limit":' + b'{"a":' * 100_000, "Invalid arguments: nested too deeply."),
        (b'{"limit":' + b"1" * 400 + b"}", "Invalid argument 'limit': expected an integer between 1 and 10000, "
                                           f"received the number {'1' * 79}…."),
    ],
)  # fmt: skip
def test_hostile_bytes_are_explained(sent: bytes, expected: str) -> None:
    assert message(read(limited), sent) == expected


@pytest.mark.parametrize("depth", [100, 300, 600, 900, 990])
@pytest.mark.parametrize(
    "tp", [Any, int, Node, list[Any], Inner, Circle | Square, Annotated[float, at.MultipleOf(0.1)]]
)
def test_depth_never_raises_anything_else(depth: int, tp: Any) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"value":1,"children":[', b"]}"), (b'{"a":', b"}")):
        for middle in (b"1", b'"x"', b"9" * 400):
            refusal(taking(tp), b'{"x":' + opening * depth + middle + closing * depth + b"}")


SIGNATURES = [taking(tp) for tp in (int, Order, Node, Add, Model, Any, Circle | Square | None, dict[int, Review])]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["x", "a", "items", "value"]) | st.text(), inner),
)


@given(st.sampled_from(SIGNATURES), st.binary() | JSON.map(msgspec.json.encode))
def test_any_bytes_bind_or_are_an_argument_error(signature: FunctionSignature, data: bytes) -> None:
    refusal(signature, data)


@given(st.sampled_from(SIGNATURES), JSON)
def test_any_value_binds_or_is_an_argument_error(signature: FunctionSignature, value: Any) -> None:
    refusal(signature, msgspec.json.encode({"x": value}))


def test_number_of_problems_is_limited() -> None:
    assert len(problems(taking(list[int]), {"x": ["a"] * 1000})) == 20
    assert len(problems(read(limited), {f"a{number}": 1 for number in range(1000)})) == 20


def expression(depth: int, leaf: Any) -> Any:
    results = leaf
    for _ in range(depth):
        results = {"a": results, "b": 1}
    return results


def test_unions_that_hold_unions_take_linear_time() -> None:
    signature = taking(Add | Multiply)

    def seconds(depth: int) -> float:
        data = msgspec.json.encode({"x": expression(depth, "no number")})
        start = time.process_time()
        with pytest.raises(ArgumentError):
            signature.bind(data, None)
        return time.process_time() - start

    seconds(2)
    # Trying every member anew at each level would take 2**40 attempts.
    assert seconds(40) < 30


HOSTILE = {
    "numbers": b'{"x":[' + b",".join([b"1"] * 250_000) + b',"a"]}',
    "strings": b'{"x":[' + b",".join([b'"1"'] * 125_000) + b',"a"]}',
    "names": b'{"x":{' + b",".join(b'"k%d":1' % number for number in range(50_000)) + b"}}",
    "top": b"{" + b",".join(b'"k%d":1' % number for number in range(50_000)) + b"}",
    "long name": b'{"' + b"a" * 1_000_000 + b'":1}',
    "long string": b'{"x":"' + b"a" * 1_000_000 + b'"}',
    "json in string": msgspec.json.encode({"x": json.dumps([json.dumps([1] * 25_000)] * 10)}),
    "wrong tags": msgspec.json.encode({"x": {"inner": {"a": 1}, "tags": [1] * 125_000}}),
    "shuffled": msgspec.json.encode({"x": [{"price": random.Random(1).random(), "z": 1}] * 15_000}),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize(
    "tp", [list[int], Order, list[Item | Review | Circle], dict[str, Node], Model, list[Inner]], ids=str
)
def test_megabyte_is_explained_in_linear_time(tp: Any, kind: str) -> None:
    signature, data = taking(tp), HOSTILE[kind]

    def bind() -> float:
        start = time.process_time()
        with pytest.raises(ArgumentError) as caught:
            signature.bind(data, None)
        assert len(caught.value.problems) <= 20
        assert len(str(caught.value)) < 100_000
        return time.process_time() - start

    start = time.process_time()
    json.loads(data)
    parsing = time.process_time() - start
    # Compared with the time that Python's own parser needs on this machine at this moment.
    assert bind() < 60 * parsing + 2


class Counter:
    def count(self, step: int = 1) -> int:
        """Count."""
        return step


def wrapped(method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return wrapper


def test_method_is_read_once_for_all_instances() -> None:
    signature = read(Counter().count)
    assert read(Counter().count) is signature
    assert read(wrapped(Counter().count)) is signature
    assert inspect_signature(Counter().count, context_type=Context, skip=("step",)).input_schema["properties"] == {}


def test_changed_method_is_read_again() -> None:
    class Changing(Counter):
        def count(self, step: int = 1) -> int:
            """Count."""
            return step

    assert read(Changing().count).input_schema["properties"]["step"]["default"] == 1
    Changing.count.__defaults__, Changing.count.__doc__ = (2,), "Count again."
    signature = read(Changing().count)
    assert (signature.summary, signature.input_schema["properties"]["step"]["default"]) == ("Count again.", 2)


def test_cached_method_can_be_collected() -> None:
    class Short:
        def work(self) -> None: ...

    method = weakref.ref(Short.work)
    read(Short().work)
    del Short
    gc.collect()
    assert method() is None


def test_partial_and_an_explicit_signature_are_read_every_time() -> None:
    def explicit(*args: Any, **kwargs: Any) -> None: ...

    explicit.__signature__ = inspect.Signature([inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY)])  # type: ignore[attr-defined]
    explicit.__wrapped__ = Counter().count  # type: ignore[attr-defined]
    read(Counter().count)
    assert list(read(explicit).input_schema["properties"]) == ["a"]
    assert read(functools.partial(Counter().count, step=3)).input_schema["properties"] == {}
