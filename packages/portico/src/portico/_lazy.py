"""Modules that are imported when they are first needed, so that a start pays only for what it uses.

The one place where a module of ours is imported by its name; `tests/test_layers.py` reads these names like imports.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

# Not that of `typing`, whose import is most of what `import portico` would cost.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def load_module(name: str) -> Any:
    """The module of this name, imported if it is not yet."""
    if name in sys.modules:
        return import_module(name)
    # Importing makes many objects and no garbage; looking for some takes a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if not gc.get_freeze_count():
            # To the old objects at once, or the collector would look through all of them the moment it is on again.
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()


class LazyModule:
    """A module that is imported when something of it is first asked for. Type checkers are shown the module itself:

    if TYPE_CHECKING:
        from portico.server import http as endpoint
    else:
        endpoint = LazyModule("portico.server.http")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # Asked by those who look at everything, such as pytest at a plugin: that is no use of it.
            raise AttributeError(f"{self._name} is loaded with its first public name, not with {attribute!r}")
        return getattr(load_module(self._name), attribute)


def loaded_module(name: str) -> Any:
    """The module of this name if something has imported it, and otherwise None."""
    return sys.modules.get(name)


def public_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in other modules: `homes` says which in which.

    A module without names stands for itself. `__all__` is made of them, unless it is written there already.
    """
    home_of = {name: home for home, names in homes.items() for name in names or (home.rpartition(".")[2],)}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = load_module(home_of[name])
        value = getattr(home, name) if homes[home_of[name]] else home
        vars(sys.modules[package])[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    vars(sys.modules[package]).setdefault("__all__", sorted(home_of))
    return get, list_names
