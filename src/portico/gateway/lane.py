"""One connection to an upstream: the calls on it, and which of them a question of the upstream belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Raw, Struct

from portico.gateway.bridge import Parked
from portico.gateway.config import UpstreamSettings
from portico.rpc.call import Call
from portico.rpc.questions import put, require
from portico.transport.greeting import ClientIdentity
from portico.transport.upstream import Upstream
from portico.wire import notices
from portico.wire.content import EmptyResult
from portico.wire.errors import Error, InvalidParams, InvalidRequest, MethodNotFound, ProtocolError
from portico.wire.meta import LOG_LEVELS, ClientCapabilities, Implementation
from portico.wire.methods import ASKABLE, METHODS
from portico.wire.revisions import Revision

Told = Callable[[str, Raw], None]
"""Takes a notification that belongs to no call: its method and its params."""


def carried(able: ClientCapabilities) -> ClientCapabilities:
    """Of what a client can be asked, that which goes through a gateway."""
    return ClientCapabilities(elicitation=able.elicitation, sampling=able.sampling, roots=able.roots)


class _Held(Struct, eq=False):
    """A call that is under way, and how its client is asked if that is not done by a request."""

    call: Call
    parked: Parked | None


class Lane:
    """`asked` is called whenever the upstream asks something during a call that may have questions."""

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        able: ClientCapabilities,
        told: Told,
        asked: Callable[[], None],
    ) -> None:
        assert settings.target is not None
        self._told = told
        self._asked = asked
        self._held: list[_Held] = []
        self.used = time.monotonic()
        self.connection = Upstream(
            settings.target,
            self._answer,
            ClientIdentity(info, able),
            revision=settings.revision,
            timeout=settings.timeout,
        )

    @property
    def in_flight(self) -> int:
        return len(self._held)

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
        """A server with sessions is asked for all of its log messages: which are wanted is known call by call."""
        await self.connection.open()
        if not self.modern and self.connection.greeting.capabilities.logging is not None:
            try:
                await self.connection(Call(method="logging/setLevel", params=Raw(b'{"level":"debug"}'), id=0))
            except ProtocolError:
                pass
            except BaseException:
                await self.connection.close()
                raise

    async def send(self, call: Call, parked: Parked | None = None) -> Any:
        held = _Held(call, parked)
        self._held.append(held)
        try:
            return await self.connection(call)
        finally:
            self._held.remove(held)
            self.used = time.monotonic()

    def _answer(self, said: Call) -> Any:
        """What the upstream sends besides results."""
        if said.id is None:
            if said.method == notices.MESSAGE and self.in_flight == 1:
                _pass_on(said, self._held[0].call)
            else:
                self._told(said.method, said.params)
            return None
        if said.method == "ping":
            return EmptyResult()
        if said.method not in ("elicitation/create", "sampling/createMessage", "roots/list"):
            raise MethodNotFound(f"Method not found: {said.method}")
        return self._ask(said)

    async def _ask(self, question: Call) -> Any:
        """The client's answer. Whatever cannot be put is refused with the reason."""
        if any(held.call.method in ASKABLE for held in self._held):
            # Else it is a server that asks who is there, which says nothing of its tools.
            self._asked()
        if self.in_flight != 1:
            raise InvalidRequest(
                f"{question.method}: it cannot be told which of {self.in_flight} calls this belongs to"
            )
        (held,) = self._held
        call, params = held.call, question.params or None
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
