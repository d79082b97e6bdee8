"""Portico: the Model Context Protocol for Python, every revision of it.

The names below are the public ones. Each is imported when it is first used, so that `import portico` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from portico.access.familiar_logins import (
        Auth0Provider,
        AWSCognitoProvider,
        AzureProvider,
        DiscordProvider,
        GitHubProvider,
        GoogleProvider,
        KeycloakAuthProvider,
        OAuthProxy,
        OIDCProxy,
        WorkOSProvider,
    )
    from portico.auth.familiar import (
        AccessToken,
        AuthSettings,
        IntrospectionTokenVerifier,
        JWTVerifier,
        RemoteAuthProvider,
        StaticTokenVerifier,
        TokenVerifier,
    )
    from portico.client.client import Client
    from portico.client.sync import SyncClient
    from portico.gateway.gateway import Gateway
    from portico.server.apps import AppPage
    from portico.server.asking.ambient import (
        CurrentAccessToken,
        CurrentContext,
        get_access_token,
        get_context,
        get_http_headers,
    )
    from portico.server.asking.context import (
        AcceptedElicitation,
        CancelledElicitation,
        Context,
        DeclinedElicitation,
        ElicitationResult,
    )
    from portico.server.calling.dependencies import Depends, Elicit, ListRoots, Resolve, Sampling
    from portico.server.calling.prompts import AssistantMessage, Message, Prompt, UserMessage
    from portico.server.calling.results import Audio, File, Image, ToolResult
    from portico.server.calling.tools import Tool
    from portico.server.familiar import ResourceNotFoundError, TransportSecuritySettings
    from portico.server.familiar_extension import (
        Extension,
        MethodBinding,
        ResourceBinding,
        ServerRequestContext,
        ToolBinding,
        require_client_extension,
    )
    from portico.server.middleware import (
        CallNext,
        ErrorHandlingMiddleware,
        HandlerResult,
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
    from portico.server.shaping.arguments import ArgTransform
    from portico.server.shaping.providers import (
        FileSystemProvider,
        LocalProvider,
        SkillsDirectoryProvider,
        create_proxy,
    )
    from portico.server.shaping.shaped_tool import forward, forward_raw
    from portico.server.shaping.transforms import (
        Namespace,
        PromptsAsTools,
        ResourcesAsTools,
        ToolTransform,
        ToolTransformConfig,
        VersionFilter,
    )
    from portico.server.skills.skills import Skills
    from portico.server.tasks.config import TaskConfig
    from portico.wire.errors import Error, ProtocolError, ToolError, UsageError
    from portico.wire.meta import Icon
    from portico.wire.tools import ToolAnnotations

_HOMES = {
    "portico.access.familiar_logins": (
        "AWSCognitoProvider",
        "Auth0Provider",
        "AzureProvider",
        "DiscordProvider",
        "GitHubProvider",
        "GoogleProvider",
        "KeycloakAuthProvider",
        "OAuthProxy",
        "OIDCProxy",
        "WorkOSProvider",
    ),
    "portico.auth.familiar": (
        "AccessToken",
        "AuthSettings",
        "IntrospectionTokenVerifier",
        "JWTVerifier",
        "RemoteAuthProvider",
        "StaticTokenVerifier",
        "TokenVerifier",
    ),
    "portico.client.client": ("Client",),
    "portico.client.sync": ("SyncClient",),
    "portico.gateway.gateway": ("Gateway",),
    "portico.server.asking.ambient": (
        "CurrentAccessToken",
        "CurrentContext",
        "get_access_token",
        "get_context",
        "get_http_headers",
    ),
    "portico.server.asking.context": (
        "AcceptedElicitation",
        "CancelledElicitation",
        "Context",
        "DeclinedElicitation",
        "ElicitationResult",
    ),
    "portico.server.calling.dependencies": (
        "Depends",
        "Elicit",
        "ListRoots",
        "Resolve",
        "Sampling",
    ),
    "portico.server.calling.prompts": (
        "AssistantMessage",
        "Message",
        "Prompt",
        "UserMessage",
    ),
    "portico.server.calling.results": (
        "Audio",
        "File",
        "Image",
        "ToolResult",
    ),
    "portico.server.apps": ("AppPage",),
    "portico.server.calling.tools": ("Tool",),
    "portico.server.familiar": (
        "ResourceNotFoundError",
        "TransportSecuritySettings",
    ),
    "portico.server.familiar_extension": (
        "Extension",
        "MethodBinding",
        "ResourceBinding",
        "ServerRequestContext",
        "ToolBinding",
        "require_client_extension",
    ),
    "portico.server.middleware": (
        "CallNext",
        "ErrorHandlingMiddleware",
        "HandlerResult",
        "Hooks",
        "LoggingMiddleware",
        "MiddlewareContext",
        "ResponseCachingMiddleware",
        "ResponseLimitingMiddleware",
        "RetryMiddleware",
        "TimingMiddleware",
    ),
    "portico.server.registry.service": (
        "Service",
        "completion",
        "prompt",
        "resource",
        "tool",
    ),
    "portico.server.server": ("Server",),
    "portico.server.shaping.arguments": ("ArgTransform",),
    "portico.server.shaping.providers": (
        "FileSystemProvider",
        "LocalProvider",
        "SkillsDirectoryProvider",
        "create_proxy",
    ),
    "portico.server.shaping.shaped_tool": (
        "forward",
        "forward_raw",
    ),
    "portico.server.shaping.transforms": (
        "Namespace",
        "PromptsAsTools",
        "ResourcesAsTools",
        "ToolTransform",
        "ToolTransformConfig",
        "VersionFilter",
    ),
    "portico.server.skills.skills": ("Skills",),
    "portico.server.tasks.config": ("TaskConfig",),
    "portico.wire.errors": (
        "Error",
        "ProtocolError",
        "ToolError",
        "UsageError",
    ),
    "portico.wire.meta": ("Icon",),
    "portico.wire.tools": ("ToolAnnotations",),
}

__all__ = [
    "AWSCognitoProvider",
    "AcceptedElicitation",
    "AccessToken",
    "AppPage",
    "ArgTransform",
    "AssistantMessage",
    "Audio",
    "Auth0Provider",
    "AuthSettings",
    "AzureProvider",
    "CallNext",
    "CancelledElicitation",
    "Client",
    "Context",
    "CurrentAccessToken",
    "CurrentContext",
    "DeclinedElicitation",
    "Depends",
    "DiscordProvider",
    "Elicit",
    "ElicitationResult",
    "Error",
    "ErrorHandlingMiddleware",
    "Extension",
    "File",
    "FileSystemProvider",
    "Gateway",
    "GitHubProvider",
    "GoogleProvider",
    "HandlerResult",
    "Hooks",
    "Icon",
    "Image",
    "IntrospectionTokenVerifier",
    "JWTVerifier",
    "KeycloakAuthProvider",
    "ListRoots",
    "LocalProvider",
    "LoggingMiddleware",
    "Message",
    "MethodBinding",
    "MiddlewareContext",
    "Namespace",
    "OAuthProxy",
    "OIDCProxy",
    "Prompt",
    "PromptsAsTools",
    "ProtocolError",
    "RemoteAuthProvider",
    "Resolve",
    "ResourceBinding",
    "ResourceNotFoundError",
    "ResourcesAsTools",
    "ResponseCachingMiddleware",
    "ResponseLimitingMiddleware",
    "RetryMiddleware",
    "Sampling",
    "Server",
    "ServerRequestContext",
    "Service",
    "Skills",
    "SkillsDirectoryProvider",
    "StaticTokenVerifier",
    "SyncClient",
    "TaskConfig",
    "TimingMiddleware",
    "TokenVerifier",
    "Tool",
    "ToolAnnotations",
    "ToolBinding",
    "ToolError",
    "ToolResult",
    "ToolTransform",
    "ToolTransformConfig",
    "TransportSecuritySettings",
    "UsageError",
    "UserMessage",
    "VersionFilter",
    "WorkOSProvider",
    "completion",
    "create_proxy",
    "forward",
    "forward_raw",
    "get_access_token",
    "get_context",
    "get_http_headers",
    "prompt",
    "require_client_extension",
    "resource",
    "tool",
]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
