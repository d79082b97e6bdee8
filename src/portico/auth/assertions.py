"""JWTs that we sign: who a client is (RFC 7523), and that it holds a key (RFC 9449).

joserfc is imported when something is signed, not before: most clients never sign anything.
"""

from __future__ import annotations

import json
import secrets
from types import ModuleType
from typing import Any

from msgspec import Struct

from portico.auth.errors import RegistrationFailed, quoted
from portico.wire.errors import UsageError

# Long enough for a slow network, short enough that a stolen one is of no use.
_LIFETIME_SECONDS = 120

_ALGORITHMS = {("EC", "P-256"): "ES256", ("EC", "P-384"): "ES384", ("RSA", None): "RS256"}


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
