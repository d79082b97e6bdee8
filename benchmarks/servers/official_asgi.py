"""The benchmark's server on the official Python SDK as an ASGI application, in its stateless JSON mode."""

from official_server import build

app = build().streamable_http_app(json_response=True, stateless_http=True)
