"""Introspection: packages, classes, methods, objects and completion. It avoids running code of inspected objects."""

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

from portico_services.livepython.sandbox.display import (
    class_attribute,
    replace_surrogates,
    safe_repr,
    truncate,
    truncate_line,
    type_name,
)
from portico_services.livepython.sandbox.name_resolution import (
    InspectionError,
    NameNotFound,
    NameResolver,
    instance_members,
    is_computed,
    members_of,
    static_attribute,
    unwrap_method,
)
from portico_services.livepython.sandbox.project_imports import importable_names

MAX_PACKAGES = 1000
MAX_CLASSES = 1000
MAX_MEMBERS = 300
MAX_FOUND_METHODS = 200
MAX_ITEMS = 50
MAX_SOURCE_FILES = 500
MAX_COMPLETIONS = 100
MAX_DOC_CHARS = 4000
MAX_SOURCE_CHARS = 64 * 1024
MAX_SOURCE_FILE_BYTES = 2_000_000

# Methods of classes that are implemented in C.
_C_FUNCTION_TYPES = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, *_C_FUNCTION_TYPES)
_WRAPPER_TYPES = (functools.cached_property, functools.partialmethod, functools.singledispatchmethod)
_SIZED = (dict, list, tuple, set, frozenset, str, bytes, bytearray, range)

Json = dict[str, Any]


# Packages


def _field(metadata: Any, name: str) -> str:
    # Since Python 3.13, reading a missing field is deprecated.
    return metadata[name] or "" if name in metadata else ""


def list_packages(pattern: str | None = None) -> Json:
    """List installed packages, then the standard library."""
    from importlib.metadata import distributions  # an expensive import, needed only here

    result: dict[str, Json] = {}
    for distribution in distributions():
        name = _field(distribution.metadata, "Name")
        if name and _matches(name, pattern):
            about = {"name": name, "kind": "installed", "version": distribution.version}
            result[name] = about | {"summary": truncate_line(_field(distribution.metadata, "Summary"))}
    for name in importable_names():
        if name not in result and _matches(name, pattern):
            result[name] = {"name": name, "kind": "project"}
    standard = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    packages = sorted(result.values(), key=lambda package: package["name"].lower())
    packages += [{"name": name, "kind": "standard"} for name in standard if _matches(name, pattern)]
    return {"packages": packages[:MAX_PACKAGES], "total": len(packages)}


def _matches(name: str, pattern: str | None) -> bool:
    """Return whether a name matches: a glob if the pattern has wildcards, else a substring."""
    if not pattern:
        return True
    name, pattern = name.lower(), pattern.lower()
    return fnmatchcase(name, pattern) if set("*?[") & set(pattern) else pattern in name


# Classes


def list_classes(names: NameResolver, package: str) -> Json:
    """List the classes of a package and its modules, or of the session for "__main__"."""
    if package in ("", "__main__"):
        result = [_class_summary(name, cls) for name, cls in names.session_classes().items()]
    else:
        module = names.module(package)
        live = {
            _full_name(cls): cls
            for cls in list(vars(module).values())
            if issubclass(type(cls), type) and f"{class_attribute(cls, '__module__')}.".startswith(f"{package}.")
        }
        result = [_class_summary(full, cls) for full, cls in live.items()]
        # Submodules that are not imported are read as source: importing them would run their code.
        written = (item for item in _classes_in_source(module, package) if item["qualifiedName"] not in live)
        result += islice(written, MAX_CLASSES)
    result.sort(key=lambda entry: entry["qualifiedName"])
    return {"package": package, "classes": result[:MAX_CLASSES], "total": len(result)}


def _class_summary(full: str, cls: type) -> Json:
    return {"name": class_attribute(cls, "__name__"), "qualifiedName": full, "summary": _summary(cls)}


def _full_name(cls: type) -> str:
    return f"{class_attribute(cls, '__module__')}.{class_attribute(cls, '__qualname__')}"


def _doc(value: Any) -> str:
    """Return the docstring of a class or function if it is a string, without running code."""
    if issubclass(type(value), type):
        doc = class_attribute(value, "__dict__").get("__doc__")
    elif type(value) in _FUNCTIONS:
        doc = value.__doc__
    else:
        doc = next(
            (
                class_attribute(cls, "__dict__")["__doc__"]
                for cls in _bases(value)
                if "__doc__" in class_attribute(cls, "__dict__")
            ),
            None,
        )
    return doc if type(doc) is str else ""


def _bases(value: Any) -> tuple[type, ...]:
    bases: tuple[type, ...] = class_attribute(type(value), "__mro__")
    return bases


