"""Introspection of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from portico_services.livepython.sandbox.interpreter import Interpreter
from portico_services.livepython.sandbox.name_resolution import InspectionError

CODE = '''
from dataclasses import dataclass
from functools import cached_property

@dataclass
class Point:
    """A place.

    On a plane.
    """
    x: int = 0
    y: "int" = 0
    unit = "m"

    def distance(self, other: "Point") -> float:
        """How far it is."""
        return abs(self.x - other.x)

    @classmethod
    def origin(cls): return cls()

    @staticmethod
    def helper(): ...

    @property
    def sum(self): return self.x + self.y

    @cached_property
    def slow(self): return 1

    async def later(self): ...

class Point3(Point):
    __slots__ = ("z",)
    def __init__(self):
        self.z = 1
        self.w: int = 2
        other = self.x

    def raise_it(self): return self.distance(Point())
'''


@pytest.fixture
def image() -> Iterator[Interpreter]:
    before = sys.modules["__main__"]
    image = Interpreter()
    image.handle("evaluate", {"expression": CODE})
    yield image
    image.close()
    sys.modules["__main__"] = before


def ask(image: Interpreter, op: str, **arguments: Any) -> Any:
    return image.handle(op, arguments)


def refusal(image: Interpreter, op: str, **arguments: Any) -> str:
    with pytest.raises(InspectionError) as caught:
        image.handle(op, arguments)
    return str(caught.value)


def test_class_details_list_fields_and_methods(image: Interpreter) -> None:
    response = ask(image, "class_details", className="Point")
    assert response["name"] == "Point"
    assert response["qualifiedName"] == "__main__.Point"
    assert response["superclass"] == "object"
    assert response["doc"] == "A place.\n\nOn a plane."
    assert response["subclasses"] == ["Point3"]
    assert response["instanceVariables"] == ["x", "y"]
    fields = {field["name"]: field for field in response["fields"]}
    assert fields["x"] == {"name": "x", "type": "int", "value": "0"}
    assert fields["y"]["type"] == "int"
    assert fields["unit"] == {"name": "unit", "type": "str", "value": "'m'"}
    methods = {method["name"]: method for method in response["methods"]}
    assert methods["distance"]["signature"] == "(self, other: 'Point') -> float"
    assert methods["distance"]["summary"] == "How far it is."
    kinds = {name: methods[name]["kind"] for name in ("distance", "origin", "helper", "sum", "slow", "later")}
    assert kinds == {
        "distance": "method",
        "origin": "class",
        "helper": "static",
        "sum": "property",
        "slow": "property",
        "later": "async",
    }
    assert response["methodCount"] == len(response["methods"])


def test_instance_variables_are_found_at_assignments(image: Interpreter) -> None:
    response = ask(image, "class_details", className="Point3")
    assert response["instanceVariables"] == ["z", "w"]
    assert response["mro"] == ["Point3", "Point", "object"]


@pytest.mark.parametrize("name", ["int", "object", "type", "json.JSONDecoder", "json.decoder.JSONDecoder", "dict"])
def test_classes_of_python_are_found_by_name(image: Interpreter, name: str) -> None:
    assert ask(image, "class_details", className=name)["name"] == name.rpartition(".")[2]


def test_short_name_is_enough_if_there_is_one(image: Interpreter) -> None:
    ask(image, "evaluate", expression="import json.decoder")
    assert ask(image, "class_details", className="JSONDecodeError")["module"] == "json.decoder"


@pytest.mark.parametrize(
    "name, words",
    [
        ("Pont", "Did you mean Point"),
        ("json.Nothing", "Unknown class"),
        ("no_such_package.Thing", "Unknown class"),
        ("print", "is not a class"),
        ("", "is not the name of a class"),
        ("a b", "is not the name of a class"),
        ("__import__('os')", "is not the name of a class"),
        ("x" * 1000, "is not the name of a class"),
    ],
)
def test_unknown_class_error_suggests_names(image: Interpreter, name: str, words: str) -> None:
    assert words in refusal(image, "class_details", className=name)


def test_name_that_several_classes_have_is_requested_in_full(image: Interpreter) -> None:
    ask(
        image, "evaluate", expression="import tarfile, shutil, email.errors, http.client, socket, ssl, json, subprocess"
    )
    ask(image, "evaluate", expression="import concurrent.futures, queue, asyncio.queues")
    assert "is ambiguous" in refusal(image, "class_details", className="LifoQueue")


def test_source_of_a_method_is_its_source(image: Interpreter) -> None:
    response = ask(image, "method_source", className="Point3", selector="distance")
    assert response["definedIn"] == "Point"
    assert response["line"] == 15
    assert response["source"].splitlines()[:2] == [
        'def distance(self, other: "Point") -> float:',
        '    """How far it is."""',
    ]
    assert ask(image, "method_source", className="Point", selector="sum")["source"].startswith("@property")
    assert "def decode" in ask(image, "method_source", className="json.JSONDecoder", selector="decode")["source"]


def test_unavailable_source_is_rejected_with_a_reason(image: Interpreter) -> None:
    assert "implemented in C" in refusal(image, "method_source", className="str", selector="upper")
    assert "Did you mean distance" in refusal(image, "method_source", className="Point", selector="distanse")
    assert "not a method" in refusal(image, "method_source", className="Point", selector="unit")


def test_methods_are_found_by_a_part_or_a_pattern(image: Interpreter) -> None:
    def names(**asked: Any) -> list[str]:
        return [
            f"{method['className']}.{method['selector']}" for method in ask(image, "search_methods", **asked)["methods"]
        ]

    assert names(pattern="DIST", className="Point") == ["Point.distance"]
    assert names(pattern="dist", className="Point3") == []
    assert names(pattern="dist", className="Point3", includeSuper=True) == ["Point.distance"]
    assert names(pattern="raise_*", className="Point3") == ["Point3.raise_it"]
    assert "Point.distance" in names(pattern="distance")
    assert names(pattern="[", className="Point") == []


def test_number_of_search_results_is_limited(image: Interpreter) -> None:
    response = ask(image, "search_methods", pattern="__init__")
    assert len(response["methods"]) <= 200 < response["total"]


def test_classes_of_a_package_are_listed_without_importing_it_all(image: Interpreter) -> None:
    names = {one["qualifiedName"] for one in ask(image, "list_classes", package="xml")["classes"]}
    assert {"xml.dom.minidom.Document", "xml.sax.handler.ContentHandler"} <= names
    own = [one["name"] for one in ask(image, "list_classes", package="__main__")["classes"]]
    assert own == ["Point", "Point3"]


@pytest.mark.parametrize("name", ["no_such_package", "json.nothing", "", "../etc", "a b"])
def test_missing_package_is_rejected(image: Interpreter, name: str) -> None:
    if name:
        assert name in refusal(image, "list_classes", package=name)
    else:
        assert ask(image, "list_classes", package=name)["package"] == ""


def test_packages_are_installed_or_standard(image: Interpreter) -> None:
    results = {package["name"]: package for package in ask(image, "list_packages")["packages"]}
    assert results["json"] == {"name": "json", "kind": "standard"}
    assert results["msgspec"]["kind"] == "installed"
    assert results["msgspec"]["version"]
    some = [package["name"] for package in ask(image, "list_packages", pattern="msg*")["packages"]]
    assert "msgspec" in some
    assert "json" not in some


def test_inspect_object_lists_attributes_and_items(image: Interpreter) -> None:
    response = ask(image, "inspect_object", expression="Point(3, 4)")
    assert (response["type"], response["module"], response["repr"]) == ("Point", "__main__", "Point(x=3, y=4)")
    assert response["attributes"] == [
        {"name": "x", "type": "int", "repr": "3"},
        {"name": "y", "type": "int", "repr": "4"},
    ]
    assert "distance" in response["methods"]
    response = ask(image, "inspect_object", expression="{'a': [1], 2: None}")
    assert response["length"] == 2
    assert response["items"] == [
        {"name": "'a'", "type": "list", "repr": "[1]"},
        {"name": "2", "type": "NoneType", "repr": "None"},
    ]
    assert ask(image, "inspect_object", expression="lambda a, *, b=1: 0")["signature"] == "(a, *, b=1)"
    assert len(ask(image, "inspect_object", expression="list(range(1000))")["items"]) == 50


def test_methods_properties_and_data_are_distinguished(image: Interpreter) -> None:
    image.evaluate(
        "import functools, enum\n"
        "class Tool:\n"
        "    sizes = [1, 2]\n    factory = functools.partial(int, base=2)\n    kind = int\n    owner: str = 'us'\n"
        "    def use(self): ...\n    async def wait(self): ...\n"
        "    @staticmethod\n    def check(): ...\n    @classmethod\n    def make(cls): ...\n"
        "    @functools.lru_cache\n    def slow(self): ...\n    half = functools.partialmethod(use)\n"
        "    @functools.singledispatchmethod\n    def show(self, it): ...\n    count = len\n"
        "    @property\n    def size(self): raise RuntimeError\n"
        "    @functools.cached_property\n    def area(self): raise RuntimeError\n"
        "class Sub(Tool):\n    __slots__ = ('grip',)\n    sizes = ()\n"
        "sub = Sub(); sub.grip = 3; sub.owner = 'you'"
    )
    result = image.inspect_object("sub")
    assert result["methods"] == ["check", "count", "half", "make", "show", "slow", "use", "wait"]
    assert result["properties"] == ["area", "size"]
    assert [(item["name"], item["repr"]) for item in result["classAttributes"]] == [
        ("factory", "functools.partial(<class 'int'>, base=2)"),
        ("kind", "<class 'int'>"),
        ("sizes", "()"),
    ]
    assert {item["name"]: item["repr"] for item in result["attributes"]} == {"grip": "3", "owner": "'you'"}
    result = image.inspect_object("Sub")
    assert [item["name"] for item in result["attributes"]] == ["sizes"]
    assert [item["name"] for item in result["classAttributes"]] == ["factory", "kind", "owner"]
    assert "use" in result["methods"]
    assert "mro" not in result["methods"]
    listed = {item["name"] for item in image.handle("class_details", {"className": "Tool"})["methods"]}
    assert listed == {"check", "count", "half", "make", "show", "slow", "use", "wait", "size", "area"}


@pytest.mark.parametrize(
    "expression, member, where",
    [("1j", "real", "properties"), ("slice(1)", "start", "properties"), ("[]", "append", "methods")],
)
def test_objects_of_c_are_reported_alike(image: Interpreter, expression: str, member: str, where: str) -> None:
    result = image.inspect_object(expression)
    assert [key for key in ("methods", "properties", "classAttributes") if member in str(result[key])] == [where]


def test_object_with_failing_attribute_access_is_inspected(image: Interpreter) -> None:
    code = "class A:\n  def __init__(self): self.x = 1\n  def __getattribute__(self, n): raise ValueError\n"
    ask(image, "evaluate", expression=code + "  def __repr__(self): return 'A'")
    response = ask(image, "inspect_object", expression="A()")
    assert response["attributes"] == [{"name": "x", "type": "int", "repr": "1"}]


def test_statements_cannot_be_inspected(image: Interpreter) -> None:
    assert "not an expression" in refusal(image, "inspect_object", expression="never_run = 1")
    assert "never_run" not in image.namespace
    assert "ZeroDivisionError" in refusal(image, "inspect_object", expression="1/0")


def test_references_are_found_in_the_session_and_in_a_package(image: Interpreter) -> None:
    response = ask(image, "references_to", name="distance")["references"]
    assert [(item["owner"], item["text"]) for item in response] == [
        ("Point3.raise_it", "def raise_it(self): return self.distance(Point())")
    ]
    response = ask(image, "references_to", name="JSONDecoder", package="json")["references"]
    assert any(item["module"] == "json" for item in response)
    assert "expected a Python identifier" in refusal(image, "references_to", name="a.b")


def test_names_are_completed_as_they_begin(image: Interpreter) -> None:
    assert ask(image, "complete", kind="class", typed="Poin")["values"][:2] == ["Point", "Point3"]
    assert "json" in ask(image, "complete", kind="package", typed="js")["values"]
    assert ask(image, "complete", kind="method", typed="dis", className="Point3")["values"] == ["distance"]
    # Also by the name under which a package offers a class of one of its modules.
    assert ask(image, "complete", kind="class", typed="json.JSOND")["values"][0] == "json.JSONDecoder"
    assert "json.decoder.JSONDecoder" in ask(image, "complete", kind="class", typed="json.decoder.jsond")["values"]
    assert ask(image, "complete", kind="class", typed="no_such_module.X") == {"values": [], "total": 0}
    assert "loads" in ask(image, "complete", kind="method", typed="loa", className="json")["values"]
    everything = ask(image, "complete", kind="class", typed="")
    assert len(everything["values"]) == 100 < everything["total"]
    assert not [name for name in everything["values"] if name.startswith("_") or "._" in name]
    assert ask(image, "complete", kind="method", typed="__in", className="Point")["values"][0] == "__init__"


def test_range_longer_than_sys_maxsize_is_inspected(image: Interpreter) -> None:
    result = image.inspect_object("range(10**30)")
    assert "length" not in result
    assert result["items"][0]["repr"] == "0"


def test_class_variables_are_not_instance_variables(image: Interpreter) -> None:
    image.evaluate("import typing\nclass Held:\n    x: int\n    K: typing.ClassVar[int] = 3\n    L: 'ClassVar' = 4")
    response = ask(image, "class_details", className="Held")
    assert response["instanceVariables"] == ["x"]
    assert [field["name"] for field in response["fields"]] == ["x", "K", "L"]
