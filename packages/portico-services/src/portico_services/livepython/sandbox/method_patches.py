"""Methods and functions that are patched at run time: define, undo, and export as a diff."""

from __future__ import annotations

import abc
import ast
import os
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from typing import Any, cast

from portico_services.livepython.sandbox import introspection as questions
from portico_services.livepython.sandbox.display import class_attribute, truncate
from portico_services.livepython.sandbox.introspection import MAX_SOURCE_FILE_BYTES, Json
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameResolver
from portico_services.livepython.sandbox.source_tracking import (
    SourceStatement,
    defining_statements,
    find_origin,
    insert_method,
    with_function,
)

MAX_CHANGES = 200
# Limits of a change report: classes, members per class, and characters of a name.
MAX_REPORTED_CLASSES = 20
MAX_REPORTED_NAME_CHARS = 200
MAX_PATCH_CHARS = 512 * 1024
_BODY_ATTRIBUTE = "__portico_body__"
# Marks a member that did not exist.
ABSENT = object()
# Descriptors that store the values of `__slots__`.
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


@dataclass(frozen=True)
class MethodPatch:
    """A method that was defined in a class."""

    cls: type
    class_name: str
    selector: str
    source: str
    # The previous source; None if there was no method or its source is unknown.
    before: str | None
    kind: str
    # The installed member and the one it replaced, or ABSENT.
    installed: Any
    previous: Any

    def undo(self) -> None:
        """Restore the replaced member. Raises InspectionError if the method was replaced again since."""
        if class_attribute(self.cls, "__dict__").get(self.selector, ABSENT) is not self.installed:
            raise InspectionError(_overwritten_message(self.class_name, self.selector))
        if self.previous is ABSENT:
            type.__delattr__(self.cls, self.selector)
        else:
            type.__setattr__(self.cls, self.selector, self.previous)
        abc.update_abstractmethods(self.cls)

    @property
    def module(self) -> str:
        return str(self.cls.__module__)

    def written_into(self, text: str) -> str | None:
        """Return the source of a module with this change applied, or None if the class is not in it."""
        return insert_method(text, self.class_name, self.source)

    def origin(self, own: Mapping[str, list[SourceStatement]]) -> tuple[str, str]:
        """Return the file name for the session's definition in a patch, and its source."""
        top = self.class_name.partition(".")[0]
        origin_statements = find_origin(self.cls, own.get(top, []))
        return f"{top}.py", "" if origin_statements is None else origin_statements.text

    @property
    def path(self) -> str:
        """Return the dotted name by which the class can be found again."""
        home = self.cls.__module__
        return self.class_name if home == "__main__" else f"{home}.{self.class_name}"

    def is_current(self, namespace: Mapping[str, Any]) -> bool:
        """Return whether the class still exists. If it was defined again, the patch is lost."""
        if self.cls.__module__ != "__main__":
            return True
        result = namespace.get(self.class_name.partition(".")[0])
        for name in self.class_name.split(".")[1:]:
            result = getattr(result, name, None)
        return result is self.cls

    def to_json(self) -> Json:
        return {
            "className": self.class_name,
            "selector": self.selector,
            "kind": self.kind,
            "module": self.cls.__module__,
        }


@dataclass(frozen=True)
class FunctionChange:
    """A function that was defined in a module."""

    owner: types.ModuleType
    selector: str
    source: str
    kind: str
    installed: Any
    previous: Any
    # Other places where the replaced function was bound, such as by `from module import name`.
    bindings: tuple[tuple[dict[str, Any], str], ...]

    def undo(self) -> None:
        """Restore the replaced function. Raises InspectionError if it was replaced again since."""
        if vars(self.owner).get(self.selector, ABSENT) is not self.installed:
            raise InspectionError(_overwritten_message(self.module, self.selector))
        for namespace, name in self.bindings:
            if namespace.get(name, ABSENT) is not self.installed:
                continue  # rebound there in between
            if self.previous is ABSENT:
                del namespace[name]
            else:
                namespace[name] = self.previous

    @property
    def module(self) -> str:
        return self.owner.__name__

    @property
    def path(self) -> str:
        """Return the name by which the module can be found again."""
        return self.module

    @property
    def class_name(self) -> str:
        return self.module

    def is_current(self, namespace: Mapping[str, Any]) -> bool:
        """Return whether the function still exists. If it was defined again, the patch is lost."""
        return self.module != "__main__" or self.selector in namespace

    def written_into(self, text: str) -> str | None:
        return with_function(text, self.source)

    def origin(self, own: Mapping[str, list[SourceStatement]]) -> tuple[str, str]:
        # The latest source in the session is the patch itself, so there is no earlier text.
        return f"{self.selector}.py", ""

    def to_json(self) -> Json:
        return {"className": self.module, "selector": self.selector, "kind": self.kind, "module": self.module}


Change = MethodPatch | FunctionChange


def _overwritten_message(owner: str, selector: str) -> str:
    return f"{owner}.{selector} was changed again by other code: define it instead of undoing the change."


