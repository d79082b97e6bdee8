"""Validation of DPoP proofs (RFC 9449): a bound token is accepted only with a fresh signature by its key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from msgspec import Struct

from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import origin_of, split_url
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import InvalidToken, VerifierUnavailable

ALGORITHMS = ("ES256", "ES384", "EdDSA", "PS256", "RS256")
# Maximum age of a proof, and how far ahead the client's clock may be.
MAX_PROOF_AGE_SECONDS = 120.0
MAX_CLOCK_SKEW_SECONDS = 30.0
# A nonce is valid for one to two periods. Clients cache it, so a short period costs them retries.
NONCE_PERIOD_SECONDS = 300
# More than 800 proofs per second for the two minutes that a proof is valid.
MAX_REMEMBERED_PROOFS = 100_000
_MAX_JTI_CHARS = 512


class ReplayCache(Protocol):
    """Cache of proof ids until the proofs expire."""

    def try_add(self, id: str, expires_at: float) -> bool | None:
        """Add an id and return whether it is new, or None if the check has to wait."""
        ...

    async def add(self, id: str, expires_at: float) -> bool:
        """Add an id and return whether it is new."""
        ...


class InvalidDpopProof(InvalidToken):
    """The proof is invalid. `nonce`: it lacks the required nonce."""

    def __init__(self, reason: str, *, needs_nonce: bool = False) -> None:
        super().__init__(reason)
        self.nonce = needs_nonce


class DpopProof(Struct, frozen=True):
    """A proof and the request and token it must match."""

    jwt: str
    method: str
    url: str
    token: str
    # Thumbprint of the key that the token is bound to.
    thumbprint: str


class MemoryReplayCache:
    """In-memory replay cache for one process."""

    def __init__(self, max_entries: int = MAX_REMEMBERED_PROOFS, clock: Callable[[], float] = time.time) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._used_proofs: dict[str, float] = {}

    def try_add(self, id: str, expires_at: float) -> bool:
        if id in self._used_proofs:
            return False
        if len(self._used_proofs) >= self._max_entries:
            self._forget()
        self._used_proofs[id] = expires_at
        return True

    async def add(self, id: str, expires_at: float) -> bool:
        return self.try_add(id, expires_at)

    def _forget(self) -> None:
        """Remove expired ids.

        If the cache stays full, new proofs are refused: evicting a valid id would allow a replay.
        """
        now = self._clock()
        self._used_proofs = {id: until for id, until in self._used_proofs.items() if until > now}
        if len(self._used_proofs) >= self._max_entries:
            raise VerifierUnavailable("the DPoP replay cache is full")


class DpopValidator:
    """Validator of DPoP proofs.

    With `require_nonce`, a proof must contain a nonce issued within the last minutes, so that proofs cannot be made in
    advance. Processes that share `secret` accept each other's nonces.
    """

    def __init__(
        self,
        replay_cache: ReplayCache | None = None,
        *,
        require_nonce: bool = False,
        secret: bytes | None = None,
        algorithms: Collection[str] = ALGORITHMS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configured = replay_cache is not None, secret is not None
        self.replay_cache: ReplayCache = MemoryReplayCache(clock=clock) if replay_cache is None else replay_cache
        self.require_nonce = require_nonce
        self.algorithms = tuple(algorithms)
        self._allowed = jws.validate_algorithms(algorithms)
        self._secret = secret or secrets.token_bytes(32)
        self._clock = clock

    def use_shared(self, replay_cache: ReplayCache, secret: bytes) -> None:
        """Use the replay cache and secret shared by the server's processes, unless they were configured."""
        has_cache, has_secret = self._configured
        self.replay_cache = self.replay_cache if has_cache else replay_cache
        self._secret = self._secret if has_secret else secret

    def validate(self, proof: DpopProof) -> tuple[str, float]:
        """Validate a proof except for replay, and return its id and expiry for the replay cache.

        The order of checks follows RFC 9449, section 4.3. Raises `InvalidDpopProof`.
        """
        try:
            token = jws.parse_jws(proof.jwt)
            jws.validate_header(token, self._allowed, allow_embedded_key=True)
        except InvalidToken as mistake:
            raise InvalidDpopProof(f"invalid DPoP proof: {mistake}") from None
        if token.header.get("typ") != "dpop+jwt":
            raise InvalidDpopProof("invalid DPoP proof: typ must be 'dpop+jwt'")
        jwk = token.header.get("jwk")
        # RFC 9449, section 4.3, 7: the embedded JWK must not contain a private key.
        key = jws.parse_jwk(jwk) if isinstance(jwk, dict) and "d" not in jwk else None
        if key is None or not jws.verify_signature(token, key):
            raise InvalidDpopProof("invalid DPoP proof: not signed by its embedded key")
        if not hmac.compare_digest(jws.thumbprint(key).encode(), proof.thumbprint.encode()):
            raise InvalidDpopProof("invalid DPoP proof: signed by another key than the token is bound to")
        self._check_claims(token.claims, proof)
        expires_at = float(token.claims["iat"]) + MAX_PROOF_AGE_SECONDS
        # With the key, because `jti` is unique per client only; hashed, because clients choose its length.
        id = hashlib.sha256(f"{proof.thumbprint} {token.claims['jti']}".encode()).hexdigest()
        return id, expires_at

    def _check_claims(self, claims: dict[str, Any], proof: DpopProof) -> None:
        if claims.get("htm") != proof.method or not _same_url(claims.get("htu"), proof.url):
            raise InvalidDpopProof("invalid DPoP proof: made for another request (htm, htu)")
        expected = base64.urlsafe_b64encode(hashlib.sha256(proof.token.encode()).digest()).rstrip(b"=")
        token_hash = claims.get("ath")
        if not isinstance(token_hash, str) or not hmac.compare_digest(token_hash.encode(), expected):
            raise InvalidDpopProof("invalid DPoP proof: made for another token (ath)")
        issued_at, id = claims.get("iat"), claims.get("jti")
        # bool is an int in Python; `iat: true` is not a time.
        if isinstance(issued_at, bool) or not isinstance(issued_at, int | float):
            raise InvalidDpopProof("invalid DPoP proof: iat is missing")
        if not -MAX_CLOCK_SKEW_SECONDS <= self._clock() - issued_at <= MAX_PROOF_AGE_SECONDS:
            raise InvalidDpopProof("invalid DPoP proof: too old or in the future (iat)")
        if not isinstance(id, str) or not 0 < len(id) <= _MAX_JTI_CHARS:
            raise InvalidDpopProof("invalid DPoP proof: jti is missing")
        if self.require_nonce and not self._is_valid_nonce(claims.get("nonce")):
            raise InvalidDpopProof("invalid DPoP proof: nonce is missing or has expired", needs_nonce=True)

    def nonce(self, periods_ago: int = 0) -> str:
        """Return the current nonce, or the one of `periods_ago` periods before."""
        moment = int(self._clock()) // NONCE_PERIOD_SECONDS - periods_ago
        # Derived from time and secret, so that nothing has to be stored and every worker accepts it.
        digest = hmac.digest(self._secret, b"dpop nonce %d" % moment, "sha256")
        return base64.urlsafe_b64encode(digest[:18]).decode()

    def _is_valid_nonce(self, nonce: Any) -> bool:
        # The previous nonce is still accepted, so that a proof made just before the change succeeds.
        valid = (self.nonce().encode(), self.nonce(1).encode())
        return isinstance(nonce, str) and any(hmac.compare_digest(nonce.encode(), item) for item in valid)


def _same_url(claim: Any, url: str) -> bool:
    """Return whether two URLs are equal without query and fragment (RFC 9449, section 4.3, 9)."""
    try:
        if not isinstance(claim, str) or origin_of(claim) != origin_of(url):
            return False
        return (split_url(claim).path or "/") == (split_url(url).path or "/")
    except UnsafeUrl:
        return False
