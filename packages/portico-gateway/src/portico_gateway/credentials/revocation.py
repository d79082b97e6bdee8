"""Revocation of a user's grants and connected accounts by the operator."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.store.database import Database, parse_database_url
from portico.store.errors import InvalidStatement
from portico.store.keys import configured_keys
from portico_gateway.authserver import store as provider
from portico_gateway.credentials import vault_store as vault
from portico_gateway.credentials.vault_store import CredentialKey

ValueT = TypeVar("ValueT")


class RevocationReport(Struct, frozen=True):
    """Number of revoked grants, and the upstreams that were disconnected."""

    grants: int = 0
    upstreams: tuple[str, ...] = ()


async def revoke_principal(store: str, principal: str, upstream: str | None = None) -> RevocationReport:
    """Revoke all grants and accounts of a principal, or only its account at one upstream.

    `principal` is an ID, or `ISSUER#ID`. Servers with this store apply it immediately: they reject the principal's
    access and refresh tokens. The user may log in again unless the rules, or `allow` of the login, prevent it.

    Raises UsageError if the ID is ambiguous, or if the key of a shared store is not configured.
    """
    if parse_database_url(store)[0] == "postgresql" and not configured_keys():
        raise UsageError("servers ignore changes that are not signed: set PORTICO_ENCRYPTION_KEYS to the servers' key")
    # An issuer has no fragment (RFC 8414, section 2), while an ID may contain any character.
    issuer, _, id = (
        principal.partition("#")
        if principal.startswith(("https://", "http://")) and "#" in principal
        else ("", "", principal)
    )
    async with Database(store, max_connections=1) as database:
        slots = await _run_if_present(database.read(vault.list_keys), [])
        own = [slot for slot in slots if _matches_principal(slot, issuer, id) and upstream in (None, slot.upstream)]
        people = sorted({slot.principal.partition(" ")[0] for slot in own})
        if len(people) > 1:
            raise UsageError(f"{id!r} is ambiguous: it exists at {' and '.join(people)}; use ISSUER#{id}")
        for slot in own:
            await database.write(partial(vault.delete_token, slot=slot))
        grants = 0
        if upstream is None:
            ended = database.write(partial(provider.revoke_user, subject=id, now=time.time()))
            grants = len(await _run_if_present(ended, []))
        return RevocationReport(grants, tuple(slot.upstream for slot in own))


def _matches_principal(slot: CredentialKey, issuer: str, id: str) -> bool:
    slot_issuer, _, subject = slot.principal.partition(" ")
    return subject == id and issuer in ("", slot_issuer)


async def _run_if_present(query: Awaitable[ValueT], absent: ValueT) -> ValueT:
    """Return the result of a database operation, or `absent` if the table does not exist.

    A store may contain the tables of the vault, of the authorization server, or both.
    """
    try:
        return await query
    except InvalidStatement:
        return absent
