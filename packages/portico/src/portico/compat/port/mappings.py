"""What FastMCP and the official SDK call what Portico has, and what to do about the rest."""

from __future__ import annotations

from typing import NamedTuple

# The packages whose names are looked at.
PACKAGES = ("fastmcp", "mcp", "mcp_types")

_SERVER = "portico"
_EXTEND = "portico.extend"


# Options of a server that are left out: Portico does the same without being told.
NEEDLESS = frozenset(
    {"mask_error_details", "dereference_schemas", "include_fastmcp_meta", "debug", "dependencies",
     "session_state_store", "client_log_level", "tasks", "subscriptions", "sampling_handler_behavior",
     "on_duplicate_resources", "on_duplicate_prompts", "warn_on_duplicate_resources", "warn_on_duplicate_prompts"}
)  # fmt: skip


class Counterpart(NamedTuple):
    """Where something is in Portico, and its name there."""

    module: str
    name: str


def _same(module: str, names: str) -> dict[str, Counterpart]:
    return {name: Counterpart(module, name) for name in names.split()}


# By their last name, wherever in fastmcp or mcp.server it is.
_OF_SERVERS: dict[str, Counterpart] = {
    **_same(
        _SERVER,
        "Context Image Audio File ToolResult ToolError Depends Resolve Elicit ListRoots Message UserMessage"
        " AssistantMessage AcceptedElicitation DeclinedElicitation CancelledElicitation ElicitationResult TaskConfig"
        " MiddlewareContext LoggingMiddleware TimingMiddleware RetryMiddleware ResponseCachingMiddleware"
        " ErrorHandlingMiddleware ResponseLimitingMiddleware TransportSecuritySettings ResourceNotFoundError"
        " AccessToken AuthSettings TokenVerifier get_access_token get_context get_http_headers CurrentContext"
        " CurrentAccessToken AzureProvider GitHubProvider GoogleProvider Auth0Provider DiscordProvider"
        " WorkOSProvider AWSCognitoProvider KeycloakAuthProvider OAuthProxy OIDCProxy JWTVerifier"
        " StaticTokenVerifier IntrospectionTokenVerifier RemoteAuthProvider ArgTransform ToolTransform"
        " ToolTransformConfig Namespace VersionFilter ResourcesAsTools PromptsAsTools FileSystemProvider"
        " LocalProvider SkillsDirectoryProvider create_proxy forward forward_raw CallNext HandlerResult"
        " ServerRequestContext Extension ToolBinding ResourceBinding MethodBinding CacheHint RequestStateSecurity"
        " InvalidRequestState ResourceSecurity require_client_extension tool resource prompt Tool Prompt"
        " ClerkProvider HuggingFaceProvider OCIProvider AuthKitProvider AzureJWTVerifier DebugTokenVerifier"
        " DescopeProvider MultiAuth PropelAuthProvider ScalekitProvider SupabaseProvider CurrentFastMCP"
        " CurrentHeaders Progress TokenClaim get_server CallArgument InsufficientScopeError PromptError"
        " ResourceError AuthCheck AuthContext AuthMiddleware require_scopes restrict_tag ServerExtension"
        " DirectoryResource FileResource PromptResult ResourceContent ResourceResult TextResource combine_lifespans"
        " lifespan DetailedTimingMiddleware PingMiddleware RateLimitingMiddleware StructuredLoggingMiddleware"
        " ClaudeSkillsProvider RouteMap MCPType Transform",
    ),
    "FastMCP": Counterpart(_SERVER, "Server"),
    "MCPServer": Counterpart(_SERVER, "Server"),
    "Middleware": Counterpart(_SERVER, "Middleware"),
    "BearerAuthProvider": Counterpart(_SERVER, "JWTVerifier"),
    "Sample": Counterpart(_SERVER, "Sampling"),
    "FunctionResource": Counterpart(_EXTEND, "Resource"),
}
# Of mcp.types. Their constructors take the same members, but none for what the class says already.
_OF_TYPES: dict[str, Counterpart] = {
    **_same(
        _EXTEND,
        "TextContent ImageContent AudioContent EmbeddedResource ResourceLink Annotations CallToolResult PromptMessage"
        " GetPromptResult SamplingMessage Root CreateMessageResult ElicitResult Completion Implementation"
        " ReadResourceResult InputRequiredResult PromptReference PromptArgument ListToolsResult ListPromptsResult"
        " ListResourcesResult ListResourceTemplatesResult ListRootsResult"
        " ErrorData PARSE_ERROR INVALID_REQUEST METHOD_NOT_FOUND INVALID_PARAMS INTERNAL_ERROR",
    ),
    **_same(_SERVER, "Icon ToolAnnotations"),
    "Tool": Counterpart(_EXTEND, "ToolDefinition"),
    "Prompt": Counterpart(_EXTEND, "PromptDefinition"),
    "Resource": Counterpart(_EXTEND, "ResourceDefinition"),
    "ResourceTemplate": Counterpart(_EXTEND, "ResourceTemplateDefinition"),
    **{
        name: Counterpart(_EXTEND, "RequestMembers")
        for name in (
            "PaginatedRequestParams",
            "CallToolRequestParams",
            "GetPromptRequestParams",
            "ReadResourceRequestParams",
            "CompleteRequestParams",
        )
    },
    "ResourceTemplateReference": Counterpart(_EXTEND, "ResourceReference"),
    "TextResourceContents": Counterpart(_EXTEND, "TextContents"),
    "BlobResourceContents": Counterpart(_EXTEND, "BlobContents"),
}
_OF_CLIENTS: dict[str, Counterpart] = _same(_SERVER, "Client")
# Of fastmcp.client and the modules below it.
_OF_HANDLERS: dict[str, Counterpart] = _same(_EXTEND, "ElicitResult LogMessage")
_OF_LOGGING = {"get_logger": Counterpart("logging", "getLogger")}
_OF_ERRORS: dict[str, Counterpart] = {
    "ToolError": Counterpart(_SERVER, "ToolError"),
    "FastMCPError": Counterpart(_SERVER, "Error"),
    "NotFoundError": Counterpart(_SERVER, "ResourceNotFoundError"),
    "MCPError": Counterpart(_SERVER, "ProtocolError"),
    "McpError": Counterpart(_SERVER, "ProtocolError"),
}

