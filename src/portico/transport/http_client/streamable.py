"""Streamable HTTP from the client's side, as each revision has it.

2026-07-28: every request stands alone, its headers repeat what the body says, and to close a stream is to cancel.
Before that: a session with an id, a stream for what the server says unasked, and streams that can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import UNSET, Raw

from portico.auth.errors import AuthorizationFailed
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transport.http_client.answers import (
    check_plain,
    denied,
    expected,
    gist,
    is_lost,
    named,
    same,
    session_of,
    short,
    taken,
)
from portico.transport.http_client.connection import Answer
from portico.transport.http_client.events import Events
from portico.transport.http_client.limits import limited
from portico.transport.http_client.pool import Headers, Place, Pool
from portico.transport.link import LONGEST_ANSWER, Link, Trace
from portico.wire import jsonrpc, mirrors, notices
from portico.wire.errors import (
    BadStatus,
    Closed,
    ConnectFailed,
    Error,
    ProtocolError,
    SessionLost,
    TimedOut,
    UsageError,
)
from portico.wire.jsonrpc import Frame, Malformed, RequestId
from portico.wire.meta import PROTOCOL_VERSION
from portico.wire.methods import METHODS
from portico.wire.mirrors import Mirror
from portico.wire.revisions import MODERN, V2025_03_26, V2025_06_18, Revision
from portico.wire.tools import Tool

log = logging.getLogger("portico")

JSON, EVENTS = "application/json", "text/event-stream"
# What we post and nobody waits for: answers to the server's own questions. Each has a connection to itself.
MOST_ERRANDS = 256
MOST_REDIRECTS = 3
# How often a stream is taken up again without a single event in between, and the first pause when none is asked for.
RESUMPTIONS = 5
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
SHORTEST_PAUSE_SECONDS = 0.1
# How long a server may take to say that it has heard something that it need not answer.
POST_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
# How long a server may take to open the stream for what it says unasked, before we go on without.
ATTEND_SECONDS = 1.0

_OURS = frozenset(
    {"host", "content-type", "content-length", "accept", "connection", "transfer-encoding", "last-event-id"}
)


class Sender(Protocol):
    """Sends a request with whatever proves who we are, and as often as that takes."""

    @property
    def identity(self) -> int: ...

    async def send(
        self, pool: Pool, method: str, place: Place, headers: Headers, body: bytes, operation: str
    ) -> Answer: ...

    async def close(self) -> None: ...


class StreamableHttp(Link):
    """A server at a URL."""

    def __init__(
        self,
        url: str,
        handler: Handler,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Sender | None = None,
        pool: Pool | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> None:
        self._place = Place(url)
        self.name = self._place.shown
        self.channel = Channel(handler, self._say)
        self._pool = pool or Pool()
        self._own = checked(headers or {}, self._place)
        self._auth = auth
        self._longest = longest
        self._session: str | None = None
        self._revision: Revision | None = None
        self._mirrors: dict[str, tuple[Mirror, ...]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._trace: Trace | None = None
        self._warned = False

    @property
    def identity(self) -> int:  # type: ignore[override]
        return 0 if self._auth is None else self._auth.identity

    def settle(self, revision: Revision) -> None:
        self._revision = revision

    def learn(self, tools: list[Tool]) -> list[Tool]:
        """A tool whose annotations break the rules is left out, and only that one (2026-07-28, basic/transports)."""
        if self._revision is not None and self._revision < MODERN:
            return tools
        sound = []
        for tool in tools:
            try:
                found = mirrors.mirrors(tool.input_schema)
            except (ValueError, RecursionError) as why:
                log.warning("the tool %r of %s is left out: %s", tool.name[:128], self.name, str(why)[:200])
                continue
            sound.append(tool)
            if found:
                self._mirrors[tool.name] = found
            else:
                self._mirrors.pop(tool.name, None)
        return sound

    def show(self, trace: Trace) -> None:
        self._trace = trace

    # Asking

    async def request(
        self, method: str, params: Any, *, timeout: float | None = None, id: RequestId | None = None
    ) -> Raw:
        if self.closed:
            raise Closed(f"{self.name}: the connection is closed")
        id = self.new_id() if id is None else id
        try:
            async with asyncio.timeout(timeout) if self._auth is None else limited(timeout):
                return await self._ask(id, method, params)
        except TimeoutError:
            self._withdraw(id, method, params)
            raise TimedOut(f"{self.name}: {method} was not answered within {timeout:g} s") from None
        except asyncio.CancelledError:
            self._withdraw(id, method, params)
            raise

    async def _ask(self, id: RequestId, method: str, params: Any) -> Raw:
        headers, about = self._headers(method, params)
        body = jsonrpc.request(id, method, params)
        try:
            answer = await self._send("POST", headers, body, f"{method} {about}".rstrip())
            try:
                check_plain(answer)
                if answer.status == 200 and method == "initialize":
                    self._session = session_of(answer)
                if answer.status == 200 and answer.kind == EVENTS:
                    return await self._follow(answer, id, method, modern=_version(params) is not None)
                data = await answer.read(self._longest)
            finally:
                self._pool.give_back(self._place, answer)
        except (ProtocolError, Closed, ConnectFailed) as failure:
            raise named(failure, self.name, method) from None
        return self._result(answer, data, id, method)

    def _headers(self, method: str, params: Any) -> tuple[list[tuple[str, str]], str]:
        """Of a request or a notification; and what it is about, where there is such a thing."""
        headers = [("Content-Type", JSON), ("Accept", f"{JSON}, {EVENTS}"), *self._own]
        version = _version(params)
        if version is None:
            return headers + self._of_session(method), ""
        headers += [("MCP-Protocol-Version", version), ("Mcp-Method", method)]
        row = METHODS.get(method)
        about = params.get(row.named) if row is not None and row.named else None
        if isinstance(about, str):
            headers.append(("Mcp-Name", mirrors.encode(about)))
        for mirror in self._mirrors.get(about or "", ()) if method == "tools/call" else ():
            value = mirrors.value_at(params.get("arguments"), mirror.path)
            if isinstance(value, str | int | float):
                headers.append((mirror.header, mirrors.spelled(value)))
        return headers, about if isinstance(about, str) else ""

    def _of_session(self, method: str = "") -> list[tuple[str, str]]:
        if method == "initialize":
            return []
        headers = []
        if self._session is not None:
            headers.append(("Mcp-Session-Id", self._session))
        if self._revision is not None and self._revision >= V2025_06_18:
            headers.append(("MCP-Protocol-Version", self._revision))
        return headers

    async def _send(self, method: str, headers: Headers, body: bytes = b"", operation: str = "") -> Answer:
        if self._trace is not None and body:
            self._trace("sent", body)
        for _ in range(MOST_REDIRECTS):
            if self._auth is None:
                answer = await self._pool.send(method, self._place, headers, body)
            else:
                answer = await self._auth.send(self._pool, method, self._place, headers, body, operation)
            if answer.status not in (307, 308):
                return answer
            self._redirected(answer)
        raise BadStatus(f"{self.name} redirects in circles", answer.status)

    def _redirected(self, answer: Answer) -> None:
        """Only within the same origin: the body may be secret, and the token is for this server alone."""
        self._pool.give_back(self._place, answer)
        location = answer.headers.get("location", "")
        there = self._place.neighbour(location)
        if there is None:
            raise BadStatus(f"{self.name} redirects to {location[:200]!r}; if that is right, use it", answer.status)
        self._place = there

    def _result(self, answer: Answer, data: bytes, id: RequestId, method: str) -> Raw:
        status = answer.status
        frame = self._decode(data) if data.lstrip()[:1] in (b"{", b"[") else None
        if self._session is not None and method != "initialize" and is_lost(status, frame, id, data):
            raise SessionLost(f"{self.name} no longer knows our session ({method})")
        if status in (401, 403) and not (isinstance(frame, Frame) and frame.id == id):
            raise AuthorizationFailed(denied(self.name, status, method))
        if isinstance(frame, Frame) and frame.method is UNSET:
            # Where a request could not be read, or not even let in, its id is not in the answer.
            nameless = frame.error is not UNSET and (status >= 400 or not isinstance(frame.id, int | str))
            if not same(frame.id, id) and not nameless:
                raise ProtocolError(f"{self.name} answered {method} (id {id!r}) with the id {short(frame.id)}")
            return taken(frame, status)
        if status >= 300:
            raise BadStatus(f"{self.name} answers {method} with the HTTP status {status}{gist(data)}", status)
        if isinstance(frame, Malformed):
            raise ProtocolError(f"{self.name} answered {method} with a malformed message: {frame.error.message}")
        what = f"{answer.kind[:100] or 'nothing'}" if data else "no content"
        raise ProtocolError(f"{self.name} answered {method} with {what} instead of a message (HTTP status {status})")

    def _decode(self, data: bytes) -> Frame | Malformed | list[Frame | Malformed]:
        if self._trace is not None:
            self._trace("received", data)
        return jsonrpc.decode(data)

    # Streams

    async def _follow(self, answer: Answer, id: RequestId, method: str, *, modern: bool) -> Raw:
        """Hear everything that comes before the answer. A stream that breaks off is taken up again where it can be."""
        events = Events(self._longest)
        tries = 0
        while True:
            before = events.last_id
            what = f"ended its answer to {method} before there was one"
            try:
                frame = await self._hear(answer, events, id, modern=modern)
                if frame is not None:
                    return taken(frame, 200)
            except Closed:
                if self.closed:
                    raise
                what = f"broke off its answer to {method}"
            finally:
                self._pool.give_back(self._place, answer)
            if modern or events.last_id is None:
                raise Closed(f"{self.name} {what}")
            tries = 0 if events.last_id != before else tries + 1
            answer = await self._resume(events, tries, method)

    async def _resume(self, events: Events, tries: int, method: str) -> Answer:
        """2025-11-25, basic/transports: GET, with the last id, and not before the server said."""
        while tries < RESUMPTIONS:
            await asyncio.sleep(events.retry if events.retry is not None else _pause(tries))
            tries += 1
            try:
                answer = await self._get(events.last_id)
            except (Closed, ConnectFailed) as failure:
                log.debug("%s: %s", self.name, failure)
                continue
            if answer.status == 200 and answer.kind == EVENTS:
                return answer
            self._pool.give_back(self._place, answer)
            if answer.status < 500:
                raise Closed(f"{self.name} broke off its answer to {method}, and does not resume it")
        raise Closed(f"{self.name} broke off its answer to {method}, and cannot be reached to resume it")

    async def _get(self, last_id: str | None) -> Answer:
        headers = [("Accept", EVENTS), *self._own, *self._of_session()]
        if last_id is not None:
            headers.append(("Last-Event-ID", last_id))
        return await self._send("GET", headers, operation="GET")

    async def _hear(
        self, answer: Answer, events: Events, id: RequestId | None = None, *, modern: bool = False
    ) -> Frame | None:
        """Take what comes on a stream, until it ends or has the answer to this id."""
        events.restart()
        while chunk := await answer.more():
            for event in events.feed(chunk):
                # An event without data only brings an id to come back with.
                if event.data and event.name == "message":
                    found = None
                    for frame in self._frames(event.data):
                        if id is not None and frame.method is UNSET:
                            found = expected(frame, id)
                        else:
                            self._take(frame, modern)
                    if found is not None:
                        return found
            if self.closed:
                raise Closed(f"{self.name} was left in the middle of what it said")
        return None

    def _frames(self, data: bytes) -> list[Frame]:
        frame = self._decode(data)
        if isinstance(frame, list) and self._revision != V2025_03_26:
            raise ProtocolError("a batch, where there are none")
        found = frame if isinstance(frame, list) else [frame]
        for one in found:
            if isinstance(one, Malformed):
                raise ProtocolError(f"a malformed message: {one.error.message}")
        return found  # type: ignore[return-value]

    def _take(self, frame: Frame, modern: bool) -> None:
        if modern and frame.id is not UNSET:
            # Once: who asks and is not answered may ask without end.
            if not self._warned:
                log.warning("%s asks something in a revision where servers do not ask; it is not answered", self.name)
            self._warned = True
            return
        reply = self.channel.accept(frame)
        if reply is not None:
            self._say(reply)

    async def _begin_to_attend(self) -> None:
        """Before anything is asked: what a server says while nobody attends is lost, and an answer may wait for it."""
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
        events = Events(self._longest)
        tries, attended = 0, False
        while tries < RESUMPTIONS and not self.closed:
            try:
                answer = await self._get(events.last_id)
                begun.set()
                try:
                    if answer.status == 404 and self._session is not None:
                        self.channel.close(SessionLost(f"{self.name} no longer knows our session"))
                        self.gap()
                    if answer.status < 500 and (answer.status != 200 or answer.kind != EVENTS):
                        return
                    if answer.status == 200 and attended and events.last_id is None:
                        # What was said meanwhile is not said again.
                        self.gap()
                    attended = attended or answer.status == 200
                    before = events.last_id
                    lasted = answer.status == 200 and await self._hear_all(answer, events)
                    tries = 0 if lasted or events.last_id != before else tries + 1
                finally:
                    self._pool.give_back(self._place, answer)
            except (Closed, ConnectFailed, ProtocolError) as failure:
                log.debug("%s: %s", self.name, failure)
                tries += 1
            # A server that lets us go at once each time is not hurried back to, whatever it says.
            await asyncio.sleep(
                max(events.retry, SHORTEST_PAUSE_SECONDS) if events.retry is not None else _pause(tries)
            )

    async def _hear_all(self, answer: Answer, events: Events) -> bool:
        """Whether the stream lasted: one that is refused at once again and again is not asked for again."""
        begun = asyncio.get_running_loop().time()
        await self._hear(answer, events)
        return asyncio.get_running_loop().time() - begun > PAUSE_SECONDS

    # Saying

    async def notify(self, method: str, params: Any = None) -> None:
        headers, _ = self._headers(method, params if isinstance(params, dict) else None)
        if self._revision is not None and self._revision >= MODERN and _version(params) is None:
            headers.append(("Mcp-Method", method))
        await self._post(jsonrpc.notification(method, params), headers, method)
        if method == notices.INITIALIZED:
            await self._begin_to_attend()

    def _say(self, message: bytes) -> None:
        """An answer to what the server asked, or a cancellation: nobody waits for what becomes of it."""
        if len(self._errands) >= MOST_ERRANDS:
            self.channel.close(Closed(f"{self.name} asks more than can be answered"))
            return
        headers = [("Content-Type", JSON), ("Accept", f"{JSON}, {EVENTS}"), *self._own, *self._of_session()]
        self._run(self._post(message, headers, "an answer"))

    async def _post(self, message: bytes, headers: Headers, what: str) -> None:
        try:
            async with limited(POST_SECONDS):
                answer = await self._send("POST", headers, message, what)
                try:
                    data = await answer.read(64 * 1024) if answer.kind != EVENTS else b""
                finally:
                    self._pool.give_back(self._place, answer)
        except TimeoutError:
            raise TimedOut(f"{self.name} did not take {what} within {POST_SECONDS:g} s") from None
        except (ProtocolError, Closed, ConnectFailed) as failure:
            raise named(failure, self.name, what) from None
        if answer.status >= 300:
            raise BadStatus(
                f"{self.name} answers {what} with the HTTP status {answer.status}{gist(data)}", answer.status
            )

    def _withdraw(self, id: RequestId, method: str, params: Any) -> None:
        """On 2026-07-28 closing the stream says it all; before, a closed stream says nothing."""
        if _version(params) is None and method != "initialize" and not self.closed:
            self.channel.emit(notices.CANCELLED, notices.CancelledParams(request_id=id, reason="no longer waiting"))

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
                        answer = await self._send("DELETE", [*self._own, *self._of_session()])
                        self._pool.give_back(self._place, answer)
        finally:
            self.channel.close(Closed("the client was closed"))
            tasks = list(self._errands)
            for task in tasks:
                task.cancel()
            await self._pool.close()
            if tasks:
                await asyncio.wait(tasks, timeout=GOODBYE_SECONDS)


def checked(headers: Mapping[str, str], place: Place) -> tuple[tuple[str, str], ...]:
    """Headers of the user's own. Those that the protocol has a use for are not theirs to set."""
    for name in headers:
        if name.lower() in _OURS or name.lower().startswith("mcp-"):
            raise UsageError(f"the header {name!r} is the protocol's own")
    given = {name.lower() for name in headers}
    introduced = () if "authorization" in given else place.introduced("Authorization")
    return (*headers.items(), *introduced)


def _version(params: Any) -> str | None:
    """The version that a request brings along; none before 2026-07-28."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(PROTOCOL_VERSION) if isinstance(meta, dict) else None


def _pause(tries: int) -> float:
    """Longer each time, and never the same for two clients."""
    return min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2.0**tries) * random.uniform(0.5, 1.0)