class _ClassBodyRunner:
    """Replaces a metaclass, so that a class body runs in the namespace of an existing class."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __prepare__(self, name: str, bases: tuple[type, ...]) -> dict[str, Any]:
        # Decorators such as @size.setter need the existing property.
        return dict(class_attribute(self._cls, "__dict__"))

    def __call__(self, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> dict[str, Any]:
        return members


def define_method(names: NameResolver, class_name: str, source: str, file: str) -> Change:
    """Compile a method in the context of its class, or a function in its module, and install it.

    `file` is the name under which the source is registered.
    """
    owner = names.find_owner(class_name)
    function = _function(source, file)
    if type(owner) is types.ModuleType:
        return _define_function(names, owner, function, source, file)
    cls = cast("type", owner)
    selector = _selector(cls, function.name)
    members = class_attribute(cls, "__dict__")
    if isinstance(members.get(selector), _SLOTS):
        raise InspectionError(
            f"{class_name}.{function.name} is a slot that stores a value of each object, not a method."
        )
    before = _previous_source(names, class_name, cls, selector)
    # From the class itself: restoring an inherited method would turn it into an own one.
    previous = members.get(selector, ABSENT)
    member = _compile_in_class(cls, function, file, _globals(names, cls))[selector]
    if type(member) is type(members.get(selector)) is property:
        # The class still defines the other accessors of the property.
        old = members[selector]
        member = property(member.fget, member.fset or old.fset, member.fdel or old.fdel, member.__doc__)
    try:
        type.__setattr__(cls, selector, member)
    except TypeError:
        raise InspectionError(f"{class_name} is implemented in C and cannot be changed.") from None
    # Python calls it only while a class is created.
    if hasattr(type(member), "__set_name__"):
        member.__set_name__(cls, selector)
    abc.update_abstractmethods(cls)
    full = class_attribute(cls, "__qualname__")
    kind = "added" if previous is ABSENT else "changed"
    return MethodPatch(cls, full, selector, source, before, kind, member, previous)


def _define_function(
    names: NameResolver, module: types.ModuleType, function: ast.stmt, source: str, file: str
) -> FunctionChange:
    """Bind the function in its module, and wherever the replaced function is bound."""
    selector: str = function.name  # type: ignore[attr-defined]
    namespace = vars(module)
    made: dict[str, Any] = {}
    # In a separate namespace, so that a failing decorator leaves the module unchanged.
    exec(compile(ast.Module([function], []), file, "exec", dont_inherit=True), namespace, made)
    member, previous = made[selector], namespace.get(selector, ABSENT)
    if issubclass(type(previous), type):
        raise InspectionError(f"{module.__name__}.{selector} is a class. Evaluate its definition instead.")
    bindings = [(namespace, selector)]
    if previous is not ABSENT:
        spaces = [names.namespace, *(vars(loaded) for _, loaded in names.loaded_modules())]
        bindings += [
            (space, name)
            for space in spaces
            if type(space) is dict and space is not namespace
            for name, value in list(space.items())
            # By identity, which finds renamed imports as well: `from module import name as other`.
            if value is previous and type(name) is str
        ]
    for space, name in bindings:
        space[name] = member
    kind = "added" if previous is ABSENT else "changed"
    return FunctionChange(module, selector, source, kind, member, previous, tuple(bindings))


def _selector(cls: type, name: str) -> str:
    """Return the attribute name of a method, with private names mangled: `_Class__name`."""
    owner = class_attribute(cls, "__name__").lstrip("_")
    is_private = name.startswith("__") and not name.endswith("__") and owner
    return f"_{owner}{name}" if is_private else name


def _function(source: str, file: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    match compile(source, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True):
        case ast.Module(body=[ast.FunctionDef() | ast.AsyncFunctionDef() as function]):
            return function
    raise InspectionError("source must be one `def` with its decorators, as written in the class or module.")


def _previous_source(names: NameResolver, class_name: str, cls: type, selector: str) -> str | None:
    if selector not in class_attribute(cls, "__dict__"):
        return None
    try:
        return str(questions.method_source(names, class_name, selector)["source"])
    except InspectionError:
        return None  # implemented in C, or created without source


def _globals(names: NameResolver, cls: type) -> dict[str, Any]:
    """Return the globals that the other methods of the class use."""
    home = sys.modules.get(str(class_attribute(cls, "__module__")))
    if home is None or home.__name__ == names.namespace.get("__name__"):
        return names.namespace  # type: ignore[return-value]
    return vars(home)


def _compile_in_class(cls: type, function: ast.stmt, file: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Compile the function in a class statement and return the members.

    The statement has the name of the class, so that `super()` and private names refer to it.
    """
    name = class_attribute(cls, "__name__")
    keeper = ast.keyword("metaclass", ast.Name(_BODY_ATTRIBUTE, ast.Load()))
    more: dict[str, Any] = {"type_params": []} if sys.version_info >= (3, 12) else {}
    statement = ast.ClassDef(name=name, bases=[], keywords=[keeper], body=[function], decorator_list=[], **more)
    ast.copy_location(statement, function)
    module = ast.fix_missing_locations(ast.Module([statement], []))
    made: dict[str, Any] = {_BODY_ATTRIBUTE: _ClassBodyRunner(cls)}
    exec(compile(module, file, "exec", dont_inherit=True), namespace, made)
    members: dict[str, Any] = made[name]
    # `super()` without arguments reads `__class__` from this cell, which must be the existing class.
    cell = members.get("__classcell__")
    if isinstance(cell, types.CellType):
        cell.cell_contents = cls
    return members


