"""Resolution of names to objects in a session."""

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

from portico_services.livepython.sandbox.display import class_attribute, truncate_line, type_name

# Fuzzy matching is slow, so the number of candidates is limited.
MAX_COMPARED_NAMES = 5000
MAX_NAME_CHARS = 200

_OWN_PACKAGE = "portico_services.livepython"
_MISSING = object()


class InspectionError(Exception):
    """An operation failed; the message is for the caller."""

    # The member of a worker's reply that carries the message.
    member = "refusal"


class NameNotFound(InspectionError):
    """The requested class, package, method or name does not exist."""

    member = "missing"


class NameResolver:
    """Resolves names in a namespace, the builtins and modules. `imports` allows importing modules."""

    def __init__(self, namespace: Mapping[str, Any], *, imports: bool) -> None:
        self.namespace = namespace
        self.imports = imports

    # Modules

    def loaded_modules(self) -> Iterator[tuple[str, ModuleType]]:
        """Yield the loaded modules, except the modules of this package."""
        for name, module in list(sys.modules.items()):
            # Exactly ModuleType: attribute access on a lazy module could import it or run other code.
            if type(module) is ModuleType and not name.startswith(_OWN_PACKAGE) and name != "__main__":
                yield name, module

    def module(self, name: str) -> ModuleType:
        if not name or len(name) > MAX_NAME_CHARS or not all(part.isidentifier() for part in name.split(".")):
            raise InspectionError(f"{truncate_line(name, 60)!r} is not the name of a package.")
        try:
            result = importlib.import_module(name) if self.imports else sys.modules[name]
        except KeyError:
            raise NameNotFound(f"The package {name!r} is not loaded in this application.") from None
        except ModuleNotFoundError as missing:
            # The package exists, but one of its own imports is missing; reporting it as unknown would mislead.
            if missing.name is not None and not f"{name}.".startswith(f"{missing.name}."):
                raise InspectionError(f"The package {name!r} needs {missing.name!r}, which is not installed.") from None
            raise NameNotFound(
                f"Unknown package {name!r}.{self._did_you_mean(name, self._top_level_names())}"
            ) from None
        return result

    @staticmethod
    def _top_level_names() -> Iterator[str]:
        return (name for name in sys.stdlib_module_names if not name.startswith("_"))

    # Classes

    def session_classes(self) -> dict[str, type]:
        """Return the classes that were defined in the namespace."""
        home = self.namespace.get("__name__", "__main__")
        result = {}
        for name, value in list(self.namespace.items()):
            if issubclass(type(value), type) and _is_of(value, home):
                result[name] = value
        return result

    def classes(self) -> Iterator[tuple[str, type]]:
        """Yield every loaded class with its full name, starting with the classes of the namespace."""
        yield from self.session_classes().items()
        for name, value in vars(builtins).items():
            if issubclass(type(value), type):
                yield name, value
        for module_name, module in self.loaded_modules():
            if module is builtins:
                continue
            for name, value in list(vars(module).items()):
                if issubclass(type(value), type) and _is_of(value, module_name):
                    yield f"{module_name}.{name}", value

    def find_class(self, name: str) -> type:
        result = self._find(name)
        # Check the type itself: an object can override `__class__` and run code.
        if issubclass(type(result), type):
            return cast("type", result)
        if type(result) is ModuleType:
            raise InspectionError(
                f"{name!r} is a module, not a class. list_classes lists its classes, search_methods its functions."
            )
        if result is not _MISSING:
            raise InspectionError(f"{name!r} is not a class, it is a {type_name(result)}.")
        # Last resort: a bare name that is unique among all loaded classes.
        same = {full: cls for full, cls in self.classes() if full.rpartition(".")[2] == name}
        if len({id(cls) for cls in same.values()}) == 1:
            return next(iter(same.values()))
        if same:
            raise InspectionError(f"{name!r} is ambiguous: {', '.join(sorted(same)[:10])}.")
        raise NameNotFound(
            "Unknown class "
            f"{truncate_line(name, 60)!r}.{self._did_you_mean(name, (full for full, _ in self.classes()))}"
        )

    def find_owner(self, name: str) -> type | ModuleType:
        """Return the class with this name, or else the module; `__main__` is the session. Raises InspectionError."""
        if name == "__main__":
            module = sys.modules.get(name)
            if module is not None and vars(module) is self.namespace:
                return module
            raise InspectionError("Functions of an application belong to its modules: pass a module name.")
        module = self._find(name)
        if type(module) is ModuleType:
            return module
        try:
            return self.find_class(name)
        except InspectionError as refusal:
            if module is not _MISSING:
                raise
            try:
                return self.module(name)
            except InspectionError:
                raise refusal from None

    def member_classes(self, name: str) -> Iterator[str]:
        """Yield the names of the classes that a module or class contains, wherever they are defined."""
        try:
            owner = self.find_owner(name)
        except InspectionError:
            return
        for member, value in list(members_of(owner).items()):
            if type(member) is str and issubclass(type(value), type):
                yield f"{name}.{member}"

    def _find(self, name: str) -> Any:
        parts = name.split(".")
        if not name or len(name) > MAX_NAME_CHARS or not all(part.isidentifier() for part in parts):
            raise InspectionError(f"{truncate_line(name, 60)!r} is not the name of a class.")
        for start in (self.namespace, vars(builtins)):
            if parts[0] in start:
                result = self._member(start[parts[0]], parts[1:])
                if result is not _MISSING:
                    return result
        # The longest module prefix wins: `a.b.C` is the class C of a.b, and not an attribute of a.
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
            value = stored_attribute(value, name)
            if value is _MISSING:
                return _MISSING
        return value

    @staticmethod
    def _did_you_mean(name: str, candidates: Iterable[str]) -> str:
        close = get_close_matches(name, list(islice(candidates, MAX_COMPARED_NAMES)), n=3)
        return f" Did you mean {' or '.join(close)}?" if close else ""

    # Values, without running code

    def evaluate_path(self, expression: str) -> Any:
        """Return the value of a path like `app.users["ada"].orders[0]`, without calling any code of the application."""
        try:
            tree = ast.parse(expression.strip(), mode="eval").body
        except SyntaxError:
            raise InspectionError(f"{truncate_line(expression, 60)!r} is not an expression.") from None
        return self._follow(tree)

    def _follow(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            for start in (self.namespace, vars(builtins)):
                if node.id in start:
                    return start[node.id]
            raise NameNotFound(f"Unknown name {node.id!r}.{self._did_you_mean(node.id, self.namespace)}")
        if isinstance(node, ast.Attribute):
            return static_attribute(self._follow(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return self._item(self._follow(node.value), node.slice)
        raise InspectionError("Only names with .attributes and [constants] can be inspected: evaluation is disabled.")

    @staticmethod
    def _item(value: Any, key: ast.expr) -> Any:
        try:
            # literal_eval accepts only literals, so no name in the brackets is looked up or called.
            constant = ast.literal_eval(key)
        except ValueError:
            raise InspectionError("Only constants are allowed in brackets: evaluation is disabled.") from None
        # Subscripting a subclass could run code.
        if type(value) not in (dict, list, tuple, str, bytes):
            raise InspectionError(f"Items of a {type_name(value)} cannot be inspected: evaluation is disabled.")
        try:
            return _lookup_key(value, constant) if type(value) is dict else value[constant]
        except (LookupError, TypeError) as failure:
            raise InspectionError(f"{type(failure).__name__}: {failure}") from None


def static_attribute(value: Any, name: str) -> Any:
    """Return a stored attribute. Raises InspectionError if it would have to be computed."""
    result = stored_attribute(value, name)
    if result is _MISSING:
        raise NameNotFound(f"{type_name(value)!r} object has no attribute {name!r}.")
    kind = type(result)
    if issubclass(kind, MemberDescriptorType | GetSetDescriptorType):
        try:
            return result.__get__(value)
        except AttributeError:
            raise InspectionError(f"{name!r} has no value.") from None
    if issubclass(kind, property):
        raise InspectionError(f"{name!r} is a property: reading it would run code, and evaluation is disabled.")
    return unwrap_method(result) if issubclass(kind, staticmethod | classmethod) else result


def stored_attribute(value: Any, name: str) -> Any:
    """Return an attribute as stored, or its descriptor. Unlike `inspect.getattr_static`, never run a metaclass."""
    in_class = _in_classes(class_attribute(type(value), "__mro__"), name)
    if issubclass(type(value), type):
        result = _in_classes(class_attribute(value, "__mro__"), name)
        return in_class if result is _MISSING else result
    # Data descriptors take precedence over the instance, as in object.__getattribute__.
    if in_class is not _MISSING and is_computed(in_class):
        return in_class
    try:
        return _lookup_key(instance_members(value), name)
    except KeyError:
        return in_class


def instance_members(value: Any) -> Any:
    """Return the attributes of the object itself, bypassing `__getattribute__`."""
    kept = _in_classes(class_attribute(type(value), "__mro__"), "__dict__")
    members = kept.__get__(value) if type(kept) in (GetSetDescriptorType, MemberDescriptorType) else {}
    return members if type(members) in (dict, MappingProxyType) else {}


def is_computed(member: Any) -> bool:
    """Return whether the attribute is a data descriptor."""
    return any(
        {"__set__", "__delete__"} & class_attribute(base, "__dict__").keys()
        for base in class_attribute(type(member), "__mro__")
    )


def _in_classes(classes: tuple[type, ...], name: str) -> Any:
    return next((members[name] for cls in classes if name in (members := class_attribute(cls, "__dict__"))), _MISSING)


def unwrap_method(member: Any) -> Any:
    """Return the function of a static or class method, bypassing overrides in subclasses of those."""
    owner = staticmethod if issubclass(type(member), staticmethod) else classmethod
    return vars(owner)["__func__"].__get__(member)


def members_of(owner: type | ModuleType) -> Mapping[str, Any]:
    """Return the members that a class or a module defines itself."""
    members: Mapping[str, Any] = (
        vars(owner) if type(owner) is ModuleType else class_attribute(cast("type", owner), "__dict__")
    )
    return members


def _is_of(cls: type, module: Any) -> bool:
    module_name = class_attribute(cls, "__module__")
    return type(module_name) is str and module_name == module


_PLAIN_KEY_TYPES = (str, bytes, int, float, bool, complex, type(None), type(...))


def _lookup_key(value: Mapping[Any, Any], constant: Any) -> Any:
    """Return the value for a constant key.

    Normal lookup could compare the constant with keys of other types, which would run their `__eq__`.
    """
    hash(constant)  # raises TypeError for an unhashable key, like Python
    for key, item in list(value.items()):
        if _is_plain(key) and key == constant:
            return item
    raise KeyError(constant)


def _is_plain(key: Any) -> bool:
    return type(key) in _PLAIN_KEY_TYPES or (type(key) is tuple and all(map(_is_plain, key)))
