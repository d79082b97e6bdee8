"""Imports point downwards, as docs/explanation/architecture.md states."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support import sources

# By the beginning of a module's name. Imports of another part point to a lower floor.
FLOORS = {
    "_lazy": -1,
    "caching": -1,
    "text": -1,
    "tokens": -1,
    "protocol.json_depth": -1,
    "rpc.supervision": -1,
    "protocol": 0,
    "protocol.translation": 0.5,
    "jsonschema": 0,
    "settings_file": 0.5,
    "_options": 1,
    "definitions": 1,
    "safe_open": 1,
    "frontmatter": 1,
    "rpc": 1,
    "search": 1,
    "screening": 1,
    "store": 1,
    "plugins": 1,
    "audit": 2,
    "auth": 2,
    "telemetry": 2,
    "rpc.handshake": 2,
    "transports": 3,
    "secret_references": 3.1,
    "auth.settings": 3.2,
    "transports.http_server.workers": 3.5,
    "server.providers.openapi": 3.6,
    "server": 4,
    "server.providers.openapi.tools": 4,
    "compat": 5,
    # The handlers in front of a server: the rest of `search` is used below it.
    "search.auto_search": 4.3,
    "search.lazy_handler": 4.3,
    "search.signatures": 4.3,
    "search.tool_search": 4.3,
    "search.tool_search_base": 4.3,
    "search.searchable_tools": 4.3,
    "client": 4.4,
    "errors": 4.5,
    "extend": 4.5,
    "types": 4.5,
    "compat.port": 5,
    "compat.fastmcp.config_file": 2.9,
    "testing": 5.5,
    "cli": 6,
    "__main__": 7,
}

# What the wire may use: nothing that waits, reads a clock or opens anything.
IMPURE = {"asyncio", "socket", "threading", "time", "datetime.now", "os", "io", "subprocess", "selectors", "random"}

SDK = sources.PACKAGES["portico"]
MODULES = [path for path in sources.MODULES if path != SDK / "__init__.py"]
NAMES = {sources.dotted(path) for path in MODULES}


def part(module: str) -> str:
    """Return the part of the SDK that a module belongs to: the longest beginning of its name that has a floor."""
    names = module.split(".")[1:]
    while names and ".".join(names) not in FLOORS:
        names.pop()
    assert names, f"{module} has no floor"
    return ".".join(names)


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
    """Yield the imports of a module that do not point down."""
    here, tree = part(sources.dotted(path)), sources.tree(path)
    for name, line in (*imports(tree), *named(tree)):
        if not name.startswith("portico.") or name.split(".")[1] == here.partition(".")[0]:
            continue
        if FLOORS[part(name)] >= FLOORS[here]:
            yield f"{path}:{line} imports {name}, which is not below {here}"


def test_imports_point_down() -> None:
    assert not [wrong for path in MODULES if path.is_relative_to(SDK) for wrong in upward(path)]


def loaded(path: Path) -> Iterator[str]:
    for node in sources.nodes(path):
        if isinstance(node, ast.Call) and sources.called(node).endswith("import_module"):
            ours = [name for argument in node.args for name, _ in named(ast.Expression(argument))]
            if ours:
                yield f"{path}:{node.lineno} imports {ours}: use portico._lazy.load_module"


def test_our_own_modules_are_loaded_by_name_in_one_place() -> None:
    assert not [wrong for path in MODULES for wrong in loaded(path)]


def lazy(path: Path) -> Iterator[str]:
    """Yield the LazyModules that type checkers are not shown under the same name."""
    for node in sources.nodes(path):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            output = {
                (alias.asname or alias.name, f"{item.module}.{alias.name}")
                for item in node.body
                if isinstance(item, ast.ImportFrom)
                for alias in item.names
            }
            made = [item for item in node.orelse if isinstance(item, ast.Assign) and "LazyModule" in ast.dump(item)]
            for item in made:
                module = ast.literal_eval(item.value.args[0])  # type: ignore[attr-defined]
                if (ast.unparse(item.targets[0]), module) not in output:
                    yield f"{path}:{item.lineno} is not imported under TYPE_CHECKING as well"


def test_type_checkers_see_lazily_loaded_names() -> None:
    assert not [wrong for path in MODULES for wrong in lazy(path)]


# Modules that import each other, also for type checkers, inside functions or on first use. Run-time cycles fail anyway.
MAX_CYCLE_MODULES = 10


def imported_modules(path: Path) -> set[str]:
    """Return our modules that a module imports at any time; lazy modules are imported for type checkers as well."""
    result: set[str] = set()
    for node in sources.nodes(path):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES
            result |= submodules or {node.module}
    return result & NAMES


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [*edges[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(edges[name])
    return seen


def test_import_cycles_stay_small() -> None:
    edges = {sources.dotted(path): imported_modules(path) for path in MODULES}
    after = {name: reachable(name, edges) for name in edges}
    cycles = {frozenset(other for other in after[name] if name in after[other]) for name in edges}
    largest = max(cycles, key=len)
    assert len(largest) <= MAX_CYCLE_MODULES, sorted(largest)


def test_wire_is_pure() -> None:
    pure = [path for path in MODULES if path.is_relative_to(SDK) and FLOORS[part(sources.dotted(path))] == 0]
    used = {path.name: {name for name, _ in imports(sources.tree(path))} & IMPURE for path in pure}
    assert not {name: found for name, found in used.items() if found}


def test_importing_portico_imports_nothing_else() -> None:
    tree = sources.tree(SDK / "__init__.py")
    assert [name for name, _ in imports(tree) if name.startswith("portico.")] == ["portico._lazy"]
