"""Streamable HTTP from the client's side, as each revision has it.

2026-07-28: every request stands alone, its headers repeat what the body says, and to close a stream is to cancel.
Before that: a session with an id, a stream for what the server says unasked, and streams that can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.auth.errors import AuthorizationFailed
from portico.rpc.call import Call, Handler, Listening
from portico.rpc.channel import Channel
from portico.transport.http_client.answers import (
    check_encoding,
    denied,
    expected,
    gist,
    is_lost,
    named,
    result_of,
    retry_after,
    same,
    session_of,
    short,
)
from portico.transport.http_client.connection import HttpConnection, Response
from portico.transport.http_client.events import EventReader
from portico.transport.http_client.limits import limited
from portico.transport.http_client.pool import Headers, Location, Pool, ready_head
from portico.transport.link import LONGEST_ANSWER, Link, Trace, ended_subscription, is_batch, on_own_stream
from portico.wire import jsonrpc, mirrors, notices
from portico.wire.errors import (
    BadStatus,
    Closed,
    ConnectFailed,
    Error,
    ProtocolError,
    SessionLost,
    TimedOut,
    TransportError,
    UsageError,
)
from portico.wire.jsonrpc import NOTHING, Frame, Malformed, RequestId
from portico.wire.methods import LASTING, METHODS
from portico.wire.mirrors import Mirror
from portico.wire.revisions import MODERN, V2025_03_26, V2025_06_18, Revision
from portico.wire.tools import Tool

log = logging.getLogger("portico")

JSON, EVENTS = "application/json", "text/event-stream"
# What is posted without waiting: answers to the server's own questions. Each has a connection to itself.
MOST_ERRANDS = 256
MOST_REDIRECTS = 3
MOST_HEADS = 1000
# How often a stream is taken up again without a single event in between, and the first pause when none is asked for.
RESUMPTIONS = 5
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
SHORTEST_PAUSE_SECONDS = 0.1
# What may come on the way to one answer, and how many times the longest answer that may be in bytes.
MOST_EVENTS = 1_000_000
MOST_ANSWERS_LONG = 4
# How long a server may take to say that it has heard something that it need not answer.
POST_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
# How long a server may take to open the stream for what it says unasked, before we go on without.
ATTEND_SECONDS = 1.0

_REDIRECTS = frozenset({307, 308})
_members = msgspec.json.Decoder(dict[str, Raw])


class _ToolNamed(Struct):
    name: str


_named = msgspec.json.Decoder(_ToolNamed)

_OURS = frozenset(
    {"host", "content-type", "content-length", "accept", "connection", "transfer-encoding", "last-event-id"}
)


class RequestSender(Protocol):
    """Sends a request with whatever proves who we are, and as often as that takes."""

    @property
    def identity(self) -> int: ...

    async def send(
        self, pool: Pool, method: str, location: Location, headers: Headers, body: bytes, operation: str
    ) -> Response: ...

    async def close(self) -> None: ...


class BegunCall(NamedTuple):
    """A request that was sent, and what will be the head of its response."""

    link: StreamableHttp
    connection: HttpConnection
    answer: asyncio.Future[Response]
    id: int
    body: bytes
    # The Call that it is, with the params that are sent.
    params: bytes
    call: Call


class HttpSide:
    """What both transports over HTTP have: where the server is, what every request says, and how it is sent."""

    name: str
    identity: int

    def _set_up(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        auth: RequestSender | None = None,
        pool: Pool | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> None:
        self._location = Location(url)
        self.name = self._location.shown
        self._pool = pool or Pool()
        self._own = checked(headers or {}, self._location)
        self._auth = auth
        self._longest = longest

    @property
    def pool(self) -> Pool:
        """The connections that it uses."""
        return self._pool

    def _dispatch(
        self, method: str, location: Location, headers: Headers, body: bytes = b"", operation: str = ""
    ) -> Awaitable[Response]:
        if self._auth is None:
            return self._pool.send(method, location, headers, body)
        return self._auth.send(self._pool, method, location, headers, body, operation or method)


class StreamableHttp(HttpSide, Link):
    """A server at a URL. The options are those of `HttpSide._set_up`."""

    def __init__(self, url: str, handler: Handler, *, trace: Trace | None = None, **options: Any) -> None:
        super().__init__(trace)
        self._set_up(url, **options)
        self.channel = Channel(handler, self._post_aside)
        self._session: str | None = None
        self._revision: Revision | None = None
        self._mirrors: dict[str, tuple[Mirror, ...]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        # The heads of calls of 2026-07-28 up to their length, by the tool.
        self._heads: dict[str, bytes] = {}
        self._every = (("Content-Type", JSON), ("Accept", f"{JSON}, {EVENTS}"), *self._own)

    @property
    def identity(self) -> int:  # type: ignore[override]
        return 0 if self._auth is None else self._auth.identity

    def set_revision(self, revision: Revision) -> None:
        self._revision = revision
        self._heads.clear()

    def usable_tools(self, tools: list[Tool]) -> list[Tool]:
        """A tool whose annotations break the rules is left out, and only that one (2026-07-28, basic/transports)."""
        if self._revision is not None and self._revision < MODERN:
            return tools
        sound = []
        for tool in tools:
            try:
                mirrored = mirrors.mirrors(tool.input_schema)
            except (ValueError, RecursionError) as why:
                log.warning("the tool %r of %s is left out: %s", tool.name[:128], self.name, str(why)[:200])
                continue
            sound.append(tool)
            if mirrored:
                self._mirrors[tool.name] = mirrored
            else:
                self._mirrors.pop(tool.name, None)
        return sound

    # Asking

    async def __call__(self, call: Call) -> Any:
        if self.channel.closed:
            raise Closed(f"{self.name}: the connection is closed")
        id = call.id
        if id is None:
            return await self._notify(call)
        assert isinstance(id, int)
        method = call.method
        body = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (
            id,
            method.encode(),
            bytes(call.params) or b"{}",
        )
        if self._trace is not None:
            self._trace("sent", body)
        try:
            response = await self._send_call(call, body)
        except (ProtocolError, Closed, ConnectFailed) as failure:
            raise named(failure, self.name, method) from None
        except asyncio.CancelledError:
            self._forgo(call)
            raise
        return await self._read_answer(response, call, body)

    def _forgo(self, call: Call) -> None:
        """On 2026-07-28 closing the stream says it all; before, a closed stream says nothing."""
        if call.revision is None and call.method != "initialize" and not self.closed:
            told = notices.CancelledParams(request_id=call.id, reason="no longer waiting")
            self.channel.emit(notices.CANCELLED, told)

    async def _read_answer(self, response: Response, call: Call, body: bytes) -> Raw:
        """The result in a response, or at the end of one."""
        method, id = call.method, call.id
        assert id is not None
        try:
            if response.status in _REDIRECTS:
                headers, about = self._headers(call)
                response = await self._redirected(response, headers, body, f"{method} {about}".rstrip())
            try:
                if "content-encoding" in response.headers:
                    check_encoding(response.headers["content-encoding"])
                if response.status == 200:
                    if method == "initialize":
                        self._session = session_of(response)
                    if response.headers.get("content-type") != JSON and response.kind == EVENTS:
                        return await self._follow(response, call, modern=call.revision is not None)
                data = response.whole(self._longest)
                if data is None:
                    data = await response.read(self._longest)
            finally:
                self._pool.give_back(self._location, response)
        except (ProtocolError, Closed, ConnectFailed) as failure:
            raise named(failure, self.name, method) from None
        except asyncio.CancelledError:
            self._forgo(call)
            raise
        return self._result(response, data, id, method)

    # A call that is like one before it

    def begin(self, call: Call, name: str, params: bytes) -> BegunCall | None:
        """Send a tool's call of 2026-07-28 at once, if the like was sent before and a connection is idle; else None."""
        head = self._heads.get(name)
        if head is None or name in self._mirrors or self._trace is not None:
            return None
        connection = self._pool.take(self._location)
        if connection is None:
            return None
        id = self.new_id()
        body = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}' % (id, params)
        answer = connection.exchange(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        return BegunCall(self, connection, answer, id, body, params, call)

    def result_at_hand(self, begun: BegunCall, response: Response) -> Raw | None:
        """The result of what `begin` has begun, if the response is an ordinary one and all of it is here."""
        headers = response.headers
        if response.status != 200 or headers.get("content-type") != JSON or "content-encoding" in headers:
            return None
        try:
            data = response.whole(self._longest)
        except ProtocolError as failure:
            self._pool.lose(begun.connection)
            raise self.named(failure) from None
        if data is None:
            return None
        self._pool.give_back(self._location, response)
        return self._result(response, data, begun.id, "tools/call")

    def result_later(self, begun: BegunCall, response: Response) -> Awaitable[Raw]:
        """The same of any response."""
        return self._read_answer(response, self._sent(begun), begun.body)

    def lose(self, begun: BegunCall) -> None:
        """There will be no response to it. Closing the stream cancels the call."""
        self._pool.lose(begun.connection)

    def named(self, failure: ProtocolError | TransportError) -> Error:
        return named(failure, self.name, "tools/call")

    def _sent(self, begun: BegunCall) -> Call:
        """The Call as it went over the wire."""
        reply = Listening(begun.call.reply.emit)
        return Call(
            method="tools/call", params=Raw(begun.params), id=begun.id, revision=begun.call.revision, reply=reply
        )

    def _send_call(self, call: Call, body: bytes) -> Awaitable[Response]:
        """Most calls of a tool have the head of the one before."""
        about = None
        if call.method == "tools/call" and call.revision is not None and self._auth is None and self._pool.direct:
            with contextlib.suppress(msgspec.DecodeError):
                about = _named.decode(call.params).name
        if about is None or about in self._mirrors:
            headers, name = self._headers(call)
            return self._dispatch("POST", self._location, headers, body, f"{call.method} {name}".rstrip())
        head = self._heads.get(about)
        if head is None:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            head = self._heads[about] = ready_head(self._location, self._headers(call)[0])
        return self._pool.post(self._location, head, body)

    def _headers(self, call: Call) -> tuple[list[tuple[str, str]], str]:
        """The headers of a request or a notification; and the name of what it is about, where it has one."""
        headers = list(self._every)
        if call.revision is None:
            return headers + self._of_session(call.method), ""
        headers.append(("MCP-Protocol-Version", call.revision))
        headers.append(("Mcp-Method", call.method))
        row = METHODS.get(call.method)
        if row is None or not row.named:
            return headers, ""
        members = _members.decode(call.params)
        about = msgspec.json.decode(members.get(row.named, b"null"))
        if not isinstance(about, str):
            return headers, ""
        headers.append(("Mcp-Name", mirrors.encode(about)))
        if call.method == "tools/call" and about in self._mirrors:
            arguments = msgspec.json.decode(members.get("arguments", b"null"))
            for mirror in self._mirrors[about]:
                value = mirrors.value_at(arguments, mirror.path)
                if isinstance(value, str | int | float):
                    headers.append((mirror.header, mirrors.spelled(value)))
        return headers, about

    def _of_session(self, method: str = "") -> list[tuple[str, str]]:
        if method == "initialize":
            return []
        headers = []
        if self._session is not None:
            headers.append(("Mcp-Session-Id", self._session))
        if self._revision is not None and self._revision >= V2025_06_18:
            headers.append(("MCP-Protocol-Version", self._revision))
        return headers

    async def _send(self, method: str, headers: Headers, body: bytes = b"", operation: str = "") -> Response:
        if self._trace is not None and body:
            self._trace("sent", body)
        response = await self._dispatch(method, self._location, headers, body, operation)
        return await self._redirected(response, headers, body, operation, method)

    async def _redirected(
        self, response: Response, headers: Headers, body: bytes, operation: str, method: str = "POST"
    ) -> Response:
        """Only within the same origin: the body may be secret, and the token is for this server alone."""
        for _ in range(MOST_REDIRECTS):
            if response.status not in _REDIRECTS:
                return response
            self._pool.give_back(self._location, response)
            to = response.headers.get("location", "")
            there = self._location.neighbour(to)
            if there is None:
                raise BadStatus(f"{self.name} redirects to {to[:200]!r}; if that is right, use it", response.status)
            self._location = there
            self._heads.clear()
            response = await self._dispatch(method, there, headers, body, operation)
        raise BadStatus(f"{self.name} redirects in circles", response.status)

    def _result(self, response: Response, data: bytes, id: RequestId, method: str) -> Raw:
        status = response.status
        if self._trace is not None:
            self._trace("received", data)
        frame = jsonrpc.decode(data) if data.lstrip()[:1] == b"{" else None
        if status == 200 and type(frame) is Frame and frame.id == id and frame.result is not NOTHING:
            return frame.result
        if self._session is not None and method != "initialize" and is_lost(status, frame, id, data):
            raise SessionLost(f"{self.name} no longer knows our session ({method})")
        if status in (401, 403) and not (isinstance(frame, Frame) and frame.id == id):
            raise AuthorizationFailed(denied(self.name, status, method))
        if isinstance(frame, Frame) and frame.method is UNSET:
            # Where a request could not be read, or not even let in, its id is not in the answer.
            nameless = frame.error is not UNSET and (status >= 400 or not isinstance(frame.id, int | str))
            if not same(frame.id, id) and not nameless:
                raise ProtocolError(f"{self.name} answered {method} (id {id!r}) with the id {short(frame.id)}")
            return result_of(frame, status, retry_after(response))
        if status >= 300:
            what = f"{self.name} answers {method} with the HTTP status {status}{gist(data)}"
            raise BadStatus(what, status, retry_after(response))
        if isinstance(frame, Malformed):
            raise ProtocolError(f"{self.name} answered {method} with a malformed message: {frame.error.message}")
        what = f"{response.kind[:100] or 'nothing'}" if data else "no content"
        raise ProtocolError(f"{self.name} answered {method} with {what} instead of a message (HTTP status {status})")

    # Streams

    async def _follow(self, response: Response, call: Call, *, modern: bool) -> Raw:
        """The result at the end of a stream. A stream that breaks off is resumed where it can be."""
        events = EventReader(self._longest)
        method = call.method
        tries = 0
        while True:
            before = events.last_id
            what = f"ended its answer to {method} before there was one"
            try:
                frame = await self._hear(response, events, call, modern=modern)
                if frame is not None:
                    return result_of(frame, 200)
            except Closed:
                if self.closed:
                    raise
                what = f"broke off its answer to {method}"
            finally:
                self._pool.give_back(self._location, response)
            if modern or events.last_id is None:
                raise Closed(f"{self.name} {what}")
            tries = 0 if events.last_id != before else tries + 1
            response = await self._resume(events, tries, method)

    async def _resume(self, events: EventReader, tries: int, method: str) -> Response:
        """2025-11-25, basic/transports: GET, with the last id, and not before the server said."""
        while tries < RESUMPTIONS:
            await _before_coming_back(events, tries)
            tries += 1
            try:
                response = await self._get(events.last_id)
            except (Closed, ConnectFailed) as failure:
                log.debug("%s: %s", self.name, failure)
                continue
            if response.status == 200 and response.kind == EVENTS:
                return response
            self._pool.give_back(self._location, response)
            if response.status < 500:
                raise Closed(f"{self.name} broke off its answer to {method}, and does not resume it")
        raise Closed(f"{self.name} broke off its answer to {method}, and cannot be reached to resume it")

    async def _get(self, last_id: str | None) -> Response:
        headers = [("Accept", EVENTS), *self._own, *self._of_session()]
        if last_id is not None:
            headers.append(("Last-Event-ID", last_id))
        return await self._send("GET", headers, operation="GET")

    async def _hear(
        self, response: Response, events: EventReader, call: Call | None = None, *, modern: bool = False
    ) -> Frame | None:
        """Take what comes on a stream, until it ends or has the answer to this Call."""
        events.restart()
        while chunk := await response.more():
            for event in events.feed(chunk):
                # An event without data only brings an id to come back with.
                if event.data and event.name == "message":
                    found = None
                    for frame in self._frames(event.data):
                        if call is not None and frame.method is UNSET:
                            found = expected(frame, call.id)
                            call.reply.close()
                        elif call is not None and call.method in LASTING and ended_subscription(frame) == call.id:
                            return None
                        else:
                            self._take(frame, call, modern=modern)
                    if found is not None:
                        return found
            if call is not None and call.method not in LASTING:
                self._check_length(events)
            if self.closed:
                raise Closed(f"{self.name} was left in the middle of what it said")
        return None

    def _check_length(self, events: EventReader) -> None:
        """A call without a time limit would hear for ever what a server says that never comes to its answer."""
        if events.count > MOST_EVENTS or events.bytes > MOST_ANSWERS_LONG * self._longest:
            raise ProtocolError(f"no answer within {events.count} events and {events.bytes} bytes")

    def _frames(self, data: bytes) -> list[Frame]:
        if self._trace is not None:
            self._trace("received", data)
        if self._revision != V2025_03_26 and is_batch(data):
            raise ProtocolError("a batch, where there are none")
        frame = jsonrpc.decode(data)
        found = frame if isinstance(frame, list) else [frame]
        for one in found:
            if isinstance(one, Malformed):
                raise ProtocolError(f"a malformed message: {one.error.message}")
        return found  # type: ignore[return-value]

    def _take(self, frame: Frame, call: Call | None, *, modern: bool) -> None:
        """`call`: the one whose own stream it came on."""
        if modern and frame.id is not UNSET:
            self._refuse_question()
            return
        if modern and call is not None and frame.method == notices.MESSAGE:
            # 2026-07-28, basic/utilities/logging: what a request logs comes on its stream, and carries no id.
            call.reply.emit(frame.method, frame.params)
            return
        before = on_own_stream.set(call is not None)
        try:
            reply = self.channel.accept(frame)
        finally:
            on_own_stream.reset(before)
        if reply is not None:
            self._post_aside(reply)

    async def _begin_to_attend(self) -> None:
        """Open the stream of unasked messages first: what is sent before that is lost, and a result may need it."""
        begun = asyncio.Event()

        async def attend() -> None:
            try:
                await self._attend(begun)
            finally:
                begun.set()

        self._run(attend())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTEND_SECONDS):
                await begun.wait()

    async def _attend(self, begun: asyncio.Event) -> None:
        """The stream for what the server says unasked. Not every server has one."""
        events = EventReader(self._longest)
        tries, attended = 0, False
        while tries < RESUMPTIONS and not self.closed:
            try:
                response = await self._get(events.last_id)
                begun.set()
                try:
                    if response.status == 404 and self._session is not None:
                        self.channel.close(SessionLost(f"{self.name} no longer knows our session"))
                        self.on_gap()
                    if response.status < 500 and (response.status != 200 or response.kind != EVENTS):
                        return
                    if response.status == 200 and attended and events.last_id is None:
                        # What was said meanwhile is not said again.
                        self.on_gap()
                    attended = attended or response.status == 200
                    before = events.last_id
                    lasted = response.status == 200 and await self._hear_all(response, events)
                    tries = 0 if lasted or events.last_id != before else tries + 1
                finally:
                    self._pool.give_back(self._location, response)
            except (Closed, ConnectFailed, ProtocolError) as failure:
                log.debug("%s: %s", self.name, failure)
                tries += 1
            await _before_coming_back(events, tries)

    async def _hear_all(self, response: Response, events: EventReader) -> bool:
        """Whether the stream lasted; one that ends at once again and again is not asked for again."""
        begun = asyncio.get_running_loop().time()
        await self._hear(response, events)
        return asyncio.get_running_loop().time() - begun > PAUSE_SECONDS

    # Saying

    async def _notify(self, call: Call) -> None:
        headers = [*self._every, *self._of_session(call.method)]
        if self._revision is not None and self._revision >= MODERN:
            headers.append(("Mcp-Method", call.method))
        await self._post(jsonrpc.notification(call.method, call.params or None), headers, call.method)
        if call.method == notices.INITIALIZED:
            await self._begin_to_attend()

    def _post_aside(self, message: bytes) -> None:
        """Post an answer to what the server asked, or a cancellation, without waiting for it."""
        if len(self._errands) >= MOST_ERRANDS:
            self.channel.close(Closed(f"{self.name} asks more than can be answered"))
            return
        self._run(self._post(message, [*self._every, *self._of_session()], "an answer"))

    async def _post(self, message: bytes, headers: Headers, what: str) -> None:
        try:
            async with limited(POST_SECONDS):
                response = await self._send("POST", headers, message, what)
                try:
                    data = await response.read(64 * 1024) if response.kind != EVENTS else b""
                finally:
                    self._pool.give_back(self._location, response)
        except TimeoutError:
            raise TimedOut(f"{self.name} did not take {what} within {POST_SECONDS:g} s") from None
        except (ProtocolError, Closed, ConnectFailed) as failure:
            raise named(failure, self.name, what) from None
        if response.status >= 300:
            what = f"{self.name} answers {what} with the HTTP status {response.status}{gist(data)}"
            raise BadStatus(what, response.status, retry_after(response))

    def _run(self, errand: Any) -> None:
        async def quietly() -> None:
            try:
                await errand
            except Error as failure:
                log.debug("%s: %s", self.name, failure)

        task = asyncio.get_running_loop().create_task(quietly())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        # Or else one that was stopped before it began would never have been waited for.
        task.add_done_callback(lambda _: errand.close())

    # The end

    async def close(self) -> None:
        try:
            if self._session is not None and not self.closed:
                with contextlib.suppress(Error, TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        response = await self._send("DELETE", [*self._own, *self._of_session()])
                        self._pool.give_back(self._location, response)
        finally:
            self.channel.close(Closed("the client was closed"))
            tasks = list(self._errands)
            for task in tasks:
                task.cancel()
            await self._pool.close()
            if tasks:
                await asyncio.wait(tasks, timeout=GOODBYE_SECONDS)


def checked(headers: Mapping[str, str], location: Location) -> tuple[tuple[str, str], ...]:
    """Headers of the user's own. Those that the protocol has a use for are not theirs to set."""
    for name in headers:
        if name.lower() in _OURS or name.lower().startswith("mcp-"):
            raise UsageError(f"the header {name!r} is the protocol's own")
    given = {name.lower() for name in headers}
    introduced = () if "authorization" in given else location.introduced("Authorization")
    return (*headers.items(), *introduced)


async def _before_coming_back(events: EventReader, tries: int) -> None:
    """A server that lets us go at once each time is not hurried back to, whatever it says."""
    await asyncio.sleep(max(events.retry, SHORTEST_PAUSE_SECONDS) if events.retry is not None else _pause(tries))


def _pause(tries: int) -> float:
    """Longer each time, and never the same for two clients."""
    return min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2.0**tries) * random.uniform(0.5, 1.0)
