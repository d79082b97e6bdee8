"""Replace module constants, such as timeouts, in the programs that tests start.

A constant that does not exist is an error: after a rename, a plain assignment would create an unused name, and the
test would silently wait for the real timeout."""

from __future__ import annotations

from collections.abc import Mapping

_TEMPLATE = """
import importlib
for path, value in {values!r}.items():
    module, _, name = path.rpartition(".")
    module = importlib.import_module(module)
    getattr(module, name)
    setattr(module, name, value)
"""


def override_constants(values: Mapping[str, object], program: str) -> str:
    """Return the program, preceded by assignments to constants such as `{"package.module.NAME": 1.0}`.

    They are made in this order. List a module before those that import the constant from it.
    """
    return _TEMPLATE.format(values=dict(values)) + program
