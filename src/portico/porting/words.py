"""What FastMCP and the official SDK call what Portico has, and what to do about the rest."""

from __future__ import annotations

from typing import NamedTuple

# The packages whose names are looked at.
PACKAGES = ("fastmcp", "mcp", "mcp_types")

_SERVER = "portico"
_EXTEND = "portico.extend"


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
        " CurrentAccessToken AzureProvider GitHubProvider GoogleProvider Auth0Provider DiscordProvider WorkOSProvider"
        " AWSCognitoProvider KeycloakAuthProvider OAuthProxy OIDCProxy JWTVerifier StaticTokenVerifier"
        " IntrospectionTokenVerifier RemoteAuthProvider ArgTransform ToolTransform ToolTransformConfig Namespace"
        " VersionFilter ResourcesAsTools PromptsAsTools FileSystemProvider LocalProvider SkillsDirectoryProvider"
        " create_proxy forward forward_raw CallNext HandlerResult ServerRequestContext Extension ToolBinding"
        " ResourceBinding MethodBinding require_client_extension tool resource prompt Tool Prompt",
    ),
    "FastMCP": Counterpart(_SERVER, "Server"),
    "MCPServer": Counterpart(_SERVER, "Server"),
    "Middleware": Counterpart(_SERVER, "Hooks"),
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
        " ReadResourceResult",
    ),
    **_same(_SERVER, "Icon ToolAnnotations"),
    "TextResourceContents": Counterpart(_EXTEND, "TextContents"),
    "BlobResourceContents": Counterpart(_EXTEND, "BlobContents"),
}
_OF_CLIENTS: dict[str, Counterpart] = _same(_SERVER, "Client")
_OF_ERRORS: dict[str, Counterpart] = {
    "ToolError": Counterpart(_SERVER, "ToolError"),
    "ResourceError": Counterpart(_SERVER, "ToolError"),
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
    "stdio_server": "server.run() serves on standard input and output",
    "OAuthClientProvider": "Client(url, auth=OAuth(…)) with portico.auth.OAuth: docs/guide/client.md",
    "OAuthAuthorizationServerProvider": "[auth.proxy] is an authorization server: docs/guide/access.md",
    "OAuth": "portico.auth.OAuth logs a client in: docs/guide/client.md",
    "RouteMap": "for OpenAPI: what a document has is chosen in another way here",
    "MCPType": "for OpenAPI: what a document has is chosen in another way here",
    "Provider": "a portico.Service offers components of its own: docs/guide/services.md",
    "Transform": "a middleware does the same: portico.Hooks with on_list_tools and on_call_tool",
    "Progress": "take the Context as a parameter, and call ctx.report_progress(…)",
    "ScalekitProvider": "RemoteAuthProvider(JWTVerifier(issuer=…), …): docs/guide/access.md",
    "AuthKitProvider": "RemoteAuthProvider(JWTVerifier(issuer=…), …): docs/guide/access.md",
    "SamplingMessage": "in a client's handler: portico.extend.SamplingMessage, docs/guide/client.md",
    "SamplingParams": "in a client's handler: portico.extend.CreateMessageParams, docs/guide/client.md",
    "StreamableHttpTransport": "give portico.Client the URL",
    "CacheHint": "Server(ttl_ms=…, cache_scope=…) is for everything that the server answers",
    "RequestStateSecurity": "Server(state_key=…) seals what clients carry from one round to the next",
    "ResourceSecurity": "leave it out: a variable of a URI is a text for the function, which decides what it means",
    "EventStore": "Portico keeps what a stream has said by itself; leave it out",
}
_LOW_LEVEL = (
    "the low-level Server: register each function with a decorator of portico.Server; input_schema= is for schemas"
)


def lookup(dotted: str) -> Counterpart | None:
    """What a name of theirs is here; None if nothing."""
    home, _, name = dotted.rpartition(".")
    if is_low_level(dotted):
        return None
    if home.startswith(("mcp.types", "mcp_types")):
        return _OF_TYPES.get(name)
    if home in ("fastmcp", "mcp", "mcp.client", "fastmcp.client", "fastmcp.client.client") and name in _OF_CLIENTS:
        return _OF_CLIENTS[name]
    if name in _OF_ERRORS and (home == "mcp" or home.endswith("exceptions")):
        return _OF_ERRORS[name]
    if home.startswith(("mcp.client", "fastmcp.client")):
        return None
    found = _OF_SERVERS.get(name)
    if found is not None and home == "mcp":
        return None
    return found or (_OF_TYPES.get(name) if home in ("mcp", "mcp.server", "fastmcp.utilities.types") else None)


def is_low_level(dotted: str) -> bool:
    return dotted in ("mcp.server.Server", "mcp.server.lowlevel.Server", "mcp.server.lowlevel.server.Server")


def is_theirs(dotted: str) -> bool:
    return dotted.partition(".")[0] in PACKAGES


def names_in(module: str) -> list[str]:
    """What `from MODULE import *` may have brought that has a name here."""
    known = {**_OF_SERVERS, **_OF_TYPES, **_OF_CLIENTS, **_OF_ERRORS}
    return [name for name in known if lookup(f"{module}.{name}") is not None]


def everything() -> list[Counterpart]:
    return [*_OF_SERVERS.values(), *_OF_TYPES.values(), *_OF_CLIENTS.values(), *_OF_ERRORS.values()]


def advice(dotted: str) -> str:
    if is_low_level(dotted):
        return _LOW_LEVEL
    said = _ADVICE.get(dotted.rpartition(".")[2])
    if said is not None:
        return said
    if dotted.startswith(("mcp.types", "mcp_types")):
        return "left as it is: what comes from mcp.types is understood by its shape while that package is installed"
    return "nothing here has this name; docs/guide/moving-in.md says what there is"


# Keywords of their servers that say what Portico does by itself, so they go.
NEEDLESS_OPTIONS = frozenset(
    {"mask_error_details", "on_duplicate", "on_duplicate_tools", "on_duplicate_resources", "on_duplicate_prompts",
     "include_fastmcp_meta", "strict_input_validation", "dereference_schemas", "warn_on_duplicate_tools",
     "warn_on_duplicate_resources", "warn_on_duplicate_prompts", "debug", "dependencies", "sampling_handler_behavior"}
)  # fmt: skip
# Keywords that belong to where the server is run.
RUN_OPTIONS = {
    "host": 'run("http", host=…)',
    "port": 'run("http", port=…)',
    "stateless_http": 'run("http", stateless=True)',
    "json_response": "nothing: Portico answers with JSON unless there is something to stream",
    "streamable_http_path": 'run("http", path=…)',
    "sse_path": "nothing: the paths are those of the specification",
    "message_path": "nothing: the paths are those of the specification",
    "mount_path": "nothing: mount server.asgi() where it should be",
}
