"""The benchmark's server on Portico as an ASGI application, for granian and uvicorn to run."""

from portico_server import build

app = build().http_app()
