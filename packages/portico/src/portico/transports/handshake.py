"""Version negotiation with a server: `server/discover` (2026-07-28) first, then the `initialize` handshake.

Specification: basic/lifecycle (2026-07-28), "Backward compatibility". No single error code identifies an older server:
older servers answer unknown requests with various errors, with silence, or by exiting.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import jsonrpc, meta as metas, notifications
from portico.protocol.errors import (
    HeaderMismatch,
    HttpStatusError,
    MethodNotFound,
    MissingClientCapability,
    ProtocolError,
    RequestTimeout,
    TransportError,
    UnsupportedProtocolVersion,
    error_from_response,
)
from portico.protocol.lifecycle import DiscoverResult, InitializeResult
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation, LogLevel, ServerCapabilities
from portico.protocol.methods import format_decode_error
from portico.protocol.versions import (
    FIRST_MODERN_VERSION,
    HANDSHAKE_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_VERSIONS,
    V2025_06_18,
    V2025_11_25,
    ProtocolVersion,
)
from portico.rpc.call import Call
from portico.transports.base import ClientTransport
from portico.transports.http_client.timeouts import suspendable_timeout

# Only servers that implement 2026-07-28 send -32020 to -32022.
_MODERN_ERRORS = (HeaderMismatch, MissingClientCapability, UnsupportedProtocolVersion)
# These statuses concern credentials, rate and load, not the protocol version.
_INCONCLUSIVE_STATUSES = frozenset({401, 403, 407, 408, 429})


class ServerHandshake(Struct, frozen=True):
    """Result of the negotiation: protocol version, and the server's description of itself."""

    protocol_version: ProtocolVersion
    server: Implementation | None = None
    capabilities: ServerCapabilities = ServerCapabilities()
    instructions: str | None = None


class ClientIdentity(Struct):
    """Identity and capabilities that a client sends to every server."""

    info: Implementation
    capabilities: ClientCapabilities = NO_CAPABILITIES
    log_level: LogLevel | None = None

    def with_extension(self, extension: str) -> ClientCapabilities:
        """Return the capabilities with an additional extension."""
        extensions = {**(self.capabilities.extensions or {}), extension: {}}
        return msgspec.structs.replace(self.capabilities, extensions=extensions)

    def build_meta(self, protocol_version: ProtocolVersion) -> dict[str, Any]:
        """Return the `_meta` that 2026-07-28 requires in each request. Older versions learn it in the handshake."""
        meta: dict[str, Any] = {
            metas.PROTOCOL_VERSION_META_KEY: protocol_version,
            metas.CLIENT_CAPABILITIES_META_KEY: self.capabilities,
            metas.CLIENT_INFO_META_KEY: self.info,
        }
        if self.log_level is not None:
            meta[metas.LOG_LEVEL_META_KEY] = self.log_level
        return meta


async def discover(
    transport: ClientTransport, identity: ClientIdentity, timeout: float | None
) -> ServerHandshake | None:
    """Send `server/discover`. Return None if the server only supports handshake versions."""
    revision: ProtocolVersion = FIRST_MODERN_VERSION
    # The second attempt uses a version that the server listed in its error.
    for again in (True, False):
        try:
            result = await send_request(
                transport, "server/discover", {"_meta": identity.build_meta(revision)}, timeout, revision
            )
            break
        except ProtocolError as refusal:
            offered = _supported_versions(refusal)
            if not again or offered is None:
                raise
            common = [modern_version for modern_version in MODERN_VERSIONS if modern_version in offered]
            if not common:
                return _check_handshake_versions(offered, transport.name)
            revision = common[-1]
    match = _decode_result(result, DiscoverResult, "server/discover", transport.name)
    if not set(match.supported_versions) & set(MODERN_VERSIONS):
        return _check_handshake_versions(match.supported_versions, transport.name)
    server = None
    # 2026-07-28 moved serverInfo from the result to `_meta`, where it is optional.
    if isinstance(match.meta, dict) and metas.SERVER_INFO_META_KEY in match.meta:
        try:
            server = msgspec.convert(match.meta[metas.SERVER_INFO_META_KEY], Implementation)
        except msgspec.ValidationError:
            server = None  # informational only, nothing depends on it
    return ServerHandshake(revision, server, match.capabilities, match.instructions)


def _check_handshake_versions(offered: list[str], name: str) -> ServerHandshake | None:
    """Return None if the server supports a handshake version. Raises an error otherwise."""
    if not set(offered) & set(HANDSHAKE_VERSIONS):
        listed = ", ".join(offered)[:200] or "nothing"
        raise error_from_response(
            UnsupportedProtocolVersion.code,
            (f"{name} supports the protocol versions {listed}; this client supports none of them"),
        )
    return None


