"""The backend tool on FastMCP as an ASGI application, in its stateless JSON mode."""

from backend_tool import add_with_backends
from fastmcp import FastMCP

server = FastMCP("backend")
server.tool(add_with_backends)
app = server.http_app(json_response=True, stateless_http=True)
