# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.auth.access_token import AccessToken as AccessToken
from portico.client.client import Client as Client
from portico.compat.fastmcp.auth import (
    AuthKitProvider as AuthKitProvider,
    AzureJWTVerifier as AzureJWTVerifier,
    DebugTokenVerifier as DebugTokenVerifier,
    DescopeProvider as DescopeProvider,
    IntrospectionTokenVerifier as IntrospectionTokenVerifier,
    JWTVerifier as JWTVerifier,
    MultiAuth as MultiAuth,
    PropelAuthProvider as PropelAuthProvider,
    RemoteAuthProvider as RemoteAuthProvider,
    ScalekitProvider as ScalekitProvider,
    StaticTokenVerifier as StaticTokenVerifier,
    SupabaseProvider as SupabaseProvider,
)
from portico.compat.fastmcp.context import Context as Context
from portico.compat.fastmcp.dependencies import (
    CurrentAccessToken as CurrentAccessToken,
    CurrentContext as CurrentContext,
    CurrentFastMCP as CurrentFastMCP,
    CurrentHeaders as CurrentHeaders,
    Progress as Progress,
    TokenClaim as TokenClaim,
    get_access_token as get_access_token,
    get_context as get_context,
    get_http_headers as get_http_headers,
    get_server as get_server,
)
from portico.compat.fastmcp.exceptions import (
    FastMCPError as FastMCPError,
    InsufficientScopeError as InsufficientScopeError,
    NotFoundError as NotFoundError,
    PromptError as PromptError,
    ResourceError as ResourceError,
)
from portico.compat.fastmcp.login_providers import (
    Auth0Provider as Auth0Provider,
    AWSCognitoProvider as AWSCognitoProvider,
    AzureProvider as AzureProvider,
    ClerkProvider as ClerkProvider,
    DiscordProvider as DiscordProvider,
    GitHubProvider as GitHubProvider,
    GoogleProvider as GoogleProvider,
    HuggingFaceProvider as HuggingFaceProvider,
    KeycloakAuthProvider as KeycloakAuthProvider,
    OAuthProxy as OAuthProxy,
    OCIProvider as OCIProvider,
    OIDCProxy as OIDCProxy,
    WorkOSProvider as WorkOSProvider,
)
from portico.compat.fastmcp.middleware import (
    CallNext as CallNext,
    DetailedTimingMiddleware as DetailedTimingMiddleware,
    ErrorHandlingMiddleware as ErrorHandlingMiddleware,
    LoggingMiddleware as LoggingMiddleware,
    Middleware as Middleware,
    MiddlewareContext as MiddlewareContext,
    PingMiddleware as PingMiddleware,
    RateLimitingMiddleware as RateLimitingMiddleware,
    ResponseCachingMiddleware as ResponseCachingMiddleware,
    ResponseLimitingMiddleware as ResponseLimitingMiddleware,
    RetryMiddleware as RetryMiddleware,
    StructuredLoggingMiddleware as StructuredLoggingMiddleware,
    TimingMiddleware as TimingMiddleware,
)
from portico.compat.fastmcp.providers import (
    ClaudeSkillsProvider as ClaudeSkillsProvider,
    LocalProvider as LocalProvider,
    Provider as Provider,
    SkillsDirectoryProvider as SkillsDirectoryProvider,
    create_proxy as create_proxy,
)
from portico.compat.fastmcp.resources import (
    DirectoryResource as DirectoryResource,
    FileResource as FileResource,
    PromptResult as PromptResult,
    ResourceContent as ResourceContent,
    ResourceResult as ResourceResult,
    TextResource as TextResource,
    combine_lifespans as combine_lifespans,
    lifespan as lifespan,
)
from portico.compat.fastmcp.server import FastMCP as FastMCP
from portico.compat.fastmcp.transforms import Transform as Transform
from portico.compat.mcp_sdk.auth import (
    AuthProvider as AuthProvider,
    TokenVerifier as TokenVerifier,
)
from portico.compat.mcp_sdk.extension import (
    MethodBinding as MethodBinding,
    ResourceBinding as ResourceBinding,
    ServerExtension as ServerExtension,
    ServerRequestContext as ServerRequestContext,
    ToolBinding as ToolBinding,
    require_client_extension as require_client_extension,
)
from portico.compat.mcp_sdk.settings import RequestStateSecurity as RequestStateSecurity
from portico.protocol.errors import ToolError as ToolError
from portico.protocol.meta import Icon as Icon
from portico.protocol.tools import ToolAnnotations as ToolAnnotations
from portico.server.components.auth_checks import (
    AuthCheck as AuthCheck,
    AuthContext as AuthContext,
    AuthMiddleware as AuthMiddleware,
    require_scopes as require_scopes,
    restrict_tag as restrict_tag,
)
from portico.server.components.dependencies import (
    CallArgument as CallArgument,
    Depends as Depends,
)
from portico.server.components.prompts import (
    AssistantMessage as AssistantMessage,
    Message as Message,
    Prompt as Prompt,
    UserMessage as UserMessage,
)
from portico.server.components.resources import (
    Resource as Resource,
    ResourceSecurity as ResourceSecurity,
)
from portico.server.components.results import (
    Audio as Audio,
    File as File,
    Image as Image,
    ToolResult as ToolResult,
)
from portico.server.components.tools import (
    TaskConfig as TaskConfig,
    Tool as Tool,
)
from portico.server.context.context import (
    AcceptedElicitation as AcceptedElicitation,
    CancelledElicitation as CancelledElicitation,
    DeclinedElicitation as DeclinedElicitation,
)
from portico.server.options import (
    CacheHint as CacheHint,
    InvalidRequestState as InvalidRequestState,
)
from portico.server.providers.filesystem import FileSystemProvider as FileSystemProvider
from portico.server.providers.openapi.route_maps import (
    MCPType as MCPType,
    RouteMap as RouteMap,
)
from portico.server.registry.service import (
    prompt as prompt,
    resource as resource,
    tool as tool,
)
from portico.server.transforms.arguments import ArgTransform as ArgTransform
from portico.server.transforms.builtin import (
    Namespace as Namespace,
    PromptsAsTools as PromptsAsTools,
    ResourcesAsTools as ResourcesAsTools,
    ToolTransform as ToolTransform,
    ToolTransformConfig as ToolTransformConfig,
    VersionFilter as VersionFilter,
)
from portico.server.transforms.transformed_tool import (
    forward as forward,
    forward_raw as forward_raw,
)
