"""The names we do not use, because they say nothing; and the words the project does not say of itself."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "portico"
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "shared", "core", "base", "manager", "misc", "v2", "new"}
PYTHON = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_and_folders_are_named_for_what_they_do(path: Path) -> None:
    words = {part.removesuffix(".py") for part in path.relative_to(SOURCE).parts}
    assert not words & EMPTY_WORDS


# Not ours to choose: the contract that `portico.contracts` implements has them.
GIVEN_NAMES = {"MCPToolCall", "MCPToolResult", "MCPErrorDetail"}


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(SOURCE)))
def test_classes_are_nouns_without_prefix(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            name = node.name.strip("_")
            prefixed = re.match(r"(MCP|Portico|Base|Abstract)[A-Z]", name)
            assert not prefixed or name in GIVEN_NAMES, f"{path.name}: {node.name}"
            assert not re.search(r"(Manager|Helper|Util|Utils|Impl)$", name), f"{path.name}: {node.name}"


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path.name} has no docstring"


def test_every_public_name_can_be_imported() -> None:
    import portico

    for name in portico.__all__:
        assert getattr(portico, name) is not None


@pytest.mark.parametrize("name", ["portico", "portico.auth", "portico.contracts", "portico.services.live"])
def test_public_names_are_listed_before_they_are_loaded(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for one in package.__all__:
        assert getattr(package, one) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
