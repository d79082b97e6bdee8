"""The backend tool on the official Python SDK as an ASGI application, in its stateless JSON mode."""

from backend_tool import add_with_backends
from mcp.server import MCPServer

server = MCPServer("backend", log_level="CRITICAL")
server.tool()(add_with_backends)
app = server.streamable_http_app(json_response=True, stateless_http=True)