class ClassChangeTracker:
    """Tracks which classes of the session have changed, and which of their members."""

    def __init__(self, names: NameResolver) -> None:
        self._names = names
        self._seen: dict[str, dict[str, int]] = {}

    def detect_changes(self) -> Json:
        """Return the changes since the last call as a member of the reply; empty if there are none."""
        now = {
            name: _member_fingerprints(cls)
            for name, cls in self._names.session_classes().items()
            if len(name) <= MAX_REPORTED_NAME_CHARS
        }
        before, self._seen = self._seen, now
        if before == now:
            return {}
        changes = {name: _changed_members(before.get(name, {}), now.get(name, {})) for name in {**before, **now}}
        changed = {name: members for name, members in changes.items() if members or (name in before) != (name in now)}
        return {"changedClasses": dict(islice(changed.items(), MAX_REPORTED_CLASSES))}


def _member_fingerprints(cls: type) -> dict[str, int]:
    """Return the identities of a class's members, which are cheap to compare."""
    members = {name: id(member) for name, member in list(class_attribute(cls, "__dict__").items()) if type(name) is str}
    return {"": id(cls), **members}


def _changed_members(before: dict[str, int], now: dict[str, int]) -> list[str]:
    names = [
        name for name in {**before, **now} if before.get(name) != now.get(name) and len(name) <= MAX_REPORTED_NAME_CHARS
    ]
    return names[:MAX_REPORTED_CLASSES]


# Patches


def undo(changes: list[Change], owner: type | types.ModuleType, selector: str) -> Change:
    """Undo the last change of this method or function, and remove it from the list. Raises InspectionError."""
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        changed = change.cls if isinstance(change, MethodPatch) else change.owner
        if changed is owner and change.selector in (selector, _private(owner, selector)):
            change.undo()
            return changes.pop(at)
    patched = ", ".join(dict.fromkeys(f"{item.class_name}.{item.selector}" for item in changes[-MAX_REPORTED_CLASSES:]))
    raise InspectionError(f"{selector!r} was not changed in this session (changed: {patched or 'none'}).")


def _private(owner: type | types.ModuleType, selector: str) -> str:
    return selector if type(owner) is types.ModuleType else _selector(cast("type", owner), selector)


def build_patch(changes: Sequence[Change], projects: Sequence[str]) -> Json:
    """Return the changes, and one diff that combines them."""
    patch = "".join(_diff_files(changes, projects))
    return {
        "changes": [item.to_json() for item in changes[-MAX_CHANGES:]],
        "total": len(changes),
        "patch": truncate(patch, MAX_PATCH_CHARS),
    }


def _diff_files(changes: Sequence[Change], projects: Sequence[str]) -> list[str]:
    own = defining_statements()
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for change in changes:
        path, text, is_file = _locate_source(change, own, projects)
        changed = change.written_into(after.get(path, text))
        if changed is None:
            # The source of the class is unknown: the method becomes a file by itself.
            path, is_file, changed = f"{change.class_name}.{change.selector}.py", False, change.source
        before.setdefault(path, text if is_file else "")
        after[path] = changed
    return [_diff(path, before[path], after[path]) for path in before]


def _locate_source(
    change: Change, own: dict[str, list[SourceStatement]], projects: Sequence[str]
) -> tuple[str, str, bool]:
    """Return where the class or module of a change is defined: path for the patch, source, and whether it is a file."""
    module = sys.modules.get(change.module)
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return *change.origin(own), False
    try:
        with open(path, encoding="utf-8") as file:
            return _relative_path(path, change.module, projects), file.read(MAX_SOURCE_FILE_BYTES), True
    except (OSError, ValueError):
        return change.origin(own)[0], "", False


def _relative_path(path: str, module: str, projects: Sequence[str]) -> str:
    for project in projects:
        if path.startswith(project.rstrip(os.sep) + os.sep):
            return os.path.relpath(path, project)
    name = module.replace(".", "/")
    return f"{name}/__init__.py" if path.endswith("__init__.py") else f"{name}.py"


def _diff(path: str, before: str, after: str) -> str:
    """Return a unified diff. Source without a file, such as a class of the session, becomes a new file."""
    old = f"a/{path}" if before else "/dev/null"
    lines = unified_diff(before.splitlines(True), after.splitlines(True), old, f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
