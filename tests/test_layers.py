"""Imports point down, and siblings do not know each other: docs/architecture.md, held."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "portico"

FLOORS = {
    "_lazy": -1,
    "wire": 0,
    "schema": 0,
    "_options": 1,
    "beneath": 1,
    "finding": 1,
    "frontmatter": 1,
    "rpc": 1,
    "screening": 1,
    "store": 1,
    "auth": 2,
    "legacy": 2,
    "transport": 3,
    "fleet": 3.5,
    "server": 4,
    "access": 4.1,
    "gateway": 4.2,
    "faces": 4.3,
    "client": 4.4,
    "extend": 4.5,
    "services": 5,
    "porting": 5,
    "console": 5,
    "contracts": 6,
    "cli": 6,
    "__main__": 7,
}

# What the wire may use: nothing that waits, reads a clock or opens anything.
IMPURE = {"asyncio", "socket", "threading", "time", "datetime.now", "os", "io", "subprocess", "selectors", "random"}

MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def folder(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


def imports(tree: ast.AST, *, typing_too: bool = False) -> Iterator[tuple[str, int]]:
    """Every module that is imported, and the line; what only type checkers see is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, node.lineno
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        else:
            yield from imports(node)


def named(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module of ours that a text names, and the line: it will be imported by that name. Loggers have such names
    too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.value, node.lineno
        elif not (isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"):
            yield from named(node)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    here = folder(path)
    tree = ast.parse(path.read_text())
    for name, line in (*imports(tree), *named(tree)):
        parts = name.split(".")
        if parts[0] != "portico" or len(parts) < 2 or parts[1] == here:
            continue
        there = parts[1]
        assert FLOORS[there] < FLOORS[here], f"{path.name}:{line} imports {name}, which is not below {here}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_our_own_modules_are_loaded_by_name_in_one_place(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            ours = [name for argument in node.args for name, _ in named(ast.Expression(argument))]
            assert not ours, f"{path.name}:{node.lineno} imports {ours}: use portico._lazy.load_module"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_our_own_imports_stand_at_the_top(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            late = [name for name, _ in imports(node) if name.startswith("portico")]
            assert not late, f"{path.name}:{node.lineno} imports {late} inside {node.name}"


@pytest.mark.parametrize("path", [p for p in MODULES if FLOORS[folder(p)] == 0], ids=lambda path: path.name)
def test_the_wire_is_pure(path: Path) -> None:
    found = {name for name, _ in imports(ast.parse(path.read_text()))}
    assert not found & IMPURE, f"{path.name} uses {found & IMPURE}"


def test_importing_portico_imports_nothing_else() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    assert [name for name, _ in imports(tree) if name.startswith("portico.")] == ["portico._lazy"]