# Names that lead to nothing here: what to do instead.
_ADVICE = {
    "ClientSession": "use portico.Client: it opens the connection, shakes hands and lists by itself",
    "StdioServerParameters": 'give portico.Client the command as a list: Client(["python", "server.py"])',
    "stdio_client": 'give portico.Client the command as a list: Client(["python", "server.py"])',
    "sse_client": "give portico.Client the URL; it finds out how to talk to it",
    "streamable_http_client": "give portico.Client the URL",
    "streamablehttp_client": "give portico.Client the URL",
    "OAuthClientProvider": "Client(url, auth=OAuth(…)) with portico.auth.OAuth: docs/guide/client.md",
    "OAuthAuthorizationServerProvider": "[auth.proxy] is an authorization server: docs/guide/access.md",
    "OAuth": "portico.auth.OAuth logs a client in: docs/guide/client.md",
    "Provider": "a portico.Service offers components of its own: docs/guide/services.md",
    "SamplingMessage": "in a client's handler: portico.extend.SamplingMessage, docs/guide/client.md",
    "SamplingParams": "in a client's handler: portico.extend.CreateMessageParams, docs/guide/client.md",
    "StreamableHttpTransport": "give portico.Client the URL, with headers= and auth= beside it",
    "SSETransport": 'give portico.Client {"url": URL, "type": "sse"}',
    "FastMCPTransport": "give portico.Client the server itself: Client(server)",
    "StdioTransport": 'give portico.Client {"command": …, "args": […], "env": {…}, "cwd": …}',
    "PythonStdioTransport": 'give portico.Client the command as a list: Client(["python", "server.py"])',
    "NodeStdioTransport": 'give portico.Client the command as a list: Client(["node", "server.js"])',
    "UvxStdioTransport": 'give portico.Client the command as a list: Client(["uvx", "tool"])',
    "NpxStdioTransport": 'give portico.Client the command as a list: Client(["npx", "-y", "package"])',
    "BearerAuth": 'give portico.Client the token: Client(url, auth="TOKEN")',
    "get_http_request": "portico.get_http_headers() has the headers named by Server(headers=[…]); no Request object",
    "ClientError": "catch portico.Error, the base class of everything that a Client raises",
    "ValidationError": "invalid arguments are a ToolError at the client; there is nothing to catch in a server",
    "CallToolResult": "leave the annotation out: it is what Client.call_tool returns",
    "FastMCPProxy": "use portico.create_proxy(target)",
    "ProxyClient": "use portico.create_proxy(target)",
    "settings": "no equivalent: pass the options to Server(…) and run(…)",
    "EventStore": "Portico keeps what a stream has said by itself; leave it out",
}
# What belongs to the low-level Server, wherever in mcp.server it is.
_OF_LOW_LEVEL = {
    **_same(_EXTEND, "stdio_server NotificationOptions InitializationOptions ReadResourceContents ServerSession"),
    "Server": Counterpart(_EXTEND, "LowLevelServer"),
}


