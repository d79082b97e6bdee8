"""JSON-RPC 2.0: bytes to Frames and back. Nothing here knows what a method means."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from portico.protocol.errors import InvalidRequest, ParseError, ProtocolError
from portico.protocol.json_depth import MAX_JSON_DEPTH, TOO_DEEP, is_too_deep, punctuation_of
from portico.protocol.versions import V2025_11_25, Revision

RequestId = int | str

NOTHING = Raw(b"")

MOST_IN_BATCH = 1000
MOST_ARGUMENTS = 1000
# Reading so many of either takes some fifty milliseconds, in which nothing else is done.
MOST_NODES = 200_000
MOST_COMMAS = 500_000

# A reply must be able to say the id again, and msgspec (like JavaScript) is exact on 64-bit integers only.
LARGEST_ID = 2**63 - 1
SMALLEST_ID = -(2**63)

# The members that decide what a message does, and those that decide what a request does.
_STEERING = rb'"(?:method|id|params)"'
_STEERING_PARAMS = rb'"(?:name|arguments|_meta|uri|taskId)"'

# What stands before the value of a member. Objects with more members are read again sooner than walked through.
_SPACE = b" \t\r\n"
_GAP = rb'(?s)[ \t\r\n]*[{,][ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*'
_MOST_WALKED = 1000

# In valid JSON a raw CR or LF is always whitespace between tokens, so a space has the same meaning.
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
# JSON allows these inside strings, but some readers end a line there: Node's readline, Python's str.splitlines.
_UNICODE_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))

# A request without spaces is as long as this and its values.
_LEAST = len('{"jsonrpc":"2.0","method":""}')
_LEAST_ID = len(',"id":')
_LEAST_PARAMS = len(',"params":')


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


class ResultFrame(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    """A result on its way; Raw, if it is encoded already."""

    id: RequestId
    result: Any


class _Glance(Struct):
    """What a complaint needs of a message that is no Frame. The rest is skipped over, and costs no memory."""

    id: Raw = NOTHING
    method: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING


class Malformed(Struct):
    """What stands in for a Frame that could not be read, so that one bad member does not spoil a batch."""

    error: ProtocolError
    id: RequestId | None = None
    # It wanted to be the answer to a question of ours, so it gets none.
    is_response: bool = False


_frame = msgspec.json.Decoder(Frame)
_raws = msgspec.json.Decoder(dict[str, Raw])
_anything = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
encode = _encoder.encode

TWICE = "Invalid request: a member is given twice"


def decode(data: bytes, most_nodes: int = sys.maxsize) -> Frame | Malformed | list[Frame | Malformed]:
    """Return one message, or the members of a batch. Never raises: errors are returned as Malformed.

    A server passes MOST_NODES; responses to a client's own requests may be larger.
    """
    try:
        # msgspec skips over what it is not asked to look at, and bad UTF-8 could hide there.
        if not data.isascii():
            data.decode()
        # Most messages have so few brackets, colons and commas that it does not matter which of them are in strings.
        brackets = data.count(b"{") + data.count(b"[")
        may_be_large = len(data) > most_nodes and (
            brackets + data.count(b":") > most_nodes or data.count(b",") > MOST_COMMAS
        )
        if may_be_large or brackets > MAX_JSON_DEPTH:
            punctuation = punctuation_of(data)
            if may_be_large and _has_too_many(punctuation, most_nodes):
                few = f"a message has at most {most_nodes} objects, arrays and members, and {MOST_COMMAS} values"
                return Malformed(InvalidRequest(f"Invalid request: {few}"))
            if is_too_deep(punctuation):
                return _too_deep(data)
        return _checked(_frame.decode(data), data)
    except Exception as failure:
        return _unreadable(data, failure)


def _has_too_many(punctuation: bytes, most_nodes: int) -> bool:
    """Whether there are more objects, arrays and members than that, or more values than MOST_COMMAS."""
    nodes = punctuation.count(b"{") + punctuation.count(b"[") + punctuation.count(b":")
    return nodes > most_nodes or punctuation.count(b",") > MOST_COMMAS


def _checked(frame: Frame, data: bytes | Raw) -> Frame | Malformed:
    id, params = frame.id, frame.params
    if frame.jsonrpc == "2.0" and frame.method is not UNSET:
        # The length of a request that has its members once, and no space.
        least = _LEAST + len(frame.method)
        if type(id) is int:
            if not SMALLEST_ID <= id <= LARGEST_ID:
                return Malformed(InvalidRequest("Invalid request: id is outside the 64-bit range"))
            least += _LEAST_ID + len(str(id))
        elif type(id) is str:
            least += _LEAST_ID + len(id) + 2
        elif id is None:
            return Malformed(InvalidRequest("Invalid request: id must be a string or an integer, not null"))
        if params is not NOTHING:
            if not bytes(params).startswith(b"{"):
                return Malformed(InvalidRequest("Invalid request: params must be an object"), _readable(id))
            least += _LEAST_PARAMS + len(params)
        # No longer than its members are: then there is no room for one of them to stand twice.
        if len(data) != least and repeats(bytes(data), bytes(params), steering=_STEERING):
            return Malformed(InvalidRequest(TWICE), _readable(id))
        return frame
    if frame.jsonrpc != "2.0":
        return Malformed(InvalidRequest('Invalid request: jsonrpc must be "2.0"'), _readable(id))
    if (frame.result is NOTHING) == (frame.error is UNSET):
        failure = InvalidRequest("Invalid request: neither a method, nor one result or error")
        return Malformed(failure, _readable(id), is_response=frame.result is not NOTHING)
    return frame


def repeats(text: bytes, *values: bytes, steering: bytes = _STEERING_PARAMS) -> bool:
    """Whether one of the members that steer the object `text` stands in it twice; `values` are known members' values.

    Parsers disagree about which of the two counts, and what an auditor reads must be what runs. The names are searched
    for as text first, outside of the values; only an object that has one of them twice, or that could spell one with an
    escape, is read again.
    """
    outside = text
    for value in values:
        # An object cannot begin where a name does, so cutting one out cannot hide a name.
        if value.startswith(b"{"):
            outside = outside.replace(value, b"", 1)
    names = _pattern(steering).findall(outside)
    if len(names) == len(set(names)) and b"\\u" not in outside:
        return False
    try:
        return not _stand_alone(text, _raws.decode(text)) and _read_again(text)
    except msgspec.DecodeError:
        return _read_again(text)


@cache
def _pattern(text: bytes) -> re.Pattern[bytes]:
    """Compiled when it is first needed: few messages need them all, and a start that needs none is quicker."""
    return re.compile(text)


def doubled(arguments: Raw) -> bool:
    """Whether any member of an object stands in it twice; those of the objects inside are not looked at."""
    text = bytes(arguments)
    colons = text.count(b":")
    if colons < 2:
        return False
    try:
        members = _raws.decode(arguments)
    except msgspec.DecodeError:
        return False  # no object, which the decoder of the arguments will say
    if len(members) > MOST_ARGUMENTS:
        raise InvalidRequest(f"Invalid request: at most {MOST_ARGUMENTS} arguments")
    # Each member has a colon, so these are all; or, as above, there is no room for another.
    if colons == len(members):
        return False
    least = 1 + 4 * len(members) + sum(map(len, members)) + sum(map(len, members.values()))
    return len(text) != least and not _stand_alone(text, members) and _read_again(text)


def _stand_alone(text: bytes, members: dict[str, Raw]) -> bool:
    """Whether the object is these members and the space between them. Then none stands twice: a decoder that meets a
    name again keeps one value of the two, and the other would be left over here."""
    if len(members) > _MOST_WALKED:
        return False
    match = _pattern(_GAP).match
    place = 0
    for value in members.values():
        gap = match(text, place)
        if gap is None or not text.startswith(bytes(value), gap.end()):
            return False
        place = gap.end() + len(value)
    return not text[place:].strip(_SPACE + b"}")


def _read_again(text: bytes) -> bool:
    import json  # only a message that looks suspicious pays for it

    # The numbers do not matter here, and Python refuses to read very long ones. What is inside is dropped at once.
    found: bool = json.loads(text, object_pairs_hook=_has_one_twice, parse_int=str, parse_float=str)
    return found


def _has_one_twice(pairs: list[tuple[str, Any]]) -> bool:
    return len(dict(pairs)) < len(pairs)


def _readable(id: object) -> RequestId | None:
    if type(id) is int:
        return id if SMALLEST_ID <= id <= LARGEST_ID else None
    return id if type(id) is str else None


def _unreadable(data: bytes, failure: Exception) -> Malformed | list[Frame | Malformed]:
    """The slow path: find out what it was, and whose id the complaint belongs to."""
    first = data.lstrip()[:1]
    try:
        if isinstance(failure, RecursionError | UnicodeDecodeError):
            raise failure
        if first == b"[":
            return _batch(data)
        if first == b"{":
            return _no_frame(msgspec.json.decode(data, type=_Glance), failure)
        _anything.decode(data)
    except RecursionError:
        return Malformed(ParseError("Parse error: nested too deeply"))
    except (ValueError, OverflowError) as reason:
        return Malformed(ParseError(f"Parse error: {_plain(reason)}"))
    return Malformed(InvalidRequest("Invalid request: a message is a JSON object"))


def _too_deep(data: bytes) -> Malformed:
    """Return the refusal of a message that is nested too deeply, with its id where that can be read."""
    refusal = Malformed(ParseError(f"Parse error: {TOO_DEEP}"))
    try:
        seen = msgspec.json.decode(data, type=_Glance)
        refusal.is_response = seen.method is NOTHING and (seen.result is not NOTHING or seen.error is not NOTHING)
        refusal.id = None if seen.id is NOTHING else _readable(_anything.decode(seen.id))
    except (ValueError, OverflowError, RecursionError):
        pass
    return refusal


def _no_frame(seen: _Glance, failure: Exception) -> Malformed:
    response = seen.method is NOTHING and (seen.result is not NOTHING or seen.error is not NOTHING)
    id = None if seen.id is NOTHING else _anything.decode(seen.id)
    said = _plain(failure)
    if id is not None and _readable(id) is None and type(id) is not int:
        said = "id must be a string or an integer"
    return Malformed(InvalidRequest(f"Invalid request: {said}"), _readable(id), response)


def _batch(data: bytes) -> Malformed | list[Frame | Malformed]:
    """Its members, if there are not too many: they are counted before any of them is read."""
    members = [raw for raw in astuple(_members().decode(data)) if raw is not NOTHING]
    if len(members) > MOST_IN_BATCH:
        return Malformed(InvalidRequest(f"Invalid request: a batch has at most {MOST_IN_BATCH} members"))
    return [_member(raw) for raw in members]


@cache
def _members() -> msgspec.json.Decoder[Any]:
    """Reads one member more than a batch may have. What comes behind it is skipped over, and costs no memory."""
    fields = [(f"at_{number}", Raw, msgspec.field(default=NOTHING)) for number in range(MOST_IN_BATCH + 1)]
    return msgspec.json.Decoder(msgspec.defstruct("_Members", fields, array_like=True))


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


def to_line(message: bytes) -> bytes:
    """Return an encoded message with the same content and no line break in it.

    Messages contain bytes that others wrote (arguments, results, `_meta`). Where a line break ends a message, as on
    stdio and in server-sent events, each of them could otherwise carry further messages. Every writer of such a framing
    calls this; a message without line breaks is returned as it is.
    """
    if b"\n" in message or b"\r" in message:
        message = message.translate(_LINE_BREAKS)
    if not message.isascii():
        for character, escape in _UNICODE_BREAKS:
            message = message.replace(character, escape)
    return message


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


def error(id: RequestId | None, failure: ProtocolError, revision: Revision | None = None) -> bytes:
    """A response that says what went wrong.

    When the request's id could not be read, JSON-RPC wants `null`, and the schemas up to 2025-06-18 demand some id;
    from 2025-11-25 on the schema forbids null and lets the id be left out.
    """
    body = ErrorBody(failure.code_at(revision), failure.message, failure.data)
    if id is None and revision is not None and revision >= V2025_11_25:
        return _encoder.encode({"jsonrpc": "2.0", "error": body})
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body})
