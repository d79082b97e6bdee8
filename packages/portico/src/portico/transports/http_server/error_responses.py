"""The answers to requests that are not let in, in the words of the revision that each of them names."""

from __future__ import annotations

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidRequest
from portico.protocol.jsonrpc import RequestId
from portico.protocol.versions import HANDSHAKE, MODERN, V2025_03_26, Revision
from portico.transports.http_server import headers as http
from portico.transports.http_server.messages import JSON, Answer, Pairs, Request

WITH_SESSIONS = frozenset(revision.encode() for revision in HANDSHAKE)


def is_modern(request: Request) -> bool:
    """Whether the header names a revision that has no sessions."""
    version = request.headers.get(http.VERSION)
    return version is not None and version not in WITH_SESSIONS


def revision_of(request: Request) -> Revision:
    """The revision that a request names. One that names none is of 2025-03-26 (2025-06-18, basic/transports)."""
    version = request.headers.get(http.VERSION)
    if version is None:
        return V2025_03_26
    return version.decode() if version in WITH_SESSIONS else MODERN


def error(request: Request, status: int, reason: str, headers: Pairs = (), id: RequestId | None = None) -> Answer:
    return Answer(status, (*JSON, *headers), jsonrpc.error(id, InvalidRequest(reason), revision_of(request)))


def busy(request: Request, reason: str = "too much to do") -> Answer:
    """Nothing was done, and it can be tried again."""
    return error(request, 503, f"Service unavailable: {reason}; try again", ((b"retry-after", b"1"), *request.cors))
