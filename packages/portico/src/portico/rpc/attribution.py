"""Attribution of server-to-client requests: a client sees which upstream sent an elicitation or sampling request.

Every line of an elicitation message and the system prompt of a sampling request begin with `[alias]`, and `_meta` has
the alias under `portico/upstream`. The gateway's own requests ("Connect your account at …") have neither. An upstream
can remove neither: every line after a line break is marked too, and characters that reorder, hide or displace text are
removed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.client_features import CreateMessageParams, ElicitParams, InputRequest, InputRequiredResult
from portico.protocol.jsonrpc import object_decoder

UPSTREAM = "portico/upstream"
# Prefix of Portico's own `_meta` keys. Upstreams must not set them.
_OURS = "portico/"
_ELICITATION, _SAMPLING = "elicitation/create", "sampling/createMessage"
_LINE_BREAKS = re.compile(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
# Whitespace, and letters that render as spaces.
_GAP = re.compile(r"[\s\u2800\u115f\u1160\u3164\uffa0]{3,}")
# Joiners are part of valid words and emoji, so they are not removed.
_VISIBLE_FORMATS = "\u200c\u200d"

# Members that clients know. Spellings that differ only in case are removed: a client that ignores case would show them
# instead of the marked ones.
_KNOWN = {
    method: tuple(member.encode_name for member in msgspec.structs.fields(params))
    for method, params in ((_ELICITATION, ElicitParams), (_SAMPLING, CreateMessageParams))
}


def mark_text(alias: str, text: str) -> str:
    """Return the text with the alias before each line, without characters that could hide the alias."""
    lines = (_GAP.sub(" ", _without_controls(line)).strip() for line in _LINE_BREAKS.split(text))
    return "\n".join(f"[{alias}] {line}" for line in lines if line) or f"[{alias}]"


def _without_controls(line: str) -> str:
    """Remove control and format characters: direction marks, zero-width characters, escapes."""
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        item
        for item in line
        if item in _VISIBLE_FORMATS or item == "\t" or unicodedata.category(item) not in ("Cc", "Cf")
    )


def attribute(alias: str, method: str, params: Any) -> Any:
    """Return the params of an upstream's request, marked with its alias.

    Malformed members do not prevent the marking, because a client may show the other members. Params that are not an
    object are returned unchanged: they contain nothing that a client could show.
    """
    if method not in (_ELICITATION, _SAMPLING) or params is None:
        return params
    try:
        decoded = object_decoder.decode(_encode_params(params))
    except (msgspec.DecodeError, RecursionError):
        return params
    members: dict[str, Any] = {
        name: value for name, value in decoded.items() if not jsonrpc.has_other_case((name,), _KNOWN[method])
    }
    if method == _ELICITATION:
        message = _text(members.get("message"))
        if message is not None:
            members["message"] = mark_text(alias, message)
    else:
        # The messages are not marked: a model reads them, not a user.
        prompt = _text(members.get("systemPrompt"))
        members["systemPrompt"] = f"[{alias}] {prompt}" if prompt else f"[{alias}]"
    members["_meta"] = _marked_meta(alias, members.get("_meta"))
    return Raw(jsonrpc.encode(members))


def _text(encoded: Raw | None) -> str | None:
    """Decode a member as text. Return None if it is missing or not a string."""
    try:
        return None if encoded is None else msgspec.json.decode(encoded, type=str)
    except msgspec.DecodeError:
        return None


def attribute_all(alias: str, required: InputRequiredResult) -> InputRequiredResult:
    """Return an `InputRequiredResult` with the alias in each of its requests."""
    requests = required.input_requests
    if requests is UNSET:
        return required
    return replace(
        required, input_requests={key: _attribute_request(alias, request) for key, request in requests.items()}
    )


def _attribute_request(alias: str, request: InputRequest) -> InputRequest:
    return InputRequest(request.method, attribute(alias, request.method, request.params))


def attribute_tasks(alias: str, requests: Any) -> Any:
    """Return the `inputRequests` of a task with the alias in each request."""
    if not isinstance(requests, dict):
        return requests
    return {key: _attribute_open(alias, request) for key, request in requests.items()}


def _attribute_open(alias: str, request: Any) -> Any:
    if isinstance(request, InputRequest):
        return _attribute_request(alias, request)
    if not isinstance(request, dict):
        return request
    request = {
        name: value for name, value in request.items() if not jsonrpc.has_other_case((name,), ("method", "params"))
    }
    if not isinstance(request.get("method"), str):
        return request
    params = attribute(alias, request["method"], request.get("params"))
    return {**request, "params": msgspec.json.decode(params) if isinstance(params, Raw) else params}


def attribute_data(alias: str, data: Any) -> Any:
    """Return the data of a URL elicitation error (2025-11-25, client/elicitation) with the alias in each request."""
    try:
        decoded = msgspec.json.decode(_encode_params(data))
    except (msgspec.DecodeError, RecursionError):
        return data
    if not isinstance(decoded, dict) or not isinstance(decoded.get("elicitations"), list):
        return data
    return {**decoded, "elicitations": [attribute(alias, _ELICITATION, item) for item in decoded["elicitations"]]}


def _encode_params(params: Any) -> bytes:
    return bytes(params) if isinstance(params, Raw) else jsonrpc.encode(params)


def _marked_meta(alias: str, meta: Raw | None) -> dict[str, Any]:
    try:
        members: dict[str, Any] = {} if meta is None else dict(object_decoder.decode(meta))
    except (msgspec.DecodeError, RecursionError):
        members = {}
    return {
        **{name: value for name, value in members.items() if not name.casefold().startswith(_OURS)},
        UPSTREAM: alias,
    }
