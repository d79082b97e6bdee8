"""Server code: whether Portico's own classes suffice for a file, and Portico's names of its options."""

from __future__ import annotations

import inspect

import libcst as cst

from portico.compat.fastmcp.server import FastMCP
from portico.compat.mcp_sdk.server import MCPServer
from portico.server.server import Server

# Members of a server or a Context that only the classes of `portico.compat` have.
COMPAT_MEMBERS = frozenset(
    {"request_context", "session", "fastmcp", "mcp_server", "send_notification", "close_sse_stream", "fastmcp_context",
     "streamable_http_app", "sse_app", "http_app", "session_manager", "local_provider", "render_prompt", "middleware",
     "add_template", "add_completion_handler", "add_extension", "run_http_async", "run_stdio_async",
     "run_streamable_http_async", "run_sse_async", "settings"}
)  # fmt: skip
# Keyword arguments that only those classes accept.
_COMPAT_KEYWORDS = frozenset({"include_in_schema", "serializable", "tool_names", "mcp_names", "validate_output"})
SERVER_OPTION_NAMES = {
    "on_duplicate_tools": "on_duplicate",
}
# Server options that have another meaning or type in a Portico Server.
_COMPAT_OPTIONS = frozenset({"auth"})
_OPTIONS = frozenset(inspect.signature(inspect.unwrap(Server.__init__)).parameters) - _COMPAT_OPTIONS
# Options that Portico does not support, by server class.
UNSUPPORTED = {"FastMCP": {**MCPServer.unsupported, **FastMCP.unsupported}, "MCPServer": MCPServer.unsupported}
_HTTP_OPTION_NAMES = {
    "host": "host",
    "port": "port",
    "path": "path",
    "streamable_http_path": "path",
    "stateless_http": "stateless",
    "max_request_body_size": "max_body_size",
    "max_sessions": "max_sessions",
}
_HTTP = ("http", "streamable-http", "streamable_http")


def needs_compat(call: cst.Call, server: str) -> bool:
    """Return whether a call needs the classes of `portico.compat`.

    * **server** – the name of the server class that it instantiates, or "".
    """
    keywords = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    if server:
        return _constructor_needs_compat(call, server, keywords)
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if method in ("run", "run_async") and (keywords or call.args):
        return _run_needs_compat(call, keywords)
    return bool(keywords & _COMPAT_KEYWORDS)


def _constructor_needs_compat(call: cst.Call, server: str, keywords: set[str]) -> bool:
    positional = sum(1 for arg in call.args if arg.keyword is None)
    numbers = any(arg.keyword is not None and isinstance(arg.value, cst.Integer | cst.Float) for arg in call.args)
    option_names = {*_OPTIONS, *SERVER_OPTION_NAMES, *UNSUPPORTED[server]}
    if server == "MCPServer":
        option_names.discard("middleware")
    return (
        any(arg.star for arg in call.args)
        or positional > (1 if server == "MCPServer" else 2)
        or not keywords <= option_names
        or (numbers and "version" in keywords)
    )


def _run_needs_compat(call: cst.Call, keywords: set[str]) -> bool:
    transport = _transport(call)
    if transport is None:
        # `asyncio.run(main())` and the like have no transport.
        return bool(keywords & {*_HTTP_OPTION_NAMES, "transport", "show_banner"})
    if transport == "stdio":
        return keywords - {"transport"} != set()
    return transport not in _HTTP or not keywords <= {"transport", "json_response", *_HTTP_OPTION_NAMES}


def _transport(call: cst.Call) -> str | None:
    """Return the transport that a call names as a literal, or None."""
    for arg in call.args:
        named = arg.keyword is not None and arg.keyword.value == "transport"
        first = arg is call.args[0] and arg.keyword is None and not arg.star
        if (named or first) and isinstance(arg.value, cst.SimpleString):
            return str(arg.value.evaluated_value)
    return None


def translate_run(call: cst.Call) -> cst.Call:
    """Translate `server.run("streamable-http", …)` to Portico's names."""
    if _transport(call) not in _HTTP:
        return call
    remaining = []
    for arg in call.args:
        name = "" if arg.keyword is None else arg.keyword.value
        if name == "json_response":
            continue
        if isinstance(arg.value, cst.SimpleString) and name in ("", "transport"):
            mark = arg.value.quote
            arg = arg.with_changes(value=cst.SimpleString(f"{mark}http{mark}"))
        elif name in _HTTP_OPTION_NAMES:
            arg = arg.with_changes(keyword=cst.Name(_HTTP_OPTION_NAMES[name]))
        remaining.append(arg)
    if len(remaining) < len(call.args):
        remaining[-1] = remaining[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=remaining)


# Keywords that have another name in Portico's methods.
RENAMED_KEYWORDS = {"elicit": ("schema", "response_type"), "mount": ("prefix", "namespace")}


def translate_keyword(call: cst.Call, method: str) -> cst.Call:
    """Translate the keyword of `ctx.elicit(schema=…)` and of `server.mount(prefix=…)` to Portico's name."""
    old, new = RENAMED_KEYWORDS[method]
    args = [
        arg.with_changes(keyword=cst.Name(new)) if arg.keyword is not None and arg.keyword.value == old else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)
