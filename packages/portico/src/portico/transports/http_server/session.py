"""One session over HTTP, 2025-03-26 to 2025-11-25. What is said to it while no GET is open is kept, within bounds."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from portico.protocol import jsonrpc
from portico.protocol.errors import Closed, InternalError
from portico.protocol.jsonrpc import RequestId
from portico.protocol.versions import V2025_11_25
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.dispatcher import Sender
from portico.rpc.handshake.session import Lifecycle, Session, SessionFacts
from portico.rpc.identity import identity_of
from portico.rpc.metrics import Metrics
from portico.transports.http_server.messages import Pairs, Request, ResponseWriter, Traffic
from portico.transports.http_server.session_snapshot import EventMemo, SessionMemo
from portico.transports.http_server.session_streams import GetStream, KeptEvents, SessionStream

if TYPE_CHECKING:
    from portico.transports.http_server.session_manager import Sessions

# How many events a session keeps for clients that come back, and how many bytes of them.
MOST_EVENTS = 1000
MOST_BYTES = 1024 * 1024
# The same for what is said to a session as a whole: on its streams by GET, or while it has none.
MOST_NOTICES = 100
MOST_NOTICE_BYTES = 32 * 1024
# Streams by GET that a session may have at once.
MOST_STREAMS = 8
# A stream, an event of it, and which connection it was that began after that event. Streams by GET begin with an `s`;
# where sessions move, those by POST end with the id of the request.
_EVENT_ID = re.compile(r"(s?[0-9]{1,11}(?:\.[ix][0-9a-f]{1,64})?)-([0-9]{1,11})(?:-[0-9]{1,11})?")
LONGEST_CODED = 32
# A session that was taken over begins its numbers here, times how often it was.
NUMBERS_OF_MOVE = 10_000_000
LAST_NUMBER = 99_999_999_999


class HttpSession:
    """One client's conversation: a Session and its Channel, and the streams they talk through."""

    def __init__(
        self,
        handler: Handler,
        sender: Sender,
        traffic: Traffic,
        metrics: Metrics,
        sessions: Sessions,
        lifecycle: Lifecycle = "auto",
    ) -> None:
        self.traffic = traffic
        self.sessions = sessions
        # POSTs may overtake each other, so a client is not held to the order of the handshake, unless that is wanted.
        is_strict = lifecycle == "strict"
        self.session = Session(handler, lifecycle=lifecycle, in_order=is_strict, changes=sessions.changes)
        self.id = sessions.new_id()
        # Who has begun it.
        self.principal = sender.principal
        self._owner = identity_of(sender.principal)
        self.address = sender.address or ""
        self.channel = Channel(handler, self.say, session=self.session, metrics=metrics, sender=sender)
        self.used = time.monotonic()
        # By POST, and by GET: of these the newest is spoken to.
        self._streams: dict[str, SessionStream] = {}
        self._open: list[GetStream] = []
        self._last = self._event = self._connection = 0
        self.kept = KeptEvents(MOST_EVENTS, MOST_BYTES)
        self.kept_of_get = KeptEvents(MOST_NOTICES, MOST_NOTICE_BYTES)
        # While no GET is open: notifications, each once, and questions.
        self._notices: dict[bytes, None] = {}
        self._notice_bytes = 0
        self._questions: list[bytes] = []
        # Whether there was one, and so may be again.
        self._listened = False
        # How often it was taken over from another process.
        self._moves = 0

    def belongs_to(self, principal: Any) -> bool:
        """Whatever it may do by now: after a step up it is the same one with more scopes."""
        return self._owner == identity_of(principal)

    @property
    def resumes(self) -> bool:
        return self.channel.revision is not None and self.channel.revision >= V2025_11_25

    @property
    def is_heard(self) -> bool:
        """Whether a client listens to what is said to the session as a whole."""
        return bool(self._open)

    def open(self, writer: ResponseWriter, headers: Pairs, id: RequestId | None = None) -> SessionStream:
        """A stream for one POST, whose message may have an id."""
        coded = _coded(id) if self.sessions.elsewhere is not None else ""
        stream = SessionStream(self, f"{self._new_stream()}{coded}", writer)
        stream.headers = headers
        writer.on_close = stream.detach
        self._streams[stream.name] = stream
        return stream

    def listen(self, request: Request, writer: ResponseWriter) -> None:
        """A stream for one GET. A client may have several; what is said is said on one of them."""
        self._listen(f"s{self._new_stream()}", request, writer, self._event)

    def _listen(self, name: str, request: Request, writer: ResponseWriter, after: int) -> None:
        stream = GetStream(self, name, None)
        stream.principal, stream.until = request.principal, request.until
        stream.attach(writer, request.cors, after)
        self._open.append(stream)
        self._listened = True
        self.session.reach(True)
        waiting, self._notices, self._notice_bytes = [*self._questions, *self._notices], {}, 0
        self._questions = []
        for message in waiting:
            self.say(message)
        if len(self._open) > MOST_STREAMS:
            self._open[0].end()

    def resume(self, last_event: str, request: Request, writer: ResponseWriter) -> None:
        """Go on after an event. One we no longer have, or never had, is answered by what there is."""
        found = _EVENT_ID.fullmatch(last_event)
        if found is None:
            self.listen(request, writer)
            return
        name, seen = found[1], int(found[2])
        if name.startswith("s"):
            for stream in [one for one in self._open if one.name == name]:
                stream.end()
            self._listen(name, request, writer, seen)
        else:
            (self._streams.get(name) or self._replay(name)).attach(writer, request.cors, seen)

    def _replay(self, name: str) -> SessionStream:
        """A stream that is over: what is left of it can still be read."""
        stream = SessionStream(self, name, None)
        stream.done = True
        if self._moves and not self.kept.after(name, 0) and "." in name:
            # The process that had it is gone, and the call with it.
            lost = InternalError("Internal error: the process that worked on this call has ended")
            self.kept.keep(EventMemo(name, LAST_NUMBER, jsonrpc.error(_decoded(name), lost, self.channel.revision)))
        return stream

    def forget(self, stream: SessionStream) -> None:
        self._streams.pop(stream.name, None)
        if not self.session.lasting:
            self.session.close()

    def carry(self, facts: SessionFacts | None) -> None:
        """Be there for one request, with what was settled before; without any, for a handshake."""
        self.session.lasting = False
        if facts is not None:
            self.session.assume(facts.revision)
            self.session.client = facts.client

    def detached(self, stream: SessionStream) -> None:
        self.sessions.open_streams.pop(stream, None)
        if isinstance(stream, GetStream) and stream in self._open:
            self._open.remove(stream)
            if not self._open:
                self.session.reach(False)

    # Numbers

    def _new_stream(self) -> int:
        self._last += 1
        return self._last

    def event(self) -> int:
        self._event += 1
        return self._event

    def connection(self) -> int:
        self._connection += 1
        return self._connection

    # What is said to the session as a whole

    def say(self, message: bytes) -> None:
        """Say it on one stream, or keep it for the next: a notification once, however often it was said meanwhile."""
        if self._open:
            self._open[-1].say(message)
            return
        self._notice_bytes += 0 if self._notices.pop(message, True) is None else len(message)
        self._notices[message] = None
        while len(self._notices) > MOST_NOTICES or self._notice_bytes > MOST_NOTICE_BYTES:
            oldest = next(iter(self._notices))
            del self._notices[oldest]
            self._notice_bytes -= len(oldest)

    def ask(self, message: bytes) -> None:
        """The same for a question: a call waits for its answer, and there are no more of them than calls."""
        if self._open:
            self._open[-1].say(message)
        elif self._listened:
            self._questions.append(message)
        else:
            raise Closed("it takes no events, and listens to no stream by which it could be asked")

    def end_listening(self) -> None:
        """End the streams by GET; a client comes back for what it has not seen."""
        for stream in list(self._open):
            stream.end()

    # Going on in another process

    def memo(self, *, events: bool = False) -> SessionMemo | None:
        """What another process needs to go on with it; `events`: and what a client may still ask for."""
        facts = self.session.facts
        if facts is None:
            return None
        memo = SessionMemo(facts=facts, principal=self.principal, address=self.address, moves=self._moves)
        if events:
            memo.events, memo.events_of_get = list(self.kept), list(self.kept_of_get)
            memo.notices, memo.questions = list(self._notices), self._questions
        memo.listened = self._listened
        return memo

    async def restore(self, id: str, memo: SessionMemo) -> None:
        """Be a session that another process has had."""
        self.id = id
        self._moves = memo.moves + 1
        self._last = self._event = self._connection = self._moves * NUMBERS_OF_MOVE
        for event in memo.events:
            self.kept.keep(event)
        for event in memo.events_of_get:
            self.kept_of_get.keep(event)
        self._questions, self._listened = memo.questions, memo.listened
        for message in memo.notices:
            self.say(message)
        await self.session.restore(memo.facts, memo.principal)

    # Age

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being worked on, so that it can be left to another process."""
        return not self.channel.in_flight and not self._streams

    @property
    def in_use(self) -> bool:
        """Whether a client is connected, or waits for something."""
        connected = self._open or any(stream.writer is not None for stream in self._streams.values())
        return bool(connected or self.channel.in_flight)

    def fall_silent(self) -> None:
        """Say and do nothing more. Clients that listen still hear that."""
        self.channel.close()
        self.session.close()

    def close(self) -> None:
        self.fall_silent()
        for stream in [*self._streams.values(), *self._open]:
            stream.done = True
            stream.end()


def _coded(id: RequestId | None) -> str:
    """The id of a request, as part of the name of its stream; nothing for one that is too long."""
    if isinstance(id, int) and id >= 0:
        return f".i{id:x}"
    said = id.encode() if isinstance(id, str) else b""
    return f".x{said.hex()}" if 0 < len(said) <= LONGEST_CODED else ""


def _decoded(name: str) -> RequestId | None:
    code = name.partition(".")[2]
    if code.startswith("i"):
        # A client may say any name; no message has a longer number.
        number = int(code[1:], 16)
        return number if number < 2**63 else None
    try:
        return bytes.fromhex(code[1:]).decode()
    except ValueError:
        return None
