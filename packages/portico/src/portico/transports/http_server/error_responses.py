"""Error responses for rejected requests, in the format of the protocol version that each request names."""

from __future__ import annotations

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidRequest
from portico.protocol.jsonrpc import RequestId
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, V2025_03_26, ProtocolVersion
from portico.transports.http_server import headers as http
from portico.transports.http_server.messages import JSON_HEADERS, HeaderPairs, HttpRequest, HttpResponse

SESSION_VERSIONS = frozenset(revision.encode() for revision in HANDSHAKE_VERSIONS)


def is_modern_request(request: HttpRequest) -> bool:
    """Return whether the header names a protocol version without sessions."""
    version = request.headers.get(http.PROTOCOL_VERSION_HEADER)
    return version is not None and version not in SESSION_VERSIONS


def requested_protocol_version(request: HttpRequest) -> ProtocolVersion:
    """Return the protocol version of a request, or 2025-03-26 if it names none (2025-06-18, basic/transports)."""
    version = request.headers.get(http.PROTOCOL_VERSION_HEADER)
    if version is None:
        return V2025_03_26
    return version.decode() if version in SESSION_VERSIONS else FIRST_MODERN_VERSION


def error_response(
    request: HttpRequest, status: int, reason: str, headers: HeaderPairs = (), id: RequestId | None = None
) -> HttpResponse:
    return HttpResponse(
        status,
        (*JSON_HEADERS, *headers),
        jsonrpc.encode_error(id, InvalidRequest(reason), requested_protocol_version(request)),
    )


def overloaded_response(request: HttpRequest, reason: str = "the server is overloaded") -> HttpResponse:
    """Return the response for a request that was not executed and can be retried."""
    return error_response(
        request, 503, f"Service unavailable: {reason}; try again", ((b"retry-after", b"1"), *request.cors)
    )
