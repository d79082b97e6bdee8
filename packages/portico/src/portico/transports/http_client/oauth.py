"""The driver of OAuth: does what its conversations want done, with real sockets and a real person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from portico.auth.flow import Conversation, Fetched, Reply, Visit, Wanted, redirect_parameters
from portico.auth.oauth import OAuth
from portico.auth.url_policy import MAX_BODY
from portico.protocol.errors import ProtocolError
from portico.transports.http_client.connection import Response
from portico.transports.http_client.oauth_fetcher import Fetcher, addresses_of
from portico.transports.http_client.pool import Headers, Location, Pool
from portico.transports.http_client.timeouts import unhurried

T = TypeVar("T")

# The URL to show, and the redirect URI; gives the URL that the browser came back with.
Visitor = Callable[[str, str], Awaitable[str]]


class Authorizer:
    """Sends requests with a token, and gets one when the server asks for it."""

    def __init__(self, oauth: OAuth, visitor: Visitor) -> None:
        self.identity = 0
        self._oauth = oauth
        self._visitor = visitor
        self._fetcher = Fetcher(self._near)
        # Where the server was when it last answered us. What its name server says now is no proof of that.
        self._server_address: str | None = None
        # One conversation at a time; requests that waited find the token that the first one got.
        self._lock = asyncio.Lock()

    async def send(
        self, pool: Pool, method: str, place: Location, headers: Headers, body: bytes, operation: str
    ) -> Response:
        attempt = self._oauth.attempt(operation)
        while True:
            proof = await self._hold(attempt.headers(method, place.url, body))
            answer = await pool.send(method, place, (*headers, *proof.items()), body)
            self._server_address = answer.connection.peer
            try:
                said = await _body(answer) if answer.status in (401, 403) else b""
                fetched = Fetched(answer.status, tuple(answer.headers.items()), said)
                if not await self._hold(attempt.again(fetched)):
                    return answer
            except BaseException:
                pool.give_back(place, answer)
                raise
            pool.give_back(place, answer)

    async def login(self) -> None:
        """A new token, whatever there is already."""
        await self._hold(self._oauth.authorize())

    async def close(self) -> None:
        """Leaves nothing open, and may be used again."""
        await self._fetcher.close()

    async def _hold(self, conversation: Conversation[T]) -> T:
        reply: Reply = None
        # A request that waits for the login of another one has no less time for it.
        with unhurried() if self._lock.locked() else nullcontext():
            await self._lock.acquire()
        try:
            while True:
                try:
                    wanted = conversation.send(reply)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                reply = await self._do(wanted)
        finally:
            self._lock.release()

    async def _do(self, wanted: Wanted) -> Reply:
        if isinstance(wanted, Visit):
            self.identity += 1
            with unhurried():
                return redirect_parameters(await self._visitor(wanted.url, wanted.redirect_uri))
        return await self._fetcher.fetch(wanted)

    async def _near(self) -> list[str]:
        """Where the server is: where it was when it last answered us, which is more than its name server's word."""
        server = self._server_address
        return await addresses_of(self._oauth.server) if server is None else [server]


async def _body(answer: Response) -> bytes:
    """What a refusal says. How long a page it comes with does not change that it is one."""
    try:
        return await answer.read(MAX_BODY)
    except ProtocolError:
        answer.forgo()
        return b""
