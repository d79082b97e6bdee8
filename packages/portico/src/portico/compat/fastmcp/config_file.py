"""Reads a fastmcp.json: the file that says where FastMCP finds a server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from portico.protocol.errors import UsageError

_LONGEST_BYTES = 1024 * 1024


def fastmcp_source(target: str) -> str | None:
    """Return the `file.py:object` that a fastmcp.json names, or None for any other target. Raises UsageError."""
    if not target.endswith(".json") or " " in target:
        return None
    try:
        with open(target, "rb") as file:
            document = json.loads(file.read(_LONGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None  # the reader of the other kinds of file reports the mistake
    return source_in(document, target)


def source_in(document: Any, path: str) -> str | None:
    """The same for a document that was read from this path."""
    if not isinstance(document, Mapping) or "source" not in document or "mcpServers" in document:
        return None
    source = document["source"]
    if isinstance(source, str):
        source = {"path": source}
    if not isinstance(source, Mapping) or not isinstance(source.get("path"), str):
        raise UsageError(f'{path}: `source` must be an object with a `path`, such as {{"path": "server.py"}}')
    kind = source.get("type", "filesystem")
    if kind != "filesystem":
        raise UsageError(
            f"{path}: a source of the type {kind!r} is not supported: expected 'filesystem'. "
            "Fetch the file, and serve it as path/to/file.py:object"
        )
    entrypoint = source.get("entrypoint")
    place = os.path.join(os.path.dirname(path), source["path"])
    if not source["path"].endswith(".py") or not os.path.isfile(place):
        raise UsageError(f"{path}: `source.path` must be a Python file, and {source['path']!r} is not one")
    if entrypoint is not None and not isinstance(entrypoint, str):
        raise UsageError(f"{path}: `source.entrypoint` must be a text, the name of an object in {source['path']}")
    return f"{place}:{entrypoint}" if entrypoint else place
