"""What FastMCP and the official SDK call what Portico has, and what to do about the rest."""

from __future__ import annotations

from typing import NamedTuple

from portico.compat import fastmcp, mcp_sdk

# The packages whose names are looked at.
PACKAGES = ("fastmcp", "mcp", "mcp_types")

_NATIVE = "portico"
_TYPES = "portico.types"
_FASTMCP = "portico.compat.fastmcp"
_SDK = "portico.compat.mcp_sdk"


class Counterpart(NamedTuple):
    """Where something is in Portico, and its name there."""

    module: str
    name: str


def _same(module: str, names: str) -> dict[str, Counterpart]:
    return {name: Counterpart(module, name) for name in names.split()}


# By their last name, wherever in fastmcp or mcp.server it is: names of Portico itself.
_OF_SERVERS: dict[str, Counterpart] = {
    **_same(
        _NATIVE,
        "Context Image Audio File ToolResult ToolError Depends Message TaskConfig MiddlewareContext Middleware"
        " tool resource prompt Tool Prompt",
    ),
    **_same(_TYPES, "AcceptedElicitation DeclinedElicitation CancelledElicitation ElicitationResult"),
    **_same(
        "portico.server.transforms",
        "ArgTransform ToolTransform ToolTransformConfig Namespace VersionFilter ResourcesAsTools PromptsAsTools"
        " forward forward_raw",
    ),
    **_same("portico.server.providers", "FileSystemProvider RouteMap MCPType"),
    **_same("portico.server.options", "CacheHint InvalidRequestState ResourceSecurity"),
    "FastMCP": Counterpart(_NATIVE, "Server"),
    "MCPServer": Counterpart(_NATIVE, "Server"),
    "BearerAuthProvider": Counterpart(_FASTMCP, "JWTVerifier"),
}
# Names that a file with other classes than those of Portico itself takes from `portico.compat`.
_OF_COMPAT = ("FastMCP", "MCPServer", "Context", "Middleware", "MiddlewareContext", "CallNext")
# Exported by `portico.compat`, and not meant by the same name elsewhere.
_NOT_FOLLOWED = frozenset({"Client", "Provider", "Resource", "Server", "base"})
# Of mcp.types. Their constructors take the same members, but none for what the class says already.
_OF_TYPES: dict[str, Counterpart] = {
    **_same(
        _TYPES,
        "TextContent ImageContent AudioContent EmbeddedResource ResourceLink Annotations CallToolResult PromptMessage"
        " GetPromptResult SamplingMessage Root CreateMessageResult ElicitResult Completion Implementation"
        " ReadResourceResult InputRequiredResult PromptReference PromptArgument ListToolsResult ListPromptsResult"
        " ListResourcesResult ListResourceTemplatesResult ListRootsResult Tool Prompt Resource ResourceTemplate",
    ),
    **_same(_SDK, "ErrorData PARSE_ERROR INVALID_REQUEST METHOD_NOT_FOUND INVALID_PARAMS INTERNAL_ERROR"),
    **_same(_NATIVE, "Icon ToolAnnotations"),
    **{
        name: Counterpart(_SDK, "SdkRequestParams")
        for name in (
            "PaginatedRequestParams",
            "CallToolRequestParams",
            "GetPromptRequestParams",
            "ReadResourceRequestParams",
            "CompleteRequestParams",
        )
    },
    "ResourceTemplateReference": Counterpart(_TYPES, "ResourceReference"),
    "TextResourceContents": Counterpart(_TYPES, "TextContents"),
    "BlobResourceContents": Counterpart(_TYPES, "BlobContents"),
}
_OF_CLIENTS: dict[str, Counterpart] = _same(_NATIVE, "Client")
# Of fastmcp.client and the modules below it.
_OF_HANDLERS: dict[str, Counterpart] = _same(_TYPES, "ElicitResult LogMessage")
_OF_LOGGING = {"get_logger": Counterpart("logging", "getLogger")}
_OF_ERRORS: dict[str, Counterpart] = {
    "ToolError": Counterpart(_NATIVE, "ToolError"),
    "ResourceError": Counterpart(_NATIVE, "ToolError"),
    "PromptError": Counterpart(_NATIVE, "ToolError"),
    "InsufficientScopeError": Counterpart("portico.errors", "InsufficientScope"),
    "FastMCPError": Counterpart(_NATIVE, "Error"),
    "NotFoundError": Counterpart("portico.errors", "ResourceNotFound"),
    "MCPError": Counterpart(_NATIVE, "ProtocolError"),
    "McpError": Counterpart(_NATIVE, "ProtocolError"),
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
    "SamplingMessage": "in a client's handler: portico.types.SamplingMessage, docs/guide/client.md",
    "SamplingParams": "in a client's handler: portico.types.CreateMessageParams, docs/guide/client.md",
    "StreamableHttpTransport": "give portico.Client the URL, with headers= and auth= beside it",
    "SSETransport": 'give portico.Client {"url": URL, "type": "sse"}',
    "FastMCPTransport": "give portico.Client the server itself: Client(server)",
    "StdioTransport": 'give portico.Client {"command": …, "args": […], "env": {…}, "cwd": …}',
    "PythonStdioTransport": 'give portico.Client the command as a list: Client(["python", "server.py"])',
    "NodeStdioTransport": 'give portico.Client the command as a list: Client(["node", "server.js"])',
    "UvxStdioTransport": 'give portico.Client the command as a list: Client(["uvx", "tool"])',
    "NpxStdioTransport": 'give portico.Client the command as a list: Client(["npx", "-y", "package"])',
    "BearerAuth": 'give portico.Client the token: Client(url, auth="TOKEN")',
    "get_http_request": (
        "portico.compat.fastmcp.get_http_headers() has the headers named by Server(headers=[…]); no Request object"
    ),
    "ClientError": "catch portico.Error, the base class of everything that a Client raises",
    "ValidationError": "invalid arguments are a ToolError at the client; there is nothing to catch in a server",
    "CallToolResult": "leave the annotation out: it is what Client.call_tool returns",
    "FastMCPProxy": "use portico.compat.fastmcp.create_proxy(target)",
    "ProxyClient": "use portico.compat.fastmcp.create_proxy(target)",
    "settings": "no equivalent: pass the options to Server(…) and run(…)",
    "EventStore": "Portico keeps what a stream has said by itself; leave it out",
}
# What belongs to the low-level Server, wherever in mcp.server it is.
_OF_LOW_LEVEL = {
    **_same(_SDK, "stdio_server NotificationOptions InitializationOptions ReadResourceContents ServerSession"),
    "Server": Counterpart(_SDK, "LowLevelServer"),
}


