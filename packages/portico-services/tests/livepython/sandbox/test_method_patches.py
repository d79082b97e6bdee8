"""Methods changed in place, and the resulting patch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portico_services.livepython.sandbox.interpreter import Interpreter
from portico_services.livepython.sandbox.name_resolution import InspectionError

ACCOUNT = '''
class Base:
    def kind(self): return "base"

class Account(Base):
    """Money."""
    __secret = 7
    total: int = 0

    def pay(self, amount):
        self.total -= amount

    @property
    def rich(self):
        return self.total > 100

account = Account()
'''


@pytest.fixture
def image() -> Iterator[Interpreter]:
    before = sys.modules["__main__"]
    image = Interpreter()
    image.evaluate(ACCOUNT)
    yield image
    image.close()
    sys.modules["__main__"] = before


def value(image: Interpreter, expression: str) -> str:
    return str(image.evaluate(expression)["text"])


def test_existing_instances_get_the_new_method_immediately(image: Interpreter) -> None:
    result = image.define_method("Account", "def pay(self, amount):\n    self.total += amount\n    return self.total")
    told_of = result.pop("changedClasses")
    assert result == {"className": "Account", "selector": "pay", "kind": "changed", "module": "__main__"}
    assert told_of == {"Account": ["pay"]}
    assert value(image, "account.pay(5)") == "5"
    assert (
        "self.total += amount" in image.handle("method_source", {"className": "Account", "selector": "pay"})["source"]
    )


def test_method_is_compiled_in_class_scope(image: Interpreter) -> None:
    image.define_method("Account", "    def kind(self):\n        return super().kind() + str(self.__secret)")
    assert value(image, "account.kind(), Account.kind.__qualname__") == "('base7', 'Account.kind')"
    image.define_method("Account", "@staticmethod\ndef nothing(): return None")
    image.define_method("Account", "@classmethod\ndef make(cls): return cls().total")
    image.define_method("Account", "async def later(self): return 3")
    image.define_method("Account", "@rich.setter\ndef rich(self, value): self.total = 1000 if value else 0")
    image.define_method(
        "Account", "@__import__('functools').cached_property\ndef slow(self): return self.__class__.__name__"
    )
    assert value(image, "account.rich = True; account.rich, account.make(), account.slow, await account.later()") == (
        "(True, 0, 'Account', 3)"
    )
    kinds = {
        method["name"]: method["kind"] for method in image.handle("class_details", {"className": "Account"})["methods"]
    }
    assert kinds["nothing"] == "static"
    assert kinds["make"] == "class"


def test_abstract_class_can_be_instantiated_after_its_method_is_defined(image: Interpreter) -> None:
    image.evaluate("import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...")
    image.define_method("A", "def f(self): return 1")
    assert value(image, "A().f()") == "1"


@pytest.mark.parametrize(
    "name, source, words",
    [
        ("Account", "x = 1", "one `def`"),
        ("Account", "def a(self): ...\ndef b(self): ...", "one `def`"),
        ("Account", "def a(self:", "SyntaxError"),
        ("Account", "@nothing_there\ndef a(self): ...", "NameError"),
        ("NoSuchClassHere", "def a(self): ...", "Unknown class 'NoSuchClassHere'"),
        ("account", "def a(self): ...", "is not a class"),
        ("int", "def a(self): ...", "implemented in C"),
    ],
)
def test_rejected_method_definition_changes_nothing(image: Interpreter, name: str, source: str, words: str) -> None:
    with pytest.raises(InspectionError, match=words):
        image.handle("define_method", {"className": name, "source": source})
    assert image.list_changes() == {"changes": [], "total": 0, "patch": ""}


def test_all_changes_make_one_patch_that_can_be_applied(image: Interpreter, tmp_path: Path) -> None:
    image.define_method("Account", "def pay(self, amount): ...")
    image.define_method("Account", "def pay(self, amount):\n    self.total += amount")
    image.define_method("Account", 'def text(self):\n    return """a\n  b"""')
    result = image.list_changes()
    assert [(change["selector"], change["kind"]) for change in result["changes"]] == [
        ("pay", "changed"),
        ("pay", "changed"),
        ("text", "added"),
    ]
    assert result["patch"].startswith("--- /dev/null\n+++ b/Account.py\n")
    subprocess.run(["git", "apply", "-"], input=result["patch"], text=True, cwd=tmp_path, check=True)
    assert (
        (tmp_path / "Account.py")
        .read_text()
        .endswith(
            "    total: int = 0\n\n    def pay(self, amount):\n        self.total += amount\n\n"
            "    @property\n    def rich(self):\n        return self.total > 100\n\n"
            '    def text(self):\n        return """a\n  b"""\n'
        )
    )


def test_class_that_is_defined_again_has_no_changes(image: Interpreter) -> None:
    image.define_method("Account", "def pay(self, amount): ...")
    image.evaluate("class Account: ...")
    assert image.list_changes()["total"] == 0


def test_patch_of_a_package_can_be_applied(image: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src" / "shop_of_tests" / "prices.py"
    source.parent.mkdir(parents=True)
    (source.parent / "__init__.py").write_text("")
    source.write_text(
        "RATE = 3\n\nclass Price:\n    class Tax:\n        @property\n        def rate(self):\n            return RATE"
    )
    monkeypatch.syspath_prepend(tmp_path / "src")
    image.projects = [str(tmp_path)]
    image.evaluate("import shop_of_tests.prices; tax = shop_of_tests.prices.Price.Tax()")
    image.define_method("shop_of_tests.prices.Price.Tax", "@property\ndef rate(self):\n    return RATE * 2")
    assert value(image, "tax.rate") == "6"
    patch = image.list_changes()["patch"]
    assert patch.startswith("--- a/src/shop_of_tests/prices.py\n")
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    assert source.read_text().endswith("            return RATE * 2\n")


def test_patch_is_of_the_class_that_there_is(image: Interpreter) -> None:
    with pytest.raises(ZeroDivisionError):
        image.evaluate("1 / 0\nclass Account:\n    def never(self): ...")
    image.define_method("Account", "def pay(self, amount): return 7")
    assert "never" not in image.list_changes()["patch"]
    assert "total" in image.list_changes()["patch"]


SLOTTED = """
class Box:
    __slots__ = ("size",)
    def __init__(self): self.size = 1
    def __grown(self): return self.size + 1
    def grown(self): return self.__grown()
    @property
    def half(self): return self.size / 2
    @half.setter
    def half(self, value): self.size = value * 2

