"""Signing keys of the authorization server: the current key, and previous keys while their tokens are valid."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

from msgspec import Struct

from portico.auth.assertions import DPOP_ALGORITHM, generate_key, load_private_key, sign
from portico.store.transaction import Transaction
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.store import KEYS, GrantRow
from portico_gateway.credentials.encryption import DecryptionFailed, KeyRing

log = logging.getLogger("portico.access")

# Extra lifetime of a key beyond its last token, to allow for clock differences.
_KEY_OVERLAP_SECONDS = 300.0
# Limits the size of access tokens. Policy rules do not see groups beyond this number.
MAX_TOKEN_GROUPS = 200


class _KeyRow(Struct, frozen=True):
    id: str
    private: str
    created_at: float


class SigningKeySet:
    """Key set as of the last read. `signing_key_id` is None if the newest key is too old to sign."""

    def __init__(self, rows: list[_KeyRow], key_ring: KeyRing, settings: AuthorizationServerConfig, now: float) -> None:
        self._settings = settings
        rows = sorted(rows, key=lambda row: row.created_at, reverse=True)
        self._keys = {row.id: key for row in rows if (key := _decrypt_key(row, key_ring)) is not None}
        rows = [row for row in rows if row.id in self._keys]
        newest = next(iter(rows), None)
        self.fresh_until = 0.0 if newest is None else newest.created_at + settings.key_seconds
        self._signing = None if newest is None or self.fresh_until <= now else newest.id

    @property
    def signing_key_id(self) -> str | None:
        return self._signing

    def jwks_keys(self) -> list[dict[str, Any]]:
        """Return the public keys as JWKs (RFC 7517)."""
        return [
            {**key.as_dict(private=False), "kid": name, "use": "sig", "alg": DPOP_ALGORITHM}
            for name, key in self._keys.items()
        ]

    def issue_access_token(self, grant: GrantRow, identity: dict[str, Any], now: float) -> str:
        """Return a signed access token (RFC 9068). Its `gid` claim names the grant, which allows revocation."""
        assert self._signing is not None
        claims = {
            **{name: identity[name] for name in ("name", "preferred_username", "email") if identity.get(name)},
            **({"groups": identity["groups"][:MAX_TOKEN_GROUPS]} if identity.get("groups") else {}),
            "iss": self._settings.issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": grant.client,
            "scope": grant.scope,
            "iat": int(now),
            "nbf": int(now),
            "exp": int(now + self._settings.access_seconds),
            "jti": secrets.token_urlsafe(12),
            "gid": grant.id,
        }
        # RFC 9068, section 2.1: the type keeps other JWTs of this issuer from being accepted as access tokens.
        return sign(self._keys[self._signing], DPOP_ALGORITHM, {"typ": "at+jwt", "kid": self._signing}, claims)


def _decrypt_key(row: _KeyRow, ring: KeyRing) -> Any:
    try:
        return load_private_key(ring.decrypt(row.private, f"provider_key {row.id}").decode())
    except DecryptionFailed as failure:
        # Tokens signed with this key become invalid, and a new key is created.
        log.warning("cannot use a signing key: %s", failure)
        return None


def load_keys(tx: Transaction, key_ring: KeyRing, settings: AuthorizationServerConfig, now: float) -> SigningKeySet:
    rows = tx.fetch_all(_KeyRow, "select id, private, created_at from provider_key")
    return SigningKeySet(rows, key_ring, settings, now)


def rotate_keys(tx: Transaction, key_ring: KeyRing, settings: AuthorizationServerConfig, now: float) -> SigningKeySet:
    """Return the key set, after creating a signing key if necessary.

    The lock ensures that only one process creates a key.
    """
    tx.advisory_lock("provider keys")
    keys = load_keys(tx, key_ring, settings, now)
    if keys.signing_key_id is None:
        name = secrets.token_urlsafe(9)
        private = json.dumps(generate_key().as_dict(private=True)).encode()
        tx.execute(
            "insert into provider_key (id, private, created_at) values (:id, :private, :now)",
            {"id": name, "private": key_ring.encrypt(private, f"provider_key {name}"), "now": now},
        )
        # A key signs until it is rotated, and its last token is valid for another `access_seconds`.
        past = now - settings.key_seconds - settings.access_seconds - _KEY_OVERLAP_SECONDS
        tx.execute("delete from provider_key where created_at < :past", {"past": past})
        tx.publish(KEYS)
        keys = load_keys(tx, key_ring, settings, now)
    return keys