def lookup(dotted: str) -> Counterpart | None:
    """What a name of theirs is here; None if nothing."""
    home, _, name = dotted.rpartition(".")
    if home.startswith("mcp.server") and name in _OF_LOW_LEVEL:
        return _OF_LOW_LEVEL[name]
    if home.startswith(("mcp.types", "mcp_types")):
        return _OF_TYPES.get(name)
    if home in ("fastmcp", "mcp", "mcp.client", "fastmcp.client", "fastmcp.client.client") and name in _OF_CLIENTS:
        return _OF_CLIENTS[name]
    if name in _OF_ERRORS and (home == "mcp" or home.endswith("exceptions")):
        return _OF_ERRORS[name]
    if home.startswith("fastmcp.client") and name in _OF_HANDLERS:
        return _OF_HANDLERS[name]
    if home.endswith("utilities.logging") and name in _OF_LOGGING:
        return _OF_LOGGING[name]
    if home.startswith(("mcp.client", "fastmcp.client")):
        return None
    found = _OF_SERVERS.get(name)
    if found is not None and home == "mcp":
        return None
    return found or (_OF_TYPES.get(name) if home in ("mcp", "mcp.server", "fastmcp.utilities.types") else None)


# What is made otherwise than by the class that it is caught by: the SDK's errors begin with their code.
MADE_BY = {"MCPError": "portico.extend.CodedError", "McpError": "portico.extend.CodedError"}


def is_theirs(dotted: str) -> bool:
    return dotted.partition(".")[0] in PACKAGES


def names_in(module: str) -> list[str]:
    """What `from MODULE import *` may have brought that has a name here."""
    known = {**_OF_SERVERS, **_OF_TYPES, **_OF_CLIENTS, **_OF_ERRORS, **_OF_LOW_LEVEL}
    return [name for name in known if lookup(f"{module}.{name}") is not None]


def everything() -> list[Counterpart]:
    return [
        *_OF_SERVERS.values(),
        *_OF_TYPES.values(),
        *_OF_CLIENTS.values(),
        *_OF_HANDLERS.values(),
        *_OF_LOGGING.values(),
        *_OF_ERRORS.values(),
        *_OF_LOW_LEVEL.values(),
    ]


def advice(dotted: str) -> str:
    said = _ADVICE.get(dotted.rpartition(".")[2])
    if said is not None:
        return said
    if dotted.startswith(("mcp.types", "mcp_types")):
        return "left as it is: what comes from mcp.types is understood by its shape while that package is installed"
    return "no equivalent in Portico; the guide has a page about moving in, with what there is instead"
