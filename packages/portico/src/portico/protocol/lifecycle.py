"""server/discover, and the initialize handshake of earlier versions."""

from __future__ import annotations

from portico.protocol.content import CacheableResult, Result
from portico.protocol.meta import (
    NO_CAPABILITIES,
    ClientCapabilities,
    Implementation,
    LogLevel,
    RequestParams,
    ServerCapabilities,
)
from portico.protocol.versions import V2024_11_05


class DiscoverResult(CacheableResult, kw_only=True):
    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None


class InitializeParams(RequestParams, rename="camel", kw_only=True):
    """Parameters of initialize. Early clients omit the version or the capabilities; `clientInfo` is required."""

    protocol_version: str = V2024_11_05
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class SetLevelParams(RequestParams):
    level: LogLevel


class EmptyParams(RequestParams):
    pass
