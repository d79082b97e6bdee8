"""Client metadata documents, fetched from wherever a stranger says: few at a time, small, soon, and from the open
internet only."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

from portico.protocol.errors import Error
from portico.transports.http_client.simple_request import http_exchange
from portico_gateway.authserver.clients import LONGEST_DOCUMENT, KnownClient, is_document_url, read_document
from portico_gateway.authserver.config import FaceSettings
from portico_gateway.authserver.errors import PageRefused

FETCH_SECONDS = 5.0
MOST_AT_ONCE = 8
# What was no good a moment ago is not asked for again at once.
FAILURE_SECONDS = 30.0
MOST_FAILURES = 1000


class ClientDocuments:
    def __init__(self, face: FaceSettings) -> None:
        self._face = face
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._failures: dict[str, float] = {}

    async def fetch(self, url: str) -> KnownClient:
        """The client of a document. Raises PageRefused, which says nothing of what is or is not at an address."""
        hosts = self._face.client_hosts
        if not self._face.documents or not is_document_url(url) or (hosts and urlsplit(url).hostname not in hosts):
            raise PageRefused("The program that sent you here is not known.")
        if self._failures.get(url, 0.0) > time.monotonic():
            raise PageRefused("The document of the program that sent you here cannot be had.")
        try:
            return await self._read(url)
        except PageRefused:
            self._note(url)
            raise

    async def _read(self, url: str) -> KnownClient:
        async with self._slots:
            try:
                answer = await http_exchange(
                    "GET",
                    url,
                    headers=(("Accept", "application/json"),),
                    seconds=FETCH_SECONDS,
                    longest=LONGEST_DOCUMENT,
                    public=True,
                    networks=self._face.client_networks,
                )
            except Error:
                raise PageRefused("The document of the program that sent you here cannot be had.") from None
        return read_document(url, answer.status, answer.body)

    def _note(self, url: str) -> None:
        if len(self._failures) >= MOST_FAILURES:
            self._failures.clear()
        self._failures[url] = time.monotonic() + FAILURE_SECONDS
