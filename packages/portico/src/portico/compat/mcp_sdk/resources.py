"""Resources of the official SDK that are made of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portico.compat.fastmcp.resources import FileResource as FileResource
from portico.compat.fastmcp.resources import TextResource as TextResource
from portico.server.components.resources import Resource


def FunctionResource(*, uri: Any, fn: Callable[..., Any], **options: Any) -> Resource:
    """Return a resource that a function reads."""
    return Resource(fn, str(uri), **{key: value for key, value in options.items() if value is not None})
