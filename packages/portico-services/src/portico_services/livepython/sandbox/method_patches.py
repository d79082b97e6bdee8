"""Methods and functions that are changed in place, a patch of all changes, and undoing one of them."""

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
from portico_services.livepython.sandbox.display import of_class, shortened
from portico_services.livepython.sandbox.introspection import LONGEST_FILE, Json
from portico_services.livepython.sandbox.name_resolution import InspectionError, Names
from portico_services.livepython.sandbox.source_tracking import (
    Statement,
    origin,
    statements,
    with_function,
    with_method,
)

MOST_CHANGES = 200
# Classes, members of one, and the letters of a name, where it is told what is another than before.
MOST_TOLD = 20
LONGEST_TOLD = 200
LONGEST_PATCH = 512 * 1024
_KEEPER = "__portico_body__"
# In place of a member that was not there.
ABSENT = object()
# What a class with `__slots__` keeps the values of its objects in.
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


@dataclass(frozen=True)
class MethodChange:
    """A method that was given to a class."""

    cls: type
    class_name: str
    selector: str
    source: str
    # What was there before; None if it is new, or cannot be told.
    before: str | None
    kind: str
    # The member that was installed, and the one that it replaced; ABSENT if there was none.
    installed: Any
    previous: Any

    def undo(self) -> None:
        """Restore the member that was replaced. Raises InspectionError if another has replaced this one since."""
        if of_class(self.cls, "__dict__").get(self.selector, ABSENT) is not self.installed:
            raise InspectionError(_overwritten(self.class_name, self.selector))
        if self.previous is ABSENT:
            type.__delattr__(self.cls, self.selector)
        else:
            type.__setattr__(self.cls, self.selector, self.previous)
        abc.update_abstractmethods(self.cls)

    @property
    def module(self) -> str:
        return str(self.cls.__module__)

    def written_into(self, text: str) -> str | None:
        """Return the text of a module with this change in it; None if the class is not in that text."""
        return with_method(text, self.class_name, self.source)

    def origin(self, own: Mapping[str, list[Statement]]) -> tuple[str, str]:
        """Return the name that a patch has for the session's definition, and the text of that."""
        top = self.class_name.partition(".")[0]
        made = origin(self.cls, own.get(top, []))
        return f"{top}.py", "" if made is None else made.text

    @property
    def path(self) -> str:
        """By which the class is found again."""
        home = self.cls.__module__
        return self.class_name if home == "__main__" else f"{home}.{self.class_name}"

    def is_current(self, namespace: Mapping[str, Any]) -> bool:
        """Whether the class is still there. One that was defined anew has nothing of this."""
        if self.cls.__module__ != "__main__":
            return True
        found = namespace.get(self.class_name.partition(".")[0])
        for name in self.class_name.split(".")[1:]:
            found = getattr(found, name, None)
        return found is self.cls

    def told(self) -> Json:
        return {
            "className": self.class_name,
            "selector": self.selector,
            "kind": self.kind,
            "module": self.cls.__module__,
        }


@dataclass(frozen=True)
class FunctionChange:
    """A function that was given to a module."""

    owner: types.ModuleType
    selector: str
    source: str
    kind: str
    installed: Any
    previous: Any
    # Where else the replaced function was bound, such as by `from module import name`.
    bindings: tuple[tuple[dict[str, Any], str], ...]

    def undo(self) -> None:
        """Restore the function that was replaced. Raises InspectionError if another has replaced this one since."""
        if vars(self.owner).get(self.selector, ABSENT) is not self.installed:
            raise InspectionError(_overwritten(self.module, self.selector))
        for namespace, name in self.bindings:
            if namespace.get(name, ABSENT) is not self.installed:
                continue  # it has another meaning there by now
            if self.previous is ABSENT:
                del namespace[name]
            else:
                namespace[name] = self.previous

    @property
    def module(self) -> str:
        return self.owner.__name__

    @property
    def path(self) -> str:
        """By which the module is found again."""
        return self.module

    @property
    def class_name(self) -> str:
        return self.module

    def is_current(self, namespace: Mapping[str, Any]) -> bool:
        """Return whether the function is still there. One that was defined again since has nothing of this."""
        return self.module != "__main__" or self.selector in namespace

    def written_into(self, text: str) -> str | None:
        return with_function(text, self.source)

    def origin(self, own: Mapping[str, list[Statement]]) -> tuple[str, str]:
        # What was given to the session last is the change itself.
        return f"{self.selector}.py", ""

    def told(self) -> Json:
        return {"className": self.module, "selector": self.selector, "kind": self.kind, "module": self.module}


