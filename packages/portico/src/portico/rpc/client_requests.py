"""What may be asked of a client, on every revision: what it has declared, and in a form that it has to understand.

This is the only place that looks at what a client has declared. Every question passes it: those of bodies, those that
a Handler gives as a result, and once more each one that is written to a session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from portico.jsonschema import SchemaError
from portico.jsonschema.elicitation_forms import as_form, misfit
from portico.protocol.client_features import (
    CreateMessageParams,
    ElicitFormParams,
    ElicitParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequiredResult,
)
from portico.protocol.errors import (
    Closed,
    InvalidParams,
    MissingCapability,
    NeedsTask,
    ProtocolError,
    Refused,
    TimedOut,
    ToolError,
    UsageError,
)
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import ClientCapabilities
from portico.protocol.methods import ASKABLE, METHODS
from portico.protocol.sampling_validation import check_balance, has_tools
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import MODERN, V2025_06_18, V2025_11_25, Revision
from portico.rpc.call import Call

# RFC 3986: the characters of a URI, and an authority with a host.
_CHARACTERS = r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?#\[\]]|%[0-9A-Fa-f]{2}"
_HOST = r"\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})+"
_PAGE = rf"(?i:https?)://(?:[^\s/?#@\[\]]*@)?(?:{_HOST})(?::[0-9]*)?(?:[/?#](?:{_CHARACTERS})*)?"


class Questioned(Protocol):
    """What has to be known of a client to ask it something: a Call says it, and a session does."""

    @property
    def capabilities(self) -> ClientCapabilities: ...
    @property
    def revision(self) -> Revision | None: ...


def require(client: Questioned, method: str, params: Any) -> Any:
    """The params, typed. Raises MissingCapability for what the client has not declared, or its revision does not have;
    UsageError for a question that no client has to understand."""
    check = _CHECKS.get(method)
    if check is None:
        raise UsageError(f"{method} is no question to a client")
    asked = read(method, params)
    check(client.capabilities, client.revision or MODERN, asked)
    return asked


def prepared(client: Questioned, method: str, params: Any) -> Any:
    """The same, and the params as they are to be sent."""
    asked = require(client, method, params)
    revision = client.revision or MODERN
    if method == "elicitation/create" and revision == V2025_11_25:
        return _with_id(params)
    # An older revision has them translated, and for that they have to be typed.
    return asked if revision < V2025_11_25 else params


def read(method: str, params: Any) -> Any:
    """The params of a question, typed, whatever a Handler has made them of. A Struct is read too: nothing has looked at
    what a body has put into it."""
    if params is None:
        return None
    try:
        asked = METHODS[method].decode(params if isinstance(params, Raw) else Raw(encode(params)))
    except InvalidParams as mistake:
        raise UsageError(mistake.message) from None
    if not isinstance(asked, ElicitParams):
        return asked
    if asked.mode == "url":
        url, id = asked.url or "", asked.elicitation_id
        return ElicitUrlParams(message=asked.message, url=url, elicitation_id=id, meta=asked.meta)
    if asked.mode != "form":
        raise UsageError(f"there is no elicitation of the mode {asked.mode!r}")
    return ElicitFormParams(message=asked.message, requested_schema=asked.requested_schema, meta=asked.meta)


def _with_id(params: Any) -> Any:
    """2025-11-25 alone gives the question for a page an id of its own."""
    if isinstance(params, Raw):
        params = msgspec.json.decode(params)
    if isinstance(params, dict) and params.get("mode") == "url":
        return {"elicitationId": new_elicitation_id(), **params}
    if isinstance(params, ElicitUrlParams) and params.elicitation_id is None:
        return msgspec.structs.replace(params, elicitation_id=new_elicitation_id())
    return params


def new_elicitation_id() -> str:
    return os.urandom(16).hex()


# What each question needs


def _check_elicitation(able: ClientCapabilities, revision: Revision, params: Any) -> None:
    if isinstance(params, ElicitUrlParams):
        if revision < V2025_11_25 or not able.can_elicit("url"):
            raise MissingCapability({"elicitation": {"url": {}}})
        if re.fullmatch(_PAGE, params.url) is None:
            raise UsageError(f"not an absolute http or https URL: {params.url!r}")
        return
    if revision < V2025_06_18 or not able.can_elicit("form"):
        raise MissingCapability({"elicitation": {}})
    if params.requested_schema.get("type") != "object":
        raise UsageError("the schema of a form is that of an object")
    try:
        form = as_form(params.requested_schema, "the form")
    except SchemaError as mistake:
        raise UsageError(str(mistake)) from None
    # Fields with more than one choice came with 2025-11-25.
    if revision < V2025_11_25 and any(field["type"] == "array" for field in form["properties"].values()):
        raise MissingCapability({"elicitation": {}})


def _check_sampling(able: ClientCapabilities, revision: Revision, params: CreateMessageParams) -> None:
    if able.sampling is None:
        raise MissingCapability({"sampling": {}})
    tools = params.tools is not None or params.tool_choice is not None or has_tools(params.messages)
    if tools and (revision < V2025_11_25 or "tools" not in able.sampling):
        raise MissingCapability({"sampling": {"tools": {}}})
    try:
        check_balance(params.messages)
    except InvalidParams as mistake:
        raise UsageError(mistake.message) from None


def _check_roots(able: ClientCapabilities, revision: Revision, params: Any) -> None:
    if able.roots is None:
        raise MissingCapability({"roots": {}})


_CHECKS: dict[str, Callable[[ClientCapabilities, Revision, Any], None]] = {
    "elicitation/create": _check_elicitation,
    "sampling/createMessage": _check_sampling,
    "roots/list": _check_roots,
}


# Results that ask


def require_all(call: Call, asked: InputRequiredResult) -> None:
    """`require` for each question of a result."""
    if call.method not in ASKABLE:
        raise TypeError(f"{call.method} cannot be answered with a question")
    for one in (asked.input_requests or {}).values():
        require(call, one.method, one.params)


# Questions that are requests


async def put(call: Call, method: str, params: Any) -> Raw:
    """The client's answer. Raises Refused where it gives none, which a body may catch."""
    try:
        return await call.reply.ask(method, params)
    except MissingCapability:
        raise
    except ProtocolError as refusal:
        # It is the client's answer to us, not ours to the client's request.
        raise Refused(f"The client refused {method}: {refusal.message}") from None
    except (TimedOut, Closed) as silence:
        if call.reply.closed:
            raise
        raise Refused(f"The client did not answer: {silence}") from None


def check_answer(params: Any, answer: ElicitResult) -> None:
    """Raises ToolError for an accepted form that was not filled in as its schema says."""
    if answer.action == "accept" and isinstance(params, ElicitFormParams):
        wrong = misfit(as_form(params.requested_schema, "the form"), answer.content or {})
        if wrong is not None:
            raise ToolError(f"The answer to the question does not fit what was asked for: {wrong!r}.")


def incapable(missing: MissingCapability, call: Call) -> Exception:
    """Before 2026-07-28 there is no code for it, and the model can at least be told."""
    if call.revision is None or call.revision >= MODERN or call.method != "tools/call":
        return missing
    if EXTENSION in missing.extensions:
        return NeedsTask(str(call.typed().name))
    # Behind a gateway it was said by another server, in any shape.
    required = missing.data.get("requiredCapabilities") if isinstance(missing.data, dict) else None
    needed = ", ".join(sorted(required)) if isinstance(required, dict) else "it does not say what"
    return ToolError(f"This tool has to ask something, and the client does not support it: {needed}.")
