"""OAuth resource server: which tokens a server accepts, and the challenges it sends.

RFC 9728 defines the published metadata, RFC 6750 and 9449 the challenges. Verified tokens are cached by hash until they
expire, for at most one minute: after that the issuer may have revoked them or changed its keys.
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

from portico.auth.errors import AuthorizationError
from portico.auth.principal import Principal
from portico.auth.url_policy import check_url
from portico.auth.verifiers.base import (
    InvalidToken,
    RequestCredentials,
    VerificationPending,
    VerifiedToken,
    Verifier,
    VerifierUnavailable,
    names_one_of,
    try_verify,
)
from portico.auth.verifiers.claims import ClaimNames
from portico.auth.verifiers.combined import FirstMatchVerifier
from portico.auth.verifiers.dpop import DpopProof, DpopValidator, InvalidDpopProof, ReplayCache
from portico.auth.verifiers.jwt import ALGORITHMS, LEEWAY_SECONDS, JwtVerifier
from portico.auth.verifiers.token_file import ISSUER, TokenFileVerifier
from portico.protocol.errors import PorticoError, UsageError

log = logging.getLogger("portico.auth")

WELL_KNOWN_PATH = "/.well-known/oauth-protected-resource"
# How long a revocation at the issuer may go unnoticed. Introspection costs a request per token and minute.
TOKEN_CACHE_TTL_SECONDS = 60.0
# About 10 MB at 1 KB per principal. Invalid tokens are not cached, so a flood of them evicts nothing.
MAX_CACHED_TOKENS = 10_000
# Limits on verifications that wait for an issuer.
MAX_PENDING_VERIFICATIONS = 256
VERIFICATION_TIMEOUT_SECONDS = 20.0
# RFC 6749, section 3.3: characters allowed in a scope.
_SCOPE = frozenset(map(chr, [0x21, *range(0x23, 0x5C), *range(0x5D, 0x7F)]))

DpopMode = Literal["off", "optional", "required"]


class ProtectedResourceDocument(Struct, frozen=True, omit_defaults=True):
    """Protected resource metadata document (RFC 9728, section 2)."""

    resource: str
    authorization_servers: list[str]
    scopes_supported: list[str] | None = None
    bearer_methods_supported: list[str] = []
    resource_name: str | None = None
    resource_documentation: str | None = None
    dpop_signing_alg_values_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class CachedToken(Struct):
    """Cached result of a verification."""

    verified: VerifiedToken
    expires_at: float
    # Scopes that the server requires and the principal lacks.
    missing_scopes: frozenset[str]
    # True if no further check is needed: all required scopes, and no DPoP proof.
    is_sufficient: bool


class ResourceServer:
    """OAuth resource server: `Server(auth=ResourceServer("https://login.example.com", audience=…))`.

    * **issuers** – accepted issuers: URLs exactly as in the tokens' `iss`, or verifiers (async functions from the
      credentials of a request to a Principal).
    * **audience** – required audience of tokens. None: the URL of the endpoint.
    * **public_url** – the URL that clients use, without the path of the endpoint. Required unless the server itself
      binds a loopback address: behind a proxy, on a Unix socket, and as an ASGI application.
    * **token_file** – a file of manually issued tokens: see `portico tokens`.
    * **required_scopes** – scopes that every request needs.
    * **implied_scopes** – scopes that include others: `{"notes:write": ["notes:read"]}`.
    * **scopes_supported** – scopes in the metadata. None: the required ones.
    * **authorization_servers** – servers in the metadata. None: the issuers.
    * **algorithms**, **leeway**, **claim_names** – validation of signed tokens: see `JwtVerifier`.
    * **dpop** – whether tokens may or must be bound to a key of the client: "off", "optional", "required".
    * **dpop_nonce** – whether proofs must carry a nonce of this server.
    * **nonce_secret**, **replay_cache** – state to share between processes; by default the server shares its own.
    * **allow_anonymous** – whether requests without a token are accepted, without a principal.
    * **resource_name**, **resource_documentation** – shown in the metadata.
    """

    def __init__(
        self,
        issuers: str | Verifier | Sequence[str | Verifier] = (),
        *,
        audience: str | Sequence[str] | None = None,
        public_url: str | None = None,
        token_file: str | Path | None = None,
        required_scopes: Collection[str] = (),
        implied_scopes: Mapping[str, Collection[str]] | None = None,
        scopes_supported: Sequence[str] | None = None,
        authorization_servers: Sequence[str] | None = None,
        algorithms: Collection[str] = ALGORITHMS,
        leeway: float = LEEWAY_SECONDS,
        claim_names: ClaimNames = ClaimNames(),
        dpop: DpopMode = "optional",
        dpop_nonce: bool = False,
        nonce_secret: bytes | None = None,
        replay_cache: ReplayCache | None = None,
        allow_anonymous: bool = False,
        resource_name: str | None = None,
        resource_documentation: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audiences = _to_frozenset(audience)
        of_issuer = partial(JwtVerifier, algorithms=algorithms, leeway=leeway, claim_names=claim_names, clock=clock)
        verifiers = _verifiers(issuers, of_issuer)
        if token_file is not None:
            verifiers.insert(0, TokenFileVerifier(token_file, clock))
        self.set_verifiers(verifiers)
        self.public_url = None if public_url is None else _checked_url(public_url)
        named = [str(issuer) for verifier in verifiers if (issuer := getattr(verifier, "issuer", None))]
        self.authorization_servers = list(named if authorization_servers is None else authorization_servers)
        self.required_scopes = _checked_scopes(required_scopes)
        self.allow_anonymous = allow_anonymous
        self._implied = _closure(implied_scopes or {})
        supported = sorted(self.required_scopes) if scopes_supported is None else list(scopes_supported)
        # A refresh token concerns only the client and its issuer, so it is not advertised.
        self._supported = [scope for scope in supported if scope != "offline_access"] or None
        self.dpop_validator = (
            None
            if dpop == "off"
            else DpopValidator(replay_cache, require_nonce=dpop_nonce, secret=nonce_secret, clock=clock)
        )
        self.dpop_required = dpop == "required"
        self._name, self._documentation = resource_name, resource_documentation
        self._clock = clock
        # Keyed by the hash of the credentials, so that tokens are not held in memory.
        self.token_cache: dict[bytes, CachedToken] = {}
        self._pending: dict[bytes, asyncio.Task[VerifiedToken]] = {}
        # Callbacks that receive a predicate for revoked principals and close their streams.
        self.on_revoked: list[Callable[[Callable[[Any], bool]], None]] = []

    def set_verifiers(
        self, verifiers: list[Verifier], combine: Callable[[list[Verifier]], Verifier] = FirstMatchVerifier
    ) -> None:
        """Replace the verifiers. `combine` merges several into one."""
        if not verifiers:
            raise UsageError("no issuer, verifier or token file is configured, so every request would be refused")
        self._revoking = [verifier for verifier in verifiers if hasattr(verifier, "is_revoked")]
        self._files = [verifier for verifier in verifiers if isinstance(verifier, TokenFileVerifier)]
        for file in self._files:
            file.on_removed = self._revoke_ids
        self.verifiers = verifiers
        self.verifier: Verifier = verifiers[0] if len(verifiers) == 1 else combine(verifiers)
        # Distinct issuers; with more than one, principal ids may be ambiguous.
        self.sources = frozenset(str(getattr(verifier, "issuer", None) or id(verifier)) for verifier in verifiers)
        self.headers: tuple[str, ...] = tuple(getattr(self.verifier, "headers", ()))
        # Whether the result may depend on the client's address, which must then be part of the cache key.
        self.by_address = bool(getattr(self.verifier, "depends_on_address", True))

    # Resource identifiers

    @property
    def is_named(self) -> bool:
        """Return whether the audience of tokens is configured; otherwise it is derived from the bound addresses."""
        return self.public_url is not None or self.audiences is not None

    @property
    def needs_name(self) -> bool:
        """Return whether a verifier compares audiences but none is configured."""
        unset = object()
        return not self.is_named and any(getattr(verifier, "audiences", unset) is None for verifier in self.verifiers)

    def resource_uri(self, origin: str, path: str) -> str:
        """Return the resource identifier of an endpoint (RFC 8707): its URL, or the configured audience that is one."""
        if self.public_url is not None:
            return self.public_url + path
        urls = sorted(item for item in self.audiences or () if item.startswith(("https://", "http://")))
        # An audience list may name several endpoints of this server; the one with this path is the resource.
        own = [item for item in urls if urlsplit(item).path == path]
        return (own or urls or [origin + path])[0]

    def valid_audiences(
        self, origins: Iterable[str], path: str, above: str | None, others: frozenset[str]
    ) -> frozenset[str]:
        """Return the audiences accepted at an endpoint.

        These are its URL and the URL of the endpoint `above`, or the configured audiences without the `others`.
        `origins` are the bound origins. The request's Host header is not considered.
        """
        if self.audiences is not None:
            return frozenset(audience for audience in self.audiences if not names_one_of(audience, others))
        bases = origins if self.public_url is None else [self.public_url]
        return frozenset(base + audience for base in bases for audience in (path, above) if audience is not None)

    def metadata_document(self, origin: str, path: str) -> bytes:
        """Return the encoded protected resource metadata of an endpoint."""
        return msgspec.json.encode(
            ProtectedResourceDocument(
                self.resource_uri(origin, path),
                self.authorization_servers,
                self._supported,
                ["header"],
                self._name,
                self._documentation,
                None if self.dpop_validator is None else list(self.dpop_validator.algorithms),
                self.dpop_required,
            )
        )

    @property
    def prefix(self) -> str:
        """Return the path prefix of this server in its public URL."""
        return urlsplit(self.public_url or "").path

    # Challenges

    def challenge_headers(
        self, origin: str, path: str, scopes: Iterable[str] = (), *, error: str | None = None, nonce: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return the header fields of a 401 or 403 response (RFC 6750, section 3; RFC 9449, section 7.1)."""
        parameters: dict[str, str] = {}
        if error is not None:
            parameters["error"] = error
        # RFC 6749, section 3.3: the order is irrelevant. `offline_access` is a matter of the authorization server
        # only.
        scope_text = " ".join(sorted((set(scopes) | self.required_scopes) - {"offline_access"}))
        if scope_text:
            parameters["scope"] = scope_text
        if self.authorization_servers:
            parameters["resource_metadata"] = f"{self.public_url or origin}{WELL_KNOWN_PATH}{path}"
        fields = []
        if not self.dpop_required:
            fields.append((b"www-authenticate", _challenge("Bearer", parameters or {"realm": "mcp"})))
        if self.dpop_validator is not None and (self.dpop_required or nonce or error == "invalid_dpop_proof"):
            dpop_parameters = {**parameters, "algs": " ".join(self.dpop_validator.algorithms)}
            if nonce:
                dpop_parameters["error"] = "use_dpop_nonce"
            # First, so that a client that supports both schemes sees the DPoP error before the Bearer challenge.
            fields.insert(0, (b"www-authenticate", _challenge("DPoP", dpop_parameters)))
        if self.dpop_validator is not None and self.dpop_validator.require_nonce:
            fields.append((b"dpop-nonce", self.dpop_validator.nonce().encode()))
        return fields

    # Verification

    def get_cached(self, credential_bytes: bytes) -> CachedToken | None:
        """Return the cached verification of these credentials, or None."""
        result = self.token_cache.get(hashlib.sha256(credential_bytes).digest())
        return result if result is not None and result.expires_at > self._clock() else None

    def try_verify(self, credential_bytes: bytes, credentials: RequestCredentials) -> CachedToken:
        """Verify without waiting. Raises `VerificationPending`, `InvalidToken` or `VerifierUnavailable`."""
        try:
            return self._cache_token(credential_bytes, self._apply_policy(try_verify(self.verifier, credentials)))
        except (PorticoError, VerificationPending):
            raise
        except Exception:
            log.exception("a verifier failed")
            raise VerifierUnavailable("the verifier failed") from None

    async def verify(self, credential_bytes: bytes, credentials: RequestCredentials) -> CachedToken:
        """Verify, waiting for the issuer if necessary.

        Concurrent requests with the same credentials share one verification.
        """
        key = hashlib.sha256(credential_bytes).digest()
        task = self._pending.get(key)
        if task is None:
            # A slow issuer must not let unverified requests pile up without a bound.
            if len(self._pending) >= MAX_PENDING_VERIFICATIONS:
                raise VerifierUnavailable(f"more than {MAX_PENDING_VERIFICATIONS} tokens wait for verification")
            task = asyncio.get_running_loop().create_task(self._verify(credentials))
            self._pending[key] = task
            task.add_done_callback(partial(self._on_verified, key))
        # Shielded: a cancelled request must not cancel the verification that others wait for.
        return self._cache_token(credential_bytes, await asyncio.shield(task))

    def _on_verified(self, key: bytes, task: asyncio.Task[VerifiedToken]) -> None:
        self._pending.pop(key, None)
        # Retrieve the exception even if every waiter has gone, so that asyncio does not log it.
        if not task.cancelled():
            task.exception()

    async def _verify(self, credentials: RequestCredentials) -> VerifiedToken:
        try:
            async with asyncio.timeout(VERIFICATION_TIMEOUT_SECONDS):
                return self._apply_policy(await self.verifier(credentials))
        except PorticoError:
            raise
        except TimeoutError:
            raise VerifierUnavailable(
                f"the verifier did not answer within {VERIFICATION_TIMEOUT_SECONDS:g} s"
            ) from None
        except Exception:
            log.exception("a verifier failed")
            raise VerifierUnavailable("the verifier failed") from None

    def _apply_policy(self, result: Principal | VerifiedToken | None) -> VerifiedToken:
        if result is None:
            raise InvalidToken("no configured issuer accepts the token")
        verified = result if isinstance(result, VerifiedToken) else VerifiedToken(result)
        if self.dpop_validator is None and verified.dpop_thumbprint is not None:
            raise InvalidToken("the token is bound to a key, but DPoP is off")
        scopes = verified.principal.scopes
        if scopes and self._implied:
            # Resolved here once, so that scope checks elsewhere are plain set operations.
            everything = scopes.union(*(self._implied.get(scope, ()) for scope in scopes))
            verified = replace(verified, principal=replace(verified.principal, scopes=everything))
        # The same subject of two issuers names two users; a display name without the issuer would confuse them.
        if len(self.sources) > 1:
            verified = replace(verified, principal=replace(verified.principal, qualify_by_issuer=True))
        return verified

    def _cache_token(self, credential_bytes: bytes, verified: VerifiedToken) -> CachedToken:
        expires_at = self._clock() + TOKEN_CACHE_TTL_SECONDS
        missing_scopes = verified.principal.missing_scopes(self.required_scopes)
        expires_at = expires_at if verified.expires_at is None else min(expires_at, verified.expires_at)
        is_sufficient = not missing_scopes and verified.dpop_thumbprint is None and not self.dpop_required
        cached_token = CachedToken(verified, expires_at, missing_scopes, is_sufficient)
        # Token file entries are looked up in memory anyway; caching them would delay revocation.
        if not verified.cacheable:
            return cached_token
        # Expired entries go first. If that frees nothing, all are dropped: verifying again is cheaper than an order
        # of use.
        if len(self.token_cache) >= MAX_CACHED_TOKENS:
            now = self._clock()
            for key in [key for key, entry in self.token_cache.items() if entry.expires_at <= now]:
                del self.token_cache[key]
            if len(self.token_cache) >= MAX_CACHED_TOKENS:
                self.clear_cache()
        self.token_cache[hashlib.sha256(credential_bytes).digest()] = cached_token
        return cached_token

    def clear_cache(self) -> None:
        """Drop all cached verifications."""
        # Requests that hold an entry see it expire.
        for value in self.token_cache.values():
            value.expires_at = 0.0
        self.token_cache.clear()

    def revoke(self, revoked: Callable[[Any], bool]) -> None:
        """Close the streams of revoked principals and clear the cache."""
        self.clear_cache()
        for callback in self.on_revoked:
            callback(revoked)

    def is_revoked(self, principal: Any) -> bool:
        """Return whether a principal that was accepted, here or in another process, has been revoked."""
        return any(item.is_revoked(principal) for item in self._revoking)

    def check_revocations(self) -> None:
        """Reload changed token files. Called about every second, because open streams send no token to verify."""
        for file in self._files:
            file.reload_if_changed()

    def _revoke_ids(self, ids: frozenset[str]) -> None:
        self.revoke(lambda principal: getattr(principal, "issuer", None) == ISSUER and principal.id in ids)

    def check_proof(self, verified: VerifiedToken, scheme: str, proof: DpopProof | None) -> tuple[str, float] | None:
        """Check that a bound token comes with a valid proof.

        Returns the id and expiry for the replay cache, or None for a bearer token. Raises `InvalidDpopProof` or
        `InvalidToken`.
        """
        if verified.dpop_thumbprint is None:
            if self.dpop_required or scheme == "dpop":
                raise InvalidToken("the token is not bound to a key")
            return None
        if self.dpop_validator is None or scheme != "dpop":
            # RFC 9449, section 7.2: accepted as a bearer token, it could be used by anyone who has seen it.
            raise InvalidToken("the token is bound to a key and was sent without a DPoP proof")
        if proof is None:
            raise InvalidDpopProof("the DPoP proof is missing", needs_nonce=self.dpop_validator.require_nonce)
        return self.dpop_validator.validate(proof)

    async def close(self) -> None:
        pending = list(self._pending.values())
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=VERIFICATION_TIMEOUT_SECONDS)


