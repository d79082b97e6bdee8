"""The text of what a session has defined, found where it was given, and put into other text."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from inspect import getattr_static
from types import FunctionType
from typing import Any, NamedTuple

from portico_services.livepython.sandbox.display import OWN, of_class

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# A function may be wrapped in others, and will not be unwrapped for ever.
MOST_WRAPPERS = 20
# Of evaluations that failed, the line that did: what stands there and below was not made.
_failed: dict[str, int] = {}


class Statement(NamedTuple):
    """A statement at the top of what a session was given."""

    # They are sorted as they were given.
    number: int
    first: int
    file: str
    last: int
    text: str

    @property
    def was_run(self) -> bool:
        return self.last < _failed.get(self.file, self.last + 1)

    def has(self, place: tuple[str, int]) -> bool:
        return place[0] == self.file and self.first <= place[1] <= self.last


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


def remember(file: str, source: str) -> None:
    """Keep what the session was given, so that tracebacks and questions about the source find it."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    _failed.pop(file, None)


def failed_at(file: str, failure: BaseException) -> None:
    """What the session was given ended with this."""
    at = failure.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != file:
        at = at.tb_next
    _failed[file] = 0 if at is None else at.tb_lineno


def statements() -> dict[str, list[Statement]]:
    """Those that define functions, classes and lambdas, by the names they give them; oldest first."""
    found: dict[str, list[Statement]] = {}
    for number, (file, entry) in enumerate(evaluations()):
        for node in parsed("".join(entry[2])).body:
            for name in _defined(node):
                found.setdefault(name, []).append(_statement(number, file, entry[2], node))
    return found


def _statement(number: int, file: str, lines: list[str], node: ast.stmt) -> Statement:
    first, last = first_line(node), node.end_lineno or node.lineno
    text: str | None = "".join(lines[first - 1 : last])
    if isinstance(node, ast.Assign | ast.AnnAssign):
        # Others may stand on the same line.
        text = ast.get_source_segment("".join(lines), node)
    return Statement(number, first, file, last, text or "")


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (one.id for one in targets if isinstance(one, ast.Name))


def origin(value: Any, known: list[Statement]) -> Statement | None:
    """The one of these statements that made a value, by where its code stands; where it has none, the newest that was
    run."""
    if issubclass(type(value), type):
        places = [_place(one) for one in list(of_class(value, "__dict__").values())]
    else:
        places = [_place(value)]
    made = [one for one in known if any(place is not None and one.has(place) for place in places)]
    if not made and (issubclass(type(value), type) or places == [None]):
        made = [one for one in known if one.was_run]
    return made[-1] if made else None


def _place(value: Any) -> tuple[str, int] | None:
    """Where a function is written, without what it is wrapped in; None if it is no function. Runs no code of theirs."""
    for _ in range(MOST_WRAPPERS):
        if type(value) is property:
            value = value.fget
        elif type(value) in (staticmethod, classmethod):
            value = value.__func__
        else:
            value = getattr_static(value, "__wrapped__", value)
    return (value.__code__.co_filename, value.__code__.co_firstlineno) if type(value) is FunctionType else None


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


def with_function(text: str, function: str) -> str | None:
    """Return the text of a module that has this function at its top, instead of the one it had or at its end."""
    (new,) = parsed(function).body
    if not isinstance(new, FUNCTIONS):
        return None
    lines = text.splitlines(keepends=True)
    written = (function.strip("\n") + "\n").splitlines(keepends=True)
    named = [node for node in parsed(text).body if isinstance(node, FUNCTIONS) and node.name == new.name]
    if not named:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        return "".join([*lines, *(["\n", "\n"] if lines else []), *written])
    lines[first_line(named[-1]) - 1 : named[-1].end_lineno] = written
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
