"""A server as its clients' authorization servers know it: which tokens it takes, and how it says which it wants.

RFC 9728 has the document that it publishes about itself, RFC 6750 and 9449 the words with which it refuses. A token
that was verified is remembered by its hash until it ends, and not longer than a minute: after that its issuer, or its
keys, may say otherwise.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from portico.auth.errors import AuthorizationFailed
from portico.auth.principal import Principal
from portico.auth.url_policy import check_url
from portico.auth.verifiers.base import (
    MustWait,
    RequestCredentials,
    TokenInvalid,
    Unavailable,
    Verified,
    Verifier,
    at_once,
    names_one_of,
)
from portico.auth.verifiers.claims import ClaimNames
from portico.auth.verifiers.combined import Verifiers
from portico.auth.verifiers.dpop import Proof, ProofChecker, ProofInvalid, Replays
from portico.auth.verifiers.jwt import ALGORITHMS, LEEWAY_SECONDS, JwtVerifier
from portico.auth.verifiers.token_file import ISSUER, TokenFileVerifier
from portico.protocol.errors import Error, UsageError

log = logging.getLogger("portico.auth")

WELL_KNOWN = "/.well-known/oauth-protected-resource"
REMEMBERED_SECONDS = 60.0
MOST_REMEMBERED = 10_000
# How many verifications may wait for an issuer at once, and for how long.
MOST_WAITING = 256
LONGEST_SECONDS = 20.0
# RFC 6749, 3.3: what a scope is made of.
_SCOPE = frozenset(map(chr, [0x21, *range(0x23, 0x5C), *range(0x5D, 0x7F)]))

Proving = Literal["off", "optional", "required"]


class ResourceDocument(Struct, frozen=True, omit_defaults=True):
    """RFC 9728, section 2."""

    resource: str
    authorization_servers: list[str]
    scopes_supported: list[str] | None = None
    bearer_methods_supported: list[str] = []
    resource_name: str | None = None
    resource_documentation: str | None = None
    dpop_signing_alg_values_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class Remembered(Struct):
    """What was found out about credentials."""

    verified: Verified
    until: float
    # What the whole server needs, and this principal lacks.
    lacking: frozenset[str]
    # Whether that is all: it has the scopes, and needs no proof.
    enough: bool


class ResourceServer:
    """Which tokens a server takes: `Server(auth=ResourceServer("https://login.example.com", audience=…))`.

    * **issuers** – whose tokens are good here: URLs, to the letter as the tokens have them; or verifiers, each an async
      function from the credentials of a request to a Principal.
    * **audience** – what a token has to be for. None: the URL of the endpoint.
    * **public_url** – the URL that clients use, without the path of the endpoint. Required where that is not a loopback
      address that this server binds itself: behind a proxy, on a Unix socket, and as an ASGI application.
    * **tokens** – a file of tokens that were given out by hand: see `portico tokens`.
    * **required** – scopes without which nothing is answered.
    * **implies** – what scopes include: `{"notes:write": ["notes:read"]}`.
    * **scopes_supported** – what the metadata shows; None: those that are required.
    * **authorization_servers** – what the metadata names; None: the issuers.
    * **algorithms**, **leeway**, **claims** – how signed tokens are checked: see `JwtVerifier`.
    * **dpop** – whether tokens may, or have to, be bound to a key of the client's: "off", "optional", "required".
    * **dpop_nonce** – whether proofs have to have a number that this server gives out.
    * **anonymous** – whether those who show no token are let in as well, without being a principal.
    """

    def __init__(
        self,
        issuers: str | Verifier | Sequence[str | Verifier] = (),
        *,
        audience: str | Sequence[str] | None = None,
        public_url: str | None = None,
        tokens: str | Path | None = None,
        required: Collection[str] = (),
        implies: Mapping[str, Collection[str]] | None = None,
        scopes_supported: Sequence[str] | None = None,
        authorization_servers: Sequence[str] | None = None,
        algorithms: Collection[str] = ALGORITHMS,
        leeway: float = LEEWAY_SECONDS,
        claims: ClaimNames = ClaimNames(),
        dpop: Proving = "optional",
        dpop_nonce: bool = False,
        secret: bytes | None = None,
        replays: Replays | None = None,
        anonymous: bool = False,
        name: str | None = None,
        documentation: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audiences = _texts(audience)
        of_issuer = partial(JwtVerifier, algorithms=algorithms, leeway=leeway, claims=claims, clock=clock)
        verifiers = _verifiers(issuers, of_issuer)
        if tokens is not None:
            verifiers.insert(0, TokenFileVerifier(tokens, clock))
        self.use(verifiers)
        self.public_url = None if public_url is None else _checked_url(public_url)
        named = [str(issuer) for one in verifiers if (issuer := getattr(one, "issuer", None))]
        self.authorization_servers = list(named if authorization_servers is None else authorization_servers)
        self.required = _checked_scopes(required)
        self.anonymous = anonymous
        self._implied = _closure(implies or {})
        supported = sorted(self.required) if scopes_supported is None else list(scopes_supported)
        # Not for us to ask for: a refresh token is between the client and its issuer.
        self._supported = [scope for scope in supported if scope != "offline_access"] or None
        self.proofs = None if dpop == "off" else ProofChecker(replays, nonces=dpop_nonce, secret=secret, clock=clock)
        self.dpop_required = dpop == "required"
        self._name, self._documentation = name, documentation
        self._clock = clock
        # By the hashes of what was shown.
        self.remembered: dict[bytes, Remembered] = {}
        self._waiting: dict[bytes, asyncio.Task[Verified]] = {}
        # Told which principals are none any more: what they listen to ends.
        self.on_revoked: list[Callable[[Callable[[Any], bool]], None]] = []

    def use(self, verifiers: list[Verifier], join: Callable[[list[Verifier]], Verifier] = Verifiers) -> None:
        """Take the tokens that these know. `join` makes one of several."""
        if not verifiers:
            raise UsageError("there is no issuer, no verifier and no file of tokens: every request would be refused")
        self._revoking = [one for one in verifiers if hasattr(one, "is_revoked")]
        self._files = [one for one in verifiers if isinstance(one, TokenFileVerifier)]
        for file in self._files:
            file.on_removed = self._removed
        self.verifiers = verifiers
        self.verifier: Verifier = verifiers[0] if len(verifiers) == 1 else join(verifiers)
        # The issuers of principals: one for each verifier that is of another issuer.
        self.sources = frozenset(str(getattr(one, "issuer", None) or id(one)) for one in verifiers)
        self.headers: tuple[str, ...] = tuple(getattr(self.verifier, "headers", ()))
        # Whether the same token may be good from one address and not from another.
        self.by_address = bool(getattr(self.verifier, "by_address", True))

    # Resource identifiers

    @property
    def is_named(self) -> bool:
        """Whether the configuration says what tokens are for. Otherwise that is the addresses that are bound."""
        return self.public_url is not None or self.audiences is not None

    @property
    def needs_name(self) -> bool:
        """Whether a verifier compares the audience of tokens with what the server expects, which nothing says."""
        unset = object()
        return not self.is_named and any(getattr(one, "audiences", unset) is None for one in self.verifiers)

    def resource(self, here: str, path: str) -> str:
        """Return the resource identifier of an endpoint (RFC 8707): its URL, or the configured audience that is one."""
        if self.public_url is not None:
            return self.public_url + path
        urls = sorted(one for one in self.audiences or () if one.startswith(("https://", "http://")))
        own = [one for one in urls if urlsplit(one).path == path]
        return (own or urls or [here + path])[0]

    def valid_audiences(
        self, origins: Iterable[str], path: str, above: str | None, others: frozenset[str]
    ) -> frozenset[str]:
        """Return the audiences that a token may have at an endpoint: its own URL, or the one of the endpoint `above`;
        or those that were configured, unless they name one of the `others`.

        `origins` are those that this server has bound. What a request says of its host is not considered.
        """
        if self.audiences is not None:
            return frozenset(one for one in self.audiences if not names_one_of(one, others))
        bases = origins if self.public_url is None else [self.public_url]
        return frozenset(base + one for base in bases for one in (path, above) if one is not None)

    def document(self, here: str, path: str) -> bytes:
        """What it publishes about itself."""
        return msgspec.json.encode(
            ResourceDocument(
                self.resource(here, path),
                self.authorization_servers,
                self._supported,
                ["header"],
                self._name,
                self._documentation,
                None if self.proofs is None else list(self.proofs.algorithms),
                self.dpop_required,
            )
        )

    @property
    def prefix(self) -> str:
        """What stands before the paths of this server from outside."""
        return urlsplit(self.public_url or "").path

    # Refusing

    def challenges(
        self, here: str, path: str, scopes: Iterable[str] = (), *, error: str | None = None, nonce: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The header fields of a 401 or a 403 (RFC 6750, section 3; RFC 9449, section 7.1)."""
        said: dict[str, str] = {}
        if error is not None:
            said["error"] = error
        wanted = " ".join(sorted((set(scopes) | self.required) - {"offline_access"}))
        if wanted:
            said["scope"] = wanted
        if self.authorization_servers:
            said["resource_metadata"] = f"{self.public_url or here}{WELL_KNOWN}{path}"
        fields = []
        if not self.dpop_required:
            fields.append((b"www-authenticate", _challenge("Bearer", said or {"realm": "mcp"})))
        if self.proofs is not None and (self.dpop_required or nonce or error == "invalid_dpop_proof"):
            proving = {**said, "algs": " ".join(self.proofs.algorithms)}
            if nonce:
                proving["error"] = "use_dpop_nonce"
            fields.insert(0, (b"www-authenticate", _challenge("DPoP", proving)))
        if self.proofs is not None and self.proofs.nonces:
            fields.append((b"dpop-nonce", self.proofs.nonce().encode()))
        return fields

    # Verifying

    def known(self, shown: bytes) -> Remembered | None:
        """What was found out about the same credentials before."""
        found = self.remembered.get(hashlib.sha256(shown).digest())
        return found if found is not None and found.until > self._clock() else None

    def look(self, shown: bytes, credentials: RequestCredentials) -> Remembered:
        """What can be told without waiting. Raises MustWait, TokenInvalid or Unavailable."""
        try:
            return self._remember(shown, self._judged(at_once(self.verifier, credentials)))
        except (Error, MustWait):
            raise
        except Exception:
            log.exception("a verifier failed")
            raise Unavailable("the verifier failed") from None

    async def verify(self, shown: bytes, credentials: RequestCredentials) -> Remembered:
        """The same, waiting for what it takes: once for all who show the same."""
        key = hashlib.sha256(shown).digest()
        task = self._waiting.get(key)
        if task is None:
            if len(self._waiting) >= MOST_WAITING:
                raise Unavailable("too many tokens wait to be verified")
            task = asyncio.get_running_loop().create_task(self._verify(credentials))
            self._waiting[key] = task
            task.add_done_callback(partial(self._verified, key))
        return self._remember(shown, await asyncio.shield(task))

    def _verified(self, key: bytes, task: asyncio.Task[Verified]) -> None:
        self._waiting.pop(key, None)
        # All who waited for it may have gone.
        if not task.cancelled():
            task.exception()

    async def _verify(self, credentials: RequestCredentials) -> Verified:
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                return self._judged(await self.verifier(credentials))
        except Error:
            raise
        except TimeoutError:
            raise Unavailable("the verifier took too long") from None
        except Exception:
            log.exception("a verifier failed")
            raise Unavailable("the verifier failed") from None

    def _judged(self, found: Principal | Verified | None) -> Verified:
        if found is None:
            raise TokenInvalid("it is of no issuer whose tokens are good here")
        verified = found if isinstance(found, Verified) else Verified(found)
        if self.proofs is None and verified.key is not None:
            raise TokenInvalid("it is bound to a key, and proofs are not looked at here")
        scopes = verified.principal.scopes
        if scopes and self._implied:
            everything = scopes.union(*(self._implied.get(scope, ()) for scope in scopes))
            verified = replace(verified, principal=replace(verified.principal, scopes=everything))
        if len(self.sources) > 1:
            verified = replace(verified, principal=replace(verified.principal, ambiguous=True))
        return verified

    def _remember(self, shown: bytes, verified: Verified) -> Remembered:
        until = self._clock() + REMEMBERED_SECONDS
        lacking = verified.principal.lacks(self.required)
        until = until if verified.expires is None else min(until, verified.expires)
        enough = not lacking and verified.key is None and not self.dpop_required
        found = Remembered(verified, until, lacking, enough)
        if not verified.keep:
            return found
        if len(self.remembered) >= MOST_REMEMBERED:
            now = self._clock()
            for key in [key for key, one in self.remembered.items() if one.until <= now]:
                del self.remembered[key]
            if len(self.remembered) >= MOST_REMEMBERED:
                self.forget()
        self.remembered[hashlib.sha256(shown).digest()] = found
        return found

    def forget(self) -> None:
        """Verify every token anew."""
        for one in self.remembered.values():
            one.until = 0.0
        self.remembered.clear()

    def revoke(self, revoked: Callable[[Any], bool]) -> None:
        """What such principals were let in by is taken back."""
        self.forget()
        for tell in self.on_revoked:
            tell(revoked)

    def is_revoked(self, principal: Any) -> bool:
        """Whether one that was let in, here or by another process, would not be any more."""
        return any(one.is_revoked(principal) for one in self._revoking)

    def tend(self) -> None:
        """Every second or so: those who only listen show nothing by which we would look whether they still may."""
        for file in self._files:
            file.look()

    def _removed(self, ids: frozenset[str]) -> None:
        self.revoke(lambda principal: getattr(principal, "issuer", None) == ISSUER and principal.id in ids)

    def proven(self, verified: Verified, scheme: str, proof: Proof | None) -> tuple[str, float] | None:
        """Whether who shows the token may: what is bound to a key needs a proof, and what is not needs none.

        What comes back is for the table of proofs. Raises ProofInvalid or TokenInvalid.
        """
        if verified.key is None:
            if self.dpop_required or scheme == "dpop":
                raise TokenInvalid("the token is not bound to a key")
            return None
        if self.proofs is None or scheme != "dpop":
            # RFC 9449, section 7.2: as a bearer token it could be shown by any client that has seen it.
            raise TokenInvalid("the token is bound to a key, and was shown without a proof")
        if proof is None:
            raise ProofInvalid("there is no proof", nonce=self.proofs.nonces)
        return self.proofs.check(proof)

    async def close(self) -> None:
        waiting = list(self._waiting.values())
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=LONGEST_SECONDS)


