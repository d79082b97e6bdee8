"""One HTTP exchange, for those who need no more: a model to ask, a hook to tell."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

from portico.auth.addresses import check_addresses
from portico.auth.errors import UnsafeAddress
from portico.transport.http_client.pool import Headers, Location, Pool
from portico.wire.errors import ConnectFailed, TimedOut


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


async def http_exchange(
    method: str,
    url: str,
    *,
    headers: Headers = (),
    body: bytes = b"",
    seconds: float,
    longest: int,
    public: bool = False,
) -> HttpAnswer:
    """What the server answered, whatever its status; a redirect is an answer too, and is not followed.

    `public`: only over https, and only to a host all of whose addresses are on the open internet. Raises TransportError
    for what did not come or did not go through, and ProtocolError for an answer that cannot be read or is longer than
    `longest`.
    """
    # Where the address was judged, a proxy would look the name up again.
    pool = Pool(proxies=not public)
    try:
        async with asyncio.timeout(seconds):
            address = await _judged(url) if public else None
            response = await pool.send(method, Location(url, address), headers, body)
            return HttpAnswer(response.status, await response.read(longest))
    except TimeoutError:
        raise TimedOut(f"there was no answer within {seconds:g} s") from None
    finally:
        await pool.close()


async def _judged(url: str) -> str:
    """The address to connect to: the very one that was looked at."""
    place = Location(url)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        check_addresses(url, addresses, ())
    except OSError:
        raise ConnectFailed("there is no such host") from None
    except UnsafeAddress as danger:
        raise ConnectFailed(str(danger)) from None
    return addresses[0]