def to_resource_server(auth: ResourceServer | Verifier | str) -> ResourceServer:
    """Convert the `auth` argument of `Server` into a ResourceServer."""
    if isinstance(auth, ResourceServer):
        return auth
    if not isinstance(auth, str) and not callable(auth):
        raise UsageError("auth must be a ResourceServer, an issuer URL or an async function")
    return ResourceServer(auth)


def _challenge(scheme: str, parameters: Mapping[str, str]) -> bytes:
    parts = ", ".join(f'{name}="{value}"' for name, value in parameters.items())
    return f"{scheme} {parts}".encode("ascii", "replace")


def _verifiers(
    issuers: str | Verifier | Sequence[str | Verifier], of_issuer: Callable[[str], Verifier]
) -> list[Verifier]:
    entries = [issuers] if isinstance(issuers, str) or callable(issuers) else list(issuers)
    return [of_issuer(item) if isinstance(item, str) else item for item in entries]


def _to_frozenset(value: str | Sequence[str] | None) -> frozenset[str] | None:
    return None if value is None else frozenset([value] if isinstance(value, str) else value)


def _checked_url(url: str) -> str:
    try:
        check_url(url)
    except AuthorizationError as mistake:
        raise UsageError(f"invalid public_url: {mistake}") from None
    if "?" in url or "#" in url or '"' in url:
        raise UsageError(f"public_url must not have a query, a fragment or a quotation mark, got {url!r}")
    return url.rstrip("/")


def _checked_scopes(scopes: Collection[str]) -> frozenset[str]:
    for scope in scopes:
        if not scope or not _SCOPE.issuperset(scope):
            raise UsageError(f"invalid scope {scope!r}: spaces, quotation marks and backslashes are not allowed")
    return frozenset(scopes)


def _closure(implies: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Return the transitive closure of implied scopes."""
    result: dict[str, frozenset[str]] = {}
    for scope in implies:
        reached: set[str] = set()
        # Iterative with a visited set, because the configured implications may form a cycle.
        waiting: list[Any] = [scope]
        while waiting:
            scope_name = waiting.pop()
            if scope_name not in reached:
                reached.add(scope_name)
                waiting.extend(implies.get(scope_name, ()))
        result[scope] = _checked_scopes(reached)
    return result
