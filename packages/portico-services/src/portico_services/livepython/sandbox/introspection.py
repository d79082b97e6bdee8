"""Questions about an image: packages, classes, methods, objects, and who uses what."""

from __future__ import annotations

import ast
import functools
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain, islice
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, cast

from portico_services.livepython.sandbox.display import clean, kind_name, of_class, one_line, repr_of, shortened
from portico_services.livepython.sandbox.name_resolution import (
    InspectionError,
    NameNotFound,
    Names,
    behind,
    is_computed,
    members_of,
    own_members,
    static,
)
from portico_services.livepython.sandbox.project_imports import listed

MOST_PACKAGES = 1000
MOST_CLASSES = 1000
MOST_MEMBERS = 300
MOST_FOUND = 200
MOST_ITEMS = 50
MOST_FILES = 500
MOST_VALUES = 100
LONGEST_DOC = 4000
LONGEST_SOURCE = 64 * 1024
LONGEST_FILE = 2_000_000

# Functions of classes that are written in C.
_IN_C = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, *_IN_C)
_AROUND_FUNCTIONS = (functools.cached_property, functools.partialmethod, functools.singledispatchmethod)
_SIZED = (dict, list, tuple, set, frozenset, str, bytes, bytearray, range)

Json = dict[str, Any]


# Packages


def _field(metadata: Any, name: str) -> str:
    # From Python 3.13 on, asking for a field that is not there is deprecated.
    return metadata[name] or "" if name in metadata else ""


def packages(pattern: str | None = None) -> Json:
    """What is installed, then what comes with Python."""
    from importlib.metadata import distributions  # brings a good deal with it, for this one question

    found: dict[str, Json] = {}
    for one in distributions():
        name = _field(one.metadata, "Name")
        if name and _matches(name, pattern):
            about = {"name": name, "kind": "installed", "version": one.version}
            found[name] = about | {"summary": one_line(_field(one.metadata, "Summary"))}
    for name in listed():
        if name not in found and _matches(name, pattern):
            found[name] = {"name": name, "kind": "project"}
    standard = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    packages = sorted(found.values(), key=lambda one: one["name"].lower())
    packages += [{"name": name, "kind": "standard"} for name in standard if _matches(name, pattern)]
    return {"packages": packages[:MOST_PACKAGES], "total": len(packages)}


def _matches(name: str, pattern: str | None) -> bool:
    """A pattern with * or ? is one; anything else is a part of the name."""
    if not pattern:
        return True
    name, pattern = name.lower(), pattern.lower()
    return fnmatchcase(name, pattern) if set("*?[") & set(pattern) else pattern in name


# Classes


def classes(names: Names, package: str) -> Json:
    """The classes of a package and its modules, or with the name "__main__" those of the session."""
    if package in ("", "__main__"):
        found = [_brief(name, cls) for name, cls in names.own_classes().items()]
    else:
        module = names.module(package)
        live = {
            _full_name(cls): cls
            for cls in list(vars(module).values())
            if issubclass(type(cls), type) and f"{of_class(cls, '__module__')}.".startswith(f"{package}.")
        }
        found = [_brief(full, cls) for full, cls in live.items()]
        written = (one for one in _written(module, package) if one["qualifiedName"] not in live)
        found += islice(written, MOST_CLASSES)
    found.sort(key=lambda one: one["qualifiedName"])
    return {"package": package, "classes": found[:MOST_CLASSES], "total": len(found)}


def _brief(full: str, cls: type) -> Json:
    return {"name": of_class(cls, "__name__"), "qualifiedName": full, "summary": _summary(cls)}


def _full_name(cls: type) -> str:
    return f"{of_class(cls, '__module__')}.{of_class(cls, '__qualname__')}"


def _doc(value: Any) -> str:
    """What a class or a function says it is for, if that is a text; it is not computed."""
    if issubclass(type(value), type):
        said = of_class(value, "__dict__").get("__doc__")
    elif type(value) in _FUNCTIONS:
        said = value.__doc__
    else:
        said = next(
            (of_class(cls, "__dict__")["__doc__"] for cls in _bases(value) if "__doc__" in of_class(cls, "__dict__")),
            None,
        )
    return said if type(said) is str else ""


def _bases(value: Any) -> tuple[type, ...]:
    bases: tuple[type, ...] = of_class(type(value), "__mro__")
    return bases


def _written(module: ModuleType, package: str) -> Iterator[Json]:
    """The classes in the text of a package's modules, which need not be imported for it."""
    for name, path in islice(sources(module, package), MOST_FILES):
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef):
                summary = one_line((ast.get_docstring(node) or "").partition("\n")[0])
                yield {"name": node.name, "qualifiedName": f"{name}.{node.name}", "summary": summary}


