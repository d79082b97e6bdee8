"""Mapping from names of FastMCP and the official SDK to Portico, and advice for names without a counterpart."""

from __future__ import annotations

from typing import NamedTuple

from portico._lazy import read_stub
from portico.compat import fastmcp, mcp_sdk

# The packages whose names are rewritten.
PACKAGES = ("fastmcp", "mcp", "mcp_types")

_NATIVE = "portico"
_TYPES = "portico.types"
_FASTMCP = "portico.compat.fastmcp"
_SDK = "portico.compat.mcp_sdk"


class PorticoName(NamedTuple):
    """A module of Portico and a name in it."""

    module: str
    name: str


def _same_names(module: str, names: str) -> dict[str, PorticoName]:
    return {name: PorticoName(module, name) for name in names.split()}


# By last name, wherever it is in fastmcp or mcp.server: names of Portico itself.
_OF_SERVERS: dict[str, PorticoName] = {
    **_same_names(
        _NATIVE,
        "Context Image Audio File ToolResult ToolError Depends Message TaskConfig MiddlewareContext Middleware"
        " tool resource prompt Tool Prompt",
    ),
    **_same_names(_TYPES, "AcceptedElicitation DeclinedElicitation CancelledElicitation ElicitationResult"),
    **_same_names(
        "portico.server.transforms",
        "ArgTransform ToolTransform ToolTransformConfig Namespace VersionFilter ResourcesAsTools PromptsAsTools"
        " forward forward_raw",
    ),
    **_same_names("portico.server.providers", "FileSystemProvider RouteMap MCPType"),
    **_same_names("portico.server.options", "CacheHint ComponentDefaults InvalidRequestState ResourceSecurity"),
    "FastMCP": PorticoName(_NATIVE, "Server"),
    "MCPServer": PorticoName(_NATIVE, "Server"),
    "BearerAuthProvider": PorticoName(_FASTMCP, "JWTVerifier"),
}
# Names that a file which needs compatibility classes imports from `portico.compat`.
_OF_COMPAT = ("FastMCP", "MCPServer", "Context", "Middleware", "MiddlewareContext", "CallNext")
# Exported by `portico.compat`, but with another meaning elsewhere.
_NOT_FOLLOWED = frozenset({"Client", "Provider", "Resource", "Server", "base"})
# From mcp.types. The constructors take the same members, except members that the class implies.
_OF_TYPES: dict[str, PorticoName] = {
    **_same_names(
        _TYPES,
        "TextContent ImageContent AudioContent EmbeddedResource ResourceLink Annotations CallToolResult PromptMessage"
        " GetPromptResult SamplingMessage Root CreateMessageResult ElicitResult Completion Implementation"
        " ReadResourceResult InputRequiredResult PromptReference PromptArgument ListToolsResult ListPromptsResult"
        " ListResourcesResult ListResourceTemplatesResult ListRootsResult Tool Prompt Resource ResourceTemplate",
    ),
    **_same_names(_SDK, "ErrorData PARSE_ERROR INVALID_REQUEST METHOD_NOT_FOUND INVALID_PARAMS INTERNAL_ERROR"),
    **_same_names(_NATIVE, "Icon ToolAnnotations"),
    **{
        name: PorticoName(_SDK, "SdkRequestParams")
        for name in (
            "PaginatedRequestParams",
            "CallToolRequestParams",
            "GetPromptRequestParams",
            "ReadResourceRequestParams",
            "CompleteRequestParams",
        )
    },
    "ResourceTemplateReference": PorticoName(_TYPES, "ResourceReference"),
    **_same_names(_TYPES, "TextResourceContents BlobResourceContents"),
}
_OF_CLIENTS: dict[str, PorticoName] = _same_names(_NATIVE, "Client")
# From fastmcp.client and the modules below it.
_OF_HANDLERS: dict[str, PorticoName] = _same_names(_TYPES, "ElicitResult LogMessage")
_OF_LOGGING = {"get_logger": PorticoName("logging", "getLogger")}
_OF_ERRORS: dict[str, PorticoName] = {
    "ToolError": PorticoName(_NATIVE, "ToolError"),
    "ResourceError": PorticoName(_NATIVE, "ToolError"),
    "PromptError": PorticoName(_NATIVE, "ToolError"),
    "InsufficientScopeError": PorticoName("portico.errors", "InsufficientScope"),
    "FastMCPError": PorticoName(_NATIVE, "PorticoError"),
    "NotFoundError": PorticoName("portico.errors", "ResourceNotFound"),
    "MCPError": PorticoName(_NATIVE, "ProtocolError"),
    "McpError": PorticoName(_NATIVE, "ProtocolError"),
}

