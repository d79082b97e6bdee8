"""Opening a conversation: server/discover, and the handshake it replaced."""

from __future__ import annotations

from portico.protocol.content import CacheableResult, Result
from portico.protocol.meta import (
    NO_CAPABILITIES,
    ClientCapabilities,
    Implementation,
    LogLevel,
    Params,
    ServerCapabilities,
)
from portico.protocol.versions import V2024_11_05


class DiscoverResult(CacheableResult, kw_only=True):
    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None


class InitializeParams(Params, rename="camel", kw_only=True):
    """Early clients left out the version or the capabilities; who they are they must say."""

    protocol_version: str = V2024_11_05
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class SetLevelParams(Params):
    level: LogLevel


class EmptyParams(Params):
    pass
