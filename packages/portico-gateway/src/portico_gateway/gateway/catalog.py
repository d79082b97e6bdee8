"""Catalog of an upstream: its tools, prompts, resources and templates, shared by all callers or per caller."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import MethodNotFound, ProtocolError, ToolError
from portico.protocol.pagination import MAX_LIST_ENTRIES, Paginator
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call
from portico.rpc.identity import principal_id
from portico_gateway.gateway.catalog_cache import Catalog
from portico_gateway.gateway.catalog_entries import (
    LIST_METHODS,
    CacheHints,
    CatalogEntry,
    parse_cache_hints,
    parse_page,
)
from portico_gateway.gateway.change_listener import ALL_CAPABILITIES
from portico_gateway.gateway.settings import UpstreamSettings

if TYPE_CHECKING:
    from portico_gateway.gateway.upstream import UpstreamResponse

# Maximum number of per-caller catalogs; the least recently used ones are evicted.
MAX_CALLER_CATALOGS = 1000
# Lifetime of a list without cache hints. Afterwards it is refreshed while the old one is served.
DEFAULT_CATALOG_TTL_SECONDS = 60.0
# Minimum age of a caller's catalog before it is refreshed because a requested name is missing.
MIN_REFRESH_SECONDS = 1.0

CatalogFreshness = dict[str, tuple[float, bool]]
"Expiry of each list, and whether it is the same for all users."

Digests = Mapping[str, Sequence[bytes]]
"Digests of the entries of each list, in order."


class _RefCountedEntry(Struct):
    """An entry, and the number of catalogs that contain it."""

    entry: CatalogEntry
    count: int = 0


class RefCountedUnion:
    """Union of catalogs. If entries with the same name differ, the one that was added first counts."""

    def __init__(self) -> None:
        # Method → name → digest → entry.
        self._found: dict[str, dict[str, dict[bytes, _RefCountedEntry]]] = {method: {} for method in LIST_METHODS}
        # Whether the entries changed since the last snapshot.
        self.has_changed = False

    def add(self, lists: Catalog, digests: Digests) -> None:
        for method, entries in lists.items():
            names = self._found[method]
            for entry, digest in zip(entries, digests[method], strict=True):
                same = names.setdefault(entry.key, {})
                self.has_changed |= not same
                same.setdefault(digest, _RefCountedEntry(entry)).count += 1

    def remove(self, lists: Catalog, digests: Digests) -> None:
        for method, entries in lists.items():
            names = self._found[method]
            for entry, digest in zip(entries, digests[method], strict=True):
                same = names[entry.key]
                same[digest].count -= 1
                if not same[digest].count:
                    self.has_changed |= next(iter(same)) == digest
                    del same[digest]
                    if not same:
                        del names[entry.key]

    def snapshot(self) -> tuple[Catalog, Digests]:
        """Return the entries and their digests."""
        self.has_changed = False
        chosen = {m: [next(iter(same.items())) for same in names.values()] for m, names in self._found.items()}
        entries = {
            method: tuple(counted.entry for _, counted in counted_entries) for method, counted_entries in chosen.items()
        }
        return entries, {
            method: [digest for digest, _ in counted_entries] for method, counted_entries in chosen.items()
        }


class CallerCatalog:
    """Lists of an upstream for one caller or for all callers. They are retained while the upstream is unavailable."""

    def __init__(self) -> None:
        self.entries: Catalog = {}
        # Equal for equal entries.
        self.digest = b""
        self.digests: Digests = {}
        self.hints: CatalogFreshness = {}
        self._is_same_for_all = False
        self.is_known = False
        # Loaded from the store, and possibly old.
        self.is_from_cache = False
        # Possibly outdated; not served before a refresh.
        self.is_stale = False
        self.read_at = self.fresh_until = 0.0
        self.refresh_task: asyncio.Task[None] | None = None
        # Time of the first request.
        self.first_requested_at: float | None = None
        # Reason why the caller has no lists, if known.
        self.last_error: ToolError | None = None
        # Whether a page was served without them.
        self.was_missing = False

    @property
    def is_ready(self) -> bool:
        """Return whether the lists can be served."""
        return self.is_known and not self.is_stale

    @property
    def is_fresh(self) -> bool:
        """Return whether no refresh is needed."""
        return self.is_ready and not self.is_from_cache and time.monotonic() < self.fresh_until

    @property
    def is_public(self) -> bool:
        """Return whether all lists are the same for all users, according to the upstream."""
        return self._is_same_for_all and self.is_ready

    def expire_if_old(self) -> None:
        """Mark the lists as stale if they are older than MIN_REFRESH_SECONDS.

        Called when a requested name is missing.
        """
        if time.monotonic() > self.read_at + MIN_REFRESH_SECONDS:
            self.is_stale = True

    def update(
        self, entries: Catalog, hints: CatalogFreshness, *, complete: bool, digests: Digests | None = None
    ) -> None:
        """Replace the entries with those just read.

        `complete` means that all lists were read; `digests` are those of the entries, if known. Entries and hints
        change together: with a new hint alone, old private entries could be served to other callers.
        """
        self.digests = _digests(entries) if digests is None else digests
        # Assigned together, without an await in between, so that no reader sees new entries with old hints.
        self.entries, self.digest, self.hints = entries, _digest(self.digests), hints
        has_hints = all(method in hints for method, listed in entries.items() if listed)
        self._is_same_for_all = has_hints and bool(hints) and all(public for _, public in hints.values())
        self.is_known, self.is_from_cache, self.is_stale, self.last_error = True, False, False, None
        self.read_at = time.monotonic()
        if complete:
            # The shortest promise counts: the lists are fetched together.
            promised = [until for until, _ in self.hints.values() if until > self.read_at]
            self.fresh_until = min(promised, default=self.read_at + DEFAULT_CATALOG_TTL_SECONDS)


class UpstreamCatalog:
    """Catalogs of an upstream, shared or per caller.

    `send` sends a call to the upstream. With `by_principal`, the upstream may list other components for each principal.
    """

    def __init__(
        self, settings: UpstreamSettings, send: Callable[[Call], Awaitable[UpstreamResponse]], *, by_principal: bool
    ) -> None:
        self.shared = CallerCatalog()
        # Incremented when the catalog of a single caller changes.
        self.generation = 0
        self._settings = settings
        self._ask = send
        self._by_principal = by_principal
        # Whether the lists may differ between callers.
        self.is_per_caller = by_principal or bool(settings.forward_headers)
        self._callers: OrderedDict[Hashable, CallerCatalog] = OrderedDict()
        # Union of all catalogs, and the part that each catalog contributed.
        self._merged = RefCountedUnion()
        self._merged_of: dict[CallerCatalog, tuple[Catalog, Digests]] = {}
        self._shared_catalog = CallerCatalog()

    @property
    def is_known(self) -> bool:
        """Return whether the catalog of any caller is known."""
        return any(item.is_known for item in self._distinct())

    # Per-caller catalogs

    def get(self, call: Call | None) -> CallerCatalog:
        """Return a caller's catalog. It is empty if the caller's lists were never fetched."""
        key = self._key(call)
        # A list that the upstream marks as public is the same for everyone, so one copy serves all callers.
        if key is None or self.shared.is_public:
            return self.shared
        caller = self._callers.get(key)
        if caller is None:
            return CallerCatalog()
        self._callers.move_to_end(key)
        return caller

    def get_or_create(self, call: Call | None) -> CallerCatalog:
        """Return a caller's catalog, created if necessary, so that a refresh can fill it."""
        key = self._key(call)
        if key is None or self.shared.is_public:
            return self.shared
        caller = self._callers.setdefault(key, CallerCatalog())
        self._callers.move_to_end(key)
        # Bounds the memory when many users call a gateway; an evicted caller's lists are fetched again at the next
        # request.
        while len(self._callers) > MAX_CALLER_CATALOGS:
            self._evict_oldest()
        return caller

    def _evict_oldest(self, but: CallerCatalog | None = None) -> None:
        """Evict the least recently used catalog and cancel its refresh, whose result would be useless."""
        _, forgotten = self._callers.popitem(last=False)
        if forgotten is but:
            return
        self._remove_from_merged(forgotten)
        if forgotten.refresh_task is not None:
            forgotten.refresh_task.cancel()

    def _key(self, call: Call | None) -> Hashable | None:
        """Return the key that distinguishes callers; None for the local client and where callers are not
        distinguished.
        """
        if call is None or not self.is_per_caller:
            return None
        sent = self._settings.forwarded_headers(call.headers) if self._settings.forward_headers else ()
        if not self._by_principal:
            return sent or None
        principal, local = call.principal, call.address is None
        if principal is None and local and not sent:
            return None
        try:
            # Use the whole principal: with another token the same user may have fewer permissions.
            hash(principal)
        except TypeError:
            principal = principal_id(principal)
        return principal, local, sent

    # Union of all catalogs

    @property
    def merged(self) -> CallerCatalog:
        """Return the union over all callers: for the operator, and to determine which upstream owns a name."""
        # Most per-caller upstreams list the same for everyone. Then the union is that list, and nothing is merged.
        distinct = self._distinct()
        if len(distinct) == 1:
            return distinct[0]
        if self._merged.has_changed:
            entries, digests = self._merged.snapshot()
            self._shared_catalog.update(entries, {}, complete=False, digests=digests)
        return self._shared_catalog

    def _add_to_merged(self, listing: CallerCatalog) -> None:
        """Add the current entries of a catalog to the union, replacing its previous ones."""
        before = self._merged_of.get(listing)
        if before is None or before[1] != listing.digests:
            self._remove_from_merged(listing)
            self._merged_of[listing] = listing.entries, listing.digests
            self._merged.add(listing.entries, listing.digests)

    def _remove_from_merged(self, listing: CallerCatalog) -> None:
        before = self._merged_of.pop(listing, None)
        if before is not None:
            self._merged.remove(*before)

    def _distinct(self) -> list[CallerCatalog]:
        result = {item.digest: item for item in (self.shared, *self._callers.values()) if item.is_known}
        return list(result.values()) or [self.shared]

    def shared_keys(self, method: str) -> set[str]:
        """Return the keys in a list that is shared by callers without a separate catalog."""
        return {entry.key for entry in self.shared.entries.get(method, ())}

    def mark_stale(self) -> None:
        """Mark the catalogs of all callers as stale."""
        self.generation += bool(self._callers)
        for caller in self._callers.values():
            caller.is_stale = True

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel running refreshes and return their tasks."""
        tasks = [item.refresh_task for item in (self.shared, *self._callers.values()) if item.refresh_task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    # Refresh

    def load_cached(self, lists: Catalog) -> None:
        """Load the cached catalog until the upstream has been queried."""
        # Without hints: the stored list may be old, so it is neither fresh nor public.
        self.shared.update(lists, {}, complete=False)
        self.shared.is_from_cache = True
        self._add_to_merged(self.shared)

    async def refresh(
        self,
        listing: CallerCatalog,
        methods: tuple[str, ...],
        call: Call | None,
        on_refused: Callable[[str, ProtocolError], None],
    ) -> list[str]:
        """Fetch lists on behalf of a call and return the methods whose lists changed.

        A list that the upstream rejects does not affect the others. Raises ProtocolError if all are rejected, and
        ToolError.
        """
        before, entries, hints = listing.digests, dict(listing.entries), dict(listing.hints)
        failures: list[ProtocolError] = []
        for method in methods:
            try:
                entries[method], hint = await self._fetch_list(method, call)
            except ProtocolError as failure:
                on_refused(method, failure)
                failures.append(failure)
                # The previous entries remain visible to the callers who had them.
                continue
            hints.pop(method, None)
            if hint is not None:
                hints[method] = (time.monotonic() + hint.seconds, hint.public)
        if len(failures) == len(methods):
            raise failures[0]
        listing = self._resolve_target_catalog(listing, call)
        listing.update(entries, hints, complete=len(methods) == len(LIST_METHODS))
        self._store_catalog(listing, call)
        self._add_to_merged(listing)
        return [method for method in methods if before.get(method, []) != listing.digests.get(method, [])]

    def _resolve_target_catalog(self, listing: CallerCatalog, by: Call | None) -> CallerCatalog:
        """Return the catalog to update: while the lists were fetched, a shared catalog may have become per-caller."""
        if listing is self.shared:
            return listing
        key = self._key(by)
        return self.shared if key is None else self._callers.setdefault(key, CallerCatalog())

    def _store_catalog(self, listing: CallerCatalog, by: Call | None) -> None:
        """Store a refreshed catalog: a public one for all callers, others for the caller.

        Callers with identical entries share them in memory.
        """
        key = self._key(by)
        if key is None:
            return
        if listing.is_public:
            if self.shared is not listing:
                self._remove_from_merged(self.shared)
            self.shared = listing
            while self._callers:
                self._evict_oldest(but=listing)
            return
        if listing is self.shared:
            # The lists were public until now.
            self.shared = CallerCatalog()
        if self._callers.get(key, listing) is not listing:
            self._remove_from_merged(self._callers[key])
        self._callers[key] = listing
        for other in (self.shared, *self._callers.values()):
            if other is not listing and other.digest == listing.digest:
                listing.entries = other.entries
                return

    async def _fetch_list(self, method: str, by: Call | None) -> tuple[tuple[CatalogEntry, ...], CacheHints | None]:
        """Fetch all pages of a list and return its entries and combined cache hints; no hints if the list does not
        exist.
        """
        results: list[CatalogEntry] = []
        hints: CacheHints | None = None
        paging, params = Paginator(), b"{}"
        while True:
            call = Call(
                method=method,
                params=Raw(params),
                id=0,
                protocol_version=FIRST_MODERN_VERSION,
                capabilities=ALL_CAPABILITIES,
            )
            if by is not None and self._key(by) is not None:
                call = replace(call, principal=by.principal, address=by.address, headers=by.headers)
            try:
                answered = await self._ask(call)
                page, cursor = parse_page(method, answered.result, answered.revision, self._settings.alias)
                hint = parse_cache_hints(answered.result)
            except MethodNotFound:
                break
            except (msgspec.DecodeError, RecursionError) as failure:
                raise ToolError(f"{self._settings.alias} returned an invalid list: {failure}") from None
            hints = hint if hints is None else hints.combine(hint)
            results += page
            cursor = paging.next_cursor(cursor, len(page))
            if cursor is None:
                break
            params = jsonrpc.encode({"cursor": cursor})
        return tuple(results[:MAX_LIST_ENTRIES]), hints

    def cache_hints(self, call: Call, method: str) -> tuple[float, bool] | None:
        """Return the remaining lifetime of a list in seconds and whether it is public; None if the list does not
        exist.
        """
        listing = self.get(call)
        if method not in listing.hints:
            return (0.0, False) if listing.entries.get(method) or not listing.is_known else None
        until, public = listing.hints[method]
        return max(0.0, until - time.monotonic()), public and (not self.is_per_caller or listing.is_public)


def _digests(lists: Catalog) -> Digests:
    return {method: [entry.digest() for entry in entries] for method, entries in lists.items()}


def _digest(digests: Digests) -> bytes:
    result: Any = sha256()
    for method in LIST_METHODS:
        result.update(b"%s\0%b" % (method.encode(), b"".join(digests.get(method, ()))))
    return result.digest()  # type: ignore[no-any-return]
