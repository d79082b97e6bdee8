"""Questions in the middle of a body, on every revision.

On the handshake revisions a question is a request to the client. 2026-07-28 has none: there the call ends with an
`input_required` result, and when the client sends the call again with its answers the body runs again from the
start, the answers so far being replayed to it. `ctx.step` keeps a side effect from being repeated.
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
from portico.protocol.errors import Closed, InvalidParams
from portico.protocol.jsonrpc import NOTHING, encode
from portico.protocol.methods import METHODS, plainly
from portico.rpc.call import Call, Reply
from portico.rpc.client_requests import put, require
from portico.server.components.results import Detached
from portico.server.context.request_state import Seal, State, binding

_responses = msgspec.json.Decoder(dict[str, Raw] | None)


# Where a state of the author's own stands among the steps, which have other names.
_AUTHORS = "/author"


class BodyReply(Reply):
    """The Reply of a call as a body is to see it: that of the client's request, and what its questions need to know."""

    def __init__(self, outer: Reply, *, rounds: Any = None, detachable: bool = False, asks: bool | None = None) -> None:
        self._outer = outer
        # The questions of the body that makes this call from the inside, which then are this call's too.
        self.rounds = rounds
        # Whether the body may go on as a task: see `ctx.detach`.
        self.detachable = detachable
        self.asks, self.conversation = outer.asks if asks is None else asks, outer.conversation
        self.emit, self.ask = outer.emit, outer.ask  # type: ignore[method-assign]
        self.drain, self.release = outer.drain, outer.release  # type: ignore[method-assign]

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


def rounds_of(call: Call) -> Any:
    """The questions that a call from inside a body shares with it."""
    return call.reply.rounds if isinstance(call.reply, BodyReply) else None


class Rounds:
    """One call's questions and answers."""

    def __init__(
        self,
        call: Call,
        seal: Seal,
        target: str,
        arguments: bytes | Raw,
        responses: Raw,
        sealed: Any,
        task: asyncio.Task[Any],
    ) -> None:
        self._task = task
        self._call = call
        self._seal = seal
        self._target = target
        self._arguments = arguments
        self._answers: dict[str, Raw] = {}
        self._steps: dict[str, Raw] = {}
        self._asked: dict[str, InputRequest] = {}
        self.keys = ReplayKeys()
        self._detachable = isinstance(call.reply, BodyReply) and call.reply.detachable
        self._detached = False
        # What this call goes on from. It is spent before the body runs: see `Body`.
        self.state: State | None = None
        if sealed is not UNSET:
            self.state = state = seal.open(sealed, self._binding())
            self._answers, self._steps = state.answers, state.steps
        # Whether something of an earlier run of the body is known.
        self.replays = bool(self._answers or self._steps)
        if responses is not NOTHING:
            # Only what was asked is answered, and only once: steps may have been done for the answers so far.
            given, asked = _read(responses), None if sealed is UNSET else state.asked
            self._answers |= {
                key: one for key, one in given.items() if key not in self._answers and (asked is None or key in asked)
            }

    def _binding(self) -> bytes:
        arguments = msgspec.json.decode(self._arguments) if self._arguments is not NOTHING else {}
        return binding(self._call.method, self._target, arguments, self._call.principal)

    async def ask(self, method: str, params: Any, key: str | None = None) -> Any:
        """The client's answer, typed."""
        call = self._call
        if call.reply.closed:
            raise Closed("the request is over")
        params = require(call, method, params)
        result = METHODS[method].result
        key = self.keys.question(method.partition("/")[0], key)
        if call.reply.asks:
            answered = await put(call, method, params)
            # For a body that will go on as a task, and is not to ask the same again.
            if self._detachable:
                self._answers[key] = answered
            return typed(answered, result, method)
        answer = self._answers.get(key)
        if answer is not None:
            return typed(answer, result, key)
        self._asked[key] = InputRequest(method, params)
        await self._stop()

    async def _stop(self) -> None:
        """End the body here. It is cancelled one turn later, so that questions asked side by side travel together."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._task.cancel)
        await loop.create_future()

    async def detach(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop here and go on as a task, where the caller can deal with one; elsewhere nothing happens."""
        if self._detachable:
            if settle is not None:
                await settle()
            self._detached = True
            await self._stop()

    def idle(self) -> AbstractAsyncContextManager[None]:
        """Around waiting for a task. A call takes the place of none."""
        return nullcontext()

    def required(self) -> InputRequiredResult | Detached | None:
        """The result that asks, when the body was stopped because of a question (and not by the client)."""
        if not (self._asked or self._detached) or self._call.reply.cancelled:
            return None
        self._task.uncancel()
        if self._detached:
            return Detached(self._answers, self._steps)
        return InputRequiredResult(
            input_requests=self._asked,
            request_state=self._seal.close(self._binding(), self._answers, self._steps, list(self._asked)),
        )

    def carry(self, result: InputRequiredResult) -> InputRequiredResult:
        """A result that asks, made by the author: what the client is to carry is sealed as ours is."""
        said = result.request_state
        steps = {} if said is UNSET else {_AUTHORS: Raw(encode(said))}
        asked = [] if result.input_requests is UNSET else list(result.input_requests)
        sealed = self._seal.close(self._binding(), {}, steps, asked)
        return msgspec.structs.replace(result, request_state=sealed)

    @property
    def carried(self) -> str | None:
        """What the author has given the client to carry."""
        said = self._steps.get(_AUTHORS)
        return None if said is None else msgspec.json.decode(said, type=str)

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """The value of a side effect that a replay must not repeat. It is kept as JSON."""
        key = self.keys.step(name)
        if key not in self._steps:
            with self.keys.inside_step(name):
                value = fn()
                if isinstance(value, Awaitable):
                    value = await value
            self._steps[key] = Raw(encode(value))
        # As a replay would see it, so that the first run and the later ones do not differ.
        return msgspec.json.decode(self._steps[key])


