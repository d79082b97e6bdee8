"""JSON-RPC 2.0 framing: decoding and encoding of messages, independent of methods."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from portico.protocol.errors import InvalidRequest, ParseError, ProtocolError
from portico.protocol.json_depth import (
    ARRAY_BYTE,
    MAX_JSON_DEPTH,
    MAX_SHALLOW_BYTES,
    TOO_DEEP,
    is_too_deep,
    punctuation_of,
)
from portico.protocol.versions import V2025_11_25, ProtocolVersion

RequestId = int | str

EMPTY_RAW = Raw(b"")

MAX_BATCH_MESSAGES = 1000
MAX_ARGUMENTS = 1000
# Decoding this many takes about fifty milliseconds, during which the event loop is blocked.
MAX_JSON_NODES = 200_000
MAX_JSON_COMMAS = 500_000

# A response must repeat the id, and msgspec is exact for 64-bit integers only.
MAX_REQUEST_ID = 2**63 - 1
MIN_REQUEST_ID = -(2**63)

# Members that determine how a message is routed, and those of a request's params.
_ROUTING_MEMBERS = ("method", "id", "params")
_ROUTING_PARAMS = (
    "name", "arguments", "_meta", "uri", "taskId", "ref", "argument", "requestState", "inputResponses", "task",
)  # fmt: skip

# Syntax before the value of a member. Larger objects are decoded again instead of scanned.
_WHITESPACE = b" \t\r\n"
_MEMBER_KEY = rb'(?s)[ \t\r\n]*[{,][ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*'
_MAX_SCANNED_MEMBERS = 1000

# In valid JSON a raw CR or LF is whitespace between tokens, so a space is equivalent.
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
# JSON allows these inside strings, but some readers treat them as line ends: Node's readline, Python's str.splitlines.
# The last byte of each comes first: it is rare in text, and searching one byte is much faster than searching three.
_UNICODE_BREAKS = (
    (0xA8, b"\xe2\x80\xa8", b"\\u2028"),
    (0xA9, b"\xe2\x80\xa9", b"\\u2029"),
    (0x85, b"\xc2\x85", b"\\u0085"),
)

# Length of a compact request without its values.
_MIN_REQUEST_BYTES = len('{"jsonrpc":"2.0","method":""}')
_ID_MEMBER_BYTES = len(',"id":')
_PARAMS_MEMBER_BYTES = len(',"params":')


class ErrorObject(Struct, omit_defaults=True, gc=False):
    code: int
    message: str
    data: Any = None


class JsonRpcMessage(Struct, gc=False):
    """Received message: a request, notification, result or error. `params` is not decoded yet."""

    jsonrpc: str = ""
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = EMPTY_RAW
    result: Raw = EMPTY_RAW
    error: ErrorObject | UnsetType = UNSET


class ResultResponse(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    """Result response to send; `result` is Raw if it is already encoded."""

    id: RequestId
    result: Any


class _PartialMessage(Struct):
    """The members needed to reject an invalid message. Everything else is skipped and costs no memory."""

    id: Raw = EMPTY_RAW
    method: Raw = EMPTY_RAW
    result: Raw = EMPTY_RAW
    error: Raw = EMPTY_RAW


class MalformedMessage(Struct):
    """Placeholder for a message that could not be decoded, so that one bad member does not spoil a batch."""

    error: ProtocolError
    id: RequestId | None = None
    # It was meant as a response to one of our requests, so it is not answered.
    is_response: bool = False
    # JSON-RPC 2.0, section 4.1: notifications are never answered, not even with an error.
    is_notification: bool = False


_message_decoder = msgspec.json.Decoder(JsonRpcMessage)
# Decode the members of an object or of an array, and leave their values undecoded.
object_decoder = msgspec.json.Decoder(dict[str, Raw])
array_decoder = msgspec.json.Decoder(list[Raw])
_json_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
encode = _encoder.encode

DUPLICATE_MEMBER_MESSAGE = "Invalid request: a member is given twice, or its name differs from a known one in case"


def decode_message(
    data: bytes, max_nodes: int = sys.maxsize
) -> JsonRpcMessage | MalformedMessage | list[JsonRpcMessage | MalformedMessage]:
    """Decode one message, or the members of a batch. Never raises: errors are returned as MalformedMessage.

    A server passes MAX_JSON_NODES; responses to a client's own requests may be larger.
    """
    try:
        # msgspec skips members that are not declared, and invalid UTF-8 could hide there.
        if not data.isascii():
            data.decode()
        # Fast path: most messages have so few brackets, colons and commas that those in strings do not matter.
        size = len(data)
        may_be_large = size > max_nodes and (
            data.count(b"{") + data.count(b"[") + data.count(b":") > max_nodes or data.count(b",") > MAX_JSON_COMMAS
        )
        may_be_deep = size > MAX_SHALLOW_BYTES or (
            ARRAY_BYTE in data and 2 * size + 3 * (data.rfind(b"]") - data.find(b"[") + 1) > 2 * MAX_SHALLOW_BYTES
        )
        if may_be_large or (may_be_deep and data.count(b"{") + data.count(b"[") > MAX_JSON_DEPTH):
            punctuation = punctuation_of(data)
            if may_be_large and _exceeds_limits(punctuation, max_nodes):
                few = (
                    f"a message may have at most {max_nodes} objects, arrays and members, and {MAX_JSON_COMMAS} values"
                )
                return MalformedMessage(InvalidRequest(f"Invalid request: {few}"))
            if is_too_deep(punctuation):
                return _too_deep(data)
        return _validate_message(_message_decoder.decode(data), data)
    except Exception as failure:
        return _diagnose(data, failure)


def _exceeds_limits(punctuation: bytes, max_nodes: int) -> bool:
    """Return whether there are more than `max_nodes` objects, arrays and members, or too many values."""
    nodes = punctuation.count(b"{") + punctuation.count(b"[") + punctuation.count(b":")
    return nodes > max_nodes or punctuation.count(b",") > MAX_JSON_COMMAS


def _validate_message(frame: JsonRpcMessage, data: bytes | Raw) -> JsonRpcMessage | MalformedMessage:
    id, params = frame.id, frame.params
    if frame.jsonrpc == "2.0" and frame.method is not UNSET:
        # Length of a compact request with each member once.
        minimum = _MIN_REQUEST_BYTES + len(frame.method)
        # 2025-11-25 (basic): ids are strings or integers, and unlike in JSON-RPC never null.
        if type(id) is int:
            if not MIN_REQUEST_ID <= id <= MAX_REQUEST_ID:
                return MalformedMessage(InvalidRequest("Invalid request: id is outside the 64-bit range"))
            minimum += _ID_MEMBER_BYTES + len(str(id))
        elif type(id) is str:
            minimum += _ID_MEMBER_BYTES + len(id) + 2
        elif id is None:
            return MalformedMessage(InvalidRequest("Invalid request: id must be a string or an integer, not null"))
        if params is not EMPTY_RAW:
            if not bytes(params).startswith(b"{"):
                # An array is valid in JSON-RPC, but not in MCP. Without an id it is still a notification.
                failure = InvalidRequest("Invalid request: params must be an object")
                return MalformedMessage(failure, _is_valid_id(id), is_notification=id is UNSET)
            minimum += _PARAMS_MEMBER_BYTES + len(params)
        # A message of exactly that length has no room for a duplicate member. Nor has one with whitespace that has only
        # the quotes of `"jsonrpc": "2.0"`, of `"method": "…"` and of the other two members.
        if len(data) != minimum and has_duplicate_members(
            bytes(data),
            bytes(params),
            quotes=8 + 2 * (id is not UNSET) + 2 * (type(id) is str) + 2 * (params is not EMPTY_RAW),
            steering=_ROUTING_MEMBERS,
        ):
            return MalformedMessage(InvalidRequest(DUPLICATE_MEMBER_MESSAGE), _is_valid_id(id))
        return frame
    if frame.jsonrpc != "2.0":
        return MalformedMessage(InvalidRequest('Invalid request: jsonrpc must be "2.0"'), _is_valid_id(id))
    if (frame.result is EMPTY_RAW) == (frame.error is UNSET):
        failure = InvalidRequest("Invalid request: neither a method, nor one result or error")
        return MalformedMessage(failure, _is_valid_id(id), is_response=frame.result is not EMPTY_RAW)
    return frame


def has_duplicate_members(
    text: bytes, *values: bytes, quotes: int = 0, steering: tuple[str, ...] = _ROUTING_PARAMS
) -> bool:
    """Return whether a routing member of the object `text` is duplicated, or spelled in a way that only some parsers
    accept. `values` are the values of members that were decoded already. `quotes` is the least number of quotes outside
    them: with that many, there is no other member.

    Parsers disagree about which of two members counts, and some ignore case: Go's encoding/json reads `Name` as `name`.
    The message that a policy checks and an auditor reads must be the one that runs. The names are searched as text
    first, outside the values; only an object that has one of them twice, or could spell one differently, is decoded
    again.
    """
    outside = text
    for value in values:
        # An object cannot begin where a name does, so removing one cannot hide a name.
        if value.startswith(b"{"):
            outside = outside.replace(value, b"", 1)
    # Wherever a value was removed, its quotes were too, so those of any other member would remain.
    if outside.count(b'"') == quotes:
        return False
    pattern, exact = _steering_names(steering)
    names = pattern.findall(outside)
    unique = set(names)
    if len(names) == len(unique) and unique <= exact and b"\\u" not in outside and outside.isascii():
        return False
    try:
        members = object_decoder.decode(text)
    except msgspec.DecodeError:
        return _decode_pairs(text)
    return has_other_case(members, steering) or (not _has_only_members(text, members) and _decode_pairs(text))


@cache
def _steering_names(names: tuple[str, ...]) -> tuple[re.Pattern[bytes], frozenset[bytes]]:
    """Return a pattern that finds these names in any case, and the names as it finds them."""
    return re.compile(rb'(?i)"(?:%b)"' % "|".join(names).encode()), frozenset(f'"{name}"'.encode() for name in names)


def has_other_case(members: Iterable[str], names: Iterable[str]) -> bool:
    """Return whether a member has one of these names in another case. Case is folded as Unicode does, as in Go."""
    folded = {name.casefold(): name for name in names}
    return any(folded.get(member.casefold(), member) != member for member in members)


@cache
def _compile_pattern(text: bytes) -> re.Pattern[bytes]:
    """Compile a pattern on first use, so that startup does not pay for it."""
    return re.compile(text)


def has_duplicate_keys(arguments: Raw) -> bool:
    """Return whether an object has a duplicate key. Nested objects are not checked."""
    text = bytes(arguments)
    colons = text.count(b":")
    if colons < 2:
        return False
    try:
        members = object_decoder.decode(arguments)
    except msgspec.DecodeError:
        return False  # not an object; decoding the arguments reports it
    if len(members) > MAX_ARGUMENTS:
        raise InvalidRequest(f"Invalid request: at most {MAX_ARGUMENTS} arguments")
    # Each member has a colon, so there are no others; or, as above, there is no room for a duplicate.
    if colons == len(members):
        return False
    minimum = 1 + 4 * len(members) + sum(map(len, members)) + sum(map(len, members.values()))
    return len(text) != minimum and not _has_only_members(text, members) and _decode_pairs(text)


def _has_only_members(text: bytes, members: dict[str, Raw]) -> bool:
    """Return whether the object consists of exactly these members and whitespace.

    Then there is no duplicate: the decoder keeps one of two values, and the other would be left over here.
    """
    if len(members) > _MAX_SCANNED_MEMBERS:
        return False
    match = _compile_pattern(_MEMBER_KEY).match
    position = 0
    for value in members.values():
        gap = match(text, position)
        if gap is None or not text.startswith(bytes(value), gap.end()):
            return False
        position = gap.end() + len(value)
    return not text[position:].strip(_WHITESPACE + b"}")


def _decode_pairs(text: bytes) -> bool:
    import json  # imported only for suspicious messages

    # Numbers do not matter here, and Python refuses very long ones. Nested values are discarded immediately.
    result: bool = json.loads(text, object_pairs_hook=_has_duplicates, parse_int=str, parse_float=str)
    return result


def _has_duplicates(pairs: list[tuple[str, Any]]) -> bool:
    return len(dict(pairs)) < len(pairs)


def _is_valid_id(id: object) -> RequestId | None:
    if type(id) is int:
        return id if MIN_REQUEST_ID <= id <= MAX_REQUEST_ID else None
    return id if type(id) is str else None


def _diagnose(data: bytes, failure: Exception) -> MalformedMessage | list[JsonRpcMessage | MalformedMessage]:
    """Find out why decoding failed, and the id for the error response (slow path)."""
    first = data.lstrip()[:1]
    try:
        if isinstance(failure, RecursionError | UnicodeDecodeError):
            raise failure
        if first == b"[":
            return _decode_batch(data)
        if first == b"{":
            return _invalid_message(msgspec.json.decode(data, type=_PartialMessage), failure)
        _json_decoder.decode(data)
    except RecursionError:
        return MalformedMessage(ParseError("Parse error: nested too deeply"))
    except (ValueError, OverflowError) as reason:
        return MalformedMessage(ParseError(f"Parse error: {_format_decode_error(reason)}"))
    return MalformedMessage(InvalidRequest("Invalid request: a message must be a JSON object"))


def _too_deep(data: bytes) -> MalformedMessage:
    """Return the refusal of a message that is nested too deeply, with its id where that can be read."""
    refusal = MalformedMessage(ParseError(f"Parse error: {TOO_DEEP}"))
    try:
        seen = msgspec.json.decode(data, type=_PartialMessage)
        refusal.is_response = seen.method is EMPTY_RAW and (seen.result is not EMPTY_RAW or seen.error is not EMPTY_RAW)
        refusal.id = None if seen.id is EMPTY_RAW else _is_valid_id(_json_decoder.decode(seen.id))
    except (ValueError, OverflowError, RecursionError):
        pass
    return refusal


def _invalid_message(seen: _PartialMessage, failure: Exception) -> MalformedMessage:
    response = seen.method is EMPTY_RAW and (seen.result is not EMPTY_RAW or seen.error is not EMPTY_RAW)
    id = None if seen.id is EMPTY_RAW else _json_decoder.decode(seen.id)
    reason = _format_decode_error(failure)
    if id is not None and _is_valid_id(id) is None and type(id) is not int:
        reason = "id must be a string or an integer"
    return MalformedMessage(InvalidRequest(f"Invalid request: {reason}"), _is_valid_id(id), response)


def _decode_batch(data: bytes) -> MalformedMessage | list[JsonRpcMessage | MalformedMessage]:
    """Decode the members of a batch after checking their number."""
    members = [raw for raw in astuple(_batch_decoder().decode(data)) if raw is not EMPTY_RAW]
    if len(members) > MAX_BATCH_MESSAGES:
        return MalformedMessage(
            InvalidRequest(f"Invalid request: a batch may have at most {MAX_BATCH_MESSAGES} members")
        )
    return [_decode_member(raw) for raw in members]


@cache
def _batch_decoder() -> msgspec.json.Decoder[Any]:
    """Return a decoder for one member more than allowed; the rest is skipped and costs no memory."""
    fields = [(f"at_{number}", Raw, msgspec.field(default=EMPTY_RAW)) for number in range(MAX_BATCH_MESSAGES + 1)]
    return msgspec.json.Decoder(msgspec.defstruct("_Members", fields, array_like=True))


def _decode_member(raw: Raw) -> JsonRpcMessage | MalformedMessage:
    data = bytes(raw)
    # Rejected without decoding: nested batches would be decoded again for each level.
    if data.startswith(b"["):
        return MalformedMessage(InvalidRequest("Invalid request: a batch inside a batch"))
    message = decode_message(data)
    assert not isinstance(message, list)
    return message


def _format_decode_error(failure: Exception) -> str:
    """Return a decoder's message without its path syntax."""
    if isinstance(failure, UnicodeDecodeError):
        return f"invalid UTF-8 (byte {failure.start})"
    return str(failure).removeprefix("JSON is malformed: ").replace("`", "'").replace("'$.", "'")


