"""Reader of fastmcp.json, which describes where FastMCP finds a server and how to run it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from portico.protocol.errors import UsageError
from portico.settings_file import unknown_key

_MAX_FILE_BYTES = 1024 * 1024


class Deployment(msgspec.Struct, frozen=True):
    """The `deployment` of a fastmcp.json: how FastMCP runs the server."""

    transport: Literal["stdio", "http", "sse", "streamable-http"] | None = None
    host: str | None = None
    port: int | None = None
    path: str | None = None
    log_level: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    args: list[str] | None = None

    @property
    def needs_process(self) -> bool:
        """Return whether the server needs a separate process, because it changes the process that it runs in."""
        return bool(self.cwd or self.env or self.args)

    def apply(self, path: str) -> None:
        """Set the environment, directory and arguments of this process as FastMCP does before it loads the server.

        A reference to an unset variable is left unchanged.
        """
        for name, value in (self.env or {}).items():
            os.environ[name] = re.sub(r"\$\{([^}]+)\}", lambda match: os.environ.get(match[1], match[0]), value)
        if self.cwd:
            folder = os.path.join(os.path.dirname(os.path.abspath(path)), self.cwd)
            try:
                os.chdir(folder)
            except OSError as failure:
                raise UsageError(f"{path}: `deployment.cwd` must be a directory: {failure}") from None
        if self.args:
            sys.argv = [sys.argv[0], *self.args]


def fastmcp_source(target: str) -> str | None:
    """Return the `file.py:object` that a fastmcp.json names, or None for any other target. Raises UsageError."""
    return source_in(_read(target), target)


def fastmcp_deployment(target: str) -> Deployment | None:
    """Return the deployment of a fastmcp.json, or None for any other target. Raises UsageError."""
    return deployment_in(_read(target), target)


def _read(target: str) -> Any:
    if not target.endswith(".json") or " " in target:
        return None
    try:
        with open(target, "rb") as file:
            return msgspec.json.decode(file.read(_MAX_FILE_BYTES))
    except (OSError, msgspec.DecodeError, RecursionError):
        return None  # the reader of the other file types reports the error


def deployment_in(document: Any, path: str) -> Deployment | None:
    """Return the deployment of a document that was read from this path, or None."""
    if source_in(document, path) is None:
        return None
    deployment = document.get("deployment") or {}
    known_fields = Deployment.__struct_fields__
    unknown = [str(name) for name in deployment if name not in known_fields] if isinstance(deployment, Mapping) else []
    if unknown:
        raise UsageError(f"{path}: {unknown_key('deployment', unknown[0], known_fields)}")
    try:
        return msgspec.convert(deployment, Deployment)
    except msgspec.ValidationError as failure:
        raise UsageError(f"{path}: invalid `deployment`: {failure}") from None


def source_in(document: Any, path: str) -> str | None:
    """Return the `file.py:object` of a document that was read from this path, or None."""
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
            f"{path}: unsupported source type {kind!r} (expected 'filesystem'). Fetch the file, and serve it as "
            "path/to/file.py:object"
        )
    entrypoint = source.get("entrypoint")
    # Absolute, because `deployment.cwd` may change the directory before the file is loaded.
    module_path = os.path.join(os.path.dirname(os.path.abspath(path)), source["path"])
    if not source["path"].endswith(".py") or not os.path.isfile(module_path):
        raise UsageError(f"{path}: `source.path` must be a Python file, got {source['path']!r}")
    if entrypoint is not None and not isinstance(entrypoint, str):
        raise UsageError(f"{path}: `source.entrypoint` must be a string, the name of an object in {source['path']}")
    return f"{module_path}:{entrypoint}" if entrypoint else module_path
