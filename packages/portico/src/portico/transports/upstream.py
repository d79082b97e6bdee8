"""The way to one server, as a Handler: found, greeted, and made again when it breaks.

It lives below both the client, which is a façade over it, and the server, which mounts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from types import CoroutineType
from typing import Any, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc, notifications
from portico.protocol.capabilities import undeclared as undeclared_by
from portico.protocol.content import EmptyResult
from portico.protocol.errors import (
    BadStatus,
    Closed,
    Error,
    HeaderMismatch,
    InvalidRequest,
    MethodNotFound,
    ProtocolError,
    SessionLost,
    TimedOut,
    TransportError,
    UsageError,
)
from portico.protocol.meta import Implementation
from portico.protocol.methods import LASTING
from portico.protocol.subscriptions import AcknowledgedParams, Filter, ListenParams
from portico.protocol.tools import ListToolsResult
from portico.protocol.versions import LATEST, MODERN, Revision
from portico.rpc.call import Call, Listening, members
from portico.rpc.observers import OBSERVERS, ask_observed, close_session
from portico.rpc.trace_context import carried_on
from portico.telemetry import start_telemetry
from portico.transports.base import Link, MemoryLink, Trace
from portico.transports.deadlines import TimeLimit, TimeLimits
from portico.transports.event_loop import HeldLifespan
from portico.transports.handshake import ClientIdentity, Greeting, discover, means_handshake_server
from portico.transports.http_client.base import RequestSender
from portico.transports.http_client.pool import Pool
from portico.transports.http_client.sse import HttpSse
from portico.transports.http_client.streamable_http import BegunCall, StreamableHttp
from portico.transports.http_client.timeouts import suspendable
from portico.transports.located import located
from portico.transports.notification_router import NotifiedCalls
from portico.transports.process import ProcessLink
from portico.transports.request_meta import RequestEnvelope, without_envelope
from portico.transports.retry import about, may_repeat, not_repeated
from portico.transports.targets import Command, Here, Target, Url
from portico.transports.version_discovery import Introduction, remember

log = logging.getLogger("portico")

TIMEOUT_SECONDS = 60.0
RETRIES = 4
# The pause before the first retry; it doubles each time.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
# How long is waited at most before a retry that the server itself has put off.
LONGEST_WAIT_SECONDS = 60.0
# What servers of the handshake answer to a request without one.
_WITHOUT_SESSION = frozenset({InvalidRequest.code, -32000, -32001})

_members = msgspec.json.Decoder(dict[str, Raw])


def _answer_ping(call: Call) -> Any:
    """The answer of a client that has no handlers: it is there, and no more."""
    if call.id is None:
        return None
    if call.method == "ping":
        return EmptyResult()
    raise MethodNotFound(f"Method not found: {call.method}")


async def _nothing_to_do() -> None:
    """Where the new connection has nothing to be told."""


class _Incoming:
    """The Handler of what a server sends besides results. Notifications are taken at once, in their order."""

    def __init__(self, start: Callable[[Call], Any]) -> None:
        self.start = start

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result


class Upstream:
    """A Handler over a connection that is opened again when the server ended, was restarted, or has forgotten us.

    `answer` gets what the server asks, and the notifications that belong to no Call. It returns a result, or a
    coroutine that comes to one.
    """

    def __init__(
        self,
        target: Target,
        answer: Callable[[Call], Any] = _answer_ping,
        identity: ClientIdentity | None = None,
        *,
        revision: Revision | None = None,
        undeclared: bool = False,
        timeout: float | None = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        longest_wait: float = LONGEST_WAIT_SECONDS,
        auth: RequestSender | None = None,
        pool: Callable[[], Pool] = Pool,
        principal: Any = None,
        trace: Trace | None = None,
        on_reopened: Callable[[], Awaitable[None]] = _nothing_to_do,
        on_gap: Callable[[], None] = lambda: None,
        shown_as: str | None = None,
    ) -> None:
        self.target = target
        # What errors call the server, if its address is not for those who read them.
        self._shown_as = shown_as
        self.identity = identity or ClientIdentity(Implementation("portico", "0"))
        self._pinned = revision
        self._asks_undeclared = undeclared
        self._timeout = timeout
        self._retries = retries
        self._longest_wait = longest_wait
        self._answer = answer
        self._incoming = _Incoming(self._receive)
        self._auth = auth
        # Makes the connections of a link over HTTP.
        self.pool = pool
        self._principal = principal
        self._trace = trace
        self._on_reopened = on_reopened
        self._on_gap = on_gap
        self._link: Link | None = None
        self.name = Link.name
        self._mending = asyncio.Lock()
        # Set unless the connection is to be open, whatever is under way.
        self._closing = asyncio.Event()
        # Since when there is something to be closed.
        self._opened: float | None = None
        self._closing.set()
        self._notified = NotifiedCalls()
        # Set when a session is over: a Call that listened in it has to begin anew.
        self._session_over = asyncio.Event()
        # The deadlines of the calls under way, and how many questions suspend them.
        self._time_limits = TimeLimits()
        self._unhurried = 0
        # The server in this process, if that is what the target is.
        self._host: HeldLifespan | None = None
        self._introduction = Introduction(target, self.identity, revision, timeout, lambda: self.link, self._replace)
        self._greet_with(Greeting(revision or LATEST))

    def _greet_with(self, greeting: Greeting) -> None:
        self.greeting = greeting
        self.modern = greeting.revision >= MODERN
        # The methods that are not sent, because the server has not declared what they need; and what that is.
        self._undeclared = {} if self._asks_undeclared else undeclared_by(greeting.capabilities, greeting.revision)
        self._envelope = RequestEnvelope(self.identity, greeting.revision)

    def set_log_level(self, level: Any) -> None:
        self.identity.log_level = level
        self._envelope = RequestEnvelope(self.identity, self.greeting.revision)

    def set_trace(self, trace: Trace | None) -> None:
        """Show every message to another function, or to none, from now on."""
        self._trace = trace
        if self._link is not None:
            self._link.set_trace(trace)

    @property
    def link(self) -> Link:
        if self._link is None:
            raise UsageError("the client is not open: use it inside `async with`")
        return self._link

    @property
    def is_open(self) -> bool:
        return not self._closing.is_set()

    # Opening and closing, from any task

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The time in which a server that has it mounted may use it."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> None:
        start_telemetry(self.identity.info.name)
        await self._enter_lifespan()
        self._closing.clear()
        try:
            async with self._mending:
                await self._establish()
        except BaseException:
            await self.close()
            raise
        self._opened = time.monotonic()

    async def close(self) -> None:
        self._closing.set()
        opened, self._opened = self._opened, None
        if OBSERVERS and opened is not None:
            over_http = isinstance(self.target, Url)
            close_session(self.name, self.greeting.revision, over_http, time.monotonic() - opened)
        self._end_session()
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        if self._auth is not None:
            await self._auth.close()
        host, self._host = self._host, None
        if host is not None:
            await host.leave()
        self._time_limits.close()

    async def _enter_lifespan(self) -> None:
        """A server in this process lives as long as the connection to it."""
        if not isinstance(self.target, Here):
            return
        self._host = HeldLifespan(members(self.target.handler).lifespan)
        try:
            await self._host.entered
        except BaseException:
            self._host = None
            raise

    async def _establish(self) -> None:
        try:
            await self._connect()
            self._greet_with(await self._introduction.greet())
        except Error:
            if self._closing.is_set():
                raise Closed("the client was closed") from None
            raise
        if self.modern:
            self.link.set_revision(self.greeting.revision)

    async def _connect(self, kind: type[StreamableHttp | HttpSse] = StreamableHttp) -> Link:
        target, trace = self.target, self._trace
        link: Link
        if isinstance(target, Here):
            link = MemoryLink(target.handler, self._incoming, principal=self._principal, trace=trace)
        elif isinstance(target, Command):
            link = ProcessLink(target.words, self._incoming, env=target.env, cwd=target.cwd, trace=trace)
        else:
            kind = HttpSse if target.sse else kind
            options: dict[str, Any] = {"headers": target.headers, "auth": self._auth, "pool": self.pool()}
            link = kind(target.url, self._incoming, trace=trace, **options)
        link.on_gap = self._gap
        self._link, self.name = link, link.name
        if self._shown_as is not None:
            link.name = self._shown_as
        await link.start()
        if self._closing.is_set():
            # It was closed meanwhile, when there may have been nothing to close yet.
            self._link = None
            await link.close()
            raise Closed("the client was closed")
        return link

    def _gap(self) -> None:
        if self._link is not None and self._link.closed:
            self._end_session()
        self._on_gap()

    def _end_session(self) -> None:
        self._session_over.set()
        self._session_over = asyncio.Event()

    async def _replace(self, kind: type[StreamableHttp | HttpSse] = StreamableHttp) -> Link:
        if self._link is not None:
            await self._link.close()
        return await self._connect(kind)

    # Answering a Call: as a Handler, and with the wishes of a client

    async def __call__(self, call: Call) -> Any:
        """The result of a Call, as the server gave it. A tool's call is not repeated when the connection breaks."""
        if call.id is None:
            return await (await self.alive())(call)
        call = carried_on(without_envelope(call))
        if call.method in LASTING:
            return await self._listen(call)
        if call.method == "tools/list":
            return await self._list_tools(call)
        try:
            # What waits for the end of a task waits as long as that takes.
            seconds = self._timeout if call.method != "tasks/result" else None
            return await self.ask(call, seconds, call.method != "tools/call")
        except HeaderMismatch:
            if call.method != "tools/call":
                raise
            # The headers follow the tools' schemas, which have to be known first (2026-07-28, basic/transports).
            await self._list_tools(Call(method="tools/list", params=Raw(b"{}"), id=0))
            return await self.ask(call, self._timeout, False)

    def begin(self, call: Call, name: str, params: bytes) -> BegunCall | None:
        """Send a tool's call with these params, which have no `_meta`, by the shortest way; None where it is not open.

        For those who pass on many calls. What is begun is to be waited for with `finish`.
        """
        link = self._link
        if type(link) is not StreamableHttp or not self.modern or self._auth is not None:
            return None
        if link.channel.closed or self._mending.locked() or call.progress_token is not None:
            return None
        return link.begin(call, name, b'%b,"_meta":%b}' % (params[:-1], self._envelope.of(call)))

    async def finish(self, begun: BegunCall, params: Raw) -> Raw:
        """The result of a call that was begun with these params."""
        link, response = begun.link, None
        try:
            with TimeLimit(self._time_limits, self._timeout):
                response = await begun.answer
                result = link.result_at_hand(begun, response)
                return await link.result_later(begun, response) if result is None else result
        except HeaderMismatch:
            pass
        except (TransportError, ProtocolError) as failure:
            await self._reason_to_repeat(link, begun.call.method, link.named(failure), 0, False)
        except TimeoutError:
            raise TimedOut(f"{self.name}: tools/call was not answered within {self._timeout:g} s{link.hint}") from None
        finally:
            if response is None:
                link.lose(begun)
        # It was turned away at the door, so it is sent again, with ceremony.
        return await self.__call__(replace(begun.call, params=params, read=None))  # type: ignore[no-any-return]

    async def _list_tools(self, call: Call) -> Raw:
        """A page of the tools, without those that cannot be called over this transport."""
        result = await self.ask(call, self._timeout, True)
        try:
            page = msgspec.json.decode(result, type=ListToolsResult)
        except (msgspec.DecodeError, RecursionError):
            return result
        usable = self.link.usable_tools(page.tools)
        if len(usable) == len(page.tools):
            return result
        return Raw(jsonrpc.encode({**_members.decode(result), "tools": usable}))

    async def ask(self, call: Call, timeout: float | None, repeatable: bool, *, observed: bool = False) -> Raw:
        """`repeatable`: asking twice does no harm, so it is asked again when the server may not have heard it."""
        if OBSERVERS and not observed:
            ask = partial(self.ask, timeout=timeout, repeatable=repeatable, observed=True)
            return cast("Raw", await ask_observed(call, self.name, ask))
        reached = False
        tries = 0
        try:
            # One without an end is none that could be suspended.
            limit = TimeLimit(self._time_limits if timeout is not None else TimeLimits(), timeout)
            with limit if self._auth is None else suspendable(limit):
                while True:
                    link = self._link
                    try:
                        if link is None or link.channel.closed or self._mending.locked():
                            link = None
                            link = await self.alive()
                        reached = True
                        said = await self.send(link, call)
                        return said if call.method != "resources/read" else located(call, said)
                    except (TransportError, ProtocolError) as failure:
                        reason = await self._reason_to_repeat(link, call.method, failure, tries, repeatable)
                        reached = False
                    tries += 1
                    if reason is not None:
                        await self._pause(link, call.method, reason, tries, limit)
        except TransportError:
            raise
        except TimeoutError:
            what = f"{call.method}: it could not be reached again in time"
            if reached and self._link is not None:
                what = f"{call.method} was not answered within {timeout:g} s{self._link.hint}"
            raise TimedOut(f"{self.name}: {what}") from None

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[None]:
        """While a person is asked on behalf of a call, no call under way runs out of time; then each begins anew."""
        self._unhurried += 1
        self._set_limits(None)
        try:
            yield
        finally:
            self._unhurried -= 1
            if not self._unhurried and self._timeout is not None:
                self._set_limits(asyncio.get_running_loop().time() + self._timeout)

    def _set_limits(self, when: float | None) -> None:
        for limit in list(self._time_limits.limits):
            limit.reschedule(when)

    def send(self, link: Link, call: Call) -> Awaitable[Raw]:
        """One Call over one link. What the server has not declared is not asked of it (basic/lifecycle, Operation)."""
        if call.method in self._undeclared:
            raise MethodNotFound(
                f"{link.name} does not declare {self._undeclared[call.method]}, so it is not asked for {call.method}; "
                "with undeclared=True it is asked all the same"
            )
        id, token = link.new_id(), call.progress_token
        if token in self._notified.progressing:
            # Two callers of ours chose the same; the server has to tell them apart.
            token = f"{token}-{id}"
        revision = self.greeting.revision if self.modern else None
        sent = Call(
            method=call.method,
            params=self._envelope.put(call, token),
            id=id,
            revision=revision,
            progress_token=call.progress_token,
            # The Call may go on after this answer: in another round, or at the server that it came to.
            reply=Listening(call.reply.emit),
        )
        if token is None and call.method not in LASTING:
            return link(sent)
        notified = self._notified
        known, key = (notified.progressing, token) if token is not None else (notified.subscribed, id)
        return self._send_listening(link, sent, known, key)

    async def _send_listening(self, link: Link, sent: Call, known: dict[Any, Call], key: Any) -> Raw:
        """What the server sends before the result, and says to belong to it, goes to the Call."""
        known[key] = sent
        try:
            return await link(sent)  # type: ignore[no-any-return]
        finally:
            del known[key]

    async def _reason_to_repeat(
        self, link: Link | None, method: str, failure: Error, tries: int, repeatable: bool
    ) -> Error | None:
        """Raises the failure if it is final. None: the server was greeted anew, and can be asked again at once."""
        if self._closing.is_set():
            raise Closed(f"the client was closed ({method})") from None
        if link is not None and not tries and await self._has_changed(link, failure):
            return None
        if link is not None and isinstance(failure, SessionLost):
            link.channel.close(failure)
        if not may_repeat(failure, repeatable or link is None):
            raise not_repeated(failure, method) from None
        return failure

    async def _pause(self, link: Link | None, method: str, reason: Error, tries: int, limit: TimeLimit) -> None:
        """Wait before the next try, or raise the reason of this one if there will be none."""
        seconds = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
        wish: float = getattr(reason, "retry_after", None) or 0.0
        seconds = max(seconds, wish)
        until = limit.until
        late = wish > self._longest_wait or (until is not None and asyncio.get_running_loop().time() + seconds >= until)
        if tries > self._retries or late or isinstance(link, MemoryLink):
            raise about(reason, method)
        log.debug("%s; %s is asked again in %.2f s", reason, method, seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
                raise Closed("the client was closed")

    async def alive(self) -> Link:
        """The link, made again first if it is broken. Nothing is sent before the two sides have greeted each other."""
        link = self.link
        return await self._reopen(link) if link.closed or self._mending.locked() else link

    async def should_retry(self, link: Link | None, failure: Error, *, patient: bool) -> bool:
        """Whether to retry after `failure`: the server changed its era, or the failure is temporary."""
        if link is not None and await self._has_changed(link, failure):
            return True
        return patient and (may_repeat(failure, True) or isinstance(failure, TimedOut))

    async def _has_changed(self, link: Link, failure: Error) -> bool:
        """Whether a server that refuses a request is of another era by now: if so, it has been greeted anew."""
        return self._suggests_other_era(failure) and await self._greeted_anew(link)

    def _suggests_other_era(self, failure: Error) -> bool:
        """Whether this is how a server answers a request of the other era."""
        if self._pinned is not None or not isinstance(self.target, Url):
            return False
        if not self.modern:
            return isinstance(failure, ProtocolError) and failure.status in (400, 404)
        if isinstance(failure, BadStatus):
            return failure.status in (400, 404, 405, 406)
        return isinstance(failure, ProtocolError) and failure.status == 400 and failure.code in _WITHOUT_SESSION

    async def _greeted_anew(self, link: Link) -> bool:
        """Asked on the link there is: other requests may be under way on it."""
        try:
            modern = await discover(link, self.identity, self._timeout) is not None
        except (ProtocolError, BadStatus) as failure:
            modern = not means_handshake_server(failure)
        except TransportError:
            return False
        if modern == self.modern:
            return False
        remember(self.target, modern=None)
        await self._reopen(link, anyway=True)
        return True

    async def _reopen(self, broken: Link, *, anyway: bool = False) -> Link:
        async with self._mending:
            if self._closing.is_set():
                raise Closed("the client was closed")
            link = self.link
            # Another request may have mended it meanwhile; or tried, and given up.
            if not link.closed and not (anyway and link is broken):
                return link
            await link.close()
            try:
                await self._establish()
            except BaseException as failure:
                if self._link is not None:
                    self._link.channel.close(failure if isinstance(failure, Exception) else None)
                raise
        self._end_session()
        await self._on_reopened()
        return self.link

    # What the server sends besides results

    def _receive(self, notice: Call) -> Any:
        if notice.id is None and self._notified.tell(notice):
            return None
        return self._answer(notice)

    async def _listen(self, call: Call) -> Any:
        """`subscriptions/listen` on every revision. A session has no such request: there the Call hears everything."""
        link = await self.alive()
        if self.modern:
            return await self.send(link, call)
        over = self._session_over
        wanted = msgspec.json.decode(call.params, type=ListenParams).notifications
        uris = wanted.resource_subscriptions or []
        if "resources/subscribe" in self._undeclared:
            uris = []
        self._notified.listening.append(call)
        try:
            for uri in uris:
                await self.ask(_subscription("resources/subscribe", uri), self._timeout, True)
            honoured = Filter(
                wanted.tools_list_changed, wanted.prompts_list_changed, wanted.resources_list_changed, uris or None
            )
            call.reply.emit(notifications.ACKNOWLEDGED, AcknowledgedParams(notifications=honoured))
            await over.wait()
        finally:
            self._notified.listening.remove(call)
            for uri in uris if self.is_open and not link.closed and link is self._link else ():
                with contextlib.suppress(Error):
                    await self.ask(_subscription("resources/unsubscribe", uri), self._timeout, False)
        raise Closed("the client was closed" if self._closing.is_set() else f"{self.name} has ended the session")


def _subscription(method: str, uri: str) -> Call:
    return Call(method=method, params=Raw(jsonrpc.encode({"uri": uri})), id=0)
