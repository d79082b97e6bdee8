"""One connection to a server, as a Handler."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import Closed, InternalError, InvalidParams
from portico.protocol.jsonrpc import ErrorBody, Frame, Malformed, RequestId
from portico.protocol.methods import LASTING, METHODS
from portico.protocol.tools import Tool
from portico.protocol.versions import MODERN, V2025_03_26, Revision
from portico.rpc.call import Call, Handler
from portico.rpc.channel import Channel
from portico.rpc.dispatcher import Sender
from portico.rpc.handshake.session import Session

log = logging.getLogger("portico")

# The longest message that is taken from a server.
LONGEST_ANSWER = 64 * 1024 * 1024

# Of the lines between messages that are remembered.
MAX_NOISE_LINES = 5
MAX_NOISE_BYTES = 200

Trace = Callable[[str, bytes], None]
"""Is shown every message: "sent" or "received", and its bytes."""

# Whether what a server sends came on the stream of one request. That request is then the one of the surrounding task.
on_own_stream: ContextVar[bool] = ContextVar("on_own_stream", default=False)

_ID = re.compile(rb'"id"\s*:\s*(\d{1,18})\b')
_BATCH = re.compile(rb"\s*\[")
_anything = msgspec.json.Decoder(Raw)


def is_batch(data: bytes) -> bool:
    """Whether a message is an array. It is asked before the message is read: reading a long one takes long.

    Programs print lines that begin like one, so it is looked at to its end, without making anything of it."""
    try:
        return _BATCH.match(data) is not None and bool(_anything.decode(data))
    except (msgspec.DecodeError, RecursionError):
        return False


def ended_subscription(notice: Frame) -> RequestId | None:
    """The request whose subscription a server says to have ended; None if this says nothing of the kind.

    2026-07-28, basic/patterns/cancellation: there is nothing else that servers cancel.
    """
    if notice.method != notifications.CANCELLED or notice.id is not UNSET:
        return None
    try:
        id: RequestId = METHODS[notifications.CANCELLED].decode(notice.params).request_id
    except InvalidParams:
        return None
    return id


class Link:
    """One connection to a server: `await link(call)` sends a Call and gives its result, undecoded.

    The id of a Call is its id on the wire, and its params are sent as they are; a Call without an id is a
    notification. Cancelling the Call tells the server. What the server sends besides results goes to the handler that
    the link was made with. The Reply of a Call is closed when its answer is there.
    """

    channel: Channel
    name = "the server"
    # Called when messages may have been missed, or when the connection ended without having been closed.
    on_gap: Callable[[], None] = staticmethod(lambda: None)
    # Changes when another user logs in: results that were cached for the one before are not for them.
    identity = 0
    # Why a request may have timed out, as far as the link knows: "; it gave …".
    hint = ""

    def __init__(self, trace: Trace | None = None) -> None:
        self.new_id: Callable[[], int] = count(1).__next__
        self._trace = trace
        self._warned = False

    @property
    def closed(self) -> bool:
        return self.channel.closed

    @property
    def last_lines(self) -> list[str]:
        """What the server has said last besides messages, where it can."""
        return []

    def set_trace(self, trace: Trace | None) -> None:
        self._trace = trace

    async def start(self) -> None:
        """Make the connection."""

    async def __call__(self, call: Call) -> Any:
        raise NotImplementedError

    def set_revision(self, revision: Revision) -> None:
        """The two sides have agreed on a revision."""

    def usable_tools(self, tools: list[Tool]) -> list[Tool]:
        """Of the tools that the server lists, those that can be called over this transport."""
        return tools

    async def close(self) -> None:
        self.channel.close()

    def _refuse_question(self) -> None:
        # Once: a server that asks and is not answered may go on without end.
        if not self._warned:
            log.warning("%s asks something in a revision where servers do not ask; it is not answered", self.name)
        self._warned = True


class Duplex(Link):
    """A link where one stream carries all that a server says: only ids tell which answer is to which request."""

    def __init__(self, trace: Trace | None = None) -> None:
        super().__init__(trace)
        self._pending: dict[RequestId, Call] = {}
        self._newest = 0
        self._modern = False
        # Lines that are no messages, such as a banner that a server prints to standard output: the first few.
        self.noise: list[str] = []

    async def __call__(self, call: Call) -> Any:
        id = call.id
        if id is None:
            await self._notify(call.method, call.params)
            return None
        assert isinstance(id, int)
        self._newest = max(self._newest, id)
        self._pending[id] = call
        try:
            return await self._ask(id, call.method, call.params)
        finally:
            del self._pending[id]

    async def _ask(self, id: int, method: str, params: Raw) -> Raw:
        return await self.channel.request(method, params, id=id)

    async def _notify(self, method: str, params: Raw) -> None:
        self.channel.emit(method, params or None)

    def set_revision(self, revision: Revision) -> None:
        self._modern = revision >= MODERN
        self.channel.batches = revision == V2025_03_26

    def take(self, data: bytes) -> None:
        """One message, as it came."""
        if self._trace is not None:
            self._trace("received", data)
        if not self.channel.batches and is_batch(data):
            self._fail_sole_pending("a batch, where there are none")
            return
        frame = jsonrpc.decode(data)
        if isinstance(frame, Malformed):
            self._on_malformed(frame, data)
            return
        if type(frame) is Frame and not self._is_expected(frame):
            return
        reply = self.channel.accept(frame)
        if reply is not None:
            self.channel.send(reply)

    def _is_expected(self, frame: Frame) -> bool:
        """Whether a message is one for the Channel; what is not has been dealt with."""
        if frame.method is UNSET:
            call = self._pending.get(frame.id)  # type: ignore[arg-type]
            if call is None:
                self._on_unmatched_response(frame)
                return False
            # At once: what is said of it in the same breath, but after the answer, is too late.
            call.reply.close()
        elif self._modern and frame.id is not UNSET:
            self._refuse_question()
            return False
        elif self._modern and (id := ended_subscription(frame)) is not None:
            if id in self._pending and self._pending[id].method in LASTING:
                self.channel.fail(Closed(f"{self.name} has ended {self._pending[id].method}"), id)
            return False
        return True

    # What is not as it should be

    def _on_unmatched_response(self, frame: Frame) -> None:
        """Handle an answer whose id is not pending: it is late, or wrong."""
        id = frame.id
        if isinstance(id, int) and 0 < id <= self._newest:
            log.debug("%s: a late answer to the request %d", self.name, id)
        elif isinstance(id, int | str):
            what = f"an answer with the id {str(id)[:100]!r}, which was not asked"
            self.hint = f"; it gave {what}"
            # A server that makes texts of numbers will go on so; else the right answer may still come.
            for meant in [one for one in self._pending if str(one) == id]:
                self._fail(meant, what)
        elif isinstance(frame.error, ErrorBody) and len(pending := self._pending_requests()) == 1:
            # It could not read what we said, so it could not read its id.
            self._conclude(pending[0], frame.error)
        else:
            self.hint = "; it gave an answer without an id"

    def _on_malformed(self, malformed: Malformed, data: bytes) -> None:
        """Handle a message that cannot be read; if its id can be recovered, fail that request."""
        id: RequestId | None = malformed.id
        if id is None and data.lstrip()[:1] == b"{" and (match := _ID.search(data)):
            id = int(match[1])
        is_request = b'"method"' in data and not malformed.is_response
        if id in self._pending and not is_request:
            self._fail(id, f"an answer that cannot be read: {malformed.error.message}")
        elif malformed.id is not None and is_request and not self._modern:
            self.channel.send(jsonrpc.error(malformed.id, malformed.error, self.channel.revision))
        else:
            # Programs print all kinds of things where they should not.
            if len(self.noise) < MAX_NOISE_LINES:
                self.noise.append(data[:MAX_NOISE_BYTES].decode(errors="replace"))
            log.debug("%s: %s", self.name, malformed.error.message)

    def _fail_sole_pending(self, what: str) -> None:
        """If only one request is pending, then the wrong answer was meant for that one."""
        self.hint = f"; it gave {what}"
        pending = self._pending_requests()
        if len(pending) == 1:
            self._fail(pending[0], what)

    def _pending_requests(self) -> list[RequestId]:
        return [id for id, call in self._pending.items() if call.method not in LASTING]

    def _fail_all(self, what: str) -> None:
        for id in list(self._pending):
            self._fail(id, what)

    def _fail(self, id: RequestId, what: str) -> None:
        self._conclude(id, ErrorBody(InternalError.code, f"{self.name}, {self._pending[id].method}: it gave {what}"))

    def _conclude(self, id: RequestId, error: ErrorBody) -> None:
        self.channel.accept(Frame(jsonrpc="2.0", id=id, error=error))


class MemoryLink(Duplex):
    """A client's Channel, connected to a Handler in this process as over stdio: the messages are real bytes, and go
    through the same door as anywhere else."""

    def __init__(self, server: Handler, client: Handler, *, principal: Any, trace: Trace | None) -> None:
        super().__init__(trace)
        self.session = Session(server)
        self._there = Channel(server, self._to_client, session=self.session, sender=Sender(principal))
        self.channel = Channel(client, self._to_server)

    def _to_server(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        asyncio.get_running_loop().call_soon(self._deliver, message)

    def _deliver(self, message: bytes) -> None:
        reply = self._there.receive(message)
        if reply is not None:
            self._to_client(reply)

    def _to_client(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.take, message)

    async def close(self) -> None:
        self.channel.close()
        await self._there.end(0)
        self.session.close()
