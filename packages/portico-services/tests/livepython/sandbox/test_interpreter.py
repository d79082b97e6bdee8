"""The interpreter: results, errors and the display of values."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from portico_services.livepython.sandbox.display import PNG, table_to_markdown, to_json_or_none, to_table
from portico_services.livepython.sandbox.interpreter import Interpreter
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.name_resolution import InspectionError


@pytest.fixture
def image() -> Iterator[Interpreter]:
    before = sys.modules["__main__"]
    image = Interpreter(limits=SandboxLimits(max_text_chars=200, max_value_bytes=500))
    yield image
    image.close()
    sys.modules["__main__"] = before


def value(image: Interpreter, code: str) -> Any:
    result = image.handle("evaluate", {"expression": code})
    return json.loads(result["value"]) if "value" in result else None


def text(image: Interpreter, code: str) -> str | None:
    return image.handle("evaluate", {"expression": code}).get("text")


def refusal(image: Interpreter, code: str) -> str:
    with pytest.raises(InspectionError) as caught:
        image.handle("evaluate", {"expression": code})
    return str(caught.value)


def test_value_is_that_of_the_last_expression(image: Interpreter) -> None:
    assert text(image, "3 + 4") == "7"
    assert text(image, "x = 5\ny = 6\nx * y") == "30"
    assert text(image, "'a'") == "'a'"
    assert text(image, "None") == "None"


def test_statements_have_no_value(image: Interpreter) -> None:
    assert text(image, "x = 5") is None
    assert text(image, "for i in range(3): i") is None
    assert text(image, "") is None
    assert text(image, "# nothing") is None


def test_names_stay_and_the_last_value_has_one(image: Interpreter) -> None:
    value(image, "import math\ndef area(r): return math.pi * r * r")
    assert text(image, "round(area(2))") == "13"
    assert text(image, "_ + 1") == "14"
    value(image, "None")
    assert text(image, "_") == "14"


def test_code_may_be_indented_as_a_whole(image: Interpreter) -> None:
    assert text(image, "\n    x = 1\n    x + 1\n") == "2"
    assert text(image, 'x = """a\n  \nb"""\nx') == "'a\\n  \\nb'"


def test_code_may_await(image: Interpreter) -> None:
    value(image, "import asyncio\nasync def f(): await asyncio.sleep(0); return 5")
    assert text(image, "await f()") == "5"
    assert text(image, "x = await f()\nx + 1") == "6"


def test_classes_of_the_session_behave_as_in_a_module(image: Interpreter) -> None:
    code = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int' = 1\nimport pickle\n"
    assert text(image, code + "pickle.loads(pickle.dumps(P(2)))") == "P(x=2)"


@pytest.mark.parametrize(
    "code, lines",
    [
        ("1/0", ["ZeroDivisionError: division by zero", "  line 1", "    1/0"]),
        ("x", ["NameError: name 'x' is not defined", "  line 1", "    x"]),
        (
            "def f():\n    g()\ndef g():\n    raise KeyError('k')\nf()",
            [
                "KeyError: 'k'",
                "  line 5",
                "    f()",
                "  line 2, in f",
                "    g()",
                "  line 4, in g",
                "    raise KeyError('k')",
            ],
        ),
        ("import json\njson.loads('{')", None),
        ("3 +", ["SyntaxError: invalid syntax (line 1)", "    3 +", "       ^"]),
        ("raise SystemExit(3)", ["SystemExit: 3", "  line 1", "    raise SystemExit(3)"]),
        ("raise KeyboardInterrupt", ["KeyboardInterrupt", "  line 1", "    raise KeyboardInterrupt"]),
        (
            "try: 1/0\nexcept Exception as e: raise ValueError('no') from e",
            [
                "ValueError: no",
                "  line 2",
                "    except Exception as e: raise ValueError('no') from e",
                "  because of ZeroDivisionError: division by zero",
            ],
        ),
        (
            "raise ExceptionGroup('all', [ValueError('a'), KeyError('b')])",
            [
                "ExceptionGroup: all (2 sub-exceptions)",
                "  line 1",
                "    raise ExceptionGroup('all', [ValueError('a'), KeyError('b')])",
                "  - ValueError: a",
                "  - KeyError: 'b'",
            ],
        ),
    ],
)
def test_failure_is_reported_in_the_lines_that_are_the_users(
    image: Interpreter, code: str, lines: list[str] | None
) -> None:
    error = refusal(image, code)
    if lines is not None:
        assert error.splitlines() == lines
    assert "/" not in error.replace("1/0", "")
    assert ".py" not in error


def test_traceback_names_the_line_of_an_earlier_evaluation(image: Interpreter) -> None:
    value(image, "def f():\n    return missing")
    assert refusal(image, "\nf()").splitlines() == [
        "NameError: name 'missing' is not defined",
        "  line 2 (evaluate 2)",
        "    f()",
        "  line 2, in f",
        "    return missing",
    ]


def test_deep_recursion_is_reported_in_a_few_lines(image: Interpreter) -> None:
    error = refusal(image, "def f(): f()\nf()").splitlines()
    assert error[0].startswith("RecursionError")
    assert len(error) < 20
    assert any("more" in line for line in error)


def test_exception_that_cannot_speak_is_named(image: Interpreter) -> None:
    code = "class E(Exception):\n  def __str__(self): raise E\nraise E"
    assert refusal(image, code).splitlines()[0] == "E"


def test_failing_repr_is_reported(image: Interpreter) -> None:
    code = "class A:\n  def __repr__(self): raise ValueError\nA()"
    assert text(image, code) == "<A object, and its repr failed: ValueError>"


def test_long_value_is_cut_off(image: Interpreter) -> None:
    result = text(image, "'x' * 1000")
    assert result is not None
    assert result.endswith("\n[… 802 more characters]")
    assert value(image, "'x' * 1000") is None


def test_half_a_character_can_be_shown(image: Interpreter) -> None:
    assert text(image, "class A:\n  def __repr__(self): return '\\ud800'\nA()") == "\\ud800"
    assert value(image, "'\\ud800'") is None


@pytest.mark.parametrize(
    "code, expected",
    [
        ("{'a': [1, 2.5, True, None, 'x']}", {"a": [1, 2.5, True, None, "x"]}),
        ("(1, 2)", [1, 2]),
        ("2**63", 2**63),
        ("2**64", None),
        ("float('nan')", None),
        ("{1: 2}", None),
        ("{1, 2}", None),
        ("b'x'", None),
        ("[[]] * 10", [[]] * 10),
        ("x = []; x.append(x); x", None),
        ("class D(dict): pass\nD()", None),
    ],
)
def test_value_is_json_if_it_is_json(image: Interpreter, code: str, expected: Any) -> None:
    assert value(image, code) == expected


def test_value_is_json_up_to_a_length_and_a_depth() -> None:
    assert to_json_or_none("x" * 10, 12) == '"xxxxxxxxxx"'
    assert to_json_or_none("x" * 11, 12) is None
    assert to_json_or_none([0] * 1000, 100) is None
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    assert to_json_or_none(nested, 10_000) is None


def test_frame_is_a_table() -> None:
    frame = type(
        "DataFrame",
        (),
        {
            "__module__": "pandas.core.frame",
            "columns": ["name", "n|m"],
            "index": type("RangeIndex", (), {})(),
            "itertuples": lambda self, index: iter([("Ada", 1), ("B|ob", float("nan"))]),
            "__len__": lambda self: 100,
        },
    )()
    result = to_table(frame)
    assert result == (["name", "n|m"], [["Ada", 1], ["B|ob", None]], 100)
    assert table_to_markdown(*result).splitlines() == [
        "| name | n\\|m |",
        "| --- | --- |",
        "| Ada | 1 |",
        "| B\\|ob |  |",
        "[2 of 100 rows]",
    ]


def test_rows_that_have_names_begin_with_them() -> None:
    index = type("Index", (), {"name": "who"})()
    rows = {"columns": ["n"], "index": index, "__len__": lambda self: 1, "__module__": "pandas"}
    frame = type("DataFrame", (), {**rows, "itertuples": lambda self, index: iter([("Ada", 1)] if index else [(1,)])})()
    assert to_table(frame) == (["who", "n"], [["Ada", 1]], 1)
    plain = {"columns": ["n"], "__len__": lambda self: 1, "__module__": "polars", "iter_rows": lambda self: [(1,)]}
    assert to_table(type("DataFrame", (), plain)()) == (["n"], [[1]], 1)


def test_something_else_that_is_called_a_frame_is_not_a_table() -> None:
    assert to_table(type("DataFrame", (), {"__module__": "mine"})()) is None
    assert to_table(type("DataFrame", (), {"__module__": "pandas", "columns": 5})()) is None


def test_repr_png_is_returned_as_an_image(image: Interpreter) -> None:
    code = f"class A:\n  def _repr_png_(self): return {PNG + b'rest'!r}\nA()"
    [picture] = image.handle("evaluate", {"expression": code})["pictures"]
    assert picture["mimeType"] == "image/png"
    assert base64.b64decode(picture["data"]) == PNG + b"rest"


@pytest.mark.parametrize("body", ["return b'GIF89a'", "return None", "raise ValueError", "return 'text'"])
def test_invalid_repr_png_is_ignored(image: Interpreter, body: str) -> None:
    code = f"class A:\n  def _repr_png_(self): {body}\nA()"
    assert image.handle("evaluate", {"expression": code})["pictures"] == []


def test_open_figures_are_shown_and_closed(image: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Figure:
        def savefig(self, file: Any, **options: Any) -> None:
            file.write(PNG)

    class Pyplot:
        figure = staticmethod(lambda number: Figure())
        get_fignums = staticmethod(lambda: [1, 2])
        close = staticmethod(closed.append)

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", Pyplot)  # type: ignore[arg-type]
    assert len(image.handle("evaluate", {"expression": "1"})["pictures"]) == 2
    assert closed == ["all"]
    image.alone = False
    assert image.handle("evaluate", {"expression": "1"})["pictures"] == []


def test_missing_operation_is_rejected(image: Interpreter) -> None:
    with pytest.raises(InspectionError, match="Unknown operation"):
        image.handle("format_disk", {})
