"""Sessions over HTTP, 2025-03-26 to 2025-11-25: streams that outlive their connections.

Each POST that has to wait has a stream of its own, and a GET opens one for what is said to the session as a whole. A
stream's events have ids and are kept, within bounds, so that a client that lost its connection comes back with the last
id it saw and misses nothing. What is said to a session while no GET is open is kept once, and not for ever.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

from portico.legacy.changes import ListChanges
from portico.legacy.session import Lifecycle, Session, SessionFacts
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.door import Sender
from portico.rpc.identity import identity_of
from portico.rpc.metrics import Metrics
from portico.transport.http import sse
from portico.transport.http.elsewhere import Elsewhere
from portico.transport.http.memo import EventMemo, SessionMemo
from portico.transport.http.response import JSON, MOST_UNREAD, Answer, Pairs, Request, ResponseWriter, Traffic
from portico.transport.http.stateless import Forbidden
from portico.wire import jsonrpc, notices
from portico.wire.errors import Closed, InternalError
from portico.wire.jsonrpc import RequestId
from portico.wire.revisions import V2025_11_25

# How many events a session keeps for clients that come back, and how many bytes of them.
MOST_EVENTS = 1000
MOST_BYTES = 1024 * 1024
# The same for what is said to a session as a whole: on its streams by GET, or while it has none.
MOST_NOTICES = 100
MOST_NOTICE_BYTES = 32 * 1024
# Streams by GET that a session may have at once.
MOST_STREAMS = 8
RETRY_MS = 1000
IDLE_SECONDS = 1800.0
# How many sessions are looked at to find one that can go.
MOST_CANDIDATES = 100

_MISSABLE = frozenset({notices.MESSAGE, notices.PROGRESS})

# A stream, an event of it, and which connection it was that began after that event. Streams by GET begin with an `s`;
# where sessions move, those by POST end with the id of the request.
_EVENT_ID = re.compile(r"(s?[0-9]{1,11}(?:\.[ix][0-9a-f]{1,64})?)-([0-9]{1,11})(?:-[0-9]{1,11})?")
LONGEST_CODED = 32
# A session that was taken over begins its numbers here, times how often it was.
NUMBERS_OF_MOVE = 10_000_000
LAST_NUMBER = 99_999_999_999


class _Events:
    """The newest events, so many of them and so many bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[EventMemo] = deque()
        self.bytes = 0

    def keep(self, event: EventMemo) -> None:
        self._kept.append(event)
        self.bytes += len(event.message)
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self.bytes -= len(self._kept.popleft().message)

    def __iter__(self) -> Iterator[EventMemo]:
        return iter(self._kept)

    def after(self, stream: str, number: int) -> list[EventMemo]:
        return [one for one in self._kept if one.stream == stream and one.number > number]


