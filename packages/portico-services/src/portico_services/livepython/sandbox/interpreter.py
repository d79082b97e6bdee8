"""Interpreter of a session: evaluates code in a persistent namespace, and inspects it.

Standard library only, because it runs in several places: in a sandboxed worker, in WebAssembly, and in an application
that serves itself.
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

from portico_services.livepython.sandbox import introspection as questions, session_pickle
from portico_services.livepython.sandbox.display import (
    EVALUATION_FILENAME_PREFIX,
    format_exception,
    render_images,
    replace_surrogates,
    to_json_or_none,
    to_table,
    to_text,
    truncate_line,
)
from portico_services.livepython.sandbox.introspection import (
    MAX_FOUND_METHODS,
    MAX_SOURCE_FILE_BYTES,
    MAX_SOURCE_FILES,
    Json,
    module_sources,
)
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.method_patches import (
    Change,
    ClassChangeTracker,
    FunctionChange,
    build_patch,
    define_method,
    undo,
)
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameResolver
from portico_services.livepython.sandbox.source_tracking import (
    list_evaluations,
    parse_or_none,
    register_failure,
    register_source,
)

# The module whose functions interrupt code that cannot be interrupted otherwise.
RESCUE_MODULE = "portico_services.livepython.sandbox.rescue"
# Enough for every integer whose text is displayed.
MAX_INTEGER_DIGITS = 70_000


class Interpreter:
    """A session's interpreter. `handle` takes the name of an operation and its arguments, and returns JSON data."""

    def __init__(
        self,
        namespace: dict[str, Any] | None = None,
        *,
        limits: SandboxLimits | None = None,
        runs: bool = True,
        alone: bool = True,
        projects: Sequence[str] = (),
    ) -> None:
        self.limits = limits or SandboxLimits()
        self.runs = runs
        # Nothing else draws in this process, so every open figure belongs to the session.
        self.alone = alone
        self.evaluations = 0
        # The id of the current request, which messages of a script must carry.
        self.pending_requests = 0
        self.projects = projects
        self.changes: list[Change] = []
        # Saved and restored data, which is transferred in chunks.
        self._saved, self._restoring = b"", bytearray()
        self._runner: Any = None
        if namespace is None:
            # Under the usual name, so that pickle, dataclasses and typing find the definitions.
            module = types.ModuleType("__main__")
            sys.modules["__main__"] = module
            namespace = vars(module)
        self.namespace = namespace
        self.names = NameResolver(namespace, imports=runs)
        self.watch = ClassChangeTracker(self.names)
        self._operations: dict[str, Callable[..., Any]] = {
            "evaluate": self.evaluate,
            "inspect_object": self.inspect_object,
            "list_packages": questions.list_packages,
            "list_classes": self._introspect(questions.list_classes),
            "class_details": self._introspect(questions.class_details),
            "method_source": self._introspect(questions.method_source),
            "search_methods": self._introspect(questions.search_methods),
            "references_to": self._introspect(find_references),
            "complete": self._introspect(questions.complete_name),
            "define_method": self.define_method,
            "list_changes": self.list_changes,
            "undo_change": self.undo_change,
            "save": self.save,
            "saved_part": self.saved_part,
            "restore_part": self.restore_part,
            "restore": self.restore,
        }

    def add_operation(self, op: str, operation: Callable[..., Any]) -> None:
        """Register an operation, which receives this interpreter as its first argument."""
        self._operations[op] = partial(operation, self)

    def _introspect(self, question: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **arguments: question(self.names, **arguments)

    def handle(self, op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of an operation. Raises InspectionError with a reason for the caller."""
        operation = self._operations.get(op)
        if operation is None:
            raise InspectionError(f"Unknown operation {op!r}.")
        try:
            result: dict[str, Any] = operation(**arguments)
            return result
        except InspectionError:
            raise
        # Evaluated code, and even inspected objects, can raise anything, including SystemExit.
        except BaseException as failure:
            raise InspectionError(format_exception(failure)) from None

    def is_handling(self, frame: types.FrameType | None, *, rescue: bool = False) -> bool:
        """Return whether the frame belongs to an operation, so that an exception in it ends only that operation.

        `handle` itself does not count: an interrupt must not fall between a call and its end. Nor does the `rescue` of
        names, which happens when interrupts have failed.
        """
        running = frame
        while running is not None:
            if running is not frame and running.f_code is Interpreter.handle.__code__:
                return True
            if not rescue and running.f_globals.get("__name__") == RESCUE_MODULE:
                return False
            running = running.f_back
        return False

    # Evaluation

    def evaluate(self, expression: str) -> dict[str, Any]:
        """Run expressions and statements, and return the value of the last one if it is an expression."""
        value, has_value = self._run(expression)
        if has_value and value is not None:
            self.namespace["_"] = value
        result: dict[str, Any] = {"pictures": render_images(value, self.limits, figures=self.alone)}
        if has_value:
            result["text"] = to_text(value, self.limits)
            result["type"] = replace_surrogates(type(value).__qualname__)[:200]
            result |= self._as_json(value)
        return result | self.watch.detect_changes()

    def _as_json(self, value: Any) -> dict[str, Any]:
        """Return the value as JSON text, so that the server can check its length before decoding."""
        table = to_table(value)
        if table is not None:
            columns, rows, total = table
            value = {"columns": columns, "rows": rows, "total": total}
        text = to_json_or_none(value, self.limits.max_value_bytes)
        return {} if text is None else {"value": text}

    def _run(self, expression: str, *, valued: bool = False) -> tuple[Any, bool]:
        """Run code and return its value and whether it has one. With `valued`, code without a value is not run."""
        name = self._add_source(expression)
        source = "".join(linecache.cache[name][2])  # type: ignore[misc]
        try:
            return self._compiled_and_run(source, name, valued)
        except BaseException as failure:
            register_failure(name, failure)
            raise

    def _compiled_and_run(self, source: str, name: str, valued: bool) -> tuple[Any, bool]:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if last is None and valued:
            raise InspectionError(f"{truncate_line(source, 60)!r} is not an expression, so it has no value to inspect.")
        if tree.body:
            self._execute(compile(tree, name, "exec", flags, dont_inherit=True))
        if last is None:
            return None, False
        return self._execute(compile(ast.Expression(last), name, "eval", flags, dont_inherit=True)), True

    def _add_source(self, expression: str) -> str:
        """Register the source under a new file name, and return that name."""
        self.evaluations += 1
        name = f"{EVALUATION_FILENAME_PREFIX}{self.evaluations}>"
        # Dedent only if the first line is indented, since dedenting also changes multi-line strings.
        indented = expression.lstrip("\n")[:1] in (" ", "\t")
        source = (textwrap.dedent(expression) if indented else expression) + "\n"
        register_source(name, source)
        return name

    def _execute(self, code: types.CodeType) -> Any:
        if not code.co_flags & inspect.CO_COROUTINE:
            return eval(code, self.namespace)
        import asyncio  # imported late: it is as large as everything else together, and most code does not await

        if asyncio._get_running_loop() is not None:
            raise InspectionError("Top-level `await` is not available here: an event loop is already running.")
        if self._runner is None:
            self._runner = asyncio.Runner()
        before = asyncio.all_tasks(self._runner.get_loop())
        try:
            return self._runner.run(eval(code, self.namespace))
        except KeyboardInterrupt:
            # Tasks of the interrupted code must not continue during the next evaluation.
            if new_tasks := asyncio.all_tasks(self._runner.get_loop()) - before:
                for task in new_tasks:
                    task.cancel()
                self._runner.run(asyncio.wait(new_tasks))
            raise

    def interrupt_sleep(self) -> None:
        """Wake the event loop so that awaiting code notices an interrupt. Called from another thread."""
        if self._runner is not None:
            try:
                self._runner.get_loop().call_soon_threadsafe(int)
            except RuntimeError:
                pass  # the loop was closed in between

    def close(self) -> None:
        """Close the event loop that code awaited on."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # Introspection

    def inspect_object(self, expression: str) -> dict[str, Any]:
        """Inspect the value of an expression. If evaluation is disabled, only stored members are followed."""
        if self.runs:
            value, _ = self._run(expression, valued=True)
        else:
            value = self.names.evaluate_path(expression)
        return questions.inspect_value(value, expression)

    # Patches

    def define_method(self, className: str, source: str) -> dict[str, Any]:
        if not self.runs:
            raise InspectionError("Methods cannot be changed: evaluation is disabled.")
        file = self._add_source(source)
        change = define_method(self.names, className, "".join(linecache.cache[file][2]), file)  # type: ignore[misc]
        self.changes.append(change)
        return self._change_report(change)

    def _change_report(self, change: Change) -> dict[str, Any]:
        """Return a change as JSON, with the changed classes and methods for subscribers."""
        changes = self.watch.detect_changes()
        if isinstance(change, FunctionChange):
            changes = {"changedClasses": {**changes.get("changedClasses", {}), change.module: [change.selector]}}
        return change.to_json() | changes

    def undo_change(self, className: str, selector: str) -> dict[str, Any]:
        """Undo the last change of a method or function."""
        if not self.runs:
            raise InspectionError("Methods cannot be changed: evaluation is disabled.")
        change = undo(self.changes, self.names.find_owner(className), selector)
        kind = "removed" if change.kind == "added" else "restored"
        return {**self._change_report(change), "kind": kind}

    def list_changes(self) -> dict[str, Any]:
        return build_patch([change for change in self.changes if change.is_current(self.namespace)], self.projects)

    # Saved sessions

    def save(self, limit: int, seconds: float | None = None) -> dict[str, Any]:
        """Pickle the session for `saved_part`, up to `limit` bytes, with `seconds` as the time limit per name."""
        changes = [(change.path, change.source) for change in self.changes if change.is_current(self.namespace)]
        data, names, left_out = session_pickle.dump_session(self.namespace, changes, seconds)
        if len(data) > limit:
            raise InspectionError(
                f"The names of this session take {len(data):,} bytes, and at most {limit:,} can be saved. "
                f"The largest are {session_pickle.largest_names(data)}."
            )
        from hashlib import sha256  # imported late: not available in every WebAssembly build, and needed only here

        self._saved = data
        return {"size": len(data), "digest": sha256(data).hexdigest(), **session_pickle.names_report(names, left_out)}

    def saved_part(self, at: int, size: int) -> dict[str, Any]:
        return {"data": b64encode(self._saved[at : at + size]).decode()}

    def restore_part(self, at: int, data: str) -> dict[str, Any]:
        if at == 0:
            self._restoring.clear()
        if at != len(self._restoring):
            raise InspectionError("Another restore is in progress.")
        self._restoring += b64decode(data)
        return {}

    def restore(self) -> dict[str, Any]:
        """Restore the names from the received chunks."""
        if not self._restoring:
            raise InspectionError("Another restore ran at the same time. Try again.")
        data = bytes(self._restoring)
        self._restoring.clear()
        report = session_pickle.names_report(
            *session_pickle.load_session(data, self.namespace, self._run, self.define_method)
        )
        return report | self.watch.detect_changes()


# References


def find_references(names: NameResolver, name: str, package: str | None = None) -> Json:
    """Find the uses of a name in the code that this session has run, and in a package if given."""
    if not name.isidentifier():
        raise InspectionError(f"Invalid name {truncate_line(name, 60)!r}: expected a Python identifier.")
    texts = [(key.strip("<>"), "".join(entry[2])) for key, entry in list_evaluations()]
    result = [
        use for where, text in texts for use in _references_in_tree(where, parse_or_none(text), text.splitlines(), name)
    ]
    if package:
        result += islice(_references_in_module(names.module(package), package, name), MAX_FOUND_METHODS)
    return {"name": name, "references": result[:MAX_FOUND_METHODS], "total": len(result)}


def _references_in_module(module: ModuleType, package: str, name: str) -> Iterator[Json]:
    own = getattr(module, "__file__", None)
    files = [(package, own)] if own and own.endswith(".py") else []
    for where, path in islice([*files, *module_sources(module, package)], MAX_SOURCE_FILES):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(MAX_SOURCE_FILE_BYTES)
        except (OSError, ValueError):
            continue
        # Most files do not contain the word, and searching is much cheaper than parsing.
        if name in text:
            yield from _references_in_tree(where, parse_or_none(text), text.splitlines(), name)


def _references_in_tree(where: str, tree: ast.AST, lines: list[str], name: str, owner: str = "") -> Iterator[Json]:
    for node in ast.iter_child_nodes(tree):
        inner = owner
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{owner}.{node.name}" if owner else node.name
        elif _is_reference(node, name):
            line = node.lineno  # type: ignore[attr-defined]
            text = lines[line - 1].strip() if line <= len(lines) else ""
            yield {"module": where, "owner": owner, "line": line, "text": truncate_line(text)}
        yield from _references_in_tree(where, node, lines, name, inner)


def _is_reference(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name
    return isinstance(node, ast.Attribute) and node.attr == name
