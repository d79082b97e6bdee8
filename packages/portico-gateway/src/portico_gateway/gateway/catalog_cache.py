"""The lists of upstreams in the store: what there was is shown before, during and after an outage."""

from __future__ import annotations

import logging
import time
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from portico._lazy import LazyModule
from portico.protocol.errors import Error
from portico.protocol.json_depth import decode_bounded
from portico_gateway.gateway.catalog_entries import ListedEntry
from portico_gateway.gateway.settings import UpstreamSettings

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

MIGRATIONS = Path(__file__).with_name("migrations")
# What is not seen for so long is forgotten.
KEPT_SECONDS = 30 * 24 * 3600.0

log = logging.getLogger("portico.gateway")

Lists = dict[str, tuple[ListedEntry, ...]]


class Traits(Struct, frozen=True):
    """What is known of an upstream besides its lists."""

    # It asks questions that do not say what call they are for.
    asks: bool = False
    # It has sessions, that is, it speaks a revision with a handshake.
    sessions: bool = False
    # It has tasks, in the design of its revision; and skills.
    tasks: bool = False
    skills: bool = False
    # It did not answer when a connection was last tried. No list waits for such an upstream.
    is_unreachable: bool = False


class _Kept(Struct):
    lists: str


def key_of(settings: UpstreamSettings) -> str:
    """An upstream is the same as long as it is called the same and is in the same place."""
    place = settings.target.key if settings.target is not None else ""
    return sha256(f"{settings.alias}\0{place}\0{settings.revision}".encode()).hexdigest()


class KeptLists:
    """None of it is needed: a store that fails costs only what it would have saved."""

    def __init__(self) -> None:
        self._database: Database | None = None

    async def open(self, url: str | None) -> None:
        if url is None:
            return
        try:
            database: Database = await database_module.Database(url).open()
            try:
                await database.migrate("gateway", MIGRATIONS)
            except BaseException:
                await database.close()
                raise
            self._database = database
        except Error as failure:
            log.warning("the lists of upstreams cannot be kept: %s", failure)

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def find(self, settings: UpstreamSettings) -> Lists | None:
        if self._database is None:
            return None
        try:
            rows = await self._database.read(partial(_find, key=key_of(settings)))
            return decode_bounded(rows, type=Lists) if rows is not None else None
        except (Error, msgspec.DecodeError) as failure:
            log.warning("the lists of %s cannot be read: %s", settings.alias, failure)
            return None

    async def keep(self, settings: UpstreamSettings, lists: Lists) -> None:
        if self._database is None:
            return
        try:
            body = msgspec.json.encode(lists).decode()
            await self._database.write(partial(_keep, key=key_of(settings), body=body))
        except Error as failure:
            log.warning("the lists of %s cannot be kept: %s", settings.alias, failure)

    async def find_traits(self, settings: UpstreamSettings) -> Traits:
        if self._database is None:
            return Traits()
        try:
            said = await self._database.read(partial(_find_traits, key=key_of(settings)))
            return Traits() if said is None else msgspec.json.decode(said, type=Traits)
        except (Error, msgspec.DecodeError) as failure:
            log.warning("what is known of %s cannot be read: %s", settings.alias, failure)
            return Traits()

    async def keep_traits(self, settings: UpstreamSettings, traits: Traits) -> None:
        if self._database is None:
            return
        try:
            body = msgspec.json.encode(traits).decode()
            await self._database.write(partial(_keep_traits, key=key_of(settings), body=body))
        except Error as failure:
            log.warning("what is known of %s cannot be kept: %s", settings.alias, failure)


def _find(tx: Transaction, key: str) -> str | None:
    kept = tx.maybe(_Kept, "select lists from portico_upstream_list where upstream = ?", (key,))
    return None if kept is None else kept.lists


def _keep(tx: Transaction, key: str, body: str) -> None:
    now = time.time()
    tx.run("delete from portico_upstream_list where upstream = ? or kept_at < ?", (key, now - KEPT_SECONDS))
    tx.run("insert into portico_upstream_list (upstream, lists, kept_at) values (?, ?, ?)", (key, body, now))


class _KeptTraits(Struct):
    traits: str


def _find_traits(tx: Transaction, key: str) -> str | None:
    kept = tx.maybe(_KeptTraits, "select traits from portico_upstream_trait where upstream = ?", (key,))
    return None if kept is None else kept.traits


def _keep_traits(tx: Transaction, key: str, body: str) -> None:
    now = time.time()
    tx.run("delete from portico_upstream_trait where upstream = ? or kept_at < ?", (key, now - KEPT_SECONDS))
    tx.run("insert into portico_upstream_trait (upstream, traits, kept_at) values (?, ?, ?)", (key, body, now))
