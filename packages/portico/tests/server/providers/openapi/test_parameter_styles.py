"""Parameter styles of OpenAPI 3.1 (Parameter Object, Style Examples)."""

from __future__ import annotations

from typing import Any

import pytest

from portico import ToolError
from portico.server.providers.openapi.parameter_styles import serialize_header, serialize_path, serialize_query

ARRAY = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}


@pytest.mark.parametrize(
    "style, explode, value, said",
    [
        ("simple", False, "blue", "blue"),
        ("simple", False, ARRAY, "blue,black,brown"),
        ("simple", False, OBJECT, "R,100,G,200,B,150"),
        ("simple", True, OBJECT, "R=100,G=200,B=150"),
        ("label", False, "blue", ".blue"),
        ("label", False, ARRAY, ".blue,black,brown"),
        ("label", True, ARRAY, ".blue.black.brown"),
        ("label", True, OBJECT, ".R=100.G=200.B=150"),
        ("matrix", False, "blue", ";color=blue"),
        ("matrix", False, ARRAY, ";color=blue,black,brown"),
        ("matrix", True, ARRAY, ";color=blue;color=black;color=brown"),
        ("matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
        ("matrix", True, OBJECT, ";R=100;G=200;B=150"),
        ("simple", False, "a/b c", "a%2Fb%20c"),
        ("simple", False, True, "true"),
    ],
)
def test_path_is_written_by_its_style(style: str, explode: bool, value: Any, said: str) -> None:
    assert serialize_path("color", value, style, explode) == said


@pytest.mark.parametrize(
    "style, explode, value, said",
    [
        ("form", True, "blue", "color=blue"),
        ("form", True, ARRAY, "color=blue&color=black&color=brown"),
        ("form", False, ARRAY, "color=blue,black,brown"),
        ("form", True, OBJECT, "R=100&G=200&B=150"),
        ("form", False, OBJECT, "color=R,100,G,200,B,150"),
        ("spaceDelimited", False, ARRAY, "color=blue%20black%20brown"),
        ("pipeDelimited", False, ARRAY, "color=blue|black|brown"),
        ("deepObject", True, OBJECT, "color[R]=100&color[G]=200&color[B]=150"),
        ("deepObject", True, {"a": {"b": [1, 2]}}, "color[a][b][]=1&color[a][b][]=2"),
        ("form", True, "a&b=c#d", "color=a%26b%3Dc%23d"),
    ],
)
def test_query_is_written_by_its_style(style: str, explode: bool, value: Any, said: str) -> None:
    assert "&".join(f"{name}={one}" for name, one in serialize_query("color", value, style, explode)) == said


def test_reserved_characters_are_allowed_except_delimiters() -> None:
    assert serialize_query("next", "/a?b=c&d", reserved=True) == [("next", "/a?b%3Dc%26d")]


def test_header_is_simple() -> None:
    assert serialize_header(ARRAY) == "blue,black,brown"
    assert serialize_header(OBJECT, explode=True) == "R=100,G=200,B=150"


@pytest.mark.parametrize("value", ["..", ".", "../admin", "a/../../b", "..\\x", "", ["a", ".."], {"k": ".."}])
def test_value_that_would_lead_to_another_path_is_rejected(value: Any) -> None:
    with pytest.raises(ToolError, match="must not be empty or contain"):
        serialize_path("id", value)
