"""JWTs signed by the client: client assertions (RFC 7523) and DPoP proofs (RFC 9449).

joserfc is imported lazily, on the first signature: most clients never sign anything.
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

from portico.auth.errors import RegistrationError, quote_untrusted
from portico.auth.flow import FetchResponse
from portico.auth.url_policy import origin_of
from portico.protocol.errors import UsageError

# Long enough for a slow network, short enough to make a stolen assertion useless.
_ASSERTION_TTL_SECONDS = 120

# RFC 7518, section 3.1: the algorithms that every provider accepts for these keys; PS256 must be configured.
_ALGORITHMS = {("EC", "P-256"): "ES256", ("EC", "P-384"): "ES384", ("RSA", None): "RS256"}

DPOP_ALGORITHM = "ES256"

# Characters allowed in a nonce (RFC 9449, section 8.1). Other values are never copied into a proof.
_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")


class SigningKey(Struct, frozen=True):
    """Private key, as PEM or JWK, whose public half is registered with an authorization server."""

    private_key: str
    algorithm: str | None = None  # None: the usual algorithm for the key type
    key_id: str | None = None

    def __repr__(self) -> str:
        # The private key must not appear in logs and tracebacks.
        return f"SigningKey({self.algorithm!r}, {self.key_id!r})"


def sign(key: Any, algorithm: str, header: dict[str, Any], claims: dict[str, Any]) -> str:
    """Return a compact JWS over the claims."""
    signed: str = _joserfc().jwt.encode({"alg": algorithm, **header}, claims, key, algorithms=[algorithm])
    return signed


def create_client_assertion(
    key: SigningKey, client_id: str, issuer: str, supported_algorithms: list[str] | None, now: float
) -> str:
    """Return a client assertion (RFC 7523, section 2.2) whose audience is exactly the issuer.

    The audience is the issuer rather than the token endpoint, because a hostile server can choose any endpoint. Raises
    `RegistrationError` if the server does not accept the key's algorithm.
    """
    loaded = load_private_key(key.private_key)
    algorithm = key.algorithm or _ALGORITHMS.get((loaded.key_type, getattr(loaded, "curve_name", None)))
    if algorithm is None:
        raise UsageError(
            f"cannot choose an algorithm for a key of type {loaded.key_type}; pass SigningKey(…, algorithm=…)"
        )
    if supported_algorithms is not None and algorithm not in supported_algorithms:
        raise RegistrationError(
            f"The client {quote_untrusted(client_id)} signs with {algorithm}, but {quote_untrusted(issuer)} "
            f"accepts {', '.join(supported_algorithms) or 'no algorithm'}. Register a key of a supported type."
        )
    header = {"typ": "JWT", **({"kid": key.key_id} if key.key_id else {})}
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": secrets.token_urlsafe(16),
        "iat": int(now),
        "exp": int(now) + _ASSERTION_TTL_SECONDS,
    }
    return sign(loaded, algorithm, header, claims)


def load_private_key(text: str) -> Any:
    """Load a private key from PEM or JWK. Symmetric keys are rejected: a verifier could forge signatures."""
    jwk = _joserfc().jwk
    value: Any = text
    if text.lstrip().startswith("{"):
        value = _load(json.loads, text)
    result = _load(jwk.ECKey.import_key, value) or _load(jwk.RSAKey.import_key, value)
    if result is None or not result.is_private:
        raise UsageError("signing key must be a private EC or RSA key, as PEM or JWK")
    return result


def generate_key() -> Any:
    """Generate a P-256 key for DPoP."""
    return _joserfc().jwk.ECKey.generate_key("P-256")


def _load(load: Any, value: Any) -> Any:
    errors = _joserfc().errors
    try:
        return load(value)
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


class DpopProver:
    """DPoP key pair of a client, with the latest nonce of each origin.

    Every request carries its own proof, signed with the key for that method and URL.
    """

    def __init__(
        self, clock: Callable[[], float], key: str | None = None, *, include_body_digest: bool = False
    ) -> None:
        self._clock = clock
        self._key: Any = generate_key() if key is None else load_private_key(key)
        self._public: dict[str, Any] = self._key.as_dict(private=False)
        # Authorization server and MCP server issue separate nonces (RFC 9449, sections 8 and 9).
        self._nonces: dict[tuple[str, str, int], str] = {}
        # A draft of the MCP extension adds a digest of the body to the proof; RFC 9449 has no such claim.
        self._digest = include_body_digest

    @property
    def private_key(self) -> str:
        """Return the private key as a JWK, to be stored with the tokens that are bound to it."""
        return json.dumps(self._key.as_dict(private=True))

    @property
    def thumbprint(self) -> str:
        """Return the JWK thumbprint of the public key (RFC 7638)."""
        return str(self._key.thumbprint())

    def create_proof(self, method: str, url: str, token: str | None = None, body: bytes | None = None) -> str:
        """Return a new proof for one request; with a token, bind the proof to it (RFC 9449, section 4.2)."""
        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            # RFC 9449, section 4.2: `htu` is the URL without query and fragment.
            "htu": urlsplit(url)._replace(query="", fragment="").geturl(),
            "iat": int(self._clock()),
        }
        if token is not None:
            # Binds the proof to this token: a proof captured with one token cannot be replayed with another.
            claims["ath"] = base64.urlsafe_b64encode(_sha256(token.encode())).rstrip(b"=").decode()
        if (nonce := self.nonce(url)) is not None:
            claims["nonce"] = nonce
        if self._digest and body is not None:
            claims["content_digest"] = f"sha-256=:{base64.b64encode(_sha256(body)).decode()}:"
        return sign(self._key, DPOP_ALGORITHM, {"typ": "dpop+jwt", "jwk": self._public}, claims)

    def nonce(self, url: str) -> str | None:
        """Return the nonce for a proof to this URL, or None."""
        return self._nonces.get(origin_of(url))

    def store_nonce(self, url: str, response: FetchResponse) -> None:
        """Store the nonce of a response, whatever its status (RFC 9449, section 8.2)."""
        nonce = response.header("DPoP-Nonce")
        if nonce is not None and _NONCE.fullmatch(nonce):
            self._nonces[origin_of(url)] = nonce


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def verify_signature(token: str, keys: dict[str, Any], algorithms: Sequence[str]) -> dict[str, Any] | None:
    """Return the claims of a JWT signed by one of the JWKS keys, else None. The claims are not validated."""
    joserfc = _joserfc()
    try:
        decoded = joserfc.jwt.decode(token, joserfc.jwk.KeySet.import_key_set(keys), algorithms=list(algorithms))
    # Keys and tokens come from other parties; any failure to read them means that the signature is not valid.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, joserfc.errors.JoseError):
        return None
    claims = decoded.claims
    return claims if isinstance(claims, dict) else None
