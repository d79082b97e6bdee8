"""Persistent cache of upstream catalogs, served before the first query and during outages."""

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
from portico.protocol.errors import PorticoError
from portico.protocol.json_depth import decode_bounded
from portico.protocol.meta import Implementation
from portico_gateway.gateway.catalog_entries import CatalogEntry
from portico_gateway.gateway.settings import UpstreamSettings

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

MIGRATIONS = Path(__file__).with_name("migrations")
# Rows that were not updated for this long are deleted.
CACHE_TTL_SECONDS = 30 * 24 * 3600.0

log = logging.getLogger("portico.gateway")

Catalog = dict[str, tuple[CatalogEntry, ...]]


class UpstreamFeatures(Struct, frozen=True):
    """Features of an upstream that are cached in addition to its lists."""

    # Sends server-to-client requests that do not name the call to which they belong.
    asks: bool = False
    # Has sessions, that is, speaks a protocol version with a handshake.
    sessions: bool = False
    # Supports tasks, in the design of its protocol version; supports skills.
    tasks: bool = False
    skills: bool = False
    # Did not answer the last connection attempt. Lists do not wait for such an upstream.
    is_unreachable: bool = False
    # Its own description, for clients that see it alone.
    server: Implementation | None = None
    instructions: str | None = None


class _CatalogRow(Struct):
    lists: str


def cache_key(settings: UpstreamSettings) -> str:
    """Return the cache key of an upstream: its alias, location and protocol version."""
    target_key = settings.target.cache_key if settings.target is not None else ""
    return sha256(f"{settings.alias}\0{target_key}\0{settings.protocol_version}".encode()).hexdigest()


class CatalogCache:
    """Cache in the server's store. It is optional: if the store fails, errors are logged and the cache is empty."""

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
        except PorticoError as failure:
            log.warning("cannot cache upstream catalogs: %s", failure)

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def get_catalog(self, settings: UpstreamSettings) -> Catalog | None:
        if self._database is None:
            return None
        try:
            rows = await self._database.read(partial(_select_catalog, key=cache_key(settings)))
            return decode_bounded(rows, type=Catalog) if rows is not None else None
        except (PorticoError, msgspec.DecodeError) as failure:
            log.warning("cannot read the cached catalog of %s: %s", settings.alias, failure)
            return None

    async def put_catalog(self, settings: UpstreamSettings, lists: Catalog) -> None:
        if self._database is None:
            return
        try:
            body = msgspec.json.encode(lists).decode()
            await self._database.write(partial(_upsert_catalog, key=cache_key(settings), body=body))
        except PorticoError as failure:
            log.warning("cannot cache the catalog of %s: %s", settings.alias, failure)

    async def get_features(self, settings: UpstreamSettings) -> UpstreamFeatures:
        if self._database is None:
            return UpstreamFeatures()
        try:
            features = await self._database.read(partial(_select_features, key=cache_key(settings)))
            return UpstreamFeatures() if features is None else msgspec.json.decode(features, type=UpstreamFeatures)
        except (PorticoError, msgspec.DecodeError) as failure:
            log.warning("cannot read the cached features of %s: %s", settings.alias, failure)
            return UpstreamFeatures()

    async def put_features(self, settings: UpstreamSettings, traits: UpstreamFeatures) -> None:
        if self._database is None:
            return
        try:
            body = msgspec.json.encode(traits).decode()
            await self._database.write(partial(_upsert_features, key=cache_key(settings), body=body))
        except PorticoError as failure:
            log.warning("cannot cache the features of %s: %s", settings.alias, failure)


def _select_catalog(tx: Transaction, key: str) -> str | None:
    cached = tx.fetch_optional(_CatalogRow, "select lists from portico_upstream_list where upstream = ?", (key,))
    return None if cached is None else cached.lists


def _upsert_catalog(tx: Transaction, key: str, body: str) -> None:
    now = time.time()
    tx.execute("delete from portico_upstream_list where upstream = ? or kept_at < ?", (key, now - CACHE_TTL_SECONDS))
    tx.execute("insert into portico_upstream_list (upstream, lists, kept_at) values (?, ?, ?)", (key, body, now))


class _FeaturesRow(Struct):
    traits: str


def _select_features(tx: Transaction, key: str) -> str | None:
    cached = tx.fetch_optional(_FeaturesRow, "select traits from portico_upstream_trait where upstream = ?", (key,))
    return None if cached is None else cached.traits


def _upsert_features(tx: Transaction, key: str, body: str) -> None:
    now = time.time()
    tx.execute("delete from portico_upstream_trait where upstream = ? or kept_at < ?", (key, now - CACHE_TTL_SECONDS))
    tx.execute("insert into portico_upstream_trait (upstream, traits, kept_at) values (?, ?, ?)", (key, body, now))
