"""Access to the other Portico packages, if they are installed.

`portico` imports none of them. `portico_gateway`, `portico_services` and `portico_console` each have a module `plugin`
with the functions that `portico` calls.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from portico._lazy import load_module
from portico.protocol.errors import UsageError


@cache
def find_plugin(name: str) -> Any:
    """Return the module `portico_NAME.plugin`, or None if the package is not installed."""
    # No entry points: `portico serve` would read the metadata of all installed packages.
    return None if find_spec(f"portico_{name}") is None else load_module(f"portico_{name}.plugin")


def require_plugin(name: str, purpose: str) -> Any:
    """Return the module `portico_NAME.plugin`.

    Raises `UsageError` with the installation command if the package is not installed.
    """
    plugin = find_plugin(name)
    if plugin is None:
        raise UsageError(f"{purpose} needs portico-{name}, which is not installed: pip install 'portico[{name}]'")
    return plugin
