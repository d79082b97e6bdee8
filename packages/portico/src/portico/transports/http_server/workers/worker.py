"""Worker process: serves on the sockets that its supervisor passed."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import msgspec

from portico.rpc.supervision import BackgroundTasks
from portico.transports.event_loop import handle_signals
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.bind_address import BindAddress
from portico.transports.http_server.listener import Listener
from portico.transports.http_server.workers.assignment import ControlSocket
from portico.transports.http_server.workers.cluster import WorkerCluster

# How often a retiring worker checks whether its calls have ended.
RETIRE_POLL_INTERVAL_SECONDS = 0.1


class HttpWorker:
    """Serves until stopped by its supervisor or a signal, or until another worker replaces it."""

    def __init__(
        self, control: ControlSocket, application: HttpApplication, bind_address: BindAddress, cluster: WorkerCluster
    ) -> None:
        self._control = control
        self._bind_address = bind_address
        self._cluster = cluster
        self._listener = Listener(application)
        self._stop = asyncio.Event()
        self._retires = False
        # Servers for the sockets of slots without a worker.
        self._covering: dict[int, list[asyncio.Server]] = {}
        self._background_tasks = BackgroundTasks()

    async def serve(self) -> None:
        # A terminal hangup is handled by the supervisor. A handler instead of SIG_IGN, which child processes would
        # inherit.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda *_: None)
        loop = asyncio.get_running_loop()
        line = self._control.socket
        line.setblocking(False)
        loop.add_reader(line, self._receive_commands)
        try:
            with handle_signals(self._stop.set):
                await self._cluster.start()
                sockets = self._control.sockets
                await self._listener.listen_on(sockets, self._bind_address.ssl_context())
                internal = self._control.internal
                address = self._bind_address.internal_address(internal[0]) if internal else None
                await self._cluster.listen_for_machines(internal, address, self._bind_address.ssl_context())
                self._control.send(ready=True)
                await self._stop.wait()
                if self._retires:
                    await self._retire_until_stopped()
        finally:
            loop.remove_reader(line)
            await self._listener.stop(self._bind_address.shutdown_timeout)
            await self._cluster.close()
            line.close()

    async def _retire_until_stopped(self) -> None:
        """Release sessions and connections until done, or until a signal stops it."""
        self._stop.clear()
        letting_go = asyncio.ensure_future(self._retire())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({letting_go, stopping}, return_when=asyncio.FIRST_COMPLETED)
        letting_go.cancel()
        stopping.cancel()

    async def _retire(self) -> None:
        """Release each session as soon as it is idle, then wait for the connections to close."""
        self._listener.stop_accepting()
        until = time.monotonic() + self._bind_address.shutdown_timeout
        while True:
            stay = await self._cluster.release_idle_sessions(until - self._bind_address.shutdown_timeout / 2)
            # Subscriptions and streams have no end by themselves: clients open them again at another worker.
            self._listener.application.end_subscriptions()
            self._cluster.forwarder.end_streams()
            if not stay:
                # No session is left here, so clients should connect to another worker.
                self._listener.close_idle()
            left = until - time.monotonic()
            if left <= 0 or (not stay and self._listener.is_empty):
                return
            await self._listener.wait_empty(min(RETIRE_POLL_INTERVAL_SECONDS, left))

    def _receive_commands(self) -> None:
        """Handle the supervisor's commands. Stop if the supervisor is gone: nothing would replace this worker."""
        try:
            data = self._control.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control.socket)
            self._retires = False
            self._stop.set()
        for line in data.splitlines():
            command = msgspec.json.decode(line)
            if command.get("retire"):
                self._retires = True
                self._stop.set()
            if "cover" in command and not self._retires:
                self._background_tasks.start(self._cover_slot(command["cover"]))
            for server in self._covering.pop(command.get("uncover", -1), ()):
                server.close()

    async def _cover_slot(self, position: int) -> None:
        """Accept the connections of another slot, too."""
        self._covering[position] = await self._listener.listen_on(
            self._control.duplicate_sockets(position), self._bind_address.ssl_context()
        )
