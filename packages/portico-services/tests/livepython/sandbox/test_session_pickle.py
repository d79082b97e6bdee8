"""Saving and restoring the names of a session."""

from __future__ import annotations

import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest

from portico_services.livepython.sandbox import session_pickle
from portico_services.livepython.sandbox.interpreter import Interpreter
from portico_services.livepython.sandbox.name_resolution import InspectionError

CODE = '''
import json as j, math
from collections import Counter, namedtuple
from dataclasses import dataclass
from functools import lru_cache

limit = 10

def scale(x, by=limit):
    """Of tests."""
    return x * by

@dataclass
class Point:
    x: int
    y: int = 2
    def sum(self): return self.x + self.y

class Sub(Point):
    class Inner: ...

@lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)

double = lambda x: 2 * x
alias = scale
points = [Point(1), Sub(3)]
same = points
count = Counter("aab")
inner = Sub.Inner()
import threading
lock = threading.Lock()
generator = (x for x in [1])
def outer():
    hidden = 5
    def local(): return hidden
    return local
closure = outer()
Made = type("Made", (), {})
made = Made()
'''


@pytest.fixture
def fresh() -> Iterator[Any]:
    """`fresh()` gives an image with nothing in it."""
    before = sys.modules["__main__"]
    yield Interpreter
    sys.modules["__main__"] = before


def value(image: Interpreter, expression: str) -> str:
    return str(image.evaluate(expression)["text"])


def moved(image: Interpreter, to: Interpreter, part: int = 1000) -> dict[str, Any]:
    """What a server does: the bytes in parts, from one to the other."""
    size = image.save(10**6)["size"]
    for at in range(0, size, part):
        to.restore_part(at, image.saved_part(at, part)["data"])
    return to.restore()


def test_session_names_are_restored(fresh: Any) -> None:
    image = fresh()
    image.evaluate(CODE)
    image.define_method("Point", "def sum(self): return 100")
    result = image.save(10**6)
    assert {change["name"] for change in result["failed"]} == {"lock", "generator", "closure", "Made", "made"}
    reasons = {change["name"]: change["reason"] for change in result["failed"]}
    assert reasons["lock"].startswith("lock: ")
    other = fresh()
    back = moved(image, other)
    assert back["failed"] == []
    assert back["names"] == result["names"]
    assert value(other, "points") == "[Point(x=1, y=2), Sub(x=3, y=2)]"
    assert value(other, "points is same, alias is scale, type(points[0]) is Point") == "(True, True, True)"
    assert value(other, "points[1].sum(), scale(2), double(4), fib(20), count['a'], j.dumps(1), math.pi > 3") == (
        "(100, 20, 8, 6765, 2, '1', True)"
    )
    assert value(other, "type(inner) is Sub.Inner") == "True"
    # Also their text, and what was changed.
    assert "return x * by" in value(other, "import inspect; inspect.getsource(scale)")
    assert [change["selector"] for change in other.list_changes()["changes"]] == ["sum"]
    # And they can be saved again.
    assert moved(other, fresh())["failed"] == []


