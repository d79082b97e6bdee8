"""The other workers, as one of them sees them: which of them has a session, and how a request gets there.

A session is with the worker that its id names, or with the one that its row names since. A request for it that comes
to another worker is sent on, once; when the worker that had it is gone, the one that was asked takes it over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from portico.auth.principal import Principal
from portico.fleet import handing, sending, sums
from portico.fleet.rows import LEASE_SECONDS, FleetRows, SessionRow, opened
from portico.fleet.signing import Forwarding, Forwardings, SessionIds, SigningKeys
from portico.store.database import when_ready
from portico.store.errors import StoreError
from portico.store.transaction import LONGEST_PAYLOAD
from portico.transport.http import refusals
from portico.transport.http.connection import Turn
from portico.transport.http.elsewhere import SENT_ON
from portico.transport.http.exchange import Exchange
from portico.transport.http.headers import Headers
from portico.transport.http.listener import Listener
from portico.transport.http.memo import SessionMemo
from portico.transport.http.place import BACKLOG
from portico.transport.http.response import Answer, Pairs, Request, ResponseWriter
from portico.transport.http.sessions import HttpSession
from portico.wire.errors import UsageError

if TYPE_CHECKING:
    from portico.transport.http.endpoint import Endpoint

log = logging.getLogger("portico")

RENEW_SECONDS = 5.0
ASK_SECONDS = 2.0
SWEEP_SECONDS = 300.0
# How long the answer to a handshake waits for its row; a session without one is there as long as its worker.
WRITE_SECONDS = 1.0
MOST_TRIES = 30
LEAVING_SECONDS = 0.1
LAST_SECONDS = 2.0
MOST_HOPS = 2
MOST_KNOWN = 100_000
LONGEST_PATH = 100

_WORKER = re.compile(r"[0-9a-f]{16}").fullmatch
_CHANGE = tuple[str, str, str, str | None]

Again = Callable[[Request, ResponseWriter], Any]


class FleetPlace(Struct, kw_only=True):
    """Where a worker meets the others."""

    # Of the worker: this process, and no other that ever was.
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    # The server's: others may share the store.
    server: str
    store: str
    # For the sockets by which workers of one machine reach each other.
    folder: str
    # What they sign with; None: the store has it.
    key: bytes | None = None
    # `host:port`, by which those of other machines reach this one.
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
        self.retiring = False
        self._place = place
        self._keys = SigningKeys([place.key] if place.key is not None else [])
        self._use_keys = use_keys
        self._tell = tell
        self._ids = SessionIds(self._keys, place.id)
        self._envelopes = Forwardings(self._keys)
        self._folder = self._near = place.folder
        self._opened: int | None = None
        self._exchange = exchange
        # For what other workers send on.
        self._inner = Listener(exchange)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes: dict[str, None] = {}
        self._handed: handing.HandedSockets | None = None
        # When the store has last known of us.
        self._renewed = -LEASE_SECONDS
        self._rows: FleetRows | None = None
        self._tending: asyncio.Task[None] | None = None
        # Sessions that are not where their ids say.
        self._moved: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._adopting: dict[str, asyncio.Lock] = {}
        self._errands: set[asyncio.Task[None]] = set()
        # Sessions that are being left to the others: not here any more, and not yet to be found by their rows.
        self._leaving: dict[str, asyncio.Event] = {}

    # From the beginning to the end

    async def start(self) -> None:
        """Be one of them."""
        self._loop = asyncio.get_running_loop()
        self._reach_folder()
        self._rows = rows = await when_ready(partial(opened, self._place.store, self.id))
        await self._renew(rows)
        self._use_keys(self._keys.keys)
        self._tending = self._loop.create_task(self._tend(rows))
        self._do(self._hear(rows))
        self._exchange.join(self)
        await self._inner.start_on([_listening(self._path(self.id))])

    def _reach_folder(self) -> None:
        """The address of a socket has room for a hundred characters; through a descriptor every folder is near."""
        if len(os.path.join(self._folder, self.id).encode()) > LONGEST_PATH and os.path.isdir("/proc/self/fd"):
            self._opened = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            self._near = f"/proc/self/fd/{self._opened}"

    async def _renew(self, rows: FleetRows) -> None:
        await rows.renew(self._place.address)
        self._renewed = time.monotonic()
        if self._place.key is None:
            keys = await rows.keys(self._place.server)
            if keys != self._keys.keys:
                self._keys.keys = keys
                self._use_keys(keys)

    async def _tend(self, rows: FleetRows) -> None:
        swept = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_SECONDS * random.uniform(0.8, 1.2))
            try:
                await self._renew(rows)
                if time.monotonic() - swept > SWEEP_SECONDS:
                    swept = time.monotonic()
                    await rows.sweep(self._exchange.settings.idle_session)
            except StoreError as failure:
                log.warning("the other workers are not told that we are here: %s", failure)

    def listens_at(self, address: str | None) -> None:
        """Now it is known where other machines reach us."""
        self._place.address = address
        if self._rows is not None and address is not None:
            self._do(self._say_address(self._rows, address))

    async def _say_address(self, rows: FleetRows, address: str) -> None:
        try:
            await rows.renew(address)
        except StoreError as failure:
            log.warning("the other workers are not told where we are: %s", failure)

    async def leave(self) -> None:
        await self.give_up()

    async def close(self) -> None:
        self.refuse_connections()
        # No more comes by a path that is not there; what has come already is answered.
        _remove(self._path(self.id))
        await self._inner.emptied(LAST_SECONDS, least=LEAVING_SECONDS)
        await self._inner.stop(0)
        for task in (*self._errands, self._tending):
            if task is not None:
                task.cancel()
        if self._rows is not None:
            await self._rows.leave()
            await self._rows.close()
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    # How it is

    @property
    def is_ready(self) -> bool:
        return not self.retiring and time.monotonic() - self._renewed < LEASE_SECONDS

    def sum_metrics(self, own: str, then: Callable[[str], None]) -> None:
        self._do(self._sum_metrics(own, then))

    async def _sum_metrics(self, own: str, then: Callable[[str], None]) -> None:
        asked = await asyncio.gather(*(self._ask(other, "/metrics") for other in self._others()))
        texts = [own, *(answer.body.decode() for answer in asked if answer is not None)]
        then(sums.total(texts) + f"# TYPE mcp_server_workers gauge\nmcp_server_workers {len(texts)}\n")

    async def _ask(self, other: str, path: str) -> Answer | None:
        """What another worker of this machine has at a path; None if it does not say."""
        request = Request("GET", path, "", Headers())
        collected = _OwnAnswer()
        sealed = self._envelopes.seal(Forwarding(to=other), request)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await sending.send(self._path(other), request, collected, sealed)
        except (OSError, TimeoutError):
            return None
        return collected.answered

    def _others(self) -> list[str]:
        """The workers of this machine, as far as their sockets say."""
        return [name for name in os.listdir(self._folder) if _WORKER(name) and name != self.id]

    # What has changed

    def spread(self, method: str, uri: str | None) -> None:
        """Tell the others of a change. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._gather, method, uri)

    def _gather(self, method: str, uri: str | None) -> None:
        said = msgspec.json.encode([self._place.server, self.id, method, uri]).decode()
        if len(said) > LONGEST_PAYLOAD:
            log.debug("others are not told of a change: %s is too long", method)
        elif self._rows is not None:
            if not self._changes:
                self._do(self._say_changes(self._rows))
            self._changes[said] = None

    async def _say_changes(self, rows: FleetRows) -> None:
        # All that is said in one turn goes together.
        await asyncio.sleep(0)
        said, self._changes = list(self._changes), {}
        try:
            await rows.tell(said)
        except StoreError as failure:
            log.warning("other workers were not told of changes: %s", failure)

    async def _hear(self, rows: FleetRows) -> None:
        async with rows.heard() as events:
            async for event in events:
                try:
                    server, worker, method, uri = msgspec.json.decode(event.payload, type=_CHANGE)
                except msgspec.DecodeError:
                    continue
                if server == self._place.server and worker != self.id:
                    self._tell(method, uri)

    def refuse_connections(self) -> None:
        """Take no more of them from other workers."""
        handed, self._handed = self._handed, None
        if handed is not None:
            handed.close()

    def _path(self, worker: str) -> str:
        return os.path.join(self._near, worker)

    # Sessions that are here

    def new_id(self) -> str:
        return self._ids.make()

    def began(self, session: HttpSession, path: str, then: Callable[[], None]) -> None:
        self._paths[session.id] = path
        session.session.on_change = partial(self.changed, session)
        written = self._save(session)
        if written is None:
            then()
        else:
            self._do(_when_written(written, then))

    def changed(self, session: HttpSession) -> None:
        self._save(session)

    def _save(self, session: HttpSession) -> asyncio.Future[None] | None:
        memo = session.memo()
        path = self._paths.get(session.id)
        if memo is None or path is None or self._rows is None:
            return None
        return self._rows.save(session.id, path, memo)

    def ended(self, session: HttpSession) -> None:
        if self._paths.pop(session.id, None) is not None and self._rows is not None:
            self._rows.remove(session.id)

    async def give_up(self) -> int:
        """Leave the sessions that nothing is worked on in to the others. Gives how many stay for now."""
        self.retiring = True
        stay = 0
        given: dict[str, tuple[str, SessionMemo]] = {}
        leaving: list[tuple[Endpoint, HttpSession]] = []
        for endpoint in self._exchange.endpoints.values():
            for session in endpoint.sessions.values():
                memo = session.memo(events=True) if session.is_idle else None
                if memo is not None and session.id in self._paths:
                    given[session.id] = self._paths.pop(session.id), memo
                    leaving.append((endpoint, session))
                else:
                    stay += 1
        # They are gone from here before they can be found elsewhere: nothing is said in two places.
        left = asyncio.Event()
        self._leaving |= dict.fromkeys(given, left)
        for endpoint, session in leaving:
            endpoint.sessions.remove(session)
        try:
            if given and self._rows is not None:
                await self._rows.give_up(given)
        except StoreError as failure:
            # Their rows are still ours: they are found when we are gone, without the last events.
            log.warning("sessions are left to others as they were last written down: %s", failure)
        finally:
            left.set()
            for id in given:
                self._leaving.pop(id, None)
        return stay

    # Sessions that are not

    def find(self, endpoint: Endpoint, id: str, request: Request, writer: ResponseWriter, again: Again) -> bool:
        owner = self._ids.owner(id)
        if owner is None or (owner == self.id and id not in self._moved and not self.retiring):
            return False
        if request.hops and not request.seeks:
            # The one who has sent it on looks further.
            said = sending.LEAVING if self.retiring else sending.ABSENT
            self._do(_when(self._leaving.get(id), partial(writer.answer, said)))
            return True
        task = self._do(self._find(endpoint, id, owner, request, writer, again))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    async def _find(
        self, endpoint: Endpoint, id: str, owner: str, request: Request, writer: ResponseWriter, again: Again
    ) -> None:
        try:
            for _ in range(MOST_TRIES):
                target = self._moved.get(id, owner)
                outcome = await self._send(target, request, writer)
                if outcome == "answered":
                    return
                if outcome == "leaving":
                    # Until its row says that it is anyone's.
                    await asyncio.sleep(LEAVING_SECONDS)
                if await self._is_here(endpoint, id, target, outcome):
                    writer.on_close = None
                    again(request, writer)
                    return
                if self.retiring and await self._leave_to_another(request, writer):
                    return
            writer.answer(refusals.busy(request))
        except _NotFound:
            writer.answer(refusals.error(request, 404, "Session not found", request.cors))
        except StoreError as failure:
            log.warning("a session cannot be looked for: %s", failure)
            writer.answer(refusals.busy(request))
        except _Unreachable:
            log.warning("a worker of another machine cannot be reached; PORTICO_ADDRESS says where it is")
            writer.answer(refusals.busy(request))
        except _MaybeDone:
            reason = "Service unavailable: the process of this session ended; it may or may not have made the call"
            writer.answer(refusals.error(request, 502, reason, request.cors))
        except Exception:
            log.exception("error while looking for a session")
            writer.answer(Answer(500))

    async def _send(
        self, target: str, request: Request, writer: ResponseWriter, *, seeks: bool = False
    ) -> sending.Outcome | None:
        """Send it to a worker. None: it is not there; "absent": it does not have the session."""
        if target == self.id:
            return None
        principal = request.principal if isinstance(request.principal, Principal) else None
        envelope = Forwarding(
            to=target, principal=principal, peer=request.peer, root=request.root, hops=request.hops + 1, seeks=seeks
        )
        if not seeks and isinstance(writer, Turn):
            handed = await self._hand(target, request, writer)
            if handed is not None:
                return "answered" if handed else "absent"
        sealed = self._envelopes.seal(envelope, request)
        outcome = await sending.send(self._path(target), request, writer, sealed)
        if outcome is None:
            outcome = await self._send_far(target, request, writer, sealed)
        if outcome == "lost" and request.method == "POST":
            raise _MaybeDone
        return outcome

    async def _hand(self, target: str, request: Request, turn: Turn) -> bool | None:
        """Hand its connection over. False: the session is not there; None: it cannot be, or the worker is not there."""
        path = self._path(target) + handing.ENDING
        copy = turn.lend() if len(request.body) < handing.LARGEST and handing.is_there(path) else None
        if copy is None:
            return None
        session = request.headers.get(b"mcp-session-id", b"").decode("latin-1")
        said = handing.Handed(session, handing.HandedRequest.of(request, turn))
        try:
            taken = await handing.hand(path, copy, said)
        except TimeoutError:
            # It may have it: then two would answer.
            turn.lent(True)
            raise _MaybeDone from None
        turn.lent(taken is True)
        return taken

    def receive_by(self, listener: Listener) -> None:
        """Take connections that other workers hand over, and be the listener's worker from then on."""
        take = partial(self._go_on, listener)
        self._handed = handing.HandedSockets(self._path(self.id) + handing.ENDING, self._has, take)

    async def _go_on(self, listener: Listener, given: socket.socket, handed: handing.HandedRequest | None) -> None:
        await handing.go_on(given, listener.made, handed)

    def _has(self, session: str) -> bool:
        return any(session in endpoint.sessions for endpoint in self._exchange.endpoints.values())

    async def hand_over_idle(self, listener: Listener) -> None:
        """Connections that nothing is asked on go to other workers: their clients notice nothing."""
        others = [name for name in self._others() if handing.is_there(self._path(name) + handing.ENDING)]
        for connection in listener.idle() if others else ():
            copy = connection.lend(None)
            if copy is None:
                continue
            try:
                taken = await handing.hand(self._path(random.choice(others)) + handing.ENDING, copy, handing.Handed())
            except TimeoutError:
                taken = True
            if taken:
                connection.give_away()
            else:
                connection.resume()

    async def _send_far(
        self, target: str, request: Request, writer: ResponseWriter, sealed: bytes
    ) -> sending.Outcome | None:
        """The same for a worker that has no socket here: it is on another machine, or gone."""
        assert self._rows is not None
        if _remove(self._path(target)):
            # It was here, and has not even removed its socket. Those who look for it now find nothing.
            await self._rows.bury(target)
            return None
        row = await self._rows.worker(target)
        if row is None:
            return None
        outcome = None if row.address is None else await sending.send(row.address, request, writer, sealed)
        if outcome is None and row.lease_until > time.time():
            # It lives, as it has said itself: so its sessions are not to be taken from it.
            raise _Unreachable
        # Those who are where it was know best.
        return None if outcome == "gone" else outcome

    async def _leave_to_another(self, request: Request, writer: ResponseWriter) -> bool:
        """A worker that leaves takes nothing over: another one is to see to it."""
        others = self._others()
        random.shuffle(others)
        for other in others if not request.hops else ():
            if await self._send(other, request, writer, seeks=True) == "answered":
                return True
        return False

    async def _is_here(self, endpoint: Endpoint, id: str, target: str, outcome: sending.Outcome | None) -> bool:
        """Whether we have it by now. False: another worker has it, who is to be asked. `outcome` is of the last one."""
        assert self._rows is not None
        lock = self._adopting.setdefault(id, asyncio.Lock())
        try:
            async with lock:
                if id in endpoint.sessions:
                    return True
                row = await self._rows.find(id)
                if row is None or (outcome == "absent" and row.owner == target):
                    # It has ended, whether its row is still there or not.
                    raise _NotFound
                if outcome == "leaving" and row.owner == target:
                    return False
                if row.owner not in (None, target):
                    self._remember(id, row.owner or "")
                    return False
                return await self._adopt(endpoint, row)
        finally:
            if not lock.locked():
                self._adopting.pop(id, None)

    async def _adopt(self, endpoint: Endpoint, row: SessionRow) -> bool:
        assert self._rows is not None
        if self.retiring:
            # Not to one who leaves as well.
            return False
        if not await self._rows.adopt(row.id, row.owner):
            return False
        self._paths[row.id] = row.path
        self._remember(row.id, self.id)
        memo = row.read()
        if not await endpoint.restore(row.id, memo):
            return False
        log.debug("took over a session from %s", row.owner)
        return True

    def _remember(self, id: str, owner: str) -> None:
        if len(self._moved) >= MOST_KNOWN:
            self._moved.clear()
        self._moved[id] = owner

    def _do(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task

    # Requests that others have sent on

    def receive(self, request: Request, writer: ResponseWriter) -> None:
        sealed = request.headers.pop(SENT_ON)
        envelope = self._envelopes.open(sealed, request)
        if envelope is None or not 1 <= envelope.hops <= MOST_HOPS:
            writer.answer(refusals.error(request, 403, "Forbidden: this was not sent on by one of us"))
            return
        if envelope.to != self.id:
            self._pass_on(envelope, request, writer)
            return
        if self._exchange.draining:
            writer.answer(sending.LEAVING)
            return
        request.principal, request.peer = envelope.principal, envelope.peer
        request.root, request.hops, request.seeks = envelope.root, envelope.hops, envelope.seeks
        self._exchange.answer_at(request, writer)

    def _pass_on(self, envelope: Forwarding, request: Request, writer: ResponseWriter) -> None:
        """From another machine, for another worker of this one."""
        if envelope.hops >= MOST_HOPS or not os.path.exists(self._path(envelope.to)):
            writer.answer(sending.GONE)
            return
        envelope.hops += 1
        task = self._do(self._send_near(envelope, request, writer))
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _send_near(self, envelope: Forwarding, request: Request, writer: ResponseWriter) -> None:
        sealed = self._envelopes.seal(envelope, request)
        outcome = await sending.send(self._path(envelope.to), request, writer, sealed)
        if outcome == "lost":
            writer.abort()
        elif outcome != "answered":
            writer.answer({"leaving": sending.LEAVING, "absent": sending.ABSENT}.get(outcome or "", sending.GONE))


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


class _NotFound(Exception):
    """There is no such session."""


class _Unreachable(Exception):
    """The worker that has a session lives, and is not reached."""


class _MaybeDone(Exception):
    """A worker went away with a request, which it may have answered."""


async def _when_written(written: asyncio.Future[None], then: Callable[[], None]) -> None:
    await asyncio.wait([written], timeout=WRITE_SECONDS)
    then()


async def _when(event: asyncio.Event | None, then: Callable[[], None]) -> None:
    if event is not None:
        await event.wait()
    then()


def _listening(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.bind(path)
        one.listen(BACKLOG)
    except BaseException:
        one.close()
        raise
    return one


def _remove(path: str) -> bool:
    """Whether there was something to remove."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def shared_folder(store: str, server: str) -> str:
    """A folder of this user, the same for all processes of this machine that are one server by their store."""
    name = f"portico-{os.getuid()}-{sha256(f'{store} {server}'.encode()).hexdigest()[:12]}"
    path = os.path.join(tempfile.gettempdir(), name)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise UsageError(f"{path} is to be a folder for this user alone, and is not")
    return path
