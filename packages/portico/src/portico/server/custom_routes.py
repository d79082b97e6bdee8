"""`@server.custom_route("/health")`: additional HTTP paths of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

if TYPE_CHECKING:
    from portico.transports.http_server.custom_routes import CustomRoute
    from portico.transports.http_server.messages import HttpRequest, HttpResponse

F = TypeVar("F", bound=Callable[..., Any])

# Paths that the server always uses itself. Its endpoint and OAuth pages are only known when HTTP is opened.
_RESERVED_PATHS = frozenset({"/readyz", "/metrics", "/console"})


class RouteRequest:
    """Request passed to a function of `@server.custom_route`: the commonly used part of Starlette's API."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.method = request.method
        self.path = request.path
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        self.query_params = _parse_form(request.query)
        self.path_params: dict[str, str] = {}
        self.user = request.principal
        self.client_address = request.peer

    @property
    def caller_fields(self) -> dict[str, Any]:
        """Return the Call members that identify the caller, as `Context.caller_fields` does.

        Without the address, a Call without a principal would be one of the local user, who has every right.
        """
        request = self._request
        return {"principal": request.principal, "address": request.peer, "headers": request.headers}

    async def body(self) -> bytes:
        return self._request.body

    async def json(self) -> Any:
        return decode_bounded(self._request.body)

    async def form(self) -> dict[str, str]:
        return _parse_form(self._request.body.decode())


def custom_route(
    routes: list[CustomRoute], path: str, methods: Iterable[str], *, authenticated: bool = False
) -> Callable[[F], F]:
    """Return the decorator that adds a function for a path to the routes of a server."""
    if "{" in path:
        raise UsageError(
            f"custom_route: path must not have variables, got {path!r}; read variable parts from request.query_params"
        )
    added = [(method.upper(), path) for method in methods]
    registered = {(route.method, route.path) for route in routes}
    if path in _RESERVED_PATHS or path.startswith("/console/") or ("POST", "/") in added:
        raise UsageError(f"custom_route: {path} is reserved for the server itself; choose another path")
    if registered.intersection(added):
        raise UsageError(f"custom_route: {path} is already registered")

    def register(fn: F) -> F:
        async def page(request: HttpRequest) -> HttpResponse:
            value = fn(RouteRequest(request))
            return _to_answer(await value if isinstance(value, Awaitable) else value)

        from portico.transports.http_server import custom_routes

        routes.extend(custom_routes.CustomRoute(*route, page, guarded=authenticated) for route in added)
        return fn

    return register


def _parse_form(text: str) -> dict[str, str]:
    from urllib.parse import parse_qsl  # only servers with custom routes need it

    return dict(parse_qsl(text, keep_blank_values=True))


def _to_answer(value: Any) -> HttpResponse:
    """Return the HTTP response for a function's return value.

    Starlette responses are recognized by their attributes.
    """
    from portico.transports.http_server import messages

    if isinstance(value, messages.HttpResponse):
        return value
    if hasattr(value, "status_code") and hasattr(value, "body"):
        headers = tuple((bytes(name).lower(), bytes(content)) for name, content in value.raw_headers)
        # The transport computes Content-Length itself.
        headers = tuple(pair for pair in headers if pair[0] != b"content-length")
        return messages.HttpResponse(value.status_code, headers, bytes(value.body))
    if isinstance(value, str):
        return messages.HttpResponse(200, messages.TEXT_HEADERS, value.encode())
    return messages.HttpResponse(200, messages.JSON_HEADERS, msgspec.json.encode(value))
