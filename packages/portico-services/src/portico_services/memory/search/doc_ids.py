"""The position of a memory in the index: its scope, its thread and its place in the thread, in one number.

    18 bits scope | 29 bits thread | 16 bits place

So the postings of a scope are one range of the index, and the neighbours of a memory are the numbers next to its own.
A memory that belongs to no thread has one for itself, and sits in the middle of it: so its position says that it has no
neighbours, and they are not looked for. A thread that is full goes on in another one; across that seam there are no
neighbours.
"""

from __future__ import annotations

PLACE_BITS, _THREAD_BITS, _SCOPE_BITS = 16, 29, 18
PLACES = 1 << PLACE_BITS
MOST_THREADS = 1 << _THREAD_BITS
MOST_SCOPES = 1 << _SCOPE_BITS
# The place of a memory that belongs to no thread; and how many are in a thread at most, four of them being neighbours.
ALONE = PLACES // 2
MOST_IN_THREAD = ALONE - 4
# How far the scope is to the left, and how many positions it has.
SCOPE_SHIFT = _THREAD_BITS + PLACE_BITS
SCOPE = 1 << SCOPE_SHIFT


def seat(scope: int, thread: int, place: int) -> int:
    return (scope << _THREAD_BITS | thread) << PLACE_BITS | place


def scope_of(seat: int) -> int:
    return seat >> SCOPE_SHIFT


def thread_of(seat: int) -> int:
    """The thread, together with its scope: a number that no other thread has."""
    return seat >> PLACE_BITS


def number_of_thread(seat: int) -> int:
    """The number of the thread in its scope."""
    return thread_of(seat) % MOST_THREADS


def place_of(seat: int) -> int:
    return seat & PLACES - 1


def first_of_scope(scope: int) -> int:
    """The lowest position of a scope; that of the next scope is past the highest."""
    return scope * SCOPE
