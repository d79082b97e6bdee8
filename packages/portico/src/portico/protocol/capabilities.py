"""Capabilities that a server must declare before a client uses a method (basic/lifecycle, Operation)."""

from __future__ import annotations

from typing import Any

from portico.protocol.meta import ServerCapabilities
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import V2024_11_05, V2025_03_26, V2025_11_25, V2026_07_28, ProtocolVersion

CapabilityPath = tuple[str, ...]
"Path of a capability: its name and the names of nested members."

TASK_TOOL_CALLS: CapabilityPath = ("tasks", "requests", "tools", "call")

_TASKS: CapabilityPath = ("extensions", EXTENSION)

# Each row applies from a version until the next row of the same method. Before its first row a method needs no
# capability: 2024-11-05 has completions but cannot declare them.
_REQUIRED_CAPABILITIES: tuple[tuple[str, ProtocolVersion, CapabilityPath], ...] = (
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


def has_capability(capabilities: ServerCapabilities, path: CapabilityPath) -> bool:
    """Return whether a capability was declared. An empty object means yes; absence, null and false mean no."""
    result: Any = getattr(capabilities, path[0])
    for name in path[1:]:
        result = result.get(name) if isinstance(result, dict) else None
    return result is not None and result is not False


def unsupported_methods(capabilities: ServerCapabilities, protocol_version: ProtocolVersion) -> dict[str, str]:
    """Return the methods that a server with these capabilities does not support, each with the missing capability."""
    needs = {method: path for method, since, path in _REQUIRED_CAPABILITIES if since <= protocol_version}
    return {method: ".".join(path) for method, path in needs.items() if not has_capability(capabilities, path)}
