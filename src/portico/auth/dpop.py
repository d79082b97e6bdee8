"""DPoP: a token that is of no use without a key (RFC 9449).

Every request carries a proof of its own, signed with the key, for its method and its URL. Servers may want a nonce of
theirs in it; each origin's is kept apart, and the newest is used.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from portico.auth.addresses import origin_of
from portico.auth.assertions import generate_key, load_key, sign
from portico.auth.conversation import Fetched

ALGORITHM = "ES256"

# What a nonce is made of (RFC 9449, section 8.1). Anything else is not put into a proof.
_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")


class Prover:
    """A key, and the nonces that servers want in proofs made with it."""

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