def sources(module: ModuleType, package: str) -> Iterator[tuple[str, str]]:
    """The modules of a package and the files they are in."""
    pending = [(list(getattr(module, "__path__", ())), package)]
    while pending:
        paths, prefix = pending.pop()
        for finder, name, is_package in pkgutil.iter_modules(paths):
            spec = finder.find_spec(name)  # type: ignore[call-arg]
            if spec is None or spec.origin is None:
                continue
            if spec.origin.endswith(".py"):
                yield f"{prefix}.{name}", spec.origin
            if is_package and spec.submodule_search_locations:
                pending.append((list(spec.submodule_search_locations), f"{prefix}.{name}"))


def _tree(path: str) -> ast.Module:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(LONGEST_FILE))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def class_details(names: Names, className: str) -> Json:
    cls = names.find_class(className)
    methods = [_method(cls, name) for name in islice(_selectors(cls), MOST_MEMBERS)]
    superclass = of_class(cls, "__base__")
    return {
        "name": of_class(cls, "__name__"),
        "qualifiedName": _full_name(cls),
        "module": str(of_class(cls, "__module__")),
        "superclass": None if superclass is None else of_class(superclass, "__name__"),
        "bases": [of_class(base, "__qualname__") for base in of_class(cls, "__bases__")],
        "mro": [of_class(base, "__qualname__") for base in of_class(cls, "__mro__")],
        "doc": shortened(inspect.cleandoc(_doc(cls)), LONGEST_DOC),
        "fields": _fields(cls)[:MOST_MEMBERS],
        "instanceVariables": _instance_variables(cls)[:MOST_MEMBERS],
        "methods": methods,
        "methodCount": sum(1 for _ in _selectors(cls)),
        "subclasses": _subclasses(cls),
    }


def _subclasses(cls: type) -> list[str]:
    found: list[type] = type.__subclasses__(cls)
    return [of_class(one, "__qualname__") for one in found[:MOST_ITEMS]]


def _selectors(owner: type | ModuleType) -> Iterator[str]:
    return (name for name, value in list(members_of(owner).items()) if _function(value) is not None)


def _function(value: Any) -> Any:
    """The function behind a member of a class, or None if there is none."""
    kind = type(value)
    if issubclass(kind, staticmethod | classmethod):
        value = behind(value)
    elif issubclass(kind, property):
        value = vars(property)["fget"].__get__(value)
    elif issubclass(kind, _AROUND_FUNCTIONS):
        value = static(value, "func")
    elif kind not in _FUNCTIONS and not _is_bound(kind):
        return None  # also what can be called, if a class has it as it has a number
    return value if callable(value) and not issubclass(type(value), type) else None


def _is_bound(kind: type) -> bool:
    """Whether a member of this type becomes a method of the object that is asked for it."""
    if issubclass(kind, functools.partial):
        return False  # the __get__ that it has in Python 3.13 only warns
    return any("__get__" in of_class(base, "__dict__") for base in of_class(kind, "__mro__"))


def _method(owner: type | ModuleType, name: str) -> Json:
    value = members_of(owner)[name]
    kinds = {staticmethod: "static", classmethod: "class", property: "property", functools.cached_property: "property"}
    function = _function(value)
    plain = "function" if type(owner) is ModuleType else "method"
    kind = kinds.get(type(value), "async" if _is_async(function) else plain)
    return {"name": name, "kind": kind, "signature": _signature(function), "summary": _summary(function)}


def _is_async(function: Any) -> bool:
    return type(function) is FunctionType and inspect.iscoroutinefunction(function)


def _signature(function: Any) -> str:
    # Of a callable object, and of a class with a metaclass of its own, it would have to be asked for.
    if type(function) not in (*_FUNCTIONS, type):
        return "(…)"
    try:
        return one_line(str(inspect.signature(function)))
    except (ValueError, TypeError):
        return "(…)"  # most of what is written in C does not say


def _summary(value: Any) -> str:
    return one_line(_doc(value).strip().partition("\n")[0])


def _fields(cls: type) -> list[Json]:
    """What a class has besides methods: annotated names, slots, and values."""
    found = {name: {"name": name, "type": _type_name(hint)} for name, hint in _annotations(cls).items()}
    for name, value in list(of_class(cls, "__dict__").items()):
        if name.startswith("__") or _function(value) is not None:
            continue
        field = found.setdefault(name, {"name": name, "type": kind_name(value)})
        if not is_computed(value):
            field["value"] = one_line(repr_of(value))
    return list(found.values())


