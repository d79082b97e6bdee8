"""Signed tokens of others (RFC 7515, 7519): read strictly, and checked with the key that was found for them.

The algorithm is never the token's choice: it has to be one of a list, and one that goes with the key. `none` and what
is signed with a shared secret is not in any list. joserfc is imported when something is checked, not before.
"""

from __future__ import annotations

import re
from binascii import Error as BadBase64
from binascii import a2b_base64
from collections.abc import Collection, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct

from portico.auth.verifiers.base import LONGEST_TOKEN, TokenInvalid
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

# Each with the kind of key that it goes with, and its curve.
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
_FEWEST_BITS = 2048
_MOST_BITS = 8192
_PUBLIC = frozenset({"kty", "n", "e", "crv", "x", "y"})
_PART = re.compile(r"[A-Za-z0-9_-]+")
# Headers by which a token would name its own key (RFC 7515, 4.1.2 to 4.1.6), or change how it is read.
_NAMES_ITS_KEY = ("jku", "jwk", "x5u", "x5c", "crit")


class SignedToken(Struct, frozen=True):
    """The parts of a compact JWS. Nothing in it is to be believed yet."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        return str(self.header.get("alg", ""))


def check_algorithms(names: Collection[str]) -> frozenset[str]:
    """Raises UsageError for one that we do not have, or do not want."""
    for name in names:
        if name not in ALGORITHMS:
            raise UsageError(f"there is no algorithm {name!r} for tokens; there are {', '.join(ALGORITHMS)}")
    return frozenset(names)


def looks_signed(token: str) -> bool:
    return token.count(".") == 2 and token.startswith("eyJ")


def read(token: str) -> SignedToken:
    """The parts of a token. Raises TokenInvalid for what is none."""
    parts = token.split(".", 3)
    if len(token) > LONGEST_TOKEN or len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
        raise TokenInvalid("it is no signed token")
    header, claims = _document(parts[0]), _document(parts[1])
    return SignedToken(header, claims, f"{parts[0]}.{parts[1]}".encode(), _decoded(parts[2]))


def check_header(token: SignedToken, algorithms: Collection[str], *, own_key: bool = False) -> None:
    """Whether the header says nothing that it must not. `own_key`: it brings its key, as a DPoP proof does."""
    if token.algorithm not in algorithms or token.algorithm not in ALGORITHMS:
        raise TokenInvalid("its algorithm is not allowed")
    for name in _NAMES_ITS_KEY:
        if name in token.header and not (own_key and name == "jwk"):
            raise TokenInvalid(f"its header has {name}")


def public_key(document: Mapping[str, Any]) -> Any:
    """A public key from a JWK; None for one that tokens cannot be checked with."""
    jwk = _joserfc().jwk
    kinds = {"RSA": jwk.RSAKey, "EC": jwk.ECKey, "OKP": jwk.OKPKey}
    kind = kinds.get(str(document.get("kty")))
    if kind is None or document.get("use", "sig") != "sig":
        return None
    try:
        key = kind.import_key({name: value for name, value in document.items() if name in _PUBLIC})
        if key.key_type == "RSA" and not _FEWEST_BITS <= key.get_op_key("verify").key_size <= _MOST_BITS:
            return None
    except Exception:
        # A key of another party: whatever is wrong with it, it is none.
        return None
    return key


def pem_key(text: str, algorithm: str) -> Any:
    """A public key as a file has it. Raises UsageError."""
    jwk = _joserfc().jwk
    kind = {"RSA": jwk.RSAKey, "EC": jwk.ECKey, "OKP": jwk.OKPKey}[ALGORITHMS.get(algorithm, ("RSA", None))[0]]
    try:
        key = public_key(kind.import_key(text).as_dict(private=False))
    except Exception:
        # Whatever is wrong with it; what it says may be a secret.
        key = None
    if key is None:
        raise UsageError(f"the public key is none for {algorithm}")
    return key


def fits(key: Any, algorithm: str) -> bool:
    kind, curve = ALGORITHMS[algorithm]
    return bool(key.key_type == kind and (curve is None or key.curve_name == curve))


def is_signed_by(token: SignedToken, key: Any) -> bool:
    if not fits(key, token.algorithm):
        return False
    try:
        return bool(_algorithm(token.algorithm).verify(token.signed, token.signature, key))
    except Exception:
        # What is no signature at all, such as one of another length.
        return False


def thumbprint(key: Any) -> str:
    """RFC 7638."""
    return str(key.thumbprint())


@cache
def _algorithm(name: str) -> Any:
    return _joserfc().jws.JWSRegistry.algorithms[name]


def _document(part: str) -> dict[str, Any]:
    try:
        found = decode_bounded(_decoded(part))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TokenInvalid("it is no signed token") from None
    if not isinstance(found, dict):
        raise TokenInvalid("it is no signed token")
    return found


def _decoded(part: str) -> bytes:
    try:
        return a2b_base64(part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4), strict_mode=True)
    except (BadBase64, ValueError):
        raise TokenInvalid("it is no signed token") from None


@cache
def _joserfc() -> ModuleType:
    try:
        import joserfc
        import joserfc.jwk
        import joserfc.jws
    except ImportError:
        raise UsageError("checking signed tokens needs joserfc: pip install 'portico[oauth]'") from None
    return joserfc


def need_joserfc() -> None:
    """Raises UsageError where it is not installed: at the start, and not with the first request."""
    _joserfc()
