"""Pagination of lists, with protection against endless ones."""

from __future__ import annotations

from typing import Any

MAX_PAGES = 1000
MAX_LIST_ENTRIES = 100_000


class Paginator:
    """Tracks the cursors of one list. It stops whatever the server returns."""

    __slots__ = ("_entries", "_seen_hashes", "truncated")

    def __init__(self) -> None:
        # Hashes only: a cursor may be as long as a message.
        self._seen_hashes: set[int] = set()
        self._entries = 0
        # Whether the list was cut off: a repeated cursor, or too many pages or entries.
        self.truncated = False

    def next_cursor(self, cursor: Any, page_size: int) -> str | None:
        """Return the cursor of the next page, given the size of the last one, or None at the end."""
        if not isinstance(cursor, str):
            return None
        self._entries += page_size
        digest = hash(cursor)
        if digest in self._seen_hashes or len(self._seen_hashes) >= MAX_PAGES - 1 or self._entries >= MAX_LIST_ENTRIES:
            self.truncated = True
            return None
        self._seen_hashes.add(digest)
        return cursor