# Names without a counterpart, with the alternative.
_ADVICE = {
    "ClientSession": "use portico.Client: it opens the connection, performs the handshake and lists by itself",
    "StdioServerParameters": 'pass the command to portico.Client as a list: Client(["python", "server.py"])',
    "stdio_client": 'pass the command to portico.Client as a list: Client(["python", "server.py"])',
    "sse_client": "pass the URL to portico.Client; it detects the transport",
    "streamable_http_client": "pass the URL to portico.Client",
    "streamablehttp_client": "pass the URL to portico.Client",
    "OAuthClientProvider": "Client(url, auth=OAuth(…)) with portico.auth.OAuth: docs/how-to/write-a-client.md",
    "OAuthAuthorizationServerProvider": "[auth.proxy] is an authorization server: docs/how-to/control-access.md",
    "OAuth": "portico.auth.OAuth logs a client in: docs/how-to/write-a-client.md",
    "Provider": "use a portico.Service to provide components: docs/how-to/organize-a-server.md",
    "SamplingMessage": "in a client's handler: portico.types.SamplingMessage, docs/how-to/write-a-client.md",
    "SamplingParams": "in a client's handler: portico.types.CreateMessageParams, docs/how-to/write-a-client.md",
    "StreamableHttpTransport": "pass the URL to portico.Client, with headers= and auth=",
    "SSETransport": 'pass {"url": URL, "type": "sse"} to portico.Client',
    "FastMCPTransport": "pass the server itself to portico.Client: Client(server)",
    "StdioTransport": 'pass {"command": …, "args": […], "env": {…}, "cwd": …} to portico.Client',
    "PythonStdioTransport": 'pass the command to portico.Client as a list: Client(["python", "server.py"])',
    "NodeStdioTransport": 'pass the command to portico.Client as a list: Client(["node", "server.js"])',
    "UvxStdioTransport": 'pass the command to portico.Client as a list: Client(["uvx", "tool"])',
    "NpxStdioTransport": 'pass the command to portico.Client as a list: Client(["npx", "-y", "package"])',
    "BearerAuth": 'pass the token to portico.Client: Client(url, auth="TOKEN")',
    "get_http_request": (
        "portico.compat.fastmcp.get_http_headers() has the headers named by Server(headers=[…]); no Request object"
    ),
    "ClientError": "catch portico.PorticoError, the base class of everything that a Client raises",
    "ValidationError": "invalid arguments are a ToolError at the client; there is nothing to catch in a server",
    "CallToolResult": "omit the annotation: it is the return type of Client.call_tool",
    "FastMCPProxy": "use portico.compat.fastmcp.create_proxy(target)",
    "ProxyClient": "use portico.compat.fastmcp.create_proxy(target)",
    "settings": "no equivalent: pass the options to Server(…) and run(…)",
    "EventStore": "Portico stores stream events itself; omit it",
}
# Names of the low-level Server, wherever they are in mcp.server.
_OF_LOW_LEVEL = {
    **_same_names(_SDK, "stdio_server NotificationOptions InitializationOptions ReadResourceContents ServerSession"),
    "Server": PorticoName(_SDK, "LowLevelServer"),
}


def lookup(dotted: str, *, compat: bool = False) -> PorticoName | None:
    """Return the counterpart of a name, or None.

    * **compat** – whether to prefer the classes of `portico.compat`, for a file that needs more than Portico's own.
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
    result = _in_compat(home, name) if compat and name in _OF_COMPAT else None
    result = result or _OF_SERVERS.get(name) or _in_compat(home, name)
    return result or (_OF_TYPES.get(name) if home in ("mcp.server", "fastmcp.utilities.types") else None)


def _in_compat(home: str, name: str) -> PorticoName | None:
    """Return the counterpart in `portico.compat`, preferably in the module of the same project."""
    if name in _NOT_FOLLOWED:
        return None
    modules = (_FASTMCP, _SDK) if home.partition(".")[0] == "fastmcp" else (_SDK, _FASTMCP)
    return next((PorticoName(module, name) for module in modules if name in _COMPAT_NAMES[module]), None)


_COMPAT_NAMES = {module.__name__: read_stub(module.__name__).keys() for module in (fastmcp, mcp_sdk)}


# Errors whose constructor differs from the class that is caught: the SDK's errors take the code first.
REPLACEMENT_FACTORIES = {"MCPError": "portico.compat.mcp_sdk.McpError", "McpError": "portico.compat.mcp_sdk.McpError"}


def is_foreign(dotted: str) -> bool:
    """Return whether a name belongs to FastMCP or the SDK."""
    return dotted.partition(".")[0] in PACKAGES


def star_import_names(module: str) -> list[str]:
    """Return the names that `from MODULE import *` may bind and that have a counterpart."""
    compat = {name: None for names in _COMPAT_NAMES.values() for name in names}
    counterparts = {**_OF_SERVERS, **_OF_TYPES, **_OF_CLIENTS, **_OF_ERRORS, **_OF_LOW_LEVEL, **compat}
    return [name for name in counterparts if lookup(f"{module}.{name}") is not None]


def all_replacements() -> list[PorticoName]:
    """Return all counterparts."""
    return [
        *_OF_SERVERS.values(),
        *_OF_TYPES.values(),
        *_OF_CLIENTS.values(),
        *_OF_HANDLERS.values(),
        *_OF_LOGGING.values(),
        *_OF_ERRORS.values(),
        *_OF_LOW_LEVEL.values(),
    ]


def explain_missing_name(name: str) -> str | None:
    """Return what to use instead of a name that `portico.compat` does not have, or None if it is unknown."""
    for home in ("fastmcp.client", "fastmcp.utilities.logging", "mcp.types"):
        if (counterpart := lookup(f"{home}.{name}")) is not None:
            return f"import {counterpart.name} from {counterpart.module}"
    return _ADVICE.get(name)


def advice_for(dotted: str) -> str:
    """Return advice for a name without a counterpart."""
    text = _ADVICE.get(dotted.rpartition(".")[2])
    if text is not None:
        return text
    if dotted.startswith(("mcp.types", "mcp_types")):
        return "unchanged: objects of mcp.types are accepted by their structure while that package is installed"
    return "no equivalent in Portico; see the migration page of the guide for alternatives"
