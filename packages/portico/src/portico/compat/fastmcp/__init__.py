"""FastMCP's names and behaviour, for servers that move to Portico.

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
    from portico.compat.fastmcp.auth import (
        AuthKitProvider as AuthKitProvider,
    )
    from portico.compat.fastmcp.auth import (
        AzureJWTVerifier as AzureJWTVerifier,
    )
    from portico.compat.fastmcp.auth import (
        DebugTokenVerifier as DebugTokenVerifier,
    )
    from portico.compat.fastmcp.auth import (
        DescopeProvider as DescopeProvider,
    )
    from portico.compat.fastmcp.auth import (
        IntrospectionTokenVerifier as IntrospectionTokenVerifier,
    )
    from portico.compat.fastmcp.auth import (
        JWTVerifier as JWTVerifier,
    )
    from portico.compat.fastmcp.auth import (
        MultiAuth as MultiAuth,
    )
    from portico.compat.fastmcp.auth import (
        PropelAuthProvider as PropelAuthProvider,
    )
    from portico.compat.fastmcp.auth import (
        RemoteAuthProvider as RemoteAuthProvider,
    )
    from portico.compat.fastmcp.auth import (
        ScalekitProvider as ScalekitProvider,
    )
    from portico.compat.fastmcp.auth import (
        StaticTokenVerifier as StaticTokenVerifier,
    )
    from portico.compat.fastmcp.auth import (
        SupabaseProvider as SupabaseProvider,
    )
    from portico.compat.fastmcp.context import (
        Context as Context,
    )
    from portico.compat.fastmcp.dependencies import (
        CurrentAccessToken as CurrentAccessToken,
    )
    from portico.compat.fastmcp.dependencies import (
        CurrentContext as CurrentContext,
    )
    from portico.compat.fastmcp.dependencies import (
        CurrentFastMCP as CurrentFastMCP,
    )
    from portico.compat.fastmcp.dependencies import (
        CurrentHeaders as CurrentHeaders,
    )
    from portico.compat.fastmcp.dependencies import (
        Progress as Progress,
    )
    from portico.compat.fastmcp.dependencies import (
        TokenClaim as TokenClaim,
    )
    from portico.compat.fastmcp.dependencies import (
        get_access_token as get_access_token,
    )
    from portico.compat.fastmcp.dependencies import (
        get_context as get_context,
    )
    from portico.compat.fastmcp.dependencies import (
        get_http_headers as get_http_headers,
    )
    from portico.compat.fastmcp.dependencies import (
        get_server as get_server,
    )
    from portico.compat.fastmcp.exceptions import (
        FastMCPError as FastMCPError,
    )
    from portico.compat.fastmcp.exceptions import (
        InsufficientScopeError as InsufficientScopeError,
    )
    from portico.compat.fastmcp.exceptions import (
        NotFoundError as NotFoundError,
    )
    from portico.compat.fastmcp.exceptions import (
        PromptError as PromptError,
    )
    from portico.compat.fastmcp.exceptions import (
        ResourceError as ResourceError,
    )
    from portico.compat.fastmcp.login_providers import (
        Auth0Provider as Auth0Provider,
    )
    from portico.compat.fastmcp.login_providers import (
        AWSCognitoProvider as AWSCognitoProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        AzureProvider as AzureProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        ClerkProvider as ClerkProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        DiscordProvider as DiscordProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        GitHubProvider as GitHubProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        GoogleProvider as GoogleProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        HuggingFaceProvider as HuggingFaceProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        KeycloakAuthProvider as KeycloakAuthProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        OAuthProxy as OAuthProxy,
    )
    from portico.compat.fastmcp.login_providers import (
        OCIProvider as OCIProvider,
    )
    from portico.compat.fastmcp.login_providers import (
        OIDCProxy as OIDCProxy,
    )
    from portico.compat.fastmcp.login_providers import (
        WorkOSProvider as WorkOSProvider,
    )
    from portico.compat.fastmcp.middleware import (
        CallNext as CallNext,
    )
    from portico.compat.fastmcp.middleware import (
        DetailedTimingMiddleware as DetailedTimingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        ErrorHandlingMiddleware as ErrorHandlingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        LoggingMiddleware as LoggingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        Middleware as Middleware,
    )
    from portico.compat.fastmcp.middleware import (
        MiddlewareContext as MiddlewareContext,
    )
    from portico.compat.fastmcp.middleware import (
        PingMiddleware as PingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        RateLimitingMiddleware as RateLimitingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        ResponseCachingMiddleware as ResponseCachingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        ResponseLimitingMiddleware as ResponseLimitingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        RetryMiddleware as RetryMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        StructuredLoggingMiddleware as StructuredLoggingMiddleware,
    )
    from portico.compat.fastmcp.middleware import (
        TimingMiddleware as TimingMiddleware,
    )
    from portico.compat.fastmcp.providers import (
        ClaudeSkillsProvider as ClaudeSkillsProvider,
    )
    from portico.compat.fastmcp.providers import (
        LocalProvider as LocalProvider,
    )
    from portico.compat.fastmcp.providers import (
        Provider as Provider,
    )
    from portico.compat.fastmcp.providers import (
        SkillsDirectoryProvider as SkillsDirectoryProvider,
    )
    from portico.compat.fastmcp.providers import (
        create_proxy as create_proxy,
    )
    from portico.compat.fastmcp.resources import (
        DirectoryResource as DirectoryResource,
    )
    from portico.compat.fastmcp.resources import (
        FileResource as FileResource,
    )
    from portico.compat.fastmcp.resources import (
        PromptResult as PromptResult,
    )
    from portico.compat.fastmcp.resources import (
        ResourceContent as ResourceContent,
    )
    from portico.compat.fastmcp.resources import (
        ResourceResult as ResourceResult,
    )
    from portico.compat.fastmcp.resources import (
        TextResource as TextResource,
    )
    from portico.compat.fastmcp.resources import (
        combine_lifespans as combine_lifespans,
    )
    from portico.compat.fastmcp.resources import (
        lifespan as lifespan,
    )
    from portico.compat.fastmcp.server import (
        FastMCP as FastMCP,
    )
    from portico.compat.fastmcp.transforms import (
        Transform as Transform,
    )
    from portico.compat.mcp_sdk.auth import (
        AuthProvider as AuthProvider,
    )
    from portico.compat.mcp_sdk.auth import (
        TokenVerifier as TokenVerifier,
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
    from portico.compat.mcp_sdk.settings import (
        RequestStateSecurity as RequestStateSecurity,
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
    from portico.server.components.auth_checks import (
        AuthCheck as AuthCheck,
    )
    from portico.server.components.auth_checks import (
        AuthContext as AuthContext,
    )
    from portico.server.components.auth_checks import (
        AuthMiddleware as AuthMiddleware,
    )
    from portico.server.components.auth_checks import (
        require_scopes as require_scopes,
    )
    from portico.server.components.auth_checks import (
        restrict_tag as restrict_tag,
    )
    from portico.server.components.dependencies import (
        CallArgument as CallArgument,
    )
    from portico.server.components.dependencies import (
        Depends as Depends,
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
        File as File,
    )
    from portico.server.components.results import (
        Image as Image,
    )
    from portico.server.components.results import (
        ToolResult as ToolResult,
    )
    from portico.server.components.tools import (
        TaskConfig as TaskConfig,
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
    from portico.server.options import (
        CacheHint as CacheHint,
    )
    from portico.server.options import (
        InvalidRequestState as InvalidRequestState,
    )
    from portico.server.providers.filesystem import (
        FileSystemProvider as FileSystemProvider,
    )
    from portico.server.providers.openapi.route_maps import (
        MCPType as MCPType,
    )
    from portico.server.providers.openapi.route_maps import (
        RouteMap as RouteMap,
    )
    from portico.server.registry.service import (
        prompt as prompt,
    )
    from portico.server.registry.service import (
        resource as resource,
    )
    from portico.server.registry.service import (
        tool as tool,
    )
    from portico.server.transforms.arguments import (
        ArgTransform as ArgTransform,
    )
    from portico.server.transforms.builtin import (
        Namespace as Namespace,
    )
    from portico.server.transforms.builtin import (
        PromptsAsTools as PromptsAsTools,
    )
    from portico.server.transforms.builtin import (
        ResourcesAsTools as ResourcesAsTools,
    )
    from portico.server.transforms.builtin import (
        ToolTransform as ToolTransform,
    )
    from portico.server.transforms.builtin import (
        ToolTransformConfig as ToolTransformConfig,
    )
    from portico.server.transforms.builtin import (
        VersionFilter as VersionFilter,
    )
    from portico.server.transforms.transformed_tool import (
        forward as forward,
    )
    from portico.server.transforms.transformed_tool import (
        forward_raw as forward_raw,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.auth.access_token": ("AccessToken",),
    "portico.client.client": ("Client",),
    "portico.compat.fastmcp.auth": (
        "AuthKitProvider",
        "AzureJWTVerifier",
        "DebugTokenVerifier",
        "DescopeProvider",
        "IntrospectionTokenVerifier",
        "JWTVerifier",
        "MultiAuth",
        "PropelAuthProvider",
        "RemoteAuthProvider",
        "ScalekitProvider",
        "StaticTokenVerifier",
        "SupabaseProvider",
    ),
    "portico.compat.fastmcp.context": ("Context",),
    "portico.compat.fastmcp.dependencies": (
        "CurrentAccessToken",
        "CurrentContext",
        "CurrentFastMCP",
        "CurrentHeaders",
        "Progress",
        "TokenClaim",
        "get_access_token",
        "get_context",
        "get_http_headers",
        "get_server",
    ),
    "portico.compat.fastmcp.exceptions": (
        "FastMCPError",
        "InsufficientScopeError",
        "NotFoundError",
        "PromptError",
        "ResourceError",
    ),
    "portico.compat.fastmcp.login_providers": (
        "AWSCognitoProvider",
        "Auth0Provider",
        "AzureProvider",
        "ClerkProvider",
        "DiscordProvider",
        "GitHubProvider",
        "GoogleProvider",
        "HuggingFaceProvider",
        "KeycloakAuthProvider",
        "OAuthProxy",
        "OCIProvider",
        "OIDCProxy",
        "WorkOSProvider",
    ),
    "portico.compat.fastmcp.middleware": (
        "CallNext",
        "DetailedTimingMiddleware",
        "ErrorHandlingMiddleware",
        "LoggingMiddleware",
        "Middleware",
        "MiddlewareContext",
        "PingMiddleware",
        "RateLimitingMiddleware",
        "ResponseCachingMiddleware",
        "ResponseLimitingMiddleware",
        "RetryMiddleware",
        "StructuredLoggingMiddleware",
        "TimingMiddleware",
    ),
    "portico.compat.fastmcp.providers": (
        "ClaudeSkillsProvider",
        "LocalProvider",
        "Provider",
        "SkillsDirectoryProvider",
        "create_proxy",
    ),
    "portico.compat.fastmcp.resources": (
        "DirectoryResource",
        "FileResource",
        "PromptResult",
        "ResourceContent",
        "ResourceResult",
        "TextResource",
        "combine_lifespans",
        "lifespan",
    ),
    "portico.compat.fastmcp.server": ("FastMCP",),
    "portico.compat.fastmcp.transforms": ("Transform",),
    "portico.compat.mcp_sdk.auth": (
        "AuthProvider",
        "TokenVerifier",
    ),
    "portico.compat.mcp_sdk.extension": (
        "MethodBinding",
        "ResourceBinding",
        "ServerExtension",
        "ServerRequestContext",
        "ToolBinding",
        "require_client_extension",
    ),
    "portico.compat.mcp_sdk.settings": ("RequestStateSecurity",),
    "portico.protocol.errors": ("ToolError",),
    "portico.protocol.meta": ("Icon",),
    "portico.protocol.tools": ("ToolAnnotations",),
    "portico.server.components.auth_checks": (
        "AuthCheck",
        "AuthContext",
        "AuthMiddleware",
        "require_scopes",
        "restrict_tag",
    ),
    "portico.server.components.dependencies": (
        "CallArgument",
        "Depends",
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
        "File",
        "Image",
        "ToolResult",
    ),
    "portico.server.components.tools": (
        "TaskConfig",
        "Tool",
    ),
    "portico.server.context.context": (
        "AcceptedElicitation",
        "CancelledElicitation",
        "DeclinedElicitation",
    ),
    "portico.server.options": (
        "CacheHint",
        "InvalidRequestState",
    ),
    "portico.server.providers.filesystem": ("FileSystemProvider",),
    "portico.server.providers.openapi.route_maps": (
        "MCPType",
        "RouteMap",
    ),
    "portico.server.registry.service": (
        "prompt",
        "resource",
        "tool",
    ),
    "portico.server.transforms.arguments": ("ArgTransform",),
    "portico.server.transforms.builtin": (
        "Namespace",
        "PromptsAsTools",
        "ResourcesAsTools",
        "ToolTransform",
        "ToolTransformConfig",
        "VersionFilter",
    ),
    "portico.server.transforms.transformed_tool": (
        "forward",
        "forward_raw",
    ),
}

# Without those of portico-gateway, so that `import *` works where it is not installed.
_LOGIN_PROVIDERS = frozenset(_HOMES["portico.compat.fastmcp.login_providers"])
__all__ = sorted({name for names in _HOMES.values() for name in names} - _LOGIN_PROVIDERS)

if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = public_names(__name__, _HOMES)
