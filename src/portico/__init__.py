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
    from portico.server.asking.context import (
        AcceptedElicitation,
        CancelledElicitation,
        Context,
        DeclinedElicitation,
    )
    from portico.server.calling.dependencies import Depends, Elicit, ListRoots, Resolve
    from portico.server.calling.prompts import AssistantMessage, Message, UserMessage
    from portico.server.calling.results import Audio, File, Image, ToolResult
    from portico.server.familiar import ResourceNotFoundError, TransportSecuritySettings
    from portico.server.middleware import (
        ErrorHandlingMiddleware,
        Hooks,
        LoggingMiddleware,
        MiddlewareContext,
        ResponseCachingMiddleware,
        ResponseLimitingMiddleware,
        RetryMiddleware,
        TimingMiddleware,
    )
    from portico.server.registry.service import Service, completion, prompt, resource, tool
    from portico.server.server import Server
    from portico.server.skills.skills import Skills
    from portico.server.tasks.config import TaskConfig
    from portico.wire.errors import Error, ProtocolError, ToolError, UsageError
    from portico.wire.meta import Icon
    from portico.wire.tools import ToolAnnotations

_HOMES = {
    "portico.client.client": ("Client",),
    "portico.client.sync": ("SyncClient",),
    "portico.gateway.gateway": ("Gateway",),
    "portico.server.asking.context": (
        "AcceptedElicitation",
        "CancelledElicitation",
        "Context",
        "DeclinedElicitation",
    ),
    "portico.server.calling.dependencies": ("Depends", "Elicit", "ListRoots", "Resolve"),
    "portico.server.calling.prompts": ("AssistantMessage", "Message", "UserMessage"),
    "portico.server.familiar": ("ResourceNotFoundError", "TransportSecuritySettings"),
    "portico.server.calling.results": ("Audio", "File", "Image", "ToolResult"),
    "portico.server.middleware": (
        "ErrorHandlingMiddleware",
        "Hooks",
        "LoggingMiddleware",
        "MiddlewareContext",
        "ResponseCachingMiddleware",
        "ResponseLimitingMiddleware",
        "RetryMiddleware",
        "TimingMiddleware",
    ),
    "portico.server.server": ("Server",),
    "portico.server.registry.service": ("Service", "completion", "prompt", "resource", "tool"),
    "portico.server.skills.skills": ("Skills",),
    "portico.server.tasks.config": ("TaskConfig",),
    "portico.wire.errors": ("Error", "ProtocolError", "ToolError", "UsageError"),
    "portico.wire.meta": ("Icon",),
    "portico.wire.tools": ("ToolAnnotations",),
}

__all__ = [
    "AcceptedElicitation",
    "AssistantMessage",
    "Audio",
    "CancelledElicitation",
    "Client",
    "Context",
    "DeclinedElicitation",
    "Depends",
    "Elicit",
    "Error",
    "ErrorHandlingMiddleware",
    "File",
    "Gateway",
    "Hooks",
    "Icon",
    "Image",
    "ListRoots",
    "LoggingMiddleware",
    "Message",
    "MiddlewareContext",
    "ProtocolError",
    "Resolve",
    "ResourceNotFoundError",
    "ResponseCachingMiddleware",
    "ResponseLimitingMiddleware",
    "RetryMiddleware",
    "Server",
    "Service",
    "Skills",
    "SyncClient",
    "TaskConfig",
    "TimingMiddleware",
    "ToolAnnotations",
    "ToolError",
    "ToolResult",
    "TransportSecuritySettings",
    "UsageError",
    "UserMessage",
    "completion",
    "prompt",
    "resource",
    "tool",
]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
