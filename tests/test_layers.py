"""Imports point down, and siblings do not know each other: docs/architecture.md, held."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sources

SOURCE = Path(__file__).parent.parent / "src" / "portico"

FLOORS = {
    "_lazy": -1,
    "json_depth": -1,
    "supervision": -1,
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
    "telemetry": 2,
    "legacy": 2,
    "transport": 3,
    "fleet": 3.5,
    "openapi": 3.6,
    "server": 4,
    "access": 4.1,
    "gateway": 4.2,
    "faces": 4.3,
    "client": 4.4,
    "errors": 4.5,
    "extend": 4.5,
    "services": 5,
    "porting": 5,
    "recording": 5,
    "console": 5.5,
    "testing": 5.5,
    "contracts": 6,
    "cli": 6,
    "__main__": 7,
}

# What the wire may use: nothing that waits, reads a clock or opens anything.
IMPURE = {"asyncio", "socket", "threading", "time", "datetime.now", "os", "io", "subprocess", "selectors", "random"}

# What it loads needs packages that may not be there, and whether they are is asked here.
WITHOUT_TYPES = {SOURCE / "cli" / "port.py"}

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
        elif not (isinstance(node, ast.Call) and sources.called(node) == "getLogger"):
            yield from named(node)


def upward(path: Path) -> Iterator[str]:
    """The imports of a module that do not point down."""
    here, tree = folder(path), sources.tree(path)
    for name, line in (*imports(tree), *named(tree)):
        parts = name.split(".")
        if parts[0] == "portico" and len(parts) > 1 and parts[1] != here and FLOORS[parts[1]] >= FLOORS[here]:
            yield f"{path}:{line} imports {name}, which is not below {here}"


def test_imports_point_down() -> None:
    assert not [wrong for path in MODULES for wrong in upward(path)]


def loaded(path: Path) -> Iterator[str]:
    for node in sources.nodes(path):
        if isinstance(node, ast.Call) and sources.called(node).endswith("import_module"):
            ours = [name for argument in node.args for name, _ in named(ast.Expression(argument))]
            if ours:
                yield f"{path}:{node.lineno} imports {ours}: use portico._lazy.load_module"


def test_our_own_modules_are_loaded_by_name_in_one_place() -> None:
    assert not [wrong for path in MODULES for wrong in loaded(path)]


def lazy(path: Path) -> Iterator[str]:
    """The LazyModules that type checkers are not shown under the same name; and modules loaded by a written name."""
    for node in sources.nodes(path):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            shown = {
                (alias.asname or alias.name, f"{one.module}.{alias.name}")
                for one in node.body
                if isinstance(one, ast.ImportFrom)
                for alias in one.names
            }
            made = [one for one in node.orelse if isinstance(one, ast.Assign) and "LazyModule" in ast.dump(one)]
            for one in made:
                module = ast.literal_eval(one.value.args[0])  # type: ignore[attr-defined]
                if (ast.unparse(one.targets[0]), module) not in shown:
                    yield f"{path}:{one.lineno} is not imported under TYPE_CHECKING as well"
        elif isinstance(node, ast.Call) and sources.called(node) == "load_module" and path not in WITHOUT_TYPES:
            yield from (f"{path}:{line} loads {name} unseen: use LazyModule" for name, line in named(node))


def test_type_checkers_see_what_is_loaded_later() -> None:
    assert not [wrong for path in MODULES for wrong in lazy(path)]


def late(path: Path) -> Iterator[str]:
    for node in sources.nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ours = [name for name, _ in imports(node) if name.startswith("portico")]
            if ours:
                yield f"{path}:{node.lineno} imports {ours} inside {node.name}"


def test_our_own_imports_stand_at_the_top() -> None:
    assert not [wrong for path in MODULES for wrong in late(path)]


def test_the_wire_is_pure() -> None:
    pure = [path for path in MODULES if FLOORS[folder(path)] == 0]
    used = {path.name: {name for name, _ in imports(sources.tree(path))} & IMPURE for path in pure}
    assert not {name: found for name, found in used.items() if found}


def test_importing_portico_imports_nothing_else() -> None:
    tree = sources.tree(SOURCE / "__init__.py")
    assert [name for name, _ in imports(tree) if name.startswith("portico.")] == ["portico._lazy"]