class SessionStream:
    """The messages of one POST, or of the session as a whole; with or without a client connected to it."""

    def __init__(self, session: HttpSession, name: str, writer: ResponseWriter | None) -> None:
        self.session = session
        self.name = name
        self.writer = writer
        self.headers: Pairs = ()
        # The one request of a POST, and its id; none for a batch.
        self.asked: tuple[Request, RequestId] | None = None
        # The scopes without which it is not answered.
        self._lacking: frozenset[str] | None = None
        # The seconds after which to try again, where too much was asked.
        self._retry_after: float | None = None
        # By whom it was opened, and when the token ends that was shown for it, in seconds since 1970.
        self.principal: Any = None
        self.until: float | None = None
        # Whether its client takes events at all.
        self.plain = False
        self.done = False
        self._events = 0
        self._started = False

    # What a Channel needs of it

    def emit(self, method: str, params: Any) -> None:
        # What cannot be said here is said to the session, if a client listens to it.
        if not self.plain or self._started:
            self.say(jsonrpc.notification(method, params))
        elif method not in _MISSABLE or self.session.is_heard:
            self.session.say(jsonrpc.notification(method, params))

    def send(self, message: bytes) -> None:
        if self.plain and not self._started:
            self.session.ask(message)
        else:
            self.say(message)

    def lack(self, scopes: frozenset[str]) -> None:
        self._lacking = scopes

    def postpone(self, seconds: float) -> None:
        self._retry_after = seconds

    def finish(self, message: bytes | None) -> None:
        """The answer. Plain JSON when nothing was said before it; an event otherwise."""
        if self.done:
            return
        self.done = True
        if self._started or self.writer is None:
            if message is not None:
                self.say(message)
            self.end()
        else:
            writer, self.writer = self.writer, None
            writer.on_close = None
            self.session.traffic.sent += len(message or b"")
            writer.answer(self._answer(message))
        self.session.forget(self)

    def _answer(self, message: bytes | None) -> Answer:
        if message is None:
            return Answer(202, self.headers)
        forbidden = self.session.sessions.forbidden
        if self._lacking is not None and self.asked is not None and forbidden is not None:
            request, id = self.asked
            refused = forbidden(request, self._lacking, id)
            if refused is not None:
                return refused
        if self._retry_after is not None and self.asked is not None:
            wait = (b"retry-after", b"%d" % ceil(self._retry_after))
            return Answer(429, (*JSON, wait, *self.headers), message)
        return Answer(200, (*JSON, *self.headers), message)

    def release(self) -> None:
        """Let the client go; it comes back for the rest."""
        if self.session.resumes and not self.plain:
            self.start()
            self.end()

    # Connections

    def start(self, at: int = 0) -> None:
        if self._started or self.writer is None:
            return
        self._started = True
        self.writer.start(200, (*sse.HEADERS, *self.headers))
        self.session.sessions.open_streams[self] = None
        if self.session.resumes:
            # 2025-11-25 alone: clients before it do not expect an event without data. It names the place they are at,
            # and the connection, because an id may not be given twice.
            self.writer.write(sse.priming(self._id(at) + b"-%d" % self.session.connection(), RETRY_MS))

    def attach(self, writer: ResponseWriter, headers: Pairs, after: int) -> None:
        """A client is here (again): what it has not seen comes first."""
        self.end()
        self.writer, self.headers, self._started = writer, headers, False
        writer.on_close = self.detach
        self.start(after)
        for event in self.kept.after(self.name, after):
            writer.write(sse.event(event.message, self._id(event.number)))
        if self.done:
            self.end()

    async def drain(self) -> None:
        if self.writer is not None:
            await self.writer.drain()

    def detach(self) -> None:
        """The connection is gone. That is no cancellation: the work goes on (basic/transports, Resumability)."""
        self.writer = None
        self.session.detached(self)

    def end(self) -> None:
        writer = self.writer
        if writer is None:
            return
        self.detach()
        writer.on_close = None
        if self._started:
            writer.end()
        else:
            writer.answer(Answer(202, self.headers))

    def say(self, message: bytes) -> None:
        self._events = self._next()
        self.kept.keep(EventMemo(self.name, self._events, message))
        if self.writer is None:
            return
        self.start()
        if self.writer.buffered() > MOST_UNREAD:
            self.writer.abort()
        else:
            self.session.traffic.sent += len(message)
            self.writer.write(sse.event(message, self._id(self._events)))

    def keep_alive(self) -> None:
        if self.writer is not None:
            self.writer.write(sse.KEEP_ALIVE)

    def _next(self) -> int:
        return self._events + 1

    @property
    def kept(self) -> _Events:
        return self.session.kept

    def _id(self, number: int) -> bytes:
        return f"{self.name}-{number}".encode()


class _GetStream(SessionStream):
    """What is said to the session as a whole. Streams by GET share the numbers of their events, so that one that is
    gone on with needs nothing but its name."""

    def _next(self) -> int:
        return self.session.event()

    @property
    def kept(self) -> _Events:
        return self.session.kept_of_get


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
        self._open: list[_GetStream] = []
        self._last = self._event = self._connection = 0
        self.kept = _Events(MOST_EVENTS, MOST_BYTES)
        self.kept_of_get = _Events(MOST_NOTICES, MOST_NOTICE_BYTES)
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
        stream = _GetStream(self, name, None)
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
        if isinstance(stream, _GetStream) and stream in self._open:
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


