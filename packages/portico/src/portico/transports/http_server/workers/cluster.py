"""The other workers, as one of them sees them: what an endpoint asks of them, and how one begins and ends there."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from portico.rpc.background_tasks import Errands
from portico.rpc.supervision import BackgroundTasks
from portico.store.database import when_ready
from portico.store.errors import StoreError
from portico.store.keys import SigningKeys
from portico.transports.http_server import error_responses
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.cluster_hooks import OtherSessions
from portico.transports.http_server.listener import Listener
from portico.transports.http_server.messages import Answer, Request, ResponseWriter
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.workers import metrics, status
from portico.transports.http_server.workers.change_broadcast import Spreading
from portico.transports.http_server.workers.forwarding import Delivery
from portico.transports.http_server.workers.lease import WorkerLease
from portico.transports.http_server.workers.local_sessions import OwnSessions
from portico.transports.http_server.workers.session_router import LEAVING_SECONDS, Again, SessionSearch
from portico.transports.http_server.workers.signing import Forwardings, SessionIds
from portico.transports.http_server.workers.socket_dir import FleetFolder
from portico.transports.http_server.workers.store import FleetRows, opened

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint

log = logging.getLogger("portico")

SWEEP_SECONDS = 300.0
LAST_SECONDS = 2.0
# How often people are shown the sessions of other workers anew, and how many.
LOOK_SECONDS = 2.0
MOST_SHOWN = 500


class FleetPlace(Struct, kw_only=True):
    """Where a worker meets the others."""

    # Of the worker: this process, and no other that ever was.
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    # The server's: others may share the store.
    server: str
    store: str
    # For the sockets by which workers of one machine reach each other.
    folder: str
    # What they sign with; None: it is derived from the store's own key, which all processes that share it have.
    key: bytes | None = None
    # `host:port` or `https://host:port`, by which those of other machines reach the internal listener of this one.
    address: str | None = None


class Fleet:
    """One worker's knowledge of the others.

    `use_keys` is told what all sign with, and `tell` what has changed in another worker: a method, and a URI.
    """

    def __init__(
        self,
        place: FleetPlace,
        exchange: Exchange,
        use_keys: Callable[[Sequence[bytes]], None],
        tell: Callable[[str, str | None], None],
    ) -> None:
        self.id = place.id
        self._place = place
        self._exchange = exchange
        self._use_keys = use_keys
        self._tell = tell
        self._keys = SigningKeys([place.key] if place.key is not None else [])
        self._ids = SessionIds(self._keys, place.id)
        self._envelopes = Forwardings(self._keys)
        self._folder = FleetFolder(place.folder, place.id)
        self._errands = Errands()
        self._supervisor = BackgroundTasks()
        # For what other workers send on: those of this machine, and those of other machines.
        self._inner = Listener(exchange, internal="machine")
        self._network = Listener(exchange, internal="network")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rows: FleetRows | None = None
        # The sessions of the others, and when they were last looked at.
        self._others = OtherSessions(0, [])
        self._looked = -LOOK_SECONDS

    # From the beginning to the end

    async def start(self) -> None:
        """Be one of them."""
        self._loop = asyncio.get_running_loop()
        self._folder.open()
        place = self._place
        self._rows = rows = await when_ready(partial(opened, place.store, self.id, place.server, self._keys, place.key))
        self._lease = WorkerLease(partial(self._renew, rows), self._lease_began, self._lease_ended, alone=rows.is_local)
        self._sessions = OwnSessions(rows, self._exchange, self._errands, self._lease)
        await self._lease.renew()
        self._use_keys(self._keys.keys)
        self._supervisor.run("worker lease renewal", self._lease.keep)
        self._supervisor.repeat("worker session sweep", partial(self._sweep, rows), SWEEP_SECONDS)
        self.delivery = Delivery(
            self.id, self._folder, rows, self._envelopes, self._exchange, self._sessions, self._errands
        )
        self._search = SessionSearch(
            self.id, self._ids, rows, self._sessions, self.delivery, self._errands, self._lease
        )
        self._spreading = Spreading(rows, self._place.server, self.id, self._errands, self._tell)
        self._supervisor.run("worker change relay", self._spreading.hear)
        await self._spreading.catch_up()
        self._exchange.join(self)
        await self._inner.start_on([self._folder.listen()])

    async def _renew(self, rows: FleetRows, late: bool) -> None:
        if self._place.key is None:
            keys = await rows.keys(self._place.server)
            if keys != self._keys.keys:
                self._keys.keys = keys
                self._use_keys(keys)
        self._envelopes.ahead = await rows.renew(self._place.address) - time.time()
        if late:
            taken = await self._sessions.drop_taken()
            if taken:
                self._search.has_moved(taken)

    def _lease_began(self) -> None:
        self._sessions.save_unsaved()

    def _lease_ended(self) -> None:
        log.warning(
            "other workers may take over our sessions: until the store is asked again, none is answered in here"
        )
        self._sessions.end_listening()

    async def _sweep(self, rows: FleetRows) -> None:
        try:
            await rows.sweep(self._exchange.settings.idle_session)
        except StoreError as failure:
            log.warning("what was left behind for long is not removed: %s", failure)

    @property
    def is_doubtful(self) -> bool:
        return self._lease.is_over

    async def listen_for_machines(
        self, sockets: Sequence[socket.socket], address: str | None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Take requests that workers of other machines send on, by these sockets, and announce where that is."""
        if self._rows is None or not sockets:
            return
        await self._network.start_on(sockets, tls)
        self._place.address = address
        if address is not None:
            await self._say_address(self._rows, address)

    async def _say_address(self, rows: FleetRows, address: str) -> None:
        try:
            await rows.renew(address)
        except StoreError as failure:
            log.warning("the other workers are not told where we are: %s", failure)

    async def leave(self) -> None:
        await self._sessions.give_up()

    async def give_up(self, until: float) -> int:
        """Leave the sessions that nothing is worked on in to the others, no faster than they take them while there is
        time. Gives how many stay for now."""

        async def breathe() -> None:
            # Clients come back at once, and all together they are more than can wait at a door. Who is busy with those
            # who have come answers late.
            if time.monotonic() < until:
                await asyncio.gather(*(self._ask(other, "/readyz") for other in self._folder.others()))

        return await self._sessions.give_up(breathe)

    async def close(self) -> None:
        if self._rows is not None:
            self.delivery.refuse_connections()
        # No more comes by a path that is not there; what has come already is answered.
        self._folder.remove(self.id)
        self._network.retire()
        await self._inner.emptied(LAST_SECONDS, least=LEAVING_SECONDS)
        await self._inner.stop(0)
        self._supervisor.cancel()
        await self._network.stop(0)
        self._errands.cancel()
        if self._rows is not None:
            self._lease.close()
            await self._rows.leave()
            await self._rows.close()
        self._folder.close()

    # What an endpoint asks

    def new_id(self) -> str:
        return self._ids.make()

    def began(self, session: HttpSession, path: str, then: Callable[[], None]) -> None:
        self._sessions.began(session, path, then)

    def changed(self, session: HttpSession) -> None:
        self._sessions.changed(session)

    def ended(self, session: HttpSession) -> None:
        self._sessions.ended(session)

    def find(self, endpoint: Endpoint, id: str, request: Request, writer: ResponseWriter, again: Again) -> bool:
        return self._search.find(endpoint, id, request, writer, again)

    def find_parked(self, params: bytes, request: Request, writer: ResponseWriter, again: Callable[[], None]) -> bool:
        return self._search.find_parked(params, request, writer, again)

    def refuse(self, request: Request) -> Answer | None:
        return self.delivery.refuse(request)

    def receive(self, request: Request, writer: ResponseWriter) -> None:
        self.delivery.receive(request, writer)

    def spread(self, method: str, uri: str | None) -> None:
        """Tell the others of a change. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._spread, method, uri)

    def _spread(self, method: str, uri: str | None) -> None:
        if self._rows is not None:
            self._spreading.add(method, uri)

    # How it is

    @property
    def is_ready(self) -> bool:
        return not self._sessions.retiring and self._lease.is_known

    def sum_metrics(self, own: str, then: Callable[[str], None]) -> None:
        self._errands.do(self._sum_metrics(own, then))

    async def _sum_metrics(self, own: str, then: Callable[[str], None]) -> None:
        asked = await asyncio.gather(*(self._ask(other, "/metrics") for other in self._folder.others()))
        texts = [own, *(answer.body.decode() for answer in asked if answer is not None)]
        then(metrics.total(texts) + f"# TYPE mcp_server_workers gauge\nmcp_server_workers {len(texts)}\n")

    async def look_around(self) -> list[dict[str, Any]]:
        """The other workers of this machine, and what each of them says of itself."""
        others = sorted(self._folder.others())
        said = await asyncio.gather(*(self._ask(other, "/metrics") for other in others))
        return [_glance(name, answer) for name, answer in zip(others, said, strict=True)]

    async def ask_others(self, path: str, principal: Any) -> list[bytes]:
        """Return what the other workers of this machine have at a path, as it is shown to a principal."""
        answers = await asyncio.gather(*(self._ask(other, path, principal) for other in self._folder.others()))
        return [answer.body for answer in answers if answer is not None and answer.status == 200]

    def other_sessions(self) -> OtherSessions:
        """What the other workers have, on whatever machine, as it was last read: a moment ago, while one asks."""
        now = time.monotonic()
        if self._rows is not None and now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._errands.do(self._look_at_others(self._rows))
        return self._others

    async def _look_at_others(self, rows: FleetRows) -> None:
        look = partial(status.sessions_of_others, self._place.server, self.id, MOST_SHOWN)
        try:
            count, found = await rows.look(look)
        except StoreError as failure:
            log.debug("the sessions of other workers are not known: %s", failure)
            return
        self._others = OtherSessions(count, [(one.row.id, one.row.path, one.row.read(), one.used_at) for one in found])

    def send_to_first(self, request: Request, writer: ResponseWriter, again: Callable[[], None]) -> bool:
        first = min(self._folder.others(), default=self.id)
        if request.hops or first > self.id or first == self.id:
            return False
        task = self._errands.do(self._send_to(first, request, writer, again))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    async def _send_to(self, worker: str, request: Request, writer: ResponseWriter, again: Callable[[], None]) -> None:
        try:
            outcome = await self.delivery.send_page(worker, request, writer)
        except Exception:
            log.warning("a request could not be sent on to the first worker")
            writer.answer(error_responses.busy(request))
            return
        if outcome != "answered":
            writer.on_close = None
            again()

    async def _ask(self, other: str, path: str, principal: Any = None) -> Answer | None:
        """What another worker of this machine has at a path; None if it does not say."""
        return await self.delivery.ask(self._folder.path(other), other, path, principal)


def _glance(name: str, answer: Answer | None) -> dict[str, Any]:
    """A worker in a line, from its numbers."""
    text = "" if answer is None else answer.body.decode()

    def value(series: str) -> int:
        lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith(series))
        return int(sum(float(number) for _, _, number in lines))

    return {
        "id": name,
        "state": "silent" if answer is None else "serving",
        "sessions": value("mcp_server_sessions "),
        "in_flight": value("mcp_server_in_flight "),
        "calls": value("mcp_server_operation_duration_seconds_count"),
    }
