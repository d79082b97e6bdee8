"""From a name to what it stands for in an image."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, cast

from portico_services.livepython.sandbox.display import kind_name, of_class, one_line

# Comparing names takes time, so not all of them are.
MOST_COMPARED = 5000
LONGEST_NAME = 200

_OURS = "portico_services.livepython"
_MISSING = object()


class InspectionError(Exception):
    """Why an operation has no result, in words for the caller."""

    # The member of a worker's reply that carries the text.
    member = "refusal"


class NameNotFound(InspectionError):
    """The class, package, method or name that was asked for does not exist."""

    member = "missing"


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
            raise NameNotFound(f"The package {name!r} is not loaded in this application.") from None
        except ModuleNotFoundError as missing:
            if missing.name is not None and not f"{name}.".startswith(f"{missing.name}."):
                raise InspectionError(f"The package {name!r} needs {missing.name!r}, which is not installed.") from None
            raise NameNotFound(f"There is no package {name!r}.{self._meant(name, self._tops())}") from None
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
            if issubclass(type(value), type) and _is_of(value, home):
                found[name] = value
        return found

    def classes(self) -> Iterator[tuple[str, type]]:
        """Every class there is, with its full name: those of the namespace first."""
        yield from self.own_classes().items()
        for name, value in vars(builtins).items():
            if issubclass(type(value), type):
                yield name, value
        for module_name, module in self.loaded():
            if module is builtins:
                continue
            for name, value in list(vars(module).items()):
                if issubclass(type(value), type) and _is_of(value, module_name):
                    yield f"{module_name}.{name}", value

    def find_class(self, name: str) -> type:
        found = self._find(name)
        # By its type: an object can claim to be an instance of anything, and run code to say so.
        if issubclass(type(found), type):
            return cast("type", found)
        if found is not _MISSING:
            raise InspectionError(f"{name!r} is not a class, it is a {kind_name(found)}.")
        same = {full: cls for full, cls in self.classes() if full.rpartition(".")[2] == name}
        if len({id(cls) for cls in same.values()}) == 1:
            return next(iter(same.values()))
        if same:
            raise InspectionError(f"There are several classes {name!r}: {', '.join(sorted(same)[:10])}.")
        raise NameNotFound(
            f"There is no class {one_line(name, 60)!r}.{self._meant(name, (full for full, _ in self.classes()))}"
        )

    def find_owner(self, name: str) -> type | ModuleType:
        """Return the class with this name, or else the module: `__main__` is the session. Raises InspectionError."""
        if name == "__main__":
            found = sys.modules.get(name)
            if found is not None and vars(found) is self.namespace:
                return found
            raise InspectionError("The functions of an application are those of its modules: name one of them.")
        found = self._find(name)
        if type(found) is ModuleType:
            return found
        try:
            return self.find_class(name)
        except InspectionError as refusal:
            if found is not _MISSING:
                raise
            try:
                return self.module(name)
            except InspectionError:
                raise refusal from None

    def member_classes(self, name: str) -> Iterator[str]:
        """Return the classes that a module or a class has under its own name, wherever they are defined."""
        try:
            owner = self.find_owner(name)
        except InspectionError:
            return
        for member, value in list(members_of(owner).items()):
            if type(member) is str and issubclass(type(value), type):
                yield f"{name}.{member}"

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
            value = stored(value, name)
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
            raise NameNotFound(f"There is no name {node.id!r}.{self._meant(node.id, self.namespace)}")
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
            raise InspectionError(f"A {kind_name(value)} is not looked into here: evaluating is switched off.")
        try:
            return _at(value, constant) if type(value) is dict else value[constant]
        except (LookupError, TypeError) as failure:
            raise InspectionError(f"{type(failure).__name__}: {failure}") from None


def static(value: Any, name: str) -> Any:
    """An attribute as it is stored. What would have to be computed is refused."""
    found = stored(value, name)
    if found is _MISSING:
        raise NameNotFound(f"{kind_name(value)!r} object has no attribute {name!r}.")
    kind = type(found)
    if issubclass(kind, MemberDescriptorType | GetSetDescriptorType):
        try:
            return found.__get__(value)
        except AttributeError:
            raise InspectionError(f"{name!r} has no value.") from None
    if issubclass(kind, property):
        raise InspectionError(f"{name!r} is a property: looking at it would run code, and evaluating is switched off.")
    return behind(found) if issubclass(kind, staticmethod | classmethod) else found


def stored(value: Any, name: str) -> Any:
    """An attribute where it is kept, and what computes it where it is computed; `inspect.getattr_static` asks
    metaclasses on the way."""
    in_class = _in_classes(of_class(type(value), "__mro__"), name)
    if issubclass(type(value), type):
        found = _in_classes(of_class(value, "__mro__"), name)
        return in_class if found is _MISSING else found
    if in_class is not _MISSING and is_computed(in_class):
        return in_class
    try:
        return _at(own_members(value), name)
    except KeyError:
        return in_class


def own_members(value: Any) -> Any:
    """What the object itself has, not its class: past whatever that does when it is asked for an attribute."""
    kept = _in_classes(of_class(type(value), "__mro__"), "__dict__")
    members = kept.__get__(value) if type(kept) in (GetSetDescriptorType, MemberDescriptorType) else {}
    return members if type(members) in (dict, MappingProxyType) else {}


def is_computed(found: Any) -> bool:
    """Whether an attribute is what a data descriptor makes of it."""
    return any(
        {"__set__", "__delete__"} & of_class(base, "__dict__").keys() for base in of_class(type(found), "__mro__")
    )


def _in_classes(classes: tuple[type, ...], name: str) -> Any:
    return next((members[name] for one in classes if name in (members := of_class(one, "__dict__"))), _MISSING)


def behind(found: Any) -> Any:
    """The function of a static or class method, whatever a subclass of those does when it is asked."""
    owner = staticmethod if issubclass(type(found), staticmethod) else classmethod
    return vars(owner)["__func__"].__get__(found)


def members_of(owner: type | ModuleType) -> Mapping[str, Any]:
    """Return what a class or a module has itself."""
    members: Mapping[str, Any] = vars(owner) if type(owner) is ModuleType else of_class(cast("type", owner), "__dict__")
    return members


def _is_of(cls: type, module: Any) -> bool:
    said = of_class(cls, "__module__")
    return type(said) is str and said == module


_PLAIN = (str, bytes, int, float, bool, complex, type(None), type(...))


def _at(value: Mapping[Any, Any], constant: Any) -> Any:
    """What a dict has for a constant. Looking it up would compare it with keys of other kinds, by their own code."""
    hash(constant)  # what cannot be a key is refused as Python would
    for key, one in list(value.items()):
        if _is_plain(key) and key == constant:
            return one
    raise KeyError(constant)


def _is_plain(key: Any) -> bool:
    return type(key) in _PLAIN or (type(key) is tuple and all(map(_is_plain, key)))
