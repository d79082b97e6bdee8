"""One HTTP exchange, for those who need no more: a model to ask, a hook to tell."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import NamedTuple

from portico.auth.errors import UnsafeAddress
from portico.auth.url_policy import check_addresses
from portico.protocol.errors import ConnectFailed, TimedOut, TransportError
from portico.transports.http_client.pool import Headers, Location, Pool


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
    networks: Sequence[str] = (),
) -> HttpAnswer:
    """What the server answered, whatever its status; a redirect is an answer too, and is not followed.

    `public`: only over https, and only to a host all of whose addresses are on the open internet, or in one of the
    `networks`; the connection is made to an address that was looked at, not to the name again. Raises TransportError
    for what did not come or did not go through, and ProtocolError for an answer that cannot be read or is longer than
    `longest`.
    """
    # Where the address was judged, a proxy would look the name up again.
    pool = Pool(proxies=not public)
    try:
        async with asyncio.timeout(seconds):
            address = await _judged(url, networks) if public else None
            response = await pool.send(method, Location(url, address), headers, body)
            return HttpAnswer(response.status, await response.read(longest))
    except TransportError:
        raise
    except TimeoutError:
        raise TimedOut(f"there was no answer within {seconds:g} s") from None
    finally:
        await pool.close()


async def _judged(url: str, networks: Sequence[str]) -> str:
    """The address to connect to: the very one that was looked at."""
    place = Location(url)
    if not place.secure:
        raise ConnectFailed("only https is used for this")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        elsewhere = [one for one in addresses if not _is_within(one, networks)]
        if elsewhere or not addresses:
            check_addresses(url, elsewhere, ())
    except (OSError, UnicodeError):
        raise ConnectFailed("there is no such host") from None
    except UnsafeAddress as danger:
        raise ConnectFailed(str(danger)) from None
    return addresses[0]


def _is_within(address: str, networks: Sequence[str]) -> bool:
    ip = ipaddress.ip_address(address.split("%")[0])
    return any(ip in ipaddress.ip_network(network) for network in networks)
