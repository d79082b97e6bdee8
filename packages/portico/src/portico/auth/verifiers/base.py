"""Request credentials, the verifier interface and its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from portico.auth.flow import AuthFlow, FetchRequest, FetchResponse, drive_without_browser
from portico.auth.principal import Principal
from portico.protocol.errors import PorticoError, UsageError

T = TypeVar("T")

Fetcher = Callable[[FetchRequest], Awaitable[FetchResponse]]
"""Sends one HTTP request, bounded in time and size, without following redirects. Raises TransportError."""

# Far longer than the access tokens of any provider.
MAX_TOKEN_CHARS = 16 * 1024


class RequestCredentials(Struct, frozen=True):
    """Credentials of a request, as passed to a verifier."""

    # In lower case; empty without an `Authorization` header.
    scheme: str = ""
    token: str = ""
    # Only the headers that the verifier declared.
    headers: Mapping[str, str] = {}
    # Client address. Forwarded headers count only from trusted proxies.
    address: str = ""
    # Whether the request came through a trusted proxy.
    via_trusted_proxy: bool = False
    # Accepted audiences: the URLs of this endpoint, or the configured ones.
    audiences: frozenset[str] = frozenset()
    fetch: Fetcher | None = None
    # URLs (or paths, if the URLs are unknown) of the server's other endpoints; their tokens are not valid here.
    other_endpoints: frozenset[str] = frozenset()

    def accepted_audiences(self, own: frozenset[str] | None) -> frozenset[str]:
        """Return the accepted audiences at this endpoint: those of the verifier, else those of the server."""
        if own is None:
            return self.audiences
        return frozenset(item for item in own if not names_one_of(item, self.other_endpoints))

    def __repr__(self) -> str:
        return f"RequestCredentials({self.scheme!r})"  # the rest is secret


def names_one_of(audience: str, endpoints: frozenset[str]) -> bool:
    """Return whether an audience names one of these endpoints, given as URLs or paths."""
    url = audience.rstrip("/")
    # Compared by path as well, because behind a proxy the public URLs of the other endpoints may be unknown.
    return bool(endpoints) and (url in endpoints or ("://" in url and urlsplit(url).path in endpoints))


class VerifiedToken(Struct, frozen=True):
    """Verified principal of a token, its expiry and the key it is bound to."""

    principal: Principal
    # Unix time. None: no expiry.
    expires_at: float | None = None
    # RFC 9449, section 6: JWK thumbprint. The token needs a DPoP proof by this key.
    dpop_thumbprint: str | None = None
    # Whether the result may be cached; False where verification is as cheap as a lookup.
    cacheable: bool = True


class Verifier(Protocol):
    """Verifier interface: `async (credentials) -> Principal`, a VerifiedToken, or None for credentials of another kind.

    Raises `InvalidToken` for invalid credentials and `VerifierUnavailable` if they cannot be checked now. Optional
    attributes: `try_verify`, a synchronous variant that raises `VerificationPending`; `headers`, lower-case names of
    headers to receive; and a flag that is False if the client's address does not affect the result, which is then
    cached for all addresses.
    """

    async def __call__(self, credentials: RequestCredentials, /) -> Principal | VerifiedToken | None: ...


class VerificationPending(Exception):
    """Raised by `try_verify` if the verification needs I/O."""


class InvalidToken(PorticoError):
    """The token is invalid. The message is for the server's log; clients see only the error code."""


class VerifierUnavailable(PorticoError):
    """The token cannot be verified at the moment."""


def try_verify(verifier: Any, credentials: RequestCredentials) -> Principal | VerifiedToken | None:
    """Verify synchronously. Raises VerificationPending if the verifier has to wait."""
    verify = getattr(verifier, "try_verify", None)
    if verify is None:
        raise VerificationPending
    result: Principal | VerifiedToken | None = verify(credentials)
    return result


async def run_flow(flow: AuthFlow[T], fetch: Fetcher | None) -> T:
    """Run a flow that only fetches."""
    if fetch is None:
        raise UsageError("no fetcher is available")
    return await drive_without_browser(flow, fetch)
