"""How a request gets to another worker, and what becomes of one that another has sent on to us.

On this machine its connection is handed over, or it is sent on by a socket of the folder; to another machine it is sent
on over HTTP, to the internal listener of a worker there. No request that claims to be sent on is taken at the address
that clients use. Once: what may have arrived is not sent again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable
from functools import partial

from portico.auth.principal import Principal
from portico.rpc.background_tasks import Errands
from portico.store.errors import StoreError
from portico.transports.http_server import error_responses
from portico.transports.http_server.application import Exchange, cors_of
from portico.transports.http_server.cluster_hooks import SENT_ON
from portico.transports.http_server.connection import Turn
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.listener import Listener
from portico.transports.http_server.messages import Answer, Pairs, Request, ResponseWriter
from portico.transports.http_server.workers import fd_passing, reverse_proxy
from portico.transports.http_server.workers.local_sessions import OwnSessions
from portico.transports.http_server.workers.signing import Forwarding, Forwardings
from portico.transports.http_server.workers.socket_dir import FleetFolder
from portico.transports.http_server.workers.store import FleetRows

log = logging.getLogger("portico")

MOST_HOPS = 2
ASK_SECONDS = 2.0
# How long it is believed of a worker of this machine that it answers, or that it does not, before it is asked again.
BELIEVED_SECONDS = 5.0
MOST_BELIEVED = 1000


class MaybeDone(Exception):
    """A worker went away with a request, which it may have answered."""


class Delivery:
    """The ways between one worker and the others."""

    def __init__(
        self,
        worker: str,
        folder: FleetFolder,
        rows: FleetRows,
        envelopes: Forwardings,
        exchange: Exchange,
        sessions: OwnSessions,
        errands: Errands,
    ) -> None:
        self._worker = worker
        self._folder = folder
        self._rows = rows
        self._envelopes = envelopes
        self._exchange = exchange
        self._sessions = sessions
        self._errands = errands
        self._handed: fd_passing.HandedSockets | None = None
        # Until when it is believed of a worker of this machine whether it is stopped.
        self._believed: dict[str, tuple[float, bool]] = {}
        # Streams by GET that come from others, and pass through here to their clients.
        self._listening: set[reverse_proxy.SentRequest] = set()

    # To others

    async def send(
        self, target: str, request: Request, writer: ResponseWriter, *, seeks: bool = False, whole: bool = True
    ) -> reverse_proxy.Outcome | None:
        """Send it to a worker. None: it is not there; "absent": it does not have the session.

        `whole`: its connection may go with it.
        """
        if target == self._worker or await self._is_stopped(target):
            return None
        envelope = _envelope(target, request)
        envelope.seeks = seeks
        if whole and isinstance(writer, Turn):
            handed = await self._hand(target, request, writer, seeks)
            if handed is not None:
                return "answered" if handed else "absent"
        sealed = self._envelopes.seal(envelope, request)
        outcome = await reverse_proxy.send(self._folder.path(target), request, writer, sealed, self._listening)
        if outcome is None:
            outcome = await self._send_far(target, request, writer, sealed)
        if outcome == "lost" and request.method == "POST":
            raise MaybeDone
        return outcome

    async def send_page(self, target: str, request: Request, writer: ResponseWriter) -> reverse_proxy.Outcome | None:
        """Send a request for a page to a worker of this machine, with its cookie: that worker checks it again."""
        if await self._is_stopped(target):
            return None
        envelope = _envelope(target, request)
        # The visitor is known by the cookie alone.
        envelope.principal = envelope.until = None
        sealed = self._envelopes.seal(envelope, request)
        outcome = await reverse_proxy.send(
            self._folder.path(target), request, writer, sealed, self._listening, with_cookie=True
        )
        if outcome == "lost" and request.method == "POST":
            raise MaybeDone
        return outcome

    async def _send_far(
        self, target: str, request: Request, writer: ResponseWriter, sealed: bytes
    ) -> reverse_proxy.Outcome | None:
        """The same for a worker that has no socket here: it is on another machine, or gone."""
        if self._folder.remove(target):
            # It was here, and has not even removed its socket. Those who look for it now find nothing.
            await self._rows.bury(target)
            return None
        found = await self._rows.worker(target)
        if found is None:
            return None
        outcome = None
        if found.address is not None and (found.lives or await self.ask(found.address, target, "/healthz") is not None):
            outcome = await reverse_proxy.send(found.address, request, writer, sealed, self._listening)
        if outcome is None and found.lives:
            # It lives, as it has said itself: so its sessions are not to be taken from it.
            raise reverse_proxy.Unreachable("it is on another machine, and PORTICO_ADDRESS says where")
        if outcome == "gone":
            # Those who are where it was know best, unless it has said since that it lives.
            await self._rows.end_lease(target, found.lease_until)
            return None
        return outcome

    async def _is_stopped(self, target: str) -> bool:
        """Whether a worker of this machine is there, does not answer, and has not said for long that it lives."""
        until, stopped = self._believed.get(target, (0.0, False))
        if time.monotonic() < until:
            return stopped
        try:
            # Where it has no socket, it is looked for elsewhere.
            await self._ask(self._folder.path(target), target, "/healthz")
            stopped = False
        except (TimeoutError, reverse_proxy.Unreachable):
            stopped = await self._has_ended(target)
            if not stopped:
                # It may be busy, and is sent what it has to answer.
                return False
        if len(self._believed) >= MOST_BELIEVED:
            self._believed.clear()
        self._believed[target] = (time.monotonic() + BELIEVED_SECONDS, stopped)
        return stopped

    async def _has_ended(self, target: str) -> bool:
        try:
            found = await self._rows.worker(target)
        except StoreError:
            # Then its sessions cannot be taken over either.
            return False
        return found is None or not found.lives

    async def ask(self, place: str, worker: str, path: str, principal: Principal | None = None) -> Answer | None:
        """Return what a worker has at a path, as it is shown to a principal; None if it does not answer."""
        try:
            return await self._ask(place, worker, path, principal)
        except (OSError, reverse_proxy.Unreachable):
            return None

    async def _ask(self, place: str, worker: str, path: str, principal: Principal | None = None) -> Answer | None:
        """The same. Raises TimeoutError: a process that is stopped takes what is sent to it, and says nothing."""
        request = Request("GET", path, "", Headers())
        collected = _OwnAnswer()
        sealed = self._envelopes.seal(Forwarding(to=worker, principal=principal), request)
        async with asyncio.timeout(ASK_SECONDS):
            await reverse_proxy.send(place, request, collected, sealed)
        return collected.answered

    async def leave_to_another(self, request: Request, writer: ResponseWriter) -> bool:
        """A worker that leaves takes nothing over: another one is to see to it."""
        others = self._folder.others()
        random.shuffle(others)
        # Those first that take connections: then nothing passes through one that leaves.
        others.sort(key=lambda other: not fd_passing.is_there(self._folder.path_for_connections(other)))
        for other in others if not request.hops else ():
            if await self.send(other, request, writer, seeks=True) == "answered":
                return True
        return False

    def end_streams(self) -> None:
        """End those that would have no end by themselves: their clients come back for the rest."""
        for sent in list(self._listening):
            sent.end()

    # Whole connections

    async def _hand(self, target: str, request: Request, turn: Turn, seeks: bool) -> bool | None:
        """Hand its connection over. False: the session is not there; None: it cannot be, or the worker is not there."""
        path = self._folder.path_for_connections(target)
        copy = turn.lend() if len(request.body) < fd_passing.LARGEST and fd_passing.is_there(path) else None
        if copy is None:
            return None
        session = request.headers.get(b"mcp-session-id", b"").decode("latin-1")
        said = fd_passing.Handed(session, fd_passing.HandedRequest.of(request, turn), seeks)
        try:
            taken = await fd_passing.hand(path, copy, said)
        except TimeoutError:
            # It may have it: then two would answer.
            turn.lent(True)
            raise MaybeDone from None
        turn.lent(taken is True)
        return taken

    async def hand_over_idle(self, listener: Listener) -> None:
        """Connections that nothing is asked on go to other workers: their clients notice nothing."""
        places = [self._folder.path_for_connections(name) for name in self._folder.others()]
        places = [place for place in places if fd_passing.is_there(place)]
        for connection in listener.idle() if places else ():
            copy = connection.lend(None)
            if copy is None:
                continue
            try:
                taken = await fd_passing.hand(random.choice(places), copy, fd_passing.Handed())
            except TimeoutError:
                taken = True
            if taken:
                connection.give_away()
            else:
                connection.resume()

    def take_connections(self, listener: Listener) -> None:
        """Take those that other workers hand over, and be the listener's worker from then on."""
        path = self._folder.path_for_connections(self._worker)
        self._handed = fd_passing.HandedSockets(path, self._sessions.has, partial(self._go_on, listener))

    async def _go_on(self, listener: Listener, given: socket.socket, handed: fd_passing.HandedRequest | None) -> None:
        await fd_passing.go_on(given, listener.made, handed)

    def refuse_connections(self) -> None:
        """Take no more of them."""
        handed, self._handed = self._handed, None
        if handed is not None:
            handed.close()

    # From others

    def refuse(self, request: Request) -> Answer | None:
        """What is said to be sent on, before its body is read: none but a worker is let in without being known."""
        return None if self._envelopes.may_be_ours(request.headers[SENT_ON], request) else _not_ours(request)

    def receive(self, request: Request, writer: ResponseWriter) -> None:
        sealed = request.headers.pop(SENT_ON)
        envelope = self._envelopes.open(sealed, request)
        if envelope is None or not 1 <= envelope.hops <= MOST_HOPS:
            writer.answer(_not_ours(request))
            return
        if request.internal == "network" and self._exchange.is_page(request):
            # Pages are for the machine that their visitors have come to.
            writer.answer(_not_ours(request))
            return
        if envelope.to != self._worker:
            self._pass_on(envelope, request, writer)
            return
        if self._exchange.draining:
            writer.answer(reverse_proxy.LEAVING)
            return
        request.principal, request.until, request.peer = envelope.principal, envelope.until, envelope.peer
        request.root, request.hops, request.seeks = envelope.root, envelope.hops, envelope.seeks
        request.secure, request.cors = envelope.secure, cors_of(request.headers)
        self._exchange.answer_at(request, writer)

    def _pass_on(self, envelope: Forwarding, request: Request, writer: ResponseWriter) -> None:
        """From another machine, for another worker of this one."""
        if envelope.hops >= MOST_HOPS or not os.path.exists(self._folder.path(envelope.to)):
            writer.answer(reverse_proxy.GONE)
            return
        envelope.hops += 1
        task = self._errands.do(self._send_near(envelope, request, writer))
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _send_near(self, envelope: Forwarding, request: Request, writer: ResponseWriter) -> None:
        sealed = self._envelopes.seal(envelope, request)
        try:
            outcome = await reverse_proxy.send(self._folder.path(envelope.to), request, writer, sealed, self._listening)
        except reverse_proxy.Unreachable as failure:
            log.warning("a worker cannot be reached: %s", failure)
            writer.answer(error_responses.busy(request))
            return
        if outcome == "lost":
            writer.abort()
        elif outcome != "answered":
            writer.answer(
                {"leaving": reverse_proxy.LEAVING, "absent": reverse_proxy.ABSENT}.get(
                    outcome or "", reverse_proxy.GONE
                )
            )


def _envelope(target: str, request: Request) -> Forwarding:
    return Forwarding(
        to=target,
        principal=request.principal if isinstance(request.principal, Principal) else None,
        until=request.until,
        peer=request.peer,
        root=request.root,
        secure=request.secure,
        hops=request.hops + 1,
    )


def _not_ours(request: Request) -> Answer:
    return error_responses.error(request, 403, "Forbidden: this was not sent on by one of us")


class _OwnAnswer:
    """A ResponseWriter for an answer that we have asked for ourselves."""

    on_close: Callable[[], None] | None = None
    answered: Answer | None = None

    def answer(self, answer: Answer) -> None:
        self.answered = answer

    def start(self, status: int, headers: Pairs) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None: ...

    def buffered(self) -> int:
        return 0

    async def drain(self) -> None: ...
