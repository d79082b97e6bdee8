"""What a request shows of who it comes from, and what can be wrong with that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from portico.auth.flow import Conversation, Fetch, Fetched
from portico.auth.principal import Principal
from portico.protocol.errors import Error, UsageError

T = TypeVar("T")

Fetcher = Callable[[Fetch], Awaitable[Fetched]]
"""Does one HTTP request: bounded in time and size, and without following redirects. Raises TransportError."""

# No access token of any provider is anywhere near this long.
LONGEST_TOKEN = 16 * 1024


class RequestCredentials(Struct, frozen=True):
    """What a verifier may look at."""

    # In lower case; empty without an `Authorization` header.
    scheme: str = ""
    token: str = ""
    # Those that the verifier has asked for by name, as far as they are there.
    headers: Mapping[str, str] = {}
    # Where the request came from. Proxies are believed as far as they were said to be trusted.
    address: str = ""
    # Whether it came by a trusted proxy.
    proxied: bool = False
    # What the token has to be for: the URLs of this endpoint, or the audiences that were configured.
    audiences: frozenset[str] = frozenset()
    fetch: Fetcher | None = None
    # The URLs, or where they are not known the paths, of the server's other endpoints: not valid for this one.
    other_endpoints: frozenset[str] = frozenset()

    def expected(self, own: frozenset[str] | None) -> frozenset[str]:
        """Return what a token has to be for at this endpoint: the audiences of a verifier, or those of the server."""
        if own is None:
            return self.audiences
        return frozenset(one for one in own if not names_one_of(one, self.other_endpoints))

    def __repr__(self) -> str:
        return f"RequestCredentials({self.scheme!r})"  # the rest is secrets


def names_one_of(audience: str, endpoints: frozenset[str]) -> bool:
    """Whether an audience is the URL of one of these endpoints, which are URLs or paths."""
    url = audience.rstrip("/")
    return bool(endpoints) and (url in endpoints or ("://" in url and urlsplit(url).path in endpoints))


class Verified(Struct, frozen=True):
    """Who a token stands for, until when that may be remembered, and the key that it is bound to."""

    principal: Principal
    # Seconds since 1970. None: it says nothing about its end.
    expires: float | None = None
    # RFC 9449, section 6: a thumbprint. Without a proof by this key the token is of no use.
    key: str | None = None
    # Whether it may be remembered: not where it takes no longer to look again.
    keep: bool = True


class Verifier(Protocol):
    """`async (credentials) -> Principal`, or a Verified with more about it; None: the credentials are not of its kind.

    Raises TokenInvalid for what is wrong, and Unavailable if that cannot be told at the moment. A verifier may have
    more than this: `at_once`; `headers`, the names in lower case of the headers that it wants to see; and `by_address`,
    which is False where the address of a request changes nothing: then what it has said is remembered for all of them.
    """

    async def __call__(self, credentials: RequestCredentials, /) -> Principal | Verified | None: ...


class MustWait(Exception):
    """Raised by `at_once`: it takes longer than a look."""


class TokenInvalid(Error):
    """The token is not good here. The text is for the log of the server: the client only hears that it is so."""


class Unavailable(Error):
    """Whether the token is good cannot be told at the moment."""


def at_once(verifier: Any, credentials: RequestCredentials) -> Principal | Verified | None:
    """What a verifier can say without waiting; raises MustWait if it cannot."""
    look = getattr(verifier, "at_once", None)
    if look is None:
        raise MustWait
    found: Principal | Verified | None = look(credentials)
    return found


async def hold(conversation: Conversation[T], fetch: Fetcher | None) -> T:
    """Hold a conversation that only fetches."""
    if fetch is None:
        raise UsageError("there is nothing to fetch with")
    reply: Fetched | None = None
    while True:
        try:
            wanted = conversation.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        if not isinstance(wanted, Fetch):
            raise UsageError("a verifier has no person to ask")
        reply = await fetch(wanted)
