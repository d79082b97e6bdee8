"""A live image: names that stay, code that is run among them, and questions about what is there.

Plain Python and the standard library, because it runs in several places: in a worker's jail, in WebAssembly, and, for
an application that serves itself, in that application.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

from portico_services.livepython.sandbox import introspection as questions
from portico_services.livepython.sandbox import session_pickle
from portico_services.livepython.sandbox.display import (
    OWN,
    clean,
    json_of,
    one_line,
    pictures_of,
    table_of,
    text_of,
    told,
)
from portico_services.livepython.sandbox.introspection import LONGEST_FILE, MOST_FILES, MOST_FOUND, Json, sources
from portico_services.livepython.sandbox.limits import Limits
from portico_services.livepython.sandbox.method_patches import (
    Change,
    ClassWatch,
    FunctionChange,
    changes,
    define,
    undo,
)
from portico_services.livepython.sandbox.name_resolution import InspectionError, Names
from portico_services.livepython.sandbox.source_tracking import evaluations, failed_at, parsed, remember

# The module whose functions run in the middle of others, when these cannot be interrupted.
RESCUE = "portico_services.livepython.sandbox.rescue"
# Enough for every integer whose text is shown.
LONGEST_INTEGER = 70_000


class Interpreter:
    """`answer` takes the name of an operation and its arguments, and gives what JSON can say."""

    def __init__(
        self,
        namespace: dict[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        runs: bool = True,
        alone: bool = True,
        projects: Sequence[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        self.runs = runs
        # Nothing else draws in this process, so every open figure is meant for us.
        self.alone = alone
        self.evaluations = 0
        # The number of what it is asked, where a script has to say it.
        self.asked = 0
        self.projects = projects
        self.changes: list[Change] = []
        # Bytes on their way out, and in: they travel in parts.
        self._saved, self._restoring = b"", bytearray()
        self._runner: Any = None
        if namespace is None:
            # Under its usual name, so that pickle, dataclasses and typing find what is defined here.
            module = types.ModuleType("__main__")
            sys.modules["__main__"] = module
            namespace = vars(module)
        self.namespace = namespace
        self.names = Names(namespace, imports=runs)
        self.watch = ClassWatch(self.names)
        self._operations: dict[str, Callable[..., Any]] = {
            "evaluate": self.evaluate,
            "inspect_object": self.inspect_object,
            "list_packages": questions.packages,
            "list_classes": self._about(questions.classes),
            "class_details": self._about(questions.class_details),
            "method_source": self._about(questions.method_source),
            "search_methods": self._about(questions.search_methods),
            "references_to": self._about(references_to),
            "complete": self._about(questions.complete),
            "define_method": self.define_method,
            "list_changes": self.list_changes,
            "undo_change": self.undo_change,
            "save": self.save,
            "saved_part": self.saved_part,
            "restore_part": self.restore_part,
            "restore": self.restore,
        }

    def add_operation(self, op: str, operation: Callable[..., Any]) -> None:
        """One more, which is given this image first."""
        self._operations[op] = partial(operation, self)

    def _about(self, question: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **arguments: question(self.names, **arguments)

    def answer(self, op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one operation. Raises InspectionError with a reason for the caller."""
        operation = self._operations.get(op)
        if operation is None:
            raise InspectionError(f"There is no operation {op!r}.")
        try:
            result: dict[str, Any] = operation(**arguments)
            return result
        except InspectionError:
            raise
        # Code that is run, and code that is only asked what it is, can raise anything: also SystemExit.
        except BaseException as failure:
            raise InspectionError(told(failure)) from None

    def is_answering(self, frame: types.FrameType | None, *, rescue: bool = False) -> bool:
        """Whether what this frame runs is a part of an answer, so that an exception in it ends that and nothing else.

        `answer` itself is none: between a call and its end there is no moment that an interrupt could fall into. Nor is
        the `rescue` of its names, which comes when interrupts have not helped.
        """
        running = frame
        while running is not None:
            if running is not frame and running.f_code is Interpreter.answer.__code__:
                return True
            if not rescue and running.f_globals.get("__name__") == RESCUE:
                return False
            running = running.f_back
        return False

    # Evaluating

    def evaluate(self, expression: str) -> dict[str, Any]:
        """Run expressions and statements; the value is that of the last one, if it is an expression."""
        value, has_value = self._run(expression)
        if has_value and value is not None:
            self.namespace["_"] = value
        result: dict[str, Any] = {"pictures": pictures_of(value, self.limits, figures=self.alone)}
        if has_value:
            result["text"] = text_of(value, self.limits)
            result["type"] = clean(type(value).__qualname__)[:200]
            result |= self._as_json(value)
        return result | self.watch.changed()

    def _as_json(self, value: Any) -> dict[str, Any]:
        """The value as a text of JSON, which is not decoded before its length is known."""
        table = table_of(value)
        if table is not None:
            columns, rows, total = table
            value = {"columns": columns, "rows": rows, "total": total}
        text = json_of(value, self.limits.value)
        return {} if text is None else {"value": text}

    def _run(self, expression: str, *, valued: bool = False) -> tuple[Any, bool]:
        """The value, and whether there is one. `valued`: what has none is not run at all."""
        name = self._remember(expression)
        source = "".join(linecache.cache[name][2])  # type: ignore[misc]
        try:
            return self._compiled_and_run(source, name, valued)
        except BaseException as failure:
            failed_at(name, failure)
            raise

    def _compiled_and_run(self, source: str, name: str, valued: bool) -> tuple[Any, bool]:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if last is None and valued:
            raise InspectionError(f"{one_line(source, 60)!r} is no expression, so it has no value to look at.")
        if tree.body:
            self._execute(compile(tree, name, "exec", flags, dont_inherit=True))
        if last is None:
            return None, False
        return self._execute(compile(ast.Expression(last), name, "eval", flags, dont_inherit=True)), True

    def _remember(self, expression: str) -> str:
        """The name that the text is kept under."""
        self.evaluations += 1
        name = f"{OWN}{self.evaluations}>"
        # Indented as a whole, as when it was copied out of something; never when it is not, for the sake of its texts.
        indented = expression.lstrip("\n")[:1] in (" ", "\t")
        source = (textwrap.dedent(expression) if indented else expression) + "\n"
        remember(name, source)
        return name

    def _execute(self, code: types.CodeType) -> Any:
        if not code.co_flags & inspect.CO_COROUTINE:
            return eval(code, self.namespace)
        import asyncio  # as much as everything else together, and most code does not await

        if asyncio._get_running_loop() is not None:
            raise InspectionError("`await` outside of a function cannot be had here: an event loop is running already.")
        if self._runner is None:
            self._runner = asyncio.Runner()
        before = asyncio.all_tasks(self._runner.get_loop())
        try:
            return self._runner.run(eval(code, self.namespace))
        except KeyboardInterrupt:
            # What it has begun must not go on with the next expression.
            if begun := asyncio.all_tasks(self._runner.get_loop()) - before:
                for task in begun:
                    task.cancel()
                self._runner.run(asyncio.wait(begun))
            raise

    def wake(self) -> None:
        """Let code that awaits notice that it was interrupted. For another thread than the one it runs in."""
        if self._runner is not None:
            try:
                self._runner.get_loop().call_soon_threadsafe(int)
            except RuntimeError:
                pass  # it has been closed meanwhile

    def close(self) -> None:
        """What code awaited on."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # Looking

    def inspect_object(self, expression: str) -> dict[str, Any]:
        """What an expression's value is made of. Where nothing may be run, names and what they hold are followed."""
        if self.runs:
            value, _ = self._run(expression, valued=True)
        else:
            value = self.names.follow(expression)
        return questions.inspected(value, expression)

    # Changing

    def define_method(self, className: str, source: str) -> dict[str, Any]:
        if not self.runs:
            raise InspectionError("Nothing is changed here: evaluating is switched off.")
        file = self._remember(source)
        change = define(self.names, className, "".join(linecache.cache[file][2]), file)  # type: ignore[misc]
        self.changes.append(change)
        return self._told(change)

    def _told(self, change: Change) -> dict[str, Any]:
        """Return a change as the server reads it, with what the subscribers of classes and methods are told."""
        told = self.watch.changed()
        if isinstance(change, FunctionChange):
            told = {"changedClasses": {**told.get("changedClasses", {}), change.module: [change.selector]}}
        return change.told() | told

    def undo_change(self, className: str, selector: str) -> dict[str, Any]:
        """Restore what a method or a function was before its last change."""
        if not self.runs:
            raise InspectionError("Nothing is changed here: evaluating is switched off.")
        change = undo(self.changes, self.names.find_owner(className), selector)
        kind = "removed" if change.kind == "added" else "restored"
        return {**self._told(change), "kind": kind}

    def list_changes(self) -> dict[str, Any]:
        return changes([one for one in self.changes if one.is_current(self.namespace)], self.projects)

    # Saving

    def save(self, most: int, seconds: float | None = None) -> dict[str, Any]:
        """Make the bytes, which `saved_part` then gives, up to a size, in so many seconds for each name."""
        made = [(one.path, one.source) for one in self.changes if one.is_current(self.namespace)]
        data, names, left_out = session_pickle.saved(self.namespace, made, seconds)
        if len(data) > most:
            raise InspectionError(
                f"The names of this session take {len(data):,} bytes, and {most:,} can be saved. "
                f"The largest are {session_pickle.largest(data)}."
            )
        from hashlib import sha256  # not in every Python there is for WebAssembly, and wanted here alone

        self._saved = data
        return {"size": len(data), "digest": sha256(data).hexdigest(), **session_pickle.told(names, left_out)}

    def saved_part(self, at: int, size: int) -> dict[str, Any]:
        return {"data": b64encode(self._saved[at : at + size]).decode()}

    def restore_part(self, at: int, data: str) -> dict[str, Any]:
        if at == 0:
            self._restoring.clear()
        if at != len(self._restoring):
            raise InspectionError("Something else is being restored.")
        self._restoring += b64decode(data)
        return {}

    def restore(self) -> dict[str, Any]:
        """Put what came in parts among the names."""
        if not self._restoring:
            raise InspectionError("Something else was restored at the same time. Try again.")
        data = bytes(self._restoring)
        self._restoring.clear()
        told = session_pickle.told(*session_pickle.restored(data, self.namespace, self._run, self.define_method))
        return told | self.watch.changed()


# Where a name is used


def references_to(names: Names, name: str, package: str | None = None) -> Json:
    """Where a name is used: in what this session was given, and in a package, if one is named."""
    if not name.isidentifier():
        raise InspectionError(f"{one_line(name, 60)!r} is not a name.")
    texts = [(key.strip("<>"), "".join(entry[2])) for key, entry in evaluations()]
    found = [use for where, text in texts for use in _uses(where, parsed(text), text.splitlines(), name)]
    if package:
        found += islice(_uses_in(names.module(package), package, name), MOST_FOUND)
    return {"name": name, "references": found[:MOST_FOUND], "total": len(found)}


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
            yield from _uses(where, parsed(text), text.splitlines(), name)


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