def _annotations(cls: type) -> dict[str, Any]:
    stored = of_class(cls, "__dict__").get("__annotations__")
    if type(stored) is dict:
        return stored
    if type(cls) is not type:
        return {}
    try:
        return inspect.get_annotations(cls)
    except Exception:
        return {}  # they are computed, and name something that is not there


def _type_name(hint: Any) -> str:
    return one_line(
        hint if type(hint) is str else of_class(hint, "__name__") if issubclass(type(hint), type) else repr_of(hint)
    )


def _instance_variables(cls: type) -> list[str]:
    """The names its instances have: annotated, in slots, or assigned to in `__init__`."""
    found = dict.fromkeys(_slots(cls))
    found |= dict.fromkeys(name for name, hint in _annotations(cls).items() if not _is_of_class(hint))
    init = of_class(cls, "__dict__").get("__init__")
    if type(init) is FunctionType:
        found |= dict.fromkeys(_assigned(init))
    return list(found)


def _is_of_class(hint: Any) -> bool:
    """Whether an annotation says that the class has the value, and not its instances."""
    return _type_name(hint).removeprefix("typing.").startswith("ClassVar")


def _slots(cls: type) -> list[str]:
    slots = of_class(cls, "__dict__").get("__slots__", ())
    if type(slots) is str:
        return [slots]
    return [one for one in slots if type(one) is str] if type(slots) in (tuple, list, dict, set, frozenset) else []


def _assigned(init: FunctionType) -> Iterator[str]:
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(init)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


# Methods


def method_source(names: Names, className: str, selector: str) -> Json:
    """Return the source of a method of a class, its own or an inherited one, or of a function of a module."""
    cls = names.find_owner(className)
    bases = (cls,) if type(cls) is ModuleType else of_class(cast("type", cls), "__mro__")
    for owner in bases:
        if selector in members_of(owner):
            break
    else:
        known = [name for base in bases for name in members_of(base)]
        raise NameNotFound(f"{className} has no {selector!r}.{names._meant(selector, known)}")
    member = members_of(owner)[selector]
    function = _function(member)
    if function is None:
        word = "function" if type(cls) is ModuleType else "method"
        raise InspectionError(f"{className}.{selector} is not a {word}, it is a {kind_name(member)}.")
    try:
        if type(function) is not FunctionType:
            raise TypeError
        function = _unwrapped(function)
        lines, line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        why = "has no source here" if type(function) is FunctionType else "is written in C"
        raise InspectionError(
            f"{className}.{selector} {why}. {_signature(function)} {_summary(function)}".rstrip()
        ) from None
    return {
        "className": _owner_name(cls),
        "selector": selector,
        "definedIn": str(function.__module__) if type(cls) is ModuleType else _owner_name(owner),
        "kind": _method(owner, selector)["kind"],
        "line": line,
        "source": shortened(inspect.cleandoc("\n" + "".join(lines)), LONGEST_SOURCE),
    }


def _owner_name(owner: type | ModuleType) -> str:
    name: str = owner.__name__ if type(owner) is ModuleType else of_class(cast("type", owner), "__qualname__")
    return name


def search_methods(names: Names, pattern: str, className: str | None = None, includeSuper: bool = False) -> Json:
    """Find methods by a part of their name or a pattern with * and ?: of one class, of all classes, or the functions
    of one module."""
    searched: list[tuple[str, type | ModuleType]]
    if className:
        cls = names.find_owner(className)
        bases = of_class(cast("type", cls), "__mro__") if includeSuper and type(cls) is not ModuleType else (cls,)
        searched = [(_owner_name(base), base) for base in bases]
    else:
        searched = list(names.classes())
    found: list[Json] = []
    total = 0
    for full, cls in searched:
        for selector in _selectors(cls):
            if _matches(selector, pattern):
                total += 1
                if len(found) < MOST_FOUND:
                    found.append({"className": full, **_method(cls, selector), "selector": selector})
    for one in found:
        del one["name"]
    return {"pattern": pattern, "methods": found, "total": total}


# Objects


def inspected(value: Any, expression: str) -> Json:
    kind = type(value)
    result: Json = {
        "expression": one_line(expression),
        "type": clean(of_class(kind, "__qualname__")),
        "module": clean(str(of_class(kind, "__module__"))),
        "repr": shortened(repr_of(value), LONGEST_DOC),
        "doc": shortened(inspect.cleandoc(_doc(kind)), LONGEST_DOC),
        "attributes": _attributes(value),
        **_of_classes(value),
        "items": _items(value),
    }
    # By its type: an object can claim to be an instance of anything, and run code to say so.
    built_in = next((one for one in _SIZED if issubclass(kind, one)), None)
    if built_in is not None:
        try:
            result["length"] = built_in.__len__(value)
        except OverflowError:
            pass  # of a range that is longer than Python can say
    if issubclass(kind, type | FunctionType | BuiltinFunctionType):
        result["signature"] = _signature(value)
    return result