Change = MethodChange | FunctionChange


def _overwritten(owner: str, selector: str) -> str:
    return f"{owner}.{selector} was changed again since, by other code: define it instead of undoing the change."


class _ClassBody:
    """In the place of a metaclass: the body of a class statement runs among the members of a class that is there."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __prepare__(self, name: str, bases: tuple[type, ...]) -> dict[str, Any]:
        # So that a decorator such as @size.setter finds what it adds to.
        return dict(of_class(self._cls, "__dict__"))

    def __call__(self, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> dict[str, Any]:
        return members


def define(names: Names, class_name: str, source: str, file: str) -> Change:
    """Compile a method as if it stood in the class, or a function in the module, and put it there. `file` is the name
    of its text."""
    owner = names.find_owner(class_name)
    function = _function(source, file)
    if type(owner) is types.ModuleType:
        return _define_function(names, owner, function, source, file)
    cls = cast("type", owner)
    selector = _selector(cls, function.name)
    members = of_class(cls, "__dict__")
    if isinstance(members.get(selector), _SLOTS):
        raise InspectionError(f"{class_name}.{function.name} is where its objects keep a value, and no method.")
    before = _before(names, class_name, cls, selector)
    previous = members.get(selector, ABSENT)
    member = _compiled(cls, function, file, _globals(names, cls))[selector]
    if type(member) is type(members.get(selector)) is property:
        # Its other parts stand in the class still, below the one that is given anew.
        old = members[selector]
        member = property(member.fget, member.fset or old.fset, member.fdel or old.fdel, member.__doc__)
    try:
        type.__setattr__(cls, selector, member)
    except TypeError:
        raise InspectionError(f"{class_name} is written in C, and cannot be changed.") from None
    if hasattr(type(member), "__set_name__"):
        member.__set_name__(cls, selector)
    abc.update_abstractmethods(cls)
    full = of_class(cls, "__qualname__")
    kind = "added" if previous is ABSENT else "changed"
    return MethodChange(cls, full, selector, source, before, kind, member, previous)


def _define_function(
    names: Names, module: types.ModuleType, function: ast.stmt, source: str, file: str
) -> FunctionChange:
    """Bind the function in its module, and wherever the one that it replaces is bound."""
    selector: str = function.name  # type: ignore[attr-defined]
    namespace = vars(module)
    made: dict[str, Any] = {}
    # Among names of its own, so that a decorator that fails leaves the module as it was.
    exec(compile(ast.Module([function], []), file, "exec", dont_inherit=True), namespace, made)
    member, previous = made[selector], namespace.get(selector, ABSENT)
    if issubclass(type(previous), type):
        raise InspectionError(f"{module.__name__}.{selector} is a class. Evaluate its definition instead.")
    bindings = [(namespace, selector)]
    if previous is not ABSENT:
        spaces = [names.namespace, *(vars(one) for _, one in names.loaded())]
        bindings += [
            (space, name)
            for space in spaces
            if type(space) is dict and space is not namespace
            for name, value in list(space.items())
            if value is previous and type(name) is str
        ]
    for space, name in bindings:
        space[name] = member
    kind = "added" if previous is ABSENT else "changed"
    return FunctionChange(module, selector, source, kind, member, previous, tuple(bindings))


def _selector(cls: type, name: str) -> str:
    """What the class keeps a method by: of a private one, `_Class__name`."""
    owner = of_class(cls, "__name__").lstrip("_")
    is_private = name.startswith("__") and not name.endswith("__") and owner
    return f"_{owner}{name}" if is_private else name


def _function(source: str, file: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    match compile(source, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True):
        case ast.Module(body=[ast.FunctionDef() | ast.AsyncFunctionDef() as function]):
            return function
    raise InspectionError("A method is one `def`, with its decorators, as it stands in the class or the module.")


def _before(names: Names, class_name: str, cls: type, selector: str) -> str | None:
    if selector not in of_class(cls, "__dict__"):
        return None
    try:
        return str(questions.method_source(names, class_name, selector)["source"])
    except InspectionError:
        return None  # it is written in C, or was made without a text


def _globals(names: Names, cls: type) -> dict[str, Any]:
    """The names that the class's other methods see."""
    home = sys.modules.get(str(of_class(cls, "__module__")))
    if home is None or home.__name__ == names.namespace.get("__name__"):
        return names.namespace  # type: ignore[return-value]
    return vars(home)


