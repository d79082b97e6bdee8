"""Encoding of server-sent events."""

from __future__ import annotations

from portico.protocol.jsonrpc import to_line

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

EVENT_STREAM_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # 2026-07-28, basic/transports: proxies must not buffer events.
    (b"x-accel-buffering", b"no"),
)


def encode_event(message: bytes, id: bytes = b"", name: bytes = b"") -> bytes:
    """Encode one event with one data line. Raises `ValueError` for an id or a name with a line break."""
    if any(byte in b"\r\n\0" for byte in id + name):
        raise ValueError("the id and the name of an event must not contain line breaks or NUL")
    head = b"id: " + id + b"\n" if id else b""
    kind = b"event: " + name + b"\n" if name else b""
    return head + kind + b"data: " + to_line(message) + b"\n\n"


def encode_priming_event(id: bytes, retry_ms: int) -> bytes:
    """Encode an event that only provides an id for resumption (2025-11-25, basic/transports)."""
    return b"id: " + id + b"\nretry: " + b"%d" % retry_ms + b"\ndata:\n\n"
