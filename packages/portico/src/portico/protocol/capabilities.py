"""What a server has to have declared before it is asked for something (basic/lifecycle, Operation)."""

from __future__ import annotations

from typing import Any

from portico.protocol.meta import ServerCapabilities
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import V2024_11_05, V2025_03_26, V2025_11_25, V2026_07_28, Revision

Path = tuple[str, ...]
"""Where a capability stands: its name, and what is below it."""

TASK_CALLS: Path = ("tasks", "requests", "tools", "call")

_TASKS: Path = ("extensions", EXTENSION)

# From a revision on, until the next row of the same method. Before its first row a method needs nothing: 2024-11-05 has
# completions, and no way to declare them.
_NEEDS: tuple[tuple[str, Revision, Path], ...] = (
    ("tools/list", V2024_11_05, ("tools",)),
    ("tools/call", V2024_11_05, ("tools",)),
    ("resources/list", V2024_11_05, ("resources",)),
    ("resources/templates/list", V2024_11_05, ("resources",)),
    ("resources/read", V2024_11_05, ("resources",)),
    ("resources/subscribe", V2024_11_05, ("resources", "subscribe")),
    ("resources/unsubscribe", V2024_11_05, ("resources", "subscribe")),
    ("prompts/list", V2024_11_05, ("prompts",)),
    ("prompts/get", V2024_11_05, ("prompts",)),
    ("logging/setLevel", V2024_11_05, ("logging",)),
    ("completion/complete", V2025_03_26, ("completions",)),
    ("tasks/get", V2025_11_25, ("tasks",)),
    ("tasks/result", V2025_11_25, ("tasks",)),
    ("tasks/list", V2025_11_25, ("tasks", "list")),
    ("tasks/cancel", V2025_11_25, ("tasks", "cancel")),
    ("tasks/get", V2026_07_28, _TASKS),
    ("tasks/update", V2026_07_28, _TASKS),
    ("tasks/cancel", V2026_07_28, _TASKS),
)


def declares(capabilities: ServerCapabilities, path: Path) -> bool:
    """Whether a capability was declared. An empty object means yes; absence, null and false mean no."""
    found: Any = getattr(capabilities, path[0])
    for name in path[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found is not None and found is not False


def undeclared(capabilities: ServerCapabilities, revision: Revision) -> dict[str, str]:
    """The methods that a server with these capabilities is not to be asked for, each with what it would have to
    declare."""
    needs = {method: path for method, since, path in _NEEDS if since <= revision}
    return {method: ".".join(path) for method, path in needs.items() if not declares(capabilities, path)}
