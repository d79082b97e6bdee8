"""What both transports over HTTP have: where the server is, what every request says, and how it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from portico.protocol.errors import UsageError
from portico.transports.base import LONGEST_ANSWER
from portico.transports.http_client.connection import Response
from portico.transports.http_client.pool import Headers, Location, Pool

_OURS = frozenset(
    {"host", "content-type", "content-length", "accept", "connection", "transfer-encoding", "last-event-id"}
)


class RequestSender(Protocol):
    """Sends a request with whatever proves who we are, and as often as that takes."""

    @property
    def identity(self) -> int: ...

    async def send(
        self, pool: Pool, method: str, location: Location, headers: Headers, body: bytes, operation: str
    ) -> Response: ...

    async def close(self) -> None: ...


class HttpSide:
    """One side of a conversation over HTTP: the client's."""

    name: str
    identity: int

    def _set_up(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        auth: RequestSender | None = None,
        pool: Pool | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> None:
        self._location = Location(url)
        self.name = self._location.shown
        self._pool = pool or Pool()
        self._own = checked(headers or {}, self._location)
        self._auth = auth
        self._longest = longest

    @property
    def _sends_token(self) -> bool:
        """Whether requests have credentials: a token, or an Authorization header of the user's own."""
        return self._auth is not None or any(name.lower() == "authorization" for name, _ in self._own)

    @property
    def pool(self) -> Pool:
        """The connections that it uses."""
        return self._pool

    def _dispatch(
        self, method: str, location: Location, headers: Headers, body: bytes = b"", operation: str = ""
    ) -> Awaitable[Response]:
        if self._auth is None:
            return self._pool.send(method, location, headers, body)
        return self._auth.send(self._pool, method, location, headers, body, operation or method)


def checked(headers: Mapping[str, str], location: Location) -> tuple[tuple[str, str], ...]:
    """Headers of the user's own. Those that the protocol has a use for are not theirs to set."""
    for name in headers:
        if name.lower() in _OURS or name.lower().startswith("mcp-"):
            raise UsageError(f"the header {name!r} is the protocol's own")
    given = {name.lower() for name in headers}
    introduced = () if "authorization" in given else location.introduced("Authorization")
    return (*headers.items(), *introduced)
