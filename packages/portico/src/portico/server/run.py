"""Serving a server: methods of Server, on stdio until the client goes away, over HTTP, or as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from portico._lazy import LazyModule
from portico._options import check_options
from portico.protocol.errors import UsageError
from portico.transports import stdio

if TYPE_CHECKING:
    from portico.server import http
    from portico.server.http import AsgiOptions, HttpOptions
    from portico.server.server import Server
    from portico.transports.http_server.asgi import Application
    from portico.transports.stdio import StdioOptions
else:
    http = LazyModule("portico.server.http")

Http = Literal["http"]


@overload
def run(self: Server, transport: Literal["stdio"] = "stdio", **options: Unpack[StdioOptions]) -> None: ...
@overload
def run(self: Server, transport: Http, **options: Unpack[HttpOptions]) -> None: ...
def run(self: Server, transport: str = "stdio", **options: Any) -> None:
    """Serve one client on stdio until it goes away, or everybody over HTTP: `server.run("http", port=8080)`.

    On stdio:

    * **longest** – how many bytes a message may have.
    * **most_in_flight** – how many requests may be worked on at once.
    * **lifecycle** – how much a session insists on the order of the handshake: "strict", "lenient" or "auto".
    * **grace** – how many seconds requests may still take when the client has gone.

    Over HTTP:

    * **host**, **port** – where to listen: 127.0.0.1 and 8080 unless said otherwise.
    * **unix** – a path to listen at in place of an address: a socket for this user alone.
    * **fd** – a socket that is open already, by its number; "systemd": those that systemd has opened.
    * **workers** – how many processes serve; "auto": one for each core. They are started with the command line of
      this process, so what stands before this call is run by each of them. PORTICO_WORKERS unless said otherwise.
    * **insecure** – whether other machines may come in without a token.
    * **certificate**, **key** – the files for `https`.
    * **reuse_port** – whether several processes listen on the port.
    * **grace** – how many seconds requests may still take when the process is told to stop.
    * **quiet** – whether the URL is left unsaid on stderr.
    * and those of `asgi()`, except `loopback`.
    """
    _check_transport("run", transport, options)
    if transport == "stdio":
        stdio.run(self.front, self.lifespan, **options)
    else:
        http.run(self, **options)


@overload
async def run_async(self: Server, transport: Literal["stdio"] = "stdio", **options: Unpack[StdioOptions]) -> None: ...
@overload
async def run_async(self: Server, transport: Http, **options: Unpack[HttpOptions]) -> None: ...
async def run_async(self: Server, transport: str = "stdio", **options: Any) -> None:
    """`run` inside a loop that runs already; it has the same options."""
    _check_transport("run_async", transport, options)
    if transport == "stdio":
        stdin, stdout = stdio.claim()
        async with self.lifespan():
            await stdio.serve(self.front, stdin, stdout, **options)
    else:
        await http.run_async(self, **options)


def asgi(self: Server, **options: Unpack[AsgiOptions]) -> Application:
    """This server as an ASGI application, to mount in another one or to run on an ASGI server.

    * **path** – of the endpoint: "/mcp" unless said otherwise. "/" is the same endpoint.
    * **token** – the bearer token that every request must have; PORTICO_TOKEN unless said otherwise.
    * **operator_token** – another that gives the scope `operator`, and no other scope.
    * **allow_hosts**, **allow_origins** – what may stand in the Host and Origin headers.
    * **trusted_proxies** – addresses or networks whose X-Forwarded-For or Forwarded header is believed.
    * **loopback** – whether the names of this machine are among them, which is the default.
    * **sse** – whether the two endpoints of 2024-11-05 are there too.
    * **assume** – the revision to speak with clients that belong to no session and name no newer one.
    * **lifecycle** – "strict": a session waits for `notifications/initialized`, although POSTs may overtake it.
    * **stateless** – whether sessions (of the older revisions) are kept nowhere, but carried by the client in their
      signed id: any process goes on with them, and there are no questions, streams by GET and subscriptions.
    * **longest_body** – how many bytes a request may have.
    * **most_in_flight**, **most_in_flight_per_client** – how many requests may be worked on at once.
    * **most_sessions**, **most_sessions_per_client** – how many sessions there may be; beyond that the oldest that
      no client uses is ended.
    * **idle_session** – after how many seconds an unused session ends.
    """
    return http.asgi(self, **options)


def _check_transport(of: str, transport: str, options: dict[str, Any]) -> None:
    """Raise UsageError for an unknown transport, or an option that it does not have."""
    if transport not in ("stdio", "http"):
        raise UsageError(f"transport must be 'stdio' or 'http', got {transport!r}")
    if transport == "stdio":
        check_options(f'{of}("stdio")', options, stdio.StdioOptions)
