"""Fetcher for client ID metadata documents.

The URL comes from an untrusted client. Fetches are therefore limited in number, size and time, and restricted to public
addresses to prevent server-side request forgery.
"""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

from portico.caching import LruCache
from portico.protocol.errors import PorticoError
from portico.transports.http_client.simple_request import http_request
from portico_gateway.authserver.clients import MAX_DOCUMENT_BYTES, OAuthClient, is_metadata_document_url, read_document
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.errors import ErrorPageResponse

FETCH_TIMEOUT_SECONDS = 5.0
MAX_CONCURRENT_FETCHES = 8
# A document that just failed is not fetched again within this period.
FAILURE_CACHE_SECONDS = 30.0
MAX_CACHED_FAILURES = 1000


class ClientMetadataFetcher:
    """Fetches client metadata documents, with a limit on concurrent fetches and a cache of failures."""

    def __init__(self, settings: AuthorizationServerConfig) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)
        self._failures: LruCache[str, float] = LruCache(MAX_CACHED_FAILURES)

    async def fetch(self, url: str) -> OAuthClient:
        """Return the client that a metadata document describes.

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
        try:
            return await self._fetch_document(url)
        except ErrorPageResponse:
            self._cache_failure(url)
            raise

    async def _fetch_document(self, url: str) -> OAuthClient:
        async with self._slots:
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
