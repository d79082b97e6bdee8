"""Client-side cache of results that carry caching hints (2026-07-28, server/utilities/caching)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import notifications
from portico.protocol.jsonrpc import encode

# The methods whose results carry caching hints. Other results may use the same member names with another meaning.
CACHEABLE = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "skills/list",
    }
)
# When the cache is full it is cleared as a whole, which is cheaper than tracking use for a client's few entries.
MAX_CACHE_BYTES = 16 * 1024 * 1024
# Upper bound for the `ttlMs` of a server.
MAX_TTL_SECONDS = 24 * 3600.0


class _Hints(Struct, rename="camel"):
    ttl_ms: int = 0
    # A missing scope means private: the specification leaves it open, and a wrong guess leaks one user's data to
    # another.
    cache_scope: str = "private"


class _CachedResult(Struct):
    result: Raw
    until: float


class ResponseCache:
    """Cache of results, keyed by method, params and authenticated identity.

    A cache belongs to one client, so at any time all entries belong to one user.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        # Passed in, so that tests can advance time without waiting.
        self._clock = clock
        self._results: dict[tuple[str, bytes, int], _CachedResult] = {}
        self._size = 0
        # Incremented by every change notification: a response requested before a change and received after it is not
        # cached.
        self.generation = 0

    def get(self, method: str, params: dict[str, Any], identity: int) -> Raw | None:
        """Return the cached result, or None if there is none or it has expired."""
        key = self._key(method, params, identity)
        cached = self._results.get(key)
        if cached is None:
            return None
        if self._clock() < cached.until:
            return cached.result
        self._drop(key)
        return None

    def put(self, method: str, params: dict[str, Any], identity: int, result: Raw, generation: int) -> None:
        """Cache a result if its hints allow it.

        `generation` is the value of `self.generation` when the request was sent.
        """
        if generation != self.generation:
            return
        try:
            hints = msgspec.json.decode(result, type=_Hints)
        except (msgspec.DecodeError, RecursionError):
            return  # invalid hints, so the result is not cached
        size = len(bytes(result))
        # One result may take a quarter of the cache at most, so that it does not evict everything else.
        if hints.ttl_ms <= 0 or size > MAX_CACHE_BYTES // 4:
            return
        if self._size + size > MAX_CACHE_BYTES:
            self.clear()
        key = self._key(method, params, identity)
        self._drop(key)
        self._results[key] = _CachedResult(result, self._clock() + min(hints.ttl_ms, MAX_TTL_SECONDS * 1000) / 1000)
        self._size += size

    def invalidate(self, method: str, uri: str | None = None) -> None:
        """Remove the entries that a change notification makes stale."""
        stale = notifications.CHANGED_LISTS.get(method, ())
        if stale or method == notifications.RESOURCE_UPDATED:
            self.generation += 1
        for key in list(self._results):
            about = method == notifications.RESOURCE_UPDATED and key[0] == "resources/read"
            if key[0] in stale or (about and _names(key[1], uri)):
                self._drop(key)

    def invalidate_list(self, method: str) -> None:
        """Remove all pages of a list: a cached page may hold a cursor that has expired."""
        self.generation += 1
        for key in [key for key in self._results if key[0] == method]:
            self._drop(key)

    def clear(self) -> None:
        self.generation += 1
        self._results.clear()
        self._size = 0

    def _drop(self, key: tuple[str, bytes, int]) -> None:
        cached = self._results.pop(key, None)
        if cached is not None:
            self._size -= len(bytes(cached.result))

    def _key(self, method: str, params: dict[str, Any], identity: int) -> tuple[str, bytes, int]:
        # `_meta` holds tokens and trace ids that differ between otherwise equal requests.
        key_params = {name: value for name, value in sorted(params.items()) if name != "_meta"}
        return method, encode(key_params), identity


def _names(params: bytes, uri: str | None) -> bool:
    """Return whether a notification for `uri` concerns this read.

    A notification for a sub-resource also makes its parent stale (server/resources, Subscriptions).
    """
    read = msgspec.json.decode(params).get("uri", "")
    return uri is None or uri == read or uri.startswith(read.rstrip("/") + "/")
