"""The driver of conversations that need no browser: fetches what they want fetched."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from portico.auth.errors import AuthorizationFailed, UnsafeAddress, quoted
from portico.auth.flow import Conversation, Fetch, Fetched, Reply
from portico.auth.url_policy import MAX_BODY, check_addresses, check_redirect, split
from portico.protocol.errors import ProtocolError, TransportError, UsageError
from portico.transports.http_client.pool import Location, Pool

T = TypeVar("T")

FETCH_SECONDS = 30.0
MOST_REDIRECTS = 3


class Fetcher:
    """Visits what may be visited on behalf of a server, whose own addresses `near` gives.

    Each name is looked up once, judged, and connected to by the address that was judged.
    """

    def __init__(self, near: Callable[[], Awaitable[list[str]]]) -> None:
        self._near = near
        # A proxy would resolve the name itself, perhaps to another address than the one that was judged.
        self._pool = Pool(proxies=False)

    async def hold(self, conversation: Conversation[T]) -> T:
        """What a conversation was for, if it only fetches."""
        reply: Reply = None
        while True:
            try:
                wanted = conversation.send(reply)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            if not isinstance(wanted, Fetch):
                raise UsageError("there is no person here to show a page to")
            reply = await self.fetch(wanted)

    async def fetch(self, wanted: Fetch) -> Fetched:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self._fetch(wanted)
        except (TransportError, ProtocolError) as failure:
            raise AuthorizationFailed(f"{quoted(wanted.url)} could not be fetched: {failure}.") from None
        except TimeoutError:
            raise AuthorizationFailed(f"{quoted(wanted.url)} did not answer within {FETCH_SECONDS:g} s.") from None

    async def close(self) -> None:
        """Leaves nothing open, and may be used again."""
        pool, self._pool = self._pool, Pool(proxies=False)
        await pool.close()

    async def _fetch(self, wanted: Fetch) -> Fetched:
        url = wanted.url
        for _ in range(MOST_REDIRECTS):
            place = Location(url, await self._judged(url))
            answer = await self._pool.send(wanted.method, place, wanted.headers, wanted.body)
            try:
                body = await answer.read(MAX_BODY)
            finally:
                self._pool.give_back(place, answer)
            location = answer.headers.get("location")
            if answer.status not in (301, 302, 303, 307, 308) or location is None:
                return Fetched(answer.status, tuple(answer.headers.items()), body)
            url = check_redirect(wanted.method, url, location)
        raise UnsafeAddress(f"{quoted(wanted.url)} redirects in circles.")

    async def _judged(self, url: str) -> str:
        """The address to connect to: the very one that was asked about."""
        addresses = await addresses_of(url)
        check_addresses(url, addresses, await self._near())
        return addresses[0]


async def addresses_of(url: str) -> list[str]:
    parts = split(url)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # UnicodeError: a label of the name is empty or longer than 63 characters.
        raise AuthorizationFailed(f"{quoted(url)}: there is no such host.") from None
    return [str(address[0]) for *_, address in found]
