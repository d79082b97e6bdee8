"""JSON-RPC 2.0: bytes to Frames and back. Nothing here knows what a method means."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from portico.wire.errors import InvalidRequest, ParseError, ProtocolError
from portico.wire.revisions import V2025_11_25, Revision

RequestId = int | str

NOTHING = Raw(b"")

# A reply must be able to say the id again, and msgspec (like JavaScript) is exact on 64-bit integers only.
_LARGEST_ID = 2**63

# The members that decide what a message does.
_STEERING = re.compile(rb'"(?:method|id|params|name|arguments|_meta|uri)"').findall


class ErrorBody(Struct, omit_defaults=True, gc=False):
    code: int
    message: str
    data: Any = None


class Frame(Struct, gc=False):
    """One message as it came: a request, a notification, a result or an error. `params` is not yet decoded."""

    jsonrpc: str = ""
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = NOTHING
    result: Raw = NOTHING
    error: ErrorBody | UnsetType = UNSET
    # The `_meta` of params, undecoded. No member of a message: what somebody sends under this name is overwritten.
    meta: Raw = msgspec.field(default=NOTHING, name="")


class Malformed(Struct):
    """What stands in for a Frame that could not be read, so that one bad member does not spoil a batch."""

    error: ProtocolError
    id: RequestId | None = None
    # It wanted to be the answer to a question of ours, so it gets none.
    is_response: bool = False


class _WithMeta(Struct, gc=False):
    meta: Raw = msgspec.field(default=NOTHING, name="_meta")


_frame = msgspec.json.Decoder(Frame)
_with_meta = msgspec.json.Decoder(_WithMeta)
_frames = msgspec.json.Decoder(list[Raw])
_anything = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def decode(data: bytes) -> Frame | Malformed | list[Frame | Malformed]:
    """One message, or the members of a batch. Never raises: what is wrong comes back as Malformed."""
    try:
        # msgspec skips over what it is not asked to look at, and bad UTF-8 could hide there.
        if not data.isascii():
            data.decode()
        return _checked(_frame.decode(data), data)
    except Exception as failure:
        return _unreadable(data, failure)


def _checked(frame: Frame, data: bytes | Raw) -> Frame | Malformed:
    id = frame.id
    if frame.jsonrpc == "2.0" and frame.method is not UNSET:
        if type(id) is int and not -_LARGEST_ID <= id < _LARGEST_ID:
            return Malformed(InvalidRequest("Invalid request: id is outside the 64-bit range"))
        if id is None:
            return Malformed(InvalidRequest("Invalid request: id must be a string or an integer, not null"))
        if frame.params is not NOTHING and not bytes(frame.params).startswith(b"{"):
            return Malformed(InvalidRequest("Invalid request: params must be an object"), _readable(id))
        frame.meta = _meta_of(data, frame.params)
        if _repeats_itself(bytes(data), bytes(frame.meta)):
            return Malformed(InvalidRequest("Invalid request: a member is given twice"), _readable(id))
        return frame
    if frame.jsonrpc != "2.0":
        return Malformed(InvalidRequest('Invalid request: jsonrpc must be "2.0"'), _readable(id))
    if (frame.result is NOTHING) == (frame.error is UNSET):
        failure = InvalidRequest("Invalid request: neither a method, nor one result or error")
        return Malformed(failure, _readable(id), is_response=frame.result is not NOTHING)
    return frame


def _meta_of(data: bytes | Raw, params: Raw) -> Raw:
    """Looked for as text first: most requests of the handshake revisions have none."""
    text = bytes(data)
    if params is NOTHING or (b'"_meta"' not in text and b"\\u" not in text):
        return NOTHING
    return _with_meta.decode(params).meta


def _repeats_itself(text: bytes, meta: bytes) -> bool:
    """Whether a member that steers the message stands twice in it.

    Parsers disagree about which of the two counts, and what an auditor reads must be what runs. Looking is cheap
    because the words are searched for first; only a message that has one of them twice, or that could spell one with
    an escape, is read again.
    """
    # What a modern client says of itself in `_meta` has names too, in every request.
    found = _STEERING(text.replace(meta, b"", 1) if meta else text)
    if len(found) == len(set(found)) and b"\\u" not in text:
        return False
    import json  # only a message that looks suspicious pays for it

    # The numbers do not matter here, and Python refuses to read very long ones.
    pairs = json.loads(text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    return any(level.repeated for level in [pairs, *(value for name, value in pairs if name == "params")])


class _Pairs(list[tuple[str, Any]]):
    @property
    def repeated(self) -> bool:
        return len({name for name, _ in self}) < len(self)


def _readable(id: object) -> RequestId | None:
    if type(id) is int:
        return id if -_LARGEST_ID <= id < _LARGEST_ID else None
    return id if type(id) is str else None


def _unreadable(data: bytes, failure: Exception) -> Malformed | list[Frame | Malformed]:
    """The slow path: find out what it was, and whose id the complaint belongs to."""
    if isinstance(failure, RecursionError):
        return Malformed(ParseError("Parse error: nested too deeply"))
    try:
        value = _anything.decode(data)
    except RecursionError:
        return Malformed(ParseError("Parse error: nested too deeply"))
    except (ValueError, OverflowError) as reason:
        return Malformed(ParseError(f"Parse error: {_plain(reason)}"))
    if isinstance(value, list):
        return [_member(raw) for raw in _frames.decode(data)]
    if isinstance(value, dict):
        response = "method" not in value and ("result" in value or "error" in value)
        return Malformed(InvalidRequest(f"Invalid request: {_plain(failure)}"), _readable(value.get("id")), response)
    return Malformed(InvalidRequest("Invalid request: a message is a JSON object"))


def _member(raw: Raw) -> Frame | Malformed:
    data = bytes(raw)
    # Not looked into: batches in batches would be read again for each of their levels.
    if data.startswith(b"["):
        return Malformed(InvalidRequest("Invalid request: a batch inside a batch"))
    found = decode(data)
    assert not isinstance(found, list)
    return found


def _plain(failure: Exception) -> str:
    """A parser's complaint without its punctuation for programmers."""
    if isinstance(failure, UnicodeDecodeError):
        return f"invalid UTF-8 (byte {failure.start})"
    return str(failure).removeprefix("JSON is malformed: ").replace("`", "'").replace("'$.", "'")


def request(id: RequestId, method: str, params: Any) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        message["params"] = params
    return _encoder.encode(message)


def notification(method: str, params: Any) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return _encoder.encode(message)


def result(id: RequestId, body: bytes) -> bytes:
    """A response around a result that is already encoded."""
    said = b"%d" % id if type(id) is int else _encoder.encode(id)
    return b'{"jsonrpc":"2.0","id":' + said + b',"result":' + body + b"}"


def error(id: RequestId | None, failure: ProtocolError, revision: Revision | None = None) -> bytes:
    """A response that says what went wrong.

    When the request's id could not be read, JSON-RPC wants `null`, and the schemas up to 2025-06-18 demand some id;
    from 2025-11-25 on the schema forbids null and lets the id be left out.
    """
    body = ErrorBody(failure.code_at(revision), failure.message, failure.data)
    if id is None and revision is not None and revision >= V2025_11_25:
        return _encoder.encode({"jsonrpc": "2.0", "error": body})
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body})
