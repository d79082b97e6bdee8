"""Input requests in the middle of a function, on every protocol version.

In the handshake versions an input request is a server-to-client request. 2026-07-28 has none: there the call ends with
an `input_required` result. When the client sends the call again with its responses, the function runs again from the
start, and the responses so far are replayed to it. `ctx.step` keeps a side effect from being repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.protocol.client_features import InputRequest, InputRequiredResult
from portico.protocol.errors import ConnectionClosed, InvalidParams
from portico.protocol.jsonrpc import EMPTY_RAW, encode
from portico.protocol.methods import METHODS, format_decode_error
from portico.rpc.call import Call, Reply
from portico.rpc.client_requests import send_client_request, validate_client_request
from portico.server.components.results import DetachedCall
from portico.server.context.request_state import RequestState, RequestStateSealer, request_binding

_responses = msgspec.json.Decoder(dict[str, Raw] | None)


# Key of the author's own state among the steps; step names have a different form.
_AUTHORS = "/author"


class ComponentReply(Reply):
    """The Reply of the client's request, as a function sees it, with the state for input requests."""

    def __init__(
        self, outer: Reply, *, rounds: Any = None, detachable: bool = False, can_request: bool | None = None
    ) -> None:
        self._outer = outer
        # The input rounds of the function that makes this nested call, which the call shares.
        self.rounds = rounds
        # Whether the function may continue as a task: see `ctx.continue_as_task`.
        self.detachable = detachable
        self.can_request, self.connection = outer.can_request if can_request is None else can_request, outer.connection
        # Bound methods are copied instead of delegated: progress and log messages are frequent.
        self.notify, self.request = outer.notify, outer.request  # type: ignore[method-assign]
        self.drain, self.detach = outer.drain, outer.detach  # type: ignore[method-assign]

    def cancel(self) -> None:
        self._outer.cancel()

    def close(self) -> None:
        self._outer.close()

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._outer.closed

    @property
    def cancelled(self) -> bool:  # type: ignore[override]
        return self._outer.cancelled


def get_rounds(call: Call) -> Any:
    """Return the input rounds that a nested call shares with its caller, or None."""
    return call.reply.rounds if isinstance(call.reply, ComponentReply) else None


