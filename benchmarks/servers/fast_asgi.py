"""The benchmark's server on FastMCP as an ASGI application, in its stateless JSON mode."""

from fast_server import build

app = build().http_app(json_response=True, stateless_http=True)
