"""Retry rules: a failed call is repeated if it was not executed, or if repeating it is harmless."""

from __future__ import annotations

from portico.protocol.errors import (
    ConnectError,
    ConnectionClosed,
    HttpStatusError,
    PorticoError,
    ProtocolError,
    SessionExpired,
)

# An overloaded server, or a proxy that cannot reach it.
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})


def is_retryable(failure: PorticoError, idempotent: bool) -> bool:
    # The request was never sent, or was rejected before execution.
    if isinstance(failure, ConnectError | SessionExpired):
        return True
    if isinstance(failure, HttpStatusError):
        return idempotent and failure.http_status in _RETRYABLE_STATUSES
    if isinstance(failure, ProtocolError):
        # Rate limits of MCP servers are JSON-RPC errors; Retry-After tells them from other errors.
        return idempotent and failure.http_status in _RETRYABLE_STATUSES and failure.retry_after is not None
    return idempotent and isinstance(failure, ConnectionClosed)


def add_method_context(failure: PorticoError, method: str) -> PorticoError:
    """Return the failure with the method in its message."""
    if isinstance(failure, ConnectionClosed | ConnectError) and method not in str(failure):
        return type(failure)(f"{method}: {failure}")
    return failure


def not_retried_error(failure: PorticoError, method: str) -> PorticoError:
    if not isinstance(failure, ConnectionClosed):
        return failure
    return type(failure)(f"{method} was not retried because the server may have executed it: {failure}")
