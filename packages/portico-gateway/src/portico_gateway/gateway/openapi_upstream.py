"""Upstream for an HTTP API with an OpenAPI document; its operations become tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from portico._options import check_table
from portico.caching import LruCache
from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.providers.openapi.base_url import resolve_base_url
from portico.server.providers.openapi.credentials import SecuritySchemes
from portico.server.providers.openapi.document import read_document
from portico.server.providers.openapi.operations import OperationFilter
from portico.server.providers.openapi.tools import OpenApiBackend, add_operations
from portico.server.providers.openapi.transports import AuthenticatedSender, HttpApiTransport
from portico.server.server import Server
from portico.transports.targets import InProcessTarget
from portico_gateway.credentials.upstream_auth import UpstreamAuth

# Cached authenticated transports, one for each group of callers that may share it.
MAX_AUTH_SENDERS = 1000
_MAX_LOADED_TARGETS = 64


class OpenApiOptions(OperationFilter, total=False):
    """Table form of `openapi`, for options in addition to the path: `{ path = "crm.yaml", tags = ["invoices"] }`."""

    # Path of the document (JSON or YAML), relative to the settings file.
    path: str
    # Values of the variables in the document's server URL.
    variables: Mapping[str, str]
    # Whether a server URL of the document may be in a private network. A `url` of the upstream always may.
    allow_private_hosts: bool
    # Whether responses are validated against the document's schemas.
    validate_output: bool
    # Largest response of the API.
    max_response_size: int


class _OpenApiLocation(TypedDict, total=False):
    openapi: str | Mapping[str, Any]
    url: str
    headers: Mapping[str, str]
    type: str
    disabled: bool


class OpenApiTarget(InProcessTarget, frozen=True):
    """In-process server that represents an API."""

    url: str
    api: OpenApiBackend


# A reload of the configuration must not parse an unchanged document again or drop its connections.
_document_cache: LruCache[str, OpenApiTarget] = LruCache(_MAX_LOADED_TARGETS)


def load_openapi_target(section: str, location: Mapping[str, Any], timeout: Any, base_dir: Path) -> OpenApiTarget:
    """Load the target of an upstream with `openapi`. The path is relative to the configuration file.

    Raises UsageError if the document cannot be read or is invalid.
    """
    check_table(section, location, _OpenApiLocation)
    source = location["openapi"]
    table: dict[str, Any] = {"path": source} if isinstance(source, str) else dict(source)
    check_table(f"{section}.openapi", table, OpenApiOptions)
    if "path" not in table:
        raise UsageError(f"{section}.openapi: path is required (the path of the OpenAPI document)")
    path = base_dir / table.pop("path")
    options: dict[str, Any] = {**table, "base_url": location.get("url"), "headers": dict(location.get("headers", {}))}
    if isinstance(timeout, int | float):
        options["timeout"] = timeout
    # The options contain resolved secrets; they stay in this process and make an upstream with a changed secret a
    # different target.
    key = json.dumps([str(path.absolute()), _file_version(path), options], sort_keys=True, default=str)
    if key not in _document_cache:
        try:
            _document_cache[key] = _build_target(path, options)
        except UsageError as mistake:
            raise UsageError(f"{section}: {path.name}: {mistake}") from None
    return _document_cache[key]


def _file_version(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as failure:
        raise UsageError(f"cannot read {path.name}: {failure.strerror}") from None


def _build_target(path: Path, options: dict[str, Any]) -> OpenApiTarget:
    document = read_document(path)
    server = Server(document.info.title or "api", version=document.info.version)
    api = add_operations(server, document, options)  # type: ignore[arg-type]
    return OpenApiTarget(
        server, options["base_url"] or resolve_base_url(document.servers, options.get("variables", {})), api
    )


def attach_credentials(
    target: OpenApiTarget, options: Mapping[str, Any], upstream_auth: UpstreamAuth | None
) -> UpstreamAuth | None:
    """Add credentials to the requests of an API. Return the authentication that remains to be applied to each call.

    A static value without a header is placed according to the document's security schemes.
    """
    api = target.api
    value = options.get("value", "")
    # A value with a space is a complete header such as "Bearer x"; it is sent as it is.
    if options.get("type") == "static_header" and "header" not in options and " " not in value:
        api.schemes = SecuritySchemes(api.document, value)
        return None
    if upstream_auth is not None and isinstance(api.sender, HttpApiTransport):
        api.sender.transport_for_call = _SenderCache(upstream_auth)
    return upstream_auth


class _SenderCache:
    """Returns the transport for a call, shared only by callers that may share it."""

    def __init__(self, auth: UpstreamAuth) -> None:
        self._auth = auth
        self._senders: LruCache[str | None, AuthenticatedSender] = LruCache(MAX_AUTH_SENDERS)

    def __call__(self, call: Call) -> AuthenticatedSender:
        # Callers with different credentials never share a transport, so one caller's token cannot be sent for
        # another.
        key = self._auth.sharing_key(call)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = self._auth.make_sender(call)
        return sender
