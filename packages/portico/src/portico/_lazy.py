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
    from collections.abc import Callable
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


def read_stub(package: str) -> dict[str, str]:
    """Return the names in the stub (`.pyi`) next to a module, and the modules that define them.

    The stub has nothing but `from module import Name as Name`, and type checkers read the same file.
    """
    module = sys.modules[package]
    assert module.__file__ is not None and module.__spec__ is not None
    # Through the loader, which also supports archives. Parsed as text: `ast` would dominate the cost of the import.
    stub = module.__spec__.loader.get_data(f"{module.__file__.removesuffix('.py')}.pyi").decode()  # type: ignore[union-attr]
    home_of: dict[str, str] = {}
    for statement in stub.split("\nfrom ")[1:]:
        home, _, names = statement.partition(" import ")
        aliases = names.lstrip("(").partition(")")[0].split(",")
        home_of.update((alias.rpartition(" as ")[2].strip(), home) for alias in aliases if alias.strip())
    return home_of


def attach_stub(package: str, optional: str | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module whose public names are listed in the stub next to it.

    A name that is imported from the package itself is a submodule. `__all__` has all names except those of the module
    `optional`, which needs another package.
    """
    namespace = vars(sys.modules[package])
    home_of: dict[str, str] = {}

    def names() -> dict[str, str]:
        # Read on first use: most imports of a package are of one of its modules.
        if not home_of:
            home_of.update(read_stub(package))
        return home_of

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(item for item, home in names().items() if home != optional)
        if name.startswith("__") or name not in names():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        value = load_module(f"{home}.{name}") if home == package else getattr(load_module(home), name)
        # Later accesses find the attribute and skip __getattr__.
        namespace[name] = value
        return value

    return get, lambda: sorted({*namespace, *names()})
