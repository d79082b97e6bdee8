"""Dispatcher: the single entry point for the requests of every transport.

A transport passes a decoded message and a Reply. The dispatcher determines the protocol version, creates the Call,
starts the handler and encodes its result. No other module converts exceptions to error responses.

A handler with a `start` method is called without a task: `start` returns the result, or a coroutine if it has to wait.
Most calls are therefore answered within the read that delivered them. A coroutine always gets its own task, so that a
handler can cancel, time and name it.
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

from portico._lazy import LazyModule, get_loaded_module
from portico.protocol import jsonrpc, meta as metas, methods
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import TextContent, strip_result_type
from portico.protocol.errors import (
    InsufficientScope,
    InternalError,
    InvalidParams,
    ProtocolError,
    ToolError,
    UnsupportedProtocolVersion,
)
from portico.protocol.jsonrpc import EMPTY_RAW, JsonRpcMessage, ResultResponse
from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    DecodedMeta,
)
from portico.protocol.methods import METHODS, MODERN_ONLY_METHODS, ToolCallMessage, as_input_required
from portico.protocol.tools import ERROR_META_KEY, CallToolResult
from portico.protocol.versions import FIRST_MODERN_VERSION, MODERN_VERSIONS, ProtocolVersion
from portico.rpc.call import Call, Handler, Reply, cancel_request_task, get_capabilities
from portico.rpc.fair_queue import FAIRNESS_THRESHOLD

if TYPE_CHECKING:
    from portico.rpc import client_requests, debug_log, observers as observers_module, tracebacks
    from portico.rpc.metrics import Metrics
    from portico.rpc.observers import ObserverChain
else:
    client_requests = LazyModule("portico.rpc.client_requests")
    debug_log = LazyModule("portico.rpc.debug_log")
    observers_module = LazyModule("portico.rpc.observers")
    tracebacks = LazyModule("portico.rpc.tracebacks")

log = logging.getLogger("portico")
trace_log = logging.getLogger("portico.trace")

CallCheck = Callable[[Call], None]
"Checks a Call before it is served. Raises the ProtocolError that rejects it."


class PeerInfo(Struct, frozen=True):
    """Sender of a message, as far as the transport knows it."""

    principal: Any = None
    headers: Mapping[bytes, bytes] | None = None
    address: str | None = None


UNKNOWN_PEER = PeerInfo()

VERSION_META_KEY_BYTES = PROTOCOL_VERSION_META_KEY.encode()

# Methods that run user code, which may be slow. They are subject to fair scheduling.
_USER_CODE_METHODS = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})


class SessionInterface(Protocol):
    """Session of a handshake version, as the dispatcher uses it: completes the Call and answers it."""

    # The Channel of the session. The Channel sets it.
    stream: Any

    def create_call(
        self, message: JsonRpcMessage, reply: Reply, peer: PeerInfo, meta: DecodedMeta, decoded_params: Any
    ) -> Call: ...
    def start(self, call: Call) -> Any: ...


class Dispatcher:
    """Serves requests with a handler. Requests of a handshake version go through the session."""

    def __init__(
        self, handler: Handler, *, session: SessionInterface | None = None, metrics: Metrics | None = None
    ) -> None:
        about = get_capabilities(handler)
        self.handler = handler
        self.session = session
        self.observers = _create_observers(metrics)
        self.metrics = self.observers or metrics
        # Protocol version of the last request that carried one.
        self.protocol_version: ProtocolVersion | None = None
        # The event loop, if it never changes: `get_running_loop` makes a system call to detect forks.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._start = about.start
        self._logs = about.supports_logging
        # 2026-07-28, basic: every result should identify its server.
        self._server = None if about.info is None else {SERVER_INFO_META_KEY: about.info}
        self._encoded_server_meta = UNSET if self._server is None else Raw(jsonrpc.encode(self._server))

    def dispatch(
        self,
        message: JsonRpcMessage,
        reply: Reply,
        peer: PeerInfo = UNKNOWN_PEER,
        modern: bool = False,
        check: CallCheck | None = None,
    ) -> bytes | None:
        """Serve a request or a notification. Return the response if it is available immediately; later ones go to the
        Reply.

        `modern`: the transport has already determined that the request uses 2026-07-28.
        """
        try:
            call = self._create_call(message, reply, peer, modern, check)
        except ProtocolError as failure:
            # The envelope of 2026-07-28 was invalid, so the error uses that version's format.
            reply.error_code, reply.rejected = failure.code, True
            if self.observers is not None:
                self.observers.record_rejected(message, failure, peer.address)
            return None if message.id is UNSET else jsonrpc.encode_error(message.id, failure, FIRST_MODERN_VERSION)
        if call.id is not None:
            return self._serve(call)
        self._notify(call)
        return None

    # Creating the call

    def _create_call(
        self, frame: JsonRpcMessage, reply: Reply, sender: PeerInfo, modern: bool, gate: CallCheck | None
    ) -> Call:
        """Create the Call of a message. The protocol version is determined before the method is interpreted."""
        method = frame.method
        assert type(method) is str
        typed, meta = None, metas.EMPTY_META
        # Notifications need no client information.
        if frame.id is not UNSET:
            # Decoded in one pass with the frame; see `decode_tool_call`.
            if type(frame) is ToolCallMessage:
                typed, raw_meta = frame.typed, frame.typed.meta  # type: ignore[union-attr]
            else:
                typed, raw_meta = methods.decode_params(method, frame.params)
            if raw_meta is not EMPTY_RAW:
                # A client repeats the same `_meta` in each request, so decoded values are cached.
                meta = metas.find_known(bytes(raw_meta)) or metas.decode_meta(raw_meta)
        # The version decides before the method does: `initialize` with modern metadata is an unknown method,
        # not a handshake.
        if modern or meta.protocol_version is not UNSET:
            return self._create_modern_call(frame, reply, sender, meta, typed, gate)
        if frame.id is not UNSET and (meta.capabilities is not UNSET or method in MODERN_ONLY_METHODS):
            # Methods that exist only in 2026-07-28 require that version's `_meta`.
            raise InvalidParams(f"Missing required _meta key: {PROTOCOL_VERSION_META_KEY}")
        if self.session is not None:
            return self.session.create_call(frame, reply, sender, meta, typed)
        return create_call(frame, reply, sender, meta, typed)

    def _create_modern_call(
        self,
        frame: JsonRpcMessage,
        reply: Reply,
        sender: PeerInfo,
        meta: DecodedMeta,
        typed: Any,
        gate: CallCheck | None,
    ) -> Call:
        """Create the Call of a 2026-07-28 request, which carries all client information itself.

        The order of the checks follows the specification (basic/transports): required members, headers, version.
        """
        version, capabilities = meta.protocol_version, meta.capabilities
        if version is UNSET or capabilities is UNSET:
            missing = PROTOCOL_VERSION_META_KEY if version is UNSET else CLIENT_CAPABILITIES_META_KEY
            raise InvalidParams(f"Missing required _meta key: {missing}")
        call = Call(
            method=frame.method,  # type: ignore[arg-type]
            params=frame.params,
            id=frame.id,  # type: ignore[arg-type]
            protocol_version=version,
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
        # server/utilities/logging: log messages require that the server declares them and that this request asks for
        # them.
        reply.logging_enabled = self._logs and meta.log_level is not None
        if gate is not None:
            gate(call)
        # After the header check, as the specification orders them: a mismatch is reported even for unknown
        # versions.
        if version not in MODERN_VERSIONS:
            raise UnsupportedProtocolVersion(version, list(MODERN_VERSIONS))
        self.protocol_version = version
        return call

    # Serving

    def _select_start(self, call: Call) -> Callable[[Call], Any]:
        """Return the function that answers the call: the session's for calls of a handshake version, else the
        handler's.
        """
        session = self.session
        modern = session is None or (
            call.protocol_version is not None and call.protocol_version >= FIRST_MODERN_VERSION
        )
        return self._start if modern else session.start  # type: ignore[union-attr]

    def _serve(self, call: Call) -> bytes | None:
        """Start a request. Return the response, or None while a task works on it."""
        metrics = self.metrics
        started_at = 0.0 if metrics is None else metrics.begin(call)
        # Each call has its own contextvars, with or without a task.
        context = copy_context()
        try:
            if call.progress_token is not None:
                call.reply.register_progress_token(call.progress_token)
            start = self._start if self.session is None else self._select_start(call)
            # Below the threshold nothing is counted per caller, so an unloaded server pays nothing for
            # fairness.
            if metrics is not None and metrics.in_flight > FAIRNESS_THRESHOLD and call.method in _USER_CODE_METHODS:
                start = partial(metrics.scheduler.run, start)
            if self.observers is not None:
                start = partial(self.observers.run, start)
            result = context.run(start, call)
            if type(result) is CoroutineType:
                # The task is created directly: a task factory belongs to the application, and an eager one would run
                # the handler immediately.
                loop = self.loop or get_running_loop()
                task = Task(self._complete(call, result, started_at), loop=loop, name=call.method, context=context)
                call.reply.attach_task(call, task)
                return None
            message = self._encode(call, result)
            failure = None
        except BaseException as raised:
            message, failure, result = self._encode_failure(call, raised), raised, None
        call.reply.response_bytes = len(message)
        if metrics is not None:
            metrics.end(call, result, failure, started_at)
        call.reply.close()
        return message

    async def _complete(self, call: Call, coroutine: CoroutineType[Any, Any, Any], started_at: float) -> None:
        """Complete a request in its own task, after `_serve`."""
        reply, message, result, failure = call.reply, None, None, None
        reply.running = True
        try:
            result = await coroutine
            message = self._encode(call, result)
        except BaseException as raised:
            failure = raised
            message = self._encode_failure(call, raised)
        finally:
            reply.response_bytes = 0 if message is None else len(message)
            if self.metrics is not None:
                self.metrics.end(call, result, failure, started_at)
            # A handler may suppress its cancellation; the response is dropped in any case.
            reply.finish(None if reply.cancelled else message)

    def _notify(self, call: Call) -> None:
        """Handle a notification. Errors are logged, never answered."""
        if self.observers is not None:
            self.observers.notify(call)
        row = METHODS.get(call.method)
        # Running it would have side effects that the client never learns about: a request without an id has no
        # response.
        if row is not None and row.result is not None:
            log.debug("ignoring %s without an id: it is a request, not a notification", call.method)
            return
        context = copy_context()
        try:
            # Run immediately, not in a task: later messages on the same stream may depend on it.
            result = context.run(self._select_start(call), call)
        except Exception as failure:
            _log(call, failure)
            return
        if type(result) is CoroutineType:
            call.reply.attach_task(
                call, get_running_loop().create_task(self._finish_notification(call, result), context=context)
            )

    async def _finish_notification(self, call: Call, coroutine: CoroutineType[Any, Any, Any]) -> None:
        try:
            await coroutine
        except Exception as failure:
            _log(call, failure)

    # Encoding

    def _encode(self, call: Call, result: Any) -> bytes:
        """Encode a result for the protocol version of the call, in its envelope."""
        id, kind = call.id, type(result)
        assert id is not None
        # Raw results come from upstream servers and are already encoded.
        if kind is Raw:
            input_required = as_input_required(call.method, result)
            if input_required is not None:
                _require_all(call, input_required)
            return jsonrpc.encode(ResultResponse(id, result))
        if kind is InputRequiredResult:
            _require_all(call, result)
        if call.protocol_version is None or call.protocol_version < FIRST_MODERN_VERSION:
            # `resultType` exists since 2026-07-28; strict clients of handshake versions reject unknown members.
            return jsonrpc.encode(ResultResponse(id, Raw(strip_result_type(jsonrpc.encode(result)))))
        # The most frequent case first: results of tools without `_meta` share one encoded server info.
        if kind is CallToolResult and result.meta is UNSET:
            result.meta = self._encoded_server_meta
        elif self._server is not None and isinstance(result, Struct):
            meta = getattr(result, "meta", None)
            if meta is UNSET:
                result.meta = self._encoded_server_meta  # type: ignore[attr-defined]
            elif isinstance(meta, dict):
                result.meta = {**self._server, **meta}  # type: ignore[attr-defined]
        return jsonrpc.encode(ResultResponse(id, result))

    def _encode_failure(self, call: Call, failure: BaseException) -> bytes:
        """Encode the response to a failed request. Errors meant for clients are sent in full, others only as an id."""
        # "The receiver SHOULD NOT send a response" to a cancelled request (2025-11-25,
        # basic/utilities/cancellation).
        if isinstance(failure, KeyboardInterrupt | GeneratorExit) or _is_cancelled(call, failure):
            raise failure
        if isinstance(failure, InsufficientScope):
            call.reply.require_scopes(failure.scopes)
        try:
            if isinstance(failure, ProtocolError):
                return self._encode_error(call, failure)
            # Failures of tools are results with isError, so that the model can correct itself (server/tools,
            # Error Handling).
            if call.method == "tools/call":
                return self._encode(call, exception_to_result(call, failure))
            if isinstance(failure, ToolError):
                # Raised by a prompt or a resource about its arguments.
                wrong = InvalidParams if failure.error_type == "ValidationError" else InternalError
                return self._encode_error(call, wrong(_text(failure), failure.to_meta()))
            return self._encode_error(call, log_internal_error(failure, _describe_target(call), call.reply))
        except Exception as worse:
            # The error contains data that cannot be encoded as JSON.
            return self._encode_error(call, log_internal_error(worse, call.method, call.reply))

    def _encode_error(self, call: Call, failure: ProtocolError) -> bytes:
        call.reply.error_code = failure.code_for(call.protocol_version)
        if failure.retry_after is not None:
            call.reply.set_retry_after(failure.retry_after)
        return jsonrpc.encode_error(call.id, failure, call.protocol_version)


class _InProcessReply(Reply):
    """Reply of a Call made in this process, whose response is awaited."""

    def __init__(self, outer: Reply) -> None:
        self._outer = outer

    def _notify(self, method: str, params: Any) -> None:
        self._outer.notify(method, params)

    def attach_task(self, call: Call, task: asyncio.Task[Any]) -> None:
        self.task, self.message = task, b""

    def finish(self, message: bytes | None) -> None:
        self.close()
        self.message = message or b""


async def dispatch_in_process(call: Call, handler: Handler) -> bytes:
    """Return the response to a Call made in this process. Failures become error responses."""
    reply = _InProcessReply(call.reply)
    message = Dispatcher(handler)._serve(replace(call, reply=reply))
    if message is not None:
        return message
    try:
        await reply.task
    except asyncio.CancelledError:
        # A handler in a thread cannot be stopped, but it can check the flag.
        reply.cancel()
        cancel_request_task(reply, reply.task)
        raise
    return reply.message


def has_protocol_version(message: JsonRpcMessage) -> bool:
    """Return whether a request carries its protocol version in `_meta`, and therefore does not belong to a session."""
    text = bytes(message.params)
    # JSON allows escapes in keys, so the key may be present although its plain bytes are not.
    if text.find(VERSION_META_KEY_BYTES) < 0 and text.find(b"\\u") < 0:
        return False
    try:
        meta = metas.decode_meta(methods.decode_params(str(message.method), message.params)[1])
    except ProtocolError:
        return True  # the dispatcher reports the error
    return meta.protocol_version is not UNSET


def create_call(
    message: JsonRpcMessage, reply: Reply, peer: PeerInfo, meta: DecodedMeta, decoded_params: Any, **session_fields: Any
) -> Call:
    """Create the Call of a message without a protocol version. `session_fields` come from the session."""
    return Call(
        method=str(message.method),
        params=message.params,
        id=None if message.id is UNSET else message.id,
        principal=peer.principal,
        progress_token=meta.progress_token,
        headers=peer.headers,
        address=peer.address,
        reply=reply,
        read=None if decoded_params is None else (message.params, decoded_params),
        **session_fields,
    )


# Exceptions of handlers whose type is disclosed to the client. Their messages never are: they may contain paths or
# secrets.
_DISCLOSED_EXCEPTION_TYPES = (FileNotFoundError, PermissionError, TimeoutError)


def _create_observers(metrics: Metrics | None) -> ObserverChain | None:
    # The module is loaded only if an observer is installed.
    module = get_loaded_module("portico.rpc.observers")
    observers = [] if module is None else list(module.OBSERVERS)
    if trace_log.isEnabledFor(logging.DEBUG):
        observers.insert(0, debug_log.DebugLog())
    return observers_module.ObserverChain(metrics, observers) if observers else None


def _require_all(call: Call, required: InputRequiredResult) -> None:
    # Most servers never request input, so the module is loaded lazily.
    client_requests.validate_input_requests(call, required)


def _trim_traceback(failure: BaseException) -> Any:
    return tracebacks.trim_traceback(failure)


def _log(call: Call, failure: Exception) -> None:
    if isinstance(failure, ProtocolError):
        log.debug("%s: %s", call.method, failure.message)
    else:
        log.error("error in %s", call.method, exc_info=_trim_traceback(failure))


def _is_cancelled(call: Call, failure: BaseException) -> bool:
    """Return whether the call itself is being cancelled. A handler may also raise a CancelledError of another task."""
    if not isinstance(failure, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return call.reply.cancelled or (task is not None and task.cancelling() > 0)


def tool_error_result(error: ToolError | InternalError) -> CallToolResult:
    """Return the result of a tool that failed. It is a result, not a protocol error, so that the model sees it."""
    described = error.to_meta() if isinstance(error, ToolError) else None
    meta = UNSET if described is None else {ERROR_META_KEY: described}
    return CallToolResult(content=[TextContent(text=_text(error))], is_error=True, meta=meta)


def _text(error: Exception) -> str:
    """Return the text of an error in encodable form: file names may contain lone surrogates."""
    return str(error).encode(errors="replace").decode()


def exception_to_result(call: Call, failure: BaseException) -> CallToolResult:
    """Return the result of a tool that raised `failure`."""
    return (
        tool_error_result(failure)
        if isinstance(failure, ToolError)
        else internal_error_result(failure, _describe_target(call), call.reply)
    )


def _describe_target(call: Call) -> str:
    """Return the method of a call and the tool, prompt or resource that it names, for the log."""
    row = METHODS.get(call.method)
    try:
        name = row.get_name(call.decode_params()) if row is not None else None
    except ProtocolError:
        name = None
    return f"{call.method} {name[:128]!r}" if name else call.method


def internal_error_result(failure: BaseException, where: str, reply: Reply | None = None) -> CallToolResult:
    """Return the result of a tool that failed unexpectedly. Some exception types are disclosed, messages never."""
    result = tool_error_result(log_internal_error(failure, where, reply))
    kind = next(
        (
            disclosed_exception_type_.__name__
            for disclosed_exception_type_ in _DISCLOSED_EXCEPTION_TYPES
            if isinstance(failure, disclosed_exception_type_)
        ),
        None,
    )
    if kind is not None:
        result.meta = {ERROR_META_KEY: {"error_type": kind, "retryable": False}}
    return result


def log_internal_error(failure: BaseException, where: str, reply: Reply | None = None) -> InternalError:
    """Log an unexpected exception. Return the error for the client, which contains only an id to find it in the log."""
    error_id = os.urandom(4).hex()
    if reply is not None:
        reply.error_id = error_id
    log.error("error %s in %s", error_id, where, exc_info=_trim_traceback(failure))
    return InternalError(f"Internal error (error id {error_id})", {"errorId": error_id})