def _supported_versions(refusal: ProtocolError) -> list[str] | None:
    data = refusal.data if isinstance(refusal, UnsupportedProtocolVersion) else None
    offered = data.get("supported") if isinstance(data, dict) else None
    return [str(item) for item in offered] if isinstance(offered, list) else None


def indicates_handshake_server(failure: Exception) -> bool:
    """Return whether a failed `server/discover` indicates a server with handshake versions only."""
    if isinstance(failure, ProtocolError):
        return not isinstance(failure, _MODERN_ERRORS)
    if isinstance(failure, HttpStatusError):
        # A gateway error (5xx) is about the path to the server. Treating it as evidence would pin the wrong
        # version.
        return 400 <= failure.http_status < 500 and failure.http_status not in _INCONCLUSIVE_STATUSES
    return False


def indicates_modern_server(failure: Exception) -> bool:
    """Return whether a failed `initialize` indicates a server that only supports 2026-07-28 or later."""
    if not isinstance(failure, ProtocolError):
        return False
    # A plain MethodNotFound is not enough: a handshake server may send it for anything. Combined with HTTP
    # status 404 it is the response that 2026-07-28 prescribes for unknown methods (basic/transports).
    return isinstance(failure, _MODERN_ERRORS) or (failure.http_status == 404 and isinstance(failure, MethodNotFound))


async def initialize(
    transport: ClientTransport,
    identity: ClientIdentity,
    protocol_version: ProtocolVersion | None,
    timeout: float | None,
) -> ServerHandshake:
    """Perform the handshake. The server may choose an older version than the one offered."""
    return await accept_handshake(transport, await ask_for_handshake(transport, identity, protocol_version, timeout))


async def ask_for_handshake(
    transport: ClientTransport, identity: ClientIdentity, revision: ProtocolVersion | None, timeout: float | None
) -> Raw:
    """Send `initialize` and return its result."""
    offered = revision or LATEST_HANDSHAKE_VERSION
    params = {
        "protocolVersion": offered,
        "capabilities": _downgrade_capabilities(offered, identity.capabilities),
        "clientInfo": identity.info,
    }
    return await send_request(transport, "initialize", params, timeout)


async def accept_handshake(transport: ClientTransport, result: Raw) -> ServerHandshake:
    """Complete a handshake with the result of `initialize`."""
    match = _decode_result(result, InitializeResult, "initialize", transport.name)
    # "If the client does not support the version in the server's response, it SHOULD disconnect" (2025-11-25,
    # basic/lifecycle, Version Negotiation).
    if match.protocol_version not in HANDSHAKE_VERSIONS:
        raise ProtocolError(f"{transport.name} chose the unknown protocol version {match.protocol_version[:100]!r}")
    # Before `initialized` is sent: over HTTP that notification must carry the MCP-Protocol-Version header
    # already.
    transport.set_protocol_version(match.protocol_version)
    await transport(Call(method=notifications.INITIALIZED))
    return ServerHandshake(match.protocol_version, match.server_info, match.capabilities, match.instructions)


async def send_request(
    transport: ClientTransport,
    method: str,
    params: dict[str, Any],
    timeout: float | None,
    protocol_version: ProtocolVersion | None = None,
) -> Raw:
    """Send one request before a protocol version is negotiated, and return its result."""
    call = Call(
        method=method, params=Raw(jsonrpc.encode(params)), id=transport.new_id(), protocol_version=protocol_version
    )
    try:
        async with suspendable_timeout(timeout):
            return await transport(call)  # type: ignore[no-any-return]
    # RequestTimeout and other transport errors name their server; only a bare TimeoutError is from the block
    # above.
    except TransportError:
        raise
    except TimeoutError:
        raise RequestTimeout(
            f"{transport.name}: {method} was not answered within {timeout:g} s{transport.timeout_hint}"
        ) from None


def _decode_result(result: Raw, kind: type[Any], method: str, name: str) -> Any:
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise ProtocolError(f"{name} returned an invalid result for {method}: {format_decode_error(failure)}") from None


def _downgrade_capabilities(revision: ProtocolVersion, able: ClientCapabilities) -> ClientCapabilities:
    """Return the capabilities that exist in a protocol version: a server may use whatever is declared."""
    if revision >= V2025_11_25:
        return able
    # Before 2025-11-25, elicitation has no modes: an empty object means forms. Sampling has no
    # sub-capabilities.
    forms = revision >= V2025_06_18 and able.supports_elicitation("form")
    sampling: dict[str, Any] | None = None if able.sampling is None else {}
    return msgspec.structs.replace(able, sampling=sampling, elicitation={} if forms else None)
