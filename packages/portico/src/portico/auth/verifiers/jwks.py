"""The keys of an issuer: fetched when they are needed, again when one is unknown, and kept while they cannot be.

A token names its key. One that names a key we do not have may be signed with a new one, or made up; so the keys are
fetched again, but not more often than every 30 seconds, however many such tokens come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from portico.auth.errors import AuthorizationFailed, DiscoveryFailed
from portico.auth.flow import Conversation, fetch
from portico.auth.metadata import server_urls
from portico.auth.url_policy import check_url
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import Fetcher, Unavailable, hold
from portico.auth.verifiers.jws import SignedToken
from portico.protocol.errors import Error

log = logging.getLogger("portico.auth")

REFETCH_SECONDS = 30.0
# After this the keys are fetched again in the background: one that the issuer has withdrawn is good no longer.
FRESH_SECONDS = 600.0
# Before an issuer is asked again that did not answer.
PAUSE_SECONDS = 5.0
MOST_KEYS = 100


class IssuerMetadata(Struct, frozen=True):
    """What an issuer says of itself, as far as tokens are checked by it."""

    issuer: str
    jwks_uri: str | None = None
    introspection_endpoint: str | None = None


def find_issuer(issuer: str) -> Conversation[IssuerMetadata]:
    """The metadata of an issuer, by RFC 8414 or OpenID Connect: the first document that is there, and is its own."""
    asked = []
    for url in server_urls(issuer):
        answer = yield from fetch("GET", url, (("Accept", "application/json"),))
        asked.append(f"{url} (HTTP {answer.status})")
        document = answer.document() if answer.status == 200 else None
        if document is None:
            continue
        try:
            found = msgspec.convert({k: v for k, v in document.items() if v is not None}, IssuerMetadata)
        except msgspec.ValidationError:
            continue
        # To the letter (RFC 8414, section 3.3): a document of another issuer names another one's keys.
        if found.issuer == issuer:
            return found
        asked[-1] = f"{url} (which is of {found.issuer[:200]!r})"
    raise DiscoveryFailed(f"the issuer {issuer} has no metadata that we can read; asked: {', '.join(asked)}")


def fetch_keys(issuer: str, jwks_uri: str | None) -> Conversation[dict[str, Any]]:
    """The public keys of an issuer by their ids; those without one by their thumbprints."""
    if jwks_uri is None:
        found = yield from find_issuer(issuer)
        if found.jwks_uri is None:
            raise DiscoveryFailed(f"the issuer {issuer} publishes no keys (jwks_uri)")
        check_url(found.jwks_uri)
        jwks_uri = found.jwks_uri
    answer = yield from fetch("GET", jwks_uri, (("Accept", "application/json, application/jwk-set+json"),))
    document = answer.document() if answer.status == 200 else None
    said = document.get("keys") if document is not None else None
    if not isinstance(said, list):
        raise DiscoveryFailed(f"the keys of {issuer} could not be read at {jwks_uri} (HTTP {answer.status})")
    return dict(_keys(said))


def _keys(said: list[Any]) -> Iterable[tuple[str, Any]]:
    for document in said[:MOST_KEYS]:
        key = jws.public_key(document) if isinstance(document, dict) else None
        if key is not None:
            kid = document.get("kid")
            yield kid if isinstance(kid, str) and kid else jws.thumbprint(key), key


class KeySource(Protocol):
    """Where the keys come from that tokens are checked with."""

    def candidates(self, token: SignedToken) -> list[Any]: ...
    def must_fetch(self, token: SignedToken) -> bool: ...
    async def fetch(self, token: SignedToken, fetcher: Fetcher | None) -> None: ...
    def freshen(self, fetcher: Fetcher) -> None: ...


class IssuerKeys:
    """The keys of one issuer, as they were last published."""

    def __init__(self, issuer: str, jwks_uri: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._clock = clock
        self._keys: dict[str, Any] | None = None
        self._fetched = self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    def candidates(self, token: SignedToken) -> list[Any]:
        """The keys that it may be signed with: the one that it names, or, if it names none, all that fit."""
        keys, kid = self._keys or {}, token.header.get("kid")
        if isinstance(kid, str):
            return [keys[kid]] if kid in keys else []
        return [key for key in keys.values() if jws.fits(key, token.algorithm)]

    def must_fetch(self, token: SignedToken) -> bool:
        """Whether the keys at hand do not suffice, and others may be had."""
        if self._keys is None:
            return True
        return not self.candidates(token) and self._clock() - self._tried >= REFETCH_SECONDS

    async def fetch(self, token: SignedToken, fetcher: Fetcher | None) -> None:
        """Fetch them, once for all who wait. Raises Unavailable where there are none, and none can be had."""
        if self._fetching is None:
            if self._keys is None and self._clock() - self._tried < PAUSE_SECONDS:
                raise Unavailable(f"the keys of {self._issuer} could not be fetched a moment ago")
            self._begin(fetcher)
        assert self._fetching is not None
        await asyncio.shield(self._fetching)
        if self._keys is None:
            raise Unavailable(f"the keys of {self._issuer} cannot be had")

    def freshen(self, fetcher: Fetcher) -> None:
        """In the background, when it is time. The keys at hand are good until others are there."""
        now = self._clock()
        if now - self._fetched > FRESH_SECONDS and now - self._tried > REFETCH_SECONDS and self._fetching is None:
            self._begin(fetcher)

    def _begin(self, fetcher: Fetcher | None) -> None:
        self._tried = self._clock()
        self._fetching = asyncio.get_running_loop().create_task(self._fetch(fetcher))

    async def _fetch(self, fetcher: Fetcher | None) -> None:
        try:
            found = await hold(fetch_keys(self._issuer, self._jwks_uri), fetcher)
            self._keys, self._fetched = found, self._clock()
        except (Error, AuthorizationFailed) as failure:
            kept = "those that we have are used" if self._keys is not None else "no token of it can be checked"
            log.warning("the keys of %s cannot be fetched, and %s: %s", self._issuer, kept, failure)
        finally:
            self._fetching = None
