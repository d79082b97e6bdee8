"""One of the processes that a supervisor starts: it serves on the sockets that it was given."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import msgspec

from portico.rpc.background_tasks import Errands
from portico.transports.event_loop import on_signals
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.bind_address import Place
from portico.transports.http_server.listener import Listener
from portico.transports.http_server.workers.assignment import Post
from portico.transports.http_server.workers.cluster import Fleet

# How often it is looked whether the calls of a session have come to their end.
LOOK_SECONDS = 0.1


class FleetWorker:
    """Serves until its supervisor, or a signal, tells it to stop; or until another has taken its place."""

    def __init__(self, post: Post, exchange: Exchange, place: Place, fleet: Fleet) -> None:
        self._post = post
        self._place = place
        self._fleet = fleet
        self._listener = Listener(exchange)
        self._stop = asyncio.Event()
        self._retires = False
        # What comes to places without a worker.
        self._covering: dict[int, list[asyncio.Server]] = {}
        self._errands = Errands()

    async def serve(self) -> None:
        # A terminal's hangup is for the supervisor. Not ignored: what we start would ignore it as well.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda *_: None)
        loop = asyncio.get_running_loop()
        line = self._post.line
        line.setblocking(False)
        loop.add_reader(line, self._hear)
        try:
            with on_signals(self._stop.set):
                await self._fleet.start()
                sockets = self._post.sockets
                await self._listener.start_on(sockets, self._place.tls())
                self._fleet.delivery.take_connections(self._listener)
                internal = self._post.internal
                address = self._place.internal_address(internal[0]) if internal else None
                await self._fleet.listen_for_machines(internal, address, self._place.tls())
                self._post.tell(ready=True)
                await self._stop.wait()
                if self._retires:
                    await self._let_go()
        finally:
            loop.remove_reader(line)
            await self._listener.stop(self._place.grace)
            await self._fleet.close()
            line.close()

    async def _let_go(self) -> None:
        """Retire; a signal meanwhile ends that."""
        self._stop.clear()
        letting_go = asyncio.ensure_future(self._retire())
        told = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({letting_go, told}, return_when=asyncio.FIRST_COMPLETED)
        letting_go.cancel()
        told.cancel()

    async def _retire(self) -> None:
        """Leave the sessions to the others, each as soon as nothing is worked on in it; then the connections."""
        self._fleet.delivery.refuse_connections()
        self._listener.retire()
        until = time.monotonic() + self._place.grace
        while True:
            stay = await self._fleet.give_up(until - self._place.grace / 2)
            # What would have no end by itself is begun anew elsewhere.
            self._listener.exchange.end_listening()
            self._fleet.delivery.end_streams()
            await self._fleet.delivery.hand_over_idle(self._listener)
            left = until - time.monotonic()
            if left <= 0 or (not stay and self._listener.is_empty):
                return
            await self._listener.emptied(min(LOOK_SECONDS, left))

    def _hear(self) -> None:
        """What the supervisor says. If it is gone, no other process would replace us: that is an end as well."""
        try:
            said = self._post.line.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            asyncio.get_running_loop().remove_reader(self._post.line)
            self._retires = False
            self._stop.set()
        for one in said.splitlines():
            told = msgspec.json.decode(one)
            if told.get("retire"):
                self._retires = True
                self._stop.set()
            if "cover" in told and not self._retires:
                self._errands.do(self._cover(told["cover"]))
            for server in self._covering.pop(told.get("uncover", -1), ()):
                server.close()

    async def _cover(self, place: int) -> None:
        """Take the connections of another place, too."""
        self._covering[place] = await self._listener.start_on(self._post.copies(place), self._place.tls())