class _ByAge:
    """Sessions in the order in which they were last used, those that were never used after `initialize` before them."""

    def __init__(self) -> None:
        self._unused: OrderedDict[str, HttpSession] = OrderedDict()
        self._used: OrderedDict[str, HttpSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unused) + len(self._used)

    def add(self, session: HttpSession) -> None:
        self._unused[session.id] = session

    def use(self, session: HttpSession) -> None:
        self._unused.pop(session.id, None)
        self._used[session.id] = session
        self._used.move_to_end(session.id)

    def remove(self, session: HttpSession) -> None:
        self._unused.pop(session.id, None)
        self._used.pop(session.id, None)

    def oldest(self) -> list[HttpSession]:
        """The oldest of each kind, as far as there are any."""
        return [next(iter(those.values())) for those in (self._unused, self._used) if those]


class Sessions:
    """The sessions of one process, by id. The id of another principal is an unknown id.

    There are `most` in all, `most_per_client` from one address. Beyond that the oldest idle one makes room.
    """

    def __init__(self, handler: Handler, most: int, most_per_client: int) -> None:
        self.changes = ListChanges(handler)
        # The other processes that serve the same clients.
        self.elsewhere: Elsewhere | None = None
        # Streams with a client that reads events.
        self.open_streams: dict[SessionStream, None] = {}
        # Says what a client hears that lacks scopes, where it can get them.
        self.forbidden: Forbidden | None = None
        self._most = most
        self._most_per_client = most_per_client
        self._by_id: dict[str, HttpSession] = {}
        self._by_age = _ByAge()
        self._by_address: dict[str, _ByAge] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def new_id(self) -> str:
        return os.urandom(24).hex() if self.elsewhere is None else self.elsewhere.new_id()

    def values(self) -> list[HttpSession]:
        return list(self._by_id.values())

    def add(self, session: HttpSession) -> bool:
        """Take a session in. Whether there is room for it, or could be made."""
        near = self._by_address.get(session.address)
        if near is not None and len(near) >= self._most_per_client and not self._make_room(near):
            return False
        if len(self._by_id) >= self._most and not self._make_room(self._by_age):
            return False
        self._by_id[session.id] = session
        self._by_age.add(session)
        self._by_address.setdefault(session.address, _ByAge()).add(session)
        return True

    def _make_room(self, among: _ByAge) -> bool:
        """End the oldest idle one. Those that are found in use are old no more, so they are not met again."""
        for _ in range(MOST_CANDIDATES):
            for session in among.oldest():
                if not session.in_use:
                    self.end(session)
                    return True
                self._use(session)
        return False

    def find(self, id: str, principal: Any) -> HttpSession | None:
        session = self._by_id.get(id)
        if session is None or not session.belongs_to(principal):
            return None
        self._use(session)
        return session

    def _use(self, session: HttpSession) -> None:
        session.used = time.monotonic()
        self._by_age.use(session)
        self._by_address[session.address].use(session)

    def end(self, session: HttpSession) -> None:
        if self.remove(session) and self.elsewhere is not None:
            self.elsewhere.ended(session)

    def remove(self, session: HttpSession) -> bool:
        """It is no longer here, but may be elsewhere. Whether it was here."""
        taken = self.take_out(session)
        if taken:
            session.close()
        return taken

    def take_out(self, session: HttpSession) -> bool:
        """The same, while its streams stay open: nothing more is said on them."""
        if self._by_id.pop(session.id, None) is None:
            return False
        near = self._by_address[session.address]
        near.remove(session)
        if not near:
            del self._by_address[session.address]
        self._by_age.remove(session)
        session.fall_silent()
        return True

    def expire(self, idle_seconds: float) -> int:
        """End the sessions that were idle for so long. Returns how many were looked at: the old ones, not all."""
        looked_at, before = 0, time.monotonic() - idle_seconds
        while old := [session for session in self._by_age.oldest() if session.used < before]:
            for session in old:
                looked_at += 1
                if session.in_use:
                    self._use(session)
                else:
                    self.end(session)
        return looked_at

    def keep_alive(self) -> None:
        now = time.time()
        for stream in list(self.open_streams):
            if stream.until is not None and now >= stream.until:
                # Its principal is none any more. A client with a new token comes back for the rest.
                stream.end()
            else:
                stream.keep_alive()

    def end_listening(self, revoked: Callable[[Any], bool]) -> None:
        """End the streams by GET of such principals."""
        for stream in [one for one in self.open_streams if isinstance(one, _GetStream) and revoked(one.principal)]:
            stream.end()

    def close(self) -> None:
        for session in self.values():
            # Other processes may go on with it.
            self.remove(session)
        self.changes.end()


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
