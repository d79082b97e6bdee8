"""Several streams, each newest first, as one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def newest_first(streams: Sequence[tuple[Any, Callable[[], Iterator[tuple[Any, T]]]]]) -> Iterator[tuple[Any, T]]:
    """The items of all streams by their keys, the largest first.

    A stream is the key of what is newest in it, and how to begin it; it gives each item with its key. It is not begun
    before its turn: of a hundred files that have rotated away, a question about the last hour reads one.
    """
    if len(streams) == 1:
        yield from streams[0][1]()
        return
    waiting = sorted(enumerate(streams), key=lambda numbered: numbered[1][0])
    heap: list[tuple[_Late, T, Iterator[tuple[Any, T]]]] = []
    while waiting or heap:
        while waiting and (not heap or waiting[-1][1][0] >= heap[0][0].key):
            number, (_, begin) = waiting.pop()
            _advance(heap, number, begin(), heapq.heappush)
        if heap:
            late, item, stream = heap[0]
            yield late.key, item
            _advance(heap, late.number, stream, heapq.heapreplace)


class _Late:
    """A key that sorts the other way round; of equal ones, those of the first stream are first."""

    __slots__ = ("key", "number")

    def __init__(self, key: Any, number: int) -> None:
        self.key = key
        self.number = number

    def __lt__(self, other: _Late) -> bool:
        return bool(other.key < self.key or (other.key == self.key and self.number < other.number))


def _advance(heap: list[Any], number: int, stream: Iterator[tuple[Any, T]], put: Callable[[Any, Any], Any]) -> None:
    """Put the next item of a stream on the heap. When it is at its end, take its last one from the top."""
    following = next(stream, None)
    if following is not None:
        put(heap, (_Late(following[0], number), following[1], stream))
    elif put is heapq.heapreplace:
        heapq.heappop(heap)
