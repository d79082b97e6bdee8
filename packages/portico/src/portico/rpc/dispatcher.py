"""The one door: every request of every transport enters here, and leaves as a response.

A transport gives it a decoded Frame and a Reply. The door decides the era, opens the Call, starts the handler and
encodes what it came to. No other place turns an exception into an error response.

A handler that has `start` is started without a task: `start` returns the result where nothing has to be waited for, and
a coroutine where something has. Most calls are thereby answered within the read that brought them. A coroutine always
gets a task of its own, so that a body finds itself in a task that it can cancel, time and name.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio import Task, get_running_loop
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule, loaded_module
from portico.protocol import jsonrpc, methods
from portico.protocol import meta as metas
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import TextContent, strip_result_type
from portico.protocol.errors import (
    InsufficientScope,
    InternalError,
    InvalidParams,
    ProtocolError,
    ToolError,
    UnsupportedVersion,
)
from portico.protocol.jsonrpc import NOTHING, Frame, ResultFrame
from portico.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SERVER_INFO, Meta
from portico.protocol.methods import METHODS, MODERN_ONLY, CallFrame, asked_by
from portico.protocol.tools import ERROR, CallToolResult
from portico.protocol.versions import MODERN, MODERN_REVISIONS, Revision
from portico.rpc.call import Call, Handler, Reply, members, stop
from portico.rpc.fair_queue import UNCOUNTED

if TYPE_CHECKING:
    from portico.rpc import client_requests, debug_log, tracebacks
    from portico.rpc.debug_log import Trace
    from portico.rpc.metrics import Metrics
    from portico.rpc.observers import Observed
else:
    client_requests = LazyModule("portico.rpc.client_requests")
    debug_log = LazyModule("portico.rpc.debug_log")
    tracebacks = LazyModule("portico.rpc.tracebacks")

log = logging.getLogger("portico")
trace_log = logging.getLogger("portico.trace")

Gate = Callable[[Call], None]
"""Looks at a Call before it is served, and raises the ProtocolError that refuses it."""


class Sender(Struct, frozen=True):
    """What the transport knows of where a frame comes from."""

    principal: Any = None
    headers: Mapping[bytes, bytes] | None = None
    address: str | None = None


UNKNOWN_SENDER = Sender()

VERSION_KEY = PROTOCOL_VERSION.encode()

# What runs a function of the server's author, and may take long.
_WITH_BODIES = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})


class Handshake(Protocol):
    """What the door needs of the session of a handshake revision: it fills in the Call, and answers it."""

    # The Channel that it lives on, which sets this.
    stream: Any

    def open(self, frame: Frame, reply: Reply, sender: Sender, meta: Meta, typed: Any) -> Call: ...
    def start(self, call: Call) -> Any: ...


class Door:
    """Serves requests with a handler; those of a handshake revision through the session in front of it."""

    def __init__(self, handler: Handler, *, session: Handshake | None = None, metrics: Metrics | None = None) -> None:
        about = members(handler)
        self.handler = handler
        self.session = session
        self.trace: Trace | None = None
        if trace_log.isEnabledFor(logging.DEBUG):
            self.trace = debug_log.Trace(metrics)
        self.observed = _observed(self.trace or metrics)
        self.metrics = self.observed or self.trace or metrics
        # Of the last request that brought its own.
        self.revision: Revision | None = None
        # The one that it is always on, where that is known: to ask which one is running takes a system call.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._start = about.start
        self._logs = about.logs
        # 2026-07-28, basic: every result should say whose it is.
        self._server = None if about.info is None else {SERVER_INFO: about.info}
        self._stamp = UNSET if self._server is None else Raw(jsonrpc.encode(self._server))

    def enter(
        self,
        frame: Frame,
        reply: Reply,
        sender: Sender = UNKNOWN_SENDER,
        modern: bool = False,
        gate: Gate | None = None,
    ) -> bytes | None:
        """Serve a request or a notification. Returns the response if it is there at once; later ones go to the Reply.

        `modern`: the transport knows already that the request is of 2026-07-28.
        """
        try:
            call = self._open(frame, reply, sender, modern, gate)
        except ProtocolError as failure:
            # The envelope of 2026-07-28 was at fault, so it is answered in that revision's words.
            reply.error, reply.refused = failure.code, True
            if self.trace is not None:
                self.trace.refused(frame, failure)
            if self.observed is not None:
                self.observed.refused(frame, failure, sender.address)
            return None if frame.id is UNSET else jsonrpc.error(frame.id, failure, MODERN)
        if call.id is not None:
            return self._serve(call)
        self._notify(call)
        return None

    # Opening

    def _open(self, frame: Frame, reply: Reply, sender: Sender, modern: bool, gate: Gate | None) -> Call:
        """The Call of a frame. The era is decided here, before the method means anything."""
        method = frame.method
        assert type(method) is str
        typed, meta = None, metas.NO_META
        # A notification need not say who sends it.
        if frame.id is not UNSET:
            if type(frame) is CallFrame:
                typed, said = frame.typed, frame.typed.meta  # type: ignore[union-attr]
            else:
                typed, said = methods.read(method, frame.params)
            if said is not NOTHING:
                # A client says the same of itself in each request.
                meta = metas.known.get(bytes(said)) or metas.read(said)
        if modern or meta.protocol_version is not UNSET:
            return self._open_modern(frame, reply, sender, meta, typed, gate)
        if frame.id is not UNSET and (meta.capabilities is not UNSET or method in MODERN_ONLY):
            # What only 2026-07-28 has must come with that revision's `_meta`.
            raise InvalidParams(f"Missing required _meta key: {PROTOCOL_VERSION}")
        if self.session is not None:
            return self.session.open(frame, reply, sender, meta, typed)
        return new_call(frame, reply, sender, meta, typed)

    def _open_modern(
        self, frame: Frame, reply: Reply, sender: Sender, meta: Meta, typed: Any, gate: Gate | None
    ) -> Call:
        """2026-07-28: all about the client is in this one request, and nothing is remembered from the last.

        The order of the checks is the specification's (basic/transports): required members, headers, version.
        """
        version, capabilities = meta.protocol_version, meta.capabilities
        if version is UNSET or capabilities is UNSET:
            missing = PROTOCOL_VERSION if version is UNSET else CLIENT_CAPABILITIES
            raise InvalidParams(f"Missing required _meta key: {missing}")
        call = Call(
            method=frame.method,  # type: ignore[arg-type]
            params=frame.params,
            id=frame.id,  # type: ignore[arg-type]
            revision=version,
            capabilities=capabilities,
            client=meta.client,
            principal=sender.principal,
            progress_token=meta.progress_token,
            log_level=meta.log_level,
            headers=sender.headers,
            address=sender.address,
            reply=reply,
            read=None if typed is None else (frame.params, typed),
        )
        # server/utilities/logging: only where the server has declared it, and only if this request asks for it.
        reply.logs = self._logs and meta.log_level is not None
        if gate is not None:
            gate(call)
        if version not in MODERN_REVISIONS:
            raise UnsupportedVersion(version, list(MODERN_REVISIONS))
        self.revision = version
        return call

    # Serving

    def _starter(self, call: Call) -> Callable[[Call], Any]:
        """Who answers: the session those calls that belong to it."""
        session = self.session
        modern = session is None or (call.revision is not None and call.revision >= MODERN)
        return self._start if modern else session.start  # type: ignore[union-attr]

    def _serve(self, call: Call) -> bytes | None:
        """The response, or None while a task works on it."""
        metrics = self.metrics
        began = 0.0 if metrics is None else metrics.begin(call)
        # Each call has contextvars of its own, with or without a task.
        context = copy_context()
        try:
            if call.progress_token is not None:
                call.reply.claim(call.progress_token)
            start = self._start if self.session is None else self._starter(call)
            if metrics is not None and metrics.in_flight > UNCOUNTED and call.method in _WITH_BODIES:
                start = partial(metrics.shares.run, start)
            if self.observed is not None:
                start = partial(self.observed.run, start)
            result = context.run(start, call)
            if type(result) is CoroutineType:
                # Not by the loop: a factory of tasks is for those of the author, and might begin with it at once.
                loop = self.loop or get_running_loop()
                task = Task(self._finish(call, result, began), loop=loop, name=call.method, context=context)
                call.reply.begin(call, task)
                return None
            message = self._encode(call, result)
            failure = None
        except BaseException as raised:
            message, failure, result = self._failed(call, raised), raised, None
        call.reply.size = len(message)
        if metrics is not None:
            metrics.end(call, result, failure, began)
        call.reply.close()
        return message

    async def _finish(self, call: Call, coroutine: CoroutineType[Any, Any, Any], began: float) -> None:
        """The other half of `_serve`, in a task of its own."""
        reply, message, result, failure = call.reply, None, None, None
        reply.running = True
        try:
            result = await coroutine
            message = self._encode(call, result)
        except BaseException as raised:
            failure = raised
            message = self._failed(call, raised)
        finally:
            reply.size = 0 if message is None else len(message)
            if self.metrics is not None:
                self.metrics.end(call, result, failure, began)
            # A body may swallow its cancellation; the answer is dropped all the same.
            reply.finish(None if reply.cancelled else message)

    def _notify(self, call: Call) -> None:
        """Handle a notification. Errors are logged, never answered."""
        if self.trace is not None:
            self.trace.notified(call)
        row = METHODS.get(call.method)
        if row is not None and row.result is not None:
            log.debug("%s came without an id, so there is no one to do it for", call.method)
            return
        context = copy_context()
        try:
            # At once, not in a task: what follows on the same stream may depend on it.
            result = context.run(self._starter(call), call)
        except Exception as failure:
            _log(call, failure)
            return
        if type(result) is CoroutineType:
            call.reply.begin(call, get_running_loop().create_task(self._notified(call, result), context=context))

    async def _notified(self, call: Call, coroutine: CoroutineType[Any, Any, Any]) -> None:
        try:
            await coroutine
        except Exception as failure:
            _log(call, failure)

    # Encoding

    def _encode(self, call: Call, result: Any) -> bytes:
        """A result as this Call's revision says it, in its envelope."""
        id, kind = call.id, type(result)
        assert id is not None
        if kind is Raw:
            asked = asked_by(call.method, result)
            if asked is not None:
                _require_all(call, asked)
            return jsonrpc.encode(ResultFrame(id, result))
        if kind is InputRequiredResult:
            _require_all(call, result)
        if call.revision is None or call.revision < MODERN:
            return jsonrpc.encode(ResultFrame(id, Raw(strip_result_type(jsonrpc.encode(result)))))
        if kind is CallToolResult and result.meta is UNSET:
            result.meta = self._stamp
        elif self._server is not None and isinstance(result, Struct):
            meta = getattr(result, "meta", None)
            if meta is UNSET:
                result.meta = self._stamp  # type: ignore[attr-defined]
            elif isinstance(meta, dict):
                result.meta = {**self._server, **meta}  # type: ignore[attr-defined]
        return jsonrpc.encode(ResultFrame(id, result))

    def _failed(self, call: Call, failure: BaseException) -> bytes:
        """The response to a request that failed: all of what was meant for the client, and nothing of the rest."""
        if isinstance(failure, KeyboardInterrupt | GeneratorExit) or _is_cancelled(call, failure):
            raise failure
        if isinstance(failure, InsufficientScope):
            call.reply.lack(failure.scopes)
        try:
            if isinstance(failure, ProtocolError):
                return self._refuse(call, failure)
            if call.method == "tools/call":
                return self._encode(call, failed_result(call, failure))
            if isinstance(failure, ToolError):
                # A prompt or a resource that says what is wrong with what it was given.
                wrong = InvalidParams if failure.kind == "ValidationError" else InternalError
                return self._refuse(call, wrong(_text(failure), failure.described()))
            return self._refuse(call, unexpected(failure, _where(call), call.reply))
        except Exception as worse:
            # What the author wanted to say cannot be said in JSON.
            return self._refuse(call, unexpected(worse, call.method, call.reply))

    def _refuse(self, call: Call, failure: ProtocolError) -> bytes:
        call.reply.error = failure.code_at(call.revision)
        if failure.retry_after is not None:
            call.reply.postpone(failure.retry_after)
        return jsonrpc.error(call.id, failure, call.revision)


