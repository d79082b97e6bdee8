"""Interface between an endpoint and the other processes that serve the same clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from portico.transports.http_server.messages import HttpRequest, HttpResponse, ResponseWriter
from portico.transports.http_server.session_snapshot import SessionSnapshot

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint
    from portico.transports.http_server.session import HttpSession

FORWARDED_HEADER = b"portico-sent-on"
"Header of a request that another process forwarded."


class RemoteSessions(NamedTuple):
    """Number of sessions of other processes, and a sample: id, path, snapshot, and time of last use."""

    total: int
    sample: list[tuple[str, str, SessionSnapshot, float]]


# A protocol, so that a single process imports neither the store nor the code of workers.
class ClusterHooks(Protocol):
    """Locates sessions of other processes, and publishes the local ones."""

    def new_session_id(self) -> str:
        """Return a session id that encodes its owner."""
        ...

    def route_to_owner(
        self,
        endpoint: Endpoint,
        id: str,
        request: HttpRequest,
        writer: ResponseWriter,
        retry: Callable[[HttpRequest, ResponseWriter], Any],
    ) -> bool:
        """Route a request to the owner of its session. Return whether it will be answered; calls `retry` if the session
        moves here.
        """
        ...

    def route_to_suspended_call(
        self, params: bytes, request: HttpRequest, writer: ResponseWriter, retry: Callable[[], None]
    ) -> bool:
        """Route a request to the process that holds the suspended call its params refer to."""
        ...

    @property
    def is_lease_expired(self) -> bool:
        """Return whether other processes may have taken over local sessions. Requests are then routed, too."""
        ...

    def reject_forwarded(self, request: HttpRequest) -> HttpResponse | None:
        """Return the error response for a request that claims to be forwarded, before its body is read, or None."""
        ...

    def receive_forwarded(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Serve a request that another process forwarded."""
        ...

    def on_session_started(self, session: HttpSession, path: str, callback: Callable[[], None]) -> None:
        """Publish a new session. Calls `callback` when other processes can find it."""
        ...

    def on_session_changed(self, session: HttpSession) -> None: ...
    def on_session_ended(self, session: HttpSession) -> None: ...

    async def leave(self) -> None:
        """Leave the cluster. The other processes take over the sessions."""

    @property
    def is_ready(self) -> bool:
        """Return whether this process is registered and not about to leave."""
        ...

    def route_to_first_worker(self, request: HttpRequest, writer: ResponseWriter, retry: Callable[[], None]) -> bool:
        """Route a request to the same process, whichever one received it. Return whether another one will answer it.

        Calls `retry` if that process no longer exists.
        """
        ...

    async def describe_workers(self) -> list[dict[str, Any]]:
        """Return a summary of each other process on this machine."""
        ...

    async def ask_others(self, path: str, principal: Any) -> list[bytes]:
        """Return the responses of the other processes on this machine for a path and a principal. Processes that do not
        respond are omitted.
        """
        ...

    def remote_sessions(self) -> RemoteSessions:
        """Return the last known sessions of the other processes, on all machines."""
        ...

    def aggregate_metrics(self, local_metrics: str, callback: Callable[[str], None]) -> None:
        """Add the metrics of the other processes on this machine, and pass the total to `callback`."""
        ...
