"""Parse the modules of the packages, once for all tests that read them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

from support.paths import ROOT

# The import packages of this repository, and their folders.
PACKAGES = {path.name: path for path in sorted(ROOT.glob("packages/*/src/*")) if path.is_dir()}
MODULES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


def dotted(path: Path) -> str:
    """Return the name of a module by its file."""
    package = next(folder for folder in PACKAGES.values() if path.is_relative_to(folder))
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    # Trees have no cycles, and the garbage collector would scan all earlier ones repeatedly.
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a module."""
    return list(ast.walk(tree(path)))


def called(call: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
