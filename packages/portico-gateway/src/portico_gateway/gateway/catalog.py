"""What an upstream lists: the same to all, or to each caller what is theirs."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import MethodNotFound, ProtocolError, ToolError
from portico.protocol.pagination import MOST_ENTRIES, Paging
from portico.protocol.versions import MODERN
from portico.rpc.call import Call
from portico.rpc.identity import identity_of
from portico_gateway.gateway.catalog_cache import Lists
from portico_gateway.gateway.catalog_entries import LISTS, ListedEntry, ListHints, read_hints, read_page
from portico_gateway.gateway.change_listener import ALL_CAPABILITIES
from portico_gateway.gateway.merged_catalog import Digests, MergedLists
from portico_gateway.gateway.settings import UpstreamSettings

if TYPE_CHECKING:
    from portico_gateway.gateway.upstream import Answered

# Whose own lists are kept: those of who has asked for nothing for longest are forgotten.
MOST_CALLERS = 1000
# How long lists are good that say nothing of it: then they are asked for anew, while the old ones are shown.
CATALOG_SECONDS = 60.0
# How old the lists of a caller are at least, before they are asked for anew because something is not in them.
DOUBT_SECONDS = 1.0

Hints = dict[str, tuple[float, bool]]
"""Of each list until when it is good, and whether it is the same for all users."""


class CallerListing:
    """The lists of an upstream as one caller is given them, or all are. They are kept while the upstream is away."""

    def __init__(self) -> None:
        self.entries: Lists = {}
        # The same where the entries are.
        self.digest = b""
        self.digests: Digests = {}
        self.hints: Hints = {}
        self._is_same_for_all = False
        self.is_known = False
        # They are from the store, and may be of long ago.
        self.is_recalled = False
        # They may be others now, and are not shown before they were asked for anew.
        self.is_stale = False
        self.read_at = self.fresh_until = 0.0
        self.reading: asyncio.Task[None] | None = None
        # When they were asked for first.
        self.began: float | None = None
        # Why the caller is not given any, if that is known.
        self.refusal: ToolError | None = None
        # Whether a page was given without them.
        self.was_missing = False

    @property
    def is_ready(self) -> bool:
        """Whether they can be shown."""
        return self.is_known and not self.is_stale

    @property
    def is_good(self) -> bool:
        """Whether they need not be asked for."""
        return self.is_ready and not self.is_recalled and time.monotonic() < self.fresh_until

    @property
    def is_public(self) -> bool:
        """Whether all of it is the same for all users, as the upstream says."""
        return self._is_same_for_all and self.is_ready

    def doubt(self) -> None:
        """Something is asked for that is not in them."""
        if time.monotonic() > self.read_at + DOUBT_SECONDS:
            self.is_stale = True

    def take(self, entries: Lists, hints: Hints, *, whole: bool, digests: Digests | None = None) -> None:
        """What was read just now; `whole`: all of the lists; `digests`: of the entries, if they are known.

        Entries and hints change together: by a new hint, old entries would be shown to those for whom only the new ones
        are.
        """
        self.digests = _digests(entries) if digests is None else digests
        self.entries, self.digest, self.hints = entries, _digest(self.digests), hints
        told = all(method in hints for method, listed in entries.items() if listed)
        self._is_same_for_all = told and bool(hints) and all(public for _, public in hints.values())
        self.is_known, self.is_recalled, self.is_stale, self.refusal = True, False, False, None
        self.read_at = time.monotonic()
        if whole:
            promised = [until for until, _ in self.hints.values() if until > self.read_at]
            self.fresh_until = min(promised, default=self.read_at + CATALOG_SECONDS)


class UpstreamLists:
    """`ask` sends a call to the upstream. `by_principal`: it may list something else to each principal."""

    def __init__(
        self, settings: UpstreamSettings, ask: Callable[[Call], Awaitable[Answered]], *, by_principal: bool
    ) -> None:
        self.shared = CallerListing()
        # How often something has changed in the lists of single callers.
        self.generation = 0
        self._settings = settings
        self._ask = ask
        self._by_principal = by_principal
        # Whether callers may be given others than the rest.
        self.vary = by_principal or bool(settings.forward)
        self._callers: OrderedDict[Hashable, CallerListing] = OrderedDict()
        # What is in any of them, and what of each is in there.
        self._merged = MergedLists()
        self._merged_of: dict[CallerListing, tuple[Lists, Digests]] = {}
        self._all = CallerListing()

    @property
    def is_known(self) -> bool:
        """Whether those of any caller are."""
        return any(one.is_known for one in self._distinct())

    # Whose they are

    def find(self, call: Call | None) -> CallerListing:
        """What a caller is given, as far as that is known."""
        key = self._key(call)
        if key is None or self.shared.is_public:
            return self.shared
        found = self._callers.get(key)
        if found is None:
            return CallerListing()
        self._callers.move_to_end(key)
        return found

    def begin(self, call: Call | None) -> CallerListing:
        """The same, to be read into."""
        key = self._key(call)
        if key is None or self.shared.is_public:
            return self.shared
        found = self._callers.setdefault(key, CallerListing())
        self._callers.move_to_end(key)
        while len(self._callers) > MOST_CALLERS:
            self._forget_oldest()
        return found

    def _forget_oldest(self, but: CallerListing | None = None) -> None:
        """What is still read for a caller who is forgotten is of no use, and would outlive us."""
        _, forgotten = self._callers.popitem(last=False)
        if forgotten is but:
            return
        self._leave_out(forgotten)
        if forgotten.reading is not None:
            forgotten.reading.cancel()

    def _key(self, call: Call | None) -> Hashable | None:
        """What tells callers apart; None for one who is here, or does not matter."""
        if call is None or not self.vary:
            return None
        sent = self._settings.forwarded(call.headers) if self._settings.forward else ()
        if not self._by_principal:
            return sent or None
        principal, local = call.principal, call.address is None
        if principal is None and local and not sent:
            return None
        try:
            # By all that is known of it: it may do less by another token.
            hash(principal)
        except TypeError:
            principal = identity_of(principal)
        return principal, local, sent

    # Everything

    @property
    def all(self) -> CallerListing:
        """All that is known of whatever caller: for the operator, and to say whose a name is."""
        distinct = self._distinct()
        if len(distinct) == 1:
            return distinct[0]
        if self._merged.has_changed:
            entries, digests = self._merged.look()
            self._all.take(entries, {}, whole=False, digests=digests)
        return self._all

    def _merge(self, listing: CallerListing) -> None:
        """Have what a listing is now among everything."""
        before = self._merged_of.get(listing)
        if before is None or before[1] != listing.digests:
            self._leave_out(listing)
            self._merged_of[listing] = listing.entries, listing.digests
            self._merged.add(listing.entries, listing.digests)

    def _leave_out(self, listing: CallerListing) -> None:
        before = self._merged_of.pop(listing, None)
        if before is not None:
            self._merged.remove(*before)

    def _distinct(self) -> list[CallerListing]:
        found = {one.digest: one for one in (self.shared, *self._callers.values()) if one.is_known}
        return list(found.values()) or [self.shared]

    def shared_keys(self, method: str) -> set[str]:
        """What is in a list that those are given who are not told apart."""
        return {entry.key for entry in self.shared.entries.get(method, ())}

    def changed(self) -> None:
        """The lists of all callers may be others now."""
        self.generation += bool(self._callers)
        for one in self._callers.values():
            one.is_stale = True

    def close(self) -> list[asyncio.Task[None]]:
        """What still reads, and is cancelled."""
        tasks = [one.reading for one in (self.shared, *self._callers.values()) if one.reading is not None]
        for task in tasks:
            task.cancel()
        return tasks

    # Reading

    def recall(self, lists: Lists) -> None:
        """Show what there was when the upstream was last seen, until it is asked."""
        self.shared.take(lists, {}, whole=False)
        self.shared.is_recalled = True
        self._merge(self.shared)

    async def read(
        self,
        listing: CallerListing,
        methods: tuple[str, ...],
        by: Call | None,
        refused: Callable[[str, ProtocolError], None],
    ) -> list[str]:
        """Ask for lists on behalf of a call; gives those that are others now. What is refused hides no other list.
        Raises ProtocolError where all are, and ToolError."""
        before, found, hints = listing.digests, dict(listing.entries), dict(listing.hints)
        failures: list[ProtocolError] = []
        for method in methods:
            try:
                found[method], said = await self._read(method, by)
            except ProtocolError as failure:
                refused(method, failure)
                failures.append(failure)
                # What it listed before is shown on, to those who were shown it.
                continue
            hints.pop(method, None)
            if said is not None:
                hints[method] = (time.monotonic() + said.seconds, said.public)
        if len(failures) == len(methods):
            raise failures[0]
        listing = self._current(listing, by)
        listing.take(found, hints, whole=len(methods) == len(LISTS))
        self._place(listing, by)
        self._merge(listing)
        return [method for method in methods if before.get(method, []) != listing.digests.get(method, [])]

    def _current(self, listing: CallerListing, by: Call | None) -> CallerListing:
        """Where to put what a caller was given: what was the same for all when it was asked for may be another caller's
        by now."""
        if listing is self.shared:
            return listing
        key = self._key(by)
        return self.shared if key is None else self._callers.setdefault(key, CallerListing())

    def _place(self, listing: CallerListing, by: Call | None) -> None:
        """What is the same for all users is theirs. Those who are given the same by chance share it in memory."""
        key = self._key(by)
        if key is None:
            return
        if listing.is_public:
            if self.shared is not listing:
                self._leave_out(self.shared)
            self.shared = listing
            while self._callers:
                self._forget_oldest(but=listing)
            return
        if listing is self.shared:
            # It was the same for all until now.
            self.shared = CallerListing()
        if self._callers.get(key, listing) is not listing:
            self._leave_out(self._callers[key])
        self._callers[key] = listing
        for other in (self.shared, *self._callers.values()):
            if other is not listing and other.digest == listing.digest:
                listing.entries = other.entries
                return

    async def _read(self, method: str, by: Call | None) -> tuple[tuple[ListedEntry, ...], ListHints | None]:
        """All pages of a list, and what they say of it together; None where there is no such list."""
        found: list[ListedEntry] = []
        hints: ListHints | None = None
        paging, params = Paging(), b"{}"
        while True:
            call = Call(method=method, params=Raw(params), id=0, revision=MODERN, capabilities=ALL_CAPABILITIES)
            if by is not None and self._key(by) is not None:
                call = replace(call, principal=by.principal, address=by.address, headers=by.headers)
            try:
                answered = await self._ask(call)
                page, cursor = read_page(method, answered.result, answered.revision, self._settings.alias)
                said = read_hints(answered.result)
            except MethodNotFound:
                break
            except (msgspec.DecodeError, RecursionError) as failure:
                raise ToolError(f"{self._settings.alias} gave no list: {failure}") from None
            hints = said if hints is None else hints.with_page(said)
            found += page
            cursor = paging.after(cursor, len(page))
            if cursor is None:
                break
            params = jsonrpc.encode({"cursor": cursor})
        return tuple(found[:MOST_ENTRIES]), hints

    def hints(self, call: Call, method: str) -> tuple[float, bool] | None:
        """For how many more seconds a list is good, and whether it is the same for all users; None if there is no such
        list."""
        listing = self.find(call)
        if method not in listing.hints:
            return (0.0, False) if listing.entries.get(method) or not listing.is_known else None
        until, public = listing.hints[method]
        return max(0.0, until - time.monotonic()), public and (not self.vary or listing.is_public)


def _digests(lists: Lists) -> Digests:
    return {method: [entry.digest() for entry in entries] for method, entries in lists.items()}


def _digest(digests: Digests) -> bytes:
    found: Any = sha256()
    for method in LISTS:
        found.update(b"%s\0%b" % (method.encode(), b"".join(digests.get(method, ()))))
    return found.digest()  # type: ignore[no-any-return]
