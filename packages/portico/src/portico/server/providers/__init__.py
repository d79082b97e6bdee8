"""Providers: components that a server does not own, from mounted servers, directories and OpenAPI documents."""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, lazy_exports

if TYPE_CHECKING:
    from portico.server.providers.filesystem import (
        FileSystemProvider as FileSystemProvider,
    )
    from portico.server.providers.openapi.route_maps import (
        MCPType as MCPType,
        RouteMap as RouteMap,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.server.providers.filesystem": ("FileSystemProvider",),
    "portico.server.providers.openapi.route_maps": (
        "MCPType",
        "RouteMap",
    ),
}


if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
