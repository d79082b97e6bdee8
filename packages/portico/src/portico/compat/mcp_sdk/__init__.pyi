# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.auth.access_token import AccessToken as AccessToken
from portico.client.client import Client as Client
from portico.compat.fastmcp.dependencies import get_access_token as get_access_token
from portico.compat.mcp_sdk import base as base
from portico.compat.mcp_sdk.auth import TokenVerifier as TokenVerifier
from portico.compat.mcp_sdk.context import Context as Context
from portico.compat.mcp_sdk.dependencies import Sample as Sample
from portico.compat.mcp_sdk.errors import (
    INTERNAL_ERROR as INTERNAL_ERROR,
    INVALID_PARAMS as INVALID_PARAMS,
    INVALID_REQUEST as INVALID_REQUEST,
    METHOD_NOT_FOUND as METHOD_NOT_FOUND,
    PARSE_ERROR as PARSE_ERROR,
    ErrorData as ErrorData,
    MCPError as MCPError,
    McpError as McpError,
    ResourceNotFoundError as ResourceNotFoundError,
)
from portico.compat.mcp_sdk.extension import (
    CallNext as CallNext,
    Extension as Extension,
    HandlerResult as HandlerResult,
    MethodBinding as MethodBinding,
    ResourceBinding as ResourceBinding,
    ServerExtension as ServerExtension,
    ServerRequestContext as ServerRequestContext,
    ToolBinding as ToolBinding,
    require_client_extension as require_client_extension,
)
from portico.compat.mcp_sdk.lowlevel import (
    InitializationOptions as InitializationOptions,
    LowLevelServer as LowLevelServer,
    NotificationOptions as NotificationOptions,
    PromptDefinition as PromptDefinition,
    ReadResourceContents as ReadResourceContents,
    ResourceDefinition as ResourceDefinition,
    ResourceTemplateDefinition as ResourceTemplateDefinition,
    SdkRequestParams as SdkRequestParams,
    Server as Server,
    ToolDefinition as ToolDefinition,
    stdio_server as stdio_server,
)
from portico.compat.mcp_sdk.resources import (
    FileResource as FileResource,
    FunctionResource as FunctionResource,
    TextResource as TextResource,
)
from portico.compat.mcp_sdk.server import (
    FastMCP as FastMCP,
    MCPServer as MCPServer,
)
from portico.compat.mcp_sdk.session import (
    RequestContext as RequestContext,
    ServerSession as ServerSession,
)
from portico.compat.mcp_sdk.settings import (
    AuthSettings as AuthSettings,
    RequestStateSecurity as RequestStateSecurity,
    TransportSecuritySettings as TransportSecuritySettings,
)
from portico.protocol.errors import ToolError as ToolError
from portico.protocol.meta import Icon as Icon
from portico.protocol.tools import ToolAnnotations as ToolAnnotations
from portico.server.components.dependencies import (
    Elicit as Elicit,
    ListRoots as ListRoots,
    Resolve as Resolve,
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
    Image as Image,
)
from portico.server.components.tools import Tool as Tool
from portico.server.context.context import (
    AcceptedElicitation as AcceptedElicitation,
    CancelledElicitation as CancelledElicitation,
    DeclinedElicitation as DeclinedElicitation,
    ElicitationResult as ElicitationResult,
)
from portico.server.options import (
    CacheHint as CacheHint,
    InvalidRequestState as InvalidRequestState,
)
