"""Bridge from server-to-client requests of an upstream to clients that answer with input-required results.

The call is suspended: it keeps running in this process while its client receives the input requests. The client sends
the call again with its responses and a sealed ticket, which is valid for one round, one principal and the same
arguments. Other processes that serve the same clients recognize from the ticket which process holds the call.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.protocol.client_features import InputRequest, InputRequiredResult
from portico.protocol.errors import ConnectionClosed, InvalidParams, ToolError
from portico.protocol.jsonrpc import object_decoder
from portico.rpc.call import Call, ClientRequestCallback, Reply
from portico.rpc.fair_queue import get_caller_key
from portico.server.context.request_state import RequestStateSealer, pin_to_process

MAX_SUSPENDED_CALLS = 10_000
MAX_SUSPENDED_CALLS_PER_CALLER = 64
# Time that a client has to respond.
SUSPENDED_CALL_TTL_SECONDS = 600.0
# Requests within this period are sent to the client together.
REQUEST_BATCH_SECONDS = 0.02


class _RoundReply(Reply):
    """Reply of a suspended call; delegates to the reply of the current round."""

    outer: Reply | None = None
    ask_client: ClientRequestCallback | None = None

    async def _ask(self, method: str, params: Any) -> Raw:
        return await (super()._ask(method, params) if self.ask_client is None else self.ask_client(method, params))

    def _notify(self, method: str, params: Any) -> None:
        if self.outer is not None:
            self.outer.notify(method, params)


class SuspendedCall(Struct, eq=False):
    """A call that keeps running while its client is asked for input."""

    owner: str
    alias: str
    binding: bytes
    reply: _RoundReply
    task: asyncio.Task[Any] | None = None
    # Unanswered requests, by the key that the client receives.
    waiting: dict[str, asyncio.Future[Raw]] = {}
    asked: dict[str, InputRequest] = {}
    news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    number: int = 0
    until: float = 0.0
    # Called when a request is added or answered, and when the call is done.
    changed: Callable[[], None] = lambda: None

    async def request_input(self, method: str, params: Any) -> Raw:
        """Ask the client for input and return its response, which arrives in a later round."""
        # Keys are numbered per call. They are opaque to the client, which returns them with its responses
        # (2026-07-28, Multi Round-Trip Requests).
        self.number += 1
        key = f"question-{self.number}"
        future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self.waiting[key], self.asked[key] = future, InputRequest(method=method, params=params)
        self.news.set()
        self.changed()
        try:
            return await future
        finally:
            # The upstream may have cancelled its request.
            self.waiting.pop(key, None)
            self.asked.pop(key, None)
            self.changed()

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Fail the unanswered requests after the call is done, and retrieve its exception so that it is not logged."""
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(ConnectionClosed("the call of this request has ended"))
        if not task.cancelled():
            task.exception()
        self.changed()

    def resolve_inputs(self, responses: dict[str, Raw]) -> None:
        """Resolve requests with the client's responses, by key."""
        for key, future in list(self.waiting.items()):
            # Unknown keys are ignored: a client may answer a request that the upstream has cancelled in the meantime.
            if key in responses and not future.done():
                future.set_result(responses[key])
                del self.waiting[key], self.asked[key]


def start_call(
    call: Call,
    alias: str,
    binding: bytes,
    send: Callable[[Call, SuspendedCall], Awaitable[Any]],
    *,
    forward_requests: bool = False,
) -> SuspendedCall:
    """Run a call as a task. With `forward_requests`, requests sent to its reply are also put to the client."""
    parked = SuspendedCall(get_caller_key(call)[0], alias, binding, _RoundReply())
    if forward_requests:
        parked.reply.can_request, parked.reply.ask_client = True, parked.request_input
    inner = replace(call, reply=parked.reply)
    parked.task = asyncio.create_task(send(inner, parked))  # type: ignore[arg-type]
    parked.task.add_done_callback(parked.finish)
    return parked


