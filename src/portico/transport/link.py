"""A way to a server, as a client uses it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw

from portico.rpc.channel import Channel
from portico.wire import jsonrpc
from portico.wire.errors import InternalError, TimedOut
from portico.wire.jsonrpc import ErrorBody, Frame, Malformed, RequestId
from portico.wire.methods import LASTING
from portico.wire.revisions import MODERN, V2025_03_26, Revision
from portico.wire.tools import Tool

log = logging.getLogger("portico")

# The longest message that is taken from a server.
LONGEST_ANSWER = 64 * 1024 * 1024

Trace = Callable[[str, bytes], None]
"""Is shown every message: "sent" or "received", and its bytes."""

_ID = re.compile(rb'"id"\s*:\s*(\d{1,18})\b')


class Link:
    """What is the same wherever both sides share one stream; HTTP, where they do not, has more to say."""

    channel: Channel
    name = "the server"
    # Told when nothing was heard for a while, and when nothing will be any more though nobody closed it.
    gap: Callable[[], None] = staticmethod(lambda: None)
    # Who we are to the server: changes when somebody else logs in, and what was cached for the other is not for them.
    identity = 0

    @property
    def closed(self) -> bool:
        return self.channel.closed

    async def start(self) -> None:
        """Make the connection."""

    async def request(
        self, method: str, params: Any, *, timeout: float | None = None, id: RequestId | None = None
    ) -> Raw:
        return await self.channel.request(method, params, timeout=timeout, id=id)

    async def notify(self, method: str, params: Any = None) -> None:
        self.channel.emit(method, params)

    def new_id(self) -> int:
        """An id for a request, for who has to know it before the answer comes."""
        return self.channel.new_id()

    def settle(self, revision: Revision) -> None:
        """The two sides have found their revision."""

    def learn(self, tools: list[Tool]) -> list[Tool]:
        """Look at what the server offers; gives the tools that can be called this way."""
        return tools

    def show(self, trace: Trace) -> None:
        """Show each message to somebody."""
        send, receive = self.channel.send, self.channel.receive

        def sending(message: bytes) -> None:
            trace("sent", message)
            send(message)

        def receiving(message: bytes) -> bytes | None:
            trace("received", message)
            return receive(message)

        self.channel.send, self.channel.receive = sending, receiving  # type: ignore[method-assign, assignment]

    async def close(self) -> None:
        self.channel.close()


class Duplex(Link):
    """Where one stream carries all that a server says, and only ids tell what is the answer to what."""

    def __init__(self) -> None:
        self._waiting: dict[RequestId, str] = {}
        self._newest = 0
        self._modern = False
        self._warned = False
        # Something came that could have been the answer to any of several questions.
        self._oddity = ""
        self._trace: Trace | None = None

    async def request(
        self, method: str, params: Any, *, timeout: float | None = None, id: RequestId | None = None
    ) -> Raw:
        id = self.new_id() if id is None else id
        self._waiting[id] = method
        try:
            return await self._ask(id, method, params, timeout)
        except TimedOut:
            hint = f"; it gave {self._oddity}" if self._oddity else ""
            raise TimedOut(f"{self.name}: {method} was not answered within {timeout:g} s{hint}") from None
        finally:
            del self._waiting[id]

    async def _ask(self, id: RequestId, method: str, params: Any, timeout: float | None) -> Raw:
        return await self.channel.request(method, params, timeout=timeout, id=id)

    def new_id(self) -> int:
        self._newest = self.channel.new_id()
        return self._newest

    def settle(self, revision: Revision) -> None:
        self._modern = revision >= MODERN
        self.channel.batches = revision == V2025_03_26

    def show(self, trace: Trace) -> None:
        self._trace = trace

    def take(self, data: bytes) -> None:
        """One message, as it came."""
        if self._trace is not None:
            self._trace("received", data)
        frame = jsonrpc.decode(data)
        if type(frame) is Frame:
            if frame.method is UNSET:
                if frame.id not in self._waiting:
                    self._puzzle_over(frame)
                    return
            elif self._modern and frame.id is not UNSET:
                self._ignore("asks something in a revision where servers do not ask")
                return
        elif isinstance(frame, Malformed):
            self._make_do(frame, data)
            return
        elif not self.channel.batches:
            self._blame("a batch, where there are none")
            return
        reply = self.channel.accept(frame)
        if reply is not None:
            self.channel.send(reply)

    def _ignore(self, what: str) -> None:
        # Once: whoever is not answered may go on without end.
        if not self._warned:
            log.warning("%s %s; it is not answered", self.name, what)
        self._warned = True

    # What is not as it should be

    def _puzzle_over(self, frame: Frame) -> None:
        """An answer to what we do not wait for: late, or wrong."""
        id = frame.id
        if isinstance(id, int) and 0 < id <= self._newest:
            log.debug("%s: an answer to %d, which nobody waits for any more", self.name, id)
        elif isinstance(id, int | str):
            self._blame(f"an answer with the id {str(id)[:100]!r}, which nobody has asked")
        elif isinstance(frame.error, ErrorBody) and len(found := self._suspects()) == 1:
            # It could not read what we said, so it could not read its id.
            self._settle(found[0], frame.error)
        else:
            self._oddity = "an answer without an id"

    def _make_do(self, found: Malformed, data: bytes) -> None:
        """A message that is none. If it can be told whose answer it wanted to be, they are not left waiting."""
        id: RequestId | None = found.id
        if id is None and data.lstrip()[:1] == b"{" and (match := _ID.search(data)):
            id = int(match[1])
        is_request = b'"method"' in data and not found.is_response
        if id in self._waiting and not is_request:
            self._fail(id, f"an answer that cannot be read: {found.error.message}")
        elif found.id is not None and is_request and not self._modern:
            self.channel.send(jsonrpc.error(found.id, found.error, self.channel.revision))
        else:
            # Programs print all kinds of things where they should not.
            log.debug("%s: %s", self.name, found.error.message)

    def _blame(self, what: str) -> None:
        """Something is wrong, and if only one question is open, then with its answer."""
        self._oddity = what
        found = self._suspects()
        if len(found) == 1:
            self._fail(found[0], what)

    def _suspects(self) -> list[RequestId]:
        return [id for id, method in self._waiting.items() if method not in LASTING]

    def _fail_all(self, what: str) -> None:
        for id in list(self._waiting):
            self._fail(id, what)

    def _fail(self, id: RequestId, what: str) -> None:
        method = self._waiting[id]
        self._settle(id, ErrorBody(InternalError.code, f"{self.name}, {method}: it gave {what}"))

    def _settle(self, id: RequestId, error: ErrorBody) -> None:
        self.channel.accept(Frame(jsonrpc="2.0", id=id, error=error))
