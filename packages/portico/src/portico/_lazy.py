"""Lazy imports, so that startup pays only for what it uses.

The only place where a Portico module is imported by name; `tests/test_layers.py` reads these names like imports.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

# Not imported from `typing`, whose import would dominate the cost of `import portico`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def load_module(name: str) -> Any:
    """Import a module by name, with the garbage collector paused."""
    if name in sys.modules:
        return import_module(name)
    # Importing creates many objects and no garbage; collecting would take a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if not gc.get_freeze_count():
            # Move the new objects to the oldest generation, or the collector would scan them as soon as it is enabled.
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()


class LazyModule:
    """Module that is imported when one of its attributes is first used.

    Type checkers see the module itself:

        if TYPE_CHECKING:
            from portico.server import http
        else:
            http = LazyModule("portico.server.http")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # Introspection, such as pytest inspecting a plugin, must not import the module.
            raise AttributeError(f"{self._name} is loaded with its first public name, not with {attribute!r}")
        return getattr(load_module(self._name), attribute)


def get_loaded_module(name: str) -> Any:
    """Return a module if it was already imported, else None."""
    return sys.modules.get(name)


def lazy_exports(
    package: str, exports: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; `exports` maps modules to the names they define.

    A module without names is exported itself. Also sets `__all__`, unless the package defines it.
    """
    home_of = {name: home for home, names in exports.items() for name in names or (home.rpartition(".")[2],)}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = load_module(home_of[name])
        value = getattr(home, name) if exports[home_of[name]] else home
        # Later accesses find the attribute and skip __getattr__.
        vars(sys.modules[package])[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    vars(sys.modules[package]).setdefault("__all__", sorted(home_of))
    return get, list_names


def attach_stub(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose names are listed in the stub next to it.

    The stub (`.pyi`) has nothing but `from module import Name as Name`, and type checkers read the same file.
    """
    module = sys.modules[package]
    assert module.__file__ is not None and module.__spec__ is not None
    # Through the loader, which also supports archives. Parsed as text: `ast` would dominate the cost of the import.
    stub = module.__spec__.loader.get_data(f"{module.__file__.removesuffix('.py')}.pyi").decode()  # type: ignore[union-attr]
    homes: dict[str, tuple[str, ...]] = {}
    for statement in stub.split("\nfrom ")[1:]:
        home, _, names = statement.partition(" import ")
        aliases = names.lstrip("(").partition(")")[0].split(",")
        exported = tuple(alias.rpartition(" as ")[2].strip() for alias in aliases if alias.strip())
        homes[home] = homes.get(home, ()) + exported
    get, list_names = lazy_exports(package, homes)
    return sorted(name for names in homes.values() for name in names), get, list_names
