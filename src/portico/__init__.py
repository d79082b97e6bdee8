"""Portico: the Model Context Protocol for Python, every revision of it.

The names below are the public ones. Each is imported when it is first used, so that `import portico` costs nothing.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from portico.client.client import Client
    from portico.client.sync import SyncClient
    from portico.server.context import Context
    from portico.server.results import Audio, File, Image, ToolResult
    from portico.server.server import Server
    from portico.server.service import Service, completion, prompt, resource, tool
    from portico.server.skills import Skills
    from portico.server.tasks.config import TaskConfig
    from portico.wire.errors import Error, ProtocolError, ToolError, UsageError

_HOMES = {
    "Client": "portico.client.client",
    "SyncClient": "portico.client.sync",
    "Context": "portico.server.context",
    "Audio": "portico.server.results",
    "File": "portico.server.results",
    "Image": "portico.server.results",
    "ToolResult": "portico.server.results",
    "Server": "portico.server.server",
    "Service": "portico.server.service",
    "completion": "portico.server.service",
    "prompt": "portico.server.service",
    "resource": "portico.server.service",
    "tool": "portico.server.service",
    "Skills": "portico.server.skills",
    "TaskConfig": "portico.server.tasks.config",
    "Error": "portico.wire.errors",
    "ProtocolError": "portico.wire.errors",
    "ToolError": "portico.wire.errors",
    "UsageError": "portico.wire.errors",
}

__all__ = [
    "Audio",
    "Client",
    "Context",
    "Error",
    "File",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'portico' has no attribute {name!r}")
    # Importing makes many objects and no garbage; looking for some takes a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        value = getattr(import_module(home), name)
    finally:
        if collecting:
            gc.enable()
    globals()[name] = value
    return value
