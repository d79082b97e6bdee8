"""How a request is refused over HTTP: a status, and an error in the words of the revision that it names."""

from __future__ import annotations

from portico.transport.http import headers as http
from portico.transport.http.response import JSON, Answer, Pairs, Request
from portico.wire import jsonrpc
from portico.wire.errors import InvalidRequest
from portico.wire.jsonrpc import RequestId
from portico.wire.revisions import HANDSHAKE, MODERN, V2025_03_26, Revision

_HANDSHAKE = frozenset(revision.encode() for revision in HANDSHAKE)


def refusal(request: Request, status: int, reason: str, headers: Pairs = (), id: RequestId | None = None) -> Answer:
    return Answer(status, (*JSON, *headers), jsonrpc.error(id, InvalidRequest(reason), named_revision(request)))


def busy(request: Request) -> Answer:
    return refusal(request, 503, "Service unavailable: too much to do; try again", ((b"retry-after", b"1"),))


def is_modern(request: Request) -> bool:
    """Whether the header names a revision that has no sessions."""
    version = request.headers.get(http.VERSION)
    return version is not None and version not in _HANDSHAKE


def named_revision(request: Request) -> Revision:
    """The revision that a request names. One that names none is of 2025-03-26 (2025-06-18, basic/transports)."""
    version = request.headers.get(http.VERSION)
    if version is None:
        return V2025_03_26
    return version.decode() if version in _HANDSHAKE else MODERN