class InputRounds:
    """Input requests and responses of one call."""

    def __init__(
        self,
        call: Call,
        sealer: RequestStateSealer,
        target: str,
        arguments: bytes | Raw,
        responses: Raw,
        sealed: Any,
        task: asyncio.Task[Any],
    ) -> None:
        self._task = task
        self._call = call
        self._seal = sealer
        self._target = target
        self._arguments = arguments
        self._answers: dict[str, Raw] = {}
        self._steps: dict[str, Raw] = {}
        # Requests of this run. Several are collected when the function awaits them concurrently.
        self._requests: dict[str, InputRequest] = {}
        self.keys = ReplayKeys()
        self._detachable = isinstance(call.reply, ComponentReply) and call.reply.detachable
        self._detached = False
        # The state that this call continues. It is marked as used before the function runs: see `FunctionRunner`.
        self.state: RequestState | None = None
        if sealed is not UNSET:
            self.state = state = sealer.unseal(sealed, self._binding())
            self._answers, self._steps = state.answers, state.steps
        # Whether responses or steps of an earlier run are replayed.
        self.is_replay = bool(self._answers or self._steps)
        if responses is not EMPTY_RAW:
            # Accept a response only if it was requested, and only once: steps may have been run for earlier responses.
            input_responses, requested_keys = _read(responses), None if sealed is UNSET else state.requested_keys
            self._answers |= {
                key: response
                for key, response in input_responses.items()
                if key not in self._answers and (requested_keys is None or key in requested_keys)
            }

    def _binding(self) -> bytes:
        # Decoded, so that another order of keys or other whitespace in the second round is the same
        # request.
        arguments = msgspec.json.decode(self._arguments) if self._arguments is not EMPTY_RAW else {}
        return request_binding(self._call.method, self._target, arguments, self._call.principal)

    async def request_input(self, method: str, params: Any, key: str | None = None) -> Any:
        """Send an input request, and return the decoded response. Raises if the client does not support it."""
        call = self._call
        # A function that outlives its request, such as a task it started, must not ask a client
        # that has gone.
        if call.reply.closed:
            raise ConnectionClosed("the request has ended")
        params = validate_client_request(call, method, params)
        result = METHODS[method].result
        key = self.keys.request_key(method.partition("/")[0], key)
        if call.reply.can_request:
            answered = await send_client_request(call, method, params)
            # Replayed if the function continues as a task, so that the client is not asked again.
            if self._detachable:
                self._answers[key] = answered
            return decode_response(answered, result, method)
        answer = self._answers.get(key)
        if answer is not None:
            return decode_response(answer, result, key)
        self._requests[key] = InputRequest(method, params)
        await self._stop()

    async def _stop(self) -> None:
        """End the function here.

        It is cancelled one turn later, so that concurrent input requests are sent together.
        """
        loop = asyncio.get_running_loop()
        loop.call_soon(self._task.cancel)
        await loop.create_future()

    async def continue_as_task(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop here and continue as a task, if the client supports tasks; otherwise do nothing."""
        if self._detachable:
            if settle is not None:
                await settle()
            self._detached = True
            await self._stop()

    def release_slot(self) -> AbstractAsyncContextManager[None]:
        """Return an empty context manager: a call occupies no task slot."""
        return nullcontext()

    def input_required_result(self) -> InputRequiredResult | DetachedCall | None:
        """Return the result with the input requests, or None if the client stopped the function."""
        if not (self._requests or self._detached) or self._call.reply.cancelled:
            return None
        # The cancellation was ours and is answered with a result; without this, an enclosing
        # `asyncio.timeout` or TaskGroup would still see a cancelled task.
        self._task.uncancel()
        if self._detached:
            return DetachedCall(self._answers, self._steps)
        return InputRequiredResult(
            input_requests=self._requests,
            request_state=self._seal.seal(self._binding(), self._answers, self._steps, list(self._requests)),
        )

    def seal_result(self, result: InputRequiredResult) -> InputRequiredResult:
        """Return an author's input-required result with its state sealed like ours."""
        author_state = result.request_state
        steps = {} if author_state is UNSET else {_AUTHORS: Raw(encode(author_state))}
        requested_keys = [] if result.input_requests is UNSET else list(result.input_requests)
        # The author's own state is wrapped rather than passed through: unsigned, a client could
        # change it between the rounds.
        sealed = self._seal.seal(self._binding(), {}, steps, requested_keys)
        return msgspec.structs.replace(result, request_state=sealed)

    @property
    def carried_state(self) -> str | None:
        """Return the state that the author gave the client to carry, or None."""
        author_state = self._steps.get(_AUTHORS)
        return None if author_state is None else msgspec.json.decode(author_state, type=str)

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """Return the value of a side effect that a replay must not repeat. It is stored as JSON."""
        key = self.keys.step(name)
        if key not in self._steps:
            with self.keys.inside_step(name):
                value = fn()
                if isinstance(value, Awaitable):
                    value = await value
            # Stored after the side effect. A crash between the two repeats it, so steps that must
            # not repeat need an idempotency key of their own.
            self._steps[key] = Raw(encode(value))
        # Decode it like a replay would, so that the first run does not differ from later ones.
        return msgspec.json.decode(self._steps[key])


# Entered before an input request that may end this run of a function, and left if it did not.
SuspendContext = Callable[[], AbstractAsyncContextManager[None]]


class NestedRounds:
    """Input rounds for a nested request, with a context manager around each input request."""

    def __init__(self, rounds: Any, settle: SuspendContext) -> None:
        self._rounds = rounds
        self._settle = settle
        self.keys: ReplayKeys = rounds.keys
        self.is_replay: bool = rounds.is_replay

    async def request_input(self, method: str, params: Any, key: str | None = None) -> Any:
        async with self._settle():
            return await self._rounds.request_input(method, params, key)

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        return await self._rounds.step(name, fn)

    async def continue_as_task(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Do nothing: a nested request cannot decide that the whole call becomes a task."""

    def release_slot(self) -> AbstractAsyncContextManager[None]:
        result: AbstractAsyncContextManager[None] = self._rounds.release_slot()
        return result


def _read(responses: Raw) -> dict[str, Raw]:
    try:
        return _responses.decode(responses) or {}
    except msgspec.DecodeError:
        raise InvalidParams("Invalid inputResponses: expected an object with one response for each key") from None


def decode_response(response: Raw, kind: Any, key: str) -> Any:
    try:
        return msgspec.json.decode(response, type=kind)
    except msgspec.DecodeError as failure:
        raise InvalidParams(f"Invalid response to {key}: {format_decode_error(failure)}") from None


# Replay keys

# The nested calls and steps around the running code, each followed by a slash.
_path: ContextVar[str] = ContextVar("portico_replay_path", default="")


class ReplayKeys:
    """Names the input requests and steps of a function, so that a replay produces the same keys in the same order.

    Counters start again inside a nested call or step: a step that is not repeated must not shift the keys after it, and
    two calls of one tool are independent.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def request_key(self, kind: str, key: str | None) -> str:
        """Return the author's key, or a number per kind, such as `elicitation-2`."""
        return _path.get() + key if key is not None else self._next_key(kind)

    # Steps are named by the author and not numbered: with numbers, a step added before another one
    # would be given its stored value.
    def step(self, name: str) -> str:
        return _path.get() + name

    def inside_step(self, name: str) -> _NestedRound:
        return _NestedRound(self.step(name))

    def inside_call(self, name: str) -> _NestedRound:
        return _NestedRound(self._next_key(name))

    def _next_key(self, kind: str) -> str:
        key = _path.get() + kind
        self._counts[key] = self._counts.get(key, 0) + 1
        return f"{key}-{self._counts[key]}"


class _NestedRound:
    """Context manager that prefixes keys with this key."""

    __slots__ = ("_key", "_token")

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        self._token = _path.set(f"{self._key}/")

    def __exit__(self, *_: object) -> None:
        _path.reset(self._token)
