"""`LruCache`, the bounded mapping behind the caches."""

from __future__ import annotations

import threading

import pytest

from portico.caching import LruCache


def filled(*keys: str, maxsize: int = 3) -> LruCache[str, int]:
    cache: LruCache[str, int] = LruCache(maxsize)
    for value, key in enumerate(keys):
        cache[key] = value
    return cache


def test_least_recently_written_entry_is_evicted() -> None:
    assert list(filled("a", "b", "c", "d")) == ["b", "c", "d"]
    assert list(filled("a", "b", "c", "a", "d")) == ["c", "a", "d"]


def test_get_marks_an_entry_as_used() -> None:
    cache = filled("a", "b", "c")
    assert cache.get("a") == 0
    cache["d"] = 3
    assert list(cache) == ["c", "a", "d"]
    assert cache.get("b") is None
    assert cache.get("b", 7) == 7


def test_setdefault_marks_an_entry_as_used_and_evicts() -> None:
    cache = filled("a", "b", "c")
    assert cache.setdefault("a", 9) == 0
    assert cache.setdefault("d", 3) == 3
    assert list(cache) == ["c", "a", "d"]


def test_peek_and_subscription_leave_the_order_alone() -> None:
    cache = filled("a", "b", "c")
    assert cache.peek("a") == 0 and cache["a"] == 0 and "a" in cache
    cache["d"] = 3
    assert list(cache) == ["b", "c", "d"]
    assert cache.peek("a") is None and cache.peek("a", 5) == 5


def test_falsy_value_is_an_entry() -> None:
    cache: LruCache[str, object] = LruCache(2)
    cache["none"] = None
    assert cache.get("none", "default") is None
    assert cache.setdefault("none", "default") is None


def test_subclasses_can_compute_missing_entries() -> None:
    class Lengths(LruCache[str, int]):
        def __missing__(self, text: str) -> int:
            self[text] = len(text)
            return self[text]

    lengths = Lengths(2)
    assert [lengths[text] for text in ("a", "bb", "ccc", "bb")] == [1, 2, 3, 2]
    assert list(lengths) == ["bb", "ccc"]


def test_cache_without_room_is_rejected() -> None:
    with pytest.raises(ValueError, match="maxsize must be at least 1, got 0"):
        LruCache[str, int](0)


def test_threads_share_a_cache() -> None:
    cache: LruCache[int, int] = LruCache(4)
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for key in range(start, start + 5000):
                cache[key % 11] = key
                cache.get((key + 5) % 11)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert 1 <= len(cache) <= 4
