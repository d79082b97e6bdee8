"""Where a name is used."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any

from portico.services.live.display import one_line
from portico.services.live.inspect import LONGEST_FILE, MOST_FILES, MOST_FOUND, Json, sources
from portico.services.live.names import InspectionError, Names
from portico.services.live.traces import OWN


def references_to(names: Names, name: str, package: str | None = None) -> Json:
    """Where a name is used: in what this session was given, and in a package, if one is named."""
    if not name.isidentifier():
        raise InspectionError(f"{one_line(name, 60)!r} is not a name.")
    texts = [(key.strip("<>"), "".join(entry[2])) for key, entry in _evaluations()]
    found = [use for where, text in texts for use in _uses(where, _parsed(text), text.splitlines(), name)]
    if package:
        found += islice(_uses_in(names.module(package), package, name), MOST_FOUND)
    return {"name": name, "references": found[:MOST_FOUND], "total": len(found)}


def _evaluations() -> list[tuple[str, Any]]:
    return [(key, entry) for key, entry in linecache.cache.items() if key.startswith(OWN) and len(entry) == 4]


def _parsed(text: str) -> ast.AST:
    try:
        tree: ast.AST = compile(text, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return tree
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _uses_in(module: ModuleType, package: str, name: str) -> Iterator[Json]:
    own = getattr(module, "__file__", None)
    files = [(package, own)] if own and own.endswith(".py") else []
    for where, path in islice([*files, *sources(module, package)], MOST_FILES):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(LONGEST_FILE)
        except (OSError, ValueError):
            continue
        # Most files do not have the word at all, and reading is much cheaper than parsing.
        if name in text:
            yield from _uses(where, _parsed(text), text.splitlines(), name)


def _uses(where: str, tree: ast.AST, lines: list[str], name: str, owner: str = "") -> Iterator[Json]:
    for node in ast.iter_child_nodes(tree):
        inner = owner
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{owner}.{node.name}" if owner else node.name
        elif _is_use(node, name):
            line = node.lineno  # type: ignore[attr-defined]
            text = lines[line - 1].strip() if line <= len(lines) else ""
            yield {"module": where, "owner": owner, "line": line, "text": one_line(text)}
        yield from _uses(where, node, lines, name, inner)


def _is_use(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name
    return isinstance(node, ast.Attribute) and node.attr == name
