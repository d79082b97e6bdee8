"""What is asked of a server: each request in as many rounds as its questions take, and its result decoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.client import results
from portico.client.cache import CACHEABLE, Cache
from portico.client.input_handlers import Inputs
from portico.protocol.client_features import InputRequest, InputRequiredResult
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.jsonrpc import encode
from portico.protocol.methods import ASKABLE, METHODS, plainly
from portico.rpc.call import Call, Listening
from portico.transports.base import Link
from portico.transports.upstream import Upstream

MOST_ROUNDS = 10
# What one answer may be made of, besides the bytes that it may have.
MOST_VALUES = 5_000_000
# What a server may ask at once.
MOST_QUESTIONS = 100

ProgressHandler = Callable[[float, float | None, str | None], Any]
Hear = Callable[..., None]
"""Takes a notification: its method, its params, and whom to tell of progress."""


class CallProgress(Struct, frozen=True):
    """The progress token of a call, the same in all its rounds, and what is told of its progress."""

    token: int
    handler: ProgressHandler


class _Kind(Struct):
    # A missing resultType counts as "complete": older servers do not say it.
    result_type: str = msgspec.field(default="complete", name="resultType")


class Requests:
    """The requests of one client, and what came back.

    `hear` is told what the server says on the way to a result. `timeout`: how many seconds a request may take.
    """

    def __init__(self, upstream: Upstream, inputs: Inputs, cache: Cache, hear: Hear, timeout: float | None) -> None:
        self._timeout = timeout
        self._upstream = upstream
        self._inputs = inputs
        self._cache = cache
        self._hear = hear
        self._listening = Listening(hear)

    def _call(self, method: str, params: dict[str, Any], progress: CallProgress | None = None) -> Call:
        body = Raw(encode(params))
        if progress is None:
            return Call(method=method, params=body, id=0, reply=self._listening)
        reply = Listening(partial(self._hear, on_progress=progress.handler))
        return Call(method=method, params=body, id=0, progress_token=progress.token, reply=reply)

    async def rounds(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None = None,
        repeatable: bool | None = None,
        wanted: Collection[str] = ("complete",),
        progress: CallProgress | None = None,
        first: Raw | None = None,
    ) -> Raw:
        """The first result of a kind that is wanted. `first`: what the first round has given already."""
        repeatable = method != "tools/call" if repeatable is None else repeatable
        asked = params
        for _ in range(MOST_ROUNDS + 1):
            said = first
            if said is None:
                said = await self._upstream.ask(self._call(method, asked, progress), self.limit(timeout), repeatable)
            first = None
            kind = self._kind(method, said)
            if kind in wanted:
                return said
            if kind != "input_required" or method not in ASKABLE:
                raise ProtocolError(f"{self.name}: {method} gave a result of an unknown kind: {kind[:100]}")
            # Each round carries its own answers only; what came before is in the state, which is the server's affair.
            asked = {**params, **await self._answers(method, said)}
        raise ProtocolError(f"{self.name}: {method} still asks after {MOST_ROUNDS} rounds")

    def limit(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else None if timeout == math.inf else timeout

    def _kind(self, method: str, said: Raw) -> str:
        # A value takes two bytes there, and here thirty times as much.
        if len(bytes(said)) > 2 * MOST_VALUES and results.has_more_values(bytes(said), MOST_VALUES):
            raise ProtocolError(f"{self.name}: {method} gave more than {MOST_VALUES} values at once")
        kind: str = self.decoded(method, said, _Kind).result_type
        return kind

    @property
    def name(self) -> str:
        name = self._upstream.name
        return (
            name
            if name != Link.name or self._upstream.greeting.server is None
            else self._upstream.greeting.server.name[:100]
        )

    async def _answers(self, method: str, said: Raw) -> dict[str, Any]:
        asked: InputRequiredResult = self.decoded(method, said, InputRequiredResult)
        again: dict[str, Any] = {}
        if asked.input_requests is not UNSET:
            if len(asked.input_requests) > MOST_QUESTIONS:
                raise ProtocolError(f"{self.name}: {method} asks {len(asked.input_requests)} questions at once")
            again["inputResponses"] = {key: await self.reply(method, one) for key, one in asked.input_requests.items()}
        if asked.request_state is not UNSET:
            again["requestState"] = asked.request_state
        if not again:
            raise ProtocolError(f"{self.name}: {method} asks for input, and says not for which")
        return again

    async def reply(self, method: str, asked: InputRequest) -> Any:
        if not self._inputs.can_answer(asked.method, self._upstream.greeting.revision):
            raise ProtocolError(f"{self.name}: {method} asks for {asked.method[:100]}, for which there is no handler")
        try:
            return await self._inputs.answer(
                asked.method, Raw(encode(asked.params or {})), self._upstream.greeting.revision
            )
        except (InvalidParams, RecursionError) as failure:
            raise ProtocolError(f"{self.name}: {method} asks what cannot be answered: {failure}") from None

    async def result(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None = None,
        *,
        repeatable: bool = True,
        progress: CallProgress | None = None,
    ) -> Any:
        """The result, decoded. Its type has the kind that is wanted in it, so it is looked for only if that fails."""
        limit = self._timeout if timeout is None else self.limit(timeout)
        said = await self._upstream.ask(self._call(method, params, progress), limit, repeatable)
        try:
            if len(bytes(said)) <= MOST_VALUES:
                return msgspec.json.decode(said, type=METHODS[method].result)
        except (msgspec.DecodeError, RecursionError):
            pass
        said = await self.rounds(method, params, timeout, repeatable, progress=progress, first=said)
        return self.decoded(method, said)

    def decoded(self, method: str, said: Raw, type: Any = None) -> Any:
        """A result as its method has it, or as this type."""
        try:
            return msgspec.json.decode(said, type=METHODS[method].result if type is None else type)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise ProtocolError(f"{self.name} gave an invalid result of {method}: {plainly(failure)}") from None

    async def cached(self, method: str, params: dict[str, Any], *, fresh: bool = False) -> Any:
        return self.decoded(method, await self.cached_raw(method, params, fresh=fresh))

    async def cached_raw(self, method: str, params: dict[str, Any], *, fresh: bool = False) -> Raw:
        """A result that may be cached, undecoded. Answers that questions led to are not."""
        if not self._upstream.modern or method not in CACHEABLE:
            return await self.rounds(method, params)
        said = None if fresh else self._cache.get(method, params, self._upstream.link.identity)
        if said is None:
            since = self._cache.changes
            said = await self._upstream.ask(self._call(method, params), self._timeout, True)
            if self._kind(method, said) != "complete":
                return await self.rounds(method, params, None, True, first=said)
            self._cache.put(method, params, self._upstream.link.identity, said, since)
        return said