def _compiled(cls: type, function: ast.stmt, file: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """The members of the class with the function in it. It is compiled in a class statement of the same name, so that
    `super()` and private names are those of the class."""
    name = of_class(cls, "__name__")
    keeper = ast.keyword("metaclass", ast.Name(_KEEPER, ast.Load()))
    more: dict[str, Any] = {"type_params": []} if sys.version_info >= (3, 12) else {}
    statement = ast.ClassDef(name=name, bases=[], keywords=[keeper], body=[function], decorator_list=[], **more)
    ast.copy_location(statement, function)
    module = ast.fix_missing_locations(ast.Module([statement], []))
    made: dict[str, Any] = {_KEEPER: _ClassBody(cls)}
    exec(compile(module, file, "exec", dont_inherit=True), namespace, made)
    members: dict[str, Any] = made[name]
    cell = members.get("__classcell__")
    if isinstance(cell, types.CellType):
        cell.cell_contents = cls
    return members


class ClassWatch:
    """Which classes of the session are others than before, and which of their members."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._seen: dict[str, dict[str, int]] = {}

    def changed(self) -> Json:
        """Since the last time, as a member of an answer; nothing if that is so."""
        now = {name: _members(cls) for name, cls in self._names.own_classes().items() if len(name) <= LONGEST_TOLD}
        before, self._seen = self._seen, now
        if before == now:
            return {}
        told = {name: _others(before.get(name, {}), now.get(name, {})) for name in {**before, **now}}
        changed = {name: members for name, members in told.items() if members or (name in before) != (name in now)}
        return {"changedClasses": dict(islice(changed.items(), MOST_TOLD))}


def _members(cls: type) -> dict[str, int]:
    """What a class has, by what is cheap to compare."""
    members = {name: id(one) for name, one in list(of_class(cls, "__dict__").items()) if type(name) is str}
    return {"": id(cls), **members}


def _others(before: dict[str, int], now: dict[str, int]) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name) and len(name) <= LONGEST_TOLD]
    return names[:MOST_TOLD]


# As a patch


def undo(made: list[Change], owner: type | types.ModuleType, selector: str) -> Change:
    """Undo the last change of this method or function, and take it out of the list. Raises InspectionError."""
    for at in range(len(made) - 1, -1, -1):
        change = made[at]
        changed = change.cls if isinstance(change, MethodChange) else change.owner
        if changed is owner and change.selector in (selector, _private(owner, selector)):
            change.undo()
            return made.pop(at)
    known = ", ".join(dict.fromkeys(f"{one.class_name}.{one.selector}" for one in made[-MOST_TOLD:]))
    raise InspectionError(f"{selector!r} was not changed here. Changed were: {known or 'none'}.")


def _private(owner: type | types.ModuleType, selector: str) -> str:
    return selector if type(owner) is types.ModuleType else _selector(cast("type", owner), selector)


def changes(made: Sequence[Change], projects: Sequence[str]) -> Json:
    """The changes, and what they come to: one patch, in which what was changed twice stands once."""
    patch = "".join(_patches(made, projects))
    return {
        "changes": [one.told() for one in made[-MOST_CHANGES:]],
        "total": len(made),
        "patch": shortened(patch, LONGEST_PATCH),
    }


def _patches(made: Sequence[Change], projects: Sequence[str]) -> list[str]:
    own = statements()
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for change in made:
        place, text, is_file = _written(change, own, projects)
        changed = change.written_into(after.get(place, text))
        if changed is None:
            # Its class stands nowhere in a text: then the method does, by itself.
            place, is_file, changed = f"{change.class_name}.{change.selector}.py", False, change.source
        before.setdefault(place, text if is_file else "")
        after[place] = changed
    return [_diff(place, before[place], after[place]) for place in before]


def _written(change: Change, own: dict[str, list[Statement]], projects: Sequence[str]) -> tuple[str, str, bool]:
    """Return where the class or module of a change is written, as a patch names it, its text, and whether it is a
    file."""
    module = sys.modules.get(change.module)
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return *change.origin(own), False
    try:
        with open(path, encoding="utf-8") as file:
            return _place(path, change.module, projects), file.read(LONGEST_FILE), True
    except (OSError, ValueError):
        return change.origin(own)[0], "", False


def _place(path: str, module: str, projects: Sequence[str]) -> str:
    for project in projects:
        if path.startswith(project.rstrip(os.sep) + os.sep):
            return os.path.relpath(path, project)
    name = module.replace(".", "/")
    return f"{name}/__init__.py" if path.endswith("__init__.py") else f"{name}.py"


def _diff(place: str, before: str, after: str) -> str:
    """What stands in no file yet gets one: a class of the session with all its changes."""
    old = f"a/{place}" if before else "/dev/null"
    lines = unified_diff(before.splitlines(True), after.splitlines(True), old, f"b/{place}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
