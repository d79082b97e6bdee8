"""Validation of server-to-client requests against the client's declared capabilities and protocol version.

This is the only module that checks declared client capabilities. It validates every request to a client: requests of
handlers, `InputRequiredResult`s, and each message that is written to a session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from portico.jsonschema import SchemaError
from portico.jsonschema.elicitation_forms import find_invalid_field, to_form_schema
from portico.protocol.client_features import (
    CreateMessageParams,
    ElicitFormParams,
    ElicitParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequiredResult,
)
from portico.protocol.errors import (
    ClientRequestFailed,
    ConnectionClosed,
    InvalidParams,
    MissingClientCapability,
    ProtocolError,
    RequestTimeout,
    TaskRequired,
    ToolError,
    UsageError,
)
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import ClientCapabilities
from portico.protocol.methods import INPUT_REQUIRED_METHODS, METHODS
from portico.protocol.sampling_validation import uses_tools, validate_tool_messages
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_06_18, V2025_11_25, ProtocolVersion
from portico.rpc.call import Call

# RFC 3986: the characters of a URI, and an authority with a host.
_CHARACTERS = r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?#\[\]]|%[0-9A-Fa-f]{2}"
_HOST = r"\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})+"
_PAGE = rf"(?i:https?)://(?:[^\s/?#@\[\]]*@)?(?:{_HOST})(?::[0-9]*)?(?:[/?#](?:{_CHARACTERS})*)?"


class ClientProfile(Protocol):
    """Client properties needed to validate a request to it. Implemented by calls and sessions."""

    @property
    def capabilities(self) -> ClientCapabilities: ...
    @property
    def protocol_version(self) -> ProtocolVersion | None: ...


def validate_client_request(client: ClientProfile, method: str, params: Any) -> Any:
    """Validate a request to a client and return its params, typed.

    Raises `MissingClientCapability` if the client did not declare the capability or its protocol version lacks it, and
    `UsageError` if the request is invalid for every client.
    """
    check = _CHECKS.get(method)
    if check is None:
        raise UsageError(f"{method} is not a server-to-client request")
    request = decode_client_request(method, params)
    check(client.capabilities, client.protocol_version or FIRST_MODERN_VERSION, request)
    return request


def prepare_client_request(client: ClientProfile, method: str, params: Any) -> Any:
    """Validate a request to a client and return the params to send."""
    request = validate_client_request(client, method, params)
    revision = client.protocol_version or FIRST_MODERN_VERSION
    if method == "elicitation/create" and revision == V2025_11_25:
        return _add_elicitation_id(params)
    # Params for older versions are translated later, which requires the typed form.
    return request if revision < V2025_11_25 else params


def decode_client_request(method: str, params: Any) -> Any:
    """Return the typed params of a request to a client, whatever their input form.

    Structs are encoded and decoded as well: nothing has validated what a handler put into them.
    """
    if params is None:
        return None
    try:
        request = METHODS[method].decode(params if isinstance(params, Raw) else Raw(encode(params)))
    except InvalidParams as mistake:
        raise UsageError(mistake.message) from None
    if not isinstance(request, ElicitParams):
        return request
    if request.mode == "url":
        url, id = request.url or "", request.elicitation_id
        return ElicitUrlParams(message=request.message, url=url, elicitation_id=id, meta=request.meta)
    if request.mode != "form":
        raise UsageError(f"unknown elicitation mode {request.mode!r} (expected 'form' or 'url')")
    return ElicitFormParams(message=request.message, requested_schema=request.requested_schema, meta=request.meta)


def _add_elicitation_id(params: Any) -> Any:
    """Add the elicitation id that only 2025-11-25 has for URL elicitation."""
    if isinstance(params, Raw):
        params = msgspec.json.decode(params)
    if isinstance(params, dict) and params.get("mode") == "url":
        return {"elicitationId": new_elicitation_id(), **params}
    if isinstance(params, ElicitUrlParams) and params.elicitation_id is None:
        return msgspec.structs.replace(params, elicitation_id=new_elicitation_id())
    return params


def new_elicitation_id() -> str:
    return os.urandom(16).hex()


# Requirements per method


def _check_elicitation(able: ClientCapabilities, revision: ProtocolVersion, params: Any) -> None:
    if isinstance(params, ElicitUrlParams):
        if revision < V2025_11_25 or not able.supports_elicitation("url"):
            raise MissingClientCapability({"elicitation": {"url": {}}})
        if re.fullmatch(_PAGE, params.url) is None:
            raise UsageError(f"not an absolute http or https URL: {params.url!r}")
        return
    if revision < V2025_06_18 or not able.supports_elicitation("form"):
        raise MissingClientCapability({"elicitation": {}})
    if params.requested_schema.get("type") != "object":
        raise UsageError("the schema of an elicitation form must have the type 'object'")
    try:
        form = to_form_schema(params.requested_schema, "the form")
    except SchemaError as mistake:
        raise UsageError(str(mistake)) from None
    # Fields with multiple choices were added in 2025-11-25.
    if revision < V2025_11_25 and any(field["type"] == "array" for field in form["properties"].values()):
        raise MissingClientCapability({"elicitation": {}})


def _check_sampling(able: ClientCapabilities, revision: ProtocolVersion, params: CreateMessageParams) -> None:
    if able.sampling is None:
        raise MissingClientCapability({"sampling": {}})
    tools = params.tools is not None or params.tool_choice is not None or uses_tools(params.messages)
    if tools and (revision < V2025_11_25 or "tools" not in able.sampling):
        raise MissingClientCapability({"sampling": {"tools": {}}})
    try:
        validate_tool_messages(params.messages)
    except InvalidParams as mistake:
        raise UsageError(mistake.message) from None


def _check_roots(able: ClientCapabilities, revision: ProtocolVersion, params: Any) -> None:
    if able.roots is None:
        raise MissingClientCapability({"roots": {}})


_CHECKS: dict[str, Callable[[ClientCapabilities, ProtocolVersion, Any], None]] = {
    "elicitation/create": _check_elicitation,
    "sampling/createMessage": _check_sampling,
    "roots/list": _check_roots,
}


# InputRequiredResult


def validate_input_requests(call: Call, input_required: InputRequiredResult) -> None:
    """Validate each request of an `InputRequiredResult`."""
    if call.method not in INPUT_REQUIRED_METHODS:
        raise TypeError(f"{call.method} does not support InputRequiredResult")
    for input_request in (input_required.input_requests or {}).values():
        validate_client_request(call, input_request.method, input_request.params)


# Server-to-client requests


async def send_client_request(call: Call, method: str, params: Any) -> Raw:
    """Send a request to the client and return its result. Raises `ClientRequestFailed`, which a handler may catch."""
    try:
        return await call.reply.request(method, params)
    except MissingClientCapability:
        raise
    except ProtocolError as refusal:
        # The error is the client's response to our request. It must not become our response to the client's request.
        raise ClientRequestFailed(f"The client refused {method}: {refusal.message}") from None
    except (RequestTimeout, ConnectionClosed) as silence:
        if call.reply.closed:
            raise
        raise ClientRequestFailed(f"The client did not respond: {silence}") from None


def validate_elicitation_result(params: Any, result: ElicitResult) -> None:
    """Validate the content of an accepted form. Raises `ToolError` if it does not match the requested schema."""
    if result.action == "accept" and isinstance(params, ElicitFormParams):
        wrong = find_invalid_field(to_form_schema(params.requested_schema, "the form"), result.content or {})
        if wrong is not None:
            raise ToolError(f"The submitted form does not match its schema: {wrong!r}.")


def to_capability_error(missing: MissingClientCapability, call: Call) -> Exception:
    """Return the error for a missing capability.

    Before 2026-07-28 there is no error code for it; `tools/call` then returns a tool error, so that the model learns of
    it.
    """
    if call.protocol_version is None or call.protocol_version >= FIRST_MODERN_VERSION or call.method != "tools/call":
        return missing
    if EXTENSION in missing.required_extensions:
        return TaskRequired(str(call.decode_params().name))
    # The error may come from an upstream server, with data of any shape.
    required = missing.data.get("requiredCapabilities") if isinstance(missing.data, dict) else None
    needed = ", ".join(sorted(required)) if isinstance(required, dict) else "not specified"
    return ToolError(f"This tool requires client capabilities that the client does not support: {needed}.")
