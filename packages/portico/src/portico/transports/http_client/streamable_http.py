"""Streamable HTTP from the client's side, as each revision has it.

2026-07-28: every request stands alone, its headers repeat what the body says, and to close a stream is to cancel.
Before that: a session with an id, a stream for what the server says unasked, and streams that can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.auth.errors import AuthorizationFailed
from portico.protocol import header_params, jsonrpc, notifications
from portico.protocol.errors import (
    BadStatus,
    Closed,
    ConnectFailed,
    Error,
    ProtocolError,
    SessionLost,
    TimedOut,
    TransportError,
)
from portico.protocol.header_params import Mirror
from portico.protocol.jsonrpc import NOTHING, Frame, Malformed, RequestId
from portico.protocol.methods import METHODS
from portico.protocol.tools import Tool
from portico.protocol.versions import MODERN, V2025_06_18, Revision
from portico.rpc.call import Call, Handler, Listening
from portico.rpc.channel import Channel
from portico.transports.base import Trace
from portico.transports.deadlines import closing_seconds
from portico.transports.http_client.connection import HttpConnection, Response
from portico.transports.http_client.event_streams import EVENTS, HttpStreams
from portico.transports.http_client.pool import Headers, ready_head
from portico.transports.http_client.responses import (
    check_encoding,
    denied,
    gist,
    is_lost,
    named,
    result_of,
    retry_after,
    same,
    session_of,
    short,
)
from portico.transports.http_client.timeouts import limited

log = logging.getLogger("portico")

JSON = "application/json"
# What is posted without waiting: answers to the server's own questions. Each has a connection to itself.
MOST_ERRANDS = 256
MOST_REDIRECTS = 3
MOST_HEADS = 1000
# How long a server may take to say that it has heard something that it need not answer.
POST_SECONDS = 30.0
GOODBYE_SECONDS = 2.0

_REDIRECTS = frozenset({307, 308})
_members = msgspec.json.Decoder(dict[str, Raw])


class _ToolNamed(Struct):
    name: str


_named = msgspec.json.Decoder(_ToolNamed)


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


class StreamableHttp(HttpStreams):
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
                mirrored = header_params.mirrors(tool.input_schema)
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
            told = notifications.CancelledParams(request_id=call.id, reason="no longer waiting")
            self.channel.emit(notifications.CANCELLED, told)

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
        headers.append(("Mcp-Name", header_params.encode(about)))
        if call.method == "tools/call" and about in self._mirrors:
            arguments = msgspec.json.decode(members.get("arguments", b"null"))
            for mirror in self._mirrors[about]:
                value = header_params.value_at(arguments, mirror.path)
                if isinstance(value, str | int | float):
                    headers.append((mirror.header, header_params.spelled(value)))
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
            raise AuthorizationFailed(denied(self.name, method, response, data, with_token=self._sends_token))
        if isinstance(frame, Frame) and frame.method is UNSET:
            # Where a request could not be read, or not even let in, its id is not in the answer.
            nameless = frame.error is not UNSET and (status >= 400 or not isinstance(frame.id, int | str))
            if not same(frame.id, id) and not nameless:
                raise ProtocolError(f"{self.name} answered {method} (id {id!r}) with the id {short(frame.id)}")
            return result_of(frame, status, retry_after(response))
        if status >= 300:
            what = f"{self.name} answers {method} with the HTTP status {status}{gist(data)}"
            if status == 404 and b"endpoint" not in data:
                what += " (is this the path of its endpoint? It is usually /mcp)"
            raise BadStatus(what, status, retry_after(response))
        if isinstance(frame, Malformed):
            raise ProtocolError(f"{self.name} answered {method} with a malformed message: {frame.error.message}")
        what = f"{response.kind[:100] or 'nothing'}" if data else "no content"
        hint = "; is this the URL of an MCP endpoint? Its path is usually /mcp" if response.kind == "text/html" else ""
        raise ProtocolError(
            f"{self.name} answered {method} with {what} instead of a message (HTTP status {status}){hint}"
        )

    # Saying

    async def _get(self, last_id: str | None) -> Response:
        headers = [("Accept", EVENTS), *self._own, *self._of_session()]
        if last_id is not None:
            headers.append(("Last-Event-ID", last_id))
        return await self._send("GET", headers, operation="GET")

    async def _notify(self, call: Call) -> None:
        headers = [*self._every, *self._of_session(call.method)]
        if self._revision is not None and self._revision >= MODERN:
            headers.append(("Mcp-Method", call.method))
        await self._post(jsonrpc.notification(call.method, call.params or None), headers, call.method)
        if call.method == notifications.INITIALIZED:
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
        except (ProtocolError, Closed, ConnectFailed) as failure:
            raise named(failure, self.name, what) from None
        except TransportError:
            raise
        except TimeoutError:
            raise TimedOut(f"{self.name} did not take {what} within {POST_SECONDS:g} s") from None
        if response.status >= 300:
            what = f"{self.name} answers {what} with the HTTP status {response.status}{gist(data)}"
            raise BadStatus(what, response.status, retry_after(response))

    # The end

    async def close(self) -> None:
        try:
            if self._session is not None and not self.closed:
                with contextlib.suppress(Error, TimeoutError):
                    async with asyncio.timeout(closing_seconds(GOODBYE_SECONDS)):
                        response = await self._send("DELETE", [*self._own, *self._of_session()])
                        self._pool.give_back(self._location, response)
        finally:
            self.channel.close(Closed("the client was closed"))
            tasks = list(self._errands)
            for task in tasks:
                task.cancel()
            await self._pool.close()
            if tasks:
                await asyncio.wait(tasks, timeout=closing_seconds(GOODBYE_SECONDS))