class _Awaited(Reply):
    """The Reply of a Call that is made in this process, and whose response is waited for."""

    def __init__(self, outer: Reply) -> None:
        self._outer = outer

    def _emit(self, method: str, params: Any) -> None:
        self._outer.emit(method, params)

    def begin(self, call: Call, task: asyncio.Task[Any]) -> None:
        self.task, self.message = task, b""

    def finish(self, message: bytes | None) -> None:
        self.close()
        self.message = message or b""


async def respond(call: Call, handler: Handler) -> bytes:
    """The response to a Call that is made in this process, whatever happens."""
    reply = _Awaited(call.reply)
    message = Door(handler)._serve(replace(call, reply=reply))
    if message is not None:
        return message
    try:
        await reply.task
    except asyncio.CancelledError:
        # A body in a thread cannot be stopped, but it can look.
        reply.cancel()
        stop(reply, reply.task)
        raise
    return reply.message


def brings_revision(frame: Frame) -> bool:
    """Whether a request says in `_meta` of which revision it is, and so belongs to no session."""
    text = bytes(frame.params)
    if VERSION_KEY not in text and b"\\u" not in text:
        return False
    try:
        meta = metas.read(methods.read(str(frame.method), frame.params)[1])
    except ProtocolError:
        return True  # the door says what is wrong
    return meta.protocol_version is not UNSET