class ServerRequestBridge:
    """Suspended calls of one gateway."""

    def __init__(self, seal: RequestStateSealer) -> None:
        self._seal = seal
        self._parked: OrderedDict[str, SuspendedCall] = OrderedDict()
        self._owners: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._parked)

    async def start(
        self,
        call: Call,
        alias: str,
        binding: bytes,
        send: Callable[[Call, SuspendedCall], Awaitable[Any]],
        on_detach: Callable[[SuspendedCall], Any] | None = None,
    ) -> Any:
        """Run a call and return its result, or an input-required result. `send` receives the call and its suspended
        state.

        With `on_detach`, a call that needs input is passed to it instead of being suspended.
        """
        parked = start_call(call, alias, binding, send)
        return await self._round(call, parked, on_detach)

    async def resume(self, call: Call, binding: bytes, state: str, responses: Raw) -> Any:
        """Run the next round of a suspended call. Raises InvalidParams for an invalid or used ticket."""
        # The state is sealed and bound to the principal and the request, so a ticket that leaked cannot be used by
        # another caller or for another tool.
        opened = self._seal.unseal(state, binding)
        ticket = msgspec.json.decode(opened.steps.get("ticket", b'""'))
        try:
            answers = object_decoder.decode(responses) if responses else {}
        except msgspec.DecodeError as mistake:
            raise InvalidParams(f"Invalid inputResponses: {mistake}") from None
        # Removed before it is used: a ticket is valid once, and a replayed round must not be able to answer the same
        # request twice.
        parked = self._parked.pop(ticket, None)
        if parked is None:
            raise InvalidParams("Invalid requestState: the call has ended; send it again without the state")
        self._discard(parked)
        parked.resolve_inputs(answers)
        return await self._round(call, parked)

    async def _round(
        self, call: Call, parked: SuspendedCall, detach: Callable[[SuspendedCall], Any] | None = None
    ) -> Any:
        """Wait for the result or for an input request. If the client disconnects, the call is cancelled."""
        parked.reply.outer = call.reply
        assert parked.task is not None
        try:
            while not parked.task.done() and not parked.asked:
                parked.news.clear()
                news = asyncio.ensure_future(parked.news.wait())
                try:
                    await asyncio.wait([parked.task, news], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
            if not parked.task.done():
                # Without the short wait a tool that asks for three things would need three round trips.
                # A tool with several requests sends them in quick succession; collect them.
                await asyncio.wait([parked.task], timeout=REQUEST_BATCH_SECONDS)
            if parked.task.done():
                return parked.task.result()
            return self._suspend(parked) if detach is None else detach(parked)
        except BaseException:
            parked.task.cancel()
            raise
        finally:
            parked.reply.outer = None

    def _suspend(self, parked: SuspendedCall) -> InputRequiredResult:
        """Store a suspended call and return the input-required result with its sealed ticket."""
        self.expire_stale()
        if len(self._parked) >= MAX_SUSPENDED_CALLS or self._owners[parked.owner] >= MAX_SUSPENDED_CALLS_PER_CALLER:
            raise ToolError("Too many calls wait for client input.", error_type="ApiLimitExceeded", retryable=True)
        # 128 random bits. The seal already prevents guessing; randomness keeps tickets unique over restarts.
        ticket = msgspec.json.encode(os.urandom(16).hex())
        self._parked[msgspec.json.decode(ticket)] = parked
        self._owners[parked.owner] += 1
        parked.until = time.monotonic() + SUSPENDED_CALL_TTL_SECONDS
        state = self._seal.seal(parked.binding, {}, {"ticket": Raw(ticket)}, list(parked.asked))
        return InputRequiredResult(input_requests=dict(parked.asked), request_state=pin_to_process(state))

    def expire_stale(self) -> None:
        """Cancel calls whose clients did not return in time; the upstream receives a cancellation."""
        now = time.monotonic()
        # Insertion order is the order of expiry, because every call gets the same lifetime when it is suspended.
        while self._parked and next(iter(self._parked.values())).until < now:
            _, parked = self._parked.popitem(last=False)
            self._abort(parked)

    def _find_oldest_ticket(self, alias: str, owner: str) -> str | None:
        own = (
            ticket
            for ticket, suspended in self._parked.items()
            if suspended.alias == alias and suspended.owner == owner
        )
        return next(own, None)

    async def evict_oldest(self, alias: str, owner: str) -> bool:
        """End the caller's longest suspended call at an upstream. Return False if there is none."""
        ticket = self._find_oldest_ticket(alias, owner)
        if ticket is None:
            return False
        parked = self._parked.pop(ticket)
        self._abort(parked)
        if parked.task is not None:
            await asyncio.wait([parked.task])
        return True

    def _abort(self, parked: SuspendedCall) -> None:
        self._discard(parked)
        if parked.task is not None:
            parked.task.cancel()

    def _discard(self, parked: SuspendedCall) -> None:
        self._owners[parked.owner] -= 1
        if not self._owners[parked.owner]:
            del self._owners[parked.owner]

    def close(self) -> None:
        while self._parked:
            self._abort(self._parked.popitem()[1])