def test_unloadable_names_do_not_prevent_restoring_the_others(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "gone_with_tests.py").write_text("class Thing: ...\ndef act(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    image = fresh()
    image.evaluate(
        "import gone_with_tests\nshared = [1, 2]\na = {'shared': shared}\n"
        "near = [1]; lost = [gone_with_tests.Thing(), near]\nc = shared\nd = 'd' * 100000"
    )
    data = session_pickle.dump_session(image.namespace, [])[0]
    (tmp_path / "gone_with_tests.py").unlink()
    del sys.modules["gone_with_tests"]
    sys.path_importer_cache.clear()
    names: dict[str, Any] = {}
    back, failed = session_pickle.load_session(data, names, None, None)  # type: ignore[arg-type]
    # With what shares objects with it, which would not be the same any more.
    assert failed.keys() == {"gone_with_tests", "lost", "near"}
    assert back == ["a", "c", "d", "shared"]
    assert names["a"]["shared"] is names["c"]


def test_saved_size_is_limited_and_largest_names_are_listed(fresh: Any) -> None:
    image = fresh()
    image.evaluate("small = 1; big = b'x' * 50000")
    with pytest.raises(InspectionError, match=r"10,000 can be saved. The largest are big \(50,\d+ bytes\), small"):
        image.save(10_000)


def test_objects_that_hide_their_class_do_not_prevent_saving(fresh: Any) -> None:
    image, other = fresh(), fresh()
    image.evaluate(
        "class Meta(type):\n"
        "    def __getattribute__(cls, name): raise RuntimeError('no')\n"
        "class Sly(metaclass=Meta): ...\n"
        "class Liar:\n"
        "    @property\n    def __class__(self): raise RuntimeError('no')\n"
        "    def __getattr__(self, name): raise RuntimeError('no')\n"
        "    def __reduce_ex__(self, protocol): raise RuntimeError('no')\n"
        "liar = Liar(); x = 5; globals()[7] = 8"
    )
    back = moved(image, other)
    assert {"Liar", "Meta", "x"} <= set(back["names"])
    assert value(other, "x") == "5"


def test_saved_definitions_are_those_that_ran_and_not_the_newest_source(fresh: Any) -> None:
    image, other = fresh(), fresh()
    image.evaluate(
        "def f(): return 1\nclass A:\n    @staticmethod\n    def m(): return 1\nclass Bare: x = 1\n"
        "def n(): return 1\ndef g(): return 1\nh = k = lambda: 1\ncount = 0"
    )
    with pytest.raises(ZeroDivisionError):
        image.evaluate(
            "1 / 0\ndef f(): return 2\nclass A:\n    @staticmethod\n    def m(): return 2\nclass Bare: x = 2"
        )
    image.define_method("A", "def n(self): return 2")
    image.evaluate("h: object = lambda: 2\nk = [lambda: 2][0]\nexec('def g(): return 2')")
    image.evaluate("count += 1; last = lambda: 3; count += 1")
    # There is no text for these two, and that of another would be wrong.
    assert {item["name"] for item in image.save(10**6)["failed"]} == {"g", "k"}
    moved(image, other)
    assert value(other, "f(), A.m(), Bare.x, n(), h(), last(), count") == "(1, 1, 1, 1, 2, 3, 2)"


@pytest.mark.parametrize("method", ["__reduce_ex__(self, protocol)", "__getattr__(self, name)"])
def test_object_raising_system_exit_does_not_prevent_saving(fresh: Any, method: str) -> None:
    image, other = fresh(), fresh()
    image.evaluate(f"class Sly:\n    def {method}: raise SystemExit\nsly = sly2 = Sly(); x = 5; sly = x and sly")
    assert "x" in moved(image, other)["names"]


def test_object_raising_system_exit_does_not_prevent_restoring(fresh: Any) -> None:
    image, other = fresh(), fresh()
    image.evaluate("import sys\nclass Sly:\n    def __reduce__(self): return print, (1,)\nsly = Sly(); x = 5")
    size = image.save(10**6)["size"]
    data = b64decode(image.saved_part(0, size)["data"]).replace(b"print", b"exit_")
    image.namespace.clear()
    builtins = sys.modules["builtins"]
    vars(builtins)["exit_"] = sys.exit
    try:
        back, failed = session_pickle.load_session(data, other.namespace, other._run, other.define_method)
    finally:
        del vars(builtins)["exit_"]
    assert "x" in back and failed["sly"] == "SystemExit: 1"


def test_definition_that_needs_a_value_waits_for_it(fresh: Any) -> None:
    image, other = fresh(), fresh()
    image.evaluate("rates = {'a': 2}\ndef price(x, rates=rates): return x * rates['a']")
    assert moved(image, other)["failed"] == []
    assert value(other, "price(4)") == "8"


@pytest.mark.parametrize("data", [b"", b"x", b"{}\n", b'{"modules": 1}\n', b"[]"])
def test_invalid_session_data_is_rejected(fresh: Any, data: bytes) -> None:
    with pytest.raises(InspectionError, match="not a saved session"):
        session_pickle.load_session(data, {}, None, None)  # type: ignore[arg-type]


def test_concurrent_restores_do_not_mix(fresh: Any) -> None:
    image = fresh()
    image.restore_part(0, "aGVsbG8=")
    image.restore_part(0, "aGVsbG8=")
    with pytest.raises(InspectionError, match="Another restore"):
        image.restore_part(10, "aGVsbG8=")


def test_names_that_share_objects_are_saved_together() -> None:
    chain = {"a": {1: None}, "b": {2: None}, "c": {3: None}, "d": {1: None, 3: None}, "e": {}, "f": {2: None, 4: None}}
    assert session_pickle._group_shared(chain) == [["a", "c", "d"], ["b", "f"], ["e"]]

    def seconds(most: int) -> float:
        """The shortest of some, since other things may happen meanwhile."""
        named = {f"name{number}": {number: None} for number in range(most)}
        took = []
        for _ in range(5):
            began = time.process_time()
            session_pickle._group_shared(named)
            took.append(time.process_time() - began)
        return min(took)

    seconds(100)
    # Ten times as many take ten times as long, and not a hundred.
    assert seconds(20_000) < 50 * max(seconds(2_000), 0.001)


def test_second_of_two_concurrent_restores_is_rejected(fresh: Any) -> None:
    image, other = fresh(), fresh()
    image.evaluate("x = 5")
    moved(image, other)
    with pytest.raises(InspectionError, match="at the same time"):
        other.restore()


def test_value_that_is_never_written_is_left_out_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def __getstate__(self) -> None:
            while True:
                pass

    monkeypatch.setattr(session_pickle, "PICKLE_TIMEOUT_SECONDS", 0.05)
    _, names, left_out = session_pickle.dump_session({"endless": Endless(), "one": 1}, [])
    assert names == ["one"]
    assert "it takes more than 0.05 s" in left_out["endless"]
