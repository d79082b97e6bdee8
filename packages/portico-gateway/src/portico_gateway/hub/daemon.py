"""The hub's daemon: accepts bridges on a Unix socket and runs the servers that their hosts ask for."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import logging.handlers
import os
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import Struct

from portico import __version__
from portico.protocol.errors import PorticoError, UsageError
from portico.rpc.supervision import BackgroundTasks
from portico.telemetry.log_formatters import create_formatter
from portico.transports.event_loop import LifespanTask, handle_signals, new_event_loop
from portico_gateway.hub import location
from portico_gateway.hub.bridge import PROTOCOL
from portico_gateway.hub.host_session import HostClient, HostSession
from portico_gateway.hub.location import HubError
from portico_gateway.hub.server_gateway import NoClient, ServerGateway, SharedCatalogCache
from portico_gateway.hub.settings import AttachRequest, ServerCommand, load_settings, resolve_servers

log = logging.getLogger("portico.hub")

# The environment of a process has a limit of the same order.
MAX_GREETING_BYTES = 4 * 1024 * 1024
GREETING_TIMEOUT_SECONDS = 10.0
MAX_SESSIONS = 1000
MAX_NAMES = 100
# A hub without hosts is not needed; the next bridge starts another one.
EXIT_AFTER_SECONDS = 1800.0
MAINTENANCE_INTERVAL_SECONDS = 5.0
# Time for calls in flight when the hub stops, and for the sessions to end.
DRAIN_SECONDS, CLOSE_SECONDS = 10.0, 1.0
MAX_LOG_BYTES = 1024 * 1024
LISTEN_BACKLOG = 128


class ControlRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a command such as `portico hub status`."""

    protocol: int
    control: str
    names: list[str] = []


class _SharedServer:
    """A gateway for several hosts."""

    def __init__(self, gateway: ServerGateway, lifespan: LifespanTask) -> None:
        self.gateway, self.lifespan = gateway, lifespan
        self.users = 0


