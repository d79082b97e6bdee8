"""Select the tests of the SDK that can run where only `portico` is installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from support.paths import ROOT, SUPPORT

TESTS = ROOT / "packages" / "portico" / "tests"
# The protocol core and the server without its transports: about half a minute.
FOLDERS = ("definitions", "protocol", "rpc", "server/components", "server/providers", "server/registry")
# Validation against a schema that is not ours needs the extra `schema`.
WITHOUT_EXTRAS = "not foreign_schema"
# Installed next to `portico` to run its tests; `_pytest` and `pluggy` come with them.
TOOLS = frozenset({"hypothesis", "pytest", "pytest_asyncio", "typing_extensions"})
AVAILABLE = frozenset({"portico", "msgspec", "httptools", "uvloop", *TOOLS, *sys.stdlib_module_names})


def find_test_files() -> list[Path]:
    """Return the test files in FOLDERS that import neither an extra nor another package, directly or in a helper."""
    files = [path for folder in FOLDERS for path in sorted((TESTS / folder).glob("**/test_*.py"))]
    return [path for path in files if "openapi" not in path.parts and _imports_only_available(path)]


@cache
def _imports_only_available(path: Path) -> bool:
    folders = [parent for parent in path.parents if parent.is_relative_to(TESTS)]
    files = [path, *(folder / "conftest.py" for folder in folders if (folder / "conftest.py").exists())]
    return all(_is_available(name) for file in files for name in _imported(file))


def _is_available(name: str) -> bool:
    if name.partition(".")[0] != "support":
        return name.partition(".")[0] in AVAILABLE
    file = SUPPORT.parent.joinpath(*name.split(".")).with_suffix(".py")
    return not file.exists() or all(_is_available(item) for item in _imported(file, deep=False))


@cache
def _imported(path: Path, deep: bool = True) -> frozenset[str]:
    """Return the modules that a file imports, with `deep` also in its functions."""
    tree = ast.parse(path.read_text())
    return frozenset(_imports(ast.walk(tree) if deep else tree.body))


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            if node.module == "support":
                yield from (f"support.{alias.name}" for alias in node.names)