def new_call(frame: Frame, reply: Reply, sender: Sender, meta: Meta, typed: Any, **known: Any) -> Call:
    """The Call of a frame that does not bring its revision; `known` is what its session knows of the client."""
    return Call(
        method=str(frame.method),
        params=frame.params,
        id=None if frame.id is UNSET else frame.id,
        principal=sender.principal,
        progress_token=meta.progress_token,
        headers=sender.headers,
        address=sender.address,
        reply=reply,
        read=None if typed is None else (frame.params, typed),
        **known,
    )


# What a body lets escape: the type alone tells a program something, and none of its words.
_TELLING = (FileNotFoundError, PermissionError, TimeoutError)


def _observed(metrics: Metrics | Trace | None) -> Observed | None:
    # What observes has loaded this; mostly there is none.
    observers = loaded_module("portico.rpc.observers")
    if observers is None or not observers.OBSERVERS:
        return None
    observed: Observed = observers.Observed(metrics, observers.OBSERVERS)
    return observed


def _require_all(call: Call, asked: InputRequiredResult) -> None:
    # Most servers never ask, and start without what checks it.
    client_requests.require_all(call, asked)


def _their_frames(failure: BaseException) -> Any:
    return tracebacks.from_their_frame(failure)


def _log(call: Call, failure: Exception) -> None:
    if isinstance(failure, ProtocolError):
        log.debug("%s: %s", call.method, failure.message)
    else:
        log.error("error in %s", call.method, exc_info=_their_frames(failure))


