"""FastMCP's filter for operations: `from_openapi(…, route_maps=[RouteMap(…)])`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.providers.openapi.operations import Operation


class MCPType(Enum):
    """What an operation becomes."""

    TOOL = "TOOL"
    RESOURCE = "RESOURCE"
    RESOURCE_TEMPLATE = "RESOURCE_TEMPLATE"
    EXCLUDE = "EXCLUDE"


class RouteMap(Struct, frozen=True):
    """Rule for operations with one of these methods, a path that the pattern matches, and all of these tags.

    They become a tool or are excluded. Raises UsageError for other types, which are not supported.
    """

    methods: Collection[str] = "*"
    pattern: str | re.Pattern[str] = ".*"
    tags: Collection[str] = ()
    mcp_type: MCPType = MCPType.TOOL
    mcp_tags: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.mcp_type not in (MCPType.TOOL, MCPType.EXCLUDE):
            raise UsageError(
                "mcp_type must be MCPType.TOOL or MCPType.EXCLUDE: operations become tools, read-only ones for "
                "GET; for a resource, write @server.resource and call the API in it"
            )
        if self.mcp_tags:
            raise UsageError("RouteMap.mcp_tags is not supported: tools have the tags of the document")

    def matches(self, operation: Operation) -> bool:
        methods = {method.lower() for method in self.methods}
        return (
            ("*" in methods or operation.method in methods)
            # `search` and not `match`, as in FastMCP: ported patterns rely on it.
            and re.search(self.pattern, operation.path) is not None
            and set(self.tags) <= set(operation.tags)
        )


def becomes_tool(operation: Operation, maps: Sequence[Any]) -> bool:
    """Return whether an operation becomes a tool: the first matching rule decides, and the default is True."""
    for item in maps:
        if not isinstance(item, RouteMap):
            raise UsageError(f"route_maps must contain portico's RouteMap, got {item!r}")
        if item.matches(operation):
            return item.mcp_type is MCPType.TOOL
    return True