def resource_server(auth: ResourceServer | Verifier | str) -> ResourceServer:
    """What `Server(auth=…)` means."""
    if isinstance(auth, ResourceServer):
        return auth
    if not isinstance(auth, str) and not callable(auth):
        raise UsageError("auth is a ResourceServer, the URL of an issuer, or an async function")
    return ResourceServer(auth)


def _challenge(scheme: str, said: Mapping[str, str]) -> bytes:
    parts = ", ".join(f'{name}="{value}"' for name, value in said.items())
    return f"{scheme} {parts}".encode("ascii", "replace")


def _verifiers(
    issuers: str | Verifier | Sequence[str | Verifier], of_issuer: Callable[[str], Verifier]
) -> list[Verifier]:
    given = [issuers] if isinstance(issuers, str) or callable(issuers) else list(issuers)
    return [of_issuer(one) if isinstance(one, str) else one for one in given]


def _texts(said: str | Sequence[str] | None) -> frozenset[str] | None:
    return None if said is None else frozenset([said] if isinstance(said, str) else said)


def _checked_url(url: str) -> str:
    try:
        check_url(url)
    except AuthorizationFailed as mistake:
        raise UsageError(f"the public URL: {mistake}") from None
    if "?" in url or "#" in url or '"' in url:
        raise UsageError(f"the public URL {url!r} has a query, a fragment or a quotation mark")
    return url.rstrip("/")


def _checked_scopes(scopes: Collection[str]) -> frozenset[str]:
    for scope in scopes:
        if not scope or not _SCOPE.issuperset(scope):
            raise UsageError(f"{scope!r} is no scope: it has no blanks, quotation marks or backslashes")
    return frozenset(scopes)


def _closure(implies: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Everything that each scope includes, also by way of others."""
    found: dict[str, frozenset[str]] = {}
    for scope in implies:
        reached: set[str] = set()
        waiting: list[Any] = [scope]
        while waiting:
            one = waiting.pop()
            if one not in reached:
                reached.add(one)
                waiting.extend(implies.get(one, ()))
        found[scope] = _checked_scopes(reached)
    return found
