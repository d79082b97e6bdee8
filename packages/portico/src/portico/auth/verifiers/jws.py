"""Strict parsing and verification of compact JWS tokens (RFC 7515, 7519).

The token never chooses the algorithm: it must be in the allowed list and match the key. `none` and the HMAC algorithms
are never allowed. joserfc is imported on the first verification.
"""

from __future__ import annotations

import re
from binascii import Error as BadBase64, a2b_base64
from collections.abc import Collection, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct

from portico.auth.verifiers.base import MAX_TOKEN_CHARS, InvalidToken
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

# Key type and curve of each algorithm.
ALGORITHMS: dict[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
# RFC 7518, section 3.3 requires 2048 bits. Above 8192, a verification takes long enough to be an attack.
_MIN_RSA_BITS = 2048
_MAX_RSA_BITS = 8192
# Private members are dropped before import: a published private key is still only used to verify.
_PUBLIC_MEMBERS = frozenset({"kty", "n", "e", "crv", "x", "y"})
_PART = re.compile(r"[A-Za-z0-9_-]+")
# Headers by which a token would name its own key (RFC 7515, 4.1.2 to 4.1.6), or change how it is parsed.
_FORBIDDEN_HEADERS = ("jku", "jwk", "x5u", "x5c", "crit")


class ParsedJws(Struct, frozen=True):
    """Parts of a compact JWS, not verified yet."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        return str(self.header.get("alg", ""))


def validate_algorithms(names: Collection[str]) -> frozenset[str]:
    """Return the algorithms as a set. Raises UsageError for an unsupported one."""
    for name in names:
        if name not in ALGORITHMS:
            raise UsageError(f"unknown algorithm {name!r} (expected one of {', '.join(ALGORITHMS)})")
    return frozenset(names)


def looks_like_jws(token: str) -> bool:
    """Return whether a token has the shape of a compact JWS."""
    return token.count(".") == 2 and token.startswith("eyJ")


def parse_jws(token: str) -> ParsedJws:
    """Split and decode a compact JWS. Raises InvalidToken."""
    parts = token.split(".", 3)
    if len(token) > MAX_TOKEN_CHARS or len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
        raise InvalidToken("the token is not a valid JWS")
    header, claims = _decode_object(parts[0]), _decode_object(parts[1])
    return ParsedJws(header, claims, f"{parts[0]}.{parts[1]}".encode(), _decode_base64url(parts[2]))


def validate_header(token: ParsedJws, algorithms: Collection[str], *, allow_embedded_key: bool = False) -> None:
    """Raise InvalidToken for a forbidden header. `allow_embedded_key`: a DPoP proof contains its key."""
    if token.algorithm not in algorithms or token.algorithm not in ALGORITHMS:
        raise InvalidToken("the algorithm of the token is not allowed")
    for name in _FORBIDDEN_HEADERS:
        if name in token.header and not (allow_embedded_key and name == "jwk"):
            raise InvalidToken(f"the header {name} is not allowed")


def parse_jwk(document: Mapping[str, Any]) -> Any:
    """Return the public key of a JWK, or None if it cannot verify tokens."""
    jwk = _joserfc().jwk
    kinds = {"RSA": jwk.RSAKey, "EC": jwk.ECKey, "OKP": jwk.OKPKey}
    kind = kinds.get(str(document.get("kty")))
    if kind is None or document.get("use", "sig") != "sig":
        return None
    try:
        key = kind.import_key({name: value for name, value in document.items() if name in _PUBLIC_MEMBERS})
        if key.key_type == "RSA" and not _MIN_RSA_BITS <= key.get_op_key("verify").key_size <= _MAX_RSA_BITS:
            return None
    except Exception:
        # The key comes from another party: any failure means that it is unusable.
        return None
    return key


def parse_pem(text: str, algorithm: str) -> Any:
    """Load a PEM public key for an algorithm. Raises UsageError."""
    jwk = _joserfc().jwk
    kind = {"RSA": jwk.RSAKey, "EC": jwk.ECKey, "OKP": jwk.OKPKey}[ALGORITHMS.get(algorithm, ("RSA", None))[0]]
    try:
        key = parse_jwk(kind.import_key(text).as_dict(private=False))
    except Exception:
        # The text of the exception may contain key material, so it is not reported.
        key = None
    if key is None:
        raise UsageError(f"invalid public key for {algorithm}")
    return key


def key_supports_algorithm(key: Any, algorithm: str) -> bool:
    kind, curve = ALGORITHMS[algorithm]
    return bool(key.key_type == kind and (curve is None or key.curve_name == curve))


def verify_signature(token: ParsedJws, key: Any) -> bool:
    # Prevents algorithm confusion: an EC key never verifies an RSA signature, whatever the header names.
    if not key_supports_algorithm(key, token.algorithm):
        return False
    try:
        return bool(_algorithm(token.algorithm).verify(token.signed, token.signature, key))
    except Exception:
        # Malformed signatures, such as one of the wrong length.
        return False


def thumbprint(key: Any) -> str:
    """Return the JWK thumbprint of a key (RFC 7638)."""
    return str(key.thumbprint())


@cache
def _algorithm(name: str) -> Any:
    return _joserfc().jws.JWSRegistry.algorithms[name]


def _decode_object(part: str) -> dict[str, Any]:
    try:
        bounded = decode_bounded(_decode_base64url(part))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidToken("the token is not a valid JWS") from None
    if not isinstance(bounded, dict):
        raise InvalidToken("the token is not a valid JWS")
    return bounded


def _decode_base64url(part: str) -> bytes:
    try:
        # Strict mode rejects stray characters, so that one token has exactly one spelling.
        return a2b_base64(part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4), strict_mode=True)
    except (BadBase64, ValueError):
        raise InvalidToken("the token is not a valid JWS") from None


@cache
def _joserfc() -> ModuleType:
    try:
        import joserfc
        import joserfc.jwk
        import joserfc.jws
    except ImportError:
        raise UsageError("verifying signed tokens needs joserfc: pip install 'portico[oauth]'") from None
    return joserfc


def require_joserfc() -> None:
    """Raise UsageError if joserfc is not installed, at startup rather than on the first request."""
    _joserfc()