# Entered before a question that may end this run of a body, and left if it did not.
Settle = Callable[[], AbstractAsyncContextManager[None]]


class SettledRounds:
    """The rounds of a body for a request that it makes itself: something else is put around its questions."""

    def __init__(self, rounds: Any, settle: Settle) -> None:
        self._rounds = rounds
        self._settle = settle
        self.keys: ReplayKeys = rounds.keys
        self.replays: bool = rounds.replays

    async def ask(self, method: str, params: Any, key: str | None = None) -> Any:
        async with self._settle():
            return await self._rounds.ask(method, params, key)

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        return await self._rounds.step(name, fn)

    async def detach(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Does nothing: whether the whole becomes a task is not for a part of it to say."""

    def idle(self) -> AbstractAsyncContextManager[None]:
        found: AbstractAsyncContextManager[None] = self._rounds.idle()
        return found


def _read(responses: Raw) -> dict[str, Raw]:
    try:
        return _responses.decode(responses) or {}
    except msgspec.DecodeError:
        raise InvalidParams("Invalid inputResponses: expected an object with one answer for each key") from None


def typed(answer: Raw, kind: Any, key: str) -> Any:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as failure:
        raise InvalidParams(f"Invalid answer to {key}: {plainly(failure)}") from None


# Replay keys

# The inner calls and steps that the code runs inside of, each followed by a slash.
_path: ContextVar[str] = ContextVar("portico_replay_path", default="")


class ReplayKeys:
    """Names the questions and steps of a body. A body that is run again comes to the same keys in the same order.

    Inside an inner call or a step counting starts again: a step that is not done again must not shift the keys of
    what comes after it, and two calls of one tool have nothing to do with each other.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def question(self, kind: str, key: str | None) -> str:
        """The author's key, or an ordinal per kind, such as `elicitation-2`."""
        return _path.get() + key if key is not None else self._numbered(kind)

    def step(self, name: str) -> str:
        return _path.get() + name

    def inside_step(self, name: str) -> _Inside:
        return _Inside(self.step(name))

    def inside_call(self, name: str) -> _Inside:
        return _Inside(self._numbered(name))

    def _numbered(self, kind: str) -> str:
        key = _path.get() + kind
        self._counts[key] = self._counts.get(key, 0) + 1
        return f"{key}-{self._counts[key]}"


class _Inside:
    """A context manager: what runs in it has this key above its own."""

    __slots__ = ("_key", "_token")

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        self._token = _path.set(f"{self._key}/")

    def __exit__(self, *_: object) -> None:
        _path.reset(self._token)