def _of_classes(value: Any) -> Json:
    """What the object has by its class, or, if it is one, by those it inherits from: what is called, what is computed,
    and data."""
    bases = of_class(value, "__mro__") if issubclass(type(value), type) else _bases(value)
    # What instances have in slots, and what they have instead of their class, stands among their attributes.
    told = {name for base in bases for name in _slots(base)} | {name for name, _ in _public(own_members(value))}
    found = dict(
        sorted({name: one for base in reversed(bases) for name, one in _public(of_class(base, "__dict__"))}.items())
    )
    properties = {name: one for name, one in found.items() if _is_property(one)}
    methods = [name for name, one in found.items() if name not in properties and _function(one) is not None]
    data = [name for name in found if name not in {*properties, *methods, *told}]
    return {
        "methods": methods[:MOST_MEMBERS],
        "properties": [name for name in properties if name not in told][:MOST_MEMBERS],
        "classAttributes": [_part(name, found[name]) for name in data[:MOST_MEMBERS]],
    }


def _public(members: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [(name, one) for name, one in list(members.items()) if type(name) is str and not name.startswith("_")]


def _is_property(member: Any) -> bool:
    """Whether it is computed when it is asked for, in Python or in C."""
    return issubclass(type(member), property | functools.cached_property) or is_computed(member)


def _unwrapped(function: FunctionType) -> FunctionType:
    """What decorators were put around, as long as that is a function."""
    seen = {id(function)}
    while type(inner := function.__dict__.get("__wrapped__")) is FunctionType and id(inner) not in seen:
        function = inner
        seen.add(id(function))
    return function


def _part(name: str, value: Any) -> Json:
    return {"name": one_line(name), "type": kind_name(value), "repr": one_line(repr_of(value))}


def _attributes(value: Any) -> list[Json]:
    """What the object itself has, not its class."""
    members = list(own_members(value).items())
    parts = [(name, one) for name, one in members if type(name) is str and not name.startswith("__")]
    if issubclass(type(value), type):
        return [_part(name, one) for name, one in parts if not _is_property(one) and _function(one) is None][
            :MOST_MEMBERS
        ]
    for cls in _bases(value):
        for name in _slots(cls):
            try:
                parts.append((name, static(value, name)))
            except InspectionError:
                continue  # it was never given a value
    return [_part(name, one) for name, one in parts[:MOST_MEMBERS]]


def _items(value: Any) -> list[Json]:
    """The first of what a collection holds."""
    kind = type(value)
    if issubclass(kind, dict):
        return [_part(repr_of(key), one) for key, one in islice(list(dict.items(value)), MOST_ITEMS)]
    # By the iterator of the built-in class: that of a subclass could run any code.
    for sequence in (list, tuple, range):
        if issubclass(kind, sequence):
            return [_part(str(place), one) for place, one in enumerate(islice(sequence.__iter__(value), MOST_ITEMS))]
    for collection in (set, frozenset):
        if issubclass(kind, collection):
            return [_part("", one) for one in islice(list(collection.__iter__(value)), MOST_ITEMS)]
    return []


# Completion


def complete(names: Names, kind: str, typed: str, className: str | None = None) -> Json:
    """Names that begin with what was typed, for classes also by the last part of the name."""
    begun = typed.lower()
    if kind == "package":
        candidates: Iterator[str] = (one["name"] for one in packages()["packages"])
    elif kind == "method":
        owner = names.find_owner(className or "")
        bases = (owner,) if type(owner) is ModuleType else of_class(cast("type", owner), "__mro__")
        candidates = (name for base in bases for name in _selectors(base))
    else:
        # Also by the names under which a module offers classes that it has from elsewhere.
        offered = names.member_classes(typed.rpartition(".")[0]) if "." in typed else iter(())
        candidates = chain(offered, (name for name, _ in names.classes()))
    fitting = dict.fromkeys(
        name
        for name in candidates
        if (name.lower().startswith(begun) or f".{begun}" in name.lower()) and ("_" in begun or not _is_private(name))
    )
    return {"values": list(fitting)[:MOST_VALUES], "total": len(fitting)}


def _is_private(name: str) -> bool:
    """Whether an underscore says that it is not for others, of a class or of a package it is in."""
    return any(part.startswith("_") for part in name.split("."))
