"""JWTs that we sign: who a client is (RFC 7523), and that it holds a key (DPoP, RFC 9449).

joserfc is imported when something is signed, not before: most clients never sign anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from portico.auth.errors import RegistrationFailed, quoted
from portico.auth.flow import Fetched
from portico.auth.url_policy import origin_of
from portico.protocol.errors import UsageError

# Long enough for a slow network, short enough that a stolen one is of no use.
_LIFETIME_SECONDS = 120

_ALGORITHMS = {("EC", "P-256"): "ES256", ("EC", "P-384"): "ES384", ("RSA", None): "RS256"}

ALGORITHM = "ES256"

# What a nonce is made of (RFC 9449, section 8.1). Anything else is not put into a proof.
_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")


class SigningKey(Struct, frozen=True):
    """A private key, as PEM or JWK, that an authorization server knows the public half of."""

    private: str
    algorithm: str | None = None  # None: what the kind of key is commonly used with
    id: str | None = None

    def __repr__(self) -> str:
        return f"SigningKey({self.algorithm!r}, {self.id!r})"


def sign(key: Any, algorithm: str, header: dict[str, Any], claims: dict[str, Any]) -> str:
    """A compact JWS over claims."""
    signed: str = _joserfc().jwt.encode({"alg": algorithm, **header}, claims, key, algorithms=[algorithm])
    return signed


def client_assertion(key: SigningKey, client_id: str, issuer: str, offered: list[str] | None, now: float) -> str:
    """Proof that we are a client (RFC 7523, section 2.2). It is for the issuer and says so, to the letter.

    The audience is the issuer and not the token endpoint: an endpoint is what a hostile server may choose freely.
    """
    loaded = load_key(key.private)
    algorithm = key.algorithm or _ALGORITHMS.get((loaded.key_type, getattr(loaded, "curve_name", None)))
    if algorithm is None:
        raise UsageError(f"say which algorithm goes with a key of type {loaded.key_type}: SigningKey(…, algorithm=…)")
    if offered is not None and algorithm not in offered:
        raise RegistrationFailed(
            f"The client {quoted(client_id)} signs with {algorithm}, and {quoted(issuer)} takes "
            f"{', '.join(offered) or 'nothing'}. Register a key of a kind that it takes."
        )
    header = {"typ": "JWT", **({"kid": key.id} if key.id else {})}
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": secrets.token_urlsafe(16),
        "iat": int(now),
        "exp": int(now) + _LIFETIME_SECONDS,
    }
    return sign(loaded, algorithm, header, claims)


def load_key(private: str) -> Any:
    """A private key from PEM or JWK. Symmetric ones are none: who can check with it could sign with it."""
    jwk = _joserfc().jwk
    value: Any = private
    if private.lstrip().startswith("{"):
        value = _load(json.loads, private)
    found = _load(jwk.ECKey.import_key, value) or _load(jwk.RSAKey.import_key, value)
    if found is None or not found.is_private:
        raise UsageError("a signing key is a private key of kind EC or RSA, as PEM or as a JWK")
    return found


def generate_key() -> Any:
    return _joserfc().jwk.ECKey.generate_key("P-256")


def _load(read: Any, value: Any) -> Any:
    errors = _joserfc().errors
    try:
        return read(value)
    except (ValueError, TypeError, KeyError, errors.JoseError):
        return None


def _joserfc() -> ModuleType:
    try:
        import joserfc
        import joserfc.errors
        import joserfc.jwk
        import joserfc.jwt
    except ImportError:
        raise UsageError("signing needs joserfc: pip install 'portico[oauth]'") from None
    return joserfc


class Prover:
    """A key without which a token is of no use, and the nonces that servers want in proofs made with it.

    Every request carries a proof of its own, signed with the key, for its method and its URL. Each origin's nonce is
    kept apart, and the newest is used.
    """

    def __init__(self, clock: Callable[[], float], key: str | None = None, *, digest: bool = False) -> None:
        self._clock = clock
        self._key: Any = generate_key() if key is None else load_key(key)
        self._public: dict[str, Any] = self._key.as_dict(private=False)
        self._nonces: dict[tuple[str, str, int], str] = {}
        # A draft of the MCP extension wants the body in the proof as well; RFC 9449 knows no such claim.
        self._digest = digest

    @property
    def key(self) -> str:
        """The private key, to be kept beside the tokens that are bound to it."""
        return json.dumps(self._key.as_dict(private=True))

    @property
    def thumbprint(self) -> str:
        return str(self._key.thumbprint())

    def proof(self, method: str, url: str, token: str | None = None, body: bytes | None = None) -> str:
        """A proof for one request; never the same twice. With a token, it is bound to that too (section 4.2)."""
        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": urlsplit(url)._replace(query="", fragment="").geturl(),
            "iat": int(self._clock()),
        }
        if token is not None:
            claims["ath"] = base64.urlsafe_b64encode(_sha256(token.encode())).rstrip(b"=").decode()
        if (nonce := self.nonce(url)) is not None:
            claims["nonce"] = nonce
        if self._digest and body is not None:
            claims["content_digest"] = f"sha-256=:{base64.b64encode(_sha256(body)).decode()}:"
        return sign(self._key, ALGORITHM, {"typ": "dpop+jwt", "jwk": self._public}, claims)

    def nonce(self, url: str) -> str | None:
        """What a proof for this URL would have as its nonce."""
        return self._nonces.get(origin_of(url))

    def note(self, url: str, answer: Fetched) -> None:
        """Keep the nonce that an answer brings, whatever its status (section 8.2)."""
        nonce = answer.header("DPoP-Nonce")
        if nonce is not None and _NONCE.fullmatch(nonce):
            self._nonces[origin_of(url)] = nonce


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def verify_signature(token: str, keys: dict[str, Any], algorithms: Sequence[str]) -> dict[str, Any] | None:
    """The claims of a JWT that one of a JWKS' keys signed; None for every other. What they say is not looked at."""
    joserfc = _joserfc()
    try:
        decoded = joserfc.jwt.decode(token, joserfc.jwk.KeySet.import_key_set(keys), algorithms=list(algorithms))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, joserfc.errors.JoseError):
        return None
    claims = decoded.claims
    return claims if isinstance(claims, dict) else None
