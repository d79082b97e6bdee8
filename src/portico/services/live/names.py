"""From a name to what it stands for in an image."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from portico.services.live.display import one_line

# Comparing names takes time, so not all of them are.
MOST_COMPARED = 5000
LONGEST_NAME = 200

_OURS = "portico.services.live"
_MISSING = object()


class InspectionError(Exception):
    """Why an operation has no result, in words for the caller."""


class Names:
    """The names of a namespace, of Python itself, and of modules. `imports`: also of modules not loaded yet."""

    def __init__(self, namespace: Mapping[str, Any], *, imports: bool) -> None:
        self.namespace = namespace
        self.imports = imports

    # Modules

    def loaded(self) -> Iterator[tuple[str, ModuleType]]:
        """The modules that are there, without our own."""
        for name, module in list(sys.modules.items()):
            if type(module) is ModuleType and not name.startswith(_OURS) and name != "__main__":
                yield name, module

    def module(self, name: str) -> ModuleType:
        if not name or len(name) > LONGEST_NAME or not all(part.isidentifier() for part in name.split(".")):
            raise InspectionError(f"{one_line(name, 60)!r} is not the name of a package.")
        try:
            found = importlib.import_module(name) if self.imports else sys.modules[name]
        except KeyError:
            raise InspectionError(f"The package {name!r} is not loaded in this application.") from None
        except ModuleNotFoundError as missing:
            if missing.name is not None and not f"{name}.".startswith(f"{missing.name}."):
                raise InspectionError(f"The package {name!r} needs {missing.name!r}, which is not installed.") from None
            raise InspectionError(f"There is no package {name!r}.{self._meant(name, self._tops())}") from None
        return found

    @staticmethod
    def _tops() -> Iterator[str]:
        return (name for name in sys.stdlib_module_names if not name.startswith("_"))

    # Classes

    def own_classes(self) -> dict[str, type]:
        """The classes of the namespace that were defined in it."""
        home = self.namespace.get("__name__", "__main__")
        found = {}
        for name, value in list(self.namespace.items()):
            if isinstance(value, type) and getattr(value, "__module__", None) == home:
                found[name] = value
        return found

    def classes(self) -> Iterator[tuple[str, type]]:
        """Every class there is, with its full name: those of the namespace first."""
        yield from self.own_classes().items()
        for name, value in vars(builtins).items():
            if isinstance(value, type):
                yield name, value
        for module_name, module in self.loaded():
            if module is builtins:
                continue
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and getattr(value, "__module__", None) == module_name:
                    yield f"{module_name}.{name}", value

    def find_class(self, name: str) -> type:
        found = self._find(name)
        if isinstance(found, type):
            return found
        if found is not _MISSING:
            raise InspectionError(f"{name!r} is not a class, it is a {type(found).__name__}.")
        same = {full: cls for full, cls in self.classes() if full.rpartition(".")[2] == name}
        if len({id(cls) for cls in same.values()}) == 1:
            return next(iter(same.values()))
        if same:
            raise InspectionError(f"There are several classes {name!r}: {', '.join(sorted(same)[:10])}.")
        raise InspectionError(
            f"There is no class {one_line(name, 60)!r}.{self._meant(name, (full for full, _ in self.classes()))}"
        )

    def _find(self, name: str) -> Any:
        parts = name.split(".")
        if not name or len(name) > LONGEST_NAME or not all(part.isidentifier() for part in parts):
            raise InspectionError(f"{one_line(name, 60)!r} is not the name of a class.")
        for start in (self.namespace, vars(builtins)):
            if parts[0] in start:
                found = self._member(start[parts[0]], parts[1:])
                if found is not _MISSING:
                    return found
        for end in range(len(parts) - 1, 0, -1):
            try:
                module = self.module(".".join(parts[:end]))
            except InspectionError:
                continue
            return self._member(module, parts[end:])
        return _MISSING

    @staticmethod
    def _member(value: Any, path: list[str]) -> Any:
        for name in path:
            value = inspect.getattr_static(value, name, _MISSING)
            if value is _MISSING:
                return _MISSING
        return value

    @staticmethod
    def _meant(name: str, known: Iterable[str]) -> str:
        close = get_close_matches(name, list(islice(known, MOST_COMPARED)), n=3)
        return f" Did you mean {' or '.join(close)}?" if close else ""

    # Values, without running anything

    def follow(self, expression: str) -> Any:
        """The value of a path like `app.users["ada"].orders[0]`, found without calling any code of the application."""
        try:
            tree = ast.parse(expression.strip(), mode="eval").body
        except SyntaxError:
            raise InspectionError(f"{one_line(expression, 60)!r} is no expression.") from None
        return self._follow(tree)

    def _follow(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            for start in (self.namespace, vars(builtins)):
                if node.id in start:
                    return start[node.id]
            raise InspectionError(f"There is no name {node.id!r}.{self._meant(node.id, self.namespace)}")
        if isinstance(node, ast.Attribute):
            return static(self._follow(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return self._item(self._follow(node.value), node.slice)
        raise InspectionError(
            "Only names are followed here, with .attributes and [constants]: evaluating is switched off."
        )

    @staticmethod
    def _item(value: Any, key: ast.expr) -> Any:
        try:
            constant = ast.literal_eval(key)
        except ValueError:
            raise InspectionError("Only constants may stand in brackets here: evaluating is switched off.") from None
        # The subscript of a subclass could run any code.
        if type(value) not in (dict, list, tuple, str, bytes):
            raise InspectionError(f"A {type(value).__name__} is not looked into here: evaluating is switched off.")
        try:
            return value[constant]
        except (LookupError, TypeError) as failure:
            raise InspectionError(f"{type(failure).__name__}: {failure}") from None


def static(value: Any, name: str) -> Any:
    """An attribute as it is stored. What would have to be computed is refused."""
    found = inspect.getattr_static(value, name, _MISSING)
    if found is _MISSING:
        raise InspectionError(f"{type(value).__name__!r} object has no attribute {name!r}.")
    if isinstance(found, MemberDescriptorType | GetSetDescriptorType):
        try:
            return found.__get__(value)
        except AttributeError:
            raise InspectionError(f"{name!r} has no value.") from None
    if isinstance(found, property):
        raise InspectionError(f"{name!r} is a property: looking at it would run code, and evaluating is switched off.")
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found
