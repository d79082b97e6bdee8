"""Cache of an issuer's JWKS: fetched on demand, refreshed in the background, and used while the issuer is down.

A token with an unknown key id may be signed with a new key, or be forged. The keys are then fetched again, but at most
every 30 seconds, however many such tokens arrive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from portico.auth.errors import AuthorizationError, DiscoveryError
from portico.auth.flow import AuthFlow, fetch
from portico.auth.metadata import authorization_server_urls
from portico.auth.url_policy import check_url
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import Fetcher, VerifierUnavailable, run_flow
from portico.auth.verifiers.jws import ParsedJws
from portico.protocol.errors import PorticoError

log = logging.getLogger("portico.auth")

# Tokens with invented key ids must not turn this server into a flood of requests to the issuer.
MIN_REFETCH_SECONDS = 30.0
# Refresh in the background after this time, so that withdrawn keys stop being accepted.
KEY_CACHE_TTL_SECONDS = 600.0
# Delay before an issuer that did not answer is tried again.
RETRY_DELAY_SECONDS = 5.0
# Issuers publish two to ten keys. Each costs a parse, and every suitable one is tried for a token without `kid`.
MAX_KEYS = 100


class IssuerMetadata(Struct, frozen=True):
    """Issuer metadata needed to verify tokens."""

    issuer: str
    jwks_uri: str | None = None
    introspection_endpoint: str | None = None


def fetch_issuer_metadata(issuer: str) -> AuthFlow[IssuerMetadata]:
    """Return the metadata of an issuer (RFC 8414 or OpenID Connect), from the first document that names it."""
    attempted = []
    for url in authorization_server_urls(issuer):
        response = yield from fetch("GET", url, (("Accept", "application/json"),))
        attempted.append(f"{url} (HTTP {response.status})")
        document = response.json_object() if response.status == 200 else None
        if document is None:
            continue
        try:
            result = msgspec.convert({k: v for k, v in document.items() if v is not None}, IssuerMetadata)
        except msgspec.ValidationError:
            continue
        # RFC 8414, section 3.3: the issuer must match exactly, or the document names another issuer's keys.
        if result.issuer == issuer:
            return result
        attempted[-1] = f"{url} (issuer {result.issuer[:200]!r})"
    raise DiscoveryError(f"the issuer {issuer} publishes no readable metadata; tried: {', '.join(attempted)}")


def fetch_jwks(issuer: str, jwks_uri: str | None) -> AuthFlow[dict[str, Any]]:
    """Return the public keys of an issuer by key id, or by thumbprint if they have none."""
    if jwks_uri is None:
        result = yield from fetch_issuer_metadata(issuer)
        if result.jwks_uri is None:
            raise DiscoveryError(f"the issuer {issuer} publishes no keys (jwks_uri)")
        check_url(result.jwks_uri)
        jwks_uri = result.jwks_uri
    response = yield from fetch("GET", jwks_uri, (("Accept", "application/json, application/jwk-set+json"),))
    document = response.json_object() if response.status == 200 else None
    entries = document.get("keys") if document is not None else None
    if not isinstance(entries, list):
        raise DiscoveryError(f"the keys of {issuer} could not be read at {jwks_uri} (HTTP {response.status})")
    return dict(_keys(entries))


def _keys(entries: list[Any]) -> Iterable[tuple[str, Any]]:
    for document in entries[:MAX_KEYS]:
        key = jws.parse_jwk(document) if isinstance(document, dict) else None
        if key is not None:
            kid = document.get("kid")
            # RFC 7517, section 4.5: `kid` is optional.
            yield kid if isinstance(kid, str) and kid else jws.thumbprint(key), key


class KeySource(Protocol):
    """Source of the keys that verify tokens."""

    def find_keys(self, token: ParsedJws) -> list[Any]: ...
    def needs_fetch(self, token: ParsedJws) -> bool: ...
    async def fetch(self, token: ParsedJws, fetcher: Fetcher | None) -> None: ...
    def refresh_in_background(self, fetcher: Fetcher) -> None: ...


class JwksCache:
    """Keys of one issuer, as last fetched."""

    def __init__(self, issuer: str, jwks_uri: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._clock = clock
        self._keys: dict[str, Any] | None = None
        self._fetched = self._last_attempt_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    def find_keys(self, token: ParsedJws) -> list[Any]:
        """Return candidate keys: the one that the token names, or every suitable key if it names none."""
        keys, kid = self._keys or {}, token.header.get("kid")
        if isinstance(kid, str):
            return [keys[kid]] if kid in keys else []
        return [key for key in keys.values() if jws.key_supports_algorithm(key, token.algorithm)]

    def needs_fetch(self, token: ParsedJws) -> bool:
        """Return whether no cached key fits and a fetch is allowed now."""
        if self._keys is None:
            return True
        return not self.find_keys(token) and self._clock() - self._last_attempt_at >= MIN_REFETCH_SECONDS

    async def fetch(self, token: ParsedJws, fetcher: Fetcher | None) -> None:
        """Fetch the keys, once for all waiting requests. Raises VerifierUnavailable if there are none."""
        if self._fetching is None:
            if self._keys is None and self._clock() - self._last_attempt_at < RETRY_DELAY_SECONDS:
                raise VerifierUnavailable(f"the keys of {self._issuer} could not be fetched a moment ago")
            self._start_fetch(fetcher)
        assert self._fetching is not None
        # Shielded, because the fetch belongs to all waiting requests and the first one may be cancelled.
        await asyncio.shield(self._fetching)
        if self._keys is None:
            raise VerifierUnavailable(f"the keys of {self._issuer} could not be fetched")

    def refresh_in_background(self, fetcher: Fetcher) -> None:
        """Start a refresh if the keys are old. The cached keys stay valid until it succeeds."""
        now = self._clock()
        if (
            now - self._fetched > KEY_CACHE_TTL_SECONDS
            and now - self._last_attempt_at > MIN_REFETCH_SECONDS
            and self._fetching is None
        ):
            self._start_fetch(fetcher)

    def _start_fetch(self, fetcher: Fetcher | None) -> None:
        self._last_attempt_at = self._clock()
        self._fetching = asyncio.get_running_loop().create_task(self._fetch(fetcher))

    async def _fetch(self, fetcher: Fetcher | None) -> None:
        try:
            result = await run_flow(fetch_jwks(self._issuer, self._jwks_uri), fetcher)
            # Replaced in one assignment: requests see the old set or the new one, never a mixture.
            self._keys, self._fetched = result, self._clock()
        except (PorticoError, AuthorizationError) as failure:
            consequence = "the cached keys are used" if self._keys is not None else "its tokens cannot be verified"
            log.warning("cannot fetch the keys of %s, %s: %s", self._issuer, consequence, failure)
        finally:
            self._fetching = None
