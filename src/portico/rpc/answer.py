"""The one door: bytes in, bytes out, and the only place where an exception becomes an error response."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from msgspec import UNSET, Raw

from portico.rpc.call import Ask, Call, Emit, Handler, _silence
from portico.wire import jsonrpc
from portico.wire import meta as metas
from portico.wire.content import TextContent
from portico.wire.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    ProtocolError,
    ToolError,
    UnsupportedVersion,
)
from portico.wire.inputs import InputRequiredResult
from portico.wire.jsonrpc import Frame, Malformed
from portico.wire.methods import ASKABLE, METHODS, MODERN_ONLY
from portico.wire.revisions import MODERN, MODERN_REVISIONS, Revision
from portico.wire.tools import ERROR, CallToolResult

log = logging.getLogger("portico")

MOST_IN_BATCH = 1000

_STAMP = b'{"resultType":"complete"'


def new_call(frame: Frame, emit: Emit = _silence, ask: Ask | None = None, principal: Any = None) -> Call:
    """A Call with what the frame itself says."""
    assert isinstance(frame.method, str)
    return Call(
        method=frame.method,
        params=frame.params,
        id=None if frame.id is UNSET else frame.id,
        principal=principal,
        emit=emit,
        ask=ask,
    )


def open_call(frame: Frame, emit: Emit = _silence, ask: Ask | None = None, principal: Any = None) -> Call:
    """The Call a request or notification makes. Era is decided here, before the method means anything."""
    call = new_call(frame, emit, ask, principal)
    if call.id is None:
        # A notification owes nobody its capabilities.
        return call
    meta = metas.read(frame.meta)
    if meta.protocol_version is not UNSET:
        call.capabilities = metas.require(meta)
        enter(call, meta, meta.protocol_version)
        return call
    # What only the core of 2026-07-28 has must come with that revision's `_meta`.
    if meta.capabilities is not UNSET or call.method in MODERN_ONLY:
        raise InvalidParams(f"Missing required _meta key: {metas.PROTOCOL_VERSION}")
    if meta.progress_token is not UNSET:
        call.progress_token = meta.progress_token
    return call


def enter(call: Call, meta: metas.Meta, version: str) -> None:
    """2026-07-28: everything about the client is in this one request, and nothing is remembered from the last."""
    if version not in MODERN_REVISIONS:
        raise UnsupportedVersion(version, list(MODERN_REVISIONS))
    call.revision = version
    call.ask = None
    if meta.progress_token is not UNSET:
        call.progress_token = meta.progress_token
    if meta.client is not UNSET:
        call.client = meta.client
    if meta.log_level is not UNSET:
        call.log_level = meta.log_level


async def respond(call: Call, handler: Handler) -> bytes:
    """The response to one request, whatever happens."""
    failure: BaseException
    try:
        return conclude(call, await handler(call))
    except asyncio.CancelledError as stopped:
        if _is_being_cancelled(call):
            raise
        failure = stopped
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as raised:
        failure = raised
    try:
        return _excuse(call, failure)
    except Exception as worse:
        # What the author wanted to say cannot be said in JSON.
        return _refuse(call, unexpected(worse, call.method))


def _is_being_cancelled(call: Call) -> bool:
    """Or else a body has let some cancellation of its own escape, and its caller still waits."""
    task = None if call.instant else asyncio.current_task()
    return call.cancelled or (task is not None and task.cancelling() > 0)


def _excuse(call: Call, failure: BaseException) -> bytes:
    """What the client is told of a failure: all of what was meant for it, and nothing of the rest."""
    if isinstance(failure, ProtocolError):
        return _refuse(call, failure)
    if call.method == "tools/call":
        return conclude(call, failed(call, failure))
    if isinstance(failure, ToolError):
        return _refuse(call, InternalError(_text(failure), failure.described()))
    return _refuse(call, unexpected(failure, call.method))


def _refuse(call: Call, failure: ProtocolError) -> bytes:
    call.error = failure.code_at(call.revision)
    return jsonrpc.error(call.id, failure, call.revision)


def failed(call: Call, failure: BaseException) -> CallToolResult:
    """The result of a tool that failed. It is no error of the protocol, so that the model sees it and can act on it."""
    described = failure.described() if isinstance(failure, ToolError) else None
    text = _text(failure) if isinstance(failure, ToolError) else unexpected(failure, call.method).message
    meta = call.stamp if described is None else {ERROR: described}
    return CallToolResult(content=[TextContent(text=text)], is_error=True, meta=meta)


def _text(failure: BaseException) -> str:
    """Its text, as far as it can be encoded: a name of a file may hold lone surrogates."""
    return str(failure).encode(errors="replace").decode()


async def heed(call: Call, handler: Handler) -> None:
    """Take a notification. Nobody waits for an answer to one, not even to a wrong one."""
    row = METHODS.get(call.method)
    if row is not None and row.result is not None:
        log.debug("%s came without an id, so there is nobody to do it for", call.method)
        return
    try:
        await handler(call)
    except ProtocolError as failure:
        log.debug("%s: %s", call.method, failure.message)
    except Exception:
        log.exception("error in %s", call.method)


def conclude(call: Call, result: Any) -> bytes:
    """A result as this Call's revision says it, in its envelope."""
    assert call.id is not None
    if type(result) is Raw:
        return jsonrpc.result(call.id, bytes(result))
    if type(result) is InputRequiredResult and call.method not in ASKABLE:
        raise TypeError(f"{call.method} cannot be answered with a question")
    body = jsonrpc.encode(result)
    if call.revision is None or call.revision < MODERN:
        body = unstamped(body)
    return jsonrpc.result(call.id, body)