class Hub:
    """The servers and sessions of one user."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._cache = SharedCatalogCache()
        self._shared: dict[Any, _SharedServer] = {}
        self._opening = asyncio.Lock()
        self.sessions: dict[HostSession, ServerGateway] = {}
        self.connections: set[_BridgeConnection] = set()
        self._tasks = BackgroundTasks()
        self._maintenance = BackgroundTasks()
        self._stop_requested = asyncio.Event()
        self._keeps_bridges = True
        self._without_hosts_since = time.monotonic()

    # Lifecycle

    async def run(self, listener: socket.socket) -> None:
        """Serve bridges until a signal or a command stops the hub, or no host is left for a while."""
        await self._cache.open(os.path.join(self._directory, location.STORE_NAME))
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: _BridgeConnection(self), sock=listener, backlog=LISTEN_BACKLOG)
        self._maintenance.repeat("hub idle servers", self._run_maintenance, MAINTENANCE_INTERVAL_SECONDS)
        log.info("hub %s started (process %d)", __version__, os.getpid())
        with handle_signals(self.stop):
            await self._stop_requested.wait()
        server.close()
        await self._stop_all()
        log.info("hub stopped")

    def stop(self, *, restart: bool = False) -> None:
        """Stop the hub. With `restart` the bridges start another one immediately."""
        self._keeps_bridges = restart
        self._stop_requested.set()

    async def _stop_all(self) -> None:
        self._maintenance.cancel()
        if not self._keeps_bridges:
            for session in self.sessions:
                session.tell_stop()
        # Each connection waits for its calls, up to DRAIN_SECONDS.
        for connection in list(self.connections):
            connection.close()
        await self._tasks.wait(DRAIN_SECONDS + CLOSE_SECONDS)
        await asyncio.gather(*(shared.lifespan.exit() for shared in self._shared.values()), return_exceptions=True)
        await self._cache.shut_down()

    async def _run_maintenance(self) -> None:
        for gateway in self._gateways():
            await gateway.close_idle()
        for key, shared in list(self._shared.items()):
            if not shared.users and not any(shared.gateway.processes()):
                del self._shared[key]
                await shared.lifespan.exit()
        if self.sessions:
            self._without_hosts_since = time.monotonic()
        elif time.monotonic() - self._without_hosts_since > EXIT_AFTER_SECONDS:
            log.info("no host for %g s", EXIT_AFTER_SECONDS)
            self.stop()

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    def _gateways(self) -> list[ServerGateway]:
        shared = [item.gateway for item in self._shared.values()]
        return [*shared, *(gateway for gateway in self.sessions.values() if gateway not in shared)]

    # Sessions

    async def attach(self, request: AttachRequest) -> tuple[HostSession, _Attachment]:
        """Return a session for a bridge. Raises UsageError if the request is invalid."""
        if not request.names or len(request.names) > MAX_NAMES:
            raise UsageError(f"expected 1 to {MAX_NAMES} names, got {len(request.names)}")
        if len(self.sessions) >= MAX_SESSIONS:
            raise UsageError(f"the hub has {MAX_SESSIONS} sessions")
        # Read for each host, so that a change of the file needs no restart.
        commands = resolve_servers(request, await asyncio.to_thread(load_settings, self._directory))
        shared = {command.name: await self._share(command) for command in commands if command.is_shared}
        attachment = _Attachment(list(shared.values()))
        client = HostClient()
        # Each host has a gateway, also in front of a shared process: its results and subscriptions are its own.
        servers = [(command, shared[command.name].gateway if command.is_shared else None) for command in commands]
        gateway = ServerGateway(servers, client, self._cache)
        attachment.lifespan = LifespanTask(gateway.lifespan)
        await attachment.lifespan.entered
        session = HostSession(gateway, request.names, request.pid, lambda: self.start_task(gateway.announce_roots()))
        client.session = session
        self.sessions[session] = gateway
        return session, attachment

    async def detach(self, session: HostSession, attachment: _Attachment) -> None:
        """End a session, and stop the servers that served it alone."""
        self.sessions.pop(session, None)
        for shared in attachment.shared:
            shared.users -= 1
        if attachment.lifespan is not None:
            await attachment.lifespan.exit()

    async def _share(self, command: ServerCommand) -> _SharedServer:
        async with self._opening:
            shared = self._shared.get(command.key)
            if shared is None:
                gateway = ServerGateway(
                    # The gateway of each host shortens results, and stores them for that host.
                    [(command, None)],
                    NoClient(),
                    self._cache,
                    max_result_tokens=0,
                )
                shared = _SharedServer(gateway, LifespanTask(gateway.lifespan))
                await shared.lifespan.entered
                self._shared[command.key] = shared
            shared.users += 1
            return shared

    # Commands

    async def control(self, request: ControlRequest) -> dict[str, Any]:
        """Run a command of the operator and return its result. Raises PorticoError."""
        if request.control == "status":
            return self._status()
        if request.control == "stop":
            self.stop()
            return {}
        if request.control == "restart" and not request.names:
            self.stop(restart=True)
            return {}
        if request.control in ("restart", "upgrade"):
            return await self._replace(request.control, request.names)
        raise UsageError(f"unknown command {request.control!r}")

    async def _replace(self, action: str, names: list[str]) -> dict[str, Any]:
        server_names = {command.name for gateway in self._gateways() for command in gateway.servers}
        for name in names:
            if name not in server_names:
                raise UsageError(
                    f"no host uses the server {name!r} (known: {', '.join(sorted(server_names)) or 'none'})"
                )
        replaced, problems = [], []
        for gateway in self._gateways():
            name = gateway.servers[0].name
            if names and not any(command.name in names for command in gateway.servers):
                continue
            count = len(list(gateway.processes()))
            try:
                await (gateway.upgrade() if action == "upgrade" else gateway.restart())
                replaced += [name] * count
            except PorticoError as failure:
                problems.append(f"{name}: {failure}")
        return {"replaced": replaced, "problems": problems}

    def _status(self) -> dict[str, Any]:
        servers = []
        for gateway in self._gateways():
            own = [session for session, used in self.sessions.items() if used is gateway]
            is_shared = any(shared.gateway is gateway for shared in self._shared.values())
            for upstream in gateway.providers:
                if upstream.is_here:
                    continue
                about = upstream.status()
                servers.append(
                    {
                        "name": upstream.alias,
                        "shared": is_shared,
                        "hosts": [_describe_host(session) for session in own],
                        "processes": [pid for owner, pid in gateway.processes() if owner is upstream],
                        **{name: about[name] for name in ("state", "error", "calls", "errors", "in_flight", "stderr")},
                    }
                )
        return {
            "version": __version__,
            "pid": os.getpid(),
            "directory": self._directory,
            "sessions": len(self.sessions),
            "servers": servers,
        }


class _Attachment:
    """Resources of a session: shared gateways, and the lifespan of its own gateway."""

    def __init__(self, shared: list[_SharedServer]) -> None:
        self.shared = shared
        self.lifespan: LifespanTask | None = None


def _describe_host(session: HostSession) -> dict[str, Any]:
    client = session.host.client
    return {"pid": session.pid, "name": None if client is None else client.name}


class _BridgeConnection(asyncio.Protocol):
    """Connection to the hub's socket: a greeting, then the messages of a session, or the result of a command."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._greeting = bytearray()
        self._session: HostSession | None = None
        self._attachment: _Attachment | None = None
        self._greeted = self._at_end = False
        self._transport: Any = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        try:
            location.check_peer(transport.get_extra_info("socket"))
        except (HubError, OSError) as refusal:
            log.warning("rejected a connection: %s", refusal)
            transport.abort()
            return
        self._hub.connections.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(GREETING_TIMEOUT_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.data_received(data)
            return
        self._greeting += data
        if self._greeted:
            return
        line, newline, rest = bytes(self._greeting).partition(b"\n")
        if newline:
            self._greeted = True
            self._greeting = bytearray(rest)
            # The messages wait in the socket until the session exists.
            self._transport.pause_reading()
            self._hub.start_task(self._handle_greeting(line))
        elif len(self._greeting) > MAX_GREETING_BYTES:
            self._refuse(f"the greeting must not exceed {MAX_GREETING_BYTES} bytes")

    def eof_received(self) -> bool:
        self._at_end = True
        if self._session is not None:
            self._session.eof_received()
        # The other direction stays open for the responses.
        return True

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()

    def connection_lost(self, failure: Exception | None) -> None:
        self._hub.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._session is not None:
            self._session.on_reader_closed()

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.stop_reading()
            self._session.ended.set()
        else:
            self._transport.abort()

    def _refuse(self, reason: str) -> None:
        # One line: a bridge prints it.
        self._transport.write(" ".join(reason.split()).encode() + b"\n")
        self._transport.close()

    async def _handle_greeting(self, line: bytes) -> None:
        try:
            request = _parse_greeting(line)
            if isinstance(request, ControlRequest):
                result = await self._hub.control(request)
                self._transport.write(b"ok\n" + msgspec.json.encode(result) + b"\n")
                self._transport.close()
                return
            session, self._attachment = await self._hub.attach(request)
        except PorticoError as refusal:
            self._refuse(str(refusal))
            return
        except Exception:
            log.exception("a bridge could not be attached")
            self._refuse("the hub failed; see `portico hub logs`")
            return
        finally:
            if self._deadline is not None:
                self._deadline.cancel()
        await self._serve(session)

    async def _serve(self, session: HostSession) -> None:
        assert self._attachment is not None
        transport = self._transport
        try:
            transport.write(b"ok\n")
            # Written directly while nothing is buffered, without waiting for the event loop.
            session.connect(transport, transport, transport.get_extra_info("socket").fileno())
            self._session = session
            rest, self._greeting = bytes(self._greeting), bytearray()
            if transport.is_closing():
                session.on_reader_closed()
            else:
                transport.resume_reading()
            if rest:
                session.data_received(rest)
            if self._at_end:
                session.eof_received()
            await session.ended.wait()
            if not session.broken:
                await session.channel.shutdown(DRAIN_SECONDS)
        finally:
            session.channel.close()
            session.session.close()
            transport.close()
            await self._hub.detach(session, self._attachment)


def _parse_greeting(line: bytes) -> AttachRequest | ControlRequest:
    """Parse the first line of a connection. Raises UsageError."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        protocol = msgspec.json.decode(fields.get("protocol", msgspec.Raw(b"0")), type=int)
        if protocol != PROTOCOL:
            raise UsageError(
                f"this hub ({__version__}) speaks version {PROTOCOL} of the bridge protocol, the bridge {protocol}; "
                "run `portico hub restart`"
            )
        if "control" in fields:
            return msgspec.json.decode(line, type=ControlRequest)
        return msgspec.json.decode(line, type=AttachRequest)
    except (msgspec.DecodeError, RecursionError) as mistake:
        raise UsageError(f"invalid greeting: {mistake}") from None


def bind(directory: int) -> socket.socket:
    """Bind the hub's socket, which no other user can connect to."""
    with contextlib.suppress(FileNotFoundError):
        # Left by a hub that was killed: this process holds the lock, so none listens on it.
        os.unlink(location.SOCKET_NAME, dir_fd=directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        # The umask instead of a later chmod: at no time can another user connect.
        mask = os.umask(0o177)
        try:
            listener.bind(location.socket_path(directory))
        finally:
            os.umask(mask)
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def configure_logging(directory: str) -> None:
    """Log to a file of limited size. A full disk must not stop the servers, so failures are ignored."""
    logging.raiseExceptions = False
    handler = logging.handlers.RotatingFileHandler(
        os.path.join(directory, location.LOG_NAME), maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
    )
    # Messages quote hosts and servers, whose text must not forge lines or control a terminal.
    handler.setFormatter(create_formatter("text"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def serve(directory: int, listener: socket.socket) -> None:
    """Run the hub on a bound socket until it stops."""
    path = location.hub_directory()

    async def main() -> None:
        await Hub(path).run(listener)

    # The modules live as long as the daemon: collections need not examine them.
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())
    finally:
        with contextlib.suppress(OSError):
            os.unlink(location.SOCKET_NAME, dir_fd=directory)


def main() -> int:
    """Detach from the starting process, and serve. The starting process ends when the socket accepts connections."""
    os.umask(0o077)
    try:
        directory = location.open_directory()
    except HubError as failure:
        print(failure, file=sys.stderr)
        return 1
    ready_read, ready_write = os.pipe()
    if os.fork():
        os.close(ready_write)
        # Empty if the daemon ended before it was ready.
        return 0 if os.read(ready_read, 1) else 1
    os.close(ready_read)
    os.setsid()
    os.chdir("/")
    lock = location.open_lock(directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Another daemon was faster; the bridge connects to that one.
        os.write(ready_write, b"1")
        return 0
    configure_logging(location.hub_directory())
    listener = bind(directory)
    os.write(ready_write, b"1")
    os.close(ready_write)
    try:
        serve(directory, listener)
    except Exception:
        log.exception("the hub failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
