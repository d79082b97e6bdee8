"""Sizes, functions and cycles stated in docs/explanation/architecture.md match the code."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from graphlib import TopologicalSorter
from types import ModuleType

from support import sources
from support.paths import ROOT

SERVICES = sources.PACKAGES["portico_services"]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
# The page is a snapshot: sizes change with every commit.
TOLERANCE = 0.05


@cache
def load_counts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("counts", ROOT / "docs" / "counts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documented_counts_match_the_code() -> None:
    module = load_counts()
    written, actual = module.read_table(PAGE), module.counts()
    assert written.keys() == actual.keys()
    for name, value in actual.items():
        now, message = (int(text.split(" ")[0].replace(",", "")) for text in (value, written[name]))
        assert abs(now - message) <= TOLERANCE * now, f"{name}: {value}; run python docs/counts.py"


def test_public_interface_is_within_its_budget() -> None:
    module = load_counts()
    counts = module.counts()
    assert int(counts["names in `portico`"]) <= 30
    assert int(counts["names in `portico.extend`"]) <= 81
    assert int(counts["parameters of `Server`"]) <= 20
    assert int(counts["optional members of a Handler"]) <= 6


def test_steps_of_a_recall_exist() -> None:
    steps = re.findall(r"^\| .+ \| `(\w+)` \| `(memory/[\w/]+\.py)` \|$", PAGE, re.MULTILINE)
    assert len(steps) >= 10
    for function, file in steps:
        defined = {node.name for node in sources.nodes(SERVICES / file) if hasattr(node, "name")}
        assert function in defined, f"{function} is not in {file}"


def _runtime_imports(node: ast.AST) -> set[str]:
    """Return the modules imported when a module is loaded: not in functions, not for type checkers."""
    result: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.module is not None:
            result |= {child.module, *(f"{child.module}.{alias.name}" for alias in child.names)}
        elif isinstance(child, ast.Import):
            result |= {alias.name for alias in child.names}
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for line in child.orelse:
                result |= _runtime_imports(ast.Module([line], []))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            result |= _runtime_imports(child)
    return result


def test_imports_have_no_cycles_at_run_time() -> None:
    modules = {sources.dotted(path): path for path in sources.MODULES}
    graph = {}
    for name, path in modules.items():
        imported = _runtime_imports(sources.tree(path)) & modules.keys() - {name}
        # `from package import module` needs the module; the package itself is loaded either way.
        graph[name] = {other for other in imported if not any(more.startswith(f"{other}.") for more in imported)}
    TopologicalSorter(graph).prepare()
