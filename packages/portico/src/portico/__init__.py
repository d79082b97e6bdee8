"""Portico: the Model Context Protocol for Python, every protocol version.

The names below are the public ones. Each is imported when it is first used, so that `import portico` costs nothing.
Protocol types are in `portico.types`, exceptions in `portico.errors`, names of FastMCP and the official SDK in
`portico.compat`.
"""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, public_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from portico.client.client import (
        Client,
    )
    from portico.client.sync_client import (
        SyncClient,
    )
    from portico.protocol.errors import (
        Error,
        ProtocolError,
        ToolError,
        UsageError,
    )
    from portico.protocol.meta import (
        Icon,
    )
    from portico.protocol.tools import (
        ToolAnnotations,
    )
    from portico.server.apps import (
        AppPage,
    )
    from portico.server.components.dependencies import (
        Depends,
    )
    from portico.server.components.prompts import (
        Message,
        Prompt,
    )
    from portico.server.components.resources import (
        Resource,
    )
    from portico.server.components.results import (
        Audio,
        File,
        Image,
        ToolResult,
    )
    from portico.server.components.tools import (
        TaskConfig,
        Tool,
    )
    from portico.server.context.context import (
        Context,
    )
    from portico.server.middleware import (
        Middleware,
        MiddlewareContext,
    )
    from portico.server.registry.service import (
        Service,
        completion,
        prompt,
        resource,
        tool,
    )
    from portico.server.server import (
        Server,
    )
    from portico.server.skills.service import (
        Skills,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.client.client": ("Client",),
    "portico.client.sync_client": ("SyncClient",),
    "portico.protocol.errors": (
        "Error",
        "ProtocolError",
        "ToolError",
        "UsageError",
    ),
    "portico.protocol.meta": ("Icon",),
    "portico.protocol.tools": ("ToolAnnotations",),
    "portico.server.apps": ("AppPage",),
    "portico.server.components.dependencies": ("Depends",),
    "portico.server.components.prompts": (
        "Message",
        "Prompt",
    ),
    "portico.server.components.resources": ("Resource",),
    "portico.server.components.results": (
        "Audio",
        "File",
        "Image",
        "ToolResult",
    ),
    "portico.server.components.tools": (
        "TaskConfig",
        "Tool",
    ),
    "portico.server.context.context": ("Context",),
    "portico.server.middleware": (
        "Middleware",
        "MiddlewareContext",
    ),
    "portico.server.registry.service": (
        "Service",
        "completion",
        "prompt",
        "resource",
        "tool",
    ),
    "portico.server.server": ("Server",),
    "portico.server.skills.service": ("Skills",),
}

__all__ = [
    "AppPage",
    "Audio",
    "Client",
    "Context",
    "Depends",
    "Error",
    "File",
    "Icon",
    "Image",
    "Message",
    "Middleware",
    "MiddlewareContext",
    "Prompt",
    "ProtocolError",
    "Resource",
    "Server",
    "Service",
    "Skills",
    "SyncClient",
    "TaskConfig",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "ToolResult",
    "UsageError",
    "completion",
    "prompt",
    "resource",
    "tool",
]

if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = public_names(__name__, _HOMES)
