"""What an endpoint asks of the other processes that serve the same clients, where there are some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from portico.transports.http_server.messages import Answer, Request, ResponseWriter
from portico.transports.http_server.session_snapshot import SessionMemo

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint
    from portico.transports.http_server.session import HttpSession

SENT_ON = b"portico-sent-on"
"""The header of a request that another process has sent on to us."""


class OtherSessions(NamedTuple):
    """How many sessions other processes have, and some of them: id, path, what is known of it, and when it was used."""

    total: int
    some: list[tuple[str, str, SessionMemo, float]]


class Elsewhere(Protocol):
    """Finds sessions that are not here, and tells others of those that are."""

    def new_id(self) -> str:
        """An id that says where the session is."""
        ...

    def find(
        self,
        endpoint: Endpoint,
        id: str,
        request: Request,
        writer: ResponseWriter,
        again: Callable[[Request, ResponseWriter], Any],
    ) -> bool:
        """Have a request answered whose session is not here. Whether it will be; `again` when it has come here."""
        ...

    def find_parked(self, params: bytes, request: Request, writer: ResponseWriter, again: Callable[[], None]) -> bool:
        """The same for one that goes on with what one process keeps, as its params say."""
        ...

    @property
    def is_doubtful(self) -> bool:
        """Whether other processes may have taken over sessions that are here: then `find` is asked for them, too."""
        ...

    def refuse(self, request: Request) -> Answer | None:
        """What is wrong with a request that is said to be sent on, before its body is read."""
        ...

    def receive(self, request: Request, writer: ResponseWriter) -> None:
        """Answer a request that another process has sent on."""
        ...

    def began(self, session: HttpSession, path: str, then: Callable[[], None]) -> None:
        """A session has begun: `then` is called when others can find it."""
        ...

    def changed(self, session: HttpSession) -> None: ...
    def ended(self, session: HttpSession) -> None: ...

    async def leave(self) -> None:
        """This process ends: its sessions are left to the others."""

    @property
    def is_ready(self) -> bool:
        """Whether others know of us, and we stay."""
        ...

    def send_to_first(self, request: Request, writer: ResponseWriter, again: Callable[[], None]) -> bool:
        """Have a request answered by one and the same process, whichever it has come to. Whether another will; `again`
        when that is not there any more."""
        ...

    async def look_around(self) -> list[dict[str, Any]]:
        """The other processes on this machine, in a line each."""
        ...

    async def ask_others(self, path: str, principal: Any) -> list[bytes]:
        """Return what the other processes on this machine have at a path, as it is shown to a principal. A process
        that does not answer is left out."""
        ...

    def other_sessions(self) -> OtherSessions:
        """What the other processes have, on whatever machine, as it was last read."""
        ...

    def sum_metrics(self, own: str, then: Callable[[str], None]) -> None:
        """Add to our numbers those of the others on this machine."""
        ...
