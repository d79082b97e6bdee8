"""Custom routes next to the endpoint: documents, forms, and other paths.

A route is a function from a request to a response. It is matched by method and path, exactly or by prefix, after the
Host and Origin checks. It is public unless it is `guarded` or has its own `judge`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.rpc.identity import client_network, principal_id
from portico.rpc.supervision import BackgroundTasks
from portico.transports.http_server.messages import TEXT_HEADERS, HttpRequest, HttpResponse, ResponseWriter

log = logging.getLogger("portico")

RouteFunction = Callable[[HttpRequest], Awaitable[HttpResponse]]
"Handles a request to a custom route."

StreamingRouteFunction = Callable[[HttpRequest, ResponseWriter], None]
"Handles a request with a response writer, for streams."

# Bodies of public routes are forms or small documents. Authenticated routes accept what the endpoint accepts.
MAX_FORM_BYTES = 64 * 1024
MAX_CONCURRENT_REQUESTS = 256
# One caller may have a quarter of them: the login pages of the authorization server are custom routes, too.
_SHARES = 4
MAX_HANDLER_SECONDS = 60.0


class CustomRoute(Struct, frozen=True):
    """Custom route. With `prefix`, it covers everything below the path, which must end with a slash."""

    method: str
    path: str
    page: RouteFunction | None = None
    prefix: bool = False
    # Whether it requires authentication, as the endpoint does.
    guarded: bool = False
    # Returns the error response before the body is read, or None to accept. Such a route authenticates its own users.
    judge: Callable[[HttpRequest], HttpResponse | None] | None = None
    # Alternative to `page`.
    streamed: StreamingRouteFunction | None = None
    # Merges the bodies of all workers of this machine. The body of the responding worker comes first. Each worker
    # checks the principal again.
    merge: Callable[[Sequence[bytes]], bytes] | None = None


class CustomRoutes:
    """Custom routes of one application, and their active requests."""

    def __init__(
        self,
        routes: Iterable[CustomRoute],
        builtin_routes: Sequence[CustomRoute] = (),
        reserved: Set[tuple[str, str]] = frozenset(),
    ) -> None:
        """Create the routes. `routes` must not shadow `builtin_routes` of the transport, nor `reserved` methods and
        paths.
        """
        self._exact: dict[tuple[str, str], CustomRoute] = {}
        self._prefixes: list[CustomRoute] = []
        self._running = BackgroundTasks()
        # Active requests by principal, or by network.
        self._running_by_caller: Counter[str] = Counter()
        for route in builtin_routes:
            self._add(route)
        # Clients post to "/", but a page may be served there for browsers.
        paths = {path for _, path in reserved if path != "/"}
        for route in routes:
            key = (route.method, route.path)
            if key in reserved or route.path in paths or self.find(*key) in builtin_routes:
                raise UsageError(f"cannot add a route at {route.path}: the path is already in use")
            self._add(route)

    def _add(self, route: CustomRoute) -> None:
        if not route.path.startswith("/") or (route.prefix and not route.path.endswith("/")):
            raise UsageError(
                f"cannot add a route at {route.path!r}: the path must begin with /, and a prefix must also end with /"
            )
        if (route.method, route.path) in self._exact:
            raise UsageError(f"cannot add a route at {route.path}: it already exists")
        if route.prefix:
            self._prefixes.append(route)
            # The longest matching prefix takes precedence.
            self._prefixes.sort(key=lambda route: -len(route.path))
        else:
            self._exact[route.method, route.path] = route

    def find(self, method: str, path: str) -> CustomRoute | None:
        result = self._exact.get((method, path))
        if result is not None or not self._prefixes:
            return result
        below = (prefix for prefix in self._prefixes if prefix.method == method and path.startswith(prefix.path))
        return next(below, None)

    def allowed_methods(self, path: str) -> set[str]:
        """Return the methods that routes at this path support."""
        exact = {method for method, route_path in self._exact if route_path == path}
        return exact | {prefix.method for prefix in self._prefixes if path.startswith(prefix.path)}

    def dispatch(self, route: CustomRoute, request: HttpRequest, writer: ResponseWriter) -> None:
        """Start handling a request. It is cancelled if the client disconnects."""
        if route.streamed is not None:
            route.streamed(request, writer)
            return
        if len(request.body) > MAX_FORM_BYTES and not route.guarded:
            writer.respond(HttpResponse(413, TEXT_HEADERS, b"Content too large\n"))
            return
        caller = principal_id(request.principal) or client_network(request.peer)
        if (
            len(self._running) >= MAX_CONCURRENT_REQUESTS
            or self._running_by_caller[caller] >= MAX_CONCURRENT_REQUESTS // _SHARES
        ):
            writer.respond(HttpResponse(503, (*TEXT_HEADERS, (b"retry-after", b"1")), b"Service unavailable\n"))
            return
        self._running_by_caller[caller] += 1
        task = self._running.start(_run_handler(route, request, writer))
        task.add_done_callback(lambda _: self._release(caller))
        writer.on_close = task.cancel  # type: ignore[assignment]

    def _release(self, caller: str) -> None:
        self._running_by_caller[caller] -= 1
        if not self._running_by_caller[caller]:
            del self._running_by_caller[caller]

    async def close(self) -> None:
        """Cancel the active requests."""
        self._running.cancel()
        await self._running.wait(MAX_HANDLER_SECONDS)


async def _run_handler(route: CustomRoute, request: HttpRequest, writer: ResponseWriter) -> None:
    try:
        async with asyncio.timeout(MAX_HANDLER_SECONDS):
            assert route.page is not None
            answer = await route.page(request)
    except TimeoutError:
        answer = HttpResponse(504, TEXT_HEADERS, b"Gateway timeout\n")
    except Exception:
        log.exception("error while answering %s %s", request.method, request.path)
        answer = HttpResponse(500, TEXT_HEADERS, b"Internal error\n")
    if request.cors:
        answer = HttpResponse(answer.status, (*answer.headers, *request.cors), answer.body)
    writer.on_close = None
    writer.respond(answer)
