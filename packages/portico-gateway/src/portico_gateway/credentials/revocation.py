"""What an operator takes back from a person: what they have let programs do, and the accounts that they connected."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.store.database import Database, parse
from portico.store.errors import BadStatement
from portico.store.keys import configured_keys
from portico_gateway.authserver import store as provider
from portico_gateway.credentials import vault_store as vault
from portico_gateway.credentials.vault_store import CredentialSlot

ValueT = TypeVar("ValueT")


class Revoked(Struct, frozen=True):
    """How many grants have ended, each with its refresh tokens; and the upstreams that were disconnected."""

    grants: int = 0
    upstreams: tuple[str, ...] = ()


async def revoke(store: str, who: str, upstream: str | None = None) -> Revoked:
    """Take back all that a principal has, or one upstream of it. `who` is its id, or `ISSUER#ID`.

    Servers with this store hear of it at once: its access tokens are refused, and its refresh tokens are of no use. It
    may log in again: rules, and `allow` of the login, say whether it may.
    """
    if parse(store)[0] == "postgresql" and not configured_keys():
        raise UsageError(
            "servers ignore a change that is not signed: set PORTICO_SEALING_KEYS to the key that they have"
        )
    # An issuer has no fragment (RFC 8414, section 2); an id may have anything.
    issuer, _, id = who.partition("#") if who.startswith(("https://", "http://")) and "#" in who else ("", "", who)
    async with Database(store, connections=1) as database:
        slots = await _where_it_is(database.read(vault.slots), [])
        own = [slot for slot in slots if _names(slot, issuer, id) and upstream in (None, slot.upstream)]
        people = sorted({slot.principal.partition(" ")[0] for slot in own})
        if len(people) > 1:
            raise UsageError(f"{id!r} is known to {' and '.join(people)}: write ISSUER#{id}")
        for slot in own:
            await database.write(partial(vault.remove, slot=slot))
        grants = 0
        if upstream is None:
            ended = database.write(partial(provider.revoke_person, subject=id, now=time.time()))
            grants = len(await _where_it_is(ended, []))
        return Revoked(grants, tuple(slot.upstream for slot in own))


def _names(slot: CredentialSlot, issuer: str, id: str) -> bool:
    said, _, subject = slot.principal.partition(" ")
    return subject == id and issuer in ("", said)


async def _where_it_is(asked: Awaitable[ValueT], absent: ValueT) -> ValueT:
    """A store may have the one and not the other."""
    try:
        return await asked
    except BadStatement:
        return absent
