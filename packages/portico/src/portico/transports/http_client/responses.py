"""Interpretation of HTTP responses: matching them to requests, and error messages for invalid ones."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.auth.challenges import parse_auth_challenge
from portico.auth.flow import FetchResponse
from portico.protocol.errors import MethodNotFound, PorticoError, ProtocolError, TransportError, error_from_response
from portico.protocol.jsonrpc import ErrorObject, JsonRpcMessage, RequestId
from portico.text import one_line
from portico.transports.http_client.connection import HttpClientResponse

# An overloaded server, or one under maintenance.
_RETRY_AFTER_STATUSES = frozenset({429, 503})


def unwrap_result(frame: JsonRpcMessage, status: int, retry_after: float | None = None) -> Raw:
    """Return the result of a message. Raises its error, with the HTTP status of the response."""
    if isinstance(frame.error, ErrorObject):
        failure = error_from_response(frame.error.code, frame.error.message, frame.error.data, http_status=status)
        failure.retry_after = retry_after
        raise failure
    return frame.result


def parse_retry_after(response: HttpClientResponse) -> float | None:
    """Return the seconds after which to retry (RFC 9110, section 10.2.3), or None if not specified."""
    value = response.headers.get("retry-after", "").strip()
    if response.status not in _RETRY_AFTER_STATUSES or not value:
        return None
    if value.isascii() and value.isdigit():
        # Nine digits are thirty years; longer numbers would only cost time to parse.
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def check_response_id(frame: JsonRpcMessage, id: RequestId | None) -> JsonRpcMessage:
    """Check the id of a response on a request's own stream. Errors about unreadable requests have no id."""
    if not is_same_id(frame.id, id) and (frame.error is UNSET or isinstance(frame.id, int | str)):
        raise ProtocolError(f"a response with the id {format_id(frame.id)} instead of {id!r}")
    return frame


# JSON-RPC ids 1 and "1" are different, and so are 1 and true, which are equal in Python.
def is_same_id(item: object, other: object) -> bool:
    return type(item) is type(other) and item == other


def format_id(id: object) -> str:
    return f"{id[:100]!r}" if isinstance(id, str) else str(id) if isinstance(id, int) else "null"


def reject_content_encoding(encoding: str) -> None:
    # The client sends no Accept-Encoding. Decompressing anyway would permit decompression bombs.
    if encoding != "identity":
        raise ProtocolError(f"the response has the content encoding {encoding[:100]!r}, which was not requested")


def parse_session_id(response: HttpClientResponse) -> str | None:
    """Return the session id of a response. Raises `ProtocolError` unless it is visible ASCII (2025-11-25,
    basic/transports).
    """
    session = response.headers.get("mcp-session-id") or None
    if session is not None and not (session.isascii() and session.isprintable() and " " not in session):
        raise ProtocolError(f"invalid session id {session[:100]!r}: expected visible ASCII characters")
    return session


def is_session_lost(status: int, frame: Any, id: RequestId, data: bytes) -> bool:
    """Return whether a response means that the server no longer knows the session.

    The specification requires 404. Many servers send 400 with a message about sessions instead.
    """
    body = frame.error if isinstance(frame, JsonRpcMessage) else UNSET
    if status == 404:
        # Some servers respond with 404 to an unknown method. That concerns this request, not the session.
        return not (isinstance(body, ErrorObject) and body.code == MethodNotFound.code and frame.id == id)
    if status != 400:
        return False
    # -32000 is the code that the TypeScript SDK uses for "No valid session ID provided".
    if isinstance(body, ErrorObject):
        return (body.code == -32000 or frame.id != id) and "session" in body.message.lower()
    return b"session" in data[:200].lower()


# Instructions for the Python API; commands replace them with their options.
HOW_TO_AUTHENTICATE = 'Pass a token with auth="TOKEN", or log in with auth="oauth".'
REJECTED_TOKEN = "rejected the token"
MAX_REASON_CHARS = 300
_TAG = re.compile(r"<(?:script|style|title)\b.*?</(?:script|style|title)\s*>|<[^>]*>?", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.DOTALL | re.IGNORECASE)
# Members of a JSON error body that commonly contain a message.
_SENTENCES = ("error_description", "message", "detail", "title", "error")


def format_auth_error(name: str, method: str, response: HttpClientResponse, data: bytes, *, with_token: bool) -> str:
    """Return the message for a 401 or 403 response, with the reason that the server states."""
    reason = reason_of(response.status, response.headers.items(), data)
    detail = f": {reason}" if reason else ""
    if response.status == 403:
        return f"{name} forbids {method} (HTTP status 403){detail or '.'}"
    if with_token:
        return f"{name} {REJECTED_TOKEN} (HTTP status 401, {method}){detail or '.'}"
    detail = f" The server reports: {reason}" if reason else ""
    return f"{name} requires authentication (HTTP status 401, {method}). {HOW_TO_AUTHENTICATE}{detail}"


def reason_of(status: int, headers: Iterable[tuple[str, str]], data: bytes) -> str:
    """Return the reason of an error response, as the server states it, on one line. Empty if it states none."""
    body = data[:4096].decode(errors="replace")
    sentence = _sentence(data) if body.lstrip()[:1] == "{" else _text_of(body)
    challenge = parse_auth_challenge(FetchResponse(status, tuple(headers)))
    described = challenge.error_description or ""
    both = (sentence, described if described not in sentence else "")
    return "; ".join(line for part in both if (line := one_line(part, MAX_REASON_CHARS)))


def _sentence(data: bytes) -> str:
    """Return the message of a JSON error body: JSON-RPC, OAuth, or that of a proxy."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return data[:MAX_REASON_CHARS].decode(errors="replace")
    error = document.get("error") if isinstance(document, dict) else None
    for part in (error, document):
        if isinstance(part, dict):
            sentence = next((part[name] for name in _SENTENCES if isinstance(part.get(name), str)), "")
            if sentence:
                return str(sentence)
    return ""


def _text_of(body: str) -> str:
    """Return the title or text of an HTML page. Plain text is returned unchanged."""
    if not body.lstrip().startswith("<"):
        return body
    title = _TITLE.search(body)
    return f"an HTML page, {(title[1] if title else _TAG.sub(' ', body)).strip()!r}"


def summarize_body(data: bytes) -> str:
    """Return the body of an unexpected response, shortened and printable, for the end of an error message."""
    body = data[:4096].decode(errors="replace")
    text = one_line(_sentence(data) if body.lstrip()[:1] == "{" else _text_of(body), MAX_REASON_CHARS)
    return f": {text}" if text else ""


def add_server_context(error: ProtocolError | TransportError, name: str, reason: str) -> PorticoError:
    """Return an error that names the server and the request. Errors sent by the server stay unchanged."""
    if (isinstance(error, ProtocolError) and error.http_status) or name in str(error):
        return error
    return type(error)(f"{name}, {reason}: {error}")
