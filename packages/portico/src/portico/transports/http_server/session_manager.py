"""Sessions of one process, with limits and eviction."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from portico.rpc.call import Handler
from portico.rpc.handshake.list_changes import ListChangeNotifier
from portico.rpc.identity import client_network
from portico.transports.http_server.cluster_hooks import ClusterHooks
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_streams import GetStream, SessionStream
from portico.transports.http_server.stateless import ScopeErrorFactory

# Default of the option `session_idle_timeout`. A client whose session ended has to initialize again.
IDLE_TIMEOUT_SECONDS = 1800.0
# Number of sessions to check for eviction.
MAX_EVICTION_CANDIDATES = 100


class _LruSessions:
    """Sessions in least-recently-used order. Sessions that were never used after `initialize` come first."""

    def __init__(self) -> None:
        # Two queues, because a flood of `initialize` requests must evict its own sessions before those of real
        # clients.
        self._unused: OrderedDict[str, HttpSession] = OrderedDict()
        self._active: OrderedDict[str, HttpSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unused) + len(self._active)

    def add(self, session: HttpSession) -> None:
        self._unused[session.id] = session

    def touch(self, session: HttpSession) -> None:
        self._unused.pop(session.id, None)
        self._active[session.id] = session
        self._active.move_to_end(session.id)

    def remove(self, session: HttpSession) -> None:
        self._unused.pop(session.id, None)
        self._active.pop(session.id, None)

    def oldest(self) -> list[HttpSession]:
        """Return the oldest unused and the oldest used session, if any."""
        return [next(iter(group.values())) for group in (self._unused, self._active) if group]


class SessionManager:
    """Sessions of one process, by id. A session of another principal is treated as unknown.

    Limited to `max_sessions` in total and `max_sessions_per_client` per client network. Beyond that, the oldest idle
    session is evicted.
    """

    def __init__(self, handler: Handler, max_sessions: int, max_sessions_per_client: int) -> None:
        self.changes = ListChangeNotifier(handler)
        # The other processes that serve the same clients.
        self.cluster: ClusterHooks | None = None
        # Streams with a connected client.
        self.open_streams: dict[SessionStream, None] = {}
        # Creates the response for a client that lacks scopes.
        self.scope_error: ScopeErrorFactory | None = None
        self._max_sessions = max_sessions
        self._max_sessions_per_client = max_sessions_per_client
        self._by_id: dict[str, HttpSession] = {}
        self._by_age = _LruSessions()
        self._by_network: dict[str, _LruSessions] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def new_id(self) -> str:
        # "The session ID SHOULD be globally unique and cryptographically secure" (2025-11-25,
        # basic/transports).
        return os.urandom(24).hex() if self.cluster is None else self.cluster.new_session_id()

    def values(self) -> list[HttpSession]:
        return list(self._by_id.values())

    def add(self, session: HttpSession) -> bool:
        """Add a session. Return whether there was room, or room could be made."""
        # The limit per network is checked first: one client at its limit must not evict sessions of others.
        sessions = self._by_network.get(client_network(session.address))
        if sessions is not None and len(sessions) >= self._max_sessions_per_client and not self._evict_idle(sessions):
            return False
        if len(self._by_id) >= self._max_sessions and not self._evict_idle(self._by_age):
            return False
        self._by_id[session.id] = session
        self._by_age.add(session)
        self._by_network.setdefault(client_network(session.address), _LruSessions()).add(session)
        return True

    def _evict_idle(self, among: _LruSessions) -> bool:
        """End the oldest idle session. Sessions in use are marked as recent, so they are not checked again."""
        for _ in range(MAX_EVICTION_CANDIDATES):
            for session in among.oldest():
                if not session.is_in_use:
                    self.end(session)
                    return True
                self._mark_used(session)
        return False

    def find(self, id: str, principal: Any) -> HttpSession | None:
        # Session ids are not credentials (2025-11-25, Security Best Practices, Session Hijacking): the
        # principal must match.
        session = self._by_id.get(id)
        if session is None or not session.belongs_to(principal):
            return None
        self._mark_used(session)
        return session

    def _mark_used(self, session: HttpSession) -> None:
        session.last_used = time.monotonic()
        self._by_age.touch(session)
        self._by_network[client_network(session.address)].touch(session)

    def end(self, session: HttpSession) -> None:
        if self.remove(session) and self.cluster is not None:
            self.cluster.on_session_ended(session)

    def remove(self, session: HttpSession) -> bool:
        """Remove and close a session, which may continue in another process. Return whether it was here."""
        removed = self.detach(session)
        if removed:
            session.close()
        return removed

    def detach(self, session: HttpSession) -> bool:
        """Remove a session but leave its streams open. Return whether it was here."""
        if self._by_id.pop(session.id, None) is None:
            return False
        network = client_network(session.address)
        sessions = self._by_network[network]
        sessions.remove(session)
        if not sessions:
            del self._by_network[network]
        self._by_age.remove(session)
        session.close_channel()
        return True

    def expire(self, idle_timeout: float) -> int:
        """End the sessions that were idle for `idle_timeout` seconds. Return the number of sessions checked: only old
        ones.
        """
        checked, before = 0, time.monotonic() - idle_timeout
        # Both queues are ordered by last use, so the loop stops at the first session that is recent enough.
        while old := [session for session in self._by_age.oldest() if session.last_used < before]:
            for session in old:
                checked += 1
                if session.is_in_use:
                    self._mark_used(session)
                else:
                    self.end(session)
        return checked

    def send_keep_alives(self) -> None:
        now = time.time()
        for stream in list(self.open_streams):
            if stream.token_expires_at is not None and now >= stream.token_expires_at:
                # The token has expired. A client with a new token can resume the stream.
                stream.end()
            else:
                stream.send_keep_alive()

    def end_get_streams(self, is_revoked: Callable[[Any], bool]) -> None:
        """End the GET streams of revoked principals."""
        for stream in [
            open_stream
            for open_stream in self.open_streams
            if isinstance(open_stream, GetStream) and is_revoked(open_stream.principal)
        ]:
            stream.end()

    def close(self) -> None:
        for session in self.values():
            # Other processes may continue the session.
            self.remove(session)
        self.changes.close()