def lookup(dotted: str, *, compat: bool = False) -> Counterpart | None:
    """Return the counterpart of a name, or None.

    * **compat** – whether the classes of `portico.compat` are wanted, for a file that needs more than Portico's own.
    """
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
    if home == "mcp":
        return _OF_TYPES.get(name)
    found = _in_compat(home, name) if compat and name in _OF_COMPAT else None
    found = found or _OF_SERVERS.get(name) or _in_compat(home, name)
    return found or (_OF_TYPES.get(name) if home in ("mcp.server", "fastmcp.utilities.types") else None)


def _in_compat(home: str, name: str) -> Counterpart | None:
    """Return the name in `portico.compat`, first in that of its own project."""
    if name in _NOT_FOLLOWED:
        return None
    modules = (_FASTMCP, _SDK) if home.partition(".")[0] == "fastmcp" else (_SDK, _FASTMCP)
    return next((Counterpart(module, name) for module in modules if name in _COMPAT_NAMES[module]), None)


_COMPAT_NAMES = {
    module.__name__: frozenset(name for names in module._HOMES.values() for name in names)
    for module in (fastmcp, mcp_sdk)
}


# What is made otherwise than by the class that it is caught by: the SDK's errors begin with their code.
MADE_BY = {"MCPError": "portico.compat.mcp_sdk.McpError", "McpError": "portico.compat.mcp_sdk.McpError"}


def is_theirs(dotted: str) -> bool:
    return dotted.partition(".")[0] in PACKAGES


def names_in(module: str) -> list[str]:
    """What `from MODULE import *` may have brought that has a name here."""
    compat = {name: None for names in _COMPAT_NAMES.values() for name in names}
    known = {**_OF_SERVERS, **_OF_TYPES, **_OF_CLIENTS, **_OF_ERRORS, **_OF_LOW_LEVEL, **compat}
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
