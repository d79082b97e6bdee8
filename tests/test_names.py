"""The names we do not use, because they say nothing; and the words the project does not say of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import sources

ROOT = sources.ROOT
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "shared", "core", "misc", "v2", "new"}
PYTHON = sources.MODULES


def test_modules_and_folders_are_named_for_what_they_do() -> None:
    names = map(sources.dotted, PYTHON)
    assert not [name for name in names if set(name.split(".")) & EMPTY_WORDS]


# Not ours to choose: the contract that `portico_services.contracts.api` implements has them, and FastMCP the last.
GIVEN_NAMES = {"MCPToolCall", "MCPToolResult", "MCPErrorDetail", "MCPType"}


def test_classes_are_nouns_without_prefix() -> None:
    for name, homes in _classes().items():
        prefixed = re.match(r"(MCP|Portico|Base|Abstract)[A-Z]", name)
        assert not prefixed or name in GIVEN_NAMES, f"{homes[0]}: {name}"
        assert not re.search(r"(Manager|Helper|Util|Utils|Impl)$", name.rstrip("_")), f"{homes[0]}: {name}"


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in PYTHON if sources.tree(path).body and not ast.get_docstring(sources.tree(path))]
    assert not silent


def test_every_public_name_can_be_imported() -> None:
    import portico

    for name in portico.__all__:
        assert getattr(portico, name) is not None


@pytest.mark.parametrize(
    "name", ["portico", "portico.auth", "portico_services.contracts.api", "portico_services.livepython"]
)
def test_public_names_are_listed_before_they_are_loaded(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for one in package.__all__:
        assert getattr(package, one) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


# What shares a name all the same.
SHARED = {
    # The specification's terms: the message, and what a server offers or a client holds.
    "CallToolResult",
    "Prompt",
    "Resource",
    "Task",
    "Tool",
    # Public names, each of its own package.
    "File",
    "Memory",
    # FastMCP's word for a prefix, and where memories are.
    "Namespace",
}


def _classes() -> dict[str, list[str]]:
    """Every class name, without leading underscores, and the modules that define it."""
    homes: dict[str, list[str]] = {}
    for path in PYTHON:
        if sources.dotted(path).startswith("portico.compat."):
            # Its names are those of other projects.
            continue
        names = {node.name.lstrip("_") for node in sources.nodes(path) if isinstance(node, ast.ClassDef)}
        for name in names:
            homes.setdefault(name, []).append(sources.dotted(path))
    return homes


def test_a_class_name_stands_in_one_module() -> None:
    twice = {name: homes for name, homes in _classes().items() if len(homes) > 1 and name not in SHARED}
    assert not twice


# What takes a time, and at which place; it may always be called `timeout=`, too.
WAITS = {"timeout": 0, "wait": 0, "wait_for": 1, "sleep": 0, "call_later": 0, "settimeout": 0}


def _times(path: Path) -> Iterator[ast.expr]:
    """Every expression that says how long to wait."""
    for node in sources.nodes(path):
        if isinstance(node, ast.Call):
            place = WAITS.get(sources.called(node))
            if place is not None and len(node.args) > place:
                yield node.args[place]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "timeout")


def test_times_say_their_unit() -> None:
    unclear = {
        f"{sources.dotted(path)}: {node.id}"
        for path in PYTHON
        for time in _times(path)
        for node in ast.walk(time)
        if isinstance(node, ast.Name) and node.id.isupper() and not node.id.endswith(("_SECONDS", "_MS"))
    }
    assert not unclear
