"""What a server said may be cached, for as long as it said (2026-07-28, server/utilities/caching)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import notifications
from portico.protocol.jsonrpc import encode

# The results that carry hints. Others may have members of the same name, and mean something else by them.
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
MOST_BYTES = 16 * 1024 * 1024
# No promise is believed for longer than this.
LONGEST_SECONDS = 24 * 3600.0

# What each notice makes stale.
_STALE = {
    notifications.TOOLS_CHANGED: ("tools/list",),
    notifications.PROMPTS_CHANGED: ("prompts/list",),
    notifications.RESOURCES_CHANGED: ("resources/list", "resources/templates/list"),
}


class _Hints(Struct, rename="camel"):
    ttl_ms: int = 0
    # Absent is not public: the text does not say, and a wrong guess shows one user's data to another.
    cache_scope: str = "private"


class _CachedResult(Struct):
    result: Raw
    until: float


class Cache:
    """Results by what was asked, and by whom. One client, so all that is cached is for one user at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._results: dict[tuple[str, bytes, int], _CachedResult] = {}
        self._size = 0
        # Grows with each notice of a change: what was asked before one, and comes after it, is not cached.
        self.changes = 0

    def get(self, method: str, params: dict[str, Any], identity: int) -> Raw | None:
        key = self._key(method, params, identity)
        cached = self._results.get(key)
        if cached is None:
            return None
        if self._clock() < cached.until:
            return cached.result
        self._drop(key)
        return None

    def put(self, method: str, params: dict[str, Any], identity: int, said: Raw, since: int) -> None:
        """`since`: what `changes` was when this was asked for."""
        if since != self.changes:
            return
        try:
            hints = msgspec.json.decode(said, type=_Hints)
        except (msgspec.DecodeError, RecursionError):
            return  # no hints that can be read, so nothing is cached
        size = len(bytes(said))
        if hints.ttl_ms <= 0 or size > MOST_BYTES // 4:
            return
        if self._size + size > MOST_BYTES:
            self.clear()
        key = self._key(method, params, identity)
        self._drop(key)
        self._results[key] = _CachedResult(said, self._clock() + min(hints.ttl_ms, LONGEST_SECONDS * 1000) / 1000)
        self._size += size

    def invalidate(self, notice: str, uri: str | None = None) -> None:
        """Forget what a notification says has changed."""
        stale = _STALE.get(notice, ())
        if stale or notice == notifications.RESOURCE_UPDATED:
            self.changes += 1
        for key in list(self._results):
            about = notice == notifications.RESOURCE_UPDATED and key[0] == "resources/read"
            if key[0] in stale or (about and _names(key[1], uri)):
                self._drop(key)

    def forget(self, method: str) -> None:
        """All pages of a list: one of them leads to where nothing is any more."""
        self.changes += 1
        for key in [key for key in self._results if key[0] == method]:
            self._drop(key)

    def clear(self) -> None:
        self.changes += 1
        self._results.clear()
        self._size = 0

    def _drop(self, key: tuple[str, bytes, int]) -> None:
        cached = self._results.pop(key, None)
        if cached is not None:
            self._size -= len(bytes(cached.result))

    def _key(self, method: str, params: dict[str, Any], identity: int) -> tuple[str, bytes, int]:
        asked = {name: value for name, value in sorted(params.items()) if name != "_meta"}
        return method, encode(asked), identity


def _names(params: bytes, uri: str | None) -> bool:
    """Whether this was read there, or above: what changed may be a part of it (server/resources, Subscriptions)."""
    read = msgspec.json.decode(params).get("uri", "")
    return uri is None or uri == read or uri.startswith(read.rstrip("/") + "/")
