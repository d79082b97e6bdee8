"""The sessions of one process: which there are, and which of them make room for others."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from portico.rpc.call import Handler
from portico.rpc.handshake.list_changes import ListChanges
from portico.transports.http_server.cluster_hooks import Elsewhere
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_streams import GetStream, SessionStream
from portico.transports.http_server.stateless import Forbidden

IDLE_SECONDS = 1800.0
# How many sessions are looked at to find one that can go.
MOST_CANDIDATES = 100


class _ByAge:
    """Sessions in the order in which they were last used, those that were never used after `initialize` before them."""

    def __init__(self) -> None:
        self._unused: OrderedDict[str, HttpSession] = OrderedDict()
        self._used: OrderedDict[str, HttpSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unused) + len(self._used)

    def add(self, session: HttpSession) -> None:
        self._unused[session.id] = session

    def use(self, session: HttpSession) -> None:
        self._unused.pop(session.id, None)
        self._used[session.id] = session
        self._used.move_to_end(session.id)

    def remove(self, session: HttpSession) -> None:
        self._unused.pop(session.id, None)
        self._used.pop(session.id, None)

    def oldest(self) -> list[HttpSession]:
        """The oldest of each kind, as far as there are any."""
        return [next(iter(those.values())) for those in (self._unused, self._used) if those]


class Sessions:
    """The sessions of one process, by id. The id of another principal is an unknown id.

    There are `most` in all, `most_per_client` from one address. Beyond that the oldest idle one makes room.
    """

    def __init__(self, handler: Handler, most: int, most_per_client: int) -> None:
        self.changes = ListChanges(handler)
        # The other processes that serve the same clients.
        self.elsewhere: Elsewhere | None = None
        # Streams with a client that reads events.
        self.open_streams: dict[SessionStream, None] = {}
        # Says what a client hears that lacks scopes, where it can get them.
        self.forbidden: Forbidden | None = None
        self._most = most
        self._most_per_client = most_per_client
        self._by_id: dict[str, HttpSession] = {}
        self._by_age = _ByAge()
        self._by_address: dict[str, _ByAge] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def new_id(self) -> str:
        return os.urandom(24).hex() if self.elsewhere is None else self.elsewhere.new_id()

    def values(self) -> list[HttpSession]:
        return list(self._by_id.values())

    def add(self, session: HttpSession) -> bool:
        """Take a session in. Whether there is room for it, or could be made."""
        near = self._by_address.get(session.address)
        if near is not None and len(near) >= self._most_per_client and not self._make_room(near):
            return False
        if len(self._by_id) >= self._most and not self._make_room(self._by_age):
            return False
        self._by_id[session.id] = session
        self._by_age.add(session)
        self._by_address.setdefault(session.address, _ByAge()).add(session)
        return True

    def _make_room(self, among: _ByAge) -> bool:
        """End the oldest idle one. Those that are found in use are old no more, so they are not met again."""
        for _ in range(MOST_CANDIDATES):
            for session in among.oldest():
                if not session.in_use:
                    self.end(session)
                    return True
                self._use(session)
        return False

    def find(self, id: str, principal: Any) -> HttpSession | None:
        session = self._by_id.get(id)
        if session is None or not session.belongs_to(principal):
            return None
        self._use(session)
        return session

    def _use(self, session: HttpSession) -> None:
        session.used = time.monotonic()
        self._by_age.use(session)
        self._by_address[session.address].use(session)

    def end(self, session: HttpSession) -> None:
        if self.remove(session) and self.elsewhere is not None:
            self.elsewhere.ended(session)

    def remove(self, session: HttpSession) -> bool:
        """It is no longer here, but may be elsewhere. Whether it was here."""
        taken = self.take_out(session)
        if taken:
            session.close()
        return taken

    def take_out(self, session: HttpSession) -> bool:
        """The same, while its streams stay open: nothing more is said on them."""
        if self._by_id.pop(session.id, None) is None:
            return False
        near = self._by_address[session.address]
        near.remove(session)
        if not near:
            del self._by_address[session.address]
        self._by_age.remove(session)
        session.fall_silent()
        return True

    def expire(self, idle_seconds: float) -> int:
        """End the sessions that were idle for so long. Returns how many were looked at: the old ones, not all."""
        looked_at, before = 0, time.monotonic() - idle_seconds
        while old := [session for session in self._by_age.oldest() if session.used < before]:
            for session in old:
                looked_at += 1
                if session.in_use:
                    self._use(session)
                else:
                    self.end(session)
        return looked_at

    def keep_alive(self) -> None:
        now = time.time()
        for stream in list(self.open_streams):
            if stream.until is not None and now >= stream.until:
                # Its principal is none any more. A client with a new token comes back for the rest.
                stream.end()
            else:
                stream.keep_alive()

    def end_listening(self, revoked: Callable[[Any], bool]) -> None:
        """End the streams by GET of such principals."""
        for stream in [one for one in self.open_streams if isinstance(one, GetStream) and revoked(one.principal)]:
            stream.end()

    def close(self) -> None:
        for session in self.values():
            # Other processes may go on with it.
            self.remove(session)
        self.changes.end()