box = Box()
"""


def test_private_method_is_called_by_other_methods(image: Interpreter) -> None:
    image.evaluate(SLOTTED)
    assert image.define_method("Box", "def __grown(self):\n    return 7")["selector"] == "_Box__grown"
    assert value(image, "box.grown()") == "7"


def test_slot_cannot_be_redefined_as_a_method(image: Interpreter) -> None:
    image.evaluate(SLOTTED)
    with pytest.raises(InspectionError, match=r"Box.size is a slot that stores a value"):
        image.define_method("Box", "def size(self):\n    return 7")
    assert value(image, "box.size") == "1"


def test_redefined_getter_preserves_the_setter(image: Interpreter) -> None:
    image.evaluate(SLOTTED)
    image.define_method("Box", "@property\ndef half(self):\n    return -self.size / 2")
    assert value(image, "box.half = 3\nbox.half") == "-3.0"


# Functions of modules


@pytest.fixture
def kiosk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "kiosk"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "util.py").write_text(
        'RATE = 2\n\n\ndef total(prices):\n    """Add up."""\n    return sum(prices) * RATE\n\n\n'
        "def last():\n    return 1\n"
    )
    (folder / "cart.py").write_text("from kiosk.util import total\n\n\ndef due(prices):\n    return total(prices)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("kiosk", "kiosk.util", "kiosk.cart"):
        sys.modules.pop(name, None)


def test_function_of_a_module_is_read_and_changed(image: Interpreter, kiosk: Path) -> None:
    result = image.handle("method_source", {"className": "kiosk.util", "selector": "total"})
    assert (result["className"], result["kind"], result["line"]) == ("kiosk.util", "function", 4)
    assert "sum(prices) * RATE" in result["source"]
    image.evaluate("from kiosk import cart\nfrom kiosk.util import total as mine")
    told = image.handle(
        "define_method", {"className": "kiosk.util", "source": "def total(prices):\n    return max(prices) * RATE"}
    )
    assert (told["className"], told["selector"], told["kind"]) == ("kiosk.util", "total", "changed")
    assert told["changedClasses"]["kiosk.util"] == ["total"]
    # Also where the function was imported by its name.
    assert value(image, "cart.due([1, 5]), mine([1, 5])") == "(10, 10)"
    assert "max(prices)" in image.handle("method_source", {"className": "kiosk.cart", "selector": "total"})["source"]


def test_changed_function_is_in_the_patch(image: Interpreter, kiosk: Path) -> None:
    image.define_method("kiosk.util", "def total(prices):\n    return max(prices) * RATE")
    image.define_method("kiosk.util", "def fresh():\n    return 3")
    subprocess.run(["git", "init", "-q"], cwd=kiosk, check=True)
    patch = image.list_changes()["patch"]
    subprocess.run(["git", "apply", "-"], cwd=kiosk, input=patch.encode(), check=True)
    text = (kiosk / "kiosk" / "util.py").read_text()
    assert "max(prices)" in text and "sum(prices)" not in text
    assert text.endswith("def last():\n    return 1\n\n\ndef fresh():\n    return 3\n")


def test_function_of_the_session_is_changed(image: Interpreter) -> None:
    image.evaluate("def greet(): return 'hi'")
    image.define_method("__main__", "def greet():\n    return 'hello'")
    assert value(image, "greet()") == "'hello'"
    assert "hello" in image.handle("method_source", {"className": "__main__", "selector": "greet"})["source"]
    assert "+++ b/greet.py" in image.list_changes()["patch"]


def test_class_is_found_before_a_module_of_the_same_name(image: Interpreter) -> None:
    image.evaluate("import datetime as dates")
    result = image.handle("search_methods", {"pattern": "isoformat*", "className": "datetime"})
    assert [method["className"] for method in result["methods"]] == ["datetime"]


def test_names_of_functions_are_suggested_and_searched(image: Interpreter, kiosk: Path) -> None:
    with pytest.raises(InspectionError, match=r"kiosk\.util has no 'totle'\. Did you mean total"):
        image.handle("method_source", {"className": "kiosk.util", "selector": "totle"})
    with pytest.raises(InspectionError, match="is not a function, it is a int"):
        image.handle("method_source", {"className": "kiosk.util", "selector": "RATE"})
    result = image.handle("search_methods", {"pattern": "t*l", "className": "kiosk.util"})
    assert [(method["selector"], method["kind"]) for method in result["methods"]] == [("total", "function")]
    with pytest.raises(InspectionError, match=r"Unknown class 'kiosk\.nothing'"):
        image.handle("method_source", {"className": "kiosk.nothing", "selector": "x"})


def test_invalid_function_leaves_the_module_unchanged(image: Interpreter, kiosk: Path) -> None:
    with pytest.raises(InspectionError, match="ZeroDivisionError"):
        image.handle("define_method", {"className": "kiosk.util", "source": "@(lambda f: 1 / 0)\ndef total(p): ..."})
    assert value(image, "__import__('kiosk.util').util.total([1])") == "2"
    assert image.list_changes()["total"] == 0


# Undoing


def test_change_is_undone(image: Interpreter) -> None:
    for amount in (1, 2):
        image.define_method("Account", f"def pay(self, amount):\n    return {amount}")
    request = {"className": "Account", "selector": "pay"}
    result = image.handle("undo_change", request)
    assert (result["kind"], result["changedClasses"]) == ("restored", {"Account": ["pay"]})
    assert value(image, "account.pay(5)") == "1"
    image.handle("undo_change", request)
    assert value(image, "account.pay(5), account.total") == "(None, -5)"
    assert image.list_changes() == {"changes": [], "total": 0, "patch": ""}
    with pytest.raises(InspectionError, match=r"'pay' was not changed in this session \(changed: none\)"):
        image.handle("undo_change", request)


def test_undo_removes_an_added_method(image: Interpreter, kiosk: Path) -> None:
    image.define_method("Account", "def __hidden(self): return self.__secret")
    assert image.handle("undo_change", {"className": "Account", "selector": "__hidden"})["kind"] == "removed"
    assert value(image, "hasattr(account, '_Account__hidden')") == "False"
    image.define_method("kiosk.util", "def fresh(): ...")
    assert image.handle("undo_change", {"className": "kiosk.util", "selector": "fresh"})["kind"] == "removed"
    with pytest.raises(InspectionError, match="has no 'fresh'"):
        image.handle("method_source", {"className": "kiosk.util", "selector": "fresh"})


def test_restored_function_replaces_every_import(image: Interpreter, kiosk: Path) -> None:
    image.evaluate("from kiosk import cart, util")
    image.define_method("kiosk.util", "def total(prices):\n    return 0")
    assert value(image, "cart.due([1, 5])") == "0"
    image.handle("undo_change", {"className": "util", "selector": "total"})
    assert value(image, "cart.due([1, 5]), util.total([1])") == "(12, 2)"


def test_undo_rejects_methods_replaced_by_other_code(image: Interpreter) -> None:
    image.define_method("Account", "def pay(self, amount): return 1")
    image.evaluate("Account.pay = lambda self, amount: 9")
    with pytest.raises(InspectionError, match="was changed again by other code"):
        image.handle("undo_change", {"className": "Account", "selector": "pay"})
    assert value(image, "account.pay(1)") == "9"
