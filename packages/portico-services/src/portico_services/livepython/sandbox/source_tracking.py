"""Source of a session's definitions: where it was evaluated, and how to merge it into other source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from inspect import getattr_static
from types import FunctionType
from typing import Any, NamedTuple

from portico_services.livepython.sandbox.display import EVALUATION_FILENAME_PREFIX, class_attribute

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
# Limit for unwrapping decorated functions.
MAX_UNWRAP_DEPTH = 20
# The failing line of each failed evaluation: statements from there on were not executed.
_failed: dict[str, int] = {}


class SourceStatement(NamedTuple):
    """A top-level statement of evaluated code."""

    # Ordered by evaluation.
    number: int
    first: int
    file: str
    last: int
    text: str

    @property
    def was_executed(self) -> bool:
        return self.last < _failed.get(self.file, self.last + 1)

    def contains(self, location: tuple[str, int]) -> bool:
        return location[0] == self.file and self.first <= location[1] <= self.last


def list_evaluations() -> list[tuple[str, Any]]:
    """Return the evaluations of the session, oldest first, as file name and linecache entry."""
    return [
        (key, entry)
        for key, entry in linecache.cache.items()
        # linecache also holds lazy entries of length one for modules that were never read.
        if key.startswith(EVALUATION_FILENAME_PREFIX) and len(entry) == 4
    ]


def parse_or_none(text: str) -> ast.Module:
    """Parse source code; return an empty module if it is not valid Python."""
    try:
        tree: ast.Module = compile(text, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return tree
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def register_source(file: str, source: str) -> None:
    """Register evaluated source, so that tracebacks and introspection find it."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    _failed.pop(file, None)


def register_failure(file: str, failure: BaseException) -> None:
    """Record where an evaluation failed."""
    at = failure.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != file:
        at = at.tb_next
    # 0 marks a failure before the first line, such as a syntax error: no statement was executed.
    _failed[file] = 0 if at is None else at.tb_lineno


def defining_statements() -> dict[str, list[SourceStatement]]:
    """Return the statements that define functions, classes and lambdas, by name, oldest first."""
    result: dict[str, list[SourceStatement]] = {}
    for number, (file, entry) in enumerate(list_evaluations()):
        for node in parse_or_none("".join(entry[2])).body:
            for name in _defined_names(node):
                result.setdefault(name, []).append(_parse_statement(number, file, entry[2], node))
    return result


def _parse_statement(number: int, file: str, lines: list[str], node: ast.stmt) -> SourceStatement:
    first, last = first_line(node), node.end_lineno or node.lineno
    text: str | None = "".join(lines[first - 1 : last])
    if isinstance(node, ast.Assign | ast.AnnAssign):
        # Other statements may be on the same line.
        text = ast.get_source_segment("".join(lines), node)
    return SourceStatement(number, first, file, last, text or "")


def _defined_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (*FUNCTION_NODES, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def find_origin(value: Any, statements: list[SourceStatement]) -> SourceStatement | None:
    """Return the statement that created a value, by the location of its code.

    Without a location, return the newest statement that was executed.
    """
    if issubclass(type(value), type):
        locations = [_definition_location(item) for item in list(class_attribute(value, "__dict__").values())]
    else:
        locations = [_definition_location(value)]
    origins = [
        item for item in statements if any(location is not None and item.contains(location) for location in locations)
    ]
    if not origins and (issubclass(type(value), type) or locations == [None]):
        origins = [item for item in statements if item.was_executed]
    return origins[-1] if origins else None


def _definition_location(value: Any) -> tuple[str, int] | None:
    """Return where a function is defined, without its wrappers, or None if it is not one. Runs no foreign code."""
    for _ in range(MAX_UNWRAP_DEPTH):
        if type(value) is property:
            value = value.fget
        elif type(value) in (staticmethod, classmethod):
            value = value.__func__
        else:
            value = getattr_static(value, "__wrapped__", value)
    return (value.__code__.co_filename, value.__code__.co_firstlineno) if type(value) is FunctionType else None


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, including its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def insert_method(text: str, class_name: str, method: str) -> str | None:
    """Return the source of a module with the method replaced in its class, or appended to the class.

    Return None if the module does not contain the class.
    """
    owner = _class(parse_or_none(text), class_name.split("."))
    (new,) = parse_or_none(method).body
    if owner is None or not isinstance(new, FUNCTION_NODES):
        return None
    lines = text.splitlines(keepends=True)
    # The indentation of the existing body, which need not be four spaces.
    margin = " " * owner.body[-1].col_offset
    written = _indent_lines(method.strip("\n") + "\n", margin)
    old = _find_replaced(owner, new)
    if old is None:
        end = owner.body[-1].end_lineno or owner.lineno
        if not lines[end - 1].endswith("\n"):
            lines[end - 1] += "\n"
        lines[end:end] = ["\n", *written]
    else:
        lines[first_line(old) - 1 : old.end_lineno] = written
    return "".join(lines)


def with_function(text: str, function: str) -> str | None:
    """Return the source of a module with the top-level function replaced, or appended."""
    (new,) = parse_or_none(function).body
    if not isinstance(new, FUNCTION_NODES):
        return None
    lines = text.splitlines(keepends=True)
    written = (function.strip("\n") + "\n").splitlines(keepends=True)
    named = [node for node in parse_or_none(text).body if isinstance(node, FUNCTION_NODES) and node.name == new.name]
    if not named:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        return "".join([*lines, *(["\n", "\n"] if lines else []), *written])
    lines[first_line(named[-1]) - 1 : named[-1].end_lineno] = written
    return "".join(lines)


def _class(tree: ast.AST, path: list[str]) -> ast.ClassDef | None:
    for name in path:
        within = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
        result = next(within, None)
        if result is None:
            return None
        tree = result
    return tree if isinstance(tree, ast.ClassDef) else None


def _find_replaced(owner: ast.ClassDef, new: Function) -> Function | None:
    """Return the function to replace: of several with this name, as in a property, the one with equal decorators."""
    named = [node for node in owner.body if isinstance(node, FUNCTION_NODES) and node.name == new.name]
    same_decorators = [node for node in named if _decorators(node) == _decorators(new)]
    return next(reversed(same_decorators or named), None)


def _decorators(node: Function) -> list[str]:
    return [ast.dump(item) for item in node.decorator_list]


def _indent_lines(text: str, margin: str) -> list[str]:
    """Indent the lines, except inside multi-line strings, whose value would change."""
    inside: set[int] = set()
    for node in ast.walk(parse_or_none(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            inside |= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines(keepends=True)
    return [line if at in inside or not line.strip() else margin + line for at, line in enumerate(lines, 1)]