def _classes_in_source(module: ModuleType, package: str) -> Iterator[Json]:
    """Yield the classes found in the source of a package's modules, without importing them."""
    for name, path in islice(module_sources(module, package), MAX_SOURCE_FILES):
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef):
                summary = truncate_line((ast.get_docstring(node) or "").partition("\n")[0])
                yield {"name": node.name, "qualifiedName": f"{name}.{node.name}", "summary": summary}


def module_sources(module: ModuleType, package: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of a package with their source files."""
    pending = [(list(getattr(module, "__path__", ())), package)]
    while pending:
        paths, prefix = pending.pop()
        for finder, name, is_package in pkgutil.iter_modules(paths):
            # Finding a spec does not import the module itself.
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
            # A file that is cut off here does not parse, and then counts as one without classes.
            return ast.parse(file.read(MAX_SOURCE_FILE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def class_details(names: NameResolver, className: str) -> Json:
    cls = names.find_class(className)
    methods = [_method(cls, name) for name in islice(_selectors(cls), MAX_MEMBERS)]
    superclass = class_attribute(cls, "__base__")
    return {
        "name": class_attribute(cls, "__name__"),
        "qualifiedName": _full_name(cls),
        "module": str(class_attribute(cls, "__module__")),
        "superclass": None if superclass is None else class_attribute(superclass, "__name__"),
        "bases": [class_attribute(base, "__qualname__") for base in class_attribute(cls, "__bases__")],
        "mro": [class_attribute(base, "__qualname__") for base in class_attribute(cls, "__mro__")],
        "doc": truncate(inspect.cleandoc(_doc(cls)), MAX_DOC_CHARS),
        "fields": _fields(cls)[:MAX_MEMBERS],
        "instanceVariables": _instance_variables(cls)[:MAX_MEMBERS],
        "methods": methods,
        "methodCount": sum(1 for _ in _selectors(cls)),
        "subclasses": _subclasses(cls),
    }


def _subclasses(cls: type) -> list[str]:
    # Through `type`: a metaclass may override __subclasses__ and run code.
    result: list[type] = type.__subclasses__(cls)
    return [class_attribute(item, "__qualname__") for item in result[:MAX_ITEMS]]


def _selectors(owner: type | ModuleType) -> Iterator[str]:
    return (name for name, value in list(members_of(owner).items()) if _function(value) is not None)


def _function(value: Any) -> Any:
    """Return the function behind a class member, or None if it is not a method."""
    kind = type(value)
    if issubclass(kind, staticmethod | classmethod):
        value = unwrap_method(value)
    elif issubclass(kind, property):
        value = vars(property)["fget"].__get__(value)
    elif issubclass(kind, _WRAPPER_TYPES):
        value = static_attribute(value, "func")
    elif kind not in _FUNCTIONS and not _is_bound(kind):
        return None  # includes callables that the class stores as plain data
    return value if callable(value) and not issubclass(type(value), type) else None


def _is_bound(kind: type) -> bool:
    """Return whether a member of this type is a descriptor, so that it binds to instances."""
    if issubclass(kind, functools.partial):
        return False  # its `__get__` in Python 3.13 only emits a warning
    return any("__get__" in class_attribute(base, "__dict__") for base in class_attribute(kind, "__mro__"))


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
    # The signature of other callables, or of a class with a custom metaclass, could run code.
    if type(function) not in (*_FUNCTIONS, type):
        return "(…)"
    try:
        return truncate_line(str(inspect.signature(function)))
    except (ValueError, TypeError):
        return "(…)"  # most C functions have no signature


def _summary(value: Any) -> str:
    return truncate_line(_doc(value).strip().partition("\n")[0])


def _fields(cls: type) -> list[Json]:
    """Return the members of a class other than methods: annotated names, slots and values."""
    result = {name: {"name": name, "type": _type_name(hint)} for name, hint in _annotations(cls).items()}
    for name, value in list(class_attribute(cls, "__dict__").items()):
        if name.startswith("__") or _function(value) is not None:
            continue
        field = result.setdefault(name, {"name": name, "type": type_name(value)})
        if not is_computed(value):
            field["value"] = truncate_line(safe_repr(value))
    return list(result.values())


def _annotations(cls: type) -> dict[str, Any]:
    stored = class_attribute(cls, "__dict__").get("__annotations__")
    if type(stored) is dict:
        return stored
    if type(cls) is not type:
        return {}
    try:
        return inspect.get_annotations(cls)
    except Exception:
        return {}  # lazily evaluated annotations that refer to an undefined name


def _type_name(hint: Any) -> str:
    return truncate_line(
        hint
        if type(hint) is str
        else class_attribute(hint, "__name__")
        if issubclass(type(hint), type)
        else safe_repr(hint)
    )


def _instance_variables(cls: type) -> list[str]:
    """Return the instance attributes of a class: annotated, in slots, or assigned in `__init__`."""
    result = dict.fromkeys(_slots(cls))
    result |= dict.fromkeys(name for name, hint in _annotations(cls).items() if not _is_of_class(hint))
    init = class_attribute(cls, "__dict__").get("__init__")
    if type(init) is FunctionType:
        result |= dict.fromkeys(_assigned_attributes(init))
    return list(result)


def _is_of_class(hint: Any) -> bool:
    """Return whether an annotation is a ClassVar."""
    return _type_name(hint).removeprefix("typing.").startswith("ClassVar")


def _slots(cls: type) -> list[str]:
    slots = class_attribute(cls, "__dict__").get("__slots__", ())
    if type(slots) is str:
        return [slots]
    return [slot for slot in slots if type(slot) is str] if type(slots) in (tuple, list, dict, set, frozenset) else []


def _assigned_attributes(init: FunctionType) -> Iterator[str]:
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(init)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


# Methods


def method_source(names: NameResolver, className: str, selector: str) -> Json:
    """Return the source of a method, defined in the class or inherited, or of a function of a module."""
    cls = names.find_owner(className)
    bases = (cls,) if type(cls) is ModuleType else class_attribute(cast("type", cls), "__mro__")
    for owner in bases:
        if selector in members_of(owner):
            break
    else:
        method_names = [name for base in bases for name in members_of(base)]
        raise NameNotFound(f"{className} has no {selector!r}.{names._did_you_mean(selector, method_names)}")
    member = members_of(owner)[selector]
    function = _function(member)
    if function is None:
        word = "function" if type(cls) is ModuleType else "method"
        raise InspectionError(f"{className}.{selector} is not a {word}, it is a {type_name(member)}.")
    try:
        if type(function) is not FunctionType:
            raise TypeError
        function = _unwrap_decorators(function)
        lines, line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        why = "has no source here" if type(function) is FunctionType else "is implemented in C"
        raise InspectionError(
            f"{className}.{selector} {why}. {_signature(function)} {_summary(function)}".rstrip()
        ) from None
    return {
        "className": _owner_name(cls),
        "selector": selector,
        "definedIn": str(function.__module__) if type(cls) is ModuleType else _owner_name(owner),
        "kind": _method(owner, selector)["kind"],
        "line": line,
        "source": truncate(inspect.cleandoc("\n" + "".join(lines)), MAX_SOURCE_CHARS),
    }


def _owner_name(owner: type | ModuleType) -> str:
    name: str = owner.__name__ if type(owner) is ModuleType else class_attribute(cast("type", owner), "__qualname__")
    return name


def search_methods(names: NameResolver, pattern: str, className: str | None = None, includeSuper: bool = False) -> Json:
    """Find methods by substring or glob: of one class, of all loaded classes, or the functions of one module."""
    searched: list[tuple[str, type | ModuleType]]
    if className:
        cls = names.find_owner(className)
        bases = (
            class_attribute(cast("type", cls), "__mro__") if includeSuper and type(cls) is not ModuleType else (cls,)
        )
        searched = [(_owner_name(base), base) for base in bases]
    else:
        searched = list(names.classes())
    results: list[Json] = []
    total = 0
    for full, cls in searched:
        for selector in _selectors(cls):
            if _matches(selector, pattern):
                total += 1
                if len(results) < MAX_FOUND_METHODS:
                    results.append({"className": full, **_method(cls, selector), "selector": selector})
    for item in results:
        del item["name"]
    return {"pattern": pattern, "methods": results, "total": total}


# Objects


def inspect_value(value: Any, expression: str) -> Json:
    kind = type(value)
    result: Json = {
        "expression": truncate_line(expression),
        "type": replace_surrogates(class_attribute(kind, "__qualname__")),
        "module": replace_surrogates(str(class_attribute(kind, "__module__"))),
        "repr": truncate(safe_repr(value), MAX_DOC_CHARS),
        "doc": truncate(inspect.cleandoc(_doc(kind)), MAX_DOC_CHARS),
        "attributes": _attributes(value),
        **_class_members(value),
        "items": _items(value),
    }
    # Check the type itself: an object can override `__class__` and run code.
    built_in = next((item for item in _SIZED if issubclass(kind, item)), None)
    if built_in is not None:
        try:
            result["length"] = built_in.__len__(value)
        except OverflowError:
            pass  # the length of a range may exceed sys.maxsize
    if issubclass(kind, type | FunctionType | BuiltinFunctionType):
        result["signature"] = _signature(value)
    return result


def _class_members(value: Any) -> Json:
    """Return the members that an object gets from its class, or a class from its bases: methods, properties, data."""
    bases = class_attribute(value, "__mro__") if issubclass(type(value), type) else _bases(value)
    # Slots and instance attributes are listed among the attributes.
    instance_names = {name for base in bases for name in _slots(base)} | {
        name for name, _ in _public(instance_members(value))
    }
    result = dict(
        sorted(
            {
                name: member for base in reversed(bases) for name, member in _public(class_attribute(base, "__dict__"))
            }.items()
        )
    )
    properties = {name: member for name, member in result.items() if _is_property(member)}
    methods = [name for name, member in result.items() if name not in properties and _function(member) is not None]
    data = [name for name in result if name not in {*properties, *methods, *instance_names}]
    return {
        "methods": methods[:MAX_MEMBERS],
        "properties": [name for name in properties if name not in instance_names][:MAX_MEMBERS],
        "classAttributes": [_describe_member(name, result[name]) for name in data[:MAX_MEMBERS]],
    }


def _public(members: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in list(members.items()) if type(name) is str and not name.startswith("_")]


def _is_property(member: Any) -> bool:
    """Return whether a member is computed on access, in Python or in C."""
    return issubclass(type(member), property | functools.cached_property) or is_computed(member)


def _unwrap_decorators(function: FunctionType) -> FunctionType:
    """Return the innermost function behind decorators that set `__wrapped__`."""
    # `__wrapped__` can form a cycle.
    seen = {id(function)}
    while type(inner := function.__dict__.get("__wrapped__")) is FunctionType and id(inner) not in seen:
        function = inner
        seen.add(id(function))
    return function


def _describe_member(name: str, value: Any) -> Json:
    return {"name": truncate_line(name), "type": type_name(value), "repr": truncate_line(safe_repr(value))}


def _attributes(value: Any) -> list[Json]:
    """Return the attributes of the object itself, not of its class."""
    members = list(instance_members(value).items())
    parts = [(name, member) for name, member in members if type(name) is str and not name.startswith("__")]
    if issubclass(type(value), type):
        return [
            _describe_member(name, member)
            for name, member in parts
            if not _is_property(member) and _function(member) is None
        ][:MAX_MEMBERS]
    for cls in _bases(value):
        for name in _slots(cls):
            try:
                parts.append((name, static_attribute(value, name)))
            except InspectionError:
                continue  # the slot is unset
    return [_describe_member(name, member) for name, member in parts[:MAX_MEMBERS]]


def _items(value: Any) -> list[Json]:
    """Return the first items of a collection."""
    kind = type(value)
    if issubclass(kind, dict):
        return [_describe_member(safe_repr(key), item) for key, item in islice(list(dict.items(value)), MAX_ITEMS)]
    # With the iterator of the built-in class: that of a subclass could run code.
    for sequence in (list, tuple, range):
        if issubclass(kind, sequence):
            return [
                _describe_member(str(position), item)
                for position, item in enumerate(islice(sequence.__iter__(value), MAX_ITEMS))
            ]
    for collection in (set, frozenset):
        if issubclass(kind, collection):
            return [_describe_member("", item) for item in islice(list(collection.__iter__(value)), MAX_ITEMS)]
    return []


# Completion


def complete_name(names: NameResolver, kind: str, typed: str, className: str | None = None) -> Json:
    """Return names that start with the typed text, for classes also by the last part of the name."""
    prefix_text = typed.lower()
    if kind == "package":
        candidates: Iterator[str] = (package["name"] for package in list_packages()["packages"])
    elif kind == "method":
        owner = names.find_owner(className or "")
        bases = (owner,) if type(owner) is ModuleType else class_attribute(cast("type", owner), "__mro__")
        candidates = (name for base in bases for name in _selectors(base))
    else:
        # Includes names under which a module re-exports classes.
        offered = names.member_classes(typed.rpartition(".")[0]) if "." in typed else iter(())
        candidates = chain(offered, (name for name, _ in names.classes()))
    fitting = dict.fromkeys(
        name
        for name in candidates
        if (name.lower().startswith(prefix_text) or f".{prefix_text}" in name.lower())
        and ("_" in prefix_text or not _is_private(name))
    )
    return {"values": list(fitting)[:MAX_COMPLETIONS], "total": len(fitting)}


def _is_private(name: str) -> bool:
    """Return whether any part of a dotted name starts with an underscore."""
    return any(part.startswith("_") for part in name.split("."))
