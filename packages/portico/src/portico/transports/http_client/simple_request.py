"""Single HTTP requests, for example to a model API or a webhook."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import NamedTuple

from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import check_addresses
from portico.protocol.errors import ConnectError, RequestTimeout, TransportError
from portico.transports.http_client.pool import HeaderItems, HttpConnectionPool, HttpUrl


class SimpleResponse(NamedTuple):
    status: int
    body: bytes


async def http_request(
    method: str,
    url: str,
    *,
    headers: HeaderItems = (),
    body: bytes = b"",
    timeout: float,
    max_response_bytes: int,
    public_only: bool = False,
    allowed_networks: Sequence[str] = (),
) -> SimpleResponse:
    """Send one HTTP request and return the response, whatever its status. Redirects are not followed.

    With `public_only`, only https is allowed, and every address of the host must be public or in one of
    `allowed_networks`; the connection uses the checked address, without another DNS lookup. Raises `TransportError` if
    the request fails, and `ProtocolError` if the response is invalid or exceeds `max_response_bytes`.
    """
    # A proxy would resolve the name again, after the address was checked.
    pool = HttpConnectionPool(use_proxies=not public_only)
    try:
        async with asyncio.timeout(timeout):
            address = await _resolve_allowed_address(url, allowed_networks) if public_only else None
            response = await pool.send(method, HttpUrl(url, address), headers, body)
            return SimpleResponse(response.status, await response.read(max_response_bytes))
    except TransportError:
        raise
    except TimeoutError:
        raise RequestTimeout(f"no response within {timeout:g} s") from None
    finally:
        await pool.close()


async def _resolve_allowed_address(url: str, networks: Sequence[str]) -> str:
    """Resolve and check the host of a URL. Return the address to connect to."""
    location = HttpUrl(url)
    if not location.is_tls:
        raise ConnectError("the URL must use https")
    try:
        result = await asyncio.get_running_loop().getaddrinfo(location.host, location.port, type=socket.SOCK_STREAM)
        addresses = [str(address[4][0]) for address in result]
        elsewhere = [address for address in addresses if not _is_in_networks(address, networks)]
        if elsewhere or not addresses:
            check_addresses(url, elsewhere, ())
    except (OSError, UnicodeError):
        raise ConnectError("host not found") from None
    except UnsafeUrl as danger:
        raise ConnectError(str(danger)) from None
    return addresses[0]


def _is_in_networks(address: str, networks: Sequence[str]) -> bool:
    ip = ipaddress.ip_address(address.split("%")[0])
    return any(ip in ipaddress.ip_network(network) for network in networks)
