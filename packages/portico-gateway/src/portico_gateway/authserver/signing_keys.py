"""The keys that the face signs with: one in use, the ones before it known as long as what they signed is valid."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

from msgspec import Struct

from portico.auth.assertions import ALGORITHM, generate_key, load_key, sign
from portico.store.transaction import Transaction
from portico_gateway.authserver.config import FaceSettings
from portico_gateway.authserver.store import KEYS, GrantRow
from portico_gateway.credentials.encryption import KeyRing, Unsealable

log = logging.getLogger("portico.access")

# A clock may be off, and a key outlives the last token that it signed.
_SLACK_SECONDS = 300.0
# What a token says of its person; a login with a thousand groups is cut, and the rules see fewer.
MOST_GROUPS = 200


class _KeyRow(Struct, frozen=True):
    id: str
    private: str
    created_at: float


class FaceKeys:
    """The keys as they were when they were last read. `signing` is None once the newest is too old."""

    def __init__(self, rows: list[_KeyRow], ring: KeyRing, face: FaceSettings, now: float) -> None:
        self._face = face
        rows = sorted(rows, key=lambda row: row.created_at, reverse=True)
        self._keys = {row.id: key for row in rows if (key := _opened(row, ring)) is not None}
        rows = [row for row in rows if row.id in self._keys]
        newest = next(iter(rows), None)
        self.fresh_until = 0.0 if newest is None else newest.created_at + face.key_seconds
        self._signing = None if newest is None or self.fresh_until <= now else newest.id

    @property
    def signing(self) -> str | None:
        return self._signing

    def public(self) -> list[dict[str, Any]]:
        """The JWKS' keys (RFC 7517)."""
        return [
            {**key.as_dict(private=False), "kid": name, "use": "sig", "alg": ALGORITHM}
            for name, key in self._keys.items()
        ]

    def access_token(self, grant: GrantRow, identity: dict[str, Any], now: float) -> str:
        """A token for our own resource (RFC 9068). Its life is short; `gid` names the grant, by which it is revoked."""
        assert self._signing is not None
        claims = {
            **{name: identity[name] for name in ("name", "preferred_username", "email") if identity.get(name)},
            **({"groups": identity["groups"][:MOST_GROUPS]} if identity.get("groups") else {}),
            "iss": self._face.issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": grant.client,
            "scope": grant.scope,
            "iat": int(now),
            "nbf": int(now),
            "exp": int(now + self._face.access_seconds),
            "jti": secrets.token_urlsafe(12),
            "gid": grant.id,
        }
        return sign(self._keys[self._signing], ALGORITHM, {"typ": "at+jwt", "kid": self._signing}, claims)


def _opened(row: _KeyRow, ring: KeyRing) -> Any:
    try:
        return load_key(ring.open(row.private, f"provider_key {row.id}").decode())
    except Unsealable as failure:
        # What it signed is good no longer, and another key is made.
        log.warning("a signing key cannot be used: %s", failure)
        return None


def read_keys(tx: Transaction, ring: KeyRing, face: FaceSettings, now: float) -> FaceKeys:
    rows = tx.all(_KeyRow, "select id, private, created_at from provider_key")
    return FaceKeys(rows, ring, face, now)


def fresh_keys(tx: Transaction, ring: KeyRing, face: FaceSettings, now: float) -> FaceKeys:
    """The keys with one that may sign. Of several processes that need a new one at once, one makes it."""
    tx.lock("provider keys")
    found = read_keys(tx, ring, face, now)
    if found.signing is None:
        name = secrets.token_urlsafe(9)
        private = json.dumps(generate_key().as_dict(private=True)).encode()
        tx.run(
            "insert into provider_key (id, private, created_at) values (:id, :private, :now)",
            {"id": name, "private": ring.seal(private, f"provider_key {name}"), "now": now},
        )
        past = now - face.key_seconds - face.access_seconds - _SLACK_SECONDS
        tx.run("delete from provider_key where created_at < :past", {"past": past})
        tx.publish(KEYS)
        found = read_keys(tx, ring, face, now)
    return found
