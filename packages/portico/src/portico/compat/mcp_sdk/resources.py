"""Resource constructors of the official SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portico.compat.fastmcp.resources import FileResource as FileResource, TextResource as TextResource
from portico.server.components.resources import Resource


def FunctionResource(*, uri: Any, fn: Callable[..., Any], **options: Any) -> Resource:
    """Return a resource that is read by a function."""
    return Resource(fn, str(uri), **{key: value for key, value in options.items() if value is not None})
