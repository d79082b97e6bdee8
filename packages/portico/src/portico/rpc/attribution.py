"""Say which upstream asks: elicitation and sampling requests of an upstream name it before a client sees them.

Every line of an elicitation message and the system prompt of a sampling request begin with `[alias]`, and `_meta` has
the alias under `portico/upstream`. The gateway's own requests ("Connect your account at …") have neither, and an
upstream can take neither away: line breaks start a line that is marked too, and characters that reorder, hide or push
away text are removed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.client_features import InputRequest, InputRequiredResult

UPSTREAM = "portico/upstream"
# `_meta` of ours, which no upstream sets.
_OURS = "portico/"
_ELICITATION, _SAMPLING = "elicitation/create", "sampling/createMessage"
_LINE_BREAKS = re.compile(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
# Spaces, tabs, and letters that look like spaces.
_GAP = re.compile(r"[\s\u2800\u115f\u1160\u3164\uffa0]{3,}")
# Joiners, which letters and emoji are made of.
_VISIBLE_FORMATS = "\u200c\u200d"

_members = msgspec.json.Decoder(dict[str, Raw])


def mark_text(alias: str, text: str) -> str:
    """Return a text with the alias before each of its lines, without characters that could hide that."""
    lines = (_GAP.sub(" ", _without_controls(line)).strip() for line in _LINE_BREAKS.split(text))
    return "\n".join(f"[{alias}] {line}" for line in lines if line) or f"[{alias}]"


def _without_controls(line: str) -> str:
    """Drop control and format characters: direction marks, zero widths, escapes."""
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        one for one in line if one in _VISIBLE_FORMATS or one == "\t" or unicodedata.category(one) not in ("Cc", "Cf")
    )


def attribute(alias: str, method: str, params: Any) -> Any:
    """Return the params of a request of an upstream with its alias.

    Malformed members do not prevent that: a client may show the others. Params that are no object are returned as they
    are, for they contain nothing that a client could show.
    """
    if method not in (_ELICITATION, _SAMPLING) or params is None:
        return params
    try:
        members: dict[str, Any] = dict(_members.decode(_encoded(params)))
    except (msgspec.DecodeError, RecursionError):
        return params
    if method == _ELICITATION:
        message = _text(members.get("message"))
        if message is not None:
            members["message"] = mark_text(alias, message)
    else:
        # The messages stay as they are: a model reads them.
        prompt = _text(members.get("systemPrompt"))
        members["systemPrompt"] = f"[{alias}] {prompt}" if prompt else f"[{alias}]"
    members["_meta"] = _marked_meta(alias, members.get("_meta"))
    return Raw(jsonrpc.encode(members))


def _text(encoded: Raw | None) -> str | None:
    """Return the text that a member has, or None if it has none."""
    try:
        return None if encoded is None else msgspec.json.decode(encoded, type=str)
    except msgspec.DecodeError:
        return None


def attribute_all(alias: str, asked: InputRequiredResult) -> InputRequiredResult:
    """Return a result that asks, with the alias in each of its requests."""
    requests = asked.input_requests
    if requests is UNSET:
        return asked
    return replace(asked, input_requests={key: _attribute_request(alias, one) for key, one in requests.items()})


def _attribute_request(alias: str, request: InputRequest) -> InputRequest:
    return InputRequest(request.method, attribute(alias, request.method, request.params))


def attribute_tasks(alias: str, requests: Any) -> Any:
    """The same for the `inputRequests` of a task."""
    if not isinstance(requests, dict):
        return requests
    return {key: _attribute_open(alias, one) for key, one in requests.items()}


def _attribute_open(alias: str, request: Any) -> Any:
    if isinstance(request, InputRequest):
        return _attribute_request(alias, request)
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        return request
    params = attribute(alias, request["method"], request.get("params"))
    return {**request, "params": msgspec.json.decode(params) if isinstance(params, Raw) else params}


def attribute_data(alias: str, data: Any) -> Any:
    """The same for the data of the error by which 2025-11-25 asks to open a URL (client/elicitation)."""
    try:
        said = msgspec.json.decode(_encoded(data))
    except (msgspec.DecodeError, RecursionError):
        return data
    if not isinstance(said, dict) or not isinstance(said.get("elicitations"), list):
        return data
    return {**said, "elicitations": [attribute(alias, _ELICITATION, one) for one in said["elicitations"]]}


def _encoded(params: Any) -> bytes:
    return bytes(params) if isinstance(params, Raw) else jsonrpc.encode(params)


def _marked_meta(alias: str, meta: Raw | None) -> dict[str, Any]:
    try:
        given: dict[str, Any] = {} if meta is None else dict(_members.decode(meta))
    except (msgspec.DecodeError, RecursionError):
        given = {}
    return {**{name: one for name, one in given.items() if not name.startswith(_OURS)}, UPSTREAM: alias}
