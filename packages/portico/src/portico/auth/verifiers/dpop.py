"""DPoP (RFC 9449): a token that is bound to a key is of use only to who can sign with that key, each request anew."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from msgspec import Struct

from portico.auth.errors import UnsafeAddress
from portico.auth.url_policy import origin_of, split
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import TokenInvalid, Unavailable

ALGORITHMS = ("ES256", "ES384", "EdDSA", "PS256", "RS256")
# How old a proof may be, and how far ahead the client's clock.
LONGEST_SECONDS = 120.0
AHEAD_SECONDS = 30.0
NONCE_SECONDS = 300
MOST_REMEMBERED = 100_000
_LONGEST_ID = 512


class Replays(Protocol):
    """Remembers proofs until they are too old to be taken."""

    def at_once(self, id: str, until: float) -> bool | None:
        """Whether it is new; None if that takes longer."""
        ...

    async def add(self, id: str, until: float) -> bool:
        """Whether it is new."""
        ...


class ProofInvalid(TokenInvalid):
    """The proof is not good. `nonce`: because it has not the nonce that it should have."""

    def __init__(self, reason: str, *, nonce: bool = False) -> None:
        super().__init__(reason)
        self.nonce = nonce


class Proof(Struct, frozen=True):
    """What a proof has to be about."""

    text: str
    method: str
    url: str
    token: str
    # The thumbprint of the key that the token is bound to.
    key: str


class RecentProofs:
    """In memory: for one process."""

    def __init__(self, most: int = MOST_REMEMBERED, clock: Callable[[], float] = time.time) -> None:
        self._most = most
        self._clock = clock
        self._seen: dict[str, float] = {}

    def at_once(self, id: str, until: float) -> bool:
        if id in self._seen:
            return False
        if len(self._seen) >= self._most:
            self._forget()
        self._seen[id] = until
        return True

    async def add(self, id: str, until: float) -> bool:
        return self.at_once(id, until)

    def _forget(self) -> None:
        """Those that have ended. A full table refuses what is new: to forget one that is good would let it in twice."""
        now = self._clock()
        self._seen = {id: until for id, until in self._seen.items() if until > now}
        if len(self._seen) >= self._most:
            raise Unavailable("too many proofs are remembered")


class ProofChecker:
    """Looks at the proofs of requests.

    With `nonces` a proof has to have a number that we gave out in the last minutes, so that none can be made in
    advance. Processes that share `secret` take each other's.
    """

    def __init__(
        self,
        replays: Replays | None = None,
        *,
        nonces: bool = False,
        secret: bytes | None = None,
        algorithms: Collection[str] = ALGORITHMS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._given = replays is not None, secret is not None
        self.replays: Replays = RecentProofs(clock=clock) if replays is None else replays
        self.nonces = nonces
        self.algorithms = tuple(algorithms)
        self._allowed = jws.check_algorithms(algorithms)
        self._secret = secret or secrets.token_bytes(32)
        self._clock = clock

    def share(self, replays: Replays, secret: bytes) -> None:
        """Use what the processes of one server have in common, unless something else was given."""
        has_replays, has_secret = self._given
        self.replays = self.replays if has_replays else replays
        self._secret = self._secret if has_secret else secret

    def check(self, proof: Proof) -> tuple[str, float]:
        """Everything but whether it is new: for that, its id and until when it is to be remembered.

        The order is that of RFC 9449, section 4.3. Raises ProofInvalid.
        """
        try:
            token = jws.read(proof.text)
            jws.check_header(token, self._allowed, own_key=True)
        except TokenInvalid as mistake:
            raise ProofInvalid(f"the proof is not good: {mistake}") from None
        if token.header.get("typ") != "dpop+jwt":
            raise ProofInvalid("the proof is none (typ)")
        document = token.header.get("jwk")
        key = jws.public_key(document) if isinstance(document, dict) and "d" not in document else None
        if key is None or not jws.is_signed_by(token, key):
            raise ProofInvalid("the proof is not signed by the key that it brings")
        if not hmac.compare_digest(jws.thumbprint(key).encode(), proof.key.encode()):
            raise ProofInvalid("the proof is by another key than the token is bound to")
        self._check_claims(token.claims, proof)
        until = float(token.claims["iat"]) + LONGEST_SECONDS
        id = hashlib.sha256(f"{proof.key} {token.claims['jti']}".encode()).hexdigest()
        return id, until

    def _check_claims(self, claims: dict[str, Any], proof: Proof) -> None:
        if claims.get("htm") != proof.method or not _same_place(claims.get("htu"), proof.url):
            raise ProofInvalid("the proof is for another request (htm, htu)")
        expected = base64.urlsafe_b64encode(hashlib.sha256(proof.token.encode()).digest()).rstrip(b"=")
        said = claims.get("ath")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), expected):
            raise ProofInvalid("the proof is for another token (ath)")
        made, id = claims.get("iat"), claims.get("jti")
        if isinstance(made, bool) or not isinstance(made, int | float):
            raise ProofInvalid("the proof has no iat")
        if not -AHEAD_SECONDS <= self._clock() - made <= LONGEST_SECONDS:
            raise ProofInvalid("the proof is too old, or from the future (iat)")
        if not isinstance(id, str) or not 0 < len(id) <= _LONGEST_ID:
            raise ProofInvalid("the proof has no jti")
        if self.nonces and not self._is_ours(claims.get("nonce")):
            raise ProofInvalid("the proof has not the nonce that it should have", nonce=True)

    def nonce(self, ago: int = 0) -> str:
        """What proofs have to have now, or had to have so many periods ago."""
        moment = int(self._clock()) // NONCE_SECONDS - ago
        digest = hmac.digest(self._secret, b"dpop nonce %d" % moment, "sha256")
        return base64.urlsafe_b64encode(digest[:18]).decode()

    def _is_ours(self, said: Any) -> bool:
        good = (self.nonce().encode(), self.nonce(1).encode())
        return isinstance(said, str) and any(hmac.compare_digest(said.encode(), one) for one in good)


def _same_place(said: Any, url: str) -> bool:
    """Whether two URLs are the same without query and fragment (RFC 9449, section 4.3, 9)."""
    try:
        if not isinstance(said, str) or origin_of(said) != origin_of(url):
            return False
        return (split(said).path or "/") == (split(url).path or "/")
    except UnsafeAddress:
        return False
