# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.server.providers.filesystem import FileSystemProvider as FileSystemProvider
from portico.server.providers.openapi.route_maps import (
    MCPType as MCPType,
    RouteMap as RouteMap,
)
