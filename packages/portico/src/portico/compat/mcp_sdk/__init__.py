"""The official SDK's names and behaviour, for servers that move to Portico.

Options and arguments that Portico does not have raise UsageError, with the alternative.
"""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, public_names

if TYPE_CHECKING:
    from portico.auth.access_token import (
        AccessToken as AccessToken,
    )
    from portico.client.client import (
        Client as Client,
    )
    from portico.compat.fastmcp.dependencies import (
        get_access_token as get_access_token,
    )
    from portico.compat.mcp_sdk import base as base
    from portico.compat.mcp_sdk.auth import (
        TokenVerifier as TokenVerifier,
    )
    from portico.compat.mcp_sdk.context import (
        Context as Context,
    )
    from portico.compat.mcp_sdk.dependencies import (
        Sample as Sample,
    )
    from portico.compat.mcp_sdk.errors import (
        INTERNAL_ERROR as INTERNAL_ERROR,
    )
    from portico.compat.mcp_sdk.errors import (
        INVALID_PARAMS as INVALID_PARAMS,
    )
    from portico.compat.mcp_sdk.errors import (
        INVALID_REQUEST as INVALID_REQUEST,
    )
    from portico.compat.mcp_sdk.errors import (
        METHOD_NOT_FOUND as METHOD_NOT_FOUND,
    )
    from portico.compat.mcp_sdk.errors import (
        PARSE_ERROR as PARSE_ERROR,
    )
    from portico.compat.mcp_sdk.errors import (
        ErrorData as ErrorData,
    )
    from portico.compat.mcp_sdk.errors import (
        MCPError as MCPError,
    )
    from portico.compat.mcp_sdk.errors import (
        McpError as McpError,
    )
    from portico.compat.mcp_sdk.errors import (
        ResourceNotFoundError as ResourceNotFoundError,
    )
    from portico.compat.mcp_sdk.extension import (
        CallNext as CallNext,
    )
    from portico.compat.mcp_sdk.extension import (
        Extension as Extension,
    )
    from portico.compat.mcp_sdk.extension import (
        HandlerResult as HandlerResult,
    )
    from portico.compat.mcp_sdk.extension import (
        MethodBinding as MethodBinding,
    )
    from portico.compat.mcp_sdk.extension import (
        ResourceBinding as ResourceBinding,
    )
    from portico.compat.mcp_sdk.extension import (
        ServerExtension as ServerExtension,
    )
    from portico.compat.mcp_sdk.extension import (
        ServerRequestContext as ServerRequestContext,
    )
    from portico.compat.mcp_sdk.extension import (
        ToolBinding as ToolBinding,
    )
    from portico.compat.mcp_sdk.extension import (
        require_client_extension as require_client_extension,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        InitializationOptions as InitializationOptions,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        LowLevelServer as LowLevelServer,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        NotificationOptions as NotificationOptions,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        PromptDefinition as PromptDefinition,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        ReadResourceContents as ReadResourceContents,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        ResourceDefinition as ResourceDefinition,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        ResourceTemplateDefinition as ResourceTemplateDefinition,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        SdkRequestParams as SdkRequestParams,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        Server as Server,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        ToolDefinition as ToolDefinition,
    )
    from portico.compat.mcp_sdk.lowlevel import (
        stdio_server as stdio_server,
    )
    from portico.compat.mcp_sdk.resources import (
        FileResource as FileResource,
    )
    from portico.compat.mcp_sdk.resources import (
        FunctionResource as FunctionResource,
    )
    from portico.compat.mcp_sdk.resources import (
        TextResource as TextResource,
    )
    from portico.compat.mcp_sdk.server import (
        FastMCP as FastMCP,
    )
    from portico.compat.mcp_sdk.server import (
        MCPServer as MCPServer,
    )
    from portico.compat.mcp_sdk.session import (
        RequestContext as RequestContext,
    )
    from portico.compat.mcp_sdk.session import (
        ServerSession as ServerSession,
    )
    from portico.compat.mcp_sdk.settings import (
        AuthSettings as AuthSettings,
    )
    from portico.compat.mcp_sdk.settings import (
        RequestStateSecurity as RequestStateSecurity,
    )
    from portico.compat.mcp_sdk.settings import (
        TransportSecuritySettings as TransportSecuritySettings,
    )
    from portico.protocol.errors import (
        ToolError as ToolError,
    )
    from portico.protocol.meta import (
        Icon as Icon,
    )
    from portico.protocol.tools import (
        ToolAnnotations as ToolAnnotations,
    )
    from portico.server.components.dependencies import (
        Elicit as Elicit,
    )
    from portico.server.components.dependencies import (
        ListRoots as ListRoots,
    )
    from portico.server.components.dependencies import (
        Resolve as Resolve,
    )
    from portico.server.components.prompts import (
        AssistantMessage as AssistantMessage,
    )
    from portico.server.components.prompts import (
        Message as Message,
    )
    from portico.server.components.prompts import (
        Prompt as Prompt,
    )
    from portico.server.components.prompts import (
        UserMessage as UserMessage,
    )
    from portico.server.components.resources import (
        Resource as Resource,
    )
    from portico.server.components.resources import (
        ResourceSecurity as ResourceSecurity,
    )
    from portico.server.components.results import (
        Audio as Audio,
    )
    from portico.server.components.results import (
        Image as Image,
    )
    from portico.server.components.tools import (
        Tool as Tool,
    )
    from portico.server.context.context import (
        AcceptedElicitation as AcceptedElicitation,
    )
    from portico.server.context.context import (
        CancelledElicitation as CancelledElicitation,
    )
    from portico.server.context.context import (
        DeclinedElicitation as DeclinedElicitation,
    )
    from portico.server.context.context import (
        ElicitationResult as ElicitationResult,
    )
    from portico.server.options import (
        CacheHint as CacheHint,
    )
    from portico.server.options import (
        InvalidRequestState as InvalidRequestState,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.auth.access_token": ("AccessToken",),
    "portico.client.client": ("Client",),
    "portico.compat.fastmcp.dependencies": ("get_access_token",),
    "portico.compat.mcp_sdk.auth": ("TokenVerifier",),
    "portico.compat.mcp_sdk.base": (),
    "portico.compat.mcp_sdk.context": ("Context",),
    "portico.compat.mcp_sdk.dependencies": ("Sample",),
    "portico.compat.mcp_sdk.errors": (
        "ErrorData",
        "INTERNAL_ERROR",
        "INVALID_PARAMS",
        "INVALID_REQUEST",
        "MCPError",
        "METHOD_NOT_FOUND",
        "McpError",
        "PARSE_ERROR",
        "ResourceNotFoundError",
    ),
    "portico.compat.mcp_sdk.extension": (
        "CallNext",
        "Extension",
        "HandlerResult",
        "MethodBinding",
        "ResourceBinding",
        "ServerExtension",
        "ServerRequestContext",
        "ToolBinding",
        "require_client_extension",
    ),
    "portico.compat.mcp_sdk.lowlevel": (
        "InitializationOptions",
        "LowLevelServer",
        "NotificationOptions",
        "PromptDefinition",
        "ReadResourceContents",
        "ResourceDefinition",
        "ResourceTemplateDefinition",
        "SdkRequestParams",
        "Server",
        "ToolDefinition",
        "stdio_server",
    ),
    "portico.compat.mcp_sdk.resources": (
        "FileResource",
        "FunctionResource",
        "TextResource",
    ),
    "portico.compat.mcp_sdk.server": (
        "FastMCP",
        "MCPServer",
    ),
    "portico.compat.mcp_sdk.session": (
        "RequestContext",
        "ServerSession",
    ),
    "portico.compat.mcp_sdk.settings": (
        "AuthSettings",
        "RequestStateSecurity",
        "TransportSecuritySettings",
    ),
    "portico.protocol.errors": ("ToolError",),
    "portico.protocol.meta": ("Icon",),
    "portico.protocol.tools": ("ToolAnnotations",),
    "portico.server.components.dependencies": (
        "Elicit",
        "ListRoots",
        "Resolve",
    ),
    "portico.server.components.prompts": (
        "AssistantMessage",
        "Message",
        "Prompt",
        "UserMessage",
    ),
    "portico.server.components.resources": (
        "Resource",
        "ResourceSecurity",
    ),
    "portico.server.components.results": (
        "Audio",
        "Image",
    ),
    "portico.server.components.tools": ("Tool",),
    "portico.server.context.context": (
        "AcceptedElicitation",
        "CancelledElicitation",
        "DeclinedElicitation",
        "ElicitationResult",
    ),
    "portico.server.options": (
        "CacheHint",
        "InvalidRequestState",
    ),
}


if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = public_names(__name__, _HOMES)
