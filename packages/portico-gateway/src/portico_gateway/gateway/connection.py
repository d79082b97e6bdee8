"""One connection to an upstream: the calls on it, and which of them a question of the upstream belongs to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import notifications
from portico.protocol.apps import EXTENSION, shows_pages
from portico.protocol.client_features import ListRootsResult
from portico.protocol.content import EmptyResult
from portico.protocol.errors import Error, InvalidParams, InvalidRequest, MethodNotFound, ProtocolError, Refused
from portico.protocol.meta import LOG_LEVELS, ClientCapabilities, Implementation
from portico.protocol.methods import ASKABLE, METHODS
from portico.protocol.tasks import RELATED
from portico.protocol.versions import Revision
from portico.rpc.attribution import attribute
from portico.rpc.call import Call
from portico.rpc.client_requests import put, require
from portico.transports.base import on_own_stream
from portico.transports.handshake import ClientIdentity
from portico.transports.http_client.base import RequestSender
from portico.transports.upstream import Upstream
from portico_gateway.gateway.catalog_entries import LISTS
from portico_gateway.gateway.client_handlers import OwnAnswers
from portico_gateway.gateway.concurrency import LOCAL
from portico_gateway.gateway.server_request_bridge import Parked
from portico_gateway.gateway.settings import UpstreamSettings

Told = Callable[[str, Raw], None]
"""Takes a notification that belongs to no call: its method and its params."""


def carried(able: ClientCapabilities) -> ClientCapabilities:
    """Of what a client can be asked, that which goes through a gateway."""
    pages = {EXTENSION: (able.extensions or {})[EXTENSION]} if shows_pages(able) else None
    return ClientCapabilities(elicitation=able.elicitation, sampling=able.sampling, roots=able.roots, extensions=pages)


class _Held(Struct, eq=False):
    """A call that is under way, and how its client is asked if that is not done by a request."""

    call: Call
    parked: Parked | None


# The call that is being sent, for what comes back on a stream of its own.
_under_way: ContextVar[_Held | None] = ContextVar("_under_way", default=None)


class Lane:
    """`opened` is called when the connection was made again, `missed` when something may not have been heard, and
    `asked` when the upstream has asked something during a
    call that may have questions, and has not said which one it is for. `turned` is called with 1 when the connection
    gets busy, and with -1 when it is idle again."""

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        able: ClientCapabilities,
        told: Told,
        opened: Callable[[Lane], None],
        missed: Callable[[], None],
        asked: Callable[[], None],
        auth: RequestSender | None = None,
        answers: OwnAnswers | None = None,
        turned: Callable[[Lane, int], None] = lambda lane, busy: None,
    ) -> None:
        assert settings.target is not None
        self._answers = answers
        self._turned = turned
        self._alias = settings.alias
        # The caller whose share of connections it counts against.
        self.owner = LOCAL
        self._told = told
        self._opened = opened
        self._missed = missed
        self._asked = asked
        self._held: list[_Held] = []
        # How many calls are under way of which no question can come in a request.
        self.passing = 0
        self.used = time.monotonic()
        # It ended by itself, and was not made again yet.
        self.broken = False
        # Whether tasks began on it, which may be known there alone.
        self.has_tasks = False
        # How many hear of changes on it.
        self.listeners = 0
        self.connection = Upstream(
            settings.target,
            self._answer,
            ClientIdentity(info, able),
            revision=settings.revision,
            timeout=settings.timeout,
            auth=auth,
            longest_wait=0.0,
            on_reopened=self._reopened,
            on_gap=self._gap,
            shown_as=settings.alias,
        )

    @property
    def last_lines(self) -> list[str]:
        """What the upstream wrote last to its stderr, where it has one."""
        return self.connection.link.last_lines if self.connection.is_open else []

    @property
    def in_flight(self) -> int:
        return len(self._held) + self.passing

    @property
    def alive(self) -> bool:
        return self.connection.is_open and not self.connection.link.closed

    @property
    def modern(self) -> bool:
        return self.connection.modern

    @property
    def revision(self) -> Revision:
        return self.connection.greeting.revision

    async def open(self) -> None:
        await self.connection.open()
        try:
            await self._ask_for_logs()
        except BaseException:
            await self.connection.close()
            raise

    async def _ask_for_logs(self) -> None:
        """A server with sessions is asked for all of its log messages: which are wanted is known call by call."""
        if not self.modern and self.connection.greeting.capabilities.logging is not None:
            with contextlib.suppress(ProtocolError):
                await self.connection(Call(method="logging/setLevel", params=Raw(b'{"level":"debug"}'), id=0))

    async def _reopened(self) -> None:
        self.broken = False
        await self._ask_for_logs()
        self._opened(self)

    def _gap(self) -> None:
        if self.connection.is_open and self.connection.link.closed:
            self.broken = True
        else:
            self._missed()

    async def send(self, call: Call, parked: Parked | None = None) -> Any:
        held = _Held(call, parked)
        self._held.append(held)
        if len(self._held) == 1:
            self._turned(self, 1)
        _under_way.set(held)
        try:
            return await self.connection(call)
        finally:
            self._held.remove(held)
            self.used = time.monotonic()
            if not self._held:
                self._turned(self, -1)

    async def listen(self, call: Call) -> Any:
        """Hear of changes until the connection ends."""
        if self.broken or not self.connection.is_open:
            raise InvalidRequest("this connection is over")
        self.listeners += 1
        try:
            return await self.connection(call)
        finally:
            self.listeners -= 1

    def _answer(self, said: Call) -> Any:
        """What the upstream sends besides results."""
        if said.id is None:
            held = self._whose(said) if said.method == notifications.MESSAGE else None
            if held is not None:
                _pass_on(said, held.call)
            else:
                self._told(said.method, said.params)
            return None
        if said.method == "ping":
            return EmptyResult()
        if said.method not in ("elicitation/create", "sampling/createMessage", "roots/list"):
            raise MethodNotFound(f"Method not found: {said.method}")
        return self._ask(said)

    def _whose(self, said: Call) -> _Held | None:
        """The call that something belongs to: the one on whose stream it came, the one that waits for the task that it
        names, or the only one there is."""
        held = _under_way.get()
        if on_own_stream.get() and held in self._held:
            return held
        task = _related(said)
        if task is not None:
            return next((one for one in self._held if _awaits(one.call, task)), None)
        return self._held[0] if self.in_flight == 1 else None

    @property
    def _serves_no_client(self) -> bool:
        """Whether nothing is under way but lists, which the gateway asks for itself."""
        return not self.passing and all(one.call.method in LISTS for one in self._held)

    async def _ask(self, question: Call) -> Any:
        """The answer of the gateway or of the client. Whatever cannot be put is refused with the reason."""
        if self._answers is not None and self._answers.takes(question.method):
            try:
                with self.connection.unhurried():
                    return await self._answers.answer(question.method, question.params or None)
            except Refused as refusal:
                raise InvalidRequest(f"{question.method} was not answered: {refusal}") from None
        if question.method == "roots/list" and self._serves_no_client:
            # Servers ask for roots when a session begins, which is before any client is served on it.
            return ListRootsResult(roots=[])
        held = self._whose(question)
        if not on_own_stream.get() and any(one.call.method in ASKABLE for one in self._held):
            # Else it is a server that asks who is there, which says nothing of its tools.
            self._asked()
        if held is None:
            raise InvalidRequest(
                f"{question.method}: it cannot be told which of {self.in_flight} calls this belongs to"
            )
        call, params = held.call, attribute(self._alias, question.method, question.params or None)
        try:
            require(call, question.method, params)
            with self.connection.unhurried():
                if held.parked is not None:
                    return await held.parked.ask(question.method, params)
                return await put(call, question.method, params)
        except Error as refusal:
            raise InvalidRequest(f"{question.method} was not answered: {refusal}") from None


def _pass_on(message: Call, call: Call) -> None:
    """A log message to the client of a call, if it wants to hear of such."""
    try:
        level = METHODS[message.method].decode(message.params).level
    except InvalidParams:
        return
    if call.log_level is not None and LOG_LEVELS[level] >= LOG_LEVELS[call.log_level]:
        call.reply.emit(message.method, message.params)


class _RelatedTask(Struct, rename="camel"):
    task_id: str = ""


class _RelatedMeta(Struct):
    related: _RelatedTask | None = msgspec.field(default=None, name=RELATED)


class _Related(Struct):
    meta: _RelatedMeta | None = msgspec.field(default=None, name="_meta")


_related_decoder = msgspec.json.Decoder(_Related)


def _related(said: Call) -> str | None:
    """2025-11-25, basic/utilities/tasks: what belongs to a task says so."""
    if RELATED.encode() not in bytes(said.params):
        return None
    try:
        meta = _related_decoder.decode(said.params).meta
    except (msgspec.DecodeError, RecursionError):
        return None
    return meta.related.task_id if meta is not None and meta.related is not None else None


def _awaits(call: Call, task: str) -> bool:
    return call.method == "tasks/result" and bool(METHODS[call.method].decode(call.params).task_id == task)
