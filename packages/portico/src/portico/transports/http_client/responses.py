"""Judging HTTP responses: whether it is an answer, to which request, and what is wrong with it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.auth.challenges import demand
from portico.auth.flow import Fetched
from portico.protocol.errors import Error, MethodNotFound, ProtocolError, TransportError, from_wire
from portico.protocol.jsonrpc import ErrorBody, Frame, RequestId
from portico.transports.http_client.connection import Response

# A server that is overwhelmed, or being repaired.
_WAIT = frozenset({429, 503})


def result_of(frame: Frame, status: int, retry_after: float | None = None) -> Raw:
    """The result that a frame carries; an error is raised, with the HTTP status that it came with."""
    if isinstance(frame.error, ErrorBody):
        failure = from_wire(frame.error.code, frame.error.message, frame.error.data, status=status)
        failure.retry_after = retry_after
        raise failure
    return frame.result


def retry_after(response: Response) -> float | None:
    """In how many seconds a server wants to be asked again (RFC 9110, section 10.2.3); None if it does not say."""
    said = response.headers.get("retry-after", "").strip()
    if response.status not in _WAIT or not said:
        return None
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def expected(frame: Frame, id: RequestId | None) -> Frame:
    """The answer on a request's own stream. A request that could not be read has no id in its answer."""
    if not same(frame.id, id) and (frame.error is UNSET or isinstance(frame.id, int | str)):
        raise ProtocolError(f"an answer with the id {short(frame.id)} instead of {id!r}")
    return frame


def same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def short(id: object) -> str:
    return f"{id[:100]!r}" if isinstance(id, str) else str(id) if isinstance(id, int) else "null"


def check_encoding(encoding: str) -> None:
    if encoding != "identity":
        raise ProtocolError(f"the answer is encoded with {encoding[:100]!r}, which was not asked for")


def session_of(response: Response) -> str | None:
    """2025-11-25, basic/transports: visible ASCII only. Anything else could not be sent back."""
    session = response.headers.get("mcp-session-id") or None
    if session is not None and not (session.isascii() and session.isprintable() and " " not in session):
        raise ProtocolError(f"a session id that is none: {session[:100]!r}")
    return session


def is_lost(status: int, frame: Any, id: RequestId, data: bytes) -> bool:
    """404 is what a server must say; 400 and something about sessions is what many written by example say."""
    body = frame.error if isinstance(frame, Frame) else UNSET
    if status == 404:
        # There is one who says it of a method, and of this one.
        return not (isinstance(body, ErrorBody) and body.code == MethodNotFound.code and frame.id == id)
    if status != 400:
        return False
    if isinstance(body, ErrorBody):
        return (body.code == -32000 or frame.id != id) and "session" in body.message.lower()
    return b"session" in data[:200].lower()


# How to authenticate, in the words of the Python API; commands replace it with their options.
HOW_TO_AUTHENTICATE = 'Pass a token with auth="TOKEN", or log in with auth="oauth".'
MAX_REASON_CHARS = 300
_TAG = re.compile(r"<(?:script|style|title)\b.*?</(?:script|style|title)\s*>|<[^>]*>?", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.DOTALL | re.IGNORECASE)
# Members of a JSON body that other programs put a sentence into.
_SENTENCES = ("error_description", "message", "detail", "title", "error")


def denied(name: str, method: str, response: Response, data: bytes, *, with_token: bool) -> str:
    """Return the message for a 401 or 403 response, with the reason that the server gives."""
    reason = reason_of(response.status, response.headers.items(), data)
    said = f": {reason}" if reason else ""
    if response.status == 403:
        return f"{name} forbids {method} (HTTP status 403){said or '.'}"
    if with_token:
        return f"{name} refused the token that was sent (HTTP status 401, {method}){said or '.'}"
    said = f" The server reports: {reason}" if reason else ""
    return f"{name} requires authentication (HTTP status 401, {method}). {HOW_TO_AUTHENTICATE}{said}"


def reason_of(status: int, headers: Iterable[tuple[str, str]], data: bytes) -> str:
    """Return why the server refused a request, in its own words and on one line; empty if it does not say."""
    body = data[:4096].decode(errors="replace")
    sentence = _sentence(data) if body.lstrip()[:1] == "{" else _text_of(body)
    asked = demand(Fetched(status, tuple(headers)))
    described = asked.error_description or ""
    both = (sentence, described if described not in sentence else "")
    return "; ".join(one_line for part in both if (one_line := _one_line(part)))


def _sentence(data: bytes) -> str:
    """Return the message of an error in JSON: JSON-RPC's, OAuth's, or that of a proxy."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return data[:MAX_REASON_CHARS].decode(errors="replace")
    error = said.get("error") if isinstance(said, dict) else None
    for part in (error, said):
        if isinstance(part, dict):
            found = next((part[name] for name in _SENTENCES if isinstance(part.get(name), str)), "")
            if found:
                return str(found)
    return ""


def _text_of(body: str) -> str:
    """Return the text of a page, or its title if it has one; a plain text as it is."""
    if not body.lstrip().startswith("<"):
        return body
    title = _TITLE.search(body)
    return f"an HTML page, {(title[1] if title else _TAG.sub(' ', body)).strip()!r}"


def _one_line(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return f"{line[:MAX_REASON_CHARS]}…" if len(line) > MAX_REASON_CHARS else line


def gist(data: bytes) -> str:
    """Return what a server says instead of a message, bounded and printable, for the end of an error message."""
    body = data[:4096].decode(errors="replace")
    text = _one_line(_sentence(data) if body.lstrip()[:1] == "{" else _text_of(body))
    return f": {text}" if text else ""


def named(failure: ProtocolError | TransportError, name: str, what: str) -> Error:
    """An error that says whose it is, and what was being asked. What the server says itself is left as it is."""
    if (isinstance(failure, ProtocolError) and failure.status) or name in str(failure):
        return failure
    return type(failure)(f"{name}, {what}: {failure}")
