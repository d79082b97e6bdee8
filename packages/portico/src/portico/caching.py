"""Bounded mapping for caches that are too large or too long-lived for `functools.lru_cache`."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# None is a valid cached value.
_MISSING: Any = object()


class LruCache(OrderedDict[K, V]):
    """Mapping of at most `maxsize` entries that evicts the least recently used one.

    Writing an entry and reading it with `get` or `setdefault` mark it as used. `peek`, `[]` and `in` are the methods of
    `dict` and do not change the order: use them on hot paths, where a cache rarely fills up.

    Threads may share a cache: an entry that another thread has evicted in the meantime is not an error.
    """

    __slots__ = ("maxsize",)

    def __init__(self, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize must be at least 1, got {maxsize}")
        super().__init__()
        self.maxsize = maxsize

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        try:
            # OrderedDict keeps the position of an existing key, so a rewritten entry has to be moved.
            self.move_to_end(key)
            while len(self) > self.maxsize:
                self.popitem(last=False)
        except KeyError:
            pass

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: T, /) -> V | T: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """Return the value of a key, or the default, and mark the entry as used."""
        value = super().get(key, _MISSING)
        if value is _MISSING:
            return default
        try:
            self.move_to_end(key)
        except KeyError:
            pass
        return value

    def setdefault(self, key: K, default: V) -> V:
        """Return the value of a key, which is set to the default if it is missing, and mark the entry as used."""
        value = self.get(key, _MISSING)
        if value is _MISSING:
            self[key] = value = default
        return cast(V, value)

    if TYPE_CHECKING:

        @overload
        def peek(self, key: K, default: None = None, /) -> V | None: ...
        @overload
        def peek(self, key: K, default: V, /) -> V: ...
        def peek(self, key: K, default: Any = None, /) -> Any:
            """Return the value of a key, or the default, without marking the entry as used."""

    else:
        peek = OrderedDict.get
