"""Fetcher for client ID metadata documents.

The URL comes from an untrusted client. Fetches are therefore limited in number, size and time, and restricted to public
addresses to prevent server-side request forgery.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from portico.caching import LruCache
from portico.protocol.errors import PorticoError
from portico.rpc.identity import wider_network_of
from portico.transports.http_client.simple_request import http_request
from portico_gateway.authserver.clients import MAX_DOCUMENT_BYTES, OAuthClient, is_metadata_document_url, read_document
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.errors import ErrorPageResponse

FETCH_TIMEOUT_SECONDS = 5.0
MAX_CONCURRENT_FETCHES = 8
# Of one network, whose documents may all come from a host that hangs.
MAX_CONCURRENT_FETCHES_PER_NETWORK = 2
# A document that just failed is not fetched again within this period.
FAILURE_CACHE_SECONDS = 30.0
MAX_CACHED_FAILURES = 1000
_BUSY = "Too many programs are being looked up at the moment. Try again in a few seconds."


class ClientMetadataFetcher:
    """Fetches client metadata documents, with a limit on concurrent fetches and a cache of failures."""

    def __init__(self, settings: AuthorizationServerConfig) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)
        self._fetches_by_network: Counter[str] = Counter()
        self._failures: LruCache[str, float] = LruCache(MAX_CACHED_FAILURES)

    async def fetch(self, url: str, address: str = "") -> OAuthClient:
        """Return the client that a metadata document describes; `address` is the peer that named it.

        Raises ErrorPageResponse. Its text does not reveal whether anything exists at the URL, so that the endpoint
        cannot be used to scan a network.
        """
        hosts = self._settings.allowed_client_hosts
        if (
            not self._settings.client_id_metadata_documents
            or not is_metadata_document_url(url)
            or (hosts and urlsplit(url).hostname not in hosts)
        ):
            raise ErrorPageResponse("The program that sent you here is unknown.")
        # Otherwise repeated requests could make this server send traffic to a third party.
        if self._failures.get(url, 0.0) > time.monotonic():
            raise ErrorPageResponse("The metadata document of the program that sent you here could not be loaded.")
        with self._share_of(wider_network_of(address)):
            # The wait is bounded: a user sees an error page instead of a browser that loads forever.
            try:
                async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
                    await self._slots.acquire()
            except TimeoutError:
                raise ErrorPageResponse(_BUSY, 503) from None
            try:
                return await self._fetch_document(url)
            except ErrorPageResponse:
                self._cache_failure(url)
                raise
            finally:
                self._slots.release()

    @contextmanager
    def _share_of(self, network: str) -> Iterator[None]:
        """Count a fetch for its network. Raises ErrorPageResponse if the network has its share of them already."""
        if self._fetches_by_network[network] >= MAX_CONCURRENT_FETCHES_PER_NETWORK:
            raise ErrorPageResponse(_BUSY, 503)
        self._fetches_by_network[network] += 1
        try:
            yield
        finally:
            self._fetches_by_network[network] -= 1
            if not self._fetches_by_network[network]:
                del self._fetches_by_network[network]

    async def _fetch_document(self, url: str) -> OAuthClient:
        try:
            answer = await http_request(
                "GET",
                url,
                headers=(("Accept", "application/json"),),
                timeout=FETCH_TIMEOUT_SECONDS,
                max_response_bytes=MAX_DOCUMENT_BYTES,
                public_only=True,
                allowed_networks=self._settings.allowed_client_networks,
            )
        except PorticoError:
            raise ErrorPageResponse(
                "The metadata document of the program that sent you here could not be loaded."
            ) from None
        return read_document(url, answer.status, answer.body)

    def _cache_failure(self, url: str) -> None:
        self._failures[url] = time.monotonic() + FAILURE_CACHE_SECONDS
