"""Portico: the Model Context Protocol for Python, every revision of it.

The names below are the public ones. Each is imported when it is first used, so that `import portico` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from portico.client.client import Client
    from portico.client.sync import SyncClient
    from portico.gateway.gateway import Gateway
    from portico.server.asking.context import Context
    from portico.server.calling.results import Audio, File, Image, ToolResult
    from portico.server.registry.service import Service, completion, prompt, resource, tool
    from portico.server.server import Server
    from portico.server.skills.skills import Skills
    from portico.server.tasks.config import TaskConfig
    from portico.wire.errors import Error, ProtocolError, ToolError, UsageError

_HOMES = {
    "portico.client.client": ("Client",),
    "portico.client.sync": ("SyncClient",),
    "portico.gateway.gateway": ("Gateway",),
    "portico.server.asking.context": ("Context",),
    "portico.server.calling.results": ("Audio", "File", "Image", "ToolResult"),
    "portico.server.server": ("Server",),
    "portico.server.registry.service": ("Service", "completion", "prompt", "resource", "tool"),
    "portico.server.skills.skills": ("Skills",),
    "portico.server.tasks.config": ("TaskConfig",),
    "portico.wire.errors": ("Error", "ProtocolError", "ToolError", "UsageError"),
}

__all__ = [
    "Audio",
    "Client",
    "Context",
    "Error",
    "File",
    "Gateway",
    "Image",
    "ProtocolError",
    "Server",
    "Service",
    "Skills",
    "SyncClient",
    "TaskConfig",
    "ToolError",
    "ToolResult",
    "UsageError",
    "completion",
    "prompt",
    "resource",
    "tool",
]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