def unstamped(body: bytes) -> bytes:
    """An encoded result without its `resultType`, which the handshake revisions do not know."""
    return b"{" + body[len(_STAMP) :].removeprefix(b",") if body.startswith(_STAMP) else body


def unexpected(failure: BaseException, where: str) -> InternalError:
    """What the client may know of an exception nobody expected: an id that finds it in the log, and no more."""
    error_id = os.urandom(4).hex()
    log.error("error %s in %s", error_id, where, exc_info=failure)
    return InternalError(f"Internal error (error id {error_id})", {"errorId": error_id})


async def answer(
    data: bytes,
    handler: Handler,
    *,
    emit: Emit = _silence,
    ask: Ask | None = None,
    principal: Any = None,
    revision: Revision | None = None,
    batches: bool = False,
) -> bytes | None:
    """The answer to one message, or to a batch where batches exist; None when there is nothing to say."""
    found = jsonrpc.decode(data)
    if not isinstance(found, list):
        return await _answer_one(found, handler, emit, ask, principal, revision)
    refusal = refuse_batch(found, batches)
    if refusal is not None:
        return jsonrpc.error(None, refusal, revision)
    replies = await asyncio.gather(
        *(_answer_one(in_batch(frame), handler, emit, ask, principal, revision) for frame in found)
    )
    return join([reply for reply in replies if reply is not None])


def refuse_batch(found: list[Frame | Malformed], batches: bool) -> InvalidRequest | None:
    """Only 2025-03-26 has batches, and an empty one is no message anywhere."""
    if not batches:
        return InvalidRequest("Invalid request: this protocol revision has no batches")
    if len(found) > MOST_IN_BATCH:
        return InvalidRequest(f"Invalid request: a batch has at most {MOST_IN_BATCH} members")
    return None if found else InvalidRequest("Invalid request: an empty batch")


def in_batch(frame: Frame | Malformed) -> Frame | Malformed:
    """2025-03-26, basic/lifecycle: initialize must not be part of a batch."""
    if isinstance(frame, Frame) and frame.method == "initialize" and isinstance(frame.id, int | str):
        return Malformed(InvalidRequest("Invalid request: initialize inside a batch"), frame.id)
    return frame


def join(replies: list[bytes]) -> bytes | None:
    return b"[" + b",".join(replies) + b"]" if replies else None


async def _answer_one(
    frame: Frame | Malformed,
    handler: Handler,
    emit: Emit,
    ask: Ask | None,
    principal: Any,
    revision: Revision | None,
) -> bytes | None:
    if isinstance(frame, Malformed):
        return None if frame.is_response else jsonrpc.error(frame.id, frame.error, revision)
    if frame.method is UNSET:
        return None
    try:
        call = open_call(frame, emit, ask, principal)
    except ProtocolError as failure:
        return None if frame.id is UNSET else jsonrpc.error(frame.id, failure, revision or MODERN)
    if call.id is None:
        await heed(call, handler)
        return None
    return await respond(call, handler)