def to_line(message: bytes) -> bytes:
    """Return an encoded message without line breaks.

    Messages contain bytes of other parties (arguments, results, `_meta`). In framings where a line break ends a
    message, such as stdio and server-sent events, these could otherwise inject messages. Every writer of such a framing
    calls this; a message without line breaks is returned unchanged.
    """
    # Integers: for a bytes object, `in` first tries to convert it to one, and raises and clears an exception.
    if 10 in message or 13 in message:
        message = message.translate(_LINE_BREAKS)
    if not message.isascii():
        for last_byte, character, escape in _UNICODE_BREAKS:
            if last_byte in message:
                message = message.replace(character, escape)
    return message


def encode_request(id: RequestId, method: str, params: Any) -> bytes:
    """Encode a request."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        message["params"] = params
    return _encoder.encode(message)


def encode_notification(method: str, params: Any) -> bytes:
    """Encode a notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return _encoder.encode(message)


def encode_error(
    id: RequestId | None, failure: ProtocolError, protocol_version: ProtocolVersion | None = None
) -> bytes:
    """Encode an error response.

    If the request's id is unknown, JSON-RPC requires `null`, and the schemas up to 2025-06-18 require an id; from
    2025-11-25 on the schema forbids null and the id may be omitted.
    """
    body = ErrorObject(failure.code_for(protocol_version), failure.message, failure.data)
    if id is None and protocol_version is not None and protocol_version >= V2025_11_25:
        return _encoder.encode({"jsonrpc": "2.0", "error": body})
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body})
