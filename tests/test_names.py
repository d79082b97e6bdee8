"""Names: modules have docstrings, class names are unique, times have units, public names exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from support import sources

PYTHON = sources.MODULES
EMPTY_WORDS = {"utils", "util", "helpers", "misc"}


def test_module_names_state_a_subject() -> None:
    names = map(sources.dotted, PYTHON)
    assert not [name for name in names if set(name.split(".")) & EMPTY_WORDS]


def test_every_module_has_a_docstring() -> None:
    undocumented = [path for path in PYTHON if sources.tree(path).body and not ast.get_docstring(sources.tree(path))]
    assert not undocumented


def test_every_public_name_can_be_imported() -> None:
    import portico

    for name in portico.__all__:
        assert getattr(portico, name) is not None


@pytest.mark.parametrize(
    "name", ["portico", "portico.auth", "portico_services.contracts.api", "portico_services.livepython"]
)
def test_lazy_packages_list_their_public_names(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for public_name in package.__all__:
        assert getattr(package, public_name) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


# Class names that may occur in several modules.
SHARED = {
    # Terms of the specification: the message, the definition in a server, and the object in a client.
    "CallToolResult",
    "Prompt",
    "Resource",
    "Task",
    "Tool",
    # Public names of different packages.
    "File",
    "Memory",
    # FastMCP's term for a prefix, and the scope of a memory.
    "Namespace",
}


def _classes() -> dict[str, list[str]]:
    """Return every class name, without leading underscores, and the modules that define it."""
    modules: dict[str, list[str]] = {}
    for path in PYTHON:
        if sources.dotted(path).startswith("portico.compat."):
            # Named after the classes of other projects.
            continue
        names = {node.name.lstrip("_") for node in sources.nodes(path) if isinstance(node, ast.ClassDef)}
        for name in names:
            modules.setdefault(name, []).append(sources.dotted(path))
    return modules


def test_class_names_are_unique() -> None:
    repeated = {name: modules for name, modules in _classes().items() if len(modules) > 1 and name not in SHARED}
    assert not repeated


# Functions that take a time, with its position. All of them also accept `timeout=`.
WAITS = {"timeout": 0, "wait": 0, "wait_for": 1, "sleep": 0, "call_later": 0, "settimeout": 0}


def _times(path: Path) -> Iterator[ast.expr]:
    """Yield every expression for a time to wait."""
    for node in sources.nodes(path):
        if isinstance(node, ast.Call):
            place = WAITS.get(sources.called(node))
            if place is not None and len(node.args) > place:
                yield node.args[place]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "timeout")


def test_time_constants_state_their_unit() -> None:
    unclear = {
        f"{sources.dotted(path)}: {node.id}"
        for path in PYTHON
        for time in _times(path)
        for node in ast.walk(time)
        if isinstance(node, ast.Name) and node.id.isupper() and not node.id.endswith(("_SECONDS", "_MS"))
    }
    assert not unclear