def _is_cancelled(call: Call, failure: BaseException) -> bool:
    """Whether the call is being cancelled, and not only a body has let some cancellation of its own escape."""
    if not isinstance(failure, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return call.reply.cancelled or (task is not None and task.cancelling() > 0)


def refusal(error: ToolError | InternalError) -> CallToolResult:
    """A tool that ran and failed is a result, so that the model sees it and can do something else."""
    described = error.described() if isinstance(error, ToolError) else None
    meta = UNSET if described is None else {ERROR: described}
    return CallToolResult(content=[TextContent(text=_text(error))], is_error=True, meta=meta)


def _text(error: Exception) -> str:
    """Its text, as far as it can be encoded: the name of a file may hold lone surrogates."""
    return str(error).encode(errors="replace").decode()


def failed_result(call: Call, failure: BaseException) -> CallToolResult:
    """The result of a tool that failed, whatever it failed with."""
    return refusal(failure) if isinstance(failure, ToolError) else unforeseen(failure, _where(call), call.reply)


def _where(call: Call) -> str:
    """Return the method of a call, and the tool, prompt or resource that it names, for the log."""
    row = METHODS.get(call.method)
    try:
        name = row.name_in(call.typed()) if row is not None else None
    except ProtocolError:
        name = None
    return f"{call.method} {name[:128]!r}" if name else call.method


def unforeseen(failure: BaseException, where: str, reply: Reply | None = None) -> CallToolResult:
    """The result of a tool that failed unexpectedly: of some failures the kind is told, and never the text."""
    result = refusal(unexpected(failure, where, reply))
    kind = next((one.__name__ for one in _TELLING if isinstance(failure, one)), None)
    if kind is not None:
        result.meta = {ERROR: {"error_type": kind, "retryable": False}}
    return result


def unexpected(failure: BaseException, where: str, reply: Reply | None = None) -> InternalError:
    """What the client may know of an unexpected exception: an id that finds it in the log, and no more."""
    error_id = os.urandom(4).hex()
    if reply is not None:
        reply.error_id = error_id
    log.error("error %s in %s", error_id, where, exc_info=_their_frames(failure))
    return InternalError(f"Internal error (error id {error_id})", {"errorId": error_id})
