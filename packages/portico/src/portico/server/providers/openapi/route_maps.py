"""FastMCP's way to say which operations of a document become tools: `from_openapi(…, route_maps=[RouteMap(…)])`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.providers.openapi.operations import Operation


class MCPType(Enum):
    """What becomes of an operation."""

    TOOL = "TOOL"
    RESOURCE = "RESOURCE"
    RESOURCE_TEMPLATE = "RESOURCE_TEMPLATE"
    EXCLUDE = "EXCLUDE"


class RouteMap(Struct, frozen=True):
    """The operations with one of these methods, whose path has something that the pattern matches, and all of these
    tags; and what becomes of them: a tool, or nothing. Raises UsageError for anything else."""

    methods: Collection[str] = "*"
    pattern: str | re.Pattern[str] = ".*"
    tags: Collection[str] = ()
    mcp_type: MCPType = MCPType.TOOL
    mcp_tags: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.mcp_type not in (MCPType.TOOL, MCPType.EXCLUDE):
            raise UsageError(
                "an operation is a tool here, a read-only one if its method is GET: MCPType.TOOL, or MCPType.EXCLUDE; "
                "for a resource, write @server.resource and call the API in it"
            )
        if self.mcp_tags:
            raise UsageError("a RouteMap puts on no tags here: the tools have those of the document")

    def fits(self, operation: Operation) -> bool:
        methods = {one.lower() for one in self.methods}
        return (
            ("*" in methods or operation.method in methods)
            and re.search(self.pattern, operation.path) is not None
            and set(self.tags) <= set(operation.tags)
        )


def is_tool(operation: Operation, maps: Sequence[Any]) -> bool:
    """As the first that fits says; what none fits is one."""
    for one in maps:
        if not isinstance(one, RouteMap):
            raise UsageError(f"{one!r} is no RouteMap of portico")
        if one.fits(operation):
            return one.mcp_type is MCPType.TOOL
    return True
