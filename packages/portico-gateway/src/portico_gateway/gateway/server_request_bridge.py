"""Questions of an upstream that asks in requests, put to a client that answers in rounds: the call is parked.

It goes on waiting in this process while its client is told what is asked. The client sends the call again with its
answers and a sealed ticket, which is good for one round, and for the principal and the arguments it was made for. Other
processes that serve the same clients see by the ticket whose it is.
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
from portico.protocol.errors import Closed, InvalidParams, ToolError
from portico.rpc.call import Ask, Call, Reply
from portico.rpc.fair_queue import caller_of
from portico.server.context.request_state import Seal, kept_here

MOST_PARKED = 10_000
MOST_PARKED_PER_OWNER = 64
PARKED_SECONDS = 600.0
GATHER_SECONDS = 0.02

_answers = msgspec.json.Decoder(dict[str, Raw])


class _Passing(Reply):
    """The way back of a parked call: that of whichever round is under way."""

    outer: Reply | None = None
    put: Ask | None = None

    async def _ask(self, method: str, params: Any) -> Raw:
        return await (super()._ask(method, params) if self.put is None else self.put(method, params))

    def _emit(self, method: str, params: Any) -> None:
        if self.outer is not None:
            self.outer.emit(method, params)


class Parked(Struct, eq=False):
    """A call that goes on while its client is asked."""

    owner: str
    alias: str
    binding: bytes
    reply: _Passing
    task: asyncio.Task[Any] | None = None
    # What is asked and not yet answered, by the key that the client knows it by.
    waiting: dict[str, asyncio.Future[Raw]] = {}
    asked: dict[str, InputRequest] = {}
    news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    number: int = 0
    until: float = 0.0
    # Called when something is asked, answered or done.
    changed: Callable[[], None] = lambda: None

    async def ask(self, method: str, params: Any) -> Raw:
        """The client's answer, in some round to come."""
        self.number += 1
        key = f"question-{self.number}"
        future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self.waiting[key], self.asked[key] = future, InputRequest(method=method, params=params)
        self.news.set()
        self.changed()
        try:
            return await future
        finally:
            # The upstream may have taken it back.
            self.waiting.pop(key, None)
            self.asked.pop(key, None)
            self.changed()

    def finish(self, task: asyncio.Task[Any]) -> None:
        """The call is over: what it asked is not to be answered any more, and what it came to may be of no use."""
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(Closed("the call that it was asked for is over"))
        if not task.cancelled():
            task.exception()
        self.changed()

    def answer(self, given: dict[str, Raw]) -> None:
        for key, future in list(self.waiting.items()):
            if key in given and not future.done():
                future.set_result(given[key])
                del self.waiting[key], self.asked[key]


def begin(
    call: Call, alias: str, bound: bytes, send: Callable[[Call, Parked], Awaitable[Any]], *, asks: bool = False
) -> Parked:
    """Have a call go on by itself. `asks`: also what is asked on its way back is put to its client."""
    parked = Parked(caller_of(call)[0], alias, bound, _Passing())
    if asks:
        parked.reply.asks, parked.reply.put = True, parked.ask
    inner = replace(call, reply=parked.reply)
    parked.task = asyncio.create_task(send(inner, parked))  # type: ignore[arg-type]
    parked.task.add_done_callback(parked.finish)
    return parked


class Bridge:
    """The parked calls of one gateway."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._parked: OrderedDict[str, Parked] = OrderedDict()
        self._owners: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._parked)

    async def begin(
        self,
        call: Call,
        alias: str,
        bound: bytes,
        send: Callable[[Call, Parked], Awaitable[Any]],
        detach: Callable[[Parked], Any] | None = None,
    ) -> Any:
        """The result of a call, or what is asked before it. `send` is given the call to send, and whom to ask.

        With `detach` a call that asks is given to it, in place of being parked."""
        parked = begin(call, alias, bound, send)
        return await self._round(call, parked, detach)

    async def resume(self, call: Call, bound: bytes, state: str, responses: Raw) -> Any:
        """The next round of a call that was parked. Raises InvalidParams for a ticket that is not good (any more)."""
        opened = self._seal.open(state, bound)
        ticket = msgspec.json.decode(opened.steps.get("ticket", b'""'))
        try:
            given = _answers.decode(responses) if responses else {}
        except msgspec.DecodeError as mistake:
            raise InvalidParams(f"Invalid inputResponses: {mistake}") from None
        parked = self._parked.pop(ticket, None)
        if parked is None:
            raise InvalidParams("Invalid requestState: this call is over; send it again without the state")
        self._leave(parked)
        parked.answer(given)
        return await self._round(call, parked)

    async def _round(self, call: Call, parked: Parked, detach: Callable[[Parked], Any] | None = None) -> Any:
        """Wait for the result or for a question. A client that goes away meanwhile ends the call."""
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
                # A body that asks several things asks them one right after the other.
                await asyncio.wait([parked.task], timeout=GATHER_SECONDS)
            if parked.task.done():
                return parked.task.result()
            return self._park(parked) if detach is None else detach(parked)
        except BaseException:
            parked.task.cancel()
            raise
        finally:
            parked.reply.outer = None

    def _park(self, parked: Parked) -> InputRequiredResult:
        self.sweep()
        if len(self._parked) >= MOST_PARKED or self._owners[parked.owner] >= MOST_PARKED_PER_OWNER:
            raise ToolError("Too many calls wait for answers.", kind="ApiLimitExceeded", retryable=True)
        ticket = msgspec.json.encode(os.urandom(16).hex())
        self._parked[msgspec.json.decode(ticket)] = parked
        self._owners[parked.owner] += 1
        parked.until = time.monotonic() + PARKED_SECONDS
        state = self._seal.close(parked.binding, {}, {"ticket": Raw(ticket)}, list(parked.asked))
        return InputRequiredResult(input_requests=dict(parked.asked), request_state=kept_here(state))

    def sweep(self) -> None:
        """End those whose clients did not come back; the upstream is told that they are cancelled."""
        now = time.monotonic()
        while self._parked and next(iter(self._parked.values())).until < now:
            _, parked = self._parked.popitem(last=False)
            self._end(parked)

    def _oldest(self, alias: str, owner: str) -> str | None:
        own = (ticket for ticket, one in self._parked.items() if one.alias == alias and one.owner == owner)
        return next(own, None)

    async def end_oldest(self, alias: str, owner: str) -> bool:
        """End the call of a caller at an upstream that has been parked longest. Returns False if none is."""
        ticket = self._oldest(alias, owner)
        if ticket is None:
            return False
        parked = self._parked.pop(ticket)
        self._end(parked)
        if parked.task is not None:
            await asyncio.wait([parked.task])
        return True

    def _end(self, parked: Parked) -> None:
        self._leave(parked)
        if parked.task is not None:
            parked.task.cancel()

    def _leave(self, parked: Parked) -> None:
        self._owners[parked.owner] -= 1
        if not self._owners[parked.owner]:
            del self._owners[parked.owner]

    def close(self) -> None:
        while self._parked:
            self._end(self._parked.popitem()[1])
