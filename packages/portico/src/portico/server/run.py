"""Methods of Server that serve it on stdio, over HTTP or as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from portico._lazy import LazyModule
from portico._options import validate_options
from portico.protocol.errors import UsageError
from portico.transports import stdio

if TYPE_CHECKING:
    from portico.server import http
    from portico.server.http import AsgiAppOptions, HttpServerOptions
    from portico.server.server import Server
    from portico.transports.http_server.asgi import AsgiApplication
    from portico.transports.stdio import StdioOptions
else:
    http = LazyModule("portico.server.http")

HttpTransport = Literal["http"]


@overload
def run(self: Server, transport: Literal["stdio"] = "stdio", **options: Unpack[StdioOptions]) -> None: ...
@overload
def run(self: Server, transport: HttpTransport, **options: Unpack[HttpServerOptions]) -> None: ...
def run(self: Server, transport: str = "stdio", **options: Any) -> None:
    """Serve one client on stdio until it disconnects, or any number over HTTP: `server.run("http", port=8080)`.

    On stdio:

    * **max_message_size** – maximum size of a message in bytes.
    * **max_concurrent_requests** – maximum number of concurrent requests.
    * **lifecycle** – how strictly a session enforces the order of the handshake: "strict", "lenient" or "auto".
    * **shutdown_timeout** – seconds that running requests may take after the client has disconnected.

    Over HTTP:

    * **host**, **port** – address to listen on, by default 127.0.0.1 and 8080.
    * **unix_socket** – path of a Unix socket to listen on instead, accessible to this user only.
    * **fd** – number of an open socket, or "systemd" for socket activation.
    * **workers** – number of worker processes; "auto": one per core. Workers run the command line of this process, so
      each executes the code before this call. Default: PORTICO_WORKERS.
    * **insecure** – allow other machines to connect without a token.
    * **ssl_certfile**, **ssl_keyfile** – PEM files with the certificate chain and its private key, for `https`.
    * **reuse_port** – whether several processes listen on the port.
    * **shutdown_timeout** – seconds that running requests may take after the process was asked to stop.
    * **show_banner** – print the URL to stderr (default).
    * all options of `http_app()` except `allow_loopback`.
    """
    _check_transport("run", transport, options)
    if transport == "stdio":
        stdio.run(self.public_handler, self.lifespan, **options)
    else:
        http.run_http(self, **options)


@overload
async def run_async(self: Server, transport: Literal["stdio"] = "stdio", **options: Unpack[StdioOptions]) -> None: ...
@overload
async def run_async(self: Server, transport: HttpTransport, **options: Unpack[HttpServerOptions]) -> None: ...
async def run_async(self: Server, transport: str = "stdio", **options: Any) -> None:
    """Run the server inside a running event loop. Takes the options of `run`."""
    _check_transport("run_async", transport, options)
    if transport == "stdio":
        # Take over stdin and stdout before the lifespan starts: a print() in user code would corrupt the message
        # stream.
        stdin, stdout = stdio.claim_stdio()
        async with self.lifespan():
            await stdio.serve(self.public_handler, stdin, stdout, **options)
    else:
        await http.run_http_async(self, **options)


def http_app(self: Server, **options: Unpack[AsgiAppOptions]) -> AsgiApplication:
    """Return this server as an ASGI application, to mount in another application or to run on an ASGI server.

    * **path** – path of the endpoint, by default "/mcp". "/" is an alias of it.
    * **token** – bearer token that every request must carry. Default: PORTICO_TOKEN.
    * **operator_token** – a second token that grants the scope `operator` and no other.
    * **allowed_hosts**, **allowed_origins** – accepted values of the Host and Origin headers.
    * **trusted_proxies** – addresses or networks whose X-Forwarded-For or Forwarded header is trusted.
    * **allow_loopback** – accept this machine's loopback names as hosts and origins (default).
    * **sse** – also serve the two endpoints of the 2024-11-05 HTTP+SSE transport.
    * **default_protocol_version** – protocol version of clients without a session that do not declare one.
    * **lifecycle** – "strict": a session waits for `notifications/initialized`, although POSTs may overtake it.
    * **stateless** – do not store sessions (of the handshake versions): clients carry them in their signed session id,
      so any process can continue them. Server-to-client requests, GET streams and subscriptions are unavailable.
    * **max_body_size** – maximum size of a request body in bytes.
    * **max_concurrent_requests**, **max_concurrent_requests_per_client** – maximum number of concurrent requests.
    * **max_sessions**, **max_sessions_per_client** – maximum number of sessions; above it, the oldest session without
      a connected client is ended.
    * **session_idle_timeout** – seconds after which an unused session ends.
    """
    return http.http_app(self, **options)


def _check_transport(of: str, transport: str, options: dict[str, Any]) -> None:
    """Raise UsageError for an unknown transport, or for an option that it does not support."""
    if transport not in ("stdio", "http"):
        raise UsageError(f"transport must be 'stdio' or 'http', got {transport!r}")
    if transport == "stdio":
        validate_options(f'{of}("stdio")', options, stdio.StdioOptions)
