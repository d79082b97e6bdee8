"""The other packages of Portico, found where they are installed.

`portico` imports none of them. Each names a module with an entry point of the group `portico.plugins`: `gateway`,
`services` and `console`. What such a module offers is what the caller expects of it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from portico._lazy import load_module
from portico.protocol.errors import UsageError

GROUP = "portico.plugins"


@cache
def find_plugin(name: str) -> Any:
    """Return the module of an installed package, or None."""
    for point in entry_points(group=GROUP, name=name):
        return load_module(point.module)
    return None


def require_plugin(name: str, purpose: str) -> Any:
    """Return the module of an installed package.

    Raises UsageError, with the command that installs the package, if it is not there.
    """
    plugin = find_plugin(name)
    if plugin is None:
        raise UsageError(f"{purpose} needs portico-{name}, which is not installed: pip install 'portico[{name}]'")
    return plugin
