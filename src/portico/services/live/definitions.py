"""The text of what a session has defined, found where it was given, and put into other text."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator
from typing import Any

from portico.services.live.display import OWN

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def evaluations() -> list[tuple[str, Any]]:
    """What the session was given, oldest first: under which name, and its entry in the cache of lines."""
    return [(key, entry) for key, entry in linecache.cache.items() if key.startswith(OWN) and len(entry) == 4]


def parsed(text: str) -> ast.Module:
    """What a text says; nothing if it is not Python."""
    try:
        tree: ast.Module = compile(text, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return tree
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def statements() -> dict[str, str]:
    """The newest statement that defines each function, class and lambda of the session."""
    found: dict[str, str] = {}
    for _, entry in evaluations():
        lines = entry[2]
        for node in parsed("".join(lines)).body:
            for name in _defined(node):
                # Oldest first, also if it was defined before: what it needs stands before it.
                found.pop(name, None)
                found[name] = textwrap.dedent("".join(lines[first_line(node) - 1 : node.end_lineno]))
    return found


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        yield from (one.id for one in node.targets if isinstance(one, ast.Name))


def first_line(node: ast.stmt) -> int:
    """With its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def with_method(text: str, class_name: str, method: str) -> str | None:
    """The text of a module in which a class has this method: in the place of the one it had, or at its end. None if
    there is no such class in it."""
    owner = _class(parsed(text), class_name.split("."))
    (new,) = parsed(method).body
    if owner is None or not isinstance(new, FUNCTIONS):
        return None
    lines = text.splitlines(keepends=True)
    margin = " " * owner.body[-1].col_offset
    written = _indented(method.strip("\n") + "\n", margin)
    old = _same(owner, new)
    if old is None:
        end = owner.body[-1].end_lineno or owner.lineno
        if not lines[end - 1].endswith("\n"):
            lines[end - 1] += "\n"
        lines[end:end] = ["\n", *written]
    else:
        lines[first_line(old) - 1 : old.end_lineno] = written
    return "".join(lines)


def _class(tree: ast.AST, path: list[str]) -> ast.ClassDef | None:
    for name in path:
        within = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
        found = next(within, None)
        if found is None:
            return None
        tree = found
    return tree if isinstance(tree, ast.ClassDef) else None


def _same(owner: ast.ClassDef, new: Function) -> Function | None:
    """The function that it replaces: of several with this name, as a property has, the one decorated alike."""
    named = [node for node in owner.body if isinstance(node, FUNCTIONS) and node.name == new.name]
    alike = [node for node in named if _decorators(node) == _decorators(new)]
    return next(reversed(alike or named), None)


def _decorators(node: Function) -> list[str]:
    return [ast.dump(one) for one in node.decorator_list]


def _indented(text: str, margin: str) -> list[str]:
    """Line by line; not within a text of several lines, which is what it is."""
    inside: set[int] = set()
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            inside |= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines(keepends=True)
    return [line if at in inside or not line.strip() else margin + line for at, line in enumerate(lines, 1)]
